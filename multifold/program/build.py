"""From a plan to a ragged program: vectorised over calls, with loops over kernels and launches only.

Each type of call becomes a kernel. Kernels that read each other in a circle, or themselves, run in one
loop over the launches of the schedule; all calls of any other kernel are one launch. A launch whose result
is read whole is a phase of its own, since that result may have any shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from multifold._record.freezing import freeze, nesting
from multifold._record.kinds import number_type
from multifold._record.node import CALL_MASK, PART_BITS
from multifold._run.values import as_dtype, steps_to
from multifold._schedule.columns import Integers, ranges, starts
from multifold._schedule.levels import strong_components, unique_pairs
from multifold._wiring.plan import Plan
from multifold.backend import Backend
from multifold.program.family import Family, is_shared_array, kernel_key, order_of
from multifold.program.layout import (
    Form,
    Group,
    Kernel,
    Operand,
    Phase,
    Program,
    RaggedColumn,
    Source,
)


def lay_out(
    plan: Plan,
    backend: Backend,
    leaves: Sequence[int | tuple[int, ...]] | None = None,
    family: Family | None = None,
    classes: Mapping[int, Hashable] | None = None,
) -> Program:
    """Return the ragged program of a plan.

    Parameters
    ----------
    plan : Plan
        The calls, what is asked for, and the schedule.
    backend : Backend
        Gives the dtypes of numbers, and stacks arrays that are its own.
    leaves : sequence, optional
        For each leaf of the structure of outputs its group, or the groups of which it is the list.
    family : Family, optional
        What programs had before; learns what this one has. A plan with results that are read whole,
        or with arrays of a framework, has a form of its own.
    classes : mapping, optional
        What tells types of one signature apart.
    """
    layout = Layout(plan, backend, family, classes or {})
    layout.number_kernels()
    layout.order_launches()
    layout.number_rows()
    layout.read()
    return layout.program(leaves)


class Layout:
    """A plan in the course of being laid out; its methods run in the order in which they stand.

    Attributes
    ----------
    kernel : int64 array of shape ``(calls,)``
        The kernel of each call that is run, else -1.
    row : int64 array of shape ``(calls,)``
        Its row in that kernel.
    """

    def __init__(
        self, plan: Plan, backend: Backend, family: Family | None, classes: Mapping[int, Hashable]
    ) -> None:
        self.classes = classes
        self.plan = plan
        self.columns = plan.columns
        self.backend = backend
        lasting = not len(plan.alone) and all(isinstance(x, np.ndarray) for x in plan.columns.arrays)
        self.family = family if lasting and family is not None else Family()
        self.blocks: dict[Hashable, list[Any]] = {}
        self.wholes: dict[tuple[int, int], int] = {}

    # ---- kernels, phases, rows -------------------------------------------------------------------

    def number_kernels(self) -> None:
        """Number the types of calls, alike whatever the order of the examples."""
        plan, columns, family = self.plan, self.columns, self.family
        calls = np.sort(plan.schedule.calls)
        types, first = np.unique(plan.types[calls], return_index=True)
        firsts = calls[first].tolist()
        alone = set(plan.alone.tolist())
        signatures = [columns.signatures[columns.signature[call]] for call in firsts]
        order = sorted(range(len(types)), key=lambda i: (order_of(signatures[i]), firsts[i]))
        number = np.full(int(types.max()) + 1 if len(types) else 0, -1)
        twins: Counter[Hashable] = Counter()
        present: dict[int, int] = {}
        for i in order:
            key = kernel_key(signatures[i]), self.classes.get(int(types[i])), firsts[i] in alone
            twins[key] += 1
            kernel = family.number((*key, twins[key]), signatures[i], plan.site(firsts[i]))
            number[types[i]] = kernel
            present[kernel] = i
        self.signatures = [
            signatures[present[kernel]] if kernel in present else signature
            for kernel, signature in enumerate(family.signatures)
        ]
        self.whole: list[bool] = [key[-2] for key in family.kernels]
        self.solo = [w or not s.batched for w, s in zip(self.whole, self.signatures, strict=True)]
        self.kernel = np.full(max(len(columns), 1), -1)
        self.kernel[calls] = number[plan.types[calls]]

    def order_launches(self) -> None:
        """Order the launches by circles of kernels, and cut them into phases."""
        schedule, family, count = self.plan.schedule, self.family, len(self.signatures)
        sources, readers = (self.kernel[calls] for calls in self.columns.edges)
        run = (sources >= 0) & (readers >= 0)
        pairs = unique_pairs(sources[run], readers[run], count)
        family.edges |= set(zip(*(ends.tolist() for ends in pairs), strict=True))
        edges = np.array(sorted(family.edges), np.int64).reshape(-1, 2)
        component = strong_components(count, edges[:, 0], edges[:, 1])
        circle = np.bincount(component, minlength=count) > 1
        circle[component[edges[edges[:, 0] == edges[:, 1], 0]]] = True
        kernel = self.kernel[schedule.calls[schedule.bounds[:-1]]]
        launches: list[list[int]] = [[] for _ in range(count)]
        for launch in range(len(schedule)):
            launches[component[kernel[launch]]].append(launch)
        members: list[list[int]] = [[] for _ in range(count)]
        for number in range(count):
            members[component[number]].append(number)
        # Tarjan's numbers grow from the last readers to the first sources.
        self.phases: list[tuple[list[int], bool, list[list[int]]]] = []
        for number in range(count - 1, -1, -1):
            names, found = members[number], launches[number]
            if not circle[number]:
                self.phases += [(names, False, [found] if found else [])] if names else []
                continue
            batched = [name for name in names if not self.solo[name]]
            if batched == names:
                self.phases.append((names, True, [[x] for x in found]))
                continue
            for lonely, some in groupby(found, key=lambda launch: self.solo[kernel[launch]]):
                if lonely:
                    self.phases += [([int(kernel[x])], False, [[x]]) for x in some]
                else:  # others may read a value that a later part of the circle computes
                    here = [[x] for x in some]
                    used = {int(kernel[x]) for (x,) in here}
                    self.phases.append(([name for name in batched if name in used], True, here))

    def number_rows(self) -> None:
        """Number the rows of each kernel in the order in which they are computed."""
        schedule, count = self.plan.schedule, len(self.signatures)
        merged = [launch for _, _, launches in self.phases for launch in launches]
        position = np.zeros(len(schedule), np.int64)
        for at, launches in enumerate(merged):
            position[launches] = at
        place = np.repeat(position, schedule.sizes)
        launch_rows = np.bincount(place, minlength=len(merged)).tolist()
        kernel = self.kernel[schedule.calls]
        order = np.lexsort((place, kernel))
        calls, kernel, place = schedule.calls[order], kernel[order], place[order]
        first = starts(np.bincount(kernel, minlength=count))
        self.row = np.zeros(len(self.kernel), np.int64)
        self.row[calls] = np.arange(len(calls)) - first[kernel]
        self.calls: list[Integers] = [calls[low:high] for low, high in pairwise(first.tolist())]
        for number in np.flatnonzero(self.solo).tolist():
            # A launch of a solo kernel makes one row, whatever the number of its calls.
            own = place[first[number] : first[number + 1]]
            _, index, rows = np.unique(own, return_index=True, return_inverse=True)
            self.row[self.calls[number]] = rows.reshape(-1)
            self.calls[number] = self.calls[number][index]
        self.sizes = np.array([len(calls) for calls in self.calls], np.int64)
        table = np.zeros((len(merged), 3), np.int32)
        owner = np.zeros(len(merged), np.int64)
        done = [0] * count
        every = ((names, launch) for names, _, launches in self.phases for launch in launches)
        for at, (names, launch) in enumerate(every):
            number = int(self.kernel[schedule.calls[schedule.bounds[launch[0]]]])
            height = 1 if self.solo[number] else launch_rows[at]
            table[at] = names.index(number), done[number], height
            owner[at] = number
            done[number] += height
        self.launches = table
        self.first_of = [
            np.repeat(table[owner == number, 1], table[owner == number, 2]) for number in range(count)
        ]

    # ---- given rows ------------------------------------------------------------------------------

    def give(self, key: Hashable, values: list[Any]) -> Integers:
        """Put rows into the given block of their class.

        Returns what stands for them among references: ``-1 - (block << PART_BITS | row)``.
        """
        block = self.blocks.setdefault(key, [])
        first = len(block)
        block += values
        return -1 - (np.arange(first, len(block)) | list(self.blocks).index(key) << PART_BITS)

    def loose(self, refs: Integers) -> Integers:
        """Return references in which loose values are given rows."""
        if not len(refs) or refs.min() >= 0:
            return refs
        refs, values = refs.copy(), self.plan.loose
        by_class: dict[Hashable, list[int]] = {}
        for at in np.flatnonzero(refs < 0).tolist():
            by_class.setdefault(self.class_of(values[-1 - refs[at]]), []).append(at)
        for key, places in by_class.items():
            refs[places] = self.give(key, [values[-1 - refs[at]] for at in places])
        return refs

    def class_of(self, value: Any) -> Hashable:
        """Return what given rows of one block have in common."""
        number = number_type(value)
        if number is not None:
            return "number", (), number
        if isinstance(value, np.ndarray):
            return "numpy", value.shape[1:], value.dtype
        return self.backend.signature(value)

    def stack(self, key: Any, values: list[Any]) -> Any:
        """Return given rows of one class as one array."""
        if key[0] == "number":
            return self.numbers(np.array(values, key[2]), key[2])
        if key[0] == "numpy":
            return np.concatenate(values) if values else np.zeros((0, *key[1]), key[2])
        return self.backend.concat(values) if len(values) > 1 else values[0]

    def numbers(self, values: np.ndarray, number: type) -> np.ndarray:
        """Return numbers in the dtype that the backend gives to their type."""
        return as_dtype(values, self.backend.number_dtype(number))

    # ---- slabs -----------------------------------------------------------------------------------

    def read(self) -> None:
        """Note what all operands and results read, and put what is read together into slabs."""
        columns = self.columns
        self.reads: dict[tuple[Any, int], Integers] = {}
        for number, signature in enumerate(self.signatures):
            calls = self.calls[number]
            for at, (slot, position) in enumerate(signature.operands):
                if not slot.kind.wide:
                    continue
                refs = columns.operand(slot, position, calls)
                if slot.kind.array:
                    refs = self.give(slot.key, refs)
                elif slot.kind.ragged:
                    within = ranges(columns.member_starts[refs], columns.lengths[refs])
                    refs = self.loose(columns.members[within])
                self.reads[number, at] = refs
        for i, group in enumerate(self.plan.asked.groups):
            if not isinstance(group, int):
                self.reads["group", i] = self.loose(group)
        for reader, refs in self.reads.items():
            places = [self.place(code) for code in np.unique(self.codes(refs)).tolist()]
            # What one result reads agrees for ever; what is asked for next time need not.
            self.family.link(reader if reader[0] != "group" else places[0], places)
        self.number_sources()

    def codes(self, refs: Integers) -> Integers:
        """Return what each reference reads: part and kernel of a node, or ``-1 - block``."""
        kernel = self.kernel[np.where(refs < 0, 0, refs & CALL_MASK)]
        return np.where(
            refs < 0, ~(~refs >> PART_BITS), (refs >> PART_BITS) * len(self.signatures) + kernel
        )

    def place(self, code: int) -> Any:
        """Return the place that a code stands for, by value."""
        if code < 0:
            return "given", list(self.blocks)[~code]
        part, kernel = divmod(code, len(self.signatures))
        return kernel, steps_to(self.columns.parts, part)

    def number_sources(self) -> None:
        """Number slabs and sources: given blocks first, then kernels in their order."""
        family = self.family
        places: list[Any] = [place for place in list(family.parents) if is_source(place)]
        for place in places:
            if place[0] == "given":
                self.blocks.setdefault(place[1], [])
        blocks = list(self.blocks)

        def order(place: Any) -> tuple[int, int, str]:
            given = place[0] == "given"
            return (-1, blocks.index(place[1]), "") if given else (place[0], 0, repr(place[1]))

        places.sort(key=order)
        slabs: dict[Hashable, int] = {}
        for place in places:
            slabs.setdefault(family.root(place), len(slabs))
        self.slabs = slabs
        places.sort(key=lambda place: slabs[family.root(place)])  # stable
        self.sources = [
            Source(slab, -1, (), blocks.index(place[1])) if place[0] == "given" else Source(slab, *place)
            for place, slab in ((place, slabs[family.root(place)]) for place in places)
        ]
        self.source_numbers = {place: number for number, place in enumerate(places)}
        rows = [
            len(self.blocks[blocks[source.block]]) if source.kernel < 0 else int(self.sizes[source.kernel])
            for source in self.sources
        ]
        slab = np.array([source.slab for source in self.sources], np.int64)
        self.slab_rows = np.bincount(slab, rows, minlength=len(slabs)).astype(np.int64)
        ends = starts(np.array(rows, np.int64))
        self.starts = ends[:-1] - starts(self.slab_rows)[slab]

    def locate(self, reader: tuple[Any, int]) -> tuple[int, np.ndarray]:
        """Return the slab that a reader reads, -1 for none, and the rows that it reads there."""
        refs = self.reads[reader]
        codes, inverse = np.unique(self.codes(refs), return_inverse=True)
        places = [self.place(code) for code in codes.tolist()]
        slab = self.slabs.get(self.family.root(places[0] if reader[0] == "group" else reader), -1)
        numbers = [self.source_numbers[place] for place in places]
        start = self.starts[np.array(numbers, np.int64)][inverse.reshape(-1)]
        row = np.where(refs < 0, ~refs & CALL_MASK, self.row[np.where(refs < 0, 0, refs & CALL_MASK)])
        return slab, (start + row).astype(np.int32)

    # ---- operands and results --------------------------------------------------------------------

    def operand(self, number: int, at: int) -> tuple[Operand, Any]:
        """Return an operand of a kernel and its column."""
        signature, calls, columns = self.signatures[number], self.calls[number], self.columns
        slot, position = signature.operands[at]
        kind = slot.kind
        if kind.wide:
            slab, rows = self.locate((number, at))
            if not kind.ragged:
                return Operand("rows", slab), rows
            lengths = columns.lengths[columns.operand(slot, position, calls)]
            segments = np.repeat(np.arange(len(calls)) - self.first_of[number], lengths)
            column = RaggedColumn(rows, starts(lengths).astype(np.int32), segments.astype(np.int32))
            return Operand("ragged", slab, row_shape=slot.value), column
        if kind.number is not None:
            return Operand(kind.name), self.numbers(columns.operand(slot, position, calls), kind.number)
        if kind.ref:
            return Operand("whole", self.whole_of(int(columns.operand(slot, position, calls[0])))), None
        if is_shared_array(slot):
            self.shared.append(slot.value)
            return Operand("shared", len(self.shared) - 1), None
        key = freeze(slot.value) if kind.shared else slot.key
        return Operand("static", key=key, value=slot.value), None

    def whole_of(self, ref: int) -> int:
        """Return the entry of the wholes that a reference is."""
        place = int(self.kernel[ref & CALL_MASK]), ref >> PART_BITS
        return self.wholes.setdefault(place, len(self.wholes))

    def program(self, leaves: Sequence[int | tuple[int, ...]] | None) -> Program:
        """Return the program."""
        asked, parts = self.plan.asked, self.columns.parts
        self.shared: list[Any] = []
        kernels, data, groups = [], [], []
        results: list[np.ndarray | None] = []
        for number, signature in enumerate(self.signatures):
            found = [self.operand(number, at) for at in range(len(signature.slots))]
            data.append(tuple(column for _, column in found))
            op = signature.op if isinstance(signature.op, str) else freeze(signature.op)
            kernel = Kernel(
                op=signature.op,
                operands=tuple(operand for operand, _ in found),
                structure=signature.structure,
                key=(op, nesting(signature.structure, len(signature.slots)), freeze(signature.static)),
                static=signature.static,
                solo=self.solo[number],
                whole=self.whole[number],
                name=signature.name,
                site=self.family.sites[number],
            )
            kernels.append(kernel)
        for i, group in enumerate(asked.groups):
            if isinstance(group, int):
                groups.append(Group(whole=self.whole_of(group)))
                results.append(None)
            else:
                slab, rows = self.locate(("group", i))
                groups.append(Group(slab))
                results.append(rows)
        form = Form(
            kernels=tuple(kernels),
            sources=tuple(self.sources),
            slabs=len(self.slabs),
            wholes=tuple((kernel, steps_to(parts, part)) for kernel, part in self.wholes),
            phases=tuple(Phase(tuple(names), loop) for names, loop, _ in self.phases),
            groups=tuple(groups),
            structure=asked.structure,
            leaves=tuple(range(len(groups)) if leaves is None else leaves),
        )
        return Program(
            form=form,
            starts=self.starts.astype(np.int32),
            sizes=self.slab_rows.astype(np.int32),
            bounds=starts(np.array([len(x) for *_, x in self.phases], np.int64)).astype(np.int32),
            launches=self.launches,
            columns=tuple(data),
            groups=tuple(results),
            blocks=tuple(self.stack(key, values) for key, values in self.blocks.items()),
            shared=tuple(self.shared),
            counts=np.array([1 if rows is None else len(rows) for rows in results], np.int32),
        )


def is_source(place: Any) -> bool:
    """Return whether a place is a source, and no operand and no result."""
    return place[0] == "given" or isinstance(place[1], tuple)
