"""What several files of `tests/engine/rounds` share: coroutines that wait, and counts of launches."""

from __future__ import annotations

from collections import Counter

from multifold import Fold


async def grow(fold, start):
    """Double until the value is at least 100; the number of steps depends on values."""
    node = fold.add("leaf", start)
    while (await fold.value(node))[0] < 100:
        node = fold.add("double", node)
    return node


def rounds_of(fold: Fold) -> list[Counter[str]]:
    """Return the launches of each round by op."""
    return [Counter(launch.op for launch in part.launches) for part in fold.explain().rounds]


async def absolute(fold, x):
    return await fold.value(fold.add(abs, x))
