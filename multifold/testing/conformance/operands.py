"""Every kind of operand, the structure of outputs, and which calls may share a launch."""

from __future__ import annotations

import numpy as np

from multifold.operands import ragged, shared, static
from multifold.testing.conformance.suite import Suite


class OperandTests(Suite):
    """What an op receives, and what becomes of its result."""

    def test_nodes_and_numbers_are_batched(self) -> None:
        fold = self.fold()
        ones = [fold.add("double", float(i)) for i in range(4)]
        got = fold.apply(
            {"double": lambda x: x * 2, "add": lambda a, b: a + b},
            [[fold.add("add", ones[i], ones[3 - i]) for i in range(3)], ones],
        )
        self.equal(got[0], [6, 6, 6])
        self.equal(got[1], [0, 2, 4, 6])

    def test_ints_and_bools_keep_their_kind(self) -> None:
        fold = self.fold()
        ints, bools, labels = fold.apply(
            {"same": lambda x: x},
            [[fold.add("same", i) for i in (7, 8)], [fold.add("same", b) for b in (True, False)], [3, 4]],
        )
        kinds = [self.seam.to_numpy(x).dtype.kind for x in (ints, bools, labels)]
        self.must(kinds == ["i", "b", "i"], f"numbers became {kinds}")
        self.equal(ints, [7, 8])
        self.equal(labels, [3, 4])

    def test_arrays_of_one_row_are_stacked(self) -> None:
        for make in (self.array, lambda x: np.array(x, "float32")):
            fold = self.fold()
            nodes = [fold.add("double", make([[i, i + 1.0]])) for i in range(3)]
            self.equal(fold.apply({"double": lambda x: x + x}, nodes), [[0, 2], [2, 4], [4, 6]])

    def test_shared_values_enter_once(self) -> None:
        fold, counts = self.counted()
        table = self.array([[1.0, 2.0]])
        nodes = [fold.add("add", shared(table), float(i)) for i in range(3)]
        op = {"add": self.outer}
        self.equal(fold.apply(op, nodes), [[1, 2], [2, 3], [3, 4]])
        self.must(counts["call"] == 1, "a shared operand must not divide a launch")

    def test_a_shared_node_is_read_whole(self) -> None:
        fold = self.fold()
        rows = [fold.add("same", self.array([[float(i), 1.0]])) for i in range(3)]
        table = fold.add("join", *rows).no_batch()
        nodes = [fold.add("mix", table, row) for row in rows]
        model = {
            "same": lambda x: x,
            "join": lambda *xs: self.seam.concat(xs),
            "mix": lambda t, x: self.seam.split(t, [2, 1])[1] + x,
        }
        whole, got = fold.apply(model, (table, nodes))
        self.equal(whole, [[0, 1], [1, 1], [2, 1]])
        self.equal(got, [[2, 2], [3, 2], [4, 2]])

    def test_nested_operands_and_results(self) -> None:
        fold = self.fold()
        nodes = [fold.add("pair", {"a": float(i), "b": [1.0, (2.0,)]}) for i in range(3)]
        model = {"pair": lambda d: {"sum": d["a"] + d["b"][0], "both": (d["b"][1][0], [d["a"]])}}
        sums, parts, whole = fold.apply(
            model, [[n["sum"] for n in nodes], [n["both"][1][0] for n in nodes], (nodes[1],)]
        )
        self.equal(sums, [1, 2, 3])
        self.equal(parts, [0, 1, 2])
        self.equal(whole[0]["both"][0], [2])

    def test_ragged_operands_of_all_arities_share_a_launch(self) -> None:
        fold, counts = self.counted()
        rows = [fold.add("same", self.array([[float(i), 1.0]])) for i in range(4)]
        picks = [[0, 1, 2], [3], [2, 2], []]
        picked = [ragged([rows[i] for i in pick], row_shape=(2,), dtype="float32") for pick in picks]
        sums = [fold.add("sum", rows) for rows in picked]
        got = fold.apply({"same": lambda x: x, "sum": self.sum_rows}, sums)
        self.equal(got, [[3, 3], [3, 1], [4, 2], [0, 0]])
        self.must(counts["call"] == 2, "all arities of a ragged operand must share one launch")

    def test_ragged_operands_without_any_row(self) -> None:
        fold = self.fold()
        nodes = [fold.add("count", float(i), ragged([], row_shape=(2,))) for i in range(2)]
        self.equal(fold.apply({"count": lambda x, rows: x + self.seam.rows(rows.values)}, nodes), [0, 1])

    def test_static_arguments_divide_launches(self) -> None:
        fold, counts = self.counted()
        nodes = [fold.add("scale", float(i), static((10, 20)[i % 2]), by=i // 2) for i in range(4)]
        model = {"scale": lambda x, k, by: x * k + by}
        self.equal(fold.apply(model, nodes), [0, 20, 21, 61])
        self.must(counts["call"] == 4, "static arguments must be equal within a launch")

    def test_ops_without_operands_run_once(self) -> None:
        fold, counts = self.counted()
        nodes = [fold.add("add", fold.add("zero"), float(i)) for i in range(3)]
        model = {"zero": lambda: self.array([5.0]), "add": lambda a, b: a + b}
        self.equal(fold.apply(model, nodes), [5, 6, 7])
        self.must(counts["call"] == 2, "an op without operands must run once")

    def test_outputs_keep_structure_and_order(self) -> None:
        fold = self.fold()
        nodes = [fold.add("same", float(i)) for i in range(5)]
        got = fold.apply({"same": lambda x: x}, {"x": [nodes[i] for i in (3, 0, 4)], "y": (nodes[2],)})
        self.equal(got["x"], [3, 0, 4])
        self.equal(got["y"][0], [2])

    def test_parts_of_results(self) -> None:
        fold = self.fold()
        triples = [fold.add("triple", float(i)) for i in range(3)]
        firsts, pair = fold.apply(
            {"triple": lambda x: (x, x + 1, x + 2), "add": lambda xs: xs[0] + xs[1]},
            [[t.split(3)[0] for t in triples], [fold.add("add", t[1:]) for t in triples]],
        )
        self.equal(firsts, [0, 1, 2])
        self.equal(pair, [3, 5, 7])

    def test_two_trailing_shapes_make_two_launches(self) -> None:
        fold, counts = self.counted()
        wide = [fold.add("same", self.array([[1.0, 2.0, 3.0]])) for _ in range(2)]
        slim = [fold.add("same", self.array([[4.0]])) for _ in range(2)]
        nodes = [fold.add("double", x) for x in (wide[0], slim[0], wide[1], slim[1])]
        got = fold.apply({"same": lambda x: x, "double": lambda x: x + x}, [nodes[::2], nodes[1::2]])
        self.equal(got[0], [[2, 4, 6]] * 2)
        self.equal(got[1], [[8]] * 2)
        self.must(counts["call"] == 4, "expected one launch for each trailing shape")

    def test_int_and_float_rows_do_not_promote_each_other(self) -> None:
        fold = self.fold()
        ints, floats = fold.apply({"same": lambda x: x}, [[fold.add("same", 1)], [fold.add("same", 2.5)]])
        kinds = self.seam.to_numpy(ints).dtype.kind, self.seam.to_numpy(floats).dtype.kind
        self.must(kinds == ("i", "f"), f"rows were promoted: {kinds}")
