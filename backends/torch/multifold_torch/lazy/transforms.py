"""Transforms of functions, as `torch.func.grad`: one recorded call each.

A transform runs its function on tensors that PyTorch wraps: inside of it nothing may be recorded. So a call
of one while a program records is recorded whole. Its function is taken apart (`taken`), so that the calls
of all examples share a launch, which runs the transform under `torch.func.vmap`.

Programs have bound the names of `torch.func` long before, so what is replaced is what these call:
``grad(f)(x)`` calls ``grad_impl``. Jacobians and Hessians are made of such calls, and so are a few.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import optree
import torch
from torch import Tensor, nn
from torch._functorch import apis, eager_transforms
from torch._higher_order_ops import utils as higher_order
from torch.autograd import forward_ad

from multifold.lazy.current import CURRENT, refusal
from multifold.lazy.patches import Replacements
from multifold_torch.lazy.answers import holds_pending
from multifold_torch.lazy.calls import CellCall
from multifold_torch.lazy.changes import VERSIONS, CellFunction
from multifold_torch.lazy.pending import AS_CELL, version_of, with_values
from multifold_torch.lazy.taken import Maker, Putting, take_apart
from multifold_torch.lazy.weights import OtherWeights
from multifold_torch.lazy.written import is_pending

RETURN = "return what it computes: with has_aux=True a function returns more than is differentiated."
"""The hint for functions that leave something behind."""


@dataclass(frozen=True)
class Seam:
    """A function of PyTorch that a transform calls, found in its module when it is called."""

    name: str
    owner: Any
    attribute: str

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return getattr(self.owner, self.attribute)(*args, **kwargs)


@dataclass(frozen=True)
class Transform:
    """A transform with its function: called with the leaves of all its arguments, as `take_apart` has them.

    Equal for the same transform of functions of the same code, if the same parameters learn.

    Attributes
    ----------
    run : callable
        Takes the arguments: a `Seam`, or a function like one.
    plan : object
        What the leaves are put together to: ``args`` and ``kwargs`` of ``run``.
    functions : tuple of function
        Those in the plan that are of the program, each bound to nothing.
    weights : tuple
        For each of them, which parameters it can reach, and which of these learn.
    """

    run: Any
    plan: Any
    functions: tuple[FunctionType, ...]
    weights: tuple[Any, ...]

    @property
    def __name__(self) -> str:
        return f"{self.run.__name__} of {self.functions[0].__name__ if self.functions else 'a function'}"

    def __call__(self, *leaves: Any) -> Any:
        """Return what the transform returns.

        Raises `RecordError` if its function has changed a list or dict of the program: it got a copy.
        """
        putting = Putting(leaves)
        args, kwargs = putting.together(self.plan)
        found = self.run(*args, **kwargs)
        if not putting.is_unchanged():
            raise refusal(f"{self.__name__} changes a list or dict of the program.", RETURN)
        return found


class TransformCall(CellCall):
    """A recorded call of a `Transform`, which is a cell."""

    def __init__(self, func: Any, structure: Any, leaves: Sequence[Any], places: Sequence[int]) -> None:
        super().__init__(func, structure, leaves, places)
        self.held += map(CellFunction, func.functions)

    def owners(self) -> list[Any]:
        return [*self.func.functions, *super().owners()]

    def is_as_before(self) -> bool:
        return False  # it runs for one example again


def record(run: Any, *args: Any, **kwargs: Any) -> Any:
    """Record a call of a transform; return its result with pending tensors in it.

    It runs at once if no tensor that it gets or that its function binds depends on an example, and
    `torch.func.vmap` if it meets no model and nothing pending: it is then as any function of real tensors.
    """
    recording: Any = CURRENT.recording
    taken = take_apart((args, kwargs))
    functions = tuple([x for x in taken.functions if is_of_program(x)])
    for function in functions:
        VERSIONS.refuse_rebound(function)
    try:
        around = [VERSIONS.weights_around(x) for x in functions]
    except OtherWeights:
        raise refusal(
            f"{run.__name__} of torch.func is called while a module has weights that are no parameters.",
            "call functional_call inside of the function that is differentiated; " + AS_CELL,
        ) from None
    if run is VMAP and not any(map(len, around)) and not any(map(is_of_model, taken.leaves)):
        with recording.paused():
            return run(*args, **kwargs)
    transform = Transform(run, taken.plan, functions, tuple([x.identity for x in around]))
    return recording.recorder.recorded(recording, TransformCall, transform, tuple(taken.leaves), {})


def is_of_model(x: Any) -> bool:
    """Return whether a leaf is a pending tensor, or a module."""
    return is_pending(x) or isinstance(x, nn.Module)


def is_of_program(function: FunctionType) -> bool:
    """Return whether a function is not of PyTorch, whose functions find no models around them."""
    return not f"{function.__globals__.get('__name__', '')}.".startswith("torch.")


def seen(run: Any) -> Callable[[Any], Any]:
    """Return what makes a replacement that records ``run`` where a program records, and else just calls."""

    def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if CURRENT.recording is None:
                return original(*args, **kwargs)
            return record(run, *args, **kwargs)

        return call

    return replacement


def seen_vjp(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of what `torch.func.vjp` calls: it records outputs, and returns a `Pullback`."""

    def vjp(func: Any, *primals: Any, argnums: Any = None, has_aux: bool = False) -> Any:
        if CURRENT.recording is None:
            return original(func, *primals, argnums=argnums, has_aux=has_aux)
        found = record(outputs_of_vjp, func, primals, argnums, has_aux)
        back = Pullback(func, primals, argnums, has_aux)
        return (found[0], back, found[1]) if has_aux else (found, back)

    return vjp


def outputs_of_vjp(func: Any, primals: Any, argnums: Any, has_aux: bool) -> Any:
    """Return what ``func`` returns inside of `torch.func.vjp`.

    Raises `RecordError` if it draws random numbers: the pullback, another call, would draw others.
    """
    before = torch.get_rng_state()
    outputs, _, *aux = VJP(func, *primals, argnums=argnums, has_aux=has_aux)
    if not torch.equal(before, torch.get_rng_state()):
        raise refusal(
            "A function draws random numbers inside of torch.func.vjp or jacrev: what it returns and its "
            "derivative are two recorded calls, which would draw differently.",
            AS_CELL,
        )
    return (outputs, *aux) if has_aux else outputs


class Pullback(Maker):
    """What `torch.func.vjp` returns as a function of cotangents: it computes forward and backward again."""

    def __init__(self, *arguments: Any) -> None:
        self.arguments = arguments
        self.versions = [version_of(x) for x in self.tensors()]

    def tensors(self) -> list[Tensor]:
        """Return the tensors that the function of `torch.func.vjp` was given."""
        return [x for x in optree.tree_leaves(self.arguments[1]) if isinstance(x, Tensor)]

    @staticmethod
    def made(*arguments: Any) -> Any:
        func, primals, argnums, has_aux = arguments
        return VJP(func, *primals, argnums=argnums, has_aux=has_aux)[1]

    def __call__(self, cotangents: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the derivatives, as the function of PyTorch does; pending ones while a program records.

        Raises `RecordError` if a tensor that the function was given has been changed in place.
        """
        if CURRENT.recording is None:  # the run has ended
            return self.made(*with_values(self.arguments))(with_values(cotangents), *args, **kwargs)
        if self.versions != [version_of(x) for x in self.tensors()]:
            raise refusal(
                "A tensor was changed in place after torch.func.vjp, before what it returned was called.",
                "change it out of place: x = x + 1 for x += 1.",
            )
        return record(pullback, self, cotangents, *args, **kwargs)


def pullback(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return ``function(*args, **kwargs)``: the derivatives that a `Pullback` stands for."""
    return function(*args, **kwargs)


class ScriptCall(CellCall):
    """A recorded call of a scripted function, which runs row by row: it may branch on values."""

    def dry_run(self, operands: Any) -> Any:
        """Run the function on ones and return its result, as a cell does."""
        self.runs_by_rows()
        return super().dry_run(operands)


def seen_script(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of ``ScriptFunction.__call__``, which records calls with pending tensors."""

    def script_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = CURRENT.recording
        if recording is None or not holds_pending((args, kwargs)):
            return call(self, *args, **kwargs)
        return recording.recorder.recorded(recording, ScriptCall, self, args, kwargs)

    return script_call


def seen_cond(cond: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of `torch.cond`: while a program records, it reads the condition."""

    def chosen(pred: Any, true_fn: Any, false_fn: Any, operands: Any = ()) -> Any:
        if CURRENT.recording is None:
            return cond(pred, true_fn, false_fn, operands)
        return true_fn(*operands) if pred else false_fn(*operands)

    return chosen


def seen_compiled(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of what `torch.while_loop` and the like call, which refuses pending tensors.

    It answers `torch.cond` as `seen_cond` does, for programs that have imported it by its name.
    """

    def compiled(fn: Any, args: Any, kwargs: Any = None) -> Any:
        if CURRENT.recording is None or not holds_pending((args, kwargs)):
            return run(fn, args, kwargs)
        if getattr(fn, "__name__", "") == "_cond_op_wrapper":
            return seen_cond(run)(*args)
        raise refusal(
            f"A pending tensor is given to {getattr(fn, '__name__', fn)}, which PyTorch compiles.",
            "write it as a loop or a condition of Python.",
        )

    return compiled


def refused(what: str) -> Callable[[Any], Any]:
    """Return what makes a replacement that raises `RecordError` while a program records ``what``."""

    def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if CURRENT.recording is not None:
                raise refusal(f"{what} cannot be recorded.", AS_CELL)
            return original(*args, **kwargs)

        return call

    return replacement


VJP = Seam("vjp", eager_transforms, "_vjp_with_argnums")
VMAP = Seam("vmap", apis, "vmap_impl")

PLACES: list[tuple[Any, str, Callable[[Any], Any]]] = [
    (eager_transforms, "grad_impl", seen(Seam("grad", eager_transforms, "grad_impl"))),
    (
        eager_transforms,
        "grad_and_value_impl",
        seen(Seam("grad_and_value", eager_transforms, "grad_and_value_impl")),
    ),
    (eager_transforms, "_vjp_with_argnums", seen_vjp),
    (eager_transforms, "_jvp_with_argnums", seen(Seam("jvp", eager_transforms, "_jvp_with_argnums"))),
    (apis, "vmap_impl", seen(VMAP)),
    (eager_transforms, "lazy_dynamo_disallow", refused("torch.func.linearize")),
    (eager_transforms, "_wrap_all_tensors_to_functional", refused("torch.func.functionalize")),
    (forward_ad, "enter_dual_level", refused("A level of torch.autograd.forward_ad")),
    (torch.jit.ScriptFunction, "__call__", seen_script),
    (torch, "cond", seen_cond),
    (higher_order, "_hop_compile_and_call", seen_compiled),
]

TRANSFORMS = Replacements(*[place for place in PLACES if hasattr(place[0], place[1])])
"""What sees them, of what this release of PyTorch has."""
