"""Models of Equinox, Flax NNX and Flax linen on two devices, and exported functions of programs."""

from __future__ import annotations

import numpy as np
import pytest
from ranks import Ranks

TREES = [(1, 2), ((3, 4), 5), 6, ((1, (2, 3)), (4, 5)), (7, 8)]


def record(fold, tree):
    if isinstance(tree, int):
        return fold.add("leaf", tree)
    return fold.add("join", *[record(fold, child) for child in tree])


def of_equinox(key):
    import equinox
    import jax
    import jax.numpy as jnp

    class Model(equinox.Module):
        embedding: equinox.nn.Embedding
        layer: equinox.nn.Linear

        def leaf(self, words):
            return jax.vmap(self.embedding)(words)

        def join(self, left, right):
            return jnp.tanh(jax.vmap(self.layer)(jnp.concatenate([left, right], axis=1)))

    model = Model(equinox.nn.Embedding(9, 4, key=key), equinox.nn.Linear(8, 4, key=key))
    return model, lambda model: model


def of_nnx(key):
    import jax.numpy as jnp
    from flax import nnx

    class Model(nnx.Module):
        def __init__(self, rngs):
            self.leaf = nnx.Embed(9, 4, rngs=rngs)
            self.layer = nnx.Linear(8, 4, rngs=rngs)

        def join(self, left, right):
            return jnp.tanh(self.layer(jnp.concatenate([left, right], axis=1)))

    graph, state = nnx.split(Model(nnx.Rngs(0)))
    return state, lambda state: nnx.merge(graph, state)


def of_linen(key):
    import jax.numpy as jnp
    from flax import linen

    class Model(linen.Module):
        def setup(self):
            self.embedding = linen.Embed(9, 4)
            self.layer = linen.Dense(4)

        def leaf(self, words):
            return self.embedding(words)

        def join(self, left, right):
            return jnp.tanh(self.layer(jnp.concatenate([left, right], axis=1)))

        def __call__(self, words):
            return self.join(self.leaf(words), self.leaf(words))

    model = Model()
    return model.init(key, jnp.zeros(1, int)), model.bind


def trained(rank, library):
    """Compare value and gradients of two devices with those of one program."""
    import jax
    import multifold_jax
    from jax.sharding import PartitionSpec

    import multifold

    parameters, model_of = globals()[library](jax.random.key(0))
    traces = multifold.traces(record, TREES)
    shards = multifold.Fold(backend="jax").program(traces, shards=2)
    real = shards.split(np.ones(len(TREES), "float32"))

    def step(parameters, shards, real):
        program, real = jax.tree.map(lambda x: x[0], (shards, real))

        def total(parameters):
            model = model_of(jax.lax.pcast(parameters, "data", to="varying"))
            return jax.lax.psum((multifold_jax.run(model, program).sum(axis=1) * real).sum(), "data")

        return jax.value_and_grad(total)(parameters)

    types = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("data",), axis_types=types, devices=jax.devices()[:2])
    spec = PartitionSpec
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(spec(), spec("data"), spec("data")), out_specs=spec())
    value, gradients = jax.jit(mapped)(parameters, shards, real)

    program = multifold.Fold(backend="jax").program(traces)
    whole = jax.value_and_grad(lambda x: multifold_jax.run(model_of(x), program).sum())
    wanted, references = jax.jit(whole)(parameters)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), gradients, references)


@pytest.mark.parametrize("library", ["of_equinox", "of_nnx", "of_linen"])
def test_models_of_libraries_train_on_two_devices(four_devices, library):
    four_devices.run(trained, library, seconds=110)


def handed_over(rank):
    """A model that is a pytree needs no cast: return its gradient, of which each device adds its part."""
    import equinox
    import jax
    import multifold_jax
    from jax.sharding import PartitionSpec as Spec

    import multifold

    model, _ = of_equinox(jax.random.key(0))
    shards = multifold.Fold(backend="jax").program(multifold.traces(record, [(1, 2)] * 4), shards=4)

    def step(model, shards):
        program = jax.tree.map(lambda x: x[0], shards)
        gradient = equinox.filter_grad(lambda model: multifold_jax.run(model, program)[:1].sum())(model)
        return gradient.layer.bias

    mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(Spec(), Spec("data")), out_specs=Spec())
    one = multifold.Fold(backend="jax").program(multifold.traces(record, [(1, 2)]))
    alone = equinox.filter_grad(lambda model: multifold_jax.run(model, one).sum())(model).layer.bias
    np.testing.assert_allclose(jax.jit(mapped)(model, shards), 4 * alone, rtol=1e-5)


def test_models_that_are_pytrees_need_no_cast(four_devices):
    four_devices.run(handed_over)


def closed_over(rank):
    """Return what is said of parameters that an op closes over and that were not cast."""
    import jax
    import multifold_jax
    from jax.sharding import PartitionSpec as Spec

    import multifold

    fold = multifold.Fold(backend="jax")
    shards = fold.program(multifold.traces(lambda fold, x: fold.add("scale", x), [1.0, 2.0]), shards=2)

    def step(w, shards):
        program = jax.tree.map(lambda x: x[0], shards)
        return multifold_jax.run({"scale": lambda x: w * x}, program)

    types = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("data",), axis_types=types, devices=jax.devices()[:2])
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(Spec(), Spec("data")), out_specs=Spec("data"))
    try:
        jax.jit(mapped)(2.0, shards)
    except multifold.LaunchError as error:
        return str(error)


def test_parameters_that_were_not_cast_are_refused(four_devices):
    (message,) = four_devices.run(closed_over)
    assert "parameters that vary over the mesh as their program does, ['data']" in message
    assert "jax.lax.pcast" in message


# ---- export --------------------------------------------------------------------------------------


def programs():
    """Return two programs of one form, and one of another."""
    import multifold

    fold = multifold.Fold(backend="jax")
    batches = [TREES[:2], [((1, 2), 3), (4, 5)], TREES * 40]
    found = [fold.program(multifold.traces(record, trees)) for trees in batches for _ in range(2)]
    return found[1], found[3], found[5]


def exported(rank):
    import jax
    import jax.export
    import multifold_jax

    import multifold

    # A fold keeps one of equal static values for all: here it is the string of NumPy, which is equal, too.
    multifold.Fold(backend="jax").add(np.str_("join"), 1)
    first, second, _ = programs()
    model, _ = of_equinox(jax.random.key(0))
    function = jax.jit(lambda program: multifold_jax.run(model, program))
    data = jax.export.export(function)(first).serialize(vjp_order=1)
    return bytes(data), [np.asarray(function(program)) for program in (first, second)]


def imported(rank, data):
    import jax.export

    first, second, other = programs()
    function = jax.export.deserialize(bytearray(data))
    try:
        function.call(other)
    except ValueError as error:
        return [np.asarray(function.call(program)) for program in (first, second)], str(error)


def test_an_exported_function_runs_programs_of_its_form_in_another_process(four_devices):

    ((data, expected),) = four_devices.run(exported)
    with Ranks(1, lambda rank: {"JAX_PLATFORMS": "cpu", "PYTHONHASHSEED": "7"}) as other:
        ((found, message),) = other.run(imported, data)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5)
    assert "tree" in message
