"""Straight functions of JAX programs are found in transforms, and do what the loop does."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.numpy import tanh
from multifold_jax.lazy.recorder import FoundJax

import multifold

KEYS = jax.random.split(jax.random.key(0), 3)
PARAMETERS = {
    "words": jax.random.normal(KEYS[0], (10, 4)),
    "inner": {"join": jax.random.normal(KEYS[1], (8, 4)) * 0.5},
}
TREES = [(1, 2), ((3, 4), 5), 6, ((1, (2, 3)), (4, 5))] * 5


def leaf(parameters, word):
    return tanh(parameters["words"][word])


def combine(parameters, left, right):
    return jnp.tanh(jnp.concatenate([left, right]) @ parameters["inner"]["join"])


def encode(tree, parameters):
    if isinstance(tree, int):
        return leaf(parameters, tree)
    return combine(parameters, encode(tree[0], parameters), encode(tree[1], parameters))


@jax.jit
def jitted_leaf(parameters, word):
    return parameters["words"][word] * 2


jitted = jax.jit(combine)


def encode_jitted(tree, parameters):
    if isinstance(tree, int):
        return jitted_leaf(parameters, tree)
    return jitted(parameters, *map(partial(encode_jitted, parameters=parameters), tree))


def inline(tree, parameters):
    if isinstance(tree, int):
        return leaf(parameters, tree)
    left, right = inline(tree[0], parameters), inline(tree[1], parameters)
    both = jnp.concatenate([left, right]) @ parameters["inner"]["join"]
    return jnp.where(both > 0, both, jax.nn.sigmoid(both) - 1)


def gradients(run, trees, parameters=PARAMETERS):
    """Return the gradients of a batched program."""
    return jax.grad(lambda p: jnp.square(run(trees, parameters=p)).sum())(parameters)


def of_loop(fn, trees, parameters=PARAMETERS):
    """Return those of the loop."""
    return jax.grad(lambda p: sum(jnp.square(fn(tree, p)).sum() for tree in trees))(parameters)


def assert_same(found, wanted):
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


PROGRAMS = {"functions": encode, "jitted": encode_jitted, "in one function": inline}


@pytest.mark.parametrize("name", PROGRAMS)
def test_functions_are_found_in_a_transform(name):
    program, before = PROGRAMS[name], vars(jnp)["tanh"]
    run = multifold.batched(program, backend="jax")
    for trees in (TREES, TREES[::-1]):
        assert_same(gradients(run, trees), of_loop(program, trees))
    assert len(run.explain()) == 4  # all leaves, and a launch for each height
    assert sum(cell.calls for cell in run.function.found.cells.values()) >= 55
    assert jnp.tanh is before is tanh  # functions of JAX are put back


def test_a_table_is_looked_up_by_one_kind_of_call():
    run = multifold.batched(encode, backend="jax")
    gradients(run, TREES)
    assert sum(isinstance(kind.call, FoundJax) for kind in run.recorder.known.values()) == 2


@pytest.mark.parametrize("program", [encode, encode_jitted])
def test_outside_of_transforms_the_program_runs_as_a_loop_until_cells_are_found(program):
    run = multifold.batched(program, backend="jax")
    with pytest.warns(UserWarning, match="ran as a loop"):
        run(TREES, parameters=PARAMETERS)
    gradients(run, TREES)
    found = run(TREES, parameters=PARAMETERS)
    assert_same(found, jnp.stack([program(tree, PARAMETERS) for tree in TREES]))
    assert bool(len(run.explain())) is (program is encode)  # what is jitted takes 5 us there


def numbers(x, scale):
    return jnp.tanh(x) * scale, 3


def mapped(x, scale):
    return jax.lax.map(jnp.sin, x * scale)


def mask(x, scale):
    return jnp.where(x * scale > 0, 1.0, 0.0)


def applied(x, scale):
    return (x * scale).astype(jnp.bfloat16) * mask(x, scale)


slope = jax.grad(lambda scale, x: jnp.tanh(x * scale).sum())


class Jitted:
    """Has a method that is jitted."""

    @partial(jax.jit, static_argnums=0)
    def step(self, x, scale):
        return jnp.tanh(x * scale)

    def go(self, x, scale):
        return self.step(numbers(x, scale)[0], scale) * 2


class Static:
    """Has a function that is jitted."""

    @staticmethod
    @jax.jit
    def step(x, scale):
        return jnp.tanh(x * scale)


def of_static(x, scale):
    return Static.step(numbers(x, scale)[0], scale) * 2


NOT_FOUND = {
    "a jitted function of a class": of_static,
    "returns a number": lambda x, scale: numbers(x, scale)[0] * numbers(x, scale)[1],
    "takes functions": mapped,
    "of a weak dtype": lambda x, scale: applied(x, scale) * mask(x, scale),
    "places in a mask": lambda x, scale: numbers(x, scale)[0] * len(jnp.where(numbers(x, scale)[0] > 0)[0]),
    "a derivative": lambda x, scale: slope(scale, mask(x, scale)) * x,
    "a jitted method": Jitted().go,
    "differentiates": lambda x, scale: jax.grad(lambda s: numbers(x, s)[0].sum())(scale) * x,
}


config = {"factor": 2.0}


def recurrent(x, scale):
    steps = jnp.zeros((3, 4))
    for i in range(3):
        steps = steps.at[i].set(jnp.tanh(steps[i - 1] * scale + x * config["factor"]))
    return steps.at[0].multiply(x)


def test_what_a_loop_stores_at_an_index_is_found():
    xs = [*jax.random.normal(KEYS[2], (20, 4))]
    run = multifold.batched(recurrent, backend="jax")
    for _ in range(3):
        found = jax.grad(lambda scale: jnp.square(run(xs, scale=scale)).sum())(1.5)
        wanted = jax.grad(lambda scale: sum(jnp.square(recurrent(x, scale)).sum() for x in xs))(1.5)
        np.testing.assert_allclose(found, wanted, rtol=1e-4)
    assert max(cell.calls for cell in run.function.found.cells.values()) == 60


class Stepping:
    """Stores its steps at an index that it counts, where it computes them."""

    def step(self, h, scale):
        self.number += 1
        return jnp.tanh(h * scale)

    def __call__(self, x, scale):
        self.number = 0
        steps = jnp.zeros((3, 4))
        steps = steps.at[self.number].set(self.step(x, scale) + 1)
        return steps.at[self.number].set(self.step(x, scale) * 2)


def counting(x, scale):
    number = 0

    def step(h):
        nonlocal number
        number += 1
        return jnp.tanh(h * scale)

    steps = jnp.zeros((3, 4))
    steps = steps.at[number].set(step(x) + 1)
    return steps.at[number].set(step(x) * 2)


def with_nothing(x, scale):
    return jnp.tanh(x * scale) + x, None


def of_one_array(x, scale):
    found, nothing = with_nothing(x, scale)
    return found if nothing is None else nothing


class Keeping:
    """Keeps what it has computed on itself."""

    def __call__(self, x, scale):
        self.last = with_nothing(x, scale)[0]
        return self.last * 2


ORDERS = {
    "index": Stepping(),
    "variable": counting,
    "one array and None": of_one_array,
    "kept": Keeping(),
    "config": recurrent,
}


@pytest.mark.parametrize("name", ORDERS)
def test_programs_of_found_cells_do_what_the_loop_does(name):
    program, xs = ORDERS[name], [*jax.random.normal(KEYS[2], (20, 4))]
    run = multifold.batched(program, backend="jax")
    for _ in range(3):
        found = jax.value_and_grad(lambda scale: jnp.square(run(xs, scale=scale)).sum())(1.5)
        wanted = jax.value_and_grad(lambda s: sum(jnp.square(program(x, s)).sum() for x in xs))(1.5)
        np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_is_not_straight_does_what_it_does_in_the_loop(name):
    program, xs = NOT_FOUND[name], [*jax.random.normal(KEYS[2], (20, 4))]
    run = multifold.batched(program, backend="jax")
    for _ in range(3):
        found, own = jax.value_and_grad(lambda scale: run(xs, scale=scale).sum())(1.5)
        wanted, slope = jax.value_and_grad(lambda scale: sum(program(x, scale).sum() for x in xs))(1.5)
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose((found, own), (wanted, slope), rtol=0.02)


def test_parameters_that_change_during_the_run_are_those_of_each_call():
    def program(word, parameters):
        found = doubled(parameters, jnp.asarray(word))
        parameters["words"] = parameters["words"] + 1
        return found

    doubled = multifold.cell(lambda parameters, word: parameters["words"][word] * 2)
    found = multifold.batched(program, backend="jax")([1, 2, 3], parameters=dict(PARAMETERS))
    mine = dict(PARAMETERS)
    assert_same(found, jnp.stack([program(word, mine) for word in (1, 2, 3)]))


def dense(x, scale):
    return jnp.tanh(x * scale) * scale


def halved(x):
    return x / 2


def doubled(x):
    x *= 2
    return jnp.asarray(x)


OF_NUMPY = {
    "of JAX": (lambda x, scale: dense(x, scale) * 1, 20),
    "of NumPy": (lambda x, scale: dense(halved(x), scale) * isinstance(halved(x), np.ndarray), 0),
    "in place": (lambda x, scale: dense(doubled(x), scale) * x, 0),
}


@pytest.mark.parametrize("name", OF_NUMPY)
def test_functions_of_arrays_of_numpy_are_found_if_they_return_those_of_jax(name):
    program, least = OF_NUMPY[name]
    rows = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    run = multifold.batched(program, backend="jax")
    for _ in range(2):
        found = jax.grad(lambda scale: run([*rows.copy()], scale=scale).sum())(1.5)
        assert_same(found, jax.grad(lambda s: sum(program(x, s).sum() for x in rows.copy()))(1.5))
    assert sum(cell.calls for cell in run.function.found.cells.values() if cell.name == "dense") >= least


def test_numbers_of_a_dtype_are_refused_as_in_the_loop():
    def program(i, scale):
        return narrow(i * 40) * scale

    run = multifold.batched(program, backend="jax")
    for way in (lambda s: run([*range(20)], scale=s), lambda s: [program(i, s) for i in range(20)]):
        with pytest.raises(OverflowError):
            jax.grad(lambda scale, way=way: sum(x.sum() for x in way(scale)))(1.5)


def narrow(i):
    return jnp.asarray(i, jnp.uint8) * jnp.ones(4)


def test_functions_are_put_back_after_an_error():
    def program(x):
        raise ValueError("of the user")

    before = jnp.tanh
    with pytest.raises(ValueError, match="of the user"):
        multifold.batched(program, backend="jax")([jnp.ones(2)])
    assert jnp.tanh is before
