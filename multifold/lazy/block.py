"""Blocks: loops over examples inside of a person's own method, whose equal steps run together.

What the code inside of a block does with arrays is recorded, as in a batched program, and runs where the
block ends. It is one program that runs in its own order, so nothing has to wait: a read runs at once what
it needs.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType, FunctionType, SimpleNamespace, TracebackType
from typing import TYPE_CHECKING, Any

from multifold._engine.ops.reach import globals_of
from multifold._engine.plan.outputs import take_apart
from multifold._engine.rounds import collector
from multifold._engine.rounds.rounds import Rounds
from multifold._engine.run.blame import by_halves
from multifold._engine.run.report import NOBODY
from multifold.backend import Backend
from multifold.errors import RecordError
from multifold.fold import Fold
from multifold.lazy.cells import CELLS, checked_cells
from multifold.lazy.current import CURRENT, Recording
from multifold.lazy.function import LazyFunction

if TYPE_CHECKING:
    from multifold.lazy.explained import LazyExplanation


class pending:  # noqa: N801 - it is used as a function
    """Record what the code in a ``with`` statement does with arrays, and run equal steps of it together.

    Use it for a loop over examples that is inside of a method of your own. To run a function of one example
    for many, use `batched`.

    Parameters
    ----------
    cells : sequence of callable
        Functions, methods or classes of modules that are cells, as of `batched`.
    backend : str or Backend
        The framework; ``"auto"`` for that of what the function with the ``with`` has and uses.
    device : optional
        As of `Fold`.
    shared : array, or nested arrays
        Arrays that are the same for all examples, as parameters of a function of JAX. Parameters and
        buffers of modules, and arrays of NumPy that functions find around them, need not be named.

    Raises
    ------
    RecordError
        If the framework cannot be found, or ``cells`` holds what cannot be a cell.
    BackendError
        If the framework records no plain programs.
    LaunchError
        Where the block ends, or a value is read, if a recorded call fails.

    Notes
    -----
    Pending arrays stand for their values when the block has ended. An exception leaves it as soon as what
    was recorded has run, as far as it can. A read (``if x > 0``, ``x.item()``) runs what it needs, of this
    one array; where the decisions of examples depend on values, `batched` runs the reads of all of them
    together. Recorded calls run later than in the loop, so one may not depend on what the code changes
    meanwhile, such as weights: that is an error. What examples share is not compared: they run in the order
    of the loop. A block inside of another one, or of a batched program, is a part of that.

    One object may be used again and again, and knows the calls that it has met.

    Examples
    --------
    >>> import multifold, numpy as np
    >>> @multifold.cell
    ... def join(left, right):
    ...     return np.maximum(left, right) + 1
    >>> def heights(trees):
    ...     def height(tree):
    ...         return join(*map(height, tree)) if isinstance(tree, tuple) else np.zeros(1)
    ...     with multifold.pending(backend="numpy") as block:
    ...         found = [height(tree) for tree in trees]
    ...     print(len(block.explain()), "launches")
    ...     return np.stack(found)
    >>> heights([(0, 0), ((0, 0), 0), ((0, 0), (0, 0))])
    3 launches
    array([[1.],
           [2.],
           [2.]])
    """

    def __init__(
        self,
        *,
        cells: Sequence[Any] = (),
        backend: str | Backend | type[Backend] = "auto",
        device: Any = None,
        shared: Any = (),
    ) -> None:
        self.cells = checked_cells(cells)
        self.backend = backend
        self.device = device
        self.shared = shared
        self.of: tuple[Any, Any] = (None, None)
        self.function: LazyFunction | None = None
        self.fold: Fold | None = None
        self.entered = Entered()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to be pickled, without the fold, the last code and open contexts."""
        return {**vars(self), "of": (None, None), "function": None, "fold": None, "entered": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, entered=Entered())

    def __enter__(self) -> pending:
        inside = CURRENT.recording is not None
        context = CELLS.applied(self.cells) if inside else self.recorded(sys._getframe(1))
        context.__enter__()
        self.entered.contexts.append(context)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self.entered.contexts.pop().__exit__(kind, error, traceback)

    def explain(self, *, all: bool = False) -> LazyExplanation:
        """Return the explanation of the block's last run; raise a `RecordError` if there was none."""
        from multifold.lazy.explained import LazyExplanation  # much of the package

        if self.fold is None:
            raise RecordError("Expected a block to explain. It has not run, or is part of another one.")
        function: Any = self.function
        return LazyExplanation(
            self.fold.explain(), self.fold._graph, self.of[0], function.recorder, all=all
        )

    @contextlib.contextmanager
    def recorded(self, frame: FrameType) -> Iterator[None]:
        """Return the context that records what this thread does, and runs it when it is left.

        ``frame`` is the one with the ``with`` statement: its function and local variables tell the
        framework. If the block raises, what it has recorded is run as far as it can be.
        """
        code, model = frame.f_code, model_of(frame)
        if self.function is None or self.of[0] is not code or self.of[1] is not model:
            self.of = code, model
            around: Any = around_block(frame) if model is None else model
            self.function = LazyFunction(around, self.cells, self.backend)
        backend = self.function.backend_for(*frame.f_locals.values())
        recorder = self.function.recorder
        fold = self.fold = Fold(backend=backend, device=self.device)
        recording = Recording(recorder, backend, fold, is_block=True)
        with (
            recorder.recording([self.shared]),
            CELLS.applied(self.cells),
            collector.resting(),
            fold._rounds(None) as rounds,
        ):
            record = BlockRun(recording, rounds)
            recording.goes_on(record.made, record.wait)
            before = CURRENT.switch(recording)
            try:
                yield
                recorder.complete(recording)
            except Exception:
                recorder.complete(recording)
                CURRENT.switch(before)
                by_halves(record.unsettled(), record.settle, lambda x, error: None)
                raise
            finally:
                CURRENT.switch(before)
            record.settle(record.unsettled(), last=True)


class Entered(threading.local):
    """The contexts that ``with`` statements have entered in this thread, the innermost last."""

    def __init__(self) -> None:
        self.contexts: list[contextlib.AbstractContextManager[Any]] = []


class BlockRun:
    """The pending arrays that the code of one block has made, and the rounds that compute them.

    Parameters
    ----------
    recording : Recording
        The run that the block is.
    rounds : Rounds
        Runs the recorded calls.
    """

    def __init__(self, recording: Recording, rounds: Rounds) -> None:
        self.recording = recording
        self.recorder = recording.recorder
        self.rounds = rounds
        self.made: list[Any] = []

    def wait(self, nodes: Sequence[Any]) -> list[Any]:
        """Compute the values of ``nodes`` and what they need, at once; return them on the host, in order.

        Nothing is recorded meanwhile. It is what a read in the block calls; what ran is not run again.
        """
        with self.recording.paused(), self.recorder.apart():
            return self.rounds.values_at_once(nodes)

    def unsettled(self) -> list[Any]:
        """Return the pending arrays of the block that some object still refers to, each once.

        Those that are out of date, since an array that shares their memory was changed in place, are left
        out.
        """
        found: list[Any] = self.recorder.unsettled((), self.made)
        return found

    def settle(self, pending: Sequence[Any], last: bool = False) -> None:
        """Compute some pending arrays in one round, and make each stand for its value from now on.

        ``last`` says that nothing will be read after this, so no other result is kept. Without arrays
        nothing runs.
        """
        if not pending:
            return
        rounds = self.rounds
        asked = take_apart(rounds.recorder, tuple([x.node for x in pending]), 0)
        done = rounds.compute(asked.calls, asked.whole_calls, asked, waits=NOBODY, last=last)
        for x, rows in zip(pending, done.outputs(), strict=True):
            self.recorder.settle(x, rows)


def model_of(frame: FrameType) -> Any:
    """Return the object whose method a frame runs, or None.

    It is found if the first parameter is called ``self``, and its value has a ``__dict__``.
    """
    first = frame.f_code.co_varnames[:1] if frame.f_code.co_argcount else ()
    found = frame.f_locals.get("self") if first == ("self",) else None
    return found if hasattr(found, "__dict__") else None


def around_block(frame: FrameType) -> SimpleNamespace:
    """Return a namespace of what the code of a frame finds around it: globals, and bound variables.

    Its own local variables are left out, for arrays among them may be examples. Of the code of a module
    only functions are in it, for its globals are its variables.
    """
    own, code = frame.f_locals, frame.f_code
    around = {**frame.f_globals, **{name: own[name] for name in code.co_freevars if name in own}}
    named = {name: around[name] for name in globals_of(code) if name in around}
    if own is frame.f_globals:
        named = {name: x for name, x in named.items() if isinstance(x, FunctionType)}
    return SimpleNamespace(**named, __qualname__=code.co_qualname)
