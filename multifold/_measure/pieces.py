"""Pieces: what a person would write as one op, where a program calls its framework many times in a row.

A recursive model may write all its work inline::

    def encode(tree):
        children = [encode(x) for x in tree.children]      # structure
        weights = torch.softmax(score(torch.stack(children)), 0)
        return torch.tanh(layer(tree.features) + (weights * torch.stack(children)).sum(0))

Recorded as it stands each node of a tree is seven calls. By `Fold.add` it is one, with the children as a
`ragged` operand, since nothing but structure lies between one node and the next. `WatchedFold` sees from
where in the program each call is recorded, and `pieces_of` puts those together that one op could compute:
calls of one frame of a function that calls itself, or of the program, unless between them

- what another such frame has computed from the one is used by the other;
- a loop, which does not always go round equally often, has come to its next turn, which uses the last one;
- a value is read, on which it may depend what comes next.

`multifold._measure.outline` records the same graph by `Fold.add`.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

from multifold._engine.compiled.arrays import CALL_MASK
from multifold._engine.record.node import Node
from multifold.fold import Fold

OUTSIDE = "multifold.lazy.waiting"
"""The module that runs the code of an example: frames outside of it are none of the program's."""

MOST_TURNS = 16
"""A loop that goes round more often is no part of an op, even if it does so equally often everywhere."""


class Site(NamedTuple):
    """Where in a function a call is recorded: its running frame, and how far its loops have come.

    Attributes
    ----------
    frame : int
        Which frame; each has a number of its own.
    code : CodeType
        The code of the function.
    place : int
        The instruction.
    jumps : int
        How many jumps of ``WatchedFold.jumps[frame]`` came before.
    """

    frame: int
    code: CodeType
    place: int
    jumps: int


class SeenCall(NamedTuple):
    """A call that was recorded, and from where.

    Attributes
    ----------
    sites : tuple of Site
        The frames of the program, the outermost first.
    operands : tuple of int
        The calls whose results it takes, by number.
    given : tuple of object
        Its other operands: rows, numbers, and arrays that all share.
    reads : int
        How many values its example had read before.
    op : callable
        What it calls.
    """

    sites: tuple[Site, ...]
    operands: tuple[int, ...]
    given: tuple[Any, ...]
    reads: int
    op: Any


class WatchedFold(Fold):
    """A fold that notes where in a program each of its calls is recorded, and which are read.

    Parameters
    ----------
    is_of_program : callable
        Takes the name of a module; returns whether its code is the program's.
    **options
        As of `Fold`.

    Attributes
    ----------
    seen : dict of int to SeenCall
        All calls, by number, in the order in which they were recorded.
    reads : dict of int to list of list of int
        For each example, by the number of its outermost frame: the calls of each of its reads, in order.
    jumps : dict of int to list of (code, int)
        For each frame, the instructions to which it has come again, by a loop.
    """

    def __init__(self, is_of_program: Callable[[str], bool], **options: Any) -> None:
        super().__init__(**options)
        self.is_of_program = is_of_program
        self.seen: dict[int, SeenCall] = {}
        self.reads: defaultdict[int, list[list[int]]] = defaultdict(list)
        self.jumps: defaultdict[int, list[tuple[CodeType, int]]] = defaultdict(list)
        self.frames: dict[FrameType, int] = {}  # keeps them, so that none is taken for another
        self.last: dict[int, tuple[int, int]] = {}  # of each frame: the instruction, and the frame inside
        self.own_code: dict[int, bool] = {}

    def add(self, op: Any, /, *operands: Any, **static: Any) -> Node:
        """Record a call, and note it."""
        node: Node = super().add(op, *operands, **static)
        sites = self.sites()
        if sites:
            nodes = [x for x in operands if isinstance(x, Node)]
            self.seen[node._ref & CALL_MASK] = SeenCall(
                sites,
                tuple(dict.fromkeys([x._ref & CALL_MASK for x in nodes])),
                tuple(x for x in operands if not isinstance(x, Node)),
                len(self.reads[sites[0].frame]),
                op,
            )
        return node

    def values(self, nodes: Any) -> Awaitable[Any]:
        """Return the values of nodes, and note that they are read."""
        self.note_read(nodes)
        return super().values(nodes)

    def note_read(self, nodes: Iterable[Node]) -> None:
        """Note that an example reads these nodes; it is that whose code has recorded them."""
        read = [x._ref & CALL_MASK for x in nodes]
        known = [x for x in read if x in self.seen]
        if known:
            self.reads[self.seen[known[0]].sites[0].frame].append(known)

    def _answer_at_once_by(self, compute: Callable[[Sequence[Node]], list[Any]]) -> None:
        def noted(nodes: Sequence[Node]) -> list[Any]:
            self.note_read(nodes)
            return compute(nodes)

        super()._answer_at_once_by(noted)

    def sites(self) -> tuple[Site, ...]:
        """Return where the program is in the stack of frames, the outermost first."""
        found = []
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_globals.get("__name__") != OUTSIDE:
            code = frame.f_code
            if self.own_code.get(id(code)) is None:
                self.own_code[id(code)] = self.is_of_program(frame.f_globals.get("__name__") or "")
            if self.own_code[id(code)]:
                found.append(frame)
            frame = frame.f_back
        inside = -1
        sites = []
        for frame in found:
            number = self.frames.setdefault(frame, len(self.frames))
            last, was_inside = self.last.get(number, (-1, -1))
            place = frame.f_lasti
            if place < last or (place == last and was_inside != inside) or (place == last and inside < 0):
                self.jumps[number].append((frame.f_code, place))
            self.last[number] = place, inside
            sites.append(Site(number, frame.f_code, place, len(self.jumps[number])))
            inside = number
        return tuple(reversed(sites))


class Piece(NamedTuple):
    """Calls of one example that one op could compute.

    Attributes
    ----------
    example : int
        The example, by its outermost frame.
    kind : (CodeType, int)
        Pieces of one kind are calls of one op: the function, and the instruction where they begin.
    reads : int
        How many values were read before, one after the other.
    members : list of int
        Its calls, by number, in order.
    operands : list of int
        The pieces whose results it takes, by number.
    given : list of object
        Rows, numbers and shared arrays that it takes.
    size : int
        How many numbers another piece takes of its result, at most.
    """

    example: int
    kind: tuple[CodeType, int]
    reads: int
    members: list[int]
    operands: list[int]
    given: list[Any]
    size: int


def pieces_of(
    fold: WatchedFold, recursive: Container[CodeType], size_of: Callable[[Any], int]
) -> tuple[list[Piece], dict[int, dict[int, list[int]]]]:
    """Return the pieces of all examples that ``fold`` has seen, and what each example reads, and when.

    A piece comes after those whose results it takes. Of reads there is for each example, by the number of
    its outermost frame: how many reads come before, one after the other -> the calls that are read then.
    ``recursive`` has the code of functions that call themselves, and of those that call such.
    ``size_of(op)`` returns how many numbers a row of its result has.
    """
    turns = turns_of(fold)
    depths = Depths(fold, recursive)
    stages: dict[int, tuple[int, tuple[int, int]]] = {}  # of each call: its frame, and its stage there
    origins: dict[int, dict[int, tuple[int, int]]] = {}  # and the stages of outer frames that it depends on
    groups: dict[tuple[int, tuple[int, int]], list[int]] = defaultdict(list)
    for number, call in fold.seen.items():
        frame = owner_of(call, recursive).frame
        inner = {site.frame for site in call.sites}
        depth = depths.of(number, call)
        stage = depth, 0
        depends: dict[int, tuple[int, int]] = {}
        for operand in call.operands:
            if operand not in stages:
                continue
            where, own = stages[operand]
            for outer, reached in (*origins[operand].items(), (where, own)):
                if outer in inner:
                    depends[outer] = max(depends.get(outer, reached), reached)
            if where == frame:
                later = own[0] == depth and has_turned(turns, fold.seen[operand], call)
                stage = max(stage, (own[0], own[1] + later))
            elif frame in origins[operand]:
                reached = origins[operand][frame]
                stage = max(stage, (reached[0], reached[1] + 1))
        depends[frame] = stage
        stages[number] = frame, stage
        origins[number] = {k: v for k, v in depends.items() if k != frame}
        groups[frame, stage].append(number)
    depths.end()
    return connected(fold, [*groups.values()], recursive, size_of, depths.known), depths.reads


class Depths:
    """Tells how many reads lie before each call, one after the other.

    A read comes before all that its frame does after it, and before what other frames compute with results
    of such calls. So two subtrees that read are read side by side, as by `Fold.gather`.

    Attributes
    ----------
    known : dict of int to int
        The depth of each call.
    reads : dict of int to dict of int to list of int
        For each example, by the number of its outermost frame: a depth -> the calls that are read there.
    """

    def __init__(self, fold: WatchedFold, recursive: Container[CodeType]) -> None:
        self.fold = fold
        self.recursive = recursive
        self.known: dict[int, int] = {}
        self.reads: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)
        self.of_frame: defaultdict[int, int] = defaultdict(int)
        self.done: Counter[int] = Counter()

    def of(self, number: int, call: SeenCall) -> int:
        """Return the depth of a call; calls come in the order of recording."""
        self.read(call.sites[0].frame, call.reads)
        operands = [self.known.get(x, 0) for x in call.operands]
        found = max([*operands, *[self.of_frame[site.frame] for site in call.sites]])
        self.known[number] = found
        return found

    def read(self, example: int, count: int | None) -> None:
        """Take into account the first ``count`` reads of an example, or all."""
        for calls in self.fold.reads.get(example, [])[self.done[example] : count]:
            self.done[example] += 1
            depth = max([self.known[x] for x in calls])
            frames = {owner_of(self.fold.seen[x], self.recursive).frame for x in calls}
            depth = max([depth, *[self.of_frame[frame] for frame in frames]])
            asked = self.reads[example].setdefault(depth, [])
            asked += calls
            for frame in frames:
                self.of_frame[frame] = depth + 1

    def end(self) -> None:
        """Take all reads into account."""
        for example in [*self.fold.reads]:
            self.read(example, None)


def owner_of(call: SeenCall, recursive: Container[CodeType]) -> Site:
    """Return the innermost frame of a call that is of a function which calls itself, or the outermost."""
    return next((site for site in reversed(call.sites) if site.code in recursive), call.sites[0])


def turns_of(fold: WatchedFold) -> dict[int, list[int]]:
    """Return for each frame how many turns of loops lie before each of its jumps.

    Loops that go round equally often in all frames of a function, a few times and with as many calls, are
    left out: one op can do them, as the layers of a model.
    """
    counts: defaultdict[tuple[CodeType, int], Counter[int]] = defaultdict(Counter)
    frames = {site.frame: site.code for call in fold.seen.values() for site in call.sites}
    for frame, jumps in fold.jumps.items():
        for jump in jumps:
            counts[jump][frame] += 1
    of_code = Counter(frames.values())
    inside = Counter(site.frame for call in fold.seen.values() for site in call.sites)
    varying = {
        jump
        for jump, counter in counts.items()
        if len({*counter.values()}) > 1
        or max(counter.values()) > MOST_TURNS
        or len({inside[frame] for frame in counter}) > 1  # its turns are of unequal work
        or len(counter) < of_code[jump[0]]
        or len(counter) == 1
    }
    turns = {}
    for frame in frames:
        turns[frame] = found = [0]
        for jump in fold.jumps.get(frame, ()):
            found.append(found[-1] + (jump in varying))
    return turns


def has_turned(turns: dict[int, list[int]], before: SeenCall, after: SeenCall) -> bool:
    """Return whether a loop in a frame that both calls are in has gone round between them."""
    sites = {site.frame: site for site in before.sites}
    return any(
        turns[site.frame][sites[site.frame].jumps] != turns[site.frame][site.jumps]
        for site in after.sites
        if site.frame in sites
    )


def connected(
    fold: WatchedFold,
    groups: Sequence[list[int]],
    recursive: Container[CodeType],
    size_of: Callable[[Any], int],
    depths: Mapping[int, int],
) -> list[Piece]:
    """Return the pieces of these groups of calls, with their operands; see `pieces_of`."""
    of_call = {number: i for i, group in enumerate(groups) for number in group}
    needs = []
    sizes: defaultdict[int, int] = defaultdict(int)  # of each group: the widest part that another one takes
    for i, group in enumerate(groups):
        outside = {x for number in group for x in fold.seen[number].operands if of_call.get(x, i) != i}
        taken: Counter[int] = Counter()
        for x in sorted(outside):
            taken[of_call[x]] += size_of(fold.seen[x].op)
        for other, size in taken.items():
            sizes[other] = max(sizes[other], size)
        needs.append([*taken])
    order = in_order(needs)
    places = {i: place for place, i in enumerate(order)}
    pieces = []
    for i in order:
        calls = [fold.seen[number] for number in groups[i]]
        owner = owner_of(calls[0], recursive)
        others = {id(x): x for call in calls for x in call.given}
        pieces.append(
            Piece(
                calls[0].sites[0].frame,
                (owner.code, owner.place),
                max([depths[number] for number in groups[i]]),
                groups[i],
                [places[x] for x in needs[i]],
                [*others.values()],
                sizes[i] or size_of(calls[-1].op),
            )
        )
    return pieces


def in_order(needs: Sequence[Sequence[int]]) -> list[int]:
    """Return the numbers of pieces, each after those that it needs; ``needs`` has these for each.

    >>> in_order([[2], [], [1]])
    [1, 2, 0]
    """
    order: dict[int, None] = {}
    for i in range(len(needs)):
        stack = [i]
        while stack:
            missing = [x for x in needs[stack[-1]] if x not in order and x not in stack]
            if missing:
                stack.append(missing[0])
            else:
                order.setdefault(stack.pop())
    return [*order]


def line_of(code: CodeType, place: int) -> int:
    """Return the number of the line of an instruction."""
    return next((line for begin, end, line in code.co_lines() if begin <= place < end and line), 0)


def name_of(code: CodeType) -> str:
    """Return the qualified name of a function, without where it was defined if that is another function."""
    return code.co_qualname.rpartition("<locals>.")[2]
