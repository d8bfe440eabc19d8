"""``multifold train``: train a model on a data set, on any framework, and go on where it was killed."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from multifold.cli.options import json_option
from multifold.cli.output import load, progress, show_table

if TYPE_CHECKING:
    from multifold.backend import Backend
    from multifold_bench.train import Result, Settings
    from multifold_bench.train.ranks import Ranks
    from multifold_bench.train.tasks.task import Coverage, TrainingTask

TASKS = ("sst", "sick", "tagging", "segmentation", "listops", "snli", "plans", "digits")
"""The names in `multifold_bench.train.tasks.TASKS`, which help texts can say without importing it."""

OPTIMIZERS = ("adagrad", "adam", "sgd")
SCHEDULES = ("constant", "exponential", "cosine")

HELP = """Train a model with the framework's own optimizer; print the scores of its paper.

\b
sst           sentiment of phrases; a folder of train.txt, dev.txt, test.txt
sick          how related two sentences are; a folder of train, dev, test
tagging       names in sentences; CoNLL files with BIO tags
segmentation  words without spaces between them; CoNLL files
listops       nested operations over digits; tsv files, or none
snli          whether one sentence implies another; jsonl files
plans         run times of PostgreSQL's query plans; JSON files
digits        handwritten digits; MNIST's four files, or none

Where a folder is not divided into train, dev and test, or --data names one file, the examples are
divided 80 : 10 : 10. Options that are left out are as the task proposes.

The order of the examples and the initial weights are the same for all frameworks. A run may be killed
at any moment: the same command goes on with it.
"""

INTERRUPTED = 128 + 2
"""The exit code of a process that Ctrl-C has ended."""

WHOLE = click.IntRange(1)
SHARE = click.FloatRange(0)


@dataclass(frozen=True)
class TrainOptions:
    """What ``multifold train`` is asked for.

    ``chosen`` has the options that become `multifold_bench.train.Settings`, None where the task decides.
    """

    task_name: str
    data: Path | None
    vectors: Path | None
    backend_name: str
    out: Path
    device: str | None
    save_seconds: float
    shards: int | None
    json_file: Path | None
    chosen: Mapping[str, Any]


@click.command(help=HELP)
@click.argument("task_name", metavar="TASK", type=click.Choice(TASKS))
@click.option("--data", type=click.Path(path_type=Path), metavar="PATH", help="Where its files are.")
@click.option(
    "--vectors",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Pretrained vectors of words, in the text format of GloVe or word2vec.",
)
@click.option("--backend", "backend_name", required=True, metavar="NAME", help="The framework.")
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="The folder of the run. If it holds one, that goes on; with other settings it is refused.",
)
@click.option("--model", metavar="NAME", help="One of the task's models; its first one by default.")
@click.option("--width", type=WHOLE, help="Of states.")
@click.option("--epochs", type=WHOLE, help="How often all examples are seen.")
@click.option("--batch", type=WHOLE, help="Examples in a step.")
@click.option("--seed", type=click.IntRange(0), help="Of weights and order.")
@click.option("--optimizer", type=click.Choice(OPTIMIZERS), help="The framework's own.")
@click.option("--rate", type=SHARE, help="The learning rate at the beginning.")
@click.option("--schedule", type=click.Choice(SCHEDULES), help="How the learning rate falls.")
@click.option("--decay", type=SHARE, help="By what, after each epoch, if exponentially.")
@click.option("--accumulator", type=SHARE, help="Where the sums of squares of adagrad begin.")
@click.option("--l2", type=SHARE, help="Times half the sum of squared weights, added to the loss.")
@click.option(
    "--shards", type=WHOLE, help="Processes that share each minibatch; a launcher says it itself."
)
@click.option("--device", metavar="NAME", help="Where the model lives, as the framework spells it.")
@click.option(
    "--save-seconds",
    type=SHARE,
    default=30.0,
    show_default=True,
    help="How much work a kill may cost; the result is the same.",
)
@json_option
def train(**chosen: Any) -> None:
    """Train a model with the framework's own optimizer; print the scores of its paper."""
    run(
        TrainOptions(
            **{x.name: chosen.pop(x.name) for x in fields(TrainOptions) if x.name in chosen}, chosen=chosen
        )
    )


def run(options: TrainOptions) -> None:
    """Train, and print an epoch a line, then the scores."""
    from multifold_bench.train.ranks import join_ranks, start_ranks
    from multifold_bench.train.seam import load_backend

    try:
        backend = load_backend(load(options.backend_name))
        ranks = join_ranks(backend, options.shards)
        if (options.shards or 1) > ranks.count:
            # By default Python would end at once, and leave the processes behind.
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
            start_ranks(backend, options.shards or 1, ["-m", "multifold", *sys.argv[1:]])
            return
        result, task, settings = trained(options, backend, ranks)
    except KeyboardInterrupt:
        click.echo(f"\n{interrupted(options)}", err=True)
        raise SystemExit(INTERRUPTED) from None
    if ranks.rank:  # the first process says what all of them have found
        return
    dev = result.dev
    if options.json_file is not None:
        keep(options.json_file, {"task": options.task_name}, backend, settings, result)
    rows = [(name, *map(figure, scores.values())) for name, scores in (("dev", dev), ("test", result.test))]
    where = f"its weights are in {options.out}"
    caption = f"epoch {result.best} was the best by {task.criterion} on dev; {where}"
    if task.turns > 1:
        caption = f"{task.turns} trainings, in {options.out}: each example is tested by one without it"
    show_table(["<scores", *dev], rows, caption)


def interrupted(options: TrainOptions) -> str:
    """Return what is left of a run that was interrupted."""
    from multifold_bench.train.run import CHECKPOINT

    if any(options.out.rglob(CHECKPOINT)):
        again = f"goes on with the run in {options.out}; it repeats at most"
        return f"Interrupted: the same command {again} the last {options.save_seconds:g} s."
    return (
        f"Interrupted before the first checkpoint, which is written after {options.save_seconds:g} s of "
        "training or an epoch: nothing is kept, and the same command begins anew."
    )


def trained(options: TrainOptions, backend: Backend, ranks: Ranks) -> tuple[Result, TrainingTask, Settings]:
    """Train, and print an epoch a line: first those of before, if the folder holds a run."""
    from multifold_bench.train.tasks import find
    from multifold_bench.train.turns import refuse_early, train_turns

    done: list[Mapping[str, Any]] = []
    chosen = {name: x for name, x in options.chosen.items() if x is not None}
    refuse_early(find(options.task_name), options.out, backend, chosen)
    with progress("", 1) as bar:
        stages = set[str]()

        def say(what: str) -> None:
            bar.say(what)
            stage = what.partition(",")[0]  # without the loss
            if not (sys.stderr.isatty() or stage in stages or ranks.rank):
                stages.add(stage)
                click.echo(f"{stage} ...", err=True)  # a log has no bar, and minutes may pass

        verb = "making up" if options.data is None else "reading"
        say(f"{verb} the examples of {options.task_name}")
        task = find(options.task_name)(options.data, bar.reach)
        if options.vectors is not None:
            say("reading vectors")
            bar.print(coverage_line(task.use_vectors(options.vectors, bar.reach)))
        settings = task.settings(**chosen)

        def on_step(what: str, done: int, total: int) -> None:
            say(what)
            bar.reach(done, total)

        def on_epoch(entry: Mapping[str, Any]) -> None:
            if entry.get("before") and not done:
                bar.print(f"The run in {options.out} goes on; its epochs of before:")
            done.append(entry)
            if task.turns > 1 and entry["epoch"] < settings.epochs:
                return
            bar.print(epoch_line(entry, settings.epochs))
            if entry.get("before") and entry["epoch"] == settings.epochs:
                bar.print(f"All {settings.epochs} epochs are done: nothing is left to train (--epochs).")

        result = train_turns(
            task,
            options.out,
            backend,
            settings,
            device=options.device,
            save_seconds=options.save_seconds,
            on_step=on_step,
            on_epoch=on_epoch,
            ranks=ranks,
        )
    return result, task, settings


def keep(file: Path, task: dict[str, str], backend: Backend, settings: Settings, result: Result) -> None:
    """Write the row of a training to the file that was asked for."""
    from datetime import UTC, datetime

    from multifold._measure import results
    from multifold._measure.machine import describe

    today = datetime.now(UTC).date().isoformat()
    row = {"command": "train", "date": today, **task, "backend": backend.name, **settings.record()}
    history = [{k: x for k, x in entry.items() if k != "losses"} for entry in result.history]
    row |= {"best": result.best, "dev": result.dev, "test": result.test, "history": history}
    results.write(file, [row | {"machine": describe(backend)}])


def coverage_line(found: Coverage) -> str:
    """Return how many words pretrained vectors cover."""
    share = 100 * found.covered / max(found.words, 1)
    covered = f"{found.covered:,} of the {found.words:,} words of the examples ({share:.1f} %)"
    return f"vectors of {found.width} numbers for {covered}"


def epoch_line(entry: Mapping[str, Any], epochs: int) -> str:
    """Return what there is to say about an epoch."""
    scores = ", ".join(f"{name} {figure(value)}" for name, value in entry["dev"].items())
    head = f"epoch {entry['epoch']}/{epochs}: loss {figure(entry['loss'])}, {entry['seconds']:.0f} s"
    return f"{head}; dev: {scores}{' (before)' if entry.get('before') else ''}"


figure: Callable[[float], str] = "{:.4g}".format
