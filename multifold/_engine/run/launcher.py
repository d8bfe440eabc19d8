"""The launcher: one function that runs a launch, whatever put its operands together.

It calls the op once, checks what the op has returned, and notes what the result was. All that the checks
ask follows from shapes, dtypes and devices. So the result of a later launch of the same signature, on rows
of the same classes, is only compared with what was noted, an *outcome*. A result that does not fit is
checked in full.

A launch is *square* if it has as many rows as one of its arrays has entries along another dimension. Only
there may broadcasting lay rows along that dimension without any error, as ``x * s`` does for three rows of
width 3 and three numbers. Trials of other launches tell nothing of a square one
(`multifold._engine.ops.trial`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import optree

from multifold._engine.compiled.arrays import Integers
from multifold._engine.ops.hints import GUESSED, IN_PLACE, Failure, hint_for
from multifold._engine.ops.messages import error_text, listing, note, raised_by
from multifold._engine.ops.reach import owners_of, used_by
from multifold._engine.ops.trial import BELIEVED, ENOUGH, Trial, Untried, is_memory
from multifold._engine.ops.values import (
    CONTAINERS,
    READ_WHOLE,
    SQUEEZED,
    Steps,
    Values,
    array_at,
    counted,
    leaves_of,
    opened,
    sizes_of,
)
from multifold._engine.ops.verdicts import VERDICTS, Known, key_of, ranks_of
from multifold._engine.ops.writes import OperandChanged, Watch, all_arrays, refuse_changed
from multifold._engine.record.graph import warn_user
from multifold._engine.record.signature import Signature
from multifold._engine.run.report import LaunchTimes
from multifold.backend import Backend
from multifold.errors import LaunchError
from multifold.marks import mark_of

NOWHERE: frozenset[int] = frozenset()
"""The sizes of a launch whose operands and result are not known."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the result of a launch was, without its values and the number of its rows.

    It says nothing of the op and the model: another model may run next, and is held to the same form.

    Attributes
    ----------
    kind : type
        The class of an array, or `tuple` for a flat tuple of arrays.
    kinds : tuple of type
        The class of each array; none where the result is another container, and nothing fits it.
    forms : tuple of Hashable
        What the rows of each array have in common.
    form : Hashable
        What the rows of the whole result have in common, as `Values.class_of` says it.
    sizes : frozenset of int
        The trailing dimensions of the operands and the result. A launch of as many rows is square.

    Examples
    --------
    >>> import numpy as np
    >>> from multifold._numpy.backend import NumpyBackend
    >>> state = np.zeros((2, 3))
    >>> outcome = Outcome.of(NumpyBackend(), (state, state))
    >>> [outcome.fits(NumpyBackend(), found, 2) for found in ((state + 1, state), (state, state[:1]))]
    [True, False]
    """

    kind: type
    kinds: tuple[type, ...]
    forms: tuple[Hashable, ...]
    form: Hashable
    sizes: frozenset[int]

    @classmethod
    def of(cls, backend: Backend, result: Any, sizes: frozenset[int] = NOWHERE) -> Outcome:
        """Return what is known after a launch that passed all checks."""
        if not isinstance(result, CONTAINERS):
            form = backend.signature(result)
            return cls(type(result), (type(result),), (form,), form, sizes)
        if type(result) is not tuple or not all(map(backend.owns, result)):
            return cls(type(result), (), (), None, sizes)
        forms = tuple(map(backend.signature, result))
        form = (optree.tree_structure(result), *forms)
        return cls(tuple, tuple(map(type, result)), forms, form, sizes)

    def fits(self, backend: Backend, result: Any, rows: int) -> bool:
        """Return whether a result is like this one, with so many rows."""
        if type(result) is not self.kind:
            return False
        arrays: Any = result if self.kind is tuple else (result,)
        if tuple(map(type, arrays)) != self.kinds:
            return False
        try:
            return backend.are_like(arrays, rows, self.forms)
        except (IndexError, TypeError):  # an array of 0 dimensions has no rows
            return False

    def read(self, result: Any, part: int, steps_to: Callable[[int], Steps]) -> tuple[Any, Hashable] | None:
        """Return a part of a result that fits, and what its rows have in common.

        None if it is neither the whole result nor one of its arrays.
        """
        if not self.kinds:
            return None
        if not part:
            return result, self.form
        if self.kind is not tuple:
            return None
        key = array_at(steps_to(part), len(self.kinds))
        return None if key is None else (result[key], self.forms[key])


class Outcomes:
    """What launches have shown, by signature and classes of rows; forgotten with the signature."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Signature, dict[Hashable, Outcome]] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[Outcomes], tuple[()]]:
        """Let a copy, and what is pickled, begin without any."""
        return Outcomes, ()

    def of(self, signature: Signature) -> dict[Hashable, Outcome]:
        """Return what launches of a signature have shown, by the classes of their rows.

        The caller adds to it.
        """
        found = self._known.get(signature)
        if found is None:
            found = self._known[signature] = {}
        return found


class PreparedLaunch(NamedTuple):
    """Calls of one signature that run together, and what their op receives.

    Attributes
    ----------
    signature : Signature
    leaves : list
        What the op receives for each slot of the signature.
    rows : int
        How many rows the result must have. That is the number of calls, but 1 where no operand is batched,
        and more where the backend pads.
    calls : int64 array
        The calls. Where the backend pads, the last one may be there several times.
    site : callable
        Call -> where it was recorded.
    classes : tuple, or None
        What the rows of each operand have in common; None if nothing can be concluded from them.
    lengths : callable
        Returns the lengths of each ragged operand on the host, by the number of its slot.
    rows_of : callable, or None
        Returns what must have these rows, out of a result that is also read whole, and so may be anything.
    whose : callable, or None
        Call -> the example that recorded it, as in `Frame`; None if it need not be found here.
    """

    signature: Signature
    leaves: list[Any]
    rows: int
    calls: Integers
    site: Callable[[int], str]
    classes: tuple[Hashable, ...] | None
    lengths: Callable[[], Mapping[int, np.ndarray]]
    rows_of: Callable[[Any], Any] | None = None
    whose: Callable[[int], str] | None = None

    def error(self, what: str, hint: str | None = None, culprit: int | None = None) -> LaunchError:
        """Return an error that says which launch failed, on what, and where it was recorded.

        It names the example whose call fails, if that is known: the only one, or the ``culprit``.
        """
        operands = listing(self.signature, self.leaves)
        named = naming(self.signature, self.calls, self.site, culprit)
        error = LaunchError(f"{named}, {what}. Operands: {operands}.", hint)
        blamed = np.unique(self.calls) if culprit is None else np.array([culprit])
        if self.whose is not None and len(blamed) == 1:
            note(error, raised_by(blamed.tolist(), self.whose))
        return error


class Launched(NamedTuple):
    """What a launch has come to."""

    result: Any
    outcome: Outcome
    """What is known of results like this one."""
    called: float
    """When the op was called, in seconds of `time.perf_counter`."""
    returned: float
    """When it had returned."""
    trial: float
    """Seconds that a trial took; 0.0 without one. All moments are as if it had come before the launch."""

    def times(self, begin: float) -> LaunchTimes:
        """Return the moments of a launch from ``begin`` until now, as if its trial had come before it."""
        moments = begin + self.trial, self.called, self.returned, perf_counter()
        # The class itself would call a function of Python.
        return tuple.__new__(LaunchTimes, moments)


@dataclass
class Launcher:
    """Runs launches of one model.

    Attributes
    ----------
    values : Values
        What concatenates, gathers and splits arrays, and knows the backend and the device of the launches.
    model : object
        Where op names are looked up; its state stays as it is while an op is put to a trial.
    outcomes : Outcomes
        What launches have shown so far. All runs of a fold share it.
    profile : bool
        Whether each launch is a named range in the framework's profiler.
    guessed : bool
        Whether NumPy runs the launches because the fold met no framework.
    debug : bool
        Whether operands are compared before and after each launch; see `multifold._engine.ops.writes`.
    ops : dict
        Signature -> what its op calls, looked up before its first launch.
    tries : bool
        Whether the first launches of each op are tried; see `multifold._engine.ops.trial`.
    among : str
        What is among the rows of launches that no example of this run has asked for; "" if nothing is.
    passed : set of (Signature, Hashable, bool)
        The launches that need no trial any more, by signature, classes of rows and whether they are square.
        `multifold._engine.ops.verdicts` knows of all launches of the process, but takes longer to ask.
    untried : dict of str to str
        Names of ops that are believed to keep their rows apart although no trial has shown it, and why.
    """

    values: Values
    model: Any = None
    outcomes: Outcomes = field(default_factory=Outcomes)
    profile: bool = False
    guessed: bool = False
    debug: bool = False
    ops: dict[Signature, Callable[..., Any]] = field(default_factory=dict)
    tries: bool = True
    among: str = ""
    passed: set[tuple[Signature, Hashable, bool]] = field(default_factory=set)
    untried: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        backend = self.values.backend
        self.backend = backend
        self.watches = self.debug and (backend.counts_changes or backend.writeable)
        self.counts = backend.counts_changes and not self.debug
        # Whether nothing else tells that an op has written to its operands.
        self.compares = backend.writeable and not (backend.counts_changes or backend.protects)
        self.verdicts: dict[Signature, tuple[Known | None, Hashable]] = {}

    def launch(self, launch: PreparedLaunch) -> Launched:
        """Run one launch, and check its result unless it is like one before.

        Raises
        ------
        LaunchError
            If the op fails, breaks the rule of rows, writes to an operand or mixes its rows.
        """
        rows = launch.rows
        beside = launch.signature.beside
        if beside:
            launch.leaves[:] = self.values.narrowed(launch.leaves, beside)
        known = self.outcomes.of(launch.signature)
        classes = launch.classes
        outcome = None if classes is None else known.get(classes)
        trial = None
        spent = 0.0
        square = due = False
        if rows > 1 and self.tries:
            square = outcome is not None and rows in outcome.sizes
            if (launch.signature, classes, square) not in self.passed:
                due = not self.has_passed(launch, square)
                if due and (outcome is not None or not self.has_passed(launch, True)):
                    trial, spent = self.trial_of(launch, square)
        called = perf_counter()
        result = self.call(launch)
        returned = perf_counter()
        if outcome is None or not outcome.fits(self.backend, result, rows):
            self.check(launch, result if launch.rows_of is None else launch.rows_of(result))
            slots = launch.signature.slots
            batched = [x for slot, x in zip(slots, launch.leaves, strict=True) if slot.kind.batched]
            outcome = Outcome.of(self.backend, result, sizes_of(batched, result))
            if classes is not None:
                known[classes] = outcome
        if rows > 1 and self.tries and (rows in outcome.sizes) != square:
            square = not square  # by the columns that the op has made
            due = not self.has_passed(launch, square)
        if not due:
            trial = None
        elif trial is None and (launch.signature, classes, square) not in self.passed:
            # Its modules had no parameters before the launch, or that it is square shows only now.
            trial, spent = self.trial_of(launch, square, late=True)
        if trial is not None:
            after = self.judge(launch, trial, result, square)
            spent += after
            called += after
            returned += after
        return tuple.__new__(Launched, (result, outcome, called, returned, spent))

    def call(self, launch: PreparedLaunch) -> Any:
        """Return what the op of a launch returns; refuse what it writes to its operands."""
        backend = self.backend
        signature = launch.signature
        leaves = launch.leaves
        operands = leaves if signature.structure is None else signature.nested(leaves)
        op = self.ops[signature]
        static = signature.keywords() if signature.static else {}
        watch = Watch(backend, signature, leaves, debug=True) if self.watches else None
        if self.counts:  # what `Watch` does, without an object for each launch
            own = signature.recorded
            watched = leaves if len(own) == len(leaves) else [leaves[i] for i in own]
            arrays = all_arrays(watched)
            before = backend.versions(arrays)
        try:
            if self.profile:
                with backend.profile(f"multifold: {signature.name} ({counted(launch.rows, 'row')})"):
                    result = backend.call(op, operands, static)
            else:
                result = backend.call(op, operands, static)
            if watch is not None:
                watch.refuse_changes()
            elif self.counts and before != (after := backend.versions(arrays)):
                refuse_changed(backend, own, watched, before, after)
            return result
        except backend.passes:
            raise
        except Exception as error:
            found = Failure(error, backend, op, self.model, signature, leaves)
            hint = hint_for(found._replace(rows=len(launch.calls), guessed=self.guessed))
            raise launch.error(f"raised {error_text(error)}", hint, self.culprit(launch, error)) from error

    def culprit(self, launch: PreparedLaunch, error: Exception) -> int | None:
        """Return the call whose row makes the op of a launch fail; None if that does not show.

        The op runs again on some of the rows, as in a trial, and leaves no trace.
        """
        op = self.ops[launch.signature]
        if launch.whose is None or launch.rows == 1 or not self.tries or mark_of(op) or is_memory(error):
            return None
        owners = owners_of(self.backend, self.model, op)
        if self.backend.untried(owners) is not None or not self.backend.is_built(owners):
            return None
        try:
            row = self.new_trial(launch).culprit()
        except Exception:  # noqa: BLE001 - the error of the launch is the one to tell
            return None
        return None if row is None else int(launch.calls[row])

    def check(self, launch: PreparedLaunch, value: Any) -> None:
        """Hold a result, or what is read of it by rows, to the rule "one node is one row"."""
        instead = self.values.mismatch(value, launch.rows)
        if instead is None:
            return
        batched = launch.signature.batched
        what = f"returned {instead.text}"
        hint = instead.hint
        if not instead.array:
            raise launch.error(what, GUESSED if self.guessed else hint)
        if launch.rows == 1 and batched and all(len(x.shape) < 2 for x in leaves_of(opened(value))):
            hint += SQUEEZED
        if len(launch.calls) == 1 or not batched:
            hint += READ_WHOLE
        advice = self.backend.advice(used_by(self.backend, self.ops[launch.signature]), False)
        if advice is not None:
            hint += f" {advice}"
        why = "" if batched else " (no operand is batched)"
        raise launch.error(f"{what} for {counted(launch.rows, 'row')}{why}", hint)

    def trial_of(
        self, launch: PreparedLaunch, square: bool, late: bool = False
    ) -> tuple[Trial | None, float]:
        """Return a trial of a launch, and the seconds that took; None if it cannot be tried, or not yet.

        Modules may make their parameters in their first launch: then the trial comes late, after it.
        """
        began = perf_counter()
        owners = owners_of(self.backend, self.model, self.ops[launch.signature])
        if (reason := self.backend.untried(owners)) is not None:
            self.leave_untried(launch, square, reason)
            return None, 0.0
        if not late and not self.backend.is_built(owners):
            return None, 0.0
        return self.new_trial(launch), perf_counter() - began

    def new_trial(self, launch: PreparedLaunch) -> Trial:
        """Return a trial of a launch."""
        signature = launch.signature
        pairs = zip(signature.slots, launch.leaves, strict=True)
        return Trial(
            self.values,
            self.ops[signature],
            # The op may change its copies of static values.
            [leaf if slot.kind.batched or slot.kind.shared else slot.value for slot, leaf in pairs],
            launch.rows,
            [slot.kind.batched for slot in signature.slots],
            launch.lengths(),
            signature.nested,
            signature.static,
            self.model,
        )

    def has_passed(self, launch: PreparedLaunch, square: bool) -> bool:
        """Return whether an op needs no trial: it has passed, or is marked (`multifold.marks`)."""
        op = self.ops[launch.signature]
        mark = mark_of(op)
        if mark is not None and not hasattr(op, "called_with"):  # calls of plain programs are no news
            self.untried[launch.signature.name] = f"it is marked by multifold.{mark}"
        passed = mark is not None or self.is_known(launch, square)
        if passed:
            self.believe(launch, square)
        return passed

    def is_known(self, launch: PreparedLaunch, square: bool) -> bool:
        """Return whether enough trials of an op are known, of this run or another one."""
        known, own = self.verdicts_of(launch.signature)
        if known is None:
            return False
        alike = own, launch.classes, square
        if launch.classes is None or alike not in known.alike:
            if known.counts[own, self.ranks(launch), square] < ENOUGH:
                return False
            known.alike.add(alike)
        if known.untried:
            reason = known.untried.get((own, self.ranks(launch), square))
            if reason is not None:
                self.untried[launch.signature.name] = reason
        return True

    def ranks(self, launch: PreparedLaunch) -> Hashable:
        """Return the ranks and dtypes of the batched operands of a launch."""
        slots = launch.signature.slots
        return ranks_of([x for slot, x in zip(slots, launch.leaves, strict=True) if slot.kind.batched])

    def verdicts_of(self, signature: Signature) -> tuple[Known | None, Hashable]:
        """Return the verdicts on the op of a signature, and what belongs to their keys besides operands."""
        found = self.verdicts.get(signature)
        if found is None:
            op = self.ops[signature]
            modes = self.modes
            if self.model is None or getattr(op, "__self__", None) is not self.model:
                modes = modes, self.backend.modes(owners_of(self.backend, None, op))
            found = self.verdicts[signature] = VERDICTS.of(op, new=True), (key_of(signature), modes)
        return found

    @cached_property
    def modes(self) -> Hashable:
        """What decides how the modules of the model compute, as whether they are trained."""
        return self.backend.modes([self.model])

    def judge(self, launch: PreparedLaunch, trial: Trial, result: Any, square: bool) -> float:
        """Refuse an op whose rows depend on each other; return the seconds that took."""
        began = perf_counter()
        if self.compares and (number := trial.changed_operand()) is not None:
            changed = OperandChanged(f"operand {number} was changed by an inplace operation")
            raise launch.error(f"raised {error_text(changed)}", IN_PLACE) from changed
        try:
            what = trial.deviation(result if launch.rows_of is None else launch.rows_of(result))
        except Untried as reason:
            self.leave_untried(launch, square, str(reason))
            return perf_counter() - began
        if what is not None:
            text = f"mixes its rows, and would return wrong values: {what.text}"
            raise launch.error(text, trial.hint(what)) from what.error
        if trial.has_values:
            untold = "" if trial.telling else f"the rows of its first {ENOUGH} launches could not tell"
            self.note(launch, square, trial.worth, untold)
        elif trial.telling:
            self.believe(launch, square)
        return perf_counter() - began

    def note(self, launch: PreparedLaunch, square: bool, passed: int, untried: str = "") -> None:
        """Note that the op of a launch has passed a trial, worth several perhaps, or why it had none."""
        known, own = self.verdicts_of(launch.signature)
        if known is not None:
            known.add((own, self.ranks(launch), square), passed, untried)
        if passed >= ENOUGH or known is None:  # what is never known again is tried once in a run
            self.believe(launch, square)
            if untried:
                self.untried[launch.signature.name] = untried

    def believe(self, launch: PreparedLaunch, square: bool) -> None:
        """Note that launches of this signature on rows of these classes need no trial in this run."""
        if launch.classes is not None:
            self.passed.add((launch.signature, launch.classes, square))

    def leave_untried(self, launch: PreparedLaunch, square: bool, reason: str) -> None:
        """Warn that an op cannot be tried, and believe that it keeps its rows apart."""
        self.note(launch, square, ENOUGH, reason)
        where = naming(launch.signature, launch.calls, launch.site)
        warn_user(f"{where}, {BELIEVED}: {reason}.")


def naming(
    signature: Signature, calls: Integers, site: Callable[[int], str], culprit: int | None = None
) -> str:
    """Return the beginning of an error: which launch, and where it was recorded, or the call to blame."""
    distinct = len(np.unique(calls))
    nodes = counted(distinct, "node")
    if distinct < len(calls):  # the last one is repeated, by a backend that pads
        nodes += f", padded to {len(calls)} rows"
    where = f"first recorded at {site(int(calls.min()))}"
    if culprit is not None:
        where = f"because of the one recorded at {site(culprit)}"
    return f"The launch of op '{signature.name}' for {nodes}, {where}"
