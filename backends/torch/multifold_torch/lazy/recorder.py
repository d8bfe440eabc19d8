"""What records plain programs in PyTorch, and keeps what it has learnt of their calls."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from multifold.backend import owner_of
from multifold.errors import RecordError
from multifold.lazy.current import CURRENT, Recording, recording_of, refusal
from multifold.lazy.recorder import FEW_NUMBERS, MANY, KnownCall, LazyRecorder, known_call
from multifold_torch.lazy.answers import ANSWERS, changed, out_of_place
from multifold_torch.lazy.calls import CellCall, RowCall, RowsCell
from multifold_torch.lazy.changes import VERSIONS, Called, Held, holds, tensors_of
from multifold_torch.lazy.forms import Modes, TensorForm, form_of_tensor
from multifold_torch.lazy.patches import PATCHES
from multifold_torch.lazy.pending import Pending, Settled, first_of, refuse, settle, version_of
from multifold_torch.lazy.written import Written

PROBES = (torch.is_grad_enabled, torch.get_default_dtype)
ALARMS = (torch.is_inference_mode_enabled, torch._C._is_any_autocast_enabled)
"""What calls depend on, and what says that they depend on more."""

VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
"""Types of PyTorch whose objects are compared by value."""

FEW = 256
"""Modules that are kept beyond a run."""


class Outside(threading.local):
    """The modes of PyTorch that the run in this thread began in; launches run in them."""

    def __init__(self) -> None:
        self.modes = Modes.now()
        self.inference = False

    def begin(self, modes: Modes, inference: bool) -> tuple[Modes, bool]:
        """Set the modes of a run; return those set before, which its end sets again."""
        before = self.modes, self.inference
        self.modes, self.inference = modes, inference
        return before


OUTSIDE = Outside()


class TorchRecorder(LazyRecorder):
    """Records the calls of one plain program in PyTorch, and keeps what it has learnt of each kind of call.

    Parameters
    ----------
    fn : callable
        The program. The parameters and buffers of a module are the same for all examples.
    """

    package = "torch"

    def __init__(self, fn: Any) -> None:
        super().__init__(Pending, Settled, ANSWERS, PROBES, ALARMS)
        self.owner = owner_of(fn, fn)
        self.called_before: dict[int, Called] = {}
        self.names: dict[int, str] = {}
        self.proved: set[Hashable] = set()

    def flatten(self, x: Any) -> tuple[list[Any], Any]:
        leaves, structure = super().flatten(x)
        return [y.pending if type(y) is Written else y for y in leaves], structure

    @contextlib.contextmanager
    def recording(self, same: Iterable[Any]) -> Iterator[None]:
        if isinstance(self.owner, nn.Module):
            self.shared = {id(x): x for x in tensors_of(self.owner)}
        if len(self.known) > MANY:
            self.known, self.called_before = {}, {}
            self.proved = set()
        versions = VERSIONS.begin({})
        outside = OUTSIDE.begin(Modes.now(), torch.is_inference_mode_enabled())
        try:
            with PATCHES.applied():
                yield
        finally:
            VERSIONS.begin(versions)
            OUTSIDE.begin(*outside)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        if torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.ADInplaceOrView):
            raise refusal(
                "A value is read in the middle of a function of PyTorch, as torch.tensor([x]) does.",
                "read it before: torch.tensor([x.item()]), or torch.stack([x]).",
            )
        with OUTSIDE.modes.applied():
            yield

    def dispatch_unknown(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("out") is not None:
            refuse("written to out=")
        if kwargs.get("inplace"):
            return changed(func, func, args, kwargs, {**kwargs, "inplace": False})
        other = out_of_place(func)
        if other is not None:
            return changed(func, other, args, kwargs, kwargs)
        return self.recorded(CURRENT.recording, None, func, args, kwargs)

    def call(
        self, recording: Recording, fn: Any, rows: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return self.recorded(recording, RowsCell if rows else CellCall, fn, args, kwargs)

    def has_recorded(self, op: Any) -> bool:
        functions = [kind.call.func for kind in self.known.values() if isinstance(kind.call, CellCall)]
        if isinstance(op, type):
            return any(isinstance(func, Called) and isinstance(func.module, op) for func in functions)
        return op in functions

    def modes(self) -> Hashable:
        inference = torch.is_inference_mode_enabled()
        if inference is not OUTSIDE.inference:
            raise refusal(
                "Expected the program to compute in the inference mode of its run. It has changed it.",
                "use torch.no_grad() inside of the program, or inference_mode() around the run.",
            )
        return Modes.now(), torch.get_default_dtype(), inference

    def key_of(self, x: Any, operands: list[Tensor]) -> Hashable:
        kind = type(x)
        if kind is Written:
            return self.keys_of([x.pending], operands)
        if isinstance(x, Tensor):
            if self.is_shared(x):
                VERSIONS.refuse_changed(x)
                return id(x), x.requires_grad
            operands.append(x)
            return self.form_of(x)
        if kind is FunctionType:
            VERSIONS.refuse_rebound(x)
            return x, VERSIONS.learns(x)
        if isinstance(x, nn.Module):
            return self.called(Called, x)
        if isinstance(x, VALUES):
            return kind, x
        if kind is np.ndarray:
            return kind, x.dtype.str, x.shape, x.tobytes()
        container = self.container_key(x, operands)
        if container is not None:
            return container
        if holds(x):
            return Held(x)
        return self.constant_key(x, operands)

    def called(self, kind: type[Called], module: nn.Module) -> Called:
        """Return a module as a ``kind``, `Called` or `Layer`: the same object until the module changes."""
        found = VERSIONS.called.get(id(module))
        if found is not None and type(found) is kind and found.is_now():
            return found
        found = kind(module)
        before = self.called_before.get(id(module))
        if before == found:  # keys of earlier runs have this one, and are compared faster so
            found = before.noted(found.sets)
        # With own=True each run calls new copies of the modules, which no later run will meet.
        if len(self.called_before) < FEW:
            self.called_before[id(module)] = found
        VERSIONS.called[id(module)] = found
        return found

    def name_of(self, recording: Recording, module: nn.Module) -> str:
        """Return the path of a module in the program, as ``encoder.gates``, or the name of its class.

        The class is taken where the program does not reach the module by attributes.
        """
        if not self.names:
            models = [x for x in recording.reached(self.owner) if isinstance(x, nn.Module)]
            paths = [(id(x), path) for model in models[::-1] for path, x in model.named_modules()]
            self.names = {key: path for key, path in paths if path}
        return self.names.get(id(module), type(module).__name__)

    def shares(self, module: nn.Module) -> None:
        """Note that the buffers of ``module`` are the same for all examples, as its parameters are."""
        for x in module._buffers.values():
            if x is not None:
                self.shared[id(x)] = x

    def is_shared(self, x: Any) -> bool:
        """Return whether a tensor is the same for all examples: a parameter, or a buffer of the program."""
        # Whether something is a parameter takes longer to ask.
        return id(x) in self.shared or (type(x) is not Tensor and isinstance(x, nn.Parameter))

    def own_row(self, recording: Recording, x: Any) -> Any:
        row = torch.stack((x,))  # a copy, with one axis more, in one step
        if not recording.is_trace:
            return row
        if x.requires_grad:
            refuse_in_trace("needs a gradient, and is no parameter or buffer of the model")
        if x.dtype == torch.bfloat16:
            refuse_in_trace("has a dtype that NumPy does not know")
        return row.numpy(force=True)

    def version_of(self, x: Any) -> int:
        return version_of(x)

    def learn(
        self,
        recording: Recording,
        maker: type[RowCall] | None,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        operands: Sequence[Tensor],
    ) -> KnownCall:
        leaves, structure = self.flatten((args, dict(kwargs)))
        places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and not self.is_shared(x)]
        kept = [x.copy() if type(x) is np.ndarray else x for x in leaves]
        call = (maker or RowCall)(func, structure, kept, places)
        call.proved = self.proved
        if isinstance(func, Called):
            call.named(self.name_of(recording, func.module))
        forms = [x.form if isinstance(x, Pending) else self.form_of(x) for x in operands]
        device = max(forms, key=lambda form: len(form.shape) > 0).device  # a number may lie elsewhere
        found, stand_ins = call.learn(recording, device, forms)
        may_be_small = (
            maker is None
            and not any(form.requires_grad for form in call.forms)
            and all(form.shape.numel() <= FEW_NUMBERS for form in (*forms, *call.forms))
            and not any(isinstance(x, Tensor) for x in call.leaves)
            and call.streams is None
        )
        return known_call(
            call,
            found,
            stand_ins,
            leaves,
            is_array=lambda x: isinstance(x, Tensor),
            share_memory=torch._C._is_alias_of,
            may_be_small=may_be_small,
            draws=call.streams is not None,
        )

    def form_of(self, x: Tensor) -> TensorForm:
        """Return the form of a computed tensor; with its strides where examples have random streams.

        In which order numbers are drawn depends on strides.
        """
        return form_of_tensor(x, with_strides=recording_of().seed is not None)

    def with_state(self, recording: Recording, call: RowCall, operands: list[Any]) -> list[Any]:
        values = None
        if call.streams is not None and call.streams.by_values:
            if recording.is_trace:
                raise refusal(
                    f"{call.name} draws as many random numbers as values say, which a trace does not know.",
                    "run it without traces, or make the traces without seed=.",
                )
            values = [
                form.laid_out(self.read(x) if isinstance(x, Pending) else x.detach())
                for x, form in zip(operands, call.operands, strict=True)
            ]
        return [*operands, call.with_state(recording, values)]

    def computed(self, pending: Pending, rows: Any) -> Any:
        return first_of(rows, pending.form.requires_grad)

    def on_host(self, form: Any, value: Any) -> Any:
        found = torch.as_tensor(value, dtype=form.dtype, device=form.device)
        return found if found.shape == form.shape else found.reshape(form.shape)

    def settle(self, pending: Pending, rows: Any) -> None:
        settle(pending, rows)

    def join(self, values: Sequence[Any], how: str) -> Any:
        if not all(isinstance(x, Tensor) for x in values):
            return [*values]
        return torch.stack(list(values)) if how == "stack" else torch.cat(list(values))


def refuse_in_trace(what: str) -> NoReturn:
    """Raise `RecordError`: a computed tensor that ``what``, as "needs a gradient", cannot be in a trace."""
    raise RecordError(
        f"A tensor that {what} is an operand of a trace.",
        "run the program, which records it each time.",
    )
