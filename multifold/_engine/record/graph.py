"""What was recorded: each call once, as integers in flat columns.

A call appends the number of its signature, and one entry for each operand to the column of its kind. The
only object of a call is the `Node` that the caller keeps. What calls share with the caller, arrays that may
change until they run, is kept in `multifold._engine.record.shared_arrays`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from time import perf_counter
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

from multifold._engine.compiled import GraphBase
from multifold._engine.compiled.arrays import PART_BITS
from multifold._engine.compiled.forms import own
from multifold._engine.record.entry import RowEntry
from multifold._engine.record.freezing import freeze, snapshot
from multifold._engine.record.lines import warn_user
from multifold._engine.record.node import Node
from multifold._engine.record.population import Seat
from multifold._engine.record.shared_arrays import CountedArrays, LastingCopies, SharedCopies
from multifold._engine.record.signature import Signature, take_in
from multifold.errors import RecordError

MANY_RUNS = 50
"""After so many runs, each with new calls and none after a reset, a fold says that it grows."""

FEW_RUNS = 3
MANY_CALLS = 50_000
"""It says so after few runs where so many calls were there before the last one."""

Forms = dict[Hashable, tuple[str, dict[Hashable, Signature]]]
"""Forms of calls: the letters of each, and the signature of each of its values."""

NAMED: Forms = {}
"""The forms of calls whose op is a name, of all folds of this process: what a new fold need not understand.

They keep no object of the user alive (`Signature.outlives_reset`). All threads share them. Each step is one
operation of a dictionary, so two threads may at worst understand a form twice.
"""

MOST_NAMED = 1024
"""So many forms are in `NAMED`, and so many values of each, before all of them are forgotten."""


class Part(NamedTuple):
    """A part of a result: the keys that lead to it, the number of its parent, and the length of a `split`.

    ``node.split(2)[1]["c"]`` has ``path=(1, "c")``, the number of ``node.split(2)[1]`` for its ``parent``,
    and ``length=None``; that parent has ``path=(1,)``, ``parent=0`` and ``length=2``.
    """

    path: tuple[Any, ...]
    parent: int
    length: int | None


WHOLE = Part((), 0, None)
"""Part 0 of each graph: the whole result."""


class Graph(GraphBase):
    """The calls of a fold or of a trace, as columns.

    Attributes
    ----------
    signatures : list of Signature
        The distinct signatures, by number.
    signature : column of int
        The signature's number of each call.
    refs, ints, floats, arrays, lengths : columns
        Operands of all calls one after the other; a signature says how many a call has of each.
    members : column of int
        The rows of ragged operands: references, or ``-1 - i`` for entry ``i`` of ``loose``.
    loose : list
        Loose values: numbers and leaf arrays inside ragged operands.
    codes : list of code
        Where each call was recorded: the code object and the instruction; `line` looks the line up.
        In a graph that was pickled, the file and the line.
    instructions : column of int
    holders : column of int
        How many nodes of each call are alive; it may be shorter than there are calls.
    merged : dict of Hashable to int, or None
        With ``cse=True`` the first call of each key that `multifold._engine.compiled.forms.merge_key`
        makes.
    parts : list of Part
        The distinct parts of results that are read, by number; part 0 is the whole result.
    keys : dict of Hashable to int
        The number of each signature by its key.
    ops : dict of Hashable to callable
        Ops that are compared by their contents, as `functools.partial`: the copy of each.
    forms : dict of Hashable to (str, dict of Hashable to Signature)
        The forms of ``quick``: the letters of each, and the signature of each of its values.
    before : dict
        The forms of the calls before `Fold.reset`; see `lasting`. In a new fold those in `NAMED`.
    shared : SharedCopies
        The values inside of `multifold.shared`, and the copies of large arrays among them.
    counted : CountedArrays
        Arrays of a framework that counts their changes; they are forgotten when calls run.
    compared : int
        How many calls there were when arrays and copies were compared for the last time.
    warned : bool
        Whether `warn_once` has warned.
    grown : pair of numbers
        How many runs came with new calls, and how many calls there were in the last one; see `grows`.
    busy : int
        Which thread is recording a call of a new form, 0 for none.
    torn : bool
        Whether two threads have recorded calls at once, whose entries may stand among each other's.
    value_of : callable or None
        Returns the value behind a reference, in the graph of an eager twin.
    began : float
        When the first call was recorded, in seconds of `time.perf_counter`.

    A column of numbers has the buffer protocol, so it becomes an array in one copy; ``arrays``, ``loose``
    and ``codes`` are lists.
    """

    __slots__ = (
        "before",
        "began",
        "busy",
        "compared",
        "counted",
        "forms",
        "grown",
        "keys",
        "ops",
        "part_numbers",
        "parts",
        "shared",
        "signatures",
        "torn",
        "value_of",
        "warned",
    )

    def __init__(
        self,
        node_type: type[Node] = Node,
        merges: bool = False,
        before: Graph | None = None,
    ) -> None:
        super().__init__(node_type, merges)
        self.forms: Forms = {}
        self.before: Forms = NAMED if before is None else before.lasting()
        self.shared = SharedCopies(None if before is None else before.lasting_copies())
        self.signatures: list[Signature] = []
        self.keys: dict[Hashable, int] = {}
        self.parts: list[Part] = [WHOLE]
        self.part_numbers: dict[Hashable, int] = {}
        self.ops: dict[Hashable, Any] = {}
        self.counted = CountedArrays()
        self.compared = 0
        self.warned = False
        self.value_of: Callable[[int], Any] | None = None
        self.grown: tuple[float, int] = 0, 0
        self.busy = 0
        self.torn = False
        self.began = perf_counter()

    def take_in(self, signature: Signature) -> int:
        """Return the number of a signature, from 0: that of an equal one, or else the next.

        A new signature is added to ``signatures`` and ``keys``. One that differs from a known one only in
        the shapes of ragged rows may be joined to it instead (`signature.take_in`).
        """
        return take_in(signature, self.keys, self.signatures)

    def take_seats(self, seats: dict[int, Seat]) -> None:
        """Let the quick path find the seats of modules in populations: by id of a module, its seat."""
        self.seats = seats

    def open_form(self, key: Hashable, letters: str, values: Hashable, number: int) -> None:
        """Let the quick path record calls of form ``key`` with these ``values`` as signature ``number``.

        A form is the op, the types of the operands and the keyword arguments of a call (`quick_key`).
        ``letters`` has a letter for each operand (`multifold._engine.compiled.forms`), and ``values`` is a
        tuple of the operands' values that count, as the shape of an array; () if none does.
        """
        if not self.signature:
            self.began = perf_counter()
        if key not in self.quick:
            self.quick[key] = self.route(letters), number, {} if values else None
            self.forms[key] = letters, {}
        table = self.quick[key][2]
        if table is not None:
            table[values] = number
        signature = self.forms[key][1][values] = self.signatures[number]
        if self.before is NAMED and type(signature.op) is str and signature.outlives_reset:
            known = NAMED.setdefault(key, (letters, {}))[1]
            known[values] = signature
            if max(len(NAMED), len(known)) > MOST_NAMED:
                NAMED.clear()

    def lasting(self, *, lazy: bool = False) -> Forms:
        """Return the forms that the graph after a reset starts with: key -> letters, values -> signature.

        A form stays if its signature keeps no object of the user alive (`Signature.outlives_reset`). With
        ``lazy``, calls of a plain program stay, too: the program keeps their objects alive itself. If this
        graph has no call, its forms are the ones that it started with.
        """
        if not self.signature:
            return self.before
        lasting: Forms = {}
        for key, (letters, table) in self.forms.items():
            kept = {
                values: known
                for values, known in table.items()
                if known.outlives_reset or (lazy and known.is_lazy)
            }
            if kept:
                lasting[key] = letters, kept
        return lasting

    def go_on_from(self, before: Graph) -> None:
        """Start with the forms of another graph of the same plain program, which keeps its calls itself."""
        self.before = before.lasting(lazy=True)

    def forget_before(self) -> None:
        """Drop the forms of calls and copies of arrays that this graph has from before a reset."""
        self.before = {}
        self.shared.forget_before()

    def recall(self, key: Hashable, letters: str, signature: Signature | None, values: Hashable) -> bool:
        """Open the form ``key`` with a signature from before the reset; return whether it was opened.

        It is not if ``signature`` is None, or if the form is open for ``values`` already. The signature
        gets a number as if it were new, so numbers, and the order of launches that follows from them, do
        not depend on what was recorded before.
        """
        if signature is None or (key in self.forms and values in self.forms[key][1]):
            return False
        self.open_form(key, letters, values, self.take_in(signature))
        return True

    def append(self, number: int, operands: Any, frame: FrameType) -> Node:
        """Append a call of signature ``number`` and return its node; NumPy arrays in it are copied.

        ``operands`` has a list for each of the columns ``refs``, ``ints``, ``floats``, ``arrays``,
        ``lengths``, ``members`` and ``loose``; ``frame`` is where the call is recorded.

        Raises
        ------
        RecordError
            If another thread has recorded a call at the same time.
        """
        if not self.signature:
            self.began = perf_counter()
        operands.arrays[:] = map(own, operands.arrays)
        operands.loose[:] = map(own, operands.loose)
        calls = len(self.signature)
        try:
            self.put(number, operands, frame)
        except BufferError:  # another thread copies the columns
            raise self.tear() from None
        if len(self.signature) > calls + 1:
            raise self.tear()
        return self.node_type(self, calls)

    def enter(self, thread: int) -> int:
        """Reserve the recording of new forms for a thread ident; return the one that had it, or 0.

        Pass that to `leave`. Calls of known forms are recorded in one step, and need no such care.

        Raises
        ------
        RecordError
            If another thread has reserved it.
        """
        before = self.busy
        if before and before != thread:
            raise self.tear()
        self.busy = thread  # nothing was called since it was compared, so no other thread has run
        return before

    def leave(self, before: int) -> None:
        """Give the recording of new forms back to ``before``, the thread's ident that `enter` returned."""
        self.busy = before

    def tear(self) -> RecordError:
        """Set ``torn``; return, but do not raise, the error for several threads that record at once."""
        self.torn = True
        return RecordError(
            "Expected one thread to use a fold at a time. Received calls of several at once.",
            "use one fold for each thread; they may share the model. fold.reset() makes this one usable "
            "again.",
        )

    def part(self, parent: int, key: Any, length: int | None = None) -> int:
        """Return the number of part ``key`` of part number ``parent``; a new one is appended to ``parts``.

        ``length`` is the ``n`` of ``split(n)``: ``node[0]`` and ``node.split(2)[0]`` are two parts.
        """
        known = (parent, key if type(key) is RowEntry else freeze(key), length)
        number = self.part_numbers.get(known)
        if number is None:
            number = self.part_numbers[known] = len(self.parts)
            self.parts.append(Part((*self.parts[parent].path, key), parent, length))
        return number

    def offsets(self, part: int, n: int) -> tuple[int, ...]:
        """Return ``n`` integers: what to add to a reference to ``part`` to get those of its ``n`` parts.

        The parts are made if need be. The graph keeps the answer in ``splits``, so `Node.split` asks once
        for each part and ``n``.
        """
        numbers = [self.part(part, i, n) for i in range(n)]
        offsets = self.splits[part, n] = tuple([(number - part) << PART_BITS for number in numbers])
        return offsets

    def grows(self) -> bool:
        """Count a run; return True once, when too many runs have each added calls to those before.

        A run without new calls does not count. `MANY_RUNS` are too many, or `FEW_RUNS` beyond `MANY_CALLS`
        calls.
        """
        runs, calls = self.grown
        if len(self.signature) <= calls:
            return False
        many = runs + 1 >= (FEW_RUNS if calls > MANY_CALLS else MANY_RUNS)
        self.grown = -math.inf if many else runs + 1, len(self.signature)
        return many

    def computed_by(self, value_of: Callable[[int], Any]) -> None:
        """Set ``value_of``, a function from a reference to its value: this graph's calls run at once."""
        self.value_of = value_of

    def recorded_for(self, seconds: float) -> None:
        """Set ``began`` to ``seconds`` before now, so that what ran since recording does not count."""
        self.began = perf_counter() - seconds

    def copy_of(self, op: Any, key: Hashable) -> Any:
        """Return the copy of ``op``, an op such as a `functools.partial`; it is made once for each ``key``.

        ``key`` is the op, frozen: later calls get the same copy as long as the op's contents are equal.
        """
        if key not in self.ops:
            self.ops[key] = snapshot(op)
        return self.ops[key]

    def lasting_copies(self) -> LastingCopies:
        """Return the copies of large shared arrays, for the graph that takes the place of this one.

        If this graph has no call, they are those that it started with itself (`SharedCopies.lasting`).
        """
        return self.shared.lasting() if self.signature else self.shared.before

    def refuse_changed(self) -> None:
        """Raise `RecordError` if calls that were recorded since this was called last read a changed array.

        These are large shared arrays of NumPy, and arrays of a framework that counts their changes. It is
        raised, too, if two threads have recorded at once.

        Some of those calls may have been recorded before the change, and others after it. Where all calls
        of an array ran before it was changed, calls to come get a copy of its new content.

        Raises
        ------
        RecordError
            If calls of such an array were recorded since the last comparison.
        """
        if self.torn:
            raise self.tear()
        self.counted.refuse_changed()
        for key in self.shared.changed():
            array = key.value
            readers = {i for i, s in enumerate(self.signatures) if any(x.key == key for x in s.slots)}
            if readers & set(self.signature[self.compared :]):
                raise RecordError(
                    "Expected an array in multifold.shared(...) to stay as it was when it was recorded. "
                    f"Received one of shape {array.shape} and dtype {array.dtype} that was changed since.",
                    "pass a copy for each content, the same one to all calls that share it.",
                )
            self.shared.drop(key)
            for known in [known for known, number in self.keys.items() if number in readers]:
                del self.keys[known]
            self.quick.clear()
        self.compared = len(self.signature)

    def line(self, call: int) -> tuple[str, int]:
        """Return the file and the line, from 1, where call number ``call`` was recorded."""
        code = self.codes[call]
        if isinstance(code, tuple):
            return code
        return code.co_filename, line_of(code, self.instructions[call])

    def lines(self) -> list[tuple[str, int]]:
        """Return the file and the line of each call, in the order of recording."""
        sites = list(zip(map(id, self.codes), self.instructions, strict=True))
        first = {site: call for call, site in reversed(list(enumerate(sites)))}
        known = {site: self.line(call) for site, call in first.items()}
        return [known[site] for site in sites]

    def site(self, call: int) -> str:
        """Return ``"file:line"`` where call number ``call`` was recorded."""
        file, line = self.line(call)
        return f"{file}:{line}"

    @contextlib.contextmanager
    def at(self, frame: FrameType) -> Iterator[None]:
        """Return a context in which all calls are recorded at the line of ``frame``.

        What records for its caller, as `Recorder.reduce` does, so has the caller's line in errors. The
        outermost context wins: a `reduce` inside of an `unroll` records at the line that calls `unroll`.
        """
        before = self.frame
        if before is None:
            self.frame = frame
        try:
            yield
        finally:
            self.frame = before

    def warn_once(self, message: str) -> None:
        """Warn at the line of the user that runs the calls; do nothing if this graph has warned."""
        if not self.warned:
            self.warned = True
            warn_user(message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what is pickled: the class, its arguments and the state, a tuple of three.

        That has the columns, with file and line in place of each code object; the other attributes without
        ``forms`` and all else in `FORGOTTEN`; and ``merged``, or {} for None.
        """
        columns = {name: getattr(self, name) for name in LISTS}
        columns |= {name: np.array(getattr(self, name)) for name in NUMERIC}
        columns["codes"] = self.lines()
        others = {name: getattr(self, name) for name in Graph.__slots__ if name not in FORGOTTEN}
        return (
            Graph,
            (self.node_type, self.merged is not None),
            (columns, others, self.merged or {}),
        )

    def __setstate__(self, state: tuple[dict[str, Any], dict[str, Any], dict[Hashable, int]]) -> None:
        columns, others, merged = state
        for name, values in columns.items():
            getattr(self, name).extend(values if name in LISTS else values.tolist())
        for name, value in others.items():
            setattr(self, name, value)
        if self.merged is not None:
            self.merged.update(merged)


NUMERIC = ("signature", "refs", "ints", "floats", "lengths", "members", "instructions")
LISTS = ("arrays", "loose", "codes")
FORGOTTEN = ("before", "busy", "counted", "forms", "value_of")


@lru_cache(maxsize=4096)
def line_of(code: CodeType, instruction: int) -> int:
    """Return the line of the instruction at a byte offset, as ``frame.f_lasti``; else the code's first.

    Recording keeps the code and the offset, which costs less than to ask the frame for its line.
    """
    for low, high, line in code.co_lines():
        if low <= instruction < high and line is not None:
            return line
    return code.co_firstlineno
