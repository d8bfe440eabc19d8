"""The pace of a batched program: how long an example takes in the loop, and how long batched.

To record a small function of the framework takes as long as to run it. So where launches have few rows, or
an example waits for values, the plain loop over the examples may be faster than anything that records them.
Which one is faster follows from the program and the machine, and is measured: of a run the first few
examples go in the loop, and the others are batched, so no example runs twice. Examples may differ, so whole
runs are compared where that does not show one way to be far faster. The runs that follow take the faster
way, until the next one is measured. With gradients a run of PyTorch is measured to the end of its backward
pass; if none comes, nothing is known of it. A run that has compiled something does not count, up to eight
times.

A run of 2 examples may be faster in the loop, and one of 200 batched. So `LoopPace` measures runs of 64 to
127 examples apart from those of 128 to 255, and so on. The first run of such a group is not measured: it is
slow, since it also tries the ops of the program. Here the second run, of 80 examples, shows that the loop
is faster:

>>> pace = LoopPace()
>>> [pace.next(64), pace.next(80)]
[RunWay(looped=0, timed=False), RunWay(looped=2, timed=True)]
>>> pace.note(80, looped=2, in_loop=0.01, batched=0.78)

Two examples say little of the loop. So the next run goes there, and is measured, too:

>>> pace.next(64)
RunWay(looped=64, timed=True)
>>> pace.note(64, looped=64, in_loop=0.32, batched=0.0)
>>> pace.next(64)
RunWay(looped=64, timed=False)
>>> print(pace.said())
In the loop an example takes 5.00 ms, and batched 10.00 ms. So runs of about 64 examples take the loop.
  hint: batched(fn, may_loop=False) never takes it
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from typing import NamedTuple

LOG = logging.getLogger("multifold")

FIRST_PART, PART = 32, 8
"""One example in so many runs in the loop where a run is measured: the first time, and later."""

TOLD = 10
"""Where no run is taken to the loop, the run of this number tells whether that would be faster."""

SOME = 4
"""So many examples of that run go to the loop."""

ROUGH = 8
"""What fewer examples have shown in the loop is looked at again in the next run, all of which goes there,
unless batches are `CLEAR` times as fast."""

MOST = 16
"""So many examples of such a run go to the loop at most, except in the first one that is measured."""

CLEAR = 3
"""So many times as fast one way has to be, if a few examples of a run are to say so."""

NOISE = 0.9
"""The loop is taken if it needs less than this part of the time that batched examples need."""

AGAIN = 4
"""So many runs after the second one a run is measured again, if both ways take as long, or nothing was
noted; then twice as many, and so on."""

MOST_PUT_OFF = 8
"""So many measured runs of a group do not count since they compile; after these, all count."""

RECENT = 3
"""So many measured runs count: what a program meets may change."""


class RunWay(NamedTuple):
    """How a run goes."""

    looped: int
    """How many examples, the first ones, run in the loop; the others are batched."""
    timed: bool
    """Whether `LoopPace.note` is to be told how long it took."""


class Rates:
    """What the measured runs of about as many examples have shown.

    Attributes
    ----------
    runs : int
        How many runs there were.
    due : int
        Which run is measured next, counted from 0.
    """

    def __init__(self) -> None:
        self.runs = 0
        self.due = 1
        self._gap = AGAIN // 2
        self._put_off = 0
        self._in_loop: deque[tuple[int, float]] = deque(maxlen=RECENT)  # examples, and their seconds
        self._batched: deque[tuple[int, float]] = deque(maxlen=RECENT)

    @property
    def in_loop(self) -> float | None:
        """Seconds that an example takes in the loop; None if none was measured."""
        return rate_of(self._in_loop)

    @property
    def batched(self) -> float | None:
        """Seconds that an example takes batched; None if none was measured."""
        return rate_of(self._batched)

    @property
    def milliseconds(self) -> tuple[float, float]:
        """Milliseconds that an example takes in the loop, and batched; 0 if none was measured."""
        return 1e3 * (self.in_loop or 0), 1e3 * (self.batched or 0)

    @property
    def prefers_loop(self) -> bool:
        """Whether the loop is known to be faster by more than noise."""
        in_loop, batched = self.in_loop, self.batched
        return in_loop is not None and batched is not None and in_loop < NOISE * batched

    @property
    def slower(self) -> float:
        """How many times as long the slower way takes; 1 if only one was measured."""
        in_loop, batched = self.in_loop or 1.0, self.batched or 1.0
        return max(in_loop / batched, batched / in_loop)

    @property
    def is_rough(self) -> bool:
        """Whether one run alone, with few examples in the loop, has shown how long these take."""
        return len(self._in_loop) == 1 and self._in_loop[0][0] < ROUGH

    def next(self, count: int) -> RunWay:
        """Return the way of the next run, which has ``count`` examples; see `LoopPace.next`."""
        run = self.runs
        self.runs += 1
        if run < self.due:
            return RunWay(count if self.prefers_loop else 0, False)
        self._gap *= 2
        self.due = self.runs + self._gap
        if count > 1 and self.in_loop is None:
            return RunWay(max(1, count // FIRST_PART), True)
        if count > 1 and self.is_rough:
            return RunWay(count, True)
        if count > 1 and self.slower >= CLEAR:
            return RunWay(min(MOST, max(1, count // PART)), True)
        # All of it goes the other way; the first time, it is batched.
        return RunWay(0 if self.batched is None or self.prefers_loop else count, True)

    def note(self, in_loop: tuple[int, float], batched: tuple[int, float]) -> None:
        """Note how many examples took how many seconds in the loop, and how many batched.

        Once both are known, the next run is measured the later the more the slower way costs.
        """
        for found, known in ((in_loop, self._in_loop), (batched, self._batched)):
            if found[0]:
                known.append(found)
        if self.in_loop and self.batched:
            way = "the loop" if self.prefers_loop else "batches"
            LOG.info("%.2f ms an example in the loop, %.2f batched: %s", *self.milliseconds, way)
            is_sure = self.slower >= CLEAR and not self.prefers_loop
            if self.is_rough and not is_sure and in_loop[0] + batched[0] > 1:
                self.due = self.runs
            else:
                self.due = self.runs + int(self._gap * self.slower)
        else:  # the other way is measured at once
            self._gap //= 2
            self.due = self.runs

    def put_off(self) -> bool:
        """Let the next run be measured in the place of this one; see `LoopPace.put_off`."""
        if self._put_off == MOST_PUT_OFF:
            return False
        self._put_off += 1
        self._gap //= 2
        self.due = self.runs
        return True


class LoopPace:
    """Which way the runs of a program go, all with gradients or all without: in the loop, or batched.

    Attributes
    ----------
    draws : bool or None
        Whether the program draws random numbers; None while no run has shown that. It would draw them in
        another order in the loop. So the caller asks for no way then, and batches: what a program returns
        does not depend on times.
    """

    def __init__(self) -> None:
        self.draws: bool | None = None
        self._rates: defaultdict[int, Rates] = defaultdict(Rates)
        self._last = 0  # how many examples the last run had

    def next(self, count: int) -> RunWay:
        """Return the way of the next run, which has ``count`` examples, at least one."""
        self._last = count
        return self._rates[count.bit_length()].next(count)

    def note_drawn(self, draws: bool) -> None:
        """Note whether a run has drawn random numbers; see ``draws``."""
        self.draws = draws

    def note(self, count: int, *, looped: int, in_loop: float, batched: float) -> None:
        """Note how long a run of ``count`` examples took, whose `RunWay` was timed.

        The first ``looped`` examples took ``in_loop`` seconds in the loop, and the others ``batched``
        seconds.
        """
        self._rates[count.bit_length()].note((looped, in_loop), (count - looped, batched))

    def put_off(self, count: int) -> bool:
        """Let the next run of ``count`` examples be measured in the place of this one, which has compiled.

        Returns whether it will be: False once `MOST_PUT_OFF` runs of about as many examples were put off.
        """
        return self._rates[count.bit_length()].put_off()

    def said(self) -> str:
        """Return a text for explanations if runs like the last one take the loop; else ``""``."""
        rates = self._rates.get(self._last.bit_length())
        if rates is None or not rates.prefers_loop:
            return ""
        in_loop, batched = (f"{x:.2f} ms" for x in rates.milliseconds)
        return (
            f"In the loop an example takes {in_loop}, and batched {batched}. So runs of about "
            f"{self._last:,} examples take the loop.\n"
            "  hint: batched(fn, may_loop=False) never takes it"
        )


def rate_of(found: deque[tuple[int, float]]) -> float | None:
    """Return the seconds an example takes, from pairs of examples and their seconds; None without any."""
    examples = sum(count for count, _ in found)
    return sum(seconds for _, seconds in found) / examples if examples else None


class FirstRuns:
    """Whether a program is slower than its loop, once its first runs have compiled what they compile.

    It is for programs that draw random numbers, whose runs are never taken to the loop, and has the methods
    of `LoopPace` that a run calls. A few examples of the tenth run go there, and of the one before, so that
    the loop has compiled, too.
    """

    def __init__(self) -> None:
        self.draws: bool | None = False
        self._runs = 0
        self._text = ""

    def next(self, count: int) -> RunWay:
        """Return the way of the next run, which has ``count`` examples."""
        self._runs += 1
        looped = min(SOME, count // 2) if self._runs in (TOLD - 1, TOLD) else 0
        return RunWay(looped, self._runs == TOLD and looped > 0)

    def note_drawn(self, draws: bool) -> None:
        """Note whether a run has drawn random numbers."""
        self.draws = draws

    def note(self, count: int, *, looped: int, in_loop: float, batched: float) -> None:
        """Note how long a timed run took; the arguments are those of `LoopPace.note`."""
        alone, together = 1e3 * in_loop / looped, 1e3 * batched / (count - looped)
        if together > 1.1 * alone:
            self._text = (
                f"batched is slower than the loop here: an example takes {together:.2f} ms, "
                f"and {alone:.2f} ms in the loop."
            )

    def put_off(self, count: int) -> bool:
        """Return False: no other run is measured."""
        return False

    def told_once(self) -> str:
        """Return a text if the loop has turned out to be faster; "" if not, or if that was told."""
        text, self._text = self._text, ""
        return text
