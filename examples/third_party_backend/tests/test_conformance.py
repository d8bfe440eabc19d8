"""MLX passes multifold's conformance suite, found by name through the entry point."""

from __future__ import annotations

import re
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import mlx_multifold
import pytest

import multifold
from multifold.testing import Conformance


class TestConformance(Conformance):
    backend = "mlx"


def test_a_fold_finds_mlx_by_the_first_array_or_model():
    for model, x in (({"f": mx.square}, mx.array([[3.0]])), (nn.Sequential(mx.square), 3.0)):
        fold = multifold.Fold()
        (rows,) = fold.apply(model, [[fold.add("f" if "f" in model else "layers.0", x)]])
        assert isinstance(rows, mx.array)
        assert rows.item() == 9


def test_gradients_of_a_module_leave_its_weights_alone():
    model = nn.Linear(3, 2)
    kit = mlx_multifold.MlxBackend.kit
    before = mx.array(model.weight)
    _, gradients = kit.value_and_grad(lambda m: m(mx.ones((1, 3))).sum(), model)
    assert gradients["weight"].tolist() == [[1, 1, 1]] * 2
    assert gradients["bias"].tolist() == [1, 1]
    assert mx.array_equal(model.weight, before)


def test_check_compares_the_gradients_of_a_module():
    fold = multifold.Fold()
    fold.check(nn.Linear(3, 2), [[fold.add("__call__", mx.ones((1, 3))) for _ in range(3)]])


def test_bfloat16_rows_stay_bfloat16():
    fold = multifold.Fold()
    (rows,) = fold([[fold.add(mx.square, mx.full((1, 2), x, mx.bfloat16)) for x in (2, 3)]])
    assert rows.dtype == mx.bfloat16
    assert rows.tolist() == [[4, 4], [9, 9]]


def test_the_missing_cells_are_a_declared_gap():
    assert list(mlx_multifold.MlxBackend().gaps()) == ["cell"]
    with pytest.raises(multifold.BackendError, match="no cell"):
        multifold.Fold("mlx").unroll(nn.GRU(3, 4), 1, [mx.ones((1, 3))])


PROJECT = Path(__file__).resolve().parents[3]


def blocks(page):
    """Return the programs on a page."""
    return re.findall(r"```python\n(.*?)```", (PROJECT / page).read_text(), re.DOTALL)


def test_the_smallest_adapter_of_the_guide_runs():
    names = {}
    exec(blocks("backends/README.md")[0], names)
    fold = multifold.Fold(backend=names["MlxBackend"]())
    squares = [fold.add(mx.square, x) for x in (1.0, 2.0, 3.0)]
    (rows,) = fold([[fold.add(mx.add, squares[0], x) for x in squares[1:]]])
    assert rows.tolist() == [5, 10]


def test_the_program_of_the_readme_has_gradients():
    (program,) = blocks("examples/third_party_backend/README.md")
    names = {}
    exec(program, names)
    assert names["gradients"]["layer"]["weight"].shape == (8, 16)
