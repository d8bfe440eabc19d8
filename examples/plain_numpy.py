"""A recursive network in NumPy, one tree at a time, run for many trees at once.

python examples/plain_numpy.py

The cell is a function of one example; so is the recursion. `multifold.batched` runs equal cells together.
"""

import argparse
import random

import numpy as np

import multifold

RNG = np.random.default_rng(0)
WORDS = RNG.normal(size=(100, 32))
WEIGHTS, BIAS = RNG.normal(size=(64, 32)) / 8, RNG.normal(size=32)


@multifold.cell
def combine(left, right):
    """Return the state of a node, from those of its children."""
    return np.tanh(np.concatenate([left, right]) @ WEIGHTS + BIAS)


def encode(tree):
    if isinstance(tree, int):
        return WORDS[tree]
    return combine(encode(tree[0]), encode(tree[1]))


def score(tree):
    state = encode(tree)
    return {"largest": state.max(), "norm": np.sqrt((state * state).sum())}


def random_tree(chance, leaves):
    if leaves == 1:
        return chance.randrange(len(WORDS))
    left = chance.randrange(1, leaves)
    return random_tree(chance, left), random_tree(chance, leaves - left)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trees", type=int, default=64)
    count = parser.parse_args().trees
    chance = random.Random(0)
    trees = [random_tree(chance, chance.randrange(2, 20)) for _ in range(count)]
    run = multifold.batched(score)
    found = run(trees)
    for name in found:
        np.testing.assert_allclose(found[name], [score(tree)[name] for tree in trees])
    print(f"{count} trees: scores equal those of the loop, in {len(run.explain())} launches")


if __name__ == "__main__":
    main()
