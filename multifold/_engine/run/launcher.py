"""The launcher: one function that runs a launch, whatever put its operands together.

It calls the op once, checks what the op has returned, and notes what the result was. All that the checks
ask follows from shapes, dtypes and devices. So the result of a later launch of the same signature, on rows
of the same classes, is only compared with what was noted, an *outcome*. A result that does not fit is
checked in full.

A launch is *square* if it has as many rows as one of its arrays has entries along another dimension. Only
there may broadcasting lay rows along that dimension without any error, as ``x * s`` does for three rows of
width 3 and three numbers. Trials of other launches tell nothing of a square one
(`multifold._engine.ops.trial`). Nor do trials of nodes that have one member each, or as many as each other,
tell of others: see `case` of `PreparedLaunch`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from logging import DEBUG, getLogger
from time import perf_counter
from typing import Any

from multifold._engine.ops.hints import GUESSED, Failure, hint_for
from multifold._engine.ops.lookup import find
from multifold._engine.ops.messages import error_text
from multifold._engine.ops.reach import owners_of, used_by
from multifold._engine.ops.trial import is_memory
from multifold._engine.ops.values import (
    READ_WHOLE,
    SQUEEZED,
    Values,
    counted,
    leaves_of,
    opened,
    sizes_of,
)
from multifold._engine.ops.writes import Watch, all_arrays, refuse_changed
from multifold._engine.record.signature import Signature
from multifold._engine.run.launch import Launched, Outcome, PreparedLaunch
from multifold._engine.run.settling import Settling
from multifold._engine.run.trial_book import TrialBook
from multifold.marks import mark_of

LOG = getLogger("multifold")

MANY = 1024
"""So many ops are kept from one graph of a server to the next."""

MOST_CLASSES = 1024
"""The outcomes of so many classes of rows are kept of a signature, before all of them are forgotten."""


@dataclass
class Launcher:
    """Runs launches of one model.

    Attributes
    ----------
    values : Values
        What concatenates, gathers and splits arrays, and knows the backend and the device of the launches.
    model : object
        Where op names are looked up; its state stays as it is while an op is put to a trial.
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
    before : TrialBook, optional
        The trials of the rounds before, if any: what these have shown holds here, too.
    settling : Settling, optional
        Makes all trials of an op that has run, while that is on.
    """

    values: Values
    model: Any = None
    profile: bool = False
    guessed: bool = False
    debug: bool = False
    ops: dict[Signature, Callable[..., Any]] = field(default_factory=dict)
    tries: bool = True
    among: str = ""
    before: TrialBook | None = None
    settling: Settling | None = None

    def __post_init__(self) -> None:
        backend = self.values.backend
        self.backend = backend
        self.watches = self.debug and (backend.counts_changes or backend.writeable)
        self.counts = backend.counts_changes and not self.debug
        self.trials = TrialBook(self.values, self.model, self.ops, self.before)

    def forget_if_many(self) -> None:
        """Forget which ops there were if they are very many: each new graph has new ones of objects."""
        if len(self.ops) > MANY:
            self.ops.clear()
            self.trials.forget()

    def forget_replaced(self) -> None:
        """Forget the ops of names that lead to others on the model now, as to a layer in its place."""
        found = [(known, op) for known, op in self.ops.items() if isinstance(known.op, str)]
        replaced = [known for known, op in found if find(self.backend, self.model, known.op) != op]
        for known in replaced:
            del self.ops[known]
        if replaced:
            self.trials.forget()

    def settle_by(self, settling: Settling) -> None:
        """Let ``settling`` make all trials of ops that run, while it is on."""
        self.settling = settling

    def launch(self, launch: PreparedLaunch) -> Launched:
        """Run one launch, try its op if that is due, and return its result with what is known of it.

        The result is checked in full unless it fits the outcome of an earlier launch. ``launch.leaves`` may
        be changed: floats of Python are cast to the dtype of the arrays beside them.

        Raises
        ------
        LaunchError
            If the op fails, breaks the rule of rows, writes to an operand or mixes its rows.
        """
        rows = launch.rows
        beside = launch.signature.beside
        if beside:
            launch.leaves[:] = self.values.narrowed(launch.leaves, beside)
        known = launch.signature.outcomes
        classes = launch.classes
        trials = self.trials
        outcome = None if classes is None else known.get(classes)
        trial = None
        spent = 0.0
        case: Hashable = False
        square = due = False
        if rows > 1 and self.tries:
            square = outcome is not None and rows in outcome.sizes
            case = trials.case_of(launch, square) if launch.signature.has_cases else square
            if (launch.signature, classes, case) not in trials.passed:
                due = not trials.has_passed(launch, case)
                if due and (outcome is not None or not trials.has_passed(launch, launch.case(True))):
                    trial, spent = trials.trial_of(launch, case)
        called = perf_counter()
        result = self.call(launch)
        returned = perf_counter()
        if outcome is None or not outcome.fits(self.backend, result, rows):
            self.check(launch, result if launch.rows_of is None else launch.rows_of(result))
            slots = launch.signature.slots
            batched = [x for slot, x in zip(slots, launch.leaves, strict=True) if slot.kind.batched]
            outcome = Outcome.of(self.backend, result, sizes_of(batched, result))
            if classes is not None:
                if len(known) > MOST_CLASSES:
                    known.clear()
                known[classes] = outcome
        if rows > 1 and self.tries and (rows in outcome.sizes) != square:
            case = launch.case(not square)  # by the columns that the op has made
            due = not trials.has_passed(launch, case)
        if not due:
            trial = None
        elif trial is None and (launch.signature, classes, case) not in trials.passed:
            # Its modules had no parameters before the launch, or that it is square shows only now.
            trial, spent = trials.trial_of(launch, case, late=True)
        if trial is not None:
            after = trials.judge(launch, trial, result, case)
            spent += after
            called += after
            returned += after
        if self.settling is not None and self.settling.on and self.tries:
            after = self.settling.settle(trials, launch, result, outcome.sizes)
            spent += after
            called += after
            returned += after
        if LOG.isEnabledFor(DEBUG):
            LOG.debug("%s: %d rows, %.3f ms", launch.signature.name, rows, 1e3 * (returned - called))
        return tuple.__new__(Launched, (result, outcome, called, returned, spent))

    def call(self, launch: PreparedLaunch) -> Any:
        """Call the op of a launch once, and return what it returns.

        Raises `LaunchError` if the op raises an error or writes to an operand, as far as the backend
        notices. It has a hint (`hint_for`), and names the example whose row is to blame, if `culprit` finds
        it. Errors of the classes in `Backend.passes` are raised as they are.
        """
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
            elif self.counts:
                after = backend.versions(arrays)
                if before != after:
                    refuse_changed(backend, own, watched, before, after)
            return result
        except backend.passes:
            raise
        except Exception as error:
            found = Failure(error, backend, op, self.model, signature, leaves)
            hint = hint_for(found._replace(rows=len(launch.calls), guessed=self.guessed))
            raise launch.error(f"raised {error_text(error)}", hint, self.culprit(launch, error)) from error

    def culprit(self, launch: PreparedLaunch, error: Exception) -> int | None:
        """Return the call whose row made the op of a launch raise ``error``; None if that does not show.

        The op runs again on some of the rows, as in a trial, and all state is put back. None without
        another run for a launch of one row, an op that is marked or cannot be tried, if ``tries`` is false,
        where memory was exhausted, or where no example is known to name.
        """
        op = self.ops[launch.signature]
        if launch.whose is None or launch.rows == 1 or not self.tries or mark_of(op) or is_memory(error):
            return None
        owners = owners_of(self.backend, self.model, op)
        if self.backend.untried(owners) is not None or not self.backend.is_built(owners):
            return None
        try:
            row = self.trials.new_trial(launch).culprit()
        except Exception:  # noqa: BLE001 - the error of the launch is the one to tell
            return None
        return None if row is None else int(launch.calls[row])

    def check(self, launch: PreparedLaunch, value: Any) -> None:
        """Raise `LaunchError` unless ``value`` holds arrays of the backend with one row for each node.

        ``value`` is the result of a launch, or the parts of it that are read by rows.
        """
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
