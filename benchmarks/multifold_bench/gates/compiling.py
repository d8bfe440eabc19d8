"""Gate (f): what JAX compiles in an epoch of shuffled minibatches, and for a server that is warm."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import numpy as np

import multifold
from multifold.models import BinaryTreeLSTM
from multifold_bench.gates.figures import Figure, Line, Numbers, Results, Step
from multifold_bench.gates.serving import served, server_of, traffic_of
from multifold_bench.gates.trees import traces_of, tree_of
from multifold_bench.graphs.base import CLASSES, WORDS
from multifold_bench.graphs.trees import sentence_tree

WIDTH = 32
MINIBATCHES = 133
BATCH = 64
REQUESTS = 600
UNDER_WAY = 60


def counted() -> list[str]:
    """Return a list that grows with each compilation of this process."""
    import jax

    compiled: list[str] = []

    def listen(event: str, seconds: float, **named: Any) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    return compiled


def epoch_step(quick: bool) -> Step:
    """Return what runs the traces of an epoch as programs, which one compiled function reads."""
    import jax
    import multifold_jax

    compiled = counted()
    minibatches = 3 if quick else MINIBATCHES
    rng = np.random.default_rng(0)
    traces = traces_of([tree_of(sentence_tree(rng)) for _ in range(BATCH * minibatches)])
    model = BinaryTreeLSTM(WORDS, WIDTH, CLASSES).on("jax")
    run = jax.jit(multifold_jax.run)

    def step(number: int) -> tuple[Numbers, Results]:
        order = np.random.default_rng(number).permutation(len(traces))
        fold = multifold.Fold(backend="jax")
        compiled.clear()
        total = np.zeros(CLASSES)
        for places in order.reshape(minibatches, -1):
            outputs = run(model, fold.program([traces[place] for place in places]))
            total += np.asarray(outputs).sum(axis=0)
        return {"compilations": len(compiled)}, {"epoch": {"total": total}}

    return step


def server_step(name: str, quick: bool) -> Step:
    """Return what warms a server up, and then serves requests of which up to 60 are under way."""
    compiled = counted()
    requests = 60 if quick else REQUESTS
    traffic = traffic_of(name, "jax", 64 if quick else 256)

    def step(number: int) -> tuple[Numbers, Results]:
        rng = np.random.default_rng(number)
        examples = [traffic.examples[place] for place in rng.integers(len(traffic.examples), size=requests)]
        with server_of(traffic, "jax") as server:
            asyncio.run(server.warm(traffic.examples))
            compiled.clear()
            total = served(server, examples, lambda: int(rng.integers(1, UNDER_WAY + 1)))
        return {"compilations": len(compiled)}, {"server": {"total": total}}

    return step


def figure(name: str, prepare: Any, line: Line) -> Figure:
    """Return a figure of gate (f), of one repetition: a second one would find everything compiled."""
    return Figure("f", name, "jax", prepare, (line,), repetitions=1, quickly=1, warms=0)


def compilations(found: Any) -> float:
    """Return how often something was compiled."""
    return found["compilations"]


FIGURES = [
    figure("133 minibatches", epoch_step, Line("compilations", compilations, beside=1.0)),
    *[
        figure(
            f"600 requests, {name}", partial(server_step, name), Line("after warm", compilations, most=1)
        )
        for name in ("trees", "light parser")
    ],
]
