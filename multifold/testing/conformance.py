"""One suite of tests for every adapter: values, gradients, operand kinds, the rows rule, errors.

The ops of the suite use nothing but ``+``, ``-`` and ``*`` on arrays, so that they are the same in every
framework. Expected values are written with NumPy, or come from the eager twin.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np

from multifold._frameworks import registry
from multifold._frameworks.recorder import find_backend
from multifold.backend import Backend, Ragged, TrainingKit
from multifold.errors import LaunchError, MismatchError, RecordError
from multifold.fold import Fold
from multifold.operands import ragged, shared, static
from multifold.testing.counting import Counting
from multifold.unfold import Unfold

TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "float16": 1e-2}


class Conformance:
    """The tests; subclass it with ``backend = "name"`` (or a `multifold.Backend`)."""

    backend: ClassVar[str | Backend | type[Backend]]

    # ---- helpers -----------------------------------------------------------------------------

    @property
    def seam(self) -> Backend:
        """The adapter under test."""
        found = find_backend(self.backend)
        return registry.load("numpy") if found is None else found

    @property
    def kit(self) -> TrainingKit | None:
        """Its training kit, None where it declares that it has none."""
        return None if "kit" in self.seam.gaps() else self.seam.kit

    def fold(self, **options: Any) -> Fold:
        """Return an empty fold on the adapter."""
        return Fold(backend=self.backend, **options)

    def array(self, values: Any, dtype: str = "float32") -> Any:
        """Return values as an array of the framework."""
        return self.seam.constant(np.array(values, dtype), None)

    def equal(self, got: Any, expected: Any) -> None:
        """Compare an array of the framework with NumPy values, in shape and value."""
        if not self.seam.owns(got):
            raise AssertionError(f"expected an array of '{self.seam.name}', received {type(got)}")
        values = self.seam.to_numpy(got)
        expected = np.asarray(expected)
        if values.shape != expected.shape:
            raise AssertionError(f"expected shape {expected.shape}, received {values.shape}")
        tolerance = TOLERANCE.get(values.dtype.name, 1e-2 if "float" in values.dtype.name else 0)
        np.testing.assert_allclose(
            values.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance
        )

    def sum_rows(self, rows: Ragged) -> Any:
        """Add the rows of each node of a ragged operand; zeros for a node without rows."""
        seam = self.seam
        lengths = seam.to_numpy(rows.lengths).tolist()
        values = seam.split(rows.values, [1] * sum(lengths)) if sum(lengths) > 1 else [rows.values]
        position, sums = 0, []
        for length in lengths:
            total = zero = self.array(np.zeros((1, 2)))
            for row in values[position : position + length]:
                total = row if total is zero else total + row
            sums.append(total)
            position += length
        return seam.concat(sums) if len(sums) > 1 else sums[0]

    def refuses(self, error: type[Exception], words: str, call: Callable[[], Any]) -> None:
        """Expect an error whose message holds some words."""
        try:
            call()
        except error as raised:
            missing = [word for word in words.split("|") if word not in str(raised)]
            if missing:
                raise AssertionError(f"expected {missing} in the message: {raised}") from raised
            return
        raise AssertionError(f"expected {error.__name__}")

    # ---- the eight methods -------------------------------------------------------------------

    def test_owns_its_arrays_and_nothing_else(self) -> None:
        seam = self.seam
        x = self.array([[1.0, 2.0]])
        for stranger in (None, 1, 2.0, "x", [x], (x,), {"x": x}, object()):
            if seam.owns(stranger):
                raise AssertionError(f"owns() claims {stranger!r}")
        if not seam.owns(x) or not seam.owns(x + x):
            raise AssertionError("owns() does not know the framework's own arrays")

    def test_rows_are_axis_0(self) -> None:
        if [self.seam.rows(self.array(np.ones(shape))) for shape in ((3, 2), (1,), (5, 1, 4))] != [3, 1, 5]:
            raise AssertionError("rows() is not the length of axis 0")

    def test_signatures_tell_shapes_and_dtypes_apart(self) -> None:
        arrays = [
            self.array(np.ones((2, 3))),
            self.array(np.ones((2, 4))),
            self.array(np.ones((2, 3, 1))),
            self.array(np.ones((2, 3)), "int32"),
        ]
        if len({self.seam.signature(x) for x in arrays}) != 4:
            raise AssertionError("signature() does not tell trailing shapes and dtypes apart")
        if self.seam.signature(arrays[0]) != self.seam.signature(self.array(np.zeros((7, 3)))):
            raise AssertionError("signature() must not depend on the number of rows")

    def test_constants_keep_values_shape_and_dtype(self) -> None:
        for dtype in ("float32", "float16", "int32", "uint8", "bool"):
            values = np.array([[0, 1], [1, 0]], dtype)
            got = self.seam.to_numpy(self.seam.constant(values, None))
            if got.dtype != values.dtype:
                raise AssertionError(f"constant() turned {dtype} into {got.dtype}")
            np.testing.assert_array_equal(got, values)

    def test_indices_are_exact(self) -> None:
        values = np.array([0, 2**24 + 1, 2**31 - 1], self.seam.number_dtype(int))
        np.testing.assert_array_equal(self.seam.to_numpy(self.seam.constant(values, None)), values)

    def test_split_is_the_inverse_of_concat(self) -> None:
        pieces = [np.arange(n * 2.0).reshape(n, 2) + 10 * n for n in (3, 1, 2)]
        whole = self.seam.concat([self.array(piece) for piece in pieces])
        self.equal(whole, np.concatenate(pieces))
        for got, expected in zip(self.seam.split(whole, [3, 1, 2]), pieces, strict=True):
            self.equal(got, expected)

    def test_row_operations_keep_values_ranks_and_dtypes(self) -> None:
        seam, rng, sizes = self.seam, np.random.default_rng(0), [3, 1, 2, 5, 1, 1, 4, 2, 1, 3, 1, 2]
        rows = rng.integers(sum(sizes), size=40).astype(seam.number_dtype(int))
        for dtype in ("float32", "float16", "int32", "uint8"):
            for shape in ((), (2,), (2, 3)):
                values = rng.integers(99, size=(sum(sizes), *shape)).astype(dtype)
                pieces = np.split(values, np.cumsum(sizes)[:-1])
                whole = seam.concat([self.array(piece, dtype) for piece in pieces])
                sections = seam.split(whole, sizes)
                gathered = seam.gather(whole, seam.constant(rows, None))
                pairs = [(whole, values), *zip(sections, pieces, strict=True), (gathered, values[rows])]
                for got, expected in pairs:
                    host = seam.to_numpy(got)
                    if host.dtype != values.dtype:
                        raise AssertionError(f"rows of {dtype} became {host.dtype}")
                    np.testing.assert_array_equal(host, expected)

    def test_row_operations_are_right_for_many_sections_and_large_values(self) -> None:
        seam, rng = self.seam, np.random.default_rng(0)
        sizes = rng.integers(1, 4, size=300).tolist()
        highest = {"float32": 2.0**127, "int32": 2**31 - 1, "uint8": 255}
        rows = rng.permutation(sum(sizes)).astype(seam.number_dtype(int))
        for dtype, most in highest.items():
            values = np.linspace(0, most, 2 * sum(sizes)).reshape(-1, 2).astype(dtype)
            pieces = np.split(values, np.cumsum(sizes)[:-1])
            whole = seam.concat([self.array(piece, dtype) for piece in pieces])
            np.testing.assert_array_equal(seam.to_numpy(whole), values)
            for got, expected in zip(seam.split(whole, sizes), pieces, strict=True):
                np.testing.assert_array_equal(seam.to_numpy(got), expected)
            gathered = seam.gather(whole, seam.constant(rows, None))
            np.testing.assert_array_equal(seam.to_numpy(gathered), values[rows])
        top = np.array([2**24 + 1, 2**31 - 1, 2**31 - 2], seam.number_dtype(int))
        order = seam.constant(np.array([1, 0, 2], top.dtype), None)
        got = seam.gather(seam.constant(top, None), order)
        np.testing.assert_array_equal(seam.to_numpy(got), top[[1, 0, 2]])

    def test_operands_keep_their_containers(self) -> None:
        seen: list[Any] = []

        def note(pair: Any, entries: Any, named: Any, *, names: Any) -> Any:
            seen.append((type(pair), type(entries), list(named), type(names)))
            return pair[0]

        fold = self.fold()
        nodes = [
            fold.add(note, (float(i), 1.0), [2.0, 3.0, float(i)], {"b": 1.0, "a": float(i)}, names=["x"])
            for i in range(3)
        ]
        fold([nodes])
        if seen != [(tuple, list, ["b", "a"], list)]:
            raise AssertionError(f"a tuple, a list, a dictionary and a list reached an op as {seen}")

    def test_what_reaches_the_host_is_a_copy(self) -> None:
        x = self.array([[1.0, 2.0]])
        host = self.seam.to_numpy(x)
        host[:] = 7
        self.equal(x, [[1, 2]])

    def test_a_launch_is_one_call(self) -> None:
        seen: list[int] = []

        def count(x: Any) -> Any:
            seen.append(self.seam.rows(x))
            return x

        fold = self.fold()
        fold([[fold.add(count, i) for i in range(3)]])
        if seen != [3]:
            raise AssertionError(f"three calls of an op became calls of {seen} rows")

    def test_numbers_are_as_precise_as_arrays(self) -> None:
        (got,) = self.fold()([[1 / 3]])
        if abs(float(self.seam.to_numpy(got)[0]) * 3 - 1) > 1e-6:
            raise AssertionError(f"1/3 became {self.seam.to_numpy(got)[0]!r}")

    def test_owns_what_is_trained(self) -> None:
        if self.kit is not None and not self.seam.owns(self.kit.variable(np.ones((1, 2), np.float32))):
            raise AssertionError("owns() does not know a parameter")

    def test_gather_repeats_and_reorders(self) -> None:
        rows = np.array([2, 0, 2, 1, 1], self.seam.number_dtype(int))
        got = self.seam.gather(self.array([[1, 2], [3, 4], [5, 6]]), self.seam.constant(rows, None))
        self.equal(got, [[5, 6], [1, 2], [5, 6], [3, 4], [3, 4]])

    # ---- operands ----------------------------------------------------------------------------

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
        if kinds != ["i", "b", "i"]:
            raise AssertionError(f"numbers became {kinds}")
        self.equal(ints, [7, 8])
        self.equal(labels, [3, 4])

    def test_arrays_of_one_row_are_stacked(self) -> None:
        for make in (self.array, lambda x: np.array(x, "float32")):
            fold = self.fold()
            nodes = [fold.add("double", make([[i, i + 1.0]])) for i in range(3)]
            self.equal(fold.apply({"double": lambda x: x + x}, nodes), [[0, 2], [2, 4], [4, 6]])

    def test_shared_values_enter_once(self) -> None:
        counting, table = Counting(self.seam), self.array([[1.0, 2.0]])
        fold = Fold(backend=counting)
        nodes = [fold.add("add", shared(table), float(i)) for i in range(3)]
        op = {"add": self.outer}
        self.equal(fold.apply(op, nodes), [[1, 2], [2, 3], [3, 4]])
        if counting.counts["call"] != 1:
            raise AssertionError("a shared operand must not divide a launch")

    def outer(self, table: Any, x: Any) -> Any:
        """Return ``table + x[:, None]`` for a table of shape ``(1, 2)``."""
        return table + x.reshape((-1, 1)) if hasattr(x, "reshape") else table + x[:, None]

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
        counting = Counting(self.seam)
        fold = Fold(backend=counting)
        rows = [fold.add("same", self.array([[float(i), 1.0]])) for i in range(4)]
        picks = [[0, 1, 2], [3], [2, 2], []]
        sums = [fold.add("sum", ragged([rows[i] for i in pick], row_shape=(2,))) for pick in picks]
        got = fold.apply({"same": lambda x: x, "sum": self.sum_rows}, sums)
        self.equal(got, [[3, 3], [3, 1], [4, 2], [0, 0]])
        if counting.counts["call"] != 2:
            raise AssertionError("all arities of a ragged operand must share one launch")

    def test_ragged_operands_without_any_row(self) -> None:
        fold = self.fold()
        nodes = [fold.add("count", float(i), ragged([], row_shape=(2,))) for i in range(2)]
        self.equal(fold.apply({"count": lambda x, rows: x + self.seam.rows(rows.values)}, nodes), [0, 1])

    def test_static_arguments_divide_launches(self) -> None:
        counting = Counting(self.seam)
        fold = Fold(backend=counting)
        nodes = [fold.add("scale", float(i), static((10, 20)[i % 2]), by=i // 2) for i in range(4)]
        model = {"scale": lambda x, k, by: x * k + by}
        self.equal(fold.apply(model, nodes), [0, 20, 21, 61])
        if counting.counts["call"] != 4:
            raise AssertionError("static arguments must be equal within a launch")

    def test_ops_without_operands_run_once(self) -> None:
        counting = Counting(self.seam)
        fold = Fold(backend=counting)
        nodes = [fold.add("add", fold.add("zero"), float(i)) for i in range(3)]
        model = {"zero": lambda: self.array([5.0]), "add": lambda a, b: a + b}
        self.equal(fold.apply(model, nodes), [5, 6, 7])
        if counting.counts["call"] != 2:
            raise AssertionError("an op without operands must run once")

    # ---- structure, order, classes -----------------------------------------------------------

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
        counting = Counting(self.seam)
        fold = Fold(backend=counting)
        wide = [fold.add("same", self.array([[1.0, 2.0, 3.0]])) for _ in range(2)]
        slim = [fold.add("same", self.array([[4.0]])) for _ in range(2)]
        nodes = [fold.add("double", x) for x in (wide[0], slim[0], wide[1], slim[1])]
        got = fold.apply({"same": lambda x: x, "double": lambda x: x + x}, [nodes[::2], nodes[1::2]])
        self.equal(got[0], [[2, 4, 6]] * 2)
        self.equal(got[1], [[8]] * 2)
        if counting.counts["call"] != 4:
            raise AssertionError("expected one launch for each trailing shape")

    def test_int_and_float_rows_do_not_promote_each_other(self) -> None:
        fold = self.fold()
        ints, floats = fold.apply({"same": lambda x: x}, [[fold.add("same", 1)], [fold.add("same", 2.5)]])
        kinds = self.seam.to_numpy(ints).dtype.kind, self.seam.to_numpy(floats).dtype.kind
        if kinds != ("i", "f"):
            raise AssertionError(f"rows were promoted: {kinds}")

    # ---- the rows rule and other errors --------------------------------------------------------

    def test_results_must_have_one_row_a_node(self) -> None:
        fold = self.fold()
        nodes = [fold.add("first", float(i)) for i in range(3)]
        model = {"first": lambda x: self.seam.split(x, [2, 1])[0]}
        self.refuses(
            LaunchError, "first|3 node|2 rows|3 rows|conformance.py", lambda: fold.apply(model, nodes)
        )

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
        words = "'f'|2 node|broken on purpose|(2,)|conformance.py"
        self.refuses(LaunchError, words, lambda: fold.apply({"f": fail}, nodes))
        self.equal(fold.apply({"f": lambda x: x + 1}, nodes), [1, 2])

    def test_an_op_that_is_missing_is_named(self) -> None:
        fold = self.fold()
        node = fold.add("encoed", 1.0)
        self.refuses(LaunchError, "encoed|encode", lambda: fold.apply({"encode": lambda x: x}, node))

    # ---- the eager twin and gradients ----------------------------------------------------------

    def tree(self, fold: Any, depth: int, seed: int) -> Any:
        """Record a lopsided binary tree whose cell has two states."""
        if depth == 0:
            return fold.add("leaf", float(seed % 5)).split(2)
        left = self.tree(fold, depth - 1, 3 * seed + 1)
        right = self.tree(fold, max(depth - 1 - seed % 2, 0), 3 * seed + 2)
        return fold.add("cell", *left, *right).split(2)

    def tree_model(self, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return ops on parameters of shape ``(1, 2)``."""
        w, b, u = (parameters[name] for name in "wbu")
        leaf = lambda x: (self.outer(b, x) * w, self.outer(w, x))  # noqa: E731
        cell = lambda lh, lc, rh, rc: (lh * w - rh * u, lc * rc * u + lh)  # noqa: E731
        return {"leaf": leaf, "cell": cell, **parameters}

    def parameters(self) -> dict[str, np.ndarray]:
        """Return the values of the tree model's parameters."""
        rng = np.random.default_rng(0)
        return {name: rng.uniform(0.3, 0.9, (1, 2)).astype("float32") for name in "wbu"}

    def test_fold_equals_unfold(self) -> None:
        model = self.tree_model({k: self.array(v) for k, v in self.parameters().items()})
        fold, unfold = self.fold(), Unfold(model, backend=self.backend)
        got, expected = (
            f.apply(model, [self.tree(f, depth, seed)[0] for depth, seed in ((3, 0), (1, 1), (4, 2))])
            for f in (fold, unfold)
        )
        self.equal(got, self.seam.to_numpy(expected))

    def test_gradients_equal_those_of_one_call_at_a_time(self) -> None:
        if self.kit is None:
            return
        fold = self.fold()
        outputs = [self.tree(fold, depth, seed)[0] for depth, seed in ((3, 0), (1, 1), (4, 2))]
        parameters = {k: self.kit.variable(v) for k, v in self.parameters().items()}
        weights = np.linspace(-1, 1, 6, dtype="float32").reshape(3, 2)
        grads = []
        for run in (fold.apply, self.eager):

            def loss(p: Any, run: Any = run) -> Any:
                return self.kit.dot(run(self.tree_model(p), outputs), weights)  # type: ignore[union-attr]

            grads.append(self.kit.value_and_grad(loss, parameters)[1])
        for name in parameters:
            self.equal(grads[0][name], self.seam.to_numpy(grads[1][name]))
            if not np.abs(self.seam.to_numpy(grads[0][name])).max() > 0:
                raise AssertionError(f"the gradient of {name} is zero")

    def eager(self, model: Any, outputs: Any) -> Any:
        """Run the outputs of a fold's graph on the eager twin, by recording them again."""
        unfold = Unfold(model, backend=self.backend)
        return unfold.apply(
            model, [self.tree(unfold, depth, seed)[0] for depth, seed in ((3, 0), (1, 1), (4, 2))]
        )

    def test_gradients_of_rows_that_are_read_often(self) -> None:
        if self.kit is None:
            return
        fold = self.fold()
        x = fold.add("first")
        nodes = [fold.add("scale", x, float(i)) for i in (1, 2, 3)]
        value, grads = self.kit.value_and_grad(
            lambda p: self.kit.dot(  # type: ignore[union-attr]
                fold.apply({"first": lambda: p["w"], "scale": self.scale}, nodes),
                np.ones((3, 2), "float32"),
            ),
            {"w": self.kit.variable(np.array([[1.0, 2.0]], "float32"))},
        )
        self.equal(grads["w"], [[6, 6]])
        if not np.isclose(float(self.seam.to_numpy(value)), 18):
            raise AssertionError("value_and_grad() must return the value")

    def scale(self, rows: Any, factors: Any) -> Any:
        """Return ``rows * factors[:, None]``."""
        return rows * (factors.reshape((-1, 1)) if hasattr(factors, "reshape") else factors[:, None])

    def test_gradients_through_ragged_rows(self) -> None:
        if self.kit is None:
            return
        fold = self.fold()
        rows = [fold.add("row", self.array([[float(i), 1.0]])) for i in range(3)]
        nodes = [fold.add("sum", ragged([rows[i] for i in pick])) for pick in ([0, 1, 2], [2], [1, 1])]
        _, grads = self.kit.value_and_grad(
            lambda p: self.kit.dot(  # type: ignore[union-attr]
                fold.apply({"row": lambda x: x * p["w"], "sum": self.sum_rows}, nodes),
                np.ones((3, 2), "float32"),
            ),
            {"w": self.kit.variable(np.array([[1.0, 1.0]], "float32"))},
        )
        self.equal(grads["w"], [[7, 6]])

    def test_a_parameter_that_is_not_used_has_zero_gradient(self) -> None:
        if self.kit is None:
            return
        fold = self.fold()
        node = fold.add("f", 2.0)
        parameters = {k: self.kit.variable(np.array([3.0], "float32")) for k in ("used", "idle")}
        _, grads = self.kit.value_and_grad(
            lambda p: self.kit.dot(fold.apply({"f": lambda x: x * p["used"]}, node), np.ones(1)),  # type: ignore[union-attr]
            parameters,
        )
        self.equal(grads["used"], [2])
        self.equal(grads["idle"], [0])

    async def climb(self, fold: Any, start: float) -> Any:
        """Double a row until its value is at least 8; look at a part of a result on the way."""
        x = fold.add("row", self.array([[start, 1.0]]))
        for _ in range(5):  # enough, and an end also where an adapter is wrong
            if (await fold.value(x))[0] >= 8:
                break
            low, high = fold.add("pair", x).split(2)
            first, second = await fold.gather(fold.value(low), fold.values([high]))
            x = high if second[0][0] == 2 * first[0] else low
        return x

    def test_awaited_values_decide_what_follows(self) -> None:
        model = {"row": lambda x: x, "pair": lambda x: (x, x * 2)}
        for run in (
            self.fold().run,
            lambda model, *rest: Unfold(model, backend=self.seam).run(None, *rest),
        ):
            self.equal(run(model, [3.0, 9.0, 1.0], self.climb), [[12, 4], [9, 1], [8, 8]])

    def test_gradients_through_awaited_values(self) -> None:
        if self.kit is None:
            return
        _, grads = self.kit.value_and_grad(
            lambda p: self.kit.dot(  # type: ignore[union-attr]
                self.fold().run(
                    {"row": lambda x: x * p["w"], "pair": lambda x: (x, x * 2)}, [3.0, 9.0, 1.0], self.climb
                ),
                np.ones((3, 2), "float32"),
            ),
            {"w": self.kit.variable(np.array([[1.0, 1.0]], "float32"))},
        )
        self.equal(grads["w"], [[12 + 9 + 8, 4 + 1 + 8]])

    def test_check_accepts_equal_and_rejects_different_runs(self) -> None:
        fold = self.fold()
        nodes = [fold.add("f", float(i)) for i in range(3)]
        fold.check({"f": lambda x: x + 1}, [nodes])
        odd = {"f": lambda x: x + self.seam.rows(x)}  # depends on the size of the batch
        self.refuses(MismatchError, "outputs", lambda: fold.check(odd, [nodes]))


def failures(backend: str | Backend | type[Backend]) -> dict[str, str]:
    """Run the suite on a backend and return the tests that failed, with their tracebacks.

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
        except Exception:  # noqa: BLE001 - whatever a broken adapter raises is the result
            found[name] = traceback.format_exc()
    return found


def tests(suite: Conformance) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the tests of a suite."""
    for name in dir(suite):
        if name.startswith("test_"):
            yield name, getattr(suite, name)
