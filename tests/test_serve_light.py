"""What a server does for many short requests: early drops of results, light futures, no idle waiting."""

from __future__ import annotations

import gc
import threading
import weakref
from concurrent.futures import CancelledError, TimeoutError, as_completed, wait
from functools import partial

import numpy as np
import pytest

from multifold import Server
from multifold._serve.futures import LightFuture
from multifold._serve.tasks import ServedTasks


def chain(fold, example):
    """Record a chain of ops without looking at any value: one round."""
    *ops, x = example
    for op in ops:
        x = fold.add(op, x)
    return x


class Watched:
    """An op that halves, and notes how many of its results are alive."""

    def __init__(self):
        self.results, self.most, self.rows = weakref.WeakValueDictionary(), 0, []

    def __call__(self, x):
        self.rows.append(len(x))
        self.most = max(self.most, len(self.results))
        result = self.results[len(self.rows)] = x / 2
        return result


# ---- rounds in which all ends ------------------------------------------------------------------------


def test_a_result_is_dropped_when_its_last_reader_has_run():
    half = Watched()
    with Server({"half": half}, chain, backend="numpy", wait=0) as server:
        assert server.submit(("half",) * 10 + (1024.0,)).result(30).item() == 1.0
    assert (half.rows, half.most) == ([1] * 10, 1)


def test_an_inner_node_that_is_returned_stays():
    def fn(fold, x):
        middle = fold.add("half", fold.add("half", x))
        return fold.add("half", fold.add("half", middle)), middle

    with Server({"half": Watched()}, fn, backend="numpy", wait=0) as server:
        found = server.submit(16.0).result(30)
    assert [x.item() for x in found] == [1.0, 4.0]


def test_no_call_runs_again_when_a_round_ends_before_its_last_launch():
    reached, go, half = threading.Event(), threading.Event(), Watched()

    def gate(x):
        reached.set()
        assert go.wait(30)
        return x

    with Server({"gate": gate, "half": half}, chain, backend="numpy", wait=0.1) as server:
        one = server.submit(("half", "half", "gate", "half", "half", 16.0))
        other = server.submit(("half", "half", "gate", "half", 16.0))
        assert reached.wait(30)
        assert other.cancel()
        go.set()
        assert one.result(30).item() == 1.0
    assert half.rows == [2, 2, 1, 1]
    assert server.stats().live_results == 0


def test_requests_that_came_during_a_round_wait_for_no_company():
    reached, go = threading.Event(), threading.Event()

    def gate(x):
        reached.set()
        assert go.wait(30)
        return x

    with Server({"gate": gate}, chain, backend="numpy", wait=0) as server:
        server.submit(("gate", 1.0))
        assert reached.wait(30)
        server._admission.wait = 60.0  # which an idle server would wait
        second = server.submit(("gate", 2.0))
        go.set()
        assert second.result(20).item() == 2.0


def test_nothing_is_left_to_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        with Server({"half": Watched()}, chain, backend="numpy", wait=0) as server:
            for _ in range(20):  # each is served by an engine of its own
                server.submit(("half", 1.0)).result(30)
            assert sum(type(x) is ServedTasks for x in gc.get_objects()) <= 2
    finally:
        gc.enable()


# ---- futures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("waits", [False, True])
def test_a_future_has_one_outcome(waits):
    done, failed, cancelled = futures = [LightFuture() for _ in range(3)]
    told = []
    for future in futures:
        if waits:
            with pytest.raises(TimeoutError):
                future.result(0)
        future.add_done_callback(lambda x: told.append(futures.index(x)))
    assert cancelled.cancel()
    assert done.settle(3, None) and failed.settle(None, ValueError("no")) and not cancelled.settle(4, None)
    assert done.result() == 3 and done.exception() is None and done.done() and not done.cancel()
    assert isinstance(failed.exception(), ValueError)
    with pytest.raises(ValueError, match="no"):
        failed.result()
    with pytest.raises(CancelledError):
        cancelled.result()
    assert [x.cancelled() for x in futures] == [False, False, True]
    done.add_done_callback(lambda x: told.append(x.result()))
    assert sorted(told) == [0, 1, 2, 3]
    assert {*as_completed(futures, 1)} == {*futures}


def test_threads_that_wait_for_futures_learn_of_their_outcome():
    futures = [LightFuture() for _ in range(200)]
    found = [0] * len(futures)

    def read(i):
        found[i] = futures[i].result(30)

    threads = [threading.Thread(target=read, args=(i,)) for i in range(len(futures))]
    threads.append(threading.Thread(target=partial(wait, futures, 30)))
    for thread in threads:
        thread.start()
    for i, future in enumerate(futures):
        future.settle(i + 1, None)
    for thread in threads:
        thread.join(30)
    assert found == [*range(1, len(futures) + 1)]


def test_cancelling_and_settling_at_once_has_one_outcome():
    futures, told, cancelled = [LightFuture() for _ in range(5000)], [], []
    for future in futures:
        future.add_done_callback(told.append)
    canceller = threading.Thread(target=lambda: cancelled.extend(x.cancel() for x in futures))
    canceller.start()
    settled = [x.settle(1, None) for x in reversed(futures)][::-1]
    canceller.join(30)
    np.testing.assert_array_equal(settled, np.logical_not(cancelled))
    assert len(told) == len(futures)
