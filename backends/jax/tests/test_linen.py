"""A module of Flax linen, bound to its parameters, is a model: its methods are the ops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import multifold_jax
import numpy as np
from flax import linen

import multifold

TREES = [(1, 2), ((3, 4), 5), 6, ((1, (2, 3)), (4, 5))]


class Tree(linen.Module):
    """Submodules stand in `setup`: only one method of a module may be ``@nn.compact``."""

    def setup(self):
        self.embedding = linen.Embed(9, 4)
        self.layer = linen.Dense(4)

    def leaf(self, words):
        return self.embedding(words)

    def join(self, left, right):
        return jnp.tanh(self.layer(jnp.concatenate([left, right], axis=1)))

    def __call__(self, words):
        return self.join(self.leaf(words), self.leaf(words))


def record(fold, tree):
    if isinstance(tree, int):
        return fold.add("leaf", tree)
    return fold.add("join", *[record(fold, child) for child in tree])


module = Tree()
parameters = module.init(jax.random.key(0), jnp.zeros(1, int))


def folded(parameters):
    fold = multifold.Fold()
    return fold.apply(module.bind(parameters), [[record(fold, tree) for tree in TREES]])[0]


def alone(parameters):
    """Call the bound module for one tree after the other."""
    model = module.bind(parameters)

    def of(tree):
        return model.leaf(jnp.array([tree])) if isinstance(tree, int) else model.join(*map(of, tree))

    return jnp.concatenate([of(tree) for tree in TREES])


def test_a_bound_module_is_a_model():
    np.testing.assert_allclose(folded(parameters), alone(parameters), rtol=1e-6)


def test_a_bound_module_has_the_gradients_of_one_tree_at_a_time():
    found = jax.grad(lambda x: (folded(x) ** 2).sum())(parameters)
    wanted = jax.grad(lambda x: (alone(x) ** 2).sum())(parameters)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), found, wanted)


def test_a_program_runs_a_bound_module_inside_of_jit():
    program = multifold.Fold(backend="jax").program(multifold.traces(record, TREES))
    run = jax.jit(lambda parameters, program: multifold_jax.run(module.bind(parameters), program))
    np.testing.assert_allclose(run(parameters, program), alone(parameters), rtol=1e-5)
