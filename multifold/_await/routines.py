"""Routines: launches of calls like those of launches before, without a plan.

A round of one launch of each op has no schedule to find, and where all rows are in pages
(`multifold._await.pages`) no wiring: each operand is one gather. So when a launch has run by a plan, with
all its checks, the engine notes its signature and the classes of rows that it has read as a *routine*. The
next launch of the same signature that reads rows of the same classes is run by it:

1. order its calls by the pages that they read, gather the rows of each operand, and put numbers and arrays
   together,
2. call the op,
3. see that the result has the form that it had, and write it to its page.

Which rows the launches of a round read and write is known before any of them runs, if each goes to the page
that launches of its signature went to before. So one look at the table and one upload serve all of them.

A framework that compiles for each number of rows (`Backend.pads`) gets few of them: the last call is
repeated up to a power of two, say, and what is put together for the launch has as many rows.

Whatever is not as it was is left to a plan: rows of other classes, a result of another form, an op that
raises, and launches whose rows broadcasting may have mixed, until trials have shown that it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import accumulate, pairwise
from time import perf_counter
from typing import Any, final

import numpy as np

from multifold import _compiled
from multifold._await.calls import ARRAYS, CallTable
from multifold._await.pages import Page, Pages
from multifold._await.reads import LaunchReads, Leaf, gathered, indices_of, one_class
from multifold._compiled.arrays import CALL_MASK, Integers
from multifold._record.freezing import snapshot
from multifold._record.kinds import NODE
from multifold._record.signature import Signature
from multifold._run.lookup import find
from multifold._run.loop import Loop
from multifold._run.timeline import LaunchTimes
from multifold._run.trial import ENOUGH, Trial, key_of, may_meet, may_mix, shapes_of, trailing
from multifold._run.verdicts import VERDICTS
from multifold._run.writes import all_arrays
from multifold.backend import Ragged

MOST = 256
"""An engine with more routines than this hands on none; and the most `Way` that are kept."""

FEW = 1024
"""Rows of a launch that is never divided into pieces."""

Launches = Sequence[tuple[int, int, int]]
"""The signature of each launch of a round, and where its calls begin and end among those of the round."""


@final
class Routine:
    """How launches of one signature run that read rows of the same classes.

    Parameters
    ----------
    signature : Signature
        Of the calls.
    loop : Loop
        Has run them by a plan.
    page : Page
        Where the results go.
    """

    def __init__(self, signature: Signature, loop: Loop, page: Page) -> None:
        self.signature = signature
        self.loop = loop
        self.page = page
        self.values = loop.values
        self.backend = loop.values.backend
        self.op = loop.launcher.ops[signature]
        self.kind = type(page.leaves[0]) if page.single else tuple
        own = [(slot.kind is NODE, position) for slot, position in signature.operands]
        self._nodes_only = own == [(True, i) for i in range(len(own))]
        self._watched = signature.recorded if self.backend.counts_changes else ()  # see `_run.writes`
        self._watches_all = self._nodes_only and self.backend.counts_changes
        self._sizes: set[int] | None = None  # of the last dimensions, where broadcasting may mix rows
        self._apart = self._proven = False

    def is_of(self, model: Any) -> bool:
        """Return whether the op is still what a model has of its name."""
        return bool(find(self.backend, model, self.signature.op) == self.op)

    def size(self, count: int) -> int:
        """Return in how many rows so many calls run."""
        if not self.backend.pads:
            return count
        # A ragged operand has to have a call of the surplus, for a surplus of its rows.
        return self.backend.padded_rows(count + bool(self.signature.ragged))

    def run(
        self, pages: Pages, calls: Integers, new: Integers, reads: LaunchReads, index: Iterator[Any]
    ) -> LaunchTimes | None:
        """Run some calls and write what they return; return when, or None where a plan is needed.

        Parameters
        ----------
        pages : Pages
            Where the results are.
        calls : int64 array
            Calls of the signature, in the order of the launch.
        new : int64 array
            The rows of the page that the result is written to.
        reads : LaunchReads
            Which leaves the calls read.
        index : iterator of arrays
            What `Page.read` and `Page.write` take, in the order in which this method calls them: the rows
            that each gather reads, and at last ``new`` as an array of the device.
        """
        begin = perf_counter()
        signature = self.signature
        backend = self.backend
        page = self.page
        count = self.size(len(calls))
        if count > FEW and self.loop.pieces(count) > 1:
            return None
        try:
            nodes = reads.gathered(index)
            leaves = nodes if self._nodes_only else self.operands(pages, calls, nodes, count - len(calls))
            if leaves is None or not (self._apart or self.keeps_apart(count, leaves)):
                return None
            watched = leaves if self._watches_all else all_arrays([leaves[i] for i in self._watched])
            versions = backend.versions(watched)
            call = perf_counter()
            nested = leaves if signature.structure is None else signature.nested(leaves)
            result = backend.call(self.op, nested, signature.keywords() if signature.static else {})
            returned = perf_counter()
            if backend.versions(watched) != versions:
                return None  # an op that writes to its operands is refused by the plan
            found: Any = (result,) if page.single else result
            rows = count if signature.batched else 1
            fits = type(result) is self.kind and len(found) == len(page.classes)
            if not (fits and backend.are_like(found, rows, page.classes)):
                return None
            if rows < count:
                one = self.values.indices(np.zeros(count, np.int64))
                found = [backend.gather(x, one) for x in found]
            page.write(next(index), found, new)
        except backend.passes:
            raise
        except Exception:  # noqa: BLE001 - the plan runs it again, and says what is wrong
            return None
        return tuple.__new__(LaunchTimes, (begin, call, returned, perf_counter()))

    def operands(
        self, pages: Pages, calls: Integers, nodes: Sequence[Any], surplus: int
    ) -> list[Any] | None:
        """Return what the op receives, ``nodes`` among it; None where a plan is needed.

        The last call is repeated for a ``surplus`` of rows.
        """
        if surplus:
            calls = np.append(calls, np.repeat(calls[-1:], surplus))
        leaves = list[Any]()
        table = pages.table
        for slot, position in self.signature.operands:
            kind = slot.kind
            value = slot.value
            if kind is NODE:
                value = nodes[position]
            elif kind.number is not None:
                numbers = table.numbers(str(kind.column), calls, position)
                numbers = numbers.astype(bool) if kind.number is bool else numbers
                value = self.values.upload([numbers], kind.number)[0]
            elif kind.array:
                at = table.places(ARRAYS, calls, position)
                value = self.values.stack([table.graph.arrays[i] for i in at.tolist()])
            elif kind.ragged:
                value = self.ragged(pages, calls, position, surplus)
                if value is None:
                    return None
            elif kind.shared:
                value = self.values.shared(value) if isinstance(value, np.ndarray) else value
            else:
                value = snapshot(value)
            leaves.append(value)
        return leaves

    def ragged(self, pages: Pages, calls: Integers, position: int, surplus: int) -> Ragged | None:
        """Return a ragged operand; None if some of its rows are in no page, or they are of several classes.

        Of some calls that are a ``surplus``, the last one has the rows up to the number that is padded to.
        """
        table = pages.table
        members, lengths = table.ragged_rows(calls[: len(calls) - surplus], position)
        if not len(members) or members.min() < 0:
            return None
        found = members & ~CALL_MASK | table.result[members & CALL_MASK]
        sources, which, _ = _compiled.distinct(found)
        leaves: list[Any] = list(map(pages.leaf, sources.tolist()))
        if one_class(leaves) is None:
            return None
        rows = table.row[members & CALL_MASK]
        size = len(members)
        if surplus:
            size = self.backend.padded_rows(size)
            lengths = np.append(lengths, np.zeros(surplus, np.int64))
            lengths[-1] = size - len(members)
        segments = np.repeat(np.arange(len(lengths)), lengths)
        index = indices_of(leaves, which, rows, size)
        *index, lengths, segments = self.values.upload([*index, lengths, segments], int)
        return Ragged(gathered(self.backend, leaves, iter(index)), lengths, segments)

    def keeps_apart(self, count: int, leaves: Sequence[Any]) -> bool:
        """Return whether broadcasting has not mixed rows: by their shapes, or as trials have shown."""
        if self._proven:
            return True
        if self._sizes is not None and not self.signature.ragged and self._sizes.isdisjoint((1, count)):
            return True  # all arrays without rows of their own are of shape (count,): see `may_mix`
        slots = self.signature.slots
        batched = [x for slot, x in zip(slots, leaves, strict=True) if slot.kind.batched]
        if self._sizes is None:
            self._apart = not may_meet(batched)
            self._sizes = trailing(shapes_of(batched), tuple(self.page.leaves))
        if self._apart or not may_mix(count, shapes_of(batched), self._sizes):
            return True
        arrays = Trial(self.values, self.op, batched, count).arrays()
        key = key_of(self.signature), tuple(map(self.values.class_of, arrays))
        self._proven = VERDICTS.has(self.op, key, ENOUGH)
        return self._proven


Way = tuple[Routine, LaunchReads]
"""What runs calls of a signature that read from some sources, and how these are read."""

Sources = tuple[int, ...]
"""``part << 40 | result`` of each operand, for each group of calls that read the same ones."""

Groups = Sequence[tuple[Sources, list[int]]]
"""Of each launch, the sources that each group of its calls reads, and where each group begins."""


@final
class Routines:
    """The routines of an engine, and its pages.

    Parameters
    ----------
    table : CallTable
        What the engine has recorded.
    before : Routines, optional
        Those of an engine before it that has ended.
    model : object
        What both engines run, which may have other ops now.
    """

    def __init__(self, table: CallTable, before: Routines | None, model: Any) -> None:
        self.table = table
        self.pages: Pages = Pages(table, None if before is None else before.pages)
        self.loop: Loop | None = None if before is None else before.loop
        known = {} if before is None else before._known
        self._known: dict[Hashable, Routine] = {key: one for key, one in known.items() if one.is_of(model)}
        self._ways: dict[tuple[int, Sources], Way] = {}  # by signature and sources
        self._targets: dict[int, Page] = {}  # where the last launch of each signature has gone

    def rest(self) -> None:
        """Forget routines that keep alive what their engine should not: functions and arrays of users."""
        kept = {key: one for key, one in self._known.items() if one.signature.outlives_reset}
        self._known = kept if len(kept) <= MOST else {}

    def run(
        self, ready: Integers, launches: Launches, stops: Callable[[], bool] | None = None
    ) -> list[LaunchTimes]:
        """Run launches until one has no routine that fits; return when each of those that ran did.

        ``ready`` has their calls. ``stops`` is asked after each of them whether it is the last one.
        """
        times = list[LaunchTimes]()
        again = True
        while again and len(times) < len(launches):
            ran, again = self._attempt(ready, launches[len(times) :], stops)
            times += ran
        return times

    def _attempt(
        self, ready: Integers, launches: Launches, stops: Callable[[], bool] | None
    ) -> tuple[list[LaunchTimes], bool]:
        """Run the first of some launches; return when, and whether a routine may fit the one after them."""
        table = self.table
        times = list[LaunchTimes]()
        signatures = self.table.graph.signatures
        first = launches[0][1]
        new = np.empty(launches[-1][2] - launches[0][1], np.int64)
        pages = list[Page]()
        asked = list[tuple[int, int, int]]()
        stretches = list[slice]()
        for number, begin, end in launches:
            page = self._targets.get(number)
            if page is None and not pages:  # what the others read may not have run
                way = self._way(number, self._sources(number, ready[begin:end]))
                page = None if way is None else way[0].page
            if page is None or table.is_whole(ready[begin:end]):
                break
            pages.append(page)
            asked.append((end - begin, signatures[number].refs, page.number))
            stretches.append(own := slice(begin - first, end - first))
            page.take(new[own])
        if not pages:
            return times, False
        calls, rows, groups = table.launch_rows(ready[first : first + stretches[-1].stop], asked, new)
        try:
            ways, index, again = self._ways_of(launches, pages, rows, groups)
            for (routine, reads), own in zip(ways, stretches, strict=False):
                found = routine.run(self.pages, calls[own], new[own], reads, index)
                if found is None:
                    return times, False
                times.append(found)
                if stops is not None and stops():
                    return times, False
            return times, again
        finally:  # a launch that did not run leaves nothing behind
            for page, own in [*zip(pages, stretches, strict=True)][len(times) :]:
                table.store(calls[own], 0, np.zeros_like(calls[own]))
                page.give_back(new[own])

    def _sources(self, number: int, calls: Integers) -> Sources:
        """Return which parts of pages each group of calls reads; move what is elsewhere."""
        asked = [(len(calls), self.table.graph.signatures[number].refs, 0)]
        sources = self.table.launch_rows(calls, asked, calls)[2][0][0]
        return self._sources(number, calls) if self._moved(sources) else sources

    def _ways_of(
        self, launches: Launches, pages: Sequence[Page], rows: Integers, groups: Groups
    ) -> tuple[list[Way], Iterator[Any], bool]:
        """Return how the first of some launches run, and whether the one after them may run then.

        They go to the pages that were foreseen; where another page is known now, the launch is tried again.
        The iterator has the row numbers of each gather and write: on the device, after one upload, if
        NumPy does not see the pages.
        """
        ways = list[Way]()
        arrays = list[Integers]()
        sizes = list[int]()
        at = 0
        again = True
        for (number, begin, end), page, (sources, begins) in zip(launches, pages, groups, strict=False):
            way = self._way(number, sources)
            if way is None:
                # What a plan has left elsewhere moves to a page where a launch like others reads it.
                again = bool(ways) or self._moved(sources)
                break
            (routine, reads) = way
            count = end - begin
            self._targets[number] = routine.page
            if routine.page is not page:
                break
            ways.append(way)
            after = at + (self.table.graph.signatures[number].refs + 1) * count
            if routine.backend.pads:
                arrays += reads.padded(rows[at:after], begins, routine.size(count))
            else:
                sizes += reads.sizes(begins)
            at = after
        if not ways:
            return ways, iter(()), again
        values = ways[0][0].values
        if arrays:
            index = values.upload(arrays, int)
        elif ways[0][0].page.hosts is None:
            index = values.backend.split(values.indices(rows[:at]), sizes)
        else:
            index = [rows[begin:end] for begin, end in pairwise(accumulate(sizes, initial=0))]
        return ways, iter(index), again

    def learn(self, loop: Loop, calls: Integers) -> None:
        """Note how a launch has run by a plan, if others can run without one."""
        table = self.table
        number = int(table.signature_of(calls[:1])[0])
        signature = table.graph.signatures[number]
        self.pages.move(int(table.result[calls[0]]), loop.values)
        page = self.pages.results.get(int(table.result[calls[0]]))
        if type(page) is not Page or len(signature.shared_refs) or signature.says_rows:
            return
        self.loop = loop
        leaves = self._leaves(number, self._sources(number, calls))
        if leaves is not None:
            self._known.setdefault(self._key(number, leaves), Routine(signature, loop, page))

    def _way(self, number: int, sources: Sources) -> Way | None:
        """Return how calls of a signature run whose groups read from some sources; None without routine."""
        key = number, sources
        way = self._ways.get(key)
        if way is None and (leaves := self._leaves(number, sources)) is not None:
            routine = self._known.get(self._key(number, leaves))
            if routine is not None:
                way = routine, LaunchReads(routine.backend, leaves)
                if len(self._ways) < MOST:
                    self._ways[key] = way
        return way

    def _moved(self, sources: Sources) -> bool:
        """Move what some sources are parts of to pages; return whether anything was elsewhere."""
        if self.loop is None:
            return False
        moved = [self.pages.move(x, self.loop.values) for x in {source & CALL_MASK for source in sources}]
        return any(moved)

    def _key(self, number: int, leaves: Sequence[Sequence[Leaf]]) -> Hashable:
        """Return what launches have in common that one routine runs."""
        key = self.table.graph.signatures[number].key
        return key, *[page.classes[leaf] for (page, leaf), *_ in leaves]

    def _leaves(self, number: int, sources: Sources) -> list[list[Leaf]] | None:
        """Return which leaf each group of calls reads as each operand.

        None if some are in no page, or an operand is of several classes.
        """
        leaves = list(map(self.pages.leaf, sources))
        width = self.table.graph.signatures[number].refs
        found: list[list[Any]] = [leaves[i::width] for i in range(width)]
        return None if None in map(one_class, found) else found
