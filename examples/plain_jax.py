"""A recursive network in JAX with two cells, one tree at a time, trained on many trees at once.

python examples/plain_jax.py

Functions of JAX take no pending arrays, so calls of them stand in cells. Parameters are a keyword of the
call: they are the same for all trees, and `jax.grad` goes through `multifold.batched`.
"""

import argparse
import random

import jax
import jax.numpy as jnp

import multifold


@multifold.cell
def leaf(parameters, word):
    return parameters["words"][word]


@multifold.cell
def combine(parameters, left, right):
    return jnp.tanh(jnp.concatenate([left, right]) @ parameters["weights"])


def encode(tree, parameters):
    if isinstance(tree, int):
        return leaf(parameters, jnp.asarray(tree))
    return combine(parameters, encode(tree[0], parameters), encode(tree[1], parameters))


def score(tree, parameters):
    return (encode(tree, parameters) * parameters["last"]).sum()


def random_tree(chance, leaves):
    if leaves == 1:
        return chance.randrange(20)
    left = chance.randrange(1, leaves)
    return random_tree(chance, left), random_tree(chance, leaves - left)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trees", type=int, default=16)
    count = parser.parse_args().trees
    chance = random.Random(0)
    trees = [random_tree(chance, chance.randrange(2, 8)) for _ in range(count)]
    keys = jax.random.split(jax.random.key(0), 4)
    parameters = {
        "words": jax.random.normal(keys[0], (20, 8)) / 2,
        "weights": jax.random.normal(keys[1], (16, 8)) / 2,
        "last": jax.random.normal(keys[2], (8,)) / 2,
    }
    labels = jax.random.normal(keys[3], (count,))
    run = multifold.batched(score, backend="jax")

    def loss(parameters):
        return jnp.mean((run(trees, parameters=parameters) - labels) ** 2)

    def loss_of_loop(parameters):
        scores = jnp.stack([score(tree, parameters) for tree in trees])
        return jnp.mean((scores - labels) ** 2)

    for _ in range(3):
        value, slopes = jax.value_and_grad(loss)(parameters)
        for x, y in zip(*map(jax.tree.leaves, (slopes, jax.grad(loss_of_loop)(parameters))), strict=True):
            assert jnp.allclose(x, y, atol=1e-5)
        parameters = jax.tree.map(lambda x, slope: x - 0.1 * slope, parameters, slopes)
        print(f"loss {value:.3f}; gradients equal those of the loop")


if __name__ == "__main__":
    main()
