"""Batched programs of JAX take the loop where that is faster; the times are those of the test."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from paced import Clock

import multifold

XS = [*jnp.arange(64.0).reshape(16, 4) / 64]
WEIGHTS = jnp.arange(16.0).reshape(4, 4) / 16


@multifold.cell
def layer(x, w):
    return jnp.tanh(x @ w)


def program(clock):
    return multifold.batched(lambda x, w: clock.took() or layer(layer(x, w), w))


@pytest.mark.parametrize("in_grad", [True, False])
@pytest.mark.parametrize(("batched", "taken"), [(2.0, 16), (0.5, 0)])
def test_runs_take_the_loop_where_it_is_faster(in_grad, batched, taken, monkeypatch):
    clock = Clock(monkeypatch, 1.0, batched)
    run = program(clock)

    def loss(w):
        return jnp.square(run(XS, w=w)).sum()

    def in_loop(w):
        return sum(jnp.square(layer(layer(x, w), w)).sum() for x in XS)

    step, wanted = [jax.value_and_grad(fn) if in_grad else fn for fn in (loss, in_loop)]
    found = []
    for _ in range(8):
        jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-4), step(WEIGHTS), wanted(WEIGHTS))
        found.append(clock.count())
    assert found[0] == 0 and found[-2:] == [taken] * 2
    assert ("take the loop" in str(run.explain())) == bool(taken)


def test_runs_with_gradients_and_without_go_their_own_way(monkeypatch):
    clock = Clock(monkeypatch, 1.0, 2.0)
    run = program(clock)
    for _ in range(8):
        run(XS, w=WEIGHTS)
    assert clock.count() > 16
    jax.grad(lambda w: run(XS, w=w).sum())(WEIGHTS)
    assert clock.count() == 0


def test_what_jax_traces_is_not_timed(monkeypatch):
    clock = Clock(monkeypatch, 1.0, 2.0)
    run = program(clock)
    for scale in range(4):
        jax.jit(lambda w, scale=scale: scale * run(XS, w=w))(WEIGHTS)
    assert clock.count() == 0
