"""Every block against its definition in plain Python: values and gradients, on every backend.

An example is a list of integers, each of which names a row of a table of weights. A case is a block that
makes two numbers of such a list, and a function of the table and the list that says which ones. The
gradient of the block is that of the framework, the one of the definition is taken by central differences.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import multifold
from multifold import ops
from multifold_compat import blocks
from multifold_compat.blocks import (
    FC,
    RNN,
    AllOf,
    Broadcast,
    Composition,
    Concat,
    Embedding,
    Fold,
    ForwardDeclaration,
    FromTensor,
    Function,
    GetItem,
    Identity,
    InputTransform,
    Layers,
    Length,
    Map,
    Max,
    Mean,
    Metric,
    Metrics,
    Min,
    NGrams,
    Nth,
    OneHot,
    OneHotFromList,
    OneOf,
    Optional,
    Pipe,
    Record,
    Reduce,
    Scalar,
    Slice,
    Sum,
    Tensor,
    Vector,
    Void,
    Zeros,
    Zip,
    ZipWith,
)

NO_BLOCKS = {
    "Block", "BlockError", "BroadcastSequenceType", "Layer", "Layers", "PyObjectType", "ResultType",
    "SequenceType", "TensorType", "TupleType", "VoidType", "as_block", "as_type",
}  # fmt: skip
"""Names of `multifold_compat.blocks` that are no blocks: types, conversions, what blocks are made of."""

TABLE = Embedding(7, 2, name="table")
ONES = np.ones(2, "float32")


def rows():
    """Return the block that looks up the row of each integer."""
    return Map(Scalar("int") >> Function(TABLE))


def binary(op):
    """Return a block of a function of two rows."""
    return Function(op, out=2)


def times(x, y):
    return x * y


def minus(x, y):
    return x - 2 * y


def double(x):
    return 2 * x


def step(x, state):
    return x * state, x + state


def ends(xs):
    """Return two numbers that depend on a list, and on its order."""
    return [float(xs[0]), float(xs[-1])] if xs else [0.5, 2.0]


def spread(number):
    """Return a block that makes a row of two of a number."""
    return number >> AllOf(Identity(), Identity()) >> Concat()


def total(w, xs):
    return sum((w[x] for x in xs), np.zeros(2))


def of_input(block, definition):
    """Return a case of a block that reads a Python object: times the sum of rows, which have gradients."""
    return (
        AllOf(block, rows() >> Sum()) >> binary(times),
        lambda w, xs: np.asarray(definition(xs), "float64") * total(w, xs),
    )


def of_rows(block, definition):
    """Return a case of a block that reads a sequence of rows."""
    return rows() >> block, lambda w, xs: definition([w[x] for x in xs])


def left(op, state, xs):
    for x in xs:
        state = op(state, x)
    return state


def by_pairs(op, xs):
    while len(xs) > 1:
        xs = [op(*xs[i : i + 2]) if i + 1 < len(xs) else xs[i] for i in range(0, len(xs), 2)]
    return xs[0] if xs else np.zeros(2)


def added(xs):
    return sum(xs, np.zeros(2))


def along(xs):
    """Return the sum of the outputs of `step` along rows, from a state of ones, less the last state."""
    state = np.ones(2)
    outputs = []
    for x in xs:
        output, state = step(x, state)
        outputs.append(output)
    return minus(added(outputs), state)


def a_composition():
    composition = Composition()
    with composition.scope():
        summed = Sum().reads(composition.input)
        doubled = Function(double, out=2).reads(summed)
        both = binary(times).reads(summed, doubled)
        composition.output.reads(binary(minus).reads(both, summed))
    return composition


def a_recursion():
    """Return a block that halves a list until one integer is left, and its definition."""
    halves = ForwardDeclaration(output_type=2)
    pair = AllOf(InputTransform(lambda x: x[: len(x) // 2]) >> halves(),
                 InputTransform(lambda x: x[len(x) // 2 :]) >> halves()) >> binary(minus)  # fmt: skip
    one = GetItem(0) >> Scalar("int") >> Function(TABLE)
    block = OneOf(lambda x: min(len(x), 2), {0: Void() >> Zeros(2), 1: one, 2: pair})

    def definition(w, xs):
        if len(xs) < 2:
            return total(w, xs)
        middle = len(xs) // 2
        return minus(definition(w, xs[:middle]), definition(w, xs[middle:]))

    return halves.resolve_to(block), definition


def noted():
    """Return a block that notes each row, and returns their sum."""
    return rows() >> Map(AllOf(Identity(), Metric("row")) >> GetItem(0)) >> Sum()


LAYER = FC(2, activation=ops.tanh, name="layer")
FIXED = {"weight": np.array([[0.5, -0.25], [0.75, 0.125]]), "bias": np.array([0.25, -0.5])}

CASES = {
    "Scalar": of_input(spread(InputTransform(len) >> Scalar("float32")), lambda xs: [len(xs)] * 2),
    "Vector": of_input(InputTransform(ends) >> Vector(2), ends),
    "Tensor": of_input(InputTransform(ends) >> Tensor([2]), ends),
    "OneHot": of_input(
        InputTransform(lambda xs: 5 + len(xs) % 2) >> OneHot(5, 7), lambda xs: np.eye(2)[len(xs) % 2]
    ),
    "OneHotFromList": of_input(
        InputTransform(lambda xs: "ab?"[len(xs) % 3]) >> OneHotFromList("ab", strict=False),
        lambda xs: [[1, 0], [0, 1], [0, 0]][len(xs) % 3],
    ),
    "InputTransform": of_input(InputTransform(sorted) >> InputTransform(ends) >> Vector(2),
                               lambda xs: ends(sorted(xs))),
    "Optional": of_input(
        InputTransform(lambda xs: ends(xs) if xs else None) >> Optional(Vector(2)),
        lambda xs: ends(xs) if xs else [0, 0],
    ),
    "FromTensor": of_input(FromTensor(np.array([2.0, 3.0], "float32")), lambda xs: [2, 3]),
    "Zeros": of_input(AllOf(Zeros(2), FromTensor(ONES)) >> binary(minus), lambda xs: [-2, -2]),
    "Void": of_input(Void() >> FromTensor(ONES), lambda xs: [1, 1]),
    "Length": of_input(spread(Length("float32")), lambda xs: [len(xs)] * 2),
    "Identity": of_rows(Identity() >> Sum(), added),
    "Pipe": of_rows(Pipe(Sum(), Function(double)), lambda xs: 2 * added(xs)),
    "Function": of_rows(
        Sum() >> Function(lambda x, *, by: by * x, static={"by": 3}), lambda xs: 3 * added(xs)
    ),
    "Concat": of_rows(
        AllOf(Sum(), Mean()) >> Concat() >> Function(lambda x: x[:, 1:3], out=2),
        lambda xs: np.concatenate([added(xs), added(xs) / max(len(xs), 1)])[1:3],
    ),
    "Composition": of_rows(a_composition(), lambda xs: minus(times(added(xs), 2 * added(xs)), added(xs))),
    "Record": (
        InputTransform(lambda xs: {"b": xs, "a": xs[1:]})
        >> Record([("b", rows() >> Sum()), ("a", rows() >> Sum())])
        >> binary(minus),
        lambda w, xs: minus(total(w, xs), total(w, xs[1:])),
    ),
    "AllOf": of_rows(AllOf(Sum(), Mean(), Max()) >> Slice(stop=2) >> binary(minus),
                     lambda xs: minus(added(xs), added(xs) / max(len(xs), 1))),
    "Map": of_rows(Map(Function(double)) >> Fold(binary(minus), Zeros(2)),
                   lambda xs: left(minus, np.zeros(2), [2 * x for x in xs])),
    "Fold": of_rows(Fold(binary(times), FromTensor(ONES)), lambda xs: left(times, np.ones(2), xs)),
    "Reduce": of_rows(Reduce(binary(minus)), lambda xs: by_pairs(minus, xs)),
    "RNN": of_rows(RNN(Function(step, out=(2, 2)), ONES) >> (Sum(), Identity()) >> binary(minus), along),
    "Sum": of_rows(Sum(), added),
    "Min": of_rows(Min(), lambda xs: np.min(xs, axis=0) if xs else np.zeros(2)),
    "Max": of_rows(Max(), lambda xs: np.max(xs, axis=0) if xs else np.zeros(2)),
    "Mean": of_rows(Mean(), lambda xs: added(xs) / max(len(xs), 1)),
    "Broadcast": of_rows(
        AllOf(Identity(), Sum() >> Broadcast()) >> Zip() >> Map(binary(times)) >> Sum(),
        lambda xs: added([x * added(xs) for x in xs]),
    ),
    "Zip": of_rows(
        AllOf(Identity(), Slice(start=1)) >> Zip() >> Map(binary(times)) >> Sum(),
        lambda xs: added([x * y for x, y in pairwise(xs)]),
    ),
    "ZipWith": of_rows(
        AllOf(Identity(), Slice(step=-1)) >> ZipWith(binary(minus)) >> Fold(binary(minus), Zeros(2)),
        lambda xs: left(minus, np.zeros(2), [minus(x, y) for x, y in zip(xs, xs[::-1], strict=True)]),
    ),
    "NGrams": of_rows(NGrams(2) >> Map(binary(minus)) >> Sum(),
                      lambda xs: added([minus(x, y) for x, y in pairwise(xs)])),
    "Nth": (
        InputTransform(lambda xs: (xs or [0], len(xs) // 2)) >> (rows(), Identity()) >> Nth(),
        lambda w, xs: w[(xs or [0])[len(xs) // 2]],
    ),
    "GetItem": (
        InputTransform(lambda xs: xs or [0]) >> rows() >> GetItem(-1), lambda w, xs: w[(xs or [0])[-1]]
    ),
    "Slice": of_rows(Slice(start=1, step=2) >> Sum(), lambda xs: added(xs[1::2])),
    "ForwardDeclaration": a_recursion(),
    "OneOf": (
        OneOf(
            len,
            {0: Void() >> FromTensor(ONES), 1: rows() >> Sum()}
            | {n: rows() >> Max() for n in range(2, 7)},
        ),
        lambda w, xs: np.ones(2) if not xs else np.max([w[x] for x in xs], axis=0),
    ),
    "Metric": (noted(), total),
    "Metrics": (Metrics(noted()), lambda w, xs: (total(w, xs), [w[x] for x in xs])),
    "FC": of_rows(
        Sum() >> Function(LAYER), lambda xs: np.tanh(added(xs) @ FIXED["weight"] + FIXED["bias"])
    ),
    "Embedding": (rows() >> Sum(), total),
}  # fmt: skip

unusual = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
drawn = settings(max_examples=3, deadline=None, suppress_health_check=unusual)
lists = st.lists(st.lists(st.integers(0, 6), max_size=6), max_size=3).map(lambda xs: [*xs, [1, 5, 2]])
"""Lists of integers, the last of which reads rows: MXNet has no gradient of what depends on no weight."""


def test_every_block_has_a_definition():
    assert set(CASES) | NO_BLOCKS == set(blocks.__all__)


def differences(f, w, epsilon=1e-5):
    """Return the gradient of a function of an array by central differences."""
    found = np.zeros_like(w)
    for place in np.ndindex(w.shape):
        moved = [w.copy(), w.copy()]
        moved[0][place] += epsilon
        moved[1][place] -= epsilon
        found[place] = (f(moved[0]) - f(moved[1])) / (2 * epsilon)
    return found


@pytest.mark.nightly(but=["numpy", "torch"])
@pytest.mark.parametrize("name", CASES)
@given(examples=lists)
@drawn
def test_a_block_computes_what_its_definition_says(name, examples, backend, seam, to_numpy):
    block, definition = CASES[name]
    weights = np.random.default_rng(0).normal(size=(7, 2)).astype("float32")
    model = Layers(AllOf(block, rows()))
    fixed = {f"layer.{part}": value for part, value in FIXED.items()}
    model.assign({"table.weight": weights} | {key: fixed[key] for key in model.weights() if key in fixed})
    noted = name == "Metrics"

    def computed(model):
        found = multifold.Fold(backend=backend).run(model, examples, block)
        return found[0] if noted else found

    placed = model.on(backend)
    expected = [definition(weights.astype("float64"), xs) for xs in examples]
    if noted:
        found = multifold.Fold(backend=backend).run(placed, examples, block)[1]["row"]
        for got, (_, want) in zip(found, expected, strict=True):
            np.testing.assert_allclose(to_numpy(got) if len(want) else [], want, rtol=1e-5)
        expected = [value for value, _ in expected]
    np.testing.assert_allclose(to_numpy(computed(placed)), expected, rtol=1e-4, atol=1e-5)
    if "kit" in seam.gaps():
        return
    factors = np.random.default_rng(1).normal(size=(len(examples), 2))

    def wanted(w):
        values = [definition(w, xs) for xs in examples]
        return float(sum(f @ (v[0] if noted else v) for f, v in zip(factors, values, strict=True)))

    _, gradients = seam.kit.value_and_grad(lambda model: seam.kit.dot(computed(model), factors), placed)
    np.testing.assert_allclose(
        to_numpy(gradients["table.weight"]),
        differences(wanted, weights.astype("float64")),
        rtol=1e-3,
        atol=1e-3,
    )
