"""Modules alike: modules of one form run as one, each with parameters of its own.

A form is all of a module but the values of its parameters and buffers: its class, its options, and those of
the modules in it. Rows of many modules of one form are laid side by side, as many for each module, and
parameters of one name become one tensor: linear layers are a product of batches of matrices then, and any
other module runs under `torch.vmap`. PyTorch hands gradients of the one tensor on to each module's own.

A module has no form if what it does to a row depends on more: hooks, other rows, random numbers, attributes
that it changes, or objects that may change.
"""

from __future__ import annotations

import copy
import dis
import functools
import weakref
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any, final

import numpy as np
import optree
import torch

from multifold.backend import Groups, ModuleForm, Together
from multifold.marks import mark_of
from multifold_torch.trials import GLOBAL_HOOKS, HOOKS, RESERVED

MOST_WASTE = 4
"""Modules are padded to the rows of the one that has most, as long as that makes so many times as many."""

FEWEST = 8
"""So many modules, or more, run under `torch.vmap`, which takes as long as calls of some of them."""

LARGEST = 1 << 15
MOST_NUMBERS = 3 << 17
"""On a CPU, modules of more numbers, or more numbers in all, are called one by one: to copy them takes longer."""

PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, type, BuiltinFunctionType)
"""Types of attributes that are compared by value, and never change."""

DRAWING = frozenset(
    {"bernoulli", "dropout", "alpha_dropout", "feature_alpha_dropout", "dropout1d", "dropout2d", "dropout3d"}
    | {"multinomial", "normal", "poisson", "rand", "rand_like", "randint", "randn", "randn_like", "rrelu"}
    | {"bernoulli_", "normal_", "uniform_", "exponential_", "gumbel_softmax", "randperm", "random"}
)
"""Names of functions that draw random numbers."""

WRITES = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL"})
"""Python's instructions that change an object."""


@final
class TorchForm(ModuleForm):
    """The form of a module, and where its parameters and buffers are.

    ``modules`` are the module and all those in it, each once, and ``key`` is equal for equal forms. The
    module itself is not kept.
    """

    def __init__(self, modules: Sequence[torch.nn.Module], key: Hashable) -> None:
        self.key = key
        self.kind = type(modules[0])
        self.own = [*map(vars, modules)]
        self.seen = [dict(own) for own in self.own]
        self.parts = [own["_modules"] for own in self.own if own["_modules"]]
        self.parts_seen = [dict(parts) for parts in self.parts]
        self.hooks = [own[name] for own in self.own for name in HOOKS if isinstance(own.get(name), dict)]
        named = [own[name] for own in self.own for name in ("_parameters", "_buffers")]
        self.named = [tensors for tensors in named if tensors]
        self.counts = [*map(len, self.named)]
        self.places = places_of(modules)
        self.module = weakref.ref(modules[0])

    def holds(self) -> bool:
        return (
            self.own == self.seen
            and self.parts == self.parts_seen
            and [*map(len, self.named)] == self.counts
            and not any(self.hooks)
        )


def form_of(module: Any) -> TorchForm | None:
    """Return the form of a module, None if it has none."""
    if not isinstance(module, torch.nn.Module) or isinstance(module, torch.jit.ScriptModule):
        return None
    modules = [*module.modules()]
    numbers = {id(part): i for i, part in enumerate(modules)}
    parts = []
    for part in modules:
        found = part_form(part, numbers)
        if found is None:
            return None
        parts.append(found)
    return TorchForm(modules, tuple(parts))


def part_form(part: torch.nn.Module, numbers: Mapping[int, int]) -> Hashable | None:
    """Return what modules of one form have in common in one part of them; None if it has no form.

    ``numbers`` has the number of each part of the module by its id.
    """
    kind, own = type(part), vars(part)
    options = {name: x for name, x in own.items() if name not in RESERVED}
    tensors = [*part._parameters.items(), *part._buffers.items()]
    if (
        mark_of(part) is not None
        or kind.__call__ is not torch.nn.Module.__call__
        or any(own[name] for name in HOOKS if isinstance(own.get(name), dict))
        or not all(isinstance(x, PLAIN) or is_plain_function(x) for x in options.values())
        or not all(x is None or is_plain_tensor(x) for _, x in tensors)
        or not computes(kind, part.training)
    ):
        return None
    return (
        kind,
        part.training,
        tuple([(name, type(x), x) for name, x in sorted(options.items())]),
        tuple([(name, None if x is None else (x.shape, x.dtype, x.device)) for name, x in tensors]),
        tuple([(name, numbers.get(id(x))) for name, x in part._modules.items()]),
    )


def is_plain_function(x: Any) -> bool:
    """Return whether ``x`` is a function that binds nothing, so that it does the same in each module."""
    return isinstance(x, FunctionType) and not (x.__closure__ or x.__defaults__ or x.__kwdefaults__)


def is_plain_tensor(x: Any) -> bool:
    """Return whether ``x`` is a parameter or buffer of PyTorch's own class, with sizes and strides."""
    return type(x) in (torch.Tensor, torch.nn.Parameter) and x.layout is torch.strided


@functools.lru_cache(maxsize=1024)
def computes(kind: type[torch.nn.Module], training: bool) -> bool:
    """Return whether modules of a class compute each row from it and from parameters, by all that shows.

    Not so in training for dropout and for layers of statistics of all rows; nor for a class whose code
    changes attributes or names a function that draws random numbers.
    """
    layers = torch.nn.modules
    if issubclass(kind, (layers.dropout._DropoutNd, layers.batchnorm._NormBase, torch.nn.RReLU)):
        return not training
    own = [base for base in kind.__mro__ if base.__module__.partition(".")[0] != "torch"]
    for base in own:
        for name, x in vars(base).items():
            x = getattr(x, "__func__", x)
            if isinstance(x, FunctionType) and name != "__init__":
                names, instructions = words_of(x.__code__)
                if instructions & WRITES or (training and names & DRAWING):
                    return False
    return True


def words_of(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names and the instructions of code, and of functions inside."""
    names, instructions = set(code.co_names), {x.opname for x in dis.get_instructions(code)}
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more = words_of(inner)
            names |= more[0]
            instructions |= more[1]
    return names, instructions


def together(forms: Sequence[TorchForm], groups: Groups) -> Together | None:
    """Return what calls modules of equal forms as one; None where that takes longer than to call each."""
    side, many = max(groups.sizes), len(forms)
    is_linear = forms[0].kind is torch.nn.Linear
    if side * many > MOST_WASTE * sum(groups.sizes) or not (is_linear or many >= FEWEST):
        return None
    tensors = [own[name] for own, name in forms[0].places]
    size = sum(x.numel() for x in tensors)
    if tensors and tensors[0].is_cpu and (size > LARGEST or size * many > MOST_NUMBERS):
        return None
    return (LinearTogether if is_linear else TorchTogether)(forms, Layout(groups, side))


class TorchTogether(Together):
    """Calls modules of equal forms as one, each with parameters of its own.

    Parameters
    ----------
    forms : sequence of TorchForm
        Those of the modules.
    layout : Layout
        How the rows of a launch are laid side by side.
    """

    def __init__(self, forms: Sequence[TorchForm], layout: Layout) -> None:
        self.layout = layout
        self.own = [own for form in forms for own in form.own]
        self.seen = [seen for form in forms for seen in form.seen]
        self.parts = [parts for form in forms for parts in form.parts]
        self.parts_seen = [seen for form in forms for seen in form.parts_seen]
        self.named = [named for form in forms for named in form.named]
        self.counts = [*map(len, self.named)]
        self.hooks = [hooks for form in forms for hooks in form.hooks]
        self.module = forms[0].module
        self.spare: list[Skeleton] = []
        self.fails = False
        self.places = [
            ([form.places[i][0] for form in forms], name) for i, (_, name) in enumerate(forms[0].places)
        ]

    def holds(self) -> bool:
        return (
            not any(self.hooks)
            and self.own == self.seen
            and self.parts == self.parts_seen
            and [*map(len, self.named)] == self.counts
        )

    def __call__(self, operands: Sequence[Any], static: Mapping[str, Any]) -> Any | None:
        stacked = self.stacked()
        if stacked is None or self.fails:
            return None
        leaves, structure = optree.tree_flatten(list(operands), none_is_leaf=True)
        laid = [self.layout.laid(x) if isinstance(x, torch.Tensor) else x for x in leaves]
        axes = [0 if isinstance(x, torch.Tensor) else None for x in laid]
        versions = [x._version for x in stacked]
        skeleton = self.spare.pop() if self.spare else Skeleton(self.module())

        def run(tensors: list[torch.Tensor], args: list[Any]) -> Any:
            return skeleton(tensors, optree.tree_unflatten(structure, args), static)

        try:
            found = torch.vmap(run, in_dims=(0, axes))(stacked, laid)
        except Exception:  # noqa: BLE001 - what `vmap` does not know, each module does
            self.fails = True
            return None
        finally:
            skeleton.empty()
            self.spare.append(skeleton)
        if versions != [x._version for x in stacked]:
            return None  # each module is to change its own buffers
        results, nesting = optree.tree_flatten(found, none_is_leaf=True)
        if not all(x.dim() > 1 and x.shape[1] == self.layout.side for x in results):
            return None
        return optree.tree_unflatten(nesting, [self.layout.back(x) for x in results])

    def stacked(self) -> list[torch.Tensor] | None:
        """Return a tensor for each parameter and buffer, which has those of all modules.

        None where the modules came to differ in sizes, dtypes or devices, or where PyTorch has hooks of all
        modules.
        """
        if any(getattr(torch.nn.modules.module, name) for name in GLOBAL_HOOKS):
            return None
        found = []
        for owns, name in self.places:
            tensors = [own[name] for own in owns]
            try:
                if len({x.dtype for x in tensors}) > 1:
                    return None
                found.append(torch.stack(tensors))
            except (AttributeError, RuntimeError, TypeError):  # of other sizes, on other devices, or None
                return None
        return found


class Skeleton:
    """A copy of a module without parameters and buffers, which it is given for each call."""

    def __init__(self, module: torch.nn.Module) -> None:
        tensors = [*module.parameters(), *module.buffers()]
        self.module = copy.deepcopy(module, {id(x): x for x in tensors})
        self.places = places_of(self.module.modules())

    def __call__(self, tensors: Sequence[torch.Tensor], operands: Sequence[Any], static: Any) -> Any:
        """Return what the module returns with these parameters and buffers, in their order."""
        for (own, name), x in zip(self.places, tensors, strict=True):
            own[name] = x
        return self.module(*operands, **static)

    def empty(self) -> None:
        """Drop the parameters and buffers of the last call."""
        for own, name in self.places:
            own[name] = None


def places_of(modules: Iterable[torch.nn.Module]) -> list[tuple[dict[str, Any], str]]:
    """Return where the parameters and buffers of modules are: dictionaries and names, in their order."""
    owns = [own for module in modules for own in (module._parameters, module._buffers)]
    return [(own, name) for own in owns for name, x in own.items() if x is not None]


@final
class LinearTogether(TorchTogether):
    """Calls linear layers of one size as one product of batches of matrices."""

    def __init__(self, forms: Sequence[TorchForm], layout: Layout) -> None:
        super().__init__(forms, layout)
        self.sizes = [*map(len, self.own)]

    def holds(self) -> bool:
        # A linear layer computes by its parameters only, whatever its other attributes say, unless it has
        # a `forward` of its own.
        return (
            not any(self.hooks)
            and [*map(len, self.own)] == self.sizes
            and [*map(len, self.named)] == self.counts
        )

    def __call__(self, operands: Sequence[Any], static: Mapping[str, Any]) -> Any | None:
        x = operands[0]
        if static or len(operands) != 1 or not isinstance(x, torch.Tensor) or x.dim() != 2:
            return super().__call__(operands, static)
        stacked = self.stacked()
        return None if stacked is None else self.layout.back(linear(self.layout.laid(x), *stacked))


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return what linear layers return: ``x`` is (modules, rows, in), ``weight`` (modules, out, in)."""
    if bias is None:
        return torch.bmm(x, weight.transpose(1, 2))
    return torch.baddbmm(bias.unsqueeze(1), x, weight.transpose(1, 2))


class Layout:
    """Rows of a launch side by side: as many for each module as the one with most has, some perhaps twice.

    Parameters
    ----------
    groups : Groups
        Which rows belong to which module.
    side : int
        The most rows that a module has.
    """

    def __init__(self, groups: Groups, side: int) -> None:
        self.modules = len(groups.sizes)
        self.side = side
        self.there: torch.Tensor | None = None
        self.here: torch.Tensor | None = None
        sizes = np.array(groups.sizes)
        even = bool((sizes == side).all())
        if even and groups.order is None:
            return
        order = np.arange(sizes.sum()) if groups.order is None else groups.order
        if even:
            there, here = order, np.argsort(order)
        else:
            first = np.cumsum(sizes) - sizes
            # Where a module has fewer rows, its last one fills its places.
            places = np.minimum(np.arange(side), sizes[:, None] - 1) + first[:, None]
            there = order[places.ravel()]
            here = np.empty(len(order), np.int64)
            here[order] = np.flatnonzero((np.arange(side) < sizes[:, None]).ravel())
        self.there, self.here = torch.from_numpy(there), torch.from_numpy(here)

    def laid(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of an operand side by side: ``(n, *s) -> (modules, side, *s)``."""
        if self.there is not None:
            x = x.index_select(0, self.there.to(x.device))
        return x.unflatten(0, (self.modules, self.side))

    def back(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of a result in the order of the launch: ``(modules, side, *s) -> (n, *s)``."""
        x = x.flatten(0, 1)
        return x if self.here is None else x.index_select(0, self.here.to(x.device))
