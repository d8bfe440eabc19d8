"""From what a user asks for to a program: lay it out, with calls told apart by shapes if a model is given.

A program has one kernel for each type of call, so all calls of a type must agree in the classes of their
rows. Types are those of the schedule. Where one op meets rows of different trailing shapes, which a fold
finds out while it runs, a program has to know before: `refine` runs one call of each type and class.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import optree

from multifold._record.graph import warn_user
from multifold._record.node import CALL_MASK, PART_BITS
from multifold._run.lookup import resolve
from multifold._run.messages import raised
from multifold._run.values import Values, ragged_rows_differ, steps_to
from multifold._schedule.columns import Integers
from multifold._schedule.schedule import make_schedule
from multifold._traces.trace import Trace
from multifold._wiring.plan import Plan
from multifold.backend import Backend
from multifold.errors import LaunchError
from multifold.program.build import lay_out
from multifold.program.family import Family
from multifold.program.interpret import Named, follow
from multifold.program.layout import Form, Program
from multifold.program.tiles import Shelf, Tiler


class Programs:
    """The programs that a fold has made: what keeps their forms alike, and how many there are.

    An executor compiles once for each form. So forms are counted, and a warning names the op and the size
    that made one more than the budget allows.

    Attributes
    ----------
    forms : dict of Form to int
        How many programs were made of each form.
    budget : int
        Beyond that many forms a warning is given, once for each further one.

    Examples
    --------
    >>> import multifold
    >>> fold = multifold.Fold(backend="numpy")
    >>> for n in (1, 2, 3):
    ...     program = fold.program([fold.add("double", i) for i in range(n)])
    >>> print(fold.programs)
    3 programs of 1 form (budget 8)
         3  once double
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.families = {False: Family(), True: Family()}  # without a model, and with one
        self.shelf = Shelf()
        self.forms: dict[Form, int] = {}
        self.budget = 8

    def __len__(self) -> int:
        """The number of forms."""
        return len(self.forms)

    def make(
        self, plan: Plan, traces: Sequence[Trace], backend: Backend, model: Any, *, pad: bool
    ) -> Program:
        """Return the program of a plan; see `multifold.Fold.program`."""
        classes: dict[int, Hashable] = {}
        if model is not None:
            plan, classes = refine(plan, backend, model, self.policy)
        program = lay_out(plan, backend, leaves_of(plan, traces), self.families[model is not None], classes)
        if backend.tiles:
            tiler = Tiler(program, pad=pad)
            program = tiler.tiled(self.shelf.choose(tiler))
        self.count(program.form)
        return program

    def count(self, form: Form) -> None:
        """Count a program; warn if its form is one too many."""
        if form not in self.forms and len(self.forms) >= self.budget:
            new = difference(form, list(self.forms)[-1])
            warn_user(
                f"Programs of this fold have {len(self.forms) + 1} forms, and each is compiled by "
                f"itself; the budget is {self.budget}. New: {new}.\n\nHint: make minibatches of like "
                "sizes, use one fold for all of them, or raise fold.programs.budget.",
            )
        self.forms[form] = self.forms.get(form, 0) + 1

    def __str__(self) -> str:
        made, forms = sum(self.forms.values()), len(self.forms)
        lines = [
            f"{made} program{'s' * (made != 1)} of {forms} form{'s' * (forms != 1)} (budget {self.budget})"
        ]
        for form, count in self.forms.items():
            phases = "; ".join(label + (f": {size}" if size else "") for label, size in sizes_of(form))
            lines.append(f"{count:>6}  {phases}")
        return "\n".join(lines)


def sizes_of(form: Form) -> list[tuple[str, str]]:
    """Return a label and the sizes of each phase, block and group of a form; none of a ragged one."""
    found = []
    for phase in form.phases:
        names = ", ".join(form.kernels[kernel].name for kernel in phase.kernels)
        edges = [o.edges for k in phase.kernels for o in form.kernels[k].operands if o.edges is not None]
        size = f"{phase.launches} tiles of {phase.tile} rows" if phase.tile else ""
        size = size or " + ".join(f"{rows} rows" for rows in phase.rows)
        size += f" and {' + '.join(map(str, edges))} members" if edges else ""
        found.append((f"{'loop' if phase.loop else 'once'} {names}", size))
    blocks = [source.rows for source in form.sources if source.kernel < 0 and source.rows is not None]
    found += [(f"given rows {i}", f"{rows} rows") for i, rows in enumerate(blocks)]
    groups = [group.rows for group in form.groups if group.rows is not None]
    return found + [(f"result {i}", f"{rows} rows") for i, rows in enumerate(groups)]


def difference(form: Form, last: Form) -> str:
    """Return what a form has that the one before had not."""
    if not set(form.kernels) - set(last.kernels) and form.kernels != last.kernels:
        return "other ops"
    names = [k.name for k in form.kernels[len(last.kernels) :]]
    if names:
        return "the op" + "s" * (len(names) > 1) + " " + ", ".join(f"'{name}'" for name in names)
    before = dict(sizes_of(last))
    changed = [
        f"{label}: {size}" + (f" (before {before[label]})" if label in before else "")
        for label, size in sizes_of(form)
        if before.get(label) != size
    ]
    return "; ".join(changed) or "which ops read each other, or what is asked for"


def are_traces(outputs: Any) -> bool:
    """Return whether outputs are traces."""
    return (
        isinstance(outputs, (list, tuple)) and bool(outputs) and all(isinstance(x, Trace) for x in outputs)
    )


def leaves_of(plan: Plan, traces: Sequence[Trace]) -> list[int | tuple[int, ...]]:
    """Return the group behind each leaf of a structure; of traces, a whole result has one for each."""
    groups = iter(range(len(plan.asked.groups)))
    if not traces:
        return list(groups)
    return [tuple(next(groups) for _ in traces) if whole else next(groups) for whole in traces[0].whole]


def refine(plan: Plan, backend: Backend, model: Any, policy: str) -> tuple[Plan, dict[int, Hashable]]:
    """Return a plan in which calls that read rows of different classes have different types.

    Returns the classes of the types besides; the plan itself where none had to be divided.
    """
    shapes = Shapes(plan, backend, model)
    schedule = plan.schedule
    for launch in range(len(schedule)):
        shapes.look(schedule.members(launch))
    types, classes = shapes.divided()
    if types is plan.types:
        return plan, classes
    pending = np.sort(schedule.calls)
    schedule = make_schedule(plan.columns, schedule.graph, types, pending, policy)
    return dataclasses.replace(plan, types=types, schedule=schedule), classes


class Shapes:
    """What calls return, found out by running one call of each type and class of rows.

    Attributes
    ----------
    results : list
        What one call of each (type, classes) returned.
    result : int64 array of shape ``(calls,)``
        Which of them stands for each call.
    """

    def __init__(self, plan: Plan, backend: Backend, model: Any) -> None:
        self.plan = plan
        self.columns = plan.columns
        self.backend = backend
        self.values = Values(backend, None)
        self.model = model
        self.results: list[Any] = []
        self.keys: dict[tuple[int, tuple[Any, ...]], int] = {}
        self.result = np.full(len(plan.columns), -1)
        self.classes: dict[Hashable, int] = {}

    # ---- classes of rows -------------------------------------------------------------------------

    def class_of(self, value: Any) -> int:
        """Return the number of the class of a value."""
        return self.classes.setdefault(self.values.class_of(value), len(self.classes))

    def row(self, ref: int) -> Any:
        """Return one row that stands for what a reference reads."""
        if ref < 0:
            return self.values.stack([self.plan.loose[~ref]])
        call = ref & CALL_MASK
        name = self.columns.signatures[self.columns.signature[call]].name
        steps = steps_to(self.columns.parts, ref >> PART_BITS)
        return follow(self.results[self.result[call]], steps, Named(name, self.plan.site(call)))

    def classes_of(self, refs: Integers) -> Integers:
        """Return the class of what each reference reads."""
        result = self.result[np.where(refs < 0, 0, refs & CALL_MASK)]
        codes = np.where(refs < 0, refs, result | refs >> PART_BITS << PART_BITS)
        _, first, inverse = np.unique(codes, return_index=True, return_inverse=True)
        found = [self.class_of(self.row(int(ref))) for ref in refs[first].tolist()]
        return np.array(found, np.int64)[inverse.reshape(-1)]

    # ---- calls -----------------------------------------------------------------------------------

    def look(self, calls: Integers) -> None:
        """Find out what the calls of a launch return; their sources are known."""
        columns = self.columns
        signature = columns.signatures[columns.signature[calls[0]]]
        table = []
        for slot, position in signature.operands:
            if slot.kind.ref:
                table.append(self.classes_of(columns.operand(slot, position, calls)))
            elif slot.kind.ragged:
                at = columns.operand(slot, position, calls)
                table.append(np.array([self.ragged_class(int(i)) for i in at], np.int64))
        distinct, first, inverse = np.unique(
            np.array(table, np.int64).reshape(len(table), len(calls)),
            axis=1,
            return_index=True,
            return_inverse=True,
        )
        kind = int(self.plan.types[calls[0]])
        numbers = []
        for column, call in zip(distinct.T.tolist(), calls[first].tolist(), strict=True):
            key = kind, tuple(column)
            if key not in self.keys:
                self.keys[key] = len(self.results)
                self.results.append(self.run(call))
            numbers.append(self.keys[key])
        self.result[calls] = np.array(numbers)[inverse.reshape(-1)]

    def ragged_class(self, at: int) -> int:
        """Return the class of the rows of one ragged operand, -1 where there is none."""
        columns = self.columns
        members = columns.rows_of(at)
        found = set(self.classes_of(members).tolist()) if len(members) else {-1}
        if len(found) > 1:
            call = int(np.searchsorted(columns.ragged_starts, at, side="right")) - 1
            names = list(self.classes)
            classes = [names[number] for number in sorted(found)]
            raise ragged_rows_differ(classes, f"recorded at {self.plan.site(call)}")
        return found.pop()

    def run(self, call: int) -> Any:
        """Run one call on rows that stand for its own."""
        columns, backend = self.columns, self.backend
        signature = columns.signatures[columns.signature[call]]
        leaves = [self.operand(call, slot, position) for slot, position in signature.operands]
        operands = leaves
        if signature.structure is not None:
            operands = optree.tree_unflatten(signature.structure, leaves)
        site = self.plan.site(call)
        fn = resolve(backend, self.model, signature.op, site)
        try:
            return backend.call(fn, operands, signature.static)
        except Exception as error:
            raise LaunchError(
                f"The op '{signature.name}', first recorded at {site}, {raised(error)}."
            ) from error

    def operand(self, call: int, slot: Any, position: int) -> Any:
        """Return what a call receives for a slot."""
        kind, entry = slot.kind, self.columns.operand(slot, position, call)
        if kind.ref:
            return self.row(int(entry))
        if kind.ragged:
            rows = [self.row(ref) for ref in self.columns.rows_of(entry).tolist()]
            return self.values.ragged(rows, slot.value or ())
        if kind.column is not None:
            return self.values.stack([entry])
        return self.values.shared(entry) if kind.shared else entry

    # ---- types -----------------------------------------------------------------------------------

    def divided(self) -> tuple[Integers, dict[int, Hashable]]:
        """Return the types, refined where need be, and the classes of rows that calls of each read."""
        by_type: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        for (kind, column), number in self.keys.items():
            by_type.setdefault(kind, []).append((column, number))
        types = self.plan.types
        classes: dict[int, Hashable] = {}
        names: dict[int, Hashable] = {number: key for key, number in self.classes.items()}
        fresh = int(types.max(initial=-1)) + 1
        for kind, found in by_type.items():
            # An empty ragged operand, of class -1, goes with any other.
            columns = zip(*(column for column, _ in found), strict=True)
            known = [sorted({c for c in column if c >= 0}) for column in columns]
            if all(len(distinct) <= 1 for distinct in known):
                classes[kind] = tuple(names[distinct[0]] if distinct else None for distinct in known)
                continue
            types = types.copy() if types is self.plan.types else types
            for column, number in found:
                types[self.result == number] = fresh
                classes[fresh] = tuple(names.get(c) for c in column)
                fresh += 1
        return types, classes
