"""What records plain programs in NumPy, and keeps what it has learnt of their calls."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import optree

from multifold._engine.frameworks import registry
from multifold._engine.ops.reach import reached
from multifold._numpy.lazy.calls import ArrayCall, ArrayCell, ArrayRowsCell, stand_in
from multifold._numpy.lazy.pending import ANSWERS, PendingArray, SettledArray, form_of, own_value
from multifold.errors import MultifoldError
from multifold.lazy.beyond import beyond_of
from multifold.lazy.current import Recording, recording_of, refusal
from multifold.lazy.pending_array import with_reads
from multifold.lazy.recorder import ADVISED, FEW_NUMBERS, MANY, KnownCall, LazyRecorder, known_call
from multifold.lazy.seen import Seen
from multifold.lazy.writes import functions_in, written_by
from multifold.operands import shared

SMALL = 4096
"""Bytes of an array that examples share, and that is compared in each call which gets it."""


class NumpyRecorder(LazyRecorder):
    """Records plain programs in NumPy, and keeps what it has learnt of their calls for the next run.

    Parameters
    ----------
    fn : callable
        The program. The arrays that it holds or finds around it are the same for all examples.
    """

    packages = ("numpy",)
    has_gradients = False
    by_hand = ADVISED

    def __init__(self, fn: Any) -> None:
        super().__init__(PendingArray, SettledArray, ANSWERS, (error_handling,))
        self.fn = fn
        self.seen: dict[int, Seen] = {}
        self.outside = error_handling()
        self.copies: dict[int, tuple[Any, int]] = {}

    def raises(self) -> bool:
        """Return whether the program has told NumPy to raise floating-point errors.

        It may catch them, so what it calls runs at once, as in the loop.
        """
        handling = error_handling()
        return "raise" in handling and handling != self.outside

    @contextlib.contextmanager
    def recording(self, same: Iterable[Any]) -> Iterator[None]:
        if len(self.known) > MANY:
            self.known, self.earlier = {}, {}
        self.keep_for_later()
        arrays = [*arrays_around(self.fn), *optree.tree_leaves([*same])]
        self.shared = {id(x): x for x in arrays if type(x) is np.ndarray}
        before = self.seen, self.outside, self.copies
        self.seen, self.outside, self.copies = {}, error_handling(), {}
        try:
            yield
            self.refuse_changed()
            for seen in self.seen.values():
                seen.refuse_changed()
        finally:
            self.seen, self.outside, self.copies = before

    def key_of(self, x: Any, operands: list[Any]) -> Hashable:
        kind = type(x)
        if kind is np.ndarray:
            if id(x) not in self.shared:
                operands.append(x)
                return form_of(x)
            copied, number = self.of_now(x) if self.writes else (x, 0)
            operands.append(copied)
            return kind, id(x), number
        container = self.container_key(x, operands)
        if container is not None:
            return container
        is_object = (
            hasattr(x, "__dict__") and vars(kind).get("__hash__", object.__hash__) is object.__hash__
        )
        if kind is FunctionType or is_object:
            if id(x) not in self.seen:
                self.seen[id(x)] = Seen(x, arrays_around(x))
                self.seen[id(x)].look_beyond(beyond_of(recording_of(), [x]))
            self.seen[id(x)].refuse_rebound()
            return kind, x
        return self.constant_key(x, operands)

    @functools.cached_property
    def writes(self) -> bool:
        """Whether the code of the program may change arrays that it has not made."""
        functions = functions_in([self.fn], lambda module: True)
        return any(written_by(x.__code__).contents for x in functions)

    def of_now(self, x: Any) -> tuple[Any, int]:
        """Return what a shared array holds now, in a copy for all calls until it is changed, and a number.

        The number says how often a small array was seen to have changed in this run. A larger one is
        compared at the end of the run.
        """
        copied, number = self.copies.get(id(x), (None, -1))
        if copied is None or (x.nbytes <= SMALL and x.tobytes() != copied.tobytes()):
            copied, number = x.copy(), number + 1
            self.shared[id(copied)] = copied
            self.copies[id(x)] = copied, number
        return copied, number

    def refuse_changed(self) -> None:
        """Raise a `RecordError` if a larger shared array has changed since a call of this run got it."""
        for key, (copied, _) in self.copies.items():
            if copied.nbytes > SMALL and self.shared[key].tobytes() != copied.tobytes():
                raise refusal(
                    f"An array {copied.shape} that the examples share was changed after a call was "
                    "recorded that uses it.",
                    "write the change out of place: x = x + y for x += y.",
                )

    def refuse_rebound(self) -> None:
        for seen in self.seen.values():
            seen.refuse_rebound()

    def dispatch_unknown(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.raises():
            return self.at_once(func, args, kwargs)
        try:
            return super().dispatch_unknown(func, args, kwargs)
        except np.linalg.LinAlgError:  # a matrix of ones is singular, and that of values may be none
            return self.at_once(func, args, kwargs)

    def call(
        self, recording: Recording, fn: Any, rows: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if not rows and self.raises():
            return fn(*with_reads(args), **with_reads(kwargs))
        return self.recorded(recording, ArrayRowsCell if rows else ArrayCell, fn, args, kwargs)

    def explained(self, error: Exception) -> Exception:
        # NumPy raises this from whatever a read of a number raises, as in x[0] = y.
        cause = error.__cause__
        return cause if isinstance(cause, MultifoldError) and "array element" in str(error) else error

    def own_row(self, recording: Recording, x: Any) -> Any:
        return shared(x) if id(x) in self.shared else x[None].copy()

    def learn(
        self,
        recording: Recording,
        maker: type[ArrayCall] | None,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        operands: Sequence[Any],
    ) -> KnownCall:
        leaves, structure = self.flatten((args, dict(kwargs)))
        places = [i for i, x in enumerate(leaves) if type(x) in (PendingArray, np.ndarray)]
        same = [id(leaves[i]) in self.shared for i in places]
        call = (maker or ArrayCall)(func, structure, leaves, places, same)
        stand_ins = [stand_in(leaves[i]) for i in places]
        found = call.learn(recording, stand_ins)
        sizes = [np.size(x) for x in (*stand_ins, *optree.tree_leaves(found))]
        return known_call(
            call,
            found,
            stand_ins,
            leaves,
            is_array=lambda x: isinstance(x, (np.ndarray, np.generic)),
            share_memory=np.may_share_memory,
            may_be_small=maker is None and max(sizes, default=0) <= FEW_NUMBERS and not any(same),
        )

    def computed(self, form: Any, rows: Any) -> Any:
        return own_value(form, rows[0])

    def on_host(self, form: Any, value: Any) -> Any:
        return own_value(form, value)

    def settle(self, pending: PendingArray, rows: Any) -> None:
        pending._settle(self.computed(pending.form, rows))

    def join(self, values: Sequence[Any], how: str) -> Any:
        if not all(isinstance(x, (np.ndarray, np.generic)) for x in values):
            return [*values]
        return np.stack(values) if how == "stack" else np.concatenate(values)


def arrays_around(x: Any) -> list[Any]:
    """Return the NumPy arrays that a function or object is, holds or finds around it, each once.

    That includes those in its attributes and containers, and in functions and objects that it uses.
    """
    return [part for part, _ in reached(registry.load_backend("numpy"), [x]) if type(part) is np.ndarray]


def error_handling() -> tuple[str, ...]:
    """Return the words of `numpy.geterr`, as ``"warn"``, for divide, over, under and invalid, as a tuple.

    They say how NumPy treats floating-point errors in this thread.
    """
    return tuple(map(str, np.geterr().values()))
