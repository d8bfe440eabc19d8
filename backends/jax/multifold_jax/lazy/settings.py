"""Settings of JAX that a ``with`` statement changes for one thread, and that calls depend on.

As ``with jax.enable_x64(True)``: a call that is recorded in it runs in it, too, though its launch comes
later, and an example that waits inside of it does not hand it on to others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from jax._src import config

STATES: tuple[Any, ...] = (
    config.enable_x64,
    config.default_matmul_precision,
    config.numpy_dtype_promotion,
    config.numpy_rank_promotion,
    config.default_device,
)
"""JAX's objects for these settings, as `jax.enable_x64`: each has the ``value`` of this thread, and makes
contexts when it is called."""


def settings_now() -> tuple[Any, ...]:
    """Return the values of `STATES` in this thread, in their order."""
    return tuple([state.value for state in STATES])


@contextlib.contextmanager
def applied(settings: tuple[Any, ...]) -> Iterator[None]:
    """Return a context with such values of `STATES` as `settings_now` gave; at its end it puts back others.

    What is as it should be already costs a comparison.
    """
    with contextlib.ExitStack() as contexts:
        for state, value in zip(STATES, settings, strict=True):
            if state.value != value:
                contexts.enter_context(state(value))
        yield
