"""Gathers: launches whose rows are all in pages, each operand put together by one gather.

A round of one launch of each op has no schedule to find, and where all rows are in pages
(`multifold._engine.rounds.pages`) no sections: each operand is one gather. So its launches are run here:

1. order its calls by the pages that they read, gather the rows of each operand, and put numbers and arrays
   together,
2. hand them to the launcher, which calls the op and checks the result as that of any launch,
3. write the result to its page.

Which rows the launches of a round read and write is known before any of them runs, if each goes to the page
that launches of its signature went to before. So one look at the table and one upload serve all of them.
A result that is of another form after all is kept by itself, and the launches after it look again.

A launch of three calls ``join(left, right)``. The left rows are rows 4 and 7 of page 1 and row 2 of page 2,
the right ones rows 5, 9 and 8 of page 1. Calls that read the same page as each operand are a *group*: here
the first two, and the third. Groups next to each other that read one page as an operand are a *stretch* of
that operand:

=======  =================  ==================================
operand  stretches          row numbers of the gathers
=======  =================  ==================================
left     page 1, page 2     4 7 and 2, which are put together
right    page 1             5 9 8
=======  =================  ==================================

A framework that compiles for each number of rows (`Backend.pads`) gets few of them: the last call is
repeated up to a power of two, say, and what is put together for the launch has as many rows.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import accumulate, groupby, pairwise
from time import perf_counter
from typing import Any, NamedTuple, final

import numpy as np

from multifold._engine import compiled
from multifold._engine.compiled.arrays import CALL_MASK, Integers
from multifold._engine.ops.lookup import find
from multifold._engine.ops.values import Values
from multifold._engine.record.freezing import snapshot
from multifold._engine.record.kinds import NODE
from multifold._engine.record.signature import Signature
from multifold._engine.rounds.calls import ARRAYS, CallTable
from multifold._engine.rounds.pages import SPARE, Page, padded
from multifold._engine.rounds.store import Store
from multifold._engine.run.launch import PreparedLaunch
from multifold._engine.run.loop import Loop
from multifold._engine.run.report import LaunchTimes
from multifold.backend import Backend, Ragged
from multifold.marks import MIXING, mark_of

MOST = 256
"""How many pages of signatures are handed on, and how many `LaunchReads` are kept."""

FEW = 1024
"""Rows of a launch that is never divided into pieces."""

Launches = Sequence[tuple[int, int, int]]
"""The signature of each launch of a round, and where its calls begin and end among those of the round."""

Sources = tuple[int, ...]
"""What the groups of a launch read: ``part << 40 | result`` of each operand of the first group, then of
each operand of the second one, and so on. `CALL_MASK` takes the number of the result out."""

Groups = Sequence[tuple[Sources, list[int]]]
"""Of each launch, what its groups read, and where each group begins; at last how many calls there are."""

Leaf = tuple[Page, int]
"""A page, and which of its arrays."""

Note = Callable[[Integers, LaunchTimes], None]
"""Is called after each launch, with its calls and its times."""


class Operands(NamedTuple):
    """What the op of a launch receives, and what is known of it."""

    leaves: list[Any]
    classes: tuple[Hashable, ...]
    """What the rows of each operand have in common."""
    lengths: Mapping[int, np.ndarray]
    """The lengths of each ragged operand, by slot."""


@final
class Gathers:
    """Runs launches whose rows are in pages.

    Parameters
    ----------
    table : CallTable
        What is recorded.
    before : Gathers, optional
        The gathers of an earlier table that has ended and ran the same model.

    Attributes
    ----------
    store : Store
        The results, whose rows are written in place.
    loop : Loop or None
        What has run plans; nothing runs here before the first.
    """

    def __init__(self, table: CallTable, before: Gathers | None = None) -> None:
        self.table = table
        self.store: Store = Store(table, in_place=True, before=None if before is None else before.store)
        self.loop: Loop | None = None
        # Where results of a signature go: by its key, which is the same in all tables that run the model,
        # and by its number in this table.
        self._homes: dict[Hashable, Page] = {}
        self._targets: dict[int, Page] = {}
        if before is not None and before.loop is not None:
            self.loop = Loop(before.loop.launcher, before.loop.policy, table.graph.warn_once)
            self._homes = before._homes
        self._reads: dict[tuple[int, Sources], LaunchReads] = {}  # by number of the signature

    def use(self, loop: Loop) -> None:
        """Run the launches to come by ``loop``."""
        self.loop = loop

    def learn(self, loop: Loop, calls: Integers) -> None:
        """Move the result of a launch that has run by a plan to a page; then the next ones may be gathered.

        Keeps ``loop`` for the launches to come. The page is noted for the signature of ``calls``, those of
        the launch: the next ones write there. It is not noted where an operand is a shared node, whose
        value is one row for all calls, where the signature says how many rows there are, or if the result
        has no page.
        """
        self.loop = loop
        table = self.table
        number = int(table.signature_of(calls[:1])[0])
        signature = table.graph.signatures[number]
        result = int(table.result[calls[0]])
        self.store.move(result, loop.values)
        page = self.store.results.get(int(table.result[calls[0]]))
        if type(page) is Page and not len(signature.shared_refs) and not signature.says_rows:
            self._note(number, page)

    def run(
        self,
        ready: Integers,
        launches: Launches,
        note: Note,
        stop: Callable[[], bool] | None = None,
    ) -> int:
        """Run launches, the first ones first, until one has to be planned; return how many ran.

        None runs while ``loop`` is None. The rows of those that ran are noted in the table.

        Parameters
        ----------
        ready : int64 array
            The calls of all launches.
        launches : Launches
            The signature of each, and where its calls begin and end in ``ready``.
        note : callable
            Is called with the calls and the times of each launch that has run.
        stop : callable, optional
            Is called after each launch, and returns whether it is the last one.
        """
        done = 0
        again = True
        while self.loop is not None and again and done < len(launches):
            ran, again = self._attempt(self.loop, ready, launches[done:], note, stop)
            done += ran
        return done

    def _attempt(
        self,
        loop: Loop,
        ready: Integers,
        launches: Launches,
        note: Note,
        stop: Callable[[], bool] | None,
    ) -> tuple[int, bool]:
        """Run the first of ``launches``; return how many ran, and whether to call this again for the rest.

        It runs those in a row whose page is known, at most up to one that needs a plan or for which
        ``stop`` returns True. Rows that were taken for launches that did not run are given back, also if
        one raises.
        """
        table = self.table
        signatures = table.graph.signatures
        first = launches[0][1]
        new = np.empty(launches[-1][2] - first, np.int64)
        pages: list[Page] = []
        asked: list[tuple[int, int, int]] = []
        stretches: list[slice] = []
        for number, begin, end in launches:
            page = self._target(loop, number)
            if page is None or table.is_whole(ready[begin:end]):
                if not pages and self._may_begin(loop, number, ready[begin:end]):
                    return self._begin(loop, number, ready[begin:end], note)
                break
            pages.append(page)
            asked.append((end - begin, signatures[number].refs, page.number))
            stretches.append(own := slice(begin - first, end - first))
            page.take(new[own])
        if not pages:
            return 0, False
        # The table notes all rows now, before any launch runs, so that later launches can look theirs up.
        calls, rows, groups = table.launch_rows(ready[first : first + stretches[-1].stop], asked, new)
        ran = 0
        try:
            reads, index, again = self._plan(loop.values, launches, pages, rows, groups)
            for (number, *_), page, own, read in zip(launches, pages, stretches, reads, strict=False):
                times = self._launch(loop, number, page, calls[own], new[own], read, index)
                if times is None:
                    return ran, False
                ran += 1
                note(calls[own], times)
                if stop is not None and stop():
                    return ran, False
                if table.result[calls[own][0]] != page.number:
                    return ran, True  # it is not in its page, where the launches after it would look for it
            return ran, again
        finally:  # what did not run has no row after all
            for page, own in [*zip(pages, stretches, strict=True)][ran:]:
                table.store(calls[own], 0, np.zeros_like(calls[own]))
                page.give_back(new[own])

    def _may_begin(self, loop: Loop, number: int, calls: Integers) -> bool:
        """Return whether the first launch of signature ``number``, of these calls, needs no plan.

        It needs one where an operand is a shared node, or says how many rows there are, where a result is
        read whole, and where launches are padded; where no array has told on which device numbers are; and
        if its op is not found, marked as mixing, or may be a function that is made for each call, since the
        plan warns of these or refuses them. An op that is found is noted.
        """
        signature = self.table.graph.signatures[number]
        launcher = loop.launcher
        if launcher.backend.pads or loop.values.device is None or self.table.is_whole(calls):
            return False
        if len(signature.shared_refs) or signature.says_rows:
            return False
        if not isinstance(signature.op, str) and len(calls) == 1:
            return False
        if not looked_up(loop, signature):
            op = find(launcher.backend, launcher.model, signature.op)
            if not callable(op) or mark_of(op) == MIXING:
                return False
            launcher.ops[signature] = op
        return True

    def _begin(self, loop: Loop, number: int, calls: Integers, note: Note) -> tuple[int, bool]:
        """Run the first launch of signature ``number``, and give its result a page; return as `_attempt`.

        What it reads has to lie in pages; else these results are moved there first.
        """
        table = self.table
        new = np.zeros(len(calls), np.int64)
        asked = [(len(calls), table.graph.signatures[number].refs, 0)]
        calls, rows, groups = table.launch_rows(calls, asked, new)
        own = [(number, 0, len(calls))]
        reads, index, again = self._plan(loop.values, own, [None], rows, groups)
        if not reads:
            return 0, again
        times = self._launch(loop, number, None, calls, new, reads[0], index)
        if times is None:
            return 0, False
        note(calls, times)
        return 1, True

    def _target(self, loop: Loop, number: int) -> Page | None:
        """Look up the page to which results of signature ``number`` go; None if that is not known.

        It may be known from an earlier run, by the key of the signature; then it is noted for the number,
        too, if the launcher knows the op (`looked_up`).
        """
        page = self._targets.get(number)
        if page is None and self._homes:
            signature = self.table.graph.signatures[number]
            page = self._homes.get(signature.key)
            if page is not None and looked_up(loop, signature):
                self._targets[number] = page
        return page

    def _plan(
        self,
        values: Values,
        launches: Launches,
        pages: Sequence[Page | None],
        rows: Integers,
        groups: Groups,
    ) -> tuple[list[LaunchReads], Iterator[Any], bool]:
        """Return how the first of ``launches`` read, their row numbers, and whether to try the next one.

        The first is a list of `LaunchReads`, up to the first launch without. The row numbers come as an
        iterator of one array for each gather and write, in order. They are on the device, after one upload,
        if NumPy does not see the pages. If the first launch reads results that are in no page, these are
        moved; the bool says then whether one was.
        """
        found: list[LaunchReads] = []
        arrays: list[Integers] = []
        sizes: list[int] = []
        at = 0
        again = True
        backend = values.backend
        signatures = self.table.graph.signatures
        for (number, begin, end), (sources, begins) in zip(launches[: len(pages)], groups, strict=True):
            reads = self._reads_of(values.backend, number, sources)
            if reads is None:
                # What a plan has left elsewhere moves to a page where a launch reads it.
                again = bool(found) or self._moved(values, sources)
                break
            found.append(reads)
            after = at + (signatures[number].refs + 1) * (end - begin)
            if backend.pads:
                arrays += reads.padded(
                    rows[at:after], begins, size_of(backend, signatures[number], end - begin)
                )
            else:
                sizes += reads.sizes(begins)
            at = after
        if not found:
            return found, iter(()), again
        if arrays:
            index = values.upload(arrays, int)
        elif any(page.hosts is None for page in self.store.pages.values()):  # all of them, then
            index = backend.split(values.indices(rows[:at]), sizes)
        else:
            index = [rows[begin:end] for begin, end in pairwise(accumulate(sizes, initial=0))]
        return found, iter(index), again

    def _reads_of(self, backend: Backend, number: int, sources: Sources) -> LaunchReads | None:
        """Look up or make the `LaunchReads` of a launch of signature ``number``.

        ``sources`` has what the groups of its calls read, group after group: for each operand a part of a
        result, ``part << 40 | result``. None if some of these are in no page, or the rows of an operand
        differ in trailing shape, dtype or device.
        """
        key = number, sources
        if (known := self._reads.get(key)) is not None:
            return known
        width = self.table.graph.signatures[number].refs
        leaves = list(map(self.store.leaf, sources))
        found: list[list[Any]] = [leaves[i::width] for i in range(width)]
        classes = tuple(map(one_class, found))
        if None in classes:
            return None
        reads = LaunchReads(backend, found, classes)
        if len(self._reads) < MOST:
            self._reads[key] = reads
        return reads

    def _moved(self, values: Values, sources: Sources) -> bool:
        """Move the results that ``sources`` are parts of to pages; return whether one was moved.

        A source is ``part << 40 | result``. ``values`` is the helper of the backend; see `Store.move` for
        what can't be moved.
        """
        moved = [self.store.move(x, values) for x in {source & CALL_MASK for source in sources}]
        return any(moved)

    def _launch(
        self,
        loop: Loop,
        number: int,
        page: Page | None,
        calls: Integers,
        new: Integers,
        reads: LaunchReads,
        index: Iterator[Any],
    ) -> LaunchTimes | None:
        """Run the op on some calls; write what it returns to the page, or store it if the forms differ.

        Returns when the steps of the launch took place; None, and nothing has run, if a plan is needed.

        Parameters
        ----------
        loop : Loop
            What has run plans.
        number : int
            The signature of the calls.
        page : Page or None
            The page that the result is to go to; None in the first launch of the signature.
        calls : int64 array
            The calls, in the order of the launch.
        new : int64 array
            The rows of the page that the result is written to.
        reads : LaunchReads
            Which leaves the calls read.
        index : iterator of arrays
            What `Page.read` and `Page.write` take, in the order in which this method calls them: the rows
            that each gather reads, and at last ``new`` as an array of the device.
        """
        begin = perf_counter()
        launcher = loop.launcher
        signature = self.table.graph.signatures[number]
        count = size_of(launcher.backend, signature, len(calls))
        if count > FEW and loop.pieces(count) > 1:
            return None
        leaves, classes, lengths = reads.node_rows(index), reads.classes, NO_LENGTHS
        if not signature.nodes_only:
            operands = self._operands(loop.values, signature, calls, leaves, classes, count - len(calls))
            if operands is None:
                return None
            leaves, classes, lengths = operands
        rows = count if signature.batched else 1
        site = self.table.graph.site
        launched = launcher.launch(
            PreparedLaunch(signature, leaves, rows, calls, site, classes, lambda: lengths)
        )
        leaves.clear()
        result, outcome, *_ = launched
        if page is None:
            page = self._home(loop.values, number, result, rows)
            if page is not None:
                page.take(new)
                self.table.store(calls, page.number, new)
                index = iter([new if page.hosts is not None else loop.values.indices(new.copy())])
        if page is None:
            self._keep(result, rows, calls)
        elif outcome.forms == page.classes and (outcome.kind is tuple) is not page.single:
            found: Any = (result,) if page.single else result
            if rows < count:
                # The op ran once for all calls. A page has a row for each of them.
                first = loop.values.indices(np.zeros(count, np.int64))
                found = [launcher.backend.gather(x, first) for x in found]
            page.write(next(index), found, new)
        else:
            page.give_back(new)
            del self._targets[number]
            self._homes.pop(signature.key, None)
            self._keep(result, rows, calls)
        return launched.times(begin)

    def _home(self, values: Values, number: int, result: Any, rows: int) -> Page | None:
        """Look up or make the page for a result of signature ``number``, and note it; None without one."""
        page = self.store.page_of(values, result, rows)
        if page is not None:
            self._note(number, page)
        return page

    def _note(self, number: int, page: Page) -> None:
        """Note that results of signature ``number`` go to a page."""
        signature = self.table.graph.signatures[number]
        self._targets[number] = page
        if signature.outlives_reset and len(self._homes) < MOST:
            self._homes[signature.key] = page

    def _keep(self, result: Any, rows: int, calls: Integers) -> None:
        """Store the result of a launch by itself; row 0 is that of all calls if the op ran once."""
        self.store.add(result, rows, calls, np.minimum(np.arange(len(calls)), rows - 1))

    def _operands(
        self,
        values: Values,
        signature: Signature,
        calls: Integers,
        nodes: Sequence[Any],
        classes: tuple[Hashable, ...],
        surplus: int,
    ) -> Operands | None:
        """Return what the op of a launch receives, with classes and lengths; None if a plan is needed.

        ``nodes`` has the rows of its node operands, and ``classes`` what the rows of each have in common
        (`Values.class_of`). Other operands are made here by ``values``. The last call is repeated
        ``surplus`` times, so that the launch is padded. A plan is needed if `_ragged` returns None.
        """
        if surplus:
            calls = np.append(calls, np.repeat(calls[-1:], surplus))
        leaves: list[Any] = []
        common: list[Hashable] = []
        lengths: dict[int, np.ndarray] = {}
        table = self.table
        for slot, position in signature.operands:
            kind = slot.kind
            value = slot.value
            if kind is NODE:
                value = nodes[position]
                common.append(classes[position])
            elif kind.number is not None:
                numbers = table.numbers(str(kind.column), calls, position)
                numbers = numbers.astype(bool) if kind.number is bool else numbers
                value = values.upload([numbers], kind.number)[0]
            elif kind.array:
                at = table.places(ARRAYS, calls, position)
                value = values.stack([table.graph.arrays[i] for i in at.tolist()])
            elif kind.ragged:
                found = self._ragged(values, calls, position, surplus)
                if found is None:
                    return None
                value, own, lengths[len(leaves)] = found
                common.append(own)
            elif kind.shared:
                value = values.shared(value) if isinstance(value, np.ndarray) else value
            else:
                value = snapshot(value)
            leaves.append(value)
        return Operands(leaves, tuple(common), lengths)

    def _ragged(
        self, values: Values, calls: Integers, position: int, surplus: int
    ) -> tuple[Ragged, Hashable, np.ndarray] | None:
        """Return a ragged operand of some calls, the class of its rows, and how many each call has.

        None if there are no rows, some are in no page, or they are of several classes (`Values.class_of`).
        ``position`` counts the ragged operands. ``calls`` ends with ``surplus`` calls that pad: the last of
        these gets the padding rows, and the others none.
        """
        table = self.table
        backend = values.backend
        members, lengths = table.ragged_rows(calls[: len(calls) - surplus], position)
        if not len(members) or members.min() < 0:
            return None
        found = members & ~CALL_MASK | table.result[members & CALL_MASK]
        sources, which, _ = compiled.distinct(found)
        leaves: list[Any] = list(map(self.store.leaf, sources.tolist()))
        own = one_class(leaves)
        if own is None:
            return None
        rows = table.row[members & CALL_MASK]
        size = len(members)
        if surplus:
            size = backend.padded_rows(size)
            lengths = np.append(lengths, np.zeros(surplus, np.int64))
            lengths[-1] = size - len(members)
        segments = np.repeat(np.arange(len(lengths)), lengths)
        index = indices_of(leaves, which, rows, size)
        *uploaded, on_device, of_rows = values.upload([*index, lengths, segments], int)
        return Ragged(gathered(backend, leaves, iter(uploaded)), on_device, of_rows), own, lengths

    def rows(self, values: Values, refs: Integers) -> Any:
        """Return the rows of some references as one new array, in their order.

        None if some are in no page, or they are of several classes (`Values.class_of`).
        """
        calls = refs & CALL_MASK
        sources, which, _ = compiled.distinct(refs & ~CALL_MASK | self.table.result[calls])
        leaves: list[Any] = list(map(self.store.leaf, sources.tolist()))
        if one_class(leaves) is None:
            return None
        rows = self.table.row[calls]
        if len(leaves) == 1:
            page, leaf = leaves[0]
            return page.read(leaf, values.indices(rows.copy()) if page.hosts is None else rows)
        return gathered(
            values.backend, leaves, iter(values.upload(indices_of(leaves, which, rows, len(rows)), int))
        )


NO_LENGTHS: Mapping[int, np.ndarray] = {}
"""The lengths of the ragged operands of a launch that has none."""


@final
class LaunchReads:
    """How the operands of a launch are gathered from the sources that its calls read.

    Parameters
    ----------
    backend : Backend
        Whose arrays the pages are.
    leaves : sequence of sequences of Leaf
        Of each operand, the leaf that each group of calls reads: a page, and the position of its array.
    classes : tuple
        What the rows of each operand have in common: trailing shape, dtype and device.
    """

    def __init__(
        self, backend: Backend, leaves: Sequence[Sequence[Leaf]], classes: tuple[Hashable, ...]
    ) -> None:
        self.classes = classes
        self._backend = backend
        # Groups next to each other that read one leaf are one stretch: the leaf, and how many groups.
        stretches = [[(leaf, len([*same])) for leaf, same in groupby(groups)] for groups in leaves]
        self._leaves: list[list[Leaf]] = [[leaf for leaf, _ in parts] for parts in stretches]
        self._groups = [[groups for _, groups in parts] for parts in stretches]
        # The common case, in which one gather brings all rows of each operand: their pages, their leaves.
        one_each = not backend.pads and all(len(parts) == 1 for parts in self._leaves)
        self._whole = [[parts[0][i] for parts in self._leaves] for i in (0, 1)] if one_each else None

    def sizes(self, begins: Sequence[int]) -> list[int]:
        """Return how many rows each gather brings, in order, and at last how many rows the launch writes.

        There is a gather for each stretch of each operand: groups next to each other that read one leaf.
        ``begins`` has where each group of calls begins, and at last how many calls there are.
        """
        count = begins[-1]
        if self._whole is not None:
            return [count] * (len(self._leaves) + 1)
        return [size for parts in self._counts(begins) for size in parts] + [count]

    def padded(self, rows: Integers, begins: Sequence[int], size: int) -> list[Integers]:
        """Return the index arrays of all gathers, and at last of the write, each of length ``size``.

        ``rows`` has the rows that all calls read as their first operand, then as their second, and so on,
        and at last those that they write. ``begins`` has where each group of calls begins, and at last how
        many calls there are. Those of an operand are made by `indices_of`; the write ends in rows `SPARE`.
        """
        *reads, new = rows.reshape(-1, begins[-1])
        found: list[Integers] = []
        for leaves, counts, own in zip(self._leaves, self._counts(begins), reads, strict=True):
            found += indices_of(leaves, np.repeat(np.arange(len(counts)), counts), own, size)
        return [*found, padded(self._backend, new, SPARE, size)]

    def node_rows(self, index: Iterator[Any]) -> list[Any]:
        """Gather the rows of each node operand; return an array for each, in order.

        Takes the row numbers of each gather from the front of ``index``.
        """
        backend = self._backend
        if self._whole is not None:
            return [*map(Page.read, *self._whole, index)]
        if backend.pads:
            return [gathered(backend, leaves, index) for leaves in self._leaves]
        nodes: list[Any] = []
        for leaves in self._leaves:
            one = [page.read(leaf, next(index)) for page, leaf in leaves]
            nodes.append(one[0] if len(one) == 1 else backend.concat(one))
        return nodes

    def _counts(self, begins: Sequence[int]) -> list[list[int]]:
        """Return how many calls each stretch has, operand by operand.

        A stretch is some groups next to each other that read one leaf. ``begins`` has where each group of
        calls begins, and at last how many calls there are.
        """
        bounds = [[begins[i] for i in accumulate(groups, initial=0)] for groups in self._groups]
        return [[end - begin for begin, end in pairwise(own)] for own in bounds]


def looked_up(loop: Loop, signature: Signature) -> bool:
    """Return whether the launcher knows the op of a signature, or of one with the same key.

    In the second case the op is noted for this signature, too.
    """
    ops = loop.launcher.ops
    if signature not in ops:
        found = next((op for known, op in ops.items() if known.key == signature.key), None)
        if found is None:
            return False
        ops[signature] = found
    return True


def size_of(backend: Backend, signature: Signature, count: int) -> int:
    """Return in how many rows ``count`` calls of a signature run: ``count``, or more if the backend pads.

    Then it is `Backend.padded_rows` of ``count``, or of one more if an operand is ragged: padding rows need
    a call.
    """
    # A ragged operand is padded by rows, too, and these rows need a padding call that they belong to.
    return backend.padded_rows(count + bool(signature.ragged)) if backend.pads else count


def one_class(leaves: Sequence[Leaf | None]) -> Hashable | None:
    """Return the class of the rows in ``leaves``, pairs of a page and the position of an array there.

    A class is trailing shape, dtype and device. None if there are several, or a leaf is None.
    """
    classes = {None if leaf is None else leaf[0].classes[leaf[1]] for leaf in leaves}
    return classes.pop() if len(classes) == 1 else None


def indices_of(leaves: Sequence[Leaf], which: Integers, rows: Integers, size: int) -> list[Integers]:
    """Return the index arrays by which `gathered` puts rows of leaves together, each of length ``size``.

    Row ``rows[i]`` lies in ``leaves[which[i]]``, a page and the position of its array. Of one leaf there
    is one index array; the last row is repeated up to the size. Rows in two leaves are gathered from each,
    and then from both. If the size is 4, row 5 of the one and row 7 of the other (``which`` is ``0 1``) are
    rows ``5 7 7 7`` of each, and ``0 5 5 5`` of these eight.
    """
    at = np.minimum(np.arange(size), len(rows) - 1)
    if len(leaves) == 1:
        return [rows[at]]
    return [*[np.minimum(rows, page.rows - 1)[at] for page, _ in leaves], at + size * which[at]]


def gathered(backend: Backend, leaves: Sequence[Leaf], index: Iterator[Any]) -> Any:
    """Return rows of ``leaves``, pairs of a page and the position of an array there, as one array.

    Takes the index arrays that `indices_of` has made for them from the front of ``index``: one for each
    leaf, and one more if there are several leaves.
    """
    found = [backend.gather(page.leaves[leaf], next(index)) for page, leaf in leaves]
    return found[0] if len(found) == 1 else backend.gather(backend.concat(found), next(index))
