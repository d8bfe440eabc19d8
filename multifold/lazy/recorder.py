"""What adapters share of plain programs: pending values, calls that run on rows, and what records them.

A *pending value* is what the code of an example holds in the place of an array that is not computed yet.
An adapter has a class of them, a subclass of `LazyCall` for what runs a function of one example on the
rows of all, and a subclass of `LazyRecorder`, which says what its framework does differently.

What a pending value is asked for is answered by its form, recorded, or *read*: its example waits.
"""

from __future__ import annotations

import abc
import contextlib
import math
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import CodeType, FrameType
from typing import Any, ClassVar

import optree

from multifold._engine.compiled import KnownCall as KnownCall
from multifold._engine.compiled import LazyRecorderBase
from multifold._engine.record.freezing import freeze
from multifold.errors import RecordError
from multifold.lazy.current import CURRENT, Recording, recording_of, refusal
from multifold.lazy.pending_array import with_reads
from multifold.marks import mark_of as mark_of

MANY = 4096
"""Kinds of calls that are kept beyond a run. A program with numbers of its examples among its constants has
always new ones."""

FEW_NUMBERS = 16
"""Functions of so small values that were read run at once: to wait for their results takes longer."""

LOOKED_AT = 16
"""So many of the pending values that an example has made last are looked at when it reads one."""


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


def known_call(
    call: Any,
    found: Any,
    stand_ins: Sequence[Any],
    leaves: list[Any],
    *,
    is_array: Callable[[Any], bool],
    share_memory: Callable[[Any, Any], bool],
    may_be_small: bool,
) -> KnownCall:
    """Return what is known of a kind of call, once its function has run for one example.

    Parameters
    ----------
    call : LazyCall
        The call, with the ``forms`` of its results; ``is_single`` says whether it returns one array.
    found : object
        What the function has returned.
    stand_ins : list of array
        The operands that it got.
    leaves : list
        Its arguments, which must live as long as what is known of the call: the key has their ids.
    is_array, share_memory : callable
        What is an array of the framework, and whether two share memory. A result that shares the memory of
        an operand, or of a result before it, is a view of that.
    may_be_small : bool
        Whether it may run at once where its operands were read. A function that returns a view may not: a
        part of what was read would be written to without the rest.
    """
    results, shape = optree.tree_flatten(found)
    if not any(map(is_array, results)):
        return KnownCall(None, None, [], [], found, leaves, False)
    memories = [*stand_ins, *results]
    bases = [
        next((i for i in range(end) if share_memory(memories[i], memories[end])), None)
        for end in range(len(stand_ins), len(memories))
    ]
    is_plain = shape == optree.tree_structure((0,) * len(results))
    nested = None if call.is_single else tuple if is_plain else shape
    is_small = may_be_small and bases == [None] * len(bases)
    return KnownCall(call, nested, call.forms, bases, None, leaves, is_small)
