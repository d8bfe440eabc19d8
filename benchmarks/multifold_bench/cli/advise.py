"""``multifold bench advise``: the gain that advice foretells, and the one that is measured then."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from multifold.cli.options import gathered, json_option, rounds_option
from multifold.cli.output import load, progress, show_table


@dataclass(frozen=True)
class AdvisedOptions:
    """What ``multifold bench advise`` is asked for."""

    names: tuple[str, ...]
    count: int
    rounds: int
    seconds: float
    json_file: Path | None


@click.command()
@click.option("--case", "names", multiple=True, metavar="NAME", help="May be repeated; all by default.")
@click.option("--count", type=click.IntRange(1), default=64, show_default=True, help="Examples.")
@rounds_option(7)
@click.option("--seconds", type=click.FloatRange(0), default=5.0, show_default=True, help="A way at most.")
@json_option
@gathered(AdvisedOptions)
def advise(options: AdvisedOptions) -> None:
    """Compare what `multifold advise` says of loops with what calls of fold.add then gain.

    Run each case in a process of its own, on a machine that does nothing else: --case NAME.
    """
    from multifold_bench import results
    from multifold_bench.advised import judge
    from multifold_bench.loops import find

    cases = find(options.names)
    rows: list[dict[str, Any]] = []
    texts = []
    with progress("", len(cases) * (6 + 2 * (2 + options.rounds))) as bar:
        for case in cases:
            advice, row = judge(
                case,
                load(case.backend),
                count=options.count,
                rounds=options.rounds,
                seconds=options.seconds,
                advance=bar.advance,
            )
            texts.append(f"{case.name}: {advice}")
            rows.append(row)
    click.echo("\n\n".join(texts))
    columns = ["<case", "loop\nms", "fold.add\nms", "foretold", "measured", "<inside"]
    show_table(
        columns, [cells(row) for row in rows], f"{options.count} examples; times as fast as the loop"
    )
    if options.json_file is not None:
        results.write(options.json_file, rows)


def cells(row: dict[str, Any]) -> list[Any]:
    """Return the cells of a case."""
    return [
        row["case"],
        f"{row['loop_ms']:,.1f}",
        f"{row['fold_ms']:,.1f}",
        f"{row['low']:.1f} to {row['high']:.1f}",
        f"{row['gain']:.1f}",
        "yes" if row["inside"] else "no",
    ]
