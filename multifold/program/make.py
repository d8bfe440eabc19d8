"""The programs of a fold: making them, counting their forms, and saying what made a new form.

An executor compiles once for each form. The first programs of a fold teach it its kernels and sizes; most
later ones take a form that is there already. Sizes that are rounded up are still a dozen for each phase of
a tiled program, so a `Shelf` keeps those that were compiled: an epoch of a hundred minibatches of sentences
then needs some five compilations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any

from multifold._engine.ops.values import counted
from multifold._engine.plan.plan import Plan
from multifold._engine.record.lines import warn_user
from multifold._engine.traces.minibatch import Minibatch
from multifold._engine.traces.trace import Trace
from multifold.backend import Backend
from multifold.program.agree import ALONE, Agreement, Exchange, Processes
from multifold.program.build import lay_out
from multifold.program.kernels import Family
from multifold.program.layout import Form, Program, Unfit
from multifold.program.refine import refine
from multifold.program.shards import Shards, share_by_calls
from multifold.program.shelf import Shelf, cost
from multifold.program.sizes import MOST_WORK
from multifold.program.tiles import Tiler


class Programs:
    """The programs that a fold has made: what keeps their forms alike, and how many there are.

    A warning names the op and the size that made one form more than the budget allows.

    Attributes
    ----------
    forms : dict of Form to int
        How many programs were made of each form.
    budget : int
        Beyond that many forms a warning is given, and again whenever they are twice as many.

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
        # The first is for programs without a model. A model tells kernels apart by shapes, so in one family
        # each form would have both sorts of kernels.
        self.families = {False: Family(), True: Family()}
        self.shelf = Shelf()
        self.agreements: dict[tuple[bool, bool], tuple[Agreement, Shelf]] = {}
        self.forms: dict[Form, int] = {}
        self.budget = 8

    def __len__(self) -> int:
        """The number of distinct forms, not of programs."""
        return len(self.forms)

    def make(
        self, plan: Plan, traces: Sequence[Trace], backend: Backend, model: Any, *, pad: bool
    ) -> Program:
        """Make the program of a plan and count its form; see `multifold.Fold.program`.

        It is tiled if the backend wants tiles. If that would take too much work, it stays ragged, says why
        in ``unfit``, and is not counted. ``traces`` are what the plan is of, and empty for a plan of
        outputs.
        """
        program = self.lay_out(plan, traces, backend, model, self.families[model is not None])
        # A backend that compiles for sizes needs few of them, so its programs are tiled.
        if backend.tiles:
            tiler = Tiler(program, pad=pad, cycles=backend.cycles)
            reason = too_much_work(tiler)
            if reason:
                batch = Minibatch(plan, tuple(traces)) if traces else None
                return replace(program, unfit=Unfit(reason, batch))
            program = tiler.tiled(self.shelf.choose(tiler))
        self.count(program.form)
        return program

    def lay_out(
        self, plan: Plan, traces: Sequence[Trace], backend: Backend, model: Any, family: Family
    ) -> Program:
        """Make the ragged program of a plan, and count nothing; ``family`` takes in its kernels.

        With a model, calls that read rows of different shapes or dtypes get different kernels (`refine`).
        """
        classes = dict[int, Hashable]()
        promoted = None
        if model is not None:
            plan, classes, promoted = refine(plan, backend, model, self.policy)
        return lay_out(plan, backend, len(traces) or None, family, classes, promoted)

    def make_shards(
        self,
        traces: Sequence[Trace],
        shards: int,
        planned: Callable[[Sequence[Trace], Any], tuple[Plan, Backend]],
        model: Any,
        exchange: Exchange | None,
    ) -> Shards:
        """Make one program for each shard of ``traces``, all of one form; see `multifold.Fold.program`.

        ``planned`` returns the plan of some traces and its backend. ``exchange`` asks the other processes,
        None if there are none. What the shards have agreed on, and their sizes, are kept for the next call;
        the form is counted once. Programs are tiled, and their results padded, if the backend wants tiles.
        """
        # Only programs of several processes may change what these agree on, in the same order on each.
        key = model is not None, exchange is not None
        agreement, shelf = self.agreements.setdefault(key, (Agreement(), Shelf()))
        examples = share_by_calls(traces, shards)

        def lay(own: Sequence[Trace], family: Family) -> Program:
            plan, backend = planned(own, model)
            return self.lay_out(plan, own, backend, model, family)

        processes = ALONE if exchange is None else Processes(exchange)
        batches = [[traces[i] for i in own] for own in examples]
        programs, counts = agreement.programs(lay, batches, processes)
        backend = planned(agreement.sample, model)[1]
        if backend.tiles:
            tilers = [Tiler(program, pad=True, cycles=backend.cycles) for program in programs]
            sizes = shelf.choose(*tilers, processes=processes)
            programs = [tiler.tiled(sizes) for tiler in tilers]
        self.count(programs[0].form)
        return Shards(programs, examples, counts)

    def count(self, form: Form) -> None:
        """Add 1 to ``forms[form]``; warn the user if a new form exceeds the budget, or a doubled budget.

        With a budget of 8 that is the 9th form, the 17th, the 33rd and so on. A budget below 1 counts as 1.
        """
        # With a budget of 8 it warns at the 9th form, at the 17th, at the 33rd: whenever 8, 16, 32 are
        # exceeded.
        times, more = divmod(len(self.forms), max(self.budget, 1))
        if form not in self.forms and times and not more and times.bit_count() == 1:
            new = difference(form, list(self.forms)[-1])
            pad = "pad results by fold.program(traces, pad=True), " if "; result " in f"; {new}" else ""
            warn_user(
                f"Programs of this fold have {len(self.forms) + 1} forms, and each is compiled by "
                f"itself; the budget is {self.budget}. New: {new}.\n\nHint: {pad}make minibatches of like "
                "sizes, use one fold for all of them, or raise fold.programs.budget.",
            )
        self.forms[form] = self.forms.get(form, 0) + 1

    def __str__(self) -> str:
        made = counted(sum(self.forms.values()), "program")
        forms = counted(len(self.forms), "form")
        lines = [f"{made} of {forms} (budget {self.budget})"]
        for form, count in self.forms.items():
            phases = "; ".join(label + (f": {size}" if size else "") for label, size in sizes_of(form))
            lines.append(f"{count:>6}  {phases}")
        return "\n".join(lines)


def too_much_work(tiler: Tiler) -> str | None:
    """Return why a program whose kernels take turns should stay ragged, as a text; None if it need not.

    The reason is that it would cost more than `MOST_WORK` times what its tiles cost in their best order.
    """
    own = tiler.own()
    work = cost(own) / max(cost(tiler.freed(own)), 1)
    if work <= MOST_WORK:
        return None
    turns = [len(size.turn) for size in own.phases]
    phase = tiler.form.phases[turns.index(max(turns))]
    names = ", ".join(f"'{tiler.form.kernels[kernel].name}'" for kernel in phase.kernels)
    return f"in a fixed cycle of the ops {names} it would take {work:.1f} times the work"


def sizes_of(form: Form) -> list[tuple[str, str]]:
    """Return pairs of texts, (label, sizes), for each phase, array of given rows and result of a form.

    ``("loop join", "8 tiles of 16 rows")`` is a phase. A ragged form has no sizes: those of its phases are
    ``""``, and given rows and results are left out.
    """
    found = []
    for phase in form.phases:
        names = ", ".join(form.kernels[kernel].name for kernel in phase.kernels)
        edges = [o.edges for k in phase.kernels for o in form.kernels[k].operands if o.edges is not None]
        size = f"{phase.launches} tiles of {phase.tile} rows" if phase.tile else ""
        size += f" in turns of {len(phase.turn)}" if len(phase.turn) > 1 else ""
        # A phase of one launch has one kernel, and in a ragged form no rows.
        size = size or "".join(f"{rows} rows" for rows in phase.rows)
        size += f" and {' + '.join(map(str, edges))} members" if edges else ""
        found.append((f"{'loop' if phase.loop else 'once'} {names}", size))
    given = [source.rows for source in form.sources if source.kernel < 0 and source.rows is not None]
    found += [(f"given rows {i}", f"{rows} rows") for i, rows in enumerate(given)]
    groups = [group.rows for group in form.groups if group.rows is not None]
    return found + [(f"result {i}", f"{rows} rows") for i, rows in enumerate(groups)]


def difference(form: Form, last: Form) -> str:
    """Return a text for a warning: what ``form`` has that ``last``, the form before it, lacked.

    It is ``"other ops"`` if the kernels differ, but each is one of ``last``. Else it names the ops of
    kernels that it has beyond the number of those of ``last``, as ``the op 'f'``, or else the entries of
    `sizes_of` that differ, as ``result 0: 10 rows (before 8 rows)``, or says that it is neither.
    """
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
