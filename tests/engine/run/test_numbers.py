"""A float of Python beside rows has no dtype of its own, and does not lift theirs, as in a loop."""

import importlib

import numpy as np
import pytest

import multifold
from multifold import Fold, Unfold, ops, ragged, shared, trace
from multifold._engine.ops.messages import dtype_name
from multifold._engine.ops.values import Values

NARROW = {
    "numpy": ("float16", "float32"),
    "torch": ("float16", "bfloat16"),
    "jax": ("float16", "bfloat16"),
    "tensorflow": ("float16", "bfloat16"),
    "mxnet": ("float16",),
}
"""The dtypes that are narrower than the default float of a backend."""

EXECUTORS = {
    "numpy": "multifold.program",
    "jax": "multifold_jax",
    "tensorflow": "multifold_tensorflow",
    "torch": "multifold_torch",
}

CLOSE = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-12}
"""What a few roundings to a dtype may change, relatively."""

VALUES = (1.0, 3.0, 7.0)


@pytest.fixture(params=[0, 1])
def dtype(request, backend):
    """Each of the narrower dtypes, by its name."""
    if request.param >= len(NARROW[backend]):
        pytest.skip(f"{backend} has no other narrower float")
    return NARROW[backend][request.param]


@pytest.fixture
def row(seam, dtype):
    """Return a function that makes an array of one number, of the dtype."""
    return lambda value: seam.cast(seam.constant(np.float32([value]), None), dtype)


def model_of(seam, dtype):
    return {
        "same": lambda x: seam.cast(x, dtype),
        "scale": lambda x, s: x * s,
        "add": lambda pair, s: pair["x"] + pair["s"] * s,
        "weigh": lambda w, s: w * s,
        "total": lambda rows, s: ops.segment_sum(rows.values, rows) * s,
    }


def scaled(fold, value):
    return fold.add("scale", fold.add("same", value), 0.1)


async def awaited(fold, value):
    """Scale once more what another round has computed."""
    x = scaled(fold, value)
    await fold.value(x)
    return fold.add("scale", x, 10.0)


def ran(fold, model):
    return fold.run(model, VALUES, scaled)


DOORS = {
    "fold": (lambda f, m, b: ran(f(b), m), 0.1),
    "one row": (lambda f, m, b: f(b).run(m, VALUES[:1], scaled), 0.1),
    "traces": (lambda f, m, b: f(b).run(m, [trace(scaled, x) for x in VALUES]), 0.1),
    "rounds": (lambda f, m, b: f(b).run(m, VALUES, awaited), 1.0),
    "debug": (lambda f, m, b: ran(Fold(backend=b, debug=True), m), 0.1),
    "twin": (lambda f, m, b: Unfold(m, backend=b).run(None, VALUES, scaled), 0.1),
}
"""Ways to run the calls, and what the rows are scaled by."""


@pytest.mark.parametrize(("run", "by"), DOORS.values(), ids=DOORS)
def test_a_number_keeps_the_dtype_of_the_rows_beside_it(run, by, backend, seam, dtype):
    got = run(lambda b: Fold(backend=b), model_of(seam, dtype), backend)
    expected = np.array(VALUES[: len(seam.to_numpy(got))]) * by
    assert dtype_name(got) == dtype
    np.testing.assert_allclose(seam.to_numpy(got).astype(float), expected, CLOSE[dtype])


OPERANDS = {
    "an array": lambda f, x: f.add("scale", x(3.0), 0.1),
    "a shared array": lambda f, x: f.add("weigh", shared(x(3.0)), 0.1),
    "a node that is read whole": lambda f, x: f.add("weigh", f.add("same", x(3.0)).no_batch(), 0.1),
    "nested": lambda f, x: f.add("add", {"x": x(0.0), "s": 0.1}, 3.0),
    "ragged": lambda f, x: f.add("total", ragged([x(1.0), f.add("same", x(2.0))]), 0.1),
    "NumPy's number": lambda f, x: f.add("scale", x(3.0), np.float64(0.1)),
}


@pytest.mark.parametrize("record", OPERANDS.values(), ids=OPERANDS)
def test_whatever_has_a_dtype_decides_that_of_a_number_beside_it(record, backend, seam, dtype, row):
    for fold, model in (
        (Fold(backend=backend), model_of(seam, dtype)),
        (Unfold(model_of(seam, dtype), backend=backend), None),
    ):
        got = fold.apply(model, record(fold, row))
        assert dtype_name(got) == dtype
        np.testing.assert_allclose(seam.to_numpy(got).astype(float), [0.3], CLOSE[dtype])


def test_a_number_is_what_the_loop_makes_of_it(backend, seam, dtype, row):
    """To the bit, but where the framework rounds the product only, and not the number."""
    fold = Fold(backend=backend)
    got = seam.to_numpy(fold.apply({"scale": lambda x, s: x * s}, fold.add("scale", row(3.0), 0.1)))
    expected = seam.to_numpy(row(3.0) * 0.1)
    assert got.dtype == expected.dtype
    within = CLOSE[dtype] if backend in ("torch", "mxnet") else 0
    np.testing.assert_allclose(got.astype(float), expected.astype(float), within)


def test_a_program_keeps_the_dtype_of_the_rows_beside_a_number(backend, seam, dtype):
    if backend not in EXECUTORS:
        pytest.skip("it runs no programs")
    model = model_of(seam, dtype)
    run = importlib.import_module(EXECUTORS[backend]).run
    for given in ((), (model,)):
        program = Fold(backend=backend).program([trace(scaled, x) for x in VALUES], *given)
        got = run(model, program)
        assert dtype_name(got) == dtype
        np.testing.assert_allclose(seam.to_numpy(got).astype(float), np.array(VALUES) * 0.1, CLOSE[dtype])


def test_shapes_know_the_dtype_of_rows_beside_a_number(backend, seam, dtype):
    found = multifold.shapes(model_of(seam, dtype), scaled, 1.0, backend=backend)
    assert found.outputs.dtype == dtype


def test_a_number_beside_no_rows_or_wider_ones_is_the_default_float(backend, seam):
    own = str(seam.number_dtype(float))
    values = Values(seam, None)
    number, wide = values.numbers([0.1], float), seam.constant(np.ones(1), None)
    for beside in ([], [values.numbers([1], int)], [wide], [None, "a word"]):
        *_, found = values.narrowed([*beside, number], (len(beside),))
        assert found is number and dtype_name(found) == own


def test_a_number_beside_rows_of_two_dtypes_is_the_default_float(seam, row):
    """It would lose digits beside the wider rows."""
    number = Values(seam, None).numbers([0.1], float)
    leaves = [row(1.0), number, number]
    assert Values(seam, None).narrowed(leaves, (2,)) is leaves
