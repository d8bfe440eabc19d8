"""From a plan to a ragged program: number kernels and rows, find what is read, lay slabs, look up.

`lay_out` takes these steps in this order. `multifold.program` shows what comes out for two small trees.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS, Integers, ranges, starts
from multifold._engine.ops.values import as_dtype
from multifold._engine.plan.columns import Columns
from multifold._engine.plan.plan import Plan
from multifold._engine.record.freezing import freeze
from multifold._engine.record.kinds import number_type
from multifold.backend import Backend
from multifold.program.checks import hashable_steps
from multifold.program.kernels import (
    CalledKernels,
    Family,
    KernelRows,
    Key,
    Promoted,
    is_shared_array,
    number_kernels,
    number_rows,
    op_key,
    order_launches,
)
from multifold.program.layout import (
    Form,
    Kernel,
    KernelOperand,
    Phase,
    Program,
    ProgramGroup,
    RaggedColumn,
    Source,
    stretches,
)
from multifold.program.results import lay_results, result_readers


def lay_out(
    plan: Plan,
    backend: Backend,
    examples: int | None,
    family: Family,
    classes: Mapping[int, Hashable],
    promoted: Promoted | None = None,
) -> Program:
    """Make the ragged program of a plan; adds to ``family`` what the plan has and the family lacks.

    Parameters
    ----------
    plan : Plan
        The calls, what is asked for, and the schedule.
    backend : Backend
        Gives the dtypes of numbers, and stacks arrays that are its own.
    examples : int or None
        Of how many traces the plan is; None for a plan of outputs.
    family : Family
        What programs had before; learns what this one has. A plan with results that are read whole,
        or with arrays of a framework, has a form of its own.
    classes : mapping of int to Hashable
        What tells types of one signature apart.
    promoted : callable, optional
        Tells what the rows of a ragged operand or a group are promoted to; without a model that is unknown.
    """
    # A result that is read whole is a phase of its own, so a form with seven of them fits no other
    # minibatch: it must not teach the family seven kernels.
    lasting = not len(plan.alone) and all(isinstance(x, np.ndarray) for x in plan.columns.arrays)
    family = family if lasting else Family(joins_results=family.joins_results)
    kernels = number_kernels(plan, family, classes)
    phases = order_launches(plan, kernels, family)
    rows = number_rows(plan.schedule, kernels, phases)
    given = GivenRows(backend, plan.loose)
    # The numbers of arrays of given rows are part of the form: those that the family knows come first.
    given.rows.update((key[1], []) for key in family.parents if key[0] == "given")
    asking = result_readers(plan.asked, examples) if family.joins_results else []
    reads = find_reads(plan, kernels, rows, given, promoted, asking)
    slabs = lay_slabs(family, given, rows, reads.values())
    located = {reader: slabs.locate(family, read) for reader, read in reads.items()}
    lookup = Lookup(plan.columns, kernels, rows, given, located, family.lacking, {}, [])
    made = [lookup.kernel(number, site) for number, site in enumerate(family.sites)]
    results = lay_results(
        plan.asked, examples, [lookup.group(i, group) for i, group in enumerate(plan.asked.groups)]
    )
    form = Form(
        kernels=tuple(kernel for kernel, _ in made),
        sources=slabs.sources,
        slabs=len(slabs.sizes),
        wholes=tuple((kernel, hashable_steps(plan.columns.parts, part)) for kernel, part in lookup.wholes),
        phases=tuple(Phase(tuple(phase.kernels), phase.loop) for phase in phases),
        groups=tuple(group for group, _ in results.groups),
        structure=plan.asked.structure,
        leaves=tuple(results.leaves),
    )
    return Program(
        form=form,
        starts=slabs.starts.astype(np.int32),
        sizes=slabs.sizes.astype(np.int32),
        bounds=starts(np.array([len(phase.launches) for phase in phases], np.int64)).astype(np.int32),
        launches=rows.launches,
        columns=tuple(columns for _, columns in made),
        groups=tuple(column for _, column in results.groups),
        given=given.stacked(),
        shared=tuple(lookup.shared),
        counts=np.array([1 if column is None else len(column) for _, column in results.groups], np.int32),
        kept=results.kept,
    )


class GivenRows:
    """The given rows of a program: leaf arrays, and loose values inside ragged operands and groups.

    A slab holds them beside results, so that one column of integers tells what an operand reads, whatever
    it is. While a program is laid out, references stand for both. A reference to a node is
    ``part << 40 | call``. A given row gets a negative one: row 2 of the array of given rows number 1 is
    ``-1 - (1 << 40 | 2)``.

    Attributes
    ----------
    rows : dict of Hashable to list
        The values of each class: they become one array of the program.
    """

    def __init__(self, backend: Backend, loose: Sequence[Any]) -> None:
        self.backend = backend
        self.values = loose
        self.rows: dict[Hashable, list[Any]] = {}

    def add(self, key: Hashable, values: Sequence[Any]) -> Integers:
        """Append values to the given rows of the class ``key`` (`class_of`), which may be new.

        Return a reference to each of them, ``-1 - (array << 40 | row)``, as an int64 array. Arrays are
        numbered in the order in which their classes were added.
        """
        rows = self.rows.setdefault(key, [])
        first = len(rows)
        rows += values
        return -1 - (np.arange(first, len(rows)) | list(self.rows).index(key) << PART_BITS)

    def loose(self, refs: Integers) -> Integers:
        """Return a copy of ``refs`` in which references to loose values are those to new given rows.

        A loose value is a number or an array inside of a ragged operand or a group; reference ``-1 - i``
        stands for value ``i`` of ``values``. References to nodes, which are not negative, stay.
        """
        refs = refs.copy()
        by_class: dict[Hashable, list[int]] = {}
        # ``~ref`` is ``-1 - ref``, the number of a loose value.
        for entry in np.flatnonzero(refs < 0).tolist():
            by_class.setdefault(self.class_of(self.values[~refs[entry]]), []).append(entry)
        for key, entries in by_class.items():
            refs[entries] = self.add(key, [self.values[~ref] for ref in refs[entries].tolist()])
        return refs

    def class_of(self, value: Any) -> Hashable:
        """Return a hashable class of a value: values of one class become one array of given rows.

        ``("number", (), type)`` is the class of a number, ``("numpy", trailing shape, dtype)`` that of a
        NumPy array, and `Backend.signature` that of any other array.
        """
        # Numbers and NumPy arrays have classes by themselves: the program holds them as NumPy arrays,
        # whatever backend will run it, and only a backend knows the class of an array of its own.
        number = number_type(value)
        if number is not None:
            return "number", (), number
        if isinstance(value, np.ndarray):
            return "numpy", value.shape[1:], value.dtype
        return self.backend.signature(value)

    def stacked(self) -> tuple[Any, ...]:
        """Return one array of shape ``(rows, *s)`` for each class, in the order of ``rows``."""
        return tuple(self.stack(key, values) for key, values in self.rows.items())

    def stack(self, key: Any, values: list[Any]) -> Any:
        """Put the values of the class ``key`` into one array of shape ``(rows, *s)``.

        ``key`` is what `class_of` returns. Numbers become a NumPy array ``(rows,)`` in the backend's dtype
        for them, NumPy arrays are joined by NumPy, without values to zero rows, and all others by the
        backend.
        """
        if key[0] == "number":
            return self.numbers(np.array(values, key[2]), key[2])
        if key[0] == "numpy":
            return np.concatenate(values) if values else np.zeros((0, *key[1]), key[2])
        return self.backend.concat(values) if len(values) > 1 else values[0]

    def numbers(self, values: np.ndarray, number: type) -> np.ndarray:
        """Return a NumPy array of numbers in the dtype that the backend has for int, float or bool."""
        return as_dtype(values, self.backend.number_dtype(number))


class Read(NamedTuple):
    """What one operand of a kernel, or one group of the outputs, reads by rows.

    Attributes
    ----------
    reader : tuple
        What shares a slab with everything that it reads, by value; see `Family`.
    sources : list of Key
        What is read.
    which, row : int64 arrays of shape ``(reads,)``
        Of each read the entry in ``sources``, and the row of that source.
    """

    reader: Key
    sources: list[Key]
    which: Integers
    row: Integers


def find_reads(
    plan: Plan,
    kernels: CalledKernels,
    rows: KernelRows,
    given: GivenRows,
    promoted: Promoted | None,
    asking: Sequence[Key | None],
) -> dict[tuple[Any, int], Read]:
    """Return what each operand and each group reads by rows, and add loose values and arrays to ``given``.

    The keys are ``(kernel, slot)`` for an operand and ``("group", i)`` for group ``i`` of what is asked
    for. ``asking`` has a key for each group, or is empty; ``promoted`` tells which rows are converted, None
    if that is unknown.
    """
    columns = plan.columns

    def read(refs: Integers, reader: Key | None = None, own: Integers | None = None) -> Read:
        # `own` are the references of rows that the framework may promote, to loose values as well.
        dtypes, convert = ((), refs) if own is None or promoted is None else promoted(own)
        from_given = refs < 0
        call = np.where(from_given, 0, refs & CALL_MASK)
        row = np.where(from_given, ~refs & CALL_MASK, rows.row[call])
        # One number for each source: part and kernel of a node, and -1, -2, ... for arrays of given rows.
        code = (refs >> PART_BITS) * len(kernels) + kernels.number[call]
        codes, first, which = np.unique(
            np.where(from_given, ~(~refs >> PART_BITS), code), return_index=True, return_inverse=True
        )
        classes = list(given.rows)
        sources: list[Key] = []
        for source, at in zip(codes.tolist(), first.tolist(), strict=True):
            # A program of given rows only has no kernels, and nothing is divided by 0.
            part, kernel = divmod(source, max(len(kernels), 1))
            result = "result", kernel, hashable_steps(columns.parts, max(part, 0))
            key = ("given", classes[~source]) if source < 0 else result
            sources.append((*key, dtypes if dtypes and convert[at] else ()))
        return Read(sources[0] if reader is None else reader, sources, which.ravel(), row)

    found: dict[tuple[Any, int], Read] = {}
    for number, signature in enumerate(kernels.signatures):
        for slot, (operand, position) in enumerate(signature.operands):
            if operand.kind.wide:
                own = None
                refs = columns.operand(operand, position, rows.calls[number])
                if operand.kind.array:
                    refs = given.add(operand.key, refs)
                elif operand.kind.ragged:
                    members = ranges(columns.member_starts[refs], columns.lengths[refs])
                    own = columns.members[members]
                    refs = given.loose(own)
                found[number, slot] = read(refs, ("operand", number, slot), own)
    for i, group in enumerate(plan.asked.groups):
        if not isinstance(group, int):
            # The rows that an operand reads agree in every program of the fold. The next program may ask
            # for other rows in the place of this group, so the group is no reader: its first source is.
            # Shards all ask for the same.
            found["group", i] = read(given.loose(group), asking[i] if asking else None, group)
    return found


@dataclass(frozen=True)
class SlabRows:
    """The slabs of a program.

    Attributes
    ----------
    number : dict
        The slab of each root in the family.
    sources : tuple of Source
        See `Form`.
    entry : dict of Key to int
        The entry of each in ``sources``.
    starts, sizes : int64 arrays
        See `Program`.
    """

    number: dict[Key, int]
    sources: tuple[Source, ...]
    entry: dict[Key, int]
    starts: Integers
    sizes: Integers

    def locate(self, family: Family, read: Read) -> tuple[int, np.ndarray]:
        """Return the slab that a `Read` reads, -1 for none, and which row of it each read reads (int32)."""
        slab = self.number.get(family.root(read.reader), -1)
        begin = self.starts[np.array([self.entry[key] for key in read.sources], np.int64)]
        return slab, (begin[read.which] + read.row).astype(np.int32)


def lay_slabs(family: Family, given: GivenRows, rows: KernelRows, reads: Iterable[Read]) -> SlabRows:
    """Number the slabs and their sources: first given rows, then results in the order of the kernels.

    Adds to ``family`` that each reader shares a slab with its sources. A source that only earlier programs
    had keeps its place, without any row.
    """
    for read in reads:
        family.link(read.reader, read.sources)
    # Without operands and groups: they share slabs with what they read, but hold no rows.
    keys: list[Key] = [key for key in family.parents if key[0] in ("given", "result")]
    number = {key: i for i, key in enumerate(given.rows)}

    # The order is that of `repr`: steps and dtypes are ints, strings and tuples, which Python does not
    # compare with each other.
    def order(key: Key) -> tuple[int, int, str]:
        return (-1, number[key[1]], repr(key[2])) if key[0] == "given" else (key[1], 0, repr(key[2:]))

    keys.sort(key=order)
    slabs: dict[Key, int] = {}
    for key in keys:
        slabs.setdefault(family.root(key), len(slabs))
    # Slab by slab, so that a source begins after all counts before it. The sort is stable: within
    # a slab the order stays.
    keys.sort(key=lambda key: slabs[family.root(key)])
    sources = []
    counts = []
    for key in keys:
        slab = slabs[family.root(key)]
        if key[0] == "given":
            sources.append(Source(slab, -1, (), number[key[1]], dtypes=key[2]))
            counts.append(len(given.rows[key[1]]))
        else:
            sources.append(Source(slab, key[1], key[2], dtypes=key[3]))
            counts.append(len(rows.calls[key[1]]))
    first, sizes = stretches(sources, np.array(counts, np.int64))
    return SlabRows(slabs, tuple(sources), {key: i for i, key in enumerate(keys)}, first, sizes)


class Lookup(NamedTuple):
    """Where kernels find operands and columns; ``lacking``, ``wholes`` and ``shared`` grow meanwhile."""

    columns: Columns
    kernels: CalledKernels
    rows: KernelRows
    given: GivenRows
    located: Mapping[tuple[Any, int], tuple[int, np.ndarray]]
    lacking: set[tuple[int, int]]
    wholes: dict[tuple[int, int], int]
    shared: list[Any]

    def whole(self, ref: int) -> int:
        """Return the entry in `Form.wholes` of the value that a reference reads whole.

        A new value gets a new entry.
        """
        key = int(self.kernels.number[ref & CALL_MASK]), int(ref) >> PART_BITS
        return self.wholes.setdefault(key, len(self.wholes))

    def group(self, i: int, group: Any) -> tuple[ProgramGroup, np.ndarray | None]:
        """Return group ``i`` of the outputs and its rows, an int32 array.

        None for rows if it is a whole value. ``group`` is an array of references, or one integer for a
        whole value.
        """
        if isinstance(group, int):
            return ProgramGroup(whole=self.whole(group)), None
        slab, rows = self.located["group", i]
        return ProgramGroup(slab), rows

    def kernel(self, number: int, site: str) -> tuple[Kernel, tuple[Any, ...]]:
        """Make the kernel of a number and the columns of its operands, as `operand` makes each.

        ``site`` is the line of its first call, for messages.
        """
        signature = self.kernels.signatures[number]
        pairs = [self.operand(number, slot) for slot in range(len(signature.slots))]
        kernel = Kernel(
            op=signature.op,
            operands=tuple(operand for operand, _ in pairs),
            structure=signature.structure,
            key=op_key(signature),
            static=signature.static,
            solo=self.kernels.solo[number],
            whole=self.kernels.whole[number],
            name=signature.name,
            site=site,
        )
        return kernel, tuple(column for _, column in pairs)

    def operand(self, number: int, at: int) -> tuple[KernelOperand, Any]:
        """Make operand ``at`` of a kernel, and its column, as `Program.columns` has it.

        The column of rows is an int32 array of rows of their slab, that of a ragged operand a
        `RaggedColumn`, and that of numbers an array of them; others have None. A whole value is added to
        ``wholes``, a shared array to ``shared``, and a ragged operand of which a call has no row to
        ``lacking``.
        """
        columns = self.columns
        calls = self.rows.calls[number]
        slot, position = self.kernels.signatures[number].operands[at]
        kind = slot.kind
        if kind.wide:
            slab, rows = self.located[number, at]
            if not kind.ragged:
                return KernelOperand("rows", slab), rows
            lengths = columns.lengths[columns.operand(slot, position, calls)]
            # Segments count the rows of a launch from 0, because an op sees nothing but its launch.
            segments = np.repeat(np.arange(len(calls)) - self.rows.first_of_launch(number), lengths)
            column = RaggedColumn(rows, starts(lengths).astype(np.int32), segments.astype(np.int32))
            if not lengths.all():
                self.lacking.add((number, at))
            lacks = (number, at) in self.lacking
            return KernelOperand("ragged", slab, missing=slot.value, lacks=lacks), column
        if kind.number is not None:
            values = columns.operand(slot, position, calls)
            return KernelOperand(kind.name), self.given.numbers(values, kind.number)
        if kind.ref:
            # Calls that read other whole values are of other types. Such a kernel is in no later program,
            # so it has a call.
            return KernelOperand("whole", self.whole(columns.operand(slot, position, calls[0]))), None
        if is_shared_array(slot):
            self.shared.append(slot.value)
            return KernelOperand("shared", len(self.shared) - 1), None
        key = freeze(slot.value) if kind.shared else slot.key
        return KernelOperand("static", key=key, value=slot.value), None
