"""Asks the processes of two checkouts for repetitions by turns, compares what they computed, and judges.

*Here* is the checkout in which the command was started, and *there* is the one that it is compared with.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from multifold_bench.gates.figures import Figure, Line, Numbers, Results, ratio_of

HERE = Path(__file__).resolve().parents[3]
"""The checkout that this package is in."""

TOLERANCE = 1e-3
"""The difference allowed between results, relative to the largest magnitude of an array."""

STARTS = 3
"""How often both processes begin anew, with a part of the repetitions each.

Where its memory lies makes a process quicker or slower for as long as it lives, by more than some limits.
"""

WARMS_FROM = 1_000_000
"""The repetitions that warm up have numbers from here on."""

Pairs = list[tuple[Numbers, Numbers]]
"""What each repetition measured here, and there."""

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_NUM_INTEROP_THREADS": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "CUDA_VISIBLE_DEVICES": "",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "PYTHONHASHSEED": "0",
}


class Failed(Exception):
    """A figure that could not be measured.

    Parameters
    ----------
    reason : str
        Why, in one line.
    details : str
        The traceback of the process that measured, if there is one.
    """

    def __init__(self, reason: str, details: str = "") -> None:
        super().__init__(reason)
        self.details = details


class Missing(Failed):
    """A framework, or an interpreter for it, is not installed here."""


class Side:
    """The process of one checkout.

    Parameters
    ----------
    checkout : path
        Where multifold and its adapters are imported from.
    python : str
        The interpreter.
    framework : str
        The backend that is used.
    """

    def __init__(self, checkout: Path, python: str, framework: str) -> None:
        places = [checkout, checkout / "backends" / framework, HERE / "benchmarks"]
        environment = os.environ | ONE_THREAD | {"PYTHONPATH": os.pathsep.join(map(str, places))}
        # -P keeps the current folder, which may be a checkout, from being imported from.
        command = [python, "-P", "-m", "multifold_bench.gates.worker"]
        self.checkout = checkout
        self.framework = framework
        try:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
            )
        except OSError as error:
            raise Missing(f"no interpreter: {error}") from error

    def ask(self, method: str, *arguments: Any) -> Any:
        """Return what a method of the worker returns."""
        if self.process.stdin is None or self.process.stdout is None:
            raise RuntimeError("subprocess.Popen was told to make pipes.")
        try:
            pickle.dump((method, arguments), self.process.stdin)
            self.process.stdin.flush()
            status, answer = pickle.load(self.process.stdout)
        except (EOFError, BrokenPipeError) as error:
            raise Failed(f"the process of {self.checkout} ended in {method}") from error
        if status != "done":
            reason, _, text = answer.partition("\n")
            if reason.startswith(("BackendMissing", "ModuleNotFoundError")):
                raise Missing(reason)
            raise Failed(f"{method} in {self.checkout}: {reason}", text)
        return answer

    def start(self) -> bool:
        """Import the framework there; return whether compiled code runs."""
        return bool(self.ask("start", str(self.checkout), self.framework))

    def stop(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process.wait()


def refuse_unlike(compiled: Mapping[Path, bool]) -> None:
    """Refuse to compare a checkout whose compiled code runs with one whose does not."""
    if len(set(compiled.values())) > 1:
        lacking = next(checkout for checkout, runs in compiled.items() if not runs)
        built = "python setup.py build_ext --inplace"
        raise Failed(
            f"the compiled code of {lacking} does not run, that of the other checkout does: {built}"
        )


@contextlib.contextmanager
def both_sides(there: Path, python: str, framework: str) -> Iterator[tuple[Side, Side]]:
    """Run a process for each checkout while the block lasts."""
    sides: list[Side] = []
    try:
        for checkout in (HERE, there):
            sides.append(Side(checkout, python, framework))
        refuse_unlike({side.checkout: side.start() for side in sides})
        yield sides[0], sides[1]
    finally:
        for side in sides:
            side.stop()


@dataclass
class Verdict:
    """A line of a figure, measured and judged: a row of the table.

    Attributes
    ----------
    gate, framework, name : str
        The letter of the gate, the backend, and what was measured.
    here, there : float
        The medians of the two checkouts.
    ratio : tuple of float
        Of the ratios of here and there, repetition by repetition: the lower quartile, the median, which is
        judged, and the upper quartile. Where the line's largest ratio counts: the smallest, the largest,
        which is judged, and the largest again.
    unit, limit : str
        Of the medians; as the table shows it.
    met : bool or None
        None where the limit says nothing, or nothing could be measured.
    note, details : str
        Why there are no numbers, in one line and at length.
    """

    gate: str
    framework: str
    name: str
    here: float = float("nan")
    there: float = float("nan")
    ratio: tuple[float, float, float] = (float("nan"),) * 3
    unit: str = ""
    limit: str = ""
    met: bool | None = None
    note: str = ""
    details: str = ""

    @classmethod
    def of(cls, figure: Figure, line: Line, pairs: Pairs) -> Verdict:
        """Judge one line of a figure by what each repetition found here and there."""
        here = [line.of(mine) for mine, _ in pairs]
        there = [line.of(other) for _, other in pairs]
        ratios = [ratio_of(x, y) for x, y in zip(here, there, strict=True)]
        ratio = (min(ratios), max(ratios), max(ratios)) if line.worst else quartiles(ratios)
        value = statistics.median(here)
        return cls(
            gate=figure.gate,
            framework=figure.framework,
            name=f"{figure.name}: {line.what}",
            here=value,
            there=statistics.median(there),
            ratio=ratio,
            unit=line.unit,
            limit=line.limit,
            met=line.is_met(value, ratio[1]),
        )

    @classmethod
    def lacking(cls, gate: str, framework: str, name: str, failure: Failed) -> Verdict:
        """Say why there are no numbers; a framework that is missing fails no limit."""
        return cls(
            gate=gate,
            framework=framework,
            name=name,
            met=None if isinstance(failure, Missing) else False,
            note=str(failure),
            details=failure.details,
        )

    def cells(self) -> list[str]:
        """Return the cells of the table: gate, figure, here, there, unit, ratio, quartiles, limit, met."""
        low, middle, high = self.ratio
        met = {True: "yes", False: "NO", None: ""}[self.met]
        return [
            self.gate,
            f"{self.framework}, {self.name}",
            f"{self.here:.4g}",
            f"{self.there:.4g}",
            self.unit,
            f"{middle:.3f}",
            f"{low:.2f} to {high:.2f}",
            self.limit,
            met,
        ]


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def compare(results: Mapping[str, Results]) -> None:
    """Compare what all ways of both checkouts computed with the first of them.

    Raises
    ------
    Failed
        If they differ in names or shapes, or in values by more than `TOLERANCE`.

    Examples
    --------
    >>> compare({"here": {"traced": {"loss": np.ones(1)}}, "there": {"traced": {"loss": np.ones(1)}}})
    """
    ways = [(f"{way} {side}", found) for side, both in results.items() for way, found in both.items()]
    for name, found in ways[1:]:
        first, expected = ways[0]
        if found.keys() != expected.keys():
            raise Failed(f"{name} returned {', '.join(found)}, {first} {', '.join(expected)}")
        for what, right in expected.items():
            got = found[what]
            if got.shape != right.shape:
                raise Failed(f"{what}: {got.shape} of {name}, {right.shape} of {first}")
            difference = float(np.abs(got - right).max(initial=0.0))
            allowed = TOLERANCE * float(np.abs(right).max(initial=0.0))
            if not difference <= allowed:  # not (difference > allowed), which NaN would pass
                raise Failed(f"{what}: {name} and {first} differ by {difference:.3g}")


def measure(figure: Figure, sides: tuple[Side, Side], numbers: Iterable[int], quick: bool) -> Pairs:
    """Prepare a figure in both processes and take its repetitions by turns.

    ``numbers`` has a number for each repetition, from which both processes draw the same minibatch.
    """
    for side in sides:
        side.ask("prepare", figure.key, quick)
    here, there = sides
    pairs: Pairs = []
    warms = range(WARMS_FROM, WARMS_FROM + figure.warms)
    for number in [*warms, *numbers]:
        # Who goes first changes, so that neither always finds the caches that the other has left.
        order = sides if number % 2 else sides[::-1]
        found = {side: side.ask("repeat", number) for side in order}
        compare({"here": found[here][1], "there": found[there][1]})
        if number < WARMS_FROM:
            pairs.append((found[here][0], found[there][0]))
    return pairs


@dataclass
class Comparison:
    """What is measured, and by which interpreters.

    Attributes
    ----------
    there : path
        The other checkout.
    pythons : dict of str to str
        Interpreters by framework; by default the one that runs this.
    quick : bool
        Whether with small sizes and few repetitions.
    advance : callable
        Told what is measured next, once for each figure.
    """

    there: Path
    pythons: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False
    advance: Callable[[str], object] = lambda what: None


def measure_all(figures: Sequence[Figure], settings: Comparison) -> list[Verdict]:
    """Measure figures, with processes for each gate and framework; return all verdicts."""
    verdicts: list[Verdict] = []
    groups = dict.fromkeys((figure.gate, figure.framework) for figure in figures)
    for gate, framework in groups:
        chosen = [figure for figure in figures if (figure.gate, figure.framework) == (gate, framework)]
        try:
            verdicts += measure_group(chosen, framework, settings)
        except Failed as failure:
            verdicts.append(Verdict.lacking(gate, framework, "all figures", failure))
    return verdicts


def measure_group(figures: Sequence[Figure], framework: str, settings: Comparison) -> list[Verdict]:
    """Measure the figures of a gate on a framework, with new processes a few times; return verdicts."""
    python = settings.pythons.get(framework, sys.executable)
    pairs: dict[str, Pairs] = {figure.name: [] for figure in figures}
    failed: dict[str, Failed] = {}
    for start in range(STARTS):
        numbers = {
            figure.name: range(figure.quickly)
            if settings.quick
            else range(start, figure.repetitions, STARTS)
            for figure in figures
        }
        left = [figure for figure in figures if numbers[figure.name] and figure.name not in failed]
        if not left or (settings.quick and start):
            break
        with both_sides(settings.there, python, framework) as sides:
            for figure in left:
                if not start:
                    settings.advance(f"({figure.gate}) {framework}: {figure.name}")
                try:
                    pairs[figure.name] += measure(figure, sides, numbers[figure.name], settings.quick)
                except Failed as failure:
                    failed[figure.name] = failure
    verdicts: list[Verdict] = []
    for figure in figures:
        if figure.name in failed:
            verdicts.append(Verdict.lacking(figure.gate, framework, figure.name, failed[figure.name]))
        else:
            verdicts += [Verdict.of(figure, line, pairs[figure.name]) for line in figure.lines]
    return verdicts
