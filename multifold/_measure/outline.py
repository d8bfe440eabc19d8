"""The outline of a program: the graph of its pieces, recorded by `Fold.add` with ops that do nothing.

A run of it takes what recording, planning, gathering and awaiting take, and the backward pass through all
that, where a program is written with an op for each kind of `pieces`. What the ops compute is left out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from multifold._measure.pieces import Piece, WatchedFold, line_of, name_of
from multifold.operands import Shared, ragged
from multifold.ops import segment_sum

FEW = 3
"""Up to so many operands are handed to an op one by one, if all calls of it have equally many."""

END = "end"
"""The name of the op that puts the results of an example together."""

COMMON = 0.5
"""What more than this share of the pieces of a kind are given is a constant of their op."""


class Outline:
    """The graph of the pieces of all examples, to be recorded by `Fold.add`; see the module.

    Parameters
    ----------
    backend : Backend
        The framework.
    pieces, reads
        As `pieces_of` returns them.
    seen : WatchedFold
        What has seen their calls.
    weight : array or None
        A parameter, on which all results depend, so that they have gradients; None for none.

    Attributes
    ----------
    reads_within : set of CodeType
        The code of the functions that read values.
    counts : dict of kind to int
        How many pieces of each kind there are; those that begin first come first.
    """

    def __init__(
        self,
        backend: Any,
        pieces: Sequence[Piece],
        reads: Mapping[int, Mapping[int, Sequence[int]]],
        seen: WatchedFold,
        weight: Any,
    ) -> None:
        self.backend = backend
        self.pieces = pieces
        self.counts = Counter(piece.kind for piece in pieces)
        self.of_example: defaultdict[int, list[int]] = defaultdict(list)
        for i, piece in enumerate(pieces):
            self.of_example[piece.example].append(i)
        of_call = {number: i for i, piece in enumerate(pieces) for number in piece.members}
        read = [number for own in reads.values() for calls in own.values() for number in calls]
        self.reads_within = {pieces[of_call[number]].kind[0] for number in read}
        self.reads = {
            example: {depth: sorted({of_call[x] for x in calls}) for depth, calls in own.items()}
            for example, own in reads.items()
        }
        sizes: defaultdict[Any, int] = defaultdict(int)
        arity: defaultdict[Any, set[int]] = defaultdict(set)
        used = {x for piece in pieces for x in piece.operands}
        for piece in pieces:
            sizes[piece.kind] = max(sizes[piece.kind], piece.size)
            arity[piece.kind].add(len(piece.operands))
        self.ends = {example: [i for i in own if i not in used] for example, own in self.of_example.items()}
        self.given = self.own_given()
        self.is_ragged = {kind: len(own) > 1 or max(own) > FEW for kind, own in arity.items()}
        self.sizes = sizes
        self.weight = weight
        self.even_out()
        self.look(seen)
        self.examples = [*self.of_example]

    def own_given(self) -> list[list[Any]]:
        """Return for each piece the arrays and numbers that its op would be given.

        What all examples share, and what most pieces of a kind have in common, as zeros to pad with, the op
        finds by itself; of equal ones it is given one; and all calls of an op are given equally many.
        """
        keys = [
            {value_of(self.backend, x): x for x in piece.given if not isinstance(x, Shared)}
            for piece in self.pieces
        ]
        counts: defaultdict[Any, Counter[Any]] = defaultdict(Counter)
        for piece, own in zip(self.pieces, keys, strict=True):
            counts[piece.kind].update(own.keys())
        found = []
        for piece, own in zip(self.pieces, keys, strict=True):
            most = max(COMMON * self.counts[piece.kind], 1)
            found.append([x for key, x in own.items() if counts[piece.kind][key] <= most])
        fewest: dict[Any, int] = {}
        for piece, given in zip(self.pieces, found, strict=True):
            fewest[piece.kind] = min(fewest.get(piece.kind, len(given)), len(given))
        found = [given[: fewest[piece.kind]] for piece, given in zip(self.pieces, found, strict=True)]
        shapes: defaultdict[Any, set[Any]] = defaultdict(set)
        for piece, given in zip(self.pieces, found, strict=True):
            for place, x in enumerate(given):
                shapes[piece.kind, place].add(getattr(x, "shape", None))
        # By hand, rows of many lengths are ragged and share a launch; here a number stands for them.
        return [
            [0 if len(shapes[piece.kind, place]) > 1 else x for place, x in enumerate(given)]
            for piece, given in zip(self.pieces, found, strict=True)
        ]

    def even_out(self) -> None:
        """Make the results of pieces equally wide that stand in one ragged operand."""
        changing = True
        while changing:
            changing = False
            for piece in self.pieces:
                if self.is_ragged[piece.kind]:
                    kinds = {self.pieces[x].kind for x in piece.operands}
                    most = max([self.sizes[kind] for kind in kinds], default=0)
                    changing = changing or any(self.sizes[kind] < most for kind in kinds)
                    self.sizes.update(dict.fromkeys(kinds, most))

    def look(self, seen: WatchedFold) -> None:
        """Note which lines and functions of the program the ops would run, and how much each computes."""
        self.inside: set[CodeType] = set()
        self.lines: set[tuple[CodeType, int]] = set()
        self.places: defaultdict[Any, Counter[str]] = defaultdict(Counter)
        self.spans: defaultdict[Any, set[int]] = defaultdict(set)
        for piece in self.pieces:
            places: dict[tuple[CodeType, int], str] = {}
            for number in piece.members:
                sites = seen.seen[number].sites
                codes = [site.code for site in sites]
                i = len(codes) - 1 - codes[::-1].index(piece.kind[0])
                self.inside.update(codes[i + 1 :])
                line = line_of(codes[i], sites[i].place)
                self.lines.add((codes[i], line))
                self.spans[piece.kind].add(line)
                places[sites[-1].code, sites[-1].place] = plain_name(seen.seen[number].op)
            self.places[piece.kind] |= Counter(places.values())
        self.inside -= {kind[0] for kind in self.counts}

    def launches(self, explained: Any) -> Counter[str]:
        """Return how often the ops call each function of the framework, by its name.

        ``explained`` is the explanation of a run of `recorder`.
        """
        kinds = {label(kind): kind for kind in self.places}
        found: Counter[str] = Counter()
        for part in explained.rounds:
            for op in part.ops:
                for name, times in self.places[kinds[op.name]].items() if op.name in kinds else ():
                    found[name] += op.launches * times
        return found

    def ops(self) -> list[tuple[str, int]]:
        """Return which lines of the program each op would run, and how many calls of it there are.

        Those with most calls come first, as ``("Tree.encode, lines 12 to 15", 1147)``.
        """
        found = []
        for kind, count in self.counts.most_common():
            first, last = min(self.spans[kind]), max(self.spans[kind])
            lines = f"line {first}" if first == last else f"lines {first} to {last}"
            found.append((f"{name_of(kind[0])}, {lines}", count))
        return found

    def op(self, name: str, size: int, *, tells: bool = False) -> EmptyOp:
        """Return an op whose results have ``size`` numbers a row, and another number if it ``tells``."""
        return EmptyOp(name, size, self.backend, self.weight, tells=tells)

    def recorder(self, timed: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Callable[..., Any]:
        """Return what records an example, for `Fold.run`; its ops are wrapped by ``timed``."""
        ops = {kind: timed(self.op(label(kind), size)) for kind, size in self.sizes.items()}
        end = timed(self.op(END, 1))

        def result(fold: Any, nodes: dict[int, Any], example: int) -> Any:
            ends: defaultdict[Any, list[Any]] = defaultdict(list)
            for i in self.ends[example]:
                ends[self.pieces[i].kind].append(nodes[i])
            return fold.add(end, *[ragged(own) for own in ends.values()])

        told = {x for own in self.reads.values() for asked in own.values() for x in asked}
        kinds = {self.pieces[x].kind for x in told}
        for kind in kinds:  # what is read is a number beside the row
            ops[kind] = timed(self.op(label(kind), self.sizes[kind], tells=True))
        steps = {example: self.steps(own, ops) for example, own in self.of_example.items()}

        def record(fold: Any, example: int) -> Any:
            nodes: dict[int, Any] = {}
            for i, _, op, operands, given, is_ragged in steps[example]:
                rows = [nodes[x] for x in operands]
                nodes[i] = fold.add(op, ragged(rows), *given) if is_ragged else fold.add(op, *rows, *given)
            return result(fold, nodes, example)

        async def record_reading(fold: Any, example: int) -> Any:
            nodes: dict[int, Any] = {}
            numbers: dict[int, Any] = {}
            reads = self.reads.get(example, {})
            read: set[int] = set()
            before = 0
            for i, following, op, operands, given, is_ragged in steps[example]:
                while before < following:
                    asked = [x for x in reads.get(before, ()) if x in nodes and x not in read]
                    if asked:
                        read.update(asked)
                        await awaited(fold, [numbers[x] for x in asked])
                    before += 1
                rows = [nodes[x] for x in operands]
                node = fold.add(op, ragged(rows), *given) if is_ragged else fold.add(op, *rows, *given)
                if self.pieces[i].kind in kinds:
                    node, numbers[i] = node.split(2)
                nodes[i] = node
            asked = [x for own in reads.values() for x in own if x not in read]
            if asked:
                await awaited(fold, [numbers[x] for x in dict.fromkeys(asked)])
            return result(fold, nodes, example)

        return record_reading if self.reads else record

    def steps(self, pieces: Sequence[int], ops: Mapping[Any, Callable[..., Any]]) -> list[OutlineStep]:
        """Return what records these pieces, in order; ``ops`` has the op of each kind."""
        found = []
        for i in sorted(pieces, key=lambda i: self.pieces[i].reads):
            piece = self.pieces[i]
            given = self.given[i]
            is_ragged = self.is_ragged[piece.kind] and len(piece.operands) > 0
            if not piece.operands and not given:
                given = [0]
            found.append(OutlineStep(i, piece.reads, ops[piece.kind], piece.operands, given, is_ragged))
        return found


class OutlineStep(NamedTuple):
    """What records a piece: its number, how many reads come before, its op, and what that takes."""

    number: int
    reads: int
    op: Callable[..., Any]
    operands: Sequence[int]
    given: Sequence[Any]
    is_ragged: bool


class EmptyOp:
    """An op that takes any operands, and returns a row of ``size`` numbers for each node.

    They depend on all floating operands, and on ``weight`` if there is one, so that gradients reach these.
    If it ``tells``, there is a second result, a number for each node.
    """

    def __init__(self, name: str, size: int, backend: Any, weight: Any, *, tells: bool) -> None:
        self.tells = tells
        self.__name__ = self.__qualname__ = name
        self.size = size
        self.backend = backend
        self.weight = weight

    def __call__(self, *operands: Any) -> Any:
        backend = self.backend
        total: Any = None
        rows = 1
        for x in operands:
            if hasattr(x, "segment_ids"):
                taken = segment_sum(x.values, x)
            elif backend.owns(x) and len(x.shape) and is_floating(x):
                taken = x
            else:
                rows = x.shape[0] if backend.owns(x) and len(x.shape) else rows
                continue
            rows = taken.shape[0]
            first = taken.reshape(rows, -1)[:, :1]
            total = first if total is None else total + first
        zeros = backend.constant(np.zeros((rows, self.size), np.float32), None)
        if self.weight is not None:
            zeros = zeros + self.weight.reshape(-1)[:1]
        found = zeros if total is None else total + zeros
        return (found, found[:, 0]) if self.tells else found


def label(kind: tuple[CodeType, int]) -> str:
    """Return the name of the op for pieces of a kind: function, line and instruction where they begin."""
    code, place = kind
    return f"{code.co_name}:{line_of(code, place)}:{place}"


async def awaited(fold: Any, nodes: Sequence[Any]) -> Any:
    """Await the values of nodes as a person writes it: one by `Fold.value`, several by `Fold.values`."""
    return await (fold.value(nodes[0]) if len(nodes) == 1 else fold.values([*nodes]))


def plain_name(op: Any) -> str:
    """Return the name of a recorded call's op without what is added to it, as ``" (row by row)"``."""
    return str(getattr(op, "__name__", "")).partition(" (")[0]


def value_of(backend: Any, x: Any) -> Any:
    """Return a key that equal arrays or numbers have in common."""
    if not backend.owns(x):
        return type(x), x if isinstance(x, (int, float)) else id(x)
    host = backend.to_numpy(x)
    return host.shape, host.dtype.str, host.tobytes()


def is_floating(x: Any) -> bool:
    """Return whether an array holds floating numbers."""
    return "float" in str(x.dtype)
