"""How long a query takes, where there are only some twenty plans to learn from: `PlanCosts`.

A database's planner gives each operator of a plan a cost in units of its own. The model learns two numbers
for each kind of operator, by which these costs become milliseconds. A network, as
`multifold_bench.models.QPPNet`, reads far more of a plan and needs thousands of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, final

import numpy as np

import multifold
from multifold import ops
from multifold.backend import Array, Ragged
from multifold.models.layers import bottom_up
from multifold.models.model import Model
from multifold_bench.models.qppnet import OTHER

OWN = 0.01
MORE = 0.0009
"""Milliseconds for a unit of cost, where training begins: an operator's own, and what it adds."""
LEAST = 0.02
"""The smallest share of its cost that is an operator's own."""
CHEAPEST = 0.001
"""The smallest cost of an operator."""


def shares(plan: Any) -> tuple[float, list[float]]:
    """Return which share of an operator's cost is its own, and which are its children's; together 1.

    The inner side of a nested loop runs once for each row that the planner expects of the outer one.

    Examples
    --------
    >>> from types import SimpleNamespace as Plan
    >>> scan = Plan(fields={"Total Cost": 30.0, "Parent Relationship": "Outer"})
    >>> shares(Plan(operator="Sort", fields={"Total Cost": 40.0}, children=[scan]))
    (0.25, [0.75])
    """
    below = [(child.fields, child.fields.get("Parent Relationship")) for child in plan.children]
    runs = 1.0
    if plan.operator == "Nested Loop":
        runs = max([1.0, *(float(fields.get("Plan Rows", 1)) for fields, side in below if side == "Outer")])
    costs = [float(fields.get("Total Cost", 0)) for fields, _ in below]
    parts = [x * (runs if side == "Inner" else 1) for x, (_, side) in zip(costs, below, strict=True)]
    total = max(float(plan.fields.get("Total Cost", 0)), CHEAPEST)
    own = max(total - sum(parts), LEAST * total)
    whole = own + sum(parts)
    return own / whole, [part / whole for part in parts]


@final
class PlanCosts(Model):
    """Says how long the operators of a query plan take, by correcting what the planner says they cost.

    An operator's milliseconds for a unit of cost are the mean of its own and of its children's, weighted by
    the planner's costs, and something more. What its own are and what is added are two numbers for each
    kind of operator, which some twenty plans can teach: a nested loop, whose rows the planner
    underestimates, adds much. A network reads more of each operator, and learns such plans by heart.

    Parameters
    ----------
    operators : iterable of str
        The names of the operators that get numbers of their own; others share two.
    seed, dtype
        Of the initial values.

    Examples
    --------
    >>> import multifold
    >>> from types import SimpleNamespace as Plan
    >>> fields = {"Total Cost": 1000, "Parent Relationship": "Outer"}
    >>> scan = Plan(operator="Seq Scan", fields=fields, children=())
    >>> plan = Plan(operator="Sort", fields={"Total Cost": 1500}, children=(scan,))
    >>> model = PlanCosts(["Sort", "Seq Scan"])
    >>> fold = multifold.Fold(backend="numpy")
    >>> times, = fold.apply(model, [model.encode(fold, plan)])
    >>> np.expm1(times).shape  # in milliseconds
    (2,)
    """

    def __init__(self, operators: Iterable[str], *, seed: int = 0, dtype: str = "float32") -> None:
        names = tuple(sorted({*operators, OTHER}))
        rng = np.random.default_rng(seed)
        usual = np.log([[OWN, MORE]])
        parameters = {
            f"operators.{name}.units": (usual + rng.normal(scale=0.1, size=(1, 2))).astype(dtype)
            for name in names
        }
        super().__init__(parameters, names_of_operators=names)

    def unit(
        self, cost: Array, own: Array, parts: Ragged, below: Ragged, *, operator: str
    ) -> tuple[Array, Array]:
        """Return the time ``(n,)`` of operators, and their milliseconds for a unit of cost, ``(n, 1)``.

        Parameters
        ----------
        cost, own : arrays of shape ``(n, 1)``
            What the planner says, and which share of it is the operator's own.
        parts, below : Ragged
            The shares of the children, and their milliseconds for a unit, rows of shape ``(1,)``.
        operator : str
            Whose two numbers; a static argument.
        """
        units = getattr(self.operators, operator).units
        cost = ops.cast(cost, units)
        own = ops.cast(own, units)
        alone, more = ops.split(ops.exp(units), 2, axis=1)
        unit = own * alone + more
        # In a TensorFlow graph for any number of rows the shape is None, which is not 0.
        if below.values.shape[0] != 0:
            unit = unit + ops.segment_sum(ops.cast(parts.values, units) * below.values, below)
        return ops.reshape(ops.log(1 + cost * unit), ()), unit

    def encode(self, fold: Any, plan: Any) -> list[Any]:
        """Record a plan; return the predicted times of its operators, each after its children's.

        Parameters
        ----------
        fold : Fold, Unfold or the recorder of a trace
        plan : object
            A node with the attributes ``operator``, ``children`` and ``fields``, which `shares` reads. May
            be as deep as it likes.
        """
        times: list[Any] = []

        def record(node: Any, below: Sequence[Any]) -> Any:
            own, parts = shares(node)
            numbers = [np.full((1, 1), x, np.float32) for x in (node.fields.get("Total Cost", 0), own)]
            rows = [np.full((1, 1), part, np.float32) for part in parts]
            ragged = multifold.ragged(rows, (1,)), multifold.ragged(below, (1,))
            operator = node.operator if node.operator in self.names_of_operators else OTHER
            time, unit = fold.add("unit", *numbers, *ragged, operator=operator).split(2)
            times.append(time)
            return unit

        bottom_up(plan, record)
        return times
