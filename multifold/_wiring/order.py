"""In which order the rows of each launch lie, and what each launch reads in that order.

The rows of a launch are ordered by (first reading launch, operand, row in it), so that what is read
together lies together. Where that would leave more operands to permute than the launch has parts that
are read, its rows are ordered by the launches that they read from instead: then its operands are plain
concatenations of runs, and its own block is gathered once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from multifold._compiled.choice import kernels
from multifold._record.node import CALL_MASK, PART_BITS
from multifold._record.signature import Signature
from multifold._schedule.columns import Columns, Integers, ranges, starts
from multifold._schedule.schedule import Schedule


@dataclass(slots=True)
class Place:
    """Where the calls of a run are: the launch and the row of each, and the rows of each launch."""

    launch: Integers
    row: Integers
    rows: list[int]

    @classmethod
    def nowhere(cls, calls: int) -> Place:
        """Return the places before anything was run."""
        size = max(calls, 1)  # loose values are looked up as if they were rows of call 0
        launch = np.empty(size, np.int64)
        launch.fill(-1)
        return cls(launch, np.zeros(size, np.int64), [])

    def copy(self) -> Place:
        """Return places that can be changed without changing these."""
        return Place(self.launch.copy(), self.row.copy(), self.rows.copy())


@dataclass(slots=True)
class Reads:
    """What the launches and the outputs read.

    Attributes
    ----------
    signatures : list of Signature
        The signature of each launch.
    calls : list of int64 array
        The calls of each launch, in the order of its rows.
    refs : int64 array
        All references that are read, by (launch, operand, row), and behind them those of the outputs.
    sizes : int64 array
        The number of rows of each operand and each output.
    by_source : int64 array
        1 for each operand of a launch whose rows are ordered by what they read, else 0.
    """

    signatures: list[Signature]
    calls: list[Integers]
    refs: Integers
    sizes: Integers
    by_source: Integers


def signatures_of(columns: Columns, schedule: Schedule) -> list[Signature]:
    """Return the signature of each launch."""
    numbers = columns.signature[schedule.calls[schedule.bounds[:-1]]].tolist()
    return [columns.signatures[number] for number in numbers]


def order_rows(columns: Columns, schedule: Schedule, place: Place, outputs: Sequence[Integers]) -> Reads:
    """Order the rows of each launch, from the last launch to the first; fill in ``place``."""
    signatures = signatures_of(columns, schedule)
    layouts = [signature.layout for signature in signatures]
    order = order_in_c if kernels is not None else order_in_numpy
    calls, refs, sizes, runs = order(columns, schedule, place, outputs, signatures, layouts)
    for signature, rows in zip(signatures, schedule.sizes.tolist(), strict=True):
        place.rows.append(rows if signature.batched else 1)
    bounds = schedule.bounds.tolist()
    return Reads(signatures, [calls[low:high] for low, high in pairwise(bounds)], refs, sizes, runs)


Ordered = tuple[Integers, Integers, Integers, Integers]
"""The calls in the order of their rows; what is read; of each operand its rows, and whether these are
ordered by what they read, as in `Reads`."""


def order_in_c(
    columns: Columns,
    schedule: Schedule,
    place: Place,
    outputs: Sequence[Integers],
    signatures: Sequence[Signature],
    layouts: Sequence[Sequence[int]],
) -> Ordered:
    """Order the rows by the compiled kernel."""
    calls = schedule.calls.copy()
    operands = np.array([p for layout in layouts for p in layout], np.int64)
    sizes, runs = np.zeros((2, len(operands) + len(outputs)), np.int64)
    sizes[len(operands) :] = list(map(len, outputs))
    reads = kernels.order(
        schedule.bounds,
        starts(np.array(list(map(len, layouts)), np.int64)),
        operands,
        np.array([signature.batched for signature in signatures], np.int64),
        columns.refs,
        columns.ref_starts,
        columns.members,
        columns.member_starts,
        columns.ragged_starts if len(columns.lengths) else columns.member_starts,
        np.array([len(place.rows), len(columns.parts)]),
        np.concatenate([np.zeros(0, np.int64), *outputs]),
        place.launch,
        place.row,
        calls,
        sizes,
        runs,
    )
    return calls, np.frombuffer(reads, np.int64), sizes, runs


def order_in_numpy(
    columns: Columns,
    schedule: Schedule,
    place: Place,
    outputs: Sequence[Integers],
    signatures: Sequence[Signature],
    layouts: Sequence[Sequence[int]],
) -> Ordered:
    """Order the rows by NumPy: the reference for the kernel."""
    first, parts = len(place.rows), len(columns.parts)
    place.launch[schedule.calls] = first + np.repeat(np.arange(len(schedule)), schedule.sizes)
    seen = np.zeros((first + len(schedule), parts), bool)
    position = len(columns.refs) + len(columns.members) + sum(map(len, outputs))
    reader = np.full(max(len(columns), 1), position)  # position of the first read of each call
    calls = schedule.calls.copy()
    by_source = np.zeros(len(schedule), np.int64)
    reads: list[Integers] = []
    sizes: list[list[int]] = []

    def read(refs: Integers) -> None:
        nonlocal position
        reads.append(refs)
        position -= len(refs)
        at = np.arange(position, position + len(refs))
        if len(refs) and refs.min() < 0:
            at, refs = at[refs >= 0], refs[refs >= 0]  # loose values are no calls
        sources = refs & CALL_MASK
        seen[place.launch[sources], refs >> PART_BITS] = True
        reader[sources[::-1]] = at[::-1]  # of several reads of one call the first is written last

    for group in reversed(outputs):
        read(group)
    for index in range(len(schedule) - 1, -1, -1):
        members = calls[schedule.bounds[index] : schedule.bounds[index + 1]]
        if signatures[index].batched:
            read_parts = int(seen[first + index].sum())
            order = source_order(columns, layouts[index], members, place, read_parts, reader[members])
            by_source[index] = order is not None
            members[:] = members[np.argsort(reader[members], kind="stable") if order is None else order]
            place.row[members] = np.arange(len(members))
        refs = [operand_refs(columns, operand, members) for operand in layouts[index]]
        sizes.append([len(operand) for operand in refs])
        read(np.concatenate([np.zeros(0, np.int64), *refs]))
    flat = np.concatenate([np.zeros(0, np.int64), *reversed(reads)])
    counts = [*(n for rows in reversed(sizes) for n in rows), *map(len, outputs)]
    runs = np.repeat(np.append(by_source, 0), [*map(len, layouts), len(outputs)])
    return calls, flat, np.array(counts, np.int64), runs


def source_order(
    columns: Columns,
    layout: Sequence[int],
    calls: Integers,
    place: Place,
    parts: int,
    reader: Integers,
) -> Integers | None:
    """Return the order of the rows of a launch by (launches that they read from, first reader).

    None where the order of the readers is the better one: where no more operands would have to be
    permuted than the launch has parts that are read, or where the runs would be too short.
    """
    if len(layout) <= parts or min(layout) < 0:
        return None
    at = columns.ref_starts[calls] + np.array(layout)[:, None]
    launch = place.launch[columns.refs[at] & CALL_MASK]
    mixed = launch[(launch != launch[:, :1]).any(axis=1)]
    if len(mixed) <= parts:
        return None
    distinct = mixed[np.append(True, (mixed[1:] != mixed[:-1]).any(axis=1))]
    low, span = distinct.min(), int(np.ptp(distinct)) + 1
    if span ** len(distinct) > 1 << 62:
        return None
    key = np.zeros(len(calls), np.int64)
    for row in distinct:
        key = key * span + row - low
    order = np.lexsort((reader, key))
    runs = 1 + np.count_nonzero(np.diff(key[order]))
    sources = np.count_nonzero(np.bincount(distinct.ravel() - low))
    return order if runs <= 4 * sources else None


def operand_refs(columns: Columns, position: int, calls: Integers) -> Integers:
    """Return the references of an operand of a launch, by row; ``position`` as in `Signature.layout`."""
    if position >= 0:
        return columns.refs[columns.ref_starts[calls] + position]
    at = columns.ragged_starts[calls] - 1 - position
    return columns.members[ranges(columns.member_starts[at], columns.lengths[at])]
