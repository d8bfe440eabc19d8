"""``multifold bench profile``: where the time of a step goes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from multifold.cli.compare import usable
from multifold.cli.options import gathered, json_option, rounds_option, seed_option
from multifold.cli.output import load, progress, show_table
from multifold.errors import BackendError
from multifold_bench.cli.options import READ, backends_option, train_option, workload_options


@dataclass(frozen=True)
class ProfileOptions:
    """What ``multifold bench profile`` is asked for."""

    names: tuple[str, ...]
    workload: str
    data: Path | None
    width: int
    batch: int
    train: bool
    rounds: int
    seed: int
    json_file: Path | None


@click.command()
@backends_option
@workload_options
@click.option("--width", type=click.IntRange(1), default=100, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=128, show_default=True)
@train_option
@rounds_option(20)
@seed_option
@json_option
@gathered(ProfileOptions)
def profile(options: ProfileOptions) -> None:
    """Split the time of a step by phase: record, plan, wiring, upload, gather, op, backward.

    Every round has a new minibatch. For traces, plan and wiring are what merging them takes.
    """
    from multifold_bench import results
    from multifold_bench.profile import PHASES, shares

    rows = measured(options)
    table = [
        [
            row["backend"],
            row["contender"],
            f"{row['total_ms']:,.1f}",
            *(f"{ms:,.1f}\n{share:.0%}" for _, ms, share in shares(row)),
        ]
        for row in rows
    ]
    mode = "forward and backward" if options.train else "forward"
    caption = f"{options.workload}, {mode}, {options.batch} examples, width {options.width}"
    caption += f": medians of {options.rounds} minibatches, milliseconds and the share of the step"
    show_table(["<backend", "<contender", "step", *PHASES], table, caption)
    if options.json_file is not None:
        results.write(options.json_file, rows)


def measured(options: ProfileOptions) -> list[dict[str, Any]]:
    """Return the rows of all backends; say on stderr which of them cannot take part."""
    from multifold_bench.profile import profile
    from multifold_bench.workloads import WORKLOADS

    backends = [load(name) for name in dict.fromkeys(options.names)] or usable()
    with progress(f"reading {options.workload}", 1) as bar:
        examples = WORKLOADS[options.workload].read(options.data, READ, bar.reach)
    benchmark = WORKLOADS[options.workload].benchmark(examples, options.width)
    rows = []
    with progress("", len(backends) * 2 * (1 + options.rounds)) as bar:
        for backend in backends:
            try:
                rows += profile(
                    benchmark,
                    backend,
                    batch=options.batch,
                    train=options.train,
                    rounds=options.rounds,
                    seed=options.seed,
                    advance=bar.advance,
                )
            except BackendError as error:
                click.echo(f"{backend.name} is left out: {error.message}", err=True)
    return rows
