"""What adapters share of plain programs: pending values, calls that run on rows, and what records them.

A *pending value* is what the code of an example holds in the place of an array that is not computed yet.
An adapter has a class of them, a subclass of `LazyCall` for what runs a function of one example on the
rows of all, and a subclass of `LazyRecorder`, which says what its framework does differently.

What a pending value is asked for is answered by its form, recorded, or *read*: its example waits.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import math
import operator
import sys
import threading
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, ClassVar

import numpy as np
import optree

from multifold._engine.compiled import KnownCall as KnownCall
from multifold._engine.compiled import LazyRecorderBase
from multifold._engine.record.freezing import freeze
from multifold.errors import RecordError
from multifold.lazy.current import CURRENT, Recording, recording_of, refusal
from multifold.marks import mark_of as mark_of

MANY = 4096
"""Kinds of calls that are kept beyond a run. A program with numbers of its examples among its constants has
always new ones."""

FEW_NUMBERS = 16
"""Functions of so small values that were read run at once: to wait for their results takes longer."""

LOOKED_AT = 16
"""So many of the pending values that an example has made last are looked at when it reads one."""

BY_ROWS = "row by row"
"""What `explain` says of calls that run for one example after the other."""

SMALL = 4096
"""Values of up to so many numbers are read beside others."""


class LazyRecorder(LazyRecorderBase, abc.ABC):
    """Pending values of a framework, and what is done with them recorded, for `multifold.batched`.

    It is kept beyond a run, with what it has learnt of the calls of its program.
    `LazyRecorderBase.dispatch` is what a framework calls where a function meets a pending value, and
    `LazyRecorderBase.recorded` records a cell. Both ask the methods here for what they have not met before.

    Parameters
    ----------
    pending : type
        The class of pending values; see `LazyRecorderBase`.
    settled : type
        Their class once they are computed: each has a ``value``.
    answers : dict
        Functions that are not recorded, and what answers them.
    probes, alarms : tuple of callable
        See `LazyRecorderBase`.

    Attributes
    ----------
    package : str
        The framework's package, whose lines are no lines of the program.
    reads : dict of int to code
        The code of functions that have read values, by its ``id``.
    """

    package: ClassVar[str]

    def __init__(
        self,
        pending: type,
        settled: type,
        answers: dict[Any, Callable[..., Any]],
        probes: tuple[Callable[[], Any], ...] = (),
        alarms: tuple[Callable[[], Any], ...] = (),
    ) -> None:
        super().__init__(pending, answers, probes, alarms)
        self.settled_type: Any = settled
        self.reads: dict[int, CodeType] = {}

    def flatten(self, x: Any) -> tuple[list[Any], Any]:
        """Return the leaves of a nested value, None among them, and how they are nested."""
        leaves, structure = optree.tree_flatten(x, none_is_leaf=True)
        return leaves, structure

    # ---- runs ----------------------------------------------------------------------------------------

    @abc.abstractmethod
    def recording(self, same: Iterable[Any]) -> contextlib.AbstractContextManager[None]:
        """Return the context of a run, in which functions of the framework meet pending values.

        ``same`` are arguments that are the same for all examples.
        """

    def tracing(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which traces are made, which hold what the program computes at once."""
        return contextlib.nullcontext()

    def apart(self) -> contextlib.AbstractContextManager[None]:
        """Return the context in which an example waits, in the modes of the run, as that of gradients."""
        return contextlib.nullcontext()

    # ---- calls ---------------------------------------------------------------------------------------

    def modes(self) -> Hashable:
        """Return what else the program has changed in this thread that calls depend on."""
        return ()

    @abc.abstractmethod
    def key_of(self, x: Any, operands: list[Any]) -> Hashable:
        """Return the key of an argument that is neither pending nor a plain value of Python.

        Append it, or the pending values in it, if they are operands.
        """

    def constant_key(self, x: Any, operands: list[Any]) -> Hashable:
        """Return the key of an argument that is nothing of the framework: 1, 1.0 and True have three."""
        if type(x) is slice:
            return slice, freeze(x.start), freeze(x.stop), freeze(x.step)
        try:
            hash(x)
        except TypeError:
            raise RecordError(
                f"Expected arguments that can be compared with those of other examples. Received {x!r}.",
                "a tuple or a frozenset says the same, and cannot change before the call runs.",
            ) from None
        return freeze(x)

    def container_key(self, x: Any, operands: list[Any]) -> Hashable | None:
        """Return the key of a container; None for anything else."""
        leaves, structure = self.flatten(x)
        if len(leaves) == 1 and leaves[0] is x:
            return None
        return structure, self.keys_of(leaves, operands)

    def dispatch_unknown(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a function does that has met a pending value, if its kind is not known."""
        return self.recorded(CURRENT.recording, None, func, args, kwargs)

    def at_once(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function whose pending operands were read; see `KnownCall.is_small`."""
        return func(*with_reads(args), **with_reads(kwargs))

    @abc.abstractmethod
    def learn(
        self,
        recording: Recording,
        maker: Any,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        operands: Sequence[Any],
    ) -> KnownCall:
        """Find out what a kind of call returns."""

    @abc.abstractmethod
    def own_row(self, recording: Recording, x: Any) -> Any:
        """Return a computed operand as one row, which nobody changes: NumPy's, if a trace is made."""

    @abc.abstractmethod
    def call(
        self,
        recording: Any,
        fn: Callable[..., Any],
        rows: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a call of a cell; return what stands for its result."""

    def has_recorded(self, op: Any) -> bool:
        """Return whether a function, or a module of a class, was recorded as a cell."""
        return any(getattr(kind.call, "func", None) is op for kind in self.known.values())

    def explained(self, error: Exception) -> Exception:
        """Return what to raise in the place of an error that the code of an example has raised."""
        return error

    # ---- memory that values share --------------------------------------------------------------------

    def version_of(self, x: Any) -> int:
        """Return how often a computed array was changed in place; 0 where that is not counted."""
        return 0

    def refuse_stale(self, x: Any) -> None:
        """Raise an error if a pending value shares memory with one that was changed in place since."""
        if self.is_stale(x):
            raise refusal(
                "An array is used that shares its memory with another one, which was changed in place "
                "since: in a batched program they do not share it.",
                "write the change out of place: y = y + 1 for y += 1, where(...) for x[i] = v.",
            )

    # ---- reads ---------------------------------------------------------------------------------------

    @abc.abstractmethod
    def on_host(self, form: Any, value: Any) -> Any:
        """Return a value that was fetched as the program gets it."""

    def read(self, x: Any) -> Any:
        """Return the value of a pending one, once it is there: the example waits.

        A part of a small value is read with all of that. What the example has made just before is read in
        the same round, since programs read several results one after the other.
        """
        self.refuse_stale(x)
        if x.host is None and x.place is not None and self.is_readable(x.place[0]):
            self.note_value(x, self.read(x.place[0])[x.place[1]])
        if x.host is None:
            recording = recording_of()
            asked = [x]
            for made in recording.made[: -LOOKED_AT - 1 : -1]:
                other: Any = made()
                if (
                    other is not x
                    and self.is_readable(other)
                    and other.host is None
                    and other.place is None
                ):
                    asked.append(other)
            self.note_read(sys._getframe(1))
            for part, value in zip(asked, recording.wait([part.node for part in asked]), strict=True):
                self.note_value(part, self.on_host(part.form, value))
        return x.host

    def note_read(self, frame: FrameType | None) -> None:
        """Take note of the functions that read a value, themselves or by what they call."""
        while frame is not None:
            self.reads[id(frame.f_code)] = frame.f_code
            frame = frame.f_back

    def is_readable(self, x: Any) -> bool:
        """Return whether something is a small pending value that may be used."""
        return type(x) is self.pending and not self.is_stale(x) and math.prod(x.form.shape) <= SMALL

    # ---- results -------------------------------------------------------------------------------------

    def unsettled(self, result: Any, made: Sequence[weakref.ref[Any]]) -> list[Any]:
        """Return the pending values that an example's result, or anything else, still holds.

        ``made`` are those that it has made; each has a ``node``.
        """
        returned = [x for x in self.flatten(result)[0] if type(x) is self.pending]
        for x in returned:
            self.refuse_stale(x)
        alive = [ref() for ref in made]
        own = {id(x): x for x in (*returned, *alive) if type(x) is self.pending and not self.is_stale(x)}
        return [*own.values()]

    @abc.abstractmethod
    def computed(self, pending: Any, rows: Any) -> Any:
        """Return what a pending value stands for, the one of some rows."""

    @abc.abstractmethod
    def settle(self, pending: Any, rows: Any) -> None:
        """Let a pending value stand for what was computed of it, the one of some rows."""

    def settled(self, result: Any, values: Mapping[int, Any]) -> Any:
        """Return what the code of an example has returned, with values by the ``id`` of pending ones."""
        leaves, structure = self.flatten(result)
        found: list[Any] = [values.get(id(x), x) for x in leaves]
        return structure.unflatten([x.value if type(x) is self.settled_type else x for x in found])

    @abc.abstractmethod
    def join(self, values: Sequence[Any], how: str) -> Any:
        """Return the results of all examples as one: ``"stack"`` or ``"cat"``."""


def with_reads(x: Any) -> Any:
    """Return arguments with the values of pending ones, for which the example waits.

    It waits in Python code alone: a function of C++ that calls back into Python, as that of optree, does
    not bear that another stack goes on meanwhile.
    """
    recorder = recording_of().recorder
    if type(x) is recorder.pending:
        return recorder.read(x)
    if type(x) in (tuple, list):
        return type(x)([with_reads(part) for part in x])
    if type(x) is dict:
        return {name: with_reads(part) for name, part in x.items()}
    if type(x) is slice:
        return slice(*[None if end is None else operator.index(end) for end in (x.start, x.stop, x.step)])
    return x


def argument_text(x: Any, is_operand: bool) -> str:
    """Return an argument of a call for `explain`: the shape of an operand, a constant as it is written."""
    if is_operand:
        return str(tuple(x.shape))
    return repr(x) if x is None or isinstance(x, (bool, int, float, str)) else type(x).__name__


class Replacements:
    """Attributes of classes that are others while any program records, in any thread.

    Parameters
    ----------
    *places : tuple of (class, str, callable)
        A class, the name of a method, and what takes the method and returns another one.

    Examples
    --------
    >>> class Layer:
    ...     def call(self):
    ...         return "called"
    >>> seen = Replacements((Layer, "call", lambda call: lambda self: f"seen and {call(self)}"))
    >>> with seen.applied():
    ...     Layer().call()
    'seen and called'
    >>> Layer().call()
    'called'
    """

    def __init__(self, *places: tuple[type, str, Callable[[Any], Any]]) -> None:
        self.places = places
        self.kept: list[Any] = []
        self.lock = threading.Lock()
        self.users = 0

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Replace them until the last program has ended."""
        with self.lock:
            self.users += 1
            if self.users == 1:
                self.kept = [vars(owner).get(name) for owner, name, _ in self.places]
                for owner, name, make in self.places:
                    setattr(owner, name, make(vars(owner).get(name, getattr(owner, name))))
        try:
            yield
        finally:
            with self.lock:
                self.users -= 1
                if not self.users:
                    for (owner, name, _), kept in zip(self.places, self.kept, strict=True):
                        if kept is None:  # it was inherited
                            delattr(owner, name)
                        else:
                            setattr(owner, name, kept)


METHODS = """
    all any argmax argmin argsort astype clip conj copy cumprod cumsum diagonal dot flatten max mean min
    prod ravel repeat reshape round squeeze std sum swapaxes take trace transpose var
"""
"""Methods of arrays that are recorded, in NumPy and in JAX."""


@functools.cache
def method(kind: type, name: str) -> Callable[..., Any]:
    """Return a method of a class of arrays as a function, the same one each time.

    It calls the method of what it gets, which may be a number of NumPy in the place of an array.
    """

    @functools.wraps(getattr(kind, name), assigned=("__name__",))
    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        return getattr(x, name)(*args, **kwargs)

    return call


class LazyCall:
    """A function of one example, with all that its arguments are besides arrays; subclasses run it on rows.

    Parameters
    ----------
    func : callable
        The function.
    structure : PyTreeSpec or PyTreeDef
        How its arguments are nested.
    leaves : list
        The arguments themselves.
    places : list of int
        Which of them are arrays: the operands.
    shared : list of bool
        Which operands are the same for all examples. It may be left out where `mapped` is not used.

    Attributes
    ----------
    is_cell : bool
        Whether it is a function of the program, and not of the framework.
    called_with : str
        Its arguments for `explain`: the shapes of operands, and the constants.
    """

    is_cell = False

    def __init__(
        self,
        func: Any,
        structure: Any,
        leaves: Sequence[Any],
        places: Sequence[int],
        shared: Sequence[bool] = (),
    ) -> None:
        self.func = func
        self.structure = structure
        self.places = places
        self.shared = shared
        self.leaves = [None if i in places else x for i, x in enumerate(leaves)]
        self.called_with = ", ".join([argument_text(x, i in places) for i, x in enumerate(leaves)])
        self.__name__ = self.__qualname__ = getattr(func, "__name__", type(func).__name__)

    def arguments(
        self, operands: Sequence[Any], leaves: Sequence[Any] | None = None
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the arguments with some operands in their places."""
        filled = [*(self.leaves if leaves is None else leaves)]
        for place, x in zip(self.places, operands, strict=True):
            filled[place] = x
        found: Any = self.structure.unflatten(filled)
        return found

    def one(self, *operands: Any) -> Any:
        """Run the function for one example."""
        args, kwargs = self.arguments(operands)
        return self.func(*args, **kwargs)

    def mapped(self, function: Callable[[Any], Any], operands: Sequence[Any]) -> list[Any]:
        """Return the operands, with a function of each that has a row for each example."""
        pairs = zip(self.shared, operands, strict=True)
        return [x if is_shared else function(x) for is_shared, x in pairs]

    def as_rows(self, x: Any) -> Any:
        """Return rows of one row for each example on one axis, for a cell that is written for rows."""
        if x.shape[1:2] != (1,):
            raise RecordError(
                f"The cell {self.__name__} takes rows, so the first axis of its arguments has size 1.",
                "x[None] adds one; multifold.op without rows=True takes any shape.",
            )
        return x[:, 0]

    def named(self, name: str) -> None:
        """Set what `explain` calls it."""
        self.__name__ = self.__qualname__ = name

    def runs_by_rows(self, what: str = BY_ROWS) -> None:
        """Say in `explain` that it, or what it calls, runs for one example after the other."""
        if BY_ROWS not in self.__name__:
            self.named(f"{self.__name__} ({what})")


class PendingNumbers:
    """What a pending array answers by its form, or by its value, in frameworks that let any class do so.

    A subclass has a ``form``, and is a class of pending values of `LazyRecorder`.
    """

    __slots__ = ()

    form: Any

    def _read(self) -> Any:
        """Return the value, once it is there: the example waits."""
        return recording_of().recorder.read(self)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        shape: tuple[int, ...] = self.form.shape
        return shape

    @property
    def dtype(self) -> Any:
        """The dtype."""
        return self.form.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.form.shape)

    @property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.form.shape)

    def __len__(self) -> int:
        if not self.form.shape:
            raise TypeError("len() of unsized object")
        return int(self.form.shape[0])

    def __getitem__(self, index: Any) -> Any:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return iter([self[i] for i in range(len(self))])

    def __bool__(self) -> bool:
        return bool(self._read())

    def __float__(self) -> float:
        return float(self._read())

    def __int__(self) -> int:
        return int(self._read())

    def __index__(self) -> int:
        return operator.index(self._read())

    def __complex__(self) -> complex:
        return complex(self._read())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(self._read(), dtype)

    def __format__(self, spec: str) -> str:
        return format(self._read(), spec)

    __hash__ = object.__hash__
