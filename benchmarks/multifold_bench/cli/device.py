"""``multifold bench device``: tests, copies and times on the device at hand, within a limit of seconds."""

from __future__ import annotations

import time
from pathlib import Path

import click

from multifold.cli.output import load
from multifold_bench.cli.step import names_of


@click.command()
@click.option(
    "--backend", "names", callback=names_of, default="torch,jax", show_default=True, metavar="NAMES",
    help="torch, jax; with commas between. They share the time.",
)  # fmt: skip
@click.option("--device", metavar="NAME", help="PyTorch's device, as cuda. JAX takes a GPU by itself.")
@click.option("--seconds", type=click.FloatRange(1), default=420.0, show_default=True, help="In all.")
@click.option(
    "--checkout",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Run the tests in this checkout first.",
)
@click.option("--quick", is_flag=True, help="One small cell only.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Append the rows to this file.")
@click.option("--report", type=click.Path(path_type=Path), help="Write them as a page of Markdown.")
def device(
    names: list[str],
    device: str | None,
    seconds: float,
    checkout: Path | None,
    quick: bool,
    json_file: Path | None,
    report: Path | None,
) -> None:
    """Make one pass over the device at hand: the tests on it, its copies and synchronisations, then times.

    Each row is kept as soon as it is measured, and nothing new begins when the seconds are over.
    """
    from multifold_bench import results
    from multifold_bench.device import CELLS, Pass, page

    rows = []
    start = time.monotonic()
    for number, name in enumerate(names, start=1):
        own = device if name == "torch" else None
        one = Pass(load(name), own, start + seconds * number / len(names))
        for row in one.rows(checkout, [(32, 16)] if quick else CELLS):
            rows.append(row)
            if json_file is not None:
                results.append(json_file, [row])
            click.echo(f"{one.left:5.0f} s left  {row['stage']} {row.get('contender', '')}", err=True)
    if report is not None:
        report.write_text(page(rows), encoding="utf-8")
    click.echo(page(rows))
