"""A program: a schedule laid out as data, for executors that compile once and read structure from arrays.

A `Program` has two halves. Its `Form` is everything that an executor compiles for: which kernels there are,
how their operands enter, in which phases they run. It is hashable and compares by value. The other half is
NumPy arrays: which launch runs which kernel on which rows, and which rows it reads. The example in
`multifold.program` shows both halves.

Each type of call is a *kernel*, and each call is a row of its kernel. Kernels run in *phases*: a loop over
launches where kernels read each other's results, else one launch. Everything that operands read by rows
lies in *slabs*: what one operand may read, parts of results and given rows, shares a slab, one stretch of
rows after the other. In a *ragged* program the launches have as many rows as in the schedule. In a *tiled*
one all launches of a loop have the same number of rows, and each size is one of few.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import optree

from multifold._engine.compiled.arrays import Integers, starts
from multifold._engine.ops.values import Steps
from multifold._engine.traces.minibatch import Minibatch
from multifold.errors import RecordError
from multifold.program.kept import ExampleParts


@dataclass(frozen=True)
class KernelOperand:
    """How one leaf operand of a kernel enters its launches.

    Attributes
    ----------
    role : str
        ``"rows"`` and ``"ragged"`` are rows of slab ``index``; ``"int"``, ``"float"`` and ``"bool"`` are
        numbers; ``"whole"`` is entry ``index`` of `Form.wholes`, ``"shared"`` entry ``index`` of
        `Program.shared`, and ``"static"`` is ``value``.
    index : int
        See ``role``; -1 for a ragged operand that has never had a row.
    missing : MissingRows or None
        Of a ragged operand: what a row is in a call that has none, if that was recorded.
    lacks : bool
        Of a ragged operand: whether a call of the kernel has had no row.
    edges : int or None
        Of a ragged operand of a tiled program: rows that it has in each launch.
    key : Hashable
        The key by which a static value is compared.
    """

    role: str
    index: int = -1
    missing: Any = None
    lacks: bool = False
    edges: int | None = None
    key: Hashable = None
    value: Any = field(default=None, compare=False, repr=False)

    @property
    def reads(self) -> bool:
        """Whether the operand reads rows of a slab, by role ``"rows"`` or ``"ragged"``.

        An operand that has never had a row reads none.
        """
        return self.role in ("rows", "ragged") and self.index >= 0


@dataclass(frozen=True)
class Kernel:
    """One type of call: an op, and how its operands enter.

    Attributes
    ----------
    op : str or callable
        What is looked up on the model, or called.
    operands : tuple of KernelOperand
        The leaves of the positional operands.
    structure : PyTreeSpec or None
        How the leaves nest; None where each operand is one leaf.
    key : Hashable
        Op and static arguments as they are compared.
    static : dict
        The keyword arguments.
    solo : bool
        Each of its launches makes exactly one row, whatever is padded elsewhere: its whole result is read,
        or no operand is batched.
    whole : bool
        Its whole result is read, so that it may have any shape.
    name, site : str
        The op's name and where it was recorded first; for messages, not compared.
    rows : int or None
        Of a tiled program: how many rows it has, padding included.
    """

    op: str | Callable[..., Any] = field(compare=False)
    operands: tuple[KernelOperand, ...]
    structure: Any
    key: Hashable
    static: dict[str, Any] = field(compare=False)
    solo: bool
    whole: bool
    name: str = field(compare=False)
    site: str = field(compare=False)
    rows: int | None = None

    @property
    def slabs(self) -> frozenset[int]:
        """The numbers of the slabs whose rows its operands read; empty if it reads none."""
        # A set: an op may read two operands from one slab, as `join` reads its left and its right child.
        return frozenset(operand.index for operand in self.operands if operand.reads)

    @property
    def beside(self) -> tuple[int, ...]:
        """The positions in ``operands`` of those with the role ``"float"``, ascending.

        A launch casts these Python floats to the dtype of the arrays that the op receives with them.
        """
        return tuple([i for i, operand in enumerate(self.operands) if operand.role == "float"])

    def nest(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Nest the leaves of the positional operands as the op receives them.

        ``leaves`` has one value for each of ``operands``, in their order. It comes back as it is where
        ``structure`` is None.
        """
        if self.structure is None:
            return leaves
        nested: Sequence[Any] = optree.tree_unflatten(self.structure, leaves)
        return nested


class Source(NamedTuple):
    """A stretch of rows in a slab: one part of all results of a kernel, or one array of given rows.

    Attributes
    ----------
    slab : int
        The slab that holds the stretch.
    kernel : int
        Number of the kernel, -1 for given rows.
    steps : Steps
        The part of its result; it may hold several arrays.
    given : int
        Entry of `Program.given`, -1 for rows of a kernel.
    rows : int or None
        Of a tiled program: how many rows it has.
    dtypes : tuple
        What its arrays are converted to, one for each leaf; empty where they stay as they are. Rows of
        float16 that a ragged operand reads beside rows of float32 lie twice: in a slab of float16 for
        other readers, and converted in the slab of that operand.
    """

    slab: int
    kernel: int
    steps: Steps = ()
    given: int = -1
    rows: int | None = None
    dtypes: tuple[Any, ...] = ()


class Phase(NamedTuple):
    """Launches that follow each other.

    Attributes
    ----------
    kernels : tuple of int
        The kernels that it runs; a launch names its kernel by the entry in this tuple.
    loop : bool
        Whether there may be any number of launches, which read each other's results; else there is one,
        or none where the minibatch has no call of the kernel.
    tile : int or None
        Of a loop of a tiled program: the rows of each launch.
    launches : int or None
        Of a tiled program: how many launches there are, idle ones included.
    rows : tuple of int
        Of a tiled program: how many rows of each kernel it computes, padding included. They follow the
        rows that earlier phases computed.
    turn : tuple of int
        Of a loop whose kernels take turns in a fixed cycle: the kernel of each tile of one turn, as an
        entry of ``kernels``. There are ``launches / len(turn)`` turns. Empty where launches name theirs.
    """

    kernels: tuple[int, ...]
    loop: bool
    tile: int | None = None
    launches: int | None = None
    rows: tuple[int, ...] = ()
    turn: tuple[int, ...] = ()


class TileSpan(NamedTuple):
    """The rows of a kernel that one tile computes.

    Attributes
    ----------
    number : int
        Of the tile, which is that of its line in `Program.launches`.
    kernel, first, rows : int
        The kernel, the first of its rows, and how many they are.
    real : int
        The tile that has a call if this one has one, or repeats one: itself, or the first one of a loop
        with one kernel, where tiles without a call come last.
    """

    number: int
    kernel: int
    first: int
    rows: int
    real: int


class ProgramGroup(NamedTuple):
    """One group of the outputs: rows of a slab, or one whole value.

    Attributes
    ----------
    slab : int
        The slab whose rows are asked for, -1 for a whole value.
    whole : int
        Entry of `Form.wholes` where the whole value is wanted, else -1.
    rows : int or None
        Of a tiled program: how many rows it has, padding included.
    """

    slab: int = -1
    whole: int = -1
    rows: int | None = None


@dataclass(frozen=True)
class Form:
    """What an executor compiles for; hashable, equal where one compiled executor serves both.

    Attributes
    ----------
    kernels, sources, phases, groups : tuples
        See `Kernel`, `Source`, `Phase` and `ProgramGroup`; sources come slab by slab.
    slabs : int
        How many slabs there are; each has one structure, trailing shapes and dtypes.
    wholes : tuple of (int, Steps)
        Kernel and part of each value that is read whole.
    structure : PyTreeSpec
        Where the results go.
    leaves : tuple of int or tuple of int
        For each leaf of the structure its group, or the groups of which it is the list.
    """

    kernels: tuple[Kernel, ...]
    sources: tuple[Source, ...]
    slabs: int
    wholes: tuple[tuple[int, Steps], ...]
    phases: tuple[Phase, ...]
    groups: tuple[ProgramGroup, ...]
    structure: Any
    leaves: tuple[int | tuple[int, ...], ...]

    @property
    def tiled(self) -> bool:
        """Whether each phase has a fixed number of launches, as in a program that `Tiler.tiled` made."""
        return all(phase.launches is not None for phase in self.phases)

    @property
    def begins(self) -> list[tuple[int, ...]]:
        """Of a tiled program: for each phase the first row that it computes of each of its kernels.

        Each entry is a tuple in the order of `Phase.kernels`. The rows of a kernel are counted from 0 over
        all phases.
        """
        done = [0] * len(self.kernels)
        found = []
        for phase in self.phases:
            found.append(tuple(done[kernel] for kernel in phase.kernels))
            for kernel, count in zip(phase.kernels, phase.rows, strict=True):
                done[kernel] += count
        return found

    @property
    def stretches(self) -> tuple[list[int], list[int]]:
        """Of a tiled program: the first row of each source in its slab, and how many rows each slab has."""
        begins = []
        sizes = [0] * self.slabs
        for source in self.sources:
            begins.append(sizes[source.slab])
            sizes[source.slab] += source.rows or 0
        return begins, sizes

    def tiles(self) -> Iterator[TileSpan]:
        """Yield all tiles of a tiled form whose kernels take turns (`Phase.turn`), numbered from 0.

        They come phase by phase, and a phase that is no loop is one tile.
        """
        number = 0
        for phase, begins in zip(self.phases, self.begins, strict=True):
            done = list(begins)
            first = number
            # Outside of a loop there is one tile, of the phase's only kernel.
            for entry in phase.turn * ((phase.launches or 0) // len(phase.turn)) if phase.loop else (0,):
                rows = phase.tile or phase.rows[entry]
                real = number if len(phase.turn) > 1 else first
                yield TileSpan(number, phase.kernels[entry], done[entry], rows, real)
                done[entry] += rows
                number += 1

    def sources_of(self, kernel: int) -> list[tuple[int, Source]]:
        """Return pairs (entry in ``sources``, `Source`) for the sources that hold results of a kernel.

        ``kernel`` is an entry of ``kernels``. The list is empty if no operand or group reads its rows.
        """
        return [(number, source) for number, source in enumerate(self.sources) if source.kernel == kernel]

    def wholes_of(self, kernel: int) -> list[tuple[int, Steps]]:
        """Return pairs (entry in ``wholes``, steps to the part) for a kernel's values that are read whole.

        ``kernel`` is an entry of ``kernels``. The list is empty if no value of it is read whole.
        """
        return [(number, steps) for number, (owner, steps) in enumerate(self.wholes) if owner == kernel]

    def put_together(self, values: Sequence[Any]) -> Any:
        """Put the value of each group, in the order of ``groups``, into ``structure``, as ``leaves`` says.

        A leaf that is a tuple of groups becomes the list of their values.
        """
        leaves = [
            [values[i] for i in leaf] if isinstance(leaf, tuple) else values[leaf] for leaf in self.leaves
        ]
        return optree.tree_unflatten(self.structure, leaves)


def stretches(sources: Sequence[Source], rows: Integers) -> tuple[Integers, Integers]:
    """Return the first row of each source in its slab, and how many rows each slab has.

    ``rows`` has the number of rows of each source. Sources come slab by slab, so a source begins after the
    rows of all sources before it in its slab.

    Examples
    --------
    >>> stretches([Source(0, 0), Source(0, 1), Source(1, 2)], np.array([3, 5, 4]))
    (array([0, 3, 0]), array([8, 4]))
    """
    # Of all slabs as one array: where a source begins in it, less where its slab begins.
    slab = np.array([source.slab for source in sources], np.int64)
    sizes = np.bincount(slab, rows).astype(np.int64)
    return starts(rows)[:-1] - starts(sizes)[slab], sizes


class RaggedColumn(NamedTuple):
    """A ragged operand of all calls of a kernel.

    Attributes
    ----------
    addresses : int32 array of shape ``(members,)``
        The rows of the slab that are read, one call after the other.
    splits : int32 array of shape ``(rows + 1,)``
        Where the members of each call begin.
    segments : int32 array of shape ``(members,)``
        The row of its launch, from 0, that each member belongs to.
    """

    addresses: Any
    splits: Any
    segments: Any


class Unfit(NamedTuple):
    """Why a program has no sizes to be run in, and the traces that a fold runs instead.

    Attributes
    ----------
    reason : str
        For the user.
    minibatch : Minibatch or None
        For `multifold.Fold.run`; None for a program of outputs.
    """

    reason: str
    minibatch: Minibatch | None


@dataclass(frozen=True, eq=False)
class Program:
    """A schedule laid out as data; made by `multifold.Fold.program`.

    Attributes
    ----------
    form : Form
        What an executor compiles for.
    starts : int32 array of shape ``(sources,)``
        Where each source begins: row ``r`` of source ``s`` is row ``starts[s] + r`` of its slab.
    sizes : int32 array of shape ``(slabs,)``
        How many rows each slab has.
    bounds : int32 array of shape ``(phases + 1,)``
        Phase ``p`` runs ``launches[bounds[p] : bounds[p + 1]]``, in order.
    launches : int32 array of shape ``(launches, 3)``
        Of each launch its kernel (an entry of `Phase.kernels`; one past the end means an idle launch), its
        first row among the rows of the kernel, and how many rows it has.
    columns : tuple of tuples
        For each kernel and operand: the rows of the slab that are read, int32 of shape ``(rows,)``; a
        `RaggedColumn`; numbers of shape ``(rows,)``; None where the form says all.
    groups : tuple of int32 arrays or None
        The rows of its slab that make each result; None where a whole value is asked for.
    given : tuple of arrays of shape ``(rows, *s)``
        Given rows: leaf arrays, and numbers inside ragged operands and groups.
    shared : tuple of arrays
        Shared arrays.
    counts : int32 array of shape ``(groups,)``
        How many rows of each result were asked for. With ``pad=True`` padding follows them.
    kept : ExampleParts or None
        What examples keep beside their results; None for what a compiled function receives.
    unfit : Unfit or None
        Of a ragged program that should be a tiled one: why it is not.
    """

    form: Form
    starts: Any
    sizes: Any
    bounds: Any
    launches: Any
    columns: tuple[tuple[Any, ...], ...]
    groups: tuple[Any, ...]
    given: tuple[Any, ...]
    shared: tuple[Any, ...]
    counts: Any
    kept: ExampleParts | None = None
    unfit: Unfit | None = None

    @property
    def arrays(self) -> tuple[Any, ...]:
        """All fields but ``form``, ``kept`` and ``unfit``, as one nested tuple in the fields' order."""
        names = [entry.name for entry in fields(self) if entry.name not in ("form", "kept", "unfit")]
        return tuple(getattr(self, name) for name in names)

    def each(self, result: Any) -> Any:
        """Give each example its part of the results that `multifold.each` marks; return all results.

        Parameters
        ----------
        result : object
            The results of this program, outside of the compiled function. In the place of each
            `multifold.each` they have a list of arrays, the rows of all examples.

        Returns
        -------
        object
            The same structure. Each `multifold.each` is a list with an entry for each example, or the
            entry itself if the program is of outputs; its rows are arrays of NumPy, on the host. All other
            results are what they are.

        Raises
        ------
        RecordError
            For a program inside of a compiled function, which sees its arrays only; for results of another
            structure, or of too few rows, as another program has.

        Examples
        --------
        >>> import multifold
        >>> from multifold.program import run
        >>> def spell(fold, word):
        ...     return multifold.each([word, fold.add("ord", ord(word[0]))])
        >>> program = multifold.Fold(backend="numpy").program(multifold.traces(spell, ["a", "bc"]))
        >>> program.each(run({"ord": lambda x: x}, program))
        [['a', array([97])], ['bc', array([98])]]
        """
        if self.kept is None:
            raise RecordError(
                "Expected a program that Fold.program returned. Received one inside of a compiled "
                "function, which has its arrays and nothing that its examples keep.",
                "return the results, and call program.each(results) outside of the function.",
            )
        return self.kept.fill(result)

    def lengths(self, kernel: int, first: int, rows: int) -> dict[int, np.ndarray]:
        """Return how many members each of some rows of a kernel has, for each ragged operand.

        The rows are ``first`` to ``first + rows - 1``. The key is the operand's position in
        `Kernel.operands`, and the value an integer array of shape ``(rows,)``.
        """
        return {
            i: np.diff(column.splits[first : first + rows + 1])
            for i, column in enumerate(self.columns[kernel])
            if isinstance(column, RaggedColumn)
        }

    def __str__(self) -> str:
        lines = [f"{'tiled' if self.form.tiled else 'ragged'} program of {len(self.form.phases)} phases"]
        bounds = np.asarray(self.bounds)
        for number, phase in enumerate(self.form.phases):
            table = np.asarray(self.launches)[bounds[number] : bounds[number + 1]]
            names = ", ".join(self.form.kernels[kernel].name for kernel in phase.kernels)
            used = int((table[:, 2] > 0).sum())
            sizes = f"{used} of {phase.launches} tiles of {phase.tile} rows" if phase.tile else ""
            sizes = sizes or f"{used} launch{'es' * (used != 1)}, {int(table[:, 2].sum())} rows"
            lines.append(f"  {'loop' if phase.loop else 'once'}  {names}: {sizes}")
        return "\n".join(lines)
