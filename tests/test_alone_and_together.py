"""What a request computes is the same alone and in company, in values and in dtypes.

A ragged operand without rows is what its caller says it is, whatever rows stand beside it in a launch.
"""

import importlib

import numpy as np
import pytest

from multifold import Fold, LaunchError, RecordError, Unfold, ops, ragged, shared, trace
from multifold._engine.ops.messages import dtype_name
from multifold.operands import MissingRows

EXECUTORS = {
    "numpy": "multifold.program",
    "jax": "multifold_jax",
    "tensorflow": "multifold_tensorflow",
    "torch": "multifold_torch",
}

TABLE = np.float32([0.5, 1.5, 2.5])


def made(dtype, *shape):
    return np.ones((1, *shape), dtype)


def sums(rows):
    return ops.segment_sum(rows.values, rows)


def firsts(rows):
    """Add up the first arrays of pairs, as the states of a Tree-LSTM's children."""
    return ops.segment_sum(rows.values[0], rows)


@pytest.fixture
def model(seam):
    def look_up(table, ids):
        return ops.segment_sum(seam.gather(table, ids.values), ids)

    return {
        "sum": sums,
        "first": firsts,
        "look up": look_up,
        "same": lambda x: x,
        "pair": lambda x: (x, x),
        "scaled": lambda rows, s: sums(rows) * s,
    }


def total(*items, shape=(2,), dtype=None):
    return lambda fold: fold.add("sum", ragged([fold.add("same", x) for x in items], shape, dtype))


REQUESTS = {
    "no rows": total(),
    "no rows of another width": total(shape=(3,)),
    "no rows of float16": total(dtype="float16"),
    "no rows of float32": total(dtype=np.float32),
    "rows of float16": total(made("float16", 2), made("float16", 2)),
    "rows of float32": total(made("float32", 2), dtype="float32"),
    "rows of float32, said to be others": total(made("float32", 2), dtype="float16"),
    "an array of rows": lambda fold: fold.add("sum", ragged(np.ones((2, 2), "float16"))),
    "an array without rows": lambda fold: fold.add("sum", ragged(np.ones((0, 2), "float16"))),
    "a number": lambda fold: fold.add("sum", ragged([1.5], ())),
    "no numbers": lambda fold: fold.add("sum", ragged([], ())),
    "ids": lambda fold: fold.add("look up", shared(TABLE), ragged([2, 0], (), "int")),
    "no ids": lambda fold: fold.add("look up", shared(TABLE), ragged([], (), "int")),
    "no ids, by NumPy's name": lambda fold: fold.add("look up", shared(TABLE), ragged([], (), np.int64)),
    "a pair": lambda f: f.add("first", ragged([f.add("pair", made("float16", 2))], ((2,), (2,)))),
    "no pairs": lambda fold: fold.add("first", ragged([], ((2,), (2,)))),
    "no pairs of float16": lambda fold: fold.add("first", ragged([], ((2,), (2,)), "float16")),
    "rows of float16 and a number": lambda f: f.add("scaled", ragged([made("float16", 2)], (2,)), 0.1),
    "no rows and a number": lambda fold: fold.add("scaled", ragged([], (2,)), 0.1),
    "no rows of float16 and a number": lambda f: f.add("scaled", ragged([], (2,), "float16"), 0.1),
}


def in_a_fold(backend, model, records):
    fold = Fold(backend=backend)
    return fold.apply(model, tuple(record(fold) for record in records))


def in_traces(backend, model, records):
    traces = [trace(lambda fold, _: tuple(record(fold) for record in records), 0)]
    return Fold(backend=backend).run(model, traces)


def in_a_loop(backend, model, records):
    unfold = Unfold(model, backend=backend)
    return unfold.apply(None, tuple(record(unfold) for record in records))


@pytest.mark.parametrize("run", [in_a_fold, in_traces])
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "in reverse"])
def test_a_request_returns_the_same_alone_and_in_company(run, order, backend, model, seam):
    requests = list(REQUESTS.values())[::order]
    together = run(backend, model, requests)
    for got, name in zip(together, list(REQUESTS)[::order], strict=True):
        for way in (run, in_a_loop):
            (alone,) = way(backend, model, [REQUESTS[name]])
            assert (dtype_name(got), tuple(got.shape)) == (dtype_name(alone), tuple(alone.shape)), name
            np.testing.assert_array_equal(seam.to_numpy(got), seam.to_numpy(alone), name)


def test_missing_rows_are_of_the_dtype_that_was_said(backend, model, seam):
    said = {name: dtype_name(in_a_fold(backend, model, [REQUESTS[name]])[0]) for name in REQUESTS}
    floats = str(seam.number_dtype(float))
    assert said["no rows"] == said["no numbers"] == said["no pairs"] == floats
    assert (
        said["an array without rows"]
        == said["no rows of float16"]
        == said["no pairs of float16"]
        == "float16"
    )
    assert said["no rows of float32"] == said["no ids"] == "float32"


def test_an_embedding_of_no_words_is_zero(backend, model, equal):
    ids, none = (REQUESTS[name] for name in ("ids", "no ids"))
    equal(in_a_fold(backend, model, [none])[0], [0.0])
    got = in_a_fold(backend, model, [ids, none, ids])
    equal(got[0], [3.0])
    equal(got[1], [0.0])


def test_calls_without_rows_share_the_launch_of_rows_of_their_dtype(backend, model):
    fold = Fold(backend=backend)
    words = [fold.add("look up", shared(TABLE), ragged(x, (), "int")) for x in ([2, 0], [], [1])]
    fold.apply(model, [words])
    assert [len(launch) for launch in fold.explain().launches] == [3]
    fold.reset()
    half = [fold.add("sum", ragged([made("float16", 2)] * n, (2,), "float16")) for n in (1, 0)]
    fold.apply(model, [half])
    assert [len(launch) for launch in fold.explain().launches] == [2]


def test_a_program_refuses_rows_beside_missing_ones_of_another_dtype(backend, model, seam):
    """With the model it gives them a kernel of their own."""
    if backend not in EXECUTORS:
        pytest.skip("it runs no programs")
    run = importlib.import_module(EXECUTORS[backend]).run

    def made_with(*model):
        fold = Fold(backend=backend)
        names = ("rows of float16", "no rows")
        return fold.program(tuple(REQUESTS[name](fold) for name in names), *model)

    with pytest.raises(LaunchError, match=r"calls without rows, of float\d\d\[2\], beside rows of float16"):
        run(model, made_with())
    got = run(model, made_with(model))
    assert list(map(dtype_name, got)) == ["float16", str(seam.number_dtype(float))]


@pytest.mark.parametrize("dtype", ["float16", "float32", "int"])
def test_programs_know_the_dtype_of_missing_rows(dtype, backend, model):
    if backend not in EXECUTORS:
        pytest.skip("it runs no programs")
    run = importlib.import_module(EXECUTORS[backend]).run
    records = [total(dtype=dtype), total(*[made(dtype, 2)] * 2, dtype=dtype)]
    for some in (records[:1], records):
        fold = Fold(backend=backend)
        got = run(model, fold.program(tuple(record(fold) for record in some)))
        expected = in_a_fold(backend, model, some)
        assert list(map(dtype_name, got)) == list(map(dtype_name, expected))


def test_words_of_no_dtype_have_one_outcome(backend, model, to_numpy):
    """They are floats, alone and in company; MXNet looks up by these."""

    def outcome(*records):
        try:
            return to_numpy(in_a_fold(backend, model, records)[0]).tolist()
        except LaunchError as error:
            return error.hint

    def bare(fold):
        return fold.add("look up", shared(TABLE), ragged([], ()))

    assert outcome(bare) == outcome(bare, REQUESTS["ids"])
    assert backend == "mxnet" or "row_shape=(), dtype='int'" in outcome(bare)


def test_missing_rows_of_another_dtype_than_the_model_have_a_hint(backend, seam):
    if backend not in ("torch", "tensorflow"):
        pytest.skip("its products promote, or say nothing of dtypes")
    model = {"w": seam.kit.variable(np.ones((2, 2), "float16"))}
    fold = Fold(backend=backend)

    def weigh(rows):
        product = rows.values @ model["w"] if backend == "torch" else rows.values * model["w"]
        return ops.segment_sum(product, rows)

    with pytest.raises(LaunchError, match="row_shape, dtype='float16'"):
        fold.apply({**model, "f": weigh}, fold.add("f", ragged([], (2,))))


def test_an_array_of_no_numbers_says_nothing_of_its_rows():
    with pytest.raises(RecordError, match="row_shape"):
        ragged(np.zeros(0))


def test_what_is_said_counts_more_than_the_array():
    said = ragged(np.zeros((0, 3)), row_shape=(5,), dtype="int")
    assert said.missing == MissingRows((5,), "int")


def test_each_array_of_a_row_has_its_dtype():
    assert MissingRows(((3,), (2,)), ("float", "int8")).made(lambda *x: x) == (
        ((3,), "float"),
        ((2,), "int8"),
    )
    with pytest.raises(RecordError, match="a dtype for each array"):
        ragged([], row_shape=((3,), (2,)), dtype=("int",))
