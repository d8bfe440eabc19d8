"""The one cache of plans: those of frames that come again, found by their form.

To plan 16 trees takes 150 microseconds, and a policy takes milliseconds where it has to choose the launches
of a lattice. Many programs run the same examples again and again in form: a policy that is asked once a
step, an evaluation that is not shuffled. What differs between two such runs are ops, numbers and arrays,
none of which planning reads:

>>> import multifold
>>> fold = multifold.Fold(backend="numpy")
>>> for op, x in ("f", 1.0), ("g", 2.0), ("f", 3.0):
...     fold.reset()
...     y = fold.add(op, fold.add(op, x), 3.0)
...     print(fold.apply({"f": lambda *xs: sum(xs), "g": lambda *xs: max(*xs, 0)}, y))
[4.]
[3.]
[6.]
>>> fold._plans.hits
1
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from time import perf_counter
from typing import Any

from multifold._schedule.columns import Columns
from multifold._schedule.outputs import Outputs
from multifold._wiring.plan import Plan, make_plan

MOST_CALLS = 1 << 15
"""How many calls the kept plans may have in all: they take 6 to 40 MB."""

MOST_PLANS = 256
"""How many plans are kept, however small: one takes 5 kB besides its calls."""

MOST_FORMS = 1 << 12
"""How many forms are known to have been met."""


class PlanCache:
    """The last plans that were made for frames that came twice. Several threads may use one object.

    When a form is met for the second time, its plan is kept, without ops, numbers and arrays. A run that
    finds its plan has the launches and the order of rows of one that does not.

    Parameters
    ----------
    policy : str
        The scheduling policy of all these plans.

    Attributes
    ----------
    hits : int
        How often a plan was found.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.hits = 0
        self._lock = Lock()
        self._met: OrderedDict[int, None] = OrderedDict()
        self._found: OrderedDict[Hashable, Plan] = OrderedDict()
        self._calls = 0

    def __reduce__(self) -> tuple[type[PlanCache], tuple[str]]:
        """Let a copy, and what is pickled, begin without plans."""
        return PlanCache, (self.policy,)

    def __len__(self) -> int:
        return len(self._found)

    def plan(
        self,
        columns: Columns,
        asked: Outputs,
        site: Callable[[int], str],
        owner: Any = None,
        recording: float | None = None,
        *,
        runs: bool,
    ) -> Plan:
        """Return the plan for some outputs: one that was made for calls of their form before, or now.

        See `make_plan` for the parameters.
        """
        began = perf_counter()
        graph = owner or columns
        if len(columns) > MOST_CALLS:
            return make_plan(columns, asked, self.policy, site, graph, recording=recording, runs=runs)
        form = form_of(columns, asked)
        kept, again = self._look(form)
        if kept is None or (runs and kept.wiring is None):
            plan = make_plan(columns, asked, self.policy, site, graph, recording=recording, runs=runs)
            if not again:
                return plan
            plan = plan.wired() if runs else plan
            self._keep(form, plan)
            return plan
        seconds = {} if recording is None else {"record": recording}
        plan = kept.of(columns, asked, graph, site, seconds)
        seconds["plan"] = perf_counter() - began
        seconds["wiring"] = 0.0
        return plan

    def _look(self, form: Hashable) -> tuple[Plan | None, bool]:
        """Return the plan of a form, None for one that is not kept; and whether the form was met before."""
        with self._lock:
            found = self._found.get(form)
            if found is not None:
                self._found.move_to_end(form)
                self.hits += 1
                return found, True
            number = hash(form)
            if number in self._met:
                return None, True
            self._met[number] = None  # frames that differ each time leave a number here, and no plan
            if len(self._met) > MOST_FORMS:
                self._met.popitem(last=False)
            return None, False

    def _keep(self, form: Hashable, plan: Plan) -> None:
        """Keep a plan, without what is of its calls alone; forget those that were used least lately."""
        columns = plan.columns.form()
        bare = plan.of(columns, Outputs(groups=plan.asked.groups), columns, nowhere, {})
        with self._lock:
            if form not in self._found:  # another thread may have been faster
                self._calls += len(columns)
            self._found[form] = bare
            while self._calls > MOST_CALLS or len(self._found) > MOST_PLANS:
                self._calls -= len(self._found.popitem(last=False)[1].columns)


def nowhere(call: int) -> str:
    """Return where a call of a form was recorded: a plan of a form is never run."""
    return "nowhere"


def form_of(columns: Columns, asked: Outputs) -> Hashable:
    """Return all that planning reads, as bytes; equal forms have equal plans."""
    groups = [group if isinstance(group, int) else group.tobytes() for group in asked.groups]
    return (
        tuple([signature.form for signature in columns.signatures]),
        len(columns.parts),
        columns.signature.tobytes(),
        columns.refs.tobytes(),
        columns.lengths.tobytes(),
        columns.members.tobytes(),
        *groups,
    )
