"""Found cells: straight functions of a program, which are recorded as one call each without being named.

A function becomes one if it is straight (`multifold.lazy.straight`), once the first example of a run has
shown that there are calls to record. From the second one on a wrapper stands in its place while the program
records, which records a call whole where that does what the function does, and else calls the function.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from types import FunctionType, MethodType
from typing import Any

from multifold._engine.compiled import FoundCellBase
from multifold._engine.ops.reach import FOUND, bare, module_of
from multifold.errors import RecordError
from multifold.lazy.beyond import one_of_each
from multifold.lazy.candidates import codes_of
from multifold.lazy.cells import CELLS, Cells, NamePlace, is_found, places_of, replaced
from multifold.lazy.current import CELL, CURRENT
from multifold.lazy.divided import DividedFunction
from multifold.lazy.straight import crooked, is_recursive, loops
from multifold.lazy.taken_out import ProgramNames
from multifold.lazy.writes import functions_in, is_of_user, is_written_here, written_by

LOG = logging.getLogger("multifold")

FEW_CALLS = "its launches had few rows; the functions inside of it may have more"
OTHER_KINDS = "its calls differ in numbers, or in the forms of arrays"
"""Why a straight function, or a piece, is given up and not divided further."""

CALLS_ITSELF = "it calls itself"
"""Why a function is not recorded whole whose calls lie inside of one another."""

NO_CALL = "no call of it could be recorded whole"
"""Why a straight function is given up, and is divided."""

NEVER_CALLED = "nothing calls it but calls that are recorded whole"
"""Why a straight function is given up until one of those is."""

FEWEST_CALLS = 32
"""A run with fewer recorded calls has nothing to gain."""

MOST = 256
"""So many functions are looked at."""

FEW_LOOPED = "its launches had few rows; what its loops compute may have more"
"""Why a function with loops is given up, and is divided."""

FEW_ROWS = 2
"""A cell gains nothing if its launches have fewer rows than that."""

FEW_ROWS_LOOPED = 4
"""The same for one that loops over its arguments: their lengths part calls which its loops would join."""

MANY_EXAMPLES = 16
"""Only runs of so many examples show whether launches have few rows."""

IDLE_RUNS = 3
"""After so many runs in which no call of a function could be recorded whole it is given up."""

FEW_KINDS = 16
"""So many kinds of calls a found cell may have, however few its calls are."""


class FoundCell(FoundCellBase):
    """What is known of one function of a program that may be recorded whole.

    Parameters
    ----------
    function : function
        The function.
    is_straight : bool
        Whether it is straight, whatever its code says.
    over_arguments : bool
        Whether it may loop over its arguments.

    Attributes
    ----------
    function : function
        The function.
    launches : int
        How many launches these calls had.
    kinds : int
        How many kinds of calls it has had in all runs.
    total : int
        How often it was recorded in the runs before the last one.
    idle : int
        How many runs there were so far, while none has recorded a call of it.
    loops : bool
        Whether it loops over more than what its object has.
    calls, reason
        See the base.
    """

    def __init__(
        self, function: FunctionType, *, is_straight: bool = False, over_arguments: bool = False
    ) -> None:
        super().__init__(None if is_straight else crooked(function.__code__, over_arguments))
        self.function = function
        self.loops = over_arguments and loops(function.__code__)
        self.launches = self.kinds = self.total = self.idle = 0
        if self.reason is None and is_recursive(function):
            self.reason = CALLS_ITSELF

    @property
    def name(self) -> str:
        """The qualified name of the function."""
        return self.function.__qualname__

    @property
    def place(self) -> str:
        """The file and the line where it begins, as ``"model.py:12"``."""
        code = getattr(inspect.unwrap(self.function), "__code__", self.function.__code__)
        return f"{code.co_filename}:{code.co_firstlineno}"

    def note_launch(self) -> None:
        """Count a launch of its calls."""
        self.launches += 1

    def note_kind(self) -> None:
        """Count a kind of call; give the function up if there are fewer than four calls of each."""
        self.kinds += 1
        if self.kinds > FEW_KINDS and self.kinds * 4 > self.total + self.calls:
            self.give_up(FEW_LOOPED if self.loops else OTHER_KINDS)

    def note_numbers(self, takes_numbers: bool) -> None:
        """Set ``takes_numbers``."""
        self.takes_numbers = takes_numbers

    def give_up(self, reason: str) -> None:
        """Record no call of it as one from now on, for a reason, which is a phrase."""
        if self.reason is None:
            self.reason = reason
            LOG.info("%s (%s) is recorded call by call: %s", self.name, self.place, reason)

    def note_idle(self) -> None:
        """Count a run in which no call was recorded; give the function up after some of these."""
        self.idle += 1
        if self.idle >= IDLE_RUNS:
            self.give_up(NO_CALL if self.is_missed else NEVER_CALLED)

    def may_be_called(self) -> None:
        """Let a function be recorded whole again that nothing has called."""
        if self.reason == NEVER_CALLED:
            self.reason, self.idle = None, 0

    def begin_run(self) -> None:
        """Count calls from 0."""
        self.total += self.calls
        self.calls = self.launches = 0


class FoundCells:
    """The functions of one program that are recorded whole, and those that were looked at and are not.

    Attributes
    ----------
    cells : dict of function to FoundCell
        The functions that were looked at.
    divided : dict of function to DividedFunction
        Those that are not straight, and their pieces, which are among ``cells``.
    rests : dict of function to function
        What runs in their place in this run: the rest of each, which calls its pieces.
    program : list of function
        The functions that are the program itself, which is not recorded whole.
    placed : set of function
        Those of all these that names find, so that others can stand in their place.
    names : ProgramNames
        What the names in the program tell.
    looked : bool
        Whether a run was looked at.
    over_arguments : bool
        Whether functions may loop over their arguments.
    given_up : int
        How many functions are not recorded whole, though something calls them.
    """

    def __init__(self) -> None:
        self.over_arguments = False
        self.given_up = 0
        self.cells: dict[FunctionType, FoundCell] = {}
        self.divided: dict[FunctionType, DividedFunction] = {}
        self.rests: dict[FunctionType, FunctionType] = {}
        self.program: list[FunctionType] = []
        self.placed: set[FunctionType] = set()
        self.names = ProgramNames((), (), (), ())
        self.looked = False

    def look(
        self,
        program: Any,
        objects: Sequence[Any],
        cells: Sequence[Any],
        methods: Collection[str],
        *,
        over_arguments: bool = False,
    ) -> None:
        """Look for straight functions among those of a program; `applied` divides the others.

        ``objects`` are what the program reaches, whose methods it may call; ``cells`` are cells already.
        ``methods`` are the names of methods of arrays.
        """
        self.looked, self.over_arguments = True, over_arguments
        of_program = {id(code) for code in codes_of(program)}
        roots = [program, *one_of_each(objects)]
        users, stored = set[str](), set[str]()
        for function in functions_in(roots, lambda _: True, tables=False):
            if not is_written_here(module_of(function)):
                continue
            users.add(function.__name__)
            if function.__name__ != "__init__":
                stored.update([x.name for x in written_by(function.__code__).attributes])
            if function in cells or hasattr(function, CELL) or len(self.cells) >= MOST:
                continue
            is_special = function.__name__.startswith("__") and function.__name__ != "__call__"
            is_placed = is_found(function)
            if is_placed:
                self.placed.add(function)
            if id(function.__code__) in of_program:
                self.program.append(function)
            elif is_placed and not is_special:
                cell = FoundCell(function, over_arguments=self.over_arguments)
                self.cells[function] = cell
                if cell.reason is None:
                    LOG.info("%s (%s) is recorded whole from now on", cell.name, cell.place)
        attributes = [pair for x in objects for pair in attributes_of(x)]
        users.update([name for name, x in attributes if is_of_user(x) or holds_code(x)])
        pure = {*methods, *[name for name, _ in attributes]} - users
        self.names = ProgramNames(users, (), pure, stored)

    def take(self, functions: Sequence[Any]) -> None:
        """Let more functions be recorded whole that are straight, and record themselves where they may."""
        for function in functions:
            self.cells.setdefault(function, FoundCell(function, is_straight=True))

    def look_no_more(self) -> None:
        """Note that a run was looked at, though nothing was looked for in its program."""
        self.looked = True

    def divide(self) -> None:
        """Divide what is not recorded whole into pieces, and those that were given up further."""
        as_they_are = None, FEW_CALLS, OTHER_KINDS, NEVER_CALLED
        given_up = [fn for fn, cell in self.cells.items() if cell.reason not in as_they_are]
        names = self.names._replace(crooked={fn.__name__ for fn in (*self.program, *given_up)})
        for function in (*self.program, *[fn for fn in given_up if fn in self.placed]):
            if function not in self.divided:
                self.divided[function] = DividedFunction(function, names)
        self.rests.clear()
        for function, divided in self.divided.items():
            divided.divide([x for x in divided.pieces if x.function in given_up])
            for piece in divided.pieces:
                if piece.function not in self.cells:
                    self.cells[piece.function] = FoundCell(piece.function)
            rest = divided.function_now(found_of)
            if rest is not None:
                self.rests[function] = rest

    def program_now(self, program: Any) -> Any:
        """Return what runs as the program: with pieces, if it is a function or method that has any."""
        own = getattr(program, "__func__", program)
        rest = self.rests.get(own) if isinstance(own, FunctionType) else None
        if rest is None:
            return program
        return rest if own is program else MethodType(rest, program.__self__)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Return a context in which the functions are recorded whole, wherever their names find them."""
        if self.looked:
            self.divide()
        for cell in self.cells.values():
            cell.begin_run()
        whole = [fn for fn, cell in self.cells.items() if cell.reason is None and fn in self.placed]
        with APPLIED.applied([*whole, *[rest for fn, rest in self.rests.items() if fn in self.placed]]):
            yield

    def settle(self, examples: int) -> None:
        """Give up the functions of which no run has recorded a call, or few calls have run together.

        Then the straight functions that they call are recorded whole instead. ``examples`` is how many
        examples the last run had: of few of them few calls can run together.
        """
        for cell in self.cells.values():
            if not cell.calls + cell.total:
                cell.note_idle()
            elif examples >= MANY_EXAMPLES:
                if cell.loops and cell.calls < FEW_ROWS_LOOPED * cell.launches:
                    cell.give_up(FEW_LOOPED)
                elif cell.calls < FEW_ROWS * cell.launches:
                    cell.give_up(FEW_CALLS)
        before = self.given_up
        self.given_up = sum(cell.reason not in (None, NEVER_CALLED) for cell in self.cells.values())
        if self.given_up > before:  # it may call others now
            for cell in self.cells.values():
                cell.may_be_called()


def attributes_of(x: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names and values of the attributes of an object, and of those in dictionaries that it has.

    A framework keeps layers in a dictionary, where attributes find them.
    """
    own = getattr(x, "__dict__", {})
    for table in (own, *[part for part in own.values() if isinstance(part, dict)]):
        yield from [(name, part) for name, part in [*table.items()] if isinstance(name, str)]


def holds_code(x: Any) -> bool:
    """Return whether something is a function, or has one in a dictionary, as a layer has hooks."""
    tables = [part for part in getattr(x, "__dict__", {}).values() if isinstance(part, dict)]
    return any(
        isinstance(part, (FunctionType, MethodType, functools.partial))
        for part in (x, *[part for table in tables for part in [*table.values()]])
    )


def found_of(fn: FunctionType) -> Callable[..., Any]:
    """Return a wrapper of ``fn`` that records its calls whole, in a program that has found it."""

    @functools.wraps(fn)
    def found(*args: Any, **kwargs: Any) -> Any:
        recording = CURRENT.recording
        if recording is None or recording.found is None:
            return fn(*args, **kwargs)
        return recording.recorder.found_call(recording, fn, args, kwargs)

    setattr(found, FOUND, fn)
    return found


@functools.lru_cache(maxsize=1024)
def known_places(fn: FunctionType) -> list[NamePlace]:
    """Return where modules and classes have a function under its name, as of when this is first asked."""
    return places_of(fn)


def made_found(fn: FunctionType) -> Callable[[], None]:
    """Put a wrapper in the place of a function that is found by its name; return what undoes that.

    What calls the pieces of a function stands there itself, so that recursion adds no frames.

    Nothing is put where something else stands, as a cell that another program has named.
    """
    own = bare(fn)
    try:
        places = [place for place in known_places(own) if not hasattr(place.read(), CELL)]
        return replaced(places, found_of(fn) if own is fn else fn)
    except RecordError:
        return lambda: None


APPLIED = Cells(made_found)
"""The found cells of all programs that run. A cell that a program names takes precedence."""

CELLS.come_before(APPLIED)
