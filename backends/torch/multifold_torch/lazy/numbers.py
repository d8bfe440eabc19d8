"""Functions of PyTorch that need values: what they return, or whether they raise, depends on these.

``torch.clamp(x, 0, n)`` takes a number, and ``torch.topk(x, k)`` has a shape by it. In the loop such a
function reads the number by itself; here it gets it: the example waits for it, and the rest is recorded.
Functions that PyTorch has written in Python, as those of `torch.nn.functional`, run as lines of the
program.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import optree
import torch

from multifold.errors import RecordError
from multifold.lazy.current import recording_of, refusal
from multifold.lazy.pending_array import with_reads
from multifold_torch.lazy.pending import Pending, needs_gradient


class ValuesNeeded(RecordError):
    """A call cannot be recorded, since the values of its operands have to be known."""


OPERATORS = torch._ops.OpOverload, torch._ops.OpOverloadPacket
"""Types of functions in ``torch.ops``."""


def computed_by_values(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: ValuesNeeded
) -> Any:
    """Return the result of a function that cannot be recorded before values are known.

    A function written in Python runs line by line, each of which is recorded. One that takes numbers gets
    those that are pending, and any other one gets the values of all its operands; it may hold pending
    tensors then, as far as they are no numbers. Raises a `RecordError`, with the message of ``error``, if
    the result would lose a gradient.
    """
    inside = opened(func)
    if inside is not None:
        return inside(*args, **kwargs)
    operands = [x for x in optree.tree_leaves((args, kwargs)) if isinstance(x, Pending)]
    if any(map(is_a_number, operands)):
        # A function may take tensors only.
        with contextlib.suppress(TypeError, *[RuntimeError] * (type(func) in OPERATORS)):
            return func(*with_numbers(args), **with_numbers(kwargs))
    if needs_gradient(operands):
        raise refusal(error.message, error.hint) from error
    return func(*with_reads(args), **with_reads(kwargs))


def is_a_number(x: Any) -> bool:
    """Return whether PyTorch takes a tensor for a number: it has no axes, and needs no gradient."""
    return isinstance(x, Pending) and not x.form.shape and not x.form.requires_grad


def with_numbers(x: Any) -> Any:
    """Return arguments, nested in tuples, lists and dicts, with numbers for pending tensors that are such.

    The example waits for them.
    """
    if is_a_number(x):
        return recording_of().recorder.read(x).item()
    if type(x) in (tuple, list):
        return type(x)([with_numbers(part) for part in x])
    if type(x) is dict:
        return {name: with_numbers(part) for name, part in x.items()}
    return x


ASKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
"""What functions of PyTorch that are written in Python ask first: whether another class answers them."""


@functools.cache
def opened(func: Any) -> Callable[..., Any] | None:
    """Return a function of PyTorch, written in Python, as a function that runs its own lines.

    It does not ask whether pending tensors answer it as a whole; what it calls does. None for a function
    that is compiled, does not ask, or hands on to a compiled one of its name.
    """
    if type(func) is not FunctionType or "__class__" in func.__code__.co_freevars:  # it calls super()
        return None
    if not set(ASKS) & set(func.__code__.co_names) & func.__globals__.keys():
        return None
    variables = {**func.__globals__, **dict.fromkeys(ASKS, never)}
    made = FunctionType(func.__code__, variables, func.__name__, func.__defaults__, func.__closure__)
    made.__kwdefaults__ = func.__kwdefaults__
    return made


def never(*_: Any) -> bool:
    """Return False, whatever the arguments."""
    return False
