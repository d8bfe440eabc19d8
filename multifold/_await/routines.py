"""Routines: launches of calls like those of launches before, without a plan.

A round of one launch of each op has no schedule to find, and where all rows are in pages
(`multifold._await.pages`) no wiring: each operand is one gather. So when a launch has run by a plan, with
all its checks, the engine notes its signature and the classes of rows that it has read as a *routine*. The
next launch of the same signature that reads rows of the same classes is run by it:

1. order its calls by the pages that they read, bring all row numbers to the device in one upload, gather
   the rows of each operand, and put numbers and arrays together,
2. call the op,
3. see that the result has the form that it had, and write it to its page.

A framework that compiles for each number of rows (`Backend.pads`) gets few of them: the last call is
repeated up to a power of two, say, and what is put together for the launch has as many rows.

Whatever is not as it was is left to a plan: rows of other classes, a result of another form, an op that
raises, and launches whose rows broadcasting may have mixed, until trials have shown that it does not.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby
from time import perf_counter
from typing import Any, final

import numpy as np

from multifold import _compiled
from multifold._await.calls import ARRAYS, CallTable
from multifold._await.pages import SPARE, Page, Pages, padded
from multifold._compiled.arrays import CALL_MASK, Integers
from multifold._record.freezing import snapshot
from multifold._record.kinds import NODE
from multifold._record.signature import Signature
from multifold._run.lookup import find
from multifold._run.loop import Loop
from multifold._run.timeline import LaunchTimes
from multifold._run.trial import ENOUGH, Trial, key_of, may_meet, may_mix, shapes_of, trailing
from multifold._run.values import Values
from multifold._run.verdicts import VERDICTS
from multifold._run.writes import Watch
from multifold.backend import Backend, Ragged

MOST = 256
"""Routines that are kept from one engine to the next."""

FEW = 1024
"""Rows of a launch that is never divided into pieces."""


Leaf = tuple[Page, int]
"""A page, and which of its arrays."""

Stretch = tuple[Page, int, int]
"""Calls of a launch, one after the other, whose rows of an operand are in one leaf: that, and how many."""


@final
class SignatureName:
    """The key of a signature, whose hash is found once: it takes a microsecond for each operand."""

    __slots__ = ("_hash", "key")

    def __init__(self, key: Hashable) -> None:
        self.key, self._hash = key, hash(key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SignatureName) and (self is other or self.key == other.key)


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
        self.signature, self.loop, self.page = signature, loop, page
        self.values, self.backend = loop.values, loop.values.backend
        self.op = loop.ops[signature]
        self.kind = type(page.value)
        self._sizes: set[int] | None = None  # of the last dimensions, where broadcasting may mix rows
        self._apart = self._proven = False

    def is_of(self, model: Any) -> bool:
        """Return whether the op is still what a model has of its name."""
        return bool(find(self.backend, model, self.signature.op) == self.op)

    def run(
        self, pages: Pages, calls: Integers, rows: Integers, begins: Integers, way: LaunchReads
    ) -> LaunchTimes | None:
        """Run some calls and write what they return; return when, or None where a plan is needed.

        Parameters
        ----------
        pages : Pages
            Where the results are.
        calls : int64 array
            Calls of the signature, in the order of the launch.
        rows : int64 array of shape ``(operands, calls)``
            The row of each node operand in its page.
        begins : int64 array
            Where each group of calls begins that read the same leaves.
        way : LaunchReads
            Which leaves these are.
        """
        begin = perf_counter()
        ran, signature, backend = calls, self.signature, self.backend
        if len(calls) > FEW and self.loop.pieces(len(calls)) > 1:
            return None
        new = self.page.take(len(calls))
        done = False
        try:
            if backend.pads:
                # A ragged operand has to have a call of the surplus, for a surplus of its rows.
                size = backend.padded_rows(len(calls) + bool(signature.ragged))
                calls = padded(backend, calls, calls[-1], size)
                nodes, own = way.picked(self.values, rows, new, begins.tolist(), len(calls))
            else:
                whole = self.values.indices(np.concatenate([rows.ravel(), new]))
                nodes, own = way.gathered(backend, whole, begins.tolist())
            count = len(calls)
            leaves = self.operands(pages, calls, nodes, count - len(ran))
            if leaves is None or not (self._apart or self.keeps_apart(count, leaves)):
                return None
            watch = Watch(backend, signature, leaves, debug=False) if backend.counts_changes else None
            call = perf_counter()
            nested = leaves if signature.structure is None else signature.nested(leaves)
            result = backend.call(self.op, nested, signature.keywords() if signature.static else {})
            if watch is not None:
                watch.refuse_changes()
            returned = perf_counter()
            found: Any = result if type(result) is tuple else (result,)
            expected = count if signature.batched else 1
            forms = [(expected, one) for one in self.page.classes]
            if type(result) is not self.kind or list(map(backend.rows_and_signature, found)) != forms:
                return None
            if expected < count:
                one = self.values.indices(np.zeros(count, np.int64))
                found = [backend.gather(x, one) for x in found]
            self.page.write(own, found)
            pages.table.store(ran, self.page.number, new)
            done = True
        except backend.passes:
            raise
        except Exception:  # noqa: BLE001 - the plan runs it again, and says what is wrong
            return None
        finally:
            if not done:
                self.page.give_back(new)
        return tuple.__new__(LaunchTimes, (begin, call, returned, perf_counter()))

    def operands(
        self, pages: Pages, calls: Integers, nodes: Sequence[Any], surplus: int
    ) -> list[Any] | None:
        """Return what the op receives, ``nodes`` among it; None where a plan is needed.

        So many of the last calls are a ``surplus``.
        """
        leaves, table = list[Any](), pages.table
        for slot, position in self.signature.operands:
            kind, value = slot.kind, slot.value
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
        rows, size = table.row[members & CALL_MASK], len(members)
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
        slots = self.signature.slots
        batched = [x for slot, x in zip(slots, leaves, strict=True) if slot.kind.batched]
        if self._sizes is None:
            self._apart = not may_meet(batched)
            self._sizes = trailing(shapes_of(batched), self.page.value)
        if self._apart or not may_mix(count, shapes_of(batched), self._sizes):
            return True
        arrays = Trial(self.values, self.op, batched, count).arrays()
        key = key_of(self.signature), tuple(map(self.values.class_of, arrays))
        self._proven = VERDICTS.has(self.op, key, ENOUGH)
        return self._proven


@final
class LaunchReads:
    """How launches run whose calls read from some sources.

    Parameters
    ----------
    routine : Routine
        What runs them.
    leaves : sequence of sequences of Leaf
        Of each operand, the leaf that each group of calls reads.
    """

    def __init__(self, routine: Routine, leaves: Sequence[Sequence[Leaf]]) -> None:
        self.routine = routine
        # Groups next to each other that read one leaf are one stretch: the leaf, and how many groups.
        self._stretches = [[(leaf, len([*same])) for leaf, same in groupby(groups)] for groups in leaves]
        parts = {leaf for groups in leaves for leaf in groups}
        self._only = parts.pop() if len(parts) == 1 and len(leaves) > 1 else None  # the one leaf of all

    def gathered(self, backend: Backend, rows: Any, begins: list[int]) -> tuple[Sequence[Any], Any]:
        """Return the rows of each node operand, and where the result goes.

        ``rows`` is an array of the backend: the rows of each operand, one operand after the other, and
        those of the result. Operands that all read one leaf, as those of a stack do, are one gather.
        """
        count = begins[-1]
        if self._only is not None:
            page, leaf = self._only
            index, own = backend.split(rows, [count * len(self._stretches), count])
            found = backend.gather(page.leaves[leaf], index)
            return backend.split(found, [count] * len(self._stretches)), own
        stretches = self.stretches(begins)
        *index, own = backend.split(rows, [*[size for parts in stretches for *_, size in parts], count])
        left, nodes = iter(index), list[Any]()
        for parts in stretches:
            one = [backend.gather(page.leaves[leaf], next(left)) for page, leaf, _ in parts]
            nodes.append(one[0] if len(one) == 1 else backend.concat(one))
        return nodes, own

    def picked(
        self, values: Values, rows: Integers, new: Integers, begins: list[int], size: int
    ) -> tuple[Sequence[Any], Any]:
        """Return what `gathered` does in ``size`` rows, by gathers of so many rows only."""
        leaves, index = list[list[Leaf]](), list[Integers]()
        for own, parts in zip(rows, self.stretches(begins), strict=True):
            leaves.append([(page, leaf) for page, leaf, _ in parts])
            which = np.repeat(np.arange(len(parts)), [count for *_, count in parts])
            index += indices_of(leaves[-1], which, own, size)
        left = iter(values.upload([*index, padded(values.backend, new, SPARE, size)], int))
        return [gathered(values.backend, one, left) for one in leaves], next(left)

    def stretches(self, begins: list[int]) -> list[list[Stretch]]:
        """Return in which stretches the rows of each operand lie, from where each group of calls begins."""
        found = list[list[Stretch]]()
        for stretches in self._stretches:
            end = 0
            found.append(parts := [])
            for leaf, groups in stretches:
                parts.append((*leaf, begins[end + groups] - begins[end]))
                end += groups
        return found


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
        self._names: dict[int, Hashable] = {}  # the key of each signature of the table
        self._ways: dict[tuple[int, bytes], LaunchReads] = {}  # by signature and sources

    def rest(self) -> None:
        """Forget routines that keep alive what their engine should not: functions and arrays of users."""
        kept = {key: one for key, one in self._known.items() if one.signature.outlives_reset}
        self._known = kept if len(kept) <= MOST else {}

    def run(self, number: int, calls: Integers) -> LaunchTimes | None:
        """Run calls of a signature by a routine; return when, or None if there is none that fits."""
        table = self.table
        if table.is_whole(calls):
            return None
        calls, rows, sources, begins = table.operand_rows(calls, table.graph.signatures[number].refs)
        key = number, sources.tobytes()
        way = self._ways.get(key) or self._way(number, sources)
        if way is None:
            # What a plan has left elsewhere moves to a page where a launch like others reads it.
            return self.run(number, calls) if self._moved(sources) else None
        if len(self._ways) < MOST:
            self._ways[key] = way
        return way.routine.run(self.pages, calls, rows, begins, way)

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
        self._moved(table.operand_rows(calls, signature.refs)[2])
        leaves = self._leaves(table.operand_rows(calls, signature.refs)[2])
        if leaves is not None:
            self._known.setdefault(self._key(number, leaves), Routine(signature, loop, page))

    def _way(self, number: int, sources: Integers) -> LaunchReads | None:
        """Return how calls of a signature run whose groups read from some sources; None without routine."""
        leaves = self._leaves(sources)
        routine = None if leaves is None else self._known.get(self._key(number, leaves))
        return None if routine is None or leaves is None else LaunchReads(routine, leaves)

    def _moved(self, sources: Integers) -> bool:
        """Move what some sources are parts of to pages; return whether anything was elsewhere."""
        if self.loop is None:
            return False
        moved = [self.pages.move(x, self.loop.values) for x in set((sources & CALL_MASK).ravel().tolist())]
        return any(moved)

    def _key(self, number: int, leaves: Sequence[Sequence[Leaf]]) -> Hashable:
        """Return what launches have in common that one routine runs."""
        name = self._names.get(number)
        if name is None:
            name = self._names[number] = SignatureName(self.table.graph.signatures[number].key)
        return name, *[page.classes[leaf] for (page, leaf), *_ in leaves]

    def _leaves(self, sources: Integers) -> list[list[Leaf]] | None:
        """Return which leaf each group of calls reads as each operand.

        None if some are in no page, or an operand is of several classes.
        """
        found: list[list[Any]] = [list(map(self.pages.leaf, groups)) for groups in sources.T.tolist()]
        return None if None in map(one_class, found) else found


def one_class(leaves: Sequence[Leaf | None]) -> Hashable | None:
    """Return what rows of some leaves have in common; None if there is no such class, or no leaf."""
    classes = {None if leaf is None else leaf[0].classes[leaf[1]] for leaf in leaves}
    return classes.pop() if len(classes) == 1 else None


def indices_of(leaves: Sequence[Leaf], which: Integers, rows: Integers, size: int) -> list[Integers]:
    """Return the indices by which `gathered` puts rows of leaves together, in arrays of one size.

    Rows in two leaves are gathered from each, and then from both. If the size is 4, row 5 of the one and
    row 7 of the other (``which`` is ``0 1``) are rows ``5 7 7 7`` of each, and ``0 5 5 5`` of these eight.
    """
    at = np.minimum(np.arange(size), len(rows) - 1)
    if len(leaves) == 1:
        return [rows[at]]
    return [*[np.minimum(rows, page.rows - 1)[at] for page, _ in leaves], at + size * which[at]]


def gathered(backend: Backend, leaves: Sequence[Leaf], index: Iterator[Any]) -> Any:
    """Return rows of leaves, by the next ``index`` for each, and one more if there are several leaves."""
    found = [backend.gather(page.leaves[leaf], next(index)) for page, leaf in leaves]
    return found[0] if len(found) == 1 else backend.gather(backend.concat(found), next(index))
