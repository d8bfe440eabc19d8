"""Random trees that differ in everything: what tests of several shards and workers fold.

A tree is a tuple of an op and what it reads: ``("up", ("join", ("leaf", 0.5), ("leaf", -1.0)))``. Each
knows some of the ops only, so that few trees differ in structure, launches and sets of ops.
"""

from __future__ import annotations

import numpy as np

from multifold import ragged

INNER = np.array(["join", "up", "count", "total"])


def record(fold, tree):
    op, *rest = tree
    if op == "leaf":
        return fold.add("leaf", *rest)
    if op == "count":
        return fold.add("count", record(fold, rest[0]), rest[1])
    children = [record(fold, child) for child in rest]
    if op == "total":
        return fold.add("total", ragged(children))
    return fold.add(op, *children)


def random_tree(rng, size, ops):
    """Return a tree of about that many calls, which uses some of the ops."""
    if size < 2:
        return "leaf", float(rng.uniform(-1, 1))
    op = rng.choice(ops)
    if op in ("up", "count"):
        below = random_tree(rng, size - 1, ops)
        return (op, below) if op == "up" else (op, below, int(rng.integers(9)))
    arity = 2 if op == "join" else int(rng.integers(1, 5))
    parts = np.sort(rng.integers(0, size, arity - 1))
    sizes = np.diff([0, *parts, size - 1])
    return op, *(random_tree(rng, int(n), ops) for n in sizes)


def random_trees(seed, count, most=30):
    """Return trees each of which knows one, two, three or four ops beside leaves."""
    rng = np.random.default_rng(seed)
    return [
        random_tree(rng, int(rng.integers(1, most)), rng.permutation(INNER)[: rng.integers(1, 5)])
        for _ in range(count)
    ]
