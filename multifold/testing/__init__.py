"""For authors of adapters: a suite of tests that any adapter runs, and a backend that counts.

`Conformance` holds an adapter to what multifold promises for every framework. The whole test file::

    from multifold.testing import Conformance

    class TestConformance(Conformance):
        backend = "torch"

`failures(backend)` runs the suite without pytest. `Counting` wraps a backend and counts what the core asks
of it. This room may import the whole core, and no framework.

Examples
--------
Three examples of two calls each run in two launches. The values of the numbers are uploaded once, and
since each launch reads all rows of the one before in order, nothing is gathered:

>>> import multifold
>>> counting = Counting("numpy")
>>> fold = multifold.Fold(backend=counting)
>>> nodes = [fold.add("double", fold.add("shift", float(i))) for i in range(3)]
>>> fold.apply({"shift": lambda x: x + 1, "double": lambda x: 2 * x}, nodes)
array([2., 4., 6.])
>>> {what: counting.counts[what] for what in ("call", "constant", "gather", "concat")}
{'call': 2, 'constant': 1, 'gather': 0, 'concat': 0}
"""

from __future__ import annotations

from multifold.testing.conformance import Conformance, failures
from multifold.testing.counting import Counting

__all__ = ["Conformance", "Counting", "failures"]
