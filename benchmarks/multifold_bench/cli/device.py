"""``multifold bench device``: one pass over the device at hand; or the page of the rows of one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from multifold.cli.output import load


@click.command()
@click.option("--device", "name", metavar="NAME", default="cpu", show_default=True, help="cuda, or cpu.")
@click.option("--seconds", type=click.FloatRange(1), default=480.0, show_default=True, help="In all.")
@click.option(
    "--checkout",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Run tests of this checkout on the device.",
)
@click.option(
    "--small", is_flag=True, help="In sizes that show that it runs; each block may take all the time."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Append the rows to this file.")
@click.option(
    "--page",
    nargs=2,
    type=click.Path(exists=True, path_type=Path),
    metavar="ROWS DOCS",
    help="Measure nothing; make gpu.md of rows in a folder of pages, and lines of the README beside it.",
)
def device(
    name: str,
    seconds: float,
    checkout: Path | None,
    small: bool,
    json_file: Path | None,
    page: tuple[Path, Path] | None,
) -> None:
    """Make one pass over the device at hand: tests, copies, and the times of a step in many ways.

    Each row is kept as soon as it is measured, and the pass ends when the seconds are over.
    """
    from multifold_bench import results
    from multifold_bench.device.page import summary, write_page

    if page is not None:
        rows, docs = page
        for path in write_page(results.read(rows), docs):
            click.echo(path)
        return
    from multifold_bench.device.blocks import BLOCKS, SMALL, PassSizes
    from multifold_bench.device.running import Lease, run_pass

    load("torch")
    lease = Lease(name, SMALL if small else PassSizes(), checkout)
    blocks = [replace(block, seconds=seconds) for block in BLOCKS] if small else BLOCKS
    for row in run_pass(blocks, lease, seconds):
        row = {"command": "bench device", **row}
        if json_file is not None:
            results.append(json_file, [row])
        click.echo(summary(row))
