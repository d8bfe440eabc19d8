"""The sizes that programs have had, so that a new program takes some of them if it can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from multifold.program.agree import ALONE, Processes, refuse_other_sizes
from multifold.program.layout import Form
from multifold.program.sizes import OVERHEAD, PhaseSize, Sizes
from multifold.program.tiles import Tiler

WASTE = 2
SPARE = 512
"""A program takes sizes that were compiled before if they cost at most `WASTE` times its own rows and
`SPARE` rows more: a compilation takes as long as dozens of steps."""


class Shelf:
    """The sizes that programs of one fold have had, so that a new program takes some of them if it can.

    Attributes
    ----------
    known : dict of (Form, bool) to list of Sizes
        By the ragged form, and whether results are padded; the newest is last.
    """

    def __init__(self) -> None:
        self.known: dict[tuple[Form, bool], list[Sizes]] = {}

    def choose(self, *tilers: Tiler, processes: Processes = ALONE) -> Sizes:
        """Choose sizes for programs of one form, and keep new ones in ``known``.

        The cheapest known sizes are taken that all programs, here and in other processes, fit into, and
        that cost at most `WASTE` times their own and `SPARE` rows more. New ones are grown to hold the last
        known ones, too (`larger`), where that costs no more either. Raises `RecordError` if the programs
        have no common sizes.
        """
        form = tilers[0].form
        pad = tilers[0].pad
        known = self.known.setdefault((form, pad), [])
        last = known[-1] if known else None

        def asked(sizes_of: Callable[[Tiler], Sizes]) -> list[Sizes]:
            return [one for some in processes.all(lambda: list(map(sizes_of, tilers))) for one in some]

        # Both functions ask all processes. Each process has the same `known`, so each asks the same in the
        # same order.
        def fit(sizes: Sizes) -> bool:
            return all(processes.all(lambda: all(tiler.fits(sizes) for tiler in tilers)))

        several = asked(lambda tiler: tiler.own(last))
        own = largest(several)
        most = WASTE * cost(own) + SPARE
        for sizes in sorted(known, key=cost):
            # All sizes that follow cost more.
            if cost(sizes) > most:
                break
            if fit(sizes):
                return sizes
        if len(several) > 1:
            # Once for tiles of one width, which some programs did not choose, and once for as many members.
            for _ in range(2):
                own = largest(asked(partial(Tiler.within, sizes=own)))
            if not fit(own):
                refuse_other_sizes()
        # Grow rather than change: then the next minibatch, as large as either, fits as well.
        grown = larger(own, last, pad) if last is not None else None
        if grown is not None and cost(grown) <= most and fit(grown):
            own = grown
        known.append(own)
        return own


def cost(sizes: Sizes) -> int:
    """Return the cost of a program of these sizes, in rows: the number of rows that would take as long."""
    return sum(map(phase_cost, sizes.phases)) + sum(sizes.given)


def phase_cost(size: PhaseSize) -> int:
    """Return the cost of a phase in rows: all rows of its tiles, and `OVERHEAD` for each tile of a loop."""
    return size.launches * (size.tile + OVERHEAD * size.loop)


def larger(own: Sizes, last: Sizes, pad: bool) -> Sizes | None:
    """Return sizes of which each is the larger one of ``own`` and ``last``, so that sizes only grow.

    None if their loops have tiles of other widths or other turns, or if results are not padded (``pad``)
    and have other rows.
    """
    pairs = zip(own.phases, last.phases, strict=True)
    # Results that are not padded have exactly the rows that were asked for, so nothing may grow there.
    if (own.groups != last.groups and not pad) or any(
        a.loop and (a.tile, a.turn) != (b.tile, b.turn) for a, b in pairs
    ):
        return None
    return largest([own, last])


def largest(several: Sequence[Sizes]) -> Sizes:
    """Return sizes of which each is the largest of ``several``.

    For a loop with tiles of several widths or turns, the most expensive one decides: its width and turn are
    taken, and the sizes of loops with others are left out.

    Examples
    --------
    >>> loops = [PhaseSize(True, 8, 4, (4,), ((),)), PhaseSize(True, 8, 6, (6,), ((),))]
    >>> wide = PhaseSize(True, 16, 9, (9,), ((),))
    >>> largest([Sizes((loop,), (5,), ()) for loop in loops]).phases[0].launches
    6
    >>> largest([Sizes((loop,), (5,), ()) for loop in (*loops, wide)]).phases[0] == wide
    True
    """
    phases = []
    for sizes in zip(*(one.phases for one in several), strict=True):
        first = max(sizes, key=lambda size: (phase_cost(size), size.tile))
        # Tiles of another width hold other numbers of calls, so their counts cannot be compared.
        alike = [x for x in sizes if not x.loop or (x.tile, x.turn) == (first.tile, first.turn)]
        kernels = tuple(map(max, zip(*(size.kernels for size in alike), strict=True)))
        edges = tuple(
            tuple(map(max, zip(*own, strict=True))) for own in zip(*(s.edges for s in alike), strict=True)
        )
        tile = max(size.tile for size in alike)
        launches = max(size.launches for size in alike)
        phases.append(PhaseSize(first.loop, tile, launches, kernels, edges, first.turn))
    given, groups = (
        tuple(map(max, zip(*rows, strict=True)))
        for rows in ([one.given for one in several], [one.groups for one in several])
    )
    return Sizes(tuple(phases), given, groups)
