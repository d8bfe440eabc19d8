"""The functions of `multifold.ops` for PyTorch: its own, where it has one of the same meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from multifold.backend import Ragged

FEW = 1 << 14
"""Numbers that no operation of PyTorch divides among threads: it does so above 32,768."""

concat = torch.cat
stack = torch.stack
where = torch.where
zeros_like = torch.zeros_like
matmul = torch.matmul
sigmoid = torch.sigmoid
relu = torch.relu
exp = torch.exp
log = torch.log
softmax = torch.softmax
log_softmax = torch.log_softmax
sum = torch.sum
mean = torch.mean
# `torch.max` along an axis returns the positions as well.
max = torch.amax


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, x, weight)


def affine(xs: Sequence[torch.Tensor], weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    if len(xs) == 1 or xs[0].dim() == 2 or bias is not None:
        x = xs[0] if len(xs) == 1 else torch.cat(list(xs), -1)
        return torch.matmul(x, weight) if bias is None else torch.addmm(bias, x, weight)
    # A matrix for each row is large: to add up products costs less than a copy and one product. Rows of a
    # hundred numbers are copied for less than another call costs.
    first, *others = weight.split_with_sizes([x.shape[-1] for x in xs], 0)
    result = torch.mm(xs[0].reshape(-1, first.shape[0]), first)
    for x, part in zip(xs[1:], others, strict=True):
        # In place, since the gradient of a sum needs none of its terms.
        result.addmm_(x.reshape(-1, part.shape[0]), part)
    return result.reshape(*xs[0].shape[:-1], weight.shape[1])


def tanh(x: torch.Tensor) -> torch.Tensor:
    # A gate is a strided view of all gates, of which PyTorch's tanh is slow on several threads of a CPU: a
    # copy and its tanh are quicker. Few numbers run on one thread, where a copy costs what it saves.
    return torch.tanh(x.contiguous() if x.is_cpu and x.numel() > FEW else x)


def lstm_state(
    gates: torch.Tensor, cells: Sequence[torch.Tensor], kept: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    # The gradient of addcmul takes longer than that of a product and a sum.
    fused = not torch.is_grad_enabled()
    count = 2 + len(cells)
    rows, columns = gates.shape
    width = columns // (count + 1)
    before, candidate = torch.split_with_sizes(gates, [count * width, width], 1)
    take_in, *keep, out = torch.split_with_sizes(torch.sigmoid(before), [width] * count, 1)
    c = take_in * (torch.tanh(candidate) if rows * width <= FEW else tanh(candidate))
    for gate, cell in zip(keep, cells, strict=True):
        c = torch.addcmul(c, gate, cell) if fused else c + gate * cell
    if kept is not None:
        c = c + kept
    return out * torch.tanh(c), c


def split(x: torch.Tensor, sections: int | Sequence[int], axis: int) -> Sequence[torch.Tensor]:
    if not isinstance(sections, int):
        return torch.split_with_sizes(x, list(sections), axis)
    # `torch.chunk` would return sections of other sizes, or fewer of them.
    if x.shape[axis] % sections:
        raise ValueError(f"An axis of {x.shape[axis]} cannot be cut into {sections} equal sections.")
    return torch.chunk(x, sections, axis)


def take(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return torch.index_select(x, 0, rows)


def reshape(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return x.reshape(x.shape[0], *shape)


def cast(x: torch.Tensor, dtype: Any) -> torch.Tensor:
    return x.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype.dtype)


def segment_sum(values: torch.Tensor, segments: Ragged) -> torch.Tensor:
    # torch.segment_reduce is many times slower on a CPU.
    count = segments.lengths.shape[0]
    return values.new_zeros(count, *values.shape[1:]).index_add(0, segments.segment_ids, values)


def segment_mean(values: torch.Tensor, segments: Ragged) -> torch.Tensor:
    lengths = segments.lengths.clamp(min=1).to(values.dtype)
    return segment_sum(values, segments) / lengths.reshape(-1, *[1] * (values.dim() - 1))


def segment_max(values: torch.Tensor, segments: Ragged) -> torch.Tensor:
    return SegmentMax.apply(values, segments.segment_ids, segments.lengths)


def segment_softmax(values: torch.Tensor, segments: Ragged) -> torch.Tensor:
    ids = segments.segment_ids
    # The largest value cancels out, so no gradient goes through it.
    largest = _largest(values.detach(), ids, segments.lengths)
    powers = torch.exp(values - largest.index_select(0, ids))
    return powers / segment_sum(powers, segments).index_select(0, ids)


class SegmentMax(torch.autograd.Function):
    """The largest values of each segment's rows.

    Its gradient is many times faster on a CPU than PyTorch's own.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(values: torch.Tensor, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the largest values, ``(segments, *s)``; 0 for a segment without rows.

        Row ``i`` of ``values``, ``(rows, *s)``, is in segment ``ids[i]``; ``lengths`` are rows for each
        segment.
        """
        return _largest(values, ids, lengths)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        """Keep values, results and ids for the gradients."""
        values, ids, _ = inputs
        ctx.save_for_backward(values, output, ids)
        ctx.save_for_forward(values, output, ids)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        """Return the gradient of ``values``: that of each largest value, divided among equal ones."""
        values, largest, ids = ctx.saved_tensors
        return _shares(values, largest, ids, gradient.dtype) * gradient.index_select(0, ids), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: Any) -> torch.Tensor:
        """Return the tangent of each largest value: the mean of those of the equal ones."""
        values, largest, ids = ctx.saved_tensors
        shares = _shares(values, largest, ids, tangent.dtype)
        return torch.zeros_like(largest).index_add(0, ids, shares * tangent)


def _shares(
    values: torch.Tensor, largest: torch.Tensor, ids: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return for each value 1 / (number of equal largest ones of its segment) if it is largest, else 0."""
    hits = (values == largest.index_select(0, ids)).to(dtype)
    # NaN equals nothing, so a largest element may have no tie: that divides by 1.
    ties = torch.zeros_like(largest, dtype=dtype).index_add(0, ids, hits).clamp(min=1)
    return hits / ties.index_select(0, ids)


def _largest(values: torch.Tensor, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    where = ids.reshape(-1, *[1] * (values.dim() - 1)).expand_as(values)
    result = values.new_zeros(lengths.shape[0], *values.shape[1:])
    # A segment without rows keeps its 0. In the others that 0 takes no part.
    return result.scatter_reduce(0, where, values, "amax", include_self=False)
