"""Reads grouped into sections: what an operand reads of one block, in the order of the operand's rows.

An operand whose launch is ordered by what it reads has a section for each run of rows, so that its
sections lie one behind the other and need no permutation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from multifold.columns import Integers, starts
from multifold.compiled import kernels
from multifold.graph import CALL_MASK, PART_BITS
from multifold.reads import Place, Reads

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
        reads.runs,
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
    opens[1:] |= (reads.runs[owner[1:]] > 0) & (order[1:] != order[:-1] + 1)
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
