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

General layout
--------------
``_engine/`` is the lower of two storeys. It keeps recorded calls as integers, plans which of them share a
launch, and runs the launches through a backend. It knows nothing of what is above it:

- ``fold.py``: `Fold`, with ``_twin/`` (`Unfold`, `shapes`), ``explain/`` and ``program/`` at its side
- ``lazy/``: code as it stands (`batched`, `cell`, `op`, `pending`, `plain`)
- ``serve/``: requests of many callers (`Server`), and any number of examples (`stream`)
- ``ops/``, ``models/``, ``sampling/``, ``testing/``: what programs import by these names
- ``_numpy/``: the adapter of NumPy; those of other frameworks are distributions, found by entry points
- ``cli/``, ``_measure/``: the command ``multifold``, and what it measures

Both storeys know ``errors.py``, ``backend/``, ``operands.py`` and ``marks.py``. What begins with an
underscore is private. This file brings together what most programs need, and loads what takes long to
import when it is asked for.

To read the code, begin with ``fold.py``. Then follow one minibatch through the docstrings of
``_engine/record``, ``_engine/plan`` and ``_engine/run``, each of which works through an example.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from multifold._engine.frameworks.registry import installed_backends, load_backend
from multifold._engine.plan.schedule import Launch, Schedule
from multifold._engine.record.node import Node
from multifold._engine.traces.files import load, save
from multifold._engine.traces.minibatch import Minibatch, merge
from multifold._engine.traces.table import from_arrow, to_arrow
from multifold._engine.traces.trace import Trace
from multifold._engine.traces.tracer import trace, traces
from multifold._twin.shapes import CallShapes, RowShape, Shapes, shapes
from multifold._twin.unfold import Unfold
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

if TYPE_CHECKING:  # loaded when asked for: they bring asyncio and greenlet
    from multifold._measure.advice import advise
    from multifold.lazy import Batched, batched, cell, op, pending, plain
    from multifold.serve import Server, ServerStats, stream

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "BackendError",
    "BackendMissing",
    "Batched",
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
    "cell",
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


LATER = {
    "advise": "multifold._measure.advice",
    **dict.fromkeys(("Batched", "batched", "cell", "op", "pending", "plain"), "multifold.lazy"),
    **dict.fromkeys(("Server", "ServerStats", "stream"), "multifold.serve"),
}
"""What is loaded when it is asked for, and the module that has it."""


def __getattr__(name: str) -> object:
    """Load a room of the package that is asked for as an attribute: `multifold.ops`, say."""
    if name in LATER:
        return getattr(importlib.import_module(LATER[name]), name)
    if name in ("blocks", "compat", "models", "ops", "sampling"):  # the first two say where they are now
        return importlib.import_module(f"multifold.{name}")
    raise AttributeError(f"module 'multifold' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return what is public, for completion: what is loaded later comes, too, and modules inside do not."""
    return [*__all__]
