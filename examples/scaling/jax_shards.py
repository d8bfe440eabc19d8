"""JAX on all devices of one or several processes: a program for each device, and all of one form.

python examples/scaling/jax_shards.py [--out weights.npz]
python examples/scaling/jax_shards.py --address 127.0.0.1:9999 --processes 2 --process 0 (and 1)
"""

import argparse
from functools import partial

import jax
import jax.numpy as jnp
import multifold_jax
import numpy as np
import optax
from formulas import MEANING, examples, record
from jax.sharding import NamedSharding, PartitionSpec

import multifold
from multifold.sampling import CallBudget

WIDTH = 16
PARTS = 2


def parameters():
    keys = iter(jax.random.split(jax.random.key(0), 2 + len(MEANING)))
    gates = {name: 0.3 * jax.random.normal(next(keys), (2 * WIDTH, WIDTH)) for name in MEANING}
    value = jax.random.normal(next(keys), (2, WIDTH))
    logits = jax.random.normal(next(keys), (WIDTH, 2))
    return {"value": value, "gates": gates, "logits": logits}


def ops(w):
    """Return the ops, by the names that `record` uses."""

    def gate(name):
        return lambda left, right: jnp.tanh(jnp.concatenate([left, right], axis=1) @ w["gates"][name])

    return {
        "value": lambda constant: w["value"][constant],
        "gates": {name: gate(name) for name in MEANING},
        "logits": lambda state: state @ w["logits"],
    }


def step(optimizer, w, state, shards, labels, weights):
    """Take one step on one device, whose arrays have a first axis of 1."""
    program, labels, weight = jax.tree.map(lambda x: x[0], (shards, labels, weights))

    def loss(w):
        w = jax.lax.pcast(w, "data", to="varying")  # so JAX adds up the gradients of all devices
        logits = multifold_jax.run(ops(w), program)
        real = jnp.arange(len(logits)) < program.counts[0]  # the other rows are padding
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        mean = jnp.where(real, losses, 0).sum() / jnp.maximum(program.counts[0], 1)
        return jax.lax.pmean(weight * mean, "data")

    value, gradient = jax.value_and_grad(loss)(w)
    updates, state = optimizer.update(gradient, state)
    return optax.apply_updates(w, updates), state, value


def main(address, processes, process, epochs, out):
    if address:
        jax.distributed.initialize(address, processes, process)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    split = PartitionSpec("data")
    whole = PartitionSpec()
    optimizer = optax.sgd(0.5)
    fold = multifold.Fold(backend="jax")
    mapped = jax.shard_map(
        partial(step, optimizer), mesh=mesh, in_specs=(whole, whole, split, split, split), out_specs=whole
    )
    train = jax.jit(mapped)
    put = partial(jax.make_array_from_process_local_data, NamedSharding(mesh, split))
    w = jax.device_put(parameters(), NamedSharding(mesh, whole))
    state = jax.device_put(optimizer.init(w), NamedSharding(mesh, whole))

    formulas, labels = examples(200)
    traces = multifold.traces(record, formulas)
    labels = np.array(labels)
    # Two parts, whatever the number of processes: then each step has the same examples on one and on two.
    budget = CallBudget([len(trace) for trace in traces], calls=300, shards=PARTS)
    for epoch in range(epochs):
        budget.set_epoch(epoch)
        for parts in budget.steps():
            own = [i for part in parts[process::processes] for i in part]
            shards = fold.program(
                [traces[i] for i in own], shards=jax.local_device_count(), exchange=multifold_jax.exchange
            )
            batch = shards, shards.split(labels[own]), shards.weights
            w, state, loss = train(w, state, *jax.tree.map(put, batch))
        print(f"epoch {epoch}: loss {float(loss):.4f}, {len(fold.programs)} compilations")
    if out and process == 0:
        np.savez(out, *jax.tree.leaves(jax.tree.map(np.asarray, w)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--address")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--out")
    main(**vars(parser.parse_args()))
