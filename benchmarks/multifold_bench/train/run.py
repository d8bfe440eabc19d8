"""The training loop: minibatches in an order that NumPy decides, scores each epoch, checkpoints.

The order of an epoch is drawn from a generator that is seeded with the run's seed and the epoch's
number, so it is the same on all frameworks and there is no state of it to keep: a checkpoint is the
weights, what the optimizer remembers, and the losses so far.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from multifold._engine.traces.trace import Trace
from multifold._measure.files import PathLike
from multifold.backend import Backend
from multifold.errors import MultifoldError
from multifold.models import Model
from multifold_bench.train import checkpoint, drawing
from multifold_bench.train.examples import OnStep, Recorded, digest, filler, record
from multifold_bench.train.objectives import Loss
from multifold_bench.train.ranks import Ranks, first, gather, join_ranks, share
from multifold_bench.train.seam import Trainer, load_backend, make_trainer
from multifold_bench.train.settings import Settings, SettingsError, refuse_others
from multifold_bench.train.tasks.task import TrainingTask

SETTINGS = "settings.json"
CHECKPOINT = "checkpoint.npz"
BEST = "best.npz"
RESULT = "result.json"
CURVES = "curves.png"
"""The files of a run."""

Scores = dict[str, float]
OnEpoch = Callable[[dict[str, Any]], object]


class DivergedError(MultifoldError, ArithmeticError):
    """A loss that is infinite or no number: no step after it can lead back."""


@dataclass
class Progress:
    """How far a run is; JSON.

    Attributes
    ----------
    epoch : int
        How many epochs are done.
    losses : list of float
        The losses of the steps of the next one.
    seconds : float
        What these steps took.
    history : list of dict
        For each epoch that is done what `Result.history` says of it.
    best : int or None
        The epoch, counted from 1, whose weights are kept.
    """

    epoch: int = 0
    losses: list[float] = field(default_factory=list)
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)
    best: int | None = None


@dataclass(frozen=True)
class Result:
    """What training leaves.

    Attributes
    ----------
    model : object
        The framework's model, with the weights of the best epoch.
    history : list of dict
        For each epoch its number ``"epoch"`` from 1 on, its mean ``"loss"``, the ``"losses"`` of its
        steps, ``"seconds"``, and the scores on the development part, ``"dev"``.
    best : int
        The epoch with the best score there.
    test : dict of str to float
        The scores of the best weights on the test part.
    outputs : sequence of arrays
        The rows of each example of the test part, from the same weights.
    """

    model: Any
    history: list[dict[str, Any]]
    best: int
    test: Scores
    outputs: Sequence[np.ndarray] = ()

    @property
    def dev(self) -> Scores:
        """The scores of the best epoch on the development part."""
        found: Scores = self.history[self.best - 1]["dev"]
        return found


def train(
    task: TrainingTask,
    out: PathLike,
    backend: str | Backend = "torch",
    settings: Settings | None = None,
    *,
    device: Any = None,
    save_seconds: float = 30.0,
    on_step: OnStep | None = None,
    on_epoch: OnEpoch | None = None,
    ranks: Ranks | None = None,
) -> Result:
    """Train a model, or go on with a run that was interrupted at whatever moment.

    A run that goes on ends with the weights of one that was never interrupted, where the framework
    computes the same twice: PyTorch on a CPU does. Where a launcher has started several processes, all of
    them call this, and train one model together.

    Parameters
    ----------
    task : TrainingTask
        The examples, the model and the scores.
    out : path
        The folder of the run, made if need be: ``settings.json``, ``checkpoint.npz``, ``best.npz`` with
        the best weights (`load` of a `multifold.models.Model` reads them, on any framework),
        ``result.json``, and ``curves.png`` where Matplotlib is installed.
    backend : str or Backend
        The framework.
    settings : Settings, optional
        How; by default as the task proposes.
    device : optional
        Where the model lives, as the framework spells it.
    save_seconds : float
        How often, in seconds, a checkpoint is written besides the one after each epoch: what a kill
        costs at most. It changes nothing of the result.
    on_step : callable, optional
        ``on_step(what, done, total)``: what is being done, and how much of it is.
    on_epoch : callable, optional
        Called with an entry of `Result.history` after each epoch; first for those done before, which
        have an entry ``"before"`` more.
    ranks : Ranks, optional
        The processes that train together; by default as many as the variables of a launcher say.
        Only the first one calls ``on_step`` and ``on_epoch``, and only it writes files.

    Raises
    ------
    SettingsError
        If the folder holds a run with other settings, examples or framework, or if the model of the task
        is no `multifold.models.Model`.
    CheckpointError
        If a file of the run was damaged.
    DivergedError
        If a loss is infinite or no number; the message names the step.
    BackendError
        If the backend cannot train.
    """
    out = Path(out)
    seam = load_backend(backend)
    ranks = join_ranks(seam) if ranks is None else ranks
    if on_step is None or ranks.rank:
        on_step = lambda what, done, total: None  # noqa: E731
    if on_epoch is None or ranks.rank:
        on_epoch = lambda entry: None  # noqa: E731
    if not isinstance(settings, Settings | None):
        raise SettingsError(
            f"Expected settings of the class Settings. Received a {type(settings).__name__}.",
            "task.settings(epochs=2) returns those that the task proposes, but for the named ones.",
        )
    settings = task.settings() if settings is None else task.settled(settings)
    about, trainer, parts = prepared(task, out, seam, settings, device, on_step, ranks)
    with checkpoint.locked(out) if not ranks.rank else contextlib.nullcontext():
        run = _Run(task, settings, out, trainer, parts, save_seconds, on_step, ranks)
        return run_to_its_end(run, about, on_epoch)


def prepared(
    task: TrainingTask,
    out: Path,
    seam: Backend,
    settings: Settings,
    device: Any,
    on_step: OnStep,
    ranks: Ranks,
) -> tuple[dict[str, Any], Trainer, dict[str, Recorded]]:
    """Return what a run is started with, its trainer and its recorded parts; refuse a folder of another."""
    about = {"task": task.name, "backend": seam.name, **settings.record()}
    if task.vectors is not None:
        about["vectors"] = task.vectors
    kept = settings_in(out)
    if kept is not None:  # before examples are recorded, which takes a while
        refuse_others(about | {"examples": kept.get("examples")}, kept, str(out))
    written = task.model(settings)
    model = placed(written, seam, device)
    parts = {name: record(task, written, name, on_step) for name in ("train", "dev", "test")}
    about["examples"] = digest(parts)
    if kept is not None:
        refuse_others(about, kept, str(out))
    # Losses of ranks are summed. The first one, which has examples in each step, penalises the weights.
    loss = Loss(task.objective, 0.0 if ranks.rank else settings.l2)
    epoch_steps = math.ceil(len(parts["train"].traces) / settings.batch)
    fill = filler(task, written, parts["train"])
    several = (ranks,) if ranks.count > 1 else ()
    trainer = make_trainer(seam, model, loss, settings, epoch_steps, fill, *several)
    return about, trainer, parts


def settings_in(out: Path) -> dict[str, Any] | None:
    """Return what the run in a folder was started with, None if the folder holds none."""
    if (out / SETTINGS).exists():
        return dict(checkpoint.read_json(out / SETTINGS))
    if (out / CHECKPOINT).exists():
        raise checkpoint.CheckpointError(
            f"Expected {SETTINGS} beside the checkpoint in {out}. Received none.",
            "only that file says what the run was: begin another one in a folder of its own.",
        )
    return None


def run_to_its_end(run: _Run, about: dict[str, Any], on_epoch: OnEpoch) -> Result:
    """Go on where a run was left, and train the epochs that are missing."""
    run.load()
    if run.progress.epoch > run.settings.epochs:
        raise SettingsError(
            f"Expected {run.progress.epoch} epochs or more, which the run in {run.out} has done. "
            f"Received epochs={run.settings.epochs}.",
            "a run goes on, it does not go back: begin another one in a folder of its own.",
        )
    if not run.ranks.rank:
        checkpoint.write_json(run.out / SETTINGS, about)
    for entry in run.progress.history:
        on_epoch({**entry, "before": True})
    try:
        while run.progress.epoch < run.settings.epochs:
            on_epoch(run.one_epoch())
    finally:  # also of a run that is interrupted, or whose loss is no number any more
        run.draw()
    return run.finish()


def placed(written: Any, seam: Any, device: Any) -> Any:
    """Return a model of a framework on a device, before anything else is done."""
    if not isinstance(written, Model):
        own = f", a model of {seam.name}" if seam.hosts(written) else ""
        raise SettingsError(
            f"Expected a multifold.models.Model. Received {type(written).__qualname__}{own}.",
            "write it over multifold.ops or as a block, Layers(block), so that every framework can run it; "
            "or train it in a loop of your own, with Fold.run for each minibatch.",
        )
    try:
        return written.on(seam, device)
    except Exception as error:
        if device is None or isinstance(error, MultifoldError):
            raise
        raise SettingsError(
            f"The model could not be put on device {device!r}: {type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}",
            "leave --device out to use the framework's own.",
        ) from error


@functools.lru_cache(maxsize=1)
def order(seed: int, epoch: int, count: int) -> np.ndarray:
    """Return the order of the examples in an epoch, counted from 0.

    Examples
    --------
    >>> order(0, 0, 5), order(0, 1, 5)
    (array([2, 4, 3, 0, 1]), array([1, 4, 3, 0, 2]))
    """
    return np.random.default_rng([seed, epoch]).permutation(count)


class _Run:
    """A run in its folder."""

    def __init__(
        self,
        task: TrainingTask,
        settings: Settings,
        out: Path,
        trainer: Trainer,
        parts: dict[str, Recorded],
        save_seconds: float,
        on_step: OnStep,
        ranks: Ranks,
    ) -> None:
        self.task = task
        self.settings = settings
        self.out = out
        self.trainer = trainer
        self.parts = parts
        self.save_seconds = save_seconds
        self.on_step = on_step
        self.ranks = ranks
        self.costs = [len(trace) for trace in parts["train"].traces]
        self.steps = math.ceil(len(self.costs) / settings.batch)
        self.progress = Progress()

    def load(self) -> None:
        """Go back to the last checkpoint, if there is one."""
        path = self.out / CHECKPOINT
        mine = not self.ranks.rank and path.exists()
        found = first(self.ranks, checkpoint.read_arrays(path) if mine else None)
        if found is None:
            return
        arrays, progress = found
        halves: dict[str, dict[str, np.ndarray]] = {"weights": {}, "optimizer": {}}
        try:
            self.progress = Progress(**progress)
            for name, value in arrays.items():
                half, _, rest = name.partition("/")
                halves[half][rest] = value
        except (TypeError, KeyError) as error:
            raise checkpoint.CheckpointError(
                f"Expected the checkpoint of a run in {path}. Received other entries: {error}.",
                "was it changed, or written by another program?",
            ) from error
        self.trainer.model.assign(halves["weights"])
        self.trainer.restore(halves["optimizer"])
        for epoch in range(self.progress.epoch + 1):
            before = epoch < self.progress.epoch
            for step in range(self.steps if before else len(self.progress.losses)):
                _, traces, rows = self.minibatch(epoch, step)
                self.trainer.skip(traces, len(rows))

    def minibatch(self, epoch: int, step: int) -> tuple[int, list[Trace], np.ndarray]:
        """Return how many examples a step has, and the traces and targets of those of this process."""
        traces, targets = self.parts["train"]
        batch = self.settings.batch
        places = order(self.settings.seed, epoch, len(traces))[step * batch : (step + 1) * batch].tolist()
        chosen = share(places, self.costs, self.ranks)
        rows = np.concatenate([targets[place] for place in chosen] or [targets[0][:0]])
        return len(places), [traces[place] for place in chosen], rows

    def save(self) -> None:
        """Write a checkpoint, as the first process."""
        if self.ranks.rank:
            return
        weights = {f"weights/{name}": x for name, x in self.trainer.model.weights().items()}
        state = {f"optimizer/{name}": x for name, x in self.trainer.state().items()}
        checkpoint.write_arrays(self.out / CHECKPOINT, weights | state, dataclasses.asdict(self.progress))

    def one_epoch(self) -> dict[str, Any]:
        """Do the steps of an epoch that are left, score it, and return its entry of the history."""
        progress = self.progress
        steps = self.steps
        what = f"epoch {progress.epoch + 1}/{self.settings.epochs}"
        saved = before = time.monotonic()
        for step in range(len(progress.losses), steps):
            together, traces, rows = self.minibatch(progress.epoch, step)
            loss = self.trainer.step(traces, rows, np.full(len(rows), 1 / together, np.float32))
            if not math.isfinite(loss):
                raise DivergedError(
                    f"Expected a loss that is a number. Received {loss} in step {step + 1} of {steps} of "
                    f"{what}, of the run in {self.out}.",
                    "train in another folder with a lower --rate, or look for log(0) and 0 / 0 in the "
                    "model; this folder keeps the best weights of the epochs before.",
                )
            progress.losses.append(loss)
            now = time.monotonic()
            progress.seconds += now - before
            before = now
            self.on_step(f"{what}, loss {loss:.4g}", step + 1, steps)
            if now - saved >= self.save_seconds:
                self.save()
                saved = time.monotonic()
        dev = self.scores("dev")
        if self.task.criterion not in dev:
            raise SettingsError(
                f"Expected the score '{self.task.criterion}', by which the best epoch is chosen. Received "
                f"{', '.join(dev)}.",
                "criterion= is one of the names that `score` returns.",
            )
        entry = {
            "epoch": progress.epoch + 1,
            "loss": math.fsum(progress.losses) / steps,
            "losses": progress.losses,
            "seconds": round(progress.seconds, 1),
            "dev": dev,
        }
        if progress.best is None or self.better(entry, progress.history[progress.best - 1]):
            # Before the checkpoint: whoever is killed in between repeats these steps, and this file.
            if not self.ranks.rank:
                checkpoint.write_arrays(self.out / BEST, self.trainer.model.weights())
            progress.best = progress.epoch + 1
        history = [*progress.history, entry]
        self.progress = Progress(progress.epoch + 1, history=history, best=progress.best)
        self.save()
        return entry

    def better(self, entry: dict[str, Any], other: dict[str, Any]) -> bool:
        """Return whether the scores of an epoch are better than those of another one before."""
        if not self.task.chooses:
            return True
        mine = entry["dev"][self.task.criterion]
        others = other["dev"][self.task.criterion]
        if math.isnan(mine) or math.isnan(others):
            return math.isnan(others) and not math.isnan(mine)
        return bool(mine < others if self.task.minimised else mine > others)

    def scores(self, part: str) -> Scores:
        """Score the weights as they are."""
        return self.task.scores(self.task.parts[part], self.outputs(part))

    def outputs(self, part: str) -> list[np.ndarray]:
        """Return the rows of each example of a part; each process runs its share of the minibatches."""
        traces, targets = self.parts[part]
        mine: dict[int, list[np.ndarray]] = {}
        batch = self.settings.batch  # a compiler knows minibatches of this size
        for start in range(self.ranks.rank * batch, len(traces), self.ranks.count * batch):
            chosen = slice(start, start + batch)
            ends = np.cumsum([len(target) for target in targets[chosen]])
            mine[start] = np.split(self.trainer.predict(traces[chosen], int(ends[-1])), ends[:-1])
            self.on_step(f"scoring {part}", min(start + batch, len(traces)), len(traces))
        found = {start: rows for shares in gather(self.ranks, mine) for start, rows in shares.items()}
        return [rows for start in sorted(found) for rows in found[start]]

    def draw(self) -> None:
        """Draw the curves of the epochs that are done, as the first process."""
        if self.progress.history and not self.ranks.rank:
            drawing.draw(self.out / CURVES, self.task, self.progress.history, self.progress.best)

    def finish(self) -> Result:
        """Score the best weights on the test part, and leave the model with them."""
        weights = first(self.ranks, None if self.ranks.rank else checkpoint.read_arrays(self.out / BEST)[0])
        self.trainer.model.assign(weights)
        history = self.progress.history
        best = self.progress.best or 0
        outputs = self.outputs("test")
        test = self.task.scores(self.task.parts["test"], outputs)
        result = {"best": best, "test": test, "history": history}
        if not self.ranks.rank:
            checkpoint.write_json(self.out / RESULT, _finite(result))
        return Result(self.trainer.model, history, best, test, outputs)


def _finite(value: Any) -> Any:
    """Return a value with None for NaN and infinities, which JSON has no numbers for."""
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
