"""What is JAX's own: tracers, 64 bits, devices, pytrees as models, cells of its libraries."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from functools import partial, reduce
from pathlib import Path

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from multifold_jax import JaxBackend

import multifold
from multifold import ops
from multifold.backend import Bidirectional
from multifold.errors import BackendError

backend = JaxBackend()
rng = np.random.default_rng(0)


def rows(n, width=3):
    return rng.normal(size=(n, width)).astype(np.float32)


class Affine(nnx.Module):
    """A layer used in two places, with a running average and a dropout's random state."""

    def __init__(self):
        rngs = nnx.Rngs(0)
        self.linear = nnx.Linear(3, 2, rngs=rngs)
        self.again = self.linear
        self.norm = nnx.BatchNorm(2, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)


class Pair(equinox.Module):
    weight: jax.Array
    count: jax.Array
    activation: object = jnp.tanh


# ---- arrays and tracers ----------------------------------------------------------------------


def test_tracers_params_and_arrays_are_owned_and_numpy_is_not():
    seen = []
    jax.make_jaxpr(lambda x: (seen.append(backend.owns(x)), x)[1])(1.0)
    assert seen == [True]
    assert backend.owns(jnp.ones(2))
    assert backend.owns(nnx.Param(jnp.ones(2)))
    assert not any(backend.owns(x) for x in (np.ones(2), 1.0, [jnp.ones(2)], nnx.Param, None))


def test_weak_types_and_tracers_have_the_signature_of_the_array():
    weak = jnp.broadcast_to(jnp.asarray(2.0), (1, 3))
    assert weak.weak_type
    expected = backend.signature(jnp.ones((4, 3)))
    assert backend.signature(weak) == expected
    for trace in (jax.grad, jax.jit):
        seen = []
        trace(lambda x: (seen.append(backend.signature(x)), x.sum())[1])(jnp.ones((2, 3)))  # noqa: B023
        assert seen == [expected]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "int32", "bool"])
def test_row_operations_keep_the_dtype(dtype):
    x = jnp.asarray(rng.integers(0, 2, (5, 2)), dtype)
    first, second = backend.split(x, [3, 2])
    back = backend.concat([second, first])
    taken = backend.gather(back, backend.constant(np.array([4, 0, 0]), None))
    assert first.dtype == back.dtype == taken.dtype == dtype
    np.testing.assert_array_equal(backend.to_numpy(taken), backend.to_numpy(x)[[2, 3, 3]])


def test_row_operations_take_a_flax_param_for_its_array():
    param = nnx.Param(jnp.arange(6.0).reshape(3, 2))
    assert backend.rows(param) == 3
    assert backend.signature(param) == backend.signature(param[...])
    np.testing.assert_array_equal(backend.concat([param, param])[3:], param[...])
    np.testing.assert_array_equal(backend.split(param, [1, 2])[1], param[1:])
    np.testing.assert_array_equal(backend.gather(param, jnp.array([2])), param[2:])


def test_rows_of_a_scalar_are_refused():
    with pytest.raises(IndexError):
        backend.rows(jnp.ones(()))


def shuffle(x):
    """Gather with repeats, split and concat, as a schedule wires them: rows 3 3 of 2 0 2."""
    indices = backend.split(backend.constant(np.array([2, 0, 2, 1, 0]), None), [3, 2])
    first, second = backend.split(backend.gather(x, indices[0]), [2, 1])
    return backend.gather(backend.concat([second, first]), indices[1])


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_gradients_run_through_the_row_operations(wrap):
    x = jnp.asarray(rows(3))

    def loss(x):
        return (shuffle(x) ** 3).sum()

    np.testing.assert_allclose(wrap(shuffle)(x), x[jnp.array([2, 2])], rtol=1e-6)
    np.testing.assert_allclose(wrap(jax.grad(loss))(x)[2], 6 * x[2] ** 2, rtol=1e-5)
    np.testing.assert_allclose(wrap(jax.grad(loss))(x)[:2], 0)
    second = wrap(jax.grad(lambda x: jax.grad(loss)(x).sum()))(x)
    np.testing.assert_allclose(second[2], 12 * x[2], rtol=1e-5)


def test_a_tracer_of_an_eager_grad_has_values_and_one_of_jit_has_none():
    seen = []
    jax.grad(lambda x: (seen.append(backend.to_numpy(x * 2)), x.sum())[1])(jnp.ones(2))
    np.testing.assert_array_equal(seen, [[2, 2]])
    with pytest.raises(jax.errors.TracerArrayConversionError):
        jax.jit(backend.to_numpy)(jnp.ones(2))


def test_many_rows_are_concatenated_in_order():
    xs = [jnp.full((1 + i % 2, 2), i) for i in range(300)]
    np.testing.assert_array_equal(backend.concat(xs), np.concatenate(xs))


@pytest.mark.parametrize("device", [None, jax.devices()[0]], ids=["default", "named"])
@pytest.mark.parametrize("make", [backend.constant, backend.kit.variable])
def test_neither_constants_nor_copies_share_memory_with_the_caller(make, device):
    values = np.zeros(100_000, np.float32)
    x = make(values, device)
    values[:] = 1
    back = backend.to_numpy(x)
    back[:] = 2
    assert float(x.sum()) == 0


@pytest.mark.filterwarnings("error")
def test_numbers_are_32_bits_wide_and_wider_arrays_are_narrowed_in_silence():
    numbers = {kind: backend.number_dtype(kind) for kind in (int, float, bool)}
    assert numbers == {int: np.int32, float: np.float32, bool: np.bool_}
    assert backend.constant(np.ones(2), None).dtype == "float32"
    assert backend.constant(np.arange(2), None).dtype == "int32"


def run(code, **environment):
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_numbers_are_64_bits_wide_with_x64():
    code = """
import numpy as np
from multifold_jax import JaxBackend
backend = JaxBackend()
print(*map(backend.number_dtype, (int, float, bool)), backend.constant(np.ones(2), None).dtype)
"""
    assert run(code, JAX_ENABLE_X64="1") == "int64 float64 bool float64"


def test_a_model_on_another_device_is_followed_and_its_rows_stay_apart():
    code = """
import jax, jax.numpy as jnp, numpy as np
from multifold_jax import JaxBackend
backend = JaxBackend()
first, second = jax.devices()
free = jnp.ones((1, 2))
default, other = (jax.device_put(free, device) for device in (first, second))
print(backend.device({"w": free}), backend.device({"w": default}))
place = backend.device({"f": jnp.tanh, "w": other})
print(backend.constant(np.ones(3), place).devices() == {second})
free, default, other = map(backend.signature, (free, default, other))
print(free == default, free == other)
print(backend.constant(np.ones(3), second).devices() == {second})
mesh = jax.make_mesh((2,), ("x",))
spread = jax.device_put(jnp.ones((2, 2)), jax.NamedSharding(mesh, jax.P("x")))
print(backend.device({"w": spread}))
"""
    lines = run(code, XLA_FLAGS="--xla_force_host_platform_device_count=2").splitlines()
    assert lines == ["None None", "True", "True False", "True", "None"]


# ---- models ----------------------------------------------------------------------------------


def test_models_of_jax_are_recognised():
    affine = Affine()
    models = [
        Pair(jnp.ones(2), jnp.arange(2)),
        affine,
        {"f": lambda x: x, "w": jnp.ones(2)},
        {"f": jax.jit(jnp.tanh)},
        {"cell": affine.linear},
        types.SimpleNamespace(w=jnp.ones(2)),
        equinox.nn.Lambda(jnp.tanh),
    ]
    assert all(map(backend.hosts, models))


def test_odd_objects_are_not_models_of_jax():
    unsortable = {1: np.ones(2), "a": len}
    odd = [None, 3, "x", len, lambda x: x, {"w": np.ones(2)}, unsortable, object(), int, types]
    assert not any(map(backend.hosts, odd))


def test_only_floating_point_arrays_of_a_pytree_are_parameters():
    model = {"pair": Pair(jnp.ones(2), jnp.arange(2)), "layers": [jnp.zeros(1), len, np.ones(1)]}
    assert list(backend.kit.parameters(model)) == ["layers.0", "pair.weight"]


def test_a_flax_model_trains_its_params_once_and_not_its_running_averages():
    model = {"affine": Affine(), "scale": jnp.ones(2), "f": len}
    names = {"linear.kernel", "linear.bias", "norm.scale", "norm.bias"}
    parameters = backend.kit.parameters(model)
    # Which of its two names a shared layer goes by is Flax's choice.
    spelled = {name.removeprefix("affine.").replace("again", "linear") for name in parameters}
    assert spelled == names | {"scale"}
    assert len(parameters) == 5


def test_gradients_of_a_flax_model_add_up_over_shared_layers():
    x = jnp.asarray(rows(4))
    model = Affine()
    value, gradients = backend.kit.value_and_grad(lambda m: (m.linear(x) + m.again(x)).sum(), model)
    kernel = next(value for name, value in gradients.items() if name.endswith("kernel"))
    np.testing.assert_allclose(kernel, 2 * jnp.broadcast_to(x.sum(0)[:, None], (3, 2)), rtol=1e-5)
    np.testing.assert_allclose(value, 2 * model.linear(x).sum(), rtol=1e-5)
    assert gradients.keys() == backend.kit.parameters(model).keys()


def test_gradients_of_a_pytree_with_functions_and_of_unused_arrays():
    model = {"w": backend.kit.variable(np.float32([2, 3])), "unused": jnp.ones(2), "f": jnp.square}
    value, gradients = backend.kit.value_and_grad(lambda m: m["f"](m["w"]).sum(), model)
    assert float(value) == 13
    np.testing.assert_array_equal(gradients["w"], [4, 6])
    np.testing.assert_array_equal(gradients["unused"], [0, 0])


def test_an_object_that_hides_its_arrays_from_jax_has_no_gradients_and_says_why():
    with pytest.raises(BackendError, match="a SimpleNamespace, whose arrays"):
        backend.kit.parameters(types.SimpleNamespace(w=jnp.ones(2)))


# ---- cells -----------------------------------------------------------------------------------


def unroll(cell, inputs):
    """Run a multifold.Cell over ``(n, time, features)`` in the plainest way."""
    states = tuple(jnp.repeat(state, inputs.shape[0], axis=0) for state in cell.begin())
    assert len(states) == cell.states
    outputs = []
    for step in range(inputs.shape[1]):
        output, *states = cell.step(inputs[:, step], *states)
        outputs.append(output)
    return jnp.stack(outputs, axis=1)


@pytest.mark.parametrize("kind", [nnx.SimpleCell, nnx.GRUCell, nnx.LSTMCell, nnx.OptimizedLSTMCell])
def test_flax_cells_unroll_as_nnx_rnn_does(kind):
    cell = kind(3, 4, rngs=nnx.Rngs(0))
    inputs = jnp.asarray(rows(2 * 5).reshape(2, 5, 3))
    expected = nnx.RNN(cell, rngs=nnx.Rngs(0))(inputs)
    np.testing.assert_allclose(unroll(backend.cell(cell), inputs), expected, rtol=1e-5, atol=1e-6)
    wrapped = backend.cell(nnx.RNN(cell, rngs=nnx.Rngs(0)))
    np.testing.assert_allclose(unroll(wrapped, inputs), expected, rtol=1e-5, atol=1e-6)


def test_a_step_has_the_name_of_its_cell():
    assert backend.cell(nnx.GRUCell(3, 4, rngs=nnx.Rngs(0))).step.__qualname__ == "GRUCell"
    own = equinox.nn.LSTMCell(3, 4, key=jax.random.key(0))
    assert backend.cell(own).step.__qualname__ == "LSTMCell"


def test_a_flax_bidirectional_unrolls_as_it_does_by_itself():
    forward, backward = (nnx.GRUCell(3, 4, rngs=nnx.Rngs(seed)) for seed in (0, 1))
    both = nnx.Bidirectional(nnx.RNN(forward), nnx.RNN(backward), rngs=nnx.Rngs(0))
    inputs = jnp.asarray(rows(2 * 5).reshape(2, 5, 3))
    cell = backend.cell(both)
    assert isinstance(cell, Bidirectional)
    joined = cell.join(unroll(cell.forward, inputs), unroll(cell.backward, inputs[:, ::-1])[:, ::-1])
    np.testing.assert_allclose(joined, both(inputs), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", [equinox.nn.GRUCell, equinox.nn.LSTMCell])
def test_equinox_cells_unroll_as_a_scan_over_one_example_does(kind):
    cell = kind(3, 4, key=jax.random.key(0))
    inputs = jnp.asarray(rows(2 * 5).reshape(2, 5, 3))
    zeros = jnp.zeros(4)
    begin = (zeros, zeros) if kind is equinox.nn.LSTMCell else zeros

    def scan(example):
        def body(state, x):
            state = cell(x, state)
            return state, jax.tree.leaves(state)[0]

        return jax.lax.scan(body, begin, example)[1]

    expected = jax.vmap(scan)(inputs)
    np.testing.assert_allclose(unroll(backend.cell(cell), inputs), expected, rtol=1e-5, atol=1e-6)


def test_what_is_no_cell_is_refused_with_a_hint():
    with pytest.raises(BackendError, match=r"multifold\.Cell"):
        backend.cell(nnx.Linear(3, 4, rngs=nnx.Rngs(0)))


# ---- folds -----------------------------------------------------------------------------------


class Sums(equinox.Module):
    """Sums over nested tuples of words, by a layer."""

    embed: jax.Array
    layer: equinox.nn.Linear

    def __init__(self, width=3):
        first, second = jax.random.split(jax.random.key(0))
        self.embed = jax.random.normal(first, (10, width))
        self.layer = equinox.nn.Linear(2 * width, width, key=second)

    def leaf(self, word):
        return self.embed[word]

    def pair(self, left, right):
        return jnp.tanh(jax.vmap(self.layer)(jnp.concatenate([left, right], axis=1)))

    def layer_of_rows(self, x):
        return self.pair(x, x)


def record(fold, tree):
    if isinstance(tree, int):
        return fold.add("leaf", tree)
    return fold.add("pair", *(record(fold, child) for child in tree))


def fold_loss(model, trees):
    fold = multifold.Fold()
    (rows,) = fold.apply(model, [[record(fold, tree) for tree in trees]])
    return (rows**2).sum()


def loop_loss(model, trees):
    def run(tree):
        if isinstance(tree, int):
            return model.leaf(jnp.array([tree]))
        return model.pair(*map(run, tree))

    return sum((run(tree) ** 2).sum() for tree in trees)


TREES = [3, (1, 2), ((4, 5), 3)]


@pytest.mark.parametrize("wrap", [lambda f: f, equinox.filter_jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "transform",
    [
        jax.value_and_grad,
        lambda f: lambda model: jax.jvp(f, (model,), (model,)),
        lambda f: jax.grad(lambda m: sum(x.sum() for x in jax.tree.leaves(jax.grad(f)(m)))),
    ],
    ids=["value_and_grad", "jvp", "second order"],
)
def test_transformations_of_a_fold_equal_those_of_the_loop(transform, wrap):
    model = Sums()
    got = wrap(transform(lambda m: fold_loss(m, TREES)))(model)
    expected = equinox.filter_jit(transform(lambda m: loop_loss(m, TREES)))(model)
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)


def test_a_gradient_needs_no_more_launches_than_a_value():
    calls = []

    class Counted(Sums):
        def pair(self, left, right):
            calls.append(len(left))
            return super().pair(left, right)

    fold_loss(Counted(), TREES)
    without = calls[:]
    calls[:] = []
    jax.grad(fold_loss)(Counted(), TREES)
    assert without == calls == [2, 1]


def test_leaf_arrays_may_be_tracers():
    def loss(x):
        fold = multifold.Fold()
        (rows,) = fold({"rows": [fold.add(jnp.square, x[i : i + 1]) for i in (0, 2, 2)]}).values()
        return rows.sum()

    np.testing.assert_array_equal(jax.grad(loss)(jnp.array([1.0, 2.0, 3.0])), [2, 0, 12])


def test_the_rows_of_a_flax_param_may_be_an_operand():
    start = nnx.Param(jnp.ones((1, 2)))
    fold = multifold.Fold()
    (rows,) = fold([[fold.add(jnp.add, start, x) for x in (jnp.zeros((1, 2)), jnp.ones((1, 2)))]])
    np.testing.assert_array_equal(rows, [[1, 1], [2, 2]])


def test_networks_of_several_depths_share_launches_where_their_parameters_are_operands():
    def layer(p, x):  # of one network
        return jnp.tanh(x @ p["w"].reshape(3, 3) + p["b"])

    networks = [
        [{"w": jnp.asarray(rows(3)[None]), "b": jnp.asarray(rows(1))} for _ in range(depth)]
        for depth in (1, 3, 2, 3)
    ]
    fold, xs, together = multifold.Fold(), np.split(rows(4), 4), jax.vmap(layer)

    def total(networks, call, end):
        return end(
            [reduce(lambda x, p: call(p, x), *pair) for pair in zip(networks, xs, strict=True)]
        ).sum()

    expected = jax.grad(total)(networks, layer, jnp.concatenate)
    found = jax.grad(total)(networks, partial(fold.add, together), lambda nodes: fold([nodes])[0])
    jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), found, expected)
    assert len(fold.schedule().launches) == 3


def test_check_compares_flax_and_equinox_models():
    for model, op in (
        (Affine(), "linear"),
        (equinox.nn.MLP(3, 2, 4, 1, key=jax.random.key(0)), ""),
    ):
        fold = multifold.Fold()
        call = op or jax.vmap(model)
        fold.check(model, [[fold.add(call, x) for x in np.split(rows(3), 3)]])


def test_unrolled_lstms_of_three_lengths_equal_nnx_rnn():
    cell = nnx.OptimizedLSTMCell(3, 4, rngs=nnx.Rngs(0))
    examples = [jnp.asarray(rows(length)[None]) for length in (2, 3, 5)]
    fold = multifold.Fold()
    lasts = [fold.unroll(cell, x.shape[1], x)[0][-1] for x in examples]
    (got,) = fold([lasts])
    expected = [nnx.RNN(cell, rngs=nnx.Rngs(0))(x)[:, -1] for x in examples]
    np.testing.assert_allclose(got, jnp.concatenate(expected), rtol=1e-5, atol=1e-6)
    assert len(fold.schedule([lasts]).launches) == 6  # the begin state, and a step for each of 5


# ---- running ---------------------------------------------------------------------------------


def test_profile_and_synchronize_are_usable_around_a_launch():
    with backend.profile("launch"):
        x = backend.call(jnp.add, [jnp.ones(2), 1.0], {})
    backend.synchronize()
    assert x.tolist() == [2, 2]


def test_row_operations_compile_once_for_each_shape():
    compiled = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration)

    # no other test has this width
    x = jnp.ones((6, 17))
    taken = jnp.array([7, 0])
    jax.monitoring.register_event_duration_secs_listener(listen)
    for _ in range(3):
        sections = backend.split(backend.concat([x, x]), (4, 8))
        backend.gather(sections[1], taken)
    jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) == 3


OPS = {
    "take": lambda x: ops.take(x, jnp.array([1, 1])),
    "stack": lambda x: ops.stack([x, x], axis=0),
    "split": lambda x: ops.split(x, 3, axis=1)[0],
    "matmul": lambda x: ops.matmul(jnp.ones((2, 4)), x),
    "sigmoid": ops.sigmoid,
    "reshape": lambda x: ops.reshape(x, (3,)),
}


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_ops_take_the_parameters_of_flax(op):
    values = jnp.arange(12.0).reshape(4, 3)
    np.testing.assert_array_equal(op(nnx.Param(values)), op(values))


# ---- methods as ops ----------------------------------------------------------------------------------


class Scaled(equinox.Module):
    weight: jax.Array

    def plain(self, x):
        return self.weight * x

    @equinox.filter_jit
    def compiled(self, x):
        return self.weight * x


@pytest.mark.parametrize("name", ["plain", "compiled"])
def test_a_method_of_an_equinox_module_is_one_op(name):
    module = Scaled(jnp.array(2.0))
    fold = multifold.Fold(backend="jax")
    nodes = [fold.add(getattr(module, name), float(i)) for i in range(5)]
    np.testing.assert_allclose(fold([nodes])[0], [0, 2, 4, 6, 8])
    assert len(fold.schedule().launches) == 1


def test_a_function_that_is_compiled_anew_for_each_call_is_warned_of():
    fold = multifold.Fold(backend="jax")
    nodes = [fold.add(jax.jit(lambda x: 2 * x), float(i)) for i in range(3)]
    with pytest.warns(UserWarning, match="is made for each call"):
        fold([nodes])


def test_what_jax_says_of_nodes_and_of_traces_is_in_the_index_of_errors():
    page = (Path(__file__).parents[3] / "docs/errors.md").read_text()
    traces = multifold.traces(lambda fold, x: fold.add("f", x), [1.0, 2.0])
    said = "Triggering __jax_array__() during abstractification is no longer supported"
    with pytest.raises(ValueError, match=re.escape(said)):
        jnp.tanh(multifold.Fold(backend="jax").add("f", 1.0))
    assert said in page.replace("`", "")
    for given in (traces, multifold.merge(traces)):
        with pytest.raises(TypeError, match=r"Error interpreting argument to (.|\n)* as an abstract array"):
            jax.jit(lambda own: own)(given)
    assert "Error interpreting argument to ... as an abstract array" in page
