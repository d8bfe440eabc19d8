"""Runs of pytest in forked processes: one that maps lines to tests, and one for each mutant.

Most mutants meet their tests in a fork of a process that has collected all tests: the functions of the
module take the code of the mutant, and the first test runs at once. A mistake in code that runs on
import (a table, a default, a class) needs a fork from before multifold was imported: the finder below
then hands out the mutated syntax tree. ``MULTIFOLD_NATIVE`` says which code runs, compiled or reference.
"""

from __future__ import annotations

import ast
import gc
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import coverage
import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[2]
OPTIONS = ["-q", "-p", "no:cacheprovider", "--backend", "numpy", "--doctest-modules"]
COLD = "cold"
"""Result of a trial whose function cannot take its new code."""
MEMORY = 8 << 30
"""Bytes of a process; a mutant that asks for more fails with a MemoryError."""

hypothesis.settings.register_profile("mutation", derandomize=True, database=None, deadline=None)


class Finder(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Imports one module from a syntax tree instead of its file."""

    def __init__(self, path: str, tree: ast.Module) -> None:
        super().__init__(path.removesuffix(".py").replace("/", "."), str(ROOT / path))
        self.tree = tree

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> Any:
        """Return a specification for the one module, by this loader."""
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname: str) -> CodeType:
        """Compile the tree."""
        return compile(self.tree, self.path, "exec")


class Reach:
    """A plugin of pytest that notes which lines of the rooms each test runs, and its processor seconds."""

    def __init__(self, rooms: Sequence[str]) -> None:
        include = [str(ROOT / room / "*.py") for room in rooms]
        self.coverage = coverage.Coverage(data_file=None, config_file=False, include=include)
        self.seconds: dict[str, float] = {}
        self.bad: set[str] = set()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Name the lines that run from here on after the test."""
        self.coverage.switch_context(item.nodeid)
        begin = time.process_time()
        result = yield
        self.seconds[item.nodeid] = time.process_time() - begin
        self.coverage.switch_context("")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Leave out a test that does not pass as things are."""
        if report.outcome != "passed":
            self.bad.add(report.nodeid)

    def write(self, parts: dict[str, Path]) -> None:
        """Write for each part of the tests the seconds of those that passed, and the tests of each line."""
        data = self.coverage.get_data()
        measured = {
            str(Path(file).relative_to(ROOT)): data.contexts_by_lineno(file)
            for file in data.measured_files()
        }
        for part, file in parts.items():
            seconds = {x: s for x, s in self.seconds.items() if x.startswith(part) and x not in self.bad}
            lines = {
                module: {line: [x for x in tests if x in seconds] for line, tests in of_module.items()}
                for module, of_module in measured.items()
            }
            file.write_text(json.dumps({"seconds": seconds, "lines": lines}))


def measure(rooms: Sequence[str], parts: dict[str, Path], native: bool, result: Path) -> None:
    """Run files of tests once, or a folder of doctests, and write which tests run which line."""
    compiled(native)
    plugin = Reach(rooms)
    plugin.coverage.start()
    pytest.main([*OPTIONS, *parts], plugins=[plugin])
    plugin.coverage.stop()
    if not plugin.seconds:
        raise RuntimeError("no tests ran")
    plugin.write(parts)


class FirstFailure:
    """A plugin of pytest that notes the first test that fails."""

    test = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure, unless there is one already."""
        if report.failed and not self.test:
            self.test = report.nodeid


class Warm:
    """A plugin of pytest that collects all tests and then hands over to `work` instead of running them.

    A process that `work` forks has every test at hand, and so runs the first one at once.
    """

    def __init__(self, work: Callable[[Warm], None]) -> None:
        self.work = work
        self.items: dict[str, pytest.Item] = {}
        self.functions: list[FunctionType] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Hand over."""
        self.items = {item.nodeid: item for item in session.items}
        self.functions = [x for x in gc.get_objects() if isinstance(x, FunctionType)]
        gc.freeze()
        self.work(self)
        return True

    def try_tests(self, path: str, tree: ast.Module, tests: dict[str, float], result: Path) -> None:
        """Put a mistake into the functions of a module, run tests, and write the first that fails.

        Write COLD where a function cannot take its new code: then the module is to be imported anew.
        """
        if not self.replace_code(str(ROOT / path), tree):
            result.write_text(COLD)
            return
        failure = FirstFailure()
        items = [self.items[test] for test in tests if test in self.items]  # some ids hold an address
        for item, following in zip(items, [*items[1:], None], strict=True):
            limit = math.ceil(time.process_time() + 5 + 5 * tests[item.nodeid])
            resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
            if item is items[0]:
                item.config.pluginmanager.register(failure)
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if failure.test:
                result.write_text(failure.test)
                return

    def replace_code(self, path: str, tree: ast.Module) -> bool:
        """Give the functions of a module the code of a tree; return whether one of them changed."""
        new = {(x.co_qualname, x.co_firstlineno): x for x in code_in(compile(tree, path, "exec"))}
        changed = False
        for function in self.functions:
            old = function.__code__
            code = new.get((old.co_qualname, old.co_firstlineno)) if old.co_filename == path else None
            if code is not None and code != old:
                if code.co_freevars != old.co_freevars:
                    return False
                function.__code__ = code
                changed = True
        return changed


def code_in(code: CodeType) -> Iterator[CodeType]:
    """Walk the code of functions and classes inside other code."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from code_in(constant)


def with_all_tests(work: Callable[[Warm], None], native: bool, result: Path) -> None:
    """Collect all tests, then do the work."""
    compiled(native)
    code = pytest.main([*OPTIONS, "multifold", "tests"], plugins=[Warm(work)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError("the tests could not be collected, or a trial went wrong")


def try_cold(path: str, tree: ast.Module, tests: dict[str, float], native: bool, result: Path) -> None:
    """Import a module from a tree, run tests, and write the first that fails."""
    compiled(native)
    sys.meta_path.insert(0, Finder(path, tree))
    failure = FirstFailure()
    limit = math.ceil(time.process_time() + 20 + 3 * sum(tests.values()))
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
    # Doctests come with their folder: pytest takes a file that is named for a file of tests.
    files = sorted({test.split("::" if test.startswith("tests/") else "/")[0] for test in tests})
    code = pytest.main([*OPTIONS, "-x", *files], plugins=[failure, Chosen(tests)])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        result.write_text(failure.test or "import")


class Chosen:
    """A plugin of pytest that runs some tests in a given order."""

    def __init__(self, tests: Iterable[str]) -> None:
        self.order = {test: position for position, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the chosen tests."""
        items[:] = sorted((x for x in items if x.nodeid in self.order), key=lambda x: self.order[x.nodeid])


@dataclass
class Process:
    """A forked process, the file that it writes its result to, and when it is given up."""

    pid: int
    result: Path
    deadline: float = field(default=float("inf"))

    def ended(self) -> str | None:
        """Return what ended the process, "" where no test failed, or None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            if time.monotonic() < self.deadline:
                return None
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            return "time"
        if os.WIFSIGNALED(status):
            return (
                "time"
                if os.WTERMSIG(status) == signal.SIGXCPU
                else signal.Signals(os.WTERMSIG(status)).name
            )
        if status:
            raise RuntimeError(
                f"{self.result.with_suffix('.log')} says what went wrong outside of the tests"
            )
        return self.result.read_text() if self.result.exists() else ""


def fork(work: Callable[[Path], None], result: Path, seconds: float = float("inf")) -> Process:
    """Start a process that does some work; its output goes to a log beside its result."""
    result.unlink(missing_ok=True)
    pid = os.fork()
    if pid:
        return Process(pid, result, time.monotonic() + seconds)
    try:
        log = os.open(result.with_suffix(".log"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for stream in (0, 1, 2):
            os.dup2(log, stream)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        hypothesis.settings.load_profile("mutation")
        work(result)
    except BaseException:  # noqa: BLE001 - it must not return into the code of the parent
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def compiled(native: bool) -> None:
    """Let compiled code run or not, before multifold is imported."""
    os.environ.pop("MULTIFOLD_NATIVE", None)
    if not native:
        os.environ["MULTIFOLD_NATIVE"] = "0"
