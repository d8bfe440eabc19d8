"""The seam for PyTorch: nearly every method is one call of PyTorch or none.

Nothing is wrapped, so tensors stay on autograd's graph, and `TorchBackend.version` reads the count by which
autograd itself finds tensors that were changed in place.
"""

from __future__ import annotations

import contextlib
import logging
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from types import FunctionType
from typing import Any, ClassVar, final

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import _StopRecomputationError

from multifold.backend import (
    Backend,
    Bidirectional,
    Cell,
    Groups,
    ModuleForm,
    Stack,
    StateSlot,
    Together,
    cached_pieces,
    promoted,
)
from multifold_torch.cells import cell_of
from multifold_torch.forms import form_of
from multifold_torch.kit import TorchKit, tensors
from multifold_torch.together import together
from multifold_torch.trials import (
    RESERVED,
    advice,
    apart,
    copy,
    is_unsized,
    like,
    modules_in_order,
    parts_of,
    slots,
    untried,
)
from multifold_torch.wrappers import unwrapped

FLOATS: dict[torch.dtype, np.dtype] = {torch.float64: np.dtype("f8"), torch.float16: np.dtype("f2")}
"""The default dtypes that NumPy has, besides float32."""

FLOAT32: np.dtype = np.dtype(np.float32)

# Made once, since `TorchBackend.context` returns one of them after each step of a task.
GRADIENTS = (True,)
NO_GRADIENTS = (False,)
is_any_autocast_enabled = torch._C._is_any_autocast_enabled
is_grad_enabled = torch.is_grad_enabled
is_inference_mode_enabled = torch.is_inference_mode_enabled

PLAIN = {torch.Tensor, torch.nn.Parameter}

VERSION = attrgetter("_version")
"""A tensor -> how often it was changed in place."""


@final
class TorchBackend(Backend):
    """Batched calls on `torch.Tensor`.

    Parameters
    ----------
    compiler : callable, optional
        ``compiler(op, operands, static)`` runs the launches: a `multifold_torch.Compiler`.
    """

    name: ClassVar[str] = "torch"
    tiles: ClassVar[bool] = True
    cycles: ClassVar[bool] = True
    counts_changes: ClassVar[bool] = True
    puts: ClassVar[bool] = True
    has_forms: ClassVar[bool] = True
    kit = TorchKit()
    # torch.utils.checkpoint raises this through an op when it has recomputed all that it needs. An op that
    # "fails" with it did not fail, so no launch may turn it into a LaunchError.
    passes = (_StopRecomputationError,)

    def __init__(self, compiler: Callable[..., Any] | None = None) -> None:
        self.compiler = compiler

    def owns(self, x: Any) -> bool:
        return isinstance(x, torch.Tensor)

    def signature(self, x: torch.Tensor) -> Hashable:
        return x.shape[1:], x.dtype, x.device

    def rows(self, x: torch.Tensor) -> int:
        return x.shape[0]

    def rows_and_signature(self, x: torch.Tensor) -> tuple[int, Hashable]:
        shape = x.shape  # each reading makes a new one
        return shape[0], (shape[1:], x.dtype, x.device)

    def are_like(self, xs: Sequence[torch.Tensor], rows: int, signatures: Sequence[Any]) -> bool:
        # No slice of a shape is made, which takes longer than to compare.
        for x, (tail, dtype, device) in zip(xs, signatures, strict=True):
            if x.shape != (rows, *tail) or x.dtype is not dtype or x.device != device:
                return False
        return True

    def constant(self, values: np.ndarray, device: Any) -> torch.Tensor:
        if not values.flags.writeable:
            return shared(self, values, device)
        # `from_numpy` refuses negative strides.
        if min(values.strides, default=0) < 0:
            values = values.copy()
        # NumPy has no bfloat16. The one of the package ml_dtypes has the kind "V"; ask for that first,
        # since NumPy is slow to spell a dtype's name.
        if values.dtype.kind == "V" and values.dtype.name == "bfloat16":
            return self.constant(values.view(np.int16), device).view(torch.bfloat16)
        constant = torch.from_numpy(values)
        # The device of an empty tensor is the default one, found faster than by get_default_device().
        target = torch.empty(0).device if device is None else torch.device(device)
        if target.type == "cuda":
            # Out of memory that may be paged, a copy would wait for all that the GPU has still to do.
            constant = constant.pin_memory()
        return constant.to(target, non_blocking=True)

    def constants(self, arrays: Sequence[np.ndarray], device: Any) -> Sequence[torch.Tensor]:
        target = torch.empty(0).device if device is None else device
        if getattr(target, "type", target) != "cpu":
            found = super().constants(arrays, device)
        else:
            # Nothing travels: to copy each array is quicker than to join and split them.
            copies = map(np.ndarray.copy, arrays) if len(arrays) > 1 else arrays
            found = list(map(torch.from_numpy, copies))
        # NumPy has no bfloat16, the default where a trainer's precision is "bf16-true": floats become it
        # here.
        if arrays[0].dtype.kind == "f" and torch.get_default_dtype() is torch.bfloat16:
            return [x.to(torch.bfloat16) for x in found]
        return found

    def concat(self, xs: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.cat(tuple(xs))

    def split(self, x: torch.Tensor, sizes: Sequence[int]) -> Sequence[torch.Tensor]:
        return torch.split_with_sizes(x, sizes)

    def gather(self, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return x.index_select(0, rows)

    def put(self, x: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x.index_copy_(0, rows, values)

    def host_view(self, x: torch.Tensor) -> np.ndarray | None:
        # NumPy gathers and writes few rows faster than `index_select` and `index_copy_`. A subclass may be
        # anything.
        if is_grad_enabled() or type(x) not in PLAIN or not x.is_cpu:
            return None
        try:
            return x.detach().numpy()
        except (RuntimeError, TypeError):  # what NumPy has no dtype for, as bfloat16, or no strides
            return None

    def from_host(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values)

    def call(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
        if self.compiler is not None:
            return self.compiler(fn, operands, static)
        return fn(*operands, **static)

    def promoted(self, signatures: Sequence[Hashable]) -> Hashable | None:
        def common(dtypes: Sequence[torch.dtype]) -> torch.dtype:
            # Not `torch.promote_types`: under autocast, cat refuses to put bfloat16 and float16 together.
            return torch.cat([torch.empty(0, dtype=dtype, device=device) for dtype in dtypes]).dtype

        device = signatures[0][2]  # type: ignore[index]
        try:
            return promoted(signatures, lambda dtype: dtype.is_floating_point or dtype.is_complex, common)
        except RuntimeError:
            return None

    def context(self) -> Hashable:
        # Asked for after each step of a task, so these functions are not looked up in modules.
        if not is_any_autocast_enabled():
            return GRADIENTS if is_grad_enabled() else NO_GRADIENTS
        return torch.is_grad_enabled(), *map(torch.get_autocast_dtype, ("cpu", "cuda"))

    def version(self, x: torch.Tensor) -> int | None:
        return None if x.is_inference() else x._version  # tensors made in inference mode keep no count

    def versions(self, xs: Sequence[Any]) -> list[Any]:
        # In inference mode most tensors have no count. PyTorch takes 10 us to raise an error for one that
        # is asked for it, and 50 ns to say that it was made there.
        if is_inference_mode_enabled():
            return counts_of(xs)
        try:
            return list(map(VERSION, xs))  # without a call for each of them
        except (AttributeError, RuntimeError):  # one of them is no tensor, or was made in inference mode
            return counts_of(xs)

    def unwrap(self, model: Any) -> Any:
        return unwrapped(model)

    def device(self, model: Any) -> Any:
        if isinstance(model, torch.Tensor):
            return model.device
        if isinstance(model, torch.nn.Module):
            # A module has no other tensors, and to list them all takes long.
            return first_device(model)
        others = list(model.values()) if isinstance(model, (dict, Mapping)) else [model]
        for x in others:
            if isinstance(x, torch.nn.Module):
                for state in state_of(x):
                    return state.device
        if type(model) is dict and all(type(x) is FunctionType for x in others):
            return None  # such a model has no tensors, and none need be looked for
        return next((x.device for x in tensors(model).values()), None)

    def arrays_of(self, model: Any) -> Iterable[torch.Tensor]:
        return tensors(model).values()  # of a model that is not trained, too

    def pieces(self, rows: int, device: Any) -> int:
        pieces = cached_pieces(rows)
        if pieces > 1:
            target = torch.get_default_device() if device is None else torch.device(device)
            # Pieces are for the caches of a CPU.
            return pieces if target.type == "cpu" else 1
        return pieces

    def number_dtype(self, kind: type) -> np.dtype:
        if kind is float:
            return FLOATS.get(torch.get_default_dtype(), FLOAT32)
        return super().number_dtype(kind)

    def cast(self, x: torch.Tensor, dtype: str) -> torch.Tensor:
        return x.to(getattr(torch, dtype))

    def to_numpy(self, x: torch.Tensor) -> np.ndarray:
        x = x if x.layout is torch.strided else x.to_dense()
        # With `force` one step detaches, copies to the host, and resolves what is lazily conjugated.
        # NumPy has neither bfloat16 nor floats of one byte.
        lacking = x.is_floating_point() and x.dtype not in (torch.float32, *FLOATS)
        # On a CPU the array would be the tensor's own memory without a copy.
        return (x.float() if lacking else x).numpy(force=True).copy()

    def cell(self, cell: Any) -> Cell | Stack | Bidirectional:
        return cell_of(cell)

    def profile(self, label: str) -> contextlib.AbstractContextManager[Any]:
        return torch.profiler.record_function(label)

    def is_inference(self) -> bool:
        return not torch.is_grad_enabled()

    def inference(self) -> contextlib.AbstractContextManager[Any]:
        return torch.no_grad()

    def slots(self, owners: Sequence[Any]) -> Iterable[StateSlot]:
        return slots(owners)

    def stateful(self, owners: Sequence[Any]) -> Iterator[Any]:
        yield from (x for x in super().stateful(owners) if not isinstance(x, torch.nn.Module))
        yield from modules_in_order(owners)

    def reserved(self, owner: Any) -> Collection[str]:
        if isinstance(owner, torch.jit.ScriptModule):  # it keeps each method that was asked for
            return {*RESERVED, *owner._c._method_names()}
        return RESERVED if isinstance(owner, torch.nn.Module) else ()

    def apart(self, owners: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
        return apart(owners)

    def like(self, x: torch.Tensor, values: np.ndarray) -> torch.Tensor:
        return like(x, values)

    def copy(self, x: torch.Tensor) -> torch.Tensor:
        return copy(x)

    def is_built(self, owners: Sequence[Any]) -> bool:
        return not any(map(is_unsized, modules_in_order(owners)))

    def modes(self, owners: Sequence[Any]) -> Hashable:
        if len(owners) == 1 and isinstance(owners[0], torch.nn.Module):  # asked in each run
            return tuple([part.training for part in parts_of(owners[0])])
        return tuple([module.training for module in modules_in_order(owners)])

    def untried(self, owners: Sequence[Any]) -> str | None:
        return untried(owners)

    def advice(self, owners: Sequence[Any], mixes: bool = True) -> str | None:
        return advice(owners, mixes)

    def abstract(
        self,
        fn: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]],
        arrays: Sequence[torch.Tensor],
        owners: Sequence[Any],
    ) -> list[torch.Tensor]:
        if any(map(is_unsized, modules_in_order(owners))):
            return fn(arrays)  # a lazy module takes its sizes from real rows, as in its first call
        log = logging.getLogger("torch._subclasses.fake_tensor")
        # The mode logs what it raises, though the core may then try again.
        silent = log.disabled
        log.disabled = True
        try:
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                found = fn([mode.from_tensor(x) for x in arrays])
                sizes = [(tuple(map(int, x.shape)), x.dtype, x.device) for x in found]
        finally:
            log.disabled = silent
        return [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype, device in sizes]

    def form_of(self, module: Any) -> ModuleForm | None:
        # A compiler takes an op as it is, and would compile it for each set of modules.
        return form_of(module) if self.compiler is None else None

    def is_traced(self) -> bool:
        return torch._C._len_torch_dispatch_stack() > 0 or torch.compiler.is_compiling()

    def together(self, forms: Sequence[Any], groups: Groups) -> Together | None:
        return together(forms, groups)

    def lazy_recorder(self, fn: Any) -> Any:
        # Imported late: it takes a while, and most folds need none.
        from multifold_torch.lazy import TorchRecorder

        return TorchRecorder(fn)

    def plain_module(self, fn: Any, run: Any) -> Any:
        from multifold_torch.lazy import BatchedModule

        return BatchedModule(fn, run) if isinstance(fn, torch.nn.Module) else run

    def synchronize(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def first_device(module: torch.nn.Module) -> torch.device | None:
    """Return the device of the first parameter of a module, or of its first buffer; else None."""
    part: torch.nn.Module | None = module
    while part is not None:  # the way to the first parameter, without PyTorch's generators
        for x in part._parameters.values():
            if x is not None:
                return x.device
        part = next(iter(part._modules.values()), None)
    return next((x.device for x in state_of(module)), None)


def state_of(module: torch.nn.Module) -> Iterable[torch.Tensor]:
    """Return an iterable of all parameters, frozen ones too, and then all buffers of a module."""
    return chain(module.parameters(), module.buffers())


def counts_of(xs: Sequence[Any]) -> list[int | None]:
    """Return how often each tensor in ``xs`` was changed in place; None for one of inference mode."""
    return [None if x.is_inference() else x._version for x in xs if isinstance(x, torch.Tensor)]


KEPT: dict[Hashable, tuple[weakref.ref[np.ndarray], torch.Tensor, int]] = {}
"""(id of a shared array, device) -> the array, its tensor, and the version of the new tensor."""


def shared(backend: TorchBackend, values: np.ndarray, device: Any) -> torch.Tensor:
    """Return a read-only array as a tensor: the same memory in each run, until an op writes to it.

    An array that calls share enters every run, and may be too large to be copied for each. PyTorch has no
    tensors that can't be written to, but it counts the changes: a tensor that was changed is made anew.
    Tensors of inference mode count none, so they are not kept.
    """
    key = id(values), torch.empty(0).device if device is None else device
    array, tensor, version = KEPT.get(key, (None, None, 0))
    # An id may be used again when its array is gone, so the array itself is compared as well.
    if tensor is None or array is None or array() is not values or tensor._version != version:
        tensor = backend.constant(values.copy(), device)
        if tensor.is_inference() or type(tensor) is not torch.Tensor:
            return tensor
        KEPT[key] = weakref.ref(values, lambda _: KEPT.pop(key, None)), tensor, tensor._version
    return tensor.detach()  # what an op says of it, requires_grad_() for one, ends with the run
