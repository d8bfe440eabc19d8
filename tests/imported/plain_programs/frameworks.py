"""What the names in random programs stand for in each framework, and how results are compared."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import numpy as np

import multifold
from plain_programs import kinds, statements
from plain_programs.comparing import same_python, same_trees


def snippets(*tables: str) -> list[str]:
    """Return the statements of tables: the lines of the first part of each, and each other part."""
    found = []
    for table in tables:
        first, *parts = table.removeprefix("\n").rstrip().split("\n\n")
        found += [*filter(None, first.split("\n")), *parts]
    return found


def without(table: list[str], pattern: str) -> list[str]:
    """Return the statements that a pattern is not found in."""
    return [x for x in table if not re.search(pattern, x)]


class Unit:
    """An object of which a method is a cell."""

    def __init__(self, w: Any) -> None:
        self.w = w

    def turned(self, x: Any) -> Any:
        return x @ self.w.T


class Framework:
    """What all frameworks have; each says more."""

    name = ""
    patience = 20.0
    """How many seconds a program may take."""
    most, depth, runs = 8, 2, 2
    """How many statements a program has at most, how deep trees are, and how many lists of them are run."""
    constants: tuple[str, ...] = ("2", "0.5", "-1.0", "True", "np.float64(1.5)", "CONSTANT[1]")
    names: dict[str, Any]
    tables: list[list[str]]
    unread: list[str]

    def __init__(self) -> None:
        self.kinds = {kind: snippets(*tables) for kind, tables in kinds.KINDS[self.name].items()}

    def memory(self) -> Any:
        """Return a table that programs write into."""
        return self.names["zeros"]((8, 4))

    def cells(self) -> dict[str, Any]:
        """Return further objects of a world."""
        return {}

    def array_of_all(self) -> Any:
        """Return the array that all examples get; each run gets its own."""
        return self.shared * 1

    def array(self, x: Any) -> Any:
        return x

    def leaf(self, x: Any) -> Any:
        return x

    def settled(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that begins with the same settings and parameters, and puts them back."""
        return contextlib.nullcontext()

    def step(self, seed: int) -> None:
        """Change the parameters."""

    def model(self, fn: Any) -> Any:
        """Return a method of an object."""

        class Model:
            def __init__(self):
                self.fn = fn

            def run(self, node, shared):
                return self.fn(node, shared)

        return Model().run

    def slopes(self, found: Any) -> list[Any] | None:
        """Return gradients of what was found; None where the loop has none."""
        return []

    def same(self, x: Any, y: Any, within: float) -> None:
        """Assert that two structures are alike, and their arrays equal."""

        def leaves(one, other):
            if isinstance(one, (np.ndarray, np.generic)):
                assert isinstance(other, np.ndarray) == isinstance(one, np.ndarray), (one, other)
                assert one.dtype == other.dtype and one.shape == other.shape, (one, other)
                np.testing.assert_allclose(one, np.asarray(other), rtol=within, atol=within)
            else:
                same_python(one, other, within)

        same_trees(x, y, leaves)


class Numpy(Framework):
    """What names stand for in programs of NumPy."""

    name = "numpy"
    constants = (*Framework.constants, "np.int64(3)")

    def __init__(self) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        u = rng.normal(size=(4, 4)) / 2
        self.tables = [snippets(x) for x in (statements.EVERYWHERE, statements.OF_NUMPY, statements.RARE)]
        self.shared = rng.normal(size=4)

        def vector(x):
            """Return four numbers of an array, whatever its shape."""
            flat = np.reshape(x, -1)
            if not flat.shape[0]:
                return np.zeros(4)
            return np.concatenate([flat] * 4)[:4] * 1.0

        @multifold.cell
        def layer(x):
            return np.tanh(x @ u + 0.1)

        @multifold.cell
        def cell(x, y):
            return np.tanh(x) * y

        @multifold.cell
        def pair(x):
            return x * 2, x.sum()

        @multifold.op
        def of_rows(x):
            return x @ u

        self.names = {
            "vector": vector,
            "layer": layer,
            "cell": cell,
            "pair": pair,
            "of_rows": of_rows,
            "unit": Unit(u),
            "U": u,
            "CONSTANT": rng.normal(size=4),
            "array": np.ndarray,
            "BACKEND": "numpy",
            "tanh": np.tanh,
            "maximum": np.maximum,
            "detached": lambda x: x,
            "cat": np.concatenate,
            "stack": np.stack,
            "where": np.where,
            "zeros": np.zeros,
            "zeros_like": np.zeros_like,
            "ones_like": np.ones_like,
            "norm": lambda x: np.sqrt((x * x).sum()),
            "distinct": lambda x: x + np.arange(4) * 0.013,
            "is_float": lambda x: x.dtype.kind == "f",
        }
