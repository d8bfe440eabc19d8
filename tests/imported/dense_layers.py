"""A layer with weights of each framework, its arrays made."""

from __future__ import annotations

import importlib


def dense(backend):
    """Return a layer of a framework from rows of 2 to rows of 3, its arrays made; None for NumPy."""
    if backend == "torch":
        return importlib.import_module("torch").nn.Linear(2, 3)
    if backend == "tensorflow":
        layer = importlib.import_module("keras").layers.Dense(3)
        layer.build((None, 2))
        return layer
    if backend == "mxnet":
        layer = importlib.import_module("mxnet").gluon.nn.Dense(3, in_units=2)
        layer.initialize()
        return layer
    nnx = importlib.import_module("flax.nnx") if backend == "jax" else None
    return nnx and nnx.Linear(2, 3, rngs=nnx.Rngs(0))
