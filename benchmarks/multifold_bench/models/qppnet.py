"""Query plans: a network for each operator predicts its time and tells its parent about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any, final

import numpy as np

import multifold
from multifold import ops
from multifold.backend import Array, Ragged
from multifold.models.layers import Initial, linear, postorder
from multifold.models.model import Model

OTHER = "Other"
"""The network of operators that none was made for."""

NUMBERS = ("Startup Cost", "Total Cost", "Plan Rows", "Plan Width", "Workers Planned")
"""What the planner estimated; read as ``log(1 + x)``."""
PRESENT = (
    *("Filter", "Index Cond", "Recheck Cond", "Hash Cond", "Merge Cond", "Join Filter"),
    *("Sort Key", "Group Key", "Subplan Name", "Index Name"),
)
"""Fields whose being there says something, whatever they hold."""
VALUES = {
    "Join Type": ("Inner", "Left", "Right", "Full", "Semi", "Anti"),
    "Strategy": ("Plain", "Sorted", "Hashed", "Mixed"),
    "Partial Mode": ("Simple", "Partial", "Finalize"),
    "Scan Direction": ("Forward", "Backward"),
    "Parallel Aware": (True,),
    "Inner Unique": (True,),
}
"""Fields with few values: one number for each."""
FEATURES = len(NUMBERS) + len(PRESENT) + sum(map(len, VALUES.values()))


def features(fields: Mapping[str, Any]) -> np.ndarray:
    """Return what is known of an operator before it runs, as float32 of shape ``(1, FEATURES)``.

    Examples
    --------
    >>> print(features({"Plan Rows": 99, "Join Type": "Left"}).sum())  # log(100) + 1
    5.6051702
    """
    numbers = [np.log1p(float(fields.get(name, 0))) for name in NUMBERS]
    present = [name in fields for name in PRESENT]
    values = [fields.get(name) == value for name, known in VALUES.items() for value in known]
    return np.array([[*numbers, *present, *values]], np.float32)


def target(fields: Mapping[str, Any]) -> float:
    """Return what `QPPNet` predicts: ``log(1 + milliseconds)`` until an operator's last row."""
    return float(np.log1p(fields["Actual Total Time"]))


@final
class QPPNet(Model):
    """Predicts the run time of query plans, operator by operator.

    Parameters
    ----------
    operators : iterable of str
        The names of the operators that get a network of their own; others share one.
    width : int
        How many numbers an operator tells its parent.
    hidden, layers : int
        The width and number of the hidden layers of each network.
    features : int
        How many features an operator has.
    seed, dtype
        Of the initial values.

    References
    ----------
    Marcus and Papaemmanouil, Plan-Structured Deep Neural Network Models for Query Performance
    Prediction, VLDB 2019. There an operator has a fixed number of children; PostgreSQL's may have
    more, so the outer child comes first and all others are added up after it.

    Examples
    --------
    >>> import multifold
    >>> from types import SimpleNamespace as Plan
    >>> fields = {"Plan Rows": 1000, "Parent Relationship": "Outer"}
    >>> scan = Plan(operator="Seq Scan", fields=fields, children=())
    >>> plan = Plan(operator="Sort", fields={"Plan Rows": 1000}, children=(scan,))
    >>> model = QPPNet(["Sort", "Seq Scan"])
    >>> fold = multifold.Fold(backend="numpy")
    >>> scan_time, sort_time = model.encode(fold, plan)
    >>> fold.apply(model, [[scan_time, sort_time]])[0].shape
    (2,)
    """

    def __init__(
        self,
        operators: Iterable[str],
        *,
        width: int = 32,
        hidden: int = 128,
        layers: int = 5,
        features: int = FEATURES,
        seed: int = 0,
        dtype: str = "float32",
    ) -> None:
        initial = Initial(seed, dtype)
        names = tuple(sorted({*operators, OTHER}))
        sizes = [features + 2 * width, *[hidden] * layers, 1 + width]
        parameters: dict[str, np.ndarray] = {}
        for name in names:
            for index in range(layers + 1):
                group = f"operators.{name}.{index}"
                parameters |= initial.linear(group, sizes[index], sizes[index + 1])
        super().__init__(parameters, names_of_operators=names, width=width, layers=layers)

    def unit(self, features: Array, outer: Ragged, others: Ragged, *, operator: str) -> tuple[Array, Array]:
        """Return the time ``(n,)`` of operators of one kind, and what they tell, ``(n, width)``.

        Parameters
        ----------
        features : array of shape ``(n, features)``
        outer, others : Ragged
            What the children told, rows of shape ``(width,)``.
        operator : str
            Which network; a static argument.
        """
        network = getattr(self.operators, operator)
        weight = getattr(network, "0").weight
        told = [ops.segment_sum(rows.values, rows) for rows in (outer, others)]
        x = ops.concat([ops.cast(part, weight) for part in (features, *told)], axis=1)
        for index in range(self.layers):
            x = ops.relu(linear(getattr(network, str(index)), x))
        x = linear(getattr(network, str(self.layers)), x)
        time, tells = ops.split(x, [1, self.width], axis=1)
        return ops.reshape(time, ()), tells

    def encode(self, fold: Any, plan: Any) -> list[Any]:
        """Record a plan; return the predicted times of its operators, each after its children's.

        Parameters
        ----------
        fold : Fold, Unfold or the recorder of a trace
        plan : object
            A node with the attributes ``operator``, ``children`` and ``fields``, which `features`
            reads. May be as deep as it likes.
        """
        times: list[Any] = []
        waiting: list[tuple[bool, Any]] = []
        said = (self.width,), getattr(getattr(self.operators, OTHER), "0").weight.dtype
        for node in postorder(plan, attrgetter("children")):
            first = len(waiting) - len(node.children)
            below = waiting[first:]
            waiting = waiting[:first]
            outer, others = (
                multifold.ragged([told for is_outer, told in below if is_outer is side], *said)
                for side in (True, False)
            )
            operator = node.operator if node.operator in self.names_of_operators else OTHER
            unit = fold.add("unit", features(node.fields), outer, others, operator=operator)
            time, tells = unit.split(2)
            times.append(time)
            waiting.append((node.fields.get("Parent Relationship") == "Outer", tells))
        return times
