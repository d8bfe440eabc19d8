"""What a program does, watched from outside: which functions it calls, and where its time goes.

`WatchedLoop` finds functions that may be cells. `OwnCode` tells the time of the program's own code from
that in the framework. `Clock` times functions, and `in_place_of` puts others in their place meanwhile.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import gc
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter, thread_time
from types import CodeType, FrameType, FunctionType
from typing import Any, Self

import numpy as np
import optree

from multifold._engine.ops.reach import package_of
from multifold.backend import Backend, owner_of
from multifold.lazy.cells import is_found, replaced
from multifold.lazy.sharing import is_written_here
from multifold.marks import trusted

LEAST_SHARE = 0.05
"""Only functions that take this share of the loop's time are tried as cells."""

ROUNDS = 3
"""So often a time is taken; the shortest counts, since others use the machine, too."""


@contextlib.contextmanager
def in_place_of(others: Mapping[FunctionType, Callable[..., Any]]) -> Iterator[None]:
    """Let callers that find a function by its name find another one, until the block ends."""
    with contextlib.ExitStack() as undo:
        for fn, other in others.items():
            undo.callback(replaced(fn, other))
        yield


def shortest(run: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Run a function some times; return the fewest seconds that it took."""
    times = []
    for _ in range(rounds):
        gc.collect()
        began = perf_counter()
        run()
        times.append(perf_counter() - began)
    return min(times)


class Clock:
    """Adds up the time in functions.

    Parameters
    ----------
    backend : Backend
        The framework.

    Attributes
    ----------
    seconds : float
        The time since it was started.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.seconds = 0.0

    def start(self) -> None:
        """Begin anew."""
        self.seconds = 0.0

    def timed(self, fn: Callable[..., Any], rows: bool) -> Callable[..., Any]:
        """Return ``fn`` as a function whose time is added, and which no trial runs again.

        Its results are compared with those of the loop anyway. With ``rows`` it takes rows, and an operand
        of one row, which all examples share, is repeated to as many rows as the others have.
        """

        @trusted
        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            if rows:
                args, kwargs = self.of_each(args, kwargs)
            began = perf_counter()
            try:
                return fn(*args, **kwargs)
            finally:
                self.seconds += perf_counter() - began

        return call

    def of_each(self, *arguments: Any) -> Any:
        """Return arguments in which arrays of one row are repeated to as many rows as the longest has."""
        backend = self.backend
        arrays = [x for x in optree.tree_leaves(arguments) if backend.owns(x)]
        most = max([x.shape[0] for x in arrays if x.shape], default=1)
        every = backend.constant(np.zeros(most, np.int64), None)

        def of_each(x: Any) -> Any:
            return backend.gather(x, every) if backend.owns(x) and tuple(x.shape[:1]) == (1,) else x

        return optree.tree_map(of_each, arguments)


class Onlooker(abc.ABC):
    """Sees the functions that a block calls; a profiler of the user rests meanwhile."""

    @abc.abstractmethod
    def see(self, frame: FrameType, event: str, what: Any) -> None:
        """Note that a function begins or ends; see `sys.setprofile`."""

    def __enter__(self) -> Self:
        self.before: Any = sys.getprofile()
        sys.setprofile(self.see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        # A profiler of cProfile is no function: it is started again by its own method.
        begin = getattr(self.before, "enable", None)
        if begin is None:
            sys.setprofile(self.before)
        else:
            begin()


class OwnCode(Onlooker):
    """Watches for how long a program is in its own code, and in none of the framework.

    What is neither, as a function of Python, belongs to what has called it.

    Parameters
    ----------
    others : tuple of str
        The packages of the framework, and multifold's.
    is_own : callable
        Takes the name of a module; returns whether it is code of the program.
    """

    def __init__(self, others: tuple[str, ...], is_own: Callable[[str], bool]) -> None:
        self.others = others
        self.is_own = is_own
        self.stack = [False]  # of each function under way, whether it is the program's
        self.events = [0, 0]  # in functions of others, and of the program
        self.spent = [0.0, 0.0]
        self.began = 0.0

    def seconds(self, alone: float) -> float:
        """Return the time in its own code, given that of all without being watched.

        What is left of the difference is what the interpreter takes to tell of the events.
        """
        telling = (sum(self.spent) - alone) / max(1, sum(self.events))
        return max(0.0, self.spent[True] - self.events[True] * max(0.0, telling))

    def __enter__(self) -> Self:
        gc.collect()
        self.began = perf_counter()
        return super().__enter__()

    def see(self, frame: FrameType, event: str, what: Any) -> None:
        """Note that a function begins or ends."""
        own = self.stack[-1]
        self.spent[own] += perf_counter() - self.began
        self.events[own] += 1
        if event in ("call", "c_call"):
            module = frame.f_globals.get("__name__") if event == "call" else home_of(what)
            package = (module or "").partition(".")[0]
            if package in self.others:
                own = False
            elif event == "call" and self.is_own(module or ""):
                own = True
            self.stack.append(own)
        # What returns here may have begun before the watch, and then it is not on the stack.
        elif len(self.stack) > 1:
            self.stack.pop()
        self.began = perf_counter()  # leaves out what this method itself has taken


def home_of(function: Any) -> str | None:
    """Return the module of a function of C, or that of what it is a method of."""
    owner = getattr(function, "__self__", None)
    return getattr(function, "__module__", None) or getattr(owner, "__module__", type(owner).__module__)


class WatchedLoop(Onlooker):
    """Watches which functions of the user a program calls, for how long, and which call themselves.

    Times are those of this thread, since an example takes less than what other work of the machine may.
    """

    def __init__(self, backend: Backend, fn: Any) -> None:
        self.backend = backend
        self.home = package_of(owner_of(fn, fn))
        self.stack: list[tuple[CodeType, float]] = []
        self.inside = [0.0]  # of what is on the stack, and of the whole: the seconds of what it has called
        self.active: Counter[CodeType] = Counter()
        self.seconds: defaultdict[CodeType, float] = defaultdict(float)
        self.own: defaultdict[CodeType, float] = defaultdict(float)
        self.returning: set[CodeType] = set()  # those that have returned an array
        self.callers: defaultdict[CodeType, set[CodeType | None]] = defaultdict(set)
        self.recursive: set[CodeType] = set()

    def see(self, frame: FrameType, event: str, what: Any) -> None:
        """Note that a function was called, or returns."""
        code = frame.f_code
        module = frame.f_globals.get("__name__") or ""
        if event not in ("call", "return") or code.co_name.startswith("<"):
            return
        if not self.is_of_program(module):
            return
        if event == "call":
            self.callers[code].add(self.stack[-1][0] if self.stack else None)
            # It runs already, so it calls itself, by way of all that was called since.
            if self.active[code]:
                codes = [own for own, _ in self.stack]
                self.recursive.update(codes[codes.index(code) :])
            self.active[code] += 1
            self.stack.append((code, thread_time()))
            self.inside.append(0.0)
        elif self.active[code]:
            _, began = self.stack.pop()
            spent = thread_time() - began
            self.own[code] += spent - self.inside.pop()
            self.inside[-1] += spent
            self.active[code] -= 1
            # Of calls inside of each other only the outermost counts: its time holds theirs.
            if not self.active[code]:
                self.seconds[code] += spent
            if any(map(self.backend.owns, optree.tree_leaves(what))):
                self.returning.add(code)

    def is_of_program(self, module: str) -> bool:
        """Return whether the functions of a module are code of the user: not multifold's, nor installed."""
        package = module.partition(".")[0]
        if package in ("multifold", package_of(self.backend)):
            return False
        return package == self.home or is_written_here(module)

    def functions(self) -> list[FunctionType]:
        """Return the functions that are worth trying as cells, those first that take longest."""
        # A code object does not say whose code it is, but the collector knows what refers to it.
        found = [x for code in self.candidates() for x in gc.get_referrers(code) if type(x) is FunctionType]
        return [x for x in found if is_found(x)]

    @property
    def total(self) -> float:
        """The seconds of all that was watched."""
        return sum(self.seconds[code] for code, callers in self.callers.items() if None in callers)

    def candidates(self) -> list[CodeType]:
        """Return the code of functions that may be cells, those first that take longest."""
        looping = {*self.recursive}
        # Go on to callers, and to theirs: what calls a recursive function is left out as well.
        while more := {x for code in looping for x in self.callers[code] if x} - looping:
            looping |= more
        known = {
            code
            for code, callers in self.callers.items()
            if code not in looping and None not in callers and code in self.returning
        }
        return [
            code
            for code, seconds in sorted(self.seconds.items(), key=lambda pair: -pair[1])
            # A function that only other candidates call runs inside of their launches.
            if code in known and not self.callers[code] <= known and seconds >= LEAST_SHARE * self.total
        ]
