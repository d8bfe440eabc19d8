"""What a server does for many short requests: early drops of results, no idle waiting, one outcome each."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np

from multifold import Server
from multifold.serve.requests import Request
from multifold.serve.tasks import ServedTasks


def chain(fold, example):
    """Record a chain of ops without looking at any value: one round."""
    *ops, x = example
    for op in ops:
        x = fold.add(op, x)
    return x


class Watched:
    """An op that halves, and notes how many of its results are alive."""

    def __init__(self):
        self.results = weakref.WeakValueDictionary()
        self.most = 0
        self.rows = []

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
    reached = threading.Event()
    go = threading.Event()
    half = Watched()

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


def test_a_request_that_goes_on_keeps_what_others_of_its_form_drop():
    half = Watched()

    async def fn(fold, goes_on):
        first = fold.add("half", 16.0)
        second = fold.add("half", first)
        if goes_on:
            await fold.value(second)
        return fold.add("half", first) if goes_on else second

    with Server({"half": half}, fn, backend="numpy", wait=0, join="rounds") as server:
        found = [server.submit(goes_on).result(30).item() for goes_on in (False, False, False, True)]
    assert (found, half.rows) == ([4.0] * 4, [1] * 9)  # no call has run twice


def test_requests_that_came_during_a_round_wait_for_no_company():
    reached = threading.Event()
    go = threading.Event()

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


# ---- outcomes ----------------------------------------------------------------------------------------


def test_cancelling_and_settling_at_once_has_one_outcome():
    given_up = []
    told = []
    cancelled = []
    futures = [Request(0, i, None, 0.0, 1.0, given_up.append) for i in range(5000)]
    for future in futures:
        future.add_done_callback(told.append)
    canceller = threading.Thread(target=lambda: cancelled.extend(x.cancel() for x in futures))
    canceller.start()
    settled = [x.settle(1, None) for x in reversed(futures)][::-1]
    canceller.join(30)
    np.testing.assert_array_equal(settled, np.logical_not(cancelled))
    assert len(told) == len(futures) and len(given_up) == sum(cancelled)
