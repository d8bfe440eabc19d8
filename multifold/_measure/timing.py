"""Two ways or more in turn, on one minibatch: no time is believed before its results were compared.

Below, two ways to add numbers agree, so their times count; a wrong sum would raise a `MismatchError`. Of
three rounds, the first two steps of each way are left out of the median: the first compiles, the second
warms up.

>>> import time
>>> def timed(add):
...     def step():
...         start = time.perf_counter()
...         total = add([1.0, 2.0])
...         return Step(time.perf_counter() - start, lambda: {"the sum": np.array(float(total))})
...     return step
>>> seconds, difference = take_turns({"plain": timed(sum), "numpy": timed(np.sum)}, rounds=3)
>>> {name: len(steps) for name, steps in seconds.items()}, difference
({'plain': 5, 'numpy': 5}, 0.0)
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from multifold._engine.ops.closeness import gap, tolerance_of
from multifold._measure.garbage import only_new_garbage
from multifold.errors import MismatchError

LOOSER, LOOSEST = 10, 3e-2
"""A step is a whole model and its gradients: rounding adds up, to more than that of one launch."""

UNTIMED = 2
"""The first steps of each way, which compile and warm up."""


@dataclass(frozen=True)
class Step:
    """The time that one step took, and how to get what it computed.

    Attributes
    ----------
    seconds : float
        How long it took.
    results : callable
        ``results() -> {name: array}`` brings values and gradients to NumPy; never inside the time.
    """

    seconds: float
    results: Callable[[], Mapping[str, np.ndarray]]


def take_turns(
    ways: Mapping[str, Callable[[], Step]],
    rounds: int,
    limit: float = float("inf"),
    advance: Callable[[str], object] = lambda what: None,
) -> tuple[dict[str, list[float]], float]:
    """Time some ways to compute the same thing in turn, and compare each result with the very first one.

    The ways alternate, A B, A B, so that a machine which is busy with something else slows all of them.

    Parameters
    ----------
    ways : mapping of str to callable
        Name -> function that takes one step.
    rounds : int
        How often each way is timed, after `UNTIMED` steps.
    limit : float
        A way whose timed steps took more than that many seconds in all is repeated no more.
    advance : callable
        Told the name of a way before each of its steps.

    Returns
    -------
    seconds : dict
        Name -> the seconds of each step of that way, also of the first ones that are not counted.
    difference : float
        The largest difference between a number and that of the very first step.

    Raises
    ------
    MismatchError
        If a value or a gradient differs.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    largest = 0.0
    first = None
    with only_new_garbage():
        for _ in range(UNTIMED + rounds):
            for name, step in ways.items():
                advance(name)
                if sum(seconds[name][UNTIMED:]) > limit:
                    continue
                gc.collect()  # otherwise a way pays for the garbage of the one before it
                done = step()
                seconds[name].append(done.seconds)
                results = done.results()
                first = first or (name, results)
                largest = max(largest, largest_difference(name, results, *first))
    return seconds, largest


def largest_difference(
    name: str,
    got: Mapping[str, np.ndarray],
    other: str,
    expected: Mapping[str, np.ndarray],
) -> float:
    """Return the largest difference between the results of two contenders.

    ``got`` are the results of contender ``name``, and ``expected`` those of ``other``: name -> array.

    Raises
    ------
    MismatchError
        If they differ in names, shapes or dtypes, or in values by more than rounding.

    Examples
    --------
    >>> one = {"logits": np.array([1.0, 2.0])}
    >>> largest_difference("hand", {"logits": np.array([1.0, 2.0])}, "loop", one)
    0.0
    """
    if got.keys() != expected.keys():
        raise MismatchError(
            f"Expected contender '{name}' to return what '{other}' does, {', '.join(expected)}. "
            f"Received {', '.join(got)}."
        )
    largest = 0.0
    for what, right in expected.items():
        x = got[what]
        if x.shape != right.shape or x.dtype != right.dtype:
            raise MismatchError(
                f"Expected {what} of contender '{name}' to be {right.shape} {right.dtype}, as "
                f"'{other}' has it. Received {x.shape} {x.dtype}."
            )
        difference, allowed = gap(x, right, min(LOOSER * tolerance_of(x, x), LOOSEST))
        if difference > allowed:
            raise MismatchError(
                f"Expected {what} of contender '{name}' to equal that of '{other}'. Received a "
                f"largest difference of {difference:.3g}, where {allowed:.3g} is allowed."
            )
        largest = max(largest, difference)
    return largest
