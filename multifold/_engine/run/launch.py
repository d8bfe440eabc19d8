"""Launches as data: what one receives, what it has come to, and what is known of launches like it.

All that the checks of a result ask follows from shapes, dtypes and devices. So the result of a later launch
of the same signature, on rows of the same classes, is only compared with what was noted: an *outcome*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import optree

from multifold._engine.compiled.arrays import Integers
from multifold._engine.ops.messages import listing, note, raised_by
from multifold._engine.ops.values import (
    CONTAINERS,
    Steps,
    array_at,
    counted,
)
from multifold._engine.record.population import Population
from multifold._engine.record.signature import Signature
from multifold._engine.run.report import LaunchTimes
from multifold.backend import Backend
from multifold.errors import LaunchError

NOWHERE: frozenset[int] = frozenset()
"""The sizes of a launch whose operands and result are not known."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the result of a launch was, without its values and the number of its rows.

    It says nothing of the op and the model: another model may run next, and is held to the same form.

    Attributes
    ----------
    kind : type
        The class of an array, or `tuple` for a flat tuple of arrays.
    kinds : tuple of type
        The class of each array; none where the result is another container, and nothing fits it.
    forms : tuple of Hashable
        What the rows of each array have in common.
    form : Hashable
        What the rows of the whole result have in common, as `Values.class_of` says it.
    sizes : frozenset of int
        The trailing dimensions of the operands and the result. A launch of as many rows is square.
    width : int
        How many numbers a row of the result has, where ``forms`` are known.

    Examples
    --------
    >>> import numpy as np
    >>> from multifold._numpy.backend import NumpyBackend
    >>> state = np.zeros((2, 3))
    >>> outcome = Outcome.of(NumpyBackend(), (state, state))
    >>> [outcome.fits(NumpyBackend(), found, 2) for found in ((state + 1, state), (state, state[:1]))]
    [True, False]
    """

    kind: type
    kinds: tuple[type, ...]
    forms: tuple[Hashable, ...]
    form: Hashable
    sizes: frozenset[int]
    width: int = 0

    @classmethod
    def of(cls, backend: Backend, result: Any, sizes: frozenset[int] = NOWHERE) -> Outcome:
        """Return what is to be remembered of a result that passed all checks.

        ``sizes`` are the lengths of all axes but the first, of operands and result (`sizes_of`). Of a
        container other than a flat tuple of arrays so little is kept that no result `fits`.
        """
        if not isinstance(result, CONTAINERS):
            form = backend.signature(result)
            return cls(type(result), (type(result),), (form,), form, sizes, width_of((result,)))
        if type(result) is not tuple or not all(map(backend.owns, result)):
            return cls(type(result), (), (), None, sizes)
        forms = tuple(map(backend.signature, result))
        form = (optree.tree_structure(result), *forms)
        return cls(tuple, tuple(map(type, result)), forms, form, sizes, width_of(result))

    def fits(self, backend: Backend, result: Any, rows: int) -> bool:
        """Return whether a result has ``rows`` rows, and the classes, shapes, dtypes and devices of this.

        False for a container other than a flat tuple of arrays, of which nothing is remembered.
        """
        if type(result) is not self.kind:
            return False
        arrays: Any = result if self.kind is tuple else (result,)
        if tuple(map(type, arrays)) != self.kinds:
            return False
        try:
            return backend.are_like(arrays, rows, self.forms)
        except (IndexError, TypeError):  # an array of 0 dimensions has no rows
            return False

    def read(self, result: Any, part: int, steps_to: Callable[[int], Steps]) -> tuple[Any, Hashable] | None:
        """Return a part of a result that `fits`, and the class of its rows (`Values.class_of`).

        ``part`` is a number, and ``steps_to(part)`` returns the way there. None if the part is neither the
        whole result nor one of its arrays.
        """
        if not self.kinds:
            return None
        if not part:
            return result, self.form
        if self.kind is not tuple:
            return None
        key = array_at(steps_to(part), len(self.kinds))
        return None if key is None else (result[key], self.forms[key])


def width_of(arrays: Iterable[Any]) -> int:
    """Return how many numbers a row of each of these arrays has, in all; 0 where no shape is known.

    >>> width_of([np.zeros((2, 3, 4)), np.zeros(2)])
    13
    """
    try:
        return sum([math.prod(tuple(x.shape)[1:]) for x in arrays])
    except (TypeError, ValueError):  # while TensorFlow draws a graph
        return 0


ONE, EVEN, UNEVEN = range(3)
"""How many members the nodes of ragged operands have: one each; equally many in each operand; or different
numbers in some operand."""


class RaggedCase(NamedTuple):
    """What tells launches with ragged operands apart for trials: an op may be right for some of them."""

    square: bool
    """Whether there are as many rows as an array has entries along another axis."""
    members: int
    """`ONE`, `EVEN` or `UNEVEN`."""

    @property
    def strictest(self) -> RaggedCase:
        """The case whose trials tell of this one, too."""
        return self._replace(members=UNEVEN)


class PopulationCase(NamedTuple):
    """What tells launches of a `Population` apart for trials: a module that has one row cannot mix any."""

    square: bool
    """Whether there are as many rows as an array has entries along another axis."""
    several: bool
    """Whether any module has several rows."""

    @property
    def strictest(self) -> PopulationCase:
        """The case whose trials tell of this one, too."""
        return self._replace(several=True)


class PreparedLaunch(NamedTuple):
    """Calls of one signature that run together, and what their op receives.

    Attributes
    ----------
    signature : Signature
    leaves : list
        What the op receives for each slot of the signature.
    rows : int
        How many rows the result must have. That is the number of calls, but 1 where no operand is batched,
        and more where the backend pads.
    calls : int64 array
        The calls. Where the backend pads, the last one may be there several times.
    site : callable
        Call -> where it was recorded.
    classes : tuple, or None
        What the rows of each operand have in common; None if nothing can be concluded from them.
    lengths : callable
        Returns the lengths of each ragged operand on the host, by the number of its slot.
    rows_of : callable, or None
        Returns what must have these rows, out of a result that is also read whole, and so may be anything.
    whose : callable, or None
        Call -> the example that recorded it, as in `Frame`; None if it need not be found here.
    """

    signature: Signature
    leaves: list[Any]
    rows: int
    calls: Integers
    site: Callable[[int], str]
    classes: tuple[Hashable, ...] | None
    lengths: Callable[[], Mapping[int, np.ndarray]]
    rows_of: Callable[[Any], Any] | None = None
    whose: Callable[[int], str] | None = None

    def case(self, square: bool) -> Hashable:
        """Return what trials tell launches apart by: ``square``, a `RaggedCase` or a `PopulationCase`.

        ``square`` says whether there are as many rows as an array has entries along another axis.
        """
        signature = self.signature
        if type(signature.op) is Population:
            return PopulationCase(square, signature.op.has_several(self.leaves[-1]))
        if not signature.ragged:
            return square
        # The methods of arrays take twice as long as these.
        lengths = self.lengths().values()
        ends = [(np.minimum.reduce(own), np.maximum.reduce(own)) for own in lengths]
        is_even = all(least == most for least, most in ends)
        members = UNEVEN if not is_even else ONE if all(most == 1 for _, most in ends) else EVEN
        return RaggedCase(square, members)

    def error(self, what: str, hint: str | None = None, culprit: int | None = None) -> LaunchError:
        """Return a new error that says which launch failed, on which operands, and where it was recorded.

        ``what`` continues the sentence, as "raised ValueError: ...". A note names the example whose call
        fails, if that is known: that of ``culprit``, or of the launch's only call.
        """
        operands = listing(self.signature, self.leaves)
        named = naming(self.signature, self.calls, self.site, culprit)
        error = LaunchError(f"{named}, {what}. Operands: {operands}.", hint)
        blamed = np.unique(self.calls) if culprit is None else np.array([culprit])
        if self.whose is not None and len(blamed) == 1:
            note(error, raised_by(blamed.tolist(), self.whose))
        return error


class Launched(NamedTuple):
    """What `Launcher.launch` returns: the result of a launch, what is known of it, and when it ran."""

    result: Any
    outcome: Outcome
    """What is known of results like this one."""
    called: float
    """When the op was called, in seconds of `time.perf_counter`."""
    returned: float
    """When it had returned."""
    trial: float
    """Seconds that a trial took; 0.0 without one. All moments are as if it had come before the launch."""

    def times(self, begin: float) -> LaunchTimes:
        """Return the moments of a launch that began at ``begin``, a time of `perf_counter`, and ends now.

        The seconds of its trial are added to ``begin``, as they are in ``called`` and ``returned`` already.
        """
        moments = begin + self.trial, self.called, self.returned, perf_counter()
        # The class itself would call a function of Python.
        return tuple.__new__(LaunchTimes, moments)


def naming(
    signature: Signature, calls: Integers, site: Callable[[int], str], culprit: int | None = None
) -> str:
    """Return the beginning of an error: which launch, and where it was recorded.

    ``The launch of op 'f' for 3 nodes, first recorded at train.py:7``; with a ``culprit``, one of the
    calls, ``because of the one recorded at train.py:9``. ``site`` is a call -> its line.
    """
    distinct = len(np.unique(calls))
    nodes = counted(distinct, "node")
    if distinct < len(calls):  # the last one is repeated, by a backend that pads
        nodes += f", padded to {len(calls)} rows"
    where = f"first recorded at {site(int(calls.min()))}"
    if culprit is not None:
        where = f"because of the one recorded at {site(culprit)}"
    return f"The launch of op '{signature.name}' for {nodes}, {where}"
