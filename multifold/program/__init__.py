"""Programs: schedules laid out as data, which compiled executors read.

`Fold.program` makes one. It holds integers, numbers and arrays of NumPy only, pickles, and is made by the
vectorised path of traces. `run` interprets it in NumPy: the reference that the executors of the
frameworks are tested against.
"""

from __future__ import annotations

from multifold.program.build import lay_out
from multifold.program.family import Family
from multifold.program.interpret import (
    check_rows,
    follow,
    mixed_rows,
    naming,
    no_rows,
    resolve_ops,
    run,
)
from multifold.program.layout import (
    Form,
    Group,
    Kernel,
    Operand,
    Phase,
    Program,
    RaggedColumn,
    Source,
)
from multifold.program.make import Programs, are_traces
from multifold.program.tiles import Shelf, Sizes, Tiler, bucket

__all__ = [
    "Family",
    "Form",
    "Group",
    "Kernel",
    "Operand",
    "Phase",
    "Program",
    "Programs",
    "RaggedColumn",
    "Shelf",
    "Sizes",
    "Source",
    "Tiler",
    "are_traces",
    "bucket",
    "check_rows",
    "follow",
    "lay_out",
    "mixed_rows",
    "naming",
    "no_rows",
    "resolve_ops",
    "run",
]
