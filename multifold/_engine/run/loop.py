"""The loop: run the launches of a plan, divide one whose rows differ, schedule again what did not run.

While recording, a fold does not know which shapes the user's ops return. So it plans as if all calls of
one signature fit together, and most plans run to their end like that. Here a launch meets rows of two
widths:

>>> import numpy as np
>>> import multifold
>>> fold = multifold.Fold(backend="numpy")
>>> narrow, wide = fold.add("narrow", 0), fold.add("wide", 0)
>>> sums = [fold.add("sum", x) for x in (narrow, narrow, wide)]
>>> print(fold.schedule())
3 launches of 5 calls, lower bound 3: optimal (auto), 1.7 rows a launch
launch  op      rows
     0  narrow     1
     1  wide       1
     2  sum        3
>>> model = {
...     "narrow": lambda row: np.ones((len(row), 2)),
...     "wide": lambda row: np.ones((len(row), 5)),
...     "sum": lambda x: x.sum(axis=1),
... }
>>> fold.apply(model, [sums])
[array([2., 2., 5.])]
>>> [launch.calls.tolist() for launch in fold.explain().launches]
[[0], [1], [2, 3], [4]]

The results of launches 0 and 1 stayed. Only the three calls of ``sum`` were scheduled and wired again:
launch 2 became ``[2, 3]``, whose rows are 2 wide, and ``[4]``, whose row is 5 wide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from multifold._engine.compiled.arrays import Integers
from multifold._engine.frameworks.framework_recorder import FrameworkRecorder
from multifold._engine.ops.lookup import has_mixing, look_up
from multifold._engine.ops.seating import seated
from multifold._engine.ops.values import Values
from multifold._engine.plan.columns import NO_INTEGERS, Columns
from multifold._engine.plan.plan import Plan, PlanCache
from multifold._engine.plan.schedule import Schedule, make_schedule
from multifold._engine.plan.wiring import Wiring, wire
from multifold._engine.record.graph import Graph
from multifold._engine.run.divide import divide
from multifold._engine.run.launcher import Launcher
from multifold._engine.run.padded import PaddedSections
from multifold._engine.run.report import Notes
from multifold._engine.run.run import Run, Sections
from multifold.errors import MultifoldError

NONE: frozenset[int] = frozenset()
"""No calls whose whole results are wanted."""


@dataclass
class Loop:
    """Runs plans of one model on one device.

    Attributes
    ----------
    launcher : Launcher
        What runs each launch. Rounds of awaited values run many plans by one launcher.
    plans : PlanCache
        Makes plans anew: of modules that turn out to share launches, and of what is left when a launch was
        divided.
    warn : callable
        Called with a text for the user.
    """

    launcher: Launcher
    plans: PlanCache
    warn: Callable[[str], None]

    def __post_init__(self) -> None:
        self.values = self.launcher.values

    def pieces(self, rows: int) -> int:
        """Return in how many pieces a launch of ``rows`` rows runs fastest on the device; 1 for most.

        The backend says it (`Backend.pieces`).
        """
        return self.values.backend.pieces(rows, self.values.device)

    def run(
        self,
        plan: Plan,
        given: dict[int, Any] | None = None,
        *,
        stays: Integers = NO_INTEGERS,
        stop: Callable[[], bool] | None = None,
        failed: Callable[[Run], object] | None = None,
    ) -> Sections:
        """Run a plan to its end; return its sections, whose `Sections.outputs` are the results.

        Parameters
        ----------
        plan : Plan
            What to run.
        given : dict of int to object, optional
            Number of a launch that ran before -> its result, which the plan reads. Results are added to it.
        stays : int64 array
            Calls whose results stay after their last reader, besides those that are asked for.
        stop : callable, optional
            Called between two launches; the run ends there if it returns True.
        failed : callable, optional
            Called with the run if a launch has failed: the results of those before it are there.

        Raises
        ------
        MultifoldError
            If an op is not found, or a launch fails.
        """
        backend = self.values.backend
        launcher = self.launcher
        by_modules = seated(plan.columns, backend, launcher.model)  # which live until the run ends
        if by_modules is not None:
            plan = self.plans.plan(replace(plan.frame, columns=by_modules[0]), runs=True)
        pieces = plan.in_pieces(self.pieces)
        # An op that is marked as mixing, as batch norm in training, would see other statistics in each
        # piece.
        if pieces is not plan and not has_mixing(plan.columns.signatures, backend, launcher.model):
            plan = pieces
        plan = plan.wired()
        wiring: Any = plan.wiring
        look_up(plan, wiring.launches, backend, launcher.model, launcher.ops, self.warn, launcher.among)
        run = Run(
            launcher=self.launcher,
            plan=plan,
            notes=Notes(plan.seconds),
            place=wiring.place,
            alone=frozenset(plan.alone.tolist()) if len(plan.alone) else NONE,
            stop=stop,
            results={} if given is None else given,
        )
        with self.values.placed():
            try:
                return self.finish(run, wiring, stays)
            except MultifoldError:
                if failed is not None:
                    failed(run)
                raise

    def finish(self, run: Run, wiring: Wiring, stays: Integers) -> Sections:
        """Run the launches of ``wiring``, and new ones where rows differ; return the last sections.

        It ends when all calls of the plan have run, or when ``run.stop`` says so. ``stays`` are calls whose
        results stay after their last reader.
        """
        plan = run.plan
        notes = run.notes
        schedule = plan.schedule
        # Results of earlier rounds come first in the numbering of launches; this plan's come after them.
        first = len(run.place.rows) - len(schedule)
        while True:
            began = perf_counter()
            sections = (Sections if plan.frame.pad is None else PaddedSections)(run, wiring)
            notes.took("upload", began)
            # A result that is asked for whole has no section that waits for the output: it stays itself.
            kept = np.concatenate([stays, plan.asked.whole_calls])
            before = len(notes.calls)
            done = sections.launch_all(keep={*run.place.launch[kept].tolist()})
            notes.pieces(before, schedule.continued)
            if done == len(schedule) or sections.stopped:
                if schedule is not plan.schedule and not sections.stopped:
                    self.remember(run)
                return sections
            # `unique` restores the order of recording, and leaves out what a padded launch repeats.
            pending = np.unique(schedule.calls[schedule.bounds[done] :])
            run.forget_after(first + len(notes.calls), pending)
            schedule, wiring = self.again(run, pending)

    def remember(self, run: Run) -> None:
        """Let later runs of a kept plan tell the calls apart that a division has told apart in this one."""
        plan = run.plan
        frame = plan.frame
        if plan.divided is not None and frame.pad is None and frame.place is None:
            calls = np.flatnonzero(run.place.launch >= 0)
            types = divide(run.computed, plan.types, calls)
            schedule = make_schedule(plan.columns, plan.schedule.graph, types, calls, self.plans.policy)
            plan.divided.take(replace(plan, types=types, schedule=schedule, wiring=None).wired())

    def again(self, run: Run, pending: Integers) -> tuple[Schedule, Wiring]:
        """Schedule and wire the calls ``pending`` of a run whose rows turned out to differ; return both.

        New types (`divide`) tell calls apart that read rows of different trailing shapes, dtypes or
        devices. Places in ``run`` are filled in, and its notes count one division.
        """
        # The same steps as for the first plan, in the same order: padding, then pieces, then the wiring.
        plan = run.plan
        began = perf_counter()
        types = divide(run.computed, plan.types, pending)
        schedule = make_schedule(plan.columns, plan.schedule.graph, types, pending, self.plans.policy)
        if plan.frame.pad is not None:
            schedule = schedule.padded(plan.frame.pad, plan.alone)
        if not has_mixing(plan.columns.signatures, run.launcher.backend, run.launcher.model):
            schedule = schedule.in_pieces(self.pieces)
        began = run.notes.divided(began)
        wiring = wire(plan.columns, schedule, run.place, plan.asked.batched, plan.frame.keeps)
        run.notes.took("wiring", began)
        return schedule, wiring


def loop_of(
    recorder: FrameworkRecorder,
    model: Any,
    plans: PlanCache,
    profile: bool,
    debug: bool,
    tries: bool,
    among: str,
    columns: Columns | Graph,
    before: Loop | None = None,
    device: Any = None,
) -> Loop:
    """Return a loop that runs plans of the calls ``columns``, with the backend that the recorder names.

    A new one, or ``before``, the loop of the round before, once that knows its device. A round of awaited
    values that holds numbers only does not say on which device they belong. A later one may hold the first
    array of a GPU, and from then on numbers go there. A new loop goes on with the ops and trials of
    ``before``. The other arguments are those of `Launcher` and `Loop`.
    """
    if before is not None and before.values.device is not None:
        return before
    backend = recorder._backend_of(model, columns)
    launcher = Launcher(
        Values(backend, recorder._device_of(backend, model, columns, device)),
        model,
        profile=profile,
        guessed=recorder._backend is None,
        debug=debug,
        tries=tries,
        among=among,
        # The model is the same as in the rounds before, so what was looked up and tried there holds here.
        ops={} if before is None else before.launcher.ops,
        before=None if before is None else before.launcher.trials,
    )
    return Loop(launcher, plans, recorder._graph.warn_once)
