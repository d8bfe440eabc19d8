"""One pass over the device at hand: the tests on it, its copies and synchronisations, then times.

A GPU is often lent for minutes. So the pass has a limit in seconds, does what matters most first, and
keeps each row as soon as it is measured. On a machine without a GPU it runs on the CPU, as its test does.

A cell is one width with one batch. The first has 256 examples of width 300, for which there is a claim: 50
times as fast as the loop.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import multifold
from multifold._compare import machine
from multifold._compare.benchmark import Benchmark
from multifold._compare.results import Row
from multifold.backend import Backend
from multifold.errors import BackendError, LaunchError
from multifold_bench.step import Setting, measure_step
from multifold_bench.workloads import WORKLOADS

CELLS = [(300, 256), (100, 128), (1024, 256), (300, 16), (300, 1024), (100, 16), (100, 1024), (1024, 1024)]
"""Width and batch of each cell, the most important first."""

CONTENDERS = {
    "torch": ("loop", "hand", "fold", "fold-traced"),
    "jax": ("loop", "hand", "fold-program"),
}
"""Who takes part, by backend. JAX is measured by programs: an eager fold compiles each of its operations
for each new number of rows, which takes seconds a minibatch."""

MOST_FOR_THE_LOOP = 256
"""Examples that the loop still takes part with: it needs seconds for each step of more."""

SUITES = ("conformance", "behaviours", "known_answers", "wiring", "await")
"""The tests that run on the device: `tests/test_conformance.py` of a checkout, and so on."""

WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "cudaStreamSynchronize", "cudaDeviceSynchronize")
"""What PyTorch's profiler calls the moments at which the host waits for a device, or would wait for one."""

COPIES = ("Memcpy HtoD", "Memcpy DtoH", "aten::_to_copy")
"""What it calls copies between the two; on a CPU only the last one shows."""


@dataclasses.dataclass(frozen=True)
class Pass:
    """What is measured, and where.

    Attributes
    ----------
    backend : Backend
        The framework.
    device : str or None
        The device as the framework spells it; its default one if None.
    until : float
        The moment, by `time.monotonic`, at which nothing new begins.
    """

    backend: Backend
    device: str | None
    until: float

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.until - time.monotonic()

    def rows(self, checkout: Path | None, cells: Sequence[tuple[int, int]] = CELLS) -> Iterator[Row]:
        """Yield the rows of all stages, one after the other."""
        facts = {"backend": self.backend.name, "device": self.device, **machine.describe(self.backend)}
        yield {"stage": "about", **facts}
        if checkout is not None:
            yield {"stage": "tests", "backend": self.backend.name, **self.tests(checkout)}
        for calls in (10, 1000):
            found = self.transfers(calls)
            if found is not None:
                yield {"stage": "transfers", "backend": self.backend.name, "calls": calls, **found}
        yield from self.steps(cells)

    # ---- tests -------------------------------------------------------------------------------------

    def tests(self, checkout: Path) -> dict[str, Any]:
        """Run the tests of a checkout on the device; return pytest's last line, and what failed."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "--backend", self.backend.name]
        command += [] if self.device is None else ["--device", self.device]
        command += [str(checkout / "tests" / f"test_{name}.py") for name in SUITES]
        start = time.monotonic()
        limit = max(1.0, self.left / 3)
        try:
            done = subprocess.run(
                command, cwd=checkout, capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            return {"outcome": "not finished in a third of the time", "seconds": time.monotonic() - start}
        lines = done.stdout.strip().splitlines()
        failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
        return {
            "outcome": lines[-1] if lines else done.stderr.strip()[-200:],
            "failed": failed,
            "seconds": time.monotonic() - start,
        }

    # ---- copies and synchronisations -----------------------------------------------------------------

    def transfers(self, calls: int) -> dict[str, Any] | None:
        """Return what PyTorch's profiler counts in a fold of a chain; None for another framework.

        The waits are those of the whole run. ``torch.cuda.set_sync_debug_mode("error")`` raises where the
        host waits between the first launch and the last.
        """
        if self.backend.name != "torch":
            return None
        import torch

        weight = torch.ones(4, 4, device=self.device or torch.get_default_device()) / 4
        on_gpu = weight.device.type == "cuda"
        last = calls - 1

        def op(x: Any, number: int) -> Any:
            if on_gpu and number in (0, last):
                torch.cuda.set_sync_debug_mode("error" if number == 0 else "default")
            return x @ weight

        fold = multifold.Fold(backend=self.backend, device=self.device)
        node = fold.add(op, np.ones((1, 4), np.float32), number=0)
        for number in range(1, calls):
            node = fold.add(op, node, number=number)
        try:
            with torch.profiler.profile() as profile:
                fold([node])
        except LaunchError as error:
            return {"synchronised": str(error.__cause__)}
        finally:
            if on_gpu:
                torch.cuda.set_sync_debug_mode("default")
        events = Counter(event.name for event in profile.events())
        return {
            "synchronised": None,
            "waits": sum(events[name] for name in WAITS),
            "copies": sum(n for name, n in events.items() if name.startswith(COPIES)),
        }

    # ---- times -------------------------------------------------------------------------------------

    def steps(self, cells: Sequence[tuple[int, int]]) -> Iterator[Row]:
        """Yield the rows of all cells for which there is time, inference and training."""
        workload = WORKLOADS["synthetic"]
        examples = workload.read(None, 0, lambda *_: None)
        for width, batch in cells:
            for train in (False, True):
                if self.left < 5:
                    return
                yield from self.cell(workload.benchmark(examples, width), batch, train)

    def cell(self, benchmark: Benchmark, batch: int, train: bool) -> Iterator[Row]:
        """Yield the rows of one cell; one with a note where a contender can't take part."""
        names = [
            name for name in CONTENDERS[self.backend.name] if name != "loop" or batch <= MOST_FOR_THE_LOOP
        ]
        # A contender leaves after its share of half of what is left, so that one cell never takes all.
        seconds = self.left / 2 / len(names)
        setting = Setting(batch, train, 15, seconds, least=2, device=self.device, reference=names[0])
        try:
            found = measure_step(benchmark, self.backend, names, setting)
        except (BackendError, LaunchError) as error:
            where = {"backend": self.backend.name, "width": benchmark.width, "batch": batch}
            yield {"stage": "step", **where, "mode": "train" if train else "infer", "note": str(error)}
            return
        yield from ({"stage": "step", **row} for row in found)


# ---- the page ------------------------------------------------------------------------------------------


def page(rows: Iterable[Row]) -> str:
    """Return the rows of a pass as a page of Markdown."""
    stages: dict[str, list[Row]] = {}
    for row in rows:
        stages.setdefault(row["stage"], []).append(row)
    lines = ["# One pass over a device", ""]
    for row in stages.get("about", []):
        versions = f"{row['backend']} {row[row['backend']]}, Python {row['python']}, NumPy {row['numpy']}"
        lines.append(f"- {versions}, device `{row['device']}`, {row['processor']}, {row['cores']} cores")
    for row in stages.get("tests", []):
        lines.append(f"- tests on {row['backend']}: {row['outcome']}, {row['seconds']:.0f} s")
        lines += [f"  - {line}" for line in row.get("failed", ())]
    for row in stages.get("transfers", []):
        lines.append(f"- a chain of {row['calls']} launches on {row['backend']}: {said(row)}")
    cells = grouped(stages.get("step", []))
    if cells:
        lines += ["", "A ratio is the median over the rounds; below 1 the contender is the faster one.", ""]
        lines += ["| backend | mode | width | batch | contender | ms | / loop | / hand | launches |"]
        lines += ["|---|---|---:|---:|---|---:|---:|---:|---:|"]
        lines += [line for cell in cells for line in table(cell)]
    return "\n".join(lines) + "\n"


def said(row: Row) -> str:
    """Return what a chain of launches copied and waited for, as a sentence."""
    if row["synchronised"]:
        return f"it waited between the first launch and the last: {row['synchronised']}"
    return f"{row['copies']} copies, {row['waits']} waits, none between the first launch and the last"


def grouped(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows of each cell."""
    cells: dict[Any, list[Row]] = {}
    for row in rows:
        cells.setdefault((row["backend"], row["mode"], row["width"], row["batch"]), []).append(row)
    return list(cells.values())


def table(cell: Sequence[Row]) -> Iterator[str]:
    """Yield a line of the table for each contender of a cell."""
    loop = next((row["median_ms"] for row in cell if row.get("contender") == "loop"), None)
    for row in cell:
        start = f"| {row['backend']} | {row['mode']} | {row['width']} | {row['batch']} | "
        if "note" in row:
            yield start + f"{row['note'].splitlines()[0]} | | | | |"
            continue
        ratios = [row["median_ms"] / loop if loop else None, row["to_hand"]]
        written = ["" if ratio is None else f"{ratio:.3f}" for ratio in ratios]
        launches = "" if row["launches"] is None else f"{row['launches']:.0f}"
        yield start + " | ".join([row["contender"], f"{row['median_ms']:.2f}", *written, launches]) + " |"
