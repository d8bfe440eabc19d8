"""Parts of a result that lie inside of each row."""

from __future__ import annotations

import numpy as np

from multifold import Fold


def test_an_entry_of_a_row_is_a_part_that_costs_no_launch():
    fold = Fold(backend="numpy")
    nodes = [fold.add("pairs", np.full((1, 2), float(i))) for i in range(3)]
    outputs = [[x._entry(1) for x in nodes], [fold.add("sum", x._entry(0), x._entry(1)) for x in nodes]]
    model = {"pairs": lambda x: np.stack([x, 10 * x], axis=1), "sum": lambda x, y: x + y}
    entries, sums = fold.apply(model, outputs)
    np.testing.assert_array_equal(entries, [[0, 0], [10, 10], [20, 20]])
    np.testing.assert_array_equal(sums, [[0, 0], [11, 11], [22, 22]])
    assert len(fold.explain()) == 2
    assert "entry 1" in repr(nodes[0]._entry(1))
