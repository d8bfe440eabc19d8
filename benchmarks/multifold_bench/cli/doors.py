"""``multifold bench doors``: recording one program natively, and through `multifold.compat`."""

from __future__ import annotations

from pathlib import Path

import click

from multifold._compare.results import Row
from multifold.cli.options import json_option, rounds_option, seed_option
from multifold.cli.output import load, progress, show_table


@click.command()
@click.option(
    "--backend", "name", default="numpy", show_default=True, metavar="NAME", help="The framework."
)
@click.option("--door", "doors", multiple=True, metavar="NAME", help="May be repeated.")
@click.option("--batch", type=click.IntRange(1), default=64, show_default=True, help="Trees.")
@rounds_option(30)
@seed_option
@json_option
def doors(
    name: str, doors: tuple[str, ...], batch: int, rounds: int, seed: int, json_file: Path | None
) -> None:
    """Record random binary trees through the doors for other libraries: microseconds a call.

    Values through a door are compared with those of the native program before any time counts. TorchFold's
    own recording is measured where its package is installed, with the backend torch.
    """
    from multifold._compare.timing import UNTIMED
    from multifold_bench import results
    from multifold_bench.doors import DOORS, kinds_of, measure_doors

    load(name)
    chosen = doors or DOORS
    with progress("", len(chosen) * len(kinds_of(name)) * 2 * (rounds + UNTIMED)) as bar:
        rows = measure_doors(chosen, name, batch=batch, rounds=rounds, seed=seed, advance=bar.advance)
    table = [
        [
            row["door"],
            row["operands"],
            f"{row['native_us'][1]:.2f}",
            f"{row['door_us'][1]:.2f}",
            f"{row['to_native']:.2f}",
            predecessor(row),
        ]
        for row in rows
    ]
    columns = ["<us a call", "<operands", "native", "door", "/ native", "predecessor"]
    show_table(columns, table, f"{name}, {rows[0]['calls']:,} calls, medians of {rounds} rounds")
    if json_file is not None:
        results.write(json_file, rows)


def predecessor(row: Row) -> str:
    """Return what a call costs in the library that a door stands for, or why that is not known."""
    if row["predecessor_us"] is not None:
        return f"{row['predecessor_us'][1]:.2f}"
    return "can't record this" if row["predecessor_installed"] else "not installed"
