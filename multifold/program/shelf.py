"""The sizes that a fold has compiled: a new minibatch takes some of them if it can.

Sizes that are rounded up are still a dozen for each phase of a program. An epoch over the training trees of
the Stanford Sentiment Treebank needs 4 or 5 compilations with a shelf, for 134 minibatches.
"""

from __future__ import annotations

from multifold.program.layout import Form
from multifold.program.sizes import OVERHEAD, PhaseSize, Sizes, most_of
from multifold.program.tiles import Tiler

WASTE, SPARE = 2, 512
"""A program takes sizes that were compiled before if they cost at most `WASTE` times its own rows and
`SPARE` rows more: a compilation takes 2.2 s of processor time where a step takes 85 ms."""


class Shelf:
    """The sizes that programs of one fold have had, so that a new program takes some of them if it can.

    Attributes
    ----------
    known : dict of (Form, bool) to list of Sizes
        By the ragged form, and whether results are padded; the newest is last.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[Form, bool], list[Sizes]] = {}

    def choose(self, tiler: Tiler) -> Sizes:
        """Return sizes for a program: known ones if it fits into them without much waste."""
        known = self.known.setdefault((tiler.form, tiler.pad), [])
        last = known[-1] if known else None
        own = tiler.own(last)
        most = WASTE * cost(own) + SPARE
        for sizes in sorted(known, key=cost):
            if cost(sizes) > most:
                break
            if tiler.fits(sizes):
                return sizes
        # Grow rather than change: then the next minibatch, as large as either, fits as well.
        grown = larger(own, last, tiler.pad) if last is not None else None
        if grown is not None and cost(grown) <= most and tiler.fits(grown):
            own = grown
        known.append(own)
        return own


def cost(sizes: Sizes) -> int:
    """Return what a program costs, in rows."""
    return sum(s.launches * (s.tile + OVERHEAD * s.loop) for s in sizes.phases) + sum(sizes.given)


def larger(own: Sizes, last: Sizes, pad: bool) -> Sizes | None:
    """Return sizes that hold both, so that sizes only grow; None if tiles or results differ."""
    pairs = list(zip(own.phases, last.phases, strict=True))
    if (own.groups != last.groups and not pad) or any(a.loop and a.tile != b.tile for a, b in pairs):
        return None
    phases = []
    for a, b in pairs:
        kernels, edges = most_of(a.kernels, b.kernels), tuple(map(most_of, a.edges, b.edges))
        phases.append(PhaseSize(a.loop, max(a.tile, b.tile), max(a.launches, b.launches), kernels, edges))
    return Sizes(tuple(phases), most_of(own.given, last.given), most_of(own.groups, last.groups))
