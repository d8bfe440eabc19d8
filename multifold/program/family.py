"""What a fold has learned of its programs: kernels, which of them read each other, and what shares slabs.

A minibatch may lack an op, or have no tree of one leaf. If its form followed from its own calls only, every
executor would compile anew for it. So a fold keeps a `Family`: forms only ever grow, and a kernel that a
minibatch does not call has no rows there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from multifold._record.freezing import freeze, nesting
from multifold._record.signature import Signature

Key = tuple[Any, ...]
"""What reads or holds rows of slabs, by value: ``("operand", kernel, slot)``, ``("given", class)`` or
``("result", kernel, steps)``."""


class Family:
    """Kernels, edges and slabs that the programs of a fold have had so far.

    Attributes
    ----------
    kernels : dict
        Key of a kernel -> its number.
    signatures, sites : lists
        A signature of each kernel, and the line that recorded its first call.
    edges : set of (int, int)
        Kernels whose results are read, and the kernels that read them.
    parents : dict
        A forest of keys (union-find, Tarjan 1975): what is in one tree shares a slab.
    """

    def __init__(self) -> None:
        self.kernels: dict[tuple[Any, ...], int] = {}
        self.signatures: list[Signature] = []
        self.sites: list[str] = []
        self.edges: set[tuple[int, int]] = set()
        self.parents: dict[Key, Key] = {}

    def number(self, key: tuple[Any, ...], signature: Signature, site: str) -> int:
        """Return the number of a kernel, a new one for a new key."""
        number = self.kernels.setdefault(key, len(self.signatures))
        if number == len(self.signatures):
            self.signatures.append(signature)
            self.sites.append(site)
        return number

    def root(self, key: Key) -> Key:
        """Return what stands for all readers and sources that share a slab with this one."""
        parent = self.parents.setdefault(key, key)
        while parent != key:
            # Halve the path on the way: the next walk from here is half as long.
            self.parents[key] = self.parents[parent]
            key, parent = parent, self.parents[parent]
        return key

    def link(self, reader: Key, sources: Iterable[Key]) -> None:
        """Let a reader and the sources that it reads share a slab."""
        root = self.root(reader)
        for source in sources:
            self.parents[self.root(source)] = root


def kernel_key(signature: Signature) -> Key:
    """Return what makes two calls one kernel: their signature, but for the values of shared arrays."""
    op = signature.op if isinstance(signature.op, str) else freeze(signature.op)
    slots = tuple((slot.kind, None if is_shared_array(slot) else slot.key) for slot in signature.slots)
    nested = nesting(signature.structure, len(slots))
    return op, signature.structure, nested, slots, freeze(signature.static)


def is_shared_array(slot: Any) -> bool:
    """Return whether a slot is a shared array, which a program carries as data."""
    return slot.kind.shared and hasattr(slot.value, "dtype")


def order_of(signature: Signature) -> str:
    """Return a text that orders signatures alike whatever the order of the examples."""
    slots = [(slot.kind.name, "" if slot.kind.shared else str(slot.value)) for slot in signature.slots]
    return f"{signature.name} {slots} {signature.structure} {signature.static}"
