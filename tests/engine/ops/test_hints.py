"""Hints of ops that failed: which row of `multifold._engine.ops.hints.HINTS` speaks, on each framework."""

from __future__ import annotations

import numpy as np
import pytest

import multifold
from multifold import Fold, LaunchError, RecordError, Unfold, ops, ragged
from multifold._engine.ops import hints
from multifold._engine.record.kinds import ARRAY, FLOAT
from multifold._engine.record.signature import Signature, Slot
from multifold._numpy.backend import NumpyBackend


def row(width):
    return np.ones((1, width), np.float32)


class Model:
    def none(self, x, y):
        return x + y

    def both(self, x, y):
        return x + y

    def branch(self, x):
        return x if x > 0 else -x

    def children(self, x, kids):
        return x + kids.values

    def negated(self, kids):
        return -kids

    def broken(self, x):
        return x.no_such_attribute

    def refuses(self, x):
        raise ValueError("it failed")


MISTAKES = {
    "a `return` is missing": (lambda f: f.add("none", 1.0, None), "is a `return` missing"),
    "too few operands": (lambda f: f.add("both", 1.0), "each operand as one argument of the op"),
    "too many operands": (lambda f: f.add("branch", 1.0, 2.0), "each operand as one argument of the op"),
    "a list for two operands": (lambda f: f.add("both", [1.0, 2.0]), r"`\*nodes`"),
    "a string": (lambda f: f.add("none", "a", 1), "map words to integers"),
    "ragged rows as an array": (lambda f: f.add("negated", ragged([1.0])), "its `values`"),
    "the op's own mistake": (lambda f: f.add("broken", 1.0), "a breakpoint inside the op"),
    "one row that fails": (lambda f: f.add("refuses", 1.0), "a breakpoint inside the op"),
}


@pytest.mark.parametrize(("record", "words"), MISTAKES.values(), ids=MISTAKES)
def test_the_hint_of_a_failed_op_is_about_what_it_received(fold, record, words):
    with pytest.raises(LaunchError, match=f"Hint: .*{words}"):
        fold.apply(Model(), [record(fold)])


def test_a_product_of_other_widths_has_the_hint_of_widths(backend, array):
    weights = array(np.ones((3, 16), np.float32))
    fold = Fold(backend=backend)
    nodes = [fold.add("product", row(15)) for _ in range(4)]
    with pytest.raises(LaunchError, match=r"Hint: .*compare their widths"):
        fold.apply({"product": lambda x: ops.matmul(x, weights)}, [nodes])


def test_children_beside_nodes_are_told_apart_by_segment_ids(fold):
    nodes = [fold.add("children", row(3), ragged([row(3)] * n)) for n in (2, 2)]
    with pytest.raises(LaunchError, match=r"Hint: .*ops.take\(x, kids.segment_ids\).*ops.segment_sum"):
        fold.apply(Model(), [nodes])


@pytest.mark.parametrize(
    "op",
    [lambda x, kids: x + kids.values.sum(0), lambda x, kids: x + ops.softmax(kids.values, axis=0)[:4]],
    ids=["sum", "softmax"],
)
def test_an_op_that_mixes_the_children_of_nodes_is_told_how_to_keep_them_apart(op):
    fold = Fold(backend="numpy")
    nodes = [fold.add("mix", row(3) * i, ragged([row(3) * i] * 2)) for i in range(1, 5)]
    with pytest.raises(LaunchError, match=r"Hint: .*ops.segment_softmax\(scores, kids\)"):
        fold.apply({"mix": op}, [nodes])


def test_a_launch_without_any_row_is_told_to_say_their_shape():
    fold = Fold(backend="numpy")
    nodes = [fold.add("mix", row(3), ragged([], (32,))) for _ in range(3)]
    with pytest.raises(LaunchError, match=r"Hint: no node of this launch has a row.*row_shape=\(width,\)"):
        fold.apply({"mix": lambda x, kids: x + ops.segment_sum(kids.values, kids)}, [nodes])


def test_a_decision_on_many_rows_is_made_while_recording(fold):
    with pytest.raises(LaunchError, match=r"Hint: .*which is no single number"):
        fold.apply(Model(), [[fold.add("branch", float(i)) for i in range(3)]])


@pytest.mark.parametrize(
    ("operand", "words"),
    [(None, "`return` missing"), ([1.0], "a list of operands"), (ragged([1.0]), "its `values`")],
)
def test_functions_of_multifold_get_the_same_hints(fold, operand, words):
    with pytest.raises(LaunchError, match=f"Hint: .*{words}"):
        fold.apply({"tanh": multifold.ops.tanh}, [fold.add("tanh", operand)])


def test_the_twin_is_named_where_an_op_received_several_rows(fold):
    with pytest.raises(LaunchError, match=r"Hint: .*multifold.Unfold\(model\)"):
        fold.apply(Model(), [[fold.add("refuses", float(i)) for i in range(3)]])
    with pytest.raises(LaunchError, match="Hint: a breakpoint inside the op"):
        Unfold(Model(), backend=fold._backend).add("refuses", 1.0)


def test_a_class_is_no_model(fold):
    with pytest.raises(LaunchError, match=r"Hint: the model is a class: pass an instance of it, Model\("):
        fold.apply(Model, [fold.add("branch", 1.0)])


def test_an_op_that_returns_no_array_is_told_what_is_missing(fold):
    with pytest.raises(LaunchError, match="Hint: is a `return` missing in the op"):
        fold.apply({"op": lambda x: None}, [fold.add("op", 1.0)])
    with pytest.raises(LaunchError, match=r"Hint: .*\.tolist\(\)"):
        fold.apply({"op": lambda x: [1.5]}, [fold.add("op", 1.0)])


def test_a_number_of_the_other_type_is_named():
    def refuses(x):
        raise TypeError("expected scalar type Float but found Long")

    fold = Fold(backend="numpy")
    for x, words in [(1, r"type int: record float\(x\)"), (1.5, r"type float: record int\(x\)")]:
        with pytest.raises(LaunchError, match=f"Hint: operand 0 is of {words}"):
            fold.apply({"op": refuses}, [fold.add("op", x)])


def test_a_setting_of_an_op_is_no_row():
    def join(x, axis):
        return np.concatenate([x, x], axis)

    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match=r"Hint: .*is a keyword, dim=1"):
        fold([[fold.add(join, row(2), 1) for _ in range(2)]])


# ---- calls that are in each other's place --------------------------------------------------------

made = multifold.traces(lambda fold, x: fold.add("f", x), [1.0])
MISPLACED = {
    "trace": (lambda f: multifold.trace(1.0, abs), "the function comes first"),
    "traces": (lambda f: multifold.traces([1.0], abs), "the function comes first"),
    "traces and a function": (lambda f: f.run(None, made, abs), "leave it out"),
    "a trace and a function": (lambda f: f.run(None, made[0], abs), "leave it out"),
    "one example": (lambda f: f.run(None, 1.0, abs), r"\[example\]"),
    "a list of a minibatch": (lambda f: f.run(None, [multifold.merge(made)]), "run as it is"),
    "examples without a function": (lambda f: f.check(None, [object()]), "with their function"),
    "a node for a list of nodes": (lambda f: ragged(f.add("f", 1.0)), r"ragged\(\[node\]\)"),
    "a number for a list": (lambda f: ragged(3), r"ragged\(\[node\]\)"),
}


@pytest.mark.parametrize(("call", "words"), MISPLACED.values(), ids=MISPLACED)
def test_what_is_in_the_place_of_another_is_put_right(call, words):
    with pytest.raises(
        RecordError, match=f"(?s)Received an? .*Hint: .*{words}|Received Minibatch.*{words}"
    ):
        call(Fold(backend="numpy"))


def test_what_a_generator_raises_is_not_taken_for_a_missing_list():
    with pytest.raises(TypeError, match="unsupported operand"):
        ragged(x + "a" for x in [1])


SAID = {
    "two arguments": (lambda x: x, "Hint: a function of a run takes two arguments: fn(fold, example)."),
    "swapped": (lambda x, fold: fold.add("f", x), "Hint: the fold comes first: fn(fold, example)."),
}


@pytest.mark.parametrize(("fn", "note"), SAID.values(), ids=SAID)
def test_what_python_says_of_a_function_has_a_note(fn, note):
    with pytest.raises((TypeError, AttributeError)) as caught:
        Fold(backend="numpy").run({"f": abs}, [1.0], fn)
    assert note in caught.value.__notes__


def test_recursion_that_is_too_deep_is_told_what_to_do():
    def deep(fold, n):
        return deep(fold, n - 1)

    with pytest.raises(RecordError, match=r"recursion limit.*\n\nHint: .*sys\.setrecursionlimit"):
        Fold(backend="numpy").run(None, [1], deep)
    with pytest.raises(RecursionError) as caught:
        multifold.trace(deep, 1)
    assert "sys.setrecursionlimit" in caught.value.__notes__[-1]


# ---- what frameworks say ------------------------------------------------------------------------


HALF = np.zeros(3, np.float16)


def failure(text, *, kind=FLOAT, leaf=(), guessed=False, rows=2):
    """Return the failure of an op on one operand, with what a framework says of it."""
    signature = Signature("op", (Slot(kind),) * len(leaf), None, {})
    return hints.Failure(ValueError(text), NumpyBackend(), abs, None, signature, leaf, rows, guessed)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("operands could not be broadcast together", "s[:, None] makes a column"),
        ("size 3 must match size 2 at non-singleton dimension 1", "s[:, None] makes a column"),
        ("Incompatible shapes: (2,), (3,)", "s[:, None] makes a column"),
        ("dimensions must be equal", "s[:, None] makes a column"),
        ("Dimension out of range (expected to be in [-1, 0], but got 1)", "s[:, None] makes a column"),
        ("axis 1 is out of bounds for array of dimension 1", "s[:, None] makes a column"),
        ("modified by an inplace operation", "must not change them in place"),
        ("assignment destination is read-only", "must not change them in place"),
        ("index 20 is out of bounds for axis 0", "compare the integers"),
        ("indices[0] = 7 is not in [0, 5)", "compare the integers"),
        ("Expected concatenating dimensions in the range [-1, 1), but got 1", "s[:, None] makes a column"),
        ("arrays used as indices must be of integer (or boolean) type", "record int(x)"),
        ("mat1 and mat2 shapes cannot be multiplied", "compare their widths"),
        ("it failed", "multifold.Unfold(model) runs each call by itself"),
    ],
)
def test_what_a_framework_says_has_a_hint(text, words):
    vector = (np.zeros(2),)
    assert words in hints.hint_for(failure(text, leaf=vector))
    guessed = hints.hint_for(failure(text, guessed=True))
    assert guessed.startswith("the fold met no array") and guessed.endswith("Fold(backend=...).")


@pytest.mark.parametrize(
    "text", ["only one element can be converted to Python scalars", "a real number, not"]
)
def test_rows_that_are_taken_for_a_number_are_told_apart(text):
    assert "which is no single number" in hints.hint_for(failure(text))


def test_arrays_of_numpy_are_named_where_there_are_some():
    text = "expected m1 and m2 to have the same dtype"
    rows = (np.zeros((2, 3)),)
    assert "x.astype(numpy.float32)" in hints.hint_for(failure(text, kind=ARRAY, leaf=rows))
    assert "astype" not in hints.hint_for(failure(text, leaf=rows))


def test_an_operator_that_a_class_lacks_is_no_matter_of_dtypes():
    text = "unsupported operand type(s) for -: 'float' and 'array'"
    rows = (np.zeros((2, 3)),)
    lacks = failure(text, leaf=rows)._replace(op=lambda x: x + HALF)
    assert "float16" not in hints.hint_for(lacks)
    assert "float16" in hints.hint_for(lacks._replace(error=TypeError("float and half")))


def test_an_error_of_another_form_still_says_what_failed():
    def op(x):
        raise TypeError("call[int]() takes other values")

    with pytest.raises(LaunchError, match="takes other values"):
        Fold(backend="numpy").run(None, [1, 2], lambda fold, x: fold.add(op, x))
