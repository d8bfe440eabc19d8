"""``multifold explain``: what keeps the calls of a workload apart, as a table and as a drawing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

import multifold
from multifold._engine.plan.policies import POLICIES
from multifold.cli.options import gathered, in_a_folder, seed_option
from multifold.cli.output import progress
from multifold.explain import Explanation
from multifold_bench.cli.options import READ, WORKLOADS, workloads
from multifold_bench.graphs import GRAPHS
from multifold_bench.graphs.trees import tree_lstm

WIDTH = 32
"""Of the states of the models."""

BATCH = 16
"""Examples of a workload, unless another number is asked for; random graphs have their own."""

TREES = ("random-trees", "balanced-trees", "comb-trees")
"""Random graphs that come with a model, so that they can be run."""

RUN = (*WORKLOADS, *TREES)
"""What can be run."""

DRAWINGS = {
    "svg": "Write the drawing.",
    "html": "Write a page with drawing and tables.",
    "dot": "Write the drawing for Graphviz.",
    "mermaid": "Write the drawing for Mermaid.",
    "timeline": "Run it on NumPy and write when each launch ran, for ui.perfetto.dev.",
}
"""The options that name files, and what is written to each."""


WRITERS = {
    "svg": "to_svg",
    "html": "to_html",
    "dot": "to_dot",
    "mermaid": "to_mermaid",
    "timeline": "timeline_json",
}
"""The options that name files, and the method of an explanation that makes what is written."""

WRITTEN = {
    "svg": "a drawing with a box for each {unit}",
    "html": "a page with the drawing and its tables, for a browser",
    "dot": "the drawing, for `dot -Tpng`",
    "mermaid": "the drawing, for pages that draw Mermaid",
    "timeline": "when each launch ran, for https://ui.perfetto.dev",
}
"""What is said of each file when it is written."""


@dataclass(frozen=True)
class ExplainOptions:
    """What ``multifold explain`` is asked for."""

    workload: str
    data: Path | None
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


class Explained(click.Choice):
    """The workloads of ``bench step``; and the random graphs, of which only schedules are looked at."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name of a workload or of a random graph."""
        return value if value in GRAPHS else super().convert(value, param, ctx)


@click.command()
@workloads(
    Explained(WORKLOADS),
    "What is computed, as for `bench step`; or a random graph, most of them without a model: "
    f"{', '.join(name for name in GRAPHS if name not in WORKLOADS)}.",
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
    """Say why the calls of a minibatch of a workload or random graph did not share a launch.

    A program of your own explains itself: print(fold.explain()) after fold.run, or print(run.explain()) of
    run = multifold.batched(model). explanation.to_html() is a page with the drawing.

    The table has the launches of each op beside the fewest that any schedule could have, what keeps
    its calls apart, and how many launches each of these reasons costs.
    """
    if options.timeline is not None and options.workload not in RUN:
        raise click.UsageError(
            f"--timeline runs a model, and '{options.workload}' has none; {', '.join(RUN)} do"
        )
    fold = multifold.Fold(backend="numpy", schedule=options.schedule)
    model, outputs = record(fold, options)
    if outputs is None:
        explanation = fold.explain()
    else:
        if options.timeline is not None:
            fold.apply(model, [outputs])
        explanation = fold.explain([outputs])
    click.echo(str(explanation))
    write_drawings(options, explanation)


def write_drawings(options: ExplainOptions, explanation: Explanation) -> None:
    """Write the files that were asked for, and say on stderr what each of them is."""
    for name, draw in WRITERS.items():
        file: Path | None = getattr(options, name)
        if file is None:
            continue
        text = getattr(explanation, draw)()
        file.write_text(text, encoding="utf-8")
        about = f"{WRITTEN[name]}, {len(text.encode()) / 1e3:,.0f} kB"
        click.echo(f"wrote {file}: {about.format(unit=explanation.picture.unit)}", err=True)


def record(fold: multifold.Fold, options: ExplainOptions) -> tuple[Any, list[multifold.Node] | None]:
    """Record a minibatch; return the model that runs it, if there is one, and its outputs.

    A workload that runs in rounds is run instead, and has no outputs here.
    """
    from multifold_bench.workloads import WORKLOADS as KNOWN

    name = options.workload
    batch = options.batch
    seed = options.seed
    if name not in KNOWN:
        model = tree_lstm(WIDTH) if name in TREES else None
        return model, GRAPHS[name](fold, seed, batch)
    usual = GRAPHS[name].batch if name in GRAPHS else BATCH
    with progress(f"reading {name}", 1) as bar:
        read = KNOWN[name].read(options.data, max(batch or 0, READ), bar.reach)
    benchmark = KNOWN[name].benchmark(read, WIDTH)
    examples = next(benchmark.minibatches(batch or usual, seed)).examples
    model = benchmark.model().on("numpy")
    if not benchmark.in_rounds:
        return model, benchmark.record_all(fold, examples)
    benchmark.apply(fold, model, examples)
    return model, None
