"""What the trees of all formats have in common: a tree is the list of its nodes, children first.

Every loop over a tree here walks along that list, so Python's stack never limits the depth: trees
of 100,000 levels compare, hash, pickle and print like small ones. A format adds a dataclass with
its own fields in front of ``children``; nothing else needs to be written for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

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


def postorder(tree: TreeT) -> Iterator[TreeT]:
    """Walk over all nodes, each after its children, from left to right.

    Examples
    --------
    >>> from multifold.datasets.snli import ParseTree
    >>> tree = ParseTree(children=(ParseTree("tall"), ParseTree("trees")))
    >>> [node.word for node in postorder(tree)]
    ['tall', 'trees', None]
    """
    # Root first and last child first, read backwards, is children first from left to right.
    nodes, stack = [], [tree]
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack.extend(node.children)
    return reversed(nodes)


def bottom_up(tree: TreeT, combine: Callable[[TreeT, Sequence[Result]], Result]) -> Result:
    """Compute a value for each node from those of its children, and return the root's.

    What recursion does, without its limit: with ``fold.add`` in ``combine`` it records a tree of
    any depth.

    Parameters
    ----------
    tree : Tree
        The root.
    combine : callable
        ``combine(node, values) -> value``; ``values`` are those of the node's children, in order.

    Examples
    --------
    >>> from multifold.datasets.snli import ParseTree
    >>> tree = ParseTree(children=(ParseTree("tall"), ParseTree("trees")))
    >>> bottom_up(tree, lambda node, texts: node.word or f"({' '.join(texts)})")
    '(tall trees)'
    """
    values: list[Result] = []
    for node in postorder(tree):
        first = len(values) - len(node.children)
        values[first:] = [combine(node, values[first:])]
    return values[0]


def depth(tree: Tree) -> int:
    """Return the number of edges on the longest path from the root to a leaf.

    Examples
    --------
    >>> from multifold.datasets.snli import ParseTree
    >>> depth(ParseTree("trees"))
    0
    """
    return bottom_up(tree, lambda _, depths: 1 + max(depths) if depths else 0)


def _own_fields(kind: type[Tree]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)[:-1]]  # type: ignore[arg-type]


def _flat(tree: Tree) -> list[tuple[int, tuple[Any, ...]]]:
    """Return the number of children and the own fields of each node, in postorder."""
    names = _own_fields(type(tree))
    return [(len(node.children), tuple(getattr(node, name) for name in names)) for node in postorder(tree)]


def _from_flat(kind: type[TreeT], flat: list[tuple[int, tuple[Any, ...]]]) -> TreeT:
    built: list[TreeT] = []
    for arity, values in flat:
        first = len(built) - arity
        fields: tuple[Any, ...] = (*values, tuple(built[first:]))
        built[first:] = [kind(*fields)]
    return built[0]
