"""``multifold bench gap``: how far the bound and schedules are from the fewest launches of small graphs."""

from __future__ import annotations

from pathlib import Path

import click

from multifold.cli.options import json_option, seed_option
from multifold.cli.output import progress, show_table


@click.command()
@click.option("--graphs", default=10_000, show_default=True, type=click.IntRange(1), help="How many.")
@seed_option
@json_option
def gap(graphs: int, seed: int, json_file: Path | None) -> None:
    """Compare the lower bound and policies with the fewest launches, found by looking at all schedules.

    The graphs are random, of 4 to 16 calls and 2 to 4 types.
    """
    from multifold_bench import results
    from multifold_bench.gap import measure_gap

    with progress("", graphs) as bar:
        rows = measure_gap(graphs, seed=seed, advance=bar.advance)
    most = max(gap for row in rows for gap in row["gaps"])
    table = [
        [row["name"], f"{row['exact']:.4f}", *(row["gaps"].get(gap, 0) for gap in range(most + 1))]
        for row in rows
    ]
    columns = ["<", "exact", *(f"{gap} off" for gap in range(most + 1))]
    first = rows[0]
    title = f"{graphs:,} graphs, {first['circles']:,} with circles, {first['launches']:,} launches at least"
    show_table(columns, table, title)
    if json_file is not None:
        results.write(json_file, rows)
