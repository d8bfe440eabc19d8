"""``multifold explain``: what keeps the calls of a workload apart, as a table and as a drawing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import click

import multifold
from multifold._schedule.policies import POLICIES
from multifold.bench.generators import WORKLOADS, tree_lstm
from multifold.cli.output import in_a_folder
from multifold.explain import Explanation

TREES = ("synthetic", "random-trees", "balanced-trees", "comb-trees")
"""Generated workloads that come with a model, so that they can be run."""

SYNTAX = "python-ast"
"""Real trees, with a model of their own."""

WIDTH = 32
"""Of the states of the models."""

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command()
@click.option(
    "--workload",
    type=click.Choice([*WORKLOADS, SYNTAX]),
    default="synthetic",
    show_default=True,
    help="A kind of generated graph, or python-ast: the functions of Python's standard library.",
)
@click.option("--batch", type=click.IntRange(1), help="Examples; by default as many as is usual.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the minibatch.")
@click.option(
    "--schedule",
    type=click.Choice(list(POLICIES)),
    default="auto",
    show_default=True,
    help="How launches are chosen.",
)
@click.option("--svg", type=FILE, callback=in_a_folder, metavar="FILE", help="Write the drawing.")
@click.option(
    "--html", type=FILE, callback=in_a_folder, metavar="FILE", help="Write a page with drawing and tables."
)
@click.option(
    "--dot", type=FILE, callback=in_a_folder, metavar="FILE", help="Write the drawing for Graphviz."
)
@click.option(
    "--mermaid", type=FILE, callback=in_a_folder, metavar="FILE", help="Write the drawing for Mermaid."
)
@click.option(
    "--timeline",
    type=FILE,
    callback=in_a_folder,
    metavar="FILE",
    help=f"Run it on NumPy and write when each launch ran, for ui.perfetto.dev; for workloads that "
    f"have a model: {', '.join([*TREES, SYNTAX])}.",
)
def explain(
    workload: str,
    batch: int | None,
    seed: int,
    schedule: str,
    svg: Path | None,
    html: Path | None,
    dot: Path | None,
    mermaid: Path | None,
    timeline: Path | None,
) -> None:
    """Say why the calls of a minibatch did not share a launch.

    The table has the launches of each op beside the fewest that any schedule could have, what keeps
    its calls apart, and how many launches each of these reasons costs.
    """
    if timeline is not None and workload not in (*TREES, SYNTAX):
        raise click.UsageError(
            f"--timeline runs a model, and '{workload}' has none; {', '.join([*TREES, SYNTAX])} do"
        )
    fold = multifold.Fold(backend="numpy", schedule=schedule)
    model, outputs = record(fold, workload, seed, batch)
    if timeline is not None:
        fold.apply(model, [outputs])
    explanation = cast(Explanation, fold.explain([outputs]))
    click.echo(str(explanation))
    for file, draw in (
        (svg, explanation.to_svg),
        (html, explanation.to_html),
        (dot, explanation.to_dot),
        (mermaid, explanation.to_mermaid),
        (timeline, explanation.timeline_json),
    ):
        if file is not None:
            file.write_text(draw(), encoding="utf-8")


def record(
    fold: multifold.Fold, workload: str, seed: int, batch: int | None
) -> tuple[Any, list[multifold.Node]]:
    """Record a minibatch; return the model that runs it, if there is one, and its outputs."""
    if workload != SYNTAX:
        model = tree_lstm(WIDTH) if workload in TREES else None
        return model, WORKLOADS[workload](fold, seed, batch)
    from multifold.cli.compare import READ, read_task

    task = read_task(SYNTAX, None, WIDTH, max(batch or 0, READ))
    examples = next(task.minibatches(batch or 16, seed)).examples
    return task.model(), task.record_all(fold, examples)
