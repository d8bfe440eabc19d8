"""Arrays that are not NumPy's, as those of every framework, with none installed: a small one made here.

The small framework has arrays of its own class, numbers of 32 bits, and counts of changes in place. Its
ops run on NumPy, so each expected value can be worked out by hand.
"""

from __future__ import annotations

import contextlib
import functools
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from multifold import (
    Backend,
    BackendError,
    Fold,
    LaunchError,
    RecordError,
    Unfold,
    ragged,
    shared,
    static,
    trace,
)
from multifold._engine.ops.state import KeptState
from multifold.backend import promoted
from multifold.program import KernelOperand, RowsSpec, SlabClass, SlabClasses, Tiler, checks


class Tensor:
    """An array that counts how often it was changed in place."""

    def __init__(self, data: Any) -> None:
        self.data = np.asarray(data)
        self.changes = 0

    shape = property(lambda self: self.data.shape)
    dtype = property(lambda self: self.data.dtype)

    def __add__(self, other: Any) -> Tensor:
        return Tensor(self.data + data_of(other))

    def __mul__(self, other: Any) -> Tensor:
        return Tensor(self.data * data_of(other))

    def __getitem__(self, key: Any) -> Tensor:
        return Tensor(self.data[key])

    def add_(self, other: Any) -> Tensor:
        """Add in place."""
        self.data = self.data + data_of(other)
        self.changes += 1
        return self


def data_of(x: Any) -> Any:
    return x.data if isinstance(x, Tensor) else x


class Interrupted(Exception):
    """What this framework raises for its own ends, as TensorFlow's autograph does."""


class Foreign(Backend):  # type: ignore[misc]
    """The adapter of the small framework."""

    name: ClassVar[str] = "foreign"
    counts_changes = True
    passes = (Interrupted,)

    def owns(self, x):
        return isinstance(x, Tensor)

    def hosts(self, model):
        values = model.values() if isinstance(model, dict) else (model,)
        return any(isinstance(x, Tensor) for x in values)

    def arrays_of(self, model):
        return [x for x in model.values() if isinstance(x, Tensor)] if isinstance(model, dict) else []

    def signature(self, x):
        return x.shape[1:], x.dtype

    def promoted(self, signatures):
        return promoted(signatures, lambda dtype: dtype.kind == "f", lambda found: np.result_type(*found))

    def rows(self, x):
        return x.shape[0]

    def version(self, x):
        return x.changes

    def constant(self, values, device):
        return Tensor(values)

    def concat(self, xs):
        return Tensor(np.concatenate([x.data for x in xs]))

    def split(self, x, sizes):
        return [Tensor(part) for part in np.split(x.data, np.cumsum(sizes)[:-1])]

    def gather(self, x, rows):
        return Tensor(x.data[rows.data])

    def call(self, fn, operands, static):
        return fn(*operands, **static)

    def number_dtype(self, kind):
        return np.dtype({int: np.int32, float: np.float32, bool: np.bool_}[kind])

    def to_numpy(self, x):
        return x.data.copy()


class Padding(Foreign):
    """The same, but launches of awaited rounds are padded to powers of two."""

    pads = True

    def padded_rows(self, rows):
        return 1 << (rows - 1).bit_length()


def rows(*values: float, dtype: Any = np.float32) -> Tensor:
    """One row with these values."""
    return Tensor(np.array([values], dtype))


def column(s: Tensor) -> Tensor:
    return Tensor(s.data[:, None].astype(np.float32))


MODEL = {
    "scale": lambda x, s: x * column(s),
    "plus": lambda x, y: x + y,
    "sums": lambda r: Tensor(np.add.reduceat(r.values.data, np.cumsum(r.lengths.data) - r.lengths.data)),
    "table": lambda i, table: table[i.data],
}


def both(record, model=MODEL, backend=Foreign):
    """Return what a recording gives batched and one call at a time, as NumPy arrays."""
    folds = Fold(backend=backend()), Unfold(model, backend=backend())
    return [[x.data for x in fold.apply(model, record(fold))] for fold in folds]


def same(record, expected, model=MODEL, backend=Foreign):
    for found in both(record, model, backend):
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_array_equal(got, want)


# ---- values ------------------------------------------------------------------------------------------


def test_operands_are_arrays_of_the_framework_numpy_arrays_and_numbers():
    def record(fold):
        mine = rows(1, 2)
        other = np.array([[3, 4]], np.float32)
        return [[fold.add("scale", x, s) for x, s in [(mine, 2.0), (other, 3), (mine, True)]]]

    for found in both(record):
        np.testing.assert_array_equal(found[0], [[2, 4], [9, 12], [1, 2]])
        assert found[0].dtype == np.float32


def test_a_shared_array_of_the_framework_is_passed_as_it_is():
    table = Tensor(np.float32([[1, 2], [3, 4]]))
    seen = []

    def look_up(i, given):
        seen.append(given is table)
        return given[i.data]

    same(
        lambda fold: [[fold.add("op", i, shared(table)) for i in (1, 0)]],
        [[[3, 4], [1, 2]]],
        {"op": look_up},
    )
    assert all(seen)


def test_arrays_of_the_framework_may_be_rows_of_a_group_and_of_ragged_operands():
    def record(fold):
        sums = fold.add("sums", ragged([rows(1, 2), rows(3, 4), fold.add("scale", rows(1, 1), 5)]))
        return [[sums, rows(7, 8), rows(9, 9)]]

    same(record, [[[9, 11], [7, 8], [9, 9]]])


def test_numbers_that_do_not_fit_the_framework_are_refused():
    fold = Fold(backend=Foreign())
    with pytest.raises(LaunchError, match="fit the backend's int32"):
        fold.apply({"scale": column}, [fold.add("scale", 1 << 32)])


def test_rows_of_two_float_dtypes_meet_in_the_wider_one():
    def record(fold):
        return [[fold.add("sums", ragged([rows(1, 2, dtype=np.float16), rows(3, 4)])), rows(0, 1)]]

    for found in both(record):
        assert found[0].dtype == np.float32
        np.testing.assert_array_equal(found[0], [[4, 6], [0, 1]])


def test_rows_that_no_concatenation_takes_are_refused_with_both_classes():
    fold = Fold(backend=Foreign())
    with pytest.raises(LaunchError, match="the rows of a ragged operand"):
        fold.apply(MODEL, [fold.add("sums", ragged([rows(1, 2), rows(1, 2, dtype=np.int32)]))])


def test_a_program_takes_arrays_of_the_framework():
    fold = Fold(backend=Foreign())
    one, *others = rows(1, 2), rows(3, 4), rows(5, 6)
    (given,) = fold.program([fold.add("plus", one, other) for other in others]).given
    np.testing.assert_array_equal(given.data, [[1, 2], [1, 2], [3, 4], [5, 6]])
    fold = Fold(backend=Foreign())
    (given,) = fold.program([fold.add("scale", one, 2)]).given[:1]
    assert given is one
    (given,) = fold.program([[fold.add("scale", x, 2) for x in others]]).given[:1]
    assert given.data.tolist() == [[3, 4], [5, 6]]


def test_arrays_of_a_program_are_of_the_framework_or_of_numpy_and_of_one_width():
    fold = Fold(backend=Foreign())
    one = rows(1, 2)
    wide = [rows(i, 8, 9) for i in range(3)]
    sums = [fold.add("plus", one, other) for other in (rows(3, 4), np.ones((1, 2)))]
    program = fold.program([sums, wide])
    assert [type(given) for given in program.given] == [Tensor, np.ndarray, Tensor]
    assert [given.shape for given in program.given] == [(3, 2), (1, 2), (3, 3)]
    assert Tiler(program).given == (3, 8, 3)


# ---- ops that write ----------------------------------------------------------------------------------


@pytest.mark.parametrize("debug", [False, True])
def test_an_op_that_changes_an_operand_is_refused_by_its_count(debug):
    fold = Fold(backend=Foreign(), debug=debug)
    wrong = {"first": lambda x: x + 1, "second": lambda x, y: y.add_(1)}
    node = fold.add("first", rows(1, 2))
    with pytest.raises(LaunchError, match="operand 1 was changed by an inplace operation"):
        fold.apply(wrong, [fold.add("second", rows(0, 0), node)])


def test_a_change_that_is_not_counted_is_found_in_debugging():
    def hidden(x):
        x.data = x.data + 1
        return Tensor(x.data)

    fold = Fold(backend=Foreign(), debug=True)
    node = fold.add("hidden", fold.add("plus", rows(1, 2), rows(0, 0)))
    with pytest.raises(LaunchError, match="operand 0 was changed by an inplace operation"):
        fold.apply(MODEL | {"hidden": hidden}, [node])


@pytest.mark.parametrize("debug", [False, True])
def test_a_shared_array_may_be_changed_but_for_the_copy_that_debugging_guards(debug):
    fold = Fold(backend=Foreign(), debug=debug)
    node = fold.add("op", rows(1, 2), shared(np.float32([1, 2])))
    model = {"op": lambda x, table: x + table.add_(1)}
    if debug:
        with pytest.raises(LaunchError, match="operand 1 was changed by an inplace operation"):
            fold.apply(model, node)
    else:
        assert fold.apply(model, node).data.tolist() == [[3, 5]]


# ---- errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["expected scalar Type", "got Float", "Half is not what"])
def test_the_hint_of_an_error_of_dtypes_names_the_dtype_of_the_model(words):
    def refuse(x, r):
        raise ValueError(words)

    model = {"weight": Tensor(np.float16([1])), "op": refuse}
    half = rows(1, 2, dtype=np.float16)
    fold = Fold(backend=Foreign())
    with pytest.raises(LaunchError, match="model is in float16, and operand 1 in float32") as caught:
        fold.apply(model, [fold.add("op", half, ragged([rows(1, 2)]))])
    assert "they become float32" in str(caught.value)


@pytest.mark.parametrize("why", ["another error", "no other dtype"])
def test_other_errors_get_no_hint_of_dtypes(why):
    def refuse(x):
        raise ValueError("a type" if why == "no other dtype" else "a mistake")

    model = {"weight": Tensor(np.float16([1])), "op": refuse}
    fold = Fold(backend=Foreign())
    operand = rows(1, dtype=np.float16 if why == "no other dtype" else np.float32)
    with pytest.raises(LaunchError) as caught:
        fold.apply(model, [fold.add("op", operand)])
    assert "the model is in" not in str(caught.value)


def test_a_model_of_two_dtypes_gets_no_hint_of_dtypes():
    def refuse(x):
        raise ValueError("a type")

    model = {"weight": Tensor(np.float16([1])), "bias": Tensor(np.float64([1])), "op": refuse}
    fold = Fold(backend=Foreign())
    with pytest.raises(LaunchError) as caught:
        fold.apply(model, [fold.add("op", rows(1))])
    assert "the model is in" not in str(caught.value)


def test_an_operand_without_a_dtype_is_passed_over():
    def refuse(x, word):
        raise ValueError("a type")

    model = {"weight": Tensor(np.float16([1])), "op": refuse}
    fold = Fold(backend=Foreign())
    with pytest.raises(LaunchError, match="operand 0 in float32"):
        fold.apply(model, [fold.add("op", rows(1), "a word")])
    with pytest.raises(LaunchError, match="ValueError: a type") as caught:
        fold.apply(model, [fold.add("op", "a word", rows(1, dtype=np.float16))])
    assert "a breakpoint inside the op" in str(caught.value)


def interrupt(*operands):
    raise Interrupted


def test_exceptions_of_the_frameworks_own_pass_a_launch_as_they_are():
    fold = Fold(backend=Foreign())
    with pytest.raises(Interrupted):
        fold.apply({"op": interrupt}, [fold.add("op", 1)])


@pytest.mark.parametrize("method", ["concat", "to_numpy"])
def test_exceptions_of_the_frameworks_own_pass_where_operands_and_values_are_made(method):
    broken = type("Broken", (Foreign,), {method: lambda self, x: interrupt()})

    async def look(fold, x):
        a = fold.add("plus", rows(x), rows(1))
        b = fold.add("scale", rows(x), 2)
        node = fold.add("sums", ragged([a, b]))
        return await fold.value(node)

    with pytest.raises(Interrupted):
        Fold(backend=broken()).run(MODEL, [1.0, 2.0], look)


def test_values_that_cannot_be_read_are_an_error_of_the_run():
    def traced(self, x):
        raise RuntimeError("a tracer has no values.")

    async def look(fold, x):
        return await fold.value(fold.add("plus", rows(x), rows(1)))

    broken = type("Broken", (Foreign,), {"to_numpy": traced})
    said = r"(?s)could not be read: RuntimeError: a tracer has no values.*Broken\.to_numpy failed, or"
    with pytest.raises(LaunchError, match=said):
        Fold(backend=broken()).run(MODEL, [1.0], look)


# ---- rounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapter", [Foreign, Padding])
def test_a_fold_that_is_divided_pads_what_it_schedules_again(adapter):
    seen = []

    def grow(x):
        seen.append(x.shape)
        return x + x

    async def look(fold, x):
        await fold.value(fold.add("one", x))
        return fold.add("total", fold.add("grow", fold.add("plus", rows(*[1.0] * x), rows(*[1.0] * x))))

    total = lambda x: Tensor(x.data.sum(axis=1, keepdims=True))  # noqa: E731
    model = MODEL | {"one": column, "grow": grow, "total": total}
    found = Fold(backend=adapter()).run(model, [1, 2, 2, 2, 1], look)
    assert [x.data.tolist() for x in found] == [[4.0], [8.0], [8.0], [8.0], [4.0]]
    padded = {(2, 1), (4, 2)} if adapter is Padding else {(2, 1), (3, 2)}
    assert {shape for shape in seen if shape[0] > 1} >= padded


def test_the_first_array_of_a_run_tells_its_device_and_later_rounds_keep_it():
    asked = []

    class Placed(Foreign):
        def device(self, model):
            asked.append(type(model).__name__)
            return "a device" if isinstance(model, Tensor) else None

        def constant(self, values, device):
            made.append(device)
            return Tensor(values)

    async def look(fold, x):
        first = fold.add("scale", rows(1, 2), x)
        await fold.value(first)
        second = fold.add("scale", first, x)
        await fold.value(second)
        return fold.add("scale", second, x)

    made: list[Any] = []
    found = Fold(backend=Placed(), trials=False).run(MODEL, [2.0, 3.0], look)
    assert [x.data.tolist() for x in found] == [[8.0, 16.0], [27.0, 54.0]]
    assert set(made) == {"a device"}
    assert asked.count("Tensor") <= 2  # not once a round


def test_examples_may_return_arrays_of_the_framework_and_whole_results():
    async def look(fold, x):
        await fold.value(fold.add("scale", rows(1), x))
        return {"mine": rows(x), "whole": fold.add("plus", rows(x, x), rows(1, 2)).no_batch()}

    found = Fold(backend=Foreign()).run(MODEL, [1.0, 5.0], look)
    assert found["mine"].data.tolist() == [[1.0], [5.0]]
    assert [x.data.tolist() for x in found["whole"]] == [[[2.0, 3.0]], [[6.0, 7.0]]]


# ---- what executors of programs ask ------------------------------------------------------------------


class Seen(list):
    """What an op has met; a trial would leave a plain list as it was."""


def kernel_of(outputs, model=None):
    fold = Fold(backend=Foreign())
    program = fold.program(outputs(fold), model)
    return program.form.kernels[-1]


def verify(kernel, op, *shapes, dtype=np.float32, shared=(), rows=3):
    """Verify an op whose operands are arrays of these shapes for some rows."""

    def of_arrays(*operands):
        return op(*[x for (x,) in operands])

    specs = [RowsSpec([(shape, np.dtype(dtype))]) for shape in shapes]
    specs += [RowsSpec([(shape, np.dtype(dtype))], batched=False) for shape in shared]
    checks.verify_rows(Foreign(), kernel, of_arrays, specs, rows, op)


def test_an_op_that_mixes_rows_is_refused_before_a_program_runs_it():
    kernel = kernel_of(lambda fold: [fold.add("scale", rows(1, 2, 3), 0.5)])

    def mixes(x, s):
        return Tensor(x.data * s.data)

    with pytest.raises(LaunchError, match="mixes its rows, and would return wrong values") as caught:
        verify(kernel, mixes, (3, 3), (3,))
    assert "s[:, None]" in str(caught.value)


def test_an_op_that_keeps_its_rows_apart_is_tried_once_and_known():
    kernel = kernel_of(lambda fold: [fold.add("scale", rows(1, 2, 3), 0.5)])
    calls = Seen()

    def right(x, s):
        calls.append([x.dtype, s.dtype, x.shape])
        return x * column(s)

    verify(kernel, right, (3, 3), (3,))
    assert {(x, s) for x, s, _ in calls} == {(np.dtype("f4"), np.dtype("f4"))}
    assert {shape for *_, shape in calls} == {(3, 3)}
    before = len(calls)
    verify(kernel, right, (3, 3), (3,))
    assert len(calls) == before  # the verdict is remembered
    verify(kernel, right, (3, 3), (3,), dtype=np.int32)
    assert len(calls) > before  # but for these shapes and dtypes alone


def test_as_many_rows_as_columns_are_tried_by_themselves():
    kernel = kernel_of(lambda fold: [fold.add("scale", rows(1, 2, 3), 0.5)])
    calls = Seen()

    def op(x, by):
        calls.append(x)
        return x * 2

    found = []
    for count in (5, 4, 3, 2, 1):
        verify(kernel, op, (count, 3), shared=[(4, 4)], rows=count)
        found.append(len(calls))
    assert found == [7, 7, 14, 14, 14]


def test_two_rows_are_enough_for_a_trial_of_a_program_and_one_is_not():
    kernel = kernel_of(lambda fold: [fold.add("scale", rows(1, 2, 3), 0.5)])
    calls = Seen()

    def op(x):
        calls.append(x)
        return x * 2

    verify(kernel, op, (1, 3), rows=1)
    assert not calls
    verify(kernel, op, (2, 3), rows=2)
    assert len(calls) == 7


@pytest.mark.parametrize("by", [1, 0], ids=["values", "zeros"])
def test_an_op_is_tried_for_programs_once_since_the_same_rows_would_be_drawn_again(by):
    kernel = kernel_of(lambda fold: [fold.add("scale", rows(1, 2, 3), 0.5)])
    calls = Seen()

    def op(x):
        calls.append(x)
        return x * by

    for _ in range(3):
        verify(kernel, op, (3, 2))
    assert len(calls) == 7


@pytest.mark.parametrize("mixes", [False, True])
def test_an_op_of_ragged_rows_is_tried_for_a_program(mixes):
    kernel = kernel_of(lambda fold: [fold.add("sum", ragged([rows(1), rows(2)]))])
    seen = Seen()

    def total(r):
        (values,) = r.values
        lengths = r.lengths.data
        seen.append(lengths.tolist())
        found = np.add.reduceat(values.data, np.cumsum(lengths) - lengths)
        return Tensor(found - found[:1] if mixes else found)

    specs = [RowsSpec([((4, 2), FLOATS)], members=4)]
    with pytest.raises(LaunchError, match="mixes its rows") if mixes else contextlib.nullcontext():
        checks.verify_rows(Foreign(), kernel, total, specs, 3, total)
    assert mixes or seen == [[1, 1, 2]] * 7 + [[2, 1, 1]]


def test_an_op_is_tried_for_a_program_by_its_shapes_where_nothing_has_values():
    kernel = kernel_of(lambda fold: [fold.add("scale", rows(1, 2, 3), 0.5)])
    backend = type("Traced", (Foreign,), {"to_numpy": lambda self, x: x.values})()
    specs = [RowsSpec([((3, 1), FLOATS)]), RowsSpec([((3,), FLOATS)])]

    def right(x, s):
        return x[0] * column(s[0])

    def wrong(x, s):
        return x[0] * s[0]

    checks.verify_rows(backend, kernel, right, specs, 3, right)
    with pytest.raises(LaunchError, match=r"\(3, 3\) for 3, and \(5, 5\) for 5"):
        checks.verify_rows(backend, kernel, wrong, specs, 3, wrong)


def test_an_op_is_tried_for_a_program_with_as_many_rows_and_leaves_its_maker_as_it_was():
    kernel = kernel_of(lambda fold: [fold.add("scale", rows(1, 2, 3), 0.5)])
    seen = Seen()

    class Maker:
        count = 0

        def __call__(self, x, s):
            self.count += 1
            seen.append(len(s.data))
            return x * column(s)

    maker = Maker()
    for _ in range(2):
        verify(kernel, maker, (3, 3), (3,))
    assert (seen, maker.count) == ([3] * 7, 0)  # once on all rows, six times with other rows


def test_a_sample_gets_shared_arrays_of_the_framework_and_static_ones_of_numpy():
    def op(x, mine, given):
        assert (type(mine), type(given)) == (Tensor, np.ndarray)
        return x * mine

    kernel_of(lambda f: [f.add("op", rows(1), shared(np.ones(1)), static(np.ones(1)))], {"op": op})


def test_a_shared_table_is_none_of_the_rows_that_could_be_mixed():
    """Broadcasting a vector that all rows share is what an op does with its bias."""
    kernel = kernel_of(lambda fold: [fold.add("scale", rows(1, 2, 3), 0.5)])

    def with_bias(x, bias):
        return x * bias

    verify(kernel, with_bias, (3, 3), shared=[(3,)])


def test_an_op_that_raises_in_a_trial_is_left_to_the_program():
    kernel = kernel_of(lambda fold: [fold.add("scale", rows(1, 2, 3), 0.5)])

    def refuse(x, s):
        raise ValueError("no")

    verify(kernel, refuse, (3, 3), (3,))


def test_a_result_of_other_rows_beside_one_of_all_is_left_to_the_program():
    kernel = kernel_of(lambda fold: [fold.add("scale", rows(1, 2, 3), 0.5)])
    calls = Seen()

    def op(x):
        calls.append(x)
        return x, x[:2]

    for _ in range(2):
        verify(kernel, op, (3, 2))
    assert len(calls) == 1


def test_kernels_of_other_static_values_have_verdicts_of_their_own():
    keys = [
        checks.kernel_key(kernel_of(lambda fold, x=x, by=by: [fold.add("op", rows(1), static(x), by=by)]))
        for x, by in [(1, 1), (2, 1), (1, 2)]
    ]
    assert len(set(keys)) == 3 and None not in keys
    again = kernel_of(lambda fold: [fold.add("op", rows(1), static(1), by=1)])
    assert checks.kernel_key(again) == keys[0]


@pytest.mark.parametrize("dtype", [np.int32, np.bool_, np.float32, np.float16])
def test_numbers_are_drawn_in_their_dtype_around_one(dtype):
    found = checks.drawn(np.random.default_rng(0), (3, 100), np.dtype(dtype))
    assert found.dtype == dtype and found.shape == (3, 100)
    low, high = (0.5, 1.5) if np.dtype(dtype).kind == "f" else (0, 1)
    assert low <= found.min() <= found[:, 1:].min() < found[:, 1:].max() <= found.max() <= high


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 0), (0, 3), ()], ids=str)
def test_drawn_integers_differ_from_row_to_row(shape):
    found = checks.drawn(np.random.default_rng(0), shape, np.dtype(np.int32))
    assert found.shape == shape
    if found.size > 1:
        first, *others = found.reshape(4, -1).T.tolist()
        assert first == [0, 1, 0, 1] and first not in others and all(map(any, others))


def test_drawn_nodes_of_ragged_rows_have_all_members():
    one, lengths = RowsSpec([((3, 2), FLOATS)]).drawn(Foreign(), np.random.default_rng(0), 3)
    assert type(one) is tuple and lengths.dtype == np.int64 and lengths.tolist() == [1, 1, 1]
    spec = RowsSpec([((5, 2), FLOATS)], members=5, integers=np.dtype(np.int32))
    (drawn, lengths) = spec.drawn(Foreign(), np.random.default_rng(0), 3)
    assert lengths.tolist() == drawn.lengths.data.tolist() == [1, 1, 3]
    assert drawn.segment_ids.data.tolist() == [0, 1, 2, 2, 2]
    assert drawn.lengths.dtype == drawn.segment_ids.dtype == np.int32


FLOATS = np.dtype(np.float32)


def classes_for(reads, shapes=None):
    """Return the classes of slabs of kernels that read these slabs; ``shapes`` are the recorded ones."""
    kernels = [
        SimpleNamespace(
            slabs=frozenset(of_kernel),
            name="abc"[number],
            site="model.py:1",
            operands=[
                KernelOperand("ragged", slab, missing=(shapes or {}).get((number, slab)))
                for slab in of_kernel
            ],
        )
        for number, of_kernel in enumerate(reads)
    ]
    return SlabClasses(SimpleNamespace(kernels=kernels))


def of_shape(*shape, dtype=FLOATS):
    return SlabClass(None, ((shape, dtype),))


def learned(classes, returns, kernels):
    """Return the order in which kernels are asked, each declaring the slab that it returns."""
    order = []
    for number in classes.in_order(kernels, lambda shape: of_shape(*shape)):
        order.append(number)
        classes.declare(returns[number], of_shape(4))
    return order


def test_kernels_are_asked_after_those_whose_slabs_they_read():
    classes = classes_for([{1}, {2}, set()])
    assert learned(classes, {0: 0, 1: 1, 2: 2}, [0, 1, 2]) == [2, 1, 0]
    assert classes[0] == classes[2] == of_shape(4)


def test_a_recorded_shape_is_not_needed_while_kernels_can_be_asked():
    classes = classes_for([set(), {0}, {1}])
    assert learned(classes, {0: 0, 1: 1, 2: 2}, [2, 1, 0]) == [0, 1, 2]
    classes = classes_for([set(), {5}, {0}], {(1, 5): (9,)})
    assert learned(classes, {0: 0, 1: 1, 2: 5}, [1, 2, 0]) == [0, 2, 1]


def test_a_recorded_shape_of_rows_breaks_a_circle():
    classes = classes_for([{0, 1}, {0}], {(0, 0): (4,), (0, 1): (4,)})
    assert sorted(learned(classes, {0: 0, 1: 1}, [1, 0])) == [0, 1]
    assert classes[0] == classes[1] == of_shape(4)


def test_what_ops_have_returned_counts_more_than_a_recorded_shape():
    classes = classes_for([{0, 1}], {(0, 0): (9,), (0, 1): (4,)})
    classes.declare(0, of_shape(4))
    assert learned(classes, {0: 1}, [0]) == [0]
    assert classes[0] == of_shape(4)


def test_a_circle_without_a_recorded_shape_is_refused():
    classes = classes_for([{0, 1}, {0}], {(0, 0): (4,)})
    with pytest.raises(LaunchError, match="whose shape only its own results would tell") as caught:
        learned(classes, {0: 0, 1: 1}, [0, 1])
    assert "op 'a'" in str(caught.value)


@pytest.mark.parametrize(
    ("other", "hint"),
    [(of_shape(5), "gives each class a kernel"), (of_shape(4, dtype=np.dtype(np.float16)), "to one dtype")],
)
def test_rows_of_two_classes_in_one_slab_are_refused(other, hint):
    classes = classes_for([{0}, {1}])
    classes.declare(1, of_shape(4))
    classes.declare(1, of_shape(4))  # the same again is fine
    with pytest.raises(LaunchError, match="would read rows of different classes") as caught:
        classes.declare(1, other)
    assert str(caught.value).startswith("The op 'b', first recorded at model.py:1, would")
    assert hint in str(caught.value) and str(other) in str(caught.value)
    classes.declare(7, of_shape(1))
    with pytest.raises(LaunchError, match="The outputs, would read"):
        classes.declare(7, other)


def test_a_trace_holds_no_array_of_a_framework():
    with pytest.raises(RecordError, match="Expected NumPy arrays and numbers in a trace") as caught:
        trace(lambda fold, x: fold.add("plus", rows(x), x), 1.0)
    assert "test_foreign.Tensor" in str(caught.value)
    assert "made without any framework: pass np.asarray(x)" in str(caught.value)


def test_an_array_that_cannot_be_cast_asks_for_the_method_of_its_adapter():
    fold = Fold(backend=Foreign())
    node = fold.add("half", rows(1.0, dtype=np.float16), 0.5)
    with pytest.raises(BackendError, match=r"`astype`(.|\n)*override Foreign\.cast"):
        fold.apply({"half": lambda x, s: x * column(s)}, node)


def test_rows_that_fill_up_a_launch_are_told_of_in_its_error():
    mixing = {"mean": lambda x: Tensor(x.data - x.data.mean(0))}
    with pytest.raises(LaunchError, match=r"for 3 nodes, padded to 4 rows, first recorded at"):
        Fold(backend=Padding()).run(mixing, [1.0, 2.0, 5.0], lambda fold, x: fold.add("mean", rows(x)))


# ---- trials and hints by what only a framework says ----------------------------------------------------


@pytest.mark.parametrize("draws", [False, True])
def test_an_op_that_draws_by_a_key_is_believed_where_the_framework_says_so(draws):
    """As one of JAX: each place in the launch has its own number, the same each time."""
    keyed = type("Keyed", (Foreign,), {"draws": lambda self, fn, operands, static: draws})
    fold = Fold(backend=keyed())
    nodes = [fold.add("op", rows(i, i, i), float(i)) for i in (1, 2, 3)]
    model = {"op": lambda x, s: x * column(s) + Tensor(np.arange(3, dtype=np.float32)[:, None])}
    if draws:
        assert fold.apply(model, nodes).data.tolist() == [[1] * 3, [5] * 3, [11] * 3]
    else:
        with pytest.raises(LaunchError, match="mixes its rows"):
            fold.apply(model, nodes)


def test_a_launch_that_has_changed_its_operands_before_its_trial_is_believed():
    """The trial runs on what the op has left behind; among its own runs it keeps the rows apart."""

    def op(x, s):
        x.data = x.data + 1
        return x * column(s)

    fold = Fold(backend=Foreign())
    nodes = [fold.add("op", rows(i, i, i), 2.0) for i in (1, 2, 3)]
    assert fold.apply({"op": op}, nodes).data.tolist() == [[4] * 3, [6] * 3, [8] * 3]


def test_the_dtype_of_a_model_is_found_around_the_function_of_an_op():
    """In a dictionary that it closes over, and beside a function of which a variable is gone."""
    weights = {"w": Tensor(np.float16([1]))}

    def closes(x):
        return refuse(weights, x)

    def refuse(weights, *operands):
        raise ValueError("a type")

    def with_gone_variable():
        gone = 1

        def op(weight, x):
            return refuse(weight, x) if weight else gone  # noqa: F821 - deleted below

        del gone
        return op

    for op in (closes, functools.partial(with_gone_variable(), weights["w"])):
        fold = Fold(backend=Foreign())
        with pytest.raises(LaunchError, match="the model is in float16, and operand 0 in float32"):
            fold.apply(None, fold.add(op, rows(1)))


def test_an_op_that_changes_an_array_inside_of_a_container_is_refused():
    def spoil(both, x):
        both["a"].add_(1)
        return x

    fold = Fold(backend=Foreign())
    both = fold.add(lambda x: {"a": x + 1, "b": x}, rows(1, 2))
    with pytest.raises(LaunchError, match="operand 0 was changed by an inplace operation"):
        fold.apply(None, [fold.add(spoil, both, rows(1, 2))])


def test_state_may_hold_arrays_of_the_framework_and_of_numpy():
    kept = KeptState(Foreign(), [])
    for make in (Tensor, np.array):
        assert kept.same(make([1.0, 2.0]), make([1.0, 2.0])) and not kept.same(make([1.0]), make([2.0]))


def test_exceptions_of_the_frameworks_own_pass_a_trial():
    kernel = kernel_of(lambda fold: [fold.add("scale", rows(1, 2, 3), 0.5)])
    with pytest.raises(Interrupted):
        verify(kernel, interrupt, (3, 3), (3,))
