"""Examples that a program has met before: their recorded calls are replayed instead of recorded anew.

An epoch hands the same objects to a program as the one before, in another order. A program that reads no
computed value, and whose examples stay as they are, does the same for an object each time. So a trace of it
is made when the object is first met, and stands for it from then on. An example is recognised by the
identity of its arguments; numbers and strings by what they are, and an array of a framework that counts its
changes also by that count. *Modes* are what traces depend on besides, as whether gradients are recorded:

>>> met = MetExamples(version_of=lambda x: 0)
>>> tree, other = [1, [2, 3]], [1, [2, 3]]
>>> met.note("modes", (tree, 5), "the trace of this tree")
>>> met.find("modes", (tree, 5)), met.find("modes", (other, 5)), met.find("other modes", (tree, 5))
('the trace of this tree', None, None)

An argument that can have weak references is held by one, and its example is dropped when it dies. Others,
as lists and tuples, live as long as the example is kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from multifold._engine.ops.reach import VALUES

MANY = 4096
"""With so many examples, none of which has come again, it is clear that none will; see ``are_all_new``."""


class MetExample(NamedTuple):
    """What is kept of an example.

    Attributes
    ----------
    trace : object
        Its trace.
    versions : list of int
        How often each argument had been changed in place when the trace was made.
    references : sequence of object
        The arguments, or weak references to them, at whose end the example is dropped.
    """

    trace: Any
    versions: list[int]
    references: Sequence[Any]


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

    def __init__(self, version_of: Callable[[Any], int]) -> None:
        self.version_of = version_of
        self.found = 0
        self._examples: dict[Hashable, MetExample] = {}

    def __len__(self) -> int:
        return len(self._examples)

    def __reduce__(self) -> Any:
        """Let copies, by pickle or `copy`, have met no example: objects are others in another process."""
        return MetExamples, (self.version_of,)

    @property
    def are_all_new(self) -> bool:
        """Whether many examples are kept, and none of them has ever come again."""
        return not self.found and len(self._examples) >= MANY

    def find(self, modes: Hashable, arguments: Sequence[Any]) -> Any:
        """Return the trace of an example with these arguments in these modes; None if there is none."""
        example = self._examples.get(self.key(modes, arguments))
        if example is None or example.versions != self.versions(arguments):
            return None
        self.found += 1
        return example.trace

    def note(self, modes: Hashable, arguments: Sequence[Any], trace: Any) -> None:
        """Keep the trace of an example, made in these modes; it replaces one of before a change."""
        key = self.key(modes, arguments)

        def gone(_: Any) -> None:
            self._examples.pop(key, None)

        self._examples[key] = MetExample(
            trace,
            self.versions(arguments),
            [reference(x, gone) for x in arguments if type(x) not in VALUES],
        )

    def versions(self, arguments: Sequence[Any]) -> list[int]:
        """Return how often each argument was changed in place."""
        return [self.version_of(x) for x in arguments]

    def key(self, modes: Hashable, arguments: Sequence[Any]) -> Hashable:
        """Return the key of an example, which no other one has as long as its arguments live.

        The text of a number tells 0.0 from -0.0.
        """
        return modes, *[(type(x), repr(x)) if type(x) in VALUES else id(x) for x in arguments]


def reference(x: Any, gone: Callable[[Any], None]) -> Any:
    """Return a weak reference to ``x``, which calls ``gone`` at its end; ``x`` if it can have none."""
    try:
        return weakref.ref(x, gone)
    except TypeError:
        return x
