"""Pending tensors: what a program holds in the place of a tensor that is not computed yet.

TensorFlow asks a table of its functions whether another class answers them. A pending tensor is entered
there, so functions, operators and indexing are recorded. Conditions, numbers, NumPy and ``numpy()`` are
reads. To ``isinstance`` it is a tensor. Tensors never change, so nothing here does.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, List, NoReturn, Union  # noqa: UP035 - TensorFlow reads these

import keras
import numpy as np
import tensorflow as tf

from multifold.errors import RecordError
from multifold.lazy.current import CURRENT, after_run, refusal
from multifold.lazy.operators import (
    OperatorRecorder,
    PendingOperators,
    SettledOperators,
    is_pending,
    record,
)
from multifold_tensorflow.trials import is_taped, private

TENSOR: Any = tf.Tensor

IN_A_FUNCTION = (
    "A function of TensorFlow has met a tensor that is not computed yet, and cannot be recorded."
)


class PendingTensor(PendingOperators):
    """Stands for a tensor that is not computed yet; functions, operators and indexing are recorded."""

    __slots__ = ("_keras_logits",)  # Keras notes there of what a sigmoid was taken

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return TENSOR

    @property
    def shape(self) -> Any:
        """The shape, a `tf.TensorShape`."""
        return tf.TensorShape(self.form.shape)

    def get_shape(self) -> Any:
        """Return the shape, a `tf.TensorShape`."""
        return self.shape

    def _beyond(self, index: int) -> Any:
        return tf.zeros(self.form.shape, self.form.dtype)[index]  # it raises what TensorFlow raises

    def numpy(self) -> Any:
        """Return the value as a NumPy array or number; the example waits until it is computed."""
        return self._read()

    def _read(self) -> Any:
        # A function of TensorFlow may be in the middle of compiled code, where no example can wait.
        if is_from(sys._getframe(2).f_globals, OUTER):
            refuse_inside()
        refuse_stopped()
        return super()._read()

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> NoReturn:
        refuse_inside()

    def __tf_tracing_type__(self, context: Any) -> NoReturn:
        refuse_inside()

    @property
    def _id(self) -> NoReturn:
        """Raise `RecordError`: a `tf.GradientTape` asks for this number to watch a tensor."""
        raise refused(
            "A tf.GradientTape inside of the program has met a tensor that is not computed yet.",
            "put the tape around the run, or into a cell.",
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name[0] != "_" and not is_from(sys._getframe(1).f_globals, INNER):
            refuse_attribute(name)
        raise AttributeError(f"'PendingTensor' object has no attribute {name!r}")


class SettledTensor(SettledOperators, PendingTensor):
    """A pending tensor after its run: it stands for its value, a `tf.Tensor`."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return TENSOR

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        return tf.convert_to_tensor(self.value, dtype)

    @property
    def _id(self) -> Any:
        """The number of the value, for which a `tf.GradientTape` asks."""
        return self.value._id


OUTER = "tensorflow.", "keras."
INNER = (*OUTER, "multifold.", "multifold_")
"""How the names of modules begin, each followed by a dot: of the framework, and of all but the program."""


def is_from(variables: dict[str, Any], beginnings: tuple[str, ...]) -> bool:
    """Return whether code whose global variables these are belongs to one of some packages.

    ``variables["__name__"]`` says so.
    """
    return f"{variables.get('__name__')}.".startswith(beginnings)


def refuse_inside() -> NoReturn:
    """Raise `RecordError`: a function of TensorFlow has asked a pending tensor for its value."""
    raise refused(
        IN_A_FUNCTION,
        f"give it a number that is read, as float(x) or x.numpy(); or {OperatorRecorder.cells}",
    )


def refuse_attribute(name: str) -> None:
    """Raise `RecordError` if tensors that are computed have an attribute, which a pending one lacks."""
    if hasattr(tf.constant(0), name):
        raise refusal(f"A tensor that is not computed yet has no attribute {name!r}.", after_run())


def refuse_stopped() -> None:
    """Raise `RecordError` if the program has stopped a tape that recorded when its run began."""
    recording = CURRENT.recording
    if recording is not None and recording.recorder.is_taped and not is_taped():
        raise refused(
            "The program has stopped the tf.GradientTape around the run, but recorded calls run later.",
            "use tf.stop_gradient(x) in the place of tape.stop_recording().",
        )


def refused(message: str, hint: str) -> RecordError:
    """Return a `RecordError` to be raised where a pending tensor cannot be recorded.

    The program must not catch it, as any `refusal`. Where TensorFlow catches it, since `Unlisted` is asked
    to record a function around, it is not noted.
    """
    return (RecordError if is_recorded_around(sys._getframe(1)) else refusal)(message, hint)


def is_recorded_around(frame: Any) -> bool:
    """Return whether TensorFlow catches an error of this frame and asks `Unlisted` to record a function.

    It does so in frames of `op_dispatch_handler`, unless `Unlisted` records that function already.
    """
    inner = ""
    while frame is not None and is_from(frame.f_globals, INNER):
        if frame.f_code.co_name == "op_dispatch_handler" and inner != "dispatch":
            found = frame.f_locals
            if is_unlisted(found["op_dispatch_handler"], found["args"], found["kwargs"]):
                return True
        inner, frame = frame.f_code.co_name, frame.f_back
    return False


def like(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a version of ``func``, as `tf.zeros_like`, that needs only the shape and dtype of a tensor.

    Pending arguments are replaced by NumPy arrays of any values, so nothing is recorded or computed.
    """

    def form(x: Any) -> Any:
        return np.empty(x.form.shape, x.dtype.as_numpy_dtype) if type(x) is PendingTensor else x

    return lambda *args, **kwargs: func(*map(form, args), **{name: form(x) for name, x in kwargs.items()})


def converted(value: Any, dtype: Any = None, dtype_hint: Any = None, name: Any = None) -> Any:
    """Answer `tf.convert_to_tensor`: return a pending tensor as it is.

    Raises `ValueError` for another dtype. Of a list or tuple that holds a pending tensor, return what
    `tf.stack` records.
    """
    if type(value) is not PendingTensor:
        return tf.stack(value)
    if dtype is not None and tf.as_dtype(dtype) != value.dtype:
        raise ValueError(f"Tensor conversion requested dtype {dtype} for a tensor with dtype {value.dtype}")
    return value


ANSWERS = {
    tf.convert_to_tensor: converted,
    **{func: like(func) for func in (tf.shape, tf.rank, tf.size, tf.zeros_like, tf.ones_like)},
}
"""Functions that are not recorded, and what answers them."""

READING = "assert", "case", "cond"
"""How the names of functions begin that look at values. They are not in the table: TensorFlow asks it in
compiled code, where no example can wait."""

SEQUENCE = List[  # noqa: UP006
    Union[  # noqa: UP007
        PendingTensor, tf.Tensor, tf.Variable, keras.Variable, np.ndarray, np.generic, int, float, bool
    ]
]


class Unlisted(tf.__internal__.dispatch.GlobalOpDispatcher):
    """Records functions of TensorFlow without a table of types, as `tf.einsum`.

    TensorFlow asks it when such a function has failed on its arguments.
    """

    def handle(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Return ``op(*args, **kwargs)`` recorded, or ``NOT_SUPPORTED`` if no argument is pending.

        Functions that have a table are left to it.
        """
        return record(op, *args, **kwargs) if is_unlisted(op, args, kwargs) else self.NOT_SUPPORTED


WHERE = "tensorflow.python.util.dispatch"


def is_unlisted(op: Any, args: Any, kwargs: Any) -> bool:
    """Return whether a function of TensorFlow has no table, and an argument of it is pending."""
    return not hasattr(op, private(WHERE, "TYPE_BASED_DISPATCH_ATTR")) and is_pending(
        [*args, *kwargs.values()]
    )


def record_functions() -> None:
    """Enter pending tensors into the tables of TensorFlow's functions, so that these are recorded."""
    private(WHERE, "register_dispatchable_type")(PendingTensor)
    done = set()
    for func in list(private(WHERE, "_TYPE_BASED_DISPATCH_SIGNATURES")):
        dispatcher = getattr(func, private(WHERE, "TYPE_BASED_DISPATCH_ATTR"))
        if id(dispatcher) in done or func.__name__.startswith(READING):
            continue
        done.add(id(dispatcher))
        names = [name for name in inspect.signature(func).parameters if name != "name"]
        kinds = [{name: kind} for name in names for kind in (PendingTensor, SEQUENCE)]
        if kinds:
            tf.experimental.dispatch_for_api(func, *kinds)(recorded(func))


def recorded(func: Any) -> Callable[..., Any]:
    """Return a function that records ``func`` with its arguments; it returns pending tensors."""

    def called(*args: Any, **kwargs: Any) -> Any:
        return record(func, *args, **kwargs)

    return called


record_functions()
Unlisted().register()
