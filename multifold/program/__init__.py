"""Programs: schedules laid out as data, which compiled executors read.

`Fold.program` makes one. It holds integers, numbers and arrays of NumPy only, pickles, and is made by the
vectorised path of traces. `run` interprets it in NumPy: the reference that the executors of the frameworks
are tested against.

Take two trees, ``(1, (2, 3))`` and ``(4, 5)``. Each leaf is a call of ``leaf``, each pair a call of
``join``: eight calls of two types.

>>> import multifold
>>> def encode(fold, tree):
...     if isinstance(tree, int):
...         return fold.add("leaf", tree)
...     return fold.add("join", *[encode(fold, child) for child in tree])
>>> traces = [multifold.trace(encode, tree) for tree in [(1, (2, 3)), (4, 5)]]
>>> program = multifold.Fold(backend="numpy").program(traces)

Each type is a *kernel*, and each call a row of its kernel. A call of ``join`` may read results of ``join``,
so that kernel runs in a loop over launches. ``leaf`` reads no result and runs once, on all five rows:

>>> print(program)
ragged program of 2 phases
  once  leaf: 1 launch, 5 rows
  loop  join: 2 launches, 3 rows
>>> for kernel in program.form.kernels:
...     print(kernel.name, [operand.role for operand in kernel.operands])
join ['rows', 'rows']
leaf ['int']

A launch is a line of integers: the kernel (an entry of the phase's kernels), its first row, how many rows.
Phase ``p`` has the lines from ``bounds[p]`` up to ``bounds[p + 1]``. The first launch of ``join`` computes
its rows 0 and 1, the pairs ``(2, 3)`` and ``(4, 5)``. The second computes row 2, the root of tree 1:

>>> program.bounds.tolist(), program.launches.tolist()
([0, 1, 3], [[0, 0, 5], [0, 0, 2], [0, 2, 1]])

An operand of ``join`` may be a row of either kernel. So the results of both lie in one *slab* of eight
rows: three of ``join``, its first source, from row 0 on, and five of ``leaf``, the second, from row 3 on::

    row of the slab    0       1       2             3  4  5  6  7
    what lies there    (2, 3)  (4, 5)  (1, (2, 3))   1  2  3  4  5

>>> for source, start in zip(program.form.sources, program.starts.tolist()):
...     print(program.form.kernels[source.kernel].name, "from row", start, "of slab", source.slab)
join from row 0 of slab 0
leaf from row 3 of slab 0
>>> program.sizes.tolist()
[8]

A *column* holds an operand of all rows of a kernel, here the rows of the slab that it reads. The root of
tree 1, row 2 of ``join``, reads row 3, which is leaf ``1``, and row 0, the pair ``(2, 3)``:

>>> left, right = program.columns[0]
>>> left.tolist(), right.tolist()
([4, 6, 3], [5, 7, 0])
>>> [column.tolist() for column in program.columns[1]]
[[1, 2, 3, 4, 5]]

The results are the rows 2 and 1 of the slab. An executor needs nothing else:

>>> program.groups[0].tolist()
[2, 1]
>>> run({"leaf": lambda word: 10 * word, "join": lambda left, right: left + right}, program)
array([60, 90])

Another minibatch of trees has other integers and the same `Form`: kernels, operands, sources, phases. An
executor is compiled for the form. Where a framework compiles for sizes as well, `Tiler` makes every launch
of a loop a tile of one height, and every size one of a few.

A plan becomes a program in `kernels` and `build`; `refine` looks at shapes before, if a model is given;
`packing`, `tiles` and `sizes` make it a tiled one. `Programs` in `make` ties them together; `shelf` keeps
sizes that were compiled, and `agree` and `shards` give the programs of several devices one form.
"""

from __future__ import annotations

from typing import Any

from multifold._engine.frameworks import registry
from multifold.operands import MissingRows
from multifold.program.checks import (
    RowsSpec,
    begin_trial,
    check_rows,
    follow,
    hint_of,
    naming,
    raised,
    received,
    refuse_no_program,
    resolve_ops,
    verify_rows,
    watch_operands,
)
from multifold.program.layout import (
    Form,
    Kernel,
    KernelOperand,
    Phase,
    Program,
    RaggedColumn,
    Source,
    TileSpan,
    Unfit,
)
from multifold.program.make import Programs
from multifold.program.shards import Shards
from multifold.program.slabs import SlabClass, SlabClasses
from multifold.program.tiles import Tiler

__all__ = [
    "Form",
    "Kernel",
    "KernelOperand",
    "MissingRows",
    "Phase",
    "Program",
    "Programs",
    "RaggedColumn",
    "RowsSpec",
    "Shards",
    "SlabClass",
    "SlabClasses",
    "Source",
    "TileSpan",
    "Tiler",
    "Unfit",
    "begin_trial",
    "check_rows",
    "follow",
    "hint_of",
    "naming",
    "raised",
    "received",
    "refuse_no_program",
    "resolve_ops",
    "run",
    "verify_rows",
    "watch_operands",
]


def run(model: Any, program: Program) -> Any:
    """Run a program on NumPy and return the results, in the structure that was asked for.

    Parameters
    ----------
    model : object
        Where op names are looked up: an object that has them as attributes, or a mapping.
    program : Program
        Ragged or tiled.

    Raises
    ------
    RecordError
        For anything but a program, as traces.
    LaunchError
        If an op is missing, fails, or returns other than one row for each node.

    Examples
    --------
    >>> import multifold
    >>> fold = multifold.Fold(backend="numpy")
    >>> nodes = [fold.add("double", fold.add("double", i)) for i in (1, 2)]
    >>> run({"double": lambda x: 2 * x}, fold.program([nodes]))
    [array([4, 8])]
    """
    return registry.adapter_module(registry.load_backend("numpy"), "program").run(model, program)
