"""``multifold bench``: what recording, planning and a step cost, where the time goes, and experiments."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from multifold.cli.compare import usable
from multifold.cli.output import in_a_folder, json_option, load, progress, show_table
from multifold.errors import BackendError, MultifoldError

TASKS = (
    *("synthetic", "sst", "sentences", "python-ast", "tagger", "sick", "spinn", "mnist"),
    *("listops", "plans", "lattice", "mv-rnn", "fold-2017-same", "fold-2017-different", "parser"),
)
"""What has a model and examples."""

seed_option = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the examples."
)


def rounds_option(default: int) -> Any:
    """Return the option that says how often something is timed."""
    return click.option(
        "--rounds",
        type=click.IntRange(1),
        default=default,
        show_default=True,
        help="How often each is timed.",
    )


@click.group()
def bench() -> None:
    """Measure what things cost: recording, planning, and a step against other ways.

    How many threads a framework uses is for its own variables to say, OMP_NUM_THREADS for most.
    """


# ---- record --------------------------------------------------------------------------------------


@bench.command()
@click.option("--batch", type=click.IntRange(1), default=128, show_default=True, help="Trees.")
@rounds_option(30)
@seed_option
@json_option
def record(batch: int, rounds: int, seed: int, json_file: Path | None) -> None:
    """Record random binary trees: microseconds for each call of Fold.add.

    The recursion alone is what the recording program does without its calls of add and split.
    """
    from multifold.bench import results
    from multifold.bench.record import measure_recording

    with progress("", rounds + 1) as bar:
        row = measure_recording(batch, rounds, seed, bar.advance)
    columns = ("<us a call", "lower quartile", "median", "upper quartile")
    names = {"record_us": "recording", "bare_us": "the recursion alone"}
    rows = [(name, *(f"{x:.2f}" for x in row[key])) for key, name in names.items()]
    caption = f"{batch} random binary trees, {row['calls']:,.0f} calls, {rounds} rounds, {row['version']}"
    show_table(columns, rows, caption)
    if json_file is not None:
        results.write(json_file, [row])


# ---- plan ----------------------------------------------------------------------------------------


@bench.command()
@click.option("--workload", "workloads", multiple=True, metavar="NAME", help="May be repeated.")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME",
    default=("auto", "traces", "depth", "agenda"),
    show_default=True,
    help="What Fold(schedule=...) takes, or traces: merged ones. May be repeated.",
)
@click.option("--batch", type=click.IntRange(1), help="Examples; by default the workload's number.")
@rounds_option(5)
@seed_option
@json_option
def plan(
    workloads: tuple[str, ...],
    policies: tuple[str, ...],
    batch: int | None,
    rounds: int,
    seed: int,
    json_file: Path | None,
) -> None:
    """Schedule generated graphs: launches, lower bound, certificate, and microseconds a node."""
    from multifold.bench import results
    from multifold.bench.generators import WORKLOADS
    from multifold.bench.plan import measure_planning

    names = list(workloads or WORKLOADS)
    table, rows = [], []
    with progress("", len(names) * len(policies) * rounds) as bar:
        for name in names:
            found = measure_planning(
                name, policies, batch=batch, rounds=rounds, seed=seed, advance=bar.advance
            )
            rows += found
            facts = found[0]
            cells = [f"{name} b{facts['batch']}", f"{facts['nodes']:,}"]
            cells += [facts["types"], facts["lower_bound"]]
            for row in found:
                optimal = " optimal" if row["certificate"] == "optimal" else ""
                cells += [f"{row['launches']}{optimal}", f"{row['plan_us'][1]:.2f}"]
            table.append(cells)
    columns = ["<graph", "nodes", "types", "lower\nbound"]
    columns += [column for policy in policies for column in (policy, "us/node")]
    show_table(columns, table, f"medians of {rounds} rounds")
    if json_file is not None:
        results.write(json_file, rows)


# ---- step ----------------------------------------------------------------------------------------


def names_of(context: click.Context, option: click.Parameter, value: str) -> list[str]:
    """Return the names in a list with commas."""
    names = list(dict.fromkeys(name for part in value.split(",") if (name := part.strip())))
    if not names:
        raise click.BadParameter("Expected at least one name.")
    return names


@bench.command()
@click.option("--backend", "backend_name", required=True, metavar="NAME", help="The framework.")
@click.option(
    "--workload",
    type=click.Choice(TASKS),
    default="synthetic",
    show_default=True,
    help="What is computed.",
)
@click.option("--data", type=click.Path(path_type=Path), metavar="PATH", help="Where its files are.")
@click.option(
    "--contenders",
    callback=names_of,
    default="loop,hand,fold,fold-traced",
    show_default=True,
    metavar="NAMES",
    help="loop, loop-jit, unfold, stacked, hand, hand-cat, hand-frontier, fold, fold-jit, fold-traced, "
    "fold-program, dynet; with commas between.",
)
@click.option("--width", "widths", type=click.IntRange(1), multiple=True, default=(100,))
@click.option("--batch", "batches", type=click.IntRange(1), multiple=True, default=(128,))
@click.option("--train/--infer", default=False, help="With or without gradients.")
@rounds_option(20)
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=20.0,
    show_default=True,
    help="Seconds after which a contender leaves, if it had three rounds.",
)
@click.option(
    "--dynet-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A Python that has DyNet (pip install dynet38), for the contender dynet.",
)
@click.option(
    "--dynet-autobatch",
    type=click.Choice(("0", "1", "2", "3")),
    default="1",
    show_default=True,
    help="DyNet's own option: 0 off, 1 by agenda, 2 by depth.",
)
@seed_option
@json_option
def step(
    backend_name: str,
    workload: str,
    data: Path | None,
    contenders: list[str],
    widths: tuple[int, ...],
    batches: tuple[int, ...],
    train: bool,
    rounds: int,
    seconds: float,
    dynet_python: Path | None,
    dynet_autobatch: str,
    seed: int,
    json_file: Path | None,
) -> None:
    """Time a step of training or inference against other ways to compute it.

    All contenders see the same minibatches in turn, a new one each round, and every result is checked:
    on the first minibatch, values and gradients must equal those of the loop.
    """
    from multifold.bench import dynet_process, results
    from multifold.bench.step import WARMUP, measure_step
    from multifold.bench.workloads import WORKLOADS

    backend = load(backend_name)
    others = {}
    if "dynet" in contenders:
        if dynet_python is None:
            raise MultifoldError(
                "Expected --dynet-python for the contender 'dynet'.",
                "pip install dynet38 into an environment of its own, and name its Python.",
            )
        others["dynet"] = dynet_process.contender(dynet_python, int(dynet_autobatch))
    with progress(f"reading {workload}", 1) as bar:
        examples = WORKLOADS[workload].read(data, 2048, bar.reach)
    sizes = [(width, batch) for width in widths for batch in batches]
    rows = []
    with progress("", len(sizes) * len(contenders) * (2 + WARMUP + rounds)) as bar:
        for width, batch in sizes:
            found = measure_step(
                WORKLOADS[workload].task(examples, width),
                backend,
                contenders,
                batch=batch,
                train=train,
                rounds=rounds,
                seconds=seconds,
                seed=seed,
                others=others,
                advance=bar.advance,
            )
            rows += [{"workload": workload, **row} for row in found]
    ratios = {f"/ {name}": to for name, to in RATIOS.items() if name in contenders}
    columns = ["<contender", "width", "batch", "ms", "quartiles", *ratios, "first\nms"]
    columns += ["launches", "rows/\nlaunch", "nodes/s", "peak\nMB"]
    show_table(columns, [cells(row, ratios.values()) for row in rows], "\n".join(remarks(rows)))
    if json_file is not None:
        results.write(json_file, rows)


RATIOS = {"hand": "to_hand", "hand-cat": "to_hand_cat"}
"""Whom the others are compared with, and how a row calls the ratio."""


def cells(row: dict[str, Any], ratios: Iterable[str]) -> list[Any]:
    """Return the cells of a contender, with the ratios that are asked for."""
    low, high = row["quartiles_ms"]
    launches, peak = row["launches"], row["peak_bytes"]
    return [
        row["contender"],
        row["width"],
        row["batch"],
        f"{row['median_ms']:,.1f}",
        f"{low:,.1f}-{high:,.1f}",
        *(f"{row[ratio]:.2f}" for ratio in ratios),
        f"{row['first_ms']:,.0f}",
        "" if launches is None else f"{launches:,.0f}",
        "" if launches is None else f"{row['mean_rows']:,.1f}",
        f"{row['nodes_per_second']:,.0f}",
        "" if peak is None else f"{peak / 1e6:,.1f}",
    ]


def remarks(rows: list[dict[str, Any]]) -> list[str]:
    """Return what holds for all rows, and what a reader might miss."""
    said = []
    for row in {(row["width"], row["batch"]): row for row in rows}.values():
        said.append(
            f"{row['workload']}, {row['backend']}, {row['mode']}, width {row['width']}: "
            f"{row['nodes']:,.0f} nodes, lower bound {row['lower_bound']:,.0f} launches; "
            f"recording {row['record_ms']:.1f} ms, scheduling {row['plan_ms']:.1f} ms"
        )
        if row["launches_by_round"]:
            said.append(remark_on_rounds(row["launches_by_round"], row["bound_by_round"]))
    folds = {row["contender"] for row in rows if row["contender"].startswith("fold")}
    if rows[0]["backend"] == "jax" and folds:
        said.append("jax compiles a fold anew for the shapes of each minibatch, which is inside its times")
    if rows[0]["backend"] == "jax" and len(folds) > 1:
        said.append("whoever meets these shapes second profits: give fold and fold-traced a run each")
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


# ---- profile -------------------------------------------------------------------------------------


@bench.command()
@click.option("--backend", "names", multiple=True, metavar="NAME", help="May be repeated; all by default.")
@click.option("--workload", type=click.Choice(TASKS), default="synthetic", show_default=True)
@click.option("--data", type=click.Path(path_type=Path), metavar="PATH", help="Where its files are.")
@click.option("--width", type=click.IntRange(1), default=100, show_default=True)
@click.option("--batch", type=click.IntRange(1), default=128, show_default=True)
@click.option("--train/--infer", default=False, help="With or without gradients.")
@rounds_option(20)
@seed_option
@json_option
def profile(
    names: tuple[str, ...],
    workload: str,
    data: Path | None,
    width: int,
    batch: int,
    train: bool,
    rounds: int,
    seed: int,
    json_file: Path | None,
) -> None:
    """Split the time of a step by phase: record, plan, wiring, upload, gather, op, backward.

    Every round has a new minibatch. For traces, plan and wiring are what merging them takes.
    """
    from multifold.bench import results
    from multifold.bench.profile import PHASES, shares
    from multifold.bench.profile import profile as measure
    from multifold.bench.workloads import WORKLOADS

    backends = [load(name) for name in dict.fromkeys(names)] or usable()
    with progress(f"reading {workload}", 1) as bar:
        examples = WORKLOADS[workload].read(data, 2048, bar.reach)
    task, rows = WORKLOADS[workload].task(examples, width), []
    with progress("", len(backends) * 2 * (1 + rounds)) as bar:
        for backend in backends:
            try:
                rows += measure(
                    task, backend, batch=batch, train=train, rounds=rounds, seed=seed, advance=bar.advance
                )
            except BackendError as error:
                click.echo(f"{backend.name} is left out: {error.message}", err=True)
    table = [
        [
            row["backend"],
            row["contender"],
            f"{row['total_ms']:,.1f}",
            *(f"{ms:,.1f} {share:4.0%}" for _, ms, share in shares(row)),
        ]
        for row in rows
    ]
    mode = "forward and backward" if train else "forward"
    caption = f"{workload}, {mode}, {batch} examples, width {width}: medians of {rounds} minibatches, ms"
    show_table(["<backend", "<contender", "step", *PHASES], table, caption)
    if json_file is not None:
        results.write(json_file, rows)


# ---- experiments ---------------------------------------------------------------------------------


def paths_of(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> dict[str, Path]:
    """Return the paths by workload."""
    found = {}
    for value in values:
        name, equals, path = value.partition("=")
        if not equals or name not in TASKS:
            raise click.BadParameter(f"Expected WORKLOAD=PATH, with one of {', '.join(TASKS)}.")
        found[name] = Path(path)
    return found


@bench.command()
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
@click.option("--backend", "names", multiple=True, metavar="NAME", help="May be repeated; all by default.")
@click.option("--experiment", "letters", multiple=True, metavar="LETTER", help="May be repeated; all.")
@click.option(
    "--data",
    multiple=True,
    callback=paths_of,
    metavar="WORKLOAD=PATH",
    help="Where the files of a workload are (sst, sick, spinn, tagger, listops, plans, mnist). Without "
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
@click.option(
    "--dynet-python",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A Python that has DyNet (pip install dynet38): a contender of experiment a, beside torch.",
)
@seed_option
@click.option(
    "--report",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write a page and figures of all rows there; needs matplotlib.",
)
@click.option("--remark", default="", metavar="TEXT", help="What readers of the report must know, too.")
@click.option("--merge", is_flag=True, help="Measure nothing: make the report of such FILES.")
def experiments(
    files: tuple[Path, ...],
    file: Path,
    names: tuple[str, ...],
    letters: tuple[str, ...],
    data: dict[str, Path],
    quick: bool,
    rounds: int | None,
    seconds: float | None,
    minutes: float | None,
    dynet_python: Path | None,
    seed: int,
    report: Path | None,
    remark: str,
    merge: bool,
) -> None:
    """Run the experiments of the sources on every framework that is installed here.

    They are: a, sentiment by minibatch size; b, with and without the framework's compiler; c, relatedness
    of sentence pairs; d, shift-reduce entailment; e, digits, one image at a time; f, TensorFlow Fold's
    benchmark; g, models with many types of calls.

    Each cell is written to the file when it is done, so a run can be interrupted and started again, and
    another environment can add its frameworks to the same file.
    """
    from multifold.bench import dynet_process, results
    from multifold.bench.experiments import EXPERIMENTS, Runner, Settings, run

    if merge != bool(files) or (merge and report is None):
        raise click.UsageError("--merge, FILES and --report go together")
    unknown = [letter for letter in letters if letter not in EXPERIMENTS]
    if unknown:
        raise click.BadParameter(f"Expected experiments out of {', '.join(EXPERIMENTS)}.")
    if report is not None:
        prepare_report(report)
    if not merge:
        settings = Settings(
            quick,
            rounds or (3 if quick else 7),
            (0.5 if quick else 5.0) if seconds is None else seconds,
            seed,
        )
        others = {} if dynet_python is None else {"dynet": dynet_process.contender(dynet_python, 1)}
        runner = Runner(file, data, settings, others, command_line(), remark)
        backends = [load(name) for name in dict.fromkeys(names)] or usable()
        chosen = [EXPERIMENTS[letter] for letter in dict.fromkeys(letters)] or list(EXPERIMENTS.values())
        with progress("", 1) as bar:
            limit = minutes if minutes is not None else 4.5 if quick else float("inf")
            left = run(runner, backends, chosen, limit, bar.say, bar.reach)
        click.echo(f"{file} holds {len(runner.done)} cells.")
        if left:
            click.echo(f"There was no time for {left} more: run the same command again to go on.", err=True)
    if report is not None:
        from multifold.bench import report as pages

        rows = [row for path in files or [file] for row in results.read(path)]
        if not any("experiment" in row for row in rows):
            raise MultifoldError(
                f"Expected rows of experiments in {', '.join(map(str, files or [file]))}. Received none.",
                "multifold bench experiments --json FILE writes them.",
            )
        click.echo(pages.write(report, rows))


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
            '`pip install "multifold[plot]"`, in a checkout `pip install ".[plot]"`.',
        ) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise click.BadParameter(f"The folder {folder} can't be made: {error}.") from error
