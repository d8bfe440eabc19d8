"""Async generators: what they yield reaches the caller while the request goes on, and each its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import threading
import types
from types import SimpleNamespace

import numpy as np
import pytest

import multifold
from multifold import DeadlineExceeded, LaunchError, Overloaded, RecordError, Server
from multifold.serve.streamed import send_items


class Gate:
    """An op that waits until it is let go on."""

    def __init__(self):
        self.reached = threading.Event()
        self.go = threading.Event()

    def __call__(self, x):
        self.reached.set()
        assert self.go.wait(30)
        return x


def half(x):
    if (np.asarray(x) == 7).any():
        raise ValueError("seven")
    return x / 2


MODEL = {"half": half}


async def halves(fold, x):
    while x >= 1:
        x = await fold.value(fold.add("half", x))
        yield x


def halves_of(x):
    found = []
    while x >= 1:
        x /= 2
        found.append(x)
    return found


@contextlib.asynccontextmanager
async def serving(fn, model=MODEL, **settings):
    async with Server(model, fn, **{"backend": "numpy", "wait": 0.02, **settings}) as server:
        yield server


async def items_of(stream):
    """Return the items of a stream, and what it ended with, None if it is done."""
    found = []
    try:
        async for item in stream:
            found.append(item)
    except Exception as error:  # noqa: BLE001 - whatever a request may end with
        return found, error
    return found, None


async def settled(server):
    """Wait until nothing is under way, and return what the server has counted."""
    for _ in range(1000):
        stats = server.stats()
        if not (stats.running or stats.waiting or stats.live_tasks):
            return stats
        await asyncio.sleep(0.01)
    raise AssertionError(stats)


# ---- items -------------------------------------------------------------------------------------------


def test_each_request_has_the_items_that_it_yields(backend):
    async def main():
        async with serving(halves, backend=backend) as server:
            return await asyncio.gather(*[items_of(server.stream(x)) for x in (5.0, 0.5, 300.0)])

    assert asyncio.run(main()) == [(halves_of(x), None) for x in (5.0, 0.5, 300.0)]


def test_requests_share_launches_step_by_step():
    async def main():
        async with serving(halves, wait=0.2) as server:
            await asyncio.gather(*[items_of(server.stream(x)) for x in (4.0, 5.0, 1.0)])
            return server.stats()

    stats = asyncio.run(main())
    assert (stats.launches, stats.calls) == (3, 7)


def test_an_item_comes_before_the_next_launch_has_run():
    async def fn(fold, x):
        yield await fold.value(fold.add("half", x))
        yield await fold.value(fold.add("gate", x))

    async def main():
        async with serving(fn, {"gate": gate, **MODEL}) as server:
            stream = server.stream(4.0)
            first = await asyncio.wait_for(anext(stream), 30)
            waits = not gate.go.is_set()
            gate.go.set()
            return first, waits, [item async for item in stream]

    gate = Gate()
    assert asyncio.run(main()) == (2.0, True, [4.0])


def test_without_a_stream_the_result_is_the_list_of_all_items():
    async def main():
        async with serving(halves) as server:
            await server.warm([9.0])
            return await server(5.0), await asyncio.wrap_future(server.submit(0.5))

    assert asyncio.run(main()) == ([2.5, 1.25, 0.625], [])


def test_items_are_anything_and_the_callers_own():
    async def fn(fold, x):
        buffer = np.zeros(2)
        for i in range(2):
            buffer += i + 1
            yield {"at": i, "row": buffer}
        yield None

    async def main():
        async with serving(fn) as server:
            return [item async for item in server.stream(1)]

    first, second, last = asyncio.run(main())
    assert (first["row"].tolist(), second["row"].tolist(), second["at"], last) == ([1, 1], [3, 3], 1, None)


def test_an_object_that_is_called_may_be_the_generator():
    class Halves:
        async def __call__(self, fold, x):
            async for item in halves(fold, x):
                yield item

    async def main():
        async with serving(Halves()) as server:
            return [item async for item in server.stream(5.0)]

    assert asyncio.run(main()) == halves_of(5.0)


def test_an_event_loop_is_woken_once_for_the_items_of_all(monkeypatch):
    async def main():
        loop = asyncio.get_running_loop()
        wakes = []
        wake = loop.call_soon_threadsafe
        async with serving(halves, wait=0.3) as server:
            loop.call_soon_threadsafe = lambda *given: wakes.append(given) or wake(*given)
            await asyncio.gather(*[items_of(server.stream(8.0)) for _ in range(50)])
            return len(wakes)

    assert asyncio.run(main()) == 5  # four items, and the outcome


def test_callers_of_several_event_loops_have_their_own_items():
    async def ask(server, first):
        return await asyncio.gather(*[items_of(server.stream(first + i)) for i in range(10)])

    found = {}
    with Server(MODEL, halves, backend="numpy") as server:

        def work(first):
            found[first] = asyncio.run(ask(server, first))

        threads = [threading.Thread(target=work, args=(first,)) for first in (10.5, 20.5, 30.5, 40.5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {
        first: [(halves_of(first + i), None) for i in range(10)] for first in (10.5, 20.5, 30.5, 40.5)
    }


# ---- errors ------------------------------------------------------------------------------------------


def test_an_error_comes_after_the_items_before_it_and_to_nobody_else():
    async def fn(fold, x):
        async for item in halves(fold, x):
            yield item
            if item == 2.5:
                raise KeyError(item)

    async def main():
        async with serving(fn) as server:
            return await asyncio.gather(*[items_of(server.stream(x)) for x in (5.0, 14.0, 6.0)])

    failed, launched, done = asyncio.run(main())
    assert failed[0] == [2.5] and isinstance(failed[1], KeyError)
    assert failed[1].__notes__ == ["Raised by request 0 of multifold.Server."]
    assert launched[0] == [7.0] and isinstance(launched[1], LaunchError)
    assert done == (halves_of(6.0), None)


def test_a_generator_may_catch_the_error_of_a_launch():
    async def fn(fold, x):
        try:
            yield await fold.value(fold.add("half", x))
        except LaunchError:
            yield "caught"
            raise KeyError("seven") from None

    async def main():
        async with serving(fn) as server:
            return await asyncio.gather(*[items_of(server.stream(x)) for x in (7.0, 5.0)])

    (caught, error), done = asyncio.run(main())
    assert caught == ["caught"] and isinstance(error, KeyError) and done == ([2.5], None)


@pytest.mark.parametrize("forgotten", [lambda fold, node: node, lambda fold, node: [fold.value(node)]])
def test_a_node_is_refused_where_it_is_yielded(forgotten):
    async def fn(fold, x):
        node = fold.add("half", x)
        try:
            yield forgotten(fold, node)
        except RecordError as error:
            refused.append(error)
            raise

    async def main():
        async with serving(fn) as server:
            return await items_of(server.stream(5.0))

    refused = []
    items, error = asyncio.run(main())
    assert items == [] and refused == [error] and "await fold.value(node)" in str(error)


def test_what_is_no_stream_is_refused():
    async def main():
        async with serving(lambda fold, x: fold.add("half", x)) as server:
            with pytest.raises(RecordError, match="Received a function"):
                server.stream(1.0)
        async with serving(halves) as server:
            with pytest.raises(RecordError, match="Received a trace"):
                server.stream(multifold.trace(lambda fold, x: fold.add("half", x), 1.0))

    asyncio.run(main())


def test_a_full_queue_refuses_before_anything_is_read():
    async def main():
        async with serving(halves, {"half": gate}, queue=1, wait=0) as server:
            streams = [server.stream(8.0)]
            await asyncio.to_thread(gate.reached.wait, 30)
            streams.append(server.stream(8.0))
            with pytest.raises(Overloaded):
                server.stream(8.0)
            gate.go.set()
            for stream in streams:
                stream.cancel()

    gate = Gate()
    asyncio.run(main())


# ---- who stops reading, and deadlines ------------------------------------------------------------------


async def endless(fold, closed):
    try:
        while True:
            yield await fold.value(fold.add("half", 8.0))
    finally:
        closed.append(True)


async def leave(stream):
    async for _ in stream:
        break


async def cancelled_task(stream):
    task = asyncio.ensure_future(items_of(stream))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def timed_out(stream):
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(items_of(stream), 0.05)


async def closing(stream):
    async with contextlib.aclosing(stream):
        await anext(stream)
    assert [item async for item in stream] == []


async def never_read(stream):
    await asyncio.sleep(0.05)


@pytest.mark.parametrize("stops", [leave, cancelled_task, timed_out, closing, never_read])
def test_who_stops_reading_cancels_the_request(stops):
    async def main():
        async with serving(endless) as server:
            closed = []
            await stops(server.stream(closed))
            stats = await settled(server)
            launches = stats.launches
            await asyncio.sleep(0.05)
            return closed, stats.outcomes, server.stats().launches - launches

    assert asyncio.run(main()) == ([True], {"cancelled": 1}, 0)


def test_a_generator_is_closed_with_its_coroutine_whoever_holds_it():
    @types.coroutine
    def wait():
        yield "waits"

    async def waits():
        try:
            await wait()
            yield 1
        finally:
            closed.append(True)

    closed = []
    generator = waits()
    coroutine = send_items(lambda fold, x: generator, SimpleNamespace(inbox=None), [], None, None)
    assert coroutine.send(None) == "waits"
    coroutine.close()
    assert closed == [True]


def test_a_generator_that_awaits_nothing_is_read_on_the_way_and_ends_with_its_request():
    async def counting(fold, x):
        for i in itertools.count():
            yield i

    async def main():
        async with serving(counting) as server:
            return await items_of(server.stream([], timeout=0.3))

    items, error = asyncio.run(main())
    assert items[:100] == [*range(100)] and isinstance(error, DeadlineExceeded)


def test_what_is_yielded_is_copied_in_each_framework(backend, seam, array, to_numpy):
    if not seam.writeable:
        return

    async def filled(fold, x):
        buffer = array([0.0])
        for _ in range(3):
            buffer += 1
            yield buffer

    async def main():
        async with Server({}, filled, backend=backend) as server:
            return [to_numpy(x).item() async for x in server.stream(1)]

    assert asyncio.run(main()) == [1.0, 2.0, 3.0]


def test_a_deadline_ends_a_stream_after_its_items():
    async def main():
        async with serving(endless) as server:
            late, early = server.stream([], timeout=0.2), server.stream([])
            items, error = await items_of(late)
            goes_on = [await anext(early) for _ in range(len(items) + 5)]
            early.cancel()
            await settled(server)
            return items, error, goes_on

    items, error, goes_on = asyncio.run(main())
    assert set(items) == set(goes_on) == {4.0} and isinstance(error, DeadlineExceeded)


def test_a_server_that_stops_cancels_its_streams():
    async def main():
        server = Server(MODEL, endless, backend="numpy").start()
        stream = server.stream([])
        await anext(stream)
        await asyncio.to_thread(server.stop, False)
        with pytest.raises(asyncio.CancelledError):
            await items_of(stream)
        return server.stats().outcomes

    assert asyncio.run(main()) == {"cancelled": 1}


def test_a_stream_of_an_event_loop_that_has_ended_ends_no_other():
    with Server(MODEL, endless, backend="numpy") as server:
        kept = []

        async def first():
            kept.append(server.stream([]))
            await anext(kept[0])

        async def second():
            return await anext(server.stream([]))

        asyncio.run(first())
        assert asyncio.run(second()) == 4.0
        kept.clear()


def test_streams_at_random_have_the_items_of_the_loop_and_leave_nothing():
    """They fail, are left, are late, or are read to their end, at the same time."""
    rng = random.Random(1)

    async def reads(server, x, how):
        stream = server.stream(x, timeout=0.01 if how == "late" else None)
        found = []
        try:
            async for item in stream:
                found.append(item)
                if how == "left" and len(found) == 2:
                    break
                if how == "slow":
                    await asyncio.sleep(rng.random() / 200)
        except (LaunchError, DeadlineExceeded) as error:
            return found, type(error)
        return found, None

    async def main():
        async with serving(halves, queue=2000, calls=64) as server:
            asked = [
                (float(rng.choice([7 * 2**3, rng.randrange(1, 10**6)])), rng.choice(HOWS))
                for _ in range(400)
            ]
            found = await asyncio.gather(*[reads(server, *each) for each in asked])
            return asked, found, await settled(server)

    asked, found, stats = asyncio.run(main())
    for (x, how), (items, error) in zip(asked, found, strict=True):
        expected = halves_of(x)
        assert items == expected[: len(items)]
        if error is LaunchError:
            assert x == 56.0 and items == [28.0, 14.0, 7.0]
        elif how in ("read", "slow"):
            assert items == expected and error is None and x != 56.0
    assert sum(stats.outcomes.values()) == 400 and stats.live_calls == stats.live_results == 0
    assert {"done", "failed", "cancelled", "deadline"} <= set(stats.outcomes)


HOWS = ["read", "slow", "left", "late"]
