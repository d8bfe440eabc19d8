"""Runs a program inside one `tf.function`: launches are steps of a loop that reads the schedule as data.

What happens in a launch is drawn into the graph once for each kernel; which rows it reads and writes comes
from the tensors of the program. Launches are ragged, so nothing is padded. Before anything is drawn,
`multifold_tensorflow.program.shapes` finds out what the ops return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import optree
import tensorflow as tf

from multifold.backend import Ragged
from multifold.program import Kernel, KernelOperand, Phase, Program, follow, received, resolve_ops
from multifold_tensorflow.backend import TensorflowBackend
from multifold_tensorflow.program.shapes import ResultSpecs, dtype_of, no_trace
from multifold_tensorflow.program.slabs import Threads, empty
from multifold_tensorflow.program.tensors import RaggedTensors, TensorProgram, as_tensors


def run(model: Any, program: Program | TensorProgram) -> Any:
    """Run a program and return the results, in the structure that was asked for.

    Call it inside your own `tf.function`, which takes the program as an argument: one trace serves all
    programs of one form. Gradients of everything that the ops read flow through it, under a
    `tf.GradientTape` inside of that function or around it.

    Parameters
    ----------
    model : object
        Where op names are looked up.
    program : TensorProgram or Program
        What `as_tensors` returns. A `Program` as it is becomes constants of the graph.

    Raises
    ------
    RecordError
        For anything but a program, as traces.
    LaunchError
        If an op is missing, cannot be traced, or returns rows that depend on how many there are.

    Examples
    --------
    >>> import multifold
    >>> fold = multifold.Fold(backend="tensorflow")
    >>> double = tf.function(lambda program: run({"double": lambda x: 2 * x}, program))
    >>> def twice(fold, number):
    ...     return fold.add("double", fold.add("double", number))
    >>> for numbers in ([1, 2], [3, 4, 5]):
    ...     program = fold.program([multifold.trace(twice, number) for number in numbers])
    ...     double(as_tensors(program)).numpy()
    array([4, 8])
    array([12, 16, 20])
    >>> double.experimental_get_tracing_count()
    1
    """
    program = as_tensors(program)
    ops = resolve_ops(TensorflowBackend(), model, program.form)
    return GraphBuilder(ops, program).run()


class GraphBuilder:
    """Draws a program into a graph, once; `run` returns its results.

    Attributes
    ----------
    slabs : list of list of tensors
        The arrays of each slab as they are now; None before its first row.
    wholes : dict of int to object
        Values that are read whole.
    """

    def __init__(self, ops: Sequence[Callable[..., Any]], program: TensorProgram) -> None:
        self.ops = ops
        self.form = program.form
        self.arrays = program.arrays()
        # A tiled program is for XLA, which writes in place by itself.
        self.threads = Threads(not self.form.tiled and not tf.config.get_visible_devices("GPU"))
        self.specs = ResultSpecs(ops, self.form, self.arrays)
        self.starts = tf.unstack(self.arrays.starts, num=len(self.form.sources))
        self.slabs: list[Any] = [None] * self.form.slabs
        self.wholes: dict[int, Any] = {}

    def run(self) -> Any:
        """Draw all phases and return the results, in the structure that was asked for."""
        form = self.form
        for number, source in enumerate(form.sources):
            if source.kernel < 0:
                self.write(number, [self.arrays.given[source.given]], 0)
        for number, phase in enumerate(form.phases):
            low = self.arrays.bounds[number]
            high = self.arrays.bounds[number + 1]
            table = self.arrays.launches[low:high]
            if phase.loop:
                self.loop(phase, table)
            else:
                self.once(phase.kernels[0], table)
        values = [
            self.wholes[group.whole] if group.whole >= 0 else self.read(group.slab, [rows])[0]
            for group, rows in zip(form.groups, self.arrays.groups, strict=True)
        ]
        leaves, structure = optree.tree_flatten(values)
        slabs = [array for slab in self.slabs for array in slab or ()]
        return form.put_together(optree.tree_unflatten(structure, self.threads.end(leaves, slabs)))

    def read(self, slab: int, columns: Sequence[tf.Tensor]) -> list[Any]:
        """Return, for each of ``columns``, those rows of a slab in its structure; makes the slab if needed.

        All columns, int64 tensors of one length, are read in one gather for each leaf.
        """
        self.allocate(slab)
        rows = columns[0] if len(columns) == 1 else tf.concat(columns, 0)
        leaves = []
        for leaf, array in enumerate(self.slabs[slab]):
            values, self.slabs[slab][leaf] = self.threads.read(array, rows)
            leaves.append([values] if len(columns) == 1 else tf.split(values, len(columns)))
        structure = self.specs.classes[slab].structure
        return [optree.tree_unflatten(structure, own) for own in zip(*leaves, strict=True)]

    def write(self, number: int, leaves: Sequence[tf.Tensor], first: Any) -> None:
        """Write rows, the leaves of a result, into the stretch of source ``number`` of its slab.

        ``first`` is the row of the stretch to begin with. A slab that is written only once becomes these
        very tensors.
        """
        source = self.form.sources[number]
        if self.slabs[source.slab] is None and self.alone(source.slab):
            self.slabs[source.slab] = list(leaves)
            return
        self.allocate(source.slab)
        begin = self.starts[number] + first
        slab = self.slabs[source.slab]
        for leaf, values in enumerate(leaves):
            slab[leaf] = self.threads.write(slab[leaf], begin, values)

    def alone(self, slab: int) -> bool:
        """Return whether a slab is written by one source, all at once, outside of loops.

        Then what is written is the slab.
        """
        own = [source for source in self.form.sources if source.slab == slab]
        if len(own) > 1 or (own[0].kernel >= 0 and self.form.kernels[own[0].kernel].solo):
            return False
        return not any(phase.loop and own[0].kernel in phase.kernels for phase in self.form.phases)

    def allocate(self, slab: int) -> None:
        """Make the tensors of a slab, one for each leaf, without values; do nothing if it has them."""
        if self.slabs[slab] is not None:
            return
        rows = self.arrays.sizes[slab]
        if self.form.tiled:
            # XLA wants sizes that are constants, which the data of a program are not.
            rows = sum(source.rows for source in self.form.sources if source.slab == slab)
        leaves = self.specs.classes[slab].leaves
        self.slabs[slab] = [empty(rows, shape, dtype) for shape, dtype in leaves]

    def once(self, number: int, table: tf.Tensor) -> None:
        """Draw all calls of kernel ``number`` as one launch, and write its rows.

        ``table`` has the launches of the phase: (kernel in the phase, first row, rows). Where a minibatch
        has no call of the kernel, zeros are written; a solo kernel runs anyway, and its row is left out.
        """
        kernel = self.form.kernels[number]
        if not kernel.solo:
            used = tf.reduce_sum(table[:, 2]) > 0
            self.keep(number, self.if_used(number, self.operands(number), used), 0, None)
            return
        first = tf.reduce_sum(table[:, 1])  # of one launch, or of none
        result = self.launch(number, self.operands(number, first, 1))
        for whole, steps in self.form.wholes_of(number):
            self.wholes[whole] = follow(result, steps, kernel)
        self.keep(number, result, first, None if self.form.tiled else tf.shape(table)[0])

    def if_used(self, number: int, operands: list[Any], used: tf.Tensor) -> Any:
        """Return the result of a launch if ``used``, a bool tensor, is true, else zeros like it.

        Not every op of TensorFlow takes no rows, as convolutions of oneDNN do not. A tiled program has rows
        that only fill a slab, where a derivative may be infinite, and zero times that is no number.
        """
        specs, structure = optree.tree_flatten(self.specs.results[number])
        rows = self.form.kernels[number].rows or 0
        tensors = [i for i, spec in enumerate(specs) if isinstance(spec, tf.TensorSpec)]
        shapes = {i: rows_of(specs[i].shape, rows) for i in tensors}
        if None in shapes.values():
            return self.launch(number, operands)

        def run() -> list[tf.Tensor]:
            leaves = optree.tree_leaves(self.launch(number, operands))
            return [tf.convert_to_tensor(leaves[i]) for i in tensors]

        def fill() -> list[tf.Tensor]:
            return [tf.zeros(shapes[i], specs[i].dtype) for i in tensors]

        leaves = list(specs)
        for i, value in zip(tensors, tf.cond(used, run, fill), strict=True):
            leaves[i] = value
        return optree.tree_unflatten(structure, leaves)

    def loop(self, phase: Phase, table: tf.Tensor) -> None:
        """Draw a phase as a `tf.while_loop` over its launches, the rows of ``table``."""
        touched = self.touched(phase)
        for slab in touched:
            self.allocate(slab)
        stacked = [self.stack(number) for number in phase.kernels]

        def slabs() -> list[tf.Tensor]:
            return [array for slab in touched for array in self.slabs[slab]]

        def put(arrays: Sequence[tf.Tensor]) -> None:
            left = iter(arrays)
            for slab in touched:
                self.slabs[slab] = [next(left) for _ in self.slabs[slab]]

        def run_kernel(entry: int, first: tf.Tensor, rows: Any) -> list[tf.Tensor]:
            before = slabs()
            number = phase.kernels[entry]
            result = self.launch(number, self.operands(number, first, rows, stacked[entry]))
            self.keep(number, result, first, None)
            after = slabs()
            # Another kernel may run in place of this one, so its branch begins with the slabs as they were.
            put(before)
            return after

        def body(index: tf.Tensor, *arrays: tf.Tensor) -> tuple[Any, ...]:
            put(arrays)
            entry, first, rows = tf.unstack(table[index], num=3)
            rows = phase.tile or rows
            branches = [lambda p=p: run_kernel(p, first, rows) for p in range(len(phase.kernels))]
            after = branches[0]() if len(branches) == 1 else tf.switch_case(entry, branches)
            return (index + 1, *after)

        used = tf.math.count_nonzero(table[:, 2], dtype=tf.int32)  # idle launches come last
        _, *arrays = tf.while_loop(
            lambda index, *_: index < used,
            body,
            (tf.constant(0), *slabs()),
            # XLA differentiates a loop only if it knows how often the loop may run.
            maximum_iterations=phase.launches,
        )
        put(arrays)

    def touched(self, phase: Phase) -> list[int]:
        """Return the numbers of the slabs that a phase reads or writes, sorted."""
        written = {source.slab for source in self.form.sources if source.kernel in phase.kernels}
        return sorted(written.union(*(self.form.kernels[number].slabs for number in phase.kernels)))

    def stack(self, number: int) -> tf.Tensor | None:
        """Return the address columns of kernel ``number`` as one int64 matrix, ``(operands, rows)``.

        It has one row for each operand that is read by rows; None if there is no such operand.
        """
        columns = [
            column
            for operand, column in zip(
                self.form.kernels[number].operands, self.arrays.columns[number], strict=True
            )
            if operand.role == "rows"
        ]
        return tf.stack(columns) if columns else None

    def operands(self, number: int, first: Any = None, rows: Any = None, stacked: Any = None) -> list[Any]:
        """Return the operands of a launch, one for each of the kernel's, in their order.

        They are those of ``rows`` rows of the kernel from ``first`` on, or of all its rows if ``first`` is
        None. ``stacked`` is what `stack` returned; None lets it be made.
        """
        kernel = self.form.kernels[number]
        columns = self.arrays.columns[number]
        pairs = list(zip(kernel.operands, columns, strict=True))
        own = [column for operand, column in pairs if operand.role == "rows"]
        if first is not None and own:
            # One slice of a matrix instead of one for each operand: a loop schedules each operation of
            # its body anew for each launch.
            stacked = tf.stack(own) if stacked is None else stacked
            window = tf.slice(stacked, [0, first], [len(own), rows])
            own = tf.unstack(window, num=len(own))
        waiting = iter(own)
        by_slab: dict[int, list[tuple[int, tf.Tensor]]] = {}
        found: list[Any] = []
        for at, (operand, column) in enumerate(pairs):
            if operand.role == "rows":
                by_slab.setdefault(operand.index, []).append((at, next(waiting)))
                found.append(None)
            else:
                found.append(self.operand(kernel, operand, column, first, rows))
        for slab, reads in by_slab.items():
            values = self.read(slab, [column for _, column in reads])
            for (at, _), value in zip(reads, values, strict=True):
                found[at] = value
        return found

    def operand(self, kernel: Kernel, operand: KernelOperand, column: Any, first: Any, rows: Any) -> Any:
        """Return an operand of one launch, of any role but "rows"; ``column`` holds it for all calls.

        ``first`` and ``rows`` are as for `operands`.
        """
        if operand.role == "ragged":
            return self.ragged(operand, column, first, rows)
        if operand.role == "whole":
            return self.wholes[operand.index]
        if operand.role == "shared":
            return self.arrays.shared[operand.index]
        if operand.role == "static":
            return operand.value
        return column if first is None else tf.slice(column, [first], [rows])

    def ragged(self, operand: KernelOperand, column: RaggedTensors, first: Any, rows: Any) -> Ragged:
        """Return a ragged operand of one launch; ``column`` holds it for all calls.

        ``first`` and ``rows`` are as for `operands`.
        """
        addresses = column.addresses
        segments = column.segments
        lengths = column.lengths
        if first is not None:
            low = column.splits[first]
            count = operand.edges
            if count is None:
                count = column.splits[first + rows] - low
            addresses, segments = (tf.slice(x, [low], [count]) for x in (addresses, segments))
            lengths = tf.slice(lengths, [first], [rows])
        if operand.reads:
            return Ragged(self.read(operand.index, [addresses])[0], lengths, segments)
        values = operand.missing.made(lambda shape, dtype: tf.zeros((0, *shape), dtype_of(dtype)))
        return Ragged(values, lengths, segments)

    def launch(self, number: int, leaves: list[Any]) -> Any:
        """Return what the op of kernel ``number`` returns for these operands; `LaunchError` if it fails."""
        kernel = self.form.kernels[number]
        try:
            return self.ops[number](*received(TensorflowBackend(), kernel, leaves), **kernel.static)
        except Exception as error:
            raise no_trace(kernel, error) from error

    def keep(self, number: int, result: Any, first: Any, count: Any) -> None:
        """Write the parts of a result that are read by rows into their slabs, from row ``first`` on.

        With ``count``, an int tensor that is 0 or 1, only that many rows are written.
        """
        kernel = self.form.kernels[number]
        for entry, source in self.form.sources_of(number):
            values = optree.tree_leaves(follow(result, source.steps, kernel))
            leaves = [tf.convert_to_tensor(leaf) for leaf in values]
            self.write(entry, leaves if count is None else [leaf[:count] for leaf in leaves], first)


def rows_of(shape: tf.TensorShape, rows: int) -> tuple[int, ...] | None:
    """Return ``(rows, *shape[1:])``; None if ``shape`` has no axes or does not know one of the others."""
    if not shape.rank or None in shape[1:]:
        return None
    return (rows, *shape[1:])
