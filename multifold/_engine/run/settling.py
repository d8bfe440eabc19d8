"""Settling: all trials of an op at its first launch, so that no later launch has to wait for one.

The book of trials tries the launches that come, since most runs end soon. A server that warms up would
rather know all before requests come: a launch of one row is not tried, one of two rows tells little, and
the first square launch, of as many rows as an array has columns, may come hours later. So while a server
warms up, each launch is followed by the trials that its op has still to pass. They run on the rows of the
launch, repeated to as many as are needed:

=========  ============================================================
launch     rows of its trials, if the widths of its arrays are 2 and 64
=========  ============================================================
not square 16
square     64, as the smallest width that shows enough at once
=========  ============================================================

If all nodes of a ragged operand have equally many members, a trial gives every other node its members
twice, so that the numbers differ.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import prod
from time import perf_counter
from typing import Any

import numpy as np

from multifold._engine.compiled.arrays import Integers, ranges, starts
from multifold._engine.ops.trial import ENOUGH, Untried
from multifold._engine.ops.values import Values, leaves_of, opened
from multifold._engine.record.lines import warn_user
from multifold._engine.run.launch import UNEVEN, PreparedLaunch, RaggedCase
from multifold._engine.run.trial_book import TrialBook
from multifold.backend import Ragged
from multifold.errors import LaunchError

ENTRIES = 1 << 24
"""Trials of more entries are left to the launches that need them: 64 MB of float32, several times over."""

WIDEST = 4 * ENOUGH
"""Where a trial must not be square, some number of rows up to this one is no width of its arrays."""


class Settling:
    """Settles the trials of launches while it is ``on``.

    Parameters
    ----------
    most : int
        No launch has more rows, so square ones of wider rows are not tried.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.on = False
        # Names of ops, and classes of rows, of which a warning has told that they mix their rows.
        self.refused: set[tuple[str, Hashable]] = set()

    def resize(self, most: int) -> None:
        """Set how many rows a launch may have; any thread may do so."""
        self.most = most

    def switch(self, on: bool) -> None:
        """Set whether launches are followed by trials; any thread may do so."""
        self.on = on

    def settle(
        self, trials: TrialBook, launch: PreparedLaunch, result: Any, sizes: frozenset[int]
    ) -> float:
        """Try the op of a launch that has run until launches like it need no trial; return the seconds.

        Nothing is tried for a launch without batched operands. Of an op that mixes its rows a warning
        tells, since launches of other sizes may be right; the launches that mix are refused when they come.

        Parameters
        ----------
        trials : TrialBook
            What is known of the ops.
        launch : PreparedLaunch
        result : object
            What the op returned.
        sizes : frozenset of int
            The lengths of all axes but the first of operands and result: launches of so many rows are
            square.
        """
        name = launch.signature.name, launch.classes
        # A trial sees what its op has written to if it is made before the launch, so a launch of two rows
        # or more has to come first where nothing else tells.
        unseen = launch.rows == 1 and trials.compares
        if not launch.signature.batched or unseen or name in self.refused:
            return 0.0
        began = perf_counter()
        try:
            for square in (False, True):
                case = RaggedCase(square, UNEVEN) if launch.signature.ragged else launch.case(square)
                if not is_settled(trials, launch, case):
                    rows = self.rows_for(trials.values, launch, result, sizes, square)
                    try_often(trials, launch, square, case, rows)
        except LaunchError as error:
            self.refused.add(name)
            warn_user(f"Launches of other sizes than those of multifold.Server.warm would fail. {error}")
        return perf_counter() - began

    def rows_for(
        self, values: Values, launch: PreparedLaunch, result: Any, sizes: frozenset[int], square: bool
    ) -> int:
        """Return how many rows a trial is to have; 0 if no such launch comes, or if it would be too large.

        That is `ENOUGH` or the next larger number that is one of ``sizes`` if ``square`` or else is not;
        without one, the next smaller. ``result`` and ``launch`` say how large a row is.
        """
        entries = sum(prod(x.shape[1:]) for x in arrays_of(launch, result))
        most = min(self.most, ENTRIES // max(entries, 1))
        wanted = sizes if square else {*range(2, WIDEST)} - sizes
        pads = values.backend.padded_rows if values.backend.pads else int
        found = [rows for rows in wanted if 1 < rows <= most and pads(rows) == rows]
        return min(found, key=lambda rows: (rows < ENOUGH, abs(rows - ENOUGH)), default=0)


def is_settled(trials: TrialBook, launch: PreparedLaunch, case: Hashable) -> bool:
    """Return whether launches like this one, of this case, need no trial any more."""
    return (launch.signature, launch.classes, case) in trials.passed or trials.has_passed(launch, case)


def try_often(trials: TrialBook, launch: PreparedLaunch, square: bool, case: Hashable, rows: int) -> None:
    """Try the op of a launch on ``rows`` of its rows at a time, until launches of ``case`` are settled.

    It ends before that if the op fails, or if a trial could not tell. Each trial has the next rows of the
    launch, from the first one again after the last; so few rows are tried several times, as they are in
    launches of equal rows. Nothing is done for 0 rows. Raise `LaunchError` if the op mixes its rows.
    """
    for first in range(0, rows * ENOUGH, max(rows, 1)):
        chosen = np.arange(first, first + rows) % launch.rows
        repeated = with_rows(trials.values, launch, chosen)
        if repeated.case(square) != case:
            repeated = with_rows(trials.values, launch, chosen, twice=np.arange(rows) % 2 == 1)
        own_case = repeated.case(square)
        trial, _ = trials.trial_of(repeated, own_case, late=True)
        if trial is None:
            return
        try:
            result = trial.launch()
        except Untried:  # too little memory
            return
        if isinstance(result, Exception):  # it may take no such rows, which is for a real launch to say
            return
        trials.judge(repeated, trial, result, own_case)
        # From one state an op draws the same numbers for the same rows again, which shows nothing new.
        stuck = own_case != case or (trial.draws and launch.rows <= rows)
        if is_settled(trials, launch, case) or not trial.telling or stuck:
            return


def with_rows(
    values: Values, launch: PreparedLaunch, rows: Integers, twice: np.ndarray | None = None
) -> PreparedLaunch:
    """Return a launch of the rows ``rows``, numbers from 0, of another launch; repeats are allowed.

    Where ``twice``, bool ``(rows,)``, is True, a node of a ragged operand has its members twice.
    """
    times = np.ones(len(rows), int) if twice is None else 1 + twice
    lengths = {i: own[rows] * times for i, own in launch.lengths().items()}
    parts = np.repeat(rows, times)
    index = values.indices(rows.copy())
    leaves = list(launch.leaves)
    for i, slot in enumerate(launch.signature.slots):
        leaf = leaves[i]
        if type(leaf) is Ragged:
            own = launch.lengths()[i]
            members = values.indices(ranges(starts(own)[:-1][parts], own[parts]))
            segments = np.repeat(np.arange(len(rows)), lengths[i])
            like = values.backend.like
            leaves[i] = Ragged(
                values.gather(leaf.values, members),
                like(leaf.lengths, lengths[i]),
                like(leaf.segment_ids, segments),
            )
        elif slot.kind.batched:
            leaves[i] = values.gather(leaf, index)
    return launch._replace(leaves=leaves, rows=len(rows), lengths=lambda: lengths)


def arrays_of(launch: PreparedLaunch, result: Any) -> list[Any]:
    """Return the arrays of the batched operands of a launch, and those of its result."""
    slots = zip(launch.signature.slots, launch.leaves, strict=True)
    batched = [x for slot, x in slots if slot.kind.batched]
    parts = [part for leaf in batched for part in (leaf if type(leaf) is Ragged else (leaf,))]
    return [x for part in (*parts, result) for x in leaves_of(opened(part))]
