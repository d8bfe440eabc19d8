"""Mixed precision: where rows of two floats meet, the framework's own concatenation decides.

Rows inside one ragged operand, and rows of one group of the outputs, are promoted, each by themselves.
Batched operands are not: they are divided by dtype, as rows of all other kinds are.
"""

import importlib

import numpy as np
import optree
import pytest

import multifold
from multifold import Fold, LaunchError, Unfold, ops, program, ragged, shared
from multifold._engine.ops.messages import dtype_name
from multifold._engine.ops.values import Values, as_dtype, classes_differ, opened
from multifold._numpy.backend import NumpyBackend
from multifold.operands import MissingRows

DTYPES = {"half": np.float16, "full": np.float32}

PROMOTES = ("numpy", "torch", "jax")
"""Backends whose concatenation promotes; `tf.concat` and MXNet's refuse rows of two dtypes."""

EXECUTORS = {
    "numpy": "multifold.program",
    "jax": "multifold_jax",
    "tensorflow": "multifold_tensorflow",
    "torch": "multifold_torch",
}

REFUSES = "its concatenation refuses rows of two dtypes, which the tests of cases look at"

HALF = np.array([[1.0, 2.0]], np.float16)


def pair(x):
    return {"a": x, "b": (x + x, x)}


def total(rows):
    return ops.segment_sum(rows.values, rows)


@pytest.fixture
def model():
    """Ops that keep the dtype of what they receive."""
    return {
        "same": lambda x: x,
        "double": lambda x: x + x,
        "sum": total,
        "scaled": lambda r, k: total(r) * k,
        "sums": lambda r, s: {"a": total(r), "b": total(s)},
        "pair": pair,
        "total of a": lambda r: total(r._replace(values=r.values["a"])),
    }


def rows(f, array):
    """Return a node in 16 bits, and one in the default float, as the array is."""
    return f.add("same", HALF), f.add("same", array)


def one_ragged_operand(f, array):
    half, full = rows(f, array)
    return [[f.add("sum", ragged([half, full])), f.add("sum", ragged([full, half, half]))]]


def pure_and_mixed_ragged_operands_of_one_op(f, array):
    half, full = rows(f, array)
    members = [half, half], [half, full], [half], [full], [full, half]
    sums = [f.add("sum", ragged(some)) for some in members]
    return [[sums[0], sums[2]], [sums[1], sums[4]], [sums[3]], sums]


def one_group_of_the_outputs(f, array):
    half, full = rows(f, array)
    return [[half, full], [half], [full, full], (half, full)]


def arrays_inside_a_ragged_operand(f, array):
    half, full = rows(f, array)
    return [[f.add("sum", ragged([HALF, full]))], [f.add("sum", ragged([HALF, array]))], [half, array]]


def numbers_inside_a_ragged_operand(f, array):
    half = f.add("same", np.array([0.5], np.float16))
    return [[f.add("sum", ragged([half, 1.5]))], [f.add("sum", ragged([half]))], [half, 2.5], [half]]


def a_shared_operand_beside_a_ragged_one(f, array):
    half, full = rows(f, array)
    two = shared(np.array([2.0, 3.0], np.float16))
    mine = [f.add("scaled", ragged(some), two) for some in ([half, full], [half], [full])]
    return [[x] for x in mine]


def two_ragged_operands_of_one_call(f, array):
    half, full = rows(f, array)
    some = [[half, full], [half], [full], [full, half]]
    made = [f.add("sums", ragged(x), ragged(y)) for x in some for y in some]
    return [[x["a"]] for x in made], [[x["b"]] for x in made]


def results_that_are_containers(f, array):
    pairs = [f.add("pair", x) for x in rows(f, array)]
    mixed = f.add("total of a", ragged(pairs))
    pure = f.add("total of a", ragged(pairs[:1]))
    return [pairs, pairs[:1], [mixed], [pure]]


def batched_operands_stay_divided(f, array):
    half, full = rows(f, array)
    doubled = [f.add("double", x) for x in (half, full, half)]
    return [doubled[::2], doubled[1:2], doubled]


def a_chain_over_promoted_rows(f, array):
    half, full = rows(f, array)
    outputs = []
    for x in (half, full):
        for _ in range(3):
            x = f.add("sum", ragged([x, f.add("double", half)]))
            outputs.append([x])
    return outputs


def ragged_operands_without_rows(f, array):
    half, full = rows(f, array)
    some = [], [half], [half, full], [full], [half, half], []
    sums = [f.add("sum", ragged(x, row_shape=(2,))) for x in some]
    return [[x] for x in sums], [sums[0], sums[1]]


def ragged_operands_without_rows_of_another_shape(f, array):
    half, full = rows(f, array)
    return [[f.add("sum", ragged(some, row_shape=(3,)))] for some in ([], [half, full])]


CASES = {
    case.__name__: case
    for case in (
        one_ragged_operand,
        pure_and_mixed_ragged_operands_of_one_op,
        one_group_of_the_outputs,
        arrays_inside_a_ragged_operand,
        numbers_inside_a_ragged_operand,
        a_shared_operand_beside_a_ragged_one,
        two_ragged_operands_of_one_call,
        results_that_are_containers,
        batched_operands_stay_divided,
        a_chain_over_promoted_rows,
        ragged_operands_without_rows,
        ragged_operands_without_rows_of_another_shape,
    )
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request, seam):
    """What records one case on a fold, for any example, and returns its outputs."""
    array = np.array([[3.0, 4.0]], seam.number_dtype(float))
    return lambda f, example=None: request.param(f, array)


def refusal(run, *words):
    with pytest.raises(LaunchError) as error:
        run()
    for word in words:
        assert word in str(error.value)


@pytest.fixture
def compare(backend, seam, model):
    """Return a function that runs a fold and its twin, and compares values, shapes and dtypes.

    Where the framework's own concatenation refuses, both must say so, and name both dtypes.
    """

    def compare(run):
        attempts = [
            lambda: run(Fold(backend=backend), model),
            lambda: run(Unfold(model, backend=backend), None),
        ]
        if backend not in PROMOTES:
            for attempt in attempts:
                refusal(attempt, "float16", "float32", "let an op bring them to one dtype")
            return
        got, expected = (optree.tree_leaves(attempt()) for attempt in attempts)
        assert list(map(dtype_name, got)) == list(map(dtype_name, expected))
        for x, y in zip(got, expected, strict=True):
            np.testing.assert_array_equal(seam.to_numpy(x), seam.to_numpy(y))

    return compare


def test_rows_are_promoted_as_in_the_loop(case, compare):
    compare(lambda f, model: f.apply(model, case(f)))


def test_rows_of_traces_are_promoted(case, compare):
    traces = [multifold.trace(case, i) for i in range(2)]
    compare(lambda f, model: f.run(model, *((traces,) if model else (range(2), case))))


def test_rows_of_earlier_rounds_are_promoted(case, compare):
    async def waits(f, example):
        await f.value(f.add("same", float(example)))
        outputs = case(f)
        nodes = [x for x in optree.tree_leaves(outputs) if isinstance(x, multifold.Node)]
        await f.value(nodes[example])
        return outputs

    compare(lambda f, model: f.run(model, range(2), waits))


def test_pieces_of_a_launch_are_promoted(case, compare, seam, monkeypatch):
    monkeypatch.setattr(type(seam), "pieces", lambda self, rows, device: min(rows, 2))
    compare(lambda f, model: f.apply(model, case(f)))


def test_rows_of_programs_are_promoted(case, backend, compare):
    if backend not in EXECUTORS:
        pytest.skip("it has no executor of programs")
    execute = importlib.import_module(EXECUTORS[backend]).run

    def run(f, model):
        return f.apply(None, case(f)) if model is None else execute(model, f.program(case(f), model))

    compare(run)


def test_an_example_of_another_dtype_fits_to_the_others(backend, compare):
    examples = [HALF, np.array([[3.0, 4.0]], np.float32), np.ones((1, 3), np.float32)]

    def run(f, model):
        values, failures = f.run(model, examples, lambda f, x: f.add("same", x), on_error="collect")
        if backend not in PROMOTES:
            raise failures[1]
        assert [*failures] == [2]
        return values

    compare(run)


def test_a_call_that_promotes_nothing_runs_apart(backend, counting, model):
    if backend not in PROMOTES:
        pytest.skip(REFUSES)
    fold = Fold(backend=counting)
    half, full = rows(fold, np.array([[3.0, 4.0]], np.float32))
    members = [half, half], [half, full], [half], [full], [full, half]
    fold.apply(model, [[fold.add("sum", ragged(some))] for some in members])
    assert counting.counts["call"] == 2 + 2  # two of `same`; one of `sum` for float16, one for float32


def test_gradients_pass_through_promoted_rows(backend, seam, model):
    if backend not in PROMOTES or "kit" in seam.gaps():
        pytest.skip(REFUSES if backend not in PROMOTES else seam.gaps()["kit"])
    wide = seam.constant(np.array([[3.0, 4.0]], np.float32), None)
    narrow = seam.constant(HALF, None)

    def loss(weights, twin):
        own = model | {"same": lambda x: x * weights["half" if x.dtype == narrow.dtype else "full"]}
        f = Unfold(own, backend=backend) if twin else Fold(backend=backend)
        half, full = (f.add("same", x) for x in (narrow, wide))
        sums = [f.add("sum", ragged(some)) for some in ([half, full], [half], [full, full])]
        outputs = f.apply(None if twin else own, [[half, full], *([x] for x in sums)])
        return sum(seam.kit.dot(x, np.arange(1, 1 + np.prod(x.shape)).reshape(x.shape)) for x in outputs)

    def gradients(twin):
        weights = {name: seam.kit.variable(np.array([[2.0, 5.0]], x)) for name, x in DTYPES.items()}
        return seam.kit.value_and_grad(lambda weights: loss(weights, twin), weights)[1]

    got = gradients(twin=False)
    expected = gradients(twin=True)
    for name, dtype in DTYPES.items():
        grad = seam.to_numpy(got[name])
        assert grad.dtype == dtype and grad.all()
        np.testing.assert_array_equal(grad, seam.to_numpy(expected[name]))


def test_explain_counts_calls_by_what_their_rows_are_promoted_to(model):
    fold = Fold(backend="numpy")
    half, full = rows(fold, np.array([[3.0, 4.0]]))
    members = [half, half], [half, full], [full]
    fold.apply(model, [[fold.add("sum", ragged(some))] for some in members])
    assert "(2,) float16 (1 call), (2,) float64 (2 calls)" in str(fold.explain())


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("twin", [False, True], ids=["fold", "unfold"])
@pytest.mark.parametrize(
    "dtypes", [("float32", "int32"), ("int8", "int32"), ("bool", "float32")], ids="-".join
)
def test_integers_and_booleans_meet_their_own_dtype_only(backend, model, twin, dtypes):
    f = Unfold(model, backend=backend) if twin else Fold(backend=backend)
    nodes = [f.add("same", np.ones((1, 2), dtype)) for dtype in dtypes]
    hint = "Hint: let an op bring them to one dtype"
    refusal(lambda: f.apply(None if twin else model, [nodes]), *dtypes, hint)
    refusal(lambda: f.apply(None if twin else model, [[f.add("sum", ragged(nodes))]]), *dtypes, hint)


def test_containers_with_integers_of_two_dtypes_are_refused(backend):
    def numbered(x, n):
        return {"a": x, "n": n}

    fold = Fold(backend=backend)
    kinds = [("float16", "int8"), ("float32", "int32")]
    pairs = [fold.add(numbered, *(np.ones((1, 2), dtype) for dtype in some)) for some in kinds]
    refusal(lambda: fold.apply(None, [pairs]), "int8", "int32")


def test_programs_know_what_calls_without_rows_return_beside_others(model):
    fold = Fold(backend="numpy")
    x = np.ones((1, 2), np.float32)
    empty, one = (fold.add("sum", ragged(some, row_shape=(2,), dtype=x.dtype)) for some in ([], [x]))
    outputs = [[empty, one, fold.add("same", x)]]
    (got,) = program.run(model, fold.program(outputs, model))
    (expected,) = fold.apply(model, outputs)
    assert (got.dtype, got.tolist()) == (expected.dtype, expected.tolist())


@pytest.mark.parametrize(
    ("rows", "shape", "dtype", "may"),
    [
        (np.zeros((1, 2)), (2,), None, True),
        (np.zeros((1, 2)), (3,), None, False),
        (np.zeros((1, 2), np.float32), (2,), None, False),
        (np.zeros((1, 2), np.float32), (2,), "float32", True),
        (np.zeros((1, 2), np.int64), (2,), np.int64, True),
        ((np.zeros((1, 2)),), (2,), None, False),
        ((np.zeros((1, 2)), np.zeros(1, int)), ((2,), ()), ("float", "int"), True),
        ((np.zeros((1, 2)), np.zeros(1, int)), ((2,), ()), None, False),
    ],
)
def test_a_call_without_rows_joins_rows_that_it_may_be_one_of(rows, shape, dtype, may):
    values = Values(NumpyBackend(), None)
    missing = ragged([], row_shape=shape, dtype=dtype).missing
    assert values.may_lack_rows(values.class_of(rows), missing) is may


def test_no_rows_have_the_default_float_of_the_backend():
    class Single(NumpyBackend):
        def number_dtype(self, number):
            return np.dtype(np.float32)

    rows = Values(Single(), None).no_rows(MissingRows((2, 3)))
    assert rows.shape == (0, 2, 3) and rows.dtype == np.float32


@pytest.mark.parametrize(("x", "fits"), [(-(2**31), True), (2**31 - 1, True), (2**31, False)])
def test_whole_numbers_fit_up_to_the_ends_of_a_dtype(x, fits):
    if fits:
        assert as_dtype(np.array([x]), np.dtype(np.int32)).tolist() == [x]
    else:
        with pytest.raises(LaunchError, match="Expected int operands that fit"):
            as_dtype(np.array([x]), np.dtype(np.int32))


def test_containers_of_other_classes_are_opened_beside_arrays_and_none():
    class Output(dict):
        """As models of Hugging Face return."""

    x = np.ones((1, 2))
    found = opened((x, Output(a=x, b=[x]), None))
    assert type(found[1]) is dict and found[0] is x and found[1]["a"] is x and found[2] is None


def test_results_in_containers_are_handed_out_to_be_written_to():
    fold = Fold(backend="numpy")
    node = fold.add("pair", np.ones((1, 2)))
    again = fold.add("sum", node[0])
    pair_, _ = fold.apply({"pair": lambda x: (x + 1, {"a": x}), "sum": lambda x: x}, [[node], [again]])
    pair_[0][:] = pair_[1]["a"][:] = 5


def test_loose_arrays_of_one_dtype_and_shape_ask_the_backend_once():
    asked = []

    class Asked(NumpyBackend):
        def signature(self, array):
            asked.append(array)
            return super().signature(array) if isinstance(array, np.ndarray) else "its own"

    values = Values(Asked(), None)
    arrays = [np.zeros((1, 2)), np.ones((1, 2)), np.zeros((1, 3)), 1.0, 2.0]
    assert len({values.class_of_loose(x) for x in arrays}) == len(asked) == 3
    assert values.class_of_loose(object()) == "its own"


def test_an_error_says_which_rows_differ():
    error = classes_differ("a group", [((2,), "f4"), ((3,), "f4")], "ask for two.")
    assert "Received ((2,), 'f4') and ((3,), 'f4')." in str(error)


def test_a_half_model_has_its_dtype_named(backend, seam):
    if backend not in ("torch", "tensorflow", "mxnet"):
        pytest.skip("its products promote")
    weight = seam.kit.variable(np.ones((1, 2), "float16"))
    model = {"weight": weight, "f": lambda x: multiplied(backend, x, weight)}
    for f, own in ((Fold(backend=backend), model), (Unfold(model, backend=backend), None)):
        for x in (np.ones((1, 2), "float32"), 1.0):
            hint = "Hint: the model is in float16, and operand 0 in float32"
            refusal(lambda: f.apply(own, f.add("f", x)), hint)  # noqa: B023
            f.reset()


def multiplied(backend, x, weight):
    """Return a product of which the framework refuses two dtypes."""
    if backend == "torch":
        return x.reshape(-1, 1) @ weight
    return x * weight
