"""Trials: what an op may change in MXNet, the running means of blocks, and where dropout drops nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from mxnet import autograd, gluon

from multifold.backend import Array, StateSlot, owner_of
from multifold_mxnet.kit import entries


def slots(owners: Sequence[Any]) -> Iterator[StateSlot]:
    """Yield running means; MXNet does not tell its random state."""
    named = [entry for owner in (*owners, *blocks_of(owners)) for entry in entries(owner).values()]
    for entry in dict.fromkeys(x for x in named if isinstance(x, gluon.Parameter)):
        if entry.grad_req == "null" and entry._data:
            for array in entry.list_data():
                yield StateSlot(array.copy, partial(write, array))


@contextlib.contextmanager
def apart(owners: Sequence[Any]) -> Iterator[None]:
    """Return a context without a tape, in which dropout drops nothing.

    MXNet does not tell its random state, so a mask that was drawn cannot be drawn again. A block that
    is hybridized keeps its rate: then all runs as in inference.
    """
    blocks = blocks_of(owners)
    rates = [(block, block._rate) for block in blocks if isinstance(block, gluon.nn.Dropout)]
    hybridized = any(getattr(block, "_active", False) for block in blocks)
    with autograd.pause(train_mode=autograd.is_training() and not (rates and hybridized)):
        for block, _ in rates:
            block._rate = 0.0
        try:
            yield
        finally:
            for block, rate in rates:
                block._rate = rate


def blocks_of(owners: Sequence[Any]) -> list[Any]:
    """Return all blocks inside of some objects: blocks, mappings of them, objects that have them."""
    found: list[Any] = []
    for owner in owners:
        own = owner if isinstance(owner, Mapping) else getattr(owner, "__dict__", {})
        for part in (owner, *own.values()):
            block = owner_of(part, part)
            if isinstance(block, gluon.Block):
                block.apply(found.append)
    return [*dict.fromkeys(found)]


def write(array: Array, values: Array) -> None:
    """Write values into an array."""
    values.copyto(array)
