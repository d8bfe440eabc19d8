"""In which order the rows of each launch lie, and what each launch reads in that order.

The rows of a launch are ordered by (first launch that reads them, operand, row in it), so that rows which
one operand reads lie side by side. The launches are therefore ordered from the last one to the first.

That can leave operands of the launch itself to be permuted. Where these are more than the parts of its
result that are read, its rows are ordered by the launches that they read from instead: then its operands
are plain concatenations, and each part of its result is gathered once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise

import numpy as np

from multifold import _compiled
from multifold._compiled.arrays import Integers
from multifold._record.signature import Signature
from multifold._schedule.columns import Columns
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
        All references that launches read, by (launch, operand, row), then the ones that outputs read.
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
    calls, refs, sizes, by_source = _compiled.order(
        schedule.calls,
        schedule.bounds,
        np.array(list(chain.from_iterable(layouts)), np.int64),
        np.array([0, *accumulate(map(len, layouts))], np.int64),
        np.array([signature.batched for signature in signatures], np.int64),
        *columns.reads,
        outputs[0] if len(outputs) == 1 else np.concatenate([np.zeros(0, np.int64), *outputs]),
        np.array(list(map(len, outputs)), np.int64),
        place.launch,
        place.row,
        len(place.rows),
        len(columns.parts),
    )
    launches = list(zip(signatures, pairwise(schedule.bounds.tolist()), strict=True))
    place.rows.extend([high - low if signature.batched else 1 for signature, (low, high) in launches])
    return Reads(signatures, [calls[low:high] for _, (low, high) in launches], refs, sizes, by_source)
