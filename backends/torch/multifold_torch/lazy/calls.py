"""Calls: a function of one example, with all that its arguments are besides tensors, run on rows.

A launch calls a function of PyTorch, or a cell, on the rows of all examples: by a rule of `rules`, or else
under `torch.func.vmap`, or else row by row, which its name in `explain` then says.
"""

from __future__ import annotations

import contextlib
import re
import traceback
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import optree
import torch
from torch import Tensor, nn

from multifold import trusted
from multifold.errors import RecordError
from multifold.lazy.beyond import Beyond, every_store, known_to, refuse_reseeded
from multifold.lazy.calls import BY_ROWS, LazyCall
from multifold.lazy.current import KeptState, Recording, is_aside, reached, refusal
from multifold.lazy.keeping import AS_IT_DRAWS, KeepingWatch, draws_own, keeps, refuse_draws
from multifold.lazy.recorder import mark_of
from multifold.lazy.writes import functions_in
from multifold_torch.lazy.changes import (
    VERSIONS,
    Called,
    CellFunction,
    Held,
    Layer,
    holds,
    parameters_of,
    with_weights,
)
from multifold_torch.lazy.draws import Draws, Streams
from multifold_torch.lazy.forms import Modes, TensorForm, form_of, strides_of
from multifold_torch.lazy.mapped import functions_without_rule
from multifold_torch.lazy.numbers import ValuesNeeded
from multifold_torch.lazy.patches import PATCHES, Applied
from multifold_torch.lazy.proofs import agree, kind_of, without_gradients
from multifold_torch.lazy.rules import OF_NUMBERS, mixes_rows, on_rows
from multifold_torch.lazy.sequences import CellSequence, Told

QUICK = 1 << 16
"""Functions of so many numbers are computed at once in a dry run, if they need no values."""


@trusted  # it runs each row as the loop does, so it cannot mix them
class RowCall(LazyCall):
    """A function of PyTorch for one example, with its arguments besides tensors; calls of it run on rows.

    Attributes
    ----------
    way : str
        How it runs on rows: ``"rule"``, ``"vmap"`` or ``"row by row"``.
    lacking : str or None
        The name of an autograd function inside that vmap cannot run, if that is why it runs row by row.
    reads_inside : bool
        Whether it reads a value, if that is why it runs row by row.
    is_watched : bool
        Whether it may be that vmap has no rule for a function that it calls.
    of_model : list of Tensor
        Those of its arguments that are parameters of the program, which is a model.
    operands : list of TensorForm
        The forms of its operands, in order, and ``device`` where it computes.
    draws : bool
        Whether it draws random numbers.
    ran : tuple of function
        The functions of PyTorch that it calls, as its dry run has shown.
    streams : Streams or None
        The generators that it draws from, where each example has streams of its own.
    proved : set
        The kinds of calls that were seen to run right together, which all calls of a program share.
    recorder : TorchRecorder or None
        What has recorded it.
    """

    def __init__(self, func: Any, structure: Any, leaves: Sequence[Any], places: Sequence[int]) -> None:
        super().__init__(func, structure, leaves, places)
        self.modes = Modes.now()
        self.forms: list[TensorForm] = []
        self.is_single = True
        self.rule: Any = None
        self.way = "vmap"
        self.is_watched = True
        self.lacking: str | None = None
        self.reads_inside = False
        self.of_model: list[Tensor] = []
        self.operands: Sequence[TensorForm] = ()
        self.device = torch.device("cpu")
        self.draws = False
        self.ran: tuple[Any, ...] = ()
        self.streams: Streams | None = None
        self.proved: set[Hashable] = set()
        self.recorder: Any = None
        self.backend: Any = None

    def learn(
        self, recording: Recording, device: torch.device, forms: Sequence[TensorForm]
    ) -> tuple[Any, Sequence[Tensor]]:
        """Run the function once without values; return its result, and the tensors that stood for operands.

        ``forms`` are those of its operands, in order. ``self.forms`` gets those of the results.
        """
        grad = torch.is_grad_enabled()
        self.operands, self.device = forms, device
        # Tensors of inference mode do not say whether they were changed.
        aside = recording.aside(self.owners())
        with torch.inference_mode(False), torch.set_grad_enabled(grad), aside as kept:
            stand_ins = [self.stand_in(form, device) for form in forms]
            watch = KeepingWatch(kept)
            with Draws() as draws:
                found = self.dry_run(stand_ins)
            self.look_at(recording, kept, watch, stand_ins)
        self.is_single = isinstance(found, Tensor)
        self.draws = draws.any
        self.ran = (*draws.ran,)
        self.backend = recording.backend
        is_seeded = recording.seed is not None
        self.forms = [
            form_of(x.shape, x.dtype, device, x.requires_grad, strides_of(x) if is_seeded else None)
            for x in optree.tree_leaves(found)
            if isinstance(x, Tensor)
        ]
        if draws.any and not is_seeded:
            hint = "pass seed= to batched: it then draws what the loop draws; or do not seed in the code."
            refuse_reseeded(recording, self.name, hint)
        elif draws.any:
            self.streams = Streams(draws, device)
            self.runs_by_rows(f"{BY_ROWS}, as it draws and there is a seed")
        return found, stand_ins

    def with_state(self, recording: Recording, operands: Sequence[Tensor] | None) -> Tensor:
        """Return the state of the streams as an operand; move them on, as the call does in the loop.

        ``operands`` are those of the call if what it draws depends on their values; else None.
        """
        streams: Any = self.streams
        if operands is None:
            operands = [stand_in_of(form, self.device) for form in self.operands]
        before = streams.read()
        with (
            torch.inference_mode(False),
            torch.set_grad_enabled(self.modes.grad),
            recording.aside(self.owners()),
        ):
            self.tensors(*operands)
            found: Tensor = streams.operand(before)
            after = streams.read()
        streams.write(after)
        return found

    def look_at(
        self, recording: Recording, kept: KeptState, watch: KeepingWatch, operands: Sequence[Tensor]
    ) -> None:
        """Look at what a dry run has drawn and kept; raise `RecordError` for what a launch cannot do.

        ``kept`` is the state that is put back, ``watch`` what objects held before the run, and ``operands``
        are those of the run. A function of PyTorch keeps nothing.
        """

    def stand_in(self, form: TensorForm, device: torch.device) -> Tensor:
        """Return a tensor of a form for a dry run, on the meta device.

        It is one of ones on ``device`` if the function asks for that: under autocast, or with a generator.
        """
        return form.meta() if self.runs_on_meta else stand_in_of(form, device)

    @property
    def runs_on_meta(self) -> bool:
        """Whether the dry run takes tensors on the meta device."""
        if self.modes.autocast or any(isinstance(x, torch.Generator) for x in self.leaves):
            return False
        # PyTorch imports its compiler for some of these on the meta device, which takes a second.
        is_quick = all(x.dtype.is_floating_point and x.shape.numel() <= QUICK for x in self.operands)
        return not (self.func in OF_NUMBERS and is_quick)

    def owners(self) -> list[Any]:
        """Return the modules and objects that a dry run may change, and that are put back: here none."""
        return []

    def tensors(self, *operands: Tensor) -> tuple[Tensor, ...]:
        """Run the function for one example; return the tensors of its result as a flat tuple."""
        return tuple(optree.tree_leaves(self.one(*operands)))

    def checked(self, found: Any, rows: int) -> Any:
        """Return results of ``rows`` rows, one tensor or a tuple of them.

        Raises `RecordError` where one has another shape or dtype than ``self.forms`` says.
        """
        leaves = optree.tree_leaves(found)
        for x, form in zip(leaves, self.forms, strict=True):
            if x.shape != (rows, *form.shape) or x.dtype != form.dtype:
                raise RecordError(
                    f"{self.__name__} returned {tuple(x.shape)} {x.dtype} for {rows} examples, each of "
                    f"which was to have {tuple(form.shape)} {form.dtype}.",
                    self.hint_by_shape,
                )
        return leaves[0] if self.is_single else tuple(leaves)

    def dry_run(self, operands: Sequence[Tensor]) -> Any:
        """Run the function on tensors without values, return its result, and call `choose_way`.

        Raises `RecordError` if it needs values.
        """
        shared = without_values if self.runs_on_meta else as_parameter
        leaves = [shared(x) if isinstance(x, Tensor) else x for x in self.leaves]
        args, kwargs = self.arguments(operands, leaves)
        try:
            found = self.func(*args, **kwargs)
        except (NotImplementedError, RuntimeError) as error:
            if "meta" not in str(error) and not isinstance(error, NotImplementedError):
                raise  # what is wrong with the call itself
            raise ValuesNeeded(
                f"{self.__name__} cannot be recorded: what it returns depends on values ({error}).",
                "give it values that are read, as torch.tensor(x.tolist()).",
            ) from error
        self.choose_way(args, kwargs)
        return found

    def choose_way(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Set ``way`` and ``rule`` for a call with these arguments of one example.

        The way is "row by row" if rows would mix, else a rule of `rules`, else vmap where there is no rule.
        """
        if mixes_rows(self.func, args, kwargs):
            self.runs_by_rows()
        else:
            self.rule = on_rows(self.func, args, kwargs)
            self.way = "vmap" if self.rule is None else "rule"

    def runs_by_rows(self, what: str = BY_ROWS) -> None:
        """Run row by row from now on; add ``what`` to the name that `explain` shows."""
        self.way = BY_ROWS
        super().runs_by_rows(what)

    def buffers(self) -> list[Tensor]:
        """Return the tensors without gradient.

        The function may write to them, as batch normalisation does.
        """
        return [x for x in self.leaves if isinstance(x, Tensor) and not x.requires_grad]

    def refuse_changed(self) -> None:
        """Raise `RecordError` if a parameter or buffer was changed since the run met it, or replaced."""
        VERSIONS.refuse_replaced(self.of_model)
        for x in self.leaves:
            if isinstance(x, Tensor):
                VERSIONS.refuse_changed(x)

    def __call__(self, *rows: Tensor) -> Any:
        if not is_aside():  # a trial, whose launch has compared
            self.refuse_changed()
        rows = (*map(in_form, rows, self.operands), *rows[len(self.operands) :])
        with self.modes.applied():
            found = self.on_rows(rows)
        return self.checked(found, len(rows[0]))

    def on_rows(self, rows: Sequence[Tensor]) -> Any:
        """Run the function on the rows of all examples in its way; return its tensors, each ``(n, *s)``."""
        if self.streams is not None:
            return self.drawn_row_by_row(self.streams, rows)
        if self.way == "rule":
            args, kwargs = self.arguments(rows)
            return self.rule(*args, **kwargs)
        if self.way == "vmap" and len(rows[0]) > 1:  # of one row, vmap is the slower way
            reason = BY_ROWS
            try:
                if self.is_proved(rows):
                    return self.together(rows)
                reason += ": vmap gives other values"
            except torch.cuda.OutOfMemoryError:
                raise
            except (RuntimeError, NotImplementedError) as error:
                if lacking := autograd_function_of(error):
                    self.lacking = lacking
                    reason = BY_ROWS if lacking == self.name else f"{lacking} {BY_ROWS}"
                elif self.is_cell and READS_INSIDE.search(str(error)):
                    self.reads_inside = True
                    reason = f"reads a value, {BY_ROWS}"
            found = self.row_by_row(rows)  # raises what is wrong with the call itself
            self.runs_by_rows(reason)
            return found
        return self.row_by_row(rows)

    def is_proved(self, rows: Sequence[Tensor]) -> bool:
        """Return whether vmap gives the values and gradients of the loop, as `agree` finds it.

        It is found out once for calls of one function, structure, kinds of constants, operands and results,
        that run the same functions of PyTorch. A call that draws is taken for right.
        """
        constants = [x for i, x in enumerate(self.leaves) if i not in self.places]
        forms = [(len(x.shape), x.dtype, x.requires_grad) for x in (*self.operands, *self.forms)]
        kinds = *map(kind_of, constants), *forms, self.ran
        key = self.func, self.structure, self.modes, self.runs_as_sequence, *kinds
        if self.draws or key in self.proved:
            return True
        learns = [form.requires_grad for form in self.operands]
        ways = self.tensors, lambda *two: self.together(two)
        parameters = self.parameters()
        apart = self.backend.apart(self.owners())
        with apart, without_gradients(parameters), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the launch gives them, too
            found = agree(*ways, rows, learns, parameters, self.backend)
        self.proof_ended()
        if found:
            self.proved.add(key)
        return found

    @property
    def runs_as_sequence(self) -> bool:
        """Whether it runs as a sequence of calls, where its ``way`` is ``"vmap"``; see `sequences`."""
        return False

    def proof_ended(self) -> None:
        """Note that gradients of its results were computed, which the launch did not ask for."""

    def parameters(self) -> list[Tensor]:
        """Return the parameters that the call reaches and that need a gradient, each once."""
        return [x for x in self.leaves if isinstance(x, Tensor) and x.requires_grad]

    def together(self, rows: Sequence[Tensor]) -> Any:
        """Run the function on rows at once; return its tensors, each ``(n, *s)``."""
        return self.under_vmap(rows)

    def under_vmap(self, rows: Sequence[Tensor]) -> Any:
        """Run the function on rows under `torch.func.vmap`; return its tensors, each ``(n, *s)``.

        As long as ``is_watched``, it looks whether PyTorch runs a function inside row by row, and names it
        in `explain`.
        """
        none: list[str] = []
        watch = functions_without_rule() if self.is_watched else contextlib.nullcontext(none)
        with PATCHES.applied(), watch as without:  # traces are launched where no program records
            found = torch.func.vmap(self.tensors, randomness="different")(*rows)
        self.is_watched = bool(without)
        if without:
            super().runs_by_rows(f"{without[0]} row by row")
        return found

    def own_row(self, x: Tensor) -> Tensor:
        """Return a row of a launch as the operand of one example."""
        return x

    def row_by_row(self, rows: Sequence[Tensor]) -> Any:
        """Run the function for one example after the other; return its tensors, stacked to ``(n, *s)``."""
        with self.noting_buffers():
            results = [self.tensors(*map(self.own_row, own)) for own in zip(*rows, strict=True)]
        return tuple([torch.stack(column) for column in zip(*results, strict=True)])

    @contextlib.contextmanager
    def noting_buffers(self) -> Iterator[None]:
        """Return a context that notes in the end which buffers were written inside of it."""
        buffers = [(x, x.clone()) for x in self.buffers()]  # batch normalisation counts no change in place
        yield
        for x, before in buffers:
            if not torch.equal(x.nan_to_num(), before.nan_to_num()):
                VERSIONS.written(x)

    @property
    def name(self) -> str:
        """Its name without what `runs_by_rows` has added."""
        return self.__name__.partition(" (")[0]

    def drawn_row_by_row(self, streams: Streams, rows: Sequence[Tensor]) -> Any:
        """Run the function on each row as the loop does, from the state of the row's stream.

        That is the last of ``rows``. Return its tensors, stacked to ``(n, *s)``. Raise `RecordError` if it
        leaves another state than when it was recorded.
        """
        *operands, states = rows
        now = streams.read()
        results = []
        try:
            with self.noting_buffers():
                for *own, state in zip(*operands, states, strict=True):
                    streams.begin(state)
                    laid_out = [
                        form.laid_out(self.own_row(x).contiguous())
                        for form, x in zip(self.operands, own, strict=True)
                    ]
                    results.append(self.tensors(*laid_out))
                    streams.refuse_other(state, self.name)
        finally:
            streams.write(now)
        return tuple([torch.stack(column) for column in zip(*results, strict=True)])


class CellCall(RowCall):
    """A cell, which is a function of the program or a module, or a layer: recorded as one call.

    Attributes
    ----------
    told : Told or None
        What its sequence of calls has told last; None if it never had one.
    around : Beyond or None
        What its code found around it when it was learnt.
    """

    def __init__(self, func: Any, structure: Any, leaves: Sequence[Any], places: Sequence[int]) -> None:
        super().__init__(func, structure, leaves, places)
        self.is_cell = not isinstance(func, Layer)
        self.held = [x for x in map(held_of, (func, *self.leaves)) if x is not None]
        self.caches = False
        self.is_sequence = self.is_cell
        self.told: Told | None = None
        self.around: Beyond | None = None

    @property
    def runs_code(self) -> bool:  # type: ignore[override]
        return self.is_cell and self.streams is None

    def is_like(self, other: CellCall) -> bool:  # type: ignore[override]
        is_same_way = self.way in (other.way, BY_ROWS)
        return is_same_way and (self.ran, self.caches) == (other.ran, other.caches)

    @property
    def hint_by_rows(self) -> str:
        lacking = self.func.__name__ if isinstance(self.func, Applied) else self.lacking
        if self.reads_inside:
            return "read the value outside of the cell, or choose by torch.where in the place of an if."
        if lacking is None:
            return super().hint_by_rows
        return (
            f"write generate_vmap_rule = True into the class {lacking}, with forward(*args) and "
            "setup_context(ctx, inputs, output) in the place of forward(ctx, *args)."
        )

    def buffers(self) -> list[Tensor]:
        modules = [x.module for x in self.held if isinstance(x, Called)]
        return [*super().buffers(), *[x for module in modules for x in module.buffers()]]

    def parameters(self) -> list[Tensor]:
        parts = [x for x, _ in reached(self.backend, self.owners())]
        own = (*super().parameters(), *[x for x in parameters_of(parts) if x.requires_grad])
        return [*{id(x): x for x in own}.values()]

    def stand_in(self, form: TensorForm, device: torch.device) -> Tensor:
        return stand_in_of(form, device)

    def owners(self) -> list[Any]:
        module = getattr(self.func, "module", None)
        # An autograd function, `Applied`, has its code in its class.
        forward = getattr(getattr(self.func, "function", type(module)), "forward", None)
        own = [self.func if module is None else module, forward if type(forward) is FunctionType else None]
        return [*[x for x in own if x is not None], *filter(is_owner, self.leaves)]

    def own_row(self, x: Tensor) -> Tensor:
        return x.clone()  # a cell may ask for its memory, as as_strided does, or write into it

    def dry_run(self, operands: Sequence[Tensor]) -> Any:
        """Run the cell on ones, since it may read tensors that are no arguments; return its result.

        Raises `RecordError` if it changes an argument in place or returns other than tensors.
        """
        before = [x._version for x in operands]
        found = self.one(*operands)
        if before != [x._version for x in operands]:
            raise refusal(
                f"The cell {self.__name__} changes a tensor in place that is an argument of it.",
                "return what is new: x = x + 1 in place of x += 1.",
            )
        results = optree.tree_leaves(found)
        if not results or not all(isinstance(x, Tensor) for x in results):
            raise refusal(
                f"Expected the cell {self.__name__} to return tensors. Received {found!r} for ones.",
                "return the rest outside of the cell.",
            )
        if isinstance(self.func, Layer):
            self.rule = self.func.on_rows(operands)
            self.way = "vmap" if self.rule is None else "rule"
        return found

    def refuse_changed(self) -> None:
        super().refuse_changed()
        for x in self.held:
            x.refuse_changed(self.__name__)

    def __call__(self, *rows: Tensor) -> Any:
        with with_weights([x.weights for x in self.held], self.__name__):
            return super().__call__(*rows)

    def look_at(
        self, recording: Recording, kept: KeptState, watch: KeepingWatch, operands: Sequence[Tensor]
    ) -> None:
        if isinstance(self.func, Layer):
            return
        if draws_own(kept):
            self.draws_of_python(recording)
        if any(
            slot.owner is None and not slot.random and not kept.same(slot.read(), before)
            for slot, before in zip(kept.slots, kept.before, strict=True)
        ):
            self.runs_by_rows()  # it moves buffers, as batch normalisation does
        self.caches = keeps(
            self.name,
            kept,
            watch,
            lambda: self.one(*operands),
            lambda: self.one(*[x * 0.5 if x.is_floating_point() else x for x in operands]),
        )
        if self.caches:  # it would keep pending tensors
            self.is_sequence = False

    def draws_of_python(self, recording: Recording) -> None:
        """Let a cell that draws of Python or NumPy run row by row; with a seed raise `RecordError`."""
        refuse_draws(self.name, recording.seed)
        self.runs_by_rows(AS_IT_DRAWS)

    @property
    def runs_as_sequence(self) -> bool:
        return self.is_sequence and VERSIONS.runs

    def is_proved(self, rows: Sequence[Tensor]) -> bool:
        if self.runs_as_sequence:
            try:
                self.is_sequence = self.sequence_now().has_rules
            except Exception:  # noqa: BLE001 - if the cell itself raises it, it does so under vmap, too
                self.is_sequence = False
            if self.is_sequence and super().is_proved(rows):
                return True
            self.is_sequence = False
        return super().is_proved(rows)

    def together(self, rows: Sequence[Tensor]) -> Any:
        return self.sequence_now().run(rows) if self.runs_as_sequence else self.under_vmap(rows)

    def proof_ended(self) -> None:
        sequence = VERSIONS.sequences.get(id(self))
        if sequence is not None and any(x.requires_grad for x in sequence.sequence.constants.values()):
            del VERSIONS.sequences[id(self)]  # what it has computed at once has lost its graph

    def sequence_now(self) -> CellSequence:
        """Return the calls of the cell, recorded in this run: what it finds around it stays the same."""
        found = VERSIONS.sequences.get(id(self))
        if found is None:
            found = VERSIONS.sequences[id(self)] = CellSequence(self, self.recorder)
            self.told = found.told
        return found

    def is_as_before(self) -> bool:
        """Return whether the cell does the same in this run as in an earlier one, as far as that is told.

        Its calls tell it where they are recorded as a sequence, and else what its code finds around it.
        Neither tells of the gradients of an autograd function.
        """
        if isinstance(self.func, Applied):
            return False
        before = self.told
        if before is None or self.way != "vmap" or not self.runs_as_sequence:
            return self.around is not None and self.around.is_told() and self.around.change() is None
        try:
            return self.sequence_now().told == before
        except Exception:  # noqa: BLE001 - the cell raises it once more where its call is learnt
            return False

    def learn(self, recording: Recording, *operands: Any) -> tuple[Any, Sequence[Tensor]]:
        found = super().learn(recording, *operands)
        if self.is_cell:
            owners, is_known = self.owners(), known_to(recording)
            roots = [tuple(owners), *functions_in(owners, is_known)]
            self.around = Beyond(roots, every_store(), is_known)
        return found

    def on_rows(self, rows: Sequence[Tensor]) -> Any:
        if self.caches and self.way == "vmap":
            self.tensors(*[self.own_row(x[0]) for x in rows])  # what it caches must be no tensor of vmap's
            self.caches = False
        return super().on_rows(rows)


class RowsCell(CellCall):
    """A cell that the user wrote for rows: it takes ``(n, *s)``, and runs as it is."""

    hint_by_shape = (
        "axis 0 has a row for each example, and so has each result: an op works along the other axes, "
        "dim=1 in place of dim=0."
    )

    def look_at(self, *looked_at: Any) -> None:
        if mark_of(self.func) is None:  # else its author knows what it does
            super().look_at(*looked_at)

    def draws_of_python(self, recording: Recording) -> None:
        if recording.seed is not None:
            refuse_draws(self.name, recording.seed)

    @property
    def multifold_mark(self) -> str | None:
        """The mark of the function, as `multifold.mixing` sets it; None if it has none, so it is tried.

        One that runs row by row needs no trial.
        """
        return mark_of(self.func if self.streams is None else RowCall)

    def on_rows(self, rows: Sequence[Tensor]) -> Any:
        if self.streams is not None:
            return self.drawn_row_by_row(self.streams, rows)
        return optree.tree_map(lambda x: x.unsqueeze(1), self.one(*map(self.as_rows, rows)))


READS_INSIDE = re.compile(r"\.item\(\)|data-dependent control flow")
"""What vmap says of a function that reads a value."""


def autograd_function_of(error: BaseException) -> str | None:
    """Return the name of the autograd function in whose ``apply`` an error was raised; None for others."""
    name = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("cls")
        if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
            name = owner.__name__
    return name


def in_form(x: Tensor, form: TensorForm) -> Tensor:
    """Return rows as ``(n, *s)``; integers that were recorded as numbers come as ``(n,)``.

    Rows that need no gradient may lie beside others, in a tensor that needs one.
    """
    if x.requires_grad and not form.requires_grad:
        x = x.detach()
    return x if x.dim() == 1 + len(form.shape) else x.reshape(len(x), *form.shape)


def stand_in_of(form: TensorForm, device: torch.device) -> Tensor:
    """Return ones of a form on ``device``, or zeros for integers, which may look something up.

    The tensor is no leaf of autograd's graph, so it may be changed in place.
    """
    make = torch.ones if form.dtype.is_floating_point else torch.zeros
    found = make(form.shape, dtype=form.dtype, device=device, requires_grad=form.requires_grad)
    return form.laid_out(found.clone())


def held_of(x: Any) -> Any:
    """Return an object whose ``refuse_changed`` tells whether ``x`` has changed, or None for other values.

    It is a `Called` of a module, a `CellFunction` of a function, a `Held` of another object with
    attributes.
    """
    if isinstance(x, Called):
        return x
    if isinstance(x, FunctionType):
        return CellFunction(x)
    if isinstance(x, nn.Module):
        return Called(x)
    return Held(x) if holds(x) and not isinstance(x, Tensor) else None


def is_owner(x: Any) -> bool:
    """Return whether ``x`` is a module or an object with attributes, which a cell may change."""
    return isinstance(x, nn.Module) or holds(x)


def without_values(x: Tensor) -> Tensor:
    """Return a parameter like ``x``, a parameter or buffer, on the meta device; see `as_parameter`."""
    return nn.Parameter(torch.empty_like(x, device="meta"), x.requires_grad)


def as_parameter(x: Tensor) -> Tensor:
    """Return a parameter or buffer ``x`` as a parameter.

    Rules take parameters for what is the same for all examples.
    """
    return nn.Parameter(x.detach(), x.requires_grad)
