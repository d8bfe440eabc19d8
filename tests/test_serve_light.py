"""What a server does for many short requests: early drops of results, light futures, no idle waiting."""

from __future__ import annotations

import threading
import weakref

from multifold import Server


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
