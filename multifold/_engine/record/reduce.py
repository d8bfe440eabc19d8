"""Reducing by an op: neighbours become one until one is left, in as few levels as there can be.

A loop that joins one item after the other makes each call wait for the one before: ``n - 1`` levels. Here
the calls of a level join neighbours and wait for none of each other, so ``ceil(log2(n))`` levels do; the
last item of an odd number goes up to the next level as it is. The order of the items is kept.

Examples
--------
>>> balanced(lambda left, right: f"({left}{right})", list("abcde"))
'(((ab)(cd))e)'
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

EMPTY: Any = type("Empty", (), {"__repr__": lambda self: "no value"})()
"""Stands for an argument that was not given, since ``None`` may be given."""


def balanced(join: Callable[[Any, Any], Any], items: list[Any]) -> Any:
    """Join ``n >= 1`` items into one value by ``n - 1`` calls of ``join(left, right)``; return it.

    Each call joins two neighbours, and the calls form ``ceil(log2(n))`` levels. One item is returned
    itself.
    """
    while len(items) > 1:
        # `zip` drops the last item of an odd number, and the next line carries it over.
        joined = [join(left, right) for left, right in zip(items[::2], items[1::2], strict=False)]
        items = joined + items[len(items) // 2 * 2 :]
    return items[0]
