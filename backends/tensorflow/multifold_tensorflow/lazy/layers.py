"""Layers and variables: what is seen of them while programs record.

A layer of Keras is recorded whole, on pending tensors and on computed ones: a program meets its layers
first at its leaves. A layer of the user is run through, unless its class is a cell. A variable that
recorded calls use must keep its value until they have run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from multifold.lazy.current import CELL, CURRENT, refusal
from multifold.lazy.operators import call_layer
from multifold.lazy.patches import Replacements
from multifold_tensorflow.lazy.calls import TensorCell
from multifold_tensorflow.lazy.pending import PendingTensor
from multifold_tensorflow.trials import private


class LayerCall(TensorCell):
    """A call of a layer of Keras, recorded as one call."""

    is_cell = False


def seen_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of ``keras.layers.Layer.__call__`` that records calls while a program records.

    It records layers whose class is a cell, and layers of Keras itself. All other calls go to ``call``.
    """

    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = CURRENT.recording
        if recording is not None:
            rows = getattr(type(self), CELL, None)
            if rows is not None:
                return recording.recorder.call(recording, call_layer, rows, (self, *args), kwargs)
            if is_of_keras(self):
                return recording.recorder.recorded(recording, LayerCall, call_layer, (self, *args), kwargs)
        return call(self, *args, **kwargs)

    return called


def is_of_keras(layer: Any) -> bool:
    """Return whether the class of a layer, and of each layer inside of it, is defined in Keras itself."""
    return type(layer).__module__.startswith("keras.") and all(
        type(x).__module__.startswith("keras.") for x in layer._flatten_layers()
    )


def seen_assignment(assign: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of ``assign``, a method that changes a variable, for while a program records.

    It raises `RecordError` for a pending tensor as the value, and for a variable that recorded calls use.
    """

    def assigned(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = CURRENT.recording
        if recording is not None:
            if any(type(x) is PendingTensor for x in (*args, *kwargs.values())):
                raise refusal(
                    "A tensor that is not computed yet cannot be assigned to a variable.",
                    "return it from the program, and assign it after the run.",
                )
            recording.recorder.refuse_assignment(self)
        return assign(self, *args, **kwargs)

    return assigned


VARIABLES = [
    private("tensorflow.python.ops.resource_variable_ops", name)
    for name in ("BaseResourceVariable", "ResourceVariable")
]
ASSIGNS = frozenset(
    name
    for kind in VARIABLES
    for name in vars(kind)
    if name.startswith(("assign", "scatter_", "batch_scatter"))
)
"""Methods that change a variable."""

CHANGES = [(kind, name, seen_assignment) for kind in VARIABLES for name in ASSIGNS & {*vars(kind)}]

SEEN = Replacements((keras.layers.Layer, "__call__", seen_call), *CHANGES)
"""What sees them."""
