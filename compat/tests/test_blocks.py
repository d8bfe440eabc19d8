"""Blocks against their definitions in plain Python, on every backend: values, gradients, traces."""

from __future__ import annotations

import importlib
import inspect
import operator
import pickle
import sys
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import multifold
from multifold import ops
from multifold_compat import blocks
from multifold_compat.blocks import functions
from multifold_compat.blocks.code import Code

unusual = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
drawn = settings(max_examples=5, deadline=None, suppress_health_check=unusual)
numbers = st.integers(-8, 8)
sequences = st.lists(st.lists(numbers, max_size=6), min_size=1, max_size=5)
expressions = st.recursive(
    numbers, lambda inner: st.tuples(st.sampled_from("+-*"), inner, inner), max_leaves=8
)


def subtract(a, b):
    return a - b


def multiply(a, b):
    return a * b


def last_and_sum(x, state):
    return x * 2, state + x


def last_and_ten(x):
    return x, 10 * x


def count_and_sum(state, x):
    return state[0] + 1, state[1] + x


def both_sums(a, b):
    return a[0] + b[0], a[1] + b[1]


MODEL = {"+": functions.add, "-": subtract, "*": multiply, "step": last_and_sum}
MEANING = {"+": operator.add, "-": operator.sub, "*": operator.mul}


def calculator(leaf):
    """The block of expressions such as ``("+", 1, ("*", 2, 3))``."""
    expression = blocks.ForwardDeclaration(blocks.PyObjectType(), [])
    parts = blocks.Record([(1, expression()), (2, expression())])
    cases = {op: parts >> blocks.Function(op, out=[]) for op in MEANING}
    return expression.resolve_to(
        blocks.OneOf(type, {int: leaf, tuple: blocks.OneOf(blocks.GetItem(0), cases)})
    )


def meaning(x):
    return x if isinstance(x, int) else MEANING[x[0]](meaning(x[1]), meaning(x[2]))


@pytest.fixture
def results(backend, to_numpy):
    """Return a function that runs a block on examples and returns what each way to record gives."""

    def results(block, examples, model=MODEL):
        fold = multifold.Fold(backend=backend)
        found = [
            fold.run(model, examples, block),
            multifold.Unfold(model, backend=backend).run(None, examples, block),
            multifold.Fold(backend=backend).run(model, multifold.traces(block, examples)),
        ]
        return [to_numpy(x) for x in found]

    return results


def same(found, expected, rtol=1e-5):
    """Compare the results of all ways to record with what plain Python says."""
    for values in found:
        for got, want in zip(values if isinstance(values, tuple) else [values], expected, strict=True):
            want = np.asarray(want, "float64")
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol)


@given(st.lists(expressions, min_size=1, max_size=4))
@drawn
def test_a_calculator_of_blocks_computes_what_python_computes(results, examples):
    same(results(calculator(blocks.Scalar()), examples), [[meaning(x) for x in examples]])


def test_blocks_record_the_calls_that_are_recorded_by_hand(backend, launches):
    examples = [("+", 1, ("*", 2, 3)), ("*", ("+", 1, 2), ("-", 3, 4)), 5]
    by_hand = multifold.Fold(backend=backend)
    by_blocks = multifold.Fold(backend=backend)

    def record(fold, x):
        if isinstance(x, int):
            return float(x)
        return fold.add(x[0], record(fold, x[1]), record(fold, x[2]))

    roots = [record(by_hand, x) for x in examples]
    block = calculator(blocks.Scalar())
    again = [block(by_blocks, x) for x in examples]
    assert len(by_hand) == len(by_blocks) == 5
    assert launches(by_hand, [roots]) == launches(by_blocks, [again])


def test_a_recursive_block_and_what_it_records_can_be_pickled(results):
    block = pickle.loads(pickle.dumps(calculator(blocks.Scalar())))
    examples = [("+", 1, ("*", 2, 3)), 4]
    same(results(block, examples), [[7, 4]])
    made = pickle.loads(pickle.dumps(multifold.traces(block, examples)))
    assert made == multifold.traces(calculator(blocks.Scalar()), examples)


def mapped(*behind):
    """Return a block that reads lists of integers as sequences of numbers."""
    block = blocks.Map(blocks.Scalar())
    for other in behind:
        block = block >> other
    return block


def balanced(fn, xs):
    """Combine neighbours, in the order in which `Reduce` promises it."""
    while len(xs) > 1:
        xs = [fn(*xs[i : i + 2]) if i + 1 < len(xs) else xs[i] for i in range(0, len(xs), 2)]
    return xs[0] if xs else 0


def left(fn, xs):
    state = 0
    for x in xs:
        state = fn(state, x)
    return state


REDUCED = {
    "sum": (lambda: mapped(blocks.Sum()), sum),
    "mean": (lambda: mapped(blocks.Mean()), lambda xs: sum(xs) / len(xs) if xs else 0),
    "max": (lambda: mapped(blocks.Max()), lambda xs: max(xs, default=0)),
    "min": (lambda: mapped(blocks.Min()), lambda xs: min(xs, default=0)),
    "length": (lambda: mapped(blocks.Length()), len),
    "fold": (
        lambda: mapped(blocks.Fold(blocks.Function("-"), blocks.Zeros("float"))),
        lambda xs: left(operator.sub, xs),
    ),
    "reduce": (
        lambda: mapped(blocks.Reduce(blocks.Function("-"))),
        lambda xs: balanced(operator.sub, xs),
    ),
    "rnn, last state": (
        lambda: mapped(blocks.RNN(blocks.Function("step", out=([], "float"))), blocks.GetItem(1)),
        sum,
    ),
    "center": (
        lambda: mapped(
            blocks.AllOf(blocks.Identity(), blocks.Mean() >> blocks.Broadcast()),
            blocks.ZipWith(blocks.Function("-", out="float")),
            blocks.Sum(),
        ),
        lambda xs: 0,
    ),
    "pairs": (
        lambda: mapped(blocks.NGrams(2), blocks.Map(blocks.Function("*", out="float")), blocks.Sum()),
        lambda xs: sum(a * b for a, b in pairwise(xs)),
    ),
    "zip": (
        lambda: (
            blocks.AllOf(mapped(), blocks.Slice(step=-1) >> mapped())
            >> blocks.Zip()
            >> blocks.Map(blocks.Function("*", out="float"))
            >> blocks.Sum()
        ),
        lambda xs: sum(a * b for a, b in zip(xs, xs[::-1], strict=True)),
    ),
    "slice": (
        lambda: mapped(blocks.Slice(start=1, step=2), blocks.Sum()),
        lambda xs: sum(xs[1::2]),
    ),
}


@pytest.mark.parametrize("name", REDUCED)
@given(examples=sequences)
@drawn
def test_a_sequence_becomes_what_python_makes_of_it(name, results, examples):
    block, definition = REDUCED[name]
    found = results(block() >> blocks.Function(ops.tanh), examples)
    same(found, [[np.tanh(float(definition(xs))) for xs in examples]])


TENSOR = blocks.Vector(4)
PAIR = (blocks.Scalar(), blocks.Scalar())
REFUSED = {
    "a tensor where an object is expected": (
        lambda: TENSOR >> blocks.Scalar(),
        ["<Scalar float[]>", "object", "float32[4]"],
    ),
    "a tensor into a vector": (
        lambda: blocks.Scalar() >> blocks.Vector(2),
        ["Vector", "object", "float[]"],
    ),
    "a tensor into Python": (
        lambda: blocks.Scalar() >> blocks.InputTransform(len),
        ["<InputTransform len>", "object", "float[]"],
    ),
    "a tensor into one-hot": (
        lambda: blocks.Scalar("int") >> blocks.OneHot(3),
        ["OneHot", "object", "int[]"],
    ),
    "a tensor that may be None": (
        lambda: blocks.Scalar() >> blocks.Optional(blocks.Scalar()),
        ["Optional", "object", "float[]"],
    ),
    "an object into an op": (
        lambda: blocks.InputTransform(len) >> blocks.Function("f"),
        ["<Function f>", "tensors", "object"],
    ),
    "a sequence into an op": (
        lambda: blocks.Map(blocks.Scalar()) >> blocks.Function("f"),
        ["<Function f>", "tensors", "sequence of float[]"],
    ),
    "a tuple with an object into an op": (
        lambda: (
            blocks.AllOf(blocks.Scalar(), blocks.Identity()).set_input_type(blocks.PyObjectType())
            >> blocks.Function("f")
        ),
        ["<Function f>", "tensors", "(float[], object)"],
    ),
    "a tensor that is mapped": (
        lambda: TENSOR >> blocks.Map(blocks.Function("f")),
        ["Map", "sequence", "[4]"],
    ),
    "an endless sequence that is folded": (
        lambda: TENSOR >> blocks.Broadcast() >> blocks.Fold(blocks.Function("f"), blocks.Zeros(4)),
        ["Fold", "sequence", "endless float32[4]"],
    ),
    "a tensor that is zipped": (
        lambda: TENSOR >> blocks.Zip(),
        ["Zip", "tuple of sequences", "float32[4]"],
    ),
    "the length of a tensor": (lambda: TENSOR >> blocks.Length(), ["Length", "sequence", "float32[4]"]),
    "an item of a tensor": (lambda: TENSOR >> blocks.GetItem(0), ["GetItem 0", "object", "float32[4]"]),
    "the third item of a pair": (
        lambda: PAIR >> blocks.GetItem(2),
        ["GetItem 2", "item 2", "(float[], float[])"],
    ),
    "a name of a tuple": (
        lambda: PAIR >> blocks.GetItem("x"),
        ["GetItem 'x'", "object", "(float[], float[])"],
    ),
    "fields of a tensor": (
        lambda: TENSOR >> blocks.Record({"x": TENSOR}),
        ["Record x", "object", "float32[4]"],
    ),
    "fields of a tuple by name": (
        lambda: PAIR >> blocks.Record({"x": blocks.Identity()}),
        ["Record x", "'x'", "(float[], float[])"],
    ),
    "the nth by a tensor": (
        lambda: (blocks.Map(blocks.Scalar()), blocks.Scalar("int")) >> blocks.Nth(),
        ["Nth", "(?, object)", "int[]"],
    ),
    "one thing side by side": (
        lambda: TENSOR >> blocks.Concat(),
        ["Concat", "tuple of tensors", "float32[4]"],
    ),
    "widths of matrices that differ": (
        lambda: (blocks.Tensor((2, 3)), blocks.Tensor((2, 4))) >> blocks.Concat(),
        ["Concat", "[?, 3]", "[?, 4]"],
    ),
    "dtypes side by side": (
        lambda: (blocks.Vector(2), blocks.Vector(2, "int64")) >> blocks.Concat(),
        ["Concat", "float32[?]", "int64[?]"],
    ),
    "an axis that is not there": (
        lambda: (TENSOR, TENSOR) >> blocks.Concat(1),
        ["Concat axis 1", "axis 1", "float32[4]"],
    ),
    "the sum of tuples": (
        lambda: blocks.Map(blocks.Record(PAIR)) >> blocks.Sum(),
        ["Sum", "?[...]", "(float[], float[])"],
    ),
    "a state that changes its width": (
        lambda: blocks.Map(TENSOR) >> blocks.Fold(blocks.Function("f", out=8), blocks.Zeros(4)),
        ["Fold", "float32[4]", "float32[8]"],
    ),
    "neighbours that become something else": (
        lambda: blocks.Map(TENSOR) >> blocks.Reduce(blocks.Function("f", out=8)),
        ["Reduce", "float32[4]", "float32[8]"],
    ),
    "a default of another width": (
        lambda: blocks.Map(TENSOR) >> blocks.Reduce(blocks.Function("f"), blocks.Zeros(8)),
        ["Reduce", "float32[4]", "float32[8]"],
    ),
    "a cell whose state is unknown": (
        lambda: blocks.RNN("cell"),
        ["RNN", "type of the state", "?"],
    ),
    "a cell whose state changes": (
        lambda: blocks.RNN(blocks.Function("cell", out=(4, 8)), blocks.Zeros(4)),
        ["RNN", "float32[4]", "float32[8]"],
    ),
    "cases of two types": (
        lambda: blocks.OneOf(type, {int: blocks.Scalar(), str: TENSOR}),
        ["OneOf", "float[]", "float32[4]"],
    ),
    "a tensor that decides": (
        lambda: blocks.OneOf(blocks.Scalar(), (TENSOR, TENSOR)),
        ["OneOf", "object", "float[]"],
    ),
    "no case": (lambda: blocks.OneOf(type, {}), ["OneOf", "at least one case", "none"]),
    "no zeros for None": (
        lambda: blocks.Optional(blocks.Function("f")),
        ["Optional", "none_case", "returns ?"],
    ),
    "zeros of an object": (lambda: blocks.Zeros(blocks.PyObjectType()), ["zeros", "object"]),
    "a constant behind a tensor": (
        lambda: TENSOR >> blocks.FromTensor(np.zeros(2)),
        ["FromTensor", "void", "float32[4]"],
    ),
    "a layer of matrices": (
        lambda: blocks.Tensor((2, 3)) >> blocks.Function(blocks.FC(4)),
        ["FC_4", "?[?]", "float32[2, 3]"],
    ),
    "a row of a table by a vector": (
        lambda: TENSOR >> blocks.Function(blocks.Embedding(9, 4)),
        ["Embedding_9_4", "?[]", "float32[4]"],
    ),
    "a row of a table by a float": (
        lambda: blocks.Scalar() >> blocks.Embedding(9, 4),
        ["Embedding_9_4", "integer", "float[]"],
    ),
    "a layer of sequences": (
        lambda: blocks.Map(blocks.Scalar()) >> blocks.FC(3),
        ["FC_3", "?[?]", "sequence of float[]"],
    ),
    "a state that is another item": (
        lambda: blocks.Map(TENSOR) >> blocks.Fold(blocks.GetItem(1), blocks.Zeros(3)),
        ["Fold", "float32[3]", "float32[4]"],
    ),
    "a cell that returns three": (
        lambda: blocks.Map(TENSOR) >> blocks.RNN(blocks.Function("f", out=(4, 4, 4)), blocks.Zeros(4)),
        ["RNN", "(?, float32[4])", "(float32[4], float32[4], float32[4])"],
    ),
    "a cell of endless elements": (
        lambda: TENSOR >> blocks.Broadcast() >> blocks.RNN(blocks.Function("f", out=(4, 4))),
        ["RNN", "sequence", "endless float32[4]"],
    ),
    "a tensor to a function that decides": (
        lambda: TENSOR >> blocks.OneOf(len, (blocks.Function("f"), blocks.Function("g"))),
        ["InputTransform len", "object", "float32[4]"],
    ),
    "two cases of one key": (
        lambda: blocks.OneOf(len, [(0, blocks.Scalar()), (0, blocks.Scalar())]),
        ["OneOf", "each key once", "[0, 0]"],
    ),
    "no function that decides": (
        lambda: blocks.OneOf("kind", PAIR),
        ["OneOf", "function or a block", "'kind'"],
    ),
    "a case before which another type is made": (
        lambda: blocks.OneOf(len, PAIR, pre_block=TENSOR),
        ["<Scalar float[]>", "object", "float32[4]"],
    ),
    "None gives another width": (
        lambda: blocks.Optional(TENSOR, blocks.Zeros(3)),
        ["Optional", "none_case", "float32[4]", "float32[3]"],
    ),
    "recursion that grows": (
        lambda: (tree := blocks.ForwardDeclaration()).resolve_to(
            blocks.OneOf(type, {int: TENSOR, tuple: (tree(), tree()) >> blocks.Concat()})
        ),
        ["OneOf int, tuple", "case tuple", "float32[4]", "float32[8]"],
    ),
    "a declared tensor from an object": (
        lambda: blocks.InputTransform(len) >> blocks.ForwardDeclaration(3, 3, name="state")(),
        ["<ForwardDeclaration 'state'()>", "float32[3]", "object"],
    ),
    "neighbours of a tensor": (lambda: TENSOR >> blocks.NGrams(2), ["NGrams 2", "sequence", "float32[4]"]),
    "a metric of a sequence": (
        lambda: blocks.Map(blocks.Scalar()) >> blocks.Metric("loss"),
        ["<Metric 'loss'>", "?[...]", "sequence of float[]"],
    ),
    "a range that is none": (lambda: blocks.OneHot(2.5), ["OneHot", "integers", "2.5"]),
    "a type as a block": (lambda: TENSOR >> blocks.TensorType([4]), ["block", "TensorType"]),
    "nothing to read": (blocks.Composition().output.reads, ["<Composition>", "block", "none"]),
    "what is no block": (lambda: blocks.Scalar() >> len, ["block", "len"]),
    "another type than was declared": (
        lambda: blocks.ForwardDeclaration(None, 4).resolve_to(blocks.Function("f", out=8)),
        ["<Function f>", "float32[4]", "float32[8]"],
    ),
    "another input than was declared": (
        lambda: blocks.ForwardDeclaration(4, None).resolve_to(blocks.Scalar()),
        ["<Scalar float[]>", "object", "float32[4]"],
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_composition_is_refused_where_it_is_written(name):
    write, words = REFUSED[name]
    with pytest.raises(blocks.BlockError) as caught:
        write()
    missing = [word for word in words if word not in caught.value.message]
    assert not missing, caught.value.message


def test_a_declaration_is_resolved_once_and_before_an_example_is_recorded(fold):
    tree = blocks.ForwardDeclaration()
    with pytest.raises(blocks.BlockError, match="to be resolved before an example"):
        tree()(fold, 1)
    with pytest.raises(blocks.BlockError, match="the declaration itself"):
        tree.resolve_to(tree())
    tree.resolve_to(blocks.Scalar())
    with pytest.raises(blocks.BlockError, match="resolved once"):
        tree.resolve_to(blocks.Scalar())


def test_arrays_and_dtypes_of_a_framework(backend, seam, array, to_numpy):
    start = array(np.arange(3), "float32")
    assert blocks.FromTensor(start).output_type == blocks.TensorType([3], start.dtype) == blocks.as_type(3)
    row = blocks.Scalar(start.dtype) >> blocks.Function(
        lambda x: x[:, None] + array([[0, 0, 0]], "float32"), out=3
    )
    block = blocks.Map(row) >> blocks.Fold(blocks.Function(functions.add), start)
    found = multifold.Fold(backend=backend).run(None, [[1, 2], []], block)
    assert to_numpy(found).tolist() == [[3, 4, 5], [0, 1, 2]]


def test_a_cell_of_a_framework_has_one_state_or_a_tuple(backend, array, to_numpy):
    begin = array([[0.0, 0.0]], "float32")
    one = multifold.Cell(lambda x, state: (2 * x, state + x), lambda: (begin,), 1)
    two = multifold.Cell(lambda x, a, b: (x, a + x, a - b), lambda: (begin, begin), 2)
    rows = blocks.Map(blocks.Vector(2))
    examples = [[[1, 2], [3, 4]], [[5, 6]]]

    def last(cell, start=None, examples=examples):
        block = rows >> blocks.RNN(cell, start) >> blocks.GetItem(1)
        return to_numpy(multifold.Fold(backend=backend).run(None, examples, block))

    ones = np.ones(2, "float32")
    assert last(one).tolist() == [[4, 6], [5, 6]]
    assert last(one, ones, [*examples, []]).tolist() == [[5, 7], [6, 7], [1, 1]]
    assert [x.tolist() for x in last(two, blocks.AllOf(blocks.Zeros(2), ones))] == [
        [[4, 6], [5, 6]],
        [[2, 3], [-1, -1]],
    ]
    with pytest.raises(blocks.BlockError, match=r"elements in the input of <RNN>.*Received none"):
        last(one, None, [[]])
    fold = multifold.Fold(backend=backend)
    (rows >> blocks.RNN(one))(fold, [[1, 2]])
    assert fold._graph.site(0).startswith(f"{__file__}:")


def test_an_op_may_be_declared(fold, to_numpy):
    double = blocks.ForwardDeclaration(None, [])
    block = blocks.Scalar() >> double() >> double()
    double.resolve_to(blocks.Function("double", out=[]))
    assert to_numpy(fold.run({"double": lambda x: 2 * x}, [1, 2], block)).tolist() == [4, 8]


def test_a_key_without_a_case_names_the_key_and_the_cases(fold):
    with pytest.raises(blocks.BlockError, match=r"<OneOf int, str>. Received <class 'float'>"):
        blocks.OneOf(type, {int: blocks.Scalar(), str: blocks.Scalar()})(fold, 1.5)


@pytest.mark.parametrize(
    ("block", "example"),
    [(blocks.Vector(2), [1, 2, 3]), (blocks.Scalar("int32"), 1.5), (blocks.Scalar("int"), 1.5)],
)
def test_an_example_of_another_shape_or_kind_is_refused(fold, block, example):
    with pytest.raises(blocks.BlockError, match="from the input of"):
        block(fold, example)


def test_a_model_of_blocks_has_the_gradients_of_the_loop(backend, seam, to_numpy):
    if "kit" in seam.gaps():
        return
    words = blocks.Map(blocks.Scalar("int") >> blocks.Function(blocks.Embedding(7, 3)))
    join = blocks.Concat() >> blocks.Function(blocks.FC(3, activation=ops.tanh))
    block = words >> blocks.AllOf(blocks.Mean(), blocks.Reduce(join)) >> blocks.Concat()
    model = blocks.Layers(block).on(backend)
    examples = [[1, 2, 3], [4], [], [5, 5, 6, 0]]

    def gradients(run):
        weights = np.random.default_rng(0).normal(size=(4, 6))
        return seam.kit.value_and_grad(lambda model: seam.kit.dot(run(model), weights), model)[1]

    folded = gradients(lambda model: multifold.Fold(backend=backend).run(model, examples, block))
    looped = gradients(lambda model: multifold.Unfold(model, backend=backend).run(None, examples, block))
    assert sorted(folded) == sorted(looped) == sorted(model.weights())
    for name in folded:
        np.testing.assert_allclose(to_numpy(folded[name]), to_numpy(looped[name]), rtol=1e-5, atol=1e-5)


def a_tree_with_metrics():
    """Return a block that sums a tree, notes each sum, and notes each leaf above 2 besides."""
    tree = blocks.ForwardDeclaration(None, [])
    noted = blocks.AllOf(blocks.Identity(), blocks.Metric("sum")) >> blocks.GetItem(0)
    large = blocks.AllOf(blocks.Identity(), blocks.Metric("large")) >> blocks.GetItem(0)
    leaf = blocks.OneOf(
        lambda x: x > 2, {True: blocks.Scalar("float32") >> large, False: blocks.Scalar("float32")}
    )
    pair = blocks.Record((tree(), tree())) >> blocks.Function(functions.add, out=[])
    tree.resolve_to(blocks.OneOf(type, {int: leaf, tuple: pair >> noted}))
    return tree()


@pytest.mark.parametrize("recorded", ["run", "traces"])
def test_metrics_are_lists_with_an_entry_for_each_example(backend, to_numpy, recorded):
    fold = multifold.Fold(backend=backend)
    block = blocks.Metrics(a_tree_with_metrics())
    examples = [((1, 2), 3), 4, 1]
    if recorded == "run":
        totals, metrics = fold.run(None, examples, block)
    else:
        totals, metrics = fold.run(None, multifold.traces(block, examples))
    assert to_numpy(totals).tolist() == [6, 4, 1]
    assert [to_numpy(x).tolist() if len(x) else [] for x in metrics["sum"]] == [[3, 6], [], []]
    assert [to_numpy(x).tolist() if len(x) else [] for x in metrics["large"]] == [[3], [4], []]


def test_a_metric_by_itself_changes_nothing(backend, to_numpy):
    fold = multifold.Fold(backend=backend)
    assert to_numpy(fold.run(None, [((1, 2), 3), 4], a_tree_with_metrics())).tolist() == [6, 4]


def test_metrics_without_a_metric_are_refused():
    with pytest.raises(blocks.BlockError, match="Expected a Metric inside of <Scalar"):
        blocks.Metrics(blocks.Scalar())


def test_layers_of_a_declared_block_have_weights(backend):
    tree = blocks.ForwardDeclaration(None, 4)
    pair = blocks.Record((tree(), tree())) >> blocks.Concat() >> blocks.Function(blocks.FC(4))
    leaf = blocks.Scalar("int") >> blocks.Function(blocks.Embedding(10, 4))
    tree.resolve_to(blocks.OneOf(type, {int: leaf, tuple: pair}))
    block = blocks.Map(tree()) >> blocks.Mean() >> blocks.Function(blocks.FC(2))
    model = blocks.Layers(block).on(backend)
    assert {name.split(".")[0] for name in model.weights()} == {"FC_2", "FC_4", "Embedding_10_4"}
    assert multifold.Fold(backend=backend).run(model, [[1, (2, 3)], [4]], block).shape == (2, 2)


def a_declared_pair(block):
    """Return a block, said by a `ForwardDeclaration` to return a pair."""
    declaration = blocks.ForwardDeclaration(output_type=PAIR_OF_FLOATS)
    declaration.resolve_to(block)
    return declaration()


PAIR_OF_FLOATS = ("float", "float")
NUMBER = blocks.Scalar("float32")
PAIRS = {
    "declared": (NUMBER >> blocks.Function(last_and_ten, out=PAIR_OF_FLOATS), 3, 33),
    "declared later": (NUMBER >> blocks.Function(last_and_ten).set_output_type(PAIR_OF_FLOATS), 3, 33),
    "a pipe": ((NUMBER >> blocks.Function(last_and_ten)).set_output_type(PAIR_OF_FLOATS), 3, 33),
    "a declaration": (a_declared_pair(NUMBER >> blocks.Function(last_and_ten)), 3, 33),
    "one case": (
        blocks.OneOf(
            type, {int: NUMBER >> blocks.Function(last_and_ten), str: blocks.Zeros(PAIR_OF_FLOATS)}
        ),
        3,
        33,
    ),
    "not None": (
        blocks.Optional(NUMBER >> blocks.Function(last_and_ten), blocks.Zeros(PAIR_OF_FLOATS)),
        3,
        33,
    ),
    "a state": (
        blocks.Map(NUMBER) >> blocks.Fold(blocks.Function(count_and_sum), blocks.Zeros(PAIR_OF_FLOATS)),
        [5, 7],
        14,
    ),
    "neighbours": (
        blocks.Map(NUMBER >> blocks.Function(last_and_ten))
        >> blocks.Reduce(blocks.Function(both_sums), blocks.Zeros(PAIR_OF_FLOATS)),
        [5, 7],
        132,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_is_said_to_return_a_pair_hands_on_two_operands(name, backend, to_numpy):
    block, example, total = PAIRS[name]
    added = block >> blocks.Function(functions.add)
    assert to_numpy(multifold.Fold(backend=backend).run(None, [example], added)).tolist() == [total]


def a_tree():
    """Return a block of trees, and the same as a function written by hand."""
    tree = blocks.ForwardDeclaration(output_type=([], []))
    leaf = blocks.Scalar("int") >> blocks.Function("leaf", out=([], []))
    pair = blocks.Record([(0, tree()), (1, tree())]) >> blocks.Function("join", out=([], []))

    def by_hand(fold, x):
        if type(x) is int:
            return fold.add("leaf", x).split(2)
        left = by_hand(fold, x[0])
        right = by_hand(fold, x[1])
        return fold.add("join", tuple(left), tuple(right)).split(2)

    return tree.resolve_to(blocks.OneOf(type, {int: leaf, tuple: pair})), by_hand


def calls_while(run):
    """Return how many functions of Python a run calls."""
    seen = []
    sys.setprofile(lambda frame, event, arg: seen.append(frame.f_code.co_name) if event == "call" else None)
    try:
        run()
    finally:
        sys.setprofile(None)
    return len(seen)


def test_a_recursion_of_blocks_calls_one_function_a_node_as_one_by_hand(backend):
    block, by_hand = a_tree()
    folds = [multifold.Fold(backend=backend) for _ in range(2)]
    example = (((1, 2), 3), (4, (5, 6)))
    for fold, fn in zip(folds, (block, by_hand), strict=True):
        fn(fold, example)  # forms of calls are learned, and the block writes its function
    counts = [calls_while(partial(*pair, example)) for pair in zip((block, by_hand), folds, strict=True)]
    assert counts[0] <= counts[1] + 2
    assert str(folds[0].schedule()) == str(folds[1].schedule())


def test_a_call_is_recorded_at_the_line_of_its_function(fold):
    double = blocks.Function("double")  # this line
    block = blocks.Map(blocks.Scalar() >> double)
    fold.run({"double": lambda x: 2 * x}, [[1, 2]], block)
    line = test_a_call_is_recorded_at_the_line_of_its_function.__code__.co_firstlineno + 1
    assert fold._graph.site(0) == f"{__file__}:{line}"


def test_blocks_that_call_ops_of_their_own_record_at_the_line_that_made_them(backend):
    numbers = blocks.Map(blocks.Scalar("float32"))
    both = blocks.AllOf(
        blocks.Sum(),
        blocks.Mean(),
    )
    block = numbers >> both >> blocks.Concat() >> blocks.AllOf(blocks.Identity(), blocks.Metric("x"))
    fold = multifold.Fold(backend=backend)
    blocks.Metrics(block)(fold, [1, 2])
    first = test_blocks_that_call_ops_of_their_own_record_at_the_line_that_made_them.__code__.co_firstlineno
    lines = [fold._graph.site(call).rpartition(":") for call in range(3)]
    assert [(file, int(line) - first) for file, _, line in lines] == [
        (__file__, 3),
        (__file__, 4),
        (__file__, 6),
    ]


def test_nobody_takes_the_source_of_another_function_for_that_of_a_block(fold):
    made = Code(dry=False).made(blocks.Map(blocks.Scalar() >> blocks.Function("double")))
    assert made.__code__.co_filename == __file__
    with pytest.raises(OSError, match="out of bounds"):
        inspect.getsource(made)


def test_a_block_that_has_recorded_is_pickled_and_written_again(backend, to_numpy):
    block = blocks.Map(blocks.Scalar()) >> blocks.Reduce(blocks.Function(subtract))
    expected = to_numpy(multifold.Fold(backend=backend).run(None, [[1, 2, 3], [4]], block)).tolist()
    again = pickle.loads(pickle.dumps(block))
    assert (
        to_numpy(multifold.Fold(backend=backend).run(None, [[1, 2, 3], [4]], again)).tolist()
        == expected
        == [-4, 4]
    )


def test_blocks_that_share_parts_are_written_once(fold):
    block = blocks.Scalar()
    for _ in range(8):  # two to the power of 8 paths, one of which runs
        block = blocks.OneOf(type, {int: block, str: block})
    code = Code(dry=False)
    assert code.made(block)(fold, 3) == 3.0 and len(code.lines) < 8 * 25


def test_a_block_with_a_call_of_its_own_runs_as_it_is(fold):
    class Twice(blocks.Map):
        def __call__(self, fold, x):
            return [*super().__call__(fold, x)] * 2

    assert (blocks.Identity() >> Twice(blocks.Scalar()))(fold, [1, 2]) == [1.0, 2.0, 1.0, 2.0]


def test_a_name_of_a_keyword_that_python_cannot_write(fold, to_numpy):
    block = blocks.Scalar() >> blocks.Function(
        lambda x, **named: named["the-factor"] * x, static={"the-factor": 3}
    )
    assert to_numpy(fold.run(None, [2], block)).tolist() == [6]


def test_a_composition_that_has_recorded_takes_no_new_connection(fold):
    composition = blocks.Composition()
    with composition.scope():
        composition.output.reads(blocks.Scalar().reads(composition.input))
    assert composition(fold, 2) == 2.0
    with pytest.raises(blocks.BlockError, match="connected before it has recorded"):
        composition.connect(composition.input, blocks.Scalar())


def run_program(backend, model, program):
    """Run a program by the executor of a backend."""
    adapter = "multifold.program" if backend == "numpy" else f"multifold_{backend}"
    return importlib.import_module(adapter).run(model, program)


@pytest.fixture
def compiles(backend):
    if backend in ("torch", "mxnet"):
        pytest.skip("it has no executor of programs")


def test_blocks_make_programs(backend, compiles, to_numpy):
    fold = multifold.Fold(backend=backend)
    examples = [((1, 2), 3), 4, (5, (6, 7))]
    program = fold.program(multifold.traces(blocks.Metrics(a_tree_with_metrics()), examples))
    totals, metrics = program.each(run_program(backend, None, program))
    assert to_numpy(totals).tolist() == [6, 4, 18]
    assert [list(x) for x in metrics["sum"]] == [[3, 6], [], [13, 18]]


def test_a_value_of_a_block_may_be_awaited(backend, to_numpy):
    block = a_tree_with_metrics()

    async def doubled(fold, tree):
        return block(fold, int(await fold.value(block(fold, tree))))

    found = multifold.Fold(backend=backend).run(None, [((1, 2), 3), (5, 6)], doubled)
    assert to_numpy(found).tolist() == [6, 11]


def test_a_block_streams_its_metrics(backend):
    found = multifold.stream(None, [(1, 2), 3], blocks.Metrics(a_tree_with_metrics()), backend=backend)
    (_, (total, metrics)), (_, (leaf, none)) = found
    assert [total.tolist(), metrics["sum"].tolist(), leaf.tolist(), none["sum"]] == [[3], [3], [3], []]


def test_a_server_answers_what_a_block_marks(backend):
    block = blocks.Metrics(a_tree_with_metrics(), labels=True)
    requests = [((1, 2), 3), 4, (5, (6, 7))]
    with multifold.Server(None, block, backend=backend) as server:
        answers = [server.submit(request) for request in requests]
        found = [answer.result(timeout=60) for answer in answers]
    assert [total.tolist() for total, _, _ in found] == [[6], [4], [18]]
    assert [list(map(float, metrics["sum"])) for _, metrics, _ in found] == [[3, 6], [], [13, 18]]
    assert found[0][2]["sum"] == [None, None]


def test_blocks_are_kept_in_files(backend, to_numpy, tmp_path):
    block = blocks.Metrics(a_tree_with_metrics())
    multifold.save(multifold.traces(block, [((1, 2), 3), 4]), tmp_path / "trees.parquet")
    totals, metrics = multifold.Fold(backend=backend).run(None, multifold.load(tmp_path / "trees.parquet"))
    assert to_numpy(totals).tolist() == [6, 4]
    assert to_numpy(metrics["sum"][0]).tolist() == [3, 6] and len(metrics["sum"][1]) == 0


def test_a_block_in_many_places_is_asked_shown_and_drawn_once():
    block = blocks.Function("f", out=3)
    for _ in range(40):  # 2 ** 40 paths lead to the first one
        block = blocks.AllOf(block, block) >> blocks.Function("g", out=3)
    assert block.output_type == blocks.TensorType((3,))
    assert str(block).count("(as above)") == 39
    assert block.svg().count("<rect") < 300
    assert not list(blocks.Layers(block).weights())
