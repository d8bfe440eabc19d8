"""Programs: a function of one example, whose calls are recorded on a fold that others run.

`plain` makes an ``async def`` of a function of one example, for whatever takes one: `Fold.run`, a server, a
stream, traces. `multifold.batched` runs its examples in the same way.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import optree

from multifold._engine.frameworks import registry
from multifold._engine.frameworks.framework_recorder import find_backend
from multifold._engine.ops.reach import owners_of, reached
from multifold._engine.record.node import Node
from multifold._engine.traces.tracer import TraceRecorder
from multifold.backend import Backend
from multifold.errors import RecordError, naming_keywords
from multifold.lazy.beyond import names_called, objects_from, one_of_each
from multifold.lazy.cells import CELLS, as_cell, checked_cells
from multifold.lazy.current import CURRENT, Recording
from multifold.lazy.found import FEWEST_CALLS, MANY_EXAMPLES, FoundCells
from multifold.lazy.sharing import Sharing
from multifold.lazy.waiting import Stacks, drive, stacks_of_run
from multifold.lazy.writes import functions_in, is_known_module, written_by
from multifold.operands import each


@naming_keywords
def plain(
    fn: Callable[[Any], Any],
    cells: Sequence[Any] | None = None,
    *,
    backend: str | Backend | type[Backend] = "auto",
) -> Callable[[Any, Any], Any]:
    """Return an ``async def`` that records a function of one example as it stands.

    Use it where examples are run by a function ``fn(fold, example)``: `Fold.run`, `Server`, `stream`,
    `traces`. To call the program like a model, use `batched`.

    Parameters
    ----------
    fn : callable
        Takes one example: a function, a method, or a module of the framework.
    cells : sequence of callable
        Functions, methods or classes of modules that are cells, as of `batched`, which also says which
        functions are found. ``()`` finds none.
    backend : str or Backend
        The framework; ``"auto"`` for that of ``fn`` and of what it uses, of the fold, or of the example.

    Returns
    -------
    async callable
        ``plain(fold, example)`` returns what ``fn`` returns: a node in the place of an array that was
        recorded, an array of one row in the place of any other one, and all else, as numbers and lists of
        numbers, marked by `each`. So `Fold.run` returns an array with a row for each example, or a list
        with an entry for each; a server an array ``(1, *s)``, or the entry. Traces can be made of a program
        that reads no value.

    Raises
    ------
    RecordError
        If the framework cannot be found, or ``cells`` holds what cannot be a cell.
    BackendError
        If the framework records no plain programs.

    Notes
    -----
    What an example keeps on objects of its own, and does not return, stays pending after the run.

    Examples
    --------
    >>> import multifold, numpy as np
    >>> @multifold.cell
    ... def join(left, right):
    ...     return np.maximum(left, right) + 1
    >>> def height(tree):
    ...     return join(*map(height, tree)) if isinstance(tree, tuple) else np.zeros(1)
    >>> fold = multifold.Fold(backend="numpy")
    >>> fold.run(None, [(0, 0), ((0, 0), 0)], multifold.plain(height))
    array([[1.],
           [2.]])
    """
    return LazyFunction(fn, cells, backend).record


class OfThread(threading.local):
    """What a plain program has in one thread: its recorder, and the runs on folds that are under way.

    Attributes
    ----------
    recorder : LazyRecorder or None
        Records the program's calls, and keeps what it has learnt of them.
    runs : dict of fold to LazyRun
        The run under way on each fold or recorder of traces.
    around : ExitStack
        The contexts that the first of these runs has entered, and the last one leaves.
    outer : Recording or None
        What recorded when the first of these runs began. A key press may end code anywhere, so what records
        is put back once more where the last one ends.
    """

    def __init__(self) -> None:
        self.recorder: Any = None
        self.runs: dict[Any, LazyRun] = {}
        self.around = ExitStack()
        self.outer: Recording | None = None

    def keep(self, recorder: Any) -> None:
        """Store ``recorder``, a `LazyRecorder`, for the runs of this thread to come."""
        self.recorder = recorder

    def begin(self, *contexts: AbstractContextManager[Any]) -> None:
        """Enter ``contexts`` and keep them open until `end`, unless another run has done so.

        They are entered only if no run is under way. If one of them raises, those before it are left.
        """
        if not self.runs:
            self.outer = CURRENT.recording
            with ExitStack() as around:
                for context in contexts:
                    around.enter_context(context)
                self.around = around.pop_all()

    def end(
        self,
        fold: Any,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Forget the run of ``fold``; if it was the last one, leave the contexts.

        ``kind``, ``error`` and ``traceback`` are what ``__exit__`` takes: three times None without an
        error.
        """
        self.runs.pop(fold, None)
        if not self.runs:
            CURRENT.switch(self.outer)
            self.around.__exit__(kind, error, traceback)


class LazyFunction:
    """A function of one example that calls no fold, and can be recorded on any fold, in any thread.

    Parameters
    ----------
    fn, cells, backend
        As of `plain`.

    Attributes
    ----------
    program : callable
        ``fn``, as a cell if ``cells`` names it.
    backend : Backend or None
        The adapter of its framework; None as long as that is not known.
    """

    def __init__(
        self, fn: Callable[..., Any], cells: Sequence[Any] | None, backend: str | Backend | type[Backend]
    ) -> None:
        self.fn = fn
        self.cells = checked_cells(() if cells is None else cells)
        self.finds = cells is None or len(self.cells) > 0
        self.found = FoundCells()
        self.program = as_cell(fn, self.cells)
        self.backend = find_backend(backend) or backend_around(fn)
        self.thread = OfThread()
        if self.backend is not None:  # it may record no programs
            self.thread.keep(self.backend.lazy_recorder(self.fn))

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to be pickled or copied: all but ``thread`` and ``program``.

        A copy has learnt nothing of the program's calls.
        """
        return {name: x for name, x in vars(self).items() if name not in ("thread", "program", "found")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        program = as_cell(state["fn"], state["cells"])
        vars(self).update(state, thread=OfThread(), program=program, found=FoundCells())

    @property
    def recorder(self) -> Any:
        """The `LazyRecorder` of this thread, made when first asked for; None without backend."""
        if self.thread.recorder is None and self.backend is not None:
            self.thread.keep(self.backend.lazy_recorder(self.fn))
        return self.thread.recorder

    @property
    def program_now(self) -> Any:
        """What runs as the program in a batched run: it may call pieces of itself."""
        return self.found.program_now(self.program)

    def backend_for(self, *arguments: Any) -> Backend:
        """Return the backend of the program; if it is not known yet, find it in ``arguments`` and store it.

        ``arguments`` are looked through for arrays and models of a framework. Raise a `RecordError` if
        there are none.
        """
        if self.backend is None:
            self.backend = backend_around(*arguments)
        if self.backend is None:
            name = getattr(self.fn, "__qualname__", type(self.fn).__name__)
            raise RecordError(
                "Expected a program that uses arrays or a model of a framework. Found none around "
                f"{name} or in its first example.",
                'name the framework, as in multifold.batched(fn, backend="torch").',
            )
        return self.backend

    def modes(self) -> Hashable:
        """Return what traces depend on: modes of the framework in this thread, and of the program's models.

        The thread is inside of `LazyRecorder.recording`.
        """
        owners = owners_of(self.backend_for(), None, self.fn)
        return self.recorder.modes(), self.recorder.training(owners)

    def learn(self, run: LazyRun, calls: int) -> bool:
        """Learn from the first examples of a run under way in this thread how to record those that follow.

        Return whether there is more to learn from others.

        ``calls`` is about how many calls the run will record. Straight functions are found and recorded
        whole, unless that was done, or they are few. If there is none at all, functions of weights are
        recorded, too.
        """
        recorder, found = self.recorder, self.found
        if not calls and recorder.records_weights is None and not run.recording.is_trace:
            # What differentiates by itself runs as a loop, and would be refused if it were recorded.
            records = recorder.names_of_gradients.isdisjoint(self.names())
            recorder.note_weights(recorded=records)
            if records:
                self.thread.around.enter_context(recorder.beginning())
        finds = self.finds and run.recording.found is not None
        is_first = not calls and recorder.finds_first and run.count >= MANY_EXAMPLES
        if finds and not found.looked and (calls >= FEWEST_CALLS or is_first):
            self.find_cells()
        return not calls or (finds and not found.looked)

    def find_cells(self) -> None:
        """Find straight functions, if that was not done, and record them whole in the run under way.

        A run has begun in this thread: what functions of the framework are is known inside of it.
        """
        recorder = self.recorder
        if self.finds and recorder.finds_cells and not self.found.looked:
            if not recorder.may_look(self.names_run, self.roots()):
                self.found.look_no_more()
                return
            methods = {x for x in dir(recorder.pending) if not x.endswith("_")}  # those change no array
            objects, over_arguments = self.objects(), recorder.loops_over_arguments
            self.found.look(self.fn, objects, self.cells, methods, over_arguments=over_arguments)
            self.found.take(recorder.like_cells)
            self.thread.around.enter_context(self.found.applied())

    def roots(self) -> list[Any]:
        """Return the program, and an object of each class that it reaches, whose methods it may call."""
        return [self.fn, *one_of_each(self.objects())]

    def objects(self) -> list[Any]:
        """Return what the program reaches that may be code, or have methods."""
        return objects_from(self.recorder, self.backend_for(), [self.fn])

    def names_run(self) -> set[str]:
        """Return the names in the code that the program may run, as names in that tell."""
        begin = {getattr(self.fn, "__name__", "call"), "forward", "call"}
        is_known = partial(is_known_module, self.recorder.inner)
        return names_called([*functions_in(self.roots(), is_known)], begin)

    def names(self) -> frozenset[str]:
        """Return all names of globals, attributes and methods in the user's code of the program."""
        functions = functions_in(self.roots(), lambda module: True)
        return frozenset[str]().union(*[written_by(x.__code__).names for x in functions])

    def run_of(
        self,
        fold: Any,
        same: Iterable[Any] = (),
        seed: int | None = None,
        examples: Sequence[Sequence[Any]] = (),
        *,
        own: bool = False,
        count: int = 0,
        first: int = 0,
    ) -> LazyRun:
        """Return the run of this program on ``fold`` in this thread; begin one if there is none.

        To begin enters the contexts that record, unless a run on another fold has. It ends when what the
        fold does ends, `Fold.run` for instance. Raise a `RecordError` if the fold is not inside of such a
        run, as if ``plain(fold, example)`` is called by itself.

        The other arguments count only where a run begins. ``same`` has the arguments that all examples have
        in common, and ``examples`` the own ones of each; ``count`` is how many examples there are, 0 if
        that is not known, and ``first`` the number of the first one; `batched` says what ``seed`` and
        ``own`` do.
        """
        thread = self.thread
        run = thread.runs.get(fold)
        if run is None:
            if fold._meanwhile is None:
                raise RecordError(
                    "Expected a plain program to be run by a fold. It was called by itself.",
                    "fold.run(None, examples, multifold.plain(fn)), or multifold.batched(fn)(examples).",
                )
            same = [*same]
            thread.begin(
                self.recorder.recording(same),
                CELLS.applied(self.cells),
                self.found.applied(),
                self.recorder.beginning() if self.recorder.records_weights else nullcontext(),
            )
            fold._meanwhile.push(partial(thread.end, fold))
            stacks = fold._meanwhile.enter_context(stacks_of_run())
            run = thread.runs[fold] = LazyRun(self, fold, stacks, same, seed, examples, own, count, first)
            # What is traced is kept, and a run without end, as that of a server, shows nothing first.
            if run.recording.found is not None and (run.recording.is_trace or not count):
                self.find_cells()
            if run.recording.is_trace:
                fold._meanwhile.enter_context(self.recorder.tracing(run.recording))
        return run

    async def record(self, fold: Any, example: Any) -> Any:
        """Run the code for one example on ``fold``, and return what it returns, as the fold takes it.

        Arrays that it has recorded become nodes; for anything else see `LazyRun.as_output`. Raise a
        `RecordError` inside of another plain program, or if no framework is found.
        """
        if CURRENT.recording is not None:
            raise RecordError(
                "A fold runs a plain program inside of the code of another plain program.",
                "call the function itself there: what it does is recorded with the rest.",
            )
        if self.backend is None:
            self.backend = getattr(fold, "_backend", None)
        self.backend_for(example)
        run = self.run_of(fold)
        result, pending = await run.example((example,), partial(self.program_now, example), [])
        run.recording.handed.update(run.recorder.returned(result))
        return run.as_outputs(result, pending)


class LazyRun:
    """One run of a plain program on one fold, which begins its examples one after the other.

    Parameters
    ----------
    function : LazyFunction
        The program, whose backend is known.
    fold : Fold, Unfold or recorder of traces
        The fold that the calls are recorded on.
    stacks : Stacks
        Where examples run that may wait.
    same : sequence of object
        Arguments that are the same for all examples.
    seed : int or None
        As of `batched`.
    examples : sequence of sequence of object
        The arguments of each example, if they are known; else empty.
    own : bool
        Whether each example has a copy of the model.
    count : int
        How many examples there are, 0 if that is not known.
    first : int
        The number of the first example; the others are counted on from it. With a seed, the number of an
        example says which random numbers it draws.

    Attributes
    ----------
    started : int
        How many examples have begun.
    learns : bool
        Whether there is more to learn from the first examples; see `LazyFunction.learn`.
    """

    def __init__(
        self,
        function: LazyFunction,
        fold: Any,
        stacks: Stacks,
        same: Sequence[Any],
        seed: int | None,
        examples: Sequence[Sequence[Any]],
        own: bool,
        count: int,
        first: int,
    ) -> None:
        backend: Any = function.backend
        self.function = function
        self.backend = backend
        self.fn = function.fn
        self.recorder = function.recorder
        self.fold = fold
        self.stacks = stacks
        self.recording = Recording(
            self.recorder,
            backend,
            fold,
            is_trace=isinstance(fold, TraceRecorder),
            seed=seed,
            found=function.found if self.recorder.finds_cells and not own and seed is None else None,
        )
        self.sharing = Sharing(backend, self.recorder, function.fn, seed, same, own=own)
        self.recorder.begin_run(is_seeded=seed is not None)
        for number, arguments in enumerate(examples, first):
            self.sharing.take(number, arguments)
        self.count = count
        self.first = first
        self.are_known = bool(examples)
        self.started = 0
        self.learns = True

    async def example(
        self, arguments: Sequence[Any], code: Callable[[], Any], made: list[Any]
    ) -> tuple[Any, list[Any]]:
        """Run the code of the next example, ``code()``, to its end; await the values that it reads.

        Return what it returns, and a list of the pending arrays that are in it or that another object still
        holds. Weak references to all pending arrays that it makes are added to ``made``. ``arguments`` are
        those of the example, watched for changes, as other examples may share them. What the code raises is
        raised, as `LazyRecorder.explained` puts it.
        """
        recorder = self.recorder
        before = self.started
        number = self.first + before
        self.started += 1
        self.recording.begins((self.fn, *arguments))
        if not self.are_known:
            self.sharing.take(number, arguments)
        if self.learns and before and self.count:  # these have shown about how many calls there are
            self.learns = self.function.learn(self, self.count * len(self.fold._graph.signature) // before)
        context, variables = self.sharing.context()
        code = partial(context.run, partial(completed, self.recording, code))
        try:
            result = await drive(self.recording, self.sharing, self.stacks, number, code, made)
            self.sharing.leave(number, context, variables)
            if self.recording.is_trace:
                for x in recorder.flatten(result)[0]:
                    recorder.refuse_constant(x)
            return result, recorder.unsettled(result, made)
        except Exception as cause:
            self.sharing.keep(context, variables)
            error = recorder.explained(cause)
            if error is cause:
                raise
            raise error from cause
        finally:
            self.sharing.forget(number)

    def as_outputs(self, result: Any, pending: Sequence[Any]) -> Any:
        """Return what an example has returned, with nodes in the place of pending arrays.

        The result may be nested. For leaves that are not in ``pending`` see `as_output`. A list without
        arrays, which may be longer in another example, is a leaf.
        """
        settled = self.recorder.settled(result, {id(x): x.node for x in pending})
        leaves, structure = optree.tree_flatten(settled, is_leaf=self.is_list_of_values, none_is_leaf=True)
        return structure.unflatten([*map(self.as_output, leaves)])

    def is_list_of_values(self, x: Any) -> bool:
        """Return whether ``x`` is a list with no node and no array in it, at any depth."""
        return type(x) is list and not any(
            isinstance(leaf, (Node, np.ndarray, np.generic)) or self.backend.owns(leaf)
            for leaf in optree.tree_leaves(x)
        )

    def as_output(self, x: Any) -> Any:
        """Return a node as it is, an array as one row ``(1, *s)``, and all else marked by `each`.

        While a trace is made, arrays of the framework become NumPy's.
        """
        if isinstance(x, Node):
            return x
        if self.backend.owns(x):
            return self.backend.to_numpy(x)[None] if self.recording.is_trace else x[None]
        return np.asarray(x)[None] if isinstance(x, (np.ndarray, np.generic)) else each(x)


def completed(recording: Recording, code: Callable[[], Any]) -> Any:
    """Run the code of an example, and record what it has put off; return what it returns, or raise that.

    What it has put off may be kept where other code finds it, also if it raises.
    """
    try:
        result = code()
    except Exception:
        recording.recorder.complete(recording)
        raise
    recording.recorder.complete(recording)
    return result


def backend_around(*values: Any) -> Backend | None:
    """Return the backend of the first array or model that ``values`` are, hold or use, or None.

    The backend of NumPy is returned only if no other framework is found, and None if there is no array at
    all.
    """
    arrays = False
    numpy = registry.load_backend("numpy")
    for part, _ in reached(numpy, values):
        found = registry.host(part) or registry.owner(part)
        if found is not None and found is not numpy:
            return found
        arrays = arrays or isinstance(part, np.ndarray)
    return numpy if arrays else None
