"""``multifold bench step``: one step of training or inference against other ways to compute it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from multifold.cli.options import gathered, json_option, rounds_option, seed_option
from multifold.cli.output import load, progress, show_table
from multifold.errors import BackendError, MultifoldError
from multifold_bench.cli.options import READ, dynet_option, train_option, workload_options

if TYPE_CHECKING:
    from multifold._measure.contenders import Subject
    from multifold_bench.harness import Contender


@dataclass(frozen=True)
class StepOptions:
    """What ``multifold bench step`` is asked for."""

    backend_name: str
    workload: str
    data: Path | None
    contenders: list[str]
    widths: tuple[int, ...]
    batches: tuple[int, ...]
    train: bool
    rounds: int
    seconds: float
    dynet_python: Path | None
    dynet_autobatch: str
    seed: int
    json_file: Path | None

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Each width with each batch."""
        return [(width, batch) for width in self.widths for batch in self.batches]


def names_of(context: click.Context, option: click.Parameter, value: str) -> list[str]:
    """Return the names in a list with commas."""
    names = list(dict.fromkeys(name for part in value.split(",") if (name := part.strip())))
    if not names:
        raise click.BadParameter("Expected at least one name.")
    return names


@click.command()
@click.option("--backend", "backend_name", required=True, metavar="NAME", help="The framework.")
@workload_options
@click.option(
    "--contenders",
    callback=names_of,
    default="loop,hand,fold,fold-traced",
    show_default=True,
    metavar="NAMES",
    help="loop, loop-jit, unfold, stacked, hand, hand-frontier, fold, fold-jit, fold-traced, "
    "fold-program, dynet; with commas between.",
)
@click.option("--width", "widths", type=click.IntRange(1), multiple=True, default=(100,))
@click.option("--batch", "batches", type=click.IntRange(1), multiple=True, default=(128,))
@train_option
@rounds_option(20)
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=20.0,
    show_default=True,
    help="Seconds after which a contender leaves, if it had three rounds.",
)
@dynet_option(", for the contender dynet")
@click.option(
    "--dynet-autobatch",
    type=click.Choice(("0", "1", "2", "3")),
    default="1",
    show_default=True,
    help="DyNet's own option: 0 off, 1 by agenda, 2 by depth.",
)
@seed_option
@json_option
@gathered(StepOptions)
def step(options: StepOptions) -> None:
    """Time a step of training or inference against other ways to compute it.

    All contenders see the same minibatches in turn, a new one each round, and every result is checked:
    on the first minibatch, values and gradients must equal those of the loop.
    """
    from multifold_bench import results
    from multifold_bench.contenders import about

    rows = measured(options)
    took_part = list(dict.fromkeys(row["contender"] for row in rows))
    by_hand = ["times\nhand's"] if "hand" in took_part else []
    columns = ["<contender", "width", "examples", "ms\na step", "quartiles", *by_hand, "ms of the\nfirst"]
    columns += ["launches", "rows a\nlaunch", "calls\na second"]
    legend = [f"{name:<13} {about(name)}" for name in took_part]
    said = [*legend, "", *remarks(rows), *verdicts(rows)]
    show_table(columns, [cells(row) for row in rows], "\n".join(said))
    if options.json_file is not None:
        results.write(options.json_file, rows)


def measured(options: StepOptions) -> list[dict[str, Any]]:
    """Return the rows of all sizes."""
    from multifold_bench.step import WARMUP, Setting, measure_step
    from multifold_bench.workloads import WORKLOADS

    backend = load(options.backend_name)
    others = dynet(options)
    workload = WORKLOADS[options.workload]
    left_out: dict[str, BackendError] = {}
    with progress(f"reading {options.workload}", 1) as bar:
        examples = workload.read(options.data, READ, bar.reach)
    rows = []
    steps = len(options.contenders) * (2 + WARMUP + options.rounds)
    with progress("", len(options.sizes) * steps) as bar:
        for width, batch in options.sizes:
            found = measure_step(
                workload.benchmark(examples, width),
                backend,
                options.contenders,
                Setting(batch, options.train, options.rounds, options.seconds, options.seed),
                others=others,
                advance=bar.advance,
                leave_out=left_out.__setitem__,
            )
            rows += [{"workload": options.workload, **row} for row in found]
    for name, error in left_out.items():
        click.echo(f"{name} is left out: {error.message}", err=True)
    return rows


def dynet(options: StepOptions) -> dict[str, Callable[[Subject], Contender]]:
    """Return the contender ``dynet`` by its name, if it takes part."""
    from multifold_bench import dynet_process

    if "dynet" not in options.contenders:
        return {}
    if options.dynet_python is None:
        raise MultifoldError(
            "Expected --dynet-python for the contender 'dynet'.",
            "pip install dynet38 into an environment of its own, and name its Python.",
        )
    return {"dynet": dynet_process.contender(options.dynet_python, int(options.dynet_autobatch))}


def cells(row: dict[str, Any]) -> list[Any]:
    """Return the cells of a contender; those of a race without ``hand`` have no ratio."""
    low, high = row["quartiles_ms"]
    launches = row["launches"]
    return [
        row["contender"],
        row["width"],
        row["batch"],
        f"{row['median_ms']:,.1f}",
        f"{low:,.1f}-{high:,.1f}",
        *([] if row["to_hand"] is None else [f"{row['to_hand']:.2f}"]),
        f"{row['first_ms']:,.0f}",
        "" if launches is None else f"{launches:,.0f}",
        "" if launches is None else f"{row['mean_rows']:,.1f}",
        f"{row['nodes_per_second']:,.0f}",
    ]


def remarks(rows: list[dict[str, Any]]) -> list[str]:
    """Return what holds for all rows, and what a reader might miss."""
    said = []
    for row in {(row["width"], row["batch"]): row for row in rows}.values():
        said.append(
            f"{MODES[row['mode']]} of '{row['workload']}' with {row['backend']}, "
            f"{row['batch']:,} examples of width {row['width']}: "
            f"{row['nodes']:,.0f} calls in {row['lower_bound']:,.0f} launches or more;\n"
            f"a fold records in {row['record_ms']:.1f} ms and schedules in {row['plan_ms']:.1f}"
        )
        if row["launches_by_round"]:
            said.append(remark_on_rounds(row["launches_by_round"], row["bound_by_round"]))
    folds = {row["contender"] for row in rows if row["contender"].startswith("fold")}
    if rows[0]["backend"] == "jax" and folds:
        said.append("jax compiles a fold anew for the shapes of each minibatch, which is inside its times")
    if rows[0]["backend"] == "jax" and len(folds) > 1:
        said.append("whoever meets these shapes second profits: give fold and fold-traced a run each")
    return said


MODES = {"infer": "a forward pass", "train": "a training step"}


def verdicts(rows: list[dict[str, Any]]) -> list[str]:
    """Return, for each size, how the fastest fold compares with the loop and with batching by hand.

    Examples
    --------
    >>> row = {"width": 8, "batch": 4, "to_hand": 1.2}
    >>> rows = [{**row, "contender": "loop", "median_ms": 6.0}]
    >>> rows += [{**row, "contender": "fold", "median_ms": 3.0}]
    >>> verdicts(rows)
    ["fold is 2.0 times as fast as the loop, and takes 1.20 times hand's time (4 examples, width 8)"]
    """
    said = []
    for width, batch in dict.fromkeys((row["width"], row["batch"]) for row in rows):
        mine = [row for row in rows if (row["width"], row["batch"]) == (width, batch)]
        folds = [row for row in mine if row["contender"].startswith("fold")]
        if not folds:
            continue
        best = min(folds, key=lambda row: row["median_ms"])
        loops = [row["median_ms"] for row in mine if row["contender"] == "loop"]
        parts = [f"is {ms / best['median_ms']:.1f} times as fast as the loop" for ms in loops]
        parts += [] if best["to_hand"] is None else [f"takes {best['to_hand']:.2f} times hand's time"]
        if parts:
            said.append(f"{best['contender']} {', and '.join(parts)} ({batch} examples, width {width})")
    return said


def remark_on_rounds(launches: list[int], bounds: list[int]) -> str:
    """Return how many rounds a minibatch took, and whether any had more launches than it needs."""
    *waiting, last = launches
    above = sum(got > least for got, least in zip(launches, bounds, strict=True))
    return (
        f"of the first minibatch {len(launches)} rounds: {min(waiting, default=0)} to "
        f"{max(waiting, default=0)} launches in each in which values are awaited, {last} in the last; "
        + (f"{above} rounds above their lower bound" if above else "each round at its lower bound")
    )
