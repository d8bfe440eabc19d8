"""Wiring over columns of integers: the order of the rows of each launch, and sections of what is read.

The parts of all results are numbered ``launch * parts + part``. The number after the last one stands for
the loose values, whose rows are their positions among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from multifold._compiled.arrays import CALL_MASK, PART_BITS, Integers, ReadingColumns, ranges, starts

GATHERED, SLICE, WHOLE = range(3)
"""How a section is read: by a gather, as a range of rows that no other one overlaps, as the whole part."""

Results = tuple[list[tuple[int, int]], list[tuple[tuple[int, int], ReadingColumns, Integers]]]
"""What each section is read from, and how each part of a result is read."""


def order(
    calls: Integers,
    bounds: Integers,
    layout: Integers,
    layout_starts: Integers,
    batched: Integers,
    refs: Integers,
    ref_starts: Integers,
    members: Integers,
    member_starts: Integers,
    ragged_starts: Integers,
    asked: Integers,
    groups: Integers,
    launch: Integers,
    row: Integers,
    before: int,
    parts: int,
) -> tuple[Integers, Integers, Integers, Integers]:
    """Order the rows of each launch, from the last launch to the first.

    Parameters
    ----------
    calls, bounds : int64 arrays
        Launch ``i`` holds ``calls[bounds[i] : bounds[i + 1]]``.
    layout, layout_starts : int64 arrays
        Launch ``i`` has the operands ``layout[layout_starts[i] : layout_starts[i + 1]]``. Each is a
        position among the references of a call, or -1 - the position among its ragged operands.
    batched : int64 array of shape ``(launches,)``
        Whether a launch has rows.
    refs, ref_starts, members, member_starts, ragged_starts : int64 arrays
        The operands of all calls.
    asked, groups : int64 arrays
        What the outputs read, one group after the other, and how many rows each group has.
    launch, row : int64 arrays
        The launch and the row of each call; filled in here.
    before : int
        How many launches ran before.
    parts : int
        How many parts a result may have.

    Returns
    -------
    calls : int64 array
        The calls of each launch, in the order of its rows.
    reads : int64 array
        All references that are read, by (launch, operand, row), and then ``asked``.
    sizes, by_source : int64 arrays
        The rows of each operand and then of each group, and 1 for operands of launches that are ordered by
        what they read.
    """
    count = len(bounds) - 1
    launch[calls] = before + np.repeat(np.arange(count), np.diff(bounds))
    layouts = [layout[low:high].tolist() for low, high in pairwise(layout_starts.tolist())]
    seen = np.zeros((before + count, parts), bool)
    position = 1 << 60  # of the read that was noted last: counts down, from more reads than there can be
    columns = refs, ref_starts, members, member_starts, ragged_starts
    first_read = np.full(len(launch), position)
    calls = calls.copy()
    by_source = np.zeros(count, np.int64)
    reads: list[Integers] = []
    sizes: list[list[int]] = []

    def read(refs: Integers, launches: int) -> None:
        nonlocal position
        reads.append(refs)
        position -= len(refs)
        at = np.arange(position, position + len(refs))
        # loose values are no calls
        at = at[refs >= 0]
        refs = refs[refs >= 0]
        sources = refs & CALL_MASK
        number = launch[sources]
        if ((number < 0) | (number >= launches)).any():  # a launch reads earlier ones only
            raise IndexError("A column of calls refers to what is not there.")
        seen[number, refs >> PART_BITS] = True
        first_read[sources[::-1]] = at[::-1]  # in reverse order, so that the first read of a call wins

    read(asked, before + count)
    for index in range(count - 1, -1, -1):
        own = calls[bounds[index] : bounds[index + 1]]
        if batched[index]:
            own[:] = own[np.argsort(first_read[own], kind="stable")]
            read_parts = int(seen[before + index].sum())
            by = _source_order(refs, ref_starts, layouts[index], own, launch, read_parts)
            if by is not None:
                own[:] = own[by]
                by_source[index] = 1
            row[own] = np.arange(len(own))
        operands = [_operand_refs(*columns, operand, own) for operand in layouts[index]]
        sizes.append([len(operand) for operand in operands])
        read(np.concatenate([np.zeros(0, np.int64), *operands]), before + index)
    flat = np.concatenate([np.zeros(0, np.int64), *reversed(reads)])
    rows = np.array([n for one in reversed(sizes) for n in one], np.int64)
    by_operand = np.repeat(by_source, np.diff(layout_starts))
    return calls, flat, np.append(rows, groups), np.append(by_operand, np.zeros_like(groups))


def _source_order(
    refs: Integers,
    ref_starts: Integers,
    layout: Sequence[int],
    calls: Integers,
    launch: Integers,
    parts: int,
) -> Integers | None:
    """Return the order of the rows of a launch by the launches that they read from.

    None where the order of the readers is the better one: where no more operands would have to be
    permuted than the launch has parts that are read, or where the stretches would be too short.
    """
    if len(layout) <= parts or min(layout) < 0:
        return None
    at = ref_starts[calls] + np.array(layout)[:, None]
    read = launch[refs[at] & CALL_MASK]
    mixed = read[(read != read[:, :1]).any(axis=1)]
    if len(mixed) <= parts:
        return None
    distinct = mixed[np.append(True, (mixed[1:] != mixed[:-1]).any(axis=1))]
    low = distinct.min()
    span = int(np.ptp(distinct)) + 1
    if span ** len(distinct) > 1 << 62:
        return None
    key = np.zeros(len(calls), np.int64)
    for column in distinct:
        key = key * span + column - low
    order = np.argsort(key, kind="stable")
    stretches = 1 + np.count_nonzero(np.diff(key[order]))
    sources = np.count_nonzero(np.bincount(distinct.ravel() - low))
    return order if stretches <= 4 * sources else None


def _operand_refs(
    refs: Integers,
    ref_starts: Integers,
    members: Integers,
    member_starts: Integers,
    ragged_starts: Integers,
    position: int,
    calls: Integers,
) -> Integers:
    """Return the references of an operand of a launch, by row; ``position`` as in the layout."""
    if position >= 0:
        return refs[ref_starts[calls] + position]
    at = ragged_starts[calls] - 1 - position
    return members[ranges(member_starts[at], member_starts[at + 1] - member_starts[at])]


def group(
    reads: Integers,
    sizes: Integers,
    by_source: Integers,
    launch: Integers,
    row: Integers,
    heights: Integers,
    parts: int,
) -> tuple[Integers, ...]:
    """Group reads into sections: what one operand reads of one part of a result.

    Parameters
    ----------
    reads, sizes, by_source : int64 arrays
        What all operands read, one after the other; how many rows each has; and 1 for operands that have a
        section for each stretch of reads, since their launch is ordered by what it reads.
    launch, row : int64 arrays
        The launch and row of each call.
    heights : int64 array
        The rows of each launch.
    parts : int
        How many parts a result may have.

    Returns
    -------
    A column for each property of sections, which are ordered by (part of a result, first read):

    result, owner : int64 arrays of shape ``(sections,)``
        What a section is read from, and the operand that it belongs to.
    begin, size : int64 arrays of shape ``(sections,)``
        The rows of section ``i`` are ``rows[begin[i] : begin[i] + size[i]]``.
    first : int64 array of shape ``(sections,)``
        The first of those rows.
    how : int64 array of shape ``(sections,)``
        `GATHERED`, `SLICE` or `WHOLE`.
    by_operand : int64 array of shape ``(sections,)``
        The sections in the order of concatenation, one operand after the other.
    rows : int64 array of shape ``(reads,)``
        The rows of all sections, in the parts that they are read from.
    position : int64 array of shape ``(reads,)``
        Where each read is in the concatenation of all operands.
    moved : int64 array of shape ``(operands,)``
        1 for operands whose rows have to be permuted after their concatenation.

    Examples
    --------
    One launch has the calls 0, 1 and 2. An operand reads calls 2 and 0, the next one reads call 1.

    >>> ones = np.zeros(3, np.int64), np.arange(3), np.array([3])
    >>> result, owner, begin, size, first, how, *_ = group(np.array([2, 0, 1]), np.array([2, 1]),
    ...                                                    np.array([0, 0]), *ones, parts=1)
    >>> owner.tolist(), size.tolist(), first.tolist(), how.tolist() == [GATHERED, SLICE]
    ([0, 1], [2, 1], [2, 1], True)
    """
    count = len(reads)
    launches = len(heights)
    operand = np.repeat(np.arange(len(sizes)), sizes)
    loose = reads < 0
    call = np.where(loose, 0, reads & CALL_MASK)
    result = np.where(loose, launches * parts, launch[call] * parts + (reads >> PART_BITS))
    at = np.where(loose, -1 - reads, row[call])
    # Radix sort serves integers of 16 bits; most minibatches have that few parts of results.
    small = result.astype(np.uint16) if (launches + 1) * parts < 1 << 16 else result
    order = np.argsort(small, kind="stable")
    result = result[order]
    owner = operand[order]
    at = at[order]
    opens = np.ones(count, bool)
    opens[1:] = (result[1:] != result[:-1]) | (owner[1:] != owner[:-1])
    opens[1:] |= (by_source[owner[1:]] > 0) & (order[1:] != order[:-1] + 1)
    begin = np.flatnonzero(opens)
    size = np.diff(np.append(begin, count))
    # Sections of an operand are concatenated by their first reads: rows in stretches stay where they are.
    by_operand = np.argsort(order[begin], kind="stable")
    offset = np.empty(len(begin), np.int64)
    offset[by_operand] = starts(size[by_operand])[:-1]
    places = np.repeat(offset - begin, size) + np.arange(count)
    position = np.empty(count, np.int64)
    position[order] = places
    moved = (np.diff(starts(position != np.arange(count))[starts(sizes)]) > 0).astype(np.int64)
    # An operand that is permuted anyway takes rows as they lie in each result, mostly side by side.
    sections = np.repeat(np.arange(len(begin)), size)
    by_row = np.lexsort((np.where(moved[owner] > 0, at, 0), sections))
    order = order[by_row]
    at = at[by_row]
    position[order] = places
    jumps = np.zeros(count, np.int64)
    jumps[1:] = at[1:] != at[:-1] + 1
    jumps[begin] = 0
    jumped = starts(jumps)
    solid = jumped[begin + size] == jumped[begin]
    how = _disjoint(result[begin], size, at[begin], solid, heights, parts)
    return result[begin], owner[begin], begin, size, at[begin], how, by_operand, at, position, moved


def _disjoint(
    result: Integers, size: Integers, first: Integers, solid: np.ndarray, heights: Integers, parts: int
) -> Integers:
    """Return how each section is read; of ranges that overlap the first one is the slice."""
    how = np.full(len(result), GATHERED)
    candidates = np.flatnonzero(solid & (result < len(heights) * parts))
    columns = (column[candidates].tolist() for column in (result, size, first))
    taken = bytearray()
    height = 0
    current = -1
    for section, number, rows, begin in zip(candidates.tolist(), *columns, strict=True):
        if number != current:
            current = number
            height = int(heights[number // parts])
            taken = bytearray(height)
        if rows == height:
            how[section] = WHOLE
        elif taken.find(1, begin, begin + rows) < 0:
            how[section] = SLICE
            taken[begin : begin + rows] = b"\1" * rows
    return how


def read_plan(columns: Sequence[Integers], heights: Integers, parts: int) -> Results:
    """Return what each section is read from, and how each part of a result is read into sections.

    Parameters
    ----------
    columns : sequence of int64 arrays
        What `group` returns.
    heights : int64 array
        The rows of each launch.
    parts : int
        How many parts a result may have.
    """
    result, _, begin, size, first, how, _, rows, *_ = columns
    first_of = first.tolist()
    size_of = size.tolist()
    how_of = how.tolist()
    sources: list[tuple[int, int]] = []
    results: list[tuple[tuple[int, int], ReadingColumns, Integers]] = []
    opens = np.flatnonzero(np.diff(result, prepend=-1))
    for low, high in pairwise([*opens.tolist(), len(result)]):
        launch, part = divmod(int(result[low]), parts) if parts else (0, 0)
        is_loose = launch == len(heights)
        source, height = ((-1, 0), 0) if is_loose else ((launch, part), int(heights[launch]))
        sources += [source] * (high - low)
        by_gather, slices, whole = (
            tuple(s for s in range(low, high) if how_of[s] == wanted) for wanted in (GATHERED, SLICE, WHOLE)
        )
        gathered = rows[ranges(begin[list(by_gather)], size[list(by_gather)])] if by_gather else rows[:0]
        split = _split(sorted(slices, key=first_of.__getitem__), first_of, size_of, height)
        results.append((source, (whole, *split, tuple(size_of[s] for s in by_gather), by_gather), gathered))
    return sources, results


def _split(
    sections: Sequence[int], first: Sequence[int], size: Sequence[int], rows: int
) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
    """Make sections that are disjoint ranges of rows, in their order, the stretches of one split."""
    sizes: list[int] = []
    stretches: list[int | None] = []
    end = 0
    for section in sections:
        if first[section] > end:
            sizes.append(first[section] - end)
            stretches.append(None)
        sizes.append(size[section])
        stretches.append(section)
        end = first[section] + size[section]
    if sections and end < rows:
        sizes.append(rows - end)
        stretches.append(None)
    return tuple(sizes), tuple(stretches)
