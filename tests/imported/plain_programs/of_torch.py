"""What the names in random programs of PyTorch stand for, and how results are compared."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import optree

import multifold
from plain_programs import statements
from plain_programs.comparing import same_python, same_trees
from plain_programs.frameworks import Framework, Unit, snippets, without


class Torch(Framework):
    """What names stand for in programs of PyTorch."""

    name = "torch"
    constants = (
        *(*Framework.constants, "np.int64(3)"),
        *("torch.tensor(2.0)", "torch.tensor(3)", "np.float32(0.25)"),
    )

    def __init__(self) -> None:
        import torch
        from torch import nn

        super().__init__()
        torch.manual_seed(0)
        self.torch = torch
        self.tables = [snippets(x) for x in (statements.EVERYWHERE, statements.OF_TORCH, statements.RARE)]
        self.unread = without([*self.tables[0], *self.tables[1]], READS)
        u = torch.randn(4, 4, dtype=torch.double) / 2

        @multifold.cell
        class Combined(nn.Module):
            def __init__(self):
                super().__init__()
                self.lin = nn.Linear(8, 4)

            def forward(self, x, y):
                return torch.tanh(self.lin(torch.cat([x, y])))

        class Squared(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return x * x

            @staticmethod
            def backward(ctx, slope):
                return 3 * slope * ctx.saved_tensors[0]

        parts = {
            "lin": nn.Linear(4, 4),
            "norms": nn.LayerNorm(4),
            "net": nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 4)),
            "gru": nn.GRUCell(4, 4),
            "lstm": nn.LSTMCell(4, 4),
            "table_of": nn.Embedding(5, 4),
            "conv": nn.Conv1d(1, 1, 3, padding=1),
            "conv2": nn.Conv2d(1, 1, 2, padding=1),
            "module": Combined(),
            "dropped": nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4)).eval(),
            "hyper": nn.Linear(4, 20),
            "weighted": nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
            "turning": nn.utils.parametrizations.orthogonal(nn.Linear(4, 4), use_trivialization=False),
        }
        self.parts = nn.ModuleDict(parts).double()
        dropping = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 4)).double()
        unit = Unit(nn.Parameter(u.clone()))
        self.parameters = [*self.parts.parameters(), *dropping.parameters(), unit.w]
        self.shared = torch.randn(4, dtype=torch.double)
        self.kept = [
            (module, name, x, x.data, x.data.clone())
            for module in self.parts.modules()
            for name, x in module._parameters.items()
            if x is not None
        ]
        self.kept.append((None, "w", unit.w, unit.w.data, unit.w.data.clone()))
        lin = parts["lin"]

        def vector(x):
            """Return four numbers of a tensor, whatever its shape."""
            flat = x.reshape(-1)
            if not flat.numel():
                return torch.zeros(4, dtype=torch.double)
            return flat.double().repeat(4)[:4]

        @multifold.cell
        def cell(x, y):
            return torch.tanh(lin(x)) * y

        @multifold.cell
        def pair(x):
            return x * 2, x.sum()

        @multifold.op
        def of_rows(x):
            return x @ u

        self.names = {
            **parts,
            "dropping": dropping,
            "vector": vector,
            "layer": lambda x: torch.tanh(lin(x)),
            "cell": cell,
            "pair": pair,
            "unit": unit,
            "of_rows": of_rows,
            "U": u,
            "CONSTANT": torch.randn(4, dtype=torch.double),
            "TWICE": {name: x.detach() * 2 for name, x in lin.named_parameters()},
            "tanh": torch.tanh,
            "maximum": torch.maximum,
            "detached": lambda x: x.detach(),
            "cat": torch.cat,
            "stack": torch.stack,
            "where": torch.where,
            "zeros_like": torch.zeros_like,
            "ones_like": torch.ones_like,
            "torch": torch,
            "F": nn.functional,
            "func": torch.func,
            "functional_call": torch.func.functional_call,
            **{x.__name__: x for x in of_distributions()},
            "Squared": Squared,
            "INDEX": torch.tensor([1, 3]),
            "zeros": lambda size: torch.zeros(size, dtype=torch.double),
            "array": torch.Tensor,
            "BACKEND": "torch",
            "checkpoint": importlib.import_module("torch.utils.checkpoint").checkpoint,
            "norm": lambda x: x.norm(),
            "distinct": lambda x: x + torch.arange(4) * 0.013,
            "is_float": lambda x: x.dtype == torch.double,
            "default_dtype": default_dtype,
            "scaled_weights": scaled_weights,
        }

    def cells(self) -> dict[str, Any]:
        torch, lin = self.torch, self.parts["lin"]
        layer, net = self.names["layer"], self.names["net"]

        class Keeper(torch.nn.Module):
            """A module that counts and adds up what it is called with."""

            def __init__(self):
                super().__init__()
                self.lin, self.n = lin, 0
                self.register_buffer("total", torch.zeros(4, dtype=torch.double))
                self.register_buffer("steps", torch.tensor(0))

            def forward(self, x):
                self.n += 1
                self.total = self.total * 0.9 + x.detach()
                return self.lin(x) + self.total

        @multifold.cell
        def noisy(x):
            return x * torch.randn(4, dtype=torch.double)

        @multifold.cell
        def of_dropout(x):
            return torch.nn.functional.dropout(layer(x), 0.5)

        @multifold.cell
        def forces(x):
            return torch.func.grad(lambda x: layer(x).sum())(x)

        @multifold.cell
        def forces_between(x, y):
            return torch.func.grad(lambda x: (net(x) * layer(y)).sum())(x) * y

        @multifold.cell
        def curvature(x):
            return torch.func.hessian(lambda x: layer(x).square().sum())(x).diagonal()

        @multifold.cell
        def own_slope(x):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return torch.autograd.grad(layer(x).sum(), x)[0]

        made = [noisy, of_dropout, forces, forces_between, curvature, own_slope]
        return {x.__name__: x for x in made} | {"keeper": Keeper()}

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        torch = self.torch
        self.put_back()
        modes = [(module, module.training) for module in self.parts.modules()]
        dtype, exact = torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled()
        torch.manual_seed(0)
        try:
            with torch.set_grad_enabled(torch.is_grad_enabled()):
                yield
        finally:
            torch.set_default_dtype(dtype)
            torch.use_deterministic_algorithms(exact)
            for module, training in modes:
                module.training = training

    def put_back(self) -> None:
        """Give all layers their own parameters with their first values."""
        with self.torch.no_grad():
            for module, name, x, data, first in self.kept:
                if module is not None:
                    module._parameters[name] = x
                x.data = data
                x.data.copy_(first)

    def step(self, seed: int) -> None:
        for x in self.parameters:
            if seed % 2:
                x.data = x.data * -0.5
            else:
                with self.torch.no_grad():
                    x.mul_(-0.5)

    def array(self, x):
        return self.torch.from_numpy(x).clone()

    def leaf(self, x):
        return x.requires_grad_()

    def array_of_all(self):
        return self.shared.clone()

    def model(self, fn):
        """Return a module that has the parameters."""
        nn, parts = self.torch.nn, self.parts

        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.parts = parts
                self.register_buffer("scale", parts["lin"].bias.detach() * 0 + 1)

            def forward(self, node, shared):
                return fn(node, shared)

        return Model().eval()

    def slopes(self, found):
        torch = self.torch
        roots = [*[x["xs"] for x in found.results], found.left]
        leaves = [x for x in optree.tree_leaves(roots) if isinstance(x, torch.Tensor) and x.requires_grad]
        for x in self.parameters:
            x.grad = None
        if leaves:
            weights = [1 + torch.arange(x.numel(), device=x.device).reshape(x.shape).cos() for x in leaves]
            try:
                sum([(x.double() * w).sum() for x, w in zip(leaves, weights, strict=True)]).backward(
                    retain_graph=True  # what is left shared goes into what comes next
                )
            except RuntimeError as error:  # in the loop what is changed in place may be needed for that
                if "modified by an inplace operation" in str(error):
                    return None
                raise
        inputs = [node.value for tree in found.nodes for node in tree.within()]
        return [None if x.grad is None else x.grad.clone() for x in (*self.parameters, *inputs)]

    def same(self, x, y, within):
        torch = self.torch

        def leaves(one, other):
            if (one is None) != (other is None):  # a gradient: none, or one of zeros
                assert not (one if other is None else other).any()
            elif isinstance(one, torch.Tensor):
                assert isinstance(other, torch.Tensor), (one, other)
                forms = [(z.dtype, z.shape, z.requires_grad) for z in (one, other)]
                assert forms[0] == forms[1], (one, other)
                assert torch.allclose(one, other, rtol=within, atol=within, equal_nan=True), (one, other)
            else:
                same_python(one, other, within)

        same_trees(x, y, leaves)


READS = r"\n|float\(|int\(|bool\(|tolist|item|notes|if |\{v\} > \{t\}\]|max\(|rates|numpy|own|table_of\(dis"
"""What is in statements that read, or that a trace cannot have for another reason."""


def of_distributions() -> list[Any]:
    """Return the distributions of PyTorch that programs use."""
    found = importlib.import_module("torch.distributions")
    return [found.Normal, found.Categorical, found.MultivariateNormal]


@contextlib.contextmanager
def default_dtype(dtype: Any) -> Iterator[None]:
    """Make tensors of another dtype."""
    import torch

    old = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(old)


@contextlib.contextmanager
def scaled_weights(module: Any, scale: float) -> Iterator[None]:
    """Put other data into the parameters of a module, as moving averages are swapped in."""
    old = [(x, x.data) for x in module.parameters()]
    for x, data in old:
        x.data = data * scale
    try:
        yield
    finally:
        for x, data in old:
            x.data = data
