"""What records plain programs in NumPy, and keeps what it has learnt of their calls."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import optree

from multifold._frameworks.numpy_backend import NumpyBackend
from multifold._plain.arrays.calls import ArrayCall, ArrayCell, ArrayRowsCell, stand_in
from multifold._plain.arrays.pending import (
    ANSWERS,
    PendingArray,
    form_of,
    is_stale,
    own_value,
    refuse_stale,
    value_of,
    with_reads,
)
from multifold._run.reach import reached
from multifold.errors import RecordError
from multifold.operands import shared
from multifold.recording import CURRENT, KnownCall, PlainValues, Recording, Seen

MANY = 4096
"""Kinds of calls that are kept beyond a run."""

FEW_NUMBERS = 16
"""Functions of so small arrays that were read run at once: to wait for their results takes longer."""


class NumpyValues(PlainValues):
    """What records plain programs in NumPy, and keeps what it has learnt of their calls.

    Parameters
    ----------
    fn : callable
        The program. The arrays that it holds or finds around it are the same for all examples.
    """

    package = "numpy"

    def __init__(self, fn: Any) -> None:
        super().__init__(PendingArray, ANSWERS, (error_handling,), ())
        self.fn = fn
        self.shared: dict[int, Any] = {}
        self.seen: dict[int, Seen] = {}

    # ---- runs ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def recording(self, same: Iterable[Any]) -> Iterator[None]:
        if len(self.known) > MANY:
            self.known = {}
        arrays = [*arrays_around(self.fn), *optree.tree_leaves([*same])]
        self.shared = {id(x): x for x in arrays if type(x) is np.ndarray}
        before, self.seen = self.seen, {}
        try:
            yield
            for seen in self.seen.values():
                seen.refuse_changed()
        finally:
            self.seen = before

    def apart(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    # ---- calls ---------------------------------------------------------------------------------------

    def modes(self) -> Hashable:
        return ()  # there are no alarms

    def key_of(self, x: Any, operands: list[Any]) -> Hashable:
        kind = type(x)
        if kind is np.ndarray:
            operands.append(x)
            return (kind, id(x)) if id(x) in self.shared else form_of(x)
        if isinstance(x, np.generic) and kind is not PendingArray:
            return kind, x.tobytes()
        if isinstance(x, (float, complex)):
            return kind, repr(x)
        if kind is slice:
            return slice, x.start, x.stop, x.step
        leaves, structure = optree.tree_flatten(x, none_is_leaf=True)
        if not structure.is_leaf():  # a container of another kind
            return structure, self.keys_of(leaves, operands)
        is_object = (
            hasattr(x, "__dict__") and vars(kind).get("__hash__", object.__hash__) is object.__hash__
        )
        if kind is FunctionType or is_object:
            if id(x) not in self.seen:
                self.seen[id(x)] = Seen(x, arrays_around(x))
            self.seen[id(x)].refuse_rebound()
            return kind, x
        try:
            hash(x)
        except TypeError:
            raise RecordError(
                f"Expected arguments that can be compared with those of other examples. Received {x!r}.",
                "a tuple or a frozenset says the same, and cannot change before the call runs.",
            ) from None
        return kind, x

    def met(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.recorded(CURRENT.recording, None, func, args, kwargs)

    def call(
        self, recording: Recording, fn: Any, rows: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return self.recorded(recording, ArrayRowsCell if rows else ArrayCell, fn, args, kwargs)

    def at_once(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return func(*with_reads(args), **with_reads(kwargs))

    def has_recorded(self, op: Any) -> bool:
        calls = [kind.call for kind in self.known.values()]
        return any(isinstance(call, ArrayCell) and call.func is op for call in calls)

    def own_row(self, recording: Recording, x: Any) -> Any:
        return shared(x) if id(x) in self.shared else x[None].copy()

    def refuse_stale(self, x: Any) -> None:
        refuse_stale(x)

    def version_of(self, x: Any) -> int:
        return 0  # NumPy does not count changes

    def nested(self, structure: Any, results: list[Any]) -> Any:
        return optree.tree_unflatten(structure, results)

    def learn(
        self,
        recording: Recording,
        maker: type[ArrayCall] | None,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        operands: Sequence[Any],
    ) -> KnownCall:
        leaves, structure = optree.tree_flatten((args, dict(kwargs)), none_is_leaf=True)
        places = [
            (i, id(x) in self.shared) for i, x in enumerate(leaves) if type(x) in (PendingArray, np.ndarray)
        ]
        call = (maker or ArrayCall)(func, structure, leaves, places)
        stand_ins = [stand_in(leaves[i]) for i, _ in places]
        found = call.learn(recording, stand_ins)
        results, shape = optree.tree_flatten(found)
        if not call.forms:
            return KnownCall(None, None, [], [], found, leaves, False)
        memories = [*stand_ins, *results]
        first = len(stand_ins)
        bases = [
            next((i for i in range(end) if np.may_share_memory(memories[i], memories[end])), None)
            for end in range(first, len(memories))
        ]
        is_plain = shape == optree.tree_structure((0,) * len(results))
        nested = None if call.is_single else tuple if is_plain else shape
        sizes = [np.size(x) for x in memories]
        is_small = (
            maker is None
            and max(sizes) <= FEW_NUMBERS
            and not any(own for _, own in places)
            and bases == [None] * len(bases)  # a part of what was read would be written to without it
        )
        return KnownCall(call, nested, call.forms, bases, None, leaves, is_small)

    # ---- results -------------------------------------------------------------------------------------

    def unsettled(self, result: Any, made: Sequence[weakref.ref[Any]]) -> list[Any]:
        returned = [x for x in optree.tree_leaves(result) if type(x) is PendingArray]
        for x in returned:
            refuse_stale(x)
        alive = [ref() for ref in made]
        own = {id(x): x for x in (*returned, *alive) if type(x) is PendingArray and not is_stale(x)}
        return [*own.values()]

    def computed(self, pending: PendingArray, rows: Any) -> Any:
        return own_value(pending.form, rows[0])

    def settle(self, pending: PendingArray, value: Any) -> None:
        pending._settle(value)

    def settled(self, result: Any, values: Mapping[int, Any]) -> Any:
        return optree.tree_map(lambda x: value_of(values.get(id(x), x)), result)

    def join(self, values: Sequence[Any], how: str) -> Any:
        if not all(isinstance(x, (np.ndarray, np.generic)) for x in values):
            return [*values]
        return np.stack(values) if how == "stack" else np.concatenate(values)


def arrays_around(x: Any) -> list[Any]:
    """Return the arrays that a function or an object holds, or finds around it."""
    return [part for part, _ in reached(NumpyBackend(), [x]) if type(part) is np.ndarray]


def error_handling() -> Hashable:
    """Return how NumPy handles floating-point errors in this thread."""
    return tuple(np.geterr().values())
