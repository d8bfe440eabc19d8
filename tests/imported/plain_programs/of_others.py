"""What the names in random programs of JAX and TensorFlow stand for, and how results are compared."""

from __future__ import annotations

from typing import Any

import numpy as np

import multifold
from multifold.lazy.operators import SettledOperators
from plain_programs import statements
from plain_programs.comparing import same_python, same_trees
from plain_programs.frameworks import Framework, Unit, snippets, without


class Single(Framework):
    """A framework of arrays that never change, of numbers in single precision."""

    constants = ("2", "0.5", "-1.0", "CONSTANT[1]")
    tolerance = 3e-4
    most, depth, runs = 4, 1, 1  # each kind of call is compiled for each program

    def array_of_all(self) -> Any:
        return self.shared

    def same(self, x, y, within):
        within = self.tolerance

        def leaves(one, other):
            if self.is_array(one):
                assert self.is_array(other) or isinstance(other, SettledOperators), (one, other)
                assert one.dtype == other.dtype and one.shape == other.shape, (one, other)
                np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=within, atol=within)
            else:
                same_python(one, other, within)

        same_trees(x, y, leaves)

    def is_array(self, x: Any) -> bool:
        """Return whether a value is an array of the framework."""
        raise NotImplementedError


class Jax(Single):
    """What names stand for in programs of JAX: what takes pending arrays is a cell."""

    name = "jax"
    patience = 60.0  # it compiles each call

    def __init__(self) -> None:
        import jax
        import jax.numpy as jnp

        super().__init__()
        self.jax, self.jnp = jax, jnp
        everywhere = without(snippets(statements.EVERYWHERE), statements.CHANGES)
        self.tables = [everywhere, snippets(statements.OF_JAX), ["xs.append({v})"]]
        rng = np.random.default_rng(0)
        u = jnp.asarray(rng.normal(size=(4, 4)) / 2, jnp.float32)
        self.shared = self.array(rng.normal(size=4))

        def vector(x):
            flat = jnp.reshape(x, -1).astype(jnp.float32)
            return jnp.concatenate([flat] * 4)[:4] if flat.shape[0] else jnp.zeros(4)

        def layer(x):
            return jnp.tanh(x @ u + 0.1)

        def cat(xs, axis=0):
            return jnp.concatenate([*xs], axis)

        cells = {
            "vector": vector,
            "layer": layer,
            "cell": lambda x, y: jnp.tanh(x) * y,
            "pair": lambda x: (x * 2, x.sum()),
            "mixed": lambda x, y: jnp.concatenate([x, y])[2:6] * jnp.maximum(x, y),
            "tanh": jnp.tanh,
            "maximum": jnp.maximum,
            "stack": lambda xs: jnp.stack([*xs]),
            "where": jnp.where,
            "norm": lambda x: jnp.sqrt((x * x).sum()),
            "distinct": lambda x: x + jnp.arange(4) * 0.013,
            "ones_like": jnp.ones_like,
            "cat": cat,
        }
        self.names = {
            **{name: multifold.cell(fn) for name, fn in cells.items()},
            "of_rows": multifold.op(lambda x: x @ u),
            "unit": Unit(u),
            "U": u,
            "CONSTANT": self.array(rng.normal(size=4)),
            "array": jax.Array,
            "BACKEND": "jax",
            "zeros": jnp.zeros,
            "detached": lambda x: x,
            "is_float": lambda x: x.dtype == jnp.float32,
            "jax": jax,
            "jnp": jnp,
        }

    def array(self, x):
        return self.jnp.asarray(x, self.jnp.float32)

    def is_array(self, x):
        return isinstance(x, self.jax.Array)

    def cells(self) -> dict[str, Any]:
        jax, layer = self.jax, self.names["layer"]

        @multifold.cell
        def forces(x):
            return jax.grad(lambda x: layer(x).sum())(x)

        @multifold.cell
        def forces_between(x, y):
            return jax.grad(lambda x: (layer(x) * layer(y)).sum())(x) * y

        @multifold.cell
        def curvature(x):
            return jax.hessian(lambda x: (layer(x) ** 2).sum())(x).diagonal()

        return {x.__name__: x for x in (forces, forces_between, curvature)}


class Tensorflow(Single):
    """What names stand for in programs of TensorFlow."""

    name = "tensorflow"
    constants = ("2", "0.5", "-1.0")

    def __init__(self) -> None:
        import keras
        import tensorflow as tf

        super().__init__()
        self.tf = tf
        self.tables = [snippets(statements.OF_TENSORFLOW)] * 3
        rng = np.random.default_rng(0)
        u = self.array(rng.normal(size=(4, 4)) / 2)
        self.shared = self.array(rng.normal(size=4))
        keras.utils.set_random_seed(0)
        dense = keras.layers.Dense(4)
        dense(tf.zeros((1, 4)))

        def vector(x):
            flat = tf.cast(tf.reshape(x, (-1,)), tf.float32)
            return tf.concat([flat] * 4, 0)[:4] if flat.shape[0] else tf.zeros(4)

        self.names = {
            "vector": vector,
            "layer": multifold.cell(lambda x: tf.tanh(tf.linalg.matvec(u, x) + 0.1)),
            "cell": multifold.cell(lambda x, y: tf.tanh(x) * y),
            "pair": multifold.cell(lambda x: (x * 2, tf.reduce_sum(x))),
            "dense": dense,
            "unit": Unit(u),
            "U": u,
            "CONSTANT": self.array(rng.normal(size=4)),
            "BACKEND": "tensorflow",
            "tanh": tf.tanh,
            "maximum": tf.maximum,
            "zeros": tf.zeros,
            "detached": tf.stop_gradient,
            "tf": tf,
        }

    def array(self, x):
        return self.tf.constant(x, self.tf.float32)

    def is_array(self, x):
        return self.tf.is_tensor(x)

    def cells(self) -> dict[str, Any]:
        tf, layer = self.tf, self.names["layer"]

        @multifold.cell
        def forces(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(layer(x))
            return tape.gradient(y, x)

        @multifold.cell
        def forces_between(x, z):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(layer(x) * z)
            return tape.gradient(y, x) * z

        return {x.__name__: x for x in (forces, forces_between)}
