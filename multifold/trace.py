"""Traces: one example's recorded calls, kept as integers, and merged without a loop over calls.

The types, typed levels and operands of one example do not depend on the rest of a minibatch. A `Trace`
keeps them as arrays, so that a minibatch is a concatenation, a few offsets and one sort. Traces hold
integers, numbers and NumPy arrays only; they pickle, compare by value and import no framework, so
they are made in the workers of a data loader, or once per data set.
"""

from __future__ import annotations

import hashlib
import inspect
import operator
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, NoReturn

import numpy as np
import optree

from multifold.columns import Columns, Integers, ranges, starts
from multifold.errors import RecordError
from multifold.graph import CALL_MASK, PART_BITS, Graph, Part, Recorder
from multifold.levels import COUNTERS, unique_pairs
from multifold.outputs import Outputs, take_apart
from multifold.plan import Plan, make_plan
from multifold.policies import topological
from multifold.schedule import Schedule, call_types, problem_of
from multifold.signature import Signature, freeze


class TraceRecorder(Recorder):
    """Records the calls of one example; its leaf arrays are NumPy's."""

    def __init__(self) -> None:
        self._graph = Graph()

    def array_class(self, x: Any) -> Hashable | None:
        """Return the class of a NumPy array of one row; refuse arrays of a framework."""
        if not isinstance(x, np.ndarray):
            if hasattr(x, "shape") and hasattr(x, "dtype"):
                raise RecordError(
                    "Expected NumPy arrays and numbers in a trace. Received an array of type "
                    f"{type(x).__module__}.{type(x).__qualname__}.",
                    "traces are made without any framework: pass x.numpy(), or record with a Fold.",
                )
            return None
        if x.dtype.hasobject or not x.ndim or x.shape[0] != 1:
            raise RecordError(
                "Expected an array operand of one row, of shape (1, *s). "
                f"Received shape {x.shape} of dtype {x.dtype}.",
                "`x[None]` makes one row of an array, `multifold.shared(x)` passes it whole.",
            )
        return "numpy", x.shape[1:], x.dtype

    def value(self, *_: Any) -> NoReturn:
        """Refuse: a trace is recorded before anything is computed."""
        raise RecordError(
            "Expected no value to be awaited in a trace, which holds calls and no values.",
            "fold.run(model, examples, fn) runs examples that look at values.",
        )

    values = gather = value

    def shared_key(self, x: Any) -> Hashable:
        """Return a key of the value: traces that were pickled apart may share equal arrays."""
        return freeze(x)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What the traces of one function have in common: distinct signatures and parts, and the results.

    Attributes
    ----------
    signatures, parts : tuples
        Numbered in the order in which they were recorded.
    files : tuple of str
        Where each signature was recorded first.
    structure : PyTreeSpec
        The structure that the traced function returned.
    whole : tuple of bool
        Which of the results are wanted whole.
    plain : bool
        Whether levels are those of signatures: no node is shared, and no cycle of types is wide.
    """

    signatures: tuple[Signature, ...]
    parts: tuple[Part, ...]
    files: tuple[str, ...]
    structure: Any
    whole: tuple[bool, ...]
    plain: bool

    @cached_property
    def key(self) -> Hashable:
        """What is compared."""
        signatures = tuple(signature.key for signature in self.signatures)
        return signatures, tuple(map(part_key, self.parts)), self.structure, self.whole, self.plain

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (self is other or self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> Any:
        return make_vocabulary, tuple(getattr(self, f.name) for f in fields(self))


@lru_cache(maxsize=1024)
def first_of(vocabulary: Vocabulary) -> Vocabulary:
    """Return the first vocabulary that was equal to this one: merging then meets few objects."""
    return vocabulary


def make_vocabulary(*values: Any) -> Vocabulary:
    """Return a vocabulary, one object for equal ones."""
    return first_of(Vocabulary(*values))


def part_key(part: Part) -> Hashable:
    """Return what two parts have in common when they are the same place of a result."""
    return freeze(part.path), part.parent, part.length


INTEGERS = ("signature", "refs", "ints", "lengths", "members", "needed", "levels", "pairs", "highest")
"""The columns of integers of a trace; behind them come the references of each result."""

COUNTED = (*INTEGERS, "floats", "arrays", "loose")
"""What a trace says the sizes of first; behind them come those of the results."""


@dataclass(frozen=True, eq=False)
class Trace:
    """One example's calls; made by `trace`, run by `Fold.run`.

    All columns of integers are one array, so that a minibatch is one concatenation: first the sizes
    named by `COUNTED` and those of the results, then the columns named by `INTEGERS` and the results.
    ``signature``, ``refs``, ``ints``, ``lengths`` and ``members`` are those of `multifold.columns.Columns`,
    ``needed`` holds the calls that the results need, ``levels`` the typed level of each of them,
    ``pairs`` the distinct (signature, level from 0) of source and reader over all edges, four numbers
    each, ``highest`` the highest level of each signature.

    Attributes
    ----------
    vocabulary : Vocabulary
        The distinct signatures and parts, and the structure of the results.
    integers : int64 array
        Sizes and columns.
    floats : float64 array
        The float operands.
    arrays, loose : tuples
        Leaf arrays, and the numbers and arrays inside ragged operands and groups.
    lines : int64 array
        Where each call was recorded.
    """

    vocabulary: Vocabulary
    integers: Integers
    floats: np.ndarray
    arrays: tuple[np.ndarray, ...]
    loose: tuple[Any, ...]
    lines: Integers

    def __len__(self) -> int:
        """The number of recorded calls."""
        return int(self.integers[0])

    @property
    def whole(self) -> tuple[bool, ...]:
        """Which of the results are wanted whole."""
        return self.vocabulary.whole

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Trace) or self.digest != other.digest:
            return NotImplemented if not isinstance(other, Trace) else False
        return all(
            same(getattr(self, f.name), getattr(other, f.name)) for f in fields(self) if f.name != "lines"
        )

    @cached_property
    def digest(self) -> int:
        """A number that is equal for equal traces; used to find them, never to compare them."""
        state = hashlib.blake2b(self.integers.tobytes(), digest_size=8)
        state.update(self.floats.tobytes())
        return int.from_bytes(state.digest(), "little")

    def __hash__(self) -> int:
        return self.digest


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal, arrays by dtype, shape and content."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return (
            isinstance(a, np.ndarray)
            and isinstance(b, np.ndarray)
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.tobytes() == b.tobytes()
        )
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def trace(fn: Callable[[Any, Any], Any], example: Any) -> Trace:
    """Call ``fn(recorder, example)`` once and keep the calls and what it returned.

    Parameters
    ----------
    fn : callable
        Records an example through ``recorder.add``, as it would on a `Fold`, and returns nodes, groups,
        or lists, tuples and dicts of those.
    example : object
        Handed to ``fn``.

    Returns
    -------
    Trace
        Can be pickled where its ops are names or importable functions.

    Examples
    --------
    >>> import multifold
    >>> def powers(fold, n):
    ...     x = 1
    ...     for _ in range(n):
    ...         x = fold.add("double", x)
    ...     return x
    >>> traces = [multifold.trace(powers, n) for n in (1, 2, 3)]
    >>> multifold.Fold(backend="numpy").run({"double": lambda x: 2 * x}, traces)
    array([2, 4, 8])
    """
    recorder = TraceRecorder()
    result = fn(recorder, example)
    if inspect.iscoroutine(result):
        result.close()
        recorder.value()
    graph = recorder._graph
    asked = take_apart(recorder, graph, result, len(graph.loose))
    columns = Columns.of(graph)
    needed = columns.ancestors(asked.calls)
    whole = np.array(asked.whole, np.int64) & CALL_MASK
    alone = np.union1d(columns.shared_calls, whole)
    types = call_types(columns, alone)
    problem = problem_of(columns, types, needed)
    # Levels of a wide cycle are not those of a type, so they say nothing about other examples.
    plain = not len(alone) and not (problem.cycles > COUNTERS).any()
    levels = problem.levels if plain else np.ones(len(needed), np.int64)
    kinds = columns.signature[needed]
    highest = np.zeros(len(columns.signatures), np.int64)
    np.maximum.at(highest, kinds, levels)
    bucket = starts(highest)[kinds] + levels - 1
    ends = unique_pairs(bucket[problem.sources], bucket[problem.readers], int(highest.sum()))
    place = np.repeat(np.arange(len(highest)), highest)
    level = np.arange(len(place)) - starts(highest)[place]
    pairs = [column for end in ends for column in (place[end], level[end])]
    places = graph.places()
    files = {number: file for number, (file, _) in zip(graph.signature, places, strict=True)}
    loose = tuple(x.copy() if isinstance(x, np.ndarray) else x for x in (*graph.loose, *asked.loose))
    named = {
        **vars(columns),
        "needed": needed,
        "levels": levels,
        "pairs": np.stack(pairs, axis=1).ravel(),
        "highest": highest,
        "loose": loose,
    }
    groups = [np.atleast_1d(np.array(group, np.int64)) for group in asked.groups]
    sizes = [*(len(named[name]) for name in COUNTED), *map(len, groups)]
    made = Trace(
        vocabulary=make_vocabulary(
            columns.signatures,
            columns.parts,
            tuple(files[i] for i in range(len(highest))),
            asked.structure,
            tuple(isinstance(group, int) for group in asked.groups),
            plain,
        ),
        integers=np.concatenate([np.array(sizes), *(named[name] for name in INTEGERS), *groups]),
        floats=columns.floats,
        arrays=tuple(x.copy() for x in columns.arrays),
        loose=loose,
        lines=np.array([line for _, line in places], np.int64),
    )
    made.digest  # noqa: B018 - made here, so that no step has to wait for it
    return made


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
    """Merged traces with their plan; picklable, so that workers can make it ahead of time."""

    plan: Plan
    traces: tuple[Trace, ...] = field(repr=False)

    def put_together(self, values: Sequence[Any]) -> Any:
        """Return the structure of the traces with the values of the plan's groups."""
        entries = iter(values)
        vocabulary = self.traces[0].vocabulary
        whole = vocabulary.whole
        leaves = [[next(entries) for _ in self.traces] if is_whole else next(entries) for is_whole in whole]
        return optree.tree_unflatten(vocabulary.structure, leaves)


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
    traces = tuple(traces)
    if not traces or not all(isinstance(x, Trace) for x in traces):
        raise RecordError(
            "Expected at least one trace to run. Received " + (f"{traces[:3]!r}." if traces else "none."),
            "make them with multifold.trace(fn, example).",
        )
    merger = Merger(traces)
    columns, asked = merger.columns(), merger.outputs()
    known = merger.schedule(columns) if schedule == "auto" else None
    sites = Sites(merger.files, columns.signature, traces, merger.calls)
    return Minibatch(make_plan(columns, asked, schedule, sites, schedule=known), traces)


class Merger:
    """Traces in the course of being merged: how the numbers of each are shifted and renamed.

    Attributes
    ----------
    sizes : int64 array of shape ``(traces, sizes)``
        What each trace says of its sizes.
    begins : int64 array of the same shape
        Where each column of integers of each trace begins in their concatenation.
    calls, loose : int64 arrays
        Where the calls and the loose values of each trace begin.
    signatures, parts, files : lists
        The merged vocabulary.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        self.traces = traces
        vocabularies = [t.vocabulary for t in traces]
        self.vocabularies = list({id(v): v for v in vocabularies}.values())
        if len({(v.structure, v.whole) for v in self.vocabularies}) > 1:
            structures = dict.fromkeys(str(v.structure) for v in self.vocabularies)
            raise RecordError(
                "Expected all traces of a minibatch to return one structure. Received "
                f"{' and '.join(structures)}.",
                "run examples that return different things as minibatches of their own.",
            )
        self.signatures: list[Signature] = []
        self.parts: list[Part] = []
        self.files: list[str] = []
        pieces = [t.integers for t in traces]
        self.integers = np.concatenate(pieces)
        width = len(COUNTED) + len(vocabularies[0].whole)
        begin = starts(np.array(list(map(len, pieces)), np.int64))[:-1, None]
        self.sizes = self.integers[begin + np.arange(width)]
        stored = self.sizes.copy()
        stored[:, len(INTEGERS) : len(COUNTED)] = 0  # these are kept elsewhere
        self.begins = begin + width + np.cumsum(stored, axis=1) - stored
        self.calls = starts(self.counts("signature"))
        self.loose = starts(self.counts("loose"))
        self.name(vocabularies)

    def name(self, vocabularies: Sequence[Vocabulary]) -> None:
        """Merge the vocabularies of all traces: ``kinds`` and ``places`` rename signatures and parts."""
        numbers: dict[Hashable, int] = {}
        tables: dict[int, int] = {}  # id of a vocabulary -> which table renames its numbers
        kinds: list[list[int]] = []
        places: list[list[int]] = []
        for vocabulary in self.vocabularies:
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
        self.renamed = any(numbers != list(range(len(numbers))) for numbers in (*kinds, *places))

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

    def counts(self, name: str) -> Integers:
        """Return how many entries of a column each trace has."""
        return self.sizes[:, COUNTED.index(name)]

    def column(self, name: str) -> Integers:
        """Return a column of integers of all traces, one after the other."""
        return self.entries(COUNTED.index(name))

    def entries(self, number: int) -> Integers:
        """Return the entries of all traces, one after the other, of a column by its place in ``sizes``."""
        return self.integers[ranges(self.begins[:, number], self.sizes[:, number])]

    def kept(self, name: str) -> list[Any]:
        """Return what all traces keep outside their integers."""
        if not self.counts(name).any():
            return []
        return list(chain.from_iterable(getattr(t, name) for t in self.traces))

    def kinds_of(self, local: Integers, counts: Integers) -> Integers:
        """Return the merged numbers of signatures of each trace."""
        return self.kinds[local + np.repeat(self.kind_starts, counts)] if self.renamed else local

    def shift(self, refs: Integers, counts: Integers) -> Integers:
        """Return references of each trace as references of the minibatch."""
        shifted = refs + np.repeat(self.calls[:-1], counts)
        if self.renamed:
            part = self.places[(refs >> PART_BITS) + np.repeat(self.place_starts, counts)]
            shifted = part << PART_BITS | shifted & CALL_MASK
        if self.loose[-1] and len(refs) and refs.min() < 0:
            shifted = np.where(refs < 0, refs - np.repeat(self.loose[:-1], counts), shifted)
        return shifted

    def columns(self) -> Columns:
        """Return the columns of the minibatch."""
        return Columns(
            signatures=tuple(self.signatures),
            parts=tuple(self.parts),
            signature=self.kinds_of(self.column("signature"), self.counts("signature")),
            refs=self.shift(self.column("refs"), self.counts("refs")),
            ints=self.column("ints"),
            floats=np.concatenate([t.floats for t in self.traces])
            if self.counts("floats").any()
            else np.zeros(0),
            arrays=self.kept("arrays"),
            lengths=self.column("lengths"),
            members=self.shift(self.column("members"), self.counts("members")),
            loose=self.kept("loose"),
        )

    def outputs(self) -> Outputs:
        """Return what all traces ask for: the rows of each result, one trace after the other."""
        vocabulary = self.vocabularies[0]
        groups: list[Integers | int] = []
        for number, whole in enumerate(vocabulary.whole, start=len(COUNTED)):
            refs = self.shift(self.entries(number), self.sizes[:, number])
            groups += refs.tolist() if whole else [refs]
        return Outputs(vocabulary.structure, groups)

    def schedule(self, columns: Columns) -> Schedule | None:
        """Return the typed-level schedule, from the levels of each trace.

        None where nodes are shared, so that types depend on more than signatures, or where the
        examples together have a cycle among (type, level): then it has to be made anew.
        """
        if not all(vocabulary.plain for vocabulary in self.vocabularies):
            return None
        pending = self.column("needed") + np.repeat(self.calls[:-1], self.counts("needed"))
        highest = np.zeros(len(self.signatures), np.int64)
        heights = self.counts("highest")
        local = ranges(np.zeros(len(heights), np.int64), heights)
        np.maximum.at(highest, self.kinds_of(local, heights), self.column("highest"))
        first = starts(highest)
        pairs, pair_counts = self.column("pairs").reshape(-1, 4), self.counts("pairs") // 4
        source = first[self.kinds_of(pairs[:, 0], pair_counts)] + pairs[:, 1]
        reader = first[self.kinds_of(pairs[:, 2], pair_counts)] + pairs[:, 3]
        rank = topological(int(first[-1]), source, reader)
        if rank is None:
            return None
        launch = rank[first[columns.signature[pending]] + self.column("levels") - 1]
        return Schedule.of(columns, columns, pending, launch, int(first[-1]), "auto")


def named_signatures(vocabulary: Vocabulary) -> Iterable[tuple[Signature, str]]:
    """Return the signatures of a vocabulary with the files that recorded them."""
    return zip(vocabulary.signatures, vocabulary.files, strict=True)


class MergeCache:
    """The last merged minibatches, found by the digests of their traces and compared by value.

    It pays where the same minibatches come again: evaluation, or training without shuffling. Traces that
    are the same objects are recognised at once; equal ones are compared column by column.
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
        batch = self.kept[key] = merge(traces, schedule)
        self.kept.move_to_end(key)
        if len(self.kept) > self.size:
            self.kept.popitem(last=False)
        return batch
