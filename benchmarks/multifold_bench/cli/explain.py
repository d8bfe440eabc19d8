"""``multifold explain``: what keeps the calls of a workload apart, as a table and as a drawing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import click

import multifold
from multifold._schedule.policies import POLICIES
from multifold.cli.options import gathered, in_a_folder, seed_option
from multifold.explain import Explanation
from multifold_bench.graphs import GRAPHS
from multifold_bench.graphs.trees import tree_lstm

TREES = ("synthetic", "random-trees", "balanced-trees", "comb-trees")
"""Generated workloads that come with a model, so that they can be run."""

SYNTAX = "python-ast"
"""Real trees, with a model of their own."""

WIDTH = 32
"""Of the states of the models."""

RUN = (*TREES, SYNTAX)
"""The workloads that can be run."""

DRAWINGS = {
    "svg": "Write the drawing.",
    "html": "Write a page with drawing and tables.",
    "dot": "Write the drawing for Graphviz.",
    "mermaid": "Write the drawing for Mermaid.",
    "timeline": "Run it on NumPy and write when each launch ran, for ui.perfetto.dev; for workloads that "
    f"have a model: {', '.join(RUN)}.",
}
"""The options that name files, and what is written to each."""


@dataclass(frozen=True)
class ExplainOptions:
    """What ``multifold explain`` is asked for."""

    workload: str
    batch: int | None
    seed: int
    schedule: str
    svg: Path | None
    html: Path | None
    dot: Path | None
    mermaid: Path | None
    timeline: Path | None


def drawing_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an option for each file that can be written."""
    for name, about in reversed(DRAWINGS.items()):
        command = click.option(
            f"--{name}",
            type=click.Path(dir_okay=False, path_type=Path),
            callback=in_a_folder,
            metavar="FILE",
            help=about,
        )(command)
    return command


@click.command()
@click.option(
    "--workload",
    type=click.Choice([*GRAPHS, SYNTAX]),
    default="synthetic",
    show_default=True,
    help="Which random graphs; or python-ast: the functions of Python's standard library.",
)
@click.option("--batch", type=click.IntRange(1), help="Examples; by default as many as is usual.")
@seed_option
@click.option(
    "--schedule",
    type=click.Choice(list(POLICIES)),
    default="auto",
    show_default=True,
    help="How launches are chosen.",
)
@drawing_options
@gathered(ExplainOptions)
def explain(options: ExplainOptions) -> None:
    """Say why the calls of a minibatch did not share a launch.

    The table has the launches of each op beside the fewest that any schedule could have, what keeps
    its calls apart, and how many launches each of these reasons costs.
    """
    if options.timeline is not None and options.workload not in RUN:
        raise click.UsageError(
            f"--timeline runs a model, and '{options.workload}' has none; {', '.join(RUN)} do"
        )
    fold = multifold.Fold(backend="numpy", schedule=options.schedule)
    model, outputs = record(fold, options.workload, options.seed, options.batch)
    if options.timeline is not None:
        fold.apply(model, [outputs])
    explanation = cast(Explanation, fold.explain([outputs]))
    click.echo(str(explanation))
    for file, draw in (
        (options.svg, explanation.to_svg),
        (options.html, explanation.to_html),
        (options.dot, explanation.to_dot),
        (options.mermaid, explanation.to_mermaid),
        (options.timeline, explanation.timeline_json),
    ):
        if file is not None:
            file.write_text(draw(), encoding="utf-8")


def record(
    fold: multifold.Fold, workload: str, seed: int, batch: int | None
) -> tuple[Any, list[multifold.Node]]:
    """Record a minibatch; return the model that runs it, if there is one, and its outputs."""
    if workload != SYNTAX:
        model = tree_lstm(WIDTH) if workload in TREES else None
        return model, GRAPHS[workload](fold, seed, batch)
    from multifold.cli.compare import READ, read_benchmark

    benchmark = read_benchmark(SYNTAX, None, WIDTH, max(batch or 0, READ))
    examples = next(benchmark.minibatches(batch or 16, seed)).examples
    return benchmark.model(), benchmark.record_all(fold, examples)
