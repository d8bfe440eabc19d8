"""Mixed precision in compiled programs: promoted rows lie in two slabs, and get gradients from both."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import multifold_jax
import numpy as np
import pytest

import multifold
from multifold import Fold, LaunchError, Unfold, ops, ragged

ROWS = {dtype: np.array([[1.0, 2.0]], dtype) for dtype in ("float16", "float32")}


def model_of(weights):
    """Return ops of which one casts to bfloat16, as a mixed model does."""
    return {
        "full": lambda x: x * weights["full"],
        "half": lambda x: x.astype(jnp.bfloat16) * weights["half"],
        "sum": lambda rows: ops.segment_sum(rows.values, rows),
    }


def chain(fold, steps):
    """Return rows of a loop in which float32 meets bfloat16, and what is asked for beside them."""
    x = fold.add("full", ROWS["float32"])
    half = fold.add("half", x)
    for _ in range(steps):
        half = fold.add("half", x)
        x = fold.add("sum", ragged([x, half, fold.add("half", half), ROWS["float16"]]))
    return {"x": x, "half": half, "both": [x, half, ROWS["float16"]]}


def loss(results):
    return sum((jnp.float32(x) * (i + 1)).sum() for i, x in enumerate(results.values()))


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_gradients_of_promoted_rows_equal_the_loop(jit):
    weights = {"full": jnp.full((2,), 2.0), "half": jnp.full((2,), -1.0, jnp.bfloat16)}
    traces = [multifold.trace(chain, steps) for steps in (2, 1, 3)]
    fold = Fold(backend="jax")
    program = fold.program(traces, model_of(weights))

    def of_program(weights):
        found = multifold_jax.run(model_of(weights), program)
        return loss(found), found

    def of_loop(weights):
        found = Unfold(model_of(weights), backend="jax").run(None, (2, 1, 3), chain)
        return loss(found), found

    of_program = jax.jit(of_program) if jit else of_program
    got, results = jax.grad(of_program, has_aux=True)(weights)
    expected, references = jax.grad(of_loop, has_aux=True)(weights)
    assert [x.dtype.name for x in results.values()] == ["float32", "bfloat16", "float32"]
    for mine, wanted in ((results, references), (got, expected)):
        assert jax.tree.map(lambda x: x.dtype, mine) == jax.tree.map(lambda x: x.dtype, wanted)
        for name, x in mine.items():
            np.testing.assert_allclose(np.float32(x), np.float32(wanted[name]), rtol=0.02, err_msg=name)


def test_other_minibatches_need_no_other_form():
    fold = Fold(backend="jax")
    model = model_of({"full": 2.0, "half": 1.0})
    for steps in ([1, 2, 3], [3, 2, 1], [2, 2, 2]):
        fold.program([multifold.trace(chain, n) for n in steps], model)
    assert len(fold.programs) == 1


def test_strict_promotion_refuses():
    fold = Fold(backend="jax")
    model = model_of({"full": jnp.ones(2), "half": jnp.ones(2, jnp.bfloat16)})
    full, half = (fold.add(op, ROWS["float32"]) for op in ("full", "half"))
    with jax.numpy_dtype_promotion("strict"), pytest.raises(LaunchError, match=r"float32(.|\n)*bfloat16"):
        fold.apply(model, [[full, half]])


def test_weak_types_do_not_decide():
    """`jnp.concatenate` takes a weak float32 for less than bfloat16; rows of a launch do not keep that."""
    model = {
        "weak": lambda x: jnp.full((len(x), 2), 1.0),
        "half": lambda x: jnp.ones((len(x), 2), "bfloat16"),
    }
    for f, own in ((Fold(backend="jax"), model), (Unfold(model, backend="jax"), None)):
        (found,) = f.apply(own, [[f.add("weak", 1.0), f.add("half", 1.0)]])
        assert found.dtype == jnp.float32
