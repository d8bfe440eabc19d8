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
from multifold.lazy.current import Recording, recording_of
from multifold.lazy.forms import PendingForm
from multifold.lazy.operators import CompiledCall
from multifold_tensorflow.trials import SEEDS, apart, global_attribute, layers_of, set_global_attribute

SCOPES = "current_call_ctx", "autocast_scope"
"""What layers of Keras hand on to those inside of them: whether they are trained, and in which dtype."""


class LayerModes:
    """What layers hand on in this thread, as it was when this was made; equal for equal calls."""

    def __init__(self) -> None:
        context, autocast = self.scopes = [global_attribute(name) for name in SCOPES]
        # The context of a call also names the layer that has opened it, which does not matter here.
        named = {} if context is None else {**vars(context), "entry_layer": None}
        self.key = str(named), getattr(autocast, "dtype", None)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Let layers find it."""
        before = [global_attribute(name) for name in SCOPES]
        try:
            for name, value in zip(SCOPES, self.scopes, strict=True):
                set_global_attribute(name, value)
            yield
        finally:
            for name, value in zip(SCOPES, before, strict=True):
                set_global_attribute(name, value)


def graph_now() -> Any:
    """Return the graph that is drawn; None while TensorFlow is eager."""
    return None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()


def modes() -> Any:
    """Return by what calls are compared besides their arguments; None outside of layers.

    Raise if the program is inside of a graph that is not that of its run.
    """
    if graph_now() is not recording_of().recorder.graph:
        raise RecordError(
            "A tf.function of the program has met a tensor that is not computed yet.",
            "make a cell of it by multifold.op or ops=[...], or put tf.function around the run.",
        )
    return None if global_attribute(SCOPES[0]) is global_attribute(SCOPES[1]) is None else LayerModes().key


@trusted  # it runs each row as the loop does, so it cannot mix them
class TensorCall(CompiledCall):
    """A function of TensorFlow, run for all examples as a graph."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.modes = LayerModes()
        self.results: list[tf.TensorSpec] = []
        self.nested: Any = None
        self.variables: Sequence[Any] = ()
        self.run: Any = None

    def tensors(self, own: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """Run the function for one example with rows of its own; return the tensors in its result."""
        rows = iter(own)
        filled = [x if same else next(rows) for same, x in zip(self.shared, operands, strict=True)]
        return self.checked(self.traced(*filled))

    def checked(self, found: Any) -> list[Any]:
        """Return the tensors in a result, and note how they are nested."""
        results, structure = optree.tree_flatten(found)
        if not results or not all(map(tf.is_tensor, results)):
            raise RecordError(
                f"Expected {self.__name__} to return tensors. Received {found!r}.",
                "return the rest outside of the cell.",
            )
        for x in results:
            refuse_mask(x)
        if not all(x.shape.is_fully_defined() for x in results):
            raise RecordError(
                f"{self.__name__} cannot be recorded: the shape of its result depends on values.",
                "give it values that are read, as x.numpy().",
            )
        self.results = [tf.TensorSpec(x.shape, x.dtype) for x in results]
        self.nested = None if found is results[0] else structure
        return results

    def together(self, *operands: Any) -> list[Any]:
        """Run it for all examples together."""
        own = self.batched(operands)
        found = tf.vectorized_map(
            lambda rows: self.body(rows, operands), own, fallback_to_while_loop=False, warn=False
        )
        return list(found)

    def one_by_one(self, *operands: Any) -> list[Any]:
        """Run it for one example after the other."""
        own = self.batched(operands)
        specs = self.results
        return list(tf.map_fn(lambda rows: self.tensors(rows, operands), own, fn_output_signature=specs))

    def body(self, rows: Sequence[Any], operands: Sequence[Any]) -> list[Any]:
        """Run it for one example; raise if it cannot run for all of them together."""
        found = self.tensors(rows, operands)
        graph = tf.compat.v1.get_default_graph()
        if assigned_by(self.__name__, graph) or any(
            op.type == "IdentityN" and "CustomGradient" in str(op.node_def) for op in graph.get_operations()
        ):
            raise NotImplementedError("All rows would get the numbers of one seed, or no custom gradient.")
        return found

    def batched(self, operands: Sequence[Any]) -> tuple[Any, ...]:
        """Return the operands that are others for each example."""
        return tuple([x for same, x in zip(self.shared, operands, strict=True) if not same])

    def learn(self, recording: Recording, forms: Sequence[PendingForm]) -> tuple[Sequence[Any], Any]:
        self.build(recording, forms)
        pairs = zip(self.shared, forms, strict=True)
        specs = [tf.TensorSpec(form.shape if s else (None, *form.shape), form.dtype) for s, form in pairs]
        with recording.aside(self.owners()), self.modes.applied():
            try:
                with quiet():
                    self.run = graph_of(self.together, specs)
            except (ValueError, NotImplementedError, TypeError) as error:
                if isinstance(error, RecordError) or not self.results:  # what is wrong with the call itself
                    raise
                self.run = graph_of(self.one_by_one, specs)
                self.runs_by_rows()
            finally:
                self.refuse_masks(recording)
        self.variables = self.run.graph.variables
        return self.results, self.nested

    def owners(self) -> list[Any]:
        """Return what tracing it may change."""
        return []

    def build(self, recording: Recording, forms: Sequence[PendingForm]) -> None:
        """Let layers make their weights, which stay, before anything is tried on them."""
        parts = [x for owner in self.owners() for x in recording.reached(owner)]
        if any(not x.built and type(x).build not in NEVER_BUILT for x in layers_of(parts)):
            with recording.paused(), apart(), self.modes.applied():
                self.one(*ones(forms))

    def refuse_masks(self, recording: Recording) -> None:
        """Refuse a cell of Keras that keeps a mask of dropout for its next call."""
        parts = [x for owner in self.owners() for x in recording.reached(owner)]
        kept = [x for x in layers_of(parts) if any(map(is_symbolic, map(vars(x).get, MASKS)))]
        for layer in kept:
            layer.reset_dropout_mask()
            layer.reset_recurrent_dropout_mask()
        if kept:
            raise RecordError(
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
        return found[0] if len(found) == 1 else tuple(found)


class TensorCell(TensorCall):
    """A function of the program, or a layer, recorded whole."""

    is_cell = True

    def owners(self) -> list[Any]:
        return [self.func, *self.leaves]


class TensorRows(TensorCell):
    """A cell that is written for rows, with one row for each example; it runs as it stands."""

    multifold_mark = None  # it is the user's code on rows, so it is tried as any op is

    def learn(self, recording: Recording, forms: Sequence[PendingForm]) -> tuple[Sequence[Any], Any]:
        self.build(recording, forms)
        with recording.aside(self.owners()), self.modes.applied(), tf.GradientTape() as tape:
            self.checked(self.one(*ones(forms)))
        self.variables = tape.watched_variables()
        return self.results, self.nested

    def __call__(self, *operands: Any) -> Any:
        with self.modes.applied():
            found = [x[:, None] for x in self.checked(self.one(*self.mapped(self.as_rows, operands)))]
        return found[0] if len(found) == 1 else tuple(found)


MASKS = "_dropout_mask", "_recurrent_dropout_mask"
"""Where cells of Keras keep masks of dropout."""


def is_symbolic(x: Any) -> bool:
    """Return whether something is, or begins with, a tensor of a graph."""
    part = x[0] if isinstance(x, (list, tuple)) else x
    return tf.is_tensor(part) and not hasattr(part, "numpy")


def refuse_mask(x: Any) -> None:
    """Refuse a tensor with a mask of Keras, which recorded calls do not hand on."""
    if getattr(x, "_keras_mask", None) is not None:
        raise RecordError(
            "A layer of Keras, as Embedding(mask_zero=True), makes a mask for the layers after it.",
            "make a cell of a function that calls all of them, or pass mask= to the layer that needs it.",
        )


NEVER_BUILT = keras.layers.Layer.build, keras.Model.build
"""Those of layers and models that make no weights of their own."""


def ones(forms: Sequence[PendingForm]) -> list[Any]:
    """Return tensors of one example of some forms: zeros where they may look something up."""
    return [tf.cast(tf.fill(x.shape, 1 if x.dtype.is_floating else 0), x.dtype) for x in forms]


def graph_of(function: Any, specs: Sequence[tf.TensorSpec]) -> Any:
    """Return a function as a graph for tensors of some shapes and dtypes."""
    try:
        return tf.function(function, autograph=False).get_concrete_function(*specs)
    except (TypeError, AttributeError, NotImplementedError) as error:
        if "symbolic" not in str(error).lower():
            raise
        raise RecordError(
            "A cell looks at a value, which is another one for each example.",
            "read it outside of the cell, or use tf.where or tf.cond in it.",
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Let TensorFlow log no error that is handled."""
    logger = tf.get_logger()
    before = logger.level
    logger.setLevel("CRITICAL")
    try:
        yield
    finally:
        logger.setLevel(before)


ASSIGNMENTS = "Assign", "ResourceScatter", "ResourceApply", "ResourceSparseApply"
"""How the types of operations begin that change a variable."""


def assigned_by(name: str, graph: Any) -> bool:
    """Return whether a graph changes states of Keras's seeds; refuse one that changes other variables."""
    seeds = [x.handle for x in getattr(graph, "_watched_variables", ()) if SEEDS in x.name]
    known = [id(inner) for outer, inner in graph.captures if any(outer is x for x in seeds)]
    changes = [op for op in graph.get_operations() if op.type.startswith(ASSIGNMENTS)]
    inner = [node.op for function in graph.as_graph_def().library.function for node in function.node_def]
    if any(id(op.inputs[0]) not in known for op in changes) or any(
        x.startswith(ASSIGNMENTS) for x in inner
    ):
        raise RecordError(
            f"{name} assigns a variable, as batch normalisation does in training. Recorded calls run "
            "later, and in another order.",
            "assign it after the run, or write a cell for the rows of all: multifold.op(rows=True).",
        )
    return bool(changes)
