"""Ops that write to their operands, which is refused: an operand may be what other calls read as well.

Rows reach an op as a view of another launch's result, as an array that the user has recorded, or as a fresh
copy, and the schedule decides which. So an op that wrote to an operand would change the values of other
calls in some minibatches and not in others. What prevents it depends on the framework:

- arrays that can't be written to, as in JAX and TensorFlow (`Backend.writeable` is False there);
- results that are handed out read-only, as NumPy's are (`Values.protected`); a fresh copy is not;
- counts of changes that are compared before and after a launch, as PyTorch's (`Backend.version`);
- copies of the operands that are compared before and after, for what no framework can see: PyTorch's
  ``.data`` and its inference mode, MXNet. That takes time, so it happens where `Fold(debug=True)` or
  `Fold.check` asks for it.

Shared values are the user's own, as the running mean of a batch norm is, and an op may change them. Of
these only the copies of NumPy arrays that a fold has recorded are guarded, since all its runs read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import optree

from multifold._record.signature import Signature
from multifold._run.values import CONTAINERS
from multifold.backend import Backend


class OperandChanged(RuntimeError):
    """An op has written to an operand."""


class Watch:
    """The arrays that one call of an op must not write to, as they were before it."""

    __slots__ = ("_backend", "_copies", "_leaves", "_numbers", "_versions")

    def __init__(
        self, backend: Backend, signature: Signature, leaves: Sequence[Any], *, debug: bool
    ) -> None:
        self._backend, copies = backend, debug and backend.writeable
        numbers = signature.recorded
        if copies:
            # A backend that counts makes the copy of a shared array anew for the next run if it changed.
            slots = enumerate(signature.slots)
            numbers += tuple([i for i, slot in slots if isinstance(slot.value, np.ndarray)])
        self._numbers, self._leaves = numbers, [leaves[i] for i in numbers]
        self._versions = self._count() if backend.counts_changes else None
        self._copies = list(map(self._bytes, self._leaves)) if copies else None

    def _count(self) -> list[Any]:
        """Return how often each array was changed."""
        return self._backend.versions(all_arrays(self._leaves))

    def _bytes(self, leaf: Any) -> list[bytes]:
        """Return the arrays of an operand as bytes, so that a NaN is equal to itself."""
        backend = self._backend
        return [backend.to_numpy(x).tobytes() for x in all_arrays([leaf]) if backend.owns(x)]

    def refuse_changes(self) -> None:
        """Raise `OperandChanged` if the op has written to one of them."""
        after = None if self._versions is None else self._count()
        if after is not None and after != self._versions:
            leaves = zip(self._numbers, self._leaves, strict=True)
            entries = [(i, x) for i, leaf in leaves for x in all_arrays([leaf]) if self._backend.owns(x)]
            refuse([i for i, _ in entries], self._versions or [], after)
        if self._copies is not None:
            refuse(self._numbers, self._copies, list(map(self._bytes, self._leaves)))


def all_arrays(leaves: Sequence[Any]) -> Sequence[Any]:
    """Return what the operands consist of: most are arrays, a ragged one is three of them."""
    for leaf in leaves:
        if isinstance(leaf, CONTAINERS):
            return list(chain.from_iterable(map(optree.tree_leaves, leaves)))
    return leaves


def refuse(operands: Sequence[int], before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raise `OperandChanged` for the first of some operands that differs before and after a call."""
    for i, x, y in zip(operands, before, after, strict=True):
        if x != y:
            raise OperandChanged(f"operand {i} was changed by an inplace operation")
