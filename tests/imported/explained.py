"""Small recordings and their models, which the tests in `tests/explain` have explained."""

from __future__ import annotations

from typing import Any

import multifold

SVG = "{http://www.w3.org/2000/svg}"


def plain() -> multifold.Fold:
    return multifold.Fold(backend="numpy")


def trees(fold: multifold.Fold) -> list[multifold.Node]:
    """Record the trees 1, (2, 3) and ((4, 5), 6): six leaves, two levels of sums."""

    def total(tree: Any) -> multifold.Node:
        if isinstance(tree, int):
            return fold.add("leaf", tree)
        return fold.add("sum", *map(total, tree))

    return [total(tree) for tree in (1, (2, 3), ((4, 5), 6))]


TREES = {"leaf": lambda x: x, "sum": lambda a, b: a + b}

STEPS = {"leaf": lambda x: x * 2, "step": lambda x: x + 1}


def chain(fold, n):
    """Record one leaf that nothing needs, and a chain of n steps."""
    fold.add("leaf", 7.0)
    node = fold.add("leaf", float(n))
    for _ in range(n):
        node = fold.add("step", node)
    return node
