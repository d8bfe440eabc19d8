"""TorchFold's names: ``from multifold_compat import torchfold``.

One idea: a `Fold` of this module is a `multifold.Fold` for PyTorch that merges identical calls, as
TorchFold does, and whose nodes also know ``nobatch``. ``docs/migration.md`` says what behaves
differently, and why.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

import multifold
from multifold._engine.record.node import Node, SharedNode
from multifold_compat.counted import Counted, PredecessorNode
from multifold_compat.groups import as_outputs

__all__ = ["Fold", "Unfold"]


class FoldNode(PredecessorNode):
    """A node of one recorded call, or of a part of its result."""

    __slots__ = ()

    def no_batch(self) -> FoldNode:
        """Return what `nobatch` does."""
        return WholeNode(self._graph, self._ref)

    def nobatch(self) -> FoldNode:
        """Return a view of the node: a call that reads it gets the whole result, all rows of the launch.

        The node itself stays batched, and parts of the view are whole as well.

        Examples
        --------
        >>> import numpy as np
        >>> fold = Fold(backend="numpy")
        >>> class Model:
        ...     def value(self, i): return i
        ...     def concat(self, *rows): return np.concatenate(rows)
        ...     def pick(self, table, i): return table[i]
        >>> table = fold.add("concat", *[fold.add("value", i) for i in (5, 6, 7)]).nobatch()
        >>> fold.apply(Model(), [[fold.add("pick", table, i) for i in (2, 0)]])
        [array([7, 5])]
        """
        return self.no_batch()


class WholeNode(FoldNode, SharedNode):
    """A view of a node whose consumers get the whole result; made by `FoldNode.nobatch`."""

    __slots__ = ()


class UnfoldNode(FoldNode):
    """A node of `Unfold`, whose call has run when it is returned."""

    __slots__ = ("_unfold",)
    _unfold: Unfold

    def of(self, unfold: Unfold) -> UnfoldNode:
        """Set the `Unfold` that holds the value, and return the node."""
        self._unfold = unfold
        return self

    @property
    def tensor(self) -> Any:
        """The value: a tensor of shape ``(1, *s)``, or what the op returned."""
        return multifold.Unfold.apply(self._unfold, None, self)

    def split(self, n: int) -> tuple[FoldNode, ...]:
        """Return ``n`` nodes, one for each entry of a result that is a tuple or list of ``n``."""
        return tuple([eager(part, self._unfold) for part in super().split(n)])

    def __getitem__(self, key: Any) -> FoldNode:
        """Return a node of the part ``key`` of the result."""
        return eager(super().__getitem__(key), self._unfold)

    def no_batch(self) -> FoldNode:
        """Return a view of the node: a call that reads it gets the whole result."""
        return eager(self, self._unfold, WholeUnfoldNode)

    def __repr__(self) -> str:
        return str(self.tensor)

    __str__ = __repr__


class WholeUnfoldNode(UnfoldNode, SharedNode):
    """A view of the whole result of a call of `Unfold`."""

    __slots__ = ()


def eager(node: Node, unfold: Unfold, cls: type[UnfoldNode] | None = None) -> UnfoldNode:
    """Return a new node of the same call that holds ``unfold``.

    Its class is ``cls``, or by default that of ``node``.
    """
    own = type(node) if isinstance(node, UnfoldNode) else UnfoldNode
    return (cls or own)(node._graph, node._ref).of(unfold)


class Fold(Counted):
    """A fold that takes the calls of TorchFold.

    Parameters
    ----------
    volatile : bool
        Run `apply` without gradients, under `torch.no_grad`.
    cuda : bool
        Put numbers on the current CUDA device; by default they go to the device of the model.
    cse : bool
        Merge identical calls, as TorchFold does. Two calls of dropout on one operand are identical:
        pass False where they must stay two.
    backend : str or Backend
        Another framework than PyTorch.

    Examples
    --------
    >>> class Model:
    ...     def leaf(self, x): return x, 2 * x
    ...     def join(self, a, b): return a + b
    >>> fold = Fold(backend="numpy")
    >>> left, right = fold.add("leaf", 3).split(2)
    >>> fold.apply(Model(), [[fold.add("join", left, right), left], [7, 8]])
    [array([9, 3]), array([7, 8])]
    >>> len(fold), fold.add("leaf", 3) == fold.add("leaf", 3)
    (2, True)
    """

    Node = _node_type = FoldNode

    def __init__(
        self,
        volatile: bool = False,
        cuda: bool = False,
        *,
        cse: bool = True,
        backend: Any = "torch",
    ) -> None:
        super().__init__(backend, device="cuda" if cuda else None, cse=cse)
        self.volatile = volatile

    def cuda(self) -> Fold:
        """Put numbers on the current CUDA device from now on; return this fold."""
        self._device = "cuda"
        return self

    def _number(self, x: Any) -> type | None:
        """Return the type of a number, int for a bool, as TorchFold has it; None if ``x`` is no number."""
        number = super()._number(x)
        return int if number is bool else number

    def apply(self, nn: Any, nodes: Iterable[Iterable[Any]]) -> list[Any]:
        """Run what the groups need and return one tensor for each group.

        Parameters
        ----------
        nn : torch.nn.Module
            Has the methods that were recorded, or any object that does.
        nodes : list of list of Node, tensor or int
            Each group becomes a tensor of shape ``(len(group), *s)``; a group that holds one
            `FoldNode.nobatch` becomes the whole value.

        Raises
        ------
        RecordError
            For an empty group, or a node of another fold.
        LaunchError
            If a method fails, or returns other than one row for each node.
        """
        with no_gradients(self.volatile):
            return super().apply(nn, as_outputs(nodes))

    def check(
        self, nn: Any, nodes: Any, fn: Callable[..., Any] | None = None, *, rtol: float | None = None
    ) -> None:
        """Raise unless results and gradients equal those of one call at a time; see `multifold.Fold.check`.

        ``nodes`` are as for `apply`, or what `multifold.Fold.check` takes.
        """
        traces = isinstance(nodes, (list, tuple)) and any(isinstance(x, multifold.Trace) for x in nodes)
        as_given = fn is not None or traces or isinstance(nodes, multifold.Minibatch)
        outputs = nodes if as_given else as_outputs(nodes)
        super().check(nn, outputs, fn, rtol=rtol)

    def __str__(self) -> str:
        return str(self.schedule())

    __repr__ = __str__


class Unfold(multifold.Unfold):
    """TorchFold's name for the eager twin: every call runs at once, one row each.

    Parameters
    ----------
    nn : torch.nn.Module
        Has the methods that will be called, or any object that does.
    volatile, cuda, backend
        As for `Fold`.

    Examples
    --------
    >>> class Model:
    ...     def leaf(self, x): return x, 2 * x
    >>> unfold = Unfold(Model(), backend="numpy")
    >>> left, right = unfold.add("leaf", 3).split(2)
    >>> left, right.tensor
    ([3], array([6]))
    """

    Node = UnfoldNode

    def __init__(
        self, nn: Any, volatile: bool = False, cuda: bool = False, *, backend: Any = "torch"
    ) -> None:
        super().__init__(nn, backend=backend, device="cuda" if cuda else None)
        self.volatile = volatile

    def cuda(self) -> Unfold:
        """Put numbers on the current CUDA device from now on; return this object."""
        self._device = "cuda"
        return self

    def add(self, op: str | Callable[..., Any], /, *args: Any, **static: Any) -> UnfoldNode:
        """Run one call at once, on one row, and return its node; arguments are as for `Fold.add`."""
        with no_gradients(self.volatile):
            return eager(super().add(op, *map(as_integer, args), **static), self)

    def apply(self, nn: Any, nodes: Iterable[Iterable[Any]]) -> list[Any]:
        """Return one tensor for each group of nodes; ``nn`` must be the module that the calls ran with."""
        result: list[Any] = super().apply(nn, as_outputs(nodes))
        return result


def as_integer(x: Any) -> Any:
    """Return a bool as an integer, as TorchFold takes it; anything else as it is."""
    return int(x) if isinstance(x, bool) else x


def no_gradients(volatile: bool) -> AbstractContextManager[Any]:
    """Return a context: `torch.no_grad` if ``volatile``, else one that does nothing."""
    if not volatile:
        return contextlib.nullcontext()
    import torch

    return torch.no_grad()
