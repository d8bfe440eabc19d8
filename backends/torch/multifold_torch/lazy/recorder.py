"""What records plain programs in PyTorch, and keeps what it has learnt of their calls."""

from __future__ import annotations

import contextlib
import itertools
import operator
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext
from torch.utils.hooks import RemovableHandle

from multifold.backend import owner_of
from multifold.errors import RecordError
from multifold.lazy.beyond import stores_of
from multifold.lazy.calls import BY_ROWS
from multifold.lazy.current import CELL, REFUSALS, Recording, recording_of, refusal
from multifold.lazy.recorder import ADVISED, FEW_NUMBERS, MANY, KnownCall, LazyRecorder, Stamp, known_call
from multifold.lazy.sequence import CellReads
from multifold.lazy.straight import Crooked, changers_of
from multifold.lazy.waiting import staying
from multifold_torch.lazy.answers import ANSWERS
from multifold_torch.lazy.backward import time_backward
from multifold_torch.lazy.calls import CellCall, RowCall, RowsCell
from multifold_torch.lazy.changes import (
    ATTRIBUTE_SETS,
    LAYERS,
    VERSIONS,
    Called,
    CalledLoosely,
    Held,
    SetCounts,
    holds,
    version_now,
    weights_of,
)
from multifold_torch.lazy.forms import Modes, TensorForm, form_of, form_of_tensor
from multifold_torch.lazy.in_place import changed, out_of_place, written_to
from multifold_torch.lazy.numbers import OPERATORS, ValuesNeeded, computed_by_values
from multifold_torch.lazy.patches import PATCHES
from multifold_torch.lazy.pending import Pending, Settled, first_of, settle
from multifold_torch.lazy.sequences import NotASequence
from multifold_torch.lazy.transforms import TRANSFORMS
from multifold_torch.lazy.watching import beginning, tracing
from multifold_torch.lazy.weights import OtherWeights, Weights
from multifold_torch.lazy.whole import (
    FoundCall,
    container_in,
    known_found,
    leave_guards,
    replaced_in,
    tried,
)
from multifold_torch.lazy.written import Written, give_back, is_pending, with_pending
from multifold_torch.trials import modules_in_order, parts_of

PROBES = (torch.is_grad_enabled, torch.get_default_dtype)
ALARMS = (torch.is_inference_mode_enabled, torch._C._is_any_autocast_enabled)
"""What calls depend on, and what says that they depend on more."""

OF_FORMS = operator.attrgetter("shape", "dtype", "device", "requires_grad")
"""What tells the form of a computed tensor."""

HOOKS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_hook",
)
"""Methods that let a module call a function besides its own."""

VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
"""Types of PyTorch whose objects are compared by value."""

REQUIRES_GRAD = Tensor.requires_grad.__get__
"""It is quicker than ``x.requires_grad`` of a parameter, which is watched while programs record."""

OF_NUMPY = frozenset(
    {
        *(torch.float32, torch.float64, torch.bool, torch.uint8),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
    }
)
"""Types of numbers whose tensors and arrays of NumPy share memory."""

AS_NUMBERS = (torch.int64, torch.bool)
"""Types of numbers that are the same as numbers of Python, and are recorded so."""

MANY_WEIGHTS = 512
"""Each call looks whether a model has the weights of before, unless it has more of them."""

FEW_TIMES = 8
"""So often a run finds out anew what stands for a function or model in keys, before it gives that up."""

FEW = 256
"""Modules that are kept beyond a run."""


class Outside(threading.local):
    """The modes of PyTorch that the run in this thread began in; launches run in them.

    Attributes
    ----------
    modes : Modes
        Whether gradients are recorded, and what autocast does.
    inference : bool
        Whether it began in inference mode.
    keys : tuple
        What PyTorch's dispatcher had included and excluded.
    """

    def __init__(self) -> None:
        self.set(*self.now())

    @staticmethod
    def now() -> tuple[Modes, bool, tuple[Any, Any]]:
        """Return the modes of this thread now; see the attributes."""
        keys = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
        return Modes.now(), torch.is_inference_mode_enabled(), keys

    def set(self, modes: Modes, inference: bool, keys: tuple[Any, Any]) -> None:
        """Set the attributes."""
        self.modes, self.inference, self.keys = modes, inference, keys

    def begin(self) -> tuple[Modes, bool, tuple[Any, Any]]:
        """Begin a run in the modes of now; return those of the run before, for `set` where it ends."""
        before = self.modes, self.inference, self.keys
        self.set(*self.now())
        return before


OUTSIDE = Outside()

IS_EXCLUDED = torch._C._dispatch_tls_is_dispatch_key_excluded
AUTOGRAD = torch._C.DispatchKey.ADInplaceOrView
"""What PyTorch's dispatcher leaves out in the middle of a function, and what asks for it."""

NOTHING = contextlib.nullcontext()
"""The context of a read in the modes of the run."""


def stood_for(x: Any) -> Any:
    """Return what a `Written` or settled tensor stands for, and anything else as it is.

    What one run has left may be written into by the next: then a settled tensor stands for a written one.
    """
    while type(x) in (Written, Settled):
        x = x.pending if type(x) is Written else x.value
    return x


class TorchRecorder(LazyRecorder):
    """Records the calls of one plain program in PyTorch, and keeps what it has learnt of each kind of call.

    Parameters
    ----------
    fn : callable
        The program. The parameters and buffers of a module are the same for all examples.

    Attributes
    ----------
    depth : int
        How many function modes PyTorch has on its stack in a context of `beginning`, with that one; else 0.
    """

    packages = ("torch",)
    walks_stacks = True
    times_backward = True
    finds_cells = loops_over_arguments = True
    by_hand = ADVISED
    names_of_gradients = frozenset({"backward", "grad", "register_hook", "retain_grad"})
    own_contexts = (
        *(torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode),
        *(torch.autocast, torch.amp.autocast, torch.cuda.amp.autocast, torch.cpu.amp.autocast),
        *(torch.profiler.record_function, torch.autograd.profiler.record_function),
    )
    settings = {  # noqa: RUF012 - declared as a ClassVar where it comes from
        "set_default_dtype": torch.get_default_dtype,
        "set_default_device": torch.get_default_device,
        "use_deterministic_algorithms": lambda: (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        ),
        "set_num_threads": torch.get_num_threads,
        "set_float32_matmul_precision": torch.get_float32_matmul_precision,
        "set_printoptions": lambda: tuple(vars(torch._tensor_str.PRINT_OPTS).values()),
        **dict.fromkeys(HOOKS, lambda: RemovableHandle.next_id),
    }

    def __init__(self, fn: Any) -> None:
        super().__init__(Pending, Settled, ANSWERS, PROBES, ALARMS, Tensor, OF_FORMS)
        self.plain_types = frozenset({Tensor, nn.Parameter, *VALUES})
        self.owner = owner_of(fn, fn)
        self.called_before: dict[int, Called] = {}
        self.loosely_before: dict[int, CalledLoosely] = {}
        self.names: dict[int, str] = {}
        self.proved: set[Hashable] = set()
        self.restless: dict[int, Any] = {}
        self.stamped_again: Counter[int] = Counter()
        self.not_whole: dict[Hashable, Any] = {}
        self.changers: dict[int, frozenset[str]] = {}
        self.depth = 0
        self.module_kinds: dict[type[nn.Module], tuple[bool | None, bool, bool]] = {}
        self.filled: dict[int, tuple[Any, list[weakref.ref[Any]]]] = {}

    def kind_of_module(self, kind: type[nn.Module]) -> tuple[bool | None, bool, bool]:
        """Return whether a class of modules is a cell, one of `LAYERS`, made by torch.compile; keep that.

        The first is False for a cell, True for one of rows, and None for all others.
        """
        rows = getattr(kind, CELL, None)
        is_compiled = any(x.__module__.startswith("torch._dynamo.") for x in kind.__mro__)
        found = self.module_kinds[kind] = rows, rows is None and kind in LAYERS, is_compiled
        return found

    def flatten(self, x: Any) -> tuple[list[Any], Any]:
        leaves, structure = super().flatten(x)
        return [stood_for(y) for y in leaves], structure

    @contextlib.contextmanager
    def recording(self, same: Iterable[Any]) -> Iterator[None]:
        if isinstance(self.owner, nn.Module):
            self.shared = {id(x): x for x in weights_of(parts_of(self.owner))}
        if len(self.known) > MANY:
            self.known, self.called_before, self.not_whole, self.array_forms = {}, {}, {}, {}
            self.earlier, self.loosely_before, self.proved = {}, {}, set()
        self.keep_for_later()
        for met in (
            self.stamps,
            self.loose,
            self.whole,
            self.restless,
            self.stamped_again,
            self.changers,
            self.filled,
        ):
            met.clear()
        self.module_kinds.clear()
        versions = VERSIONS.begin({})
        model, VERSIONS.model = VERSIONS.model, self.shared if isinstance(self.owner, nn.Module) else None
        outside = OUTSIDE.begin()
        try:
            with PATCHES.applied(), TRANSFORMS.applied():
                yield
        finally:
            leave_guards()
            VERSIONS.begin(versions)
            VERSIONS.model = model
            OUTSIDE.set(*outside)

    def tracing(self, recording: Recording) -> contextlib.AbstractContextManager[Any]:
        for part in recording.reached(self.owner):
            if isinstance(part, nn.Module):
                for module in part.modules():
                    self.shares(module)
        return tracing()

    @contextlib.contextmanager
    def beginning(self) -> Iterator[None]:
        with beginning():
            depth, self.depth = self.depth, torch._C._len_torch_function_stack()
            try:
                yield
            finally:
                self.depth = depth

    def modules_in(self, x: Any) -> Iterable[Any]:
        if not isinstance(x, nn.Module):
            return []
        modules = [*x.modules()]
        hooks = [
            hook
            for part in modules
            for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
        ]
        return [*modules, *hooks]

    def refuse_constant(self, x: Any) -> None:
        if isinstance(x, Tensor) and not is_pending(x) and x.requires_grad and not self.is_shared(x):
            refuse_in_trace("needs a gradient, and is no parameter or buffer of the model")

    def must_loop(self) -> bool:
        """Return whether this runs inside of what sees each function of a program, or wraps its tensors.

        That is ``torch.func.grad`` and the like, forward-mode derivatives, and a `TorchFunctionMode`.
        """
        is_wrapped = functorch.peek_interpreter_stack() is not None
        return is_wrapped or forward_ad._current_level >= 0 or sees_functions()

    def time_backward(
        self,
        looped: Sequence[Any],
        batched: Sequence[Any],
        now: Callable[[], float],
        note: Callable[[float, float], None],
    ) -> None:
        """Time the backward pass through results; see the method of `LazyRecorder`."""
        time_backward(self.flatten(looped)[0], self.flatten(batched)[0], now, note)

    def apart(self) -> contextlib.AbstractContextManager[Any]:
        if VERSIONS.others:
            self.refuse_others()
        # A function of PyTorch that asks for a number, as torch.tensor([x]), has autograd off meanwhile.
        inside = IS_EXCLUDED(AUTOGRAD)
        outside = self.outside(inside) if inside or Modes.now() is not OUTSIDE.modes else NOTHING
        # A read goes through `beginning`, and PyTorch takes that off its stack for as long.
        is_off = torch._C._len_torch_function_stack() < self.depth
        return in_both(outside, beginning()) if is_off else outside

    @contextlib.contextmanager
    def outside(self, inside: bool) -> Iterator[None]:
        """Return a context in which the modes of the run are in force.

        ``inside`` says that PyTorch's dispatcher is in the middle of a function.
        """
        guard = torch._C._ForceDispatchKeyGuard(*OUTSIDE.keys) if inside else NOTHING
        with guard, OUTSIDE.modes.applied():
            yield

    def refuse_others(self) -> None:
        """Raise `RecordError` if an example waits while a module of the program has other weights.

        Other examples would meet them. A copy of a module, which one example has made, may have them.
        """
        others = [module for module, weights in VERSIONS.others.values() if weights.are_now()]
        if not others:
            return
        recording = recording_of()
        parts = [x for x in recording.reached(self.owner) if isinstance(x, nn.Module)]
        own = {id(module) for part in parts for module in part.modules()}
        for module in others:
            if id(module) in own:
                raise refusal(
                    f"A value is read while a {type(module).__name__}, which the examples share, has the "
                    "weights of one example: others would meet them.",
                    "read it after functional_call, or call a copy of the module that the example makes.",
                )

    def dispatch_unknown(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_operator = type(func) in OPERATORS
        with staying(recording_of(), IN_OPERATOR) if is_operator else contextlib.nullcontext():
            return self.dispatch_new(func, args, kwargs)

    def dispatch_new(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do what `dispatch_unknown` does, of which this is the body."""
        if kwargs.get("out") is not None:
            return written_to(func, args, kwargs)
        if kwargs.get("inplace"):
            if "dropout" in func.__name__ and kwargs.get("training") is False:  # it does nothing
                return args[0]
            return changed(func, func, args, kwargs, {**kwargs, "inplace": False})
        other = out_of_place(func)
        if other is not None:
            return changed(func, other, args, kwargs, kwargs)
        return self.glue(func, args, kwargs)

    def glue(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of a function of PyTorch; return what stands for its result.

        If it needs values that are not computed yet, it is `computed_by_values`.
        """
        try:
            return self.recorded(recording_of(), None, func, args, kwargs)
        except ValuesNeeded as error:
            return computed_by_values(func, args, kwargs, error)

    def call(
        self, recording: Recording, fn: Any, rows: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            return self.recorded(recording, RowsCell if rows else CellCall, fn, args, kwargs)
        except OtherWeights:
            return fn(*args, **kwargs)

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

    def training(self, owners: Sequence[Any]) -> Hashable:
        """Return ``training`` of all modules of these owners, in order, and what else decides on traces.

        That is which modules they are, their hooks, and which parameters and buffers they have: objects,
        shapes, dtypes, devices, and which need gradients.
        """
        return tuple(
            [
                (
                    number_of(module),
                    getattr(module, "training", False),
                    *module._forward_hooks,
                    None,
                    *module._forward_pre_hooks,
                    None,
                    *module._backward_hooks,
                    *map(id, module._parameters.values()),
                    *Weights([module]).marks,
                )
                for module in modules_in_order(owners)
            ]
        )

    def key_of(self, x: Any, operands: list[Tensor]) -> Hashable:
        kind = type(x)
        if kind is Tensor and id(x) not in self.shared:
            operands.append(x)
            return self.form_of(x)
        if kind is Written or kind is Settled:
            return self.keys_of([stood_for(x)], operands)
        if isinstance(x, Tensor):
            if self.is_shared(x):
                VERSIONS.refuse_changed(x)
                return id(x), REQUIRES_GRAD(x)
            operands.append(x)
            return self.form_of(x)
        if kind is FunctionType:
            VERSIONS.refuse_rebound(x)
            weights = VERSIONS.weights_around(x)
            key = x, weights.identity
            if VERSIONS.stays(x):
                self.stamp(self.stamps, x, key, weights)
                self.stamp(self.loose, x, key, weights, ATTRIBUTE_SETS.parts)
            return key
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

    def stamp(
        self,
        stamps: dict[int, Stamp],
        x: Any,
        key: Hashable,
        weights: Weights,
        counter: SetCounts = ATTRIBUTE_SETS,
    ) -> None:
        """Put a `Stamp` into ``stamps``: later calls of this run take ``key`` for ``x`` as it is.

        It holds while ``counter`` does not grow, until the program gives a module another weight.
        ``weights`` are those of the modules that ``x`` can reach. A model with more than 512 weights
        gets no stamp.
        """
        if len(weights.tensors) > MANY_WEIGHTS:
            return
        tables = [*weights.tables, *weights.part_tables]
        stamps[id(x)] = Stamp(x, key, counter, tables, [*weights.tensors, *weights.parts])

    def called(self, kind: type[Called], module: nn.Module) -> Called:
        """Return a module as a ``kind``, `Called` or `Layer`: the same object until the module changes.

        Raises `OtherWeights` if it has weights that are no parameters.
        """
        known = VERSIONS.called.get(id(module))
        if known is not None:
            found, beyond = known
            if type(found) is kind and found.is_now():
                if beyond is not None:
                    beyond.refuse_changed(module)
                return found
        weights = Weights(parts_of(module))
        if weights.are_others():
            VERSIONS.others[id(module)] = module, weights
            raise OtherWeights
        found = kind(module, weights)
        before = self.called_before.get(id(module))
        if before == found:  # keys of earlier runs have this one, and are compared faster so
            found = before.noted(found.sets)
        # With own=True each run calls new copies of the modules, which no later run will meet.
        loosely = CalledLoosely(found)
        if self.loosely_before.get(id(module)) == loosely:
            loosely = self.loosely_before[id(module)]
        if len(self.called_before) < FEW:
            self.called_before[id(module)] = found
            self.loosely_before[id(module)] = loosely
        self.stamp(self.loose, module, loosely, found.weights, ATTRIBUTE_SETS.parts)
        beyond = found.beyond()
        if beyond is not None:
            beyond.refuse_changed(module)
        VERSIONS.called[id(module)] = found, beyond
        if beyond is None:
            self.stamp(self.stamps, module, found, found.weights)
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
        """Note that the buffers of ``module`` are the same for all examples, as its parameters are.

        A pending one is not.
        """
        for x in module._buffers.values():
            if x is not None and not is_pending(x):  # an example may have set one that is its own
                self.shared[id(x)] = x

    def is_shared(self, x: Any) -> bool:
        """Return whether a tensor is the same for all examples: a parameter, or a buffer of the program."""
        # Whether something is a parameter takes longer to ask.
        return id(x) in self.shared or (type(x) is not Tensor and isinstance(x, nn.Parameter))

    def own_row(self, recording: Recording, x: Any) -> Any:
        if not recording.is_trace:
            if recording.takes_host is None:
                recording.note_takes_host(computes_on_cpu(recording.fold))
            if recording.takes_host and type(x) is Tensor:
                dtype = x.dtype
                try:
                    if dtype in AS_NUMBERS and x.numel() == 1:
                        return x.item()  # it needs no memory of its own, half of the time of a leaf
                    if dtype in OF_NUMPY and not (x.requires_grad or changes_contents(recording)):
                        return x.numpy()[None]  # the fold copies arrays of NumPy itself
                except (TypeError, RuntimeError):  # a sparse tensor, or one without values
                    return torch.stack((x,))
            return torch.stack((x,))  # a copy, with one axis more, in one step
        if x.requires_grad:
            refuse_in_trace("needs a gradient, and is no parameter or buffer of the model")
        if x.dtype == torch.bfloat16:
            refuse_in_trace("has a dtype that NumPy does not know")
        return torch.stack((x,)).numpy(force=True)

    def version_of(self, x: Any) -> int:
        x = stood_for(x)
        return x.version if type(x) is Pending else version_now(x)

    def learn(
        self,
        recording: Recording,
        maker: type[RowCall] | None,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        operands: Sequence[Tensor],
    ) -> KnownCall:
        call, leaves = self.new_call(recording, maker or RowCall, func, args, kwargs)
        forms, device = self.forms_of(operands)
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

    def learn_again(self, recording: Recording, before: KnownCall, *called: Any) -> KnownCall:
        call: Any = before.call
        return before if call.is_as_before() else super().learn_again(recording, before, *called)

    def new_call(
        self,
        recording: Recording,
        maker: type[RowCall],
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> tuple[Any, list[Any]]:
        """Return a new call of the class ``maker``, and the arguments that its key may have by ``id``.

        Operands are none of these, and would keep the memory of their run.
        """
        leaves, structure = self.flatten((args, dict(kwargs)))
        places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and not self.is_shared(x)]
        kept = [x.copy() if type(x) is np.ndarray else x for x in leaves]
        call = maker(func, structure, kept, places)
        if isinstance(self.owner, nn.Module):
            call.of_model = [x for x in call.leaves if isinstance(x, nn.Parameter) and id(x) in self.shared]
        call.proved, call.recorder = self.proved, self
        if isinstance(func, Called):
            call.named(self.name_of(recording, func.module))
        for place in places:
            leaves[place] = None
        return call, leaves

    def forms_of(self, operands: Sequence[Tensor]) -> tuple[list[TensorForm], torch.device]:
        """Return the forms of operands, and the device that they lie on."""
        forms = [x.form if isinstance(x, Pending) else self.form_of(x) for x in operands]
        return forms, max(forms, key=lambda form: len(form.shape) > 0).device  # a number may lie elsewhere

    def changers_of(self, module: nn.Module) -> frozenset[str]:
        """Return the names of attributes of a module that change a container; see `changers_of`."""
        if id(module) not in self.changers:
            self.changers[id(module)] = changers_of(module.modules())
        return self.changers[id(module)]

    def stays(self, x: Any) -> bool:
        if id(x) in self.restless or not (type(x) is FunctionType or isinstance(x, nn.Module)):
            return False
        text = REFUSALS.text
        try:
            self.key_of(x, [])
        except (OtherWeights, RecordError):
            REFUSALS.put_back(text)
        self.restless[id(x)] = x
        if self.stamped(x) is None or self.stamped_again[id(x)] > FEW_TIMES:
            return False
        self.stamped_again[id(x)] += 1
        del self.restless[id(x)]
        return True

    def find(
        self,
        recording: Recording,
        key: tuple[Any, ...],
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[Any],
    ) -> tuple[KnownCall, bool] | None:
        cell: Any = recording.found and recording.found.cells[func]
        if cell.reason is not None or not operands or key in self.not_whole:
            return None
        known = self.known.get(key)
        if known is not None and known.call.way == BY_ROWS:
            cell.give_up("its calls cannot run together")
            return None
        if known is None:
            call, leaves = self.new_call(recording, FoundCall, func, args, kwargs)
            call.cell, call.given = cell, (*args, *kwargs.values())
            call.operands, call.device = self.forms_of(operands)
            call.backend = recording.backend
        else:
            call, leaves = known.call, known.held
        try:
            sequence, guard = tried(call, recording, self)
        except (Crooked, NotASequence, CellReads) as reason:
            cell.give_up(str(reason) or "it reads a value")
            return None
        except Exception:  # noqa: BLE001 - the function itself raises it, or says what to do
            self.not_whole[key] = leaves
            return None
        stores: Any = recording.stores
        name = next((x for x in sorted(guard.names) if stores.may_store(x) or x in stores.modes), None)
        if name is not None:
            cell.give_up(f"the program stores to {name!r}, which it names")
            return None
        name = replaced_in(call.leaves, stores)
        if name is not None:
            cell.give_up(f"the program replaces {name!r} of a module that it gets")
            return None
        if stores.modes or stores.may_store("training"):
            cell.give_up("the program changes modes of modules")
            return None
        if stores.settings:
            cell.give_up("the program changes settings, or the class of an object")
            return None
        held = container_in(call.leaves, guard.around, guard.names) if stores.contents else None
        # A parameter that changes, and so its views, is refused in any call; what was made inside stays.
        owners = [x if x._base is None else x._base for x, _ in sequence.computed_with]
        others = [x for x in owners if not isinstance(x, nn.Parameter)]
        has_constants = bool(sequence.sequence.constants and others)
        if held is not None or (stores.arrays and has_constants):
            what = "what it computes with" if held is None else f"what {held!r} holds"
            cell.give_up(f"the program may change {what}")
            return None
        if known is not None and sequence.told != call.told:
            del self.known[key]
            return self.find(recording, key, func, args, kwargs, operands)
        if known is None:
            call.describe(recording, sequence)
            known = self.known[key] = known_found(call, sequence, leaves)
            cell.note_kind()
        VERSIONS.sequences[id(call)] = sequence
        return known, sequence.begins_with_layers(with_weights=bool(self.records_weights))

    def form_of(self, x: Tensor) -> TensorForm:
        """Return the form of a computed tensor; with its strides where examples have random streams.

        In which order numbers are drawn depends on strides.
        """
        if recording_of().seed is not None:
            return form_of_tensor(x, with_strides=True)
        key: Any = OF_FORMS(x)
        found = self.array_forms.get(key)
        if found is None:
            found = self.array_forms[key] = form_of(*key)
        return found

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

    def computed(self, form: TensorForm, rows: Any) -> Any:
        return first_of(rows, form.requires_grad)

    def on_host(self, form: Any, value: Any) -> Any:
        if type(value) is np.ndarray and form.dtype in OF_NUMPY and form.device.type == "cpu":
            found = torch.from_numpy(value)  # a third of what as_tensor takes
        else:
            found = torch.as_tensor(value, dtype=form.dtype, device=form.device)
        return found if found.shape == form.shape else found.reshape(form.shape)

    def kept(self, form: TensorForm, value: Any) -> Any:
        """Return the value as it is; `read` makes a tensor of it where one is asked for."""
        return value

    def read(self, x: Any) -> Any:
        found = super().read(x)
        if not isinstance(found, Tensor):
            found = self.on_host(x.form, found)
            self.note_value(x, found)
        return found

    def note_filled(self, recording: Recording, x: Tensor) -> None:
        """Note that the example whose code runs now fills a tensor part by part; see `Filling`."""
        made = recording.made  # kept, so that no other list gets its ``id``
        self.filled.setdefault(id(made), (made, []))[1].append(weakref.ref(x))

    def complete(self, recording: Recording) -> None:
        for found in self.filled.pop(id(recording.made), (None, ()))[1]:
            x = found()
            if type(x) is Written:
                with_pending(x)

    def settle(self, pending: Pending, rows: Any) -> None:
        settle(pending, rows)
        give_back(pending)

    def join(self, values: Sequence[Any], how: str) -> Any:
        if not all(isinstance(x, Tensor) for x in values):
            return [*values]
        return torch.stack(list(values)) if how == "stack" else torch.cat(list(values))

    def may_join(self, form: TensorForm, how: str) -> bool:
        return how == "stack" or (how == "cat" and len(form.shape) > 0)

    def join_rows(self, how: str, form: TensorForm, rows: Tensor) -> Tensor:
        own = rows if form.requires_grad else rows.detach()
        return (own if how == "stack" else own.flatten(0, 1)).clone(memory_format=torch.contiguous_format)


def sees_functions() -> bool:
    """Return whether a `TorchFunctionMode` is entered, other than those of default devices."""
    places = range(torch._C._len_torch_function_stack())
    return any(type(torch._C._get_function_stack_at(i)) is not DeviceContext for i in places)


IN_OPERATOR = "a function of torch.ops reads the value: no example may leave compiled code of its kind"

NUMBERS: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()
"""The numbers that modules have in the modes of traces."""

COUNT = itertools.count()


def number_of(module: nn.Module) -> int:
    """Return a number that no other module of this process has, nor had."""
    found = NUMBERS.get(module)
    if found is None:
        found = NUMBERS[module] = next(COUNT)
    return found


@contextlib.contextmanager
def in_both(
    one: contextlib.AbstractContextManager[Any], other: contextlib.AbstractContextManager[Any]
) -> Iterator[None]:
    """Return a context that enters two others, one after the other."""
    with one, other:
        yield


def computes_on_cpu(fold: Any) -> bool:
    """Return whether a fold puts arrays of NumPy on the CPU."""
    if fold._backend is None:  # it would take them for what decides the framework
        return False
    device = torch.get_default_device() if fold._device is None else torch.device(fold._device)
    return device.type == "cpu"


def changes_contents(recording: Recording) -> bool:
    """Return whether the program may write into a computed tensor, as its code says.

    PyTorch keeps that an array of NumPy has seen the memory of a tensor, which then cannot stand for a
    pending one; see `is_alone`.
    """
    return bool((recording.stores or stores_of(recording)).arrays)


def refuse_in_trace(what: str) -> NoReturn:
    """Raise `RecordError`: a computed tensor that ``what``, as "needs a gradient", cannot be in a trace."""
    raise RecordError(
        f"A tensor that {what} is an operand or a result of a trace.",
        "run the program, which records it each time.",
    )
