"""What is seen of ops while their tiles run: what they read from outside, and what they must not do.

The gradient of a program is one function, whose inputs are all tensors with a gradient that ops read beside
their operands: parameters, and whatever else an op closes over. The graph that autograd has made of a tile
names its leaves. It does not name a tensor that was computed before, and would lead through to what that
was computed from. So the first tile of each kernel is watched operation by operation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, final

import optree
import torch
from torch.autograd.graph import get_gradient_edge

from multifold.backend import Backend
from multifold.program import Program, TileSpan, begin_trial, watch_operands
from multifold_torch.hooks import DispatchMode

Edge = tuple[Any, int]
"""A node of autograd's graph, and one of what it returned: each tensor with a gradient is one."""


@final
class Witness:
    """Watches the ops of one run of a program: what they read from outside, and that they mix no rows.

    Attributes
    ----------
    computed : dict of Edge to tensor
        The tensors with a graph of their own that ops read from outside.
    shares : bool
        Whether the graphs of tiles have nodes in common: an op reads a tensor, and another one that was
        computed from it, so that no graph can end at the latter; or a tensor that keeps its own gradient.
    """

    def __init__(self, backend: Backend, program: Program) -> None:
        self.backend = backend
        self.program = program
        self.computed: dict[Edge, torch.Tensor] = {}
        self.shares = False
        table = zip(program.form.tiles(), program.launches[:, 2].tolist(), strict=True)
        # Of each kernel, the first tile that has a call.
        self.first = {span.kernel: span for span, rows in reversed(list(table)) if rows}

    def call(
        self, span: TileSpan, op: Callable[..., Any], call: Callable[[], Any], leaves: Sequence[Any]
    ) -> Any:
        """Return ``call()``, the result of a tile, whose op got ``leaves``.

        Raises `LaunchError` if the op writes to an operand or, in the first tile of a kernel that has a
        call, mixes rows.
        """
        kernel = self.program.form.kernels[span.kernel]
        unchanged = watch_operands(self.backend, kernel, leaves)
        if self.first.get(span.kernel) != span:
            result = call()
            unchanged()
            return result
        lengths = self.program.lengths(span.kernel, span.first, span.rows)
        tried = begin_trial(self.backend, kernel, op, leaves, span.rows, lengths)
        with self.watching(leaves):
            result = call()
        unchanged()
        if tried is not None:
            tried(result)
        return result

    @contextlib.contextmanager
    def watching(self, leaves: Sequence[Any]) -> Iterator[None]:
        """Return a context that notes tensors with a graph that are read and not among ``leaves``.

        They go into ``computed``, or set ``shares``.
        """
        if not torch.is_grad_enabled():
            yield
            return
        own = [x for x in optree.tree_leaves(list(leaves)) if isinstance(x, torch.Tensor)]
        with Reads(own) as reads:
            yield
        found = {edge_of(x): x for x in reads.outside.values()}
        for edge, x in found.items():
            if x.is_leaf:
                continue
            before = behind([edge])[1] - {edge[0]}
            if x.retains_grad or not before.isdisjoint(node for node, _ in found):
                self.shares = True
            else:
                self.computed[edge] = x

    def read(self, results: Sequence[torch.Tensor], own: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the tensors from outside that ``results`` depend on; ``own`` are the operands.

        These are the leaves of autograd's graph, and those in ``computed``.
        """
        mine = set(map(id, own))
        found, _ = behind(map(edge_of, results), self.computed)
        return [x for x in found.values() if id(x) not in mine]


class Reads(DispatchMode):
    """Finds the tensors that need a gradient, are read inside of the context, and were not made there.

    Attributes
    ----------
    outside : dict of int to tensor
        By their ``id``.
    """

    def __init__(self, own: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.inside = {id(x): x for x in own}
        self.outside: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for x in optree.tree_leaves((args, kwargs)):
            if isinstance(x, torch.Tensor) and x.requires_grad and id(x) not in self.inside:
                self.outside[id(x)] = x
        result = func(*args, **kwargs)
        # What an operation has made is kept, since an id is used again when its tensor is gone.
        self.inside.update((id(x), x) for x in optree.tree_leaves(result) if isinstance(x, torch.Tensor))
        return result


def edge_of(x: torch.Tensor) -> Edge:
    """Return the node of autograd's graph that returned a tensor, and the number of that result."""
    edge = get_gradient_edge(x)
    return edge[0], edge[1]


def behind(
    edges: Iterable[Edge], stops: dict[Edge, torch.Tensor] | None = None
) -> tuple[dict[int, torch.Tensor], set[Any]]:
    """Return the leaves that autograd's graph leads to from ``edges``, and the set of nodes on the way.

    The leaves are a dictionary, ``id`` -> tensor. The way ends at the edges ``stops`` as well, whose
    tensors are returned like leaves.
    """
    stops = stops or {}
    found: dict[int, torch.Tensor] = {}
    seen: set[Any] = set()
    pending = list(edges)
    while pending:
        edge = pending.pop()
        node = edge[0]
        if node is None or node in seen:
            continue
        leaf = stops.get(edge, getattr(node, "variable", None))
        if leaf is not None:
            found[id(leaf)] = leaf
        if edge not in stops:
            seen.add(node)
            pending += node.next_functions
    return found, seen
