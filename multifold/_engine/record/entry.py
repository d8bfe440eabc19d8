"""Entries: a part of a result that lies inside of each row, and costs no launch."""

from __future__ import annotations

from typing import NamedTuple


class RowEntry(NamedTuple):
    """A key of a part: one entry of each row, along the first axis of a row.

    Entry 2 of rows of shape ``(n, 5, 3)`` is ``rows[:, 2]``, of shape ``(n, 3)``.
    """

    number: int

    def __repr__(self) -> str:
        return f"entry {self.number}"
