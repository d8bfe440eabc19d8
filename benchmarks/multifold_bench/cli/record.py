"""``multifold bench record``: what a call of `Fold.add` costs."""

from __future__ import annotations

from pathlib import Path

import click

from multifold.cli.options import json_option, rounds_option, seed_option
from multifold.cli.output import progress, show_table


@click.command()
@click.option("--batch", type=click.IntRange(1), default=128, show_default=True, help="Trees.")
@rounds_option(30)
@seed_option
@json_option
def record(batch: int, rounds: int, seed: int, json_file: Path | None) -> None:
    """Record random binary trees: microseconds for each call of Fold.add.

    The recursion alone is what the recording program does without its calls of add and split.
    """
    from multifold_bench import results
    from multifold_bench.record import measure_recording

    with progress("", rounds + 1) as bar:
        row = measure_recording(batch, rounds, seed, bar.advance)
    columns = ("<us a call", "lower quartile", "median", "upper quartile")
    names = {"record_us": "recording", "bare_us": "the recursion alone"}
    rows = [(name, *(f"{x:.2f}" for x in row[key])) for key, name in names.items()]
    caption = f"{batch} random binary trees, {row['calls']:,.0f} calls, {rounds} rounds, {row['version']}"
    show_table(columns, rows, caption)
    if json_file is not None:
        results.write(json_file, [row])
