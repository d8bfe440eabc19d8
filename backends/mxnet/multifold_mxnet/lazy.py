"""MXNet for plain programs: cells that are written for rows, and operators.

MXNet has no vmap, so a call runs for all examples only if it takes a row for each of them: a function
marked by ``multifold.op``, or a Gluon block whose class is named in ``cells=[...]``, since blocks
take rows anyway. In the loop both get arrays of one row. The first launch of each tries that it keeps its
rows apart. Operators are recorded where the pending array is on their left, and both sides have one shape.
Any other function that meets a pending array is refused.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import mxnet as mx
import numpy as np
import optree
from mxnet import autograd, gluon

from multifold import trusted
from multifold.lazy.current import CELL, CURRENT, KeptState, Recording, refusal
from multifold.lazy.forms import PendingForm
from multifold.lazy.keeping import KeepingWatch, draws_own
from multifold.lazy.operators import (
    ONE_SIDED,
    OPERATORS,
    CompiledCall,
    OperatorRecorder,
    PendingOperators,
    SettledOperators,
    asking_package,
    call_layer,
    is_pending,
)
from multifold.lazy.patches import Replacements
from multifold.lazy.seen import Seen
from multifold_mxnet.trials import blocks_of

IN_A_FUNCTION = "A function of MXNet has met an array that is not computed yet, and cannot be recorded."
CELLS = (
    "make a cell of the function of yours that calls it, and write it for rows: multifold.op. "
    "Name the classes of Gluon blocks: batched(fn, cells=[gluon.nn.Dense])."
)


class PendingMxnet(PendingOperators):
    """Stands for an array that is not computed yet; operators and indexing are recorded."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        if asking_package(sys._getframe(1)) in INNER:
            return type(self)
        return mx.np.ndarray if mx.util.is_np_array() else mx.nd.NDArray

    def asnumpy(self) -> Any:
        """Return a copy of the value as a NumPy array; the example waits until it is computed."""
        return np.array(self._read())

    def asscalar(self) -> Any:
        """Return the only number of the array, of its dtype; the example waits until it is computed."""
        found = self.asnumpy()
        found.item()  # an error if there are more
        return found.reshape(-1)[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        # MXNet, as in `out[:] = x`, would take the value for a constant, which has no gradient.
        if autograd.is_recording() and asking_package(sys._getframe(1)) == "mxnet":
            raise refusal(IN_A_FUNCTION, CELLS)
        return PendingOperators.__array__(self, dtype, copy)

    def __iadd__(self, other: Any) -> NoReturn:
        raise refusal(
            "An array that is not computed yet cannot be changed in place.", "write x = x + y for x += y."
        )

    __isub__ = __imul__ = __itruediv__ = __imod__ = __iadd__

    def __getattr__(self, name: str) -> NoReturn:
        if not name.startswith("_") and hasattr(mx.nd.NDArray, name):
            raise refusal(IN_A_FUNCTION, CELLS)
        raise AttributeError(f"'NDArray' object has no attribute {name!r}")


class SettledMxnet(SettledOperators, PendingMxnet):
    """A pending array after its run: it stands for its value, an array of MXNet."""

    __slots__ = ()

    def _read(self) -> Any:
        return self.value.asnumpy()


INNER = ("mxnet", "multifold", "multifold_mxnet")
"""Packages whose code must not take a pending array for one of MXNet."""


def modes() -> tuple[bool, bool]:
    """Return two bools: whether `autograd` records gradients, and whether it is in training mode."""
    return autograd.is_recording(), autograd.is_training()


def applied(found: tuple[bool, bool]) -> AbstractContextManager[Any]:
    """Return a context in which `autograd` has the modes ``found``, as `modes` returns them."""
    records, trains = found
    scope: AbstractContextManager[Any] = autograd.record(trains) if records else autograd.pause(trains)
    return scope


class MxnetCell(CompiledCall):
    """A call that takes a row for each example, as a Gluon block or ``multifold.op``.

    It runs in the modes of `autograd` in which it was recorded.
    """

    is_cell = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.modes = modes()

    def learn(self, recording: Recording, forms: Sequence[PendingForm]) -> tuple[Sequence[Any], Any]:
        own = mx.np if mx.util.is_np_array() else mx.nd
        kinds = [own.ones if np.dtype(form.dtype).kind == "f" else own.zeros for form in forms]
        owners = [self.func, *self.leaves]
        places = [place for x in owners if (place := recording.backend.device(x)) is not None]
        options = {"ctx": places[0]} if places else {}
        pairs = zip(kinds, forms, strict=True)
        ones = [make(form.shape, dtype=form.dtype, **options) for make, form in pairs]
        with recording.aside(owners) as kept, autograd.pause(self.modes[1]):
            watch = KeepingWatch(kept)
            found = self.one(*ones)
            self.refuse_keeping(kept, watch, lambda: self.one(*ones))
            self.refuse_draws(recording, kept, ones, found)
        results, structure = optree.tree_flatten(found)
        if not results or not all(isinstance(x, mx.nd.NDArray) for x in results):
            raise refusal(f"Expected the cell {self.__name__} to return arrays. Received {found!r}.")
        return results, None if found is results[0] else structure

    def refuse_draws(self, recording: Recording, kept: KeptState, ones: Sequence[Any], found: Any) -> None:
        """Raise `RecordError` if there is a seed, and the cell draws random numbers.

        ``found`` is what it has returned for ``ones``; it runs once more. MXNet does not tell its random
        state, so a launch cannot draw what the loop draws. ``kept`` is the state that is put back.
        """
        if recording.seed is None or not self.is_cell:
            return
        drops = self.modes[1] and any(
            isinstance(x, gluon.nn.Dropout) for x in blocks_of([self.func, *self.leaves])
        )
        arrays = [optree.tree_leaves(x) for x in (found, self.one(*ones))]
        if (
            draws_own(kept)
            or drops
            or any(not np.array_equal(x.asnumpy(), y.asnumpy()) for x, y in zip(*arrays, strict=True))
        ):
            raise refusal(
                f"{self.__name__} draws random numbers for all examples at once, not those of the loop.",
                "leave out seed=, or draw outside of the cell and pass what was drawn.",
            )

    def __call__(self, *operands: Any) -> Any:
        with applied(self.modes):
            found = optree.tree_leaves(self.on_rows(operands))
        return found[0] if len(found) == 1 else tuple(found)

    def on_rows(self, operands: Sequence[Any]) -> Any:
        """Run the cell on operands ``(n, 1, *s)``; return its result, each array ``(n, 1, *s)``.

        Axis 1 stands for the one row that the loop has; operands lose it before the call.
        """
        found = self.one(*self.mapped(self.as_rows, operands))
        return optree.tree_map(lambda x: with_axis(x, 1), found)


@trusted  # its operands have one shape, so a number of a row meets only the number at its place
class MxnetOperator(MxnetCell):
    """A recorded operator, as ``x + y``, on pending arrays of one shape and numbers."""

    is_cell = False

    def learn(self, recording: Recording, forms: Sequence[PendingForm]) -> tuple[Sequence[Any], Any]:
        if self.func not in ELEMENTWISE or len({form.shape for form in forms}) > 1 or any(self.shared):
            raise refusal(IN_A_FUNCTION, CELLS)
        return super().learn(recording, forms)

    def on_rows(self, operands: Sequence[Any]) -> Any:
        return self.one(*operands)


ELEMENTWISE = {getattr(operator, f"__{name}__") for name in [*OPERATORS.split(), *ONE_SIDED.split()]} - {
    operator.matmul
}
"""Operators that compute each number by itself."""


def with_axis(x: Any, axis: int) -> Any:
    """Return ``x`` with a new axis of length 1 at position ``axis``."""
    return mx.np.expand_dims(x, axis) if isinstance(x, mx.np.ndarray) else x.expand_dims(axis)


def seen_call(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of ``gluon.Block.__call__`` that records cells.

    While a program records, a block whose class was named in ``cells=[...]`` is recorded, and any other
    block of MXNet that gets a pending array raises `RecordError`. All other calls go to ``call``.
    """

    def called(self: Any, *args: Any) -> Any:
        recording = CURRENT.recording
        if recording is not None:
            if hasattr(type(self), CELL):
                return recording.recorder.recorded(recording, MxnetCell, call_layer, (self, *args), {})
            if type(self).__module__.startswith("mxnet.") and any(map(is_pending, args)):
                raise refusal(IN_A_FUNCTION, CELLS)
        return call(self, *args)

    return called


def refused_change(change: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of ``change``, a method that changes parameters.

    It raises `RecordError` while a program records, and calls ``change`` otherwise.
    """

    def changed(self: Any, *args: Any, **kwargs: Any) -> Any:
        if CURRENT.recording is not None:
            raise refusal(
                "The program changes parameters, which recorded calls read later than in the loop.",
                "change them after the run.",
            )
        return change(self, *args, **kwargs)

    return changed


def seen_data(data: Callable[..., Any]) -> Callable[..., Any]:
    """Return a replacement of ``Parameter.data``, which a program may not call where a trace is made.

    A trace would hold what comes from it, and not see it change. Cells run elsewhere.
    """

    def values(self: Any, *args: Any, **kwargs: Any) -> Any:
        recording = CURRENT.recording
        if recording is not None and recording.is_trace:
            raise refusal(
                f"The program uses the parameter {self.name} itself while a trace is made, which would not "
                "see it change.",
                CELLS,
            )
        return data(self, *args, **kwargs)

    return values


SEEN = Replacements(
    (gluon.Block, "__call__", seen_call),
    (gluon.Parameter, "data", seen_data),
    (gluon.Parameter, "set_data", refused_change),
    (gluon.Trainer, "step", refused_change),
)
"""What sees calls of blocks, and uses and changes of parameters."""


class MxnetRecorder(OperatorRecorder):
    """Records the calls of one plain program in MXNet, and keeps what it has learnt of each kind of call.

    Parameters
    ----------
    fn : callable
        The program.
    """

    packages = ("mxnet",)
    arrays = (mx.nd.NDArray,)
    calls = MxnetOperator, MxnetCell, MxnetCell
    replaced = SEEN
    in_a_function = IN_A_FUNCTION
    cells = CELLS

    def __init__(self, fn: Any) -> None:
        super().__init__(PendingMxnet, SettledMxnet, None, (modes,))
        self.outside = modes()

    def modules_in(self, x: Any) -> Iterable[Any]:
        return blocks_of([x]) if isinstance(x, gluon.Block) else ()

    @contextmanager
    def recording(self, same: Iterable[Any]) -> Iterator[None]:
        before, self.outside = self.outside, modes()
        try:
            with super().recording(same):
                yield
        finally:
            self.outside = before

    def apart(self) -> AbstractContextManager[Any]:
        return applied(self.outside)

    def call(self, recording: Recording, fn: Any, rows: bool, args: Any, kwargs: Any) -> Any:
        if not rows:
            raise refusal(f"MXNet runs no function of one example, as {fn.__qualname__}, for many.", CELLS)
        return super().call(recording, fn, rows, args, kwargs)

    def look_at(self, recording: Recording, x: Any) -> Seen:
        return Seen(x, recording.reached(x), attributes_of)

    def row_of(self, recording: Recording, x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return np.array(x)[None]
        return x.asnumpy()[None] if recording.is_trace else with_axis(x, 0)

    def computed(self, form: Any, rows: Any) -> Any:
        return rows[0]

    def join(self, values: Sequence[Any], how: str) -> Any:
        if not all(isinstance(x, mx.nd.NDArray) for x in values):
            return [*values]
        if isinstance(values[0], mx.np.ndarray):
            return mx.np.stack(values) if how == "stack" else mx.np.concatenate(values)
        return mx.nd.stack(*values) if how == "stack" else mx.nd.concat(*values, dim=0)


def attributes_of(x: Any) -> dict[str, Any]:
    """Return the attributes, name -> value, of an object that its calls may depend on.

    Of a Gluon block those whose names begin with an underscore are left out.
    """
    own = vars(x)
    return {name: own[name] for name in own if name[0] != "_"} if isinstance(x, gluon.Block) else own
