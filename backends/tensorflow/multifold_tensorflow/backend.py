"""The seam for TensorFlow.

The one idea: every method is one TensorFlow operation on rows, so a launch is recorded by the tape
or drawn into the graph like a line of the user's own loop. Sizes are read while Python runs;
a symbolic tensor is therefore as good as any other as long as its shape is static.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, final

import keras  # TensorFlow imports it itself
import numpy as np
import tensorflow as tf

from multifold.backend import Backend, Bidirectional, Cell, Stack, StateSlot, TrainingKit
from multifold.errors import BackendError
from multifold_tensorflow.cells import unrollable
from multifold_tensorflow.kit import TensorflowKit, named_variables
from multifold_tensorflow.trials import DRAWN, apart, layers_of, private, reserved, slots

try:  # whether a tape is open has no public name
    from tensorflow.python.eager.record import could_possibly_record
except ImportError:  # then each gather is made ready for one, which takes longer

    def could_possibly_record() -> bool:
        """Return True: a tape may be open."""
        return True


def leave_alone(*packages: str) -> None:
    """Let AutoGraph leave functions of these packages as they are, as it does those of Keras and NumPy.

    Inside of a `tf.function` it would rewrite all of our own code in seconds, and warn of what is compiled.
    There is no public way to say so of a package.
    """
    config = private("tensorflow.python.autograph.core", "config")
    if config is not None:
        rules = [config.DoNotConvert(name) for name in packages]
        vars(config)["CONVERSION_RULES"] = (*rules, *config.CONVERSION_RULES)


leave_alone("multifold", "multifold_compat", "multifold_tensorflow")

ARRAYS: tuple[type, ...] = (tf.Tensor, tf.Variable)
if keras.backend.backend() == "tensorflow":  # else its variables are another framework's
    ARRAYS += (keras.Variable,)


@final
class TensorflowBackend(Backend):
    """Batched calls on `tf.Tensor`, for Keras layers and models, `tf.Module` and plain functions.

    Examples
    --------
    >>> backend = TensorflowBackend()
    >>> rows = backend.concat([tf.ones((1, 2)), tf.zeros((2, 2))])
    >>> backend.to_numpy(backend.gather(rows, tf.constant([2, 0])))
    array([[0., 0.],
           [1., 1.]], dtype=float32)
    """

    name: ClassVar[str] = "tensorflow"
    writeable: ClassVar[bool] = False
    kit: ClassVar[TrainingKit] = TensorflowKit()

    def owns(self, x: Any) -> bool:
        return isinstance(x, ARRAYS)

    def signature(self, x: Any) -> Hashable:
        return _static_shape(x)[1:], tf.as_dtype(x.dtype), _place(x)

    def rows(self, x: Any) -> int:
        return _static_shape(x)[0]

    def constant(self, values: np.ndarray, device: Any) -> tf.Tensor:
        with tf.device(device or ""):  # the empty name changes nothing
            return tf.constant(values)

    def concat(self, xs: Sequence[Any]) -> tf.Tensor:
        return tf.concat(xs, 0)

    def split(self, x: Any, sizes: Sequence[int]) -> Sequence[tf.Tensor]:
        # Not slices: each has a gradient as large as x, and costs more than the whole split.
        return tf.split(x, sizes)

    def gather(self, x: Any, rows: tf.Tensor) -> tf.Tensor:
        x = tf.convert_to_tensor(x)
        if tf.executing_eagerly() and not could_possibly_record():
            return tf.raw_ops.GatherV2(params=x, indices=rows, axis=0)
        return _gather(x, rows)

    def call(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
        return fn(*operands, **static)

    def context(self) -> Hashable:
        return could_possibly_record()  # False inside of GradientTape.stop_recording()

    def compilations(self) -> int:
        return DRAWN.count

    def is_inference(self) -> bool:
        return tf.executing_eagerly() and not could_possibly_record()

    def device(self, model: Any) -> Any:
        x = model if self.owns(model) else next(named_variables(model), ("", None))[1]
        return None if x is None else _place(x) or None

    def placed(self, device: Any) -> contextlib.AbstractContextManager[Any]:
        # An eager op without a variable runs on the default device, wherever its operands are.
        return contextlib.nullcontext() if device is None else tf.device(device)

    def number_dtype(self, kind: type) -> np.dtype:
        # Integers stay int64: TensorFlow keeps int32 on the host, also of those meant for a GPU.
        if kind is float:
            return np.dtype(tf.as_dtype(keras.config.floatx()).as_numpy_dtype)
        return super().number_dtype(kind)

    def cast(self, x: Any, dtype: str) -> tf.Tensor:
        return tf.cast(x, dtype)

    def to_numpy(self, x: Any) -> np.ndarray:
        return np.asarray(tf.convert_to_tensor(x).numpy())  # of an array without axes `numpy()` is a scalar

    def cell(self, cell: Any) -> Cell | Stack | Bidirectional:
        return (self.hosts(cell) and unrollable(cell)) or super().cell(cell)

    def profile(self, label: str) -> contextlib.AbstractContextManager[Any]:
        return tf.profiler.experimental.Trace(label)

    def slots(self, owners: Sequence[Any]) -> Iterable[StateSlot]:
        return slots(owners)

    def is_built(self, owners: Sequence[Any]) -> bool:
        return all(layer.built for layer in layers_of(self.stateful(owners)))

    def modes(self, owners: Sequence[Any]) -> Hashable:
        return tuple([layer.trainable for layer in layers_of(self.stateful(owners))])

    def reserved(self, owner: Any) -> Collection[str]:
        return reserved(owner)

    def apart(self, owners: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
        return apart()

    def like(self, x: Any, values: np.ndarray) -> tf.Tensor:
        with tf.device(_place(x)):
            return tf.constant(values, x.dtype)

    def abstract(
        self, fn: Callable[[Sequence[Any]], list[Any]], arrays: Sequence[Any], owners: Sequence[Any]
    ) -> list[Any]:
        specs = [tf.TensorSpec(x.shape, x.dtype) for x in arrays]
        drawn = tf.function(lambda *xs: fn(xs), autograph=False).get_concrete_function(*specs)
        found = drawn.structured_outputs or []
        return [tf.zeros(_static_shape(x), x.dtype) for x in found]

    def lazy_recorder(self, fn: Callable[..., Any]) -> Any:
        from multifold_tensorflow.lazy.recorder import TensorflowRecorder

        return TensorflowRecorder(fn)

    def synchronize(self) -> None:
        tf.test.experimental.sync_devices()


@tf.custom_gradient
def _gather(x: Any, rows: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], Any]]:
    """Return ``x[rows]`` along axis 0, with a gradient that is a dense array of the shape of ``x``.

    That of `tf.gather` is a `tf.IndexedSlices`, which costs a dozen operations on the way back. A custom
    gradient itself costs many times the gather, so it is left out where no tape is open.
    """
    size = x.shape[0]

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        return tf.math.unsorted_segment_sum(upstream, rows, size), None

    return tf.raw_ops.GatherV2(params=x, indices=rows, axis=0), gradient


def _place(x: Any) -> str:
    """Return the name of an array's device; "" while a graph is drawn, which is placed as a whole later."""
    if not tf.executing_eagerly():
        return ""
    return (x.value if isinstance(x, keras.Variable) else x).device


def _static_shape(x: Any) -> tuple[int, ...]:
    """Return the shape of an array as integers; raise `BackendError` if a graph does not know it yet."""
    try:
        shape = tuple(x.shape)
    except ValueError:  # not even the number of axes is known
        shape = (None,)
    if None in shape:
        raise BackendError(
            f"Expected a static shape to schedule by. Received {x} inside a tf.function.",
            "trace the tf.function without None in its input_signature, or use tf.ensure_shape.",
        )
    return shape
