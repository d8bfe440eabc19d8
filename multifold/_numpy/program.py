"""The reference: a program run by NumPy, launch by launch, exactly as its layout says.

The executors of the frameworks are compared with it, and it is the shortest description of what they do.
It allocates a slab when the first rows for it are known; nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree

from multifold._engine.ops.values import Values
from multifold._engine.record.freezing import snapshot
from multifold._numpy.backend import NumpyBackend
from multifold.backend import Ragged
from multifold.operands import MissingRows
from multifold.program.checks import begin_trial, check_rows, follow, raised, refuse_no_program, resolve_ops
from multifold.program.layout import Kernel, KernelOperand, Program, RaggedColumn
from multifold.program.slabs import SlabClass, SlabClasses


def run(model: Any, program: Program) -> Any:
    """Run a program on NumPy and return its results; see `multifold.program.run`."""
    refuse_no_program(program)
    backend = NumpyBackend()
    return Interpreter(Values(backend, None), resolve_ops(backend, model, program.form), program).run()


class Interpreter:
    """Runs one program, launch by launch, on arrays that it allocates; `run` is called once.

    Attributes
    ----------
    slabs : dict of int to list of arrays
        Number of a slab -> its arrays, one for each leaf of the rows in it.
    wholes : dict of int to object
        Number in `Form.wholes` -> a result, or a part of one, that is read whole.
    """

    def __init__(self, values: Values, ops: list[Callable[..., Any]], program: Program) -> None:
        self.values = values
        self.ops = ops
        self.program = program
        self.form = program.form
        self.classes = SlabClasses(program.form)
        self.slabs: dict[int, list[np.ndarray]] = {}
        self.wholes: dict[int, Any] = {}

    def run(self) -> Any:
        """Run all phases and return the results, in the structure that the program was asked for."""
        program = self.program
        form = self.form
        for number, source in enumerate(form.sources):
            # Such a source has no kernel: its rows were given, and are there before the first launch.
            if source.kernel < 0:
                self.write(number, program.given[source.given], 0)
        for number, phase in enumerate(form.phases):
            table = program.launches[program.bounds[number] : program.bounds[number + 1]]
            for entry, first, rows in table.tolist():
                if rows:  # idle launches of a tiled program have none
                    self.launch(phase.kernels[entry], first, rows)
        values = [
            self.values.unprotected(self.wholes[group.whole])
            if group.whole >= 0
            else self.read(group.slab, rows)
            for group, rows in zip(form.groups, program.groups, strict=True)
        ]
        return form.put_together(values)

    def launch(self, number: int, first: int, rows: int) -> None:
        """Run one launch, and keep the parts of its result that others read.

        It is the launch of kernel ``number`` on its ``rows`` rows from row ``first`` on. Parts that are
        read row by row are written to slabs, those that are read whole stored in ``wholes``. Raise a
        `LaunchError` if the op raises, or returns another number of rows.
        """
        kernel = self.form.kernels[number]
        pairs = zip(kernel.operands, self.program.columns[number], strict=True)
        leaves: Sequence[Any] = [self.operand(kernel, *pair, first, rows) for pair in pairs]
        if kernel.beside:
            leaves = self.values.narrowed(leaves, kernel.beside)
        lengths = self.program.lengths(number, first, rows)
        tried = begin_trial(self.values.backend, kernel, self.ops[number], leaves, rows, lengths)
        try:
            result = self.ops[number](*kernel.nest(leaves), **snapshot(kernel.static))
        except Exception as error:
            raise raised(kernel, error) from error
        for whole, steps in self.form.wholes_of(number):
            self.wholes[whole] = follow(result, steps, kernel)
        for entry, source in self.form.sources_of(number):
            value = follow(result, source.steps, kernel)
            for leaf in optree.tree_leaves(value):
                check_rows(kernel, np.shape(leaf), rows)
            self.write(entry, value, first)
        if tried is not None:
            tried(result)

    def read(self, slab: int, rows: np.ndarray) -> Any:
        """Return rows of a slab, the array in which results lie: ``rows`` are indices in it.

        They are an array of shape ``(len(rows), *s)``, or several, nested as the op returned them.
        """
        leaves = [array[rows] for array in self.slabs[slab]]
        return optree.tree_unflatten(self.classes[slab].structure, leaves)

    def write(self, number: int, value: Any, first: int) -> None:
        """Write rows to the slab of source ``number``, from row ``first`` of its stretch on.

        A source is what others read of one kernel's results; its rows are one stretch of a slab. The slab
        is allocated if these are its first rows.
        """
        slab = self.form.sources[number].slab
        dtypes = self.form.sources[number].dtypes
        values, structure = optree.tree_flatten(value)
        leaves = [np.asarray(leaf) for leaf in values]
        if dtypes:
            leaves = [x.astype(dtype) for x, dtype in zip(leaves, dtypes, strict=True)]
        self.classes.declare(slab, SlabClass.of(structure, leaves))
        if slab not in self.slabs:
            rows = int(self.program.sizes[slab])
            self.slabs[slab] = [np.empty((rows, *x.shape[1:]), x.dtype) for x in leaves]
        start = int(self.program.starts[number]) + first
        for array, leaf in zip(self.slabs[slab], leaves, strict=True):
            array[start : start + len(leaf)] = leaf

    def operand(self, kernel: Kernel, operand: KernelOperand, column: Any, first: int, rows: int) -> Any:
        """Return what the op gets for one operand of ``kernel`` in a launch of ``rows`` rows.

        The launch begins with the kernel's row ``first``. ``column`` is the program's column of this
        operand. By ``operand.role`` the op gets rows of a slab, a `Ragged`, a result that is read whole, a
        shared or a static value, or else the rows of ``column`` themselves. Arrays that the program still
        needs are protected, so the op can't write into them.
        """
        protected = self.values.protected
        if operand.role == "rows":
            return self.read(operand.index, column[first : first + rows])
        if operand.role == "ragged":
            return self.ragged(kernel, operand, column, first, rows)
        if operand.role == "whole":
            return protected(self.wholes[operand.index])
        if operand.role == "shared":
            return protected(self.program.shared[operand.index])
        if operand.role == "static":
            return snapshot(operand.value)
        return protected(column[first : first + rows])

    def plain(self, missing: MissingRows) -> SlabClass:
        """Return structure, trailing shapes and dtypes, as a `SlabClass`, of what ``missing`` describes.

        ``missing`` has the shape and dtype of a ragged operand's rows, for a call that gives it none.
        """
        leaves, structure = optree.tree_flatten(self.values.no_rows(missing))
        return SlabClass.of(structure, leaves)

    def ragged(
        self, kernel: Kernel, operand: KernelOperand, column: RaggedColumn, first: int, rows: int
    ) -> Ragged:
        """Return the operand as a `Ragged`: for each row of the launch, the members that its call reads."""
        splits = column.splits[first : first + rows + 1]
        low = int(splits[0])
        high = int(splits[-1])
        self.classes.check_missing(kernel, self.plain)
        if operand.index in self.slabs:
            values = self.read(operand.index, column.addresses[low:high])
        else:
            # No launch has written to the slab yet, so these members pad a tile, and there are none in a
            # ragged program. Few functions are singular at a half.
            values = optree.tree_map(
                lambda x: np.full((high - low, *x.shape[1:]), 0.5).astype(x.dtype),
                self.values.no_rows(operand.missing),
            )
        return Ragged(values, np.diff(splits), self.values.protected(column.segments[low:high]))
