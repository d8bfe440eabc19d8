"""``multifold bench plan``: launches, lower bound and certificate of generated graphs, by policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from multifold.cli.options import gathered, json_option, rounds_option, seed_option
from multifold.cli.output import progress, show_table


@dataclass(frozen=True)
class PlanOptions:
    """What ``multifold bench plan`` is asked for."""

    workloads: tuple[str, ...]
    policies: tuple[str, ...]
    batch: int | None
    rounds: int
    seed: int
    json_file: Path | None


@click.command()
@click.option("--workload", "workloads", multiple=True, metavar="NAME", help="May be repeated.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    default=("auto", "traces", "depth", "agenda"),
    show_default=True,
    help="What Fold(schedule=...) takes; traces: merged ones. May be repeated.",
)
@click.option("--batch", type=click.IntRange(1), help="Examples; by default the workload's number.")
@rounds_option(5)
@seed_option
@json_option
@gathered(PlanOptions)
def plan(options: PlanOptions) -> None:
    """Schedule generated graphs: launches, lower bound, certificate, and microseconds a node."""
    from multifold_bench import results
    from multifold_bench.graphs import GRAPHS
    from multifold_bench.plan import measure_planning

    names = list(options.workloads or GRAPHS)
    table = []
    rows = []
    with progress("", len(names) * len(options.policies) * options.rounds) as bar:
        for name in names:
            found = measure_planning(
                name,
                options.policies,
                batch=options.batch,
                rounds=options.rounds,
                seed=options.seed,
                advance=bar.advance,
            )
            rows += found
            table.append(cells(found))
    columns = ["<graph", "calls", "types", "lower\nbound"]
    columns += [column for policy in options.policies for column in (f"launches\n{policy}", "µs a\ncall")]
    said = f"medians of {options.rounds} rounds; * marks launches proven to be as few as there can be"
    show_table(columns, table, said)
    if options.json_file is not None:
        results.write(options.json_file, rows)


def cells(rows: list[dict[str, Any]]) -> list[Any]:
    """Return the cells of a graph: what it is, then two of each policy."""
    facts = rows[0]
    found = [f"{facts['workload']} b{facts['batch']}", f"{facts['nodes']:,}"]
    found += [facts["types"], facts["lower_bound"]]
    for row in rows:
        optimal = " *" if row["certificate"] == "optimal" else "  "
        found += [f"{row['launches']}{optimal}", f"{row['plan_us'][1]:.2f}"]
    return found
