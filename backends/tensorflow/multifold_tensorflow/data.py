"""Data sets of what Python makes, such as programs, in a process that can end.

`tf.data` calls a generator in threads of its own. At its end an interpreter lets no other thread run Python
any more, but TensorFlow (2.21) waits for those threads. So a process that ends by an exception, while a
generator is at work on the next element, never ends. Here the generator stops before: `atexit` comes first.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf

HANDED_OVER = 0.1
"""Seconds in which TensorFlow takes over an element that a generator has yielded."""


def dataset(elements: Callable[[], Iterable[Any]], signature: Any) -> tf.data.Dataset:
    """Return the data set of what a function yields, as `tf.data.Dataset.from_generator` does.

    Parameters
    ----------
    elements : callable
        Called anew for each epoch; returns an iterable. What it raises ends the epoch with an error of
        TensorFlow that says it.
    signature : structure of `tf.TypeSpec`
        The type of an element. `tf.type_spec_from_value(program)` is that of a program.

    Examples
    --------
    >>> import multifold
    >>> from multifold_tensorflow import as_tensors, run
    >>> fold = multifold.Fold(backend="tensorflow")
    >>> def programs():
    ...     for n in (2, 3):
    ...         yield as_tensors(fold.program([[fold.add("double", fold.add("one", i)) for i in range(n)]]))
    >>> data = dataset(programs, tf.type_spec_from_value(next(programs())))
    >>> model = {"one": lambda x: x + 1, "double": lambda x: 2 * x}
    >>> [run(model, program)[0].numpy().tolist() for program in data]
    [[2, 4], [2, 4, 6]]
    """
    guard = Guard(elements)
    # A weak reference, or `atexit` would keep the generator of each data set until the end.
    atexit.register(end_if_alive, weakref.ref(guard))
    return tf.data.Dataset.from_generator(guard.elements, output_signature=signature)


class Guard:
    """A generator function, `elements`, that `end` ends: after that no thread runs inside of it."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self.make = make
        self.working = threading.Lock()
        self.ended = False
        self.last = 0.0  # when an element was made

    def elements(self) -> Iterator[Any]:
        """Yield what ``make()`` yields, until `end` is called."""
        iterator = iter(self.make())
        while True:
            with self.working:
                if self.ended:
                    return
                try:
                    element = next(iterator)
                except StopIteration:
                    return
                self.last = time.monotonic()
            yield element

    def end(self) -> None:
        """Wait until the element in the making is done and handed over; let `elements` make no other."""
        # First, so that a generator that waits for the lock makes no other element when it gets it.
        self.ended = True
        with self.working:
            handed_over = self.last + HANDED_OVER
        time.sleep(max(0.0, handed_over - time.monotonic()))


def end_if_alive(guard: weakref.ref[Guard]) -> None:
    """Call `end` of the guard of a data set, if the data set still exists."""
    found = guard()
    if found is not None:
        found.end()
