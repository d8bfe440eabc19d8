"""Definitions in the manner of TensorFlow Fold, by its names and keywords, with the import changed."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import multifold
from multifold import ops
from multifold_compat import blocks as td


def add(x, y):
    return x + y


def subtract(x, y):
    return x - y


def first_difference(x, y):
    return x[:, 0] - y


def square(x):
    return x * x


def negative(x):
    return -x


def zeros(n):
    return np.zeros(n, "float32")


def plain(x):
    """Return a result with lists in place of arrays; a number is an array of one row."""
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    if isinstance(x, (list, tuple)):
        return type(x)(map(plain, x))
    return x.tolist() if isinstance(x, np.ndarray) else [x] if isinstance(x, (int, float)) else x


@pytest.fixture
def evaluate(backend):
    """Return a function that gives what a block makes of one example, as Python numbers and containers."""

    def evaluate(block, example):
        ((_, found),) = multifold.stream(None, [example], td.as_block(block), backend=backend)
        return plain(found)

    return evaluate


def test_blocks_have_the_keywords_of_the_predecessor(evaluate):
    numbers = td.Map(elem_block=td.InputTransform(py_fn=float) >> td.Scalar(dtype="float32", name="number"))
    added = td.Fold(combine_block=td.Function(add), start_block=td.Zeros(output_type=[]))
    joined = td.Reduce(combine_block=td.Function(add), default_block=zeros([]))
    block = td.Record(named_children=[("x", numbers >> added), ("y", numbers >> joined)], name="both")
    assert evaluate(block >> td.Function(subtract, "difference"), {"x": [1, "2"], "y": [5]}) == [-2]
    case = td.OneOf(
        key_fn=lambda x: x > 0, case_blocks=(td.Zeros([]), td.Scalar("float32")), pre_block=None
    )
    assert evaluate(case, 3) == [3]
    pairs = (numbers, numbers) >> td.ZipWith(elem_block=td.Function(add)) >> td.Sum(name="sum")
    assert evaluate(pairs, ([1, 2], [3, 4])) == [10]


def test_an_item_of_a_record_is_referred_to_by_its_key(evaluate):
    record = td.Record([("a", td.Scalar()), ("b", td.Scalar())])
    difference = td.Function(subtract)
    composition = td.Composition([record, difference])
    composition.connect(composition.input, record)
    composition.connect((record["b"], record["a"]), difference)
    composition.connect(difference, composition.output)
    assert evaluate(composition, {"a": 1, "b": 5}) == [4]


def test_a_record_takes_slices_of_what_has_an_order(evaluate):
    pair = (td.Scalar("float32"), td.Scalar("float32")) >> td.Concat()
    assert evaluate(td.Record([(0, td.Scalar()), (slice(1, 3), pair)]), [1, 2, 3]) == ([1], [[2, 3]])
    three = (td.Scalar(), td.Scalar(), td.Scalar())
    block = (
        three >> td.Record([(slice(0, 2), td.Function(add)), (2, td.Identity())]) >> td.Function(subtract)
    )
    assert evaluate(block, (1, 2, 5)) == [-2]


def test_an_endless_sequence_has_ngrams(evaluate):
    pairs = td.Scalar("float32") >> td.Broadcast() >> td.NGrams(2) >> td.Map(td.Function(add))
    block = (pairs, td.Map(td.Scalar("float32"))) >> td.ZipWith(td.Function(subtract)) >> td.Sum()
    assert evaluate(block, (3, [1, 2])) == [9]


@pytest.mark.parametrize("key", [True, np.True_, np.bool_(False), 1])
def test_a_key_of_a_case_is_whatever_equals_it(key, evaluate):
    block = td.OneOf(td.GetItem(0), {True: td.GetItem(1) >> td.Scalar(), False: td.Zeros([])})
    assert evaluate(block, (key, 5)) == [5 * bool(key)]


def test_cases_that_return_nothing_or_an_empty_tuple(evaluate):
    empty = td.OneOf(td.Identity(), {0: td.Record([]), 1: td.Record([])})
    assert evaluate(td.AllOf(empty, td.Scalar()) >> td.GetItem(1), 1) == [1]
    void = td.OneOf(td.Identity(), {0: td.Void(), 1: td.Void()})
    assert evaluate(td.AllOf(void, td.Scalar()) >> td.GetItem(1), 1) == [1]


def test_types_have_the_attributes_of_the_predecessor():
    pair = td.TupleType([td.TensorType([]), td.TensorType([3], "int32")])
    assert (
        pair
        == td.TupleType(td.TensorType([]), td.TensorType([3], "int32"))
        == td.as_type(([], [3, "int32"]))
    )
    assert (len(pair), pair[1].ndim, next(iter(pair)), pair[1:]) == (
        2,
        1,
        td.as_type([]),
        td.TupleType(pair[1]),
    )
    assert td.SequenceType(3).element_type == td.TensorType((3,)) == td.FC(3).output_type
    assert td.Map(td.Scalar()).element_block.output_type == td.as_type("float")


def test_a_result_that_nobody_reads_is_refused():
    composition = td.Composition()
    unread = td.Vector(2, name="unread")
    composition.connect(composition.input, unread)
    composition.connect(composition.input, composition.output)
    with pytest.raises(td.BlockError, match=r"'unread'> of <Composition> to be read.*of its float32\[2\]"):
        composition >> td.Identity()


def test_metrics_and_void_need_no_reader(evaluate):
    composition = td.Composition()
    with composition.scope():
        x = td.Map(td.Scalar("float32")).reads(composition.input)
        td.Map(td.Function(negative) >> td.Metric("negative")).reads(x)
        td.Void().reads(x)
        composition.output.reads(td.Sum().reads(x))
    assert evaluate(td.Metrics(composition), [1, 2]) == ([3], {"negative": [-1, -2]})


def test_a_metric_has_labels_if_it_is_given_some(evaluate):
    words = td.Map((td.Scalar("float32"), td.Identity()) >> td.Metric("loss")) >> td.Void()
    found = evaluate(td.Metrics(words, labels=True), [(1, "one"), (2, "two")])
    assert found == (None, {"loss": [1, 2]}, {"loss": ["one", "two"]})
    with pytest.raises(td.BlockError, match=r"\(\?\[...\], object\) as the input of <Metric 'x'>"):
        (td.Scalar(), td.Scalar()) >> td.Metric("x")


def test_an_lstm_cell_as_a_composition(evaluate):
    """The cell of the predecessor's documentation; gates of known values in place of layers."""

    def gate(value):
        return td.Function(lambda x: 0 * x[:, :2] + value, out=2)

    cell = td.Composition()
    with cell.scope():
        state = td.Identity().reads(cell.input[1])
        x = td.Concat().reads(cell.input[0], state[1])
        i, f, o, g = (gate(value).reads(x) for value in (0.5, 0.25, 2.0, 4.0))
        c = td.Function(lambda c, i, f, g: c * f + i * g, out=2).reads(state[0], i, f, g)
        h = td.Function(lambda c, o: c * o, out=2).reads(c, o)
        cell.output.reads(h, td.Identity().reads(c, h))
    letters = td.InputTransform(lambda s: [ord(c) for c in s]) >> td.Map(td.OneHot(97, 100))
    block = letters >> td.RNN(cell, initial_state=td.AllOf(zeros(2), zeros(2))) >> td.GetItem(1)
    assert evaluate(block, "ab") == ([[2.5, 2.5]], [[5, 5]])
    assert evaluate(letters >> td.RNN(cell) >> td.GetItem(1), "ab") == ([[2.5, 2.5]], [[5, 5]])


def test_sentiment_with_metrics_at_the_root_and_below(evaluate):
    """The tree model of the predecessor's notebook, which calls itself in two places."""
    tree = td.ForwardDeclaration(name="tree")

    def logits_and_state():
        word = td.GetItem(0) >> td.Scalar("float32") >> td.Function(lambda x: x[:, None], out=1)
        pair = (tree(), tree()) >> td.Function(add, out=1)
        return td.OneOf(len, [(1, word), (2, pair)]) >> td.AllOf(
            td.Function(negative, out=1), td.Identity()
        )

    def noted(is_root, is_neutral):
        block = td.Composition(name=f"predict(is_root={is_root}, is_neutral={is_neutral})")
        with block.scope():
            label = block.input[0]
            logits = td.GetItem(0).reads(block.input[1])
            state = td.GetItem(1).reads(block.input[1])
            loss = td.Function(first_difference, out=[])
            td.Metric("all_loss").reads(loss.reads(logits, label))
            if is_root:
                td.Metric("root_loss").reads(loss)
            if not is_neutral:
                td.Metric("hits").reads(loss)
            block.output.reads(state)
        return block

    def embed(is_root):
        return td.OneOf(
            key_fn=lambda pair: pair[0] == 2,
            case_blocks=(noted(is_root, is_neutral=False), noted(is_root, is_neutral=True)),
            pre_block=(td.Scalar("float32"), logits_and_state()),
        )

    model = embed(is_root=True)
    tree.resolve_to(embed(is_root=False))
    example = (4, [(2, [5]), (1, [7])])
    state, metrics = evaluate(td.Metrics(model), example)
    assert state == [[12]]
    assert metrics == {"all_loss": [-7, -8, -16], "root_loss": [-16], "hits": [-8, -16]}


def test_record_of_an_identity_a_name_and_a_place(evaluate):
    """The record of the predecessor's documentation, of layers whose weights `Layers` makes."""
    letters = td.InputTransform(lambda s: [ord(c) for c in s])
    embedded = td.Map(td.Scalar("int32") >> td.Function(td.Embedding(128, 3)))
    name = letters >> embedded >> td.Fold(td.Concat() >> td.Function(td.FC(4)), td.FromTensor(zeros(4)))
    fields = [("id", td.Scalar("int32") >> td.Embedding(16, 5)), ("name", name), ("location", td.Vector(2))]
    block = td.Record(fields) >> td.Concat() >> td.FC(6, activation=ops.tanh)
    example = {"id": 8, "name": "Joe Smith", "location": (2.5, 7.0)}
    assert block.output_type == td.TensorType([6])
    assert block.blocks[1].output_type is None and str(block).count("FC_4") == 1
    assert td.Layers(block).weights()["FC_6.weight"].shape == (11, 6)
    (row,) = multifold.Fold(backend="numpy").run(td.Layers(block), [example], block).tolist()
    assert len(row) == 6


@pytest.mark.parametrize("case", ["nested scopes", "slice of blocks", "declared void"])
def test_other_definitions(case, evaluate):
    if case == "nested scopes":
        outer = td.Composition()
        with outer.scope():
            scalar = td.Scalar("float32").reads(outer.input)
            inner = td.Composition().reads(scalar)
            with inner.scope():
                inner.output.reads(
                    td.Function(square).reads(inner.input), td.Function(negative).reads(inner.input)
                )
            outer.output.reads(td.Function(add).reads(inner))
        assert evaluate(outer, 3) == [6]
    elif case == "slice of blocks":
        outer = td.Composition().set_input_type(td.VoidType())
        with outer.scope():
            five = td.AllOf(*[np.array(t, "float32") for t in range(5)]).reads(outer.input)
            outer.output.reads(td.Function(add).reads(five[1:-1:2]))
        assert evaluate(outer, None) == [4]
    else:
        start = td.ForwardDeclaration(td.VoidType(), td.TensorType([]))
        total = td.ForwardDeclaration(td.SequenceType(td.TensorType([])), td.TensorType([]))
        block = td.Map(td.Scalar("float32")) >> total() >> td.Function(negative)
        total.resolve_to(td.Fold(td.Function(add), start()))
        start.resolve_to(td.FromTensor(np.ones([], "float32")))
        assert evaluate(block, [3, 4]) == [-8]


PREDECESSORS = """
Compiler Tensor Scalar Vector InputTransform SerializedMessageToTree OneHot OneHotFromList Optional
Composition Pipe Record AllOf FromTensor Function Concat Zeros Map Fold RNN Reduce Sum Min Max Mean
Broadcast Zip ZipWith NGrams Nth GetItem Length Slice ForwardDeclaration OneOf Metric Identity Void FC
Embedding FractalNet ScopedLayer TensorType VoidType PyObjectType TupleType SequenceType
BroadcastSequenceType Plan TrainPlan EvalPlan InferPlan define_plan_flags plan_default_params
convert_to_block convert_to_type canonicalize_type EdibleIterator group_by_batches epochs parse_spec
build_optimizer_from_params create_variable_scope IOBase Block Layer ResultType Loom Weaver LoomOp
PassThroughLoomOp TypeShape
"""
"""The public names of its modules `blocks` and `loom`, by their documentation."""


@pytest.mark.parametrize("name", PREDECESSORS.split())
def test_each_name_of_the_predecessor_is_in_the_table(name):
    page = (Path(__file__).parents[2] / "docs" / "blocks.md").read_text().partition("## All blocks")[2]
    blocks, others = page.split("## From TensorFlow Fold")  # of which the second has one row for the first
    named = any(
        re.search(rf"\b{name}\b", row.split("|")[1]) for row in blocks.splitlines() if row[:1] == "|"
    )
    rows = [row for row in others.splitlines() if row[:1] == "|"]
    said = [row for row in rows if re.search(rf"\b{name}\b", row.split("|")[1])]
    assert named or said
    same = bool(named) or any("the same name" in row for row in said)
    assert hasattr(td, name) == same or name in ("Layer", "Compiler")
