"""The eight methods of the seam: arrays, rows, signatures, constants, and moving rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from multifold.backend import Backend
from multifold.testing.conformance.suite import Suite


class SeamTests(Suite):
    """Each method of an adapter by itself."""

    def test_owns_its_arrays_and_nothing_else(self) -> None:
        seam = self.seam
        x = self.array([[1.0, 2.0]])
        for other in (None, 1, 2.0, "x", [x], (x,), {"x": x}, object()):
            self.must(not seam.owns(other), f"owns() claims {other!r}")
        self.must(seam.owns(x) and seam.owns(x + x), "owns() does not know the framework's own arrays")

    def test_what_a_backend_can_do_is_declared(self) -> None:
        for declared, method in (
            ("counts_changes", "version"),
            ("pads", "padded_rows"),
            ("protects", "protected"),
            ("puts", "put"),
        ):
            says = getattr(self.seam, declared)
            has = getattr(type(self.seam), method) is not getattr(Backend, method)
            self.must(not has or says, f"{method}() is never asked: {declared} is not declared")
            self.must(has or not says, f"{declared} is declared, but {method}() is that of Backend")

    def test_rows_are_axis_0(self) -> None:
        found = [self.seam.rows(self.array(np.ones(shape))) for shape in ((3, 2), (1,), (5, 1, 4))]
        self.must(found == [3, 1, 5], "rows() is not the length of axis 0")

    def test_signatures_tell_shapes_and_dtypes_apart(self) -> None:
        arrays = [
            self.array(np.ones((2, 3))),
            self.array(np.ones((2, 4))),
            self.array(np.ones((2, 3, 1))),
            self.array(np.ones((2, 3)), "int32"),
        ]
        found = [self.seam.signature(x) for x in arrays]
        self.must(len(set(found)) == 4, "signature() does not tell trailing shapes and dtypes apart")
        more_rows = self.seam.signature(self.array(np.zeros((7, 3))))
        self.must(found[0] == more_rows, "signature() must not depend on the number of rows")

    def test_constants_keep_values_shape_and_dtype(self) -> None:
        for dtype in ("float32", "float16", "int32", "uint8", "bool"):
            values = np.array([[0, 1], [1, 0]], dtype)
            got = self.seam.to_numpy(self.seam.constant(values, None))
            self.must(got.dtype == values.dtype, f"constant() turned {dtype} into {got.dtype}")
            np.testing.assert_array_equal(got, values)

    def test_indices_are_exact(self) -> None:
        # 2**24 + 1 is the first integer that float32 can't hold: moved as a float, it changes.
        values = np.array([0, 2**24 + 1, 2**31 - 1], self.seam.number_dtype(int))
        np.testing.assert_array_equal(self.seam.to_numpy(self.seam.constant(values, None)), values)

    def test_promoted_is_what_concat_makes_of_rows_of_two_dtypes(self) -> None:
        seam = self.seam
        dtypes = ("float16", "float32", "int32")
        rows = [seam.constant(np.ones((1, 2), dtype), None) for dtype in dtypes]
        for one, other in ((0, 1), (1, 0), (1, 2)):
            both = [rows[one], rows[other]]
            found = seam.promoted(list(map(seam.signature, both)))
            self.must(
                found is None or found == seam.signature(seam.concat(both)),
                f"concat makes other rows of {dtypes[one]} and {dtypes[other]} than {found}",
            )

    def test_split_is_the_inverse_of_concat(self) -> None:
        pieces = [np.arange(n * 2.0).reshape(n, 2) + 10 * n for n in (3, 1, 2)]
        whole = self.seam.concat([self.array(piece) for piece in pieces])
        self.equal(whole, np.concatenate(pieces))
        for got, expected in zip(self.seam.split(whole, [3, 1, 2]), pieces, strict=True):
            self.equal(got, expected)

    def row_operations_keep(self, values: np.ndarray, sizes: list[int], rows: np.ndarray) -> None:
        """Fail unless ``concat``, ``split`` and ``gather`` keep values, shapes and dtypes exactly.

        ``values``, of shape ``(n, *s)``, is cut into sections of ``sizes``, which are put together and
        split again; ``rows`` has the numbers of the rows to gather.
        """
        seam = self.seam
        expected = np.split(values, np.cumsum(sizes)[:-1])
        whole = seam.concat([seam.constant(section, None) for section in expected])
        gathered = seam.gather(whole, seam.constant(rows.astype(seam.number_dtype(int)), None))
        got = [whole, *seam.split(whole, sizes), gathered]
        for array, right in zip(got, [values, *expected, values[rows]], strict=True):
            host = seam.to_numpy(array)
            self.must(host.dtype == values.dtype, f"rows of {values.dtype} became {host.dtype}")
            np.testing.assert_array_equal(host, right)

    def test_row_operations_keep_values_ranks_and_dtypes(self) -> None:
        rng = np.random.default_rng(0)
        sizes = [3, 1, 2, 5, 1, 1, 4, 2, 1, 3, 1, 2]
        rows = rng.integers(sum(sizes), size=40)
        for dtype in ("float32", "float16", "int32", "uint8"):
            for shape in ((), (2,), (2, 3)):
                values = rng.integers(99, size=(sum(sizes), *shape)).astype(dtype)
                self.row_operations_keep(values, sizes, rows)

    def test_row_operations_are_right_for_many_sections_and_large_values(self) -> None:
        seam = self.seam
        rng = np.random.default_rng(0)
        sizes = rng.integers(1, 4, size=300).tolist()
        highest = {"float32": 2.0**127, "int32": 2**31 - 1, "uint8": 255}
        rows = rng.permutation(sum(sizes))
        for dtype, most in highest.items():
            values = np.linspace(0, most, 2 * sum(sizes)).reshape(-1, 2).astype(dtype)
            self.row_operations_keep(values, sizes, rows)
        # As float32, the first of these would change, and the other two would become equal.
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
        expected = [(tuple, list, ["b", "a"], list)]
        self.must(seen == expected, f"a tuple, a list, a dictionary and a list reached an op as {seen}")

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
        self.must(seen == [3], f"three calls of an op became calls of {seen} rows")

    def test_numbers_are_as_precise_as_arrays(self) -> None:
        (got,) = self.fold()([[1 / 3]])
        third = self.seam.to_numpy(got)[0]
        self.must(abs(float(third) * 3 - 1) < 1e-6, f"1/3 became {third!r}")

    def test_a_python_number_changes_no_dtype(self) -> None:
        x = self.seam.constant(np.ones((2, 3), np.float32), None)
        for made in (x * 2, x + 1, x - 1.5):
            got = self.seam.to_numpy(made).dtype
            self.must(got == np.float32, f"an array of float32 and a Python number made {got}")

    def test_owns_what_is_trained(self) -> None:
        if self.kit is not None:
            parameter = self.kit.variable(np.ones((1, 2), np.float32))
            self.must(self.seam.owns(parameter), "owns() does not know a parameter")

    def test_gather_repeats_and_reorders(self) -> None:
        got = self.seam.gather(self.array([[1, 2], [3, 4], [5, 6]]), self.rows_of(2, 0, 2, 1, 1))
        self.equal(got, [[5, 6], [1, 2], [5, 6], [3, 4], [3, 4]])

    def test_put_writes_rows(self) -> None:
        if self.seam.puts:
            array = self.seam.gather(
                self.array([[1, 2], [3, 4], [5, 6]]), self.rows_of(2, 1, 0)
            )  # one of its own
            got = self.seam.put(array, self.rows_of(2, 0), self.array([[7, 7], [9, 9]]))
            self.equal(got, [[9, 9], [3, 4], [7, 7]])

    def test_a_view_of_the_host_is_the_memory_of_an_array(self) -> None:
        array = self.seam.gather(self.array([[1, 2], [3, 4], [5, 6]]), self.rows_of(2, 1, 0))
        with self.seam.inference():
            view = self.seam.host_view(array)
            if view is not None:
                view[1] = 9
                self.equal(array, [[5, 6], [9, 9], [1, 2]])
                self.equal(self.seam.from_host(view.take([1, 2], 0)), [[9, 9], [1, 2]])

    def rows_of(self, *numbers: int) -> Any:
        """Return row numbers as an array of the framework, in the dtype that it has for integers."""
        return self.seam.constant(np.array(numbers, self.seam.number_dtype(int)), None)
