"""Scopes of TensorFlow and Keras in one thread: the device of operations, and the beginning of names.

As ``with tf.device("/CPU:0")``, and what each layer of Keras opens while it is called. An example that
waits inside of one does not hand it on to others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from multifold_tensorflow.trials import global_attribute, private, set_global_attribute

context = private("tensorflow.python.eager.context", "context")
"""Returns what TensorFlow keeps for the process; its attributes that are used here are of the thread."""

NAMES = "name_scope_stack"
"""Where Keras keeps the list of the scopes that are open."""


class Scopes:
    """The scopes that are open in this thread when this is made."""

    def __init__(self) -> None:
        now = context()
        self.device = now.device_name, now.device_spec
        self.name = now.scope_name
        self.names: Sequence[Any] = [*(global_attribute(NAMES) or ())]

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Return a context in which these scopes are open; at its end those before are again."""
        now = context()
        before = (now.device_name, now.device_spec), now.scope_name, global_attribute(NAMES)
        try:
            self.open(self.device, self.name, [*self.names])  # what runs now adds to a list of its own
            yield
        finally:
            self.open(*before)

    @staticmethod
    def open(device: tuple[Any, Any], name: Any, names: Any) -> None:
        """Set the device, the beginning of names in TensorFlow, and the scopes of Keras."""
        now = context()
        now._set_device(*device)
        now.scope_name = name
        set_global_attribute(NAMES, names)
