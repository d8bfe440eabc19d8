"""The state of one run: what was computed so far and where it is."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from multifold._compiled.arrays import CALL_MASK, PART_BITS, Integers
from multifold._plan.plan import Plan
from multifold._plan.wiring import Place
from multifold._run.launcher import Launcher
from multifold._run.report import Notes, Report
from multifold._run.values import PARTS_HINT, Steps, counted, follow, opened, steps_to
from multifold.backend import Backend
from multifold.errors import LaunchError


@dataclass
class Run:
    """The state of one run.

    Attributes
    ----------
    launcher : Launcher
        What runs the launches, and knows the backend, the model and its ops.
    plan : Plan
        The calls that are computed, their launches and their wiring.
    notes : Notes
        What `Fold.explain` tells of the run: when each launch ran, and the class of each part of a result
        that is read by rows.
    place : Place
        The launch and row of each call that was run.
    alone : frozenset of int
        Calls whose whole result is wanted: it may have any number of rows.
    stop : callable or None
        Asked between two launches, with how many are left, whether the run ends there. A server has other
        calls to run then, and plans again for what is left.
    results : dict of int to object
        The results of launches that still have readers.
    uniform : bool
        Whether all rows that were read so far are of one class, as in most models of one width.
    common : Hashable
        The first class of rows that the run has met: the only one, where it is uniform. A class is what
        rows must share to be concatenated, such as ``((3,), float32)``; see `Values.class_of`.
    _shared : dict of int to array
        The ``id`` of a shared NumPy array -> the same array on the device.
    _steps : dict of int to Steps
        The number of a part -> the keys that lead there.
    """

    launcher: Launcher
    plan: Plan
    notes: Notes
    place: Place
    alone: frozenset[int] = frozenset()
    stop: Callable[[int], bool] | None = None
    results: dict[int, Any] = field(default_factory=dict)
    uniform: bool = True
    common: Hashable = None
    _shared: dict[int, Any] = field(default_factory=dict)
    _steps: dict[int, Steps] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = self.launcher.values

    @property
    def backend(self) -> Backend:
        """What runs the launches."""
        return self.values.backend

    def report(self) -> Report:
        """Return the report of the run, which has ended. Its plan numbers calls as their graph does."""
        plan = self.plan
        return self.notes.report(
            graph=plan.schedule.graph,
            backend=self.backend,
            policy=plan.schedule.policy,
            site=plan.site,
            alone=plan.alone,
            planned=plan.schedule,
        )

    # ---- results -----------------------------------------------------------------------------------

    def is_alone(self, calls: Integers) -> bool:
        """Return whether the calls of a launch are one whose whole result is wanted."""
        return bool(self.alone) and int(calls[0]) in self.alone

    def part(self, launch: int, part: int) -> Any:
        """Return a part of a launch's result."""
        value = self.results[launch]
        return value if part == 0 else self.part_of(value, launch, part)

    def part_of(self, result: Any, launch: int, part: int) -> Any:
        """Return a part of a result. The error names the launch, where its result lacks the part."""
        return follow(result, self.steps(part), self.no_part, launch)

    def steps(self, part: int) -> Steps:
        """Return the way to a part."""
        # A model has few parts, such as [0] and [1] of an LSTM's state, and each launch reads them again.
        if part not in self._steps:
            self._steps[part] = steps_to(self.plan.columns.parts, part)
        return self._steps[part]

    def rows(self, launch: int, part: int) -> Any:
        """Return a part of a launch's result that is read by rows, in containers that optree opens."""
        return opened(self.part(launch, part))

    def whole(self, ref: int) -> Any:
        """Return the whole value that a reference names."""
        return self.part(int(self.place.launch[ref & CALL_MASK]), ref >> PART_BITS)

    def check_rows(self, launch: int, part: int) -> None:
        """Refuse a part of a result that has another number of rows than its launch."""
        value = self.part(launch, part)
        # Only a launch of one call may be read whole, and is not held to the rule when it runs.
        if self.place.rows[launch] > 1 and value is not None:
            return
        instead = self.values.mismatch(opened(value), self.place.rows[launch])
        if instead is not None:
            raise self.no_part(launch, f"has {instead.text}, where one row a node is read")

    def no_rows(self, launch: int, part: int) -> LaunchError:
        """Return an error that says which launch has None where rows are read."""
        path = "".join(f"[{key!r}]" for key in self.plan.columns.parts[part].path)
        return self.no_part(launch, f"is None at {path}, which has no rows")

    def no_part(self, launch: int, what: str) -> LaunchError:
        """Return an error that says which launch lacks a part that is read."""
        calls = np.flatnonzero(self.place.launch == launch)
        columns = self.plan.columns
        name = columns.signatures[columns.signature[calls[0]]].name
        nodes = counted(len(calls), "node")
        where = self.plan.site(int(calls[0]))
        return LaunchError(
            f"The result of op '{name}' for {nodes}, first recorded at {where}, {what}.", PARTS_HINT
        )

    # ---- classes of rows -----------------------------------------------------------------------------

    def note(self, launch: int, part: int, found: Hashable) -> None:
        """Note the class of a part of a result."""
        if self.common is None:
            self.common = found
        # To compare two classes takes a third of the time of hashing one, and many are one object.
        elif self.uniform and found is not self.common:
            self.uniform = found == self.common
        self.notes.classes[launch, part] = found

    # ---- operands ------------------------------------------------------------------------------------

    def shared(self, value: Any) -> Any:
        """Return a shared value; a NumPy array becomes one of the backend, once a run."""
        if not isinstance(value, np.ndarray):
            return value
        # A table of embeddings may be shared by every launch: it goes to the device once.
        if id(value) not in self._shared:
            self._shared[id(value)] = self.values.shared(value)
        return self._shared[id(value)]

    # ---- a launch that has to be divided -------------------------------------------------------------

    def forget_after(self, launches: int, pending: Integers) -> None:
        """Drop the places of the calls ``pending``, which did not run yet and will be scheduled again.

        The new launches are numbered from ``launches`` on, as the ones that they replace were. This run
        gets its own copy of the places. The plan keeps the places of its wiring, since it may be used
        again with another model, whose results all fit together.
        """
        self.place = self.place.copy()
        del self.place.rows[launches:]
        self.place.launch[pending] = -1
