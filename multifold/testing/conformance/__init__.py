"""One suite of tests for every adapter: values, gradients, kinds of operands, the rule of rows, errors.

The ops of the suite use nothing but ``+``, ``-`` and ``*`` on arrays, so that they are the same in every
framework. Expected values are written with NumPy, or come from the eager twin. An adapter with a mistake
fails some of the tests:

>>> from multifold._numpy.backend import NumpyBackend
>>> class Sorting(NumpyBackend):
...     def gather(self, x, rows):
...         return x[np.sort(rows)]
>>> "test_gather_repeats_and_reorders" in failures(Sorting)
True
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from unittest import SkipTest

from multifold.backend import Backend
from multifold.testing.conformance.errors import ErrorTests
from multifold.testing.conformance.gradients import GradientTests
from multifold.testing.conformance.operands import OperandTests
from multifold.testing.conformance.seam import SeamTests
from multifold.testing.conformance.transfers import TransferTests


class Conformance(SeamTests, OperandTests, ErrorTests, GradientTests, TransferTests):
    """The tests; subclass it with ``backend = "name"`` (or a `multifold.Backend`)."""


def failures(backend: str | Backend | type[Backend]) -> dict[str, str]:
    """Run the suite on a backend; return test -> traceback for each test that failed, both as text.

    ``backend`` is a name, a backend or its class. Tests that are skipped count as passed.

    Examples
    --------
    >>> failures("numpy")
    {}
    """
    suite = type("Suite", (Conformance,), {"backend": backend})()
    found = {}
    for name, test in tests(suite):
        try:
            test()
        except SkipTest:
            continue
        except Exception:  # noqa: BLE001 - whatever a broken adapter raises is the result
            found[name] = traceback.format_exc()
    return found


def tests(suite: Conformance) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the name and the method of each test of a suite, in alphabetical order.

    A test is a method whose name begins with ``test_``.
    """
    for name in dir(suite):
        if name.startswith("test_"):
            yield name, getattr(suite, name)
