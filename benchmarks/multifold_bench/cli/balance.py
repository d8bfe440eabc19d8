"""``multifold bench balance``: how even the steps of shards are, and what predicts their time."""

from __future__ import annotations

from pathlib import Path

import click

from multifold.cli.options import json_option, seed_option
from multifold.cli.output import load, progress, show_table
from multifold_bench.cli.options import workload_options

COUNT = click.IntRange(1)


@click.command()
@workload_options
@click.option("--backend", "backend_name", default="numpy", show_default=True, metavar="NAME")
@click.option("--examples", default=8000, show_default=True, type=COUNT, help="How many, at most.")
@click.option("--shards", default=4, show_default=True, type=COUNT, help="Among how many.")
@click.option("--calls", default=20_000, show_default=True, type=COUNT, help="The budget of a minibatch.")
@click.option("--width", default=128, show_default=True, type=COUNT, help="Of the timed model.")
@click.option("--minibatches", default=60, show_default=True, type=COUNT, help="How many are timed.")
@seed_option
@json_option
def balance(
    workload: str,
    data: Path | None,
    backend_name: str,
    examples: int,
    shards: int,
    calls: int,
    width: int,
    minibatches: int,
    seed: int,
    json_file: Path | None,
) -> None:
    """Share out examples by their calls, and at random; time minibatches of 4 to 128 of them.

    By how much has the slowest shard of a step more calls than the mean? And which part of how times of
    minibatches differ do the number of calls and the number of launches explain?
    """
    import numpy as np

    import multifold
    from multifold_bench import results
    from multifold_bench.balance import measure_balance, measure_predictors
    from multifold_bench.workloads import WORKLOADS

    backend, chosen = load(backend_name), WORKLOADS[workload]
    with progress("reading", 1) as bar:
        benchmark = chosen.benchmark(chosen.read(data, examples, bar.reach), width)
    drawn = benchmark.examples.draw(np.random.default_rng(seed), examples)
    traces = multifold.traces(benchmark.record, drawn)
    rows = measure_balance([len(trace) for trace in traces], calls, shards)
    with progress("", minibatches) as bar:
        times = measure_predictors(benchmark, traces, backend, minibatches, seed, bar.advance)
    table = [(x["name"], *(f"{x[key]:.3f}" for key in ("slowest", "worst")), x["steps"]) for x in rows]
    title = f"{workload}: {len(traces):,} examples, {shards} shards, {calls:,} calls a minibatch"
    show_table(["<minibatches", "slowest / mean", "worst", "steps"], table, title)
    parts = ", ".join(f"{name} {part:.3f}" for name, part in times["explained"].items())
    per_call, per_launch = times["microseconds"]
    click.echo(
        f"time of {minibatches} minibatches on {backend.name}, explained by {parts}; "
        f"a call takes {per_call:.2f} us, a launch {per_launch:.0f} us"
    )
    if json_file is not None:
        results.write(json_file, [*rows, {"name": "time", "backend": backend.name, **times}])
