"""What a trial leaves alone in JAX; `tests/engine/ops/test_trial.py` says what trials are for."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import multifold_jax
import numpy as np
import pytest
from flax import nnx

import multifold
from multifold import LaunchError
from multifold._engine.ops.verdicts import VERDICTS

ROWS = np.random.default_rng(0).random((3, 1, 3)).astype("float32")
TRANSFORMS = {
    "eager": lambda fn: fn,
    "jit": jax.jit,
    "grad": jax.grad,
    "jit of grad": lambda fn: jax.jit(jax.grad(fn)),
}


@pytest.fixture(params=TRANSFORMS.values(), ids=TRANSFORMS)
def transform(request):
    """A transformation of functions."""
    return request.param


def apply(op, rows=ROWS, model=None):
    """Return one group: an op of each row and its number."""
    fold = multifold.Fold(backend="jax")
    return fold.apply(model, [[fold.add(op, x, i + 1.0) for i, x in enumerate(rows)]])[0]


def test_a_right_op_passes_under_transformations(transform):
    expected = transform(lambda w: (w * ROWS[:, 0] * jnp.arange(1.0, 4)[:, None]).sum())(2.0)
    got = transform(lambda w: apply(lambda x, s: w * x * s[:, None]).sum())(2.0)
    np.testing.assert_allclose(got, expected, rtol=1e-5)


@pytest.mark.parametrize("width", [3, 1])
def test_a_wrong_op_is_refused_under_transformations(transform, width):
    with pytest.raises(LaunchError, match=r"s\[:, None\]"):
        transform(lambda w: apply(lambda x, s: w * x * s, ROWS[..., :width]).sum())(2.0)


def test_a_gradient_has_values_to_compare():
    with pytest.raises(LaunchError, match="mixes its rows"):
        jax.grad(lambda w: apply(lambda x, s: (w * x * s).sum(1), ROWS[..., :1]).sum())(2.0)


def test_a_map_over_models_passes():
    got = jax.vmap(lambda w: apply(lambda x, s: w * x * s[:, None]))(jnp.arange(4.0))
    assert got.shape == (4, 3, 3)


def test_a_key_that_an_op_closes_over_draws_by_the_number_of_rows():
    key = jax.random.key(0)
    assert apply(lambda x, s: jax.random.bernoulli(key, 0.5, x.shape) * x * s[:, None]).shape == (3, 3)
    with pytest.raises(LaunchError, match=r"s\[:, None\]"):
        apply(lambda x, s: jax.random.bernoulli(key, 0.5, x.shape) * x * s)


def test_no_transfer_to_a_device_is_implicit():
    with jax.transfer_guard("disallow"):
        assert apply(lambda x, s: x * s[:, None]).shape == (3, 3)


class Model(nnx.Module):
    """Ops that change the state of their modules."""

    def __init__(self):
        self.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        self.norm = nnx.BatchNorm(3, momentum=0.9, rngs=nnx.Rngs(0))

    def dropped(self, x, s):
        return self.drop(x) * s[:, None]

    def normed(self, x, s):
        return self.norm(x) * s[:, None]


def test_the_state_of_modules_moves_once():
    model = Model()
    for draws in (1, 2):
        apply("dropped", model=model)
        assert model.drop.rngs.count[...] == draws
    with pytest.raises(
        LaunchError, match="mixes its rows"
    ):  # rows depend on each other: so the launch says
        apply("normed", model=model)
    np.testing.assert_allclose(model.norm.mean[...], 0.1 * ROWS[:, 0].mean(0), rtol=1e-5)


# ---- programs --------------------------------------------------------------------------------------

WRONG = {
    "wide": (lambda w: lambda x, s: w * x * s, 3),
    "narrow": (lambda w: lambda x, s: w * x * s, 1),
    "of other widths": (lambda w: lambda x, s: w * x * s, 5),
    "summed": (lambda w: lambda x, s: (w * x * s).sum(1), 1),
}


def program_of(width):
    """Return a program of four rows and their numbers."""
    fold = multifold.Fold(backend="jax")
    rows = np.random.default_rng(0).random((4, 1, width)).astype("float32")
    return fold.program([[fold.add("scale", x, i + 1.0) for i, x in enumerate(rows)]])


@pytest.mark.parametrize(("make", "width"), WRONG.values(), ids=WRONG)
def test_a_program_is_verified_while_it_is_traced(transform, make, width):
    def loss(w, program):
        return multifold_jax.run({"scale": make(w)}, program)[0].sum()

    with pytest.raises(LaunchError, match=r"s\[:, None\]"):
        transform(loss)(2.0, program_of(width))


def test_a_program_tries_its_ops_with_as_many_rows_as_it_runs_them():
    def pairs(x):  # keeps its rows apart where there are few
        return x if len(x) < 4 else x + x[::-1]

    fold = multifold.Fold(backend="jax")
    program = fold.program([[fold.add(pairs, x) for x in ROWS[:2].repeat(4, 0)]])
    with pytest.raises(LaunchError, match=r"mixes its rows.* rows 1, 3, 5, \.\.\. were replaced"):
        jax.jit(lambda p: multifold_jax.run(None, p))(program)


def test_a_program_of_other_sizes_tries_no_op_again():
    def double(x):
        return 2 * x

    fold = multifold.Fold(backend="jax")
    kept = []
    for rows in (8, 40):
        program = fold.program([[fold.add(double, x) for x in ROWS[:1].repeat(rows, 0)]])
        jax.make_jaxpr(lambda p: multifold_jax.run(None, p))(program)
        kept.append(VERDICTS.of(multifold.load_backend("jax"), double, new=False).counts.copy())
    assert kept[0] == kept[1]


def test_a_program_says_of_an_op_that_it_could_not_be_tried():
    def checked(x):  # drawn numbers are positive
        return jax.pure_callback(refuse_positive, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def refuse_positive(x):
        if (x > 0).any():
            raise ValueError("expected negative numbers")
        return x

    fold = multifold.Fold(backend="jax")
    program = fold.program([[fold.add(checked, -x) for x in ROWS]])
    with pytest.warns(UserWarning, match="checked'.* could not be tried: on drawn numbers it raised"):
        found = jax.jit(lambda p: multifold_jax.run(None, p))(program)
    np.testing.assert_array_equal(found[0], -ROWS[:, 0])


def test_a_program_of_right_ops_runs(transform):
    def loss(w, program):
        return multifold_jax.run({"scale": lambda x, s: (w * x * s[:, None]).sum(1)}, program)[0].sum()

    assert transform(loss)(2.0, program_of(1)) > 0


def test_a_program_of_an_op_that_draws_by_a_key_runs():
    key = jax.random.key(0)
    model = {"scale": lambda x, s: jax.random.bernoulli(key, 0.5, x.shape) * x * s[:, None]}
    assert jax.jit(lambda p: multifold_jax.run(model, p))(program_of(1))[0].shape == (4, 1)


def test_arrays_that_an_op_binds_count_by_shape_and_dtype():
    backend = multifold.load_backend("jax")
    assert (
        backend.bound_form(jnp.ones(2))
        == backend.bound_form(jnp.zeros(2))
        != backend.bound_form(jnp.ones(3))
    )
    assert backend.bound_form(np.ones(2)) is None and backend.bound_form(len) is None
