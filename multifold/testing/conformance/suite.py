"""What the tests of the suite share: folds, arrays, ops and comparisons of one adapter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from multifold._engine.frameworks import registry
from multifold._engine.frameworks.framework_recorder import find_backend
from multifold.backend import Backend, Ragged, TrainingKit
from multifold.fold import Fold
from multifold.testing.counting import Counting

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 1e-2}
"""The difference allowed in a value, by its dtype: about 100 roundings of that dtype."""


class Suite:
    """The adapter under test and what tests do with it."""

    backend: ClassVar[str | Backend | type[Backend]]

    @property
    def seam(self) -> Backend:
        """The adapter under test: the object that ``backend`` names; NumPy's for ``"auto"``."""
        found = find_backend(self.backend)
        return registry.load_backend("numpy") if found is None else found

    @property
    def kit(self) -> TrainingKit | None:
        """The adapter's training kit; None if its ``gaps()`` say that it has none."""
        return None if "kit" in self.seam.gaps() else self.seam.kit

    def fold(self, **options: Any) -> Fold:
        """Make an empty fold on the adapter; ``options`` are those of `multifold.Fold`."""
        return Fold(backend=self.backend, **options)

    def counted(self) -> tuple[Fold, Counter[str]]:
        """Make an empty fold on the adapter, and return it with a counter of what it asks of the adapter.

        See `Counting`.
        """
        counting = Counting(self.seam)
        return Fold(backend=counting), counting.counts

    def array(self, values: Any, dtype: str = "float32") -> Any:
        """Return an array of the framework with these values, a number or nested lists, in this dtype."""
        return self.seam.constant(np.array(values, dtype), None)

    def must(self, holds: bool, message: str) -> None:
        """Raise AssertionError with ``message`` unless ``holds`` is true."""
        if not holds:
            raise AssertionError(message)

    def equal(self, got: Any, expected: Any) -> None:
        """Raise AssertionError unless an array of the framework has the shape and values of ``expected``.

        Floats may differ by `TOLERANCE`; dtypes are not compared. ``expected`` is an array, a number or
        nested lists. Also raised if ``got`` is no array of the framework.
        """
        self.must(self.seam.owns(got), f"expected an array of '{self.seam.name}', received {type(got)}")
        values = self.seam.to_numpy(got)
        expected = np.asarray(expected)
        self.must(
            values.shape == expected.shape, f"expected shape {expected.shape}, received {values.shape}"
        )
        # A float without an entry, as bfloat16, has two or three digits. Integers and bools must be equal.
        tolerance = TOLERANCE.get(values.dtype.name, 1e-2 if "float" in values.dtype.name else 0)
        np.testing.assert_allclose(
            values.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance
        )

    def sum_rows(self, rows: Ragged) -> Any:
        """Add up the rows of each node of a ragged operand whose rows have width 2.

        Return shape ``(nodes, 2)``. A node without rows gets zeros.
        """
        seam = self.seam
        lengths = seam.to_numpy(rows.lengths).tolist()
        # Only the seam and `+` are the same for all adapters, so the rows are added one by one.
        values = seam.split(rows.values, [1] * sum(lengths)) if sum(lengths) > 1 else [rows.values]
        position = 0
        sums = []
        for length in lengths:
            total = zero = self.array(np.zeros((1, 2)))
            for row in values[position : position + length]:
                total = row if total is zero else total + row
            sums.append(total)
            position += length
        return seam.concat(sums) if len(sums) > 1 else sums[0]

    def refuses(self, error: type[Exception], words: str, call: Callable[[], Any]) -> None:
        """Raise AssertionError unless ``call()`` raises ``error`` with all of ``words`` in its message.

        The words are divided by ``|``: ``"first|3 rows"``. An exception of another class is not caught.
        """
        try:
            call()
        except error as raised:
            missing = [word for word in words.split("|") if word not in str(raised)]
            if missing:
                raise AssertionError(f"expected {missing} in the message: {raised}") from raised
            return
        raise AssertionError(f"expected {error.__name__}")

    def outer(self, table: Any, x: Any) -> Any:
        """Return ``table + x[:, None]``, of shape ``(n, 2)``.

        ``table`` has the shape ``(1, 2)`` and ``x`` the shape ``(n,)``.
        """
        # A tensor of TensorFlow has no method `reshape`.
        return table + x.reshape((-1, 1)) if hasattr(x, "reshape") else table + x[:, None]

    def scale(self, rows: Any, factors: Any) -> Any:
        """Return ``rows * factors[:, None]``, for shapes ``(n, s)`` and ``(n,)``."""
        return rows * (factors.reshape((-1, 1)) if hasattr(factors, "reshape") else factors[:, None])
