"""Callers in event loops: how they are woken, and what reaches them."""

from __future__ import annotations

import asyncio
import gc
import weakref

import pytest

from multifold import Server


def double(fold, x):
    return fold.add("double", x)


def stop(fold, x):
    return next(iter(())) if x < 0 else fold.add("double", x)


def make_server(fn=double, **options):
    return Server({"double": lambda x: 2 * x}, fn, backend="numpy", **options)


def test_all_that_a_round_has_done_wakes_a_loop_once(monkeypatch):
    woken = []

    async def main():
        loop = asyncio.get_running_loop()
        async with make_server(wait=0.2) as server:
            monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *x: woken.append(x) or wake(*x))
            wake = type(loop).call_soon_threadsafe.__get__(loop)
            found = await asyncio.gather(*[server(float(x)) for x in range(50)])
            wakes = len(woken)
        return [x.item() for x in found], wakes, server.stats().rounds

    found, wakes, rounds = asyncio.run(main())
    assert found == [2.0 * x for x in range(50)]
    assert 0 < wakes <= rounds <= 2  # the first may have begun before the last was submitted


def test_a_loop_that_was_closed_keeps_nobody_waiting():
    async def leave(server):
        task = asyncio.ensure_future(server(1.0))
        await asyncio.sleep(0)
        task.cancel()

    with make_server(wait=0.05) as server:
        asyncio.run(leave(server))
        assert server.submit(2.0).result(30).item() == 4
    assert sum(server.stats().outcomes.values()) == 2


def test_what_no_loop_can_raise_is_raised_as_another_error():
    async def main():
        async with make_server(stop, wait=0.05) as server:
            return await asyncio.gather(server(-1.0), server(3.0), return_exceptions=True)

    error, found = asyncio.run(main())
    assert isinstance(error, RuntimeError) and "request 0" in str(error) and found.item() == 6


def test_an_outcome_reaches_the_loop_that_asked():
    with make_server(wait=0.05) as server:

        async def ask(x):
            return (await server(x)).item(), asyncio.get_running_loop()

        loops = [asyncio.run(ask(x)) for x in (1.0, 2.0)]
    assert [value for value, _ in loops] == [2, 4]
    with pytest.raises(RuntimeError, match="closed"):
        loops[0][1].call_soon_threadsafe(print)


def test_a_request_that_is_done_waits_for_no_garbage_collector():
    with make_server() as server:
        done = [server.submit(x) for x in (1.0, 2.0)]
        assert [x.result().item() for x in done] == [2, 4]
    gc.collect()
    seen = [weakref.ref(x) for x in done]
    gc.disable()
    try:
        del done
        assert [x() for x in seen] == [None, None]
    finally:
        gc.enable()
