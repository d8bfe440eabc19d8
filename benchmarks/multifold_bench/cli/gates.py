"""``multifold bench gates``: end-to-end figures of this checkout beside those of another one."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import click

from multifold.cli.options import gathered, json_option
from multifold.cli.output import progress, show_table
from multifold_bench.cli.options import backends_option

GATES = "abcdefghij"


@dataclass(frozen=True)
class GatesOptions:
    """What ``multifold bench gates`` is asked for."""

    against: Path
    gates: tuple[str, ...]
    names: tuple[str, ...]
    pythons: tuple[tuple[str, str], ...]
    quick: bool
    json_file: Path | None


def named(
    context: click.Context, option: click.Parameter, pairs: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Take ``NAME=FILE`` apart."""
    found = []
    for pair in pairs:
        name, equals, file = pair.partition("=")
        if not equals:
            raise click.BadParameter(f"Expected NAME=FILE. Received {pair}.")
        found.append((name, file))
    return tuple(found)


def a_checkout(context: click.Context, option: click.Parameter, folder: Path) -> Path:
    """Refuse a folder that is no checkout, or to begin where this program is in none itself."""
    from multifold_bench.gates.driver import HERE

    if not is_checkout(HERE):
        raise click.UsageError(
            f"Expected multifold_bench to be run from a checkout. It is installed in {HERE}: "
            "run 'pip install -e ./benchmarks' in the checkout that is to be measured."
        )
    if not is_checkout(folder):
        raise click.BadParameter(f"Expected a checkout. {folder} lacks multifold or benchmarks.")
    return folder


def is_checkout(folder: Path) -> bool:
    """Return whether a folder has the core and the benchmarks beside each other."""
    return (folder / "multifold" / "__init__.py").is_file() and (folder / "benchmarks").is_dir()


@click.command()
@click.option(
    "--against",
    required=True,
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    callback=a_checkout,
    help="The other checkout, with its compiled modules in place.",
)
@click.option(
    "--gate",
    "gates",
    multiple=True,
    type=click.Choice(list(GATES)),
    help="May be repeated; all by default.",
)
@backends_option
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="NAME=FILE",
    callback=named,
    help="The interpreter for a framework; by default the one that runs this. May be repeated.",
)
@click.option("--quick", is_flag=True, help="Small sizes and few repetitions.")
@json_option
@gathered(GatesOptions)
def gates(options: GatesOptions) -> None:
    """Measure this checkout and another one by turns, and judge the figures by their limits.

    What both compute is compared before any time is shown. The exit code is 1 if a figure could not be
    measured or results differ, whatever the limits say.
    """
    from multifold_bench import results
    from multifold_bench.gates.driver import Comparison, measure_all
    from multifold_bench.gates.worker import all_figures

    figures = [
        figure
        for figure in all_figures().values()
        if figure.gate in (options.gates or GATES)
        and figure.framework in (options.names or (figure.framework,))
    ]
    with progress("", len(figures)) as bar:
        settings = Comparison(
            there=options.against,
            pythons=dict(options.pythons),
            quick=options.quick,
            advance=bar.advance,
        )
        lines = measure_all(figures, settings)
    columns = ["<gate", "<figure", "here", "there", "<unit", "ratio", "quartiles", "<limit", "<met"]
    show_table(columns, [line.cells() for line in lines if not line.note])
    for line in lines:
        if line.note:
            click.echo(f"({line.gate}) {line.framework}, {line.name}: {line.note}")
            click.echo(line.details, err=True, nl=False)
    if options.json_file is not None:
        results.write(options.json_file, [asdict(line) for line in lines])
    if any(line.note and line.met is False for line in lines):
        raise SystemExit(1)
