"""The forward half of a program: its tiles one after the other, each with a graph of its own.

Rows lie in slabs, tensors without a gradient that are written in place. What a tile reads is copied out of
them and becomes leaves of autograd, so the graph of a tile begins at its operands and ends at its results.
`multifold_torch.program.backward` goes through these graphs in reverse.

Which tiles there are, of which kernel and of how many rows, follows from the form alone, and nothing on the
way looks at a value. So the same operations run for each program of a form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import optree
import torch

from multifold.backend import Backend, Ragged
from multifold.errors import MultifoldError
from multifold.program import (
    Form,
    KernelOperand,
    SlabClass,
    SlabClasses,
    TileSpan,
    check_rows,
    follow,
    raised,
    received,
)
from multifold_torch.program.feed import ProgramData, RaggedReads
from multifold_torch.program.witness import Witness

Place = tuple[str, int, int]
"""Where an array lies: ``("slab", i, k)`` is leaf k of slab i, and ``("whole", i, k)`` of a whole value."""


class TileRead(NamedTuple):
    """A leaf of a tile's graph: a copy of rows of a slab, or a value that is read whole.

    Attributes
    ----------
    leaf : tensor
        What the op received.
    place : Place
        What it was read from.
    sinks : tensor or None
        The rows of a slab that its gradient is added to; None for a whole value.
    """

    leaf: torch.Tensor
    place: Place
    sinks: Any


class TileResult(NamedTuple):
    """A result of a tile that has a gradient.

    Attributes
    ----------
    value : tensor
        The result.
    place : Place
        Where it was written.
    first : int or None
        From which row of a slab on; None for a whole value.
    """

    value: torch.Tensor
    place: Place
    first: int | None


class Tile(NamedTuple):
    """What the backward pass must know of a tile.

    Attributes
    ----------
    span : TileSpan
        Which rows it has computed.
    reads, results : lists
        Where its graph begins and ends.
    outside : list of tensors
        What its op has read besides.
    """

    span: TileSpan
    reads: list[TileRead]
    results: list[TileResult]
    outside: list[torch.Tensor]


class NotYet(Exception):
    """Raised for a tile that reads a slab without rows so far: then it has no call, and is left out."""


@final
class TileRunner:
    """One run of the tiles of a program.

    Parameters
    ----------
    backend : Backend
        What calls ops.
    ops : sequence of callable
        The op of each kernel.
    form : Form
        Tiled, with kernels that take turns.
    data : ProgramData
        What is read.
    witness : Witness or None
        What sees the ops; without one, ``outside`` says what they read.
    outside : dict of int to list of tensors, optional
        Kernel -> what its op reads besides its operands.

    Attributes
    ----------
    arrays : dict of Place to tensor
        The arrays of slabs, with one row more than the slab has; and the values that are read whole.
    graded : set of Place
        Those that have a gradient.
    tiles : list of Tile
        Those whose results have a gradient.
    """

    def __init__(
        self,
        backend: Backend,
        ops: Sequence[Callable[..., Any]],
        form: Form,
        data: ProgramData,
        witness: Witness | None,
        outside: dict[int, list[torch.Tensor]] | None = None,
    ) -> None:
        self.backend = backend
        self.ops = ops
        self.form = form
        self.data = data
        self.witness = witness
        self.outside = outside or {}
        self.starts, self.sizes = form.stretches
        self.classes = SlabClasses(form)
        self.arrays: dict[Place, torch.Tensor] = {}
        self.wholes: dict[int, Any] = {}
        self.graded: set[Place] = set()
        self.tiles: list[Tile] = []

    def run(self) -> None:
        """Write the given rows into their slabs, then run all tiles in the order of the form."""
        for entry, source in enumerate(self.form.sources):
            if source.kernel < 0:
                self.write(entry, self.data.given[source.given], 0)
        for span in self.form.tiles():
            reads: list[TileRead] = []
            try:
                leaves = self.operands(span, reads)
            except NotYet:
                continue
            self.launch(span, leaves, reads)

    def results(self) -> list[tuple[Any, list[tuple[Place, torch.Tensor]]]]:
        """Return for each group its structure and its leaves, as pairs (place, tensor).

        The tensor has the rows of the group, or is a value that is read whole.
        """
        found = []
        for group, rows in zip(self.form.groups, self.data.groups, strict=True):
            if group.whole >= 0:
                values, structure = optree.tree_flatten(self.wholes[group.whole])
                leaves = [(("whole", group.whole, i), x) for i, x in enumerate(values)]
            else:
                structure, classes = self.classes[group.slab]
                places = [("slab", group.slab, i) for i in range(len(classes))]
                leaves = [(place, self.arrays[place].index_select(0, rows)) for place in places]
            found.append((structure, leaves))
        return found

    def launch(self, span: TileSpan, leaves: list[Any], reads: list[TileRead]) -> None:
        """Run the op of a tile on ``leaves``, and write the parts of its result that others read.

        ``reads`` are those of ``leaves`` that have gradients. Raises `LaunchError` if the op fails.
        """
        kernel = self.form.kernels[span.kernel]
        op = self.ops[span.kernel]

        def call() -> Any:
            return self.backend.call(op, received(self.backend, kernel, leaves), kernel.static)

        try:
            result = call() if self.witness is None else self.witness.call(span, op, call, leaves)
        except Exception as error:
            # The first says itself what is wrong. The others are no failures: see `TorchBackend.passes`.
            if isinstance(error, (MultifoldError, *self.backend.passes)):
                raise
            raise raised(kernel, error) from error
        results: list[TileResult] = []
        for whole, steps in self.form.wholes_of(span.kernel):
            self.wholes[whole] = follow(result, steps, kernel)
            for i, x in enumerate(optree.tree_leaves(self.wholes[whole])):
                # Readers get it without its graph, since the graph of each tile ends at its own results.
                self.arrays["whole", whole, i] = x.detach()
                results.append(TileResult(x, ("whole", whole, i), None))
        for entry, source in self.form.sources_of(span.kernel):
            value = follow(result, source.steps, kernel)
            for x in optree.tree_leaves(value):
                check_rows(kernel, tuple(x.shape), span.rows)
            results += self.write(entry, value, span.first)
        results = [x for x in results if x.value.requires_grad]
        if not results or not torch.is_grad_enabled():
            return
        self.graded.update(x.place for x in results)
        outside = self.outside.get(span.kernel, [])
        if self.witness is not None:
            outside = self.witness.read([x.value for x in results], [x.leaf for x in reads])
        self.tiles.append(Tile(span, reads, results, outside))

    def write(self, entry: int, value: Any, first: int) -> list[TileResult]:
        """Write rows into the stretch of source ``entry``, from row ``first`` on.

        Return a `TileResult` for each leaf. The first rows of a slab make its arrays.
        """
        source = self.form.sources[entry]
        leaves, structure = optree.tree_flatten(value)
        start = self.starts[entry] + first
        dtypes = source.dtypes or [x.dtype for x in leaves]
        pairs = [(x, (tuple(x.shape[1:]), dtype)) for x, dtype in zip(leaves, dtypes, strict=True)]
        self.classes.declare(source.slab, SlabClass(structure, tuple(known for _, known in pairs)))
        found = []
        for i, (x, (shape, dtype)) in enumerate(pairs):
            place = ("slab", source.slab, i)
            if place not in self.arrays:
                # The row more is a sink: the gradients of rows that only pad are added to it.
                size = (self.sizes[source.slab] + 1, *shape)
                self.arrays[place] = torch.full(size, half(dtype), dtype=dtype, device=x.device)
            self.arrays[place][start : start + x.shape[0]].copy_(x.detach())
            found.append(TileResult(x, place, start))
            if source.kernel < 0 and x.requires_grad:
                self.graded.add(place)
        return found

    def operands(self, span: TileSpan, reads: list[TileRead]) -> list[Any]:
        """Return the operands of a tile, one for each of the kernel's.

        Append those with gradients to ``reads``. Raises `NotYet` as `rows` does.
        """
        kernel = self.form.kernels[span.kernel]
        pairs = zip(kernel.operands, self.data.columns[span.kernel], strict=True)
        return [self.operand(span, operand, column, reads) for operand, column in pairs]

    def operand(self, span: TileSpan, operand: KernelOperand, column: Any, reads: list[TileRead]) -> Any:
        """Return one operand of a tile, as `operands`; ``column`` holds it for all calls of the kernel."""
        own = slice(span.first, span.first + span.rows)
        if operand.role == "rows":
            return self.rows(operand.index, column.addresses[own], column.sinks[own], reads)
        if operand.role == "ragged":
            return self.ragged(span, operand, column, reads)
        if operand.role == "whole":
            if operand.index not in self.wholes:
                raise NotYet
            leaves, structure = optree.tree_flatten(self.wholes[operand.index])
            places = [("whole", operand.index, i) for i in range(len(leaves))]
            return structure.unflatten([self.leaf(self.arrays[x].detach(), x, None, reads) for x in places])
        if operand.role == "shared":
            return self.data.shared[operand.index]
        if operand.role == "static":
            return operand.value
        # NumPy has no bfloat16: where that is the default, numbers are float32 until here.
        becomes = operand.role == "float" and torch.get_default_dtype() is torch.bfloat16
        return column[own].bfloat16() if becomes else column[own]

    def rows(self, slab: int, addresses: torch.Tensor, sinks: torch.Tensor, reads: list[TileRead]) -> Any:
        """Return copies of the rows ``addresses`` of a slab, in its structure; append them to ``reads``.

        Raises `NotYet` if the slab has none.
        """
        if slab not in self.classes.known:
            raise NotYet
        structure, leaves = self.classes[slab]
        places = [("slab", slab, i) for i in range(len(leaves))]
        copies = [self.arrays[place].index_select(0, addresses) for place in places]
        return structure.unflatten(
            [self.leaf(x, place, sinks, reads) for x, place in zip(copies, places, strict=True)]
        )

    def leaf(self, x: torch.Tensor, place: Place, sinks: Any, reads: list[TileRead]) -> torch.Tensor:
        """Return ``x``, a copy of what is at ``place``.

        If the place has a gradient, ``x`` becomes a leaf of autograd and is appended to ``reads``.
        """
        if place in self.graded and torch.is_grad_enabled():
            x.requires_grad_()
            reads.append(TileRead(x, place, sinks))
        return x

    def ragged(
        self, span: TileSpan, operand: KernelOperand, column: RaggedReads, reads: list[TileRead]
    ) -> Ragged:
        """Return a ragged operand of one tile; ``column`` holds it for all calls."""
        edges = operand.edges or 0
        # All tiles of a kernel have `edges` members, so those of tile i begin at i * edges.
        begin = span.first // span.rows * edges
        own = slice(begin, begin + edges)
        rest = column.lengths[span.first : span.first + span.rows], column.segments[own]
        if operand.index in self.classes.known:
            self.classes.check_missing(self.form.kernels[span.kernel], self.plain)
            return Ragged(self.rows(operand.index, column.addresses[own], column.sinks[own], reads), *rest)

        def fill(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
            known = self.dtype_of(dtype)
            return torch.full((edges, *shape), half(known), dtype=known, device=rest[0].device)

        # No tile can have written to the slab yet, so these members only pad.
        return Ragged(operand.missing.made(fill), *rest)

    def dtype_of(self, name: str) -> torch.dtype:
        """Return the dtype of a name, as ``"float32"``.

        The names ``"float"`` and ``"int"`` mean PyTorch's defaults.
        """
        if name == "float":
            return torch.get_default_dtype()
        return torch.int64 if name == "int" else getattr(torch, name)

    def plain(self, missing: Any) -> SlabClass:
        """Return the class (structure, shapes, dtypes) of rows that no call of the form makes."""
        made = missing.made(lambda shape, dtype: torch.empty((0, *shape), dtype=self.dtype_of(dtype)))
        leaves, structure = optree.tree_flatten(made)
        return SlabClass.of(structure, leaves)


def half(dtype: torch.dtype) -> float:
    """Return the number that a slab is filled with before its rows are written: 0.5, or 0 for integers.

    Few functions are singular at a half.
    """
    return 0.5 if dtype.is_floating_point or dtype.is_complex else 0
