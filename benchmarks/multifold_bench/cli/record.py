"""``multifold bench record``: what a call of `Fold.add` costs."""

from __future__ import annotations

from pathlib import Path

import click

from multifold.cli.options import json_option, rounds_option, seed_option
from multifold.cli.output import progress, show_table


@click.command()
@click.option("--batch", type=click.IntRange(1), default=128, show_default=True, help="Trees.")
@click.option(
    "--operands",
    metavar="KINDS",
    help="Calls by kind of operand: some of numbers,arrays,ragged,static,strings,keywords,cse.",
)
@click.option("--blocks", is_flag=True, help="Models as blocks, beside the same functions written by hand.")
@rounds_option(30)
@seed_option
@json_option
def record(
    batch: int, operands: str | None, blocks: bool, rounds: int, seed: int, json_file: Path | None
) -> None:
    """Record random binary trees: microseconds for each call of Fold.add.

    The recursion alone is what the recording program does without its calls of add and split.
    With --operands, calls of each kind of operand are recorded instead of trees, beside the same loop
    without a fold. With --blocks, models are recorded that are said as blocks and written by hand.
    """
    from multifold_bench import results
    from multifold_bench.record import measure_recording

    if blocks:
        record_blocks(batch, rounds, seed, json_file)
        return
    if operands is not None:
        record_operands(operands.split(","), rounds, seed, json_file)
        return
    with progress("", rounds + 1) as bar:
        row = measure_recording(batch, rounds, seed, bar.advance)
    columns = ("<us a call", "lower quartile", "median", "upper quartile")
    names = {"record_us": "recording", "bare_us": "the recursion alone"}
    rows = [(name, *(f"{x:.2f}" for x in row[key])) for key, name in names.items()]
    caption = f"{batch} random binary trees, {row['calls']:,.0f} calls, {rounds} rounds, {row['version']}"
    show_table(columns, rows, caption)
    if json_file is not None:
        results.write(json_file, [row])


def record_operands(kinds: list[str], rounds: int, seed: int, json_file: Path | None) -> None:
    """Show microseconds a call for each kind of operand, and those of the loop without a fold."""
    from multifold._compare.timing import UNTIMED
    from multifold_bench import results
    from multifold_bench.operands import WAYS, measure_operands

    with progress("", len(kinds) * len(WAYS) * (rounds + UNTIMED)) as bar:
        rows = measure_operands(kinds, rounds=rounds, seed=seed, advance=bar.advance)
    table = [[row["operands"], *(f"{row[f'{way}_us'][1]:.2f}" for way in WAYS)] for row in rows]
    caption = f"{rows[0]['calls']:,} calls a fold, medians of {rounds} rounds, {rows[0]['version']}"
    show_table(["<us a call", *WAYS], table, caption)
    if json_file is not None:
        results.write(json_file, rows)


def record_blocks(batch: int, rounds: int, seed: int, json_file: Path | None) -> None:
    """Show microseconds a call of models as blocks and by hand: recording, a whole step, and traces."""
    from multifold._compare.timing import UNTIMED
    from multifold_bench import results
    from multifold_bench.blocks import MODELS, WAYS, measure_blocks

    whats = ("record", "step", "traces")
    with progress("", len(MODELS) * len(whats) * len(WAYS) * (rounds + UNTIMED)) as bar:
        rows = measure_blocks(batch, rounds, seed, bar.advance)
    table = []
    for row in rows:
        for what in whats:
            hand, blocks = (row[f"{what}_us"][way][1] for way in WAYS)
            table.append(
                [f"{row['model']}, {what}", f"{hand:.2f}", f"{blocks:.2f}", f"{blocks / hand:.2f}"]
            )
    caption = f"{batch} examples of 20 leaves, medians of {rounds} rounds, on NumPy"
    show_table(["<us a call", *WAYS, "ratio"], table, caption)
    if json_file is not None:
        results.write(json_file, rows)
