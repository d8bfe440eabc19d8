"""Trials: what an op may change in TensorFlow, and how a launch runs again unseen.

TensorFlow has public names for none of it, except for variables. Where a version lacks a private name, the
state behind it moves on.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

import keras
import tensorflow as tf

from multifold.backend import StateSlot
from multifold_tensorflow.kit import named_variables


def private(module: str, name: str) -> Any:
    """Return a private name of TensorFlow or Keras; None where there is none."""
    with contextlib.suppress(ImportError):
        return getattr(importlib.import_module(module), name, None)
    return None


def slots(owners: Sequence[Any]) -> Iterator[StateSlot]:
    """Yield the state of random generators, and variables that are not trained.

    Nothing while a graph is drawn: then no state has a value.
    """
    if not tf.executing_eagerly():
        return
    context = eager_context()
    if getattr(context, "_rng", None) is not None:
        # After `tf.random.set_seed` each op takes the next one of a sequence of seeds. An op that takes a
        # seed again goes on where it was, so a trial has a sequence of its own.
        read, write = partial(getattr, context, "_rng"), partial(setattr, context, "_rng")
        yield StateSlot(read, write, lambda rng: Random("trial"), random=True)
    for x in generators():
        yield StateSlot(partial(tf.identity, x), x.assign, random=True)
    for name, x in named_variables(list(owners), trained=False):
        if x.is_initialized():
            # A layer that draws has a seed generator of Keras among its variables.
            random = "seed_generator_state" in f"{name} {x.name}"
            yield StateSlot(partial(tf.identity, x), x.assign, random=random)


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Let no tape record what runs, and nothing of it be in the graph that is drawn."""
    if tf.executing_eagerly():
        stop_recording = private("tensorflow.python.eager.record", "stop_recording")
        with stop_recording() if stop_recording is not None else contextlib.nullcontext():
            yield
    else:
        graph = private("tensorflow.python.framework.func_graph", "FuncGraph")
        with graph("trial").as_default():  # what is drawn here never runs
            yield


RESERVED = frozenset(vars(keras.layers.Layer()))
"""Attributes that every layer has."""


def reserved(owner: Any) -> Collection[str]:
    """Return the attributes that Keras or TensorFlow keep in a layer or module."""
    if not isinstance(owner, (keras.layers.Layer, tf.Module)):
        return ()
    return RESERVED | {name for name in vars(owner) if name.startswith("_")}


def layers_of(owners: Iterable[Any]) -> list[Any]:
    """Return all layers that some objects are or hold, and the layers in these."""
    parts = [x for owner in owners for x in (owner, *getattr(owner, "__dict__", {}).values())]
    return [x for layer in parts if isinstance(layer, keras.layers.Layer) for x in layer._flatten_layers()]


def generators() -> list[tf.Variable]:
    """Return the states of the global generators of TensorFlow and Keras that were made."""
    attribute = private("keras.src.backend.common.global_state", "get_global_attribute")
    made = [
        private("tensorflow.python.ops.stateful_random_ops", "global_generator"),
        attribute("global_seed_generator") if attribute is not None else None,
    ]
    return [generator.state for generator in made if generator is not None]


def eager_context() -> Any:
    """Return TensorFlow's eager context, which has the seeds of ops; None where there is none."""
    found = private("tensorflow.python.eager.context", "context")
    return found() if found is not None else None
