"""What records plain programs in PyTorch, and keeps what it has learnt of their calls."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Hashable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import optree
import torch
from torch import Tensor, nn

from multifold.backend import PlainValues
from multifold.errors import RecordError
from multifold.recording import CURRENT, Recording
from multifold_torch.plain.answers import ANSWERS, changed, out_of_place
from multifold_torch.plain.calls import CellCall, RowCall, RowsCell
from multifold_torch.plain.changes import VERSIONS, Called, Held, holds, tensors_of
from multifold_torch.plain.forms import Modes, TensorForm
from multifold_torch.plain.patches import PATCHES
from multifold_torch.plain.pending import (
    Pending,
    is_stale,
    pending,
    refuse,
    refuse_stale,
    settle,
    value_of,
)

CONSTANTS = (bool, int, str, type(None), torch.dtype, torch.device)
"""Types of arguments that are compared by value."""

MANY = 4096
"""Kinds of calls that are kept beyond a run. A program with numbers of its examples among its constants has
always new ones."""


class KnownCall(NamedTuple):
    """A kind of call: what runs it, and what it returns.

    Attributes
    ----------
    call : RowCall or None
        None if it returns no tensor.
    structure : PyTreeSpec or None
        How its results are nested; None for a tensor.
    bases : list of int or None
        Of each result, which of the operands, and of the results before, it is a view of.
    result : object
        What it returns, if that is no tensor.
    held : list
        What its key names by ``id``, and so must not go.
    """

    call: RowCall | None
    structure: Any
    bases: list[int | None]
    result: Any
    held: Sequence[Any]


class Outside(threading.local):
    """The modes of the run in this thread, in which launches run."""

    def __init__(self) -> None:
        self.modes = Modes.now()
        self.inference = False

    def begin(self, modes: Modes, inference: bool) -> tuple[Modes, bool]:
        """Begin a run, or go on with one; return what was known of the one before."""
        before = self.modes, self.inference
        self.modes, self.inference = modes, inference
        return before


OUTSIDE = Outside()


class TorchValues(PlainValues):
    """What records plain programs in PyTorch, and keeps what it has learnt of their calls.

    Parameters
    ----------
    fn : callable
        The program. The parameters and buffers of a module are the same for all examples.
    """

    package = "torch"

    def __init__(self, fn: Any) -> None:
        self.owner = getattr(fn, "__self__", fn)
        self.shared: dict[int, Tensor] = {}
        self.calls: dict[Hashable, KnownCall] = {}

    # ---- runs ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        if isinstance(self.owner, nn.Module):
            self.shared = {id(x): x for x in tensors_of(self.owner)}
        if len(self.calls) > MANY:
            self.calls = {}
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
            raise RecordError(
                "A value is read in the middle of a function of PyTorch, as torch.tensor([x]) does.",
                "read it before: torch.tensor([x.item()]), or torch.stack([x]).",
            )
        with OUTSIDE.modes.applied():
            yield

    # ---- recording -----------------------------------------------------------------------------------

    def met(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Answer, read or record a function that has met a pending tensor."""
        answer = ANSWERS.get(func)
        if answer is not None:
            return answer(*args, **kwargs)
        if kwargs.get("inplace"):
            return changed(func, args, {**kwargs, "inplace": False})
        if kwargs.get("out") is not None:
            refuse("written to out=")
        other = out_of_place(func)
        if other is not None:
            return changed(other, args, kwargs)
        return self.record(func, args, kwargs)

    def record(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Record a function with pending tensors among its arguments; return what stands for its result."""
        return self.recorded(RowCall, func, args, kwargs)

    def call(
        self, recording: Recording, fn: Any, rows: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return self.recorded(RowsCell if rows else CellCall, fn, args, kwargs)

    def recorded(
        self, kind: type[RowCall], func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Record a call; one without operands runs at once."""
        operands: list[Tensor] = []
        parts = [self.key_of(x, operands) for x in args]
        if kind is not RowCall and type(func) is FunctionType:
            parts.append(self.key_of(func, operands))
        if kwargs:
            parts += [(name, self.key_of(kwargs[name], operands)) for name in sorted(kwargs)]
        if not operands:
            with CURRENT.recording.paused():  # type: ignore[union-attr]  # it records
                return func(*args, **kwargs)
        if torch.is_inference_mode_enabled() is not OUTSIDE.inference:
            raise RecordError(
                "Expected the program to compute in the inference mode of its run. It has changed it.",
                "use torch.no_grad() inside of the program, or inference_mode() around the run.",
            )
        key = kind, func, Modes.now(), torch.get_default_dtype(), *parts
        recording: Any = CURRENT.recording
        known = self.calls.get(key)
        if known is None:
            known = self.calls[key] = self.learn(recording, kind, func, args, kwargs, operands)
        if known.call is None:
            return known.result
        node = recording.record(known.call, [*map(node_of, operands)])
        forms = known.call.forms
        nodes = [node] if known.structure is None else node.split(len(forms))
        found = [*operands]
        for part, form, base in zip(nodes, forms, known.bases, strict=True):
            found.append(pending(part, form, None if base is None else found[base]))
        results = found[len(operands) :]
        return results[0] if known.structure is None else optree.tree_unflatten(known.structure, results)

    def key_of(self, x: Any, operands: list[Tensor]) -> Hashable:
        """Return by what an argument is compared with those of other calls; append what is an operand.

        Operands come in the order in which optree flattens the arguments.
        """
        kind = type(x)
        if kind is Pending:
            if x.base is not None or x.version:
                refuse_stale(x)
            operands.append(x)
            return x.form
        if kind in CONSTANTS:
            return kind, x
        if kind is tuple or kind is list:
            return kind, *[self.key_of(part, operands) for part in x]
        if kind is float or kind is complex:
            return kind, repr(x)  # tells 0.0 from -0.0, and finds nan equal to itself
        if isinstance(x, Tensor):
            if self.is_shared(x):
                VERSIONS.refuse_changed(x)
                return id(x), x.requires_grad
            operands.append(x)
            return TensorForm.of(x)
        if kind is slice:
            return slice, x.start, x.stop, x.step
        if kind is np.ndarray:
            return kind, x.dtype.str, x.shape, x.tobytes()
        if isinstance(x, nn.Module):
            return Called(x)
        if kind is FunctionType:
            VERSIONS.refuse_rebound(x)
            return x, tuple(VERSIONS.learns(x))
        leaves, structure = optree.tree_flatten(x, none_is_leaf=True)
        if not structure.is_leaf():  # a container of another kind
            return structure, *[self.key_of(part, operands) for part in leaves]
        if holds(x):
            return Held(x)
        try:
            hash(x)
        except TypeError:
            raise RecordError(
                f"Expected arguments that can be compared with those of other examples. Received {x!r}.",
                "a tuple or a frozenset says the same, and cannot change before the call runs.",
            ) from None
        return kind, x

    def shares(self, module: nn.Module) -> None:
        """Take note of a module that examples call: they share its buffers, as its parameters."""
        for x in module._buffers.values():
            if x is not None:
                self.shared[id(x)] = x

    def is_shared(self, x: Any) -> bool:
        """Return whether a tensor is the same for all examples."""
        return isinstance(x, nn.Parameter) or id(x) in self.shared

    def learn(
        self,
        recording: Recording,
        kind: type[RowCall],
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        operands: Sequence[Tensor],
    ) -> KnownCall:
        """Find out what a kind of call returns."""
        leaves, structure = optree.tree_flatten((args, dict(kwargs)), none_is_leaf=True)
        places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and not self.is_shared(x)]
        kept = [x.copy() if type(x) is np.ndarray else x for x in leaves]
        call = kind(func, structure, kept, places)
        forms = [x.form if isinstance(x, Pending) else TensorForm.of(x) for x in operands]
        device = max(forms, key=lambda form: len(form.shape) > 0).device  # a number may lie elsewhere
        found, stand_ins = call.learn(recording, device, forms)
        results, shape = optree.tree_flatten(found)
        if not any(isinstance(x, Tensor) for x in results):
            return KnownCall(None, None, [], found, leaves)
        memories = [*stand_ins, *results]
        bases = [
            next((i for i, x in enumerate(memories[:end]) if torch._C._is_alias_of(x, memories[end])), None)
            for end in range(len(stand_ins), len(memories))
        ]
        return KnownCall(call, None if call.is_single else shape, bases, None, leaves)

    # ---- results -------------------------------------------------------------------------------------

    def unsettled(self, result: Any, made: Sequence[weakref.ref[Any]]) -> list[Any]:
        returned = [x for x in optree.tree_leaves(result) if type(x) is Pending]
        for x in returned:
            refuse_stale(x)
        alive = [ref() for ref in made]
        own = {id(x): x for x in (*returned, *alive) if type(x) is Pending and not is_stale(x)}
        return [*own.values()]

    def settle(self, pending: Sequence[Pending], values: Sequence[Any]) -> None:
        for x, value in zip(pending, values, strict=True):
            own = value[0]  # a row
            settle(x, own if x.form.requires_grad else own.detach())  # others among the rows may need one

    def settled(self, result: Any) -> Any:
        return optree.tree_map(value_of, result)

    def join(self, values: Sequence[Any], how: str) -> Any:
        if not all(isinstance(x, Tensor) for x in values):
            return [*values]
        return torch.stack(list(values)) if how == "stack" else torch.cat(list(values))


def node_of(x: Any) -> Any:
    """Return what the fold takes as an operand: of a real tensor a copy, which nobody changes."""
    return x.node if type(x) is Pending else x[None].clone()
