"""``multifold bench serve``: requests under load, alone, in windows, and joining those under way."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from multifold.cli.options import json_option, seed_option
from multifold.cli.output import load, show_table
from multifold_bench.results import Row

WORKLOADS = ("trees", "parser", "decoder")
JOINS = ("launches", "rounds")


@click.command()
@click.option(
    "--backend", "name", default="torch", show_default=True, metavar="NAME", help="The framework."
)
@click.option(
    "--workload", "workloads", multiple=True, type=click.Choice(WORKLOADS), help="May be repeated; all."
)
@click.option(
    "--data",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Trees of the Stanford Sentiment Treebank, as its dev.txt; some of such sizes are drawn without.",
)
@click.option(
    "--count", type=click.IntRange(8), default=400, show_default=True, help="Trees that are read."
)
@click.option(
    "--longest", type=click.IntRange(3), metavar="WORDS", help="Leave out longer sentences; none without."
)
@click.option("--seconds", type=click.FloatRange(0.1), default=3.0, show_default=True, help="Of each load.")
@click.option(
    "--deadline",
    type=click.FloatRange(0.001),
    default=0.1,
    show_default=True,
    help="Seconds a request has.",
)
@click.option(
    "--rate", type=click.FloatRange(1), default=200.0, show_default=True, help="The first one tried."
)
@click.option(
    "--calls", type=click.IntRange(1), default=8192, show_default=True, help="Of multifold.Server."
)
@click.option("--join", "joins", multiple=True, type=click.Choice(JOINS), help="May be repeated; both.")
@seed_option
@json_option
def serve(
    name: str,
    workloads: tuple[str, ...],
    data: Path | None,
    count: int,
    longest: int | None,
    seconds: float,
    deadline: float,
    rate: float,
    calls: int,
    joins: tuple[str, ...],
    seed: int,
    json_file: Path | None,
) -> None:
    """Serve Poisson arrivals from a process on a core of its own: latencies, and the highest rates.

    Contenders are the loop, one request at a time; the best of a sweep of windows of whole requests; and
    multifold.Server. All results are compared with the loop's.
    """
    from multifold_bench import results

    rows: list[Row] = []
    with last_core():
        from multifold_bench.serving.load import Load
        from multifold_bench.serving.search import measure_serving
        from multifold_bench.serving.workloads import make_workload

        backend = load(name)
        servers = {f"server, {join}": {"calls": calls, "join": join} for join in joins or JOINS}
        loads = Load(rate, seconds, seed, deadline)
        for workload in workloads or WORKLOADS:
            made = make_workload(workload, backend, data, count, longest)
            rows += measure_serving(made, servers, loads, tell=say)
    for row in rows:
        if row["part"] == "summary":
            show_summary(row)
    if json_file is not None:
        results.write(json_file, rows)


@contextmanager
def last_core() -> Iterator[None]:
    """Run on the last core, and so leave the first one to the process that sends requests."""
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set()
    if len(cores) < 2:
        yield
        return
    os.sched_setaffinity(0, {max(cores)})  # before a framework starts its threads, which inherit it
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def say(row: Row) -> None:
    """Show what a load has shown, on stderr."""
    if row["part"] != "summary":
        click.echo(
            f"{row['workload']:8} {row['contender']:20} {row['part']:8}{row['rate']:6.0f}/s  "
            f"p50 {row['p50_ms']:6.1f}  p99 {row['p99_ms']:6.1f} ms  goodput {row['goodput']:6.0f}/s  "
            f"{row['rows_a_launch']:5.1f} rows a launch",
            err=True,
        )


def show_summary(row: Row) -> None:
    """Show the highest rates of a workload, and the 99th percentiles at 70 % of that of the windows."""
    calmest = row["p99_ms"][row["calmest"]]
    highest = row["highest"]
    table = [
        [
            name,
            f"{highest[name]:.0f}" if name in highest else "less",
            f"{highest[name] / row['rate']:.2f}" if name in highest and row["rate"] else "",
            f"{row['p99_ms'][name]:.1f}" if name in row["p99_ms"] else "",
            f"{row['p99_ms'][name] / calmest:.2f}" if name in row["p99_ms"] else "",
        ]
        for name in dict.fromkeys([*row["p99_ms"], *highest])
    ]
    columns = ["<contender", "requests\na second", "times\nwindows'", "p99 ms\nat 70 %", "times\nwindows'"]
    said = f"{row['workload']}, {row['backend']}: the highest rate at which 99 of 100 are answered in "
    said += f"{1e3 * row['deadline']:g} ms;\nhow long these take (p99) at 70 % of the rate of windows"
    show_table(columns, table, said)
