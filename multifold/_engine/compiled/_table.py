# cython: language_level=3, infer_types=True, boundscheck=True, wraparound=False, initializedcheck=False
"""Rounds of awaited values: the table of all calls, and what a round cuts out of it.

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
- `TableBase.arrived` returns which examples have all the values that they wait for, and in which rows these
  are. This example is not among them until call 4 has run.

`multifold._engine.compiled.columns` says how this module is compiled, and how it runs where it is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from multifold._engine.compiled import columns
from multifold._engine.compiled.arrays import Integers

if TYPE_CHECKING:
    import cython
else:
    from multifold._engine.compiled.columns import cython

# The columns of `multifold._engine.record.kinds.COLUMNS`; and the rows of ragged operands, found by the
# last one.
AT_REFS, AT_INTS, AT_FLOATS, AT_ARRAYS, AT_RAGGED, ROWS = range(6)

# The table has a line of 8 integers for each call: its result, its row and its number in the last
# selection, and then for each column the place where the call's entries begin. Those of call 3 end where
# the line of call 4 says that its own begin. A line is as long as one of the processor's cache, 64 bytes.
RESULT, ROW, NUMBER, STARTS = range(4)
FACTS = STARTS + AT_RAGGED + 1

# When a call runs is one integer, ``round << 32 | rank``, by which calls compare. This masks the rank.
RANK = (1 << 32) - 1

FEWEST = 8
"""How many distinct integers `few` keeps in a sorted list, into which each new one is inserted.

Beyond it NumPy sorts them all: that costs more to begin with, and less for each integer.
"""


@cython.cclass
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

    graph = cython.declare(object, visibility="readonly")
    result = cython.declare(object, visibility="readonly")
    row = cython.declare(object, visibility="readonly")
    pending = cython.declare(columns.Int, visibility="readonly")  # calls that `frontier` has met last
    _facts: Any  # an array with a line for each call, and its memory
    _lines: columns.Raw
    _member_starts: columns.Write  # where the rows of each ragged operand begin
    _marks: columns.Write  # a bit for each call that a selection has met and not come to yet
    _work: columns.Write  # room for the groups of a launch
    _ran: columns.Write  # room for the calls that a selection meets: those that are run, and given ones
    _had: columns.Write
    _refs: columns.Read  # columns of the graph while they are read
    _members: columns.Read
    _size: columns.Int
    _ragged: columns.Int
    _room: columns.Int
    _given: columns.Int
    _lowest: columns.Int
    _low: columns.Int
    _high: columns.Int

    def __init__(self, graph: Any) -> None:
        self.graph = graph
        self._size = 0
        self._ragged = 0
        self._room = 0
        self.pending = 0
        self._member_starts = columns.zeros(64)
        self._work = columns.room(64)
        self._make_room(64)
        self._show()

    def __len__(self) -> int:
        return self._size

    @cython.cfunc
    def _make_room(self, room: columns.Int) -> columns.Int:
        """Make room for `room` calls, and for the line after the last of them; what is known is copied."""
        made = np.zeros((room + 1, FACTS), np.int64)
        if self._size:
            made[: self._size + 1] = self._facts[: self._size + 1]
        self._facts = made
        self._lines = columns.lines_of(made)
        self._room = room
        self._marks = columns.zeros((room >> 6) + 1)
        self._ran = columns.room(room)
        self._had = columns.room(room)
        return 0

    @cython.cfunc
    def _show(self) -> columns.Int:
        """Set `result` and `row` to views of the table's memory."""
        facts = self._facts[: self._size]
        self.result = facts[:, RESULT]
        self.row = facts[:, ROW]
        return 0

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1, check=True)
    def _line(self, call: columns.Int) -> columns.Int:
        """Return the position at which the line of a call begins.

        Raise IndexError if the table lacks the call.
        """
        if not 0 <= call < self._size:
            columns.missing()
        return call * FACTS

    def reserve(self, calls: columns.Int) -> None:
        """Make room for ``calls`` calls at once; nothing happens if there is room.

        The memory is not touched before they are recorded. Room that has to double later is copied, for
        which all requests of a server would wait.
        """
        if calls > self._room:
            self._make_room(calls)
            self._show()

    def grow(self, widths: Integers) -> None:
        """Append the calls that the graph has recorded since the last time.

        Raises IndexError for a call of a signature that ``widths`` lacks.

        Parameters
        ----------
        widths : int64 array of shape ``(signatures, 5)``
            How many entries a call of each signature has in each of
            `multifold._engine.record.kinds.COLUMNS`.
        """
        signature: columns.Read = columns.opened(self.graph.signature)
        calls = len(signature)
        if calls <= self._size:
            return
        if widths.shape[1] != AT_RAGGED + 1:
            columns.missing()
        if calls > self._room:
            self._make_room(max(calls, 2 * self._room))
        width: columns.Read = columns.opened(widths.ravel())
        signatures = len(width) // (AT_RAGGED + 1)
        lines: columns.Raw = self._lines
        for call in range(self._size, calls):
            own = signature[call]
            if not 0 <= own < signatures:
                columns.missing()
            line = call * FACTS + STARTS
            for column in range(AT_RAGGED + 1):
                lines[line + FACTS + column] = lines[line + column] + width[own * (AT_RAGGED + 1) + column]
        self._size = calls
        self._show()
        if len(self.graph.lengths) > self._ragged:
            self._grow_members(columns.opened(self.graph.lengths))

    @cython.cfunc
    def _grow_members(self, lengths: columns.Read) -> columns.Int:
        """Note where the rows of each ragged operand begin that was recorded since the last time."""
        if len(lengths) + 1 > len(self._member_starts):
            made: columns.Write = columns.zeros(2 * len(lengths) + 1)
            columns.copy(made, 0, self._member_starts, 0, len(self._member_starts))
            self._member_starts = made
        for i in range(self._ragged, len(lengths)):
            self._member_starts[i + 1] = self._member_starts[i] + lengths[i]
        self._ragged = len(lengths)
        return 0

    def store(self, calls: columns.Read, result: columns.Int, row: columns.Read) -> None:
        """Note that call ``calls[i]`` has row ``row[i]`` of result ``result``, for all of these calls.

        Result 0 says that a call has not run. Raises IndexError for a call that the table lacks.
        """
        own_calls: columns.Read = columns.opened(calls)
        rows: columns.Read = columns.opened(row)
        if len(own_calls) != len(rows):
            columns.missing()
        for i in range(len(own_calls)):
            line = self._line(own_calls[i])
            self._lines[line + RESULT] = result
            self._lines[line + ROW] = rows[i]

    def at(self, column: columns.Int, calls: columns.Read) -> Integers:
        """Return the positions of all entries that these calls have in a column, call after call.

        ``column`` is a position in `multifold._engine.record.kinds.COLUMNS`. Raises IndexError for a call
        or a column that is not there.
        """
        size: columns.Int = 0
        place: columns.Int = 0
        own: columns.Read = columns.opened(calls)
        if not 0 <= column <= AT_RAGGED:
            columns.missing()
        for i in range(len(own)):
            self._seek(own[i], column)
            size += max(self._high - self._low, 0)
        found = columns.array(size)
        out: columns.Write = columns.fresh(found)
        for i in range(len(own)):
            self._seek(own[i], column)
            for j in range(self._low, self._high):
                out[place] = j
                place += 1
        columns.closed(found, out)
        return found

    def members_of(self, ragged: columns.Read) -> tuple[Integers, Integers]:
        """Return the rows of these ragged operands, one operand after the other, and how many each has.

        ``ragged`` counts the operands in the order of recording. The rows are references; both results are
        int64 arrays.
        """
        size: columns.Int = 0
        place: columns.Int = 0
        own: columns.Read = columns.opened(ragged)
        members: columns.Read = columns.opened(self.graph.members)
        starts: columns.Write = self._member_starts
        sizes = columns.array(len(own))
        lengths: columns.Write = columns.fresh(sizes)
        for i in range(len(own)):
            if not 0 <= own[i] < self._ragged:
                columns.missing()
            lengths[i] = max(starts[own[i] + 1] - starts[own[i]], 0)
            size += lengths[i]
        found = columns.array(size)
        out: columns.Write = columns.fresh(found)
        for i in range(len(own)):
            columns.copy(out, place, members, starts[own[i]], lengths[i])
            place += lengths[i]
        columns.closed(sizes, lengths)
        columns.closed(found, out)
        return found, sizes

    @cython.cfunc
    def _meet_all(self, awaited: columns.Read, reads: columns.Bool) -> columns.Int:
        """Find what these calls need and what has not run; if `reads`, also the given calls that it reads.

        The calls to run come to stand at the end of `_ran`, `pending` of them, and the given ones at the
        end of `_had`, `_given` of them; both ascend. A call comes after all that it reads. So one walk from
        the last call to the first meets each call before it comes to it. It skips 64 calls at a time where
        none of them was met.
        """
        self._refs = columns.opened(self.graph.refs)
        self._members = columns.opened(self.graph.members)
        self.pending = 0
        self._given = 0
        # Higher than any word, until a call is met.
        self._lowest = len(self._marks)
        word: columns.Int = -1
        try:
            for i in range(len(awaited)):
                self._meet(awaited[i], self._size, reads)
                word = max(word, awaited[i] >> 6)
            while word >= self._lowest:  # which falls while they are walked
                while self._marks[word]:
                    bit = columns.highest_bit(self._marks[word])
                    self._marks[word] ^= columns.bit(bit)
                    self._come_to(word << 6 | bit, reads)
                word -= 1
        except IndexError:
            # The next selection begins with clear marks, whatever was wrong with this one.
            for i in range(len(self._marks)):
                self._marks[i] = 0
            raise
        return 0

    @cython.cfunc
    @cython.inline
    def _meet(self, call: columns.Int, reader: columns.Int, reads: columns.Bool) -> columns.Int:
        """Mark a call that `reader` reads, or an example awaits: the walk of `_meet_all` comes to it.

        A call that has run is marked only if `reads` is true. Raises IndexError for a call that does not
        come before its reader.
        """
        if call >= reader:
            columns.missing()
        if self._lines[self._line(call) + RESULT] <= 0 or reads:
            word = call >> 6
            self._marks[word] |= columns.bit(call & 63)
            if word < self._lowest:
                self._lowest = word
        return 0

    @cython.cfunc
    def _come_to(self, call: columns.Int, reads: columns.Bool) -> columns.Int:
        """Note a marked call, as given if it has run, else as one to be run; then mark those that it reads.

        A given call is put into `_had`, and one to be run into `_ran`, in front of those that are there.
        With `reads` also calls that have run are marked.
        """
        mask = columns.CALL_MASK
        line = self._line(call)
        if self._lines[line + RESULT] > 0:
            self._given += 1
            # The walk goes from the last call to the first. Filled from its end, the column has them in
            # ascending order.
            self._had[self._room - self._given] = call
            return 0
        self.pending += 1
        self._ran[self._room - self.pending] = call
        for i in range(self._lines[line + STARTS + AT_REFS], self._lines[line + FACTS + STARTS + AT_REFS]):
            self._meet(self._refs[i] & mask, call, reads)
        self._seek(call, ROWS)
        for i in range(self._low, self._high):
            if self._members[i] >= 0:
                self._meet(self._members[i] & mask, call, reads)
        return 0

    @cython.cfunc
    def _let_go(self) -> columns.Int:
        """Drop the columns of the graph that were opened: an array cannot grow while it is read."""
        self._refs = None
        self._members = None
        return 0

    def window(self, awaited: columns.Read, signatures: columns.Int) -> tuple[Any, ...]:
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
        try:
            return self._selected(columns.opened(awaited), signatures)
        except IndexError:
            columns.missing()
        finally:
            self._let_go()
        return ()

    @cython.cfunc
    def _selected(self, awaited: columns.Read, signatures: columns.Int) -> tuple:
        """Return what `window` returns; it drops the opened columns afterwards."""
        self._meet_all(awaited, True)
        signature: columns.Read = columns.opened(self.graph.signature)
        given = self._given
        pending = self.pending
        count = given + pending
        made_calls = columns.array(count)
        made_numbers = columns.array(count)
        kept: columns.Write = columns.fresh(made_calls)
        numbers: columns.Write = columns.fresh(made_numbers)
        columns.copy(kept, 0, self._had, self._room - given, given)
        columns.copy(kept, given, self._ran, self._room - pending, pending)
        for i in range(count):
            call = kept[i]
            self._lines[self._line(call) + NUMBER] = i
            numbers[i] = signature[call]
            if i < given:
                numbers[i] += signatures
        refs, ref_starts = self._entries(kept, AT_REFS, self._refs, True)
        ints, int_starts = self._entries(kept, AT_INTS, columns.opened(self.graph.ints), False)
        lengths, ragged_starts = self._entries(kept, AT_RAGGED, columns.opened(self.graph.lengths), False)
        members, _ = self._entries(kept, ROWS, self._members, True)
        columns.closed(made_calls, kept)
        columns.closed(made_numbers, numbers)
        return (
            made_calls, given, made_numbers, refs, ref_starts, ints, int_starts, lengths, ragged_starts,
            members,
        )  # fmt: skip

    def frontier(
        self, awaited: columns.Read, rank: columns.Read, last: columns.Int
    ) -> tuple[Integers, Integers] | None:
        """Find which calls may run in the next round, which has one launch of each signature, in an order.

        A call runs as early as it can. Of two chains ``leaf, add, add`` whose first has run its leaf, the
        other leaf and the first ``add`` of both run next.

        Parameters
        ----------
        awaited : int64 array
            The calls whose values are wanted.
        rank : int64 array
            When each signature runs; a permutation.
        last : int
            The first rank of signatures that are awaited.

        Returns
        -------
        calls : int64 array
            Those that run, by rank, and each rank's in the order of recording. There are as many of them as
            ``pending`` if the awaited calls need no further round.
        begins : int64 array
            Where the calls of each rank begin, and at last how many calls run.

        None in place of both if an awaited call comes before the ``last`` ones, or a call has no rank.
        """
        found: Any = None
        try:
            found = self._ready(columns.opened(awaited), columns.opened(rank), last)
        except IndexError:
            columns.missing()
        finally:
            self._let_go()
        return found

    @cython.cfunc
    def _ready(self, awaited: columns.Read, rank: columns.Read, last: columns.Int) -> object:
        """Return what `frontier` returns; it drops the opened columns afterwards."""
        signature: columns.Read = columns.opened(self.graph.signature)
        ranks = len(rank)
        for i in range(len(awaited)):
            self._line(awaited[i])
            kind = signature[awaited[i]]
            if kind >= ranks or rank[kind] < last:
                return None
        self._meet_all(awaited, False)
        begins = columns.array_of_zeros(ranks + 2)
        # A counting sort. A rank is counted two places further on: after the sums, ``begin[rank + 1]`` is
        # where its first call goes, and once all calls have gone to their places, where its last one ends.
        begin: columns.Write = columns.fresh(begins)
        for i in range(self._room - self.pending, self._room):
            call = self._ran[i]
            kind = signature[call]
            if kind >= ranks:
                return None
            if not 0 <= rank[kind] < ranks:
                columns.missing()
            slot = self._slot_of(call, rank[kind])
            self._lines[self._line(call) + NUMBER] = slot
            if slot < ranks:  # in the next round; in later ones it is larger
                begin[slot + 2] += 1
        for i in range(ranks):
            begin[i + 2] += begin[i + 1]
        found = columns.array(begin[ranks + 1])
        calls: columns.Write = columns.fresh(found)
        for i in range(self._room - self.pending, self._room):
            call = self._ran[i]
            slot = self._lines[self._line(call) + NUMBER]
            if slot < ranks:
                calls[begin[slot + 1]] = call
                begin[slot + 1] += 1
        columns.closed(found, calls)
        columns.closed(begins, begin)
        return found, begins[: ranks + 1]

    @cython.cfunc
    @cython.exceptval(-1, check=True)
    def _slot_of(self, call: columns.Int, rank: columns.Int) -> columns.Int:
        """Return when a call of a rank runs, as ``round << 32 | rank``: once all that it reads has run."""
        last: columns.Int = -1
        line = self._line(call)
        for i in range(self._lines[line + STARTS + AT_REFS], self._lines[line + FACTS + STARTS + AT_REFS]):
            last = max(last, self._slot_read(self._refs[i]))
        self._seek(call, ROWS)
        for i in range(self._low, self._high):
            last = max(last, self._slot_read(self._members[i]))
        slot = max(last, 0) & ~RANK | rank
        # If the rank has passed in the round of the last call that it reads, it comes again in the next
        # round.
        return slot if slot > last else slot + RANK + 1

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-2, check=True)
    def _slot_read(self, ref: columns.Int) -> columns.Int:
        """Return when the call that `ref` reads runs, as `_slot_of` does.

        -1 if it has run, or is a loose value.
        """
        if ref < 0:
            return -1
        line = self._line(ref & columns.CALL_MASK)
        return -1 if self._lines[line + RESULT] > 0 else self._lines[line + NUMBER]

    def arrived(self, refs: columns.Read, sizes: list) -> tuple[list[int], Integers, Integers, Integers]:
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
            For each reference of these groups, which of the sources it reads, and which row of that.
        """
        own: columns.Read = columns.opened(refs)
        mask = columns.CALL_MASK
        at: columns.Int = 0
        end: columns.Int = 0
        size: columns.Int
        groups = []
        made_sources = columns.array(len(own))
        made_rows = columns.array(len(own))
        sources: columns.Write = columns.fresh(made_sources)
        rows: columns.Write = columns.fresh(made_rows)
        for group in range(len(sizes)):
            size = sizes[group]
            if size < 0 or end + size > len(own):
                columns.missing()
            here = 0
            for i in range(end, end + size):
                line = self._line(own[i] & mask)
                if self._lines[line + RESULT] <= 0:
                    break
                sources[at + here] = own[i] & ~mask | self._lines[line + RESULT]
                rows[at + here] = self._lines[line + ROW]
                here += 1
            # A group that waits for more leaves `at` where it is, so the next group overwrites what it has
            # noted.
            if here == size:
                groups.append(group)
                at += size
            end += size
        columns.closed(made_sources, sources)
        columns.closed(made_rows, rows)
        told, which, _ = distinct(made_sources[:at])
        return groups, told, which, made_rows[:at]

    def launch_rows(
        self, calls: columns.Read, width: columns.Int
    ) -> tuple[Integers, Integers, tuple[int, ...], list[int]]:
        """Return which rows the node operands of a launch are; what its calls read has run.

        The calls are put into groups, each of which reads the same parts of the same results.

        Parameters
        ----------
        calls : int64 array
            The calls, all of one signature.
        width : int
            How many node operands each has.

        Returns
        -------
        calls : int64 array
            The calls, group after group.
        rows : int64 array
            The row that each call reads of its first operand's result, then of its second, and so on.
        sources : tuple of int
            ``part << 40 | result`` of each operand, group after group, whose first has the first call.
        begins : list of int
            Where each group begins, and at last how many calls there are.

        Examples
        --------
        Calls 0 and 1 have run: results 1 and 2 have their rows, rows 5 and 7. Calls 2 and 3 read both.

        >>> from multifold import Fold
        >>> fold = Fold(backend="numpy")
        >>> leaves = fold.add("leaf", 3), fold.add("leaf", 4)
        >>> sums = [fold.add("sum", *leaves) for _ in range(2)]
        >>> table = TableBase(fold._graph)
        >>> table.grow(np.array([[0, 1, 0, 0, 0], [2, 0, 0, 0, 0]]))
        >>> table.store(np.array([0]), 1, np.array([5]))
        >>> table.store(np.array([1]), 2, np.array([7]))
        >>> calls, rows, sources, begins = table.launch_rows(np.array([2, 3]), 2)
        >>> calls.tolist(), rows.tolist(), sources, begins
        ([2, 3], [5, 5, 7, 7], (1, 2), [0, 2])
        """
        own: columns.Read = columns.opened(calls)
        refs: columns.Read = columns.opened(self.graph.refs)
        count = len(own)
        if not 0 <= width <= len(refs):
            columns.missing()
        ordered = columns.array(count)
        rows = columns.array(width * count)
        order: columns.Write = columns.fresh(ordered)
        out: columns.Write = columns.fresh(rows)
        size = (count + 1) * (width + 2)
        if size > len(self._work):
            self._work = columns.room(2 * size)
        sources, begins = self._grouped(own, refs, width, order, out)
        columns.closed(ordered, order)
        columns.closed(rows, out)
        return ordered, rows, sources, begins

    @cython.cfunc
    def _grouped(
        self,
        calls: columns.Read,
        refs: columns.Read,
        width: columns.Int,
        order: columns.Write,
        out: columns.Write,
    ) -> tuple:
        """Write the calls of a launch to `order`, by what they read, and their operands' rows to `out`.

        Returns the sources of each group, one group after the other, and where each group begins.
        """
        groups: columns.Int = 0
        count = len(calls)
        end = 2 * count + 1
        own: columns.Write = columns.part(self._work, 0, count)
        goes: columns.Write = columns.part(self._work, count, end)
        sources: columns.Write = columns.part(self._work, end, end + (count + 1) * width)
        for i in range(count):
            # Noted as if it were a new group, and compared with the others.
            self._read(calls[i], refs, width, i, count, sources, groups * width, out)
            group = group_like(sources, groups, width)
            own[i] = group
            if group == groups:
                groups += 1
                goes[groups] = 0
            goes[group + 1] += 1
        goes[0] = 0
        for group in range(groups):
            goes[group + 1] += goes[group]
        begins = [goes[group] for group in range(groups + 1)]
        found = tuple([sources[i] for i in range(groups * width)])
        for i in range(count):
            place = goes[own[i]]
            goes[own[i]] += 1
            order[place] = calls[i]
            # With one group all rows are in their places. With several, they are written again in the order
            # of the groups.
            if groups > 1:
                self._read(calls[i], refs, width, place, count, sources, 0, out)
        return found, begins

    @cython.cfunc
    @cython.inline
    def _read(
        self,
        call: columns.Int,
        refs: columns.Read,
        width: columns.Int,
        place: columns.Int,
        count: columns.Int,
        sources: columns.Write,
        to: columns.Int,
        out: columns.Write,
    ) -> columns.Int:
        """Write what each operand of a call reads, ``part << 40 | result``, to `sources` from `to` on.

        The rows of these go to `out`: that of operand k goes to ``k * count + place``.
        """
        mask = columns.CALL_MASK
        first = self._lines[self._line(call) + STARTS + AT_REFS]
        for k in range(width):
            ref = refs[first + k]
            line = self._line(ref & mask)
            sources[to + k] = ref & ~mask | self._lines[line + RESULT]
            out[k * count + place] = self._lines[line + ROW]
        return 0

    @cython.cfunc
    @cython.inline
    def _seek(self, call: columns.Int, column: columns.Int) -> columns.Int:
        """Set `_low` and `_high` to where a call's entries in a column begin and end.

        For `ROWS` these are the rows of its ragged operands.
        """
        at = self._line(call) + STARTS + (AT_RAGGED if column == ROWS else column)
        self._low = self._lines[at]
        self._high = self._lines[at + FACTS]
        if column == ROWS and self._low < self._high:
            self._low = self._member_starts[self._low]
            self._high = self._member_starts[self._high]
        return 0

    @cython.cfunc
    def _entries(
        self, kept: columns.Read, column: columns.Int, values: columns.Read, are_refs: columns.Bool
    ) -> tuple:
        """Return what the calls that are run have in a column, call after call, and where each call begins.

        The given calls have nothing. `values` is the column of the graph; references get the numbers of the
        round.
        """
        size: columns.Int = 0
        at: columns.Int = 0
        begins = columns.array_of_zeros(len(kept) + 1)
        if not len(values):
            return NOTHING, begins
        begin: columns.Write = columns.fresh(begins)
        for i in range(self._given, len(kept)):
            self._seek(kept[i], column)
            size += max(self._high - self._low, 0)
            begin[i + 1] = size
        found = columns.array(size)
        out: columns.Write = columns.fresh(found)
        for i in range(self._given, len(kept)):
            self._seek(kept[i], column)
            for j in range(self._low, self._high):
                out[at] = self._number_of(values[j]) if are_refs else values[j]
                at += 1
        columns.closed(begins, begin)
        columns.closed(found, out)
        return found, begins

    @cython.cfunc
    @cython.inline
    @cython.exceptval(-1, check=True)
    def _number_of(self, ref: columns.Int) -> columns.Int:
        """Return a reference with the number that its call has in this round; a loose value as it is."""
        if ref < 0:
            return ref
        mask = columns.CALL_MASK
        return ref & ~mask | self._lines[self._line(ref & mask) + NUMBER]

    def renumbered(self, refs: columns.Read) -> Integers:
        """Return a copy of references with the numbers that calls have in the last selection (`window`).

        Negative ones stay: they stand for numbers and arrays, as in ragged operands.
        """
        own: columns.Read = columns.opened(refs)
        found = columns.array(len(own))
        numbers: columns.Write = columns.fresh(found)
        for i in range(len(own)):
            numbers[i] = self._number_of(own[i])
        columns.closed(found, numbers)
        return found

    def place(
        self, given: columns.Read, calls: columns.Int
    ) -> tuple[Integers, Integers, Integers, Integers]:
        """Return which results, and which rows of them, hold the given calls of a round.

        Those are the first calls of the round, which earlier rounds have run.

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
        own: columns.Read = columns.opened(given)
        count = len(own)
        if calls < count or calls >= columns.MOST_SMALL:
            columns.missing()
        launch = columns.array_of_zeros(max(calls, 1))
        made_rows = columns.array_of_zeros(max(calls, 1))
        results: columns.Write = columns.fresh(launch)
        rows: columns.Write = columns.fresh(made_rows)
        for i in range(count):
            line = self._line(own[i])
            results[i] = self._lines[line + RESULT]
            rows[i] = self._lines[line + ROW]
        columns.closed(launch, results)
        columns.closed(made_rows, rows)
        numbers, which, counts = distinct(launch[:count])
        launch[:count] = which
        launch[count:] = -1
        return numbers, counts, launch, made_rows


NOTHING = columns.array_of_zeros(0)


@cython.cfunc
@cython.inline
@cython.exceptval(-1, check=True)
def group_like(sources: columns.Write, groups: columns.Int, width: columns.Int) -> columns.Int:
    """Return the first of `groups` groups that has the sources of the one after them; `groups` if none has.

    A group has `width` sources.
    """
    for group in range(groups):
        k = 0
        while k < width and sources[group * width + k] == sources[groups * width + k]:
            k += 1
        if k == width:
            return group
    return groups


@cython.cfunc
def few(values: columns.Read) -> object:
    """Return what `distinct` returns, for integers of any size; None if more than `FEWEST` are distinct."""
    found: columns.Int = 0
    count = len(values)
    numbers = columns.array(FEWEST)
    counts = columns.array(FEWEST)
    known: columns.Write = columns.fresh(numbers)
    often: columns.Write = columns.fresh(counts)
    places = columns.array(count)
    place: columns.Write = columns.fresh(places)
    for i in range(count):
        value = values[i]
        at = 0
        while at < found and known[at] < value:
            at += 1
        if at == found or known[at] != value:
            if found == FEWEST:
                return None
            for j in range(found, at, -1):
                known[j] = known[j - 1]
                often[j] = often[j - 1]
            # Integers that were placed after it move up by one.
            for j in range(i):
                if place[j] >= at:
                    place[j] += 1
            known[at] = value
            often[at] = 0
            found += 1
        place[i] = at
        often[at] += 1
    columns.closed(places, place)
    columns.closed(numbers, known)
    columns.closed(counts, often)
    return numbers[:found], places, counts[:found]


def distinct(values: columns.Read) -> tuple[Integers, Integers, Integers]:
    """Return the distinct integers, ascending, which of them each one is, and how often each occurs.

    "Which" is a position among the distinct ones. All three are int64 arrays.

    Examples
    --------
    >>> [column.tolist() for column in distinct(np.array([7, 2, 7]))]
    [[2, 7], [1, 0, 1], [1, 2]]
    """
    own: columns.Read = columns.opened(values)
    count = len(own)
    low: columns.Int = 0
    high: columns.Int = 0
    if count:
        low = own[0]
        high = low
    for i in range(count):
        if own[i] < low:
            low = own[i]
        elif own[i] > high:
            high = own[i]
    # Most launches of a model of one width read one result.
    if count and low == high:
        same = columns.array(1)
        same[0] = low
        times_of_it = columns.array(1)
        times_of_it[0] = count
        return same, columns.array_of_zeros(count), times_of_it
    # A table of all integers between the lowest and the highest one takes memory; it has to be worth it.
    if low < 0 or high - low > 16 * count + 1024:
        told = few(own)
        if told is None:
            unique, number, often = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
            told = unique, number.ravel(), often
        return told
    size = high - low + 1
    room: columns.Write = columns.zeros(2 * size)
    times: columns.Write = columns.part(room, 0, size)
    which: columns.Write = columns.part(room, size, 2 * size)
    found: columns.Int = 0
    for i in range(count):
        times[own[i] - low] += 1
    for i in range(size):
        if times[i]:
            which[i] = found
            found += 1
    numbers = columns.array(found)
    places = columns.array(count)
    counts = columns.array(found)
    own_numbers: columns.Write = columns.fresh(numbers)
    own_places: columns.Write = columns.fresh(places)
    own_counts: columns.Write = columns.fresh(counts)
    for i in range(size):
        if times[i]:
            own_numbers[which[i]] = low + i
            own_counts[which[i]] = times[i]
    for i in range(count):
        own_places[i] = which[own[i] - low]
    columns.closed(numbers, own_numbers)
    columns.closed(places, own_places)
    columns.closed(counts, own_counts)
    return numbers, places, counts


def counts_up(values: columns.Read) -> columns.Bool:
    """Return whether integers are 0, 1, 2 and so on, each once.

    >>> [counts_up(np.array(x)) for x in ([0, 1, 2], [0, 2, 1], [1, 2])]
    [True, False, False]
    """
    own: columns.Read = columns.opened(values)
    count = len(own)
    for i in range(count):  # noqa: SIM110
        if own[i] != i:
            return False
    return True
