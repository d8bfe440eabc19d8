"""Coroutines are closed when a run ends, whatever ended it and whatever their cleanups raise."""

from __future__ import annotations

import asyncio
import inspect
import sys

import pytest
from awaits import absolute

from multifold import Fold, RecordError, Unfold
from multifold._engine.rounds.awaitables import GatherRequest
from multifold._engine.rounds.tasks import ExampleTask, Tasks


def test_what_is_never_run_is_closed():
    """Else Python warns of coroutines that were never awaited."""
    outer, made = Fold(backend="numpy"), []

    def made_by(fold):
        made.append(absolute(fold, 1))
        return made[-1]

    async def gathers_a_number(fold, x):
        fold.gather(made_by(fold), 1)

    async def gathers_for_another(fold, x):
        await outer.gather(made_by(fold))

    for fn, received in ((gathers_a_number, "Received an int"), (gathers_for_another, "of another one")):
        with outer._awaitable(), pytest.raises(RecordError, match=received):
            Fold(backend="numpy").run(None, [0], fn)
    assert list(map(inspect.getcoroutinestate, made)) == [inspect.CORO_CLOSED] * 2


PRESSED = {
    "opens": (Tasks, "open_task"),
    "joins": (ExampleTask, "join"),
    "makes": (ExampleTask, "__init__"),
    "waits": (Tasks, "_wait"),
    "gathers": (GatherRequest, "__init__"),
    "refuses": (GatherRequest, "problem"),
}


@pytest.mark.parametrize("recorder", [Fold, Unfold])
@pytest.mark.parametrize(("cls", "method"), PRESSED.values(), ids=PRESSED)
def test_a_key_press_closes_all_coroutines(recorder, cls, method, monkeypatch):
    """One that was made and is no task yet, as well."""
    made, own = [], getattr(cls, method)

    def encode(fold, x):
        made.append(two_of(fold, x) if x else absolute(fold, x))
        return made[-1]

    async def two_of(fold, x):
        return sum(await fold.gather(encode(fold, x - 1), encode(fold, x - 1)))

    for pressed in range(3):
        calls = iter(range(100))

        def press(*operands, calls=calls, pressed=pressed):
            if next(calls) == pressed:
                raise KeyboardInterrupt
            return own(*operands)

        monkeypatch.setattr(cls, method, press)
        with pytest.raises(KeyboardInterrupt):
            recorder(backend="numpy").run(None, [2, 0, 1], encode)
    assert set(map(inspect.getcoroutinestate, made)) == {inspect.CORO_CLOSED}


def test_a_key_press_while_coroutines_are_closed_closes_the_others():
    made = []

    async def example(fold, x):
        try:
            return await absolute(fold, await absolute(fold, x))
        finally:
            raise KeyboardInterrupt

    def kept(fold, x):
        made.append(absolute(fold, "no number") if x == 1 else example(fold, x))
        return made[-1]

    with pytest.raises(KeyboardInterrupt):
        Fold(backend="numpy").run(None, [0, 1, 2, 3], kept)
    assert set(map(inspect.getcoroutinestate, made)) == {inspect.CORO_CLOSED}


async def cleans_up_badly(fold, x):
    """Wait twice; example 0 fails in between, and example 1 fails while it is closed."""
    try:
        await fold.value(fold.add(abs, x))
        if x == 0:
            raise ValueError("zero")
        await fold.value(fold.add(abs, x))
    finally:
        if x == 1:
            raise KeyError("cleanup")
    return x


@pytest.mark.parametrize("recorder", [Fold, Unfold])
def test_a_cleanup_that_raises_hides_nothing_and_leaves_the_fold_usable(recorder):
    fold = recorder(backend="numpy")
    examples = [1, 0, 2] if recorder is Fold else [0, 1]
    with pytest.raises(ValueError, match="zero") as caught:
        fold.run(None, examples, cleans_up_badly)
    if recorder is Fold:
        assert any("example 0 of fold.run raised KeyError: 'cleanup'" in n for n in caught.value.__notes__)
    assert fold.run(None, [3, 4], cleans_up_badly).tolist() == [3, 4]


def test_a_cleanup_that_raises_inside_of_gather_does_not_end_the_others():
    async def example(fold, x):
        if x == 7:
            await fold.gather(*(cleans_up_badly(fold, i) for i in range(3)))
        return fold.add(abs, x)

    results, failures = Fold(backend="numpy").run(None, [5, 7, 6], example, on_error="collect")
    assert results.tolist() == [5, 6]
    assert [repr(failures[1])] == ["ValueError('zero')"]


def test_a_generator_is_closed_in_the_run_also_inside_of_an_event_loop(model):
    async def steps(closed):
        try:
            yield 1
            yield 2
        finally:
            closed.append(1)

    async def fn(fold, n):
        closed: list[int] = []
        async for _ in steps(closed):
            break
        await fold.value(fold.add("same", n))
        return len(closed)

    async def main():
        return Fold(backend="numpy").run({"same": lambda x: x}, [1, 2], fn)

    assert Fold(backend="numpy").run({"same": lambda x: x}, [1, 2], fn).tolist() == [1, 1]
    assert asyncio.run(main()).tolist() == [1, 1]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RuntimeError("out of memory"), "RuntimeError: out of memory."),
        (NotImplementedError(), "NotImplementedError."),
        (OSError("full"), "OSError: full."),
    ],
)
def test_what_a_cleanup_raises_is_a_note(error, said):
    async def waits(fold):
        try:
            await fold.value(fold.add("same", 1))
            await fold.value(fold.add("same", 2))
        finally:
            raise error

    async def fails(fold):
        await fold.value(fold.add("same", 1))
        raise KeyError("no")

    async def fn(fold, n):
        await fold.gather(waits(fold), fails(fold))

    with pytest.raises(KeyError) as caught:
        Fold(backend="numpy").run({"same": lambda x: x}, [1], fn)
    assert caught.value.__notes__[0] == f"While it was closed, example 0 of fold.run raised {said}"


def test_a_run_leaves_the_hooks_of_asynchronous_generators_as_they_were():
    async def parse(fold, x):
        seen.append(sys.get_asyncgen_hooks())
        return fold.add("double", await fold.value(fold.add("double", x)))

    seen, hooks = [], (lambda generator: None, lambda generator: None)
    before = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(*hooks)
    try:
        Fold(backend="numpy").run({"double": lambda x: 2 * x}, [1.0], parse)
        assert (tuple(seen[0]), tuple(sys.get_asyncgen_hooks())) == ((None, None), hooks)
    finally:
        sys.set_asyncgen_hooks(*before)
