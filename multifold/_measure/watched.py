"""What a program does, watched from outside: which functions it calls, and where its time goes.

`WatchedLoop` finds functions that may be cells. `OwnLines` counts the lines that a program runs itself,
and `Beside` tells the time of what is neither its own nor the framework's. `Clock` times functions, and
`in_place_of` puts others in their place meanwhile.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import gc
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from time import perf_counter, thread_time
from types import CodeType, FrameType, FunctionType
from typing import Any, Self

import numpy as np
import optree

from multifold._engine.ops.reach import package_of
from multifold.backend import Backend, owner_of
from multifold.lazy.cells import is_found, places_of, replaced
from multifold.lazy.writes import is_written_here
from multifold.marks import trusted

LEAST_SHARE = 0.05
"""Only functions that take this share of the loop's time are tried as cells."""

ROUNDS = 3
"""So often a time is taken; the shortest counts, since others use the machine, too."""


@contextlib.contextmanager
def in_place_of(others: Mapping[FunctionType, Callable[..., Any]]) -> Iterator[None]:
    """Return a context in which each function is replaced by another one wherever it is found by its name.

    ``others`` is function -> replacement. Raise a `RecordError` for a function that no name finds.
    """
    with contextlib.ExitStack() as undo:
        for fn, other in others.items():
            undo.callback(replaced(places_of(fn), other))
        yield


def shortest(run: Callable[[], Any], rounds: int = ROUNDS) -> float:
    """Call ``run`` ``rounds`` times, and return the fewest seconds that a call took."""
    times = []
    for _ in range(rounds):
        gc.collect()
        began = perf_counter()
        run()
        times.append(perf_counter() - began)
    return min(times)


class Clock:
    """Adds up the seconds that are spent in functions that `timed` has wrapped.

    Parameters
    ----------
    backend : Backend
        The framework.

    Attributes
    ----------
    seconds : float
        The seconds in wrapped functions since `start` was called last.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.seconds = 0.0

    def start(self) -> None:
        """Set ``seconds`` to 0."""
        self.seconds = 0.0

    def timed(self, fn: Callable[..., Any], rows: bool) -> Callable[..., Any]:
        """Return a wrapper of ``fn`` that adds the seconds of each call to ``seconds``.

        A call that raises counts, too. With ``rows`` the wrapper first repeats operands of one row, which
        all examples share, to as many rows as the others have. The wrapper is marked `trusted`, so that no
        trial runs it again: its results are compared with the loop's.
        """

        @trusted
        @functools.wraps(fn)
        def call(*args: Any, **kwargs: Any) -> Any:
            if rows:
                args, kwargs = self.with_rows_repeated(args, kwargs)
            began = perf_counter()
            try:
                return fn(*args, **kwargs)
            finally:
                self.seconds += perf_counter() - began

        return call

    def with_rows_repeated(self, *arguments: Any) -> Any:
        """Return nested arguments in which arrays of one row are repeated for each row of the others."""
        backend = self.backend
        arrays = [x for x in optree.tree_leaves(arguments) if backend.owns(x)]
        most = max([x.shape[0] for x in arrays if x.shape], default=1)
        every = backend.constant(np.zeros(most, np.int64), None)

        def repeated(x: Any) -> Any:
            return backend.gather(x, every) if backend.owns(x) and tuple(x.shape[:1]) == (1,) else x

        return optree.tree_map(repeated, arguments)


class Onlooker(abc.ABC):
    """A context in which `see` is called at each call and return in this thread.

    A profiler of the user rests meanwhile.
    """

    @abc.abstractmethod
    def see(self, frame: FrameType, event: str, what: Any) -> None:
        """Note that a function begins or ends, given what `sys.setprofile` gives its function.

        ``event`` is ``"call"``, ``"return"``, ``"c_call"``, ``"c_return"`` or ``"c_exception"``.
        """

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


FRAMEWORK, PROGRAM, BESIDE = "framework", "program", "beside"
"""Whose function runs."""


class OwnLines:
    """Counts the lines of Python that a program runs itself, without those that ops would run.

    It is a context. A tracer of the user, as that of a debugger, rests meanwhile.

    Parameters
    ----------
    is_own : callable
        Takes the name of a module; returns whether it is code of the program.
    inside : container of CodeType
        The code of functions that ops run as a whole; nothing below them counts.
    in_ops : container of (CodeType, int)
        Lines, by the number in the file, that ops run.

    Attributes
    ----------
    count : int
        How many lines were run; a call of a function counts as two.
    """

    def __init__(
        self,
        is_own: Callable[[str], bool],
        inside: Container[CodeType],
        in_ops: Container[tuple[CodeType, int]],
    ) -> None:
        self.is_own = is_own
        self.inside = inside
        self.in_ops = in_ops
        self.count = 0
        self.depth = 0

    def __enter__(self) -> Self:
        self.before: Any = sys.gettrace()
        sys.settrace(self.see_call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self.before)

    def see_call(self, frame: FrameType, event: str, what: Any) -> Any:
        """Count a call of the program's own code; return what is told of its lines."""
        if self.depth or not self.is_own(frame.f_globals.get("__name__") or ""):
            return None
        if frame.f_code in self.inside:
            self.depth += 1
            return self.see_end
        self.count += 2
        return self.see_line

    def see_line(self, frame: FrameType, event: str, what: Any) -> Any:
        """Count a line."""
        if event == "line" and (frame.f_code, frame.f_lineno) not in self.in_ops:
            self.count += 1
        return self.see_line

    def see_end(self, frame: FrameType, event: str, what: Any) -> Any:
        """Note that a function ends which counts as a whole."""
        self.depth -= event == "return"
        return self.see_end


def seconds_of_a_line() -> float:
    """Return how long a line of Python takes here, of a program that walks a structure."""

    class Tree:
        def __init__(self, parts: list[Tree]) -> None:
            self.parts = parts
            self.values: dict[str, int] = {"size": len(parts)}

    def walk(tree: Tree, sizes: list[int]) -> int:
        depths = [walk(part, sizes) for part in tree.parts]
        size = tree.values["size"] + len(depths)
        sizes.append(size)
        if not depths:
            return 0
        return 1 + max(depths)

    tree = Tree([])
    for _ in range(6):
        tree = Tree([tree, tree])
    with OwnLines(lambda name: name == __name__, (), ()) as lines:
        walk(tree, [])
    return shortest(lambda: [walk(tree, []) for _ in range(10)]) / (10 * lines.count)


class Beside(Onlooker):
    """Measures for how long a program is in functions that are neither its own nor a framework's.

    Those are what it calls of the standard library, or of other packages.

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
        self.stack = [FRAMEWORK]  # of each function under way, whose it is
        self.events: Counter[str] = Counter()
        self.spent: defaultdict[str, float] = defaultdict(float)
        self.began = 0.0

    def seconds(self, alone: float) -> float:
        """Return the seconds that were spent in such functions, 0 or more.

        ``alone`` is how many seconds the same run takes without being watched. What the watched one has
        taken longer is divided evenly among all events (calls and returns), and taken off for theirs.
        """
        telling = (sum(self.spent.values()) - alone) / max(1, sum(self.events.values()))
        return max(0.0, self.spent[BESIDE] - self.events[BESIDE] * max(0.0, telling))

    def __enter__(self) -> Self:
        gc.collect()
        self.began = perf_counter()
        return super().__enter__()

    def see(self, frame: FrameType, event: str, what: Any) -> None:
        """Add the time since the last event to the function that ran, and note what runs next."""
        kind = self.stack[-1]
        self.spent[kind] += perf_counter() - self.began
        self.events[kind] += 1
        if event in ("call", "c_call"):
            module = frame.f_globals.get("__name__") if event == "call" else module_name_of(what)
            if (module or "").partition(".")[0] in self.others:
                kind = FRAMEWORK
            elif event == "call" and self.is_own(module or ""):
                kind = PROGRAM
            elif kind == PROGRAM:
                kind = BESIDE
            self.stack.append(kind)
        # What returns here may have begun before the watch, and then it is not on the stack.
        elif len(self.stack) > 1:
            self.stack.pop()
        self.began = perf_counter()  # leaves out what this method itself has taken


def module_name_of(function: Any) -> str | None:
    """Return the name of the module of a function written in C, or of the class that it is a method of."""
    owner = getattr(function, "__self__", None)
    return getattr(function, "__module__", None) or getattr(owner, "__module__", type(owner).__module__)


class WatchedLoop(Onlooker):
    """Notes which functions of the user a program calls, for how long, by whom, and which call themselves.

    Times are of this thread, since an example takes less than what other work of the machine may.
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
        """Note that a function of the user was called or returns, by whom, and after what time."""
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
        """Return whether the module of this name is code of the user.

        That is a module that is not multifold's, the framework's or installed. The package that the program
        is in counts, even if it is installed.
        """
        package = module.partition(".")[0]
        if package in ("multifold", package_of(self.backend)):
            return False
        return package == self.home or is_written_here(module)

    def functions(self) -> list[FunctionType]:
        """Return the functions that are worth trying as cells, those first that take longest.

        Those that no name finds are left out; see `candidates` for the others.
        """
        # A code object does not say whose code it is, but the collector knows what refers to it.
        found = [x for code in self.candidates() for x in gc.get_referrers(code) if type(x) is FunctionType]
        return [x for x in found if is_found(x)]

    @property
    def looping(self) -> set[CodeType]:
        """The code objects of functions that call themselves, and of those that call such a function."""
        found = {*self.recursive}
        # Go on to callers, and to theirs.
        while more := {x for code in found for x in self.callers[code] if x} - found:
            found |= more
        return found

    @property
    def total(self) -> float:
        """The seconds that were spent in functions of the user while this watched."""
        return sum(self.seconds[code] for code, callers in self.callers.items() if None in callers)

    def candidates(self) -> list[CodeType]:
        """Return the code objects of functions that may be cells, those first that take longest.

        Such a function returns arrays, and takes 5 % of the time or more. It calls neither itself nor a
        function that does, and other functions of the user call it.
        """
        looping = self.looping
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
