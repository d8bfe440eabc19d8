"""Random trees on two shards that differ in everything: what tests of several processes fold.

A tree is a number below `WORDS`, a tuple of one tree (the op "flip") or of two (the op "join"). The shards
have unequal counts of trees, and only the first has an op "flip".
"""

from __future__ import annotations

import random
from typing import Any

WORDS = 20


def tree(rng: random.Random, depth: int, flips: bool) -> Any:
    """Return a random tree of at most so many levels."""
    if depth == 0 or rng.random() < 0.25:
        return rng.randrange(WORDS)
    if flips and rng.random() < 0.3:
        return (tree(rng, depth - 1, flips),)
    return tree(rng, depth - 1, flips), tree(rng, depth - 1, flips)


def trees_of(seed: int, count: int, *, flips: bool = True) -> list[Any]:
    """Return random trees, the same for the same seed; with flips at least one has that op."""
    rng = random.Random(seed)
    found = [tree(rng, rng.randrange(1, 6), flips) for _ in range(count)]
    return [(found[0],), *found[1:]] if flips else found


def shards_of(seed: int) -> list[list[Any]]:
    """Return the trees of two shards: seven, and three of which none flips."""
    return [trees_of(seed, 7), trees_of(seed + 1000, 3, flips=False)]


def encode(fold: Any, tree: Any) -> Any:
    """Record the state of a tree."""
    if isinstance(tree, int):
        return fold.add("embed", tree)
    return fold.add("join" if len(tree) == 2 else "flip", *[encode(fold, child) for child in tree])


def score(fold: Any, tree: Any) -> Any:
    """Record the score of a tree."""
    return fold.add("out", encode(fold, tree))
