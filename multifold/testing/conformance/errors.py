"""The rule of rows and other errors: refused where they happen, in words that name op, rows and line."""

from __future__ import annotations

from typing import Any

import numpy as np

from multifold.errors import LaunchError, MismatchError, RecordError
from multifold.testing.conformance.suite import Suite


class ErrorTests(Suite):
    """What is refused, and what the message says."""

    def test_results_must_have_one_row_a_node(self) -> None:
        fold = self.fold()
        nodes = [fold.add("first", float(i)) for i in range(3)]
        model = {"first": lambda x: self.seam.split(x, [2, 1])[0]}
        self.refuses(LaunchError, "first|3 node|2 rows|3 rows|errors.py", lambda: fold.apply(model, nodes))

    def test_results_must_be_arrays(self) -> None:
        fold = self.fold()
        nodes = [fold.add("length", float(i)) for i in range(2)]
        self.refuses(LaunchError, "length|int", lambda: fold.apply({"length": lambda x: 2}, nodes))

    def test_array_operands_must_have_one_row(self) -> None:
        fold = self.fold()
        x = self.array(np.ones((3, 2)))
        self.refuses(RecordError, "(3, 2)|x[None]|shared", lambda: fold.add("f", x))

    def test_an_op_that_raises_leaves_the_fold_usable(self) -> None:
        def fail(x: Any) -> Any:
            raise ValueError("broken on purpose")

        fold = self.fold()
        nodes = [fold.add("f", float(i)) for i in range(2)]
        words = "'f'|2 node|broken on purpose|(2,)|errors.py"
        self.refuses(LaunchError, words, lambda: fold.apply({"f": fail}, nodes))
        self.equal(fold.apply({"f": lambda x: x + 1}, nodes), [1, 2])

    def test_an_op_that_is_missing_is_named(self) -> None:
        fold = self.fold()
        node = fold.add("encoed", 1.0)
        self.refuses(LaunchError, "encoed|encode", lambda: fold.apply({"encode": lambda x: x}, node))

    def test_check_accepts_equal_and_rejects_different_runs(self) -> None:
        fold = self.fold()
        nodes = [fold.add("f", float(i)) for i in range(3)]
        fold.check({"f": lambda x: x + 1}, [nodes])
        odd = {"f": lambda x: x + self.seam.rows(x)}  # depends on the size of the batch
        self.refuses(MismatchError, "outputs", lambda: fold.check(odd, [nodes]))
