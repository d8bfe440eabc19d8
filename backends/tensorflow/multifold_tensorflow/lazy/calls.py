"""Calls: a function of one example with all its arguments but tensors, run for all examples as a graph.

The graph takes any number of rows, so it is made once for each kind of call. It runs them together
(`tf.vectorized_map`), or one after the other where TensorFlow cannot (`tf.map_fn`): then `explain` says so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import optree
import tensorflow as tf

from multifold import trusted
from multifold.errors import RecordError
from multifold.lazy.beyond import refuse_reseeded
from multifold.lazy.current import Recording, recording_of, refusal
from multifold.lazy.finding import FoundCompiled
from multifold.lazy.forms import PendingForm
from multifold.lazy.keeping import KeepingWatch
from multifold.lazy.operators import CompiledCall
from multifold.lazy.straight import Crooked
from multifold_tensorflow.lazy.graphs import assigned_by, is_random, refuse_unfit
from multifold_tensorflow.lazy.pending import refuse_stopped, refused
from multifold_tensorflow.trials import (
    DRAWN,
    apart,
    global_attribute,
    layers_of,
    set_global_attribute,
    taped,
)

SCOPES = "current_call_ctx", "autocast_scope"
"""What layers of Keras hand on to those inside of them: whether they are trained, and in which dtype."""


class LayerModes:
    """What Keras layers hand on to layers inside of them, in this thread, when this was made.

    That is whether they are trained, and the dtype that they cast to. ``key`` is equal for equal modes.
    """

    def __init__(self) -> None:
        context, autocast = self.scopes = [global_attribute(name) for name in SCOPES]
        # The context of a call also names the layer that has opened it, which does not matter here.
        named = {} if context is None else {**vars(context), "entry_layer": None}
        self.key = str(named), getattr(autocast, "dtype", None)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Return a context in which layers find these modes, as if an outer layer had set them."""
        before = [global_attribute(name) for name in SCOPES]
        try:
            for name, value in zip(SCOPES, self.scopes, strict=True):
                set_global_attribute(name, value)
            yield
        finally:
            for name, value in zip(SCOPES, before, strict=True):
                set_global_attribute(name, value)


def graph_now() -> Any:
    """Return the graph that TensorFlow draws now; None while it is eager."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def modes() -> Any:
    """Return a hashable that two calls of one kind must have in common, besides their arguments.

    It is None outside of layers, and ``LayerModes().key`` inside of one. Raises `RecordError` if the
    program draws another graph than the one that its run began in, or has stopped a tape.
    """
    refuse_stopped()
    if graph_now() is not recording_of().recorder.graph:
        raise refused(
            "A tf.function of the program has met a tensor that is not computed yet.",
            "make a cell of it by multifold.cell or cells=[...], or put tf.function around the run.",
        )
    return None if global_attribute(SCOPES[0]) is global_attribute(SCOPES[1]) is None else LayerModes().key


@trusted  # it runs each row as the loop does, so it cannot mix them
class TensorCall(CompiledCall):
    """A function of TensorFlow for one example, run for all examples of a launch as one graph."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.modes = LayerModes()
        self.results: list[tf.TensorSpec] = []
        self.nested: Any = None
        self.variables: Sequence[Any] = ()
        self.run: Any = None

    def tensors(self, own: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """Run the function for one example; return the tensors of its result as a flat list.

        ``own`` are the operands that each example has of its own, of this example; ``operands`` are all
        operands, of which those shared by the examples are used.
        """
        rows = iter(own)
        filled = [x if same else next(rows) for same, x in zip(self.shared, operands, strict=True)]
        return self.checked(self.traced(*filled))

    def checked(self, found: Any) -> list[Any]:
        """Return the tensors of a result as a flat list, and keep their shapes and how they are nested.

        Raises `RecordError` for a result that holds no tensors or other values besides, has a mask of
        Keras, or has a shape that depends on values.
        """
        results, structure = optree.tree_flatten(found)
        if not results or not all(map(tf.is_tensor, results)):
            raise refused(
                f"Expected {self.__name__} to return tensors. Received {found!r}.",
                "return the rest outside of the cell.",
            )
        for x in results:
            refuse_mask(x)
        if not all(x.shape.is_fully_defined() for x in results):
            raise refused(
                f"{self.__name__} cannot be recorded: the shape of its result depends on values.",
                "give it values that are read, as x.numpy().",
            )
        self.results = [tf.TensorSpec(x.shape, x.dtype) for x in results]
        self.nested = None if found is results[0] else structure
        return results

    def together(self, *operands: Any) -> list[Any]:
        """Run the function for all examples by `tf.vectorized_map`; return tensors, each ``(n, *s)``."""
        own = self.batched(operands)
        found = tf.vectorized_map(
            lambda rows: self.body(rows, operands), own, fallback_to_while_loop=False, warn=False
        )
        return list(found)

    def one_by_one(self, *operands: Any) -> list[Any]:
        """Run the function for one example after the other, by `tf.map_fn`; return as `together` does."""
        own = self.batched(operands)
        specs = self.results
        return list(tf.map_fn(lambda rows: self.tensors(rows, operands), own, fn_output_signature=specs))

    def body(self, rows: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """Run the function for one example, as `tensors`, while `tf.vectorized_map` draws it.

        Raises `NotImplementedError` if it draws by a seed of Keras, or has operations that TensorFlow does
        not run as it should for all examples: then they cannot run together.
        """
        found = self.tensors(rows, operands)
        graph = tf.compat.v1.get_default_graph()
        if assigned_by(self.__name__, graph):
            raise NotImplementedError("All rows would get the numbers of one seed.")
        refuse_unfit(graph)
        return found

    def batched(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Return the operands of which each example has its own row, without the shared ones."""
        return tuple([x for same, x in zip(self.shared, operands, strict=True) if not same])

    def learn(self, recording: Recording, forms: Sequence[PendingForm]) -> tuple[Sequence[Any], Any]:
        self.build(recording, forms)
        pairs = zip(self.shared, forms, strict=True)
        specs = [tf.TensorSpec(form.shape if s else (None, *form.shape), form.dtype) for s, form in pairs]
        with recording.aside(self.owners()) as kept, self.modes.applied(), taped():
            watch = KeepingWatch(kept)
            try:
                with quiet():
                    self.run = graph_of(self.together, specs)
            # What `tf.vectorized_map` cannot convert raises any of these.
            except (ValueError, NotImplementedError, TypeError, AssertionError) as error:
                if isinstance(error, RecordError):
                    raise
                if not self.results:  # something is wrong with the call itself
                    self.one(*ones(forms))  # raises what it raises in the loop, without a graph
                    raise
                self.run = graph_of(self.one_by_one, specs)
                self.runs_by_rows()
            finally:
                self.refuse_kept(recording)
            self.refuse_keeping(kept, watch, lambda: graph_of(self.one_by_one, specs))
        self.variables = self.run.graph.variables
        if is_random(self.run.graph):
            refuse_own_draws(recording, self.__name__)
        return self.results, self.nested

    def owners(self) -> list[Any]:
        """Return the functions, layers and objects that may change when the call is traced: here none."""
        return []

    def build(self, recording: Recording, forms: Sequence[PendingForm]) -> None:
        """Run the call once on ones if a layer in it is not built, so that it makes its weights.

        These weights stay.
        """
        parts = [x for owner in self.owners() for x in recording.reached(owner)]
        if any(not x.built and type(x).build not in NEVER_BUILT for x in layers_of(parts)):
            with recording.paused(), apart(), self.modes.applied():
                self.one(*ones(forms))

    def refuse_kept(self, recording: Recording) -> None:
        """Reset masks of dropout that cells of Keras kept for the next call, and losses that layers keep.

        Raise `RecordError` if there were any.
        """
        layers = layers_of([x for owner in self.owners() for x in recording.reached(owner)])
        losing = [x for x in layers if any(map(is_symbolic, x._losses))]
        for layer in losing:
            layer._losses.clear()
        if losing:
            raise refused(
                f"{self.__name__} adds to the losses of {losing[0].name}, which has those of one call.",
                "return what it adds, as regularizer(y), in the place of activity_regularizer or add_loss.",
            )
        kept = [x for x in layers if any(map(is_symbolic, map(vars(x).get, MASKS)))]
        for layer in kept:
            layer.reset_dropout_mask()
            layer.reset_recurrent_dropout_mask()
        if kept:
            raise refused(
                f"{self.__name__} keeps a mask of dropout, which its next call would use, too.",
                "let keras.layers.RNN call it, or drop inputs and states by keras.layers.Dropout.",
            )

    def __call__(self, *operands: Any) -> Any:
        rows = self.batched(operands)[0].shape[0]
        if rows == 1:  # tf.squeeze under tf.vectorized_map would drop the axis of one row
            operands = tuple(self.mapped(lambda x: tf.concat([x, x], 0), operands))
            found = [x[:1] for x in self.run(*operands)]
        else:
            found = self.run(*operands)
        return found[0] if self.nested is None else tuple(found)


class TensorCell(TensorCall):
    """A function of the program that is marked as a cell, or a layer, recorded as one call."""

    is_cell = True

    def owners(self) -> list[Any]:
        return [self.func, *self.leaves]


class FoundTensors(FoundCompiled, TensorCell):
    """A call of a found cell."""

    def checked(self, found: Any) -> list[Any]:
        if not all(isinstance(x, tf.Tensor) for x in optree.tree_leaves(found)):
            raise Crooked("it returns other things than tensors")
        return super().checked(found)

    def refuse_unfit(self) -> None:
        super().refuse_unfit()
        if is_random(self.run.graph):
            raise Crooked("it draws random numbers")


class TensorRows(TensorCell):
    """A cell that the user wrote for rows: it takes ``(n, *s)``, and runs as it is, without a graph."""

    multifold_mark = None  # it is the user's code on rows, so it is tried as any op is

    def learn(self, recording: Recording, forms: Sequence[PendingForm]) -> tuple[Sequence[Any], Any]:
        self.build(recording, forms)
        aside = recording.aside(self.owners())
        with aside as kept, self.modes.applied(), tf.GradientTape() as tape:
            watch = KeepingWatch(kept)
            self.checked(self.one(*ones(forms)))
            if kept.drew(kept.before):
                refuse_own_draws(recording, self.__name__)
            self.refuse_keeping(kept, watch, lambda: self.one(*ones(forms)))
        self.variables = tape.watched_variables()
        return self.results, self.nested

    def __call__(self, *operands: Any) -> Any:
        with self.modes.applied():
            found = [x[:, None] for x in self.checked(self.one(*self.mapped(self.as_rows, operands)))]
        return found[0] if self.nested is None else tuple(found)


MASKS = "_dropout_mask", "_recurrent_dropout_mask"
"""Where cells of Keras keep masks of dropout."""


def is_symbolic(x: Any) -> bool:
    """Return whether ``x``, or its first entry if it is a list or tuple, is a tensor without a value."""
    part = x[0] if isinstance(x, (list, tuple)) else x
    return tf.is_tensor(part) and not hasattr(part, "numpy")


def refuse_mask(x: Any) -> None:
    """Raise `RecordError` if ``x`` has a mask of Keras, which recorded calls do not hand on."""
    if getattr(x, "_keras_mask", None) is not None:
        raise refused(
            "A layer of Keras, as Embedding(mask_zero=True), makes a mask for the layers after it.",
            "make a cell of a function that calls all of them, or pass mask= to the layer that needs it.",
        )


NEVER_BUILT = keras.layers.Layer.build, keras.Model.build
"""Those of layers and models that make no weights of their own."""


def ones(forms: Sequence[PendingForm]) -> list[Any]:
    """Return tensors, one for each of ``forms``, in order: ones of its shape and dtype, or zeros.

    They are zeros for other dtypes than floats, since an op may look something up by integers.
    """
    return [tf.cast(tf.fill(x.shape, 1 if x.dtype.is_floating else 0), x.dtype) for x in forms]


def graph_of(function: Any, specs: Sequence[tf.TensorSpec]) -> Any:
    """Return ``function`` as a concrete function, one graph, for tensors like ``specs``.

    Raises `RecordError` if it looks at a value while it is drawn.
    """
    DRAWN.graph()
    try:
        return tf.function(function, autograph=False).get_concrete_function(*specs)
    except (TypeError, AttributeError, NotImplementedError) as error:
        if "symbolic" not in str(error).lower():
            raise
        raise refused(
            "A cell looks at a value, which is another one for each example.",
            "read it outside of the cell, or use tf.where or tf.cond in it.",
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Return a context in which TensorFlow logs no errors: the caller handles them."""
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel("CRITICAL")
    try:
        yield
    finally:
        logger.setLevel(before)


def refuse_own_draws(recording: Recording, name: str) -> None:
    """Raise `RecordError` for a call that draws in a program with seeds; ``name`` is that of the call."""
    hint = "draw outside of it, as tf.random.uniform(x.shape), and pass what was drawn; or do not seed."
    if recording.seed is not None:
        raise refusal(
            f"{name} draws random numbers for all examples at once, not those of the loop, as seed= wants.",
            hint,
        )
    refuse_reseeded(recording, name, hint)
