"""Rounds of one launch of each op: who shares them, whose rows are whose, and what leaves the short way."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait

import numpy as np
import pytest

import multifold
from multifold import LaunchError, Server, each
from multifold.serve import worker


def state_model(rows=None):
    def read(h, x):
        if rows is not None:
            rows.append(len(h))
        return h + x[:, None], h * 2

    return {
        "begin": lambda x: (x[:, None] * 1.0, x[:, None] * 1.0),
        "read": read,
        "say": lambda h: h[:, 0],
    }


async def speak(fold, example):
    """Read some numbers, and then say and read until the sum is large."""
    first, *numbers = example
    h, _ = fold.add("begin", first).split(2)
    for x in numbers:
        h, _ = fold.add("read", h, x).split(2)
    while await fold.value(fold.add("say", h)) < 50:
        h, _ = fold.add("read", h, 10.0).split(2)
    return h


def expected(example):
    total = sum(example)
    while total < 50:
        total += 10.0
    return total


def test_requests_at_different_steps_share_launches():
    rows = []
    go = threading.Event()
    model = state_model(rows)
    model["begin"] = lambda x: go.wait(30) and (x[:, None] * 1.0, x[:, None] * 1.0)
    with Server(model, speak, backend="numpy", wait=0.2) as server:
        go.set()
        server.submit((1.0,)).result(60)  # shows that requests go on to read after their first value
        go.clear()
        rows.clear()
        examples = [(1.0,), (2.0, 3.0), (4.0, 5.0, 6.0)]
        futures = [server.submit(x) for x in examples]
        go.set()
        assert [future.result(60).item() for future in futures] == list(map(expected, examples))
    # Those that have read go on with those that begin: no launch of `read` is for less than all that can.
    assert rows[0] == 2 and sum(x == 3 for x in rows) >= 3


def test_what_a_request_records_while_it_is_closed_is_its_own():
    async def closes(fold, x):
        try:
            while True:
                await fold.value(fold.add("begin", x)[0])
        finally:
            fold.add("begin", 7.0)

    server = Server(state_model(), closes, backend="numpy", wait=0)
    server._admission.open()  # no thread: the test takes each turn itself
    futures = [server.submit(1.0), server.submit(2.0)]
    server._worker.turn()
    futures[1].cancel()
    server._worker.turn()
    (engine,) = server._worker.engines
    assert engine.tasks.owners.of_calls.tolist() == [0, 1, 1, 0]
    assert engine.tasks.owners.total == 2
    server._worker.finish(None)


def test_requests_join_those_under_way_a_quarter_at_a_time(monkeypatch):
    monkeypatch.setattr(worker, "SECONDS", 60.0)
    server = Server(state_model(), speak, backend="numpy")
    server._admission.open()  # no thread: the test takes each turn itself

    def under_way(arriving, turns=1):
        for _ in range(arriving):
            server.submit((-1000.0,))  # says and reads for a hundred rounds
        for _ in range(turns):
            server._worker.turn()
        return len(server._worker.under_way)

    assert [under_way(8), under_way(1), under_way(1), under_way(3)] == [8, 8, 10, 13]
    assert [under_way(1, turns=worker.ROUNDS - 1), under_way(0)] == [13, 14]  # it waits for so many rounds
    monkeypatch.setattr(worker, "SECONDS", 0.0)  # or until so much time has passed
    assert under_way(1) == 15
    server._worker.finish(None)


def test_requests_of_an_engine_that_was_left_go_first(monkeypatch):
    monkeypatch.setattr(worker, "LONG", 1)  # left after as many calls as a round has room for
    monkeypatch.setattr(worker, "PASSING", 60.0)
    server = Server(state_model(), speak, backend="numpy", calls=8, wait=0)
    server._admission.open()  # no thread: the test takes each turn itself

    def turns(future):
        return next(count for count in range(500) if future.done() or server._worker.turn())

    old = server.submit((-1000.0,))  # says and reads for a hundred rounds
    for _ in range(10):
        server._worker.turn()
    new = server.submit((10.0,))  # for five rounds, each of which is one turn of eight
    assert 32 < turns(new) <= 48 and not old.done()
    monkeypatch.setattr(worker, "PASSING", 0.0)  # or until so much time has passed
    assert turns(server.submit((10.0,))) < 8 and not old.done()
    server._worker.finish(None)


def test_each_deadline_of_those_under_way_passes(monkeypatch):
    later = [0.0]
    monkeypatch.setattr(worker, "monotonic", lambda: time.monotonic() + later[0])
    server = Server(state_model(), speak, backend="numpy", wait=0)
    server._admission.open()  # no thread: the test takes each turn itself
    futures = [server.submit((-1000.0,), timeout=seconds) for seconds in (60, 120)]
    ended = []
    for later[0] in (0.0, 90.0, 180.0):
        server._worker.turn()
        ended.append([future.done() for future in futures])
    assert ended == [[False, False], [True, False], [True, True]]
    server._worker.finish(None)


def test_requests_without_calls_take_room_as_well():
    server = Server({}, lambda fold, x: each(x), backend="numpy", calls=4, wait=0)
    server._admission.open()  # no thread: the test takes each turn itself
    futures = [server.submit(x) for x in range(10)]
    ended = [server._worker.turn() or sum(future.done() for future in futures) for _ in range(3)]
    assert ended == [4, 8, 10]
    server._worker.finish(None)


def test_a_request_of_which_one_task_fails_runs_none_of_its_others():
    rows = []

    def picky(x):
        rows.append(len(x))
        if 7.0 in x:
            raise ValueError("seven")
        return x

    async def look(fold, x):
        await fold.value(fold.add("picky", x))

    async def fn(fold, x):
        await fold.gather(look(fold, x), look(fold, x))
        return each(x)

    server = Server({"picky": picky}, fn, backend="numpy", wait=0)
    server._admission.open()  # no thread: the test takes each turn itself
    futures = [server.submit(x) for x in (7.0, 1.0)]
    while not futures[0].done():
        server._worker.turn()
    assert isinstance(futures[0].exception(), LaunchError) and rows == [4, 2, 1, 2]
    server._worker.finish(None)


def test_requests_that_look_at_no_value_need_no_launch_of_their_own(backend, seam):
    def total(fold, numbers):
        first, *rest = numbers
        h, _ = fold.add("begin", first).split(2)
        for x in rest:
            h, _ = fold.add("read", h, x).split(2)
        return h

    with Server(state_model(), total, backend=backend, wait=0.2) as server:
        futures = [server.submit((1.0, 2.0, x)) for x in (3.0, 4.0)]
        assert [future.result(60).item() for future in futures] == [6.0, 7.0]
    rounds = 2 if seam.pads else 1  # on JAX a round is one launch of each op
    assert (server.stats().rounds, server.stats().launches) == (rounds, 3)


def test_what_is_told_has_each_launch_once(backend):
    async def fn(fold, x):
        h, _ = fold.add("begin", x).split(2)
        await fold.value(fold.add("say", h))
        return await fold.value(fold.add("say", h).no_batch())  # read whole, so this round has a plan

    with Server(state_model(), fn, backend=backend) as server:
        assert [server.submit(float(x)).result(60).item() for x in range(3)] == [0, 1, 2]
        assert len(server.explain()) == server.stats().launches
        assert len(server.explain().rounds) == server.stats().rounds


def test_many_requests_one_after_the_other_need_few_rows(backend):
    with Server(state_model(), speak, backend=backend) as server:
        for start in range(40):
            futures = [server.submit((float(start), float(x))) for x in range(10)]
            assert [future.result(60).item() for future in futures] == [
                expected((start, x)) for x in range(10)
            ]
        (engine,) = server._worker.engines or [None]
        pages = getattr(getattr(engine, "store", None), "pages", {})
        assert all(page.rows <= 256 for page in pages.values())
    assert server.stats().live_results == 0


def test_rows_of_ended_requests_are_free_while_an_old_one_goes_on(backend):
    server = Server(state_model(), speak, backend=backend, wait=0, calls=64)
    server._admission.open()  # no thread: the test takes each turn itself
    old = server.submit((-3000.0,))
    for start in range(25):
        future = server.submit((float(start), 1.0))
        while not future.done():
            server._worker.turn()
        assert future.result().item() == expected((start, 1.0))
        (engine,) = server._worker.engines
        assert (
            engine.store.used <= engine.tasks.owners.total + 40
        )  # rows of 16 ended calls, and of one request
    assert not old.done() and len(engine.recorder) > engine.tasks.owners.total + 150
    server.submit((-9000.0,))
    while not old.done():
        server._worker.turn()
    assert old.result().item() == expected((-3000.0,))
    assert server._worker.engines == [engine] and engine.store.used <= engine.tasks.owners.total + 40
    server._worker.finish(None)


def test_a_result_of_the_framework_stays_when_its_rows_are_taken_by_others(backend, seam):
    with Server(state_model(), speak, backend=backend, host=False) as server:
        kept = [server.submit((float(x),)).result(60) for x in range(20)]
        to_numpy = multifold.load_backend(backend).to_numpy
        assert [to_numpy(x).item() for x in kept] == [expected((x,)) for x in range(20)]


def test_an_op_that_fails_in_a_round_fails_those_that_need_it(backend):
    def half(x):
        if (np.asarray(x) == 7).any():
            raise ValueError("seven")
        return x / 2

    def fn(fold, x):
        return fold.add("half", fold.add("same", x))

    with Server({"half": half, "same": lambda x: x * 1.0}, fn, backend=backend, wait=0.05) as server:
        for _ in range(2):  # the second time without a plan
            futures = [server.submit(float(x)) for x in range(16)]
            failed = [x for x, future in enumerate(futures) if future.exception(60)]
            assert failed == [7] and isinstance(futures[7].exception(), LaunchError)
            assert futures[6].result().item() == 3


def test_a_result_of_another_form_is_noticed(backend):
    width = [1]

    def grow(x):
        return (x[:, None] * np.ones((1, width[0]), "float32")) if backend == "numpy" else x * 1.0

    with Server({"grow": grow}, lambda fold, x: fold.add("grow", x), backend=backend) as server:
        for width[0] in (1, 1, 3, 3, 1):
            found = server.submit(2.0).result(60)
            assert found.shape == ((1, width[0]) if backend == "numpy" else (1,)) and (found == 2).all()


def test_rows_of_two_widths_do_not_meet():
    model = {
        "narrow": lambda x: np.ones((len(x), 2)) * x[:, None],
        "wide": lambda x: np.ones((len(x), 5)) * x[:, None],
        "sum": lambda x: x.sum(axis=1),
    }
    with Server(
        model, lambda fold, op: fold.add("sum", fold.add(op, 1.0)), backend="numpy", wait=0.05
    ) as server:
        for _ in range(3):
            futures = [server.submit(op) for op in ("narrow", "wide", "narrow")]
            assert [future.result(30).item() for future in futures] == [2, 5, 2]


def test_rows_are_never_mixed_by_broadcasting():
    """Two rows of width 2 would be: alone each request is right, so that is what it gets in each round."""
    model = {"pair": lambda x: np.stack([x, x], axis=1), "scale": lambda x, s: x * s}
    with Server(
        model, lambda fold, x: fold.add("scale", fold.add("pair", x), x), backend="numpy", wait=0.05
    ) as server:
        assert server.submit(5.0).result(30).tolist() == [[25, 25]]
        for _ in range(3):
            futures = [server.submit(x) for x in (2.0, 3.0)]
            assert [future.result(30).tolist() for future in futures] == [[[4, 4]], [[9, 9]]]


def test_a_large_request_does_not_keep_small_ones_waiting():
    """The large one has 3,000 calls side by side in 40 levels, and a round has room for 100."""
    order = []

    async def fn(fold, example):
        name, width, depth = example
        nodes = [fold.add("leaf", float(i)) for i in range(width)]
        for _ in range(depth):
            nodes = [fold.add("next", node) for node in nodes]
            await fold.values(nodes)
        order.append(name)
        return each(name)

    model = {"leaf": lambda x: x * 1.0, "next": lambda x: x + 1}
    with Server(model, fn, backend="numpy", calls=100, wait=0.05) as server:
        futures = [server.submit(("large", 3000, 40)), *[server.submit((i, 2, 3)) for i in range(20)]]
        wait(futures, 60)
    assert order[-1] == "large" and sorted(order[:-1]) == list(range(20))


def test_a_model_is_swapped_under_load():
    """Every request has the result of one model, and those after the swap that of the new one."""
    with Server({"scale": lambda x: x * 2}, chain, backend="numpy", wait=0) as server:
        before = [server.submit(1.0) for _ in range(200)]
        server.swap({"scale": lambda x: x * 3})
        after = [server.submit(1.0) for _ in range(200)]
        assert {future.result(30).item() for future in before} <= {2.0**6, 3.0**6}
        assert {future.result(30).item() for future in after} == {3.0**6}
    assert server.stats().outcomes == {"done": 400}


async def chain(fold, x):
    for _ in range(6):
        x = fold.add("scale", x)
        await fold.value(x)
    return x


@pytest.mark.parametrize("join", ["launches", "rounds"])
def test_both_ways_to_join_have_the_results_of_the_loop(backend, join):
    examples = [(float(x), *map(float, range(x % 4))) for x in range(60)]
    with Server(state_model(), speak, backend=backend, join=join) as server:
        futures = [server.submit(x) for x in examples]
        assert [future.result(60).item() for future in futures] == list(map(expected, examples))
