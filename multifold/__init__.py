"""multifold: dynamic batching for any model, in any framework.

Write ordinary Python for one example; multifold records the calls of all examples of a minibatch, finds
those that may run together, and runs each group as one batched call of your own model.

Examples
--------
>>> import multifold
>>> fold = multifold.Fold(backend="numpy")
>>> def power(x, n):
...     return x if n == 0 else fold.add("double", power(x, n - 1))
>>> fold.apply({"double": lambda x: 2 * x}, [[power(1, n) for n in (1, 2, 3, 4)]])
[array([ 2,  4,  8, 16])]
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from multifold._frameworks.registry import installed_backends, load_backend
from multifold._plan.schedule import Launch, Schedule
from multifold._record.node import Node
from multifold._shapes import CallShapes, RowShape, Shapes, shapes
from multifold._stream import stream
from multifold._traces.files import load, save
from multifold._traces.minibatch import Minibatch, merge
from multifold._traces.recording import trace, traces
from multifold._traces.table import from_arrow, to_arrow
from multifold._traces.trace import Trace
from multifold.backend import Backend, Bidirectional, Cell, Ragged, Stack, TrainingKit, unsupported
from multifold.errors import (
    BackendError,
    BackendMissing,
    DeadlineExceeded,
    ExtraMissing,
    LaunchError,
    MismatchError,
    MultifoldError,
    Overloaded,
    RecordError,
)
from multifold.fold import Fold
from multifold.marks import mixing, trusted
from multifold.operands import each, ragged, shared, static
from multifold.unfold import Unfold

if TYPE_CHECKING:  # loaded when asked for, as it brings asyncio
    from multifold._plain import advise, batched, op, pending, plain
    from multifold._serve import Server, ServerStats

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "BackendError",
    "BackendMissing",
    "Bidirectional",
    "CallShapes",
    "Cell",
    "DeadlineExceeded",
    "ExtraMissing",
    "Fold",
    "Launch",
    "LaunchError",
    "Minibatch",
    "MismatchError",
    "MultifoldError",
    "Node",
    "Overloaded",
    "Ragged",
    "RecordError",
    "RowShape",
    "Schedule",
    "Server",
    "ServerStats",
    "Shapes",
    "Stack",
    "Trace",
    "TrainingKit",
    "Unfold",
    "advise",
    "batched",
    "each",
    "from_arrow",
    "installed_backends",
    "load",
    "load_backend",
    "merge",
    "mixing",
    "op",
    "pending",
    "plain",
    "ragged",
    "save",
    "shapes",
    "shared",
    "static",
    "stream",
    "to_arrow",
    "trace",
    "traces",
    "trusted",
    "unsupported",
]


def __getattr__(name: str) -> object:
    """Load a room of the package that is asked for as an attribute: `multifold.ops`, say."""
    if name in ("advise", "batched", "op", "pending", "plain"):
        return getattr(importlib.import_module("multifold._plain"), name)
    if name in ("Server", "ServerStats"):
        return getattr(importlib.import_module("multifold._serve"), name)
    if name in ("blocks", "models", "ops", "sampling"):
        return importlib.import_module(f"multifold.{name}")
    raise AttributeError(f"module 'multifold' has no attribute {name!r}")
