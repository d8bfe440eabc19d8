"""Trials: what an op may change in TensorFlow, and how a launch runs again unseen.

TensorFlow has public names for none of it, except for variables. Where a version lacks a private name, the
state behind it moves on.
"""

from __future__ import annotations

import contextlib
import importlib
import random
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from multifold.backend import StateSlot
from multifold_tensorflow.kit import named_variables


class Drawn:
    """Counts the graphs that plain programs have drawn of their calls, which takes as long as many runs."""

    def __init__(self) -> None:
        self.count = 0

    def graph(self) -> None:
        """Count one more graph."""
        self.count += 1


DRAWN = Drawn()
"""The graphs of this process."""


def private(module: str, name: str) -> Any:
    """Return attribute ``name`` of a module of TensorFlow or Keras.

    None if there is no such name or module.
    """
    with contextlib.suppress(ImportError):
        return getattr(importlib.import_module(module), name, None)
    return None


def slots(owners: Sequence[Any]) -> Iterator[StateSlot]:
    """Yield a `StateSlot` for each random generator of TensorFlow and Keras and each variable not trained.

    While a graph is drawn there are none: then no state has a value.
    """
    if not tf.executing_eagerly():
        return
    context = eager_context()
    if hasattr(context, "_rng"):
        yield StateSlot(
            partial(seeds_of, context), partial(set_seeds, context), random=True, seed=tf.random.set_seed
        )
    generator = private("tensorflow.python.ops.stateful_random_ops", "global_generator")
    if generator is not None:
        x = generator.state
        yield StateSlot(partial(tf.identity, x), x.assign, random=True, seed=partial(begin_anew, x))
    if global_attribute is not None:
        make_generator()  # one that is made meanwhile has drawn nothing
        yield StateSlot(keras_state, set_keras_state, random=True, seed=seed_keras)
    for name, x in named_variables(list(owners), trained=False):
        if x.is_initialized():
            # A layer that draws has a seed generator of Keras among its variables.
            is_random = SEEDS in f"{name} {x.name}"
            seed = partial(begin_anew, x) if is_random else None
            yield StateSlot(partial(tf.identity, x), x.assign, random=is_random, seed=seed)


SEEDS = "seed_generator_state"
"""Part of the names of variables that are states of Keras's random generators."""


def begin_anew(state: tf.Variable, seed: int) -> None:
    """Set ``state``, the variable of a random generator, to ``seed`` followed by zeros."""
    state.assign(tf.cast(tf.concat([[seed], [0] * (state.shape[0] - 1)], 0), state.dtype))


def seeds_of(context: Any) -> tuple[Any, bytes]:
    """Return (global seed, position) of the sequence of seeds that ops take.

    Before the first `tf.random.set_seed` it is ``(None, b"")``. ``context`` is what `eager_context`
    returns.
    """
    if context._rng is None:
        return None, b""
    _, numbers, _ = context._rng.getstate()
    return context._seed, np.array(numbers, np.uint32).tobytes()


def set_seeds(context: Any, seeds: tuple[Any, bytes]) -> None:
    """Let ops be seeded from ``seeds``, as `seeds_of` returned them; do nothing if they are so already."""
    if seeds == seeds_of(context):
        return
    seed, numbers = seeds
    tf.random.set_seed(seed)
    if seed is not None:
        context._rng.setstate((3, tuple(np.frombuffer(numbers, np.uint32).tolist()), None))


@contextlib.contextmanager
def apart() -> Iterator[None]:
    """Return a context in which no tape records, and no operation joins the graph that is drawn."""
    if tf.executing_eagerly():
        stop_recording = private("tensorflow.python.eager.record", "stop_recording")
        with stop_recording() if stop_recording and is_taped() else contextlib.nullcontext():
            yield
    else:
        graph = private("tensorflow.python.framework.func_graph", "FuncGraph")
        with graph("trial").as_default():  # what is drawn here never runs
            yield


could_record = private("tensorflow.python.eager.record", "could_possibly_record")


def is_taped() -> bool:
    """Return whether a tape may record in this thread now."""
    return could_record is None or bool(could_record())


@contextlib.contextmanager
def taped() -> Iterator[None]:
    """Return a context, inside of that of `apart`, in which tapes record what is drawn as a graph.

    So a function that is drawn may use a tape of its own. A tape around the run sees symbols alone.
    """
    engine = private("tensorflow.python.eager.record", "pywrap_tfe")
    is_stopped = getattr(engine, "TFE_Py_TapeSetIsStopped", bool)()
    if is_stopped:
        engine.TFE_Py_TapeSetRestartOnThread()
    try:
        yield
    finally:
        if is_stopped:
            engine.TFE_Py_TapeSetStopOnThread()


RESERVED = frozenset(vars(keras.layers.Layer()))
"""Attributes that every layer has."""


def reserved(owner: Any) -> Collection[str]:
    """Return the names of attributes that Keras or TensorFlow keep in a layer or module; else none."""
    if not isinstance(owner, (keras.layers.Layer, tf.Module)):
        return ()
    return RESERVED | {name for name in vars(owner) if name.startswith("_")}


def layers_of(owners: Iterable[Any]) -> list[Any]:
    """Return the Keras layers among ``owners`` and their attributes, each with the layers inside of it."""
    parts = [x for owner in owners for x in (owner, *getattr(owner, "__dict__", {}).values())]
    return [x for layer in parts if isinstance(layer, keras.layers.Layer) for x in layer._flatten_layers()]


global_attribute = private("keras.src.backend.common.global_state", "get_global_attribute")
set_global_attribute = private("keras.src.backend.common.global_state", "set_global_attribute")
GENERATOR = "global_seed_generator"


def keras_state() -> Any:
    """Return a copy of the state of Keras's global random generator; None if there is none yet."""
    generator = global_attribute(GENERATOR)
    return None if generator is None else tf.identity(generator.state.value)


def set_keras_state(state: Any) -> None:
    """Set the state of Keras's global random generator; None removes the generator."""
    if state is None:
        set_global_attribute(GENERATOR, None)
        return
    make_generator()
    global_attribute(GENERATOR).state.assign(state)


def make_generator() -> None:
    """Make Keras's global random generator, unless it exists or a graph is drawn.

    It gets the seed that Keras would draw, and Python's own generator stays as it is.
    """
    if tf.executing_eagerly() and global_attribute(GENERATOR) is None:
        own = random.Random()
        own.setstate(random.getstate())
        seed_keras(own.randint(1, 10**9))


def seed_keras(seed: int) -> None:
    """Replace Keras's global random generator by a new one with this seed."""
    set_global_attribute(GENERATOR, keras.random.SeedGenerator(seed % 2**31))


def eager_context() -> Any:
    """Return TensorFlow's eager context, which holds the seeds of ops; None if this version has none."""
    found = private("tensorflow.python.eager.context", "context")
    return found() if found is not None else None
