"""Tests of the tests: plant small mistakes, one at a time, and see whether a test fails.

A runner of its own, because mutmut and cosmic-ray start pytest anew for each mutant and run one list of
tests for all of them: minutes for each of hundreds of mutants. Here

1. one run with compiled code and one without map each line to the tests that run it (`sessions.py`),
2. mutants are made from the syntax tree (`mutants.py`), and a seeded sample of each module is drawn,
3. each mutant meets the tests that run its lines, the quickest first and at most 20 s of them, in a fork of
   a process that has collected all tests. Code that runs on import meets all tests of its module.

A test that fails, an import that fails, a crash and a time limit kill a mutant. What no test can kill
stands in `equivalent.toml`, each with its reason. Results are kept in `.mutate/`: run it again to go on.
"""

from __future__ import annotations

import argparse
import ast
import functools
import hashlib
import json
import math
import os
import time
import tomllib
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from mutants import Mutant, mutants, mutated
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sessions import COLD, ROOT, Process, Warm, fork, measure, try_cold, with_all_tests

INSIDE = ("_engine", "program")
ROOMS = tuple(f"multifold/{room}" for room in INSIDE)
KEPT = ROOT / ".mutate"
Reached = tuple[dict[str, float], dict[str, dict[int, set[str]]]]
"""The seconds of each test that passes, and by module and line the tests that run it."""
Work = Callable[["Trial", dict[str, float], Path], None]
"""Lets a trial meet tests, of so many seconds each, and writes the first that fails."""
AT_LEAST = 5
"""Mutants of a module, however small."""
LONGEST = 600
"""Seconds until a process is given up that waits; one that computes has a limit for each test."""


@dataclass
class Trial:
    """One mutant of the sample, and what became of it."""

    module: str
    number: int
    mutant: Mutant
    why: str = ""
    """Why it is equivalent, where it is."""
    tests: dict[bool, dict[str, float]] = field(default_factory=dict)
    """With compiled code and without: the tests that it meets, and the seconds of each."""
    survived: set[bool] = field(default_factory=set)
    """With compiled code or without: whether it has met these tests, and none failed."""
    killer: str = ""
    """The test that failed, "import", "time", or a signal."""

    def key(self) -> str:
        """Return what its outcome is kept by: a kill holds while the module stays as it is."""
        return f"{self.module} {digest(ROOT / self.module)} {self.mutant.key()}"

    def asks(self, native: bool) -> bool:
        """Return whether it has still to meet the tests with compiled code, or without."""
        return self.killer in ("", COLD) and native in self.tests and native not in self.survived


def main() -> None:
    """Run the sample, and write what was found."""
    options = parsed()
    console = Console(file=os.fdopen(os.dup(1), "w"))  # processes send their own output to a log
    console.print("reading the rooms")
    found = {path: list(mutants(tree_of(path))) for path in modules() if options.module in path}
    trials = sample(found, listed_as_equivalent(found, console), options.mutants, options.seed)
    tests = reached(console)
    if options.fresh:
        Outcomes.path.unlink(missing_ok=True)
    for trial in trials:
        if not trial.why:
            trial.tests = chosen(trial, tests, options.seconds)
    for native in (True, False):
        run_all(trials, native, options.workers, console)
    report(trials, console, options.seed)


def parsed() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="tools/mutation", description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=600, help="size of the sample, about (600)")
    parser.add_argument("--seed", type=int, default=0, help="another seed is another sample (0)")
    parser.add_argument("--module", default="", help="only modules with this in their path")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time (2)")
    parser.add_argument("--seconds", type=float, default=20, help="of tests that a mutant meets (20)")
    parser.add_argument("--fresh", action="store_true", help="forget the outcomes that were kept")
    return parser.parse_args()


# ---- the sample ----------------------------------------------------------------------------------


def modules() -> list[str]:
    """Return the modules of the rooms, as paths from the root."""
    paths = (path for room in ROOMS for path in sorted((ROOT / room).glob("*.py")))
    return [str(path.relative_to(ROOT)) for path in paths]


def tree_of(path: str) -> ast.Module:
    """Parse a module."""
    return ast.parse((ROOT / path).read_text())


def listed_as_equivalent(found: dict[str, list[Mutant]], console: Console) -> dict[tuple[str, ...], str]:
    """Return the reasons of `equivalent.toml` by module, function, statement and changed statement."""
    entries = tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text())["equivalent"]
    there = {(path, m.function, m.before, m.after) for path, ms in found.items() for m in ms}
    reasons = {
        (f"multifold/{entry['module']}", entry["function"], entry["before"], after): entry["why"]
        for entry in entries
        for after in entry["after"]
    }
    for key in reasons:
        if key[0] in found and key not in there:
            console.print(f"equivalent.toml lists what is no longer there: {' | '.join(key)}", markup=False)
    return reasons


def sample(
    found: dict[str, list[Mutant]], equivalent: dict[tuple[str, ...], str], size: int, seed: int
) -> list[Trial]:
    """Draw from each module in proportion to its mutants, but for very small ones."""
    every = sum(map(len, found.values()))
    trials = []
    for path, ms in found.items():
        share = max(AT_LEAST, math.ceil(size * len(ms) / every))
        for mutant in sorted(ms, key=lambda m: m.rank(seed))[:share]:
            why = equivalent.get((path, mutant.function, mutant.before, mutant.after), "")
            trials.append(Trial(path, ms.index(mutant), mutant, why))
    return trials


# ---- which tests ---------------------------------------------------------------------------------


def reached(console: Console) -> dict[bool, Reached]:
    """Return the tests of each line, with compiled code and without; run what was not run as it is now."""
    package = digest(*(x for x in (ROOT / "multifold").rglob("*") if x.suffix in (".py", ".pyx", ".c")))
    folder = KEPT / package
    folder.mkdir(parents=True, exist_ok=True)
    # What a file of tests reaches is kept for itself, since people write a test and look again.
    parts = {
        "multifold": package,
        **{str(x.relative_to(ROOT)): digest(x) for x in (ROOT / "tests").rglob("test_*.py")},
    }
    conftest = digest(ROOT / "conftest.py", *(ROOT / "tests").rglob("conftest.py"))
    files = {
        (native, part): folder / f"{Path(part).stem}-{of_part}-{conftest}-{native:d}.json"
        for native in (True, False)
        for part, of_part in parts.items()
    }
    for native in (True, False):
        missing = {
            part: file for (mode, part), file in files.items() if mode == native and not file.exists()
        }
        if missing:
            console.print(f"which lines does each test run? {len(missing)} files, compiled code {native}")
            process = fork(functools.partial(measure, ROOMS, missing, native), KEPT / f"lines-{native}")
            while process.ended() is None:
                time.sleep(0.2)
    return {
        native: merged([file for (x, _), file in files.items() if x == native]) for native in (True, False)
    }


def merged(files: list[Path]) -> Reached:
    """Return the seconds of each test, and the tests of each line of each module."""
    seconds: dict[str, float] = {}
    lines: dict[str, dict[int, set[str]]] = {}
    for file in files:
        found = json.loads(file.read_text())
        seconds.update(found["seconds"])
        for module, of_module in found["lines"].items():
            for line, tests in of_module.items():
                lines.setdefault(module, {}).setdefault(int(line), set()).update(tests)
    return seconds, lines


@functools.cache
def sources() -> str:
    """Return a digest of all that decides whether a mutant survives."""
    folders = ((ROOT / "multifold").rglob("*"), (ROOT / "tests").rglob("*.py"), [ROOT / "conftest.py"])
    return digest(*(path for folder in folders for path in folder if path.suffix in (".py", ".pyx", ".c")))


def digest(*paths: Path) -> str:
    """Return sixteen characters that differ where the contents of files do."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(paths))).hexdigest()[:16]


def chosen(trial: Trial, reached: dict[bool, Reached], most: float) -> dict[bool, dict[str, float]]:
    """Return the tests that a mutant meets, with compiled code and without: the quickest of its lines.

    The tests without compiled code are asked about what runs there only, and about what no other test runs.
    """
    found: dict[bool, dict[str, float]] = {}
    for native, (seconds, lines) in reached.items():
        if native or not found or "/_engine/compiled/" in trial.module:
            of_module = lines.get(trial.module, {})
            first, last = trial.mutant.lines
            asked = [trial.mutant.line, *range(first, last + 1)] if trial.mutant.called else list(of_module)
            tests = set().union(*(of_module.get(line, ()) for line in asked))
            spent = 0.0
            for test in sorted(tests, key=lambda test: (seconds[test], test)):
                if spent < most:
                    found.setdefault(native, {})[test] = seconds[test]
                spent += seconds[test]
    return found


# ---- trials --------------------------------------------------------------------------------------


def run_all(trials: list[Trial], native: bool, workers: int, console: Console) -> None:
    """Let trials meet their tests with compiled code, or without it."""

    def tree(trial: Trial) -> ast.Module:
        return mutated(tree_of(trial.module), trial.number)

    def cold(trial: Trial, tests: dict[str, float], result: Path) -> None:
        try_cold(trial.module, tree(trial), tests, native, result)

    def work(warm: Warm) -> None:
        def quick(trial: Trial, tests: dict[str, float], result: Path) -> None:
            warm.try_tests(trial.module, tree(trial), tests, result)

        follow([x for x in trials if x.asks(native) and x.mutant.called], quick, native, workers, console)

    recall(trials)
    if any(x.asks(native) and x.mutant.called for x in trials):
        process = fork(functools.partial(with_all_tests, work, native), KEPT / "warm")
        while process.ended() is None:
            time.sleep(0.2)
    recall(trials)
    follow([x for x in trials if x.asks(native)], cold, native, workers, console)


def recall(trials: list[Trial]) -> None:
    """Give trials their earlier outcomes, as far as they still hold."""
    outcomes = Outcomes()
    for trial in trials:
        outcomes.recall(trial)


def follow(trials: list[Trial], work: Work, native: bool, workers: int, console: Console) -> None:
    """Run trials, so many at a time; show how they go on, and keep the outcome of each."""
    waiting = deque(sorted(trials, key=lambda trial: trial.mutant.rank(0)))  # rooms by turns
    running: dict[int, tuple[Trial, Process]] = {}
    outcomes = Outcomes()
    kills: Counter[tuple[str, str]] = Counter()
    with Progress(console=console) as progress:
        task = progress.add_task(f"{len(trials)} mutants, compiled code {native}", total=len(trials))
        while waiting or running:
            for slot in range(workers):
                if slot not in running and waiting:
                    trial = waiting.popleft()
                    tests = trial.tests[native]
                    # A test that noticed many mistakes in a module is a good first one for the next.
                    order = sorted(tests, key=lambda x: tests[x] / (1 + kills[trial.module, x]))
                    job = functools.partial(work, trial, {x: tests[x] for x in order})
                    running[slot] = trial, fork(job, KEPT / f"trial-{slot}", LONGEST)
            for slot, (trial, process) in list(running.items()):
                end = process.ended()
                if end is not None:
                    del running[slot]
                    outcomes.keep(trial, native, end)
                    kills[trial.module, end] += 1
                    progress.advance(task)
            time.sleep(0.005)


class Outcomes:
    """What became of mutants in earlier runs: kills by module, survivors by all sources and tests."""

    path = KEPT / "outcomes.json"

    def __init__(self) -> None:
        self.kept: dict[str, str] = json.loads(self.path.read_text()) if self.path.exists() else {}

    def recall(self, trial: Trial) -> None:
        """Give a trial its earlier outcome, if it has one that still holds."""
        trial.killer = self.kept.get(trial.key(), "")
        trial.survived = {native for native in trial.tests if self.survivor(trial, native) in self.kept}

    def survivor(self, trial: Trial, native: bool) -> str:
        """Return what a survivor is kept by: it may meet more tests another time."""
        return f"{sources()} {native} {len(trial.tests[native])} {trial.key()}"

    def keep(self, trial: Trial, native: bool, end: str) -> None:
        """Write down the outcome of a trial, and tell the trial."""
        self.kept[trial.key() if end else self.survivor(trial, native)] = end
        self.path.write_text(json.dumps(self.kept))
        self.recall(trial)


# ---- the report ----------------------------------------------------------------------------------


def report(trials: list[Trial], console: Console, seed: int) -> None:
    """Print the survivors and a table of modules, and write both."""
    for trial in [x for x in trials if not x.killer and not x.why]:
        m = trial.mutant
        text = f"{trial.module}:{m.line} {m.function}\n  - {m.before}\n  + {m.after}"
        console.print(text, markup=False, highlight=False)
    table = Table("module", "mutants", "killed", "equivalent", "survived", "score", title="mutants")
    rows = [*((path, [x for x in trials if x.module == path]) for path in modules()), ("all", trials)]
    for path, of_module in rows:
        if of_module:
            killed = sum(bool(x.killer) for x in of_module)
            equivalent = sum(bool(x.why) for x in of_module)
            other = len(of_module) - killed - equivalent
            counts = (len(of_module), killed, equivalent, other)
            table.add_row(path.removeprefix("multifold/"), *map(str, counts), f"{score(of_module):.1f} %")
    console.print(table)
    ends = Counter(x.killer if "::" not in x.killer else "test" for x in trials if x.killer)
    console.print(f"killed by: {dict(ends)}")
    rows = [{"module": x.module, "killer": x.killer, "equivalent": x.why, **vars(x.mutant)} for x in trials]
    (KEPT / f"sample-{seed}.json").write_text(json.dumps(rows, indent=1))


def score(trials: list[Trial]) -> float:
    """Return how many percent of the mutants that are not equivalent were killed."""
    real = [x for x in trials if not x.why]
    return 100 * sum(bool(x.killer) for x in real) / len(real) if real else 100.0


if __name__ == "__main__":
    main()
