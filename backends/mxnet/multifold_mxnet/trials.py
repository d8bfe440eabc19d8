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
    """Yield a `StateSlot` for each array of a parameter that is not trained, such as a running mean.

    The blocks are found by `blocks_of`. There is no slot of random state, which MXNet does not show.
    """
    named = [entry for owner in (*owners, *blocks_of(owners)) for entry in entries(owner).values()]
    for entry in dict.fromkeys(x for x in named if isinstance(x, gluon.Parameter)):
        if entry.grad_req == "null" and entry._data:
            for array in entry.list_data():
                yield StateSlot(array.copy, partial(write, array))


@contextlib.contextmanager
def apart(owners: Sequence[Any]) -> Iterator[None]:
    """Return a context without gradients in which dropout drops nothing in the blocks of ``owners``.

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
    """Return all blocks in ``owners`` with the blocks inside them, each once, in the order they are found.

    An owner is a block, a mapping with blocks or their methods as values, or an object with them as
    attributes.
    """
    found: list[Any] = []
    for owner in owners:
        own = owner if isinstance(owner, Mapping) else getattr(owner, "__dict__", {})
        for part in (owner, *own.values()):
            block = owner_of(part, part)
            if isinstance(block, gluon.Block):
                block.apply(found.append)
    return [*dict.fromkeys(found)]


def write(array: Array, values: Array) -> None:
    """Copy ``values`` into ``array``, in place."""
    values.copyto(array)
