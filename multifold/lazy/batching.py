"""Batched programs: a function of one example, run for many.

`Batched` is the loop ``[fn(x) for x in xs]``, whose equal steps run together. It lets the code of each
example run, with pending values in the place of computed ones (`multifold.lazy.recorder.LazyRecorder`),
hands the recorded calls to a `Fold`, and puts the results into what the code returned.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from threading import get_ident
from time import perf_counter
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import optree

from multifold._engine.ops.reach import owners_of
from multifold._engine.ops.state import KeptState, aside
from multifold._engine.record.lines import warn_user
from multifold._engine.rounds import collector
from multifold._engine.traces.trace import Trace
from multifold._engine.traces.tracer import traces
from multifold.backend import Backend
from multifold.errors import MismatchError, RecordError, naming_keywords, type_of
from multifold.fold import Fold
from multifold.lazy.comparing import differing
from multifold.lazy.copies import in_all_copies, own_copy
from multifold.lazy.current import CELL, CURRENT
from multifold.lazy.function import LazyFunction
from multifold.lazy.left import JoinedResult, Lefts
from multifold.lazy.met import MetExamples
from multifold.lazy.pace import FirstRuns, LoopPace
from multifold.lazy.sharing import Sharing
from multifold.operands import each

if TYPE_CHECKING:
    from multifold.lazy.explained import LazyExplanation

JOINS = ("stack", "cat", "list")

IF_IT_DRAWS = (
    "it draws random numbers, and would draw others in the loop. With seed=0 it draws the same in both, "
    "and the loop is taken where that is faster."
)
"""What to do if a program that draws is slower than its loop."""

NAMING = ("__module__", "__name__", "__qualname__", "__doc__")
"""What a batched program takes from its function; annotations of a module's class cannot be pickled."""


@naming_keywords
def batched(
    fn: Callable[..., Any],
    *,
    cells: Sequence[Any] | None = None,
    join: str = "stack",
    backend: str | Backend | type[Backend] = "auto",
    device: Any = None,
    own: bool = False,
    seed: int | None = None,
    on_error: str = "raise",
    may_loop: bool = True,
    keep: bool = False,
) -> Batched:
    """Return a function that runs ``fn`` for many examples at once, and returns what the loop returns.

    The code of each example runs as it stands: recursion, loops, conditions on its data and on computed
    values. What it does with the framework's arrays is recorded, and runs together with what the other
    examples do: functions of PyTorch, TensorFlow and NumPy, operators and cells of JAX, and cells of MXNet
    that are written for rows. Values and gradients are those of the loop.

    Parameters
    ----------
    fn : callable
        Takes one example: a function, a method, or a module of the framework. A module gives a module, with
        the parameters of ``fn``.
    cells : sequence of callable
        Functions, methods (``TreeLSTM.compose``) or classes of modules that are *cells*: each call of one
        is recorded whole, as if `cell` decorated it. In PyTorch straight functions are found, too, once the
        first example has recorded calls: those that call functions of the framework, layers and one
        another, and neither read values nor change anything but local variables. ``cells=()`` finds none.
    join : str
        ``"stack"`` stacks the results of all examples, leaf by leaf; ``"cat"`` concatenates them along axis
        0; ``"list"`` returns the list that the loop makes.
    backend : str or Backend
        The framework; ``"auto"`` for that of ``fn`` and of what it uses.
    device : optional
        As of `Fold`.
    own : bool
        Whether each example gets a copy of the model that shares its parameters. A model needs that if it
        keeps something on itself, and then reads a value. A copy takes as long as some dozens of calls.
    seed : int, optional
        If given, the random generators of Python, NumPy, the framework and the model begin anew for each
        example, from the seed and its number. So an example draws the same numbers here and in
        ``run.loop``, in any minibatch. Recorded calls that draw, as dropout, run row by row for that in
        PyTorch; in TensorFlow and MXNet they are refused, as cells that draw of Python or NumPy are.
    on_error : str
        ``"raise"`` what the first failing example raises; or ``"collect"`` the failures, and return a pair:
        the results of the other examples, and the exceptions by the number of the example.
    may_loop : bool
        Whether the plain loop runs examples where it has turned out to be faster: some runs, the second one
        first, measure both ways on parts of their examples. In PyTorch they measure backward passes, too,
        and elsewhere the forward pass stands for both. The loop is never taken with ``own`` or
        ``on_error="collect"``, nor by a program that draws random numbers without ``seed``: what it draws
        would depend on times. A warning tells if the loop would be faster then.
    keep : bool
        Whether the code of an example runs only when it is met for the first time: its recorded calls are
        kept, and replayed wherever the same objects come again as arguments, in the same modes, with new
        values and gradients. As `Batched.traces` it is for a program that reads no computed value, whose
        code draws nothing (dropout that is recorded draws anew each time), and whose examples do not
        change; ``run.check(examples)`` compares with the loop. An example is kept as long as its objects
        live; lists and tuples live on here. It excludes ``own``, ``seed`` and ``on_error="collect"``.

    Returns
    -------
    Batched
        Takes what `map` takes after the function: an iterable for each argument of ``fn``. Keywords reach
        each call as they are. Of a module of PyTorch it is a module, too, with the parameters, modes and
        state of that, and with the methods of `Batched`.

    Raises
    ------
    BackendError
        If the framework cannot be found, or records no plain programs.

    Examples
    --------
    A Tree-RNN on binary trees, for PyTorch::

        model = TreeRNN()                      # its forward calls itself
        run = multifold.batched(model)
        loss = cross_entropy(run(trees), labels)
        loss.backward()

    A program of NumPy has no layers. It names a cell, a function whose calls run together:

    >>> import multifold, numpy as np
    >>> @multifold.cell
    ... def join(left, right):
    ...     return np.maximum(left, right) + 1
    >>> def height(tree):
    ...     return join(*map(height, tree)) if isinstance(tree, tuple) else np.zeros(1)
    >>> multifold.batched(height, backend="numpy")([(0, 0), ((0, 0), 0)])
    array([[1.],
           [2.]])
    """
    if join not in JOINS:
        raise RecordError(f"Expected join to be one of {', '.join(JOINS)}. Received {join!r}.")
    if on_error not in ("raise", "collect"):
        raise RecordError(f"Expected on_error to be 'raise' or 'collect'. Received {on_error!r}.")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int) or seed < 0):
        raise RecordError(f"Expected seed to be an integer of at least 0. Received {seed!r}.")
    found = Batched(
        fn,
        cells=cells,
        join=join,
        backend=backend,
        device=device,
        own=own,
        seed=seed,
        on_error=on_error,
        may_loop=may_loop,
        keep=keep,
    )
    backend_found = found.function.backend
    return found if backend_found is None else cast("Batched", backend_found.plain_module(fn, found))


class Batched:
    """A function of one example that runs for many: what `multifold.batched` returns.

    A call takes what `map` takes after the function, and returns what the loop returns: ``run(trees)``.
    Besides, there are

    - ``run.loop(trees)``: the plain loop, to compare with, or to find an error in;
    - ``run.check(trees)``: raises where results differ from those of the loop;
    - ``run.explain()``: what ran together, what did not, and why;
    - ``run.traces(trees)`` and ``run.replay(traces)``: the code of an example runs once, and its recorded
      calls again in each epoch.

    Attributes
    ----------
    fn : callable
        The function of one example.

    Examples
    --------
    >>> import multifold, numpy as np
    >>> @multifold.cell
    ... def join(left, right):
    ...     return left + right
    >>> def total(tree):
    ...     return join(*map(total, tree)) if isinstance(tree, tuple) else tree
    >>> run = multifold.batched(total)
    >>> trees = [(np.ones(2), (np.ones(2), np.ones(2))), (np.ones(2), np.ones(2))]
    >>> run(trees)
    array([[3., 3.],
           [2., 2.]])
    >>> run.check(trees)
    >>> run.replay(run.traces(trees)).tolist() == run.loop(trees).tolist()
    True
    """

    if TYPE_CHECKING:  # a module of PyTorch gives a module, with all that those have

        def __getattr__(self, name: str) -> Any: ...

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        cells: Sequence[Any] | None,
        join: str,
        backend: str | Backend | type[Backend],
        device: Any,
        own: bool,
        seed: int | None,
        on_error: str,
        may_loop: bool,
        keep: bool,
    ) -> None:
        refuse_async(fn)
        if keep and (own or seed is not None or on_error != "raise"):
            raise RecordError(
                "Expected keep=True without own, seed and on_error='collect'. Received one of them.",
                "what is kept is replayed without running the code of an example.",
            )
        if own and isinstance(fn, FunctionType):
            raise RecordError(
                f"Expected a model, or a method of one, with own=True. Received the function {fn!r}.",
                "each example gets a copy of the model; a function has none to copy.",
            )
        self.fn = fn
        self.function = LazyFunction(fn, cells, backend)
        self.is_new = True
        self.join = join
        self.device = device
        self.own = own
        self.seed = seed
        self.on_error = on_error
        # The loop has no copies, and does not collect failures as a run does. What is replayed is faster
        # than any loop, once it has been met.
        self.may_loop = may_loop and not (own or keep) and on_error == "raise"
        self.met = MetExamples(self.version_of) if keep else None
        self.paces = paces()
        self.first_runs = FirstRuns()
        self.given = ""  # what notes of errors say of the examples
        self.pace = self.paces[False]  # the pace of the last run: `explain` tells it
        self.fold: Fold | None = None
        self.last: tuple[int, Fold | None] = 0, None  # the thread that has run it, and that fold
        self.count = 0
        functools.update_wrapper(self, fn, assigned=NAMING, updated=())

    def __repr__(self) -> str:
        """Say of what it is a run, and what the last one did."""
        name = getattr(self.fn, "__qualname__", type(self.fn).__name__)
        if self.fold is None:
            return f"<batched {name}, not called yet>"
        calls, launches = len(self.fold), len(self.fold.explain())
        return f"<batched {name}: {launches:,} launches of {calls:,} calls for {self.count:,} examples>"

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to be pickled or copied; a copy has run nothing, and knows no times."""
        state = {**vars(self), "fold": None, "last": (0, None), "count": 0, "is_new": True}
        return {**state, "paces": paces(), "pace": LoopPace(), "first_runs": FirstRuns()}

    @property
    def recorder(self) -> Any:
        """The `LazyRecorder` of the program in this thread; None while its framework is unknown."""
        return self.function.recorder

    def __call__(self, *iterables: Iterable[Any], **shared: Any) -> Any:
        """Return what ``[fn(*example, **shared) for example in zip(*iterables)]`` returns, joined.

        Inside of another batched program the examples run one after the other, and that program records
        them. They do so, too, inside of a function that PyTorch transforms, as by ``torch.func.grad``.

        Raises
        ------
        RecordError
            If there are no examples, or the results cannot be joined.
        LaunchError
            If a recorded call fails.
        """
        examples = examples_of(iterables)
        shapes = [tuple(x.shape) for x in iterables if hasattr(x, "shape")]
        self.given = f"; the examples are the rows of an array of shape {shapes[0]}" if shapes else ""
        if CURRENT.recording is not None:  # another batched program records these examples
            return self.returned(*self.looped(examples, shared))
        backend = self.function.backend_for(*examples[0], *shared.values())
        if self.recorder.must_loop():
            return self.returned(*self.looped(examples, shared))
        if self.may_loop and self.recorder.computes_now():
            with_gradients = self.recorder.has_gradients and not backend.is_inference()
            self.pace = self.paces[with_gradients]
            # With a seed the numbers that an example draws are the same in the loop.
            if self.pace.draws and self.seed is None:
                results = self.run_in_pace(self.first_runs, backend, examples, shared, with_gradients)
                if told := self.first_runs.told_once():
                    warn_user(f"{told}\n\nHint: {IF_IT_DRAWS}")
                return self.joined(results)
            return self.joined(self.run_in_pace(self.pace, backend, examples, shared, with_gradients))
        return self.returned(*self.run(examples, shared, how=self.join))

    def run_in_pace(
        self,
        pace: LoopPace | FirstRuns,
        backend: Backend,
        examples: Sequence[Any],
        shared: dict[str, Any],
        with_gradients: bool = False,
    ) -> list[Any] | JoinedResult:
        """Run the examples in the loop or batched, or some in either, as ``pace`` says; let it note times.

        Return their results, in order, or joined. Raise what the loop raises for the first example that
        fails.
        """
        count = len(examples)
        looped, timed = pace.next(count)
        compiled = backend.compilations()
        random = None
        if self.seed is None and (timed or pace.draws is None):
            random = KeptState(backend, owners_of(backend, None, self.fn), only_random=True)
            before = random.read()
        moments = [moment(backend, timed)]
        results: Any = self.looped(examples[:looped], shared)[0]
        moments.append(moment(backend, timed))
        if not looped:
            results = self.run(examples, shared, how=self.join)[0]
        elif looped < count:
            try:
                results += self.run(examples[looped:], shared, looped)[0]
            except Exception as error:
                error.add_note(
                    f"Examples are counted from 0 here after the first {looped}, which ran in the loop."
                )
                raise
        moments.append(moment(backend, timed))
        if random is not None:
            pace.note_drawn(random.drew(before))
        if timed and not (backend.compilations() > compiled and pace.put_off(count)):
            begin, middle, end = moments

            def note(in_loop: float = 0.0, batched: float = 0.0) -> None:
                in_loop, batched = middle - begin + in_loop, end - middle + batched
                pace.note(count, looped=looped, in_loop=in_loop, batched=batched)

            if with_gradients and self.recorder.times_backward:
                now = partial(moment, backend, True)
                self.recorder.time_backward(results[:looped], results[looped:], now, note)
            else:
                note()
        return results

    def new_fold(self, backend: Backend) -> Fold:
        """Return a fold without calls for a run; subclasses have folds of their own."""
        return Fold(backend=backend, device=self.device)

    def next_fold(self, backend: Backend) -> Fold:
        """Return the fold of a new run, which goes on from that of the last one, if this thread ran it.

        A fold of a subclass goes on from none. Several threads may run the program, so which thread has run
        what is one assignment.
        """
        fold, thread = self.new_fold(backend), get_ident()
        owner, before = self.last
        if type(before) is Fold and owner == thread:
            fold._go_on_from(before)
        self.fold, self.last = fold, (thread, fold)
        return fold

    def version_of(self, x: Any) -> int:
        """Return how often an array of the framework was changed in place; 0 for anything else."""
        backend = self.function.backend
        return self.recorder.version_of(x) if backend is not None and backend.owns(x) else 0

    def returned(self, results: list[Any] | JoinedResult, failures: dict[int, Exception]) -> Any:
        """Return the joined results; with ``on_error="collect"``, a pair of them and the failures.

        The former are None if there are no results. ``failures`` are the exceptions of examples by number,
        from 0.
        """
        joined = self.joined(results) if results else None
        return (joined, failures) if self.on_error == "collect" else joined

    def run(
        self, examples: Sequence[Any], shared: dict[str, Any], first: int = 0, *, how: str = "list"
    ) -> tuple[Any, dict[int, Exception]]:
        """Run all examples at once; return the results of those that did not fail, and the failures.

        The results are a list in the order of the examples, or a `JoinedResult`, joined as ``how`` says, if
        that is quicker. ``examples`` has a tuple of arguments for each, and ``shared`` the keywords for
        all. ``first`` is the number of the first example, by which, with a seed, its random streams begin;
        the others are counted on from it.
        Failures are exceptions by the number of the example, from 0; with ``on_error="raise"`` the first
        one is raised. Examples that are kept are replayed.
        """
        if self.met is not None:
            return self.run_met(self.met, examples, shared), {}
        function = self.function
        backend = function.backend_for(*examples[0], *shared.values())
        recorder = function.recorder
        fold = self.next_fold(backend)
        self.count = len(examples)
        lefts = Lefts(recorder, how if self.on_error == "raise" else "list")
        raised: dict[int, Exception] = {}
        variables: dict[Any, Any] = {}  # of the context, as examples have left them
        shared_arrays = in_all_copies(backend, self.fn) if self.own else {}

        async def run_one(fold: Fold, numbered: tuple[int, tuple[Any, ...]]) -> Any:
            number, arguments = numbered
            run = function.run_of(
                fold, shared.values(), self.seed, examples, own=self.own, count=len(examples), first=first
            )
            fn = own_copy(self.fn, shared_arrays) if self.own else function.program_now
            made: list[Any] = []
            try:
                result, pending = await run.example(arguments, partial(fn, *arguments, **shared), made)
            except Exception as found:  # noqa: BLE001 - whatever the program raises
                error = raised_by_code(found)
                error.add_note(f"Raised by example {number} of the batched program{self.given}.")
                # The others go on: in the loop, the first example that fails is the one that raises.
                raised[number] = error
                result, pending = None, recorder.unsettled(None, made)
            variables.update(run.sharing.variables)
            return lefts.add(number, result, pending)

        ran = fold.run(None, enumerate(examples), run_one, on_error=self.on_error)
        rows, failures = ran if self.on_error == "collect" else (ran, {})
        results: Any
        if type(rows) is tuple:  # an array of rows for each of `Lefts.forms`
            results = lefts.joined(rows)
        else:
            results = lefts.settled(rows or (), raised, failures)
        for variable, value in variables.items():
            variable.set(value)
        failures = {**raised, **failures}  # an example had asked for a call that fails before it raised
        if raised and self.on_error == "raise":
            raise raised[min(raised)]
        function.found.settle(len(examples))
        if recorder.records_weights and not recorder.begun:
            recorder.note_weights(recorded=False)  # it did not help
        if self.is_new and not failures:
            self.warn_of_unused()
            self.is_new = False
        return results, failures

    def warn_of_unused(self) -> None:
        """Warn of each of ``cells`` that no example has called with an array, and of each idle cell.

        An idle cell gains nothing in the last run; see `idle_cells`. Without ``cells``, warn if a run
        recorded no call at all: it ran as a loop.
        """
        for cell in self.function.cells:
            own = vars(cell).get("__wrapped__", cell) if CELL in vars(cell) else cell
            if not self.recorder.has_recorded(own):
                warn_user(
                    f"No example has called {cell.__qualname__} of cells=[...] with an array of the "
                    "framework.\n\nHint: a module whose forward is called directly is a cell by that "
                    "method: name it as Class.forward. What a cell calls is a part of it."
                )
        if self.function.cells and self.fold is not None:
            from multifold.lazy.explained import idle_cells

            for text, hint in idle_cells(self.fold.explain(), self.count):
                warn_user(f"{text}\n\nHint: {hint}")
        if not self.function.cells and not len(self.fold or ()):
            warn_user(
                f"{getattr(self.fn, '__qualname__', type(self.fn).__name__)} ran as a loop: none of its "
                "calls was recorded, since it begins with no common layer or cell.\n\nHint: name functions "
                "that take arrays by batched(fn, cells=[...])."
            )

    def traces(self, *iterables: Iterable[Any], **shared: Any) -> list[LazyTrace]:
        """Run the code of each example once, and return its recorded calls as a trace for `replay`.

        It takes what a call takes. Use it for training in many epochs. A trace holds what the code has
        decided and drawn, and is made for one model and its modes, as those of training and gradients.

        Raises
        ------
        RecordError
            If the program reads a computed value, on which what it does next may depend; or uses a computed
            tensor that needs a gradient and is no parameter.
        """
        examples = examples_of(iterables)
        self.function.backend_for(*examples[0], *shared.values())
        return self.traced(examples, shared)

    def traced(self, examples: Sequence[Any], shared: dict[str, Any]) -> list[LazyTrace]:
        """Return a trace for each example; see `traces`. The backend is known."""
        function = self.function
        taken: list[tuple[Any, Sequence[Any], Hashable]] = []

        async def record(recorder: Any, arguments: tuple[Any, ...]) -> Any:
            run = function.run_of(recorder, shared.values(), self.seed, count=len(examples))
            modes = function.modes() if not taken else taken[0][2]
            result, pending = await run.example(
                arguments, partial(function.program_now, *arguments, **shared), []
            )
            taken.append((result, pending, modes))
            return each(tuple([x.node for x in pending]))

        with collector.resting():
            made = traces(record, examples)
        return [LazyTrace(x, *found) for x, found in zip(made, taken, strict=True)]

    def replay(self, made: Sequence[LazyTrace]) -> Any:
        """Run traces that `traces` of this program has made; return what a call returns for their examples.

        Raises
        ------
        RecordError
            If there are no traces, or the modes are others than when they were made.
        LaunchError
            If a recorded call fails.
        """
        if not made or not all(isinstance(x, LazyTrace) for x in made):
            raise RecordError(f"Expected traces that run.traces(...) has made. Received {type_of(made)}.")
        if self.recorder is None:
            raise RecordError("Expected traces that this program has made. It has made none.")
        return self.joined(self.replayed(made))

    def replayed(self, made: Sequence[LazyTrace]) -> list[Any]:
        """Return the result of each example whose trace is in ``made``; see `replay`."""
        recorder = self.recorder
        fold = self.next_fold(self.function.backend_for())
        self.count = len(made)
        with recorder.recording(()):
            modes = self.function.modes()
            if any(x.modes != modes for x in made):
                raise RecordError(
                    "Expected traces in the modes in which they were made, as that of gradients, and of "
                    "the model as it was: its layers, hooks and parameters.",
                    "make new traces after a change, and for evaluation after model.eval(), inside of "
                    "torch.no_grad().",
                )
            rows = fold.run(None, [x.trace for x in made])
        found = [computed(recorder, x.pending, own) for x, own in zip(made, rows, strict=True)]
        return [recorder.settled(x.result, own) for x, own in zip(made, found, strict=True)]

    def run_met(self, met: MetExamples, examples: Sequence[Any], shared: dict[str, Any]) -> list[Any]:
        """Return the results of all examples, replayed; record only those that were not met before.

        What ``shared`` holds tells examples apart as their own arguments do.
        """
        with self.recorder.recording(()):
            modes = self.function.modes(), (*shared,)
        keys = [(*arguments, *shared.values()) for arguments in examples]
        made = [met.find(modes, key) for key in keys]
        new = [number for number, trace in enumerate(made) if trace is None]
        if new:
            for number, trace in zip(new, self.traced([examples[x] for x in new], shared), strict=True):
                made[number] = trace
                met.note(modes, keys[number], trace)
        if met.are_all_new:
            self.met = None
            warn_user(
                f"Of {len(met):,} examples none has come again, so batched(fn, keep=True) keeps none from "
                "now on.\n\nHint: hand the same objects in each epoch; a data set that makes new ones each "
                "time needs no keep=True."
            )
        return self.replayed(made)

    def loop(self, *iterables: Iterable[Any], **shared: Any) -> Any:
        """Run one example after the other, recording nothing; return what a call of the program returns.

        Takes what a call takes, and raises what ``fn`` raises. With a seed each example has random streams
        of its own here, too. To debug a program, run it so.
        """
        examples = examples_of(iterables)
        self.function.backend_for(*examples[0], *shared.values())
        return self.returned(*self.looped(examples, shared))

    def looped(
        self, examples: Sequence[Any], shared: dict[str, Any]
    ) -> tuple[list[Any], dict[int, Exception]]:
        """Run ``fn`` for one example after the other; return the results, and the failures.

        The results are in order, the failures exceptions by the number of the example, from 0. With
        ``on_error="raise"`` the first exception is raised. ``examples`` has a tuple of arguments for each
        example. With a seed each example begins with random numbers of its own.
        """
        results: list[Any] = []
        failures: dict[int, Exception] = {}
        sharing = None
        if self.seed is not None and examples:
            backend = self.function.backend_for(*examples[0], *shared.values())
            sharing = Sharing(backend, self.recorder, self.fn, self.seed, watches=False)
        for number, example in enumerate(examples):
            if sharing is not None:
                sharing.begin(number)
            try:
                results.append(self.function.program(*example, **shared))
            except Exception as error:
                if self.on_error == "raise":
                    error.add_note(f"Raised by example {number} of the batched program{self.given}.")
                    raise
                failures[number] = error
            finally:
                if sharing is not None:
                    sharing.rest(number)
        return results, failures

    def joined(self, results: list[Any] | JoinedResult) -> Any:
        """Join the results of all examples, leaf by leaf, as ``join`` says; unless they are joined already.

        ``"stack"`` adds an axis 0 for the examples, ``"cat"`` concatenates on axis 0, and ``"list"``
        returns ``results`` itself. Raise a `RecordError` if the results differ in structure.
        """
        if isinstance(results, JoinedResult):
            return results.value
        if self.join == "list":
            return results
        leaves, structures = zip(*[optree.tree_flatten(x, none_is_leaf=True) for x in results], strict=True)
        if len(set(structures)) > 1:
            other = next(number for number, x in enumerate(structures) if x != structures[0])
            raise RecordError(
                "Expected results of one structure from all examples. "
                f"Received {structures[0]} from example 0 and {structures[other]} from example {other}.",
                'batched(fn, join="list") returns them as the loop does.',
            )
        recorder = self.recorder if CURRENT.recording is None else CURRENT.recording.recorder
        columns = [*zip(*leaves, strict=True)]
        try:
            joined = [recorder.join(column, self.join) for column in columns]
        except Exception:
            for path, column in zip(structures[0].paths(), columns, strict=True):
                self.refuse_unequal(path, [getattr(x, "shape", None) for x in column])
            raise
        return optree.tree_unflatten(structures[0], joined)

    def refuse_unequal(self, path: Sequence[Any], shapes: Sequence[Any]) -> None:
        """Raise a `RecordError` if results of these shapes, at one place of a structure, cannot be joined.

        Entries without a shape, None, are left alone.
        """
        skipped = 1 if self.join == "cat" else 0  # the axis that may differ
        known = [None if x is None else tuple(x)[skipped:] for x in shapes]
        other = next((number for number, x in enumerate(known) if x != known[0]), None)
        if other is not None and None not in (known[0], known[other]):
            where = "".join([f"[{key!r}]" for key in path])
            found = f"{tuple(shapes[0])} from example 0 and {tuple(shapes[other])} from example {other}"
            raise RecordError(
                f"Expected results of shapes that join={self.join!r} can put together. Received {found}"
                f"{f', at {where}' if where else ''}.",
                'batched(fn, join="list") returns them as the loop does; join="cat" joins along axis 0.',
            )

    def explain(self, *, all: bool = False) -> LazyExplanation:
        """Return the explanation of the last run: where its time went, and what to change.

        Its text has at most 25 lines; with ``all`` it has everything, as why calls run apart.

        That is the last one whose examples were batched; if the loop has turned out to be faster, the text
        says so.

        Raise a `RecordError` if nothing has run yet.
        """
        from multifold.lazy.explained import LazyExplanation  # much of the package

        if self.fold is None:
            raise RecordError(
                "Expected a run to explain. There was none yet.", "call it on examples first."
            )
        return LazyExplanation(
            self.fold.explain(),
            self.fold._graph,
            self.fn,
            self.recorder,
            self.count,
            self.pace.said(),
            self.function.found.cells if self.function.finds else None,
            may_keep=self.met is None
            and not self.own
            and self.seed is None
            and self.recorder.times_backward,
            all=all,
        )

    def check(self, *iterables: Iterable[Any], **shared: Any) -> None:
        """Run the examples one by one and batched; raise unless all results are equal, up to rounding.

        Changes that the loop makes to the model are undone.

        Raises
        ------
        MismatchError
            If a result differs beyond rounding; it names the first such example.
        Exception
            What the first failing example raises.
        """
        examples = examples_of(iterables)
        backend = self.function.backend_for(*examples[0], *shared.values())
        with aside(backend, owners_of(backend, None, self.fn)):
            wanted, failures = self.looped(examples, shared)
        for error in failures.values():
            raise error
        found, failures = self.run(examples, shared)
        for error in failures.values():
            raise error
        number = differing(backend, found, wanted)
        if number is not None:
            raise MismatchError(
                f"Example {number} has another result than in the loop: {found[number]!r}, where the loop "
                f"returns {wanted[number]!r}.",
                "a program that draws random numbers draws them in another order; see seed=.",
            )


class LazyTrace(NamedTuple):
    """The recorded calls of one example of a plain program, and what its code returned.

    Attributes
    ----------
    trace : Trace
        The calls.
    result : object
        What the code has returned, with pending arrays in it.
    pending : list
        These pending arrays, and others that some object still holds.
    modes : Hashable
        The modes of the framework in which it was made.
    """

    trace: Trace
    result: Any
    pending: Sequence[Any]
    modes: Hashable


def raised_by_code(error: Exception) -> Exception:
    """Return what the code of an example has raised, given what its coroutine did.

    Python lets no coroutine raise `StopIteration`, and raises another error from it.
    """
    cause = error.__cause__
    if isinstance(cause, StopIteration) and str(error) == "coroutine raised StopIteration":
        return cause
    return error


def computed(recorder: Any, pending: Sequence[Any], rows: Sequence[Any]) -> dict[int, Any]:
    """Return ``id`` of each pending array -> its computed array of shape ``s``; nothing is changed.

    ``rows`` has the one row of each of ``pending``, an array ``(1, *s)``, in their order. ``recorder``
    knows the framework; see `LazyRecorder.computed`.
    """
    return {id(x): recorder.computed(x.form, own) for x, own in zip(pending, rows, strict=True)}


def paces() -> dict[bool, LoopPace]:
    """Return a new pace for runs without gradients, and one for those with."""
    return {False: LoopPace(), True: LoopPace()}


def refuse_async(fn: Any) -> None:
    """Raise a `RecordError` for an ``async def`` or a generator, which returns before it has computed."""
    fns = (fn, type(fn).__call__, getattr(fn, "forward", None))
    if any(inspect.iscoroutinefunction(x) or inspect.isasyncgenfunction(x) for x in fns):
        raise RecordError(
            f"Expected a function that returns its result. Received the async def {fn!r}.",
            "batched lets examples wait by itself: write def, and x.item() for a value. Or run it as it "
            "is, by fold.run(model, examples, fn).",
        )
    if any(map(inspect.isgeneratorfunction, fns)):
        raise RecordError(
            f"Expected a function that returns its result. Received the generator {fn!r}.",
            "return a list of what it yields.",
        )


def moment(backend: Backend, timed: bool) -> float:
    """Return the time in seconds when the device has done its work; 0.0, at once, unless it is wanted."""
    if not timed:
        return 0.0
    backend.synchronize()
    return perf_counter()


def examples_of(iterables: Sequence[Iterable[Any]]) -> list[Any]:
    """Return a tuple of arguments for each example, as ``zip(*iterables, strict=True)`` makes them.

    Raise a `RecordError` for no examples, and a ``ValueError`` for iterables of different lengths.
    """
    examples = [*zip(*iterables, strict=True)]
    if not examples:
        raise RecordError("Expected at least one example. Received none.")
    return examples
