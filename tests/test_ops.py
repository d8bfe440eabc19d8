"""`multifold.ops` on every backend: NumPy's values, and gradients that differences confirm."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil

import numpy as np
import pytest

import multifold
from multifold import Ragged, ops
from multifold._engine.frameworks import registry
from multifold.ops import fused
from multifold.ops.tables import table

RNG = np.random.default_rng(0)
LENGTHS = np.array([0, 2, 1, 0, 0, 3, 0])
IDS = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
X, Y = RNG.normal(size=(2, 6, 4))


def segments(index=lambda values: values):
    """The rows of seven nodes, four of them without any; ``index`` makes integer arrays."""
    return Ragged(None, index(LENGTHS), index(IDS))


CASES = {
    "concat": (lambda p, i: ops.concat([p["x"], p["y"], p["x"]], 1), {"x": X, "y": Y}),
    "concat-rows": (lambda p, i: ops.concat([p["x"], p["y"]], 0), {"x": X, "y": Y}),
    "stack": (lambda p, i: ops.stack([p["x"], p["y"]], 1), {"x": X, "y": Y}),
    "split": (lambda p, i: ops.split(p["x"], 2, 1)[1] * p["y"], {"x": X, "y": Y[:, :2]}),
    "split-sizes": (lambda p, i: ops.split(p["x"], [1, 3], 1)[1], {"x": X}),
    "split-many": (lambda p, i: ops.split(p["x"], [1, 1, 2] * 4, 1)[5], {"x": np.tile(X, 4)}),
    "take": (lambda p, i: ops.take(p["x"], i(np.array([5, 0, 5, 5]))), {"x": X}),
    "reshape": (lambda p, i: ops.reshape(p["x"], (2, 2)), {"x": X}),
    "where": (lambda p, i: ops.where(p["x"] > 0, p["x"], p["y"]), {"x": X, "y": Y}),
    "where-row": (lambda p, i: ops.where(p["x"] > 0, p["y"], -p["y"]), {"x": X[:, :1], "y": Y}),
    "zeros_like": (lambda p, i: ops.zeros_like(p["x"]) + p["x"], {"x": X}),
    "cast": (lambda p, i: ops.cast(p["x"], p["y"]) * p["y"], {"x": X, "y": Y}),
    "matmul": (lambda p, i: ops.matmul(p["x"], p["w"]), {"x": X, "w": Y[:4, :3]}),
    "matmul-matrices": (
        lambda p, i: ops.matmul(p["a"], p["w"]),
        {"a": RNG.normal(size=(6, 2, 4)), "w": Y[:4, :3]},
    ),
    "matmul-each": (
        lambda p, i: ops.matmul(p["a"], p["b"]),
        {"a": RNG.normal(size=(6, 2, 4)), "b": RNG.normal(size=(6, 4, 3))},
    ),
    "linear": (
        lambda p, i: ops.linear(p["x"], p["w"], p["b"]),
        {"x": X, "w": Y[:4, :3], "b": Y[4, :3]},
    ),
    "sigmoid": (lambda p, i: ops.sigmoid(p["x"]), {"x": 9 * X}),
    "tanh": (lambda p, i: ops.tanh(p["x"]), {"x": X}),
    "tanh-columns": (lambda p, i: ops.tanh(ops.split(p["x"], 2, 1)[1]), {"x": X}),
    "relu": (lambda p, i: ops.relu(p["x"]), {"x": X}),
    "exp": (lambda p, i: ops.exp(p["x"]), {"x": X}),
    "log": (lambda p, i: ops.log(p["x"]), {"x": X**2 + 0.5}),
    "softmax": (lambda p, i: ops.softmax(p["x"], 1), {"x": X}),
    "log_softmax": (lambda p, i: ops.log_softmax(p["x"], 1), {"x": X}),
    "sum": (lambda p, i: ops.sum(p["x"], 1), {"x": X}),
    "sum-rows": (lambda p, i: ops.sum(p["x"], 0), {"x": X}),
    "mean": (lambda p, i: ops.mean(p["x"], 1), {"x": X}),
    "max": (lambda p, i: ops.max(p["x"], 1), {"x": X}),
    "segment_sum": (lambda p, i: ops.segment_sum(p["x"], segments(i)), {"x": X}),
    "segment_sum-numbers": (lambda p, i: ops.segment_sum(p["x"], segments(i)), {"x": X[:, 0]}),
    "segment_mean": (lambda p, i: ops.segment_mean(p["x"], segments(i)), {"x": X}),
    "segment_max": (lambda p, i: ops.segment_max(p["x"], segments(i)), {"x": X}),
    "segment_max-numbers": (lambda p, i: ops.segment_max(p["x"], segments(i)), {"x": X[:, 0]}),
    "segment_softmax": (lambda p, i: ops.segment_softmax(p["x"], segments(i)), {"x": X}),
    "segment_softmax-matrices": (
        lambda p, i: ops.segment_softmax(p["x"], segments(i)),
        {"x": X.reshape(6, 2, 2)},
    ),
}
SEGMENT_FUNCTIONS = [name for name in ops.__all__ if name.startswith("segment_")]


WIDE = pytest.param("float64", marks=pytest.mark.nightly(but=["numpy", "torch"]))
"""The same functions once more, of which JAX compiles each anew."""


@pytest.fixture(params=["float32", WIDE])
def dtype(request, backend):
    """Both widths of floats; JAX has the wide one on request only."""
    wide = contextlib.nullcontext()
    if (backend, request.param) == ("jax", "float64"):
        wide = importlib.import_module("jax").enable_x64(True)
    with wide:
        yield request.param


@pytest.fixture
def index(seam):
    """Return a function that makes integer arrays of the backend."""
    return lambda values: seam.constant(np.asarray(values), None)


@pytest.fixture
def rows(index, seam):
    """Return a function that makes a ragged operand of values and lengths."""

    def rows(values, lengths):
        ids = np.repeat(np.arange(len(lengths)), lengths)
        return Ragged(seam.constant(np.array(values), None), index(lengths), index(ids))

    return rows


@pytest.fixture
def compiled(backend):
    """Return the compiler of the backend, or a function that changes nothing."""
    if backend == "torch":
        torch = importlib.import_module("torch")
        return lambda fn: torch.compile(fn, fullgraph=True, backend="eager")
    if backend == "tensorflow":
        return importlib.import_module("tensorflow").function
    return importlib.import_module("jax").jit if backend == "jax" else lambda fn: fn


def tolerance(dtype):
    return {"float32": 1e-5, "float64": 1e-10}[dtype]


# ---- values and gradients ------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_values_are_those_of_numpy(case, dtype, seam, index):
    function, values = CASES[case]
    values = {name: value.astype(dtype) for name, value in values.items()}
    got = function({name: seam.constant(x, None) for name, x in values.items()}, index)
    expected = function(values, lambda values: values)
    assert seam.to_numpy(got).dtype == dtype and tuple(got.shape) == expected.shape
    np.testing.assert_allclose(seam.to_numpy(got), expected, rtol=tolerance(dtype), atol=tolerance(dtype))


def weighted_gradients(seam, function, values, weights):
    """Differentiate the weighted sum of a function of named arrays."""
    parameters = {name: seam.kit.variable(value) for name, value in values.items()}
    found = seam.kit.value_and_grad(lambda p: seam.kit.dot(function(p), weights), parameters)[1]
    return {name: seam.to_numpy(gradient) for name, gradient in found.items()}


def differences(function, values, weights, step=1e-6):
    """Return central differences of the same sum, computed by NumPy in float64."""

    def slope(name, at):
        ends = [{key: value.copy() for key, value in values.items()} for _ in range(2)]
        ends[0][name][at] += step
        ends[1][name][at] -= step
        return ((function(ends[0]) - function(ends[1])) * weights).sum() / (2 * step)

    return {
        name: np.array([slope(name, at) for at in np.ndindex(x.shape)]).reshape(x.shape)
        for name, x in values.items()
    }


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_differences(case, dtype, seam, index):
    function, values = CASES[case]
    shape = function(values, lambda values: values).shape
    weights = np.random.default_rng(1).normal(size=shape)
    expected = differences(lambda p: function(p, lambda values: values), values, weights)
    if "kit" in seam.gaps():
        got = expected  # a backend without gradients has none to compare
    else:
        values = {name: value.astype(dtype) for name, value in values.items()}
        got = weighted_gradients(seam, lambda p: function(p, index), values, weights)
    for name in values:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SEGMENT_FUNCTIONS)
def test_segments_compile_with_a_static_number_of_nodes(name, seam, rows, compiled, equal):
    given = rows(X.astype("float32"), LENGTHS)
    got = compiled(lambda given: getattr(ops, name)(given.values, given))(given)
    expected = getattr(ops, name)(X.astype("float32"), segments())
    equal(got, expected)


# ---- nodes without rows --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["segment_sum", "segment_mean", "segment_max"])
def test_nodes_without_rows_get_zero(name, rows, equal):
    given = rows(np.full((1, 2), -3.0, "float32"), [0, 1, 0])
    equal(getattr(ops, name)(given.values, given), [[0, 0], [-3, -3], [0, 0]])


@pytest.mark.parametrize("name", ["segment_sum", "segment_mean", "segment_max"])
def test_a_launch_without_any_row_gets_zeros(name, rows, equal):
    given = rows(np.zeros((0, 2), "float32"), [0, 0, 0])
    equal(getattr(ops, name)(given.values, given), np.zeros((3, 2)))


def test_softmax_of_no_rows_is_no_rows(rows, equal):
    given = rows(np.zeros((0, 2), "float32"), [0, 0])
    equal(ops.segment_softmax(given.values, given), np.zeros((0, 2)))


def test_functions_of_no_rows_return_no_rows(rows, index, seam, equal):
    none = rows(np.zeros((0, 4), "float32"), [0]).values
    weight = seam.constant(np.ones((4, 3), "float32"), None)
    equal(ops.sigmoid(ops.concat([none, none], 1)), np.zeros((0, 8)))
    equal(ops.tanh(ops.split(ops.matmul(none, weight), [1, 2], 1)[1]), np.zeros((0, 2)))
    equal(ops.linear(none, weight, weight[0]), np.zeros((0, 3)))
    equal(ops.take(weight, index(np.zeros(0, np.int64))), np.zeros((0, 3)))
    equal(ops.cast(ops.reshape(none, (2, 2)), "int32"), np.zeros((0, 2, 2)))
    equal(ops.sum(none, 1), np.zeros(0))


def test_no_rows_leave_the_gradients_of_other_rows_alone(rows, seam):
    if "kit" in seam.gaps():
        return
    none = rows(np.zeros((0, 2), "float32"), [0, 0])

    def loss(p):
        h = ops.segment_sum(ops.sigmoid(ops.matmul(none.values, p["w"])), none)
        return seam.kit.dot(ops.matmul(h + p["x"], p["w"]), np.ones((2, 2)))

    given = {"w": np.eye(2, dtype="float32"), "x": np.ones((2, 2), "float32")}
    parameters = {name: seam.kit.variable(x) for name, x in given.items()}
    value, gradients = seam.kit.value_and_grad(loss, parameters)
    assert float(seam.to_numpy(value).item()) == 4
    np.testing.assert_array_equal(seam.to_numpy(gradients["w"]), np.full((2, 2), 2))


# ---- what the docstrings promise -----------------------------------------------------------------


def test_equal_largest_rows_share_the_gradient(seam):
    if "kit" in seam.gaps():
        return
    lengths, ids = (seam.constant(np.array(x), None) for x in ([3], [0, 0, 0]))
    got = weighted_gradients(
        seam,
        lambda p: ops.segment_max(p["x"], Ragged(None, lengths, ids)),
        {"x": np.array([[2.0], [1.0], [2.0]], "float32")},
        np.ones((1, 1)),
    )
    np.testing.assert_allclose(got["x"], [[0.5], [0], [0.5]])


def test_softmax_of_huge_values_is_finite(rows, equal):
    given = rows(np.array([[1e4], [1e4], [-1e4]], "float32"), [2, 1])
    equal(ops.segment_softmax(given.values, given), [[0.5], [0.5], [1]])
    equal(ops.softmax(given.values, 0), [[0.5], [0.5], [0]])


def test_the_largest_of_a_long_segment_is_found(rows, equal):
    values = RNG.normal(size=(1000, 2)).astype("float32") - 5
    given = rows(values, [0, 1, 997, 0, 2])
    expected = [[0, 0], values[0], values[1:998].max(0), [0, 0], values[998:].max(0)]
    equal(ops.segment_max(given.values, given), expected)


def test_an_axis_is_cut_into_equal_sections_or_not_at_all(seam):
    x = seam.constant(np.ones((2, 5), "float32"), None)
    with pytest.raises(Exception, match=r"(?i)section|split|divide|dim"):
        ops.split(x, 2, 1)


def test_a_section_may_be_empty(seam):
    x = seam.constant(np.array([[1, 2, 3]], "float32"), None)
    sections = [seam.to_numpy(section).tolist() for section in ops.split(x, [0, 1, 0, 2], 1)]
    assert sections == [[[]], [[1]], [[]], [[2, 3]]]


@pytest.mark.parametrize("dtype_", ["float32", np.dtype("float32"), np.float32])
def test_cast_takes_names_and_dtypes_of_numpy(dtype_, seam):
    x = seam.constant(np.array([1, 0, 2]), None)
    got = seam.to_numpy(ops.cast(x, dtype_))
    assert got.dtype == "float32" and got.tolist() == [1, 0, 2]


def test_cast_makes_numbers_of_truth_values(seam):
    x = seam.constant(np.array([True, False]), None)
    assert seam.to_numpy(ops.cast(x, "float32")).tolist() == [1, 0]


# ---- fused functions -----------------------------------------------------------------------------

FUSED = {
    "affine-one": ("affine", [(6, 4)], (4, 3), (3,)),
    "affine": ("affine", [(6, 4), (6, 1), (6, 3)], (8, 5), (5,)),
    "affine-row": ("affine", [(1, 2), (1, 2)], (4, 3), (3,)),
    "affine-many": ("affine", [(200, 4), (200, 3)], (7, 5), (5,)),
    "affine-no-bias": ("affine", [(6, 4), (6, 2)], (6, 5), None),
    "affine-matrices": ("affine", [(3, 2, 4), (3, 2, 4)], (8, 4), None),
    "affine-matrices-unequal": ("affine", [(3, 2, 4), (3, 2, 1), (3, 2, 2)], (7, 3), None),
    "leaf": ("lstm_state", (6, 3), 0, False),
    "leaf-row": ("lstm_state", (1, 3), 0, False),
    "chain": ("lstm_state", (6, 3), 1, False),
    "chain-column": ("lstm_state", (6, 1), 1, False),
    "tree": ("lstm_state", (6, 3), 2, False),
    "tree-many": ("lstm_state", (200, 17), 2, False),
    "sum": ("lstm_state", (6, 3), 0, True),
    "tree-and-sum": ("lstm_state", (200, 9), 2, True),
}


def fused_operands(case, dtype):
    """Return the operands of a fused function by name, and what calls it and its plain form on them."""
    name, shape, *more = FUSED[case]
    rng = np.random.default_rng(2)
    if name == "affine":
        weight, bias = more
        shapes = {f"x{i}": s for i, s in enumerate(shape)} | {"weight": weight}
        shapes |= {"bias": bias} if bias else {}

        def arguments(p):
            return [p[f"x{i}"] for i in range(len(shape))], p["weight"], p.get("bias")

    else:
        cells, kept = more
        shapes = {"gates": (shape[0], (3 + cells) * shape[1])}
        shapes |= {f"c{i}": shape for i in range(cells)} | ({"kept": shape} if kept else {})

        def arguments(p):
            return p["gates"], [p[f"c{i}"] for i in range(cells)], p.get("kept")

    values = {name: rng.normal(size=s).astype(dtype) for name, s in shapes.items()}
    return values, arguments, name


def joined(found):
    """Return the result of a fused function as one array: ``h`` and ``c`` side by side, as both count."""
    return ops.concat(found, 1) if isinstance(found, (tuple, list)) else found


@pytest.mark.parametrize("case", FUSED)
def test_a_fused_function_is_equal_to_the_plain_ops_in_value_and_gradient(case, dtype, seam):
    values, arguments, name = fused_operands(case, dtype)
    arrays = {key: seam.constant(x, None) for key, x in values.items()}
    found = table(next(iter(arrays.values())))

    def in_one_step(p):
        return joined(getattr(ops, name)(*arguments(p)))

    def plainly(p):
        return joined(getattr(fused, name)(found, *arguments(p)))

    got = seam.to_numpy(in_one_step(arrays))
    expected = seam.to_numpy(plainly(arrays))
    assert got.dtype == expected.dtype and got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=tolerance(dtype), atol=tolerance(dtype))
    if "kit" in seam.gaps():
        return
    weights = np.random.default_rng(3).normal(size=got.shape)
    got, expected = (weighted_gradients(seam, f, values, weights) for f in (in_one_step, plainly))
    for key in values:
        np.testing.assert_allclose(got[key], expected[key], rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("case", FUSED)
def test_a_fused_function_leaves_its_operands_as_they_are(case, seam):
    values, arguments, name = fused_operands(case, "float32")
    arrays = {key: seam.constant(x.copy(), None) for key, x in values.items()}
    getattr(ops, name)(*arguments(arrays))
    assert all(np.array_equal(seam.to_numpy(arrays[key]), x) for key, x in values.items())


def test_an_adapter_without_fused_functions_runs_the_plain_ops(seam, monkeypatch, equal):
    values, arguments, _ = fused_operands("tree", "float32")
    arrays = {key: seam.constant(x, None) for key, x in values.items()}
    own = ops.lstm_state(*arguments(arrays))
    assert type(own) is tuple  # results of an op that is run by itself are split only where they are one
    monkeypatch.delattr(table(arrays["gates"]), "lstm_state", raising=False)
    for part, expected in zip(ops.lstm_state(*arguments(arrays)), own, strict=True):
        equal(part, seam.to_numpy(expected))


def test_the_state_of_no_rows_has_no_rows(seam):
    gates, cell = (seam.constant(np.zeros(shape, "float32"), None) for shape in [(0, 12), (0, 3)])
    assert [tuple(part.shape) for part in ops.lstm_state(gates, [cell])] == [(0, 3), (0, 3)]


def test_columns_that_do_not_fit_the_gates_are_refused(seam):
    x = seam.constant(np.zeros((2, 7), "float32"), None)
    with pytest.raises(ValueError, match="7 columns cannot be divided among 4 gates"):
        ops.lstm_state(x, [x])


def test_many_elements_have_the_values_and_gradients_of_few(seam):
    x = np.random.default_rng(4).normal(size=(130, 70)).astype("float32")
    for function in (ops.sigmoid, ops.tanh):
        got = seam.to_numpy(function(seam.constant(x, None)))
        few = [seam.to_numpy(function(seam.constant(row, None))) for row in np.split(x, 65)]
        np.testing.assert_allclose(got, np.concatenate(few), rtol=1e-5, atol=1e-6)


def test_the_sigmoid_of_what_overflows_is_zero_or_one_without_a_warning(seam, recwarn):
    x = seam.constant(np.array([-1e30, -200, 0, 200, 1e30], "float32"), None)
    assert seam.to_numpy(ops.sigmoid(x)).tolist() == [0, 0, 0.5, 1, 1]
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]


# ---- dispatch ------------------------------------------------------------------------------------


def test_the_frameworks_own_module_holds_every_function(seam):
    found = table(seam.constant(np.zeros(1, "float32"), None))
    assert [name for name in ops.__all__ if not hasattr(found, name) and not hasattr(fused, name)] == []


def test_every_function_is_documented_in_one_place():
    assert sorted(ops.__all__) == ops.__all__
    assert all(getattr(ops, name).__doc__ for name in ops.__all__)


def test_what_is_no_array_is_refused_by_name():
    with pytest.raises(multifold.BackendError, match=r"Received a builtins\.list"):
        ops.tanh([1.0])


@pytest.mark.parametrize(
    "home", ["multifold_other", "multifold_other.backend", "multifold_other.core.impl"]
)
def test_an_adapter_without_functions_is_named(home):
    class Other:
        name = "other"

    Other.__module__ = home
    with pytest.raises(multifold.BackendError, match=r"'other' has no module 'multifold_other.ops'"):
        registry.adapter_module(Other(), "ops")


def test_importing_the_functions_imports_no_adapter():
    found = {module.name for module in pkgutil.iter_modules(ops.__path__)}
    assert found == {"tables", "fused"}
