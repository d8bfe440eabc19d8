"""What records plain programs in TensorFlow, and keeps what it has learnt of their calls."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multifold.errors import RecordError
from multifold.lazy.candidates import names_of
from multifold.lazy.current import REFUSALS, Recording, recording_of, refusal
from multifold.lazy.finding import FindingRecorder, NumberOperand
from multifold.lazy.recorder import KnownCall
from multifold.lazy.seen import Seen
from multifold.lazy.writes import functions_in
from multifold_tensorflow.lazy.calls import (
    MASKS,
    FoundTensors,
    LayerModes,
    TensorCall,
    TensorCell,
    TensorRows,
    graph_now,
    modes,
    refuse_mask,
)
from multifold_tensorflow.lazy.layers import ASSIGNS, SEEN
from multifold_tensorflow.lazy.pending import ANSWERS, IN_A_FUNCTION, PendingTensor, SettledTensor
from multifold_tensorflow.lazy.scopes import Scopes
from multifold_tensorflow.lazy.tracing import EAGER, FromVariables
from multifold_tensorflow.trials import RESERVED, SEEDS, is_taped, layers_of, make_generator, private


class TensorflowRecorder(FindingRecorder):
    """Records the calls of one plain program in TensorFlow, and keeps what it has learnt of each kind.

    Parameters
    ----------
    fn : callable
        The program.
    """

    packages = ("tensorflow", "keras")
    own_contexts = (tf.device, tf.name_scope, keras.name_scope)
    settings = {  # noqa: RUF012 - declared as a ClassVar where it comes from
        "run_functions_eagerly": tf.config.functions_run_eagerly,
        "set_soft_device_placement": tf.config.get_soft_device_placement,
        "enable_tensor_float_32_execution": tf.config.experimental.tensor_float_32_execution_enabled,
        "set_floatx": keras.config.floatx,
        "set_epsilon": keras.config.epsilon,
        "set_image_data_format": keras.config.image_data_format,
        "set_dtype_policy": keras.config.dtype_policy,
        "set_global_policy": keras.config.dtype_policy,
    }
    resources = {  # noqa: RUF012
        tf.lookup.experimental.MutableHashTable: frozenset({"insert", "remove"}),
        tf.lookup.experimental.DenseHashTable: frozenset({"insert", "insert_or_assign", "erase", "remove"}),
        tf.queue.QueueBase: frozenset(x for x in dir(tf.queue.QueueBase) if "queue" in x),
    }
    arrays = (tf.Tensor,)
    calls = TensorCall, TensorCell, TensorRows
    found_calls = FoundTensors
    indexers = frozenset({"gather", "embedding_lookup", "one_hot"})
    makers = frozenset({"constant", "convert_to_tensor", "array", "asarray"})
    finds_cells = finds_first = True
    names_unlike_cells = frozenset({"GradientTape", "ForwardAccumulator", "gradients"} | ASSIGNS)
    replaced = SEEN
    in_a_function = IN_A_FUNCTION

    def __init__(self, fn: Any) -> None:
        super().__init__(
            PendingTensor,
            SettledTensor,
            ANSWERS,
            (modes,),
            is_inside=lambda: graph_now() is not self.graph,
        )
        self.plain_types = frozenset({NumberOperand})
        self.program = fn
        self.outside = LayerModes()
        self.scopes = Scopes()
        self.from_variables = FromVariables()
        self.graph: Any = None
        self.options: list[str] = []
        self.is_taped = False
        self.used: dict[int, Any] = {}
        self.by_shapes = set[Any]()

    @contextlib.contextmanager
    def recording(self, same: Iterable[Any]) -> Iterator[None]:
        graph = graph_now()
        options = [str(now()) for now in self.settings.values()]
        # Calls hold tensors of the graph in which they were recorded, and what the settings were.
        if graph is not self.graph or options != self.options:
            self.graph, self.options = graph, options
            self.forget_kinds()
        before = self.outside, self.scopes, self.is_taped
        self.outside, self.scopes, self.is_taped = LayerModes(), Scopes(), is_taped()
        try:
            with super().recording(same):
                yield
        finally:
            self.outside, self.scopes, self.is_taped = before

    def computes_now(self) -> bool:
        return bool(tf.executing_eagerly())

    def modules_in(self, x: Any) -> Iterable[Any]:
        return layers_of([x]) if isinstance(x, keras.layers.Layer) else ()

    def tracing(self, recording: Recording) -> contextlib.AbstractContextManager[Any]:
        parts = recording.reached(self.program)
        layers = [x for layer in layers_of(parts) for x in layer.variables]
        return self.from_variables.watched([x for x in (*parts, *layers) if is_variable(x)])

    def refuse_constant(self, x: Any) -> None:
        self.from_variables.refuse(x)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        with self.outside.applied(), self.scopes.applied():
            yield

    def key_of(self, x: Any, operands: list[Any]) -> Hashable:
        if is_variable(x):
            return "variable", id(x)
        refuse_mask(x)
        return super().key_of(x, operands)

    def look_at(self, recording: Recording, x: Any) -> Seen:
        parts = recording.reached(x)
        return Seen(x, [*parts, *layers_of([x, *parts])], attributes_of)

    def learn(self, recording: Recording, *call: Any) -> KnownCall:
        make_generator()
        kept = [seen for seen in self.seen.values() if seen.is_now()]
        try:
            found = super().learn(recording, *call)
        finally:
            for seen in kept:
                seen.look()  # layers are built when they first run
        self.used.update({id(x): x for x in found.call.variables})
        return found

    def dispatch_unknown(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call; if it cannot be recorded as it is, with numbers for computed integers in it.

        A shape may be made of these, as in ``tf.reshape(y, (tf.shape(x)[0], -1))`` of a computed ``x``.
        What a function has as its first argument is no shape, unless that is a list or a tuple.
        """
        data = 0 if args and type(args[0]) in (list, tuple) else 1
        shapes = [*args[data:], *kwargs.values()]
        if not any(map(has_integers, shapes)):
            return super().dispatch_unknown(func, args, kwargs)
        if func not in self.by_shapes:
            try:
                with REFUSALS.kept():
                    return super().dispatch_unknown(func, args, kwargs)
            except RecordError:
                self.by_shapes.add(func)
        recording = recording_of()
        if recording.is_trace:
            for x in filter(is_few, tf.nest.flatten(shapes)):
                self.refuse_constant(x)
        args = *args[:data], *map(as_numbers, args[data:])
        return self.dispatch(recording, func, args, {name: as_numbers(x) for name, x in kwargs.items()})

    def refuse_assignment(self, variable: Any) -> None:
        """Raise `RecordError` if recorded calls use ``variable``, but for states of Keras's seeds."""
        if id(variable) in self.used and SEEDS not in variable.name:
            raise refusal(
                f"The program assigns the variable {variable.name!r}, which recorded calls use. They run "
                "later than in the loop.",
                "assign it after the run.",
            )

    def stays(self, x: Any) -> bool:
        if isinstance(x, tf.Tensor):
            return getattr(x, "_keras_mask", None) is None
        return super().stays(x)

    def compared(self, x: Any) -> Mapping[str, Any]:
        return attributes_of(x)

    def dtype_of(self, dtype: np.dtype) -> Any:
        return tf.as_dtype(dtype)

    def row_of(self, recording: Recording, x: Any) -> Any:
        if recording.is_trace:
            self.refuse_constant(x)
        elif not is_on_host(x):
            return tf.expand_dims(x, 0)
        return np.asarray(x)[None]

    def computed(self, form: Any, rows: Any) -> Any:
        return tf.squeeze(rows, 0)

    def join(self, values: Sequence[Any], how: str) -> Any:
        if not all(map(tf.is_tensor, values)):
            return [*values]
        return tf.stack(values) if how == "stack" else tf.concat(values, 0)


def is_few(x: Any) -> bool:
    """Return whether ``x`` is a computed tensor of few integers, as a shape or a part of one is."""
    return (
        isinstance(x, EAGER) and x.dtype in INTEGERS and x.shape.rank < 2 and x.shape.num_elements() <= FEW
    )


def has_integers(x: Any) -> bool:
    """Return whether ``x`` is such a tensor, or a list or tuple with one in it."""
    return any(map(has_integers, x)) if type(x) in (list, tuple) else is_few(x)


def as_numbers(x: Any) -> Any:
    """Return the numbers of such a tensor; of a list or tuple, one with these.

    >>> as_numbers((tf.constant(3), -1, [tf.constant([2, 5])]))
    (3, -1, [[2, 5]])
    """
    if type(x) in (list, tuple):
        return type(x)(map(as_numbers, x))
    return x.numpy().tolist() if is_few(x) else x


FEW, INTEGERS = 8, (tf.int32, tf.int64)
"""How many numbers a shape has at most, and their dtypes."""


def is_on_host(x: Any) -> bool:
    """Return whether ``x`` is an array of NumPy, or a tensor on the CPU that may become one.

    It has one of `HOST_DTYPES`, and no tape needs its gradient.
    """
    if not isinstance(x, EAGER):
        return type(x) is np.ndarray
    return x.dtype in HOST_DTYPES and "CPU" in x.device and not may_have_gradient([x])


may_have_gradient = private("tensorflow.python.pywrap_tfe", "TFE_Py_TapeSetPossibleGradientTypes")
"""Returns 0 for tensors that no tape and no forward accumulator watches."""

HOST_DTYPES = frozenset(
    {tf.float32, tf.float64, tf.bool, tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32}
)


def is_variable(x: Any) -> bool:
    """Return whether ``x`` is a variable of TensorFlow or Keras."""
    return isinstance(x, (tf.Variable, keras.Variable))


def attributes_of(x: Any) -> Mapping[str, Any]:
    """Return the attributes, name -> value, of an object that its calls may depend on.

    Tensors and variables have none: calls read variables when they run. Of layers and modules, what each
    layer has is left out, and so are names that begin with an underscore, but for masks of dropout, the
    layers of a model, and what code of the user's classes names.
    """
    if isinstance(x, (tf.Tensor, tf.Variable, keras.Variable)):
        return {}
    own = vars(x)
    if not isinstance(x, (keras.layers.Layer, tf.Module)):
        return own
    hidden = underscored_names(type(x))  # type: ignore[arg-type]
    found = {
        name: value
        for name, value in own.items()
        if (name[0] != "_" or name in hidden) and name not in RESERVED
    }
    if isinstance(x, keras.layers.Layer):
        found |= {"trainable": x._trainable, "dtype_policy": x.dtype_policy}
        found |= {name: own[name] for name in MASKS if name in own}
        found |= {f"_layers[{i}]": layer for i, layer in enumerate(own.get("_layers", ()))}
    return found


@functools.lru_cache(maxsize=1024)
def underscored_names(kind: type) -> frozenset[str]:
    """Return names with one underscore before them in code that methods of the user's classes may run.

    These are the classes of ``kind`` and its bases.
    """
    names = frozenset[str]().union(*[names_of(x.__code__) for x in functions_in([kind], lambda _: True)])
    return frozenset(name for name in names if name.startswith("_") and not name.startswith("__"))
