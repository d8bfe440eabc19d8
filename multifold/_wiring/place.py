"""Where the calls of a run are: each row of a result belongs to a call, or to several that share it.

An op without batched operands runs once, so all calls of its launch are in one row:

>>> place = Place.nowhere(calls=3)
>>> place.launch.tolist(), place.rows  # no call has run
([-1, -1, -1], [])
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from multifold._compiled.arrays import Integers


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

    @property
    def columns(self) -> tuple[Integers, Integers, list[int]]:
        """The three, as `multifold._compiled` takes them."""
        return self.launch, self.row, self.rows

    def copy(self) -> Place:
        """Return places that can be changed without changing these."""
        return Place(self.launch.copy(), self.row.copy(), self.rows.copy())
