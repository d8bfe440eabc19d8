"""``multifold bench trace``: what traces cost, in time and in bytes."""

from __future__ import annotations

from pathlib import Path

import click

from multifold.cli.options import json_option, rounds_option, seed_option
from multifold.cli.output import progress, show_table


@click.command()
@click.option("--batch", type=click.IntRange(1), default=64, show_default=True, help="Trees.")
@rounds_option(30)
@seed_option
@json_option
def trace(batch: int, rounds: int, seed: int, json_file: Path | None) -> None:
    """Make traces of random binary trees: microseconds an example, and bytes in a pickle.

    Recording is that of the same trees on a fold. The ways make equal traces, or nothing is timed.
    """
    from multifold_bench import results
    from multifold_bench.trace import LEAVES, WAYS, measure_traces

    with progress("", len(LEAVES) * len(WAYS) * (rounds + 1)) as bar:
        rows = [measure_traces(batch, rounds, leaves, seed, bar.advance) for leaves in LEAVES]
    columns = ("<leaves", "record us", "traces us", "trace us", "x recording", "list bytes", "merged bytes")
    table = [
        (
            str(row["leaves"]),
            *(f"{row[f'{way}_us'][1]:.1f}" for way in WAYS),
            f"{row['traces_us'][1] / row['record_us'][1]:.2f}",
            f"{row['list_bytes']:,}",
            f"{row['merged_bytes']:,}",
        )
        for row in rows
    ]
    show_table(columns, table, f"medians an example, {batch} trees, {rounds} rounds, {rows[0]['version']}")
    if json_file is not None:
        results.write(json_file, rows)
