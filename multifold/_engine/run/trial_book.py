"""The book of trials: which launches of a run are tried, and what the trials have shown.

`multifold._engine.ops.trial` runs an op again, and `multifold._engine.ops.verdicts` remembers in the whole
process what came of it. In between somebody has to decide for each launch whether it is due: an op has to
pass a few times for each combination of ranks, dtypes and static values, and once more where a launch is
square (see `multifold._engine.run.launcher`). A `TrialBook` does that for one run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cached_property
from time import perf_counter
from typing import Any

from multifold._engine.ops.hints import IN_PLACE
from multifold._engine.ops.messages import error_text
from multifold._engine.ops.reach import owners_of
from multifold._engine.ops.trial import BELIEVED, ENOUGH, Trial, Untried
from multifold._engine.ops.values import Values
from multifold._engine.ops.verdicts import VERDICTS, Known, key_of, ranks_of
from multifold._engine.ops.writes import OperandChanged
from multifold._engine.record.lines import warn_user
from multifold._engine.record.population import Population
from multifold._engine.record.signature import LazyOp, Signature
from multifold._engine.run.launch import UNEVEN, PreparedLaunch, RaggedCase, naming
from multifold.marks import mark_of

ONE_DRAW = (
    "draws the same random numbers for all rows; in the loop each call has its own.\n\n"
    "Hint: draw numbers for each row, as torch.rand(len(x), 1) or np.random.random((len(x), 1))."
)
"""What a warning says of an op, after its name."""


class TrialBook:
    """Decides which launches of a run are tried, tries them, and notes what came of it.

    Parameters
    ----------
    values : Values
        What knows the backend and the device of the launches.
    model : object
        Where op names are looked up; its state stays as it is while an op is put to a trial.
    ops : dict
        Signature -> what its op calls. The launcher fills it.
    before : TrialBook, optional
        That of the round before. What it holds is shared, since ops and model are the same.

    Attributes
    ----------
    passed : set of (Signature, Hashable, Hashable)
        The launches that need no trial any more, by signature, classes of rows and case: see `case` of
        `PreparedLaunch`.
        `multifold._engine.ops.verdicts` knows of all launches of the process, but takes longer to ask.
    untried : dict of str to str
        Names of ops that are believed to keep their rows apart although no trial has shown it, and why.
    """

    def __init__(
        self,
        values: Values,
        model: Any,
        ops: dict[Signature, Callable[..., Any]],
        before: TrialBook | None = None,
    ) -> None:
        self.values = values
        self.backend = values.backend
        self.model = model
        self.ops = ops
        self.passed: set[tuple[Signature, Hashable, Hashable]] = set() if before is None else before.passed
        self.untried: dict[str, str] = {} if before is None else before.untried
        self.verdicts: dict[Signature, tuple[Known | None, Hashable]] = {}
        # Whether nothing else tells that an op has written to its operands.
        counts, protects = self.backend.counts_changes, self.backend.protects
        self.compares = self.backend.writeable and not (counts or protects)

    def forget(self) -> None:
        """Forget the launches that this book knows to need no trial: verdicts tell of them again."""
        self.passed.clear()
        self.verdicts.clear()

    def trial_of(
        self, launch: PreparedLaunch, case: Hashable, late: bool = False
    ) -> tuple[Trial | None, float]:
        """Return a new trial of a launch, and the seconds that making it took; None if it can't be tried.

        None and 0.0 if the backend says that the op cannot run again, which `leave_untried` notes with a
        warning. The same, without a note, if modules have no parameters yet, and make them in this launch:
        then the launcher asks once more after it, with ``late``. ``case`` is what `case_of` returns for it.
        """
        began = perf_counter()
        owners = owners_of(self.backend, self.model, self.ops[launch.signature])
        if (reason := self.backend.untried(owners)) is not None:
            self.leave_untried(launch, case, reason)
            return None, 0.0
        if not late and not self.backend.is_built(owners):
            return None, 0.0
        return self.new_trial(launch), perf_counter() - began

    def new_trial(self, launch: PreparedLaunch) -> Trial:
        """Return a new trial of a launch, which keeps the operands and the state of now.

        For static values it has the recorded ones, since the op may change its copies.
        """
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

    def case_of(self, launch: PreparedLaunch, square: bool) -> Hashable:
        """Return the `case` of a launch with a ragged operand, or one that is known to tell of it, too.

        If that of uneven numbers of members has passed, the launch need not count the members of its nodes.
        """
        uneven = RaggedCase(square, UNEVEN)
        if launch.signature.ragged and (launch.signature, launch.classes, uneven) in self.passed:
            return uneven
        return launch.case(square)

    def has_passed(self, launch: PreparedLaunch, case: Hashable) -> bool:
        """Return whether a launch needs no trial: its op has passed enough, or is marked by its author.

        If so, that is noted for launches of the same signature and classes of rows (`believe`); an op that
        is marked is noted in ``untried``, unless it is a `LazyOp`.
        """
        op = self.ops[launch.signature]
        mark = mark_of(op)
        # A call of code as it stands is marked by us, and runs each row as the loop does: that is no news.
        if mark is not None and not isinstance(op, LazyOp):
            self.untried[launch.signature.name] = f"it is marked by multifold.{mark}"
        passed = mark is not None or self.is_known(launch, case)
        if not passed and isinstance(op, Population):
            passed = not op.can_be_tried(launch.leaves[-1])
        if passed:
            self.believe(launch, case)
        return passed

    def is_known(self, launch: PreparedLaunch, case: Hashable) -> bool:
        """Return whether `VERDICTS` counts `ENOUGH` rows or more for launches like this one, in any run.

        Such are launches of the same op and kinds of operands, with operands of the same ranks and dtypes,
        in the same case; or, which tells as much, whose nodes differ in their numbers of members. If
        the op was believed without a trial, the reason is noted in ``untried``.
        """
        known, own = self.verdicts_of(launch.signature)
        if known is None:
            return False
        alike = own, launch.classes, case
        if launch.classes is None or alike not in known.alike:
            if known.counts[own, self.ranks(launch), case] < ENOUGH:
                strictest = getattr(case, "strictest", case)
                if strictest == case or not self.is_known(launch, strictest):
                    return False
                case = strictest
            known.alike.add(alike)
        if known.untried:
            reason = known.untried.get((own, self.ranks(launch), case))
            if reason is not None:
                self.untried[launch.signature.name] = reason
        return True

    def ranks(self, launch: PreparedLaunch) -> Hashable:
        """Return (number of axes, dtype) of each array of the batched operands, as `ranks_of` does."""
        slots = launch.signature.slots
        return ranks_of([x for slot, x in zip(slots, launch.leaves, strict=True) if slot.kind.batched])

    def verdicts_of(self, signature: Signature) -> tuple[Known | None, Hashable]:
        """Return the verdicts on the op of a signature (`Known`), and a part of their keys.

        A whole key is (this part, `ranks` of the launch, its case). The part holds `key_of` the
        signature and the modes of modules, such as that they are trained. Both are looked up once for each
        signature; None in place of verdicts for an op that cannot be known again.
        """
        found = self.verdicts.get(signature)
        if found is None:
            op = self.ops[signature]
            modes = self.modes
            if isinstance(op, Population):
                modes = modes, self.backend.modes([next(op.modules)])  # which are those of all its modules
            elif self.model is None or getattr(op, "__self__", None) is not self.model:
                modes = modes, self.backend.modes(owners_of(self.backend, None, op)[1:])
            found = self.verdicts[signature] = (
                VERDICTS.of(self.backend, op, new=True),
                (key_of(signature), modes),
            )
        return found

    @cached_property
    def modes(self) -> Hashable:
        """What decides how the model's modules compute (`Backend.modes`): that they train, say."""
        return self.backend.modes([self.model])

    def judge(self, launch: PreparedLaunch, trial: Trial, result: Any, case: Hashable) -> float:
        """Run a trial and note what it shows; return the seconds that took.

        ``result`` is what the op returned in the launch, and ``case`` what `case_of` returns for it. An op
        that can't be tried after all is believed, with a warning (`leave_untried`).

        Raises
        ------
        LaunchError
            If the op mixes its rows, or has written to an operand.
        """
        began = perf_counter()
        op = self.ops[launch.signature]
        if isinstance(op, Population) and not op.can_be_tried(launch.leaves[-1]):
            return perf_counter() - began
        number = trial.changed_operand() if self.compares else None
        if number is not None:
            changed = OperandChanged(f"operand {number} was changed by an inplace operation")
            raise launch.error(f"raised {error_text(changed)}", IN_PLACE) from changed
        try:
            what = trial.deviation(result if launch.rows_of is None else launch.rows_of(result))
        except Untried as reason:
            self.leave_untried(launch, case, str(reason))
            return perf_counter() - began
        if what is not None and trial.draws and isinstance(op, Population):
            # Its modules are called one after the other: what a row draws depends on those of the others.
            op.part()
            self.leave_untried(launch, case, "its modules draw random numbers in turn")
            return perf_counter() - began
        if what is not None:
            text = f"mixes its rows, and would return wrong values: {what.text}"
            raise launch.error(text, trial.hint(what)) from what.error
        if trial.draws_once and not isinstance(op, Population):
            where = naming(launch.signature, launch.calls, launch.site)
            warn_user(f"{where}, {ONE_DRAW}")
        if trial.has_values:
            untold = "" if trial.telling else f"the rows of its first {ENOUGH} launches could not tell"
            self.note(launch, case, trial.worth, untold)
        elif trial.telling:
            self.believe(launch, case)
        return perf_counter() - began

    def note(self, launch: PreparedLaunch, case: Hashable, passed: int, untried: str = "") -> None:
        """Add ``passed`` rows to the verdict on the op of a launch, for launches of its kind (`is_known`).

        ``untried`` says why there was no telling trial. With `ENOUGH` rows at once, or for an op that can't
        be known again, launches like this one need no trial in this run (`believe`), and ``untried`` is
        kept under the op's name.
        """
        known, own = self.verdicts_of(launch.signature)
        if known is not None:
            known.add((own, self.ranks(launch), case), passed, untried)
        if passed >= ENOUGH or known is None:  # what is never known again is tried once in a run
            self.believe(launch, case)
            if untried:
                self.untried[launch.signature.name] = untried

    def believe(self, launch: PreparedLaunch, case: Hashable) -> None:
        """Let launches of this signature, classes of rows and ``case`` need no trial in this run.

        Classes are what the rows of each operand have in common (`Values.class_of`). Nothing is noted if
        the launch has none.
        """
        if launch.classes is not None:
            self.passed.add((launch.signature, launch.classes, case))

    def leave_untried(self, launch: PreparedLaunch, case: Hashable, reason: str) -> None:
        """Warn the user that an op has no trial, for ``reason``, and believe that it keeps rows apart.

        That counts as `ENOUGH` rows (`note`), so launches like this one need no trial in later runs,
        either, if the op is known again.
        """
        self.note(launch, case, ENOUGH, reason)
        where = naming(launch.signature, launch.calls, launch.site)
        warn_user(f"{where}, {BELIEVED}: {reason}.")
