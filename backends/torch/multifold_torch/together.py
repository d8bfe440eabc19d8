"""Modules of one form, called as one, each with rows and parameters of its own.

Rows are laid side by side, as many for each module, and parameters of one name become one tensor: linear
layers are a product of batches of matrices then, and other modules run under `torch.vmap`. PyTorch hands
gradients of the one tensor on to each module's own.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, final

import numpy as np
import optree
import torch

from multifold.backend import Groups, Together
from multifold_torch.forms import DRAWN, SeenModules, TorchForm, places_of
from multifold_torch.trials import GLOBAL_HOOKS

MOST_WASTE = 4
"""Modules are padded to the rows of the one that has most, as long as that makes so many times as many."""

DTYPE = operator.attrgetter("dtype")

HOOKS_OF_CALLS = tuple(name for name in GLOBAL_HOOKS if "registration" not in name)
"""The hooks for calls and gradients of all modules, by name in `torch.nn.modules.module`."""

UNKNOWN: weakref.WeakSet[type] = weakref.WeakSet()
"""Classes of modules that do what `torch.vmap` does not know, as to look at values."""

FEWEST = 8
"""So many modules, or more, run under `torch.vmap`, which takes as long as calls of some of them."""

MOST_NUMBERS = 1 << 18
"""So many numbers of parameters are copied to one tensor on a CPU: more do not stay in its caches."""


def together(forms: Sequence[TorchForm], groups: Groups) -> Together | None:
    """Return what calls modules of equal forms as one; None where that takes longer than to call each."""
    side = max(groups.sizes)
    tensors = [own[name] for own, name in forms[0].places]
    if not tensors:  # any of the modules does to a row what the others do
        return SameTogether(forms, Layout(groups, side))
    steps = steps_of(forms[0].module())
    fewest = 2 if steps is not None else FEWEST
    if len(forms) < fewest or forms[0].kind in UNKNOWN or (steps is None and looks_up(forms[0].module())):
        return None
    size = sum(x.numel() for x in tensors)
    most = max(1, MOST_NUMBERS // size) if tensors[0].is_cpu else len(forms)
    if side * len(forms) > MOST_WASTE * sum(groups.sizes) or len(forms) > 2 * most:
        return SomeTogether(forms, groups, most, fewest)
    return one_together(forms, groups, steps)


def one_together(forms: Sequence[TorchForm], groups: Groups, steps: Sequence[Step] | None) -> Together:
    """Return what calls all these modules as one; ``steps`` are those of `steps_of`."""
    layout = Layout(groups, max(groups.sizes))
    return TorchTogether(forms, layout) if steps is None else ChainTogether(forms, layout, steps)


@final
class SomeTogether(Together):
    """Calls modules of equal forms by several calls: those with about as many rows together.

    Parameters
    ----------
    forms : sequence of TorchForm
        Those of the modules.
    groups : Groups
        Which rows belong to which module.
    most, fewest : int
        How many modules are called as one, and how many at least; fewer are called one by one.
    """

    def __init__(self, forms: Sequence[TorchForm], groups: Groups, most: int, fewest: int) -> None:
        sizes = np.array(groups.sizes)
        steps = steps_of(forms[0].module())
        by_size = np.argsort(-sizes, kind="stable")
        firsts = np.cumsum(sizes) - sizes
        self.calls: list[tuple[Together | TorchForm, int]] = []
        for some in alike_in_size(sizes, by_size.tolist(), most):
            if len(some) >= fewest:
                own = Groups([groups.sizes[i] for i in some], None)
                self.calls.append((one_together([forms[i] for i in some], own, steps), sum(own.sizes)))
            else:
                self.calls += [(forms[i], groups.sizes[i]) for i in some]
        rows = np.concatenate([np.arange(firsts[i], firsts[i] + sizes[i]) for i in by_size])
        there = rows if groups.order is None else groups.order[rows]
        self.there, self.here = torch.from_numpy(there), torch.from_numpy(np.argsort(there))

    def holds(self) -> bool:
        return all(call.holds() for call, _ in self.calls)

    def __call__(self, operands: Sequence[Any], static: Mapping[str, Any]) -> Any | None:
        leaves, structure = optree.tree_flatten(list(operands), none_is_leaf=True)
        sizes = [size for _, size in self.calls]
        parts = [
            x.index_select(0, self.there.to(x.device)).split(sizes)
            if isinstance(x, torch.Tensor)
            else [x] * len(sizes)
            for x in leaves
        ]
        results = []
        for (call, _), *own in zip(self.calls, *parts, strict=True):
            given = optree.tree_unflatten(structure, own)
            module: Any = call.module() if isinstance(call, TorchForm) else None
            found = call(given, static) if isinstance(call, Together) else module(*given, **static)
            if found is None:
                return None
            results.append(found)
        here = self.here
        return optree.tree_map(lambda *xs: torch.cat(xs).index_select(0, here.to(xs[0].device)), *results)


def alike_in_size(sizes: np.ndarray, by_size: Sequence[int], most: int) -> Iterator[list[int]]:
    """Yield modules that are called together, by number: at most ``most``, padded to no more than twice.

    ``by_size`` are all modules, those with most rows first.
    """
    some: list[int] = []
    for i in by_size:
        if some and (len(some) >= most or 2 * sizes[i] < sizes[some[0]]):
            yield some
            some = []
        some.append(i)
    yield some


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
        self.seen = SeenModules.of([form.seen for form in forms])
        self.module = forms[0].module
        self.spare: list[Skeleton] = []
        self.kind = forms[0].kind
        self.modules = [form.module for form in forms]
        self.places = [
            ([form.places[i][0] for form in forms], name) for i, (_, name) in enumerate(forms[0].places)
        ]

    def holds(self) -> bool:
        kind = self.kind
        return all(type(module()) is kind for module in self.modules) and self.seen.holds()

    def __call__(self, operands: Sequence[Any], static: Mapping[str, Any]) -> Any | None:
        stacked = self.stacked()
        if stacked is None:
            return None
        leaves, structure = optree.tree_flatten(list(operands), none_is_leaf=True)
        if are_mixed([x for x in (*leaves, *stacked) if isinstance(x, torch.Tensor)]):
            return None
        laid = [self.layout.laid(x) if isinstance(x, torch.Tensor) else x for x in leaves]
        axes = [0 if isinstance(x, torch.Tensor) else None for x in laid]
        versions = [x._version for x in stacked]
        try:
            skeleton = self.spare.pop()  # one for each thread that calls them at once
        except IndexError:
            found = Skeleton.of(self.module())
            if found is None:
                UNKNOWN.add(self.kind)
                return None
            skeleton = found

        def run(tensors: list[torch.Tensor], args: list[Any]) -> Any:
            return skeleton(tensors, optree.tree_unflatten(structure, args), static)

        try:
            found = torch.vmap(run, in_dims=(0, axes))(stacked, laid)
        except Exception as error:  # noqa: BLE001 - what `vmap` does not know, each module does
            (DRAWN if "randomness" in str(error) else UNKNOWN).add(self.kind)
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

        None where the modules came to differ in sizes, dtypes or devices, or where PyTorch has hooks for
        the calls of all modules.
        """
        if any(getattr(torch.nn.modules.module, name) for name in HOOKS_OF_CALLS):
            return None
        found = []
        with normal():
            for owns, name in self.places:
                try:
                    tensors = list(map(operator.itemgetter(name), owns))
                    if len({*map(DTYPE, tensors)}) > 1:
                        return None
                    found.append(torch.stack(tensors))
                except (AttributeError, KeyError, RuntimeError, TypeError):  # other sizes, or none
                    return None
        return found


def are_mixed(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether tensors of one kind of numbers differ in dtype, or may.

    Layers have rules for it, and vmap has others: a number of each module is an array to it.
    """
    dtypes = {x.dtype for x in tensors}
    kinds = [(x.is_floating_point, x.is_complex) for x in dtypes if x is not torch.bool]
    return len(kinds) > len({*kinds}) or torch._C._is_any_autocast_enabled()


def normal() -> contextlib.AbstractContextManager[Any]:
    """Return a context whose tensors count their changes, in inference mode, too."""
    if not torch.is_inference_mode_enabled():
        return contextlib.nullcontext()
    stack = contextlib.ExitStack()
    stack.enter_context(torch.inference_mode(False))
    stack.enter_context(torch.no_grad())
    return stack


class Skeleton:
    """A copy of a module without parameters and buffers, which it is given for each call."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.places = places_of(module.modules())

    @classmethod
    def of(cls, module: torch.nn.Module) -> Skeleton | None:
        """Copy a module; return None where that fails, or gives parts of the module itself."""
        tensors = [*module.parameters(), *module.buffers()]
        try:
            found = copy.deepcopy(module, {id(x): x for x in tensors})
        except Exception:  # noqa: BLE001 - the user's `__deepcopy__` may raise anything
            return None
        own = {id(part) for part in module.modules()}
        return None if any(id(part) in own for part in found.modules()) else cls(found)

    def __call__(self, tensors: Sequence[torch.Tensor], operands: Sequence[Any], static: Any) -> Any:
        """Return what the module returns with these parameters and buffers, in their order."""
        for (own, name), x in zip(self.places, tensors, strict=True):
            own[name] = x
        return self.module(*operands, **static)

    def empty(self) -> None:
        """Drop the parameters and buffers of the last call."""
        for own, name in self.places:
            own[name] = None


@final
class SameTogether(TorchTogether):
    """Calls one of some modules of equal forms that have no parameters: all do the same."""

    def __call__(self, operands: Sequence[Any], static: Mapping[str, Any]) -> Any | None:
        return self.module()(*operands, **static)  # type: ignore[misc]


@final
class ChainTogether(TorchTogether):
    """Calls chains of layers whose batched calls are known, such as linear ones, step by step.

    It takes the steps that `steps_of` has found for one of the modules, besides what `TorchTogether` takes.
    """

    def __init__(self, forms: Sequence[TorchForm], layout: Layout, steps: Sequence[Step]) -> None:
        super().__init__(forms, layout)
        self.steps = steps
        self.looks_up = embedding in steps

    def __call__(self, operands: Sequence[Any], static: Mapping[str, Any]) -> Any | None:
        x = operands[0]
        least = 1 if self.steps[:1] == [embedding] else 2
        is_rows = isinstance(x, torch.Tensor) and x.dim() >= least
        if static or len(operands) != 1 or not is_rows or is_patched():
            return None if self.looks_up else super().__call__(operands, static)
        stacked = self.stacked()
        if stacked is None:
            return None
        if are_mixed([x, *stacked]):
            return None
        x, tensors = self.layout.laid(x), iter(stacked)
        for step in self.steps:
            x = step(x, tensors)
        return self.layout.back(x)


def own_functions() -> list[Any]:
    """Return what the layers of chains call now, which a program may replace."""
    layers = [kind.forward for kind in TAKEN]
    functional = torch.nn.functional
    return [*layers, functional.linear, functional.layer_norm, functional.embedding]


def is_patched() -> bool:
    """Return whether the layers of `TAKEN` call something else than PyTorch's own functions."""
    return own_functions() != OWN_FUNCTIONS


Step = Callable[[torch.Tensor, Iterator[torch.Tensor]], torch.Tensor]
"""One layer of each module: its operand is ``(modules, rows, *s)``; it takes its stacked parameters."""

BY_NUMBERS = (
    *(torch.nn.ReLU, torch.nn.Tanh, torch.nn.Sigmoid, torch.nn.GELU, torch.nn.SiLU, torch.nn.ELU),
    *(torch.nn.LeakyReLU, torch.nn.Softplus, torch.nn.Identity, torch.nn.ReLU6, torch.nn.Hardtanh),
    *(torch.nn.Mish, torch.nn.SELU, torch.nn.CELU, torch.nn.LogSigmoid, torch.nn.Softsign),
)
"""Layers without parameters that compute each number of their result from one number."""


def steps_of(module: torch.nn.Module) -> list[Step] | None:
    """Return what linear layers, layer norms and activations in sequence do; None for other modules.

    Each step is that of many modules, whose parameters follow in the order of `places_of`. None, too, if
    that has others than the steps take, in their order.
    """
    layers = layers_in(module)
    taken = [(id(x._parameters), name) for x in layers for name in TAKEN.get(type(x), ())]
    given = [(id(own), name) for own, name in places_of(module.modules())]
    if [place for place in taken if place in given] != given:
        return None
    steps = [step_of(layer) for layer in layers]
    return None if None in steps else [step for step in steps if step is not None]


TAKEN = {
    torch.nn.Linear: ("weight", "bias"),
    torch.nn.LayerNorm: ("weight", "bias"),
    torch.nn.Embedding: ("weight",),
}
"""The parameters that a step takes, in their order."""

OWN_FUNCTIONS = own_functions()


def layers_in(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the layers that a module calls one after the other: those of sequences, or itself."""
    if type(module) is torch.nn.Sequential and "forward" not in vars(module):
        return [layer for part in module for layer in layers_in(part)]
    return [module]


def step_of(module: torch.nn.Module) -> Step | None:
    """Return the step of a layer; None for one whose batched call is not known."""
    kind = type(module)
    if "forward" in vars(module):  # one of its own
        return None
    if kind is torch.nn.Linear:
        return linear if module.bias is None else linear_with_bias
    if kind is torch.nn.LayerNorm:
        affine = sum(x is not None for x in module._parameters.values())
        if affine and module.weight is None:
            return None
        return functools.partial(layer_norm, module.normalized_shape, module.eps, affine)
    if kind is torch.nn.Embedding:
        return embedding
    if kind in BY_NUMBERS and not getattr(module, "inplace", False):
        same = copy.deepcopy(module)
        return lambda x, _: same(x)
    return None


def linear(x: torch.Tensor, tensors: Iterator[torch.Tensor]) -> torch.Tensor:
    """Return what linear layers without biases return: ``(modules, *s, in) -> (modules, *s, out)``."""
    weight = next(tensors)
    found = torch.bmm(x.flatten(1, -2), weight.transpose(1, 2))
    return found if x.dim() == 3 else found.unflatten(1, x.shape[1:-1])


def linear_with_bias(x: torch.Tensor, tensors: Iterator[torch.Tensor]) -> torch.Tensor:
    """Return what linear layers return: ``(modules, *s, in) -> (modules, *s, out)``."""
    weight, bias = next(tensors), next(tensors)
    found = torch.baddbmm(bias.unsqueeze(1), x.flatten(1, -2), weight.transpose(1, 2))
    return found if x.dim() == 3 else found.unflatten(1, x.shape[1:-1])


def embedding(x: torch.Tensor, tensors: Iterator[torch.Tensor]) -> torch.Tensor:
    """Return what embeddings return: ``(modules, *s)`` integers -> ``(modules, *s, dim)``.

    Raises `IndexError` for an integer that a module has no row for: that of another module is none.
    """
    weight = next(tensors)
    modules, entries, _ = weight.shape
    if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < entries:
        raise IndexError("index out of range in self")
    first = torch.arange(0, modules * entries, entries, device=x.device)
    return torch.nn.functional.embedding(x + first.view(-1, *[1] * (x.dim() - 1)), weight.flatten(0, 1))


def looks_up(module: torch.nn.Module | None) -> bool:
    """Return whether a module has an embedding in it, for which `torch.vmap` takes rows of others."""
    return module is not None and any(
        isinstance(part, (torch.nn.Embedding, torch.nn.EmbeddingBag)) for part in module.modules()
    )


def layer_norm(
    shape: tuple[int, ...], eps: float, affine: int, x: torch.Tensor, tensors: Iterator[torch.Tensor]
) -> torch.Tensor:
    """Return what layer norms over ``shape`` return for ``x``, which is ``(modules, *s, *shape)``."""
    found = torch.nn.functional.layer_norm(x, shape, eps=eps)
    if affine:
        outer = [1] * (x.dim() - 1 - len(shape))
        weight = next(tensors)
        found = found * weight.reshape(len(weight), *outer, *shape)
        if affine > 1:
            bias = next(tensors)
            found = found + bias.reshape(len(bias), *outer, *shape)
    return found


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
        return x.reshape(self.modules, self.side, *x.shape[1:])

    def back(self, x: torch.Tensor) -> torch.Tensor:
        """Return the rows of a result in the order of the launch: ``(modules, side, *s) -> (n, *s)``."""
        x = x.flatten(0, 1)
        return x if self.here is None else x.index_select(0, self.here.to(x.device))
