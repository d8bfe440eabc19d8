"""The one door to compiled code: every inner loop by name, compiled where that can be.

The inner loops of scheduling and wiring (`_calls.py`, `_rows.py`), of merging (`_merging.py`), of rounds
(`_table.py`, `_tasks.py`) and of plain programs (`_lazy.py`) have one source in Python, which Cython
compiles where a C compiler is at hand when multifold is installed, and which runs as it is elsewhere
(`columns.py` says how). The classes that record calls (`_recording.pyx`), the search for schedules
(`_covers.pyx`) and the foot of a stack (`_foot.pyx`) need C. They are written in Cython, and
`multifold._engine.compiled.reference` has the same names in Python. What is not compiled runs everywhere
when the environment variable ``MULTIFOLD_NATIVE`` is ``0``. The choice is made here, once, for all of them
together. No other module asks: a caller writes ``compiled.edges(...)``.

Compiled, a recorded call takes about a fifth of the time, and merging or planning a minibatch of thousands
of calls a twentieth or less.

The loops check every index that was not checked before its loop, since a trace may come from a file. To
make an array, or to hand over a column, takes as long for a few integers as for many, and is most of the
time of a small minibatch. So each function makes few arrays and returns all that its caller needs.

Examples
--------
Three calls: 0 and 1 are leaves, and 2 reads both of them. Each function has columns of integers for
arguments.

>>> import numpy as np
>>> from multifold._engine import compiled
>>> none = np.zeros(0, np.int64)
>>> refs, ref_starts = np.array([0, 1]), np.array([0, 0, 0, 2])  # the references of call 2 begin at 0
>>> sources, readers = compiled.edges(np.arange(3), refs, ref_starts, none, none, none)
>>> [(int(source), int(reader)) for source, reader in zip(sources, readers)]
[(0, 2), (1, 2)]
"""

from __future__ import annotations

import os
import platform
import sys

from multifold._engine.compiled.sources import require_compiled, uncompiled

try:
    if os.environ.get("MULTIFOLD_NATIVE") == "0":
        raise ImportError("switched off by MULTIFOLD_NATIVE=0")
    from multifold._engine.compiled._calls import (
        COUNTERS,
        ancestors,
        bucket,
        edges,
        schedule,
        typed_levels,
    )  # fmt: skip
    from multifold._engine.compiled._covers import beam, cover
    from multifold._engine.compiled._foot import at_foot
    from multifold._engine.compiled._lazy import (
        FoundCellBase,
        Hashed,
        KnownCall,
        LazyRecorderBase,
        NumberRead,
        RecordingBase,
        SharingBase,
        Stamp,
        TurnsBase,
        are_as_seen,
        first_unknown,
        tables_hold,
    )
    from multifold._engine.compiled._merging import cut, merge, traces_of
    from multifold._engine.compiled._recording import GraphBase, NodeBase, RecorderBase, recorded
    from multifold._engine.compiled._rows import plan, wire
    from multifold._engine.compiled._table import TableBase, counts_up, distinct
    from multifold._engine.compiled._tasks import (
        AwaitingBase,
        Owners,
        RequestBase,
        TaskBase,
        TasksBase,
        are_nodes,
        awaited,
        located,
        requests_are,
        rows_of,
    )  # fmt: skip

    # Python imports the source of a module that was not built, and one source among compiled modules would
    # hand them lists where they expect views of arrays.
    require_compiled()
    missing = ""
except ImportError as error:
    # The sources go into `sys.modules` first: else the imports below would find the compiled modules.
    uncompiled()
    from multifold._engine.compiled._calls import (
        COUNTERS,
        ancestors,
        bucket,
        edges,
        schedule,
        typed_levels,
    )  # fmt: skip
    from multifold._engine.compiled._lazy import (
        FoundCellBase,
        Hashed,
        KnownCall,
        LazyRecorderBase,
        NumberRead,
        RecordingBase,
        SharingBase,
        Stamp,
        TurnsBase,
        are_as_seen,
        first_unknown,
        tables_hold,
    )
    from multifold._engine.compiled._merging import cut, merge, traces_of
    from multifold._engine.compiled._rows import plan, wire
    from multifold._engine.compiled._table import TableBase, counts_up, distinct
    from multifold._engine.compiled._tasks import (
        AwaitingBase,
        Owners,
        RequestBase,
        TaskBase,
        TasksBase,
        are_nodes,
        awaited,
        located,
        requests_are,
        rows_of,
    )  # fmt: skip
    from multifold._engine.compiled.reference.covers import beam, cover
    from multifold._engine.compiled.reference.foot import at_foot
    from multifold._engine.compiled.reference.recording import GraphBase, NodeBase, RecorderBase, recorded

    missing = str(error)

__all__ = [
    "COUNTERS",
    "AwaitingBase",
    "FoundCellBase",
    "GraphBase",
    "Hashed",
    "KnownCall",
    "LazyRecorderBase",
    "NodeBase",
    "NumberRead",
    "Owners",
    "RecorderBase",
    "RecordingBase",
    "RequestBase",
    "SharingBase",
    "Stamp",
    "TableBase",
    "TaskBase",
    "TasksBase",
    "TurnsBase",
    "ancestors",
    "are_as_seen",
    "are_nodes",
    "at_foot",
    "awaited",
    "beam",
    "bucket",
    "counts_up",
    "cover",
    "cut",
    "distinct",
    "edges",
    "ends_stacks",
    "first_unknown",
    "in_use",
    "located",
    "merge",
    "missing",
    "plan",
    "recorded",
    "requests_are",
    "rows_of",
    "schedule",
    "state",
    "tables_hold",
    "traces_of",
    "typed_levels",
    "wire",
]  # fmt: skip

in_use = not missing
"""Whether the compiled code runs."""

ends_stacks = in_use and sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
"""Whether `at_foot` marks the end of a stack for those who walk over it."""


def state() -> str:
    """Return a line of text that says whether the compiled code runs, and if not, why.

    Examples
    --------
    >>> state().split(":")[0]
    'compiled code'
    """
    if in_use:
        return "compiled code: in use"
    return f"compiled code: not in use ({missing}): Python does the same, more slowly"
