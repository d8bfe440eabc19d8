"""Plans of small minibatches, kept by their form: all that planning reads of the calls and the outputs.

A plan of two calls takes 160 µs to make and wire, and another 15 µs for ten calls more, so for a few
examples the plan takes longer than the ops. Programs that run few examples run the same ones again and
again in form: a policy that is asked once a step, a request at a time. What differs between two runs are
ops, numbers and arrays, none of which planning reads:

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

from array import array
from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from time import perf_counter
from typing import Any

from multifold._record.graph import Graph
from multifold._schedule.columns import Columns
from multifold._schedule.kept import KeptSchedules
from multifold._schedule.outputs import Outputs
from multifold._wiring.plan import Plan, make_plan

MOST_CALLS = 512
"""Plans of more calls are not kept: the examples of a large minibatch hardly ever repeat."""

MOST_PLANS = 64
"""How many plans are kept. One of 512 calls takes 0.1 to 0.6 MB."""


MOST_FORMS = 1 << 12
"""How many forms are known to have been met."""


class KeptPlans:
    """The last small plans that were made. Several threads may use one object.

    When a form is met for the second time, its plan is made from columns without ops, numbers and arrays,
    and kept. A run that finds its plan has the launches and the order of rows of one that does not.

    Attributes
    ----------
    hits : int
        How often a plan was found.
    """

    def __init__(self, policy: str, schedules: KeptSchedules) -> None:
        self.policy = policy
        self.schedules = schedules
        self.hits = 0
        self._lock = Lock()
        self._met: OrderedDict[int, None] = OrderedDict()
        self._found: OrderedDict[Hashable, Plan] = OrderedDict()

    def __reduce__(self) -> tuple[type[KeptPlans], tuple[str, KeptSchedules]]:
        """Let a copy, and what is pickled, begin without plans."""
        return KeptPlans, (self.policy, self.schedules)

    def __len__(self) -> int:
        return len(self._found)

    def plan(
        self, graph: Graph, columns: Callable[[], Columns], asked: Outputs, recording: float | None = None
    ) -> Plan:
        """Return the plan for some outputs: one that was made for calls of their form before, or now.

        Parameters
        ----------
        graph : Graph
            The calls.
        columns : callable
            Returns the calls as arrays, which a form that is known has already.
        asked : Outputs
            What is asked for.
        recording : float, optional
            How many seconds recording took, where that is known.
        """
        began = perf_counter()
        form = form_of(graph, asked) if len(graph.signature) <= MOST_CALLS else None
        found = None if form is None else self._find(form, columns, asked)
        site = graph.site
        if found is None:
            return make_plan(
                columns(), asked, self.policy, site, graph, recording=recording, kept=self.schedules,
                runs=recording is not None,
            )  # fmt: skip
        known = found.columns.of_form(graph)
        schedule = found.schedule.of(known, graph)
        loose = [*known.loose, *asked.loose] if asked.loose else known.loose
        seconds = {} if recording is None else {"record": recording}
        seconds["plan"] = perf_counter() - began
        return Plan(
            known, asked, found.alone, found.types, schedule, None, loose, site, seconds, kept=found
        )

    def _find(self, form: Hashable, columns: Callable[[], Columns], asked: Outputs) -> Plan | None:
        """Return the plan of a form; None for one that was not met before."""
        with self._lock:
            found = self._found.get(form)
            if found is not None:
                self._found.move_to_end(form)
                self.hits += 1
                return found
            number = hash(form)
            if number not in self._met:  # examples that differ each time leave a number here, and no plan
                self._met[number] = None
                if len(self._met) > MOST_FORMS:
                    self._met.popitem(last=False)
                return None
        found = make_plan(
            columns().form(),
            Outputs(groups=asked.groups),
            self.policy,
            nowhere,
            kept=self.schedules,
            runs=True,
        )
        with self._lock:
            self._found[form] = found
            if len(self._found) > MOST_PLANS:
                self._found.popitem(last=False)
        return found


def nowhere(call: int) -> str:
    """Return where a call of a form was recorded: a plan of a form is never run."""
    return "nowhere"


def form_of(graph: Graph, asked: Outputs) -> Hashable:
    """Return all that planning reads, as bytes; equal forms have equal plans."""
    groups = [group if isinstance(group, int) else group.tobytes() for group in asked.groups]
    return (
        tuple([signature.form for signature in graph.signatures]),
        len(graph.parts),
        bytes_of(graph.signature),
        bytes_of(graph.refs),
        bytes_of(graph.lengths),
        bytes_of(graph.members),
        *groups,
    )


def bytes_of(column: Any) -> bytes:
    """Return the integers of a column as bytes: it is a list where recording is not compiled."""
    return array("q", column).tobytes() if isinstance(column, list) else bytes(column)
