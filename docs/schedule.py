"""Draws docs/schedule.svg, the moving picture of the README: three trees, and the launches that they share.

python docs/schedule.py
"""

from __future__ import annotations

from pathlib import Path

import multifold

TREES = [
    (("not", "very"), ("good", "at")),
    ("a", ("really", ("good", "film"))),
    ("so", "bad"),
]


def encode(fold: multifold.Fold, tree: tuple | str) -> multifold.Node:
    """Record one tree."""
    if isinstance(tree, str):
        return fold.add("leaf", len(tree))
    return fold.add("compose", encode(fold, tree[0]), encode(fold, tree[1]))


def drawing() -> str:
    """Return the picture."""
    fold = multifold.Fold(backend="numpy")
    for tree in TREES:
        fold.add("logits", encode(fold, tree))
    return fold.explain().to_svg(animated=True)


if __name__ == "__main__":
    (Path(__file__).parent / "schedule.svg").write_text(drawing())
