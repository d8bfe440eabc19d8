"""Runs experiments: each cell that is done is written at once and never measured again.

So a run may be interrupted, or continued with another backend in another environment.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from multifold._measure import machine
from multifold._measure.benchmark import Examples
from multifold._measure.contenders import Subject
from multifold._measure.results import Row
from multifold.backend import Backend
from multifold.errors import BackendError
from multifold_bench import results
from multifold_bench.contenders import CONTENDERS
from multifold_bench.experiments import Experiment
from multifold_bench.harness import Contender
from multifold_bench.step import Setting, gradients_of, measure_step
from multifold_bench.workloads import WORKLOADS

DRAWN = {"sst": "sentences"}
"""What stands for a workload that has no examples without a path."""

SLOW_JIT = "torch.compile takes half a minute for an op: in b only, and not in a quick run."
LEFT_OUT = {
    ("jax", "fold"): "JAX compiles each operation for each shape: seconds for each new minibatch.",
    ("jax", "fold-traced"): "as fold.",
    ("jax", "fold-jit"): "JAX would compile each op anew for each number of rows.",
}
"""(backend, contender) -> why it does not take part; in experiment b it does, if it can."""


@dataclass(frozen=True)
class Amount:
    """How much is done: what is not in the default of `multifold bench experiments`.

    Attributes
    ----------
    quick : bool
        Small sizes.
    rounds : int
        How often each contender is timed, each time on a new minibatch.
    seconds : float
        What a contender may use in a cell before it leaves.
    seed : int
        Of the minibatches.
    """

    quick: bool
    rounds: int
    seconds: float
    seed: int = 0


@dataclass(frozen=True)
class ExperimentCell:
    """One minibatch size of one workload, in one mode, for all contenders of an experiment."""

    experiment: Experiment
    workload: str
    mode: str
    width: int
    batch: int

    def key(self, backend: str, data: str, amount: Amount) -> tuple[Any, ...]:
        """Return the values of `KEY` and `ASKED`, which no other cell has."""
        name = self.experiment.name
        asked = amount.rounds, amount.seconds, amount.seed, amount.quick
        return name, self.workload, self.mode, self.width, self.batch, backend, data, *asked

    def setting(self, amount: Amount, reference: str) -> Setting:
        """Return how its steps are measured."""
        return Setting(
            batch=self.batch,
            train=self.mode == "train",
            rounds=amount.rounds,
            seconds=amount.seconds,
            seed=amount.seed,
            warmup=1,
            least=1 if amount.quick else 2,
            reference=reference,
        )


KEY = ("experiment", "workload", "mode", "width", "batch", "backend", "data")
ASKED = ("asked_rounds", "asked_seconds", "seed", "quick")


def key_of(row: Row) -> tuple[Any, ...]:
    """Return the key of the cell that a row belongs to."""
    return tuple(row.get(name) for name in (*KEY, *ASKED))


def cells(experiments: Iterable[Experiment], amount: Amount) -> Iterator[ExperimentCell]:
    """List the cells of experiments, in turn, so that a run that ends early has something of all."""

    def listed(experiment: Experiment) -> Iterator[ExperimentCell]:
        widths = experiment.quick_widths if amount.quick else experiment.widths
        batches = experiment.quick_batches if amount.quick else experiment.batches
        for batch, width in itertools.product(batches, widths):
            for mode in experiment.modes:
                yield ExperimentCell(experiment, experiment.workload, mode, width, batch)

    turns = itertools.zip_longest(*map(listed, experiments))
    return (cell for turn in turns for cell in turn if cell is not None)


class Runner:
    """Runs cells on backends, and keeps a file of their rows.

    Parameters
    ----------
    file : Path
        Where rows are kept; cells that it holds already are not run again.
    data : mapping
        Workload -> where its files are.
    amount : Amount
        How much is done.
    others : mapping
        More contenders by name.
    command, remark : str
        How the run was started, and what else its readers must know, for the record.
    """

    def __init__(
        self,
        file: Path,
        data: Mapping[str, Path],
        amount: Amount,
        others: Mapping[str, Callable[[Subject], Contender]],
        command: str,
        remark: str = "",
    ) -> None:
        self.file = file
        self.data = data
        self.amount = amount
        self.others = others
        self.command = command
        self.remark = remark
        results.mend(file)
        rows = results.read(file) if file.exists() else []
        counts = Counter(key_of(row) for row in rows if "experiment" in row)
        torn = {key_of(row) for row in rows if counts[key_of(row)] < row.get("of", 0)}
        if torn:  # of a run that ended while it wrote
            rows = [row for row in rows if key_of(row) not in torn]
            results.write(file, rows)
        self.done = set(counts) - torn
        self.known = {origin_of(row) for row in rows if "about" in row}
        self.examples: dict[str, Examples] = {}

    def is_done(self, cell: ExperimentCell, backend: Backend) -> bool:
        """Return whether the file has the rows of a cell."""
        return cell.key(backend.name, self.source(cell), self.amount) in self.done

    def source(self, cell: ExperimentCell) -> str:
        """Return where the examples come from: from files, or drawn; syntax trees are always read."""
        return "files" if cell.workload in self.data or cell.workload == "python-ast" else "drawn"

    def read(self, workload: str) -> Examples:
        """Return the examples of a workload, read once."""
        if workload not in self.examples:
            path = self.data.get(workload)
            name = workload if path is not None else DRAWN.get(workload, workload)
            self.examples[workload] = WORKLOADS[name].read(path, 2048, lambda done, total: None)
        return self.examples[workload]

    def run(self, cell: ExperimentCell, backend: Backend, advance: Callable[[str], object]) -> list[Row]:
        """Measure a cell, write its rows, and return them.

        Raises
        ------
        MismatchError
            If a contender computes something else; nothing is written then.
        """
        train = cell.mode == "train"
        facts = dict(
            zip((*KEY, *ASKED), cell.key(backend.name, self.source(cell), self.amount), strict=True)
        )
        if train and (gap := gradients_of(backend)):
            rows = [{**facts, "note": f"no gradients: {gap.partition('; ')[0]}."}]
        else:
            with machine.one_blas_thread(backend):
                rows = self.measure(cell, backend, facts, advance)
        results.append(self.file, [{**row, "of": len(rows)} for row in rows])
        self.done.add(key_of(rows[0]))
        return rows

    def measure(
        self, cell: ExperimentCell, backend: Backend, facts: Row, advance: Callable[[str], object]
    ) -> list[Row]:
        """Return the rows of a cell: those of the contenders, and a note for each that cannot take part."""
        name = cell.workload if cell.workload in self.data else DRAWN.get(cell.workload, cell.workload)
        benchmark = WORKLOADS[name].benchmark(self.read(cell.workload), cell.width)
        subject = Subject(benchmark, backend, benchmark.model().on(backend), cell.mode == "train")
        reasons = self.reasons(cell, subject)
        names = [contender for contender, reason in reasons.items() if reason is None]
        notes = [{**facts, "contender": x, "note": why} for x, why in reasons.items() if why is not None]
        if not names:
            return notes
        reference = names[0] if cell.batch > cell.experiment.alone and len(names) > 1 else "loop"
        what = f"{backend.name} {cell.experiment.name} {cell.workload} {cell.mode} x{cell.batch}"
        found = measure_step(
            benchmark,
            backend,
            names,
            cell.setting(self.amount, reference),
            others=self.others,
            advance=lambda name: advance(f"{what}: {name}"),
        )
        rows = []
        for row in found:
            where = self.environment(backend, row.pop("environment"))
            rows.append({**rounded(row), **facts, "environment": where, "date": today()})
        return rows + notes

    def reasons(self, cell: ExperimentCell, subject: Subject) -> dict[str, str | None]:
        """Return the contenders of a cell and why each does not take part, None if it does."""
        known = {**CONTENDERS, **self.others}
        found: dict[str, str | None] = {}
        for contender in cell.experiment.contenders:
            if contender not in known or (contender == "dynet" and subject.backend.name != "torch"):
                continue  # DyNet stands beside one framework, not beside each
            found[contender] = self.reason(cell, subject.backend, contender)
            if found[contender] is None:
                try:
                    known[contender](subject).close()
                except BackendError as error:
                    found[contender] = error.message
        return found

    def reason(self, cell: ExperimentCell, backend: Backend, contender: str) -> str | None:
        """Return why a contender does not take part in a cell, None if it does."""
        if contender.startswith("loop") and cell.batch > cell.experiment.alone:
            return f"one at a time is measured on {cell.experiment.alone} examples or fewer."
        compared = cell.experiment.name == "b" and not self.amount.quick
        if backend.name == "torch" and contender.endswith("-jit") and not compared:
            return SLOW_JIT
        return None if compared else LEFT_OUT.get((backend.name, contender))

    def environment(self, backend: Backend, about: Mapping[str, Any]) -> str:
        """Return the name of an environment; what it is becomes a line of its own, once."""
        about = {**about, "platform": f"{platform.system()} {platform.machine()}"}  # not whose machine
        name = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:8]
        line = {
            "environment": name,
            "backend": backend.name,
            "date": today(),
            "command": self.command,
            "remark": self.remark,
            "about": about,
        }
        if origin_of(line) not in self.known:  # another day or command adds to the same file
            self.known.add(origin_of(line))
            results.append(self.file, [line])
        return name


def today() -> str:
    """Return the date in UTC, as rows keep it."""
    return datetime.now(UTC).date().isoformat()


def origin_of(line: Row) -> tuple[Any, ...]:
    """Return what a line about an environment says, but for the environment itself."""
    return tuple(line.get(name) for name in ("environment", "date", "command", "remark"))


def rounded(value: Any) -> Any:
    """Return a value with all numbers at five digits, which is more than a time has.

    Examples
    --------
    >>> rounded({"median_ms": 12.3456789, "quartiles_ms": [1.0, 2.0000001]})
    {'median_ms': 12.346, 'quartiles_ms': [1.0, 2.0]}
    """
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def run(
    runner: Runner,
    backends: Sequence[Backend],
    experiments: Sequence[Experiment],
    minutes: float,
    advance: Callable[[str], object],
    told: Callable[[int, int], object],
) -> int:
    """Run what is not done yet; return how many cells there was no time for.

    Backends take turns at each cell, so that a run that ends early has as much of all of them.

    Parameters
    ----------
    runner : Runner
    backends, experiments : sequences
    minutes : float
        No cell is begun after that many minutes.
    advance : callable
        Told what runs next.
    told : callable
        Told how many cells are done, and how many there are.

    Raises
    ------
    DatasetError
        If files cannot be read; then nothing has run.
    """
    listed = [(cell, backend) for cell in cells(experiments, runner.amount) for backend in backends]
    for workload in {cell.workload for cell, _ in listed} & runner.data.keys():
        runner.read(workload)  # what is wrong with a file is said before hours are spent
    begin = time.monotonic()
    left = 0
    for place, (cell, backend) in enumerate(listed):
        told(place, len(listed))
        if runner.is_done(cell, backend):
            continue
        if time.monotonic() - begin > 60 * minutes:
            left += 1
            continue
        runner.run(cell, backend, advance)
    return left
