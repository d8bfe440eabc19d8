"""Blame: who fails if a launch fails that many have asked for.

A launch has rows of many examples, and an op that raises does not say whose row it was. So those who asked
are halved, and each half runs again by itself, until one that fails stands alone:

>>> def run(numbers):
...     if 5 in numbers:
...         raise MultifoldError("five")
>>> by_halves(range(8), run, lambda number, error: print(number, "fails:", error))
5 fails: five
True

`run` has to keep what it has computed, so that no call of a half that did not fail runs a third time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from multifold.errors import MultifoldError

Asker = TypeVar("Asker")


def by_halves(
    askers: Iterable[Asker],
    run: Callable[[list[Asker]], Any],
    blame: Callable[[Asker, MultifoldError], Any],
    *,
    still_asks: Callable[[Asker], bool] | None = None,
    together: Callable[[list[Asker], MultifoldError], Any] | None = None,
) -> bool:
    """Call ``run`` for all that ask; where it fails, find by halving those for whom it fails alone.

    Among 64, one that fails takes at most 2 * 6 further runs.

    Parameters
    ----------
    askers : iterable
        Who asks.
    run : callable
        Takes a list of askers, and raises `MultifoldError` if a launch fails.
    blame : callable
        Takes one asker that fails alone, and the error.
    still_asks : callable, optional
        Takes an asker; returns whether it is to run still: blaming one may end what others asked for.
    together : callable, optional
        Takes the askers that fail together while no half of them does, and the error. Without it that error
        is dropped: both halves have run, so each of them has what it asked for.

    Returns
    -------
    bool
        Whether one was blamed.
    """
    left = list(askers)
    try:
        run(left)
        return False
    except MultifoldError as error:
        failure = error
    # What follows stands outside of the handler: else each failure of a half would have this one as its
    # context, and all those before.
    try:
        if len(left) == 1:
            blame(left[0], failure)
            return True
        middle = len(left) // 2
        blamed = False
        # Asked again before each half: blaming one of the first half may end what the second half asked
        # for.
        for half in (left[:middle], left[middle:]):
            if still := [one for one in half if still_asks is None or still_asks(one)]:
                blamed |= by_halves(still, run, blame, still_asks=still_asks, together=together)
        if not blamed and together is not None:
            together(left, failure)
        return blamed
    finally:
        del failure  # its traceback holds this frame: a circle
