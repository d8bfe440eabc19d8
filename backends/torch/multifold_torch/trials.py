"""Trials: what an op may change in PyTorch, and how a launch runs again unseen.

A trial runs the op as its launch did: in the same mode of gradients, on tensors with the same strides, so
that the same kernels run and a compiler needs no second graph. It runs on copies of buffers, since the
backward pass of the launch may hold the buffers themselves, and without hooks, which would take it for a
launch.
"""

from __future__ import annotations

import contextlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from threading import Lock, get_ident
from typing import Any

import numpy as np
import torch

from multifold.backend import StateSlot, owner_of

RESERVED = frozenset(vars(torch.nn.Module())) | {"_flat_weights", "_flat_weight_refs"}
"""The attributes that every module has, and the lists that recurrent layers make of their parameters."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Those among them that hold hooks of calls and of backward passes."""

GLOBAL_HOOKS = tuple(
    name
    for name, value in vars(torch.nn.modules.module).items()
    if name.startswith("_global") and name.endswith("_hooks") and isinstance(value, OrderedDict)
)
"""The hooks of all modules, by name in `torch.nn.modules.module`."""


def modules_in_order(owners: Sequence[Any]) -> dict[torch.nn.Module, None]:
    """Return all modules in ``owners``, each once, in order, as the keys of a dictionary.

    An owner is a module, a mapping with modules or their methods as values, or an object with them as
    attributes.
    """
    found: dict[torch.nn.Module, None] = {}
    for owner in owners:
        entries = owner if isinstance(owner, Mapping) else getattr(owner, "__dict__", {})
        for part in (owner, *entries.values()):
            part = owner_of(part, part)  # the module of a bound method
            if isinstance(part, torch.nn.Module) and part not in found:
                parts_of(part, found)
    return found


def parts_of(
    module: torch.nn.Module, found: dict[torch.nn.Module, None] | None = None
) -> dict[torch.nn.Module, None]:
    """Add a module, and all modules in it, to the keys of ``found``; return that, by default a new one.

    What is there already stays where it is. The others have the order of ``module.modules()``, which takes
    four times as long.
    """
    found = {} if found is None else found
    found[module] = None
    for part in module._modules.values():
        if part is not None and part not in found:
            parts_of(part, found)
    return found


def is_unsized(module: torch.nn.Module) -> bool:
    """Return whether a lazy module has parameters without sizes, which it takes from the first rows."""
    uninitialised = getattr(module, "has_uninitialized_params", None)
    return uninitialised is not None and uninitialised()


def slots(owners: Sequence[Any]) -> Iterator[StateSlot]:
    """Yield a `StateSlot` for each random state, then three for each module.

    These three are of its buffers, parameters and submodules. Random states are those of the CPU, of each
    CUDA device and of generators in ``owners``.
    """
    seed = torch.default_generator.manual_seed
    yield StateSlot(torch.get_rng_state, torch.set_rng_state, random=True, seed=seed)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            read = partial(torch.cuda.get_rng_state, device)
            seed = torch.cuda.default_generators[device].manual_seed
            yield StateSlot(read, partial(torch.cuda.set_rng_state, device=device), random=True, seed=seed)
    modules = modules_in_order(owners)
    for x in generators(owners):
        yield StateSlot(x.get_state, x.set_state, random=True, seed=x.manual_seed)
    for module in modules:
        if not isinstance(module, torch.jit.ScriptModule):
            # An op may make modules and parameters in its first launch. A trial makes others, which go.
            yield StateSlot(partial(dict, module._buffers), partial(replace, module._buffers), clones)
            for own in (module._parameters, module._modules):
                yield StateSlot(partial(dict, own), partial(replace, own), dict)


def generators(owners: Sequence[Any]) -> Iterator[torch.Generator]:
    """Yield each `torch.Generator` among ``owners``, their attributes and those of their modules."""
    for owner in (*owners, *modules_in_order(owners)):
        for x in (owner, *getattr(owner, "__dict__", {}).values()):
            if isinstance(x, torch.Generator):
                yield x


def clones(buffers: dict[str, torch.Tensor | None]) -> dict[str, torch.Tensor | None]:
    """Return a copy of ``buffers``, name -> buffer, with cloned tensors; lazy ones and None stay."""
    lazy = torch.nn.parameter.is_lazy
    return {name: x if x is None or lazy(x) else x.detach().clone() for name, x in buffers.items()}


def replace(own: dict[str, Any], values: dict[str, Any]) -> None:
    """Make the dictionary ``own`` equal to ``values``, in place, unless it holds these objects already.

    If it has the same names, none of them is missing for a moment: another thread may look it up.
    """
    if [*own] != [*values]:
        own.clear()
        own.update(values)
    elif any(own[name] is not x for name, x in values.items()):
        own.update(values)


@contextlib.contextmanager
def apart(owners: Sequence[Any]) -> Iterator[None]:
    """Return a context in which no hooks of modules, and none of saved tensors, are called."""
    with without_hooks(owners), unsaved():
        yield


def is_transformed() -> bool:
    """Return whether this runs inside of `torch.func.grad` or another transform."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def has_saved_hooks() -> bool:
    """Return whether this thread has hooks of saved tensors; True where PyTorch does not say."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return top is None or top(True) is not None


def unsaved() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which hooks of saved tensors, as those of a checkpoint, are not called."""
    if is_transformed():  # which knows no such hooks
        return torch.no_grad()
    if not has_saved_hooks():  # with hooks, torch.func has no derivatives
        return contextlib.nullcontext()
    # A tensor that kept itself, as the result that tanh saves would, would never be freed.
    return torch.autograd.graph.saved_tensors_hooks(torch.Tensor.detach, torch.Tensor.detach)


class MutedHooks:
    """Hooks of one kind that some threads do not call, while the others do; none calls backward hooks.

    A copy stands in their place meanwhile. What is registered with that is dropped, as by an op in a trial.

    Parameters
    ----------
    own : dict
        The attributes of a module, or the names of PyTorch's own.
    name : str
        What the hooks are called there. Those of backward passes would run in threads of their own on a
        GPU, where nothing tells whose they are.
    """

    def __init__(self, own: dict[str, Any], name: str) -> None:
        self.own, self.name = own, name
        self.hooks = own[name]
        self.threads = Counter[int]()
        heard = () if "backward" in name else self.hooks.items()
        own[name] = OrderedDict([(number, self.guarded(hook)) for number, hook in heard])

    def guarded(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Return a hook that does nothing in the threads which do not call it."""
        return lambda *given, **named: None if self.threads[get_ident()] else hook(*given, **named)

    def enter(self, thread: int) -> None:
        """Let a thread not call them; it may enter several times."""
        self.threads[thread] += 1

    def leave(self, thread: int) -> bool:
        """Undo one `enter`; return whether no thread is left, and the hooks are back in their place.

        They come back as they are, so that handles by which users remove hooks stay good.
        """
        self.threads[thread] -= 1
        if any(self.threads.values()):
            return False
        self.own[self.name] = self.hooks
        return True


MUTED: dict[tuple[int, str], MutedHooks] = {}
"""The hooks that threads do not call now, by the ``id`` of where they are, and their name there."""

MUTED_LOCK = Lock()


@contextlib.contextmanager
def without_hooks(owners: Sequence[Any]) -> Iterator[None]:
    """Return a context in which this thread calls no hooks of modules in ``owners``, and no global ones."""
    places = [(vars(module), HOOKS) for module in modules_in_order(owners)]
    places.append((vars(torch.nn.modules.module), GLOBAL_HOOKS))
    thread = get_ident()
    entered: list[tuple[int, str]] = []
    try:
        with MUTED_LOCK:
            for own, names in places:
                for name in names:
                    key = id(own), name
                    if own.get(name) or key in MUTED:
                        if key not in MUTED:
                            MUTED[key] = MutedHooks(own, name)
                        MUTED[key].enter(thread)
                        entered.append(key)
        yield
    finally:
        with MUTED_LOCK:
            for key in entered:
                if MUTED[key].leave(thread):
                    del MUTED[key]


def like(x: torch.Tensor, values: np.ndarray) -> torch.Tensor:
    """Return ``values`` as a tensor of the dtype and device of ``x``, which needs a gradient if ``x`` does.

    If the shapes are equal, so are the strides.
    """
    with torch.no_grad():
        source = torch.from_numpy(values)
        # Rows that `expand` has made are one row in memory, and can't be written one by one.
        overlaps = any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True))
        if overlaps or x.layout is not torch.strided or x.shape != source.shape:
            found = source.to(device=x.device, dtype=x.dtype)
        else:
            found = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device).copy_(source)
    needed = x.requires_grad and torch.is_grad_enabled() and not is_transformed()
    return found.requires_grad_() if needed else found


def has_no_values(x: Any) -> bool:
    """Return whether ``x`` is a pending tensor of a plain program, whose class is seldom imported."""
    return getattr(x, "node", None) is not None


def copy(x: torch.Tensor) -> torch.Tensor:
    """Return a detached copy of ``x``, which needs a gradient if ``x`` does; a pending tensor as it is."""
    if has_no_values(x):
        return x
    found = x.detach().clone()
    return found.requires_grad_() if x.requires_grad and not is_transformed() else found


def untried(owners: Sequence[Any]) -> str | None:
    """Return why an op must not run a second time, or None if it may.

    The reasons are that other processes wait for it, or that a stream is captured.
    """
    if (
        torch.cuda.is_available()
        and torch.cuda.is_initialized()
        and torch.cuda.is_current_stream_capturing()
    ):
        return "a CUDA stream is captured"
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        for module in modules_in_order(owners):
            name = type(module).__name__
            if name.startswith(("FSDP", "FullySharded", "SyncBatchNorm")):
                return f"{name} waits for other processes"
    return None


SEQUENCES = (torch.nn.RNNBase, torch.nn.MultiheadAttention, torch.nn.Transformer)
"""Layers that have rows on axis 1 unless they are told otherwise."""

BATCH_FIRST = (
    "{name} takes axis 0 for time unless it is made with batch_first=True. Here axis 0 has a row for each "
    "node."
)

LSTM = (
    "{name} has its states on axis 1, of shape (layers, n, h): give it h.transpose(0, 1).contiguous(), and "
    "return them so, as states with a row for each node on axis 0."
)

NORM = (
    "{name} in training uses the statistics of its launch. LayerNorm or GroupNorm look at one row; "
    "model.eval() uses running statistics; multifold.mixing marks an op that is meant to see all rows."
)

QUANTIZED = "{name} quantizes its operand by the largest of all its rows. Quantize by row, or weights only."


def advice(owners: Sequence[Any], mixes: bool) -> str | None:
    """Return a hint for the first module that is known to mix rows or to have them on axis 1, or None.

    With ``mixes`` False, modules that only mix are left out.
    """
    for module in modules_in_order(owners):
        name = type(module).__name__
        if isinstance(module, SEQUENCES) and not getattr(module, "batch_first", True):
            return BATCH_FIRST.format(name=name)
        if not mixes:
            continue
        if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.training:
            return NORM.format(name=name)
        if "quantized.dynamic" in type(module).__module__:
            return QUANTIZED.format(name=name)
    for module in modules_in_order(owners):
        if isinstance(module, torch.nn.RNNBase):
            return LSTM.format(name=type(module).__name__)
    return None
