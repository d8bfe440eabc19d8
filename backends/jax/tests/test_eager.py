"""Eager folds on JAX that compile again and again are told of programs, once."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import multifold_jax
import pytest
from multifold_jax import eager

import multifold

COMPILED = "/jax/core/compile/backend_compile_duration"


def warned_after(compilations, runs, of_each):
    """Make runs, and return how many there were before each warning."""
    found = []
    for number in range(runs):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with compilations.run():
                for _ in range(of_each):
                    compilations.listen(COMPILED, 0.1)
                compilations.listen("/jax/another/event", 0.1)
        found += [number + 1] * len(caught)
    return found


def test_runs_that_compile_again_and_again_are_warned_of_once():
    assert warned_after(eager.Compilations(), 100, of_each=20) == [eager.MANY_RUNS]
    assert warned_after(eager.Compilations(), 100, of_each=5) == [eager.MANY_COMPILATIONS // 5]


def test_a_few_minibatches_and_runs_that_compile_nothing_are_not_warned_of():
    compilations = eager.Compilations()
    assert not warned_after(compilations, 10, of_each=100)
    assert not warned_after(compilations, 1000, of_each=0)


def test_the_line_of_the_user_is_named():
    compilations = eager.Compilations()
    warned_after(compilations, eager.MANY_RUNS - 1, of_each=100)
    said = pytest.warns(UserWarning, match=r"(?s)run eagerly on JAX.*fold\.program\(traces\)")
    with said as caught, compilations.run():
        compilations.listen(COMPILED, 0.1)
    assert caught[0].filename == __file__


def encode(fold, n):
    x = 1.0
    for _ in range(n):
        x = fold.add("double", x)
    return x


def test_eager_runs_of_new_numbers_of_rows_count_and_programs_do_not(monkeypatch):
    compilations = eager.Compilations()
    monkeypatch.setattr(multifold_jax.backend, "COMPILATIONS", compilations)
    jax.monitoring.register_event_duration_secs_listener(compilations.listen)
    fold = multifold.Fold(backend="jax")
    model = {"double": lambda x: jnp.sinh(x) * 2}
    step = jax.jit(lambda program: multifold_jax.run(model, program))
    try:
        for lengths in ([3, 2, 1], [1, 2, 3], [2, 2, 3]):
            step(fold.program(multifold.traces(encode, lengths)))
        assert compilations.runs == 0 and compilations.count
        runs = []
        for rows in (37, 41, 37, 41):
            fold.run(model, multifold.traces(encode, [1] * rows))
            runs.append(compilations.runs)
        assert 0 < runs[0] < runs[1] == runs[2] == runs[3]
    finally:
        jax.monitoring.unregister_event_duration_listener(compilations.listen)
