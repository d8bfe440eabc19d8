"""Found cells: straight functions of a program, which are recorded as one call each without being named.

A function becomes one if it is straight (`multifold.lazy.straight`), once the first example of a run has
shown that there are calls to record. From the second one on a wrapper stands in its place while the program
records, which records a call whole where that does what the function does, and else calls the function.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import Any

from multifold._engine.ops.reach import FOUND, module_of
from multifold.errors import RecordError
from multifold.lazy.candidates import codes_of
from multifold.lazy.cells import CELLS, Cells, NamePlace, is_found, places_of, replaced
from multifold.lazy.current import CELL, CURRENT
from multifold.lazy.straight import crooked, is_recursive
from multifold.lazy.writes import functions_in, is_written_here

LOG = logging.getLogger("multifold")

CALLS_ITSELF = "it calls itself"
"""Why a function is not recorded whole whose calls lie inside of one another."""

NO_CALL = "no call of it could be recorded whole"
"""Why a function is given up that is straight."""

FEWEST_CALLS = 32
"""A run with fewer recorded calls has nothing to gain."""

MOST = 256
"""So many functions are looked at."""

FEW_ROWS = 2
"""A cell gains nothing if its launches have fewer rows than that."""

MANY_EXAMPLES = 16
"""Only runs of so many examples show whether launches have few rows."""

IDLE_RUNS = 3
"""After so many runs in which no call of a function could be recorded whole it is given up."""

FEW_KINDS = 16
"""So many kinds of calls a found cell may have, however few its calls are."""


class FoundCell:
    """What is known of one function of a program that may be recorded whole.

    Attributes
    ----------
    function : function
        The function.
    calls : int
        How often it was recorded as one call in the last run.
    launches : int
        How many launches these calls had.
    kinds : int
        How many kinds of calls it has had in all runs.
    total : int
        How often it was recorded in the runs before the last one.
    idle : int
        How many runs there were so far, while none has recorded a call of it.
    reason : str or None
        Why it is not recorded as one call, as a phrase; None if it is.
    """

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.calls = self.launches = self.kinds = self.total = self.idle = 0
        self.reason: str | None = crooked(function.__code__)
        if self.reason is None and is_recursive(function):
            self.reason = CALLS_ITSELF

    @property
    def name(self) -> str:
        """The qualified name of the function."""
        return self.function.__qualname__

    @property
    def place(self) -> str:
        """The file and the line where it begins, as ``"model.py:12"``."""
        code = self.function.__code__
        return f"{code.co_filename}:{code.co_firstlineno}"

    def note_call(self) -> None:
        """Count a call that was recorded."""
        self.calls += 1

    def note_launch(self) -> None:
        """Count a launch of its calls."""
        self.launches += 1

    def note_kind(self) -> None:
        """Count a kind of call; give the function up if there are fewer than four calls of each."""
        self.kinds += 1
        if self.kinds > FEW_KINDS and self.kinds * 4 > self.total + self.calls:
            self.give_up("its calls differ in numbers, or in the forms of arrays")

    def give_up(self, reason: str) -> None:
        """Record no call of it as one from now on, for a reason, which is a phrase."""
        if self.reason is None:
            self.reason = reason
            LOG.info("%s (%s) is recorded call by call: %s", self.name, self.place, reason)

    def note_idle(self) -> None:
        """Count a run in which no call was recorded; give the function up after some of these."""
        self.idle += 1
        if self.idle >= IDLE_RUNS:
            self.give_up(NO_CALL)

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
    looked : bool
        Whether a run was looked at.
    """

    def __init__(self) -> None:
        self.cells: dict[FunctionType, FoundCell] = {}
        self.looked = False

    def look(self, roots: Sequence[Any], cells: Sequence[Any]) -> None:
        """Look for straight functions among those of a program.

        ``roots`` are the program, and objects whose methods it may call; ``cells`` are cells already.
        """
        self.looked = True
        of_program = {id(code) for code in codes_of(roots[0])}
        for function in functions_in(roots, lambda _: True, tables=False):
            is_users = is_written_here(module_of(function)) and id(function.__code__) not in of_program
            is_cell = function in cells or hasattr(function, CELL)
            is_special = function.__name__.startswith("__") and function.__name__ != "__call__"
            if is_users and not (is_cell or is_special) and len(self.cells) < MOST and is_found(function):
                cell = self.cells[function] = FoundCell(function)
                if cell.reason is None:
                    LOG.info("%s (%s) is recorded whole from now on", cell.name, cell.place)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Return a context in which the functions are recorded whole, wherever their names find them."""
        for cell in self.cells.values():
            cell.begin_run()
        with APPLIED.applied([function for function, cell in self.cells.items() if cell.reason is None]):
            yield

    def settle(self, examples: int) -> None:
        """Give up the functions of which no run has recorded a call, or few calls have run together.

        Then the straight functions that they call are recorded whole instead. ``examples`` is how many
        examples the last run had: of few of them few calls can run together.
        """
        for cell in self.cells.values():
            if not cell.calls + cell.total:
                cell.note_idle()
            elif examples >= MANY_EXAMPLES and cell.calls < FEW_ROWS * cell.launches:
                cell.give_up("its launches had few rows; the functions inside of it may have more")


def found_of(fn: FunctionType) -> Callable[..., Any]:
    """Return a wrapper of ``fn`` that records its calls whole, in a program that has found it."""

    @functools.wraps(fn)
    def found(*args: Any, **kwargs: Any) -> Any:
        recording = CURRENT.recording
        if recording is None or recording.found is None or fn not in recording.found:
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

    Nothing is put where something else stands, as a cell that another program has named.
    """
    try:
        places = [place for place in known_places(fn) if not hasattr(place.read(), CELL)]
        return replaced(places, found_of(fn))
    except RecordError:
        return lambda: None


APPLIED = Cells(made_found)
"""The found cells of all programs that run. A cell that a program names takes precedence."""

CELLS.come_before(APPLIED)
