"""The reference: a program run by NumPy, launch by launch, exactly as its layout says.

It is what the executors of the frameworks are compared with, and the shortest description of what they
do. A slab is allocated when its first rows are known; nothing is compiled, nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import optree

from multifold._run import values
from multifold._run.lookup import resolve
from multifold._run.messages import raised
from multifold._run.values import PARTS_HINT, Steps
from multifold.backend import Backend, Ragged
from multifold.errors import LaunchError
from multifold.program.layout import Form, Kernel, Operand, Program, RaggedColumn

READ = ("rows", "ragged")
"""The kinds of operands that are read from slabs."""


def run(model: Any, program: Program) -> Any:
    """Run a program on NumPy and return the results, in the structure that was asked for.

    Parameters
    ----------
    model : object
        Where op names are looked up.
    program : Program
        Ragged or tiled.

    Raises
    ------
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
    from multifold._frameworks.numpy_backend import NumpyBackend

    return Interpreter(resolve_ops(NumpyBackend(), model, program.form), program).run()


def resolve_ops(backend: Backend, model: Any, form: Form) -> list[Callable[..., Any]]:
    """Return what the op of each kernel calls; raise `LaunchError` where the model lacks it."""
    try:
        return [resolve(backend, model, kernel.op, kernel.site) for kernel in form.kernels]
    except LaunchError as error:
        kept = "A fold keeps the ops of all its programs: take another fold for another model."
        raise LaunchError(error.message, f"{error.hint} {kept}") from None


# ---- what all executors hold results to ----------------------------------------------------------


class Named(NamedTuple):
    """What errors say of a kernel."""

    name: str
    site: str


def naming(kernel: Kernel | Named) -> str:
    """Return the beginning of an error about a kernel."""
    return f"The op '{kernel.name}', first recorded at {kernel.site}"


def follow(value: Any, steps: Steps, kernel: Kernel | Named) -> Any:
    """Return a part of a result; raise `LaunchError` where there is none."""

    def refuse(what: str) -> LaunchError:
        return LaunchError(f"{naming(kernel)}, returned a result that {what}.", PARTS_HINT)

    return values.follow(value, steps, refuse)


def check_rows(kernel: Kernel, shape: tuple[Any, ...], rows: int) -> None:
    """Hold a result to the rule "one node is one row"."""
    instead = values.miscount(shape[0] if shape else None, rows)
    if instead:
        why = f"for {values.counted(rows, 'row')}" + (" (no operand is batched)" if kernel.solo else "")
        raise LaunchError(
            f"{naming(kernel)}, returned {instead} {why}.",
            "each output of an op must have one row for each node. "
            "A result of another shape is read through node.no_batch().",
        )


def no_rows(kernel: Kernel) -> LaunchError:
    """Return the error of a ragged operand that has no row to tell its shape."""
    return LaunchError(
        f"{naming(kernel)}, has no row in a ragged operand, so the shape of a row is not known.",
        "say it when recording: multifold.ragged(items, row_shape=(width,)).",
    )


def mixed_rows(form: Form, slab: int, classes: Iterable[Any]) -> LaunchError:
    """Return the error of a slab that would have to hold rows of two classes."""
    readers = [k for k in form.kernels if any(o.kind in READ and o.index == slab for o in k.operands)]
    where = naming(readers[0]) if readers else "The outputs"
    return LaunchError(
        f"{where}, would read rows of different classes: {' and '.join(map(str, classes))}.",
        "fold.program(outputs, model) looks at the shapes first, and gives each class a kernel of its own.",
    )


class Interpreter:
    """A program in progress: the slabs, and the values that are read whole."""

    def __init__(self, ops: list[Callable[..., Any]], program: Program) -> None:
        self.ops = ops
        self.program = program
        self.form = program.form
        self.slabs: dict[int, list[np.ndarray]] = {}
        self.structures: dict[int, Any] = {}
        self.wholes: dict[int, Any] = {}
        for number, source in enumerate(self.form.sources):
            if source.kernel < 0:
                self.write(number, program.blocks[source.block], 0)

    def run(self) -> Any:
        """Run all phases and return the results."""
        program, form = self.program, self.form
        for number, phase in enumerate(form.phases):
            for kernel, first, rows in program.launches[
                program.bounds[number] : program.bounds[number + 1]
            ]:
                if rows:
                    self.launch(phase.kernels[kernel], int(first), int(rows))
        found = [
            self.wholes[group.whole] if group.whole >= 0 else self.read(group.slab, rows)
            for group, rows in zip(form.groups, program.groups, strict=True)
        ]
        return form.put_together(found)

    def read(self, slab: int, rows: np.ndarray) -> Any:
        """Return rows of a slab."""
        return optree.tree_unflatten(self.structures[slab], [leaf[rows] for leaf in self.slabs[slab]])

    def write(self, number: int, value: Any, first: int) -> None:
        """Put rows into the stretch of a source."""
        source = self.form.sources[number]
        leaves, structure = optree.tree_flatten(value)
        leaves = [np.asarray(leaf) for leaf in leaves]
        if source.slab not in self.slabs:
            rows = int(self.program.sizes[source.slab])
            self.structures[source.slab] = structure
            self.slabs[source.slab] = [np.empty((rows, *x.shape[1:]), x.dtype) for x in leaves]
        expected = self.structures[source.slab], *map(row_class, self.slabs[source.slab])
        got = structure, *map(row_class, leaves)
        if got != expected:
            raise self.mixed(source.slab, [expected, got])
        start = int(self.program.starts[number]) + first
        for slab, leaf in zip(self.slabs[source.slab], leaves, strict=True):
            slab[start : start + len(leaf)] = leaf

    def mixed(self, slab: int, classes: list[Any]) -> LaunchError:
        """Return the error of a slab that would have to hold rows of two classes."""
        return mixed_rows(self.form, slab, classes)

    def operand(self, kernel: Kernel, operand: Operand, column: Any, first: int, rows: int) -> Any:
        """Return what an op receives for an operand in one launch."""
        if operand.kind == "rows":
            return self.read(operand.index, column[first : first + rows])
        if operand.kind == "ragged":
            return self.ragged(kernel, operand, column, first, rows)
        if operand.kind == "whole":
            return self.wholes[operand.index]
        if operand.kind == "shared":
            return self.program.shared[operand.index]
        return operand.value if operand.kind == "static" else column[first : first + rows]

    def ragged(
        self, kernel: Kernel, operand: Operand, column: RaggedColumn, first: int, rows: int
    ) -> Ragged:
        """Return a ragged operand of one launch."""
        splits = column.splits[first : first + rows + 1]
        low, high = int(splits[0]), int(splits[-1])
        if operand.index in self.slabs:
            values = self.read(operand.index, column.addresses[low:high])
        elif operand.row_shape is not None:
            values = np.zeros((0, *operand.row_shape))
        else:
            raise no_rows(kernel)
        return Ragged(values, np.diff(splits), column.segments[low:high])

    def launch(self, number: int, first: int, rows: int) -> None:
        """Run one launch and keep what is read of it."""
        kernel = self.form.kernels[number]
        pairs = zip(kernel.operands, self.program.columns[number], strict=True)
        leaves = [self.operand(kernel, operand, column, first, rows) for operand, column in pairs]
        try:
            result = self.ops[number](*kernel.nest(leaves), **kernel.static)
        except Exception as error:
            raise LaunchError(f"{naming(kernel)}, {raised(error)}.") from error
        for place, (owner, steps) in enumerate(self.form.wholes):
            if owner == number:
                self.wholes[place] = follow(result, steps, kernel)
        for place, source in enumerate(self.form.sources):
            if source.kernel == number:
                value = follow(result, source.steps, kernel)
                for leaf in optree.tree_leaves(value):
                    check_rows(kernel, np.shape(leaf), rows)
                self.write(place, value, first)


def row_class(x: np.ndarray) -> Any:
    """Return what rows of one slab have in common."""
    return x.shape[1:], x.dtype
