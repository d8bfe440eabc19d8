"""Trials: where broadcasting could have mixed rows, the op runs again on fewer, and must return the same.

A number operand is an array of shape ``(n,)``. Beside rows of three numbers, ``x * s`` is right for one row
and wrong for three, where a column of ``x`` meets a number of another row and no framework complains:

>>> import numpy as np
>>> from multifold._frameworks.numpy_backend import NumpyBackend
>>> x, s = np.ones((3, 3)), np.array([1.0, 2.0, 3.0])
>>> def trial(op):
...     return Trial(Values(NumpyBackend(), None), op, [x, s], 3)
>>> trial(lambda x, s: x * s[:, None]).differs(x * s[:, None])
>>> trial(lambda x, s: x * s).differs(x * s).text.partition(":")[0]
'on 2 of them it raised ValueError'

Here the run on rows 1 and 2 shows it: ``(2, 3) * (2,)`` fails. Rows of width 1 show it by their shape,
``(3, 1) * (3,)`` has rows of three numbers, and where an op adds those up, by their values.

A trial is held for the first such launch of each op, signature and shapes of rows (`verdicts`), and again
where its numbers could not tell, as equal numbers in all rows cannot.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import optree

from multifold._record.freezing import freeze, nesting, snapshot
from multifold._record.signature import Signature
from multifold._run.closeness import close, is_inexact, tolerance_of
from multifold._run.messages import said
from multifold._run.values import Values, leaves_of, may_meet, opened, trailing
from multifold._run.verdicts import VERDICTS, makers
from multifold.backend import Backend, Ragged

ENOUGH = 16
"""Trials whose numbers could not tell, before an op is believed all the same."""


class Deviation(NamedTuple):
    """What an op does on fewer rows, where that is not what it does on all."""

    text: str
    shapes: bool = False
    """Whether it returns other shapes."""
    error: Exception | None = None
    """What it raises, if it raises."""


@dataclass
class Trial:
    """One launch that may have to run again.

    Attributes
    ----------
    values : Values
        What gathers rows, and knows the backend.
    op : callable
        What the launch has called.
    leaves : list
        What it has received, leaf by leaf.
    rows : int
        How many rows the launch has.
    batched : sequence of bool
        Which leaves are batched; by default all.
    lengths : mapping of int to int64 array
        The lengths of each ragged leaf, on the host.
    nested : callable
        Returns the operands of the op from its leaves.
    static : mapping
        Its keyword arguments.
    model : object
        The model that runs, whose state stays as it is.
    """

    values: Values
    op: Callable[..., Any]
    leaves: Sequence[Any]
    rows: int
    batched: Sequence[bool] = ()
    lengths: Mapping[int, np.ndarray] = field(default_factory=dict)
    nested: Callable[[Sequence[Any]], Sequence[Any]] = list
    static: Mapping[str, Any] = field(default_factory=dict)
    model: Any = None
    telling: bool = True
    """Whether the numbers of the trial could have told."""
    held: bool = False
    """Whether the trial was held."""

    # ---- whether there is anything to find ---------------------------------------------------------

    def arrays(self) -> Iterator[Any]:
        """Yield the arrays whose rows the launch has received."""
        for i, leaf in enumerate(self.leaves):
            if not self.batched or self.batched[i]:
                for part in leaf if type(leaf) is Ragged else (leaf,):  # the rows may be containers
                    yield from leaves_of(opened(part))

    def meets(self) -> bool:
        """Return whether an operand of shape ``(n,)`` meets a wider one."""
        ranks = {len(x.shape) for x in self.arrays()}
        return 1 in ranks and len(ranks) > 1

    def ambiguous(self, result: Any) -> bool:
        """Return whether broadcasting may have mixed rows without an error.

        That takes an operand of shape ``(n,)`` beside a wider one with a trailing dimension of n or 1. An
        op may make the wider one itself, as ``x @ w * s`` does; then its result has n columns.
        """
        arrays = list(self.arrays())
        if self.rows < 2 or not may_meet(arrays):
            return False
        sizes = trailing([x.shape for x in arrays], result)
        return may_mix(self.values.backend, sizes, self.rows, self.leaves)

    # ---- the trial ---------------------------------------------------------------------------------

    def differs(self, result: Any) -> Deviation | None:
        """Return what the op does instead on fewer rows; None if it returns the same.

        The op runs on the first row, and on the others. Of two rows the second comes three times, since an
        op of one row hides what this looks for, and so does one of two rows of width 2.
        """
        self.held = True
        expected = self.host(result)
        rest = list(range(1, self.rows)) if self.rows > 2 else [1, 1, 1]
        first = self.compared([0], result, expected)
        others = self.compared(rest, result, expected)
        # Broadcasting takes one row with anything. An op that refuses a single row, as batch normalisation
        # does, has another reason.
        alone = None if first is not None and first.error is not None else first
        what = others if others is not None and others.error is not None else alone or others
        if what is None:
            self.telling = expected is None or self.tells(expected)
        elif expected is not None and self.excused(what, rest):
            return None
        return what

    def excused(self, what: Deviation, rest: list[int]) -> bool:
        """Return whether the op has another reason: it draws random numbers, or runs no second time."""
        if what.shapes:
            return False
        whole = list(range(self.rows))
        once = self.attempt(whole)
        if isinstance(once, Exception) or what.error is not None:
            return isinstance(once, Exception)
        again = [once, *(self.attempt(rows) for rows in (whole, rest, rest))]
        hosts = list(map(self.host, again[::2]))
        if not all(self.equal(x, host) for x, host in zip(again[1::2], hosts, strict=True)):
            return True
        operands = self.nested(self.take(whole))
        if self.values.backend.draws(self.op, operands, self.static):
            return True
        # An op may have written to its operands: then the launch has returned what they were worth before.
        return all(self.compared(rows, once, hosts[0]) is None for rows in ([0], rest))

    def attempt(self, rows: list[int]) -> Any:
        """Return what the op returns for some of the rows, or the exception that it raises."""
        try:
            return self.values.backend.call(self.op, self.nested(self.take(rows)), snapshot(self.static))
        except self.values.backend.passes:
            raise
        except Exception as error:  # noqa: BLE001 - the caller judges it
            return error

    def compared(self, rows: list[int], result: Any, expected: list[np.ndarray] | None) -> Deviation | None:
        """Return what the op does on some of the rows, where that is not what the launch has returned."""
        found = self.attempt(rows)
        if isinstance(found, Exception):
            return Deviation(f"on {len(rows)} of them it raised {said(found)}", error=found)
        whole = opened(result)
        some = opened(found)
        shapes = [[tuple(x.shape) for x in leaves_of(x)] for x in (whole, some)]
        wanted = [(len(rows), *shape[1:]) for shape in shapes[0]]
        if optree.tree_structure(whole) != optree.tree_structure(some) or shapes[1] != wanted:
            text = (
                f"it returned {listed(shapes[0])} for {self.rows}, and {listed(shapes[1])} for {len(rows)}"
            )
            return Deviation(text, shapes=True)
        if expected is None or self.equal(found, [x[rows] for x in expected]):
            return None
        return Deviation(f"on {len(rows)} of them it returned other values")

    def equal(self, found: Any, expected: list[np.ndarray] | None) -> bool:
        """Return whether a result has the expected values, up to rounding, where both have any."""
        host = self.host(found)
        return (host is None or expected is None) or all(
            close(got, wanted, tolerance_of(x, got))
            for x, got, wanted in zip(leaves_of(opened(found)), host, expected, strict=True)
        )

    def tells(self, expected: list[np.ndarray]) -> bool:
        """Return whether rows that were mixed would have had other values.

        Numbers that are equal in all rows, and zeros, would have had the same: then the next launch is put
        to the trial, too.
        """
        leaves = [x for i, x in enumerate(self.leaves) if not self.batched or self.batched[i]]
        found = [self.host(leaf) for leaf in leaves if type(leaf) is not Ragged]
        arrays = [x for own in found if own is not None for x in own]
        if not all(varied(x) for x in arrays):
            return False
        return any(map(nonzero, expected))

    # ---- rows --------------------------------------------------------------------------------------

    def take(self, rows: list[int]) -> list[Any]:
        """Return the leaves of a launch of some of the rows, as copies, but for shared arrays."""
        return [
            self.rows_of(i, leaf, np.array(rows))
            if not self.batched or self.batched[i]
            else (leaf if self.values.backend.owns(leaf) else snapshot(leaf))
            for i, leaf in enumerate(self.leaves)
        ]

    def rows_of(self, number: int, leaf: Any, rows: np.ndarray) -> Any:
        """Return some rows of a batched leaf."""
        values = self.values
        if type(leaf) is not Ragged:
            return values.gather(leaf, values.numbers(rows, int))
        lengths = np.asarray(self.lengths[number])
        ends = np.cumsum(lengths)
        members = [np.arange(ends[row] - lengths[row], ends[row]) for row in rows]
        segments = np.repeat(np.arange(len(rows)), lengths[rows])
        return Ragged(
            values.gather(leaf.values, values.numbers(np.concatenate(members), int)),
            values.numbers(lengths[rows], int),
            values.numbers(segments, int),
        )

    def host(self, value: Any) -> list[np.ndarray] | None:
        """Return the arrays of a value on the host; None where there are no values, as while JAX traces."""
        if isinstance(value, Exception):
            return None
        try:
            return [self.values.backend.to_numpy(x) for x in leaves_of(opened(value))]
        except Exception:  # noqa: BLE001 - each framework has its own error for it
            return None


def may_mix(backend: Backend, sizes: Collection[int], rows: int, leaves: Sequence[Any]) -> bool:
    """Return whether broadcasting may mix the rows of a launch, where an array ``(n,)`` meets another one.

    ``sizes`` are the trailing dimensions of operands and result. An array ``(n,)`` has a number for each
    row of the launch, or for each member of a ragged operand, and broadcasts along a dimension of that size
    or 1.
    """
    if 1 in sizes or rows in sizes:
        return True
    ragged = [leaf for leaf in leaves if type(leaf) is Ragged]
    return any(backend.rows(leaf.segment_ids) in sizes for leaf in ragged)


def listed(shapes: list[tuple[int, ...]]) -> str:
    """Return shapes for a message."""
    return " and ".join(map(str, shapes)) or "none"


def nonzero(x: np.ndarray) -> bool:
    """Return whether an array has an entry that is neither zero nor NaN nor infinite."""
    return bool((np.isfinite(x) & (x != 0)).any()) if is_inexact(x.dtype) or x.dtype.kind in "iub" else True


def varied(x: np.ndarray) -> bool:
    """Return whether an operand would show mixed rows: numbers that differ, rows that are not zero."""
    if x.ndim > 1 or x.dtype.kind not in "fciub":
        return nonzero(x)
    return len(np.unique(x[np.isfinite(x)])) > 1


@contextmanager
def aside(backend: Backend, op: Callable[..., Any], model: Any = None) -> Iterator[None]:
    """Let nothing of a trial stay: no gradients, no random state that moved on, no state of the model."""
    numpy_state = np.random.get_state()
    state = random.getstate()
    try:
        with backend.aside([model, *makers(op)]):
            yield
    finally:
        np.random.set_state(numpy_state)
        random.setstate(state)


def verify(trial: Trial, signature: Signature, result: Any) -> Deviation | None:
    """Hold a trial of an ambiguous result, unless one like it was passed before.

    Returns what the op does instead on fewer rows, None if it returns the same.
    """
    classes = tuple(map(trial.values.class_of, trial.arrays()))
    return judge(trial, (key_of(signature), classes), result)


def judge(
    trial: Trial, key: Hashable, result: Any, maker: Callable[..., Any] | None = None
) -> Deviation | None:
    """Hold a trial, unless one of this key was passed before; ``maker`` is what verdicts know the op by."""
    op = trial.op if maker is None else maker
    if VERDICTS.has(op, key, ENOUGH):
        return None
    with aside(trial.values.backend, op, trial.model):
        # While a framework traces, only shapes can be compared: that counts for other such runs.
        kept = key if trial.host(result) is not None else (key, "shapes")
        if VERDICTS.has(op, kept, ENOUGH):
            return None
        what = trial.differs(result)
    if what is None:
        VERDICTS.add(op, kept, ENOUGH if trial.telling else 1)
    return what


def key_of(signature: Signature) -> Hashable:
    """Return what of a signature belongs to a verdict: all but the op and the values that are shared."""
    kinds = tuple(slot.kind.name for slot in signature.slots)
    static = [slot.value for slot in signature.slots if not slot.kind.batched and not slot.kind.shared]
    return kinds, nesting(signature.structure, len(kinds)), static_key([static, signature.static])


def static_key(values: Any) -> Hashable:
    """Return static values as they count for a verdict: by hash and text, to keep no model alive."""
    return hash(freeze(values)), repr(values)
