"""What cannot be recorded is refused with a hint, and leaves nothing behind."""

from __future__ import annotations

import numpy as np
import pytest

import multifold
from multifold import Fold, RecordError, ragged, shared, static


@pytest.fixture
def columns(fold):
    """Return a function that gives all that was recorded, to see that nothing was added."""
    names = ("signature", "refs", "ints", "floats", "arrays", "lengths", "members", "loose", "codes")
    return lambda: {name: list(getattr(fold._graph, name)) for name in names}


REFUSED = {
    "an array of three rows": (lambda f: f.add("f", np.ones((3, 2))), r"\(3, 2\).*x\[None\].*shared\(x\)"),
    "an array of no rows": (lambda f: f.add("f", np.ones((0, 2))), r"\(0, 2\)"),
    "an array without dimensions": (lambda f: f.add("f", np.array(1.0)), r"\(\).*x\[None\]"),
    "an array of objects": (lambda f: f.add("f", np.array([None])), "object"),
    "an array of three rows in a list": (lambda f: f.add("f", [1, np.ones((3, 2))]), r"\(3, 2\)"),
    "an array of three rows in ragged": (lambda f: f.add("f", ragged([np.ones((3, 2))])), r"\(3, 2\)"),
    "a node as keyword": (lambda f: f.add("f", 1, h=f.add("g", 2)), "keyword.*Node.*positional"),
    "nodes inside a keyword": (lambda f: f.add("f", 1, hs=[{"h": f.add("g", 2)}]), "Node.*positional"),
    "a static node": (lambda f: f.add("f", static([f.add("g", 2)])), "Node.*positional"),
    "a shared operand as keyword": (lambda f: f.add("f", 1, w=shared(1)), "Shared.*positional"),
    "a ragged operand as keyword": (lambda f: f.add("f", 1, w=ragged([1])), "Ragged.*positional"),
    "a row shape that is an int": (lambda f: f.add("f", ragged([], row_shape=3)), "row_shape=3"),
    "a row shape of a shape and an int": (
        lambda f: ragged([], row_shape=((3,), 3)),
        r"\(\(3,\), 3\).*pair",
    ),
    "a set": (lambda f: f.add("f", {1, 2}), r"set.*multifold.static\(x\)"),
    "an int of more than 64 bits": (lambda f: f.add("f", 2**63), "64 bits.*9223372036854775808"),
    "one of them behind others": (lambda f: f.add("f", f.add("g", 1), 2, 1 << 70), "64 bits"),
    "no name and no callable": (lambda f: f.add(3, 1), "op=3"),
    "None as op": (lambda f: f.add(None, 1), "op=None"),
    "a shared node in ragged": (lambda f: f.add("f", ragged([f.add("g", 1).no_batch()])), "no_batch"),
    "a string in ragged": (lambda f: f.add("f", ragged(["a"])), "str"),
    "a list in ragged": (lambda f: f.add("f", ragged([[1]])), "list"),
    "split into none": (lambda f: f.add("f", 1).split(0), "n=0"),
    "split into half": (lambda f: f.add("f", 1).split(1.5), "n=1.5"),
    "split into True": (lambda f: f.add("f", 1).split(True), "n=True"),
    "an index of a list": (lambda f: f.add("f", 1)[[0]], r"\[0\]"),
    "an index of two": (lambda f: f.add("f", 1)[0, 1], r"\(0, 1\)"),
    "the truth of a node": (lambda f: bool(f.add("f", 1)), "truth"),
    "an unknown layout": (lambda f: f.unroll(CELL, 1, [1.0], layout="CTN"), "layout='CTN'"),
    "steps that are a number": (lambda f: f.unroll(CELL, 3, 7), r"shape \(1, 3, C\).*shape \(\)"),
    "no steps": (lambda f: f.unroll(CELL, 0, []), "length=0"),
    "too few steps": (lambda f: f.unroll(CELL, 3, [1.0, 2.0]), "3 steps.*2"),
    "steps of another axis": (
        lambda f: f.unroll(CELL, 3, np.ones((3, 1, 2))),
        r"\(1, 3, C\).*NTC.*\(3, 1, 2\)",
    ),
    "too many layers' states": (
        lambda f: f.unroll(multifold.Stack((CELL, CELL)), 1, [1.0], [[1.0]] * 3),
        "2 layers.*3",
    ),
    "layers' states that are no list": (
        lambda f: f.unroll(multifold.Stack((CELL, CELL)), 1, [1.0], np.ones(2)),
        "2 layers.*an ndarray",
    ),
    "an input of one axis": (lambda f: f.unroll(CELL, 3, np.ones(3)), r"\(1, 3, C\).*\(3,\)"),
    "one direction's states": (
        lambda f: f.unroll(multifold.Bidirectional(CELL, CELL, max), 1, [1.0], [[1.0]]),
        "2 directions.*1",
    ),
    "too many states": (lambda f: f.unroll(CELL, 1, [1.0], [1.0, 2.0]), "1 states.*2"),
    "nothing to reduce": (lambda f: f.reduce("join", []), "one node to reduce by op 'join'.*none"),
    "a node to reduce": (lambda f: f.reduce("join", f.add("f", 1)), "split"),
    "a set to reduce": (lambda f: f.reduce("join", [{1}, {2}]), "a set"),
}
CELL = multifold.Cell(lambda x, h: (h, h), lambda: (np.zeros((1, 2)),), 1)


@pytest.mark.parametrize(("add", "words"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_recorded_is_refused_with_a_hint(add, words):
    with pytest.raises(RecordError, match=f"(?s){words}") as caught:
        add(Fold(backend="numpy"))
    assert "\n\nHint: " in str(caught.value)


@pytest.mark.parametrize("operand", ["stranger", 1 << 63, np.ones((2, 1)), {1}], ids=str)
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: [x]], ids=["plain", "nested"])
def test_a_refused_call_records_nothing(fold, columns, equal, operand, wrap):
    if isinstance(operand, str):
        operand = Fold(backend="numpy").add("f", 1)
    node = fold.add("f", 1.0, 2.0, 3.0, 4.0)
    fold.add("f", node, 1, 2.0, node)  # later calls of these types take the quick path
    before = columns()
    for last in (operand, wrap(operand)):
        for operands in ((node, 1, 2.0, last), (node, 1, last, node), (last, 1, 2.0, node), (last,)):
            with pytest.raises(RecordError):
                fold.add("f", *operands)
            with pytest.raises(RecordError):
                fold.add("f", *operands, k=1)
    assert columns() == before
    equal(fold.apply({"f": lambda a, b, c, d: a}, [node]), [1])


NOT_SAID = {
    "no rows": ([], None, None, "without rows"),
    "a dtype beside rows": ([1.0], None, "int64", "beside dtype='int64'"),
    "no dtype": ([], (2,), "flote", "'flote'"),
    "a dtype too few": ([], ((2,), ()), ("int64",), r"\(\(2,\), \(\)\), dtype=\('int64',\)"),
}


@pytest.mark.parametrize(("items", "shape", "dtype", "received"), NOT_SAID.values(), ids=NOT_SAID)
def test_what_is_missing_must_be_said_of_a_ragged_operand(items, shape, dtype, received):
    with pytest.raises(RecordError, match=f"(?s){received}.*Hint: "):
        ragged(items, row_shape=shape, dtype=dtype)


@pytest.mark.parametrize("key", [slice(None, None, 0), slice("a", "b"), slice(0.5), slice([1])], ids=str)
def test_a_slice_that_no_result_has_is_refused_when_it_is_recorded(key, fold):
    with pytest.raises(RecordError, match=r"node\[.*:.*\]\.\n\nHint: node\[a:b\]"):
        fold.add("f", 1)[key]


def test_slices_of_numpy_integers_are_those_of_python():
    node = Fold().add("f", 1)
    assert node[np.int64(1) : np.int32(2)] == node[1:2] != node[1:2:1]


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, np.uint64(2**63)])
def test_numbers_of_more_than_64_bits_are_refused(fold, number):
    for record in (
        lambda: fold.add("f", number),
        lambda: fold.add("f", [number]),
        lambda: fold([[number]]),
    ):
        with pytest.raises(RecordError, match=f"at most 64 bits. Received {number}"):
            record()
    assert len(fold) == 0


def test_calls_are_recorded_from_code_of_no_module():
    fold = Fold(backend="numpy")
    exec("node = fold.add('f', 1.0, {'a': 2})", names := {"fold": fold})
    assert repr(names["node"]) == "<node 0 of f>"


@pytest.mark.parametrize(("x", "fits"), [(-(2**63), True), (2**63 - 1, True), (-(2**63) - 1, False)])
def test_an_int_operand_has_64_bits(x, fits):
    fold = Fold(backend="numpy")
    for one in (x, [x]):
        if fits:
            fold.add("f", one)
        else:
            with pytest.raises(RecordError):
                fold.add("f", one)


def test_a_shared_node_is_no_row_of_a_ragged_operand():
    fold = Fold(backend="numpy")
    with pytest.raises(RecordError, match=r"one row in ragged\(...\). Received <node 0 of f.no_batch"):
        fold.add("g", multifold.ragged([fold.add("f", 1.0).no_batch()]))
