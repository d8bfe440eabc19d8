"""Ops through `torch.compile`: each one by itself, for any number of rows, within a budget.

The one idea: what is compiled is the op and never the recursion, so a model has a handful of graphs for
all structures of its examples. An op that needs more than its budget, or that cannot be compiled, runs as
it was written from then on, and a warning says which and why.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

import torch
import torch._dynamo
import torch._dynamo.exc


@final
class Compiler:
    """Compiled ops, an option of the adapter: ``TorchBackend(compiler=Compiler())``.

    Keep one for as long as the model, and hand it to all folds: it holds what was compiled.

    Parameters
    ----------
    ops : collection of str, optional
        The names of the ops to compile: of a method or function its ``__name__``, of a module that of its
        class. All by default.
    budget : int, optional
        How many graphs an op may have. One serves any number of rows, but a single row is another one, and
        so are operands that need no gradient. PyTorch itself stops at
        ``torch._dynamo.config.recompile_limit``. The steps of an unrolled `torch.nn.RNN`, `GRU` or `LSTM`
        have none: PyTorch does not compile what reads such a module; those of cells have some.
    backend : str or callable, optional
        As for `torch.compile`.

    Attributes
    ----------
    graphs : dict of str to int
        How many graphs the ops of each name have.

    Examples
    --------
    >>> import multifold
    >>> from multifold_torch import TorchBackend
    >>> compiler = Compiler(backend="eager")  # traces, and compiles nothing
    >>> fold = multifold.Fold(backend=TorchBackend(compiler=compiler))
    >>> def double(x):
    ...     return 2 * x
    >>> fold([[fold.add(double, i) for i in (1, 2, 3)]])
    [tensor([2, 4, 6])]
    >>> compiler.graphs
    {'double': 1}
    """

    def __init__(
        self,
        ops: Collection[str] | None = None,
        *,
        budget: int = 8,
        backend: str | Callable[..., Any] = "inductor",
    ) -> None:
        self.ops = ops
        self.budget = budget
        self.backend = torch._dynamo.lookup_backend(backend)
        self.graphs: dict[str, int] = {}
        self.compiled: dict[Any, Callable[..., Any]] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return all attributes for pickle and copy, but ``compiled`` empty, since it holds this model."""
        return {**self.__dict__, "compiled": {}}

    def __call__(self, op: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
        """Return ``op(*operands, **static)``, run compiled unless `ops` leaves its name out.

        An op that cannot be compiled runs as it is from now on, with a warning.
        """
        name = name_of(op)
        if self.ops is not None and name not in self.ops:
            return op(*operands, **static)
        key = key_of(op)
        if key not in self.compiled:
            self.compiled[key] = self.compile(op, name)
        try:
            return self.compiled[key](*operands, **static)
        except torch._dynamo.exc.TorchDynamoException as error:
            text = " ".join(str(error).split("\n")[:2]).strip()
            self.give_up(op, name, f"it cannot be compiled: {type(error).__name__}: {text}")
            return op(*operands, **static)

    def compile(self, op: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return ``op`` compiled by `torch.compile`, which adds its graphs to ``graphs[name]``.

        The graph beyond the budget makes it run uncompiled from then on, with a warning.
        """
        self.graphs.setdefault(name, 0)
        graphs = 0

        def count(graph: Any, inputs: Sequence[Any]) -> Any:
            nonlocal graphs
            graphs += 1
            self.graphs[name] += 1
            if graphs > self.budget:
                shapes = ", ".join(f"{tuple(x.shape)} {x.dtype}" for x in inputs if torch.is_tensor(x))
                why = f"it needs graph {graphs} of a budget of {self.budget}, for {shapes}"
                self.give_up(op, name, why)
                # This launch has been traced already: it runs what was traced, uncompiled.
                return graph.forward
            return self.backend(graph, inputs)

        return torch.compile(op, dynamic=True, backend=count)

    def give_up(self, op: Callable[..., Any], name: str, why: str) -> None:
        """Let ``op`` run uncompiled from now on; warn that ``why`` is the reason."""
        self.compiled[key_of(op)] = op
        warnings.warn(
            f"The op '{name}' runs without torch.compile from now on: {why}.\n\n"
            "Hint: let the op depend on rows only, not on Python values that change; or leave it out, "
            "Compiler(ops=[...]); or raise Compiler(budget=...).",
            stacklevel=2,
        )


def key_of(op: Callable[..., Any]) -> Any:
    """Return a key that is equal for ops that are one op.

    It is the op itself, but of a step of a cell, a partial function, its function and arguments: each fold
    makes new partial functions of the same ones.
    """
    if isinstance(op, functools.partial) and op.func.__module__ == "multifold_torch.cells":
        return op.func, op.args
    return op


def name_of(op: Callable[..., Any]) -> str:
    """Return the ``__name__`` of an op or of a partial's function; of a module the name of its class."""
    op = op.func if isinstance(op, functools.partial) else op
    return getattr(op, "__name__", type(op).__name__)
