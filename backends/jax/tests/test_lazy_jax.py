"""Plain programs of JAX: cells, operators and indexing, with values and gradients of the loop."""

# ruff: noqa: PLW0108 - programs call transforms as people do

from __future__ import annotations

import re
from collections import OrderedDict, defaultdict
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optree
import pytest
from jax.numpy import tanh
from multifold_jax.eager import COMPILATIONS

import multifold
from multifold import LaunchError, RecordError

KEYS = jax.random.split(jax.random.key(0), 3)
PARAMETERS = {
    "words": jax.random.normal(KEYS[0], (10, 4)),
    "join": jax.random.normal(KEYS[1], (8, 4)) * 0.5,
}
TREES = [(1, 2), ((3, 4), 5), 6, ((1, (2, 3)), (4, 5))]
XS = [jax.random.normal(key, (4,)) for key in jax.random.split(KEYS[2], 5)]


@multifold.cell
def leaf(parameters, word):
    return parameters["words"][word]


@multifold.cell
def combine(parameters, left, right):
    return jnp.tanh(jnp.concatenate([left, right]) @ parameters["join"])


def encode(tree, parameters):
    if isinstance(tree, int):
        return leaf(parameters, jnp.asarray(tree))
    return combine(parameters, encode(tree[0], parameters), encode(tree[1], parameters))


@multifold.cell
def layer(x):
    return jnp.tanh(x) * 2


def as_loop(fn, xs, **shared):
    """Compare a batched program with the loop; return it."""
    run = multifold.batched(fn, join="list", backend="jax")
    found, wanted = run(xs, **shared), [fn(x, **shared) for x in xs]
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert getattr(x, "dtype", None) == getattr(y, "dtype", None)
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)
    return run


def test_a_recursive_network_has_the_values_and_gradients_of_the_loop():
    run = as_loop(encode, TREES, parameters=PARAMETERS)
    batched = jax.grad(lambda p: jnp.square(jnp.stack(run(TREES, parameters=p))).sum())(PARAMETERS)
    loop = jax.grad(lambda p: sum(jnp.square(encode(tree, p)).sum() for tree in TREES))(PARAMETERS)
    for name in PARAMETERS:
        np.testing.assert_allclose(batched[name], loop[name], rtol=1e-4, atol=1e-6)
    assert len(run.explain()) == 4  # all leaves, and a launch for each height


PROGRAMS = {
    "operators": lambda x: (2 * layer(x) - x / (layer(x) + 3), -layer(x) @ x, layer(x) ** 2, abs(layer(x))),
    "comparisons": lambda x: (layer(x) > 0, layer(x) == x, layer(x) >= 0.5),
    "methods": lambda x: (
        layer(x).sum(),
        layer(x).reshape(2, 2).T,
        layer(x).max(),
        layer(x).astype(jnp.int32),
    ),
    "parts": lambda x: (layer(x)[1], layer(x)[-2:], layer(x)[None], [*layer(x)]),
    "attributes": lambda x: (layer(x).shape, layer(x).ndim, len(layer(x)), layer(x).size),
    "structures": lambda x: {"a": layer(x), "b": [layer(x).sum(), 3, None]},
    "reads": lambda x: (float(layer(x)[0]), int(layer(x).argmax()), layer(x).tolist()),
    "text": lambda x: float(f"{layer(x)[1]:.2f}"),
    "numbers": lambda x: layer(x) * np.float32(2) + 1,
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_returns_what_the_loop_returns(program):
    as_loop(PROGRAMS[program], XS)


def test_a_loop_on_values_goes_on_for_each_example():
    def program(x):
        steps = 0
        while float(abs(x).sum()) > 0.5 and steps < 10:
            x, steps = layer(x) * 0.3, steps + 1
        return x, steps

    as_loop(program, XS)


def test_a_cell_compiles_for_few_numbers_of_rows():
    run = multifold.batched(layer, backend="jax")
    for count in (3, 4, 3):
        run([*XS[:count]])
    (kind,) = run.recorder.known.values()
    assert kind.call.run._cache_size() == 1  # three rows are padded to four


@multifold.op
def of_rows(x):
    return x @ PARAMETERS["join"][:4]


def test_a_cell_that_is_written_for_rows_gets_all_of_them():
    run = as_loop(lambda x: of_rows(x[None]), XS)
    assert len(run.explain()) == 1


def test_a_cell_of_rows_that_mixes_them_is_refused():
    mixing = multifold.op(lambda x: x - x.mean(0))
    with pytest.raises(LaunchError, match="mixes its rows"):
        multifold.batched(lambda x: mixing(x[None]), backend="jax")(XS)


FUNCTIONS = {
    "jnp": lambda x: jnp.where(layer(x) > 0, x, jnp.stack([layer(x), x]).mean(0)),
    "nn": lambda x: jax.nn.softmax(jax.nn.relu(layer(x))),
    "lax": lambda x: jax.lax.dynamic_slice(layer(x), (1,), (2,)),
    "linalg": lambda x: jnp.linalg.norm(layer(x)),
    "special": lambda x: jax.scipy.special.logsumexp(layer(x)),
    "imported": lambda x: tanh(layer(x)),
    "jitted": lambda x: halved({"x": layer(x)}),
    "of forms": lambda x: (jnp.shape(layer(x)), jnp.ndim(layer(x)), jnp.size(layer(x), 0)),
    "ufunc": lambda x: jnp.add(layer(x), x),
    "by values": lambda x: (jnp.nonzero(layer(x) > 0)[0], len(jnp.where(layer(x) > 0)[0])),
}
halved = jax.jit(lambda parts: parts["x"] / 2)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_jax_on_pending_arrays_is_recorded(name):
    as_loop(FUNCTIONS[name], XS)
    assert type(jnp.tanh) is type(halved) and tanh is jnp.tanh  # they are put back


def test_a_function_that_takes_functions_names_cells():
    with pytest.raises(RecordError, match=r"(?s)cannot be recorded.*make a cell"):
        multifold.batched(lambda x: jax.lax.map(jnp.tanh, layer(x)), backend="jax")(XS)


def test_a_variable_that_a_cell_uses_and_that_changes_is_refused():
    scale = [1.0]

    @multifold.cell
    def scaled(x):
        return x * scale[0]

    def program(x):
        h = scaled(x)
        scale[0] += 1
        return h + scaled(x)

    with pytest.raises(RecordError, match="changed during the run"):
        multifold.batched(program, backend="jax")(XS)


@multifold.cell
def named_by_order(**found):
    return by_order(found)


@multifold.cell
def by_order(found):
    return sum(x * 10**i for i, x in enumerate(found.values()))


@multifold.cell
def by_pair(pair):
    return pair.left["z"] + by_order(pair.left["a"])


@multifold.cell
def nests(x):
    pair = Pair({"q": x * 2, "b": None}, defaultdict(list, y=[x], d=x))
    return {"z": x, "a": pair, 3: OrderedDict(w=x, c=x)}


class Pair(NamedTuple):
    """Holds two nested values."""

    left: Any
    right: Any


DICTS = {
    "argument": lambda x: (by_order({"b": layer(x), "a": x}), by_order({"a": layer(x), "b": x})),
    "keys of several types": lambda x: by_order({1: layer(x), "a": x}),
    "keywords": lambda x: (named_by_order(b=layer(x), a=x), named_by_order(a=layer(x), b=x)),
    "of a cell": lambda x: nests(layer(x)),
    "nested in an argument": lambda x: by_pair(Pair({"z": layer(x), "a": {"y": x, "b": x * 2}}, None)),
    "keywords for parameters": lambda x: combine(PARAMETERS, right=layer(x), left=x),
    "of the program": lambda x: {"b": layer(x), "a": {2: x, "c": layer(x)[0]}},
}


@pytest.mark.parametrize("name", DICTS)
def test_a_dict_keeps_the_order_of_its_keys(name):
    run = multifold.batched(DICTS[name], join="list", backend="jax")
    for found, wanted in zip(run(XS), map(DICTS[name], XS), strict=True):
        assert re.sub(r"Array[^)]*", "", repr(found)) == re.sub(r"Array[^)]*", "", repr(wanted))
        for x, y in zip(optree.tree_leaves(found), optree.tree_leaves(wanted), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5)


SCALE = 2.0


@multifold.cell
def by_scale(x):
    return x * SCALE


class Network:
    """Holds an array that is no argument of its method."""

    def __init__(self):
        self.weights = jnp.ones(4)

    def step(self, x):
        return x * self.weights


def test_what_a_cell_finds_around_it_is_that_of_each_run(monkeypatch):
    run = multifold.batched(by_scale, backend="jax")
    np.testing.assert_allclose(run(XS), 2 * jnp.stack(XS))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    np.testing.assert_allclose(run(XS), 3 * jnp.stack(XS))


def inner(x):
    return x * SCALE


def test_what_jax_cannot_flatten_costs_no_level_of_the_stack():
    def levels():
        try:
            return levels() + 1
        except RecursionError:
            return 0

    before = levels()
    assert not any(multifold.load_backend("jax").hosts(x) for x in [{int: 1}, {int: 1, 2: 3}] * 9)
    assert levels() == before


@pytest.mark.parametrize("reads", [float, int, bool, np.asarray])
def test_a_cell_that_reads_a_value_is_refused(reads):
    cell = multifold.cell(lambda x: x * 2 if reads(x[0]) > 0 else x)
    with pytest.raises(RecordError, match="reads a value of an array"):
        multifold.batched(lambda x: cell(x), backend="jax")(XS)


def test_a_cell_that_draws_numbers_of_numpy_is_refused():
    with pytest.raises(RecordError, match="draws random numbers"):
        multifold.batched(multifold.cell(lambda x: x * np.random.random()), backend="jax")(XS)


def test_what_a_function_inside_of_a_cell_finds_is_that_of_each_run(monkeypatch):
    run = multifold.batched(multifold.cell(lambda x: inner(x) + 0), backend="jax")
    np.testing.assert_allclose(run(XS), 2 * jnp.stack(XS))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    np.testing.assert_allclose(run(XS), 3 * jnp.stack(XS))


def test_a_cell_sees_new_arrays_of_its_object_in_the_next_run():
    network = Network()
    run = multifold.batched(network.step, cells=[Network.step], backend="jax")
    np.testing.assert_allclose(run(XS), jnp.stack(XS))
    network.weights = network.weights * 5
    np.testing.assert_allclose(run(XS), 5 * jnp.stack(XS))


class Scale:
    """Is called with its factor, one of its class at first."""

    factor = 2.0

    def __call__(self, x):
        return x * self.factor

    def half(self, x):
        return x * self.factor / 2


def by_default(x, factor=2.0, *, more=1.0):
    return x * factor * more


DEFAULT = multifold.cell(by_default)
CALLING = multifold.cell(lambda scale, x: scale(x))

TRIPLE = "__call__", lambda self, x: 3 * x
CHANGES = {  # what makes a program of an object, what is changed, and how
    "defaults": (lambda scale: DEFAULT, by_default, "__defaults__", (3.0,)),
    "keyword": (lambda scale: DEFAULT, by_default, "__kwdefaults__", {"more": 1.5}),
    "call": (lambda scale: multifold.cell(lambda x: scale(x)), Scale, *TRIPLE),
    "call of an argument": (lambda scale: lambda x: CALLING(scale, x), Scale, *TRIPLE),
    "class": (multifold.cell, Scale, "factor", 3.0),
    "object": (multifold.cell, None, "factor", 3.0),
    "method": (lambda scale: multifold.cell(scale.half), None, "factor", 3.0),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_cell_is_made_of_is_that_of_each_run(name, monkeypatch):
    make, owner, attribute, value = CHANGES[name]
    scale = Scale()
    run = multifold.batched(make(scale), backend="jax")
    first = run(XS)
    monkeypatch.setattr(owner or scale, attribute, value)
    np.testing.assert_allclose(run(XS), 1.5 * first, rtol=1e-6)


def test_an_array_of_numpy_is_taken_as_it_is_when_it_is_recorded():
    def program(x):
        own = np.ones(4, np.float32)
        h = layer(x) + own
        own += 1
        return h

    as_loop(program, XS)


def test_an_index_out_of_range_takes_the_entry_next_to_it_as_in_jax():
    as_loop(lambda x: (layer(x)[4], layer(x)[-9], layer(x)[-4]), XS)


def test_a_pending_array_is_an_array_to_a_program_and_none_to_jax():
    def program(x):
        y = layer(x)
        return x + y, isinstance(y, jax.Array), isinstance(y, (int, np.ndarray)), jnp.asarray(y)

    as_loop(program, XS)


def test_an_example_waits_inside_of_settings_that_no_other_one_sees():
    def program(x):
        with jax.enable_x64(True), jax.default_matmul_precision("highest"):
            y = layer(jnp.asarray(np.asarray(x), jnp.float64) / 3)
            y = y * 3 if y[0] > 0 else y
        return y, layer(x), jnp.arange(2)

    assert "read alone" not in str(as_loop(program, XS).explain())


def test_a_call_runs_in_the_settings_that_it_is_made_in():
    @multifold.cell
    def counted(x):
        return x + jnp.arange(4)

    def program(x):
        y = counted(x)
        with jax.numpy_dtype_promotion("strict"):
            return counted(y)

    with pytest.raises(ValueError, match="strict"):
        multifold.batched(program, backend="jax")(XS)


def test_settings_that_an_example_changes_for_good_are_seen_by_those_after_it():
    def program(x):
        before = jax.config.jax_default_matmul_precision
        jax.config.update("jax_default_matmul_precision", "highest" if x[0] > 0 else None)
        own = bool(layer(x)[1] > 0), jax.config.jax_default_matmul_precision == "highest"
        jax.config.update("jax_default_matmul_precision", before)
        return own

    as_loop(program, XS)


def test_what_an_example_keeps_stands_for_its_value_afterwards():
    kept = []
    multifold.batched(lambda x: kept.append(layer(x)), backend="jax", join="list")(XS)
    for h, x in zip(kept, XS, strict=True):
        np.testing.assert_allclose(np.asarray(h), layer(x), rtol=1e-6)
        np.testing.assert_allclose(h + 1, layer(x) + 1, rtol=1e-6)
        np.testing.assert_allclose(jnp.tanh(jnp.asarray(h)), jnp.tanh(layer(x)), rtol=1e-6)


def total(x):
    return layer(x).sum()


@multifold.cell
def slope(x):
    return jax.grad(lambda y: (jnp.tanh(y) * 2).sum())(x)


TRANSFORMS = {
    "grad": lambda x: jax.grad(total)(x),
    "hessian": lambda x: jax.hessian(lambda y: total(y))(x),
    "jacfwd": lambda x: jax.jacfwd(lambda y: layer(y))(x),
    "vjp": lambda x: jax.vjp(layer, x)[1](jnp.ones(4))[0],
    "jvp": lambda x: jax.jvp(layer, (x,), (x,))[1],
    "vmap": lambda x: jax.vmap(lambda y: layer(y))(jnp.stack([x, x])),
    "jit": lambda x: jax.jit(lambda y: layer(y))(x),
    "scan": lambda x: jax.lax.scan(lambda y, _: (layer(y), None), x, None, 3)[0],
    "in a cell": lambda x: slope(layer(x)),
    "cond": lambda x: jax.lax.cond(True, lambda: layer(x), lambda: x),
    "grad of another": lambda x: jax.grad(lambda y: (y * layer(x)).sum())(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_cell_inside_of_a_transform_is_a_function_as_any_other(name):
    as_loop(lambda x: TRANSFORMS[name](x) + layer(x), XS)


def closure(x):
    h = layer(x)
    return jax.grad(lambda y: (h * y).sum())(x)


def decided(x):
    h = layer(x)
    return jax.grad(lambda y: y.sum() if h[0] > 0 else -y.sum())(x)


def mixed(x):
    h = layer(x)
    return jax.grad(lambda y: combine(PARAMETERS, y, h).sum())(x)


def branched(x):
    h = layer(x)
    return jax.lax.cond(True, lambda: combine(PARAMETERS, x, h), lambda: x)


UNTRANSFORMED = {
    "pending": lambda x: jax.grad(lambda y: jnp.tanh(y).sum())(layer(x)),
    "pending and traced": mixed,
    "closure": closure,
    "decided": decided,
    "vmap": lambda x: jax.vmap(jnp.sin)(layer(x)),
    "cond": branched,
}


@pytest.mark.parametrize("name", UNTRANSFORMED)
def test_a_transform_that_meets_a_pending_array_is_refused(name):
    with pytest.raises(RecordError, match=r"Hint: make a cell|as arguments"):
        multifold.batched(UNTRANSFORMED[name], backend="jax")(XS)


def test_a_program_with_transforms_runs_inside_of_a_transform():
    def loss(scale, way):
        return sum((jax.grad(total)(x) * layer(scale * x)).sum() for x in way)

    def batched(scale):
        run = multifold.batched(lambda x: (jax.grad(total)(x) * layer(scale * x)).sum(), backend="jax")
        return run(XS).sum()

    np.testing.assert_allclose(jax.grad(batched)(1.5), jax.grad(loss)(1.5, XS), rtol=1e-4)


CONSTRUCTORS = {
    "r_": lambda x, y: jnp.r_[x, y],
    "vectorize": lambda x, y: jnp.vectorize(jnp.sin)(y),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_what_jax_makes_an_array_of_is_refused_only_where_its_gradient_would_be_lost(name):
    run = as_loop(lambda x, scale: CONSTRUCTORS[name](x, layer(x * scale)), XS, scale=2.0)
    with pytest.raises(RecordError, match=r"(?s)cannot be recorded.*make a cell"):
        jax.grad(lambda scale: jnp.stack(run(XS, scale=scale)).sum())(2.0)


UPDATES = {
    "of a computed array": lambda x, y: y.at[1].set(0.0) + y.at[jnp.array([0, 2])].add(y[:2]),
    "by computed values": lambda x, y: (x.at[0].set(y[1]), jnp.ones(3).at[(1,)].multiply(y.sum())),
    "at a computed index": lambda x, y: jnp.zeros(4).at[y.argmax()].set(1.0) + x.at[y.argmin()].get(),
    "one after the other": lambda x, y: y.at[0].min(x[0]).at[1].max(0.5).at[2].power(2).at[3].divide(3.0),
    "out of range": lambda x, y: (y.at[9].get(mode="fill", fill_value=7.0), y.at[9].add(1.0, mode="drop")),
    "of slices": lambda x, y: jnp.stack([y, x]).at[:, 1:3].subtract(y[:2]).at[..., -1].set(y[0]),
}


@pytest.mark.parametrize("name", UPDATES)
def test_updates_at_an_index_are_recorded(name):
    run = as_loop(lambda x, scale: UPDATES[name](x, layer(x * scale)), XS, scale=2.0)
    assert len(run.explain()) < 9  # whatever the number of examples

    def loss(found):
        return sum(jnp.sin(y).sum() for y in jax.tree.leaves(found))

    found = jax.grad(lambda scale: loss(run(XS, scale=scale)))(2.0)
    wanted = jax.grad(lambda scale: loss([UPDATES[name](x, layer(x * scale)) for x in XS]))(2.0)
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_what_has_no_gradient_is_made_an_array_inside_of_a_transform():
    run = multifold.batched(
        lambda x, scale: (x * jnp.array([layer(x).argmax()]) * scale).sum(), backend="jax"
    )
    wanted = sum((x * layer(x).argmax()).sum() for x in XS)
    np.testing.assert_allclose(jax.grad(lambda scale: run(XS, scale=scale).sum())(2.0), wanted, rtol=1e-5)


FAILING = {
    "vmap": lambda x, y: jax.vmap(jnp.sin)(y),
    "index": lambda x, y: x[y.argmax()],
    "operand": lambda x, y: jax.lax.cond(True, jnp.sin, jnp.cos, y),
}


@pytest.mark.parametrize("name", FAILING)
def test_an_error_of_jax_is_one_of_multifold_that_the_program_does_not_catch(name):
    def program(x):
        try:
            return FAILING[name](x, layer(x))
        except (TypeError, IndexError):
            return x

    with pytest.raises(RecordError, match="cannot be recorded"):
        multifold.batched(program, backend="jax")(XS)


def test_a_cell_that_returns_a_number_too_large_for_jax_is_refused():
    cell = multifold.cell(lambda x: (x, 2**40))
    with pytest.raises(RecordError, match="returns 1099511627776, which no array of JAX holds"):
        multifold.batched(lambda x: cell(x)[0], backend="jax")(XS)


class Keeping:
    """Has cells that count, keep, and note a size."""

    def __init__(self):
        self.n = self.size = self.mask = None

    def counts(self, x):
        self.n = (self.n or 0) + 1
        return x * self.n

    def caches(self, x):
        self.mask = jnp.cumsum(jnp.ones(4)) if self.mask is None else self.mask
        return x * self.mask

    def notes(self, x):
        self.size = x.shape
        return x * self.size[0]


@pytest.mark.parametrize(("name", "what"), [("counts", "'n'"), ("caches", "'mask'")])
def test_a_cell_that_counts_or_keeps_a_tracer_is_refused(name, what):
    model = Keeping()
    cell = multifold.cell(getattr(model, name))
    with pytest.raises(RecordError, match=f"changes attribute {what} of Keeping"):
        multifold.batched(cell, backend="jax")(XS)
    assert getattr(model, what.strip("'")) is None


def test_a_cell_may_note_a_size():
    found = multifold.batched(multifold.cell(Keeping().notes), backend="jax")(XS)
    np.testing.assert_allclose(found, jnp.stack(XS) * 4)


def random_tree(rng, leaves):
    if leaves == 1:
        return int(rng.integers(10))
    left = int(rng.integers(1, leaves))
    return random_tree(rng, left), random_tree(rng, leaves - left)


def test_training_compiles_nothing_once_the_sizes_have_been_met():
    rng, run = np.random.default_rng(0), multifold.batched(encode, backend="jax")
    loss = jax.value_and_grad(lambda p, trees: jnp.square(run(trees, parameters=p)).sum())
    compiled, parameters = [], PARAMETERS
    for step in range(12):
        if step < 3 or step > 5:  # three steps of the same trees
            trees = [random_tree(rng, int(rng.integers(2, 9))) for _ in range(16)]
        before = COMPILATIONS.count
        found, slopes = loss(parameters, trees)
        compiled.append(COMPILATIONS.count - before)
        wanted = sum(jnp.square(encode(tree, parameters)).sum() for tree in trees)
        np.testing.assert_allclose(found, wanted, rtol=1e-4)
        parameters = jax.tree.map(lambda x, slope: x - 1e-3 * slope, parameters, slopes)
    assert (
        compiled[3:6] == [0, 0, 0] and sum(compiled[6:]) < 24
    )  # some forty in each step of new trees before


def test_gradients_of_the_examples_own_inputs_have_their_shapes():
    def total(xs):
        return sum(combine(PARAMETERS, layer(x["a"]), x["b"][0]).sum() for x in xs)

    examples = [{"a": x, "b": [x * 2]} for x in XS]
    run = multifold.batched(lambda x: combine(PARAMETERS, layer(x["a"]), x["b"][0]), backend="jax")
    found, wanted = jax.grad(lambda xs: run(xs).sum())(examples), jax.grad(total)(examples)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-4, 1e-6), found, wanted)


def test_a_number_of_numpy_on_the_left_keeps_the_gradient():
    def program(x, parameters):
        return layer(x) + np.float32(2) * combine(parameters, layer(x), x)

    run = multifold.batched(program, backend="jax")
    found = jax.grad(lambda own: run(XS, parameters=own).sum())(PARAMETERS)
    wanted = jax.grad(lambda own: sum(program(x, own).sum() for x in XS))(PARAMETERS)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, 1e-4, 1e-5), found, wanted)
