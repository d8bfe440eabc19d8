"""The highest rate that a contender carries."""

from __future__ import annotations

from collections.abc import Callable

GROWTH = 1.25
"""The rate grows by so much while a contender carries it."""

FINE = 1.05
"""Rates nearer than this are the same."""

SHARE = 0.7
"""Contenders are compared at this part of the highest rate of the best windows."""


def highest_rate(carries: Callable[[float], bool], start: float, low: float = 0.0) -> float:
    """Return the highest rate that a contender carries, to 5 %; 0 if it carries none.

    Parameters
    ----------
    carries : callable
        ``carries(rate)`` returns whether a rate is carried.
    start : float
        The first rate to try.
    low : float
        A rate that is known to be carried.

    Examples
    --------
    >>> 320 < highest_rate(lambda rate: rate < 340, start=100) < 340
    True
    """
    high = float("inf")
    rate = start
    while high > FINE * low and high > start / 100:
        if carries(rate):
            low = rate
        else:
            high = rate
        if high == float("inf"):
            rate = low * GROWTH
        else:
            rate = (low * high) ** 0.5 if low else high / GROWTH**2
    return low
