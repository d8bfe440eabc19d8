"""``multifold bench stream``: many trees by one process, by workers, by Ray Data, and their floors."""

from __future__ import annotations

from pathlib import Path

import click

from multifold.cli.options import json_option, rounds_option, seed_option
from multifold.cli.output import progress, show_table

COUNT = click.IntRange(1)


@click.command()
@click.option("--backend", default="numpy", show_default=True, metavar="NAME", help="The framework.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(2), help="One for each core.")
@click.option("--trees", default=20_000, show_default=True, type=click.IntRange(100), help="Of a round.")
@click.option("--width", default=100, show_default=True, type=COUNT, help="Of the model.")
@click.option("--way", "names", multiple=True, metavar="NAME", help="May be repeated; all by default.")
@rounds_option(3)
@seed_option
@json_option
def stream(
    backend: str,
    workers: int,
    trees: int,
    width: int,
    names: tuple[str, ...],
    rounds: int,
    seed: int,
    json_file: Path | None,
) -> None:
    """Run trees from text to logits: in one process, in workers, in processes apart, on Ray Data.

    Rates are those after the first tenth of the trees. All rows are compared with those of one process.
    """
    from multifold_bench import results
    from multifold_bench.streaming.measure import ONE, measure_streams, ways
    from multifold_bench.streaming.trees import MakeModel

    known = ways(workers)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise click.UsageError(f"Expected ways among {', '.join(known)}. Received {', '.join(unknown)}.")
    chosen = {name: way for name, way in known.items() if not names or name in (ONE, *names)}
    if not any(name.startswith("ray") for name in known):
        click.echo("Ray Data is left out, since ray is not installed: pip install 'ray[data]'.", err=True)
    with progress("", rounds * len(chosen)) as bar:
        rows = measure_streams(chosen, MakeModel(backend, width), trees, rounds, seed, bar.advance)
    table = [
        [
            row["way"],
            f"{sorted(row['rate'])[rounds // 2]:,.0f}",
            f"{row['of_one']:.2f}",
            f"{row['of_one'] / workers:.2f}",
            f"{row['peak_mb']:.0f}",
        ]
        for row in rows
    ]
    columns = ["<way", "trees/s", "/ one process", f"/ {workers} x one", "peak MB"]
    show_table(columns, table, f"{backend}, {trees:,} trees of width {width}, medians of {rounds} rounds")
    if json_file is not None:
        results.write(json_file, rows)
