"""Rules: how a function of one example runs on the rows of many.

``torch.cat([a, b], 1)`` of one example is ``torch.cat([A, B], 2)`` of all, where ``A`` has a row for each
example on an axis before the others. Each rule returns such a function for one call, with the same
arguments but for those; None where it does not hold, and then `torch.func.vmap` does it, which costs
as much as some dozens of small operations.

>>> rows = torch.zeros(7, 2, 3)  # of 7 examples
>>> one = torch.zeros(2, 3)
>>> on_rows(torch.cat, ([one, one], 1), {})([rows, rows], 1).shape
torch.Size([7, 2, 6])
>>> on_rows(torch.linalg.det, (one,), {}) is None
True
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optree
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import Tensor

from multifold_torch.lazy.filling import with_parts

OnRows = Callable[..., Any]
"""Takes the arguments of the call, with rows in the place of each pending value."""

Rule = Callable[[Callable[..., Any], Sequence[Any], Mapping[str, Any]], OnRows | None]


def on_rows(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnRows | None:
    """Return a function that takes the rows of all examples, made for this call; None if there is no rule.

    Parameters
    ----------
    func : callable
        The function.
    args, kwargs
        Its arguments for one example; tensors may have no values. Parameters are the same for all examples.
    """
    rule = RULES.get(func) if args else None
    return None if rule is None else rule(func, args, kwargs)


def mixes_rows(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether rows would depend on others, as with ``scale_grad_by_freq``, so that each runs alone.

    In an embedding of a table of each example `torch.func.vmap` looks up a wrong id among the rows of
    others, and it fills others at the negative indices of ``index_fill``.
    """
    if func is not F.embedding:
        return func in (torch.index_fill, Tensor.index_fill)
    has_own = len(args) > 1 and of_rows(args[1])
    return has_own or bool(kwargs.get("scale_grad_by_freq")) or (len(args) > 5 and bool(args[5]))


def of_rows(x: Any) -> bool:
    """Return whether an argument has its own value for each example: a tensor that is no parameter."""
    return isinstance(x, Tensor) and not isinstance(x, torch.nn.Parameter)


def elementwise(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnRows | None:
    """Rule: broadcast the arguments after the axis of the examples.

    None where that would change the dtype, or a tensor stands for a number.
    """
    tensors = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    # Where dtypes differ, a tensor without axes counts less for the dtype of the result; rows have one.
    if len({x.dtype for x in tensors}) > 1 and not all(x.dim() for x in tensors):
        return None
    if any(isinstance(x, Tensor) for x in kwargs.values()) or (func in LIMITS and len(tensors) == 2):
        return None  # it stands for a number
    most = max(x.dim() for x in tensors)
    if all(x.dim() == most for x in tensors if of_rows(x)):
        return func
    ranks = [x.dim() if of_rows(x) else most for x in args] if len(args) == len(tensors) else None
    if ranks is None or kwargs:
        return None

    def aligned(*rows: Tensor) -> Any:
        return func(
            *[
                x.reshape(len(x), *[1] * (most - rank), *x.shape[1:]) if rank < most else x
                for x, rank in zip(rows, ranks, strict=True)
            ]
        )

    return aligned


def activation(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnRows | None:
    """Rule: call the function on all rows; None if an argument besides the first is a tensor."""
    return None if any(isinstance(x, Tensor) for x in (*args[1:], *kwargs.values())) else func


LIMITS = (torch.clamp, Tensor.clamp)
"""They take numbers or tensors, but not one of each."""

NAMES = """
    abs acos add asin atan atan2 ceil clamp clone cos cosh div eq erf exp expm1 floor fmod ge gt
    isfinite isinf isnan le log log10 log1p log2 logical_and logical_not logical_or lt maximum
    minimum mul ne neg pow reciprocal relu remainder round rsqrt sigmoid sign sin sinh sqrt square
    sub tan tanh true_divide where
"""
METHODS = """
    abs add atan2 ceil clamp clone cos detach div double eq exp float floor ge gt half bfloat16
    bool int long le log log1p logical_and logical_not logical_or lt maximum minimum mul ne neg
    pow reciprocal relu round rsqrt sigmoid sign sin sqrt square sub tanh true_divide __add__
    __radd__ __sub__ __rsub__ __mul__ __rmul__ __truediv__ __rtruediv__ __pow__ __neg__ __gt__
    __lt__ __ge__ __le__ __eq__ __ne__ __and__ __or__ __invert__ __xor__ __mod__ __floordiv__
"""
ELEMENTWISE = [
    *[getattr(torch, name) for name in NAMES.split()],
    *[getattr(Tensor, name) for name in METHODS.split()],
]
"""Functions that compute each number of the result from one of each argument."""

ACTIVATIONS = [
    *(F.elu, F.gelu, F.hardtanh, F.leaky_relu, F.logsigmoid, F.mish, F.relu, F.relu6, F.selu, F.sigmoid),
    *(F.silu, F.softplus, F.softsign, F.tanh, F.dropout),
]
"""Such functions of one tensor; their other arguments are numbers."""


OF_NUMBERS = {*ELEMENTWISE, *ACTIVATIONS} - {F.dropout}
"""Functions that compute each number from others by a formula, so they run for all values."""


def along(position: int, default: int | None = None, name: str = "dim") -> Rule:
    """Return a rule that moves an axis by one, past that of the examples.

    The axis is the argument at ``position``, or the keyword ``name``, or ``default``.
    """

    def rule(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnRows | None:
        key = name if name in kwargs or len(args) > position else "axis"
        axis = args[position] if len(args) > position else kwargs.get(key, default)
        axes = axis if isinstance(axis, (tuple, list)) else (axis,)
        if not axes or not all(type(x) is int for x in axes) or not has_axes(args[0]):
            return None
        if func is Tensor.flip and len(args) > 2:  # x.flip(0, 1)
            return None
        moved = tuple([x + 1 if x >= 0 else x for x in axes])
        own = moved if isinstance(axis, (tuple, list)) else moved[0]

        def run(*rows: Any, **others: Any) -> Any:
            if len(rows) > position:
                return func(*rows[:position], own, *rows[position + 1 :], **others)
            return func(*rows, **{**others, key if key in kwargs else name: own})

        return run

    return rule


def has_axes(x: Any) -> bool:
    """Return whether a tensor, or each in a list, is no parameter and has axes, the same number for all."""
    parts = x if isinstance(x, (tuple, list)) else (x,)
    return all(map(of_rows, parts)) and len({part.dim() for part in parts}) == 1 and parts[0].dim() > 0


ALONG = "sum mean argmax argmin softmax log_softmax logsumexp cumsum flip prod amax amin all any"

AXES: dict[Any, Rule] = {
    **{f: along(1, 0) for f in (torch.cat, torch.concat, torch.concatenate)},
    **{f: along(2, 0) for f in (torch.chunk, Tensor.chunk, torch.split, Tensor.split)},
    **{getattr(owner, name): along(1) for owner in (torch, Tensor) for name in ALONG.split()},
    F.softmax: along(1),
    F.log_softmax: along(1),
}


def unsqueezed(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnRows | None:
    """Rule: move the position of a new axis by one, past that of the examples.

    Unlike `along` it also holds for tensors without axes.
    """
    if kwargs.keys() - {"dim"} or len(args) > 2:
        return None
    axis = args[1] if len(args) > 1 else kwargs.get("dim", 0 if func is torch.stack else None)
    parts = args[0] if isinstance(args[0], (tuple, list)) else args[:1]
    if type(axis) is not int or not all(map(of_rows, parts)):
        return None
    own = axis + 1 if axis >= 0 else axis
    return lambda x, *_, **__: func(x, own)


def reshaped(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnRows | None:
    """Rule: reshape to ``(n, *shape)`` where one example is reshaped to ``shape``."""
    x, *shape = args
    sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    if kwargs or not of_rows(x) or not all(type(size) is int for size in sizes):
        return None
    like = tuple(torch.empty(x.shape, device="meta").reshape(tuple(sizes)).shape)  # says what -1 is
    return lambda x, *_: x.reshape(len(x), *like)


def put_together(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnRows | None:
    """Rule: count the axes of `with_parts` after that of the examples; None if a part is a parameter."""
    if kwargs or not all(map(of_rows, (args[0], *args[3]))):
        return None
    return lambda x, axis, keys, parts: func(x, axis + 1, keys, parts)


def swapped(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnRows | None:
    """Rule: swap two axes, each counted after that of the examples."""
    if kwargs or len(args) != 3 or not args[0].dim() or not all(type(axis) is int for axis in args[1:]):
        return None
    one, other = [axis + 1 if axis >= 0 else axis for axis in args[1:]]
    return lambda x, *_: func(x, one, other)


def turned(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnRows | None:
    """Rule: transpose the matrix of each example; None for other than two axes."""
    return (lambda x: x.transpose(-1, -2)) if args[0].dim() == 2 else None


def indexed(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnRows | None:
    """Rule: index all rows by ``(:, *index)``; None for other than integers, slices, None and ``...``."""
    index = args[1] if isinstance(args[1], tuple) else (args[1],)
    if not all(x is None or x is Ellipsis or type(x) in (int, slice) for x in index):
        return None
    ends = [end for x in index if type(x) is slice for end in (x.start, x.stop, x.step)]
    if not all(end is None or type(end) is int for end in ends):
        return None
    return lambda x, *_: x[(slice(None), *index)]


def linear(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnRows | None:
    """Rule: call the function on all rows; None if each example has weights of its own."""
    weights = (*args[1:], *kwargs.values())
    return None if any(map(of_rows, weights)) else func


def product(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnRows | None:
    """Rule.

    Multiply matrices by `torch.matmul`, if one example has two, or a vector and a shared matrix.
    """
    if len(args) != 2:
        return None
    x, y = args
    one = x.dim() == 1 and not of_rows(y)  # a vector for each example
    return torch.matmul if not kwargs and (x.dim() == 2 or one) and y.dim() == 2 else None


def looked_up(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnRows | None:
    """Rule: look up the ids of all rows in one table.

    None if each example has its own, or with ``max_norm``.
    """
    renormed = kwargs.get("max_norm") is not None or (len(args) > 3 and args[3] is not None)
    return None if len(args) < 2 or of_rows(args[1]) or renormed else func


def flattened(own: int) -> Rule:
    """Return a rule for layers that take minibatches: those of all examples are joined to one.

    Parameters
    ----------
    own : int
        How many axes an argument with a minibatch has; one with fewer is a single example.
    """

    def rule(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> OnRows | None:
        x, *weights = args
        if any(map(of_rows, (*weights, *kwargs.values()))) or not of_rows(x):
            return None
        if x.dim() == own - 1:
            return func
        if x.dim() != own:
            return None

        def run(x: Tensor, *weights: Any, **others: Any) -> Any:
            found = func(x.flatten(0, 1), *weights, **others)
            return optree.tree_map(lambda y: y.unflatten(0, x.shape[:2]), found)

        return run

    return rule


class GradientOf(torch.autograd.Function):
    """Values of one tensor with the gradient of another one of its shape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor) -> Tensor:
        """Return a copy of ``values``."""
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the result as that of ``x``."""
        return gradient, None


def with_gradient_of(x: Tensor, values: Tensor) -> Tensor:
    """Return ``x`` after ``x.copy_(values)`` inside of ``no_grad()``: new values, and its own gradient."""
    found: Tensor = GradientOf.apply(x, values)
    return found


RULES: dict[Any, Rule] = {
    with_gradient_of: elementwise,
    with_parts: put_together,
    F.one_hot: activation,  # vmap does not look whether a class is too large
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(ACTIVATIONS, activation),
    **AXES,
    **dict.fromkeys((torch.stack, torch.unsqueeze, Tensor.unsqueeze), unsqueezed),
    **dict.fromkeys((torch.reshape, Tensor.reshape, Tensor.view), reshaped),
    **dict.fromkeys((torch.transpose, Tensor.transpose), swapped),
    **dict.fromkeys((torch.t, Tensor.t, Tensor.T.__get__), turned),
    Tensor.__getitem__: indexed,
    F.linear: linear,
    F.layer_norm: linear,
    F.embedding: looked_up,
    **dict.fromkeys((torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__), product),
    **dict.fromkeys((F.conv2d, torch.conv2d, F.max_pool2d, F.avg_pool2d), flattened(4)),
    **dict.fromkeys((F.conv1d, torch.conv1d, F.max_pool1d, F.avg_pool1d), flattened(3)),
}
