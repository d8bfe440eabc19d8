"""``multifold bench small``: what a small minibatch costs beside its ops."""

from __future__ import annotations

from pathlib import Path

import click

from multifold.cli.options import json_option, rounds_option, seed_option
from multifold.cli.output import load, progress, show_table


@click.command()
@click.option(
    "--backend", "name", default="numpy", show_default=True, metavar="NAME", help="The framework."
)
@click.option("--workload", "workloads", multiple=True, metavar="NAME", help="May be repeated.")
@rounds_option(15)
@seed_option
@json_option
def small(name: str, workloads: tuple[str, ...], rounds: int, seed: int, json_file: Path | None) -> None:
    """Run minibatches of a few calls: microseconds in a new fold, in one that is reset, and from traces.

    The ops do next to nothing. The floors are all calls of the framework that a run makes, and the ops
    alone, on operands that were put together before.
    """
    from multifold._compare.timing import UNTIMED
    from multifold_bench import results
    from multifold_bench.small import NAMES, WORKLOADS, each_launch, measure_small

    load(name)
    chosen = workloads or tuple(WORKLOADS)
    with progress("", len(chosen) * len(NAMES) * (rounds + UNTIMED)) as bar:
        rows = measure_small(name, chosen, rounds=rounds, seed=seed, advance=bar.advance)
    table = [
        [row["workload"], row["calls"], row["launches"], *(f"{row[f'{way}_us'][1]:.0f}" for way in NAMES)]
        for row in rows
    ]
    by_name = {row["workload"]: row for row in rows}
    if {"two-launches", "one-tree"} <= by_name.keys():
        each = [f"{each_launch(by_name, way):.1f}" for way in NAMES[:-2]]
        table.append(["a launch more, beside calls", "", "", *each, "", ""])
    columns = ["<us a minibatch", "calls", "launches", *NAMES]
    show_table(columns, table, f"{name}, medians of {rounds} rounds")
    if json_file is not None:
        results.write(json_file, rows)
