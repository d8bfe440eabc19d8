"""Whether a random program does in a run what it does in the loop, and which statements a failure needs."""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import optree

import multifold
from plain_programs.programs import Node, Program, Statement, Stop
from plain_programs.world import left, settled, world

REFUSALS = {
    "a view of what was changed": "shares its memory",
    "a read that loses the gradient": "would have no gradient",
    "memory that something else sees": "that is not pending",
    "a change in no_grad": "would take the gradient",
    "a change of what is many times the same": "are one, as those of expand",
}
"""What the statements of any program do that docs/plain.md says is refused."""


LOOP_ONLY = ("is a view and is being modified inplace", "refers to a single memory location")
"""What PyTorch refuses of parts that were taken together, or are many times the same; here they do it."""

BROKEN = ("INTERNAL ASSERT", "TorchScript", "torch._dynamo")
"""What the text of a refusal must not have: it is an error of the framework then, which says nothing."""


NAMED = {
    r"<program \d+>:\d+": "a line",
    r"(op|attribute|the variable|the cell) \S+( of \w+)?": r"\1 ...",
    r"\d+ nodes?": "some nodes",
    r"Received Node.*": "Received a Node",
}
"""What is different in the text of each refusal, and what stands for it where they are counted."""


class Hangs(BaseException):
    """A program has not come to its end in time."""


@dataclass
class Verdict:
    """What came of a program: right, refused, wrong, error, hang; or skipped, as the loop says nothing.

    Attributes
    ----------
    what : str
        One of these words.
    why : str
        The reason of a refusal, or how a failure shows.
    error : BaseException or None
        What was raised.
    """

    what: str
    why: str = ""
    error: BaseException | None = None

    @property
    def is_failure(self) -> bool:
        """Whether the run is neither right nor refused."""
        return self.what in ("wrong", "error", "hang")


@dataclass
class Outcome:
    """What running a program for some examples has led to."""

    results: list[Any]
    failures: dict[int, BaseException]
    nodes: list[Node]
    left: dict[str, Any] = field(default_factory=dict)
    slopes: list[Any] | None = field(default_factory=list)


class Side:
    """A program in a world of its own, for the loop or for the run."""

    def __init__(self, program: Program) -> None:
        framework = program.framework
        self.program = program
        self.world = world(framework)
        fn = program.made(self.world)
        self.globals = fn.__globals__
        self.fn = framework.model(fn) if program.is_model else fn
        self.run = multifold.batched(
            self.fn,
            join="list",
            backend=framework.name,
            cells=[type(framework.names["unit"]).turned],
            seed=program.seed if program.has_seed else None,
            on_error="collect" if program.collects else "raise",
            may_loop=False,
        )

    def renew(self) -> None:
        """Give it a new world."""
        self.world = world(self.program.framework)
        self.globals.update(self.world)

    def looped(self, which: int) -> Outcome:
        """Run it for one example after the other."""
        found = Outcome([], {}, self.program.examples(which))
        shared = self.program.framework.array_of_all()
        if self.program.has_seed:
            results, found.failures = self.run.loop(found.nodes, shared=shared)
            found.results = results or []
        else:
            self.one_by_one(found, shared)
        return self.at_the_end(found)

    def one_by_one(self, found: Outcome, shared: Any) -> None:
        """Run it for each example, up to the first one that fails if failures are not collected."""
        for number, node in enumerate(found.nodes):
            try:
                found.results.append(self.fn(node, shared=shared))
            except Exception as error:  # noqa: BLE001 - a random program may fail in any way
                found.failures[number] = error
                if not self.program.collects:
                    break

    def batched(self, which: int, wanted: Outcome) -> Outcome:
        """Run it for all examples at once."""
        found = Outcome([], {}, self.program.examples(which))
        try:
            results = self.run(found.nodes, shared=self.program.framework.array_of_all())
        except Exception as error:  # noqa: BLE001
            found.failures[min(wanted.failures, default=0)] = error
        else:
            found.results, found.failures = results if self.program.collects else (results, {})
            found.results = found.results or []
        return self.at_the_end(found)

    def replayed(self, traces: Sequence[Any]) -> Outcome:
        """Replay traces of it."""
        found = Outcome(self.run.replay(traces), {}, self.program.examples(0))
        found.slopes = self.program.framework.slopes(found)
        return found

    def at_the_end(self, found: Outcome) -> Outcome:
        """Add what is left on the world, and the slopes."""
        found.left = left(self.world)
        if why_refused(found) is None:
            found.slopes = self.program.framework.slopes(found)
        return found


def verdict_of(program: Program) -> Verdict:
    """Compare a program with the loop; it takes as many seconds as its framework has patience."""
    try:
        with limited(program.framework.patience):
            return replayed(program) if program.is_traced else compared(program)
    except Hangs as error:
        return Verdict("hang", "no end", error)
    except AssertionError as error:
        return Verdict("wrong", getattr(error, "part", "what was drawn"), error)
    except Exception as error:  # noqa: BLE001 - a run may fail in any way
        return Verdict("error", type(error).__name__, error)


def compared(program: Program) -> Verdict:
    """Compare a program with the loop for lists of examples; raise an error if they differ."""
    framework = program.framework
    loop, run = Side(program), Side(program)
    rates: list[float] = []
    for which in range(framework.runs):
        with settled(framework):
            wanted = loop.looped(which)
        if any(text in str(error) for text in LOOP_ONLY for error in wanted.failures.values()):
            return Verdict("skipped", "the loop alone refuses it")
        with settled(framework):
            found = run.batched(which, wanted)
        why = why_refused(found)
        if why is not None:
            return refused(program, why)
        assert_same(program, wanted, found)
        rates += [float(x) for result in found.results for x in result["rates"]]
        if wanted.failures and not program.collects:  # the loop ends there, and other examples go on
            loop.renew()
            run.renew()
    assert len(rates) < 16 or 0.25 < np.mean(rates) < 0.75
    return Verdict("right")


def replayed(program: Program) -> Verdict:
    """Compare traces, replayed with other parameters, with the loop; raise an error if they differ."""
    framework = program.framework
    loop, run = Side(program), Side(program)
    with settled(framework):
        if loop.looped(0).failures:
            return Verdict("skipped", "the loop fails")
    with settled(framework):
        loop.renew()
        try:
            traces = run.run.traces(program.examples(0), shared=framework.array_of_all())
            framework.step(program.seed)
            wanted = loop.looped(0)
            found = run.replayed(traces)
        except multifold.MultifoldError as error:
            return refused(program, refusal_of(error))
        if wanted.failures:
            return Verdict("skipped", "the loop fails")
        with part("traces"):
            assert_same_results(program, wanted, found)
    return Verdict("right")


def refused(program: Program, why: str) -> Verdict:
    """Return the verdict for a refusal, which is a failure where no page says it."""
    if any(text in why for text in BROKEN):
        return Verdict("error", why)
    if program.kinds:
        return Verdict("refused", why)
    known = next((name for name, text in REFUSALS.items() if text in why), None)
    return Verdict("error", f"refused: {why}") if known is None else Verdict("refused", known)


def why_refused(found: Outcome) -> str | None:
    """Return why multifold has refused an example, if it has, or what a library has made of its refusal."""
    for error in found.failures.values():
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, multifold.MultifoldError):
            cause = cause.__cause__
        if cause is not None:
            return refusal_of(cause)
    return None


def refusal_of(error: multifold.MultifoldError) -> str:
    """Return the kind of an error and its text without the hint, and without the names in it."""
    text = next((x for x in BROKEN if x in str(error)), str(error).split("\n\n")[0])
    for pattern, instead in NAMED.items():
        text = re.sub(pattern, instead, text)
    return f"{type(error).__name__}: {text}"


@contextlib.contextmanager
def part(name: str) -> Iterator[None]:
    """Mark an assertion that fails by the part of a run that it is about."""
    try:
        yield
    except AssertionError as error:
        error.part = name  # type: ignore[attr-defined]
        raise


def assert_same(program: Program, wanted: Outcome, found: Outcome) -> None:
    """Assert that two runs led to the same failures, results and gradients, and left the same."""
    raised = sorted({type(x).__name__ for x in found.failures.values()})
    with part(f"failures, {' and '.join(raised) or 'none'}"):
        kinds = [{i: type(x) for i, x in sorted(y.failures.items())} for y in (wanted, found)]
        assert kinds[0] == kinds[1], {**wanted.failures, "batched": found.failures}
        for i, error in wanted.failures.items():
            if isinstance(error, Stop):
                assert error.args == found.failures[i].args
    all_ran = program.collects or not wanted.failures
    if all_ran:
        assert_same_results(program, wanted, found)
    same = program.framework.same
    end = len(wanted.nodes) if program.collects else min(wanted.failures, default=len(wanted.nodes)) + 1
    with part("trees"):
        for one, other in zip(wanted.nodes[:end], found.nodes[:end], strict=True):
            for x, y in zip(one.within(), other.within(), strict=True):
                same([x.state, x.kept, x.table, x.own], [y.state, y.kept, y.table, y.own], 1e-6)
    if all_ran:
        with part("shared"):
            for name in wanted.left:
                same(wanted.left[name], found.left[name], 1e-6)


def assert_same_results(program: Program, wanted: Outcome, found: Outcome) -> None:
    """Assert that two runs returned the same, with the same gradients."""
    same = program.framework.same
    with part("values"):
        for x, y in zip(wanted.results, found.results, strict=True):
            drawn = [z if program.has_seed else {**z, "rates": len(z["rates"])} for z in (x, y)]
            same(*drawn, 1e-6)
    # A launch has one backward pass for all of its rows, so one that is not finite reaches the others'.
    if wanted.slopes is not None and all(x is None or is_finite(x) for x in found.slopes or ()):
        with part("slopes"):
            same(wanted.slopes, found.slopes, 1e-5)


def is_finite(x: Any) -> bool:
    """Return whether all numbers of an array are finite."""
    return bool(np.isfinite(np.asarray(x)).all())


def same_trees(x: Any, y: Any, same: Callable[[Any, Any], None]) -> None:
    """Compare two structures leaf by leaf."""
    one, other = [optree.tree_flatten(z, none_is_leaf=True) for z in (x, y)]
    assert one[1] == other[1], (x, y)
    for a, b in zip(one[0], other[0], strict=True):
        same(a, b)


def same_python(x: Any, y: Any, within: float) -> None:
    """Compare two values of Python."""
    assert type(x) is type(y), (x, y)
    if isinstance(x, float):
        np.testing.assert_allclose(x, y, rtol=within, atol=within)
    else:
        assert x == y, (x, y)


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise `Hangs` after some seconds, where the system and the thread can."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(*_: object) -> None:
        raise Hangs

    old = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again, where something has caught it
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


# ---- shrinking ----------------------------------------------------------------------------------------


def shrunk(program: Program, what: str, seconds: float = 60.0) -> Program:
    """Leave out statements, in blocks too, as long as the program fails so; for some seconds."""
    end = time.monotonic() + seconds
    goes_on = True
    while goes_on:
        goes_on = False
        for fewer in fewer_statements(program.statements):
            if time.monotonic() > end:
                return program
            tried = program.with_statements(fewer)
            if verdict_of(tried).what == what:
                program, goes_on = tried, True
                break
    return program


def fewer_statements(statements: Sequence[Statement]) -> Iterator[list[Statement]]:
    """Yield the statements without some: first without many, last with those of a block in its place."""
    count = len(statements)
    for size in sorted({count // 2, 1} - {0}, reverse=True):
        for start in reversed(range(0, count, size)):
            yield [*statements[:start], *statements[start + size :]]
    for i, x in enumerate(statements):
        for j, block in enumerate(x.blocks):
            yield [*statements[:i], *block, *statements[i + 1 :]]
            for fewer in fewer_statements(block):
                blocks = (*x.blocks[:j], tuple(fewer), *x.blocks[j + 1 :])
                yield [*statements[:i], replace(x, blocks=blocks), *statements[i + 1 :]]


def kinds_needed(program: Program) -> list[str]:
    """Return the kinds of the statements of a program; the empty string if it has none."""
    return sorted(set().union(*[x.kinds for x in program.statements])) or [""]
