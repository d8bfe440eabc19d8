"""Examples that wait do not disturb each other: context variables, and the contexts of frameworks."""

from __future__ import annotations

import contextvars
import inspect

import pytest
from awaits import absolute

from multifold import Fold, RecordError, Unfold
from multifold.testing import Counting

DIGITS: contextvars.ContextVar[int] = contextvars.ContextVar("DIGITS", default=0)


@pytest.mark.parametrize("recorder", [Fold, Unfold])
def test_each_example_has_context_variables_of_its_own(recorder, model):
    async def half(fold, n):
        DIGITS.set(DIGITS.get() * 2)
        await fold.gather(fold.value(fold.add("leaf", n)))
        return DIGITS.get()

    async def fn(fold, n):
        DIGITS.set(n)
        doubled = await fold.gather(half(fold, n), half(fold, n))
        return [DIGITS.get(), *doubled]

    fold = Fold(backend="numpy") if recorder is Fold else Unfold({"leaf": lambda x: x})
    got = fold.run(None if recorder is Unfold else {"leaf": lambda x: x}, [1, 2, 3], fn)
    assert got.tolist() == [1, 2, 2, 2, 4, 4, 3, 6, 6] and DIGITS.get() == 0


class InContext(Counting):
    """A backend with a mode of its own, as gradients that are off."""

    mode = "on"

    def context(self):
        return self.mode


def test_an_example_that_fails_inside_of_a_frameworks_with_is_the_only_one():
    seam = InContext("numpy")

    async def fn(fold, n):
        await fold.value(fold.add("same", n))
        if n == 2:
            seam.mode = "off"
            raise ValueError(n)
        await fold.value(fold.add("same", n))
        return n

    got, failures = Fold(backend=seam).run({"same": lambda x: x}, [1, 2, 3], fn, on_error="collect")
    assert got.tolist() == [1, 3] and list(failures) == [1]


@pytest.mark.parametrize("returns", [False, True])
def test_no_example_waits_or_returns_inside_of_a_frameworks_with(returns):
    seam = InContext("numpy")

    async def fn(fold, n):
        node = fold.add("same", n)
        await fold.value(node)
        try:
            seam.mode = "off" if n == 2 else "on"
            if n == 2 and not returns:
                await fold.value(fold.add("same", node))
        finally:
            seam.mode = seam.mode if returns else "on"
        return node

    fold = Fold(backend=seam)
    got, failures = fold.run({"same": lambda x: x}, [1, 2], fn, on_error="collect")
    assert got.tolist() == [1] and list(failures) == [1]
    seam.mode = "on"
    with pytest.raises(RecordError, match=r"example 1 of fold.run to leave the framework's `with`"):
        fold.run({"same": lambda x: x}, [1, 2], fn)


@pytest.mark.parametrize("waits_for", ["nothing", "gather"])
def test_who_waits_inside_of_a_frameworks_with_waits_for_nothing_more(waits_for):
    seam, children = InContext("numpy"), []

    async def fn(fold, n):
        await fold.value(fold.add("same", n))
        try:
            seam.mode = "off"
            if waits_for == "nothing":
                await Forever()
            children.append(absolute(fold, n))
            await fold.gather(*children)
        finally:
            seam.mode = "on"

    with pytest.raises(RecordError, match="leave the framework's `with`"):
        Fold(backend=seam).run({"same": lambda x: x}, [1], fn)
    assert all(inspect.getcoroutinestate(child) == inspect.CORO_CLOSED for child in children)


class Forever:
    """What no run of a fold can wait for."""

    def __await__(self):
        yield self
