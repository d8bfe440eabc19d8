"""Graphs of calls: random draws, assignments, and what cannot run on all rows, among their operations.

Functions inside of a graph are looked through as well.
"""

from __future__ import annotations

import re
from typing import Any

import tensorflow as tf

from multifold_tensorflow.lazy.pending import refused
from multifold_tensorflow.trials import SEEDS

RANDOM = re.compile(
    "Random|Multinomial|TruncatedNormal|^Stateful(?!PartitionedCall)|^Rng|NonDeterministicInts"
)
"""Found in the types of operations that draw random numbers from a state."""


def is_random(graph: Any) -> bool:
    """Return whether a graph draws by a state: of TensorFlow, of Keras, or of a generator."""
    functions = graph.as_graph_def().library.function
    types = [*[op.type for op in graph.get_operations()], *[x.op for f in functions for x in f.node_def]]
    has_seed = any(SEEDS in x.name for x in graph.variables)
    return has_seed or any(RANDOM.search(x) and not x.startswith("Stateless") for x in types)


ASSIGNMENTS = (
    *("Assign", "ResourceScatter", "ResourceApply", "ResourceSparseApply"),
    *("LookupTableInsert", "LookupTableRemove", "LookupTableImport", "QueueEnqueue", "QueueDequeue"),
)
"""Beginnings of the types of operations that change a variable, a table or a queue."""


def assigned_by(name: str, graph: Any) -> bool:
    """Return whether a graph assigns states of Keras's seeds.

    Raises `RecordError` if it assigns other variables, or changes a table or queue, or if a function inside
    of it does any of this; ``name`` is what the error calls the function.
    """
    seeds = [x.handle for x in getattr(graph, "_watched_variables", ()) if SEEDS in x.name]
    known = [id(inner) for outer, inner in graph.captures if any(outer is x for x in seeds)]
    changes = [op for op in graph.get_operations() if op.type.startswith(ASSIGNMENTS)]
    inner = [node.op for function in graph.as_graph_def().library.function for node in function.node_def]
    if any(id(op.inputs[0]) not in known for op in changes) or any(
        x.startswith(ASSIGNMENTS) for x in inner
    ):
        raise refused(
            f"{name} assigns a variable, as batch normalisation does in training, or changes a table or "
            "queue. Recorded calls run later, and in another order.",
            "assign it after the run, or write a cell for the rows of all: multifold.op.",
        )
    return bool(changes)


UNFIT = {
    "PadV2",  # it pads with zeros alone
    "SparseSegmentMeanGrad",
    "SparseSegmentSqrtNGrad",
    "SparseSegmentSumGrad",  # for more segments than indices
    "StringFormat",  # it writes all rows into each text
    "TensorListGather",  # it leaves examples on axis 1
    "TensorListScatterIntoExistingList",
}
"""Types of operations that `tf.vectorized_map` gets wrong without a word."""

AXES = {"Roll": (2, True), "Transpose": (1, False)}
"""Types of operations that it gets wrong for negative axes: which of their inputs has the axes, and whether
they count as negative where they are not known. A wrong transpose fails when it runs."""


def refuse_unfit(graph: Any) -> None:
    """Raise `NotImplementedError` for operations that `tf.vectorized_map` gets wrong.

    The same for custom gradients, which it loses.
    """
    for op in operations_of(graph):
        if op.type in UNFIT or (op.type in AXES and is_negative(op, *AXES[op.type])):
            raise NotImplementedError(f"{op.type} cannot run on all rows.")
        if op.type == "IdentityN" and "CustomGradient" in str(op.node_def):
            raise NotImplementedError("A custom gradient would be lost.")


def operations_of(graph: Any) -> list[Any]:
    """Return the operations of a graph, and of the functions that it calls, at any depth."""
    functions = [graph._get_function(x.signature.name) for x in graph.as_graph_def().library.function]
    inner = [getattr(x, "graph", None) for x in functions]
    return [op for part in (graph, *inner) if part is not None for op in part.get_operations()]


def is_negative(op: Any, place: int, unless_known: bool) -> bool:
    """Return whether an input of an operation has a negative number; ``unless_known`` if it is computed."""
    value = tf.get_static_value(op.inputs[place])
    return unless_known if value is None else bool((value < 0).any())
