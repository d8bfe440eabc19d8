"""Reads grouped into sections: what an operand reads of one block, in the order of the operand's rows.

An operand whose launch is ordered by what it reads has a section for each run of rows, so that its
sections lie one behind the other and need no permutation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from multifold._compiled.choice import kernels
from multifold._record.node import CALL_MASK, PART_BITS
from multifold._schedule.columns import Integers, starts
from multifold._wiring.order import Place, Reads

GATHERED, SLICE, WHOLE = range(3)
"""How a section is read: by a gather, as a range of rows that no other one overlaps, as the whole block."""


@dataclass(slots=True)
class Sections:
    """All sections of a wiring, ordered by (block, first read).

    A block is a part of a launch's result, numbered ``launch * parts + part``; the last one stands for the
    loose values, whose rows are their places among them.

    Attributes
    ----------
    block, owner : int64 arrays of shape ``(sections,)``
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
        The rows of all sections in their blocks.
    position : int64 array of shape ``(reads,)``
        Where each read is in the concatenation of all operands.
    moved : int64 array of shape ``(operands,)``
        1 for operands whose rows have to be permuted behind their concatenation.
    """

    block: Integers
    owner: Integers
    begin: Integers
    size: Integers
    first: Integers
    how: Integers
    by_operand: Integers
    rows: Integers
    position: Integers
    moved: Integers


def group(reads: Reads, place: Place, parts: int) -> Sections:
    """Group reads into sections.

    Parameters
    ----------
    reads : Reads
        What is read.
    place : Place
        The launch and row of each call.
    parts : int
        How many parts of results there are.
    """
    heights = np.array(place.rows, np.int64)
    if kernels is None:
        return group_in_numpy(reads, place, parts, heights)
    count = len(reads.refs)
    rows, position = np.empty((2, count), np.int64)
    moved = np.empty(len(reads.sizes), np.int64)
    columns = kernels.group(
        reads.refs,
        reads.sizes,
        reads.by_source,
        place.launch,
        place.row,
        heights,
        np.array([parts]),
        rows,
        position,
        moved,
    )
    block, owner, begin, size, first, how, by_operand = np.frombuffer(columns, np.int64).reshape(7, -1)
    return Sections(block, owner, begin, size, first, how, by_operand, rows, position, moved)


Numbers = tuple[int, ...]
ReadingColumns = tuple[Numbers, Numbers, tuple[int | None, ...], Numbers, Numbers]
"""How a block is read: the sections that are all of it; the sizes of its split, and the section that each
piece is (None for rows that are read otherwise); the sizes and the numbers of what is gathered."""


@dataclass(slots=True)
class ReadPlan:
    """What the executor needs to know of sections, as Python's integers.

    Attributes
    ----------
    sections : list of tuple of int
        The sections of each operand, in the order of concatenation.
    sources : list of (int, int)
        The block that each section is read from, (launch, part); launch -1 stands for loose values.
    blocks : list of (source, begin, end, ReadingColumns)
        How each block is read; its gathered rows are ``rows[begin:end]``.
    rows : int64 array
        The rows that are gathered.
    """

    sections: list[Numbers]
    sources: list[tuple[int, int]]
    blocks: list[tuple[tuple[int, int], int, int, ReadingColumns]]
    rows: Integers


def plan_reads(sections: Sections, heights: Sequence[int], parts: int, operands: int) -> ReadPlan:
    """Return the pieces that blocks of these heights are cut into, and how operands are made of them."""
    if kernels is None:
        return plan_reads_in_python(sections, heights, parts, operands)
    rows = np.empty(len(sections.rows), np.int64)
    columns = (getattr(sections, name) for name in Sections.__slots__[:8])
    shape = np.array([parts, operands])
    of_operand, sources, blocks = kernels.cut(*columns, np.array(heights, np.int64), shape, rows)
    return ReadPlan(of_operand, sources, blocks, rows)


def plan_reads_in_python(sections: Sections, heights: Sequence[int], parts: int, operands: int) -> ReadPlan:
    """Cut blocks in Python: the reference for the kernel."""
    owner, begin, size, first, how = (
        getattr(sections, name).tolist() for name in ("owner", "begin", "size", "first", "how")
    )
    of_operand: list[list[int]] = [[] for _ in range(operands)]
    for section in sections.by_operand.tolist():
        of_operand[owner[section]].append(section)
    found = ReadPlan(list(map(tuple, of_operand)), [], [], sections.rows)
    opens = np.flatnonzero(np.diff(sections.block, prepend=-1))
    gathered: list[Integers] = []
    at = 0
    blocks, bounds = sections.block[opens].tolist(), [*opens.tolist(), len(begin)]
    for block, (low, high) in zip(blocks, pairwise(bounds), strict=True):
        number, part = divmod(block, parts)
        source = (-1, 0) if number == len(heights) else (number, part)
        found.sources += [source] * (high - low)
        by_gather, slices, whole = (
            tuple(s for s in range(low, high) if how[s] == kind) for kind in (GATHERED, SLICE, WHOLE)
        )
        end = at + (sum(size[s] for s in by_gather) if source[0] >= 0 else 0)
        if end > at:
            gathered += [sections.rows[begin[s] : begin[s] + size[s]] for s in by_gather]
        pieces = split_of(sorted(slices, key=first.__getitem__), first, size, [*heights, 0][number])
        reading = whole, *pieces, tuple(size[s] for s in by_gather), by_gather
        found.blocks.append((source, at, end, reading))
        at = end
    found.rows = np.concatenate([np.zeros(0, np.int64), *gathered])
    return found


def split_of(
    sections: Sequence[int], first: Sequence[int], size: Sequence[int], rows: int
) -> tuple[Numbers, tuple[int | None, ...]]:
    """Make sections that are disjoint ranges of rows, in their order, the pieces of one split."""
    sizes: list[int] = []
    pieces: list[int | None] = []
    end = 0
    for section in sections:
        if first[section] > end:
            sizes.append(first[section] - end)
            pieces.append(None)
        sizes.append(size[section])
        pieces.append(section)
        end = first[section] + size[section]
    if sections and end < rows:
        sizes.append(rows - end)
        pieces.append(None)
    return tuple(sizes), tuple(pieces)


def group_in_numpy(reads: Reads, place: Place, parts: int, heights: Integers) -> Sections:
    """Group reads by NumPy: the reference for the kernel."""
    refs, count, launches = reads.refs, len(reads.refs), len(place.rows)
    operand = np.repeat(np.arange(len(reads.sizes)), reads.sizes)
    loose = refs < 0
    call = np.where(loose, 0, refs & CALL_MASK)
    block = np.where(loose, launches * parts, place.launch[call] * parts + (refs >> PART_BITS))
    row = np.where(loose, -1 - refs, place.row[call])
    # Radix sort serves integers of 16 bits; most minibatches have that few blocks.
    small = block.astype(np.uint16) if (launches + 1) * parts < 1 << 16 else block
    order = np.argsort(small, kind="stable")
    block, owner, row = block[order], operand[order], row[order]
    opens = np.ones(count, bool)
    opens[1:] = (block[1:] != block[:-1]) | (owner[1:] != owner[:-1])
    opens[1:] |= (reads.by_source[owner[1:]] > 0) & (order[1:] != order[:-1] + 1)
    begin = np.flatnonzero(opens)
    size = np.diff(np.append(begin, count))
    jumps = np.zeros(count, np.int64)
    jumps[1:] = row[1:] != row[:-1] + 1
    jumps[begin] = 0
    jumped = starts(jumps)
    solid = jumped[begin + size] == jumped[begin]
    # Sections of an operand are concatenated by their first reads: rows that come in runs stay put.
    by_operand = np.argsort(order[begin], kind="stable")
    offset = np.empty(len(begin), np.int64)
    offset[by_operand] = starts(size[by_operand])[:-1]
    position = np.empty(count, np.int64)
    position[order] = np.repeat(offset - begin, size) + np.arange(count)
    moved = starts(position != np.arange(count))[starts(reads.sizes)]
    return Sections(
        block[begin],
        owner[begin],
        begin,
        size,
        row[begin],
        disjoint(block[begin], size, row[begin], solid, heights, parts),
        by_operand,
        row,
        position,
        (np.diff(moved) > 0).astype(np.int64),
    )


def disjoint(
    block: Integers, size: Integers, first: Integers, solid: np.ndarray, heights: Integers, parts: int
) -> Integers:
    """Return how each section is read; of ranges that overlap the first one is the slice."""
    how = np.full(len(block), GATHERED)
    candidates = np.flatnonzero(solid & (block < len(heights) * parts))
    columns = (column[candidates].tolist() for column in (block, size, first))
    taken, height, current = bytearray(), 0, -1
    for section, number, rows, begin in zip(candidates.tolist(), *columns, strict=True):
        if number != current:
            current, height = number, int(heights[number // parts])
            taken = bytearray(height)
        if rows == height:
            how[section] = WHOLE
        elif taken.find(1, begin, begin + rows) < 0:
            how[section] = SLICE
            taken[begin : begin + rows] = b"\1" * rows
    return how
