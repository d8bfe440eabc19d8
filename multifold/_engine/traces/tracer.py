"""Recording traces: `traces` records many examples on one graph, and `trace` is `traces` of one example.

To learn a form of calls takes as long as a hundred calls of a form that is known. So examples are recorded
on one graph one after the other, and cut apart afterwards (`multifold._engine.traces.cutting`). What the
graph has learned is handed on to the next one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NoReturn

import numpy as np

from multifold._engine.record.freezing import freeze, read_only_copy, snapshot
from multifold._engine.record.graph import Graph
from multifold._engine.record.lines import users_frame
from multifold._engine.record.recorder import Recorder, numpy_class
from multifold._engine.record.signature import Signature
from multifold._engine.record.unroll import named_cell, time_steps, unroll
from multifold._engine.traces.cutting import RecordedExamples, cut
from multifold._engine.traces.known import MOST_SIGNATURES, Learned
from multifold._engine.traces.sent import watch_pickles
from multifold._engine.traces.trace import Trace
from multifold.backend import Bidirectional, Cell, Stack
from multifold.errors import RecordError, type_of

TOO_DEEP = "Hint: write the recursion as a loop, or let sys.setrecursionlimit(n) allow more levels."

MOST_CALLS = 1 << 16
"""With so many calls a graph is cut into traces, and a new one begins: a long list needs little memory."""


class TraceGraph(Graph):
    """The calls of some examples that become traces.

    Its signatures, parts and forms are the lists of ``known``, so that the next graph has them as well.
    """

    __slots__ = ()

    def __init__(self, known: Learned) -> None:
        super().__init__()
        self.before = {}  # all that traces know is in ``known``
        self.signatures = known.signatures
        self.keys = known.keys
        self.ops = known.ops
        self.parts = known.parts
        self.part_numbers = known.part_numbers
        self.splits = known.splits
        self.quick = known.quick
        self.forms = known.forms

    def take_in(self, signature: Signature) -> int:
        """Append a signature that no call had before, and return its number, from 0.

        Here ``ragged([], row_shape=(2,))`` and ``ragged(rows)`` stay two signatures. They join to one when
        the vocabulary of an example is made: each example says by itself what it knows of the shapes.
        """
        self.signatures.append(signature)
        number = self.keys[signature.key] = len(self.signatures) - 1
        return number


class TraceRecorder(Recorder):
    """Records the calls of examples on one graph, for their traces; it takes arrays of NumPy only.

    ``known``, a `Learned`, is what earlier graphs have learned; None for nothing.
    """

    def __init__(self, known: Learned | None = None) -> None:
        self.known = Learned() if known is None else known
        self._graph = TraceGraph(self.known)

    def begin(self) -> Graph:
        """Begin a new, empty graph and return it; the recorder records on it from now on.

        It knows what the last one learned, unless that is more than `MOST_SIGNATURES` signatures.
        """
        if len(self.known.signatures) > MOST_SIGNATURES:
            self.known = Learned()
        self._graph = TraceGraph(self.known)
        return self._graph

    def array_class(self, x: Any) -> Hashable | None:
        """Return a key of a NumPy array, its trailing shape and dtype; None if ``x`` is no array.

        Raises `RecordError` for an array of a framework, of objects, with a mask, or of other than one row.
        """
        if isinstance(x, np.ndarray):
            return numpy_class(x)
        if hasattr(x, "shape") and hasattr(x, "dtype"):
            raise RecordError(
                "Expected NumPy arrays and numbers in a trace. Received an array of type "
                f"{type(x).__module__}.{type(x).__qualname__}.",
                "traces are made without any framework: pass np.asarray(x), outside of a function that is "
                "compiled, or record with a Fold.",
            )
        return None

    def value(self, *_: Any) -> NoReturn:
        """Raise `RecordError`: a trace is recorded before anything is computed."""
        raise RecordError(
            "Expected no value to be awaited in a trace, which holds calls and no values.",
            "fold.run(model, examples, fn) runs examples that look at values.",
        )

    values = gather = value

    def unroll(
        self, cell: Any, length: int, inputs: Any, begin_state: Any = None, layout: str = "NTC"
    ) -> tuple[list[Any], Any]:
        """Record a cell at ``length`` steps; return the outputs and the last states, as `Fold.unroll` does.

        ``cell`` is the name of an op, or a `multifold.Cell`, `Stack` or `Bidirectional`. Raises
        `RecordError` for a cell of a framework: its adapter would open that, and a trace is made without
        any.
        """
        if not isinstance(cell, (str, Cell, Stack, Bidirectional)):
            raise RecordError(
                "Expected no recurrent cell of a framework in a trace, but an op's name or a "
                f"multifold.Cell. Received {type_of(cell)}.",
                "make the cell a method of the model, and unroll it by its name: fold.unroll('cell', ...).",
            )
        steps = time_steps(length, inputs, layout, lambda x, sizes: np.split(x, len(sizes)))
        opened = named_cell(cell, begin_state) if isinstance(cell, str) else cell
        with self._graph.at(users_frame()):
            return unroll(self, opened, steps, begin_state)

    def shared_key(self, x: Any) -> Hashable:
        """Return a hashable key of the contents of a shared value, equal for equal contents.

        So traces that were pickled one by one still share equal arrays.
        """
        return freeze(x)

    def shared_value(self, x: Any) -> Any:
        """Return a copy of a shared value, read-only if it is a NumPy array.

        Its key is made of its contents, so it must not change afterwards.
        """
        return read_only_copy(x) if isinstance(x, np.ndarray) else snapshot(x)


class Kept(threading.local):
    """What the last traces of this thread have learned, a `Learned` or None, until the next are made."""

    def __init__(self) -> None:
        self.learned: Learned | None = None

    def take(self) -> Learned:
        """Return the `Learned` that is kept, or a new one, and keep nothing from now on.

        The function that records an example may make traces itself. These must not write into the lists
        that the outer recording is using, so they find nothing here.
        """
        known = self.learned
        self.learned = None
        return Learned() if known is None else known

    def keep(self, known: Learned) -> None:
        """Keep ``known`` for the next traces of this thread, if `Learned.may_stay` allows that."""
        if known.may_stay():
            self.learned = known


KEPT = Kept()


def record_each(fn: Callable[[Any, Any], Any], examples: Iterable[Any], note: str = "") -> list[Trace]:
    """Call ``fn(recorder, example)`` for each example, and return their traces in order.

    ``note`` is added to what an example raises, with its number, from 0, in the place of ``{}``; "" adds
    none. Raises `RecordError` if ``fn`` cannot be called.
    """
    if not callable(fn):
        raise RecordError(
            f"Expected a function that records an example. Received {type_of(fn)}.",
            "the function comes first: multifold.trace(fn, example), multifold.traces(fn, examples).",
        )
    recorder = TraceRecorder(KEPT.take())
    recorded = RecordedExamples(recorder, recorder.known, 0)
    made = []
    graph = recorder._graph
    with recorder._with_meanwhile():
        for number, example in enumerate(examples):
            try:
                recorded.take(fn(recorder, example))
            except Exception as error:
                with contextlib.suppress(Exception):  # an exception may refuse any change
                    if note:
                        error.add_note(note.format(number))
                    if isinstance(error, RecursionError):
                        error.add_note(TOO_DEEP)
                raise
            if len(graph.signature) >= MOST_CALLS:
                made += cut(recorded)
                graph = recorder.begin()
                recorded = RecordedExamples(recorder, recorder.known, number + 1)
    if len(recorded):
        made += cut(recorded)
    KEPT.keep(recorder.known)
    return made


def traces(fn: Callable[[Any, Any], Any], examples: Iterable[Any]) -> list[Trace]:
    """Return a trace for each example: each equals ``trace(fn, example)``, in a tenth of the time.

    Parameters
    ----------
    fn : callable
        Records an example through ``recorder.add``, as it would on a `Fold`, and returns nodes, groups,
        or lists, tuples and dicts of those. It may not read a node of another example.
    examples : iterable
        Each is handed to ``fn``, in turn.

    Returns
    -------
    list of Trace
        In the order of the examples; empty if there are none. What many of them have in common, they
        share: pickled as one list they take less room than one by one.

    Raises
    ------
    RecordError
        If an example reads a node of another one. What ``fn`` raises has a note with the number of the
        example.

    Examples
    --------
    >>> import multifold
    >>> def total(fold, tree):
    ...     if isinstance(tree, int):
    ...         return fold.add("leaf", tree)
    ...     return fold.add("add", *[total(fold, child) for child in tree])
    >>> made = multifold.traces(total, [1, (2, 3), ((4, 5), 6)])
    >>> made[1] == multifold.trace(total, (2, 3))
    True
    >>> model = {"leaf": lambda x: x, "add": lambda a, b: a + b}
    >>> multifold.Fold(backend="numpy").run(model, made)
    array([ 1,  5, 15])
    """
    watch_pickles()
    return record_each(fn, examples, "Raised by example {} of multifold.traces.")


def trace(fn: Callable[[Any, Any], Any], example: Any) -> Trace:
    """Call ``fn(recorder, example)`` once and keep the calls and what it returned.

    Parameters
    ----------
    fn : callable
        Records an example through ``recorder.add``, as it would on a `Fold`, and returns nodes, groups,
        or lists, tuples and dicts of those.
    example : object
        Handed to ``fn``. NumPy arrays in it are recorded as anywhere, with one row each, ``x[None]``: the
        trace keeps its own copy of their contents, and the fold that runs it puts them on its device.

    Returns
    -------
    Trace
        Can be pickled, and written by `multifold.save`, where its ops are names or importable functions.

    Examples
    --------
    >>> import multifold
    >>> def powers(fold, n):
    ...     x = 1
    ...     for _ in range(n):
    ...         x = fold.add("double", x)
    ...     return x
    >>> made = [multifold.trace(powers, n) for n in (1, 2, 3)]
    >>> multifold.Fold(backend="numpy").run({"double": lambda x: 2 * x}, made)
    array([2, 4, 8])

    An array of an example is one row:

    >>> import numpy as np
    >>> rows = [multifold.trace(lambda fold, x: fold.add("double", x[None]), np.full(2, i)) for i in (1, 2)]
    >>> multifold.Fold(backend="numpy").run({"double": lambda x: 2 * x}, rows)
    array([[2, 2],
           [4, 4]])
    """
    watch_pickles()
    return record_each(fn, (example,))[0]
