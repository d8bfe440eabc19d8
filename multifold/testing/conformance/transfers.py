"""Hidden transfers: a step uploads as often for 1,000 launches as for 10, and reads nothing back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest import SkipTest

import numpy as np

from multifold.backend import Transfers
from multifold.errors import BackendError
from multifold.fold import Fold
from multifold.operands import ragged, shared
from multifold.testing.conformance.suite import Suite
from multifold.testing.counting import Counting


class TransferTests(Suite):
    """What goes between host and device during a run."""

    def chains(self, fold: Fold, launches: int) -> list[Any]:
        """Record three chains, of ``launches`` calls each after the first two; return three nodes of them.

        The calls read numbers, NumPy arrays, ragged rows and a shared array. One node is returned twice.
        """
        table = np.full((1, 4), 0.5, np.float32)
        numbers = [fold.add("begin", float(i)) for i in range(3)]
        rows = [fold.add("join", x, np.full((1, 4), i, np.float32)) for i, x in enumerate(numbers)]
        for step in range(launches):
            rows = rows if step % 3 else rows[::-1]  # another order, so that rows must be gathered
            rows = [fold.add("turn", ragged([row]), shared(table)) for row in rows]
        return [rows[2], rows[0], rows[2]]

    def step(self, launches: int) -> tuple[Transfers, int]:
        """Run `chains` of this many launches on a new fold without trials, forward and backward.

        Return the transfers that the kit saw, without the upload of the parameter, and how often the core
        uploaded constants. Raises AssertionError if the core has read a value back.
        """
        kit = self.seam.kit
        weights = np.ones((3, 4), np.float32)
        with kit.transfers() as seen:
            counting = Counting(self.seam)
            model = {"w": kit.variable(np.full((1, 4), 0.5, np.float32), seen.device)}
            # The upload of the parameter is no part of the run.
            begun = seen.uploads
            # A trial would read values back.
            fold = Fold(backend=counting, device=seen.device, trials=False)
            outputs = self.chains(fold, launches)

            def loss(model: Any) -> Any:
                w = model["w"]
                ops = {
                    "begin": lambda number: self.outer(w, number),
                    "join": lambda x, y: x + y,
                    "turn": lambda rows, table: rows.values * w + table,
                }
                return kit.dot(fold.apply(ops, outputs), weights)

            kit.value_and_grad(loss, model)
        self.must(counting.counts["to_numpy"] == 0, "a run read values back")
        return replace(seen, uploads=seen.uploads - begun), counting.counts["constant"]

    def test_transfers_do_not_grow_with_launches(self) -> None:
        if self.kit is None:
            raise SkipTest("without a training kit there is no step, forward and backward")
        try:
            self.step(4)  # what is compiled, and what is set up once
            few = self.step(10)
            many = self.step(1000)
        except BackendError as cannot:
            raise SkipTest(str(cannot)) from None
        self.must(few == many, f"10 launches need {few}, 1,000 launches {many}: a launch transfers")
        self.must(few[0].waits == 0, f"a step waited for the device {few[0].waits} times")

    def test_a_round_of_awaited_values_reads_back_once(self) -> None:
        async def climb(fold: Any, start: float) -> Any:
            x = fold.add("same", self.array([[start, 1.0]]))
            for _ in range(3):
                await fold.value(x)
                x = fold.add("same", x)
            return x

        for examples in (2, 50):
            fold, counts = self.counted()
            # NumPy reads the arrays that it sees, and copies nothing.
            vars(fold._backend)["host_view"] = lambda x: None
            fold.run({"same": lambda x: x}, [float(i) for i in range(examples)], climb)
            found = counts["to_numpy"]
            self.must(found == 3, f"3 rounds of {examples} examples read back {found} times")
