"""Minibatches: the calls of many traces as one graph, without a loop over calls.

Each trace numbers its calls, signatures and parts from 0. Merging shifts and renames these numbers, puts
the columns of all traces one behind the other, and orders the launches by the levels that each trace knows.
"""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from multifold._compiled.choice import kernels
from multifold._record.graph import Part
from multifold._record.node import CALL_MASK, PART_BITS
from multifold._record.signature import Signature
from multifold._schedule.columns import Columns, Integers, ranges, starts
from multifold._schedule.outputs import Outputs, put_together_examples, refuse_no_rows, said
from multifold._schedule.policies import topological
from multifold._schedule.schedule import Schedule
from multifold._traces.trace import COUNTED, INTEGERS, Trace, Vocabulary, part_key
from multifold._wiring.plan import Plan, make_plan
from multifold.errors import RecordError


@dataclass(frozen=True)
class Sites:
    """Where the calls of merged traces were recorded."""

    files: list[str]
    signature: Integers
    traces: tuple[Trace, ...]
    bounds: Integers

    def __call__(self, call: int) -> str:
        """Return ``file:line`` and the trace that a call is of."""
        example = int(np.searchsorted(self.bounds, call, side="right")) - 1
        line = self.traces[example].lines[call - self.bounds[example]]
        return f"{self.files[self.signature[call]]}:{line} (trace {example})"


@dataclass
class Minibatch:
    """Merged traces with their plan; picklable, so that workers can make it ahead of time.

    Attributes
    ----------
    plan : Plan
        The calls of all traces, and what is asked for.
    traces : tuple of Trace
        What was merged, in the order of the results.
    """

    plan: Plan
    traces: tuple[Trace, ...] = field(repr=False)

    def put_together(self, values: Sequence[Any]) -> Any:
        """Return the structure of the traces with the values of the plan's groups."""
        return put_together_examples(self.plan.asked, len(self.traces), values)


def merge(traces: Iterable[Trace], schedule: str = "auto") -> Minibatch:
    """Merge traces into one minibatch, scheduled and wired.

    Parameters
    ----------
    traces : iterable of Trace
        Their functions must have returned one structure.
    schedule : str
        The scheduling policy.

    Returns
    -------
    Minibatch
        What `Fold.run` takes in place of traces. It can be made in the workers of a data loader.

    Raises
    ------
    RecordError
        If there are no traces, or if they returned different structures.

    Examples
    --------
    >>> import multifold
    >>> traces = [multifold.trace(lambda fold, x: fold.add("f", x), x) for x in (1, 2)]
    >>> multifold.Fold(backend="numpy").run({"f": lambda x: x * 10}, multifold.merge(traces))
    array([10, 20])
    """
    batch = schedule_traces(tuple(traces), schedule)
    batch.plan.wiring  # noqa: B018 - made here, so that no step has to wait for it
    return batch


def schedule_traces(traces: tuple[Trace, ...], schedule: str) -> Minibatch:
    """Return merged traces, scheduled; they are wired when they are run."""
    if not traces or not all(isinstance(x, Trace) for x in traces):
        raise RecordError(
            f"Expected at least one trace to run. Received {kinds_of(traces)}.",
            "make them with multifold.trace(fn, example), or name the function that records an example: "
            "fold.run(model, examples, fn).",
        )
    merger = Merger(traces)
    columns, asked = merger.columns(), merger.outputs()
    known = merger.schedule(columns) if schedule == "auto" else None
    sites = Sites(merger.names.files, columns.signature, traces, merger.merged.calls)
    return Minibatch(make_plan(columns, asked, schedule, sites, schedule=known), traces)


def kinds_of(values: Sequence[Any]) -> str:
    """Return the types of some values for a message."""
    return " and ".join(dict.fromkeys(type(value).__qualname__ for value in values)) or "none"


class Names:
    """The vocabularies of some traces as one: what the numbers of each become.

    Attributes
    ----------
    signatures, parts, files : lists
        The merged vocabulary.
    kinds, places : int64 arrays
        The merged numbers of the signatures and parts of each distinct vocabulary.
    kind_starts, place_starts : int64 arrays of shape ``(traces,)``
        Where those of the vocabulary of each trace begin.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        vocabularies = [t.vocabulary for t in traces]
        self.distinct = list({id(v): v for v in vocabularies}.values())
        if len(self.distinct) > 1 and len({(v.structure, v.kinds) for v in self.distinct}) > 1:
            structures = dict.fromkeys(said(v.structure, v.kinds) for v in self.distinct)
            raise RecordError(
                "Expected all traces of a minibatch to return one structure. Received "
                f"{' and '.join(structures)}.",
                "run examples that return different things as minibatches of their own.",
            )
        self.signatures: list[Signature] = []
        self.parts: list[Part] = []
        self.files: list[str] = []
        if len(self.distinct) == 1:  # the usual case: nothing is renamed, and nothing need be compared
            (only,) = self.distinct
            self.signatures, self.parts = list(only.signatures), list(only.parts)
            self.files = list(only.files)
            self.kinds, self.places = np.arange(len(only.signatures)), np.arange(len(only.parts))
            self.kind_starts = self.place_starts = np.zeros(len(traces), np.int64)
            return
        numbers: dict[Hashable, int] = {}
        tables: dict[int, int] = {}  # id of a vocabulary -> which table renames its numbers
        kinds: list[list[int]] = []
        places: list[list[int]] = []
        for vocabulary in self.distinct:
            tables[id(vocabulary)] = len(kinds)
            kinds.append([self.signature(numbers, *x) for x in named_signatures(vocabulary)])
            places.append([])
            for part in vocabulary.parts:
                places[-1].append(self.part(numbers, part, places[-1]))
        which = np.array([tables[id(v)] for v in vocabularies], np.int64)
        self.kinds = np.array(list(chain.from_iterable(kinds)), np.int64)
        self.kind_starts = starts(np.array(list(map(len, kinds)), np.int64))[which]
        self.places = np.array(list(chain.from_iterable(places)), np.int64)
        self.place_starts = starts(np.array(list(map(len, places)), np.int64))[which]

    def signature(self, numbers: dict[Hashable, int], signature: Signature, file: str) -> int:
        """Return the merged number of a signature."""
        number = numbers.setdefault(signature.key, len(self.signatures))
        if number == len(self.signatures):
            self.signatures.append(signature)
            self.files.append(file)
        return number

    def part(self, numbers: dict[Hashable, int], part: Part, places: list[int]) -> int:
        """Return the merged number of a part, whose parent was merged before."""
        merged = Part(part.path, places[part.parent] if places else 0, part.length)
        number = numbers.setdefault(part_key(merged), len(self.parts))
        if number == len(self.parts):
            self.parts.append(merged)
        return number


def named_signatures(vocabulary: Vocabulary) -> Iterable[tuple[Signature, str]]:
    """Return the signatures of a vocabulary with the files that recorded them."""
    return zip(vocabulary.signatures, vocabulary.files, strict=True)


@dataclass(slots=True)
class Merged:
    """The integers of some traces, shifted and renamed so that they are those of one graph.

    Attributes
    ----------
    calls : int64 array of shape ``(traces + 1,)``
        Where the calls of each trace begin, and where the last ones end.
    sizes : dict of str to int
        How many entries all traces together have of what is named by `COUNTED`.
    columns : dict of str to int64 array
        The columns named by `INTEGERS`: ``highest`` has an entry for each merged signature, all others have
        those of all traces, one behind the other.
    results : list of int64 array
        The references of each result.
    """

    calls: Integers
    sizes: dict[str, int]
    columns: dict[str, Integers]
    results: list[Integers]


def merged_in_c(traces: Sequence[Trace], names: Names) -> Merged:
    """Merge the integers of traces by the compiled kernel."""
    results = len(traces[0].vocabulary.whole)
    found = kernels.merge(
        np.concatenate([t.integers for t in traces]),
        names.kinds,
        names.kind_starts,
        names.places,
        names.place_starts,
        np.array([len(names.signatures), results]),
    )
    numbers, end = np.frombuffer(found, np.int64), len(traces) + 1
    width = len(COUNTED) + results
    sizes = numbers[end : end + width].tolist()
    begin, pieces = end + width, []
    for size in (*sizes[: len(INTEGERS)], *sizes[len(COUNTED) :]):
        pieces.append(numbers[begin : begin + size])
        begin += size
    columns = dict(zip(INTEGERS, pieces, strict=False))
    return Merged(numbers[:end], dict(zip(COUNTED, sizes, strict=False)), columns, pieces[len(INTEGERS) :])


def merged_in_numpy(traces: Sequence[Trace], names: Names) -> Merged:
    """Merge the integers of traces by NumPy: the reference for the kernel."""
    pieces = [t.integers for t in traces]
    integers = np.concatenate(pieces)
    width = len(COUNTED) + len(traces[0].vocabulary.whole)
    begin = starts(np.array(list(map(len, pieces)), np.int64))[:-1, None]
    sizes = integers[begin + np.arange(width)]
    stored = sizes.copy()
    stored[:, len(INTEGERS) : len(COUNTED)] = 0  # these are kept elsewhere
    begins = begin + width + np.cumsum(stored, axis=1) - stored
    calls, loose = (starts(sizes[:, COUNTED.index(name)]) for name in ("signature", "loose"))

    def entries(number: int) -> Integers:
        return integers[ranges(begins[:, number], sizes[:, number])]

    def named(local: Integers, counts: Integers) -> Integers:
        return names.kinds[local + np.repeat(names.kind_starts, counts)]

    def shifted(number: int) -> Integers:
        refs, counts = entries(number), sizes[:, number]
        known = np.maximum(refs, 0)
        part = names.places[(known >> PART_BITS) + np.repeat(names.place_starts, counts)]
        call = (known & CALL_MASK) + np.repeat(calls[:-1], counts)
        return np.where(refs < 0, refs - np.repeat(loose[:-1], counts), part << PART_BITS | call)

    columns = {name: entries(number) for number, name in enumerate(INTEGERS)}
    counts = {name: sizes[:, number] for number, name in enumerate(COUNTED)}
    columns["signature"] = named(columns["signature"], counts["signature"])
    columns["needed"] = columns["needed"] + np.repeat(calls[:-1], counts["needed"])
    for name in ("refs", "members"):
        columns[name] = shifted(INTEGERS.index(name))
    pairs = columns["pairs"].reshape(-1, 4)
    for end in (0, 2):
        pairs[:, end] = named(pairs[:, end], counts["pairs"] // 4)
    local = ranges(np.zeros(len(traces), np.int64), counts["highest"])
    highest = np.zeros(len(names.signatures), np.int64)
    np.maximum.at(highest, named(local, counts["highest"]), columns["highest"])
    totals = {name: int(count.sum()) for name, count in counts.items()} | {"highest": len(highest)}
    results = [shifted(number) for number in range(len(COUNTED), width)]
    return Merged(calls, totals, columns | {"highest": highest}, results)


class Merger:
    """Traces in the course of being merged."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        self.traces = traces
        self.names = Names(traces)
        self.merged = (merged_in_numpy if kernels is None else merged_in_c)(traces, self.names)

    def kept(self, name: str) -> Iterable[Any]:
        """Return what all traces keep outside their integers."""
        if not self.merged.sizes[name]:
            return ()
        return chain.from_iterable(getattr(t, name) for t in self.traces)

    def columns(self) -> Columns:
        """Return the columns of the minibatch."""
        columns = self.merged.columns
        return Columns(
            signatures=tuple(self.names.signatures),
            parts=tuple(self.names.parts),
            **{name: columns[name] for name in ("signature", "refs", "ints", "lengths", "members")},
            floats=np.concatenate([t.floats for t in self.traces])
            if self.merged.sizes["floats"]
            else np.zeros(0),
            arrays=list(self.kept("arrays")),
            loose=list(self.kept("loose")),
        )

    def outputs(self) -> Outputs:
        """Return what all traces ask for: the rows of each result, one trace after the other."""
        vocabulary = self.names.distinct[0]
        groups: list[Integers | int] = []
        for refs, whole in zip(self.merged.results, vocabulary.whole, strict=True):
            if not len(refs):
                refuse_no_rows()
            groups += refs.tolist() if whole else [refs]
        return Outputs(vocabulary.structure, groups, kinds=list(vocabulary.kinds))

    def schedule(self, columns: Columns) -> Schedule | None:
        """Return the typed-level schedule, from the levels of each trace.

        None where nodes are shared, so that types depend on more than signatures, or where the
        examples together have a cycle among (type, level): then it has to be made anew.
        """
        if not all(vocabulary.plain for vocabulary in self.names.distinct):
            return None
        names = ("signature", "needed", "levels", "pairs", "highest")
        found = [self.merged.columns[name] for name in names]
        if kernels is None:
            return bucketed_in_numpy(columns, *found)
        calls = np.empty(len(self.merged.columns["needed"]), np.int64)
        bounds = np.empty(len(calls) + 1, np.int64)  # there are no more launches than calls
        launches = kernels.merge_levels(*found, calls, bounds)
        if launches < 0:
            return None
        lower_bound = int(self.merged.columns["highest"].sum())
        return Schedule(columns, columns, calls, bounds[: launches + 1].copy(), lower_bound, "auto")


def bucketed_in_numpy(
    columns: Columns,
    signature: Integers,
    needed: Integers,
    levels: Integers,
    pairs: Integers,
    highest: Integers,
) -> Schedule | None:
    """Return the schedule with a launch for each (signature, level), None if they form a cycle.

    By NumPy: the reference for the kernel.
    """
    first = starts(highest)
    source_kind, source_level, reader_kind, reader_level = pairs.reshape(-1, 4).T
    count = int(first[-1])
    rank = topological(count, first[source_kind] + source_level, first[reader_kind] + reader_level)
    if rank is None:
        return None
    launch = rank[first[signature[needed]] + levels - 1]
    return Schedule.of(columns, columns, needed, launch, count, "auto")


class MergeCache:
    """The last merged minibatches, found by the digests of their traces and compared by value.

    It pays where the same minibatches come again: evaluation, or training without shuffling. Traces that
    are the same objects are recognised at once; equal ones are compared column by column. What came
    once is kept without its wiring: most minibatches of shuffled training never come again, and so many
    objects that live on make Python's garbage collector go through all there are.
    """

    def __init__(self, size: int = 32) -> None:
        self.size = size
        self.kept: OrderedDict[Hashable, Minibatch] = OrderedDict()

    def merge(self, traces: Iterable[Trace], schedule: str) -> Minibatch:
        """Return the minibatch of some traces, merged before or now."""
        traces = tuple(traces)
        key = schedule, tuple([t.digest if isinstance(t, Trace) else None for t in traces])
        found = self.kept.get(key)
        if found is not None and all(map(operator.eq, found.traces, traces)):
            self.kept.move_to_end(key)
            return found
        batch = schedule_traces(traces, schedule)
        self.kept[key] = replace(batch, plan=replace(batch.plan))
        self.kept.move_to_end(key)
        if len(self.kept) > self.size:
            self.kept.popitem(last=False)
        return batch
