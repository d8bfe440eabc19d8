"""Ops that write to their operands, which is refused: an operand may be what other calls read as well.

Rows reach an op as a view of another launch's result, as an array that the user has recorded, or as a fresh
copy, and the schedule decides which. So an op that wrote to an operand would change the values of other
calls in some minibatches and not in others. What prevents it depends on the framework:

- arrays that can't be written to, as in JAX and TensorFlow (`Backend.writeable` is False there);
- results that are handed out read-only, as NumPy's are (`Values.protected`); a fresh copy is not;
- counts of changes that are compared before and after a launch, as PyTorch's (`Backend.version`);
- copies of the operands that are compared before and after, for what no framework can see: PyTorch's
  ``.data`` and its inference mode, MXNet. That takes time, so it happens where `Fold(debug=True)` or
  `Fold.check` asks for it, and on MXNet also in launches that are tried (`multifold._engine.ops.trial`).

Shared values are the user's own, as the running mean of a batch norm is, and an op may change them. Of
these only the copies of NumPy arrays that a fold has recorded are guarded, since all its runs read them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from multifold._engine.ops.values import CONTAINERS, leaves_of
from multifold._engine.record.signature import Signature
from multifold.backend import Backend, Ragged


class OperandChanged(RuntimeError):
    """Raised where an op has written to an operand."""


class Watch:
    """The arrays that one call of an op must not write to, and their versions and bytes when this was made.

    Bytes are kept with ``debug`` only, where arrays of the backend can be written to at all.
    """

    __slots__ = ("_arrays", "_backend", "_copies", "_leaves", "_numbers", "_versions")

    def __init__(
        self, backend: Backend, signature: Signature, leaves: Sequence[Any], *, debug: bool
    ) -> None:
        self._backend = backend
        copies = debug and backend.writeable
        numbers = signature.recorded
        if copies:
            # A backend that counts makes the copy of a shared array anew for the next run if it changed.
            slots = enumerate(signature.slots)
            numbers += tuple([i for i, slot in slots if isinstance(slot.value, np.ndarray)])
        self._numbers = numbers
        self._leaves = leaves if len(numbers) == len(leaves) else [leaves[i] for i in numbers]
        self._arrays = all_arrays(self._leaves)
        self._versions = backend.versions(self._arrays)
        self._copies = self._bytes() if copies else None

    def _bytes(self) -> list[bytes]:
        """Return the content of each array of the backend as bytes, in which a NaN is equal to itself."""
        backend = self._backend
        return [backend.to_numpy(x).tobytes() for x in self._arrays if backend.owns(x)]

    def refuse_changes(self) -> None:
        """Raise `OperandChanged` if one of the arrays was written to since this was made.

        Versions are compared (`Backend.versions`), and with ``debug`` the bytes, where the backend's arrays
        can be written to.
        """
        facts = self._backend, self._numbers, self._leaves
        refuse_changed(*facts, self._versions, self._backend.versions(self._arrays))
        if self._copies is not None:
            refuse_changed(*facts, self._copies, self._bytes())


def refuse_changed(
    backend: Backend,
    numbers: Sequence[int],
    leaves: Sequence[Any],
    before: Sequence[Any],
    after: Sequence[Any],
) -> None:
    """Raise `OperandChanged` for the first operand of which something differs before and after, if any.

    Parameters
    ----------
    numbers : sequence of int
        The position of each of ``leaves`` among all operands, for the message.
    leaves : sequence
        The operands that are watched.
    before, after : sequences
        An entry for each array of the backend in ``leaves``, in order: its version, or its bytes.
    """
    if before == after:
        return
    pairs = zip(numbers, leaves, strict=True)
    each = [number for number, leaf in pairs for x in all_arrays([leaf]) if backend.owns(x)]
    changed = next(number for number, x, y in zip(each, before, after, strict=True) if x != y)
    # `HINTS` finds what to do by the word "inplace", which PyTorch's own errors of this kind have, too.
    raise OperandChanged(f"operand {changed} was changed by an inplace operation")


def all_arrays(leaves: Sequence[Any]) -> list[Any]:
    """Return in one list the arrays that operands consist of, in order.

    A ragged operand has three or more: values, lengths, segment ids. What is no container is listed as it
    is, an int too.
    """
    found: list[Any] = []
    for leaf in leaves:
        if not isinstance(leaf, CONTAINERS):
            found.append(leaf)
        elif isinstance(leaf, Ragged):
            found += leaves_of(leaf.values)
            found += leaf[1:]
        else:
            found += leaves_of(leaf)
    return found
