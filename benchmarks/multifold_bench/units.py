"""Graphs of many small networks, one for each sort of module of a question, or each type of calls.

Both families record `Units.unit` with the network's name as a static argument, so each name is a type of
calls of its own. With types that meet in circles, they are what a schedule has to be found for.
"""

# ruff: noqa: D102 - what a benchmark overrides is documented once, at Benchmark

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

from multifold import ops
from multifold._compare.benchmark import Examples, Tell, Workload
from multifold._compare.files import PathLike
from multifold.backend import Array
from multifold.models import Model
from multifold.models.layers import Initial, linear
from multifold.models.model import Classifier
from multifold_bench.examples import drawn, no_files
from multifold_bench.graphs.base import CLASSES
from multifold_bench.graphs.control import sample_dag, sample_modules
from multifold_bench.recorded import ModelBenchmark, RowsBenchmark

SOURCES = 512
"""Vectors that graphs begin with, by their place; a question has one, its scene."""


@final
class Units(Classifier):
    """Networks of two layers by name, each over a fixed number of states of the same width.

    Parameters
    ----------
    arities : mapping of str to int
        How many states each network reads.
    width, classes : int
        The width of all states, and the number of classes.

    Examples
    --------
    >>> import multifold
    >>> model = Units({"find": 1, "and": 2}, width=8, classes=5)
    >>> fold = multifold.Fold(backend="numpy")
    >>> red, square = (fold.add("unit", "find", fold.add("source", i)) for i in (3, 4))
    >>> fold.apply(model, fold.add("logits", fold.add("unit", "and", red, square))).shape
    (1, 5)
    """

    def __init__(self, arities: Mapping[str, int], width: int, classes: int) -> None:
        initial = Initial(0, "float32")
        parameters = {"sources": initial.embedding(SOURCES, width)}
        for name, arity in arities.items():
            parameters |= initial.linear(f"units.{name}.hidden", arity * width, width)
            parameters |= initial.linear(f"units.{name}.state", width, width)
        super().__init__(parameters | initial.linear("output", width, classes))

    def source(self, place: Array) -> Array:
        """Return the states that graphs begin with: ``(n,)`` integers give ``(n, width)``."""
        return ops.take(self.sources, place)

    def unit(self, name: str, *states: Array) -> Array:
        """Return what a network makes of states ``(n, width)`` each."""
        network = getattr(self.units, name)
        return ops.tanh(linear(network.state, ops.relu(linear(network.hidden, *states))))


MODULES = {**{f"module_{i}": 1 for i in range(7)}, "and": 2, "or": 2}


def read_questions(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Draw questions."""
    no_files(path, "modules")
    return drawn(sample_modules, 0, CLASSES)


@final
class ModulesBenchmark(ModelBenchmark):
    """A network for each module of a question (Andreas et al. 2016, "Neural module networks")."""

    family = "modules"

    def model(self) -> Model:
        return Units(MODULES, self.width, self.examples.classes)

    def record(self, fold: Any, question: Sequence[Any]) -> Any:
        return fold.add("logits", self.ask(fold, question))

    def ask(self, fold: Any, question: Sequence[Any]) -> Any:
        modules, *joined = question
        found = fold.add("source", 0)
        for module in modules:
            found = fold.add("unit", f"module_{module}", found)
        if joined:
            found = fold.add("unit", ("and", "or")[joined[0]], found, self.ask(fold, joined[1]))
        return found


TYPES = {f"type_{number}": 1 + number % 3 for number in range(1, 6)}


def read_graphs(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Draw graphs of 355 calls in layers."""
    no_files(path, "typed-graphs")
    return drawn(sample_dag, 0, CLASSES)


@final
class TypedGraphsBenchmark(RowsBenchmark):
    """A graph of calls of six types, which read up to three earlier results, whatever made these."""

    family = "typed_graphs"

    def model(self) -> Model:
        return Units(TYPES, self.width, self.examples.classes)

    def record(self, fold: Any, calls: Sequence[Sequence[int]]) -> Any:
        nodes: list[Any] = []
        for number, *places in calls:
            if places:
                nodes.append(fold.add("unit", f"type_{number}", *[nodes[place] for place in places]))
            else:
                nodes.append(fold.add("source", len(nodes)))
        return [fold.add("logits", node) for node in nodes]


WORKLOADS = {
    "modules": Workload(read_questions, ModulesBenchmark),
    "typed-graphs": Workload(read_graphs, TypedGraphsBenchmark),
}
"""By name."""
