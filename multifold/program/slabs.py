"""What the rows of each slab have in common, learned kernel by kernel before or while a program runs.

A slab is one array for each leaf of what it holds, so all its rows agree in structure, trailing shapes and
dtypes: that is its `SlabClass`. An executor that compiles must allocate slabs before a loop writes into
them. It learns their classes by tracing the ops, each op after the ops whose results it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from multifold.errors import LaunchError
from multifold.operands import MissingRows, name_of_dtype
from multifold.program.checks import naming
from multifold.program.layout import Form, Kernel


class SlabClass(NamedTuple):
    """The structure of one row, and trailing shape and dtype of each of its leaves."""

    structure: Any
    leaves: tuple[tuple[tuple[int, ...], Any], ...]

    @classmethod
    def of(cls, structure: Any, leaves: Sequence[Any]) -> SlabClass:
        """Return the class of rows, whose ``leaves`` are arrays or anything with a shape and a dtype.

        Axis 0 counts rows, and is left out of the shapes. ``structure`` says how the leaves nest.
        """
        return cls(structure, tuple((tuple(x.shape[1:]), x.dtype) for x in leaves))

    def __str__(self) -> str:
        return ", ".join(f"{name_of_dtype(dtype)}{list(shape)}" for shape, dtype in self.leaves)


class SlabClasses:
    """The classes of slabs that are known so far.

    Attributes
    ----------
    known : dict of int to SlabClass
        By slab.
    """

    def __init__(self, form: Form) -> None:
        self.form = form
        self.known: dict[int, SlabClass] = {}

    def __getitem__(self, slab: int) -> SlabClass:
        """Return the class of a slab; raises KeyError if it is not known yet."""
        return self.known[slab]

    def declare(self, slab: int, found: SlabClass) -> None:
        """Note that ``found`` is the class of the rows in a slab.

        Raises `LaunchError` if another class was noted or assumed for it before.
        """
        known = self.known.setdefault(slab, found)
        if known != found:
            readers = [kernel for kernel in self.form.kernels if slab in kernel.slabs]
            who = naming(readers[0]) if readers else "The outputs"
            # A program with a model tells classes apart before (`refine`); it only promotes where shapes
            # are equal.
            hint = "looks at the shapes first, and gives each class a kernel of its own."
            if [shape for shape, _ in known.leaves] == [shape for shape, _ in found.leaves]:
                hint = "promotes floats where the framework does; else let an op bring them to one dtype."
            raise LaunchError(
                f"{who}, would read rows of different classes: {known} and {found}.",
                f"fold.program(outputs, model) {hint}",
            )

    def in_order(self, kernels: Sequence[int], plain: Callable[[MissingRows], SlabClass]) -> Iterator[int]:
        """Yield the kernels of a phase, each as soon as the classes of the slabs that it reads are known.

        The caller declares what each kernel returns before it asks for the next one. In a loop every kernel
        may read its own results: the children of a tree's node are nodes of that tree. Then a ragged
        operand breaks the circle if its row shape was recorded, as in ``ragged(children, row_shape=(8,))``.

        Parameters
        ----------
        kernels : sequence of int
            The kernels of the phase.
        plain : callable
            Returns the class of a missing row, from what was recorded about it.

        Raises
        ------
        LaunchError
            If no kernel can be first.
        """
        pending = list(kernels)
        while pending:
            ready = [number for number in pending if self.form.kernels[number].slabs <= self.known.keys()]
            for number in ready:
                self.check_missing(self.form.kernels[number], plain)
            # While this yields, `known` grows: the others are asked again in the next round.
            yield from ready
            pending = [number for number in pending if number not in ready]
            if pending and not ready:
                self.assume(pending, plain)

    def check_missing(self, kernel: Kernel, plain: Callable[[MissingRows], SlabClass]) -> None:
        """Refuse a kernel if calls without rows would get another class of rows than by themselves.

        ``plain`` turns what was recorded about missing rows, as ``row_shape``, into their class. Raises
        `LaunchError` if the slab that a ragged operand reads is known to have another class. Checked are
        only operands of which a call has had no row.
        """
        for operand in kernel.operands:
            if operand.lacks and operand.missing is not None and operand.reads:
                known, own = self.known.get(operand.index), plain(operand.missing)
                if known is not None and known != own:
                    raise LaunchError(
                        f"{naming(kernel)}, has calls without rows, of {own}, beside rows of {known}.",
                        "fold.program(outputs, model) gives each class a kernel of its own; "
                        "multifold.ragged(items, row_shape, dtype) says what missing rows are.",
                    )

    def assume(self, pending: Sequence[int], plain: Callable[[MissingRows], SlabClass]) -> None:
        """Take recorded row shapes as the classes of slabs, for the first kernel that they complete.

        Only slabs of that one of the ``pending`` kernels get a class; a class that is known stays.
        ``plain`` turns `MissingRows` into a class. Raises `LaunchError` if no kernel can be completed so.
        """
        for number in pending:
            kernel = self.form.kernels[number]
            told = {
                operand.index: plain(operand.missing)
                for operand in kernel.operands
                if operand.reads and operand.missing is not None
            }
            if kernel.slabs <= self.known.keys() | told.keys():
                self.known = told | self.known  # what ops have returned counts more
                return
        raise LaunchError(
            f"{naming(self.form.kernels[pending[0]])}, reads rows whose shape only its own results would "
            "tell.",
            "let the first of these rows come from another op or from an array, or say their shape: "
            "multifold.ragged(items, row_shape=(width,)).",
        )
