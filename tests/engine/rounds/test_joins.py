"""Forks and joins: `Fold.gather` waits for several coroutines of one example at once."""

from __future__ import annotations

from typing import Any

import pytest
from awaits import absolute, rounds_of

from multifold import Fold, RecordError, Unfold


async def largest(fold, tree):
    """Return the largest number of a tree of pairs, through a task for each subtree."""
    if isinstance(tree, int):
        return (await fold.value(fold.add("leaf", tree)))[0]
    return max(await fold.gather(*[largest(fold, child) for child in tree]))


def test_siblings_wait_together(backend, model):
    async def fn(fold, tree):
        return fold.add("leaf", int(await largest(fold, tree)))

    fold = Fold(backend=backend)
    assert fold.run(model, [((1, 2), (3, 4)), 5], fn)[0][0] == 4
    assert rounds_of(fold) == [{"leaf": 1}, {"leaf": 1}]


def test_gather_goes_deeper_than_the_stack(backend, model):
    tree: Any = 1
    for n in range(5000):
        tree = (tree, 2) if n == 4000 else (tree,)

    async def fn(fold, tree):
        return fold.add("leaf", int(await largest(fold, tree)))

    assert Fold(backend=backend).run(model, [tree], fn)[0][0] == 2
    assert Unfold(model, backend=backend).run(None, [tree], fn)[0][0] == 2


def test_nested_awaits_that_are_too_deep_are_refused_with_the_loop(backend, model):
    async def deep(fold, n):
        return await deep(fold, n - 1) if n else fold.add("leaf", 1)

    with pytest.raises(RecordError, match=r"recursion limit .*\n\nHint: .*gather.*as a loop: `while "):
        Fold(backend=backend).run(model, [5000], deep)


def test_gather_takes_values_and_nothing_else(backend, model):
    async def fn(fold, n):
        node = fold.add("leaf", n)
        one, (two,) = await fold.gather(fold.value(node), fold.values([node]))
        assert one == two == n and await fold.gather() == []
        with pytest.raises(RecordError, match="Expected coroutines"):
            fold.gather(fn(fold, 1), 3)
        return node

    Fold(backend=backend).run(model, [1, 2], fn)


def test_an_exception_of_one_sibling_reaches_who_joins_them(backend, model):
    closed = []

    async def child(fold, n):
        try:
            await fold.value(fold.add("leaf", n))
            if n == 2:
                raise ValueError("two")
            await fold.value(fold.add("leaf", n))
        finally:
            closed.append(n)

    async def fn(fold, _):
        with pytest.raises(ValueError, match="two"):
            await fold.gather(child(fold, 1), child(fold, 2), child(fold, 3))
        return fold.add("leaf", 7)

    assert Fold(backend=backend).run(model, [0], fn)[0][0] == 7
    assert sorted(closed) == [1, 2, 3]


def test_gather_refuses_one_coroutine_twice():
    async def one(fold, x):
        return await fold.value(fold.add(abs, x))

    async def example(fold, x):
        coroutine = one(fold, x)
        return await fold.gather(coroutine, coroutine)

    with pytest.raises(RecordError, match="Received one of them twice"):
        Fold(backend="numpy").run(None, [1], example)


async def gathers_itself(fold, own):
    return await fold.gather(own[0])


async def gathers_its_parent(fold, own):
    async def child():
        return await fold.gather(own[0])

    return await fold.gather(child())


async def gathers_one_by_two(fold, own):
    one = absolute(fold, 1)
    return await fold.gather(fold.gather(one), fold.gather(one))


async def gathers_one_that_is_done(fold, own):
    one = absolute(fold, 1)
    return await fold.gather(one) + await fold.gather(one)


@pytest.mark.parametrize("recorder", [Fold, Unfold])
@pytest.mark.parametrize(
    "fn", [gathers_itself, gathers_its_parent, gathers_one_by_two, gathers_one_that_is_done]
)
def test_a_coroutine_that_was_gathered_or_gathers_itself_is_refused(fn, recorder, backend):
    def start(fold, x):
        own = []
        own.append(fn(fold, own))
        return own[0]

    with pytest.raises(RecordError, match="have not begun"):
        recorder(backend=backend).run(None, [0], start)


def test_an_example_that_gathers_itself_fails_alone():
    def start(fold, x):
        own = []
        own.append(gathers_itself(fold, own) if x == 1 else absolute(fold, x))
        return own[0]

    got, failures = Fold(backend="numpy").run(None, [0, 1, 2], start, on_error="collect")
    assert got.tolist() == [0, 2] and list(failures) == [1]


def test_a_value_may_be_gathered_twice():
    async def example(fold, x):
        value = fold.value(fold.add(abs, x))
        return sum(await fold.gather(value, value))

    assert Fold(backend="numpy").run(None, [-1, -2], example).tolist() == [2, 4]


def test_a_plain_function_may_return_what_gather_does():
    async def one(fold, x):
        return await fold.value(fold.add(abs, x))

    got = Fold(backend="numpy").run(None, [-1, -2], lambda fold, x: fold.gather(one(fold, x), one(fold, 5)))
    assert got.tolist() == [1, 5, 2, 5]


def test_what_siblings_of_siblings_wait_for_is_not_run_when_one_of_them_fails(counting, model):
    async def deep(fold, n):
        node = fold.add("leaf", n)
        for _ in range(5):
            await fold.value(node)
            node = fold.add("double", node)

    async def fails(fold):
        await fold.value(fold.add("leaf", 1))
        raise KeyError("no")

    async def both(fold, n):
        await fold.gather(deep(fold, n), deep(fold, n + 1))

    async def fn(fold, n):
        try:
            await fold.gather(fails(fold), both(fold, n))
        except KeyError:
            return fold.add("leaf", n)

    Fold(backend=counting).run(model, [1, 2], fn)
    assert counting.counts["call"] == 2


def test_a_join_is_awaited_once():
    async def child(fold):
        return await fold.value(fold.add("same", 1))

    async def fn(fold, n):
        both = fold.gather(child(fold))
        return await fold.gather(both, both)

    with pytest.raises(RecordError, match="awaited once"):
        Fold(backend="numpy").run({"same": lambda x: x}, [1], fn)
