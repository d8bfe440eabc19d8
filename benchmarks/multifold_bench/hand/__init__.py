"""Batching by hand: what a careful engineer writes who does not have multifold.

One module a framework, imported when it is asked for, with a function for each family of models: `binary`
and `child_sum` take the model and the examples of a minibatch and return the logits. They call the ops of
the same model that a fold calls, one launch for each height of the trees, and their own preparation
(`levels`) is part of their time. ``binary_frontier`` is another way for trees. Programs for the other
families are in `neutral`, for the frameworks that do not compile for each shape.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from multifold.backend import Array, Backend
from multifold.errors import BackendError
from multifold_bench.hand import neutral

Forward = Callable[[Any, Sequence[Any], int], Array]
"""``forward(model, examples, width) -> logits``."""

COMPILING = frozenset({"jax"})
"""Backends that compile each operation anew for each shape."""


def find(backend: Backend, family: str) -> Forward:
    """Return the hand-written program for a family of models.

    Parameters
    ----------
    backend : Backend
        Whose framework it is written for.
    family : str
        ``"binary"``, ``"binary_frontier"``, ``"child_sum"``, ``"sick"`` or ``"spinn"``.

    Raises
    ------
    BackendError
        If there is none.
    """
    module = find_module(backend)
    forward: Forward | None = getattr(module, family, None)
    if forward is None and backend.name not in COMPILING:
        if family == "sick":
            forward = neutral.sick(find(backend, "child_sum"))
        elif family == "spinn":
            forward = neutral.spinn(backend)
    if forward is None:
        raise BackendError(
            f"Expected a hand-written '{family}' for backend '{backend.name}'. There is none.",
            "leave the contender out, or add it to multifold_bench/hand.",
        )
    return forward


def find_module(backend: Backend) -> ModuleType | None:
    """Return the programs for a framework, None if it has none."""
    path = f"{__name__}.{backend.name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name != path:
            raise
        return None
