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
from itertools import chain, repeat
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

    __slots__ = ("_arrays", "_backend", "_copies", "_operands", "_versions")

    def __init__(
        self, backend: Backend, signature: Signature, leaves: Sequence[Any], *, debug: bool
    ) -> None:
        self._backend = backend
        counts, copies = backend.counts_changes, debug and backend.writeable
        # A backend that counts makes the copy of a shared array anew for the next run, if it was changed.
        self._operands, self._arrays = guarded_arrays(backend, signature, leaves, shared=copies)
        self._versions = list(map(backend.version, self._arrays)) if counts else None
        self._copies = list(map(backend.to_numpy, self._arrays)) if copies else None

    def refuse_changes(self) -> None:
        """Raise `OperandChanged` if the op has written to one of them."""
        backend = self._backend
        if self._versions is not None:
            refuse_changed(self._operands, self._versions, list(map(backend.version, self._arrays)))
        if self._copies is not None:
            # Bytes are compared, so that a NaN is equal to itself.
            copies = [x.tobytes() for x in self._copies]
            refuse_changed(self._operands, copies, [backend.to_numpy(x).tobytes() for x in self._arrays])


def refuse_changed(operands: Sequence[int], before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raise `OperandChanged` for the first of some operands that differs before and after a call."""
    if before != after:
        changed = next(i for i, x, y in zip(operands, before, after, strict=True) if x != y)
        raise OperandChanged(f"operand {changed} was changed by an inplace operation")


def guarded_arrays(
    backend: Backend, signature: Signature, leaves: Sequence[Any], *, shared: bool
) -> tuple[Sequence[int], Sequence[Any]]:
    """Return the arrays that no op may write to, after the numbers of their operands.

    That is to all but static values and the user's own shared ones, where ``shared`` is False.
    """
    numbers = signature.recorded
    if shared:
        slots = enumerate(signature.slots)
        numbers += tuple([i for i, slot in slots if isinstance(slot.value, np.ndarray)])
    # Most operands are arrays of the backend.
    arrays = [leaves[i] for i in numbers]
    if all(map(backend.owns, arrays)):
        return numbers, arrays
    found = [optree.tree_leaves(x) if isinstance(x, CONTAINERS) else (x,) for x in arrays]
    entries = list(chain.from_iterable(map(zip, map(repeat, numbers), found)))
    if not all(backend.owns(array) for _, array in entries):
        entries = [entry for entry in entries if backend.owns(entry[1])]
    return tuple(zip(*entries, strict=True)) or ((), ())  # type: ignore[return-value]
