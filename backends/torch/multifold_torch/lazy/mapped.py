"""Cells under `torch.func.vmap`: what it has no rule for.

Recurrent layers have none there, so vmap would run them for one example after the other. Inside of a cell
they run on the rows of all examples, as they do outside of cells. What else has no rule is found by the
warning that PyTorch gives.
"""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import optree
import torch
from torch import Tensor, nn

from multifold_torch.lazy.changes import Layer

RECURRENT = {nn.RNNCell, nn.GRUCell, nn.LSTMCell, nn.RNN, nn.GRU, nn.LSTM}
"""Layers that vmap runs for one example after the other."""

NO_RULE = re.compile(r"not yet implemented the batching rule for (\S+)\. ")
"""What PyTorch warns of before it runs a function for one example after the other."""


@contextlib.contextmanager
def functions_without_rule() -> Iterator[list[str]]:
    """Return a context; it yields a list of names, filled at its end.

    They are the functions that vmap ran for one example after the other inside of it. Other warnings are
    shown.

    >>> with functions_without_rule() as found:
    ...     _ = torch.func.vmap(lambda x: x.renorm(2, 0, 1.0))(torch.ones(2, 3, 4))
    >>> found
    ['aten::renorm']
    """
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield found
    for warning in caught:
        match = NO_RULE.search(str(warning.message))
        if match:
            found.append(match[1])
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


def is_mapped(args: Any, layer: nn.Module) -> bool:
    """Return whether a tensor among ``args`` is one that `torch.func.vmap` runs a layer on.

    False if a transform of `torch.func` has wrapped the weights of the layer: it has its own way with them.
    """
    functorch = torch._C._functorch
    return any(
        isinstance(x, Tensor) and functorch.is_batchedtensor(x) for x in optree.tree_leaves(args)
    ) and not any(
        x is not None and functorch.is_functorch_wrapped_tensor(x) for x in layer._parameters.values()
    )


def on_rows(layer: Layer, args: tuple[Any, ...]) -> Any:
    """Return what a layer returns inside of `torch.func.vmap`, computed on all rows at once.

    ``args`` are tensors that vmap gives. A layer that cannot run so runs as vmap does.
    """
    operands, structure = optree.tree_flatten(args)
    rule = layer.on_rows(operands)
    if rule is None:
        return layer.module.forward(*args)
    nested = []

    def run(*rows: Tensor) -> tuple[Tensor, ...]:
        found, shape = optree.tree_flatten(rule(*structure.unflatten(rows)))
        nested.append(shape)
        return tuple(found)

    found = OnRows.apply(run, *operands)
    return nested[0].unflatten(found)


class OnRows(torch.autograd.Function):
    """Lets ``OnRows.apply(run, *operands)`` inside of `torch.func.vmap` run on the rows of all examples.

    Autograd sees the calls that ``run`` makes on these rows, so it has their gradients.
    """

    @staticmethod
    def forward(run: Callable[..., Any], *operands: Tensor) -> Any:
        """Raise `AssertionError`: this is called under vmap alone, which calls `vmap` below."""
        raise AssertionError("expected to be called under vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: autograd sees the calls of ``run`` themselves."""

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], run: Callable[..., Any], *operands: Tensor) -> Any:
        """Return ``run(*rows)``, whose tensors have the examples on axis 0, and a 0 for each of them."""
        rows = [
            x.expand(info.batch_size, *x.shape) if axis is None else x.movedim(axis, 0)
            for x, axis in zip(operands, in_dims[1:], strict=True)
        ]
        found = run(*rows)
        return found, (0,) * len(found)
