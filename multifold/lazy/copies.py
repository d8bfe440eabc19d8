"""Copies of a model for examples of their own: what ``own=True`` of `multifold.batched` asks for.

Each example gets a deep copy, so what one keeps on its copy no other one sees. All copies share the
parameters, so gradients meet in them, and calls of all examples share launches.
"""

from __future__ import annotations

import copy
from typing import Any

from multifold._engine.ops.reach import reached
from multifold.backend import Backend, owner_of
from multifold.errors import RecordError


def in_all_copies(backend: Backend, fn: Any) -> dict[int, Any]:
    """Return the arrays that copies of a model share, by ``id``: parameters, and what can't be copied.

    ``fn`` is a model, or a method of one. Raise a `RecordError` if a copy would have parameters of its own.
    """
    owner = owner_of(fn, fn)
    parts = [x for x, _ in reached(backend, [owner])]
    models = [owner, *[x for x in parts if backend.hosts(x)]]
    shared = {id(x): x for model in models for x in backend.arrays_of(model)}
    for x in parts:
        if backend.owns(x) and id(x) not in shared:
            try:
                copy.deepcopy(x)
            except RuntimeError:  # PyTorch copies no tensor that a gradient flows through
                shared[id(x)] = x
    refuse_unshared(backend, fn, shared)
    return shared


def refuse_unshared(backend: Backend, fn: Any, shared: dict[int, Any]) -> None:
    """Copy a model; raise a `RecordError` if the copy has parameters that ``shared`` lacks.

    Layers of Keras do, for example. ``shared`` has the parameters of ``fn`` by ``id``.
    """
    copied = own_copy(fn, shared)
    owner = owner_of(copied, copied)
    if any(id(x) not in shared for x in backend.arrays_of(owner)):
        raise RecordError(
            f"Copies of a {type(owner).__name__} do not share its parameters, as own=True wants them to.",
            "keep what an example changes in variables of its own function, not on the model.",
        )


def own_copy(fn: Any, shared: dict[int, Any]) -> Any:
    """Return a deep copy of a model, or of a method with its model, that has the ``shared`` arrays.

    ``shared`` is a dictionary of arrays by ``id``. Raise a `RecordError` if the model cannot be copied.
    """
    owner = owner_of(fn, fn)
    try:
        copied = copy.deepcopy(owner, dict(shared))
    except Exception as error:
        raise RecordError(
            f"A {type(owner).__name__} cannot be copied, as own=True wants it to be: {error}",
            "keep what an example changes in variables of its own function, not on the model.",
        ) from error
    return copied if owner is fn else getattr(copied, fn.__name__)
