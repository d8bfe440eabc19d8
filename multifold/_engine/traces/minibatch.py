"""Minibatches: the calls of many traces as one graph, without a loop over calls.

Each trace numbers its calls, signatures and parts from 0. Merging shifts and renames these numbers, and
puts the columns of all traces one after the other. They are scheduled like calls that a fold has recorded.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from multifold._engine import compiled
from multifold._engine.compiled.arrays import Integers, starts
from multifold._engine.plan.columns import NO_FLOATS, Columns, layouts_of, sharing_of, taken_by
from multifold._engine.plan.each import holes
from multifold._engine.plan.outputs import Outputs, put_together, refuse_no_rows, structure_text
from multifold._engine.plan.plan import Frame, Plan, PlanCache, make_plan
from multifold._engine.plan.schedule import Schedule
from multifold._engine.record.damage import DAMAGE, LAYOUT, checksum, damaged
from multifold._engine.record.graph import Part
from multifold._engine.record.kinds import COLUMNS
from multifold._engine.record.signature import Signature, take_in
from multifold._engine.traces.shown import Shown
from multifold._engine.traces.trace import (
    COUNTED,
    INTEGERS,
    Name,
    Trace,
    Vocabulary,
    narrow,
    pack,
    read_traces,
    sum_of,
)  # fmt: skip
from multifold.errors import RecordError, type_of

AT_REFS = COLUMNS.index("refs")
AT_RAGGED = COLUMNS.index("ragged")


@dataclass(frozen=True)
class Sites:
    """Where the calls of merged traces were recorded."""

    files: Sequence[str]
    signature: Integers
    traces: tuple[Trace, ...]
    bounds: Integers

    def trace_of(self, call: int) -> int:
        """Return the number of the trace that a call belongs to."""
        return int(np.searchsorted(self.bounds, call, side="right")) - 1

    def whose(self, call: int) -> str:
        """Return what messages call the trace that a call belongs to: ``"trace 3"``."""
        return f"trace {self.trace_of(call)}"

    def __call__(self, call: int) -> str:
        """Return the line of a call and its trace: ``"parser.py:12 (trace 3)"``."""
        example = self.trace_of(call)
        try:
            line = self.traces[example].lines[call - self.bounds[example]]
        except (IndexError, TypeError) as error:
            raise damaged(f"it has no line for each call: {error}.") from error
        return f"{self.files[self.signature[call]]}:{line} (trace {example})"


class Minibatch(metaclass=Shown):
    """Merged traces with their plan; picklable, so that workers can make it ahead of time.

    ``len(minibatch)`` is the number of its traces.

    Attributes
    ----------
    plan : Plan
        The calls of all traces, and what is asked for.
    traces : tuple of Trace
        What was merged, in the order of the results.
    device : object
        Where `to` sent the minibatch: numbers and NumPy arrays go there when a fold that has no device of
        its own runs it. None for the device of the model.

    Examples
    --------
    >>> import multifold
    >>> traces = multifold.traces(lambda fold, x: fold.add("f", x), [1, 2])
    >>> batch = multifold.merge(traces)
    >>> batch.to("cuda:1") is batch, batch.device, len(batch)
    (True, 'cuda:1', 2)
    """

    def __init__(self, plan: Plan, traces: tuple[Trace, ...]) -> None:
        self.plan = plan
        self.traces = traces
        self.device: Any = None

    def __len__(self) -> int:
        return len(self.traces)

    def wired(self) -> Minibatch:
        """Return the minibatch with the wiring of its plan, so that no step has to wait for that."""
        return Minibatch(self.plan.wired(), self.traces)

    def to(self, device: Any = None, **options: Any) -> Minibatch:
        """Return this minibatch, which remembers the device; nothing is copied before it is run."""
        if device is not None:
            self.device = device
        return self

    def pin_memory(self, device: Any = None) -> Minibatch:
        """Return this minibatch: it lies on the host, and has no tensors to pin."""
        return self

    def __repr__(self) -> str:
        schedule = self.plan.schedule
        sizes = f"traces={len(self.traces)}, calls={len(schedule.calls)}, launches={len(schedule)}"
        return f"<Minibatch: {sizes}>"

    def __reduce__(self) -> Any:
        # The schedule goes along, since some policies take long to find one. Columns and wiring follow from
        # it and from the traces, and are made again where the pickle arrives.
        schedule = self.plan.schedule
        packed = pack(self.traces)
        crc = sum_of(LAYOUT, packed)
        facts = schedule.policy, schedule.lower_bound, narrow(schedule.calls), narrow(schedule.bounds)
        return read_minibatch, (*facts, sum_of_launches(crc, *facts), LAYOUT, crc, *packed)

    def put_together(self, values: Sequence[Any]) -> Any:
        """Return the results in the structure that the traced function returned; a value for each group."""
        return put_together(self.plan.asked, values, len(self.traces))


def sum_of_launches(
    crc: int, policy: str, bound: int, calls: tuple[str, bytes], bounds: tuple[str, bytes]
) -> int:
    """Return the checksum of the launches of some traces, which have the checksum ``crc`` by themselves."""
    words = "".join([calls[0], bounds[0], policy]).encode()
    return checksum([crc, bound], [words, calls[1], bounds[1]])


def read_minibatch(
    policy: str, bound: int, calls: tuple[str, bytes], bounds: tuple[str, bytes], crc: int, *packed: Any
) -> Minibatch:
    """Return the minibatch that was pickled: its traces are merged again, and scheduled as they were."""
    try:
        traces = tuple(read_traces(*packed))
        if sum_of_launches(packed[1], policy, bound, calls, bounds) != crc:
            raise damaged("the checksum of its launches is another one.")
        order, begin = (np.frombuffer(data, f"<{code}").astype(np.int64) for code, data in (calls, bounds))
        frame = merged(traces)
        schedule = Schedule(frame.columns, frame.columns, order, begin, bound, policy)
        return Minibatch(make_plan(frame, policy, schedule).wired(), traces)
    except RecordError:
        raise
    except DAMAGE as error:
        raise damaged(error) from error


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
    return schedule_traces(tuple(traces), PlanCache(schedule), runs=True).wired()


def schedule_traces(traces: tuple[Trace, ...], plans: PlanCache, *, runs: bool) -> Minibatch:
    """Return merged traces, scheduled; they are wired, too, where they are sure to be run.

    Raises
    ------
    RecordError
        If there are no traces, if they returned different structures, or if one is damaged.
    """
    if set(map(type, traces)) != {Trace} and not (traces and all(isinstance(x, Trace) for x in traces)):
        raise RecordError(
            f"Expected at least one trace, since no function was given. Received {type_names(traces)}.",
            "make them with multifold.trace(fn, example), or name the function that records an example: "
            "fold.run(model, examples, fn). A minibatch is run as it is: fold.run(model, minibatch).",
        )
    try:
        return Minibatch(plans.plan(merged(traces), runs=runs), traces)
    except RecordError:
        raise
    except DAMAGE as error:
        raise damaged(f"{str(error).rstrip('.')}.{which_is_damaged(traces, plans.policy)}") from error


def which_is_damaged(traces: tuple[Trace, ...], policy: str) -> str:
    """Return the end of a message, as " It is trace 3 of 8.": the first trace that can't be run alone."""
    # Merging meets all traces at once and does not know which one was wrong. Here it may take its time.
    for number, trace in enumerate(traces):
        try:
            make_plan(merged((trace,)), policy)
        except RecordError:
            continue
        except DAMAGE:
            return f" It is trace {number} of {len(traces)}."
    return ""


def merged(traces: tuple[Trace, ...]) -> Frame:
    """Return the calls of all traces as one frame; raise one of `DAMAGE` if a trace is damaged."""
    merger = Merger(traces)
    columns = merger.columns()
    sites = Sites(merger.names.files, columns.signature, traces, merger.calls)
    return Frame(columns, merger.outputs(), sites, whose=sites.whose)


def refuse_misplaced(examples: Any, fn: Any) -> None:
    """Refuse what is neither examples nor a function that records them, and traces, which need none."""
    traced = isinstance(examples, Trace) or is_batch(examples)
    if traced or not callable(fn) or not isinstance(examples, Iterable):
        hint = "the examples come first: fold.run(model, examples, fn)."
        if traced:
            hint = "traces hold what the function has recorded: leave it out, fold.run(model, traces)."
        elif callable(fn) and not callable(examples):
            hint = "write a list, even of one example: fold.run(model, [example], fn)."
        received = f"{type_of(examples)} and {type_of(fn)}"
        raise RecordError(f"Expected examples and a function. Received {received}.", hint)


def is_batch(outputs: Any) -> bool:
    """Return whether outputs are traces, merged already or not."""
    traces = isinstance(outputs, (list, tuple)) and all(isinstance(x, Trace) for x in outputs)
    return isinstance(outputs, Minibatch) or (traces and bool(outputs))


def type_names(values: Sequence[Any]) -> str:
    """Return the types of some values for a message."""
    return " and ".join(dict.fromkeys(type(value).__qualname__ for value in values)) or "none"


class Names:
    """The vocabularies of some traces as one: what the numbers of each become.

    Two traces may number the same signature differently: a trace that recorded ``leaf`` first calls it 0,
    one that recorded ``cell`` first calls it 1. Both numbers become one here.

    Attributes
    ----------
    signatures, parts, files : sequences
        The merged vocabulary.
    signature_numbers, part_numbers : int64 arrays
        The merged numbers of the signatures and parts of one distinct vocabulary after the other.
    signature_starts, part_starts : int64 arrays of shape ``(vocabularies + 1,)``
        Where the numbers of each distinct vocabulary begin, and where the last ones end.
    taken : int64 array
        How many entries the calls of each signature have in each column.
    known : dict
        What is known of the columns of the minibatch: attributes of `Columns`.
    which : int64 array of shape ``(traces,)``
        The vocabulary of each trace.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        vocabularies = [t.vocabulary for t in traces]
        # `make_vocabulary` has made equal vocabularies one object, so ids tell them apart.
        self.distinct = list({id(v): v for v in vocabularies}.values())
        refuse_other_structures(self.distinct)
        position = {id(v): i for i, v in enumerate(self.distinct)}
        self.which = np.array([position[id(v)] for v in vocabularies])
        # Most minibatches have one vocabulary, and so had the ones before. What these found is in `alone`.
        known = self.distinct[0].alone if len(self.distinct) == 1 else {}
        if not known:
            known.update(self.compared())
        vars(self).update(known)

    def compared(self) -> dict[str, Any]:
        """Compare the vocabularies; set all attributes but ``distinct`` and ``which``, and return them."""
        self.signatures: list[Signature] = []
        self.parts: list[Part] = []
        self.files: list[str] = []
        keys: dict[Hashable, int] = {}
        known: dict[Name, int | None] = {}
        signatures: list[list[Any]] = []
        parts: list[list[Any]] = []
        for vocabulary in self.distinct:
            of_signatures, of_parts = vocabulary.names
            signatures.append([*map(known.get, of_signatures)])
            parts.append([*map(known.get, of_parts)])
            # The first few vocabularies of a minibatch bring nearly all names. For most others each `get`
            # has found a number, and nothing more is to be done.
            if None in signatures[-1]:
                pairs = zip(vocabulary.signatures, vocabulary.files, strict=True)
                signatures[-1] = [self.signature(keys, signature, file) for signature, file in pairs]
                known.update(zip(of_signatures, signatures[-1], strict=True))
            if None in parts[-1]:
                parts[-1] = []
                for name, part in zip(of_parts, vocabulary.parts, strict=True):
                    parts[-1].append(self.part(known, name, part, parts[-1]))
        self.signature_numbers, self.signature_starts = one_after_the_other(signatures)
        self.part_numbers, self.part_starts = one_after_the_other(parts)
        self.taken = taken_by(self.signatures)
        self.known = {"layouts": layouts_of(self.signatures), "sharing": sharing_of(self.signatures)}
        return {name: x for name, x in vars(self).items() if name not in ("distinct", "which")}

    def signature(self, keys: dict[Hashable, int], signature: Signature, file: str) -> int:
        """Return the number of a signature in the minibatch; a new one is appended, with its file."""
        number = take_in(signature, keys, self.signatures)
        # A signature that is new to the minibatch brings its file.
        if len(self.files) < len(self.signatures):
            self.files.append(file)
        return number

    def part(self, known: dict[Name, int | None], name: Name, part: Part, numbers: list[int]) -> int:
        """Return the number of a part in the minibatch; ``numbers`` are those of the parts before it."""
        number = known.get(name)
        if number is None:
            number = known[name] = len(self.parts)
            self.parts.append(Part(part.path, numbers[part.parent] if numbers else 0, part.length))
        return number


def refuse_other_structures(vocabularies: Sequence[Vocabulary]) -> None:
    """Refuse traces whose functions returned different structures."""
    if len(vocabularies) > 1 and len({(v.structure, v.wanted) for v in vocabularies}) > 1:
        structures = dict.fromkeys(structure_text(v.structure, v.wanted) for v in vocabularies)
        raise RecordError(
            "Expected all traces of a minibatch to return one structure. Received "
            f"{' and '.join(structures)}.",
            "run examples that return different things as minibatches of their own.",
        )


def one_after_the_other(lists: Sequence[list[int]]) -> tuple[Integers, Integers]:
    """Return the integers of all lists, and where those of each list begin."""
    begin = starts(np.array(list(map(len, lists)), np.int64))
    return np.array(list(chain.from_iterable(lists)), np.int64), begin


class Merger:
    """Traces in the course of being merged: their integers become those of one graph.

    Attributes
    ----------
    calls : int64 array of shape ``(traces + 1,)``
        Where the calls of each trace begin, and where the last ones end.
    sizes : dict of str to int
        How many entries all traces together have of what is named by `COUNTED`.
    integers : dict of str to int64 array
        The columns named by `INTEGERS`, shifted and renamed: those of all traces, one after the other.
    results : list of int64 array
        The references of each result.
    """

    def __init__(self, traces: Sequence[Trace]) -> None:
        self.traces = traces
        self.names = names = Names(traces)
        self.calls, counts, columns = compiled.merge(
            np.concatenate([t.integers for t in traces]),
            names.signature_numbers,
            names.signature_starts,
            names.part_numbers,
            names.part_starts,
            names.which,
            names.taken,
            len(traces[0].vocabulary.wanted),
        )
        totals = np.add.reduce(counts).tolist()
        self.sizes = dict(zip(COUNTED, totals, strict=False))  # results follow in both
        self.integers = dict(zip(INTEGERS, columns, strict=False))
        self.results = columns[len(INTEGERS) :]

    def kept(self, name: str) -> Iterable[Any]:
        """Return the ``arrays`` or the ``loose`` values of all traces, one trace after the other."""
        # Most minibatches have none, so their traces need not be asked one by one.
        if not self.sizes[name]:
            return ()
        return chain.from_iterable(getattr(t, name) for t in self.traces)

    def columns(self) -> Columns:
        """Return the columns of the minibatch."""
        names = self.names
        signature = self.integers["signature"]
        begin = {"refs": starts(names.taken[AT_REFS][signature])}
        if self.sizes["lengths"]:
            begin["ragged"] = starts(names.taken[AT_RAGGED][signature])
        columns = Columns.known(
            begin,
            signatures=tuple(names.signatures),
            parts=tuple(names.parts),
            **self.integers,
            floats=np.concatenate([t.floats for t in self.traces]) if self.sizes["floats"] else NO_FLOATS,
            arrays=list(self.kept("arrays")),
            loose=list(self.kept("loose")),
        )
        vars(columns).update(names.known)
        # Pickles are read by `Trace.of`, which looks at no sizes. They are compared here.
        for name in ("floats", "arrays", "loose"):
            if len(getattr(columns, name)) != self.sizes[name]:
                raise IndexError(f"It has another number of {name} than it says.")
        if columns.floats.dtype != np.float64:
            raise IndexError("Its floats are no floats.")
        return columns

    def outputs(self) -> Outputs:
        """Return what all traces ask for: the rows of each result, one trace after the other."""
        vocabulary = self.names.distinct[0]
        groups: list[Integers | int] = []
        kept: list[Any] = []
        # `forms` has an entry for each result that keeps its example: the forms of all traces.
        forms = zip(*[trace.kept for trace in self.traces], strict=True)
        for leaf, (refs, one) in enumerate(zip(self.results, vocabulary.wanted, strict=True)):
            if one == "each":
                kept += next(forms)
                at = 0
                for hole in [hole for form in kept[-len(self.traces) :] for hole in holes(form)]:
                    groups.append(int(refs[at]) if hole.whole else refs[at : at + hole.rows])
                    at += hole.rows
                continue
            if not len(refs):
                refuse_no_rows(vocabulary.structure, leaf)
            if one != "group" and (len(refs) != len(self.traces) or (one == "whole" and refs.min() < 0)):
                raise IndexError("A result that is one node has another number of rows.")
            groups += refs.tolist() if one == "whole" else [refs]
        return Outputs(vocabulary.structure, groups, wanted=list(vocabulary.wanted), kept=kept)
