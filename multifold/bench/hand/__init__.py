"""Batching by hand: what a careful engineer writes who does not have multifold. We measure against it.

One module a framework, imported when it is asked for, with a function for each kind of model: `binary`,
`child_sum` and `tagger` take the model and the examples of a minibatch and return the logits. They call
the ops of the same model that a fold calls, one launch for each height of the trees, and their own
preparation (`levels`, `recurrent`) is part of their time. ``binary_frontier`` is another way for trees.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from multifold.backend import Array, Backend
from multifold.errors import BackendError

Forward = Callable[[Any, Sequence[Any], int], Array]
"""``forward(model, examples, width) -> logits``."""


def find(backend: Backend, kind: str) -> Forward:
    """Return the hand-written program for a kind of model.

    Parameters
    ----------
    backend : Backend
        Whose framework it is written for.
    kind : str
        ``"binary"``, ``"child_sum"`` or ``"tagger"``; behind it ``"_frontier"`` for another way.

    Raises
    ------
    BackendError
        If nobody wrote one.
    """
    forward = getattr(find_module(backend), kind, None)
    if forward is None:
        raise BackendError(
            f"Expected a hand-written '{kind}' for backend '{backend.name}'. There is none.",
            "leave the contender out, or add it to multifold/bench/hand.",
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
