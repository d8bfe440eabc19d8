"""A server on JAX: launches and row operations are padded to powers of two, so few sizes are compiled."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import multifold
from multifold import Server

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "serving"

BURSTS = (1, 30, 3, 17, 9, 5, 26, 2)
"""How many requests are under way: each time another number of rows."""

compiled: list[str] = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **named: compiled.append(event) if "backend_compile" in event else None
)


def model():
    """Return ops whose states are an array at first, and then one of a pair: they lie in two pages."""
    return {
        "begin": jax.jit(lambda x: x[:, None] * jnp.ones((1, 3))),
        "read": jax.jit(lambda h, x: (h + x[:, None], h)),
        "say": jax.jit(lambda h: h[:, 0]),
        "sum": jax.jit(lambda rows: jax.ops.segment_sum(rows.values, rows.segment_ids, len(rows.lengths))),
    }


async def speak(fold, numbers):
    """Read some numbers, and then say and read until the sum is large."""
    h = fold.add("begin", numbers[0])
    if numbers[0] > 4:
        await fold.value(fold.add("say", h))  # a round behind the others
    for x in numbers[1:]:
        h = fold.add("read", h, x)[0]
    while await fold.value(fold.add("say", h)) < 50:
        h = fold.add("read", h, 10.0)[0]
    return h


def spoken(numbers):
    total = sum(numbers)
    return total + 10 * max(0, -(-(50 - total) // 10))


def total(fold, numbers):
    """Add some numbers by a chain, and by a launch for all of them."""
    h = fold.add("begin", numbers[0])
    for x in numbers[1:]:
        h = fold.add("read", h, x)[0]
    return fold.add("sum", multifold.ragged([h, *[fold.add("begin", x) for x in numbers]]))


def totalled(numbers):
    return 2 * sum(numbers)


def drawn(seed, count):
    rng = random.Random(seed)
    return [[float(rng.randrange(9)) for _ in range(rng.randrange(1, 5))] for _ in range(count)]


@pytest.mark.parametrize("join", ["launches", "rounds"])
@pytest.mark.parametrize(("fn", "expected"), [(speak, spoken), (total, totalled)])
def test_few_sizes_are_compiled_after_warming_up(fn, expected, join):
    """Whatever is put together has a number of rows that was met before, but for a few that were not."""
    with Server(model(), fn, backend="jax", join=join, wait=0.05) as server:
        asyncio.run(server.warm(drawn(0, 32)))
        compiled.clear()
        for seed, size in enumerate(BURSTS):
            examples = drawn(seed, size)
            futures = [server.submit(example) for example in examples]
            assert [future.result(60).tolist() for future in futures] == [
                [[expected(x)] * 3] for x in examples
            ]
    assert len(compiled) <= 8  # without padding 15 to 70


def test_the_example_of_a_service_compiles_little_when_it_is_ready(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)
    import sentiment

    with sentiment.make_server("jax") as server:
        asyncio.run(server.warm(sentiment.EXAMPLES))
        compiled.clear()
        for count in (150, 70, 9):
            draw = random.Random(count)
            trees = [sentiment.random_tree(draw.randint(2, 25), draw) for _ in range(count)]
            for future in [server.submit(tree) for tree in trees]:
                future.result(60)
    assert len(compiled) <= 20  # 93 where only three trees warm it up
