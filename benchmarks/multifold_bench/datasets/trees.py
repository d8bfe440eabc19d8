"""What the trees of all formats have in common: a tree is the list of its nodes, children first.

Every loop over a tree here walks along that list, so Python's stack never limits the depth: trees
of 100,000 levels compare, hash, pickle and print like small ones. A format adds a dataclass with
its own fields in front of ``children``; nothing else needs to be written for it.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from multifold.models.layers import postorder

TreeT = TypeVar("TreeT", bound="Tree")
Result = TypeVar("Result")


class Tree:
    """Base of the trees that the readers return: compared by value, whatever their depth.

    A subclass is a ``@dataclass(frozen=True, slots=True, eq=False, repr=False)`` whose last field
    is ``children``, a tuple of trees of the same class, empty at a leaf.
    """

    __slots__ = ()

    children: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return self is other or _flat(self) == _flat(other)

    def __hash__(self) -> int:
        # The shape alone: fields may hold what has no hash, and equal trees have equal shapes.
        return hash(tuple(len(node.children) for node in postorder(self)))

    def __repr__(self) -> str:
        fields = {name: getattr(self, name) for name in _own_fields(type(self))}
        parts = [f"{name}={value!r}" for name, value in fields.items() if value is not None]
        if self.children:
            parts.append(f"children=<{len(self.children)}>")
        return f"{type(self).__name__}({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_flat, (type(self), _flat(self))


def _own_fields(cls: type[Tree]) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)[:-1]]  # type: ignore[arg-type]


def _flat(tree: Tree) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the number of children and the own fields of each node, in postorder."""
    names = _own_fields(type(tree))
    return [(len(node.children), tuple(getattr(node, name) for name in names)) for node in postorder(tree)]


def _from_flat(cls: type[TreeT], flat: list[tuple[int, tuple[Any, ...]]]) -> TreeT:
    built: list[TreeT] = []
    for arity, values in flat:
        first = len(built) - arity
        fields: tuple[Any, ...] = (*values, tuple(built[first:]))
        built[first:] = [cls(*fields)]
    return built[0]
