"""The ways by turns, on trees that are new in each round, and what each reaches of its floor."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec

from multifold._compare.results import Row
from multifold._compare.timing import largest_difference
from multifold_bench.streaming.on_ray import RayData
from multifold_bench.streaming.trees import MakeModel, draw_lines
from multifold_bench.streaming.ways import Streams, Timed

ONE = "one process"

Way = Callable[[MakeModel, Sequence[str], int], Timed]
"""``way(make, lines, warm)`` runs lines, of which the first ``warm`` are not timed."""


def ways(workers: int) -> dict[str, Way]:
    """Return the ways with so many workers; those of Ray where it is installed."""
    streams: dict[str, Way] = {
        ONE: Streams().run,
        "processes apart": Streams(processes=workers).run,
        "stream": Streams(workers=workers).run,
        "stream, parsed first": Streams(workers=workers, parsed=True).run,
    }
    on_ray: dict[str, Way] = {
        "ray, one stage": RayData(workers, stages=1).run,
        "ray, traces travel": RayData(workers, stages=2).run,
        "ray, nothing done": RayData(workers, stages=0).run,
    }
    return streams | on_ray if find_spec("ray") else streams


def measure_streams(
    chosen: Mapping[str, Way],
    make: MakeModel,
    count: int,
    rounds: int = 3,
    seed: int = 0,
    advance: Callable[[str], object] = lambda what: None,
) -> list[Row]:
    """Let ways run the same trees by turns, and compare all their rows with those of the first way.

    Returns
    -------
    list of dict
        For each way: ``rate``, its trees a second in each round; ``of_one``, the median over the rounds of
        its rate over that of the first way in the same round; ``difference``, the largest of a row; and
        ``peak_mb``.

    Raises
    ------
    MismatchError
        If a row differs.
    """
    found: dict[str, list[Timed]] = {name: [] for name in chosen}
    differences = dict.fromkeys(chosen, 0.0)
    for number in range(rounds):
        lines, expected = draw_lines(count, seed + number), None
        for name, way in chosen.items():
            advance(name)
            timed = way(make, lines, count // 10)
            found[name].append(timed._replace(rows=timed.rows[:0]))
            if name == "ray, nothing done":
                continue
            expected = expected or (name, {"logits": timed.rows})
            difference = largest_difference(name, {"logits": timed.rows}, *expected)
            differences[name] = max(differences[name], difference)
    first = [timed.rate for timed in next(iter(found.values()))]
    return [
        {
            "way": name,
            "backend": make.backend,
            "width": make.width,
            "trees": count,
            "rate": [timed.rate for timed in all_timed],
            "of_one": statistics.median(x.rate / one for x, one in zip(all_timed, first, strict=True)),
            "difference": differences[name],
            "peak_mb": max(timed.peak for timed in all_timed),
        }
        for name, all_timed in found.items()
    ]
