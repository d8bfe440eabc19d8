"""`multifold.shapes`: what each op receives and returns, found without running a batch."""

from __future__ import annotations

import itertools
import pickle
from typing import Any

import numpy as np
import pytest

import multifold
from multifold import ops
from multifold.errors import LaunchError, RecordError
from multifold.models import BinaryTreeLSTM
from multifold_compat.blocks import (
    FC,
    BlockError,
    Function,
    Layers,
    Map,
    Record,
    Reduce,
    Scalar,
    Sum,
    Vector,
)

TREE = ((1, 2), (3, (4, 5)))


def encode(fold: Any, tree: Any) -> Any:
    """Record a binary tree; return the two parts of its state."""
    if isinstance(tree, int):
        return fold.add("leaf", tree).split(2)
    return fold.add("children", *encode(fold, tree[0]), *encode(fold, tree[1])).split(2)


def logits(fold: Any, tree: Any) -> Any:
    """Record the scores of a tree, and a group of two rows."""
    rows = [encode(fold, leaf)[1] for leaf in (7, 8)]
    return {"root": fold.add("logits", encode(fold, tree)[0]), "rows": rows}


@pytest.fixture
def model(seam: Any) -> Any:
    return BinaryTreeLSTM(10, 4, 3).on(seam.name)


def test_a_tree_lstm(seam: Any, model: Any) -> None:
    found = multifold.shapes(model, logits, TREE, backend=seam)
    by_op = {call.op: call for call in found}
    assert [(call.op, call.calls) for call in found] == [("leaf", 7), ("children", 4), ("logits", 1)]
    state = (multifold.RowShape((4,), "float32"),) * 2
    assert by_op["children"].operands == state * 2 and by_op["children"].results == state
    assert found["logits"][0].results == found.outputs["root"] == multifold.RowShape((3,), "float32")
    assert found.outputs["rows"] == multifold.RowShape((4,), "float32")


def test_shapes_are_those_of_a_run(seam: Any, model: Any) -> None:
    unfold = multifold.Unfold(model, backend=seam)
    result = unfold.run(None, [TREE], logits)
    found = multifold.shapes(model, logits, TREE, backend=seam).outputs
    assert {name: x.shape[1:] for name, x in result.items()} == {name: x.shape for name, x in found.items()}


def test_each_kind_of_call_is_asked_about_once(seam: Any) -> None:
    asked = itertools.count()
    model = {"f": lambda x: next(asked) * 0 or x}
    (found,) = multifold.shapes(
        model, lambda fold, xs: [fold.add("f", x) for x in xs], [1, 2, 3], backend=seam
    )
    assert next(asked) == 1 and found.calls == 3


def test_file_and_line(seam: Any) -> None:
    (found,) = multifold.shapes({"f": lambda x: x}, lambda fold, x: fold.add("f", x), 2.0, backend=seam)
    assert found.file == __file__ and found.line == test_file_and_line.__code__.co_firstlineno + 1


def test_operands_of_all_kinds(seam: Any) -> None:
    weight = np.ones((2, 3), np.float32)

    def f(x: Any, rows: Any, shared: Any, name: str, n: Any, *, scale: float) -> Any:
        return ops.segment_sum(rows.values, rows)

    def record(fold: Any, row: Any) -> Any:
        rows = multifold.ragged([row, row, row])
        return fold.add(f, row, rows, multifold.shared(weight), "a", 7, scale=0.5)

    (found,) = multifold.shapes(None, record, np.ones((1, 3), np.float32), backend=seam)
    kinds = [x.kind for x in found.operands if isinstance(x, multifold.RowShape)]
    assert kinds == ["row", "ragged", "whole", "row"] and found.operands[3] == "a"
    assert found.operands[2].shape == (2, 3) and found.keywords == {"scale": 0.5}
    assert str(found).startswith("test_operands_of_all_kinds")


class Seen(list):
    """What an op has met; a plain list would be what it was before, after a dry run."""


def test_numbers_and_arrays_are_zeros() -> None:
    seen = Seen()
    model = {"f": lambda *xs: seen.extend(xs) or xs[0]}
    multifold.shapes(model, lambda fold, x: fold.add("f", *x), (3, 0.5, np.ones((1, 2))), backend="numpy")
    assert [x.any() for x in seen] == [False] * 3


def test_an_op_that_must_see_values(seam: Any) -> None:
    def op(x: Any) -> Any:
        return x if seam.to_numpy(x).sum() == 0 else x[:, None]

    assert (
        multifold.shapes({"f": op}, lambda fold, x: fold.add("f", x), 1.5, backend=seam).outputs.shape == ()
    )


def test_the_first_mismatch_is_named(seam: Any) -> None:
    model = {"row": lambda x: x, "join": lambda x, y: x + y}

    def record(fold: Any, example: Any) -> Any:
        x, y = (fold.add("row", np.ones((1, size), np.float32)) for size in (3, 4))
        return fold.add("join", x, y)

    with pytest.raises(
        LaunchError, match=r"(?s)op 'join'.*test_shapes.py.*\(1, 3\) float32; 1 node \(1, 4\)"
    ):
        multifold.shapes(model, record, None, backend=seam)


def test_rows_that_do_not_agree(seam: Any) -> None:
    def record(fold: Any, example: Any) -> Any:
        return [fold.add(lambda x: x, np.ones((1, size), np.float32)) for size in (3, 4)]

    with pytest.raises(LaunchError, match="agree"):
        multifold.shapes(None, record, None, backend=seam)


def test_await_is_refused(seam: Any) -> None:
    async def record(fold: Any, x: Any) -> Any:
        return fold.add("f", x)

    with pytest.raises(RecordError, match="needs no values"):
        multifold.shapes({"f": lambda x: x}, record, 1.0, backend=seam)
    with pytest.raises(RecordError, match="needs no values"):
        multifold.shapes(
            {"f": lambda x: x}, lambda fold, x: fold.value(fold.add("f", x)), 1.0, backend=seam
        )


def test_a_model_is_not_changed(seam: Any, model: Any) -> None:
    before = [seam.to_numpy(x) for x in seam.arrays_of(model)]
    multifold.shapes(model, logits, TREE, backend=seam)
    for x, y in zip(before, seam.arrays_of(model), strict=True):
        np.testing.assert_array_equal(x, seam.to_numpy(y))


def test_the_table(seam: Any, model: Any) -> None:
    text = str(multifold.shapes(model, encode, TREE, backend=seam))
    assert "children(float32[4], float32[4], float32[4], float32[4]) -> (float32[4], float32[4])" in text
    assert text.endswith("It returns (float32[4], float32[4]).") and "test_shapes.py:" in text


# ---- blocks --------------------------------------------------------------------------------------


def test_blocks(seam: Any) -> None:
    block = Map(Vector(3) >> Function(FC(5))) >> Sum()
    found = multifold.shapes(Layers(block).on(seam.name), block, [[1, 2, 3]] * 3, backend=seam)
    assert [str(call) for call in found][1:] == ["total(ragged float32[5]) -> float32[5]"]
    assert [call.calls for call in found] == [3, 1] and str(found.outputs) == "float32[5]"


def test_a_declaration_that_is_wrong(seam: Any) -> None:
    block = Vector(3) >> Function("half", out=4)
    with pytest.raises(
        BlockError, match=r"Expected .*\[4\] as the output of <Function half>. Received float\[3\]"
    ):
        multifold.shapes({"half": lambda x: x}, block, [1, 2, 3], backend=seam)


def test_an_op_that_does_not_take_what_comes(seam: Any) -> None:
    block = Record((Vector(3), Vector(4))) >> Function("add")
    with pytest.raises(
        BlockError, match=r"<Function add> takes. Received \(float\[3\], float\[4\]\).* raised"
    ):
        multifold.shapes({"add": lambda x, y: x + y}, block, ([1, 2, 3], [1, 2, 3, 4]), backend=seam)


def test_a_number_in_the_place_of_a_row(seam: Any) -> None:
    block = Scalar() >> Function("same", out=1)
    with pytest.raises(BlockError, match=r"Received float\[\]"):
        multifold.shapes({"same": lambda x: x}, block, 2.0, backend=seam)


def test_a_block_knows_what_its_op_returned(seam: Any) -> None:
    twice = Function("twice")
    block = Vector(3) >> twice
    assert (twice.output_type, str(block.output_type)) == (None, "None")
    multifold.shapes({"twice": lambda x: 2 * x}, block, [1, 2, 3], backend=seam)
    assert str(twice.output_type) == str(block.output_type) == "float[3]"
    assert pickle.loads(pickle.dumps(block)).output_type == block.output_type
    with pytest.raises(BlockError, match=r"Expected float32\[4\] as the input of .* Received float\[3\]"):
        block >> Function(ops.tanh).set_input_type(4)


def test_what_another_operand_gives_stays_unknown() -> None:
    twice = Function("twice")
    multifold.shapes({"twice": lambda x: 2 * x}, Vector(3) >> twice, [1, 2, 3], backend="numpy")
    assert (Vector(4) >> twice).output_type is None
    multifold.shapes({"twice": lambda x: 2 * x}, Vector(4) >> twice, [1, 2, 3, 4], backend="numpy")
    assert str((Vector(4) >> twice).output_type) == "float[4]"
    assert twice.output_type is None  # it is float[3] or float[4], by what goes in


def test_a_tuple_that_was_not_declared_is_not_taken_apart_later() -> None:
    model = {"both": lambda x: (x, 2 * x)}
    both = Scalar() >> Function("both")
    multifold.shapes(model, both, 1.0, backend="numpy")
    assert both.output_type is None
    assert [x.tolist() for x in multifold.Fold(backend="numpy").run(model, [1.0], both)] == [[1.0], [2.0]]


def test_looking_at_a_block_does_not_change_it() -> None:
    block = Map(Function("half")) >> Reduce(Function("add"))
    model = {"half": lambda x: x / 2, "add": lambda x, y: x + y}
    multifold.shapes(model, block, [1.0, 2.0], backend="numpy")
    assert "float[]" in str(block) and block.output_type is not None
    with pytest.raises(BlockError, match="whose type is not known"):
        multifold.Fold(backend="numpy").run(model, [[]], block)
