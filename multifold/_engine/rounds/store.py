"""The store of results: what the launches of earlier rounds returned, as long as a node can ask for it.

Each launch leaves a result with a row for each of its calls. Four things keep the store fast in runs of
many rounds:

- A result that is read sparsely is *divided*. The backward pass of a read fills the gradient of the whole
  result that is read. If 1,000 rounds read 5 rows each of a result of 5,000 rows, they would fill five
  million rows. Divided in 8 results, and each of these in 8 again where the reads are sparser still, a
  round touches a fixed multiple of the rows that it reads.
- Small results that are read together are *put together*. After 10 rounds, an example's states lie in 10
  results of a few rows; each of them would cost the reading launch a gather.
- Where no gradient is wanted and the framework can, rows are *written in place*: results of which many are
  read together are moved to a page of their form (`multifold._engine.rounds.pages`), later results of this
  form are written there at once, and nothing has to be divided or put together.
- Results that no node can ask for any more are *swept*: each graph counts the nodes of its calls that are
  alive (``holders``), so nothing is looked at but these counts.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from multifold._engine import compiled
from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS, Integers
from multifold._engine.ops.values import PARTS_HINT, Values, array_at, follow, opened, steps_to
from multifold._engine.record.node import Node
from multifold._engine.rounds.calls import CallTable
from multifold._engine.rounds.fetch import LEAF, HostRows
from multifold._engine.rounds.pages import NUMBERS, PADDED, ROWS, Page, ResultRows, numbers_in, padded
from multifold._engine.run.launch import Outcome
from multifold._engine.run.run import Run
from multifold.errors import LaunchError, RecordError

SPARSE = 8
"""A result is divided into so many when a round reads less than one in so many of its rows."""

SMALL = 4096
"""Rows of a result that is not divided: reading each of 8 short ones would take longer than the whole."""

TOGETHER = 1024
"""Rows that small results which are put together may have."""

FEW = 4
"""From so many results, at most, rows are put together; from more, they are moved to a page first."""

MANY = 10_000
"""Calls that are recorded between two sweeps, of which each looks at all calls."""

HEAVY = 1 << 24
"""Numbers that the results may hold before the next sweep: 64 MB of float32."""


Leaf = tuple[ResultRows, int]
"""The rows of a result or of a page, and the position of one of its arrays."""


class Stored:
    """The result of a launch, or some rows of one, or the rows of several.

    Parameters
    ----------
    value : object
        An array, or a container of arrays.
    rows : int
        How many rows it has. Not the number of calls: all calls of an op without batched operands have
        one row in common.
    calls : int64 array
        The calls of its rows, in the order of the rows; `CallTable.row` says which row each of them has.
    row_class : Hashable
        The class of the value: structure, trailing shapes, dtypes, devices (`Values.class_of`); None if it
        is not known yet. Results of one class may be joined.
    read : ResultRows, optional
        Its rows, where it is known to be an array or a flat tuple of arrays; see `read_by`.
    numbers : int, optional
        How many numbers its arrays hold, where that is known.
    """

    __slots__ = ("calls", "numbers", "read", "row_class", "rows", "value")

    def __init__(
        self,
        value: Any,
        rows: int,
        calls: Integers,
        row_class: Hashable = None,
        read: ResultRows | None = None,
        numbers: int | None = None,
    ) -> None:
        self.value = value
        self.rows = rows
        self.calls = calls
        self.row_class = row_class
        self.read = read
        self.numbers = numbers_in(value) if numbers is None else numbers

    def read_by(self, values: Values) -> ResultRows | None:
        """Return the rows of the result; None for anything but an array or a flat tuple of arrays.

        Each of these has ``rows`` rows.
        """
        if self.read is None:
            leaves = arrays_of(self.value)
            backend = values.backend
            owned = leaves and all(map(backend.owns, leaves))
            if owned and values.mismatch(self.value, self.rows) is None:
                single = type(self.value) is not tuple
                forms = tuple(map(backend.signature, leaves))
                self.read = ResultRows(values, leaves, single, forms, backend.rows(leaves[0]))
        return self.read

    def class_by(self, values: Values) -> Hashable:
        """Return ``row_class``, which ``values`` finds at the first call."""
        if self.row_class is None:
            self.row_class = values.class_of(self.value)
        return self.row_class


class Store:
    """The results that hold the rows of computed calls, by number; `CallTable.result` refers to them.

    Numbers begin at 1 and are never used again.

    Parameters
    ----------
    table : CallTable
        Whose calls are kept.
    in_place : bool
        Whether rows may be written in place, to pages (`multifold._engine.rounds.pages`). Else a result
        stays as it was returned, so that gradients flow.
    before : Store, optional
        Of another table: its pages, of which no row is taken, are used again.
    """

    def __init__(self, table: CallTable, *, in_place: bool = False, before: Store | None = None) -> None:
        self.table = table
        self.in_place = in_place
        self.results: dict[int, Any] = {}  # each a `Stored` or a `Page`
        self.pages: dict[Hashable, Page] = {}
        self._next = 1
        # Number of a part, and how many arrays the result is a tuple of -> which of them the part is.
        self._leaves: dict[tuple[int, int], int | None] = {}
        if before is not None:
            self.pages = before.pages
            self._next = before._next
            self.results = {page.number: page for page in self.pages.values()}
        self._swept = 0  # calls that had been recorded at the last sweep
        # Numbers in the results now, without pages; and with pages, right after the last sweep.
        self._held = self._held_before = 0

    def keep(self, calls: Integers, first: int, run: Run) -> None:
        """Store the result of each launch that a round has run, and of which the run still has the result.

        Each goes in by `add`, so the table notes it. Containers of subclasses become plain ones (`opened`),
        unless the result is read whole (`Node.no_batch`).

        Parameters
        ----------
        calls : int64 array
            The number in the table of each call of the round.
        first : int
            The number of the first launch; those before it are results that the round was given.
        run : Run
            The round.
        """
        place = run.place
        for number, members in enumerate(run.notes.calls, start=first):
            if number in run.results:
                value = run.results[number]
                rows = place.rows[number]
                own = calls[members]
                known = run.notes.classes.get((number, 0))  # where the round has read all of it
                if rows > 1 or not self._is_whole(rows, own):
                    value = opened(value)
                self.add(value, rows, own, place.row[members], known)

    def _is_whole(self, rows: int, calls: Integers) -> bool:
        """Return whether a result has one row, and is read whole (`CallTable.is_whole` of its calls).

        Such a result has to stay the object that the op returned, for `Node.no_batch`.
        """
        return rows == 1 and self.table.is_whole(calls)

    def add(
        self,
        value: Any,
        rows: int,
        calls: Integers,
        row: Integers,
        row_class: Hashable = None,
        read: ResultRows | None = None,
        numbers: int | None = None,
    ) -> None:
        """Store a result under the next number; call ``calls[i]`` has its row ``row[i]``.

        Sets `CallTable.result` and `CallTable.row` of these calls. ``row_class``, ``read`` and ``numbers``
        are those of `Stored`, where they are known.
        """
        stored = self.results[self._next] = Stored(value, rows, calls, row_class, read, numbers)
        self.table.store(calls, self._next, row)
        self._next += 1
        self._held += stored.numbers

    def put(self, values: Values, value: Any, outcome: Outcome, rows: int, calls: Integers) -> None:
        """Keep what a launch returned for ``calls``: in the page of its form if there is one, or by itself.

        ``outcome`` says the form of ``value``, which has ``rows`` rows: one for each call and, where
        launches are padded, some more; or one for all calls. Padded results get a page at once.
        """
        forms = outcome.forms
        count = len(calls)
        if forms and self.in_place and rows >= count:
            page = self.pages.get((outcome.kind is not tuple, *forms))
            if page is None and values.backend.pads:
                page = self.page_of(values, value, rows)
            if page is not None:
                new = np.empty_like(calls)
                page.take(new)
                page.write(new, arrays_of(value))
                self.table.store(calls, page.number, new)
                return
        row = np.arange(count) if rows >= count else np.zeros_like(calls)
        if forms:
            single = outcome.kind is not tuple
            read = ResultRows(values, (value,) if single else value, single, forms, rows)
            self.add(value, rows, calls, row, outcome.form, read, rows * outcome.width)
        else:
            self.add(opened(value), rows, calls, row, outcome.form)

    def _drop(self, number: int) -> Stored:
        """Remove and return the result of this number, which is no page.

        `held` counts it no more; the table still names it for its calls.
        """
        stored: Stored = self.results.pop(number)
        self._held -= stored.numbers
        return stored

    def move(self, number: int, values: Values) -> bool:
        """Move a result to the page of its form, and note so in the table; return whether it was moved.

        A page is an array with the rows of many results, written in place. Nothing is moved if the number
        is that of a page or of no result, if the result is read whole, or if it can have no page.
        """
        stored = self.results.get(number)
        if not isinstance(stored, Stored) or self._is_whole(stored.rows, stored.calls):
            return False
        page = self.page_of(values, stored.value, stored.rows)
        if page is None:
            return False
        table = self.table
        # Some of the calls may have been given up since they ran, and a padded launch has its last call
        # several times.
        calls = np.unique(stored.calls[table.result[stored.calls] == number])
        page.take(new := np.empty_like(calls))
        rows = table.row[calls]
        leaves = arrays_of(stored.value)
        if len(rows) < stored.rows or (rows != np.arange(len(rows))).any():
            index = values.upload([padded(values.backend, rows, rows[-1])], int)[0]
            leaves = [values.backend.gather(x, index) for x in leaves]
        page.write(new, leaves)
        table.store(calls, page.number, new)
        self._drop(number)
        return True

    def reads_well(self, reads: Sequence[tuple[ResultRows, int]]) -> bool:
        """Return whether gathers read so many rows of each of these results at little cost.

        They do not where there are more than `FEW`, unless all are pages. And where gradients are wanted,
        they do not read few rows of a large result: the backward pass of each read fills a gradient of all
        its rows, so it is divided.
        """
        if len(reads) > FEW and not all(isinstance(result, Page) for result, _ in reads):
            return False
        return self.in_place or all(result.rows <= max(SMALL, SPARSE * count) for result, count in reads)

    def move_all(self, numbers: Iterable[int], values: Values) -> bool:
        """Move results to pages, if rows are written in place; return whether one was moved."""
        return self.in_place and max(map(partial(self.move, values=values), numbers))

    def page_of(self, values: Values, value: Any, rows: int) -> Page | None:
        """Look up or make the page for a result of ``rows`` rows; return None if it can have none.

        A page is an array, or a flat tuple of arrays, with the rows of many results of one form. A result
        that nests deeper, or holds anything but arrays of the backend with ``rows`` rows, has none.
        """
        backend = values.backend
        leaves = arrays_of(value)
        if not leaves or not all(map(backend.owns, leaves)) or values.mismatch(value, rows) is not None:
            return None
        single = type(value) is not tuple
        key = single, *map(backend.signature, leaves)
        page = self.pages.get(key)
        if page is None:
            # Short rows get room for all calls so far, up to NUMBERS: most calls of a run are of few forms.
            # Long rows, such as matrices, get room for four times the rows that are there, up to ROWS. A
            # page that is full is doubled. A framework that compiles does so anew for each size of a page,
            # so there a page has much room at once.
            calls = PADDED if backend.pads else len(self.table)
            room = min(calls, NUMBERS * rows // max(numbers_in(leaves), 1))
            room = max(room, min(ROWS, 4 * rows))
            page = Page(self._next, values, value, single, 1 << room.bit_length())
            self.pages[key] = self.results[self._next] = page
            self._next += 1
        return page

    def free(self, calls: Integers) -> None:
        """Give back the rows that these calls have in pages, and set their `CallTable.result` to 0.

        Other calls may take the rows, and a call that is asked for again runs again. Calls whose rows are
        in no page stay as they are.
        """
        table = self.table
        results = table.result[calls]
        for page in self.pages.values():
            mine = calls[results == page.number]
            if len(mine):
                page.give_back(table.row[mine])
                table.result[mine] = 0

    def settle(self, numbers: Integers, counts: Integers, given: Integers, values: Values | None) -> bool:
        """Divide results that a round reads sparsely, and join small ones; or move them all to pages.

        They move if ``in_place`` and if there are more than `FEW`, but those that can have no page. Returns
        whether any rows have moved, so that the table has other places for them; False if ``values`` is
        None.

        Parameters
        ----------
        numbers, counts : int64 arrays
            The results, and how many calls the round reads of each.
        given : int64 array
            These calls.
        values : Values or None
            What divides results and puts them together, as the last round had it. None before the first
            round, when there are no results either.
        """
        if values is None:
            return False
        before = self._next
        moved = len(numbers) > FEW and self.move_all(numbers.tolist(), values)
        if moved:
            numbers, _, counts = compiled.distinct(self.table.result[given])
        self._divide_sparse(numbers, counts, given, values)
        if self._next != before:
            numbers, *_ = compiled.distinct(self.table.result[given])
        self._put_together(numbers.tolist(), values)
        return self._next != before or moved

    def rows(self, numbers: Integers) -> list[int]:
        """Return how many rows the results of these numbers have, in their order."""
        return [self.results[number].rows for number in numbers.tolist()]

    def values(self, numbers: Integers) -> dict[int, Any]:
        """Return a dictionary: position in ``numbers`` -> the result of that number."""
        return {i: self.results[number].value for i, number in enumerate(numbers.tolist())}

    def parts(self, refs: Integers) -> list[Any]:
        """Return the parts of results that hold the rows of these references, each part once.

        They come in the order of the references that read them first, and no reference is negative. Raises
        `LaunchError` for a part that is not there.
        """
        numbers = self.table.result[refs & CALL_MASK].tolist()
        parts = (refs >> PART_BITS).tolist()
        return [opened(self._part(*key)) for key in dict.fromkeys(zip(numbers, parts, strict=True))]

    def _part(self, number: int, part: int) -> Any:
        """Return a part of the result ``number``; ``part`` is a position in `Graph.parts`, and 0 the whole.

        Raises `LaunchError`, which names the first call of the result, if the part is not there or holds
        None.
        """
        graph = self.table.graph
        call = int(self.results[number].calls[0])

        def refuse(what: str) -> LaunchError:
            result = f"The result of {Node(graph, call)!r}, recorded at {graph.site(call)}"
            return LaunchError(f"{result}, {what}.", PARTS_HINT)

        value = follow(self.results[number].value, steps_to(graph.parts, part), refuse)
        if value is None:
            raise refuse("holds nothing in a part that is read")
        return value

    def leaf(self, source: int, values: Values) -> Leaf | None:
        """Return a pair: the rows that a source has, and the position of its array in their ``leaves``.

        None if it is no array, or part of a result that nests. A source is a part of a result,
        ``part << 40 | result``, part 0 the whole.
        """
        part = source >> PART_BITS
        result = self.results[source & CALL_MASK]
        rows = result if type(result) is Page else result.read or result.read_by(values)
        if rows is None:
            return None
        if rows.single:
            return None if part else (rows, 0)
        key = part, len(rows.leaves)
        if key not in self._leaves:
            self._leaves[key] = array_at(steps_to(self.table.graph.parts, part), key[1])
        leaf = self._leaves[key]
        return None if leaf is None else (rows, leaf)

    def host_rows(
        self, values: Values, sources: Integers, which: Integers, rows: Integers
    ) -> HostRows | None:
        """Copy rows of results to the host, as `HostRows`; return None if a source nests too deep.

        ``sources`` has distinct parts of results, each ``part << 40 | result``. Reference ``i`` reads row
        ``rows[i]`` of the result of ``sources[which[i]]``. Of each source only these rows are copied, in
        the order of the references.
        """
        hosts = []
        structures = []
        at = np.empty_like(rows)
        for number, source in enumerate(sources.tolist()):
            found = self._leaves_of(source, values)
            if found is None:
                return None
            held, leaves, structure = found
            mine: Any = slice(None) if len(sources) == 1 else np.flatnonzero(which == number)
            own = rows[mine]
            hosts.append([held.host(leaf, own) for leaf in leaves])
            structures.append(structure)
            at[mine] = np.arange(len(own))
        return HostRows(hosts, structures, which, at, straight=True)

    def _leaves_of(self, source: int, values: Values) -> tuple[ResultRows, Sequence[int], Any] | None:
        """Return the rows of a source, the positions of its arrays in their leaves, and how they nest.

        A source is a part of a result, ``part << 40 | result``; part 0 is all of it. None if the result
        nests, or if the part is neither all of it nor one of its arrays.
        """
        leaf = self.leaf(source, values)
        if leaf is not None:
            return leaf[0], leaf[1:], LEAF
        result = self.results[source & CALL_MASK]
        rows = result if isinstance(result, Page) else result.read_by(values)
        if rows is None or source >> PART_BITS:
            return None
        return rows, range(len(rows.leaves)), rows.structure

    def refuse_batched(self, calls: Integers) -> None:
        """Raise `RecordError` if one of these calls has its row in a stored result of several rows.

        A call that ran in such a launch, or whose result was joined or put in a page, can't be read whole
        any more.
        """
        graph = self.table.graph
        for call in calls.tolist():
            number = int(self.table.result[call])
            if number and self.results[number].rows > 1:
                raise RecordError(
                    f"The result of {Node(graph, call)!r}, recorded at {graph.site(call)}, is read "
                    "through no_batch(), but it was computed in a launch with others, for a value that was "
                    "awaited before.",
                    "call no_batch(), and pass it on, before anything that needs the node is awaited; with "
                    "cse=True an equal call is the same node.",
                )

    def _divide_sparse(self, numbers: Integers, counts: Integers, given: Integers, values: Values) -> None:
        """Divide each result of more than `SMALL` rows of which a round reads less than one in `SPARSE`.

        That is repeated for the results that come out. ``given`` are the calls that the round reads, and
        ``counts`` how many of them lie in each result of ``numbers``. Pages stay as they are.
        """
        while True:
            sparse = [
                number
                for number, count in zip(numbers.tolist(), counts.tolist(), strict=True)
                if type(self.results[number]) is Stored
                and self.results[number].rows > max(SMALL, SPARSE * count)
            ]
            if not sparse:
                return
            for number in sparse:
                self._divide(number, values)
            numbers, _, counts = compiled.distinct(self.table.result[given])

    def _divide(self, number: int, values: Values) -> None:
        """Divide a result into `SPARSE` stretches of rows, and store each as a result of its own."""
        stored = self._drop(number)
        row = self.table.row[stored.calls]  # ascending, as the calls are in the order of the rows
        bounds = np.linspace(0, stored.rows, SPARSE + 1).astype(np.int64)
        sizes = np.diff(bounds).tolist()
        begin = np.searchsorted(row, bounds).tolist()
        for i, value in enumerate(values.split(stored.value, sizes)):
            mine = slice(begin[i], begin[i + 1])
            self.add(value, sizes[i], stored.calls[mine], row[mine] - bounds[i])

    def _put_together(self, numbers: Sequence[int], values: Values) -> None:
        """Join results of one class (`Values.class_of`), of up to `TOGETHER` rows in all, into one result.

        The old ones are dropped. Pages, results of more than half of `TOGETHER` rows and those that are
        read whole stay as they are, and all do if the backend pads.
        """
        if values.backend.pads:
            return  # it compiles for each number of rows, and these would be new in every round
        groups: dict[Hashable, list[int]] = {}
        heights: dict[Hashable, int] = {}
        for number in numbers:
            stored = self.results[number]
            if type(stored) is Page or stored.rows > TOGETHER // 2:
                continue
            if self._is_whole(stored.rows, stored.calls):
                continue
            row_class = stored.class_by(values)
            height = heights.get(row_class, 0) + stored.rows
            if height <= TOGETHER:
                heights[row_class] = height
                groups.setdefault(row_class, []).append(number)
        for row_class, group in groups.items():
            if len(group) < 2:
                continue
            small = list(map(self._drop, group))
            end = 0
            row = []
            for stored in small:
                row.append(self.table.row[stored.calls] + end)
                end += stored.rows
            calls = np.concatenate([stored.calls for stored in small])
            value = values.concat([stored.value for stored in small])
            self.add(value, end, calls, np.concatenate(row), row_class)

    def keep_only(self, wanted: np.ndarray, first: int = 0) -> None:
        """Drop the results of which no call is wanted, and free the rows of pages that no wanted call has.

        The table then has result 0, none, for the calls of these results and rows.

        Parameters
        ----------
        wanted : bool array
            Whether each call of the table is wanted, from the ``first`` one on.
        first : int
            No call before it is wanted.
        """
        if self.pages:
            self.free(first + np.flatnonzero(~wanted & (self.table.result[first:] > 0)))
        stored = [(number, x.calls) for number, x in self.results.items() if isinstance(x, Stored)]
        for number, calls in stored:
            if not wanted[calls[calls >= first] - first].any():
                self._drop(number)
                self.table.store(calls, 0, np.zeros_like(calls))

    @property
    def used(self) -> int:
        """How many rows of pages are taken, plus one for each other result."""
        return sum(x.used if type(x) is Page else 1 for x in self.results.values())

    @property
    def held(self) -> int:
        """How many numbers the arrays of all results and pages hold."""
        return self._held + sum([page.rows * page.width for page in self.pages.values()])

    def clear(self) -> None:
        """Drop all results, without telling the table. Pages stay, with all of their rows free."""
        self.results = {}
        self._held = 0
        for page in self.pages.values():
            page.clear()

    def sweep(self) -> None:
        """Drop the results that no node can ask for any more (`keep_only`), if it is time to look for them.

        A result is read again only through a node that the user still holds, or through a call that has not
        run yet and that such a node needs. It is time after `MANY` calls, or when the results hold twice as
        many numbers as the last sweep has left, `HEAVY` at least. Where equal calls are one node, one that
        is recorded later may ask for a result that was dropped; then its call runs again.
        """
        numbers = self.held if self.pages else self._held
        heavy = numbers > max(HEAVY, 2 * self._held_before)
        if not heavy and len(self.table.graph.signature) - self._swept < MANY:
            return
        self.table.extend()  # a call that was recorded since the last round may need a result
        self._swept = len(self.table)
        held = np.flatnonzero(np.array(self.table.graph.holders, np.int64))
        wanted = np.zeros(len(self.table), bool)
        wanted[self.table.select(held[held < len(self.table)]).given] = True
        self.keep_only(wanted)
        self._held_before = self.held


def arrays_of(value: Any) -> Sequence[Any]:
    """Return the arrays of a result that may have a page: a tuple as it is, else ``(value,)``."""
    return value if type(value) is tuple else (value,)
