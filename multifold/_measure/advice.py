"""Advice: what a program would gain by each way of running it, before anything is rewritten.

`advise` runs a program on some of its examples in the ways that need no change of it: the loop, the batched
program as it stands, and with some of its functions as cells; each of these replayed, too, if it reads no
computed value. All are measured on an `advice_bench`, by turns with the loop. What calls of `Fold.add`
would take, with ``await`` where values are read, is put together from measured parts; see `foretold`.

Functions are worth trying as cells if they return arrays, and call neither themselves nor anything that
does: `compose` of a recursive model, and not its `encode`. One watched run of the loop finds them.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from itertools import islice
from typing import Any

from multifold._engine.ops.reach import owners_of, reached
from multifold._engine.ops.state import aside
from multifold._measure.advice_bench import AdviceBench
from multifold._measure.foretold import BY_HAND, by_hand
from multifold._measure.garbage import only_new_garbage
from multifold._measure.watched import WatchedLoop
from multifold._measure.ways import Advice, MeasuredWay
from multifold.backend import Backend
from multifold.errors import BackendError, MultifoldError
from multifold.lazy.batching import examples_of
from multifold.lazy.function import LazyFunction

LOOP = "one example at a time"

FRAMEWORKS = ("numpy", "torch")


def advise(
    fn: Callable[..., Any],
    *iterables: Any,
    most: int = 64,
    train: bool | None = None,
    own: bool = False,
    backend: str | Backend | type[Backend] = "auto",
    advance: Callable[[str], object] = lambda way: None,
) -> Advice:
    """Measure what a program would gain by batching, and find which of its functions to record.

    The program runs as it is, in a loop and batched, some times each; what it leaves on its model is put
    back. Nothing has to be rewritten for that.

    Parameters
    ----------
    fn : callable
        Takes one example: a function, a method, or a module of the framework.
    *iterables : iterable
        The examples: an iterable for each argument of ``fn``, as for `map`.
    most : int
        How many of the examples are run.
    train : bool, optional
        Whether the gradients of all parameters are part of what is measured; by default if a result
        has any.
    own : bool
        As of `batched`.
    backend : str or Backend
        NumPy or PyTorch; ``"auto"`` for that of ``fn`` and of what it uses.
    advance : callable
        Called with the name of the way that is measured next.

    Returns
    -------
    Advice
        ``print`` shows a table. Gains are ranges whose ends differ by a factor of less than two.

    Raises
    ------
    BackendError
        If the framework is another one, or is not found.
    RecordError
        If there are no examples.
    Exception
        What the program raises in the loop.

    Examples
    --------
    >>> import multifold, numpy as np
    >>> weights = np.eye(300)
    >>> def join(left, right):
    ...     return np.tanh((left + right) @ weights)
    >>> def encode(tree):
    ...     return join(*map(encode, tree)) if isinstance(tree, tuple) else weights[tree]
    >>> advice = multifold.advise(encode, [((1, 2), (3, i)) for i in range(32)])
    >>> [way.name for way in advice.ways][:1]
    ['one example at a time']
    """
    examples = [*islice(examples_of(iterables), most)]
    known = LazyFunction(fn, (), backend).backend_for(*examples[0])
    if known.name not in FRAMEWORKS:
        raise BackendError(
            f"Expected a program of NumPy or PyTorch to advise on. Received one of {known.name}.",
            "make cells of its functions, and measure multifold.batched(fn, cells=[...]).",
        )
    models = models_of(known, fn)
    ways: list[MeasuredWay] = []
    notes: list[str] = []
    with aside(known, models), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        advance(LOOP)
        with WatchedLoop(known, fn) as watch:
            for example in examples:
                fn(*example)
        functions = watch.functions()
        with only_new_garbage():
            bench = AdviceBench(fn, own, known, models, examples, train)
            taken = bench.cells(functions)
            for cells in dict.fromkeys([None, tuple(taken) or None]):
                said = ", ".join([fn.__qualname__ for fn in cells or ()])
                name = f"multifold.batched(fn, cells=[{said}])" if cells else "multifold.batched(fn)"
                advance(name)
                try:
                    ways += bench.measure(cells, name)
                except MultifoldError as error:
                    notes.append(f"{name}: {error.message}")
            notes += bench.notes
            if taken:
                notes.append(f"cells=[{', '.join([fn.__qualname__ for fn in taken])}]")
            advance(BY_HAND)
            try:
                way, found = by_hand(bench, taken, watch)
                ways.append(way)
                notes += found
            except MultifoldError as error:
                notes.append(f"{BY_HAND} is not foretold: {error.message}")
    loop = MeasuredWay(LOOP, 0, 0, 1.0)
    names = [op.__qualname__ for op in taken]
    notes = [*dict.fromkeys(notes)]
    return Advice(len(examples), bench.trains, statistics.median(bench.loops), [loop, *ways], names, notes)


def models_of(backend: Backend, fn: Any) -> list[Any]:
    """Return the objects that have the parameters of the program ``fn``, and others that it may change.

    First come those that own ``fn``, as its model or the object of a method, then all models of the
    framework that it reaches by attributes, containers and functions.
    """
    owners = owners_of(backend, None, fn)
    known = {id(x) for x in owners}
    return owners + [x for x, _ in reached(backend, [fn]) if backend.hosts(x) and id(x) not in known]
