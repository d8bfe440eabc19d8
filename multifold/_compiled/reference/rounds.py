"""Rounds of awaited values: the table of all calls, what a round cuts out of it, where awaited rows are.

`TableBase` notes for each recorded call where its operands are, and which result of an earlier round holds
its value. Take five calls of which an earlier round has run 0 and 1:

====  ===============  =========
call  recorded         has run
====  ===============  =========
0     ``leaf(3)``      yes
1     ``leaf(4)``      yes
2     ``negate(0)``    no
3     ``add(0, 1)``    no
4     ``add(3, 1)``    no
====  ===============  =========

An example awaits the value of call 4.

- `TableBase.window` returns all that must be known for it: the *given* calls 0 and 1, whose rows are read,
  then 3 and 4, which run. In the round these have the numbers 0 to 3. Call 2 is not needed: it stays out.
- `TableBase.frontier` returns what can run next, with one launch of each op: call 3, since 4 reads it.
- `TableBase.place` returns the results of earlier rounds, and the rows in them, that hold calls 0 and 1.
- `TableBase.arrived` returns whose values are all there, and in which rows: not those of call 4 yet.

`TableBase.round` does all that a round by a plan needs at once: window, place, schedule and wiring.
"""

from __future__ import annotations

from itertools import accumulate, chain
from typing import Any

import numpy as np

from multifold._compiled.arrays import CALL_MASK, Growing, Integers, ranges, starts

REFS, INTS, FLOATS, ARRAYS, RAGGED = range(5)
"""Positions in `multifold._record.kinds.COLUMNS`."""

Group = tuple[tuple[int, ...], list[int]]
"""Of a launch, the sources that each group of its calls reads, and where each group begins."""


class TableBase:
    """The columns of a graph that is being recorded: where each call has its entries, and where its row is.

    Parameters
    ----------
    graph : GraphBase
        What is recorded; its columns grow.

    Attributes
    ----------
    result, row : int64 arrays
        The number of the stored result that holds the row of each call, 0 where no round has run it; and
        which row of its result each call has.
    """

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self._columns = {name: Growing() for name in ("signature", "refs", "ints", "lengths", "members")}
        self._starts = Growing(width=(RAGGED + 1,), size=1)  # where the entries of each call begin
        self._member_starts = Growing(size=1)  # likewise the rows of each ragged operand
        self._result = Growing()
        self._row = Growing()
        # A call is met in a selection when `_seen` holds the number of that selection. No round has to
        # clear the column: the next one uses the next number.
        self._seen = Growing()
        self._selections = 0
        self._number = Growing()  # in the last selection that has the call

    def __len__(self) -> int:
        return self._result.size

    @property
    def result(self) -> Integers:
        return self._result.values

    @property
    def row(self) -> Integers:
        return self._row.values

    def reserve(self, calls: int) -> None:
        """Make room for so many calls at once, in memory that is not touched before they are recorded.

        Room that doubles is copied: 262,144 calls took 48 ms, which all requests of a server waited for.
        Here rooms only double.
        """

    def grow(self, widths: Integers) -> None:
        """Append the calls that were recorded since the last time.

        Parameters
        ----------
        widths : int64 array of shape ``(signatures, 5)``
            How many entries a call of each signature has in each of `multifold._record.kinds.COLUMNS`.
        """
        first = len(self)
        for name, column in self._columns.items():
            column.catch_up(getattr(self.graph, name))
        signature = self._columns["signature"].values[first:]
        lengths = self._columns["lengths"].values
        for facts in (self._result, self._row, self._number, self._seen, self._starts):
            facts.grow(len(signature))
        starts = self._starts.values[first:]
        starts[1:] = starts[0] + widths[signature].cumsum(axis=0)
        ends = self._member_starts
        last = self._member_starts.size - 1
        ends.grow(len(lengths) - last)
        ends.values[last + 1 :] = ends.values[last] + lengths[last:].cumsum()

    def store(self, calls: Integers, result: int, row: Integers) -> None:
        """Note which result holds the rows of some calls, and which rows these are."""
        self.result[calls] = result
        self.row[calls] = row

    def at(self, column: int, calls: Integers) -> Integers:
        """Return where some calls have their entries in one of `multifold._record.kinds.COLUMNS`."""
        begin = self._starts.values[calls, column]
        return ranges(begin, self._starts.values[calls + 1, column] - begin)

    def members_of(self, ragged: Integers) -> tuple[Integers, Integers]:
        """Return the rows of some ragged operands, one after the other, and how many each of them has."""
        lengths = self._columns["lengths"].values[ragged]
        members = self._columns["members"].values
        return members[ranges(self._member_starts.values[ragged], lengths)], lengths

    def window(self, awaited: Integers, signatures: int) -> tuple[Any, ...]:
        """Cut the calls of one round out of all that were recorded, and number them from 0.

        Parameters
        ----------
        awaited : int64 array
            The calls whose values are wanted.
        signatures : int
            How many signatures there are.

        Returns
        -------
        kept : int64 array
            The calls of the round: first the *given* ones, which earlier rounds computed and which are
            awaited or read by others, then those that are run; both in the order of recording.
        given : int
            How many are given.
        signature : int64 array
            The signature's number of each; of given ones, which have no operands, ``signatures`` more.
        refs, ref_starts, ints, int_starts, lengths, ragged_starts, members : int64 arrays
            The operands of the round, and where those of each call begin; references have its numbers.
        """
        signature, refs, ints, lengths, _ = (column.values for column in self._columns.values())
        columns = self._starts.values
        result = self.result
        at = self.at
        seen = self._seen.values
        number = self._number.values
        self._selections += 1

        def begins(column: int) -> Integers:
            widths = columns[kept + 1, column] - columns[kept, column]
            widths[: len(given)] = 0
            return starts(widths)

        def sources_of(calls: Integers) -> Integers:
            rows = self.members_of(at(RAGGED, calls))[0]
            return np.concatenate([refs[at(REFS, calls)], rows[rows >= 0]]) & CALL_MASK

        if len(awaited) and not 0 <= awaited.min() <= awaited.max() < len(self):
            raise IndexError("A column of calls refers to what is not there.")
        waves = [np.zeros(0, np.int64)]
        wave = np.unique(awaited)
        wave = wave[result[wave] == 0]
        while len(wave):
            seen[wave] = self._selections
            waves.append(wave)
            sources = sources_of(wave)
            wave = np.unique(sources[(result[sources] == 0) & (seen[sources] != self._selections)])
        calls = np.sort(np.concatenate(waves))
        reads = np.concatenate([sources_of(calls), awaited])
        given = np.unique(reads[result[reads] > 0])
        kept = np.concatenate([given, calls])
        number[kept] = np.arange(len(kept))
        numbers = signature[kept]
        numbers[: len(given)] += signatures
        return (
            kept, len(given), numbers, self.renumbered(refs[at(REFS, calls)]), begins(REFS),
            ints[at(INTS, calls)], begins(INTS), lengths[at(RAGGED, calls)], begins(RAGGED),
            self.renumbered(self.members_of(at(RAGGED, calls))[0]),
        )  # fmt: skip

    def frontier(
        self, awaited: Integers, rank: Integers, last: int, rounds: int = 1
    ) -> tuple[Integers, Integers] | None:
        """Find which calls may run in the next rounds: each launches every signature once, by its rank.

        A call runs as early as it can. Of two chains ``leaf, add, add`` whose first has run its leaf, the
        other leaf and the first ``add`` of both run next, and then the second ``add`` of both.

        Parameters
        ----------
        awaited : int64 array
            The calls whose values are wanted. `renumbered` says in which round, from 1 on, each will run.
        rank : int64 array
            When each signature runs; a permutation.
        last : int
            The first rank of signatures that are awaited.
        rounds : int
            Of how many rounds the calls are returned.

        Returns
        -------
        calls : int64 array
            Those that run, round by round, in each by rank, and each rank's in the order of recording.
        begins : int64 array
            Where the calls of each rank begin, round after round. The last entry is how many calls run in
            these rounds: as many as ``pending`` if the awaited calls need no further round.

        None in place of both if an awaited call comes before the ``last`` ones, or a call has no rank.
        """
        signature = self._columns["signature"].values
        refs = self._columns["refs"].values
        number = self._number.values
        result = self.result

        def sources_of(call: int) -> list[int]:
            rows = self.members_of(self.at(RAGGED, np.array([call])))[0]
            reads = np.concatenate([refs[self.at(REFS, np.array([call]))], rows[rows >= 0]])
            return [source for source in (reads & CALL_MASK).tolist() if result[source] == 0]

        if len(awaited) and not 0 <= awaited.min() <= awaited.max() < len(self):
            raise IndexError("A column of calls refers to what is not there.")
        pending = [call for call in awaited.tolist() if result[call] == 0]
        met = set[int]()
        while pending:
            call = pending.pop()
            if call not in met:
                met.add(call)
                pending += sources_of(call)
        self.pending = len(met)
        ranked = (signature[np.array([*met, *awaited], np.int64)] < len(rank)).all()
        if not ranked or (rank[signature[awaited]] < last).any():
            return None
        groups: list[list[int]] = [[] for _ in range(rounds * len(rank))]
        for call in sorted(met):
            own = rank[signature[call]]
            number[call] = max([1, *[number[x] + (rank[signature[x]] >= own) for x in sources_of(call)]])
            if number[call] <= rounds:
                groups[(number[call] - 1) * len(rank) + own].append(call)
        return np.array([*chain.from_iterable(groups)], np.int64), starts(np.array(list(map(len, groups))))

    def arrived(self, refs: Integers, sizes: list[int]) -> tuple[list[int], Integers, Integers, Integers]:
        """Return which groups of references have all run, and where the rows of these are.

        Parameters
        ----------
        refs : int64 array
            The references of all groups, group after group.
        sizes : list of int
            How many each group has.

        Returns
        -------
        groups : list of int
            Those of which all have run.
        sources : int64 array
            The distinct parts of results that their rows are in, as ``part << 40 | result``.
        which, rows : int64 arrays
            Of each of their references, which of these parts, and the row in it.
        """
        found = list[int]()
        parts = [refs[:0]]
        end = 0
        for group, size in enumerate(sizes):
            mine = refs[end : end + size]
            end = end + size
            if size < 0 or len(mine) < size:
                raise IndexError("A column of calls refers to what is not there.")
            if (self.result[mine & CALL_MASK] > 0).all():
                found.append(group)
                parts.append(mine)
        there = np.concatenate(parts)
        sources, which, _ = distinct(there & ~CALL_MASK | self.result[there & CALL_MASK])
        return found, sources, which, self.row[there & CALL_MASK]

    def launch_rows(
        self, calls: Integers, launches: list[tuple[int, int, int]], new: Integers
    ) -> tuple[Integers, Integers, list[Group]]:
        """Return which rows some launches read and write, as if each ran and stored its rows.

        The calls of a launch are put into groups, each of which reads the same parts of the same results.

        Parameters
        ----------
        calls : int64 array
            The calls of all launches, one launch after the other; what the first reads has run.
        launches : list of (int, int, int)
            How many calls each has, how many node operands a call of it has, and the number of the result
            that its rows go to; 0 to store nothing.
        new : int64 array
            Which row of that result each call gets, in the order that is returned.

        Returns
        -------
        calls : int64 array
            The calls of each launch, group after group.
        rows : int64 array
            For each launch the rows of each operand in their results, operand after operand, then those
            of ``new``.
        groups : list of (sources, begins)
            ``part << 40 | result`` of each operand, group after group, whose first has the first call; and
            where each group begins, and at last how many calls there are.

        Examples
        --------
        Call 0 has run: result 1 has its row, row 5. Call 1 reads it, and call 2 reads both. They run in two
        launches, and get rows 6 and 7 of that result.

        >>> from multifold import Fold
        >>> fold = Fold(backend="numpy")
        >>> leaf = fold.add("leaf", 3)
        >>> total = fold.add("sum", leaf, fold.add("negate", leaf))
        >>> table = TableBase(fold._graph)
        >>> table.grow(np.array([[0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [2, 0, 0, 0, 0]]))
        >>> table.store(np.array([0]), 1, np.array([5]))
        >>> _, rows, groups = table.launch_rows(np.array([1, 2]), [(1, 1, 1), (1, 2, 1)], np.array([6, 7]))
        >>> rows.tolist(), groups
        ([5, 6, 5, 6, 7], [((1,), [0, 1]), ((1, 1), [0, 1])])
        """
        ordered = [calls[:0]]
        rows = [calls[:0]]
        found = list[Group]()
        for count, width, result in launches:
            mine = calls[:count]
            own = new[:count]
            calls = calls[count:]
            new = new[count:]
            if len(mine) < count or len(own) < count:
                raise IndexError("A column of calls refers to what is not there.")
            reads = self._columns["refs"].values[
                self._starts.values[mine, REFS] + np.arange(width)[:, None]
            ]
            groups: dict[tuple[int, ...], list[int]] = {}
            for i, sources in enumerate((reads & ~CALL_MASK | self.result[reads & CALL_MASK]).T.tolist()):
                groups.setdefault(tuple(sources), []).append(i)
            order = np.array([*chain.from_iterable(groups.values())], np.int64)
            rows += [self.row[reads[:, order] & CALL_MASK].ravel(), own]
            ordered.append(mine[order])
            begins = [0, *accumulate(map(len, groups.values()))]
            found.append((tuple(chain.from_iterable(groups)), begins))
            if result:
                self.store(mine[order], result, own)
        return np.concatenate(ordered), np.concatenate(rows), found

    def renumbered(self, refs: Integers) -> Integers:
        """Return references with the numbers that calls have in the last selection.

        After `frontier` these are the rounds in which the calls run, from 1 on.
        Negative ones stay: they stand for numbers and arrays, as in ragged operands.
        """
        found = refs.copy()
        nodes = refs >= 0
        found[nodes] = refs[nodes] & ~CALL_MASK | self._number.values[refs[nodes] & CALL_MASK]
        return found

    def place(self, given: Integers, calls: int) -> tuple[Integers, Integers, Integers, Integers]:
        """Return where the given calls of a round are, which are the first of its calls.

        Parameters
        ----------
        given : int64 array
            These calls by their numbers in the table.
        calls : int
            How many calls the round has.

        Returns
        -------
        numbers, counts : int64 arrays
            The distinct results, and how many given calls each of them holds.
        launch, row : int64 arrays
            The place of each call of the round: which of these results, and which row; -1 and 0 for those
            that are run. There is one entry at least: loose values are looked up as if they were rows of
            call 0.
        """
        launch = np.full(max(calls, 1), -1)
        rows = np.zeros(max(calls, 1), np.int64)
        numbers, launch[: len(given)], counts = distinct(self.result[given])
        rows[: len(given)] = self.row[given]
        return numbers, counts, launch, rows


def distinct(values: Integers) -> tuple[Integers, Integers, Integers]:
    """Return the distinct ones of some integers, which of them each is, and how often each of them occurs.

    Examples
    --------
    >>> [column.tolist() for column in distinct(np.array([7, 2, 7]))]
    [[2, 7], [1, 0, 1], [1, 2]]
    """
    found, number, counts = np.unique(values, return_inverse=True, return_counts=True)
    return found, number.ravel(), counts
