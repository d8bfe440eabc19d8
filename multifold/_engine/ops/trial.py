"""Trials: the first launches of an op show that it keeps rows apart.

Each row of a launch belongs to another node, so no row of the result may depend on the operands of another
one. ``softmax(x, 0)`` or ``x - x.mean(0)`` breaks that, and so does ``x * s`` with numbers of shape
``(n,)`` beside rows of n numbers; no framework complains. So the first launch of an op is run six times
more, with as many rows: once each odd row is replaced by another row, once each even one, and four times
one row, another one each time, is put in all places. A row that was not replaced must come to the same
result; a row that was put in another place must come to the result of the place that it is from:

>>> import numpy as np
>>> from multifold._numpy.backend import NumpyBackend
>>> x = np.array([[1.0, 2.0], [3.0, 1.0], [0.0, 5.0]])
>>> def trial(op):
...     return Trial(Values(NumpyBackend(), None), op, [x], 3).deviation(op(x))
>>> trial(lambda x: 2 * x)
>>> print(trial(lambda x: x - x.mean(0)).text)
when row 1 was replaced, row 0 and one other changed

=======  ==================  ==================
row      odd rows replaced   even rows replaced
=======  ==================  ==================
0        row 0               row 1
1        row 0               row 1
2        row 2               row 1
=======  ==================  ==================

Shapes are those of the launch, so nothing is compiled for a trial and the same kernels run. The state is
that in which the launch began (`multifold._engine.ops.state`), so dropout draws the same mask. Where an op
draws random numbers, only the rows that were not replaced are compared: the others have the mask of their
place. So more sets of rows are replaced then, one for each bit of a row's number.

Where no other row differs, or an operand is the same in all rows, its numbers are halved instead. Where
even that changes nothing, as in integers that are zero, the trial tells nothing. The next launches are
tried, too, until an op is believed (`verdicts`): few rows tell less than many. Nodes of a ragged operand
are replaced by nodes with as many members; where the nodes differ in that, they also change places with
each other, so that a node's result must not depend on the lengths of others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import optree

from multifold._engine.compiled.arrays import ranges
from multifold._engine.ops.closeness import differences, is_inexact, magnitude, nudged, tolerance_of, unlike
from multifold._engine.ops.hints import AXIS, CHILDREN, COLUMN, MIXING, STATE
from multifold._engine.ops.messages import error_text
from multifold._engine.ops.reach import owners_of, used_by
from multifold._engine.ops.state import KeptState
from multifold._engine.ops.values import Values, leaves_of, opened, sizes_of
from multifold._engine.ops.verdicts import ranks_of
from multifold._engine.record.freezing import snapshot
from multifold.backend import Ragged

ENOUGH = 16
"""Rows that have been tried before an op is believed. A launch whose rows could not tell counts for one.

A higher number finds ops that mix rows more rarely, and runs more launches several times.
"""

MANY = ENOUGH // 2
"""So many rows that draw the same random numbers do not do so by chance."""

NOISE = 16
"""A result may be off by this many times as much as it moves when its operands move by a rounding step.

An operand is rounded once; what an op computes from it is rounded at each step inside.
"""

BELIEVED = "is believed to keep its rows apart. It could not be tried"
"""What a warning says of an op that has no trial, between its name and the reason."""

ALIKE = (0.0, 0.3, 0.7, 1.0)
"""Which rows are put in all places: the rows in the order of their sums go from 0.0, the first, to 1.0."""


class Deviation(NamedTuple):
    """What a trial has found: among other rows, a row came to another result, an error or a state.

    ``text`` says it for a message: "when row 1 was replaced, row 0 changed".
    """

    text: str
    error: Exception | None = None
    """The exception that the op raises, if it raises one."""
    state: bool = False
    """Whether the results are right, but the op leaves another state on the model."""


class Arrangement(NamedTuple):
    """Which row of the launch stands in which place when a trial runs the op again."""

    source: np.ndarray
    """For each place the row of the launch that is put there."""
    halved: np.ndarray
    """The places whose numbers are halved.

    Where another row stands there, only the arrays that are the same in all rows are halved: to replace the
    row does not change them. Where the own row stands there, all arrays are.
    """
    up: bool = False
    """Whether they grow by their half instead."""
    nudged: bool = False
    """Whether each floating number is a step away from what it is, as rounding could leave it."""

    @property
    def moved(self) -> np.ndarray:
        """A bool for each place: whether another row stands there, or its own row is halved."""
        return (self.source != np.arange(len(self.source))) | self.halved


class Untried(Exception):
    """Raised where an op cannot be tried; the text is the reason."""


@dataclass
class Trial:
    """One launch, whose operands and state are kept before it runs.

    Attributes
    ----------
    values : Values
        What knows the backend.
    op : callable
        What the launch calls.
    leaves : sequence
        What it receives, leaf by leaf.
    rows : int
        How many rows the launch has, two or more.
    batched : sequence of bool
        Which leaves are batched; by default all.
    lengths : mapping of int to int64 array
        The lengths of each ragged leaf, on the host.
    nested : callable
        Returns the operands of the op from its leaves.
    static : mapping
        Its keyword arguments.
    model : object
        The model that runs, whose state stays as it is.
    maker : callable, optional
        The op as the model has it, if ``op`` is something made from it, as a step of a program is.
    any_size : bool
        Whether the op takes any number of rows.
    """

    values: Values
    op: Callable[..., Any]
    leaves: Sequence[Any]
    rows: int
    batched: Sequence[bool] = ()
    lengths: Mapping[int, np.ndarray] = field(default_factory=dict)
    nested: Callable[[Sequence[Any]], Sequence[Any]] = list
    static: Mapping[str, Any] = field(default_factory=dict)
    model: Any = None
    maker: Callable[..., Any] | None = None
    any_size: bool = True
    telling: bool = True
    """Whether the trial could have shown that rows mix: not so where replacing rows changes nothing."""
    draws: bool = False
    """Whether the op has drawn random numbers."""
    draws_once: bool = False
    """Whether it is seen to draw the same numbers for all rows: in the loop, each example has others."""
    left: list[Any] | None = None
    """The state right after the launch; None if that is still the state now."""

    def __post_init__(self) -> None:
        self.backend = self.values.backend
        maker = self.op if self.maker is None else self.maker
        self.parts = owners_of(self.backend, self.model, maker)
        self.kept = KeptState(self.backend, self.parts)
        with self.backend.apart(self.parts):
            # By leaf: its arrays on the host; None where there are no values, as while JAX traces.
            self.hosts = {
                i: self.host(leaf.values if type(leaf) is Ragged else leaf)
                for i, leaf in enumerate(self.leaves)
                if not self.batched or self.batched[i]
            }

    @property
    def has_values(self) -> bool:
        """Whether all operands have values, which can be compared; while JAX traces, they have none."""
        return all(arrays is not None for arrays in self.hosts.values())

    @property
    def worth(self) -> int:
        """How many of the `ENOUGH` rows that an op has to pass this trial counts for.

        1 if the rows could not tell, else the number of rows, but at most `ENOUGH`, or a quarter of
        `ENOUGH` if the op draws random numbers.
        """
        if not self.telling:
            return 1
        # Where an op draws random numbers, only rows in their own places are compared. That shows less, so
        # such an op is tried in four launches at least.
        return min(self.rows, ENOUGH // 4 if self.draws else ENOUGH)

    def changed_operand(self) -> int | None:
        """Return the number of the first batched leaf that the launch has changed in place; None if none.

        For a ragged leaf only its ``values`` are compared.
        """
        with self.backend.apart(self.parts):
            for i, before in self.hosts.items():
                leaf = self.leaves[i]
                now = self.host(leaf.values if type(leaf) is Ragged else leaf)
                pairs = zip(before or (), now or (), strict=False)
                if any(x.tobytes() != y.tobytes() for x, y in pairs):
                    return i
        return None

    def deviation(self, result: Any) -> Deviation | None:
        """Run the op again on other rows; return how a row's result depends on them, None if it does not.

        ``result`` is what the op returned in the launch. Sets ``telling`` (whether mixing could have shown)
        and ``draws`` (whether random numbers were drawn); all other state stays as it is. Without values,
        as while a framework traces, only shapes are looked at (`misshapen`).

        Raises
        ------
        Untried
            If the op cannot be run again, or returns other values for the same rows.
        """
        with self.backend.apart(self.parts):
            return self._deviation(result)

    def _deviation(self, result: Any) -> Deviation | None:
        """Do what `deviation` says, of which this is the body.

        The caller has entered `Backend.apart`, which hides the runs from hooks and tapes.
        """
        expected = self.host(result)
        batched = [self.leaves[i] for i in self.hosts]
        columns = sizes_of((), result)
        if expected is None or not self.has_values:
            # Without values only shapes can show that rows mix, and the second run is traced. So it is made
            # only where shapes look like it: as many columns as rows, or numbers beside wider rows.
            return self.misshapen(result) if self.rows in columns or self.meets else None
        if any(x.shape[:1] != (self.rows,) for x in expected):
            # The result breaks the rule of rows, which is not for a trial to judge; it shows nothing about
            # mixing.
            self.telling = False
            return None
        made = self.any_size and self.rows in columns and self.rows not in sizes_of(batched)
        # Where the op has made as many columns as there are rows, a row may have those of all others.
        if made and (what := self.misshapen(result)) is not None:
            return what
        halves = self.sides(range(1))
        told = [arrangement for arrangement in halves if self.changes(arrangement)]
        # An operand that stays the same could hide mixing, and so could a result of zeros, as that of
        # ``x - x.mean(0)`` on equal rows.
        self.telling = (
            len(told) == len(halves) and all(map(self.varies, self.hosts)) and any(map(nonzero, expected))
        )
        told += [self.one_row(at) for at in ALIKE]
        # Where nodes differ in the number of their members, the reverse order moves each node's members to
        # another place among all of them.
        if len(self.distinct_rows) > 1:
            told.append(Arrangement(self.itself.source[::-1], self.itself.halved))
        more = range(0)
        left = self.kept.read() if self.left is None else self.left
        while told:
            arrangement = told.pop(0)
            what = self.compared(arrangement, expected, left)
            if what is not None:
                # A difference may also be rounding, or random. Only now does the op run again on its own
                # rows: an op that keeps rows apart never pays for that.
                what = self.confirmed(arrangement, expected)
            if what is not None:
                return what
            if self.draws and not more:
                # A row that is moved cannot be compared. Of any two rows, one stays in one of these while
                # the other one goes, and the other way round in another.
                more = self.bits[1:]
                told += filter(self.changes, self.sides(more))
        self.draws_once = self.draws and self.rows >= MANY and not self.ragged and self.answers_alike(left)
        return None

    def answers_alike(self, left: list[Any]) -> bool:
        """Return whether an op that draws has one answer for equal rows, and another one in another state.

        Then one draw is for all rows. ``left`` is the other state, as `KeptState.read` returns it.

        >>> from multifold._numpy.backend import NumpyBackend
        >>> x = np.ones((8, 1))
        >>> def alike(draw):
        ...     trial = Trial(Values(NumpyBackend(), None), lambda x: x * draw(x), [x], 8)
        ...     return trial.answers_alike(trial.run(trial.itself)[1])
        >>> alike(lambda x: np.random.random()), alike(lambda x: np.random.random(x.shape))
        (True, False)
        """
        equal, found = self.one_row(0.5), []
        for start in (None, left):
            hosts = self.host(self.run(equal, start)[0])
            if hosts is None or not all(map(is_constant, hosts)):
                return False
            found.append([x.tobytes() for x in hosts])
        return found[0] != found[1]

    def culprit(self) -> int | None:
        """Return the first row on which an op that has failed fails by itself; None if it takes no row.

        None, too, if no single row fails. A row fills all places, so that the op has as many rows as in the
        launch.

        >>> from multifold._numpy.backend import NumpyBackend
        >>> rows = np.array([1, 0, 9, 2])
        >>> Trial(Values(NumpyBackend(), None), lambda i: np.arange(5)[i], [rows], 4).culprit()
        2
        """

        def fails(*rows: int) -> bool:
            return isinstance(
                self.run(Arrangement(np.resize(rows, self.rows), self.itself.halved))[0], Exception
            )

        low, high = 0, self.rows
        # If the first, the middle and the last row fail alone, the op itself is wrong, and no row is to
        # blame.
        if not self.has_values or all(map(fails, (low, high // 2, high - 1))):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            # The row that fails is one of ``low .. high - 1``: one run says in which half of them.
            low, high = (low, middle) if fails(*range(low, middle)) else (middle, high)
        return low if fails(low) else None

    def hint(self, what: Deviation) -> str:
        """Return what to do about a deviation.

        `STATE` if the op left another state, `CHILDREN` if an operand is ragged, `COLUMN` if it `meets`,
        else the advice of the backend on the modules that it calls, or `MIXING` without such advice.
        """
        if what.state:
            return STATE
        if any(type(leaf) is Ragged for leaf in self.leaves):
            return CHILDREN
        if self.meets:
            return COLUMN
        advice = self.backend.advice(used_by(self.backend, self.op if self.maker is None else self.maker))
        return MIXING if advice is None else f"{advice} Else {AXIS}"

    @property
    def meets(self) -> bool:
        """Whether some batched array has shape ``(n,)`` and another one more axes: they may broadcast."""
        ranks = {rank for rank, _ in ranks_of([self.leaves[i] for i in self.hosts])}
        return 1 in ranks and len(ranks) > 1

    def launch(self) -> Any:
        """Run the op on the rows of the launch; return its result, or the exception that it raises.

        The state that it leaves is kept in ``left``, and put back as it was.
        """
        found, self.left, _ = self.run(self.itself)
        return found

    def misshapen(self, result: Any) -> Deviation | None:
        """Run the op on two rows more; return how the shape of a row's result changes, None if it does not.

        While a framework traces, nothing has a value. Broadcasting that mixes rows shows by shapes all the
        same: ``(n, 1)`` and ``(n,)`` come to n columns. An op with a ragged operand is not run; it returns
        None.
        """
        if any(type(leaf) is Ragged for leaf in self.leaves):
            return None
        count = self.rows + 2
        # The two rows more repeat the last row, since indices of the backend must be inside of the array.
        index = self.values.numbers(np.minimum(np.arange(count), self.rows - 1), int)
        leaves = [
            self.values.gather(leaf, index) if i in self.hosts else self.copied(leaf)
            for i, leaf in enumerate(self.leaves)
        ]
        try:
            with self.kept.again():
                found = self.backend.call(self.op, self.nested(leaves), snapshot(self.static))
        except self.backend.passes:
            raise
        except Exception as error:  # noqa: BLE001 - each framework has its own error for it
            return Deviation(f"for {count} rows it raised {error_text(error)}", error=error)
        shapes = [shapes_of(leaves_of(opened(x))) for x in (result, found)]
        if shapes[1] == [(count, *shape[1:]) for shape in shapes[0]]:
            return None
        text = f"it returned {listed(shapes[0])} for {self.rows}, and {listed(shapes[1])} for {count}"
        return Deviation(text)

    def compared(
        self,
        arrangement: Arrangement,
        expected: list[np.ndarray],
        left: list[Any],
        drew: bool = False,
        noise: Sequence[np.ndarray] = (),
    ) -> Deviation | None:
        """Run the op on other rows; return how its result or its state deviates, None if they do not.

        Sets ``draws`` if the op draws random numbers. An op that raises on halved rows does not deviate,
        but sets ``telling`` to False; one that raises on whole rows deviates.

        Parameters
        ----------
        arrangement : Arrangement
            The rows that it gets.
        expected : list of array
            The result on the rows of the launch, on the host.
        left : list
            The state that the op leaves on these rows, as `KeptState.read` returns it.
        drew : bool
            Whether the op is known to draw random numbers. If it does, as is also seen here, only rows that
            were not replaced are compared.
        noise : sequence of array
            For each array of the result the difference that is allowed for each row, besides the tolerance.
        """
        found, now, moved = self.run(arrangement)
        drew |= moved
        self.draws |= drew
        if isinstance(found, Exception):
            # Half of a number may be none that the op takes: a size of 1 becomes 0.
            if arrangement.halved.any():
                self.telling = False
                return None
            return Deviation(
                f"when {self.moved_text(arrangement)}, it raised {error_text(found)}", error=found
            )
        hosts = self.host(found)
        if hosts is None or shapes_of(hosts) != shapes_of(expected):
            return Deviation(f"when {self.moved_text(arrangement)}, its result had another form")
        # A row in another place must bring the result of its own place along, unless random numbers belong
        # to the place. A halved row has no result to compare with.
        sure = ~arrangement.moved & self.stay(arrangement) if drew else ~arrangement.halved
        noise = [x[arrangement.source] for x in noise]
        changed = self.changed(found, hosts, [x[arrangement.source] for x in expected], sure, noise)
        if len(changed):
            return Deviation(self.changed_text(arrangement, changed))
        # An op that has drawn other numbers than in the launch leaves another state whatever its rows are.
        alike = not drew or self.kept.moved_alike(now, left)
        if alike and self.kept.differs(now, left) and self.state_matters(now, left):
            return Deviation(
                "it keeps state on the model, which other rows of the launch change", state=True
            )
        return None

    def state_matters(self, one: list[Any], other: list[Any]) -> bool:
        """Return whether the op returns another result if it begins with state ``one`` than with ``other``.

        It runs twice, on the rows of the launch. Both states are as `KeptState.read` returns them.
        """
        found, _, _ = self.run(self.itself, one)
        hosts, others = self.host(found), self.host(self.run(self.itself, other)[0])
        if hosts is None or others is None or shapes_of(hosts) != shapes_of(others):
            return hosts is not others
        return self.changed(found, hosts, others, ~self.itself.moved).size > 0

    def confirmed(self, arrangement: Arrangement, expected: list[np.ndarray]) -> Deviation | None:
        """Run `compared` again, against a new run of the op on its own rows, and return what it finds.

        So rounding and random draws are no deviation. Where the number of draws depends on the values of
        the rows, rows after the first one that was replaced have other draws; that is no deviation, either.

        Raises
        ------
        Untried
            If the op fails on its own rows, or returns other values for them.
        """
        once, now, drew = self.run(self.itself)
        if isinstance(once, Exception):
            raise Untried(f"it raised {error_text(once)} when it ran again on the same rows")
        hosts = self.host(once)
        if hosts is None or shapes_of(hosts) != shapes_of(expected):
            raise Untried("it returned a result of another form when it ran again on the same rows")
        if self.compared(self.itself, hosts, now) is not None:
            raise Untried("it returned other values when it ran again on the same rows")
        noise = self.noise(hosts)
        what = self.compared(arrangement, hosts, now, noise=noise)
        if what is None or what.state or what.error is not None:
            return what
        if self.backend.draws(self.op, self.nested(self.arranged(self.itself)), self.static):
            # A key of JAX draws the same numbers each time, so no state has shown that the op draws.
            drew = True
            what = self.compared(arrangement, hosts, now, drew, noise)
        if not drew or not self.draws_follow(now):
            return what
        # Replace the second half only: the first half draws its numbers before, and keeps them. If it comes
        # to the same results, the draws explain what was found.
        behind = self.replacements(np.arange(self.rows) >= self.rows // 2)
        return None if self.compared(behind, hosts, now, noise=noise) is None else what

    def noise(self, expected: list[np.ndarray]) -> list[np.ndarray]:
        """Return by how much each row of each result may differ because the op rounds what it computes.

        A list with an array ``(rows,)`` for each array of ``expected``, the result on the host; empty if
        the op fails.

        A score that is nearly zero as the sum of large terms has the rounding of these. That shows when
        each operand is moved by a step of its own rounding, where an op that mixes rows hardly changes.
        What changes much more is no rounding.
        """
        found, _, _ = self.run(self.itself._replace(nudged=True))
        hosts = self.host(found)
        if hosts is None or shapes_of(hosts) != shapes_of(expected):
            return []
        operands = [x for arrays in self.hosts.values() for x in arrays or ()]
        scale = max(map(magnitude, [*operands, *expected]))
        noise = []
        for x, got, wanted in zip(leaves_of(opened(found)), hosts, expected, strict=True):
            moved = differences(got, wanted).reshape(self.rows, -1).max(axis=1, initial=0)
            # Never more than the tolerance: an op that answers a rounding step with a leap could excuse any
            # mixing.
            noise.append(np.minimum(NOISE * moved, tolerance_of(x, got) * scale))
        return noise

    def draws_follow(self, end: list[Any]) -> bool:
        """Return whether the number of random draws depends on the values of the rows, as with `poisson`.

        It may be the same by chance, so the op runs on several sets of rows. ``end`` is the state that it
        leaves on the rows themselves.

        >>> from multifold._numpy.backend import NumpyBackend
        >>> x = np.array([[1.0], [2.0], [4.0]])
        >>> def follow(count):
        ...     trial = Trial(Values(NumpyBackend(), None), lambda x: np.random.random(count(x)), [x], 3)
        ...     return trial.draws_follow(trial.run(trial.itself)[1])
        >>> follow(len), follow(lambda x: int(x.sum()))
        (False, True)
        """
        ends = (self.run(source)[1] for source in self.sides(self.bits))
        return not all(self.kept.moved_alike(found, end) for found in ends)

    def run(self, arrangement: Arrangement, start: list[Any] | None = None) -> tuple[Any, list[Any], bool]:
        """Run the op on rows arranged as said; return its result or exception, a state and a bool.

        It begins with the state that the launch began with, or with ``start``. The state returned is that
        which the op leaves, as `KeptState.read` returns it, and the bool says whether a random generator
        has moved. All state is put back.

        Raises
        ------
        Untried
            If there is too little memory.
        """
        kept = self.kept
        with kept.again(start), self.backend.apart(self.parts):
            begin = kept.read()
            # An op may change a list among its keyword arguments, so each run gets a copy.
            operands = self.nested(self.arranged(arrangement))
            try:
                found = self.backend.call(self.op, operands, snapshot(self.static))
            except self.backend.passes:
                raise
            except Exception as error:  # noqa: BLE001 - the caller judges it
                if is_memory(error):
                    raise Untried("there is too little memory to run it again") from None
                found = error
            return found, kept.read(), kept.drew(begin)

    @cached_property
    def itself(self) -> Arrangement:
        """The arrangement in which each row of the launch stands in its own place, and none is halved."""
        places = np.arange(self.rows)
        return Arrangement(places, places < 0)

    def replacements(self, goes: np.ndarray, up: bool = False) -> Arrangement:
        """Return an arrangement with another row in each place where ``goes``, bool ``(rows,)``, is True.

        That is the row before it, or else the first row that differs from it and has as many members in
        each ragged operand. If there is none, it is the row itself, halved, or half as large again if
        ``up``. Operands that are the same in all rows are halved in these places.
        """
        looks = self.looks
        source = np.arange(self.rows)
        for row in np.flatnonzero(goes).tolist():
            near = row - 1 if row else 1
            sizes, own = looks[row]
            if looks[near][0] == sizes and looks[near][1] != own:
                source[row] = near
            else:
                source[row] = next((x for look, x in self.distinct_rows[sizes].items() if look != own), row)
        # Replacing a row does not change an operand that is the same in all rows. So it is halved in the
        # replaced places, which shows an op that mixes by that operand.
        constant = any(
            same and bool((halved(array) != array).any())
            for i, arrays in self.hosts.items()
            for same, array in zip(self.constant[i], arrays or (), strict=True)
        )
        return Arrangement(source, goes & (constant | (source == np.arange(self.rows))), up)

    def one_row(self, at: float) -> Arrangement:
        """Return an arrangement with one row in all places; of ragged ones, in all with as many members.

        Each row has only itself for company then. What rows have in common, as the largest of all numbers,
        may stay the same as long as half of them do. ``at`` says which row: 0.0 the first one of `ordered`,
        1.0 the last one.
        """
        source = np.arange(self.rows)
        for rows in self.ordered:
            source[rows] = rows[round(at * (len(rows) - 1))]
        return Arrangement(source, self.itself.halved)

    @cached_property
    def ordered(self) -> list[np.ndarray]:
        """The row numbers in the order of the sums of their operands: an array for each number of members.

        Without ragged operands it is one array.

        >>> from multifold._numpy.backend import NumpyBackend
        >>> lengths = np.array([2, 1, 2])
        >>> nodes = Ragged(np.array([5.0, 0.0, 9.0, 1.0, 2.0]), lengths, np.repeat(np.arange(3), lengths))
        >>> trial = Trial(Values(NumpyBackend(), None), abs, [nodes], 3, lengths={0: lengths})
        >>> [rows.tolist() for rows in trial.ordered]
        [[2, 0], [1]]
        """
        sums = np.zeros(self.rows)
        for i, arrays in self.hosts.items():
            nodes = np.repeat(self.itself.source, np.diff(self.bounds(i)))
            for array in arrays or ():
                sums += np.bincount(nodes, sums_of(array), self.rows)
        order = np.argsort(sums).tolist()
        return [
            np.array([row for row in order if self.looks[row][0] == size]) for size in self.distinct_rows
        ]

    @property
    def bits(self) -> range:
        """The positions of the bits in which row numbers differ: ``range(2)`` for three or four rows."""
        return range((self.rows - 1).bit_length())

    def sides(self, bits: range) -> list[Arrangement]:
        """Return two `replacements` for each bit: of rows whose number has it, and of those that lack it.

        >>> from multifold._numpy.backend import NumpyBackend
        >>> trial = Trial(Values(NumpyBackend(), None), abs, [np.arange(4.0)], 4)
        >>> [np.flatnonzero(arrangement.moved).tolist() for arrangement in trial.sides(trial.bits)]
        [[1, 3], [0, 2], [2, 3], [0, 1]]
        """
        numbers = np.arange(self.rows)
        return [self.replacements(numbers >> bit & 1 == side, not side) for bit in bits for side in (1, 0)]

    @cached_property
    def looks(self) -> list[tuple[Any, bytes]]:
        """For each row a pair: its number of members in each ragged operand, a tuple, and its bytes.

        The bytes are those of all its operands, one after the other.
        """
        sizes = [*zip(*[self.lengths[i].tolist() for i in self.ragged], strict=True)] or [()] * self.rows
        parts = [b""] * self.rows
        for i, arrays in self.hosts.items():
            bounds = self.bounds(i).tolist()
            for array in arrays or ():
                flat = np.ascontiguousarray(array)
                for row in range(self.rows):
                    parts[row] += flat[bounds[row] : bounds[row + 1]].tobytes()
        return [*zip(sizes, parts, strict=True)]

    @cached_property
    def distinct_rows(self) -> dict[Any, dict[bytes, int]]:
        """Members in each ragged operand -> the bytes of a row (`looks`) -> the first row with these."""
        found: dict[Any, dict[bytes, int]] = {}
        for row, (sizes, look) in enumerate(self.looks):
            found.setdefault(sizes, {}).setdefault(look, row)
        return found

    @property
    def ragged(self) -> list[int]:
        """The numbers of the leaves that are ragged."""
        return [i for i in self.hosts if type(self.leaves[i]) is Ragged]

    def bounds(self, leaf: int) -> np.ndarray:
        """Return where the rows of each node begin in a leaf, and where the last one's end.

        It is an int64 array ``(rows + 1,)``; ``leaf`` is a number. In a leaf that is not ragged each node
        has one row.
        """
        lengths = self.lengths[leaf] if leaf in self.ragged else np.ones(self.rows, np.int64)
        return np.concatenate([[0], np.cumsum(lengths)])

    def changes(self, arrangement: Arrangement) -> bool:
        """Return whether an arrangement gives other values: some place has another row, or a leaf `varies`.

        It is only asked of arrangements that replace or halve rows.
        """
        replaced = arrangement.source != np.arange(self.rows)
        return bool(replaced.any()) or any(map(self.varies, self.hosts))

    def varies(self, leaf: int) -> bool:
        """Return whether each array of leaf number ``leaf`` has rows that differ, or changes if halved."""
        pairs = zip(self.constant[leaf], self.hosts[leaf] or (), strict=True)
        return all(not same or bool((halved(array) != array).any()) for same, array in pairs)

    @cached_property
    def constant(self) -> dict[int, list[bool]]:
        """Number of a batched leaf -> for each of its arrays whether it has the same values in all rows."""
        return {i: [is_constant(array) for array in arrays or ()] for i, arrays in self.hosts.items()}

    def stay(self, arrangement: Arrangement) -> np.ndarray:
        """Return for each row whether its members stand where they stood in each ragged operand.

        In reverse order the row in the middle stays, and its members begin after those of other rows, so
        they meet other random numbers.
        """
        stay = np.ones(self.rows, bool)
        for leaf in self.ragged:
            bounds = self.bounds(leaf)
            members = np.diff(bounds)[arrangement.source]
            stay &= np.cumsum(members) - members == bounds[:-1]
        return stay

    def arranged(self, arrangement: Arrangement) -> list[Any]:
        """Return the leaves of the launch with their rows as ``arrangement`` says; all are copies."""
        return [
            self.arranged_leaf(i, leaf, arrangement) if i in self.hosts else self.copied(leaf)
            for i, leaf in enumerate(self.leaves)
        ]

    def copied(self, leaf: Any) -> Any:
        """Return a copy of a leaf that is not batched, a shared or static value, which an op may change.

        An array of the backend is copied by it, anything else by `snapshot`.
        """
        return self.backend.copy(leaf) if self.backend.owns(leaf) else snapshot(leaf)

    def arranged_leaf(self, number: int, leaf: Any, arrangement: Arrangement) -> Any:
        """Return the batched leaf ``leaf``, which has this number, with its rows as ``arrangement`` says.

        It is a copy; a leaf that has no values, as while JAX traces, is returned as it is.
        """
        if self.hosts[number] is None:
            return leaf
        places = self.itself.source
        source = arrangement.source
        bounds = self.bounds(number)
        members = np.diff(bounds)[source]
        at = ranges(bounds[source], members)
        halves = np.repeat(arrangement.halved, members)
        own = halves & np.repeat(source == places, members)
        # `tree_map` below visits the arrays in the order of `leaves_of`, so each ``next(hosts)`` is the
        # copy on the host of the array at hand.
        hosts = zip(self.hosts[number] or (), self.constant[number], strict=True)

        def replaced(x: Any) -> Any:
            host, same = next(hosts)
            found = host[at]
            where = halves if same else own
            found[where] = halved(found[where], arrangement.up)
            return self.backend.like(x, nudged(x, found) if arrangement.nudged else found)

        if type(leaf) is not Ragged:
            return optree.tree_map(replaced, opened(leaf))
        values = optree.tree_map(replaced, opened(leaf.values))
        lengths = self.lengths[number][source]
        # If no length has changed, the launch's own arrays of lengths need no new transfer.
        if (lengths == self.lengths[number]).all():
            return Ragged(values, leaf.lengths, leaf.segment_ids)
        segments = np.repeat(places, lengths)
        like = self.backend.like
        return Ragged(values, like(leaf.lengths, lengths), like(leaf.segment_ids, segments))

    def changed(
        self,
        found: Any,
        hosts: list[np.ndarray],
        expected: list[np.ndarray],
        sure: np.ndarray,
        noise: Sequence[np.ndarray] = (),
    ) -> np.ndarray:
        """Return the numbers of the rows that differ from what is expected of them.

        Parameters
        ----------
        found : object
            The result of the op, whose arrays say their dtypes.
        hosts, expected : lists of array
            The same result on the host, and what its rows should be.
        sure : bool array of shape ``(rows,)``
            The rows that are compared.
        noise : sequence of array
            For each array the difference that is allowed for each row, besides the tolerance.
        """
        differ = np.zeros(self.rows, bool)
        leaves = leaves_of(opened(found))
        for i, (x, got, wanted) in enumerate(zip(leaves, hosts, expected, strict=True)):
            allowed = noise[i][sure] if noise else 0.0
            differ[sure] |= unlike(got[sure], wanted[sure], tolerance_of(x, got), allowed)
        return np.flatnonzero(differ)

    def host(self, value: Any) -> list[np.ndarray] | None:
        """Return the arrays of a value as NumPy copies; None for an exception, or while JAX traces."""
        if isinstance(value, Exception):
            return None
        try:
            return [self.backend.to_numpy(x) for x in leaves_of(opened(value))]
        except Exception:  # noqa: BLE001 - each framework has its own error for it
            return None

    def moved_text(self, arrangement: Arrangement) -> str:
        """Return which rows an arrangement moves, for a message: ``"rows 1, 3 were replaced"``."""
        return f"{some_rows(np.flatnonzero(arrangement.moved))} replaced"

    def changed_text(self, arrangement: Arrangement, changed: np.ndarray) -> str:
        """Return which of the rows ``changed`` are to tell of, for a message.

        ``"when row 1 was replaced, row 0 and one other changed"``; or, if only rows changed that were
        moved, ``"in the place of row 2, row 0 came to another result than in its own"``.
        """
        others = changed[~arrangement.moved[changed]]
        if len(others):
            names = f"row {others[0]}"
            if len(others) > 1:
                names += f" and {'one other' if len(others) == 2 else f'{len(others) - 1} others'}"
            return f"when {self.moved_text(arrangement)}, {names} changed"
        row, own = changed[0], arrangement.source[changed[0]]
        return f"in the place of row {row}, row {own} came to another result than in its own"


def halved(x: np.ndarray, up: bool = False) -> np.ndarray:
    """Return half of each number; integers are rounded towards zero, and a floating zero becomes 0.5.

    An integer that finds a row of a table finds one as well when it is halved. With ``up`` floats grow by
    their half instead: of equal rows, the largest number stays what it is as long as only others shrink.
    What is no number is returned as it is.

    >>> halved(np.array([0.0, 2.0, -4.0])), halved(np.array([2.0]), up=True), halved(np.array([3, -3]))
    (array([ 0.5,  1. , -2. ]), array([3.]), array([ 1, -1]))
    """
    if is_inexact(x.dtype):
        half = x.dtype.type(0.5)
        return np.where(x == 0, half, x * x.dtype.type(1.5 if up else 0.5))
    return np.trunc(x / 2).astype(x.dtype) if x.dtype.kind in "iu" else x


def sums_of(x: np.ndarray) -> np.ndarray:
    """Return the sum of the finite numbers in each row, float64 of shape ``(n,)``; zeros for texts.

    >>> sums_of(np.array([[[1.0], [np.inf]], [[2.0], [-np.inf]], [[np.nan], [3.0]]]))
    array([1., 2., 3.])
    """
    if not is_inexact(x.dtype) and x.dtype.kind not in "iub":
        return np.zeros(len(x))
    numbers = np.nan_to_num(x.real.astype(np.float64), posinf=0.0, neginf=0.0)
    return numbers.sum(axis=tuple(range(1, x.ndim)))


def is_constant(x: np.ndarray) -> bool:
    """Return whether all rows of an array have the same bytes, so that NaN equals itself."""
    flat = np.ascontiguousarray(x)
    return flat[1:].tobytes() == flat[:-1].tobytes()


def nonzero(x: np.ndarray) -> bool:
    """Return whether an array has an entry that is neither zero nor NaN nor infinite; True for texts."""
    return bool((np.isfinite(x) & (x != 0)).any()) if is_inexact(x.dtype) or x.dtype.kind in "iub" else True


def shapes_of(arrays: Iterable[Any]) -> list[tuple[int, ...]]:
    """Return the shapes of arrays as a list of tuples."""
    return [tuple(x.shape) for x in arrays]


def listed(shapes: list[tuple[int, ...]]) -> str:
    """Return shapes for a message: ``"(2, 3) and (2,)"``, or ``"none"``."""
    return " and ".join(map(str, shapes)) or "none"


def some_rows(rows: np.ndarray) -> str:
    """Return rows and a verb for a message: ``"row 1 was"``, or ``"rows 0, 2, 4, ... were"``."""
    if len(rows) == 1:
        return f"row {rows[0]} was"
    listed = ", ".join(map(str, rows[:3].tolist()))
    return f"rows {listed}{', ...' if len(rows) > 3 else ''} were"


def is_memory(error: Exception) -> bool:
    """Return whether an error says that memory is exhausted, by its class or its text."""
    text = f"{type(error).__name__} {error}".lower()
    return isinstance(error, MemoryError) or any(
        x in text for x in ("outofmemory", "out of memory", "resource_exhausted")
    )
