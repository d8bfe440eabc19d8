"""Nested values, as JAX flattens them, but for dicts: these keep the order of their keys.

JAX sorts the keys, so a function that got a dict back from its leaves would see another order than in the
loop, and keys of several types, as ``{1: x, "a": y}``, cannot be sorted at all.

>>> leaves, structure = flatten({"b": 1, "a": [2, None]})
>>> leaves, structure.unflatten(leaves)
([1, 2, None], {'b': 1, 'a': [2, None]})
>>> structure == flatten({"a": [2, None], "b": 1})[1]
False
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax

DICTS = (dict, defaultdict)
"""The types whose keys JAX sorts."""


class Ordered:
    """Stands for a dict: a node of JAX's, whose children are the values in the order of the keys.

    JAX makes the dict of it again where it puts values back into their structure.
    """

    __slots__ = ("inside", "values")

    def __init__(self, found: dict[Any, Any], values: Sequence[Any]) -> None:
        self.inside = type(found), getattr(found, "default_factory", None), (*found,), (*map(type, found),)
        self.values = values


def dict_of(inside: Any, values: Sequence[Any]) -> dict[Any, Any]:
    """Return the dict that an `Ordered` stands for."""
    kind, factory, keys, _ = inside
    entries = zip(keys, values, strict=True)
    return defaultdict(factory, entries) if kind is defaultdict else dict(entries)


jax.tree_util.register_pytree_node(Ordered, lambda x: (x.values, x.inside), dict_of)


def is_leaf(x: Any) -> bool:
    """Return whether ``x`` is None, which is a leaf, or a dict whose keys JAX would sort otherwise."""
    if type(x) not in DICTS:
        return x is None
    keys = [*x]
    try:
        return keys != sorted(keys)
    except TypeError:  # of several types
        return True


def ordered(x: Any) -> Any:
    """Return a nested value with an `Ordered` in the place of each dict whose keys are not sorted."""
    leaves, structure = jax.tree.flatten(x, is_leaf=is_leaf)
    if not any(type(leaf) in DICTS for leaf in leaves):
        return x
    found = [Ordered(leaf, ordered([*leaf.values()])) if type(leaf) in DICTS else leaf for leaf in leaves]
    return structure.unflatten(found)


def flatten(x: Any) -> tuple[list[Any], Any]:
    """Return the leaves of a nested value, None among them, and its structure, which has ``unflatten``."""
    leaves, structure = jax.tree.flatten(x, is_leaf=is_leaf)
    if any(type(leaf) in DICTS for leaf in leaves):
        return jax.tree.flatten(ordered(x), is_leaf=is_leaf)
    return leaves, structure
