"""Programs: schedules laid out as data, which compiled executors read.

`Fold.program` makes one. It holds integers, numbers and arrays of NumPy only, pickles, and is made by the
vectorised path of traces. `run` interprets it in NumPy: the reference that the executors of the
frameworks are tested against.
"""

from __future__ import annotations

from multifold.program.checks import (
    check_rows,
    follow,
    mixed_rows,
    naming,
    no_rows,
    resolve_ops,
)
from multifold.program.interpret import run
from multifold.program.layout import Form, Kernel, KernelOperand, Phase, Program, RaggedColumn, Source
from multifold.program.make import Programs, are_traces
from multifold.program.slabs import SlabClass, SlabClasses
from multifold.program.tiles import Tiler

__all__ = [
    "Form",
    "Kernel",
    "KernelOperand",
    "Phase",
    "Program",
    "Programs",
    "RaggedColumn",
    "SlabClass",
    "SlabClasses",
    "Source",
    "Tiler",
    "are_traces",
    "check_rows",
    "follow",
    "mixed_rows",
    "naming",
    "no_rows",
    "resolve_ops",
    "run",
]
