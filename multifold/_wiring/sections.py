"""Reads grouped into sections: the rows of one part of a result that one operand reads.

An operand whose launch is ordered by what it reads has a section for each stretch of rows, so that its
sections lie one after the other and need no permutation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from multifold import _compiled
from multifold._compiled.arrays import Integers, ReadingColumns
from multifold._wiring.order import Place, Reads


@dataclass(slots=True)
class Sections:
    """All sections of a wiring, ordered by (part of a result, first read).

    The parts of all results are numbered ``launch * parts + part``; the number after the last one stands
    for the loose values, whose rows are their positions among them.

    Attributes
    ----------
    result, owner : int64 arrays of shape ``(sections,)``
        What a section is read from, and the operand that it belongs to.
    begin, size : int64 arrays of shape ``(sections,)``
        The rows of section ``i`` are ``rows[begin[i] : begin[i] + size[i]]``.
    first : int64 array of shape ``(sections,)``
        The first of those rows.
    how : int64 array of shape ``(sections,)``
        `GATHERED`, `SLICE` or `WHOLE` of `multifold._compiled`.
    by_operand : int64 array of shape ``(sections,)``
        The sections in the order of concatenation, one operand after the other.
    rows : int64 array of shape ``(reads,)``
        The rows of all sections, in the parts that they are read from.
    position : int64 array of shape ``(reads,)``
        Where each read is in the concatenation of all operands.
    moved : int64 array of shape ``(operands,)``
        1 for operands whose rows have to be permuted after their concatenation.
    """

    result: Integers
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
    columns = reads.refs, reads.sizes, reads.by_source, place.launch, place.row
    return Sections(*_compiled.group(*columns, np.array(place.rows, np.int64), parts))


@dataclass(slots=True)
class ReadPlan:
    """What the executor needs to know of sections, as Python's integers.

    Attributes
    ----------
    sections : list of tuple of int
        The sections of each operand, in the order of concatenation.
    sources : list of (int, int)
        What each section is read from, (launch, part); launch -1 stands for loose values.
    results : list of (source, begin, end, ReadingColumns)
        How each part of a result is read; its gathered rows are ``rows[begin:end]``.
    rows : int64 array
        The rows that are gathered.
    """

    sections: list[tuple[int, ...]]
    sources: list[tuple[int, int]]
    results: list[tuple[tuple[int, int], int, int, ReadingColumns]]
    rows: Integers


def plan_reads(sections: Sections, heights: Sequence[int], parts: int, operands: int) -> ReadPlan:
    """Return how parts of results are read into sections, and how operands are made of sections."""
    found = _compiled.plan_reads(
        sections.result,
        sections.owner,
        sections.begin,
        sections.size,
        sections.first,
        sections.how,
        sections.by_operand,
        sections.rows,
        np.array(heights, np.int64),
        parts,
        operands,
    )
    return ReadPlan(*found)
