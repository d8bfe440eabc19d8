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
    """Where the calls of merged traces were recorded; called with a call, it returns its line.

    Attributes
    ----------
    files : sequence of str
        For each signature of the minibatch the file of its first call.
    signature : int64 array
        For each call the number of its signature.
    traces : tuple of Trace
    bounds : int64 array of shape ``(traces + 1,)``
        Where the calls of each trace begin, and where the last ones end.
    """

    files: Sequence[str]
    signature: Integers
    traces: tuple[Trace, ...]
    bounds: Integers

    def trace_of(self, call: int) -> int:
        """Return the number, from 0, of the trace that a call of the minibatch belongs to."""
        return int(np.searchsorted(self.bounds, call, side="right")) - 1

    def whose(self, call: int) -> str:
        """Return the name that messages give to the trace of a call of the minibatch: ``"trace 3"``."""
        return f"trace {self.trace_of(call)}"

    def __call__(self, call: int) -> str:
        """Return the line of a call of the minibatch and its trace: ``"parser.py:12 (trace 3)"``.

        Raises `RecordError` if the trace is damaged and has no line for the call.
        """
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
        """Return a new minibatch of the same traces and plan, with the wiring, made here if there is none.

        Then no training step has to wait for that. Its ``device`` is None.
        """
        return Minibatch(self.plan.wired(), self.traces)

    def to(self, device: Any = None, **options: Any) -> Minibatch:
        """Set ``device`` unless it is None, and return this minibatch; nothing is copied before it is run.

        ``options`` are ignored: loaders pass what a tensor's ``to`` takes, such as ``non_blocking``.
        """
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
        """Return ``values``, one for each group, in the structure that the traced function returned.

        >>> import multifold
        >>> traces = multifold.traces(lambda fold, x: {"y": fold.add("f", x)}, [1, 2])
        >>> multifold.merge(traces).put_together(["rows of y"])
        {'y': 'rows of y'}
        """
        return put_together(self.plan.asked, values, len(self.traces))


def sum_of_launches(
    crc: int, policy: str, bound: int, calls: tuple[str, bytes], bounds: tuple[str, bytes]
) -> int:
    """Return the checksum of the schedule of a minibatch together with that of its traces, ``crc``.

    ``policy`` and ``bound`` are the schedule's policy and lower bound; ``calls`` and ``bounds`` are its
    columns as `narrow` returns them: the code of a type, and bytes.
    """
    words = "".join([calls[0], bounds[0], policy]).encode()
    return checksum([crc, bound], [words, calls[1], bounds[1]])


def read_minibatch(
    policy: str, bound: int, calls: tuple[str, bytes], bounds: tuple[str, bytes], crc: int, *packed: Any
) -> Minibatch:
    """Return the minibatch of a pickle: merge its traces again, with the pickled schedule, and wire them.

    Parameters
    ----------
    policy, bound, calls, bounds
        The schedule; see `sum_of_launches`.
    crc : int
        What `sum_of_launches` returned when it was pickled.
    *packed
        Arguments of `read_traces`: layout, checksum, and what `pack` returned.

    Raises
    ------
    RecordError
        If the pickle was damaged, or is of another layout.
    """
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
    """Merge traces and return them as a minibatch, with the plan that ``plans`` has or makes.

    With ``runs``, as before a run, the plan may be wired already; else its wiring is made when it is asked
    for.

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
    """Return the end of a message, " It is trace 3 of 8.", for the first trace that can't be planned alone.

    Traces are counted from 0. "" if each of them can be planned: then only together they cannot.
    """
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
    """Merge traces to one frame: what a plan is made of.

    Raises one of `DAMAGE` if a trace is damaged, and `RecordError` if they returned different structures.
    """
    merger = Merger(traces)
    columns = merger.columns()
    sites = Sites(merger.names.files, columns.signature, traces, merger.calls)
    return Frame(columns, merger.outputs(), sites, whose=sites.whose)


def refuse_misplaced(examples: Any, fn: Any) -> None:
    """Raise `RecordError` unless ``examples`` can be iterated, are no traces, and ``fn`` can be called.

    Traces hold the calls already, so a function with them is a mistake. The hint says what to pass instead.
    """
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
    """Return whether ``outputs`` are a `Minibatch`, or a list or tuple of one or more traces only."""
    traces = isinstance(outputs, (list, tuple)) and all(isinstance(x, Trace) for x in outputs)
    return isinstance(outputs, Minibatch) or (traces and bool(outputs))


def type_names(values: Sequence[Any]) -> str:
    """Return the distinct types of some values for a message: ``"int and str"``; "none" without values."""
    return " and ".join(dict.fromkeys(type(value).__qualname__ for value in values)) or "none"


class Names:
    """The vocabularies of some traces as one: what the numbers of each become.

    Two traces may number the same signature differently: a trace that recorded ``leaf`` first calls it 0,
    one that recorded ``cell`` first calls it 1. Both numbers become one here.

    Attributes
    ----------
    distinct : list of Vocabulary
        The vocabularies of the traces, each once, in the order in which the traces have them.
    signatures, parts, files : lists
        The merged vocabulary.
    signature_numbers, part_numbers : int64 arrays
        The merged numbers of the signatures, and of the parts, of one distinct vocabulary after the other.
    signature_starts, part_starts : int64 arrays of shape ``(vocabularies + 1,)``
        Where the numbers of each distinct vocabulary begin, and where the last ones end.
    taken : int64 array of shape ``(5, signatures)``
        How many entries a call of each signature has in each of `COLUMNS`.
    known : dict of str to object
        Attributes of `Columns` that follow from the signatures: ``layouts`` and ``sharing``.
    which : int64 array of shape ``(traces,)``
        For each trace the position of its vocabulary in ``distinct``.
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
        """Set all attributes but ``distinct`` and ``which``; return these attributes, name -> value."""
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
        """Return the number of a signature in the minibatch; a new one is appended to ``signatures``.

        Its ``file`` is appended to ``files`` then. ``keys``, key of a signature -> its number, grows
        (`take_in`).
        """
        number = take_in(signature, keys, self.signatures)
        # A signature that is new to the minibatch brings its file.
        if len(self.files) < len(self.signatures):
            self.files.append(file)
        return number

    def part(self, known: dict[Name, int | None], name: Name, part: Part, numbers: list[int]) -> int:
        """Return the number of a part in the minibatch; a new one is appended to ``parts``.

        Parameters
        ----------
        known : dict
            The name of each part so far -> its number; a new part is added.
        name : Name
            The name of the part.
        part : Part
            The part, whose ``parent`` is a number of its own vocabulary.
        numbers : list of int
            The numbers that the parts before it in its vocabulary have in the minibatch.
        """
        number = known.get(name)
        if number is None:
            number = known[name] = len(self.parts)
            self.parts.append(Part(part.path, numbers[part.parent] if numbers else 0, part.length))
        return number


def refuse_other_structures(vocabularies: Sequence[Vocabulary]) -> None:
    """Raise `RecordError` unless all vocabularies have one structure of results."""
    if len(vocabularies) > 1 and len({(v.structure, v.wanted) for v in vocabularies}) > 1:
        structures = dict.fromkeys(structure_text(v.structure, v.wanted) for v in vocabularies)
        raise RecordError(
            "Expected all traces of a minibatch to return one structure. Received "
            f"{' and '.join(structures)}.",
            "run examples that return different things as minibatches of their own.",
        )


def one_after_the_other(lists: Sequence[list[int]]) -> tuple[Integers, Integers]:
    """Return the integers of all lists as one array, and where each list begins and the last one ends.

    >>> one_after_the_other([[5, 6], [], [7]])
    (array([5, 6, 7]), array([0, 2, 2, 3]))
    """
    begin = starts(np.array(list(map(len, lists)), np.int64))
    return np.array(list(chain.from_iterable(lists)), np.int64), begin


class Merger:
    """Merges traces when it is made: their integers become those of one graph.

    Attributes
    ----------
    calls : int64 array of shape ``(traces + 1,)``
        Where the calls of each trace begin, and where the last ones end.
    sizes : dict of str to int
        Name of a column, one of `COUNTED` -> how many entries all traces together have in it.
    integers : dict of str to int64 array
        Name of a column, one of `INTEGERS` -> the entries of all traces, one after the other, with the
        numbers of the minibatch.
    results : list of int64 array
        For each result of the traced function the references of its rows, one trace after the other.
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
        """Return the values of all traces, trace by trace: ``name`` is "arrays" or "loose"."""
        # Most minibatches have none, so their traces need not be asked one by one.
        if not self.sizes[name]:
            return ()
        return chain.from_iterable(getattr(t, name) for t in self.traces)

    def columns(self) -> Columns:
        """Return the calls of all traces as columns of one graph, made anew.

        Raises `IndexError` if the traces hold other numbers of floats, arrays or loose values than their
        integers say, or floats of another dtype: they were damaged.
        """
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
        """Return what the traces ask for: a group for each result, with the rows of all traces in order.

        A result that is wanted whole has a group for each trace instead.

        Raises
        ------
        RecordError
            If a result is a group without a row in any trace.
        IndexError
            If a result that is one node has not one row for each trace: a trace was damaged.
        """
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
