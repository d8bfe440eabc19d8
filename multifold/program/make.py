"""The programs of a fold: making them, counting their forms, and saying what made a new form.

An executor compiles once for each form. The first programs of a fold teach it its kernels and sizes; most
later ones take a form that is there already. Sizes that are rounded up are still a dozen for each phase of
a tiled program, so a `Shelf` keeps those that were compiled. An epoch over the training trees of the
Stanford Sentiment Treebank needs 4 or 5 compilations with it, for 134 minibatches.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from multifold._record.graph import warn_user
from multifold._run.values import counted
from multifold._traces.trace import Trace
from multifold._wiring.plan import Plan
from multifold.backend import Backend
from multifold.program.build import lay_out
from multifold.program.kernels import Family
from multifold.program.layout import Form, Program
from multifold.program.refine import refine
from multifold.program.sizes import OVERHEAD, PhaseSize, Sizes, most_of
from multifold.program.tiles import Tiler

WASTE, SPARE = 2, 512
"""A program takes sizes that were compiled before if they cost at most `WASTE` times its own rows and
`SPARE` rows more: a compilation takes 2.2 s of processor time where a step takes 85 ms."""


class Programs:
    """The programs that a fold has made: what keeps their forms alike, and how many there are.

    A warning names the op and the size that made one form more than the budget allows.

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
        classes, promoted = dict[int, Hashable](), None
        if model is not None:
            plan, classes, promoted = refine(plan, backend, model, self.policy)
        family = self.families[model is not None]
        program = lay_out(plan, backend, len(traces) or None, family, classes, promoted)
        # A backend that compiles for sizes needs few of them, so its programs are tiled.
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
        made, forms = counted(sum(self.forms.values()), "program"), counted(len(self.forms), "form")
        lines = [f"{made} of {forms} (budget {self.budget})"]
        for form, count in self.forms.items():
            phases = "; ".join(label + (f": {size}" if size else "") for label, size in sizes_of(form))
            lines.append(f"{count:>6}  {phases}")
        return "\n".join(lines)


def sizes_of(form: Form) -> list[tuple[str, str]]:
    """Return a label and the sizes of each phase, array of given rows and result; of a ragged form none."""
    found = []
    for phase in form.phases:
        names = ", ".join(form.kernels[kernel].name for kernel in phase.kernels)
        edges = [o.edges for k in phase.kernels for o in form.kernels[k].operands if o.edges is not None]
        size = f"{phase.launches} tiles of {phase.tile} rows" if phase.tile else ""
        size = size or "".join(
            f"{rows} rows" for rows in phase.rows
        )  # a phase of one launch has one kernel
        size += f" and {' + '.join(map(str, edges))} members" if edges else ""
        found.append((f"{'loop' if phase.loop else 'once'} {names}", size))
    given = [source.rows for source in form.sources if source.kernel < 0 and source.rows is not None]
    found += [(f"given rows {i}", f"{rows} rows") for i, rows in enumerate(given)]
    groups = [group.rows for group in form.groups if group.rows is not None]
    return found + [(f"result {i}", f"{rows} rows") for i, rows in enumerate(groups)]


def difference(form: Form, last: Form) -> str:
    """Return what a form has that the form before it had not."""
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


# ---- sizes that were compiled before ---------------------------------------------------------------


class Shelf:
    """The sizes that programs of one fold have had, so that a new program takes some of them if it can.

    Attributes
    ----------
    known : dict of (Form, bool) to list of Sizes
        By the ragged form, and whether results are padded; the newest is last.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[Form, bool], list[Sizes]] = {}

    def choose(self, tiler: Tiler) -> Sizes:
        """Return sizes for a program: known ones if it fits into them without much waste."""
        known = self.known.setdefault((tiler.form, tiler.pad), [])
        last = known[-1] if known else None
        own = tiler.own(last)
        most = WASTE * cost(own) + SPARE
        for sizes in sorted(known, key=cost):
            if cost(sizes) > most:
                break
            if tiler.fits(sizes):
                return sizes
        # Grow rather than change: then the next minibatch, as large as either, fits as well.
        grown = larger(own, last, tiler.pad) if last is not None else None
        if grown is not None and cost(grown) <= most and tiler.fits(grown):
            own = grown
        known.append(own)
        return own


def cost(sizes: Sizes) -> int:
    """Return what a program costs, in rows."""
    return sum(s.launches * (s.tile + OVERHEAD * s.loop) for s in sizes.phases) + sum(sizes.given)


def larger(own: Sizes, last: Sizes, pad: bool) -> Sizes | None:
    """Return sizes that hold both, so that sizes only grow; None if tiles or results differ."""
    pairs = list(zip(own.phases, last.phases, strict=True))
    if (own.groups != last.groups and not pad) or any(a.loop and a.tile != b.tile for a, b in pairs):
        return None
    phases = []
    for a, b in pairs:
        kernels, edges = most_of(a.kernels, b.kernels), tuple(map(most_of, a.edges, b.edges))
        phases.append(PhaseSize(a.loop, max(a.tile, b.tile), max(a.launches, b.launches), kernels, edges))
    return Sizes(tuple(phases), most_of(own.given, last.given), most_of(own.groups, last.groups))
