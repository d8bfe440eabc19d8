"""Proofs: of the first launch of a kind of call under vmap, two rows run alone, as in the loop.

Some functions have a rule in `torch.func.vmap` that returns other values than the function does for one
example, or other gradients: ``x.index_select(0, number)``, ``x.as_strided_scatter(...)``. Nobody has a list
of them. So values are compared once for each kind of call, and gradients where one is needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from multifold.backend import Backend
from multifold.lazy.comparing import magnitude, same

Run = Callable[..., Sequence[Tensor]]
"""Takes the operands of a function, and returns its results."""

ENDS = (0, -1)
"""The rows that run: the first and the last one."""

SPREAD = 1e-3
"""Numbers smaller than this part of the largest operand may carry the rounding of larger terms."""


def kind_of(x: Any) -> Hashable:
    """Return what kinds of calls that are proved together have in common of a constant.

    That is the type of a number, the value of what code decides on, and an object itself.
    """
    if isinstance(x, Tensor):
        return x.dim(), x.dtype, x.requires_grad
    if x is None or isinstance(x, (bool, str)):
        return type(x), x
    return type(x), id(x) if hasattr(x, "__dict__") else None


@contextlib.contextmanager
def without_gradients(parameters: Sequence[Tensor]) -> Iterator[None]:
    """Return a context in which parameters have no gradients; at its end they have those of before.

    A backward pass that a user has written may add to them, instead of returning what it has computed.
    """
    leaves = [x for x in parameters if x.is_leaf]
    before = [x.grad for x in leaves]
    for x in leaves:
        x.grad = None
    try:
        yield
    finally:
        for x, grad in zip(leaves, before, strict=True):
            x.grad = grad


class ProofOutcome(NamedTuple):
    """What a function has come to: its results, and gradients for its operands and for parameters."""

    results: Sequence[Tensor]
    own: Sequence[Tensor] = ()
    parameters: Sequence[Tensor] = ()

    @classmethod
    def of(
        cls, run: Run, operands: Sequence[Tensor], parameters: Sequence[Tensor], rank: int
    ) -> ProofOutcome:
        """Run a function; return what it comes to, gradients where an operand or parameter needs one.

        ``rank`` is the number of axes before those of one example, 0 or 1. The gradients are those of a sum
        in which the numbers of an example's results have weights, the same for each example.
        """
        results = run(*operands)
        ends = [x for x in results if x.requires_grad]
        inputs = [x for x in (*operands, *parameters) if x.requires_grad]
        if not ends or not inputs:
            return cls(results)
        try:
            # Of one number, since PyTorch imports its compiler where it is given weights.
            total = sum([(x * ramp(x.shape[rank:]).to(x)).sum() for x in ends])
            real = total.real if total.is_complex() else total
            found = torch.autograd.grad(real, inputs, allow_unused=True)
        except RuntimeError:  # there is none in the loop, either
            return cls(results)
        grads = [torch.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)]
        count = sum(x.requires_grad for x in operands)
        return cls(results, grads[:count], grads[count:])

    def row(self, index: int) -> ProofOutcome:
        """Return what one row has come to, without gradients for parameters, which are of all rows."""
        return ProofOutcome([x[index] for x in self.results], [x[index] for x in self.own])


def agree(
    one: Run,
    together: Run,
    rows: Sequence[Tensor],
    learns: Sequence[bool],
    parameters: Sequence[Tensor],
    backend: Backend,
) -> bool:
    """Return whether two rows come to the same values and gradients together as each of them alone.

    Parameters
    ----------
    one : callable
        The function of one example; it takes ``(*s)``.
    together : callable
        The function on rows, which takes ``(n, *s)``.
    rows : sequence of tensor
        The operands of a launch.
    learns : sequence of bool
        Which operands need a gradient.
    parameters : sequence of tensor
        The parameters of the function that need a gradient.
    backend : Backend
        That of PyTorch.
    """
    both = [torch.stack([x.detach()[end] for end in ENDS]) for x in rows]
    needed = [own and torch.is_grad_enabled() for own in learns]
    scale = SPREAD * max([1.0, *[magnitude(backend.to_numpy(x)) for x in both]])

    def leaves(xs: Sequence[Tensor]) -> list[Tensor]:
        return [x.clone().requires_grad_(own) for x, own in zip(xs, needed, strict=True)]

    def are_close(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
        return len(some) == len(others) and all(
            x.dtype == y.dtype and same(backend, x.detach(), y.detach(), scale)
            for x, y in zip(some, others, strict=True)
        )

    found = ProofOutcome.of(
        together, leaves(both), parameters, 1
    )  # raises if vmap can't, and nothing has run
    try:
        alone = [ProofOutcome.of(one, leaves([x[i] for x in both]), parameters, 0) for i in (0, 1)]
    except Exception:  # noqa: BLE001 - row by row the launch raises what the loop raises
        return False
    summed = [x + y for x, y in zip(*[own.parameters for own in alone], strict=True)]
    return are_close(found.parameters, summed) and all(
        are_close(got.results, wanted.results) and are_close(got.own, wanted.own)
        for got, wanted in zip(map(found.row, (0, 1)), alone, strict=True)
    )


def ramp(shape: torch.Size) -> Tensor:
    """Return a tensor of this shape with numbers that grow from 0.5 to 1.5, and so tell places apart."""
    return torch.linspace(0.5, 1.5, shape.numel()).reshape(shape)
