"""Four devices of one process: values and gradients of shards are those of one program on one device.

With three trees on four devices, the last one has a program without any call.
"""

from __future__ import annotations

import numpy as np
import pytest


def trees_of(seed, count, most=24):
    from random_trees import random_trees

    trees = random_trees(seed, count, most)
    return trees, np.random.default_rng(seed).normal(size=len(trees)).astype("float32")


def weights():
    rng = np.random.default_rng(0)
    shapes = {"leaf": (1, 3), "join": (6, 3), "up": (3,), "total": (3, 3)}
    return {name: rng.normal(size=shape).astype("float32") * 0.5 for name, shape in shapes.items()}


def ops(w):
    import jax
    import jax.numpy as jnp

    def total(rows):
        return jax.ops.segment_sum(rows.values @ w["total"], rows.segment_ids, rows.lengths.shape[0])

    return {
        "leaf": lambda x: jnp.tanh(x[:, None] * w["leaf"]),
        "join": lambda a, b: jnp.tanh(jnp.concatenate([a, b], axis=1) @ w["join"]),
        "up": lambda a: a * w["up"],
        "count": lambda a, k: a + k.astype("float32")[:, None] * 0.1,
        "total": total,
    }


def loss(model, program, labels, weight):
    """The mean over the examples of one shard, times its weight; zero without examples."""
    import jax.numpy as jnp
    import multifold_jax

    rows = multifold_jax.run(ops(model), program).sum(axis=1)
    real = jnp.arange(len(rows)) < program.counts[0]
    return weight * jnp.where(real, (rows - labels) ** 2, 0).sum() / jnp.maximum(program.counts[0], 1)


def as_one(model, trees, labels):
    """Return value and gradients of one program of all examples."""
    import jax
    import random_trees

    import multifold

    program = multifold.Fold(backend="jax").program(multifold.traces(random_trees.record, trees), pad=True)
    rows = np.zeros(program.form.groups[0].rows, "float32")
    rows[: len(labels)] = labels
    return jax.jit(jax.value_and_grad(loss))(model, program, rows, 1.0)


def as_shards(way, model, trees, labels):
    """Return value and gradients of four shards, averaged."""
    import jax
    import random_trees
    from jax.sharding import NamedSharding, PartitionSpec

    import multifold

    shards = multifold.Fold(backend="jax").program(multifold.traces(random_trees.record, trees), shards=4)
    batch = shards, shards.split(labels), shards.weights
    if way == "vmap":
        mapped = jax.vmap(loss, (None, 0, 0, 0))
        return jax.jit(jax.value_and_grad(lambda model: mapped(model, *batch).mean()))(model)
    mesh = jax.make_mesh((4,), ("data",))
    spec = PartitionSpec

    def step(model, *batch):
        own = jax.tree.map(lambda x: x[0], batch)  # the program of this device
        if way == "shard_map":
            return jax.lax.pmean(jax.value_and_grad(loss)(model, *own), "data")

        def mean(model):
            model = jax.lax.pcast(model, "data", to="varying")
            return jax.lax.pmean(loss(model, *own), "data")

        return jax.value_and_grad(mean)(model)

    mapped = jax.shard_map(
        step,
        mesh=mesh,
        in_specs=(spec(), *[spec("data")] * 3),
        out_specs=spec(),
        check_vma=way == "checked",
    )
    batch = jax.device_put(batch, NamedSharding(mesh, spec("data")))
    return jax.jit(mapped)(jax.device_put(model, NamedSharding(mesh, spec())), *batch)


def compared(rank, way, seed, count):
    import jax

    trees, labels = trees_of(seed, count)
    value, gradients = as_shards(way, weights(), trees, labels)
    wanted, references = as_one(weights(), trees, labels)
    np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), gradients, references)


@pytest.mark.parametrize(
    ("way", "seed", "count"), [("vmap", 0, 30), ("shard_map", 0, 30), ("checked", 1, 30), ("checked", 2, 3)]
)
def test_shards_of_random_trees_equal_one_program(four_devices, way, seed, count):
    four_devices.run(compared, way, seed, count, seconds=110)
