"""``multifold compare``: one example at a time against folded, on every installed backend."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from multifold._engine.frameworks import registry
from multifold.cli.options import gathered, json_option, rounds_option, seed_option
from multifold.cli.output import Bar, load, progress, show_table
from multifold.errors import BackendError, MultifoldError

if TYPE_CHECKING:
    from multifold._measure.benchmark import Benchmark
    from multifold._measure.results import Row
    from multifold.backend import Backend

WORKLOADS = ("python-ast", "sst")
READ = 512
"""How many functions are read; a minibatch is drawn from them."""

COLUMNS = {
    "nodes": ("calls", "{:,}"),
    "launches": ("launches", "{}"),
    "lower_bound": ("lower\nbound", "{}"),
    "mean_rows": ("rows a\nlaunch", "{:.1f}"),
    "loop_ms": ("ms one\nby one", "{:,.1f}"),
    "fold_ms": ("ms\nfolded", "{:,.1f}"),
    "speed_up": ("times\nas fast", "{:.1f}"),
    "difference": ("difference", "{:.1e}"),
}
"""Number of a row -> the head of its column, and how it is shown."""

WORDS = ("backend", "workload", "mode")
FIGURES = (*COLUMNS, "batch", "width", "first_ms")
"""The strings and the numbers of a backend's row, unless it has a ``note`` that says why not."""


@dataclass(frozen=True)
class CompareOptions:
    """What ``multifold compare`` is asked for; the options say what each field means."""

    files: tuple[Path, ...]
    workload: str
    data: Path | None
    batch: int
    width: int
    names: tuple[str, ...]
    train: bool
    rounds: int
    seed: int
    json_file: Path | None
    merge: bool


@click.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path))
@click.option(
    "--workload",
    type=click.Choice(WORKLOADS),
    default="python-ast",
    show_default=True,
    help="python-ast: a child-sum Tree-LSTM over the functions of Python's own standard library. "
    "sst: a binary Tree-LSTM over the Stanford Sentiment Treebank.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The folder of the treebank's train.txt, or one of its files; or a folder of Python files "
    "instead of the standard library.",
)
@click.option("--batch", type=click.IntRange(1), default=16, show_default=True, help="Examples.")
@click.option("--width", type=click.IntRange(1), default=64, show_default=True, help="Of states.")
@click.option("--backend", "names", multiple=True, metavar="NAME", help="May be repeated.")
@click.option("--train", is_flag=True, help="Forward and backward, where there are gradients.")
@rounds_option(5, "Runs to take the median of; fewer of a way that takes seconds.")
@seed_option
@json_option
@click.option("--merge", is_flag=True, help="Measure nothing: print one table of such FILES.")
@gathered(CompareOptions)
def compare(options: CompareOptions) -> None:
    """Run a model one example at a time, and folded.

    The model, its weights and the minibatch are the same for all backends that are installed. Both ways
    are timed on it in turn, on one thread unless OMP_NUM_THREADS and its like say otherwise; the difference
    is the largest one between their results.
    """
    from multifold._measure import machine, results

    if options.merge != bool(options.files):
        raise click.UsageError("--merge and FILES go together: multifold compare --merge FILES")
    if options.merge:
        rows = [row for file in options.files for row in results.read(file, WORDS, FIGURES)]
    else:
        machine.ask_for_one_thread()
        backends = [load(name) for name in dict.fromkeys(options.names)] or usable()
        benchmark = read_benchmark(options.workload, options.data, options.width, max(options.batch, READ))
        # Two ways for each backend, and before the timed steps two that are not: see `timing.UNTIMED`.
        with progress("", len(backends) * 2 * (2 + options.rounds)) as bar:
            rows = [
                {"workload": options.workload, **measure(benchmark, backend, options, bar)}
                for backend in backends
            ]
    if not rows:
        raise MultifoldError("Expected rows of multifold compare. The files are empty.")
    show(rows)
    if options.json_file is not None:
        results.write(options.json_file, rows)


def usable() -> list[Backend]:
    """Return the installed backends that can be imported; name the others on stderr."""
    backends = []
    for name in registry.installed_backends():
        try:
            backends.append(load(name))
        except BackendError as error:
            click.echo(f"{name} is left out: {' '.join(str(error).split())}", err=True)
    return backends


def read_benchmark(workload: str, data: Path | None, width: int, limit: int) -> Benchmark:
    """Read the examples of a workload, showing a progress bar, and return a benchmark with them.

    ``data`` is a file or folder, or None; ``limit`` is how many functions are read.
    """
    from multifold._measure.workloads import WORKLOADS as KNOWN

    found = KNOWN[workload]
    with progress(f"reading {workload}", 1) as bar:
        examples = found.read(data, limit, bar.reach)
    return found.benchmark(examples, width)


def measure(benchmark: Benchmark, backend: Backend, options: CompareOptions, bar: Bar) -> Row:
    """Return the row of one backend, of results by name.

    If measuring raises a `BackendError`, the row has a ``note`` that says so, and no results.
    """
    from multifold._measure.compare import compare

    try:
        return compare(
            benchmark,
            backend,
            batch=options.batch,
            train=options.train,
            rounds=options.rounds,
            seed=options.seed,
            advance=bar.advance,
        )
    except BackendError as error:
        return {"command": "compare", "backend": backend.name, "note": f"skipped: {error.message}"}


def show(rows: list[Row]) -> None:
    """Print a table with a line for each row, and the `remarks` below it."""
    heads = ["<backend", *(head for head, _ in COLUMNS.values())]
    show_table(heads, [cells(row) for row in rows], "\n".join(remarks(rows)))


def cells(row: Row) -> list[Any]:
    """Return the cells of a row, in the order of the columns.

    A row with a note has the name of its backend, empty cells, and the note in the last one.
    """
    if "note" in row:
        return [row["backend"], *[""] * (len(COLUMNS) - 1), row["note"]]
    return [row["backend"], *(shown.format(row[name]) for name, (_, shown) in COLUMNS.items())]


def remarks(rows: list[Row]) -> list[str]:
    """Return lines for below the table: what was measured, and which backends compile at first."""
    rows = [row for row in rows if "note" not in row]
    settings = {(row["workload"], row["mode"], row["batch"], row["width"]) for row in rows}
    words = {"train": "forward and backward", "infer": "forward"}
    said = [
        f"{workload}, {words.get(mode, mode)}, {batch} examples, width {width}: medians over one minibatch"
        for workload, mode, batch, width in sorted(settings)
    ]
    if rows:
        said.append("one by one: a launch for each call; difference: the largest between both results")
        said.append("on one thread, where no variable as OMP_NUM_THREADS says otherwise")
    for row in rows:
        # A first run that takes ten times as long as others has compiled something.
        if row["first_ms"] > 10 * row["fold_ms"]:
            said.append(f"{row['backend']}: {row['first_ms']:,.0f} ms folded for the first time")
    return said
