"""Traces: what a program computes at once with variables, which replays would not see change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from multifold.lazy.current import CURRENT, refusal
from multifold.lazy.patches import Replacements
from multifold_tensorflow.trials import private

CALLBACKS = "tensorflow.python.framework.op_callbacks"
EAGER: Any = private("tensorflow.python.framework.ops", "_EagerTensorBase")
should_record = private("tensorflow.python.eager.record", "should_record_backprop")


class FromVariables:
    """The tensors of one thread that were computed with variables while a trace is made.

    A tape knows those through which a gradient flows, and operations of these others, as ``argmax``. A
    variable of integers, as a count or the state of a generator, is no weight, and is left out.
    """

    def __init__(self) -> None:
        self.found: set[int] = set()

    def note(
        self,
        kind: str | bytes,
        inputs: Sequence[Any],
        attributes: Any,
        outputs: Sequence[Any],
        op_name: Any = None,
        graph: Any = None,
    ) -> None:
        """Note the results of an operation that takes what was computed with variables.

        TensorFlow calls this after each operation.
        """
        if graph is not None:
            return
        if any(map(self.holds, inputs)):
            self.found.update([x._id for x in outputs])

    def holds(self, x: Any) -> bool:
        """Return whether ``x`` was computed with a variable."""
        return isinstance(x, EAGER) and (x._id in self.found or bool(should_record([x])))

    def refuse(self, x: Any) -> None:
        """Raise a `RecordError` if ``x`` was computed with a variable."""
        if self.holds(x):
            raise refusal(
                "A trace would hold a tensor that was computed with a variable, and not see it change.",
                "put what computes it into a cell, or use layers of Keras.",
            )

    @contextlib.contextmanager
    def watched(self, variables: Iterable[Any]) -> Iterator[None]:
        """Return a context in which operations are noted, and values of what is noted are refused.

        ``variables`` are those of the program, also those that are not trained.
        """
        add, remove = private(CALLBACKS, "add_op_callback"), private(CALLBACKS, "remove_op_callback")
        self.found.clear()
        add(self.note)
        try:
            with tf.GradientTape() as tape, VALUES.applied():
                for x in variables:
                    if tf.as_dtype(x.dtype).is_floating:
                        tape.watch(getattr(x, "value", x) if isinstance(x, keras.Variable) else x)
                yield
        finally:
            remove(self.note)


def seen_numpy(numpy: Any) -> Any:
    """Return a replacement of what gives the values of a tensor, which a program may not ask in a trace."""

    def values(self: Any) -> Any:
        recording = CURRENT.recording
        if recording is not None and recording.is_trace:
            recording.recorder.from_variables.refuse(self)
        return numpy(self)

    return values


VALUES = Replacements((EAGER, "_numpy", seen_numpy))
"""What sees that values are asked for."""
