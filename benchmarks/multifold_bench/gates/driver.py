"""Asks the processes of two checkouts for repetitions by turns, compares what they computed, and judges."""

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

Where its memory lies makes a process quicker or slower for as long as it lives: planning by up to 20 %.
"""

WARMS_FROM = 1_000_000
"""The repetitions that warm up have numbers from here on."""

Pairs = list[tuple[Numbers, Numbers]]
"""What each repetition measured here and there."""

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
    """A figure that could not be measured, and why in one line."""


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
            print(text, file=sys.stderr)  # noqa: T201 - a program's own output
            raise Failed(f"{method} in {self.checkout}: {reason}")
        return answer

    def start(self) -> None:
        """Import the framework there."""
        self.ask("start", str(self.checkout), self.framework)

    def stop(self) -> None:
        """End the process."""
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        self.process.wait()


def uncompiled(checkout: Path) -> list[str]:
    """Return the modules of Cython that a checkout has not built."""
    sources = (checkout / "multifold").rglob("*.pyx")
    built = (".so", ".pyd")
    return [x.stem for x in sources if not any(y.suffix in built for y in x.parent.glob(f"{x.stem}.*"))]


@contextlib.contextmanager
def both_sides(there: Path, python: str, framework: str) -> Iterator[tuple[Side, Side]]:
    """Run a process for each checkout while the block lasts."""
    lacking = {checkout: uncompiled(checkout) for checkout in (HERE, there)}
    for checkout, names in lacking.items():
        if names and not all(lacking.values()):
            built = "python setup.py build_ext --inplace"
            raise Failed(f"{checkout} lacks the compiled {', '.join(names)}, the other does not: {built}")
    sides: list[Side] = []
    try:
        for checkout in (HERE, there):
            sides.append(Side(checkout, python, framework))
        for side in sides:
            side.start()
        yield sides[0], sides[1]
    finally:
        for side in sides:
            side.stop()


@dataclass
class Verdict:
    """A line of the table.

    Attributes
    ----------
    gate, framework, name : str
    here, there : float
        The medians of the two checkouts.
    ratio : tuple of float
        The quartiles of the ratios of here and there, repetition by repetition; where the largest counts,
        the smallest and twice the largest.
    unit, limit : str
    met : bool or None
        None where the limit says nothing, or nothing could be measured.
    note : str
        Why there are no numbers.
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
    """Prepare a figure in both processes and take the repetitions of these numbers, by turns."""
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
    tell : callable
        Told what is measured next.
    """

    there: Path
    pythons: Mapping[str, str] = field(default_factory=dict)
    quick: bool = False
    tell: Callable[[str], object] = lambda what: None


def measure_all(figures: Sequence[Figure], settings: Comparison) -> list[Verdict]:
    """Measure figures, with processes for each gate and framework; return all lines."""
    lines: list[Verdict] = []
    rooms = dict.fromkeys((figure.gate, figure.framework) for figure in figures)
    for gate, framework in rooms:
        chosen = [figure for figure in figures if (figure.gate, figure.framework) == (gate, framework)]
        try:
            lines += measure_room(chosen, framework, settings)
        except Missing as missing:
            lines.append(Verdict(gate, framework, "all figures", note=str(missing)))
        except Failed as failure:
            lines.append(Verdict(gate, framework, "all figures", note=str(failure), met=False))
    return lines


def measure_room(figures: Sequence[Figure], framework: str, settings: Comparison) -> list[Verdict]:
    """Measure the figures of one gate and framework, with new processes a few times; return their lines."""
    python = settings.pythons.get(framework, sys.executable)
    pairs: dict[str, Pairs] = {figure.name: [] for figure in figures}
    failed: dict[str, str] = {}
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
                settings.tell(f"({figure.gate}) {framework}: {figure.name}")
                try:
                    pairs[figure.name] += measure(figure, sides, numbers[figure.name], settings.quick)
                except Failed as failure:
                    failed[figure.name] = str(failure)
    lines: list[Verdict] = []
    for figure in figures:
        if figure.name in failed:
            note = failed[figure.name]
            lines.append(Verdict(figure.gate, framework, figure.name, note=note, met=False))
        else:
            lines += [Verdict.of(figure, line, pairs[figure.name]) for line in figure.lines]
    return lines


def table(lines: Sequence[Verdict]) -> str:
    """Return the lines as a table."""
    rows = [("gate", "figure", "here", "there", "ratio (quartiles)", "limit", "met")]
    for line in lines:
        name = f"{line.framework}, {line.name}"
        if line.note:
            rows.append((line.gate, name, line.note, "", "", "", ""))
            continue
        low, middle, high = line.ratio
        ratio = f"{middle:.3f} ({low:.2f} to {high:.2f})"
        here, there = (f"{x:.4g} {line.unit}".strip() for x in (line.here, line.there))
        met = {True: "yes", False: "NO", None: ""}[line.met]
        rows.append((line.gate, name, here, there, ratio, line.limit, met))
    widths = [max(len(row[i]) for row in rows if i != 2 or row[3]) for i in range(7)]
    return "\n".join(
        "  ".join(part.ljust(width) for part, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
