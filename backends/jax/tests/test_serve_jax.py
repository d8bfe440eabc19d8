"""A server on JAX: launches are padded to powers of two, so each op compiles for few numbers of rows."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import pytest

from multifold import Server


async def speak(fold, numbers):
    """Read some numbers, and then say and read until the sum is large."""
    h = fold.add("begin", numbers[0])
    for x in numbers[1:]:
        h = fold.add("read", h, x)
    while await fold.value(fold.add("say", h)) < 50:
        h = fold.add("read", h, 10.0)
    return h


def expected(numbers):
    total = sum(numbers)
    return [[total + 10 * max(0, -(-(50 - total) // 10))] * 3]


@pytest.mark.parametrize("join", ["launches", "rounds"])
def test_ops_compile_for_few_numbers_of_rows(join):
    """Of 300 requests, at most 64 under way, a launch has 1 to 64 rows: seven powers of two."""
    model = {
        "begin": jax.jit(lambda x: x[:, None] * jnp.ones((1, 3))),
        "read": jax.jit(lambda h, x: h + x[:, None]),
        "say": jax.jit(lambda h: h[:, 0]),
    }
    rng = random.Random(0)
    with Server(model, speak, backend="jax", join=join) as server:
        for size in (1, 64, 3, 50, 17, 30, 64, 5, 61, 5):  # each time another number of rows
            examples = [[float(rng.randrange(9)) for _ in range(rng.randrange(1, 5))] for _ in range(size)]
            futures = [server.submit(example) for example in examples]
            found = [future.result(60).tolist() for future in futures]
            assert found == list(map(expected, examples))
    compiled = {name: op._cache_size() for name, op in model.items()}
    assert all(count <= 7 for count in compiled.values()), compiled
