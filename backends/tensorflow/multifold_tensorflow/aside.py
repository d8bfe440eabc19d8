"""Runs of which nothing stays: no gradients, no random state that moved on, no running mean.

TensorFlow has public names for none of it, except for variables. Where a version lacks a private name, the
state behind it moves on.
"""

from __future__ import annotations

import contextlib
import importlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from multifold_tensorflow.kit import named_variables


def private(module: str, name: str) -> Any:
    """Return a private name of TensorFlow or Keras; None where there is none."""
    with contextlib.suppress(ImportError):
        return getattr(importlib.import_module(module), name, None)
    return None


@contextlib.contextmanager
def aside(owners: Sequence[Any]) -> Iterator[None]:
    """Return the context of `Backend.aside`."""
    if not tf.executing_eagerly():
        graph = private("tensorflow.python.framework.func_graph", "FuncGraph")
        with graph("aside").as_default():  # what is drawn here never runs
            yield
        return
    found = named_variables([*owners, *generators()], trained=False)
    kept = [(x, tf.identity(x)) for _, x in found if x.is_initialized()]
    stop_recording = private("tensorflow.python.eager.record", "stop_recording") or contextlib.nullcontext
    with stop_recording(), seeds_apart():
        try:
            yield
        finally:
            for x, before in kept:
                x.assign(before)


def generators() -> list[tf.Variable]:
    """Return the states of the global generators of TensorFlow and Keras that were made."""
    attribute = private("keras.src.backend.common.global_state", "get_global_attribute")
    made = [
        private("tensorflow.python.ops.stateful_random_ops", "global_generator"),
        attribute("global_seed_generator") if attribute is not None else None,
    ]
    return [generator.state for generator in made if generator is not None]


@contextlib.contextmanager
def seeds_apart() -> Iterator[None]:
    """Let ops take other seeds: after `tf.random.set_seed` each op takes the next one of a sequence."""
    found = private("tensorflow.python.eager.context", "context")
    context: Any = found() if found is not None else None
    seeds = getattr(context, "_rng", None)
    if seeds is None:
        yield
        return
    context._rng = random.Random("aside")  # a text: `set_seed` takes numbers
    try:
        yield
    finally:
        context._rng = seeds
