"""``multifold bench experiments``: the experiments of the sources on every framework, as one page."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import click

from multifold.cli.compare import usable
from multifold.cli.options import gathered, in_a_folder, seed_option
from multifold.cli.output import load, progress
from multifold.errors import MultifoldError
from multifold_bench.cli.options import WORKLOADS, backends_option, dynet_option


@dataclass(frozen=True)
class ExperimentOptions:
    """What ``multifold bench experiments`` is asked for."""

    files: tuple[Path, ...]
    file: Path
    names: tuple[str, ...]
    letters: tuple[str, ...]
    data: dict[str, Path]
    quick: bool
    rounds: int | None
    seconds: float | None
    minutes: float | None
    dynet_python: Path | None
    seed: int
    report: Path | None
    remark: str
    merge: bool

    @property
    def limit(self) -> float:
        """The minutes after which nothing is begun."""
        return self.minutes if self.minutes is not None else 4.5 if self.quick else float("inf")


def paths_of(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, Path]:
    """Return the paths by workload."""
    found = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not equals or name not in WORKLOADS:
            raise click.BadParameter(f"Expected WORKLOAD=PATH, with one of {', '.join(WORKLOADS)}.")
        found[name] = Path(path)
    return found


@click.command()
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--json",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("experiments.jsonl"),
    show_default=True,
    callback=in_a_folder,
    help="Where rows are kept. What it holds already is not measured again.",
)
@backends_option
@click.option("--experiment", "letters", multiple=True, metavar="LETTER", help="May be repeated; all.")
@click.option(
    "--data",
    multiple=True,
    callback=paths_of,
    metavar="WORKLOAD=PATH",
    help="Where the files of a workload are (sst, sick, spinn, mnist). Without "
    "them examples of the same sizes are drawn. May be repeated.",
)
@click.option("--quick", is_flag=True, help="Small sizes, few rounds, and no more than five minutes.")
@click.option("--rounds", type=click.IntRange(1), help="How often each is timed: 7, and 3 with --quick.")
@click.option(
    "--seconds", type=click.FloatRange(0), help="Of a contender in a cell: 5, and 0.5 with --quick."
)
@click.option(
    "--minutes", type=click.FloatRange(0), help="Begin nothing after that many; run again to go on."
)
@dynet_option(": a contender of experiment a, beside torch")
@seed_option
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write a page and figures of all rows there; needs matplotlib.",
)
@click.option("--remark", default="", metavar="TEXT", help="What readers of the report must know, too.")
@click.option("--merge", is_flag=True, help="Measure nothing: make the report of such FILES.")
@gathered(ExperimentOptions)
def experiments(options: ExperimentOptions) -> None:
    """Run the experiments of the sources on every framework that is installed here.

    They are: a, sentiment by minibatch size; b, with and without the framework's compiler; c, relatedness
    of sentence pairs; d, shift-reduce entailment; e, digits, one image at a time.

    Each cell is written to the file when it is done, so a run can be interrupted and started again, and
    another environment can add its frameworks to the same file.
    """
    from multifold_bench.experiments import EXPERIMENTS

    if options.merge != bool(options.files) or (options.merge and options.report is None):
        raise click.UsageError("--merge, FILES and --report go together")
    if not set(options.letters) <= set(EXPERIMENTS):
        raise click.BadParameter(f"Expected experiments out of {', '.join(EXPERIMENTS)}.")
    if options.report is not None:
        prepare_report(options.report)
    if not options.merge:
        measure(options)
    if options.report is not None:
        click.echo(write_report(options.report, options.files or (options.file,)))


def measure(options: ExperimentOptions) -> None:
    """Run the cells that the file does not hold yet, until the time is used up."""
    from multifold_bench import dynet_process
    from multifold_bench.experiments import EXPERIMENTS
    from multifold_bench.runner import Amount, Runner, run

    amount = Amount(
        options.quick,
        options.rounds or (3 if options.quick else 7),
        (0.5 if options.quick else 5.0) if options.seconds is None else options.seconds,
        options.seed,
    )
    python = options.dynet_python
    others = {} if python is None else {"dynet": dynet_process.contender(python, 1)}
    runner = Runner(options.file, options.data, amount, others, command_line(), options.remark)
    backends = [load(name) for name in dict.fromkeys(options.names)] or usable()
    chosen = [EXPERIMENTS[letter] for letter in dict.fromkeys(options.letters)]
    with progress("", 1) as bar:
        left = run(
            runner, backends, chosen or list(EXPERIMENTS.values()), options.limit, bar.say, bar.reach
        )
    click.echo(f"{options.file} holds {len(runner.done)} cells.")
    if left:
        click.echo(f"There was no time for {left} more: run the same command again to go on.", err=True)


def write_report(folder: Path, files: tuple[Path, ...]) -> Path:
    """Write the page of the rows in some files, and return its path."""
    from multifold_bench import report, results

    rows = [row for path in files for row in results.read(path)]
    if not any("experiment" in row for row in rows):
        raise MultifoldError(
            f"Expected rows of experiments in {', '.join(map(str, files))}. Received none.",
            "multifold bench experiments --json FILE writes them.",
        )
    return report.write(folder, rows)


def command_line() -> str:
    """Return how this command was started, without any path and what was remarked."""
    shown: list[str] = []
    hidden = False
    for word in ["multifold", *sys.argv[1:]]:
        name, equals, _ = word.partition("=")
        if hidden:
            word = "TEXT" if shown[-1] == "--remark" else f"{name}=PATH" if equals else "PATH"
        shown.append(word)
        hidden = word in ("--json", "--data", "--dynet-python", "--report", "--remark")
    return " ".join(shown)


def prepare_report(folder: Path) -> None:
    """Refuse a report that could not be written, before anything is measured."""
    try:
        import matplotlib  # noqa: F401 - it draws the figures
    except ImportError as error:
        raise MultifoldError(
            "Expected matplotlib, for the figures of a report.",
            'in a checkout of multifold: `pip install "./benchmarks[plot]"`.',
        ) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"The folder {folder} can't be made: {error}.") from error
