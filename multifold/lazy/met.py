"""Examples that a program has met before: their recorded calls are replayed instead of recorded anew.

An epoch hands the same objects to a program as the one before, in another order. Code that reads no
computed value does the same for an object each time, so a trace of it, made when it was first met, says it
all. An example is told by the identity of its arguments; values such as numbers and strings by what they
are, and an array of a framework that counts its changes also by that count:

>>> met = MetExamples()
>>> tree, other = [1, [2, 3]], [1, [2, 3]]
>>> met.note("modes", (tree, 5), "the trace of this tree")
>>> met.find("modes", (tree, 5)), met.find("modes", (other, 5)), met.find("other modes", (tree, 5))
('the trace of this tree', None, None)

What has no weak references, as lists and tuples, is held until the program is gone, and anything else until
nobody else has it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from multifold._engine.ops.reach import VALUES

MANY = 4096
"""So many examples are kept, if none of those that were kept has come again."""


class MetExample(NamedTuple):
    """What is kept of an example.

    Attributes
    ----------
    trace : object
        Its trace.
    arguments : sequence of callable
        Each returns an argument that the example is told by; None once that is gone.
    """

    trace: Any
    arguments: Sequence[Callable[[], Any]]


class MetExamples:
    """The traces of the examples that a program has met.

    Parameters
    ----------
    version_of : callable
        ``version_of(x)`` returns how often an argument was changed in place; 0 where that is not known.

    Attributes
    ----------
    found : int
        How often a trace was found.
    """

    def __init__(self, version_of: Callable[[Any], int] = lambda x: 0) -> None:
        self.version_of = version_of
        self.found = 0
        self._examples: dict[Hashable, MetExample] = {}

    def __len__(self) -> int:
        return len(self._examples)

    def __reduce__(self) -> Any:
        """Return a copy that has met no example: objects are others in another process."""
        return MetExamples, (self.version_of,)

    @property
    def are_all_new(self) -> bool:
        """Whether many examples are kept, and none of them has ever come again."""
        return not self.found and len(self._examples) >= MANY

    def find(self, modes: Hashable, arguments: Sequence[Any]) -> Any:
        """Return the trace of an example with these arguments in these modes; None if there is none."""
        example = self._examples.get(self.key(modes, arguments))
        if example is None:
            return None
        self.found += 1
        return example.trace

    def note(self, modes: Hashable, arguments: Sequence[Any], trace: Any) -> None:
        """Keep the trace of an example, made in these modes."""
        key = self.key(modes, arguments)

        def gone(_: Any) -> None:
            self._examples.pop(key, None)

        self._examples[key] = MetExample(
            trace, [holder(x, gone) for x in arguments if not isinstance(x, VALUES)]
        )

    def forget(self, modes: Hashable, arguments: Sequence[Any]) -> None:
        """Keep the trace of an example no longer."""
        self._examples.pop(self.key(modes, arguments), None)

    def key(self, modes: Hashable, arguments: Sequence[Any]) -> Hashable:
        """Return the key of an example: as long as its arguments live, no other one has it."""
        return modes, *[
            (type(x), x) if isinstance(x, VALUES) else (id(x), self.version_of(x)) for x in arguments
        ]


def holder(x: Any, gone: Callable[[Any], None]) -> Callable[[], Any]:
    """Return what returns ``x``: a weak reference, which calls ``gone`` at its end, where that can be."""
    try:
        return weakref.ref(x, gone)
    except TypeError:
        return lambda: x
