"""Plans over columns of integers: from calls to launches and the wiring between them, in one call.

`plan` schedules calls and wires their launches. It returns finished objects, an operand, a reading and the
wiring of a launch. The caller passes the functions that make these objects, and needs no second pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from multifold._compiled.arrays import CALL_MASK, Integers, starts
from multifold._compiled.arrays import ranges as all_of
from multifold._compiled.reference import calls as graphs
from multifold._compiled.reference import rows as ordered

Makers = tuple[Callable[[Any], Any], Callable[[Any], Any], Callable[[Any], Any]]
"""What make an operand, a reading and the wiring of a launch out of tuples (`multifold._plan.wiring`)."""

Wired = tuple[
    list[Any],
    list[Any],
    dict[int, list[Any]],
    list[tuple[int, int]],
    dict[int, list[int]],
    list[Integers],
]
"""What `wire` returns."""

Planned = tuple[Integers, Integers, int, float, Wired]
"""What `plan` returns: the calls by launch, where each launch begins, the fewest launches that there could
be, the time (`perf_counter`) at which scheduling ended, and the wiring."""


def plan(
    pending: Integers | None,
    refs: Integers,
    ref_starts: Integers,
    members: Integers,
    member_starts: Integers,
    ragged_starts: Integers,
    asked: Integers,
    groups: Integers,
    signature: Integers,
    *wiring: Any,
) -> Planned | tuple[Integers, ...]:
    """Schedule calls and wire their launches; the type of a call is its signature.

    Parameters
    ----------
    pending : int64 array or None
        The calls to be run; None for those that ``asked`` needs.
    refs, ref_starts, members, member_starts, ragged_starts, asked, groups, signature, *wiring
        What `wire` takes after its launches.

    Returns
    -------
    `Planned`. Where types meet in a circle, a policy has to choose the launches: then the pending calls,
    and what `schedule` returns of them.
    """
    reads = refs, ref_starts, members, member_starts, ragged_starts
    if pending is None:
        pending = graphs.ancestors(asked[asked >= 0] & CALL_MASK, *reads)
    found = graphs.schedule(signature, pending, *reads)
    if len(found) != 3:
        return pending, *found
    scheduled = perf_counter()
    calls, bounds, least = found
    return calls, bounds, least, scheduled, wire(calls, bounds, *reads, asked, groups, signature, *wiring)


def wire(
    calls: Integers,
    bounds: Integers,
    refs: Integers,
    ref_starts: Integers,
    members: Integers,
    member_starts: Integers,
    ragged_starts: Integers,
    asked: Integers,
    groups: Integers,
    signature: Integers,
    layouts: Integers,
    layout_starts: Integers,
    batched: Integers,
    others: Integers,
    launch: Integers,
    row: Integers,
    rows: list[int],
    parts: int,
    keeps: bool,
    makers: Makers,
    slots_of: Callable[[int, Integers, list[Any], Integers], tuple[Sequence[Any], Sequence[int]]],
) -> Wired:
    """Order the rows of each launch, and find how results become operands: by which splits and gathers.

    Parameters
    ----------
    calls, bounds : int64 arrays
        Launch ``i`` holds ``calls[bounds[i] : bounds[i + 1]]``.
    refs, ref_starts, members, member_starts, ragged_starts : int64 arrays
        The operands of all calls.
    asked, groups : int64 arrays
        What the outputs read, one group after the other, and how many rows each group has.
    signature : int64 array
        The signature's number of each call.
    layouts, layout_starts, batched, others : int64 arrays
        A launch of signature ``i`` has the operands ``layouts[layout_starts[i] : layout_starts[i + 1]]``.
        Each is a position among the references of a call, or -1 - the position among its ragged operands.
        The launch has a row for each call if ``batched[i]`` is not 0, else one row. If ``others[i]`` is not
        0, the op receives more than these operands.
    launch, row : int64 arrays
        The launch and the row of each call; filled in here.
    rows : list of int
        How many rows each launch has that ran before; `wire` appends how many each new launch has.
    parts : int
        How many parts a result may have.
    keeps : bool
        Whether all results stay, so that no launch is the last one that reads a result.
    makers : Makers
        What is called for each operand, reading and launch.
    slots_of : callable
        Returns all that the op of a launch with ``others`` receives, from the number of its signature, its
        calls in the order of their rows, its operands and ``launch``; and the launches whose results it
        reads whole.

    Returns
    -------
    launches : list
        The wiring of each launch.
    outputs : list
        The operand that each group of the outputs is.
    given : dict of int to list
        How the results of launches that ran before are read.
    sources : list of (int, int)
        What each section is read from, (launch, part); launch -1 stands for loose values.
    loose : dict of int to list of int
        Sections that are made of loose values, and which values these are.
    indices : list of int64 array
        The index arrays, which compiled code lays out in one piece of memory.
    """
    before = len(rows)
    numbers = signature[calls[bounds[:-1]]]
    width = layout_starts[numbers + 1] - layout_starts[numbers]
    layout = layouts[all_of(layout_starts[numbers], width)]
    calls, reads, sizes, by_source = ordered.order(
        calls, bounds, layout, starts(width), batched[numbers], refs, ref_starts, members, member_starts,
        ragged_starts, asked, groups, launch, row, before, parts,
    )  # fmt: skip
    heights = np.append(rows, np.where(batched[numbers] > 0, np.diff(bounds), 1)).astype(np.int64)
    rows += heights[before:].tolist()
    columns = ordered.group(reads, sizes, by_source, launch, row, heights, parts)
    _copy(columns, heights, batched[numbers] > 0, parts, len(layout))
    indices: list[Integers] = []
    operands = _operands(columns, sizes, indices, makers[0])
    sources, readings, loose = _readings(columns, heights, parts, indices, makers[1])
    # Outputs are read by a launch after the last one.
    reader = np.append(np.repeat(np.arange(len(numbers)), width), np.full(len(groups), len(numbers)))
    read = columns[0] // max(parts, 1)
    owner = columns[1]
    last = np.full(len(rows), -1)
    is_row = read < len(rows)
    np.maximum.at(last, read[is_row], reader[owner[is_row]])
    wired = []
    edges = starts(width).tolist()
    for index, number in enumerate(numbers.tolist()):
        mine = calls[bounds[index] : bounds[index + 1]]
        own = operands[edges[index] : edges[index + 1]]
        slots, whole = slots_of(number, mine, own, launch) if others[number] else (own, ())
        if any(not 0 <= one < before + index for one in whole):
            raise IndexError("A column of calls refers to what is not there.")
        last[list(whole)] = np.maximum(last[list(whole)], index)
        wired.append((number, mine, slots, own))
    ended: dict[int, list[int]] = {}
    for number, index in enumerate([] if keeps else last.tolist()):
        ended.setdefault(index, []).append(number)
    launches = [
        makers[2]((before + i, *known, readings.pop(before + i, ()), ended.get(i, ())))
        for i, known in enumerate(wired)
    ]
    return launches, operands[len(layout) :], readings, sources, loose, indices


def _copy(
    columns: Sequence[Integers], heights: Integers, has_rows: np.ndarray, parts: int, operands: int
) -> None:
    """Turn the reading of a whole part into a gather, a copy, where two readers must not share one array.

    Where one row stands for several calls, as the zeros do that a recurrent net begins with, each reader
    but the first gets a copy of its own: an op may write to its operand. So does each output but the first,
    since the caller may write to it.
    """
    solo = heights == 1
    solo[len(heights) - len(has_rows) :] &= ~has_rows  # calls of ops without batched operands share a row
    result, owner, _, _, _, how, *_ = columns
    met: set[int] = set()
    for section in np.flatnonzero(how == ordered.WHOLE).tolist():
        number = int(result[section])
        if not solo[number // parts] and owner[section] < operands:
            continue
        if number in met:
            how[section] = ordered.GATHERED
        met.add(number)


def _operands(
    columns: Sequence[Integers], sizes: Integers, indices: list[Integers], make: Callable[[Any], Any]
) -> list[Any]:
    """Return the operands, and append what permutes some of them."""
    _, owner, *_, by_operand, _, position, moved = columns
    sections: list[list[int]] = [[] for _ in sizes]
    for section in by_operand.tolist():
        sections[owner[section]].append(section)
    begin = starts(sizes)
    found = []
    for i, (rows, own) in enumerate(zip(sizes.tolist(), sections, strict=True)):
        permute = len(indices) if moved[i] else None
        if moved[i]:
            indices.append(position[begin[i] : begin[i + 1]] - begin[i])
        found.append(make((rows, tuple(own), permute)))
    return found


def _readings(
    columns: Sequence[Integers],
    heights: Integers,
    parts: int,
    indices: list[Integers],
    make: Callable[[Any], Any],
) -> tuple[list[tuple[int, int]], dict[int, list[Any]], dict[int, list[int]]]:
    """Return what sections are read from, how results are read, and loose values; append gathers' rows."""
    _, _, begin, size, *_, rows, _, _ = columns
    sources, results = ordered.read_plan(columns, heights, parts)
    readings: dict[int, list[Any]] = {}
    loose: dict[int, list[int]] = {}
    for (number, part), reading, gathered in results:
        if number < 0:  # the rows of a section of loose values are their positions among them
            loose.update((s, rows[begin[s] : begin[s] + size[s]].tolist()) for s in reading[-1])
            continue
        gather = len(indices) if len(gathered) else None
        if len(gathered):
            indices.append(gathered)
        readings.setdefault(number, []).append(make((part, *reading, gather)))
    return sources, readings, loose
