"""The server: each request gets one outcome, that of the request alone, and shares launches with others."""

from __future__ import annotations

import asyncio
import functools
import gc
import math
import sys
import threading
import time
from concurrent.futures import CancelledError, wait

import numpy as np
import optree
import pytest
from soak_serve import Soak, count_nodes, settle

import multifold
from multifold import DeadlineExceeded, Fold, LaunchError, Overloaded, RecordError, Server, each
from multifold._numpy.backend import NumpyBackend
from multifold.serve import worker
from multifold_compat.blocks import Function, Map, Scalar, Sum

TREES = [1, (2, 3), ((4, 5), 6), (7, (8, (9, 10)))]


def total(fold, tree):
    if isinstance(tree, int):
        return fold.add("leaf", tree)
    return fold.add("add", *[total(fold, child) for child in tree])


async def halve(fold, x):
    while await fold.value(x := fold.add("half", x)) >= 1:
        pass
    return x


def make_model():
    return {"leaf": lambda x: x * 1, "add": lambda a, b: a + b, "half": lambda x: x / 2}


def alone(backend, model, fn, example):
    """Return the result of one example by itself, on the host."""
    fold = Fold(backend=backend)
    return multifold.load_backend(backend).to_numpy(fold.run(model, [example], fn))


class Gate:
    """An op that waits until it is let go on, so that a test knows what is under way meanwhile."""

    def __init__(self):
        self.reached = threading.Event()
        self.go = threading.Event()
        self.rows = []

    def __call__(self, x):
        self.rows.append(len(x))
        self.reached.set()
        assert self.go.wait(30)
        return x


def gated(fold, x):
    return fold.add("gate", x)


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def busy(gate):
    """A server of which one request is under way, and waits at the gate."""
    with Server({"gate": gate, **make_model()}, steps, backend="numpy", wait=0, queue=2) as server:
        first = server.submit(("gate", 1.0))
        assert gate.reached.wait(30)
        yield server
        gate.go.set()
        first.result(30)


async def steps(fold, example):
    """Record a chain of ops, and look at the value behind each of them."""
    *ops, x = example
    for op in ops:
        x = fold.add(op, x)
        await fold.value(x)
    return x


# ---- results ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fn", "examples"), [(total, TREES), (halve, [0.5, 7.0, 1.0, 300.0])])
def test_each_request_has_the_result_that_it_has_alone(backend, seam, fn, examples):
    with Server(make_model(), fn, backend=backend, wait=0.05) as server:
        found = [server.submit(example) for example in examples * 3]
        for example, future in zip(examples * 3, found, strict=True):
            result = future.result(60)
            assert type(result) is np.ndarray and result.shape == (1,)
            np.testing.assert_allclose(result, alone(backend, make_model(), fn, example), rtol=1e-5)


def test_requests_that_come_together_share_launches():
    with Server(make_model(), halve, backend="numpy", wait=0.2) as server:
        wait([server.submit(x) for x in (7.0, 1.0, 1.5)])
    stats = server.stats()
    assert (stats.launches, stats.calls, stats.joins) == (3, 5, 0)


@pytest.mark.parametrize("join", ["launches", "rounds"])
def test_a_server_at_rest_sees_that_an_op_was_replaced(join):
    async def waiting(fold, x):
        doubled = fold.add("double", x)
        return fold.add("double", doubled) if (await fold.value(doubled)) > 0 else doubled

    model = {"double": lambda x: 2 * x}
    with Server(model, waiting, backend="numpy", join=join) as server:
        assert [server.submit(1.0).result(30).item() for _ in range(3)] == [4.0] * 3
        model["double"] = lambda x: 3 * x
        assert [server.submit(1.0).result(30).item() for _ in range(3)] == [9.0] * 3


def test_a_request_joins_the_next_round_of_those_under_way(gate):
    model = {"gate": gate, **make_model()}
    with Server(model, steps, backend="numpy", wait=0) as server:
        first = server.submit(("gate", "half", "half", 8.0))
        assert gate.reached.wait(30)
        second = server.submit(("gate", "half", "half", 4.0))
        gate.go.set()
        assert (first.result(30).item(), second.result(30).item()) == (2.0, 1.0)
    stats = server.stats()
    # The second half of one shares a launch with the first half of the other.
    assert (stats.launches, stats.calls, stats.joins) == (5, 6, 1)


def chain(fold, example):
    """Record a chain of ops without looking at any value: one round."""
    *ops, x = example
    for op in ops:
        x = fold.add(op, x)
    return x


async def awaited_chain(fold, example):
    return chain(fold, example)


@pytest.mark.parametrize(
    ("fn", "join", "launches"),
    [(awaited_chain, "launches", 5), (awaited_chain, "rounds", 6), (chain, "launches", 6)],
)
def test_a_request_joins_at_the_next_round(gate, fn, join, launches):
    """Rounds of one launch of each op share that of `half`; one that goes to the end shares none."""
    with Server({"gate": gate, **make_model()}, fn, backend="numpy", wait=0, join=join) as server:
        first = server.submit(("gate", "half", "half", 8.0))
        assert gate.reached.wait(30)
        second = server.submit(("leaf", "half", "half", 4.0))
        gate.go.set()
        assert (first.result(30).item(), second.result(30).item()) == (2.0, 1.0)
    stats = server.stats()
    assert (stats.launches, stats.calls) == (launches, 6)


@pytest.mark.parametrize("ends", ["cancel", "deadline", "stop"])
def test_a_request_is_dropped_before_its_next_launch(gate, ends):
    server = Server({"gate": gate, **make_model()}, chain, backend="numpy", wait=0).start()
    under_way = server.submit(("gate", "half", 1.0), timeout=0.2 if ends == "deadline" else None)
    assert gate.reached.wait(30)
    {"cancel": under_way.cancel, "deadline": lambda: time.sleep(0.3), "stop": lambda: None}[ends]()
    stopper = threading.Thread(target=server.stop, args=(ends != "stop",))
    stopper.start()
    time.sleep(0.05)
    gate.go.set()
    stopper.join(30)
    stats = server.stats()
    outcome = "deadline" if ends == "deadline" else "cancelled"
    assert (stats.calls, stats.outcomes) == (1, {outcome: 1})


def test_a_launch_that_fails_makes_no_other_run_again():
    rows = []

    def half(x):
        if (x == 7).any():
            raise ValueError("seven")
        return x / 2

    model = {"leaf": lambda x: rows.append(len(x)) or x * 1.0, "half": half}
    with Server(model, chain, backend="numpy", wait=0.1) as server:
        futures = [server.submit(("leaf", "half", x)) for x in range(16)]
        assert [x for x, future in enumerate(futures) if future.exception(30)] == [7]
    assert rows == [16]


def test_a_request_that_changes_what_it_has_recorded_ends_no_other(backend, seam, array):
    if not seam.counts_changes:
        return

    async def doubled(fold, x):
        node = fold.add("double", x)
        if float(x[0, 0]) < 0:
            x += 1
        await fold.value(node)
        return node

    with Server({"double": lambda x: 2 * x}, doubled, backend=backend, wait=0.05) as server:
        requests = [server.submit(array([[x]])) for x in (1.0, -5.0, 3.0)]
        assert [float(requests[i].result(30)[0, 0]) for i in (0, 2)] == [2.0, 6.0]
        with pytest.raises(RecordError, match="changed in place since it was recorded"):
            requests[1].result(30)


def test_results_of_any_structure():
    def fn(fold, x):
        nodes = [fold.add("half", x + i) for i in range(3)]
        own = each((str(x), nodes[:2], None))
        return {"own": own, "rows": [*nodes, 7.0], "whole": nodes[0].no_batch()}

    with Server(make_model(), fn, backend="numpy", wait=0.05) as server:
        results = [future.result(30) for future in [server.submit(x) for x in (1.0, 2.0)]]
    for x, found in zip((1.0, 2.0), results, strict=True):
        assert found["own"][0] == str(x) and found["own"][2] is None
        np.testing.assert_array_equal(found["own"][1], [x / 2, (x + 1) / 2])
        np.testing.assert_array_equal(found["rows"], [x / 2, (x + 1) / 2, (x + 2) / 2, 7.0])
        np.testing.assert_array_equal(found["whole"], [x / 2])


def everything(fold, x):
    """Record each kind of operand, and return each kind of result."""
    table = multifold.shared(np.arange(6.0).reshape(3, 2))
    row = fold.add("pick", table, x % 3, scale=2)
    nodes = [fold.add("half", row), fold.add("half", np.full((1, 2), float(x)))]
    whole = fold.add("whole", x).no_batch()
    sums = fold.add("sums", multifold.ragged([*nodes, np.ones((1, 2))]), whole)
    return {
        "group": [*nodes, np.zeros((1, 2))],
        "row": sums,
        "own": each(("x", nodes, sums)),
        "whole": whole,
    }


def test_a_trace_is_served_as_its_example():
    model = make_model() | {
        "pick": lambda table, i, scale: table[i] * scale,
        "whole": lambda x: np.array([x[0], 1.0, 2.0]),
        "sums": lambda rows, whole: (
            np.add.reduceat(rows.values, np.cumsum(rows.lengths) - rows.lengths) * whole.sum()
        ),
    }
    with Server(model, everything, backend="numpy", wait=0.1) as server:
        examples = [7, multifold.trace(everything, 5), 4, multifold.trace(total, (1, (2, 3)))]
        found = [future.result(30) for future in [server.submit(x) for x in examples]]
    assert found.pop().tolist() == [6]
    for x, one in zip((7, 5, 4), found, strict=True):
        fold = Fold(backend="numpy")
        expected = fold.apply(model, everything(fold, x))
        assert optree.tree_structure(one) == optree.tree_structure(expected)
        optree.tree_map(np.testing.assert_array_equal, one, expected)


def test_results_belong_to_the_caller():
    given = np.ones((1, 2))
    with Server({"gate": lambda x: x}, gated, backend="numpy", wait=0.05) as server:
        first, second = [future.result(30) for future in [server.submit(given), server.submit(given)]]
        first[:] = 5
    assert given.tolist() == second.tolist() == [[1, 1]]


def test_results_of_the_framework(backend, seam):
    with Server(make_model(), total, backend=backend, host=False) as server:
        assert multifold.load_backend(backend).owns(server.submit((2, 3)).result(60))


def test_nothing_is_recorded_for_gradients(backend, seam, array):
    ones = np.ones((1, 2), "float32")
    recorded = []
    weights = array(ones) if "kit" in seam.gaps() else seam.kit.variable(ones)

    def scale(x):
        recorded.append(getattr(x * weights, "requires_grad", False))
        return x * weights

    with Server({"scale": scale}, lambda fold, x: fold.add("scale", x), backend=backend) as server:
        assert server.submit(ones).result(60).tolist() == [[1, 1]]
    assert not any(recorded)


def test_a_block_is_served():
    with Server({}, Map(Scalar() >> Function(lambda x: x * 2)) >> Sum(), backend="numpy") as server:
        assert server.submit([1, 2, 3]).result(30).tolist() == [12]


def test_callers_of_several_event_loops_and_threads():
    async def ask(server, numbers):
        return await asyncio.gather(*[server(n) for n in numbers])

    found = {}
    with Server(make_model(), total, backend="numpy") as server:

        def work(i):
            found[i] = asyncio.run(ask(server, range(i, i + 20)))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {i: [int(x[0]) for x in xs] for i, xs in found.items()} == {
        i: [*range(i, i + 20)] for i in range(4)
    }


# ---- what a server refuses, and what it gives up ------------------------------------------------------


def test_a_full_queue_refuses_at_once(busy):
    waiting = [busy.submit(("half", 1.0)) for _ in range(2)]
    with pytest.raises(Overloaded, match="less than 2 requests") as refused:
        busy.submit(("half", 1.0))
    assert refused.value.retry_after > 0
    assert busy.stats().outcomes == {"overloaded": 1}
    assert not any(future.done() for future in waiting)


def test_when_to_try_again_does_not_count_the_time_without_requests(gate, monkeypatch):
    night = [0.0]
    monkeypatch.setattr(worker, "monotonic", lambda: time.monotonic() + night[0])
    with Server({"gate": gate, **make_model()}, steps, backend="numpy", wait=0, queue=2) as server:
        for x in (1.0, 2.0):
            server.submit(("half", x)).result(30)
        while not server._admission._idle:
            time.sleep(0.01)
        night[0] = 1000.0  # counted, this would be 3 requests at one in a thousand seconds
        server.submit(("gate", 1.0))
        assert gate.reached.wait(30)
        server.submit(("half", 1.0)), server.submit(("half", 1.0))
        with pytest.raises(Overloaded) as refused:
            server.submit(("half", 1.0))
        gate.go.set()
    assert 0 < refused.value.retry_after < 300


def test_a_deadline_that_passes_in_the_queue_or_under_way(gate):
    model = {"gate": gate, **make_model()}
    with Server(model, steps, backend="numpy", wait=0) as server:
        under_way = server.submit(("gate", "half", 1.0), timeout=0.2)
        assert gate.reached.wait(30)
        waits = server.submit(("half", 1.0), timeout=0.1)
        lives = server.submit(("half", 1.0), timeout=60)
        time.sleep(0.3)
        gate.go.set()
        with pytest.raises(DeadlineExceeded, match=r"request 0 .* in 0.2 s. It was under way"):
            under_way.result(30)
        with pytest.raises(DeadlineExceeded, match=r"request 1 .* in 0.1 s. It waited"):
            waits.result(30)
        assert lives.result(30).tolist() == [0.5]
    assert server.stats().calls == 2  # the gate, and one half
    assert server.stats().outcomes == {"deadline": 2, "done": 1}


def test_a_cancelled_request_runs_no_further_launch(gate):
    model = {"gate": gate, **make_model()}
    with Server(model, steps, backend="numpy", wait=0) as server:
        under_way = server.submit(("gate", "half", 1.0))
        assert gate.reached.wait(30)
        waits = server.submit(("half", 1.0))
        assert under_way.cancel() and waits.cancel()
        gate.go.set()
    assert server.stats().calls == 1
    assert server.stats().outcomes == {"cancelled": 2}


def test_cancelling_the_wait_cancels_the_request(gate):
    async def main():
        async with Server({"gate": gate}, gated, backend="numpy", wait=0) as server:
            first = asyncio.ensure_future(server(1.0))
            await asyncio.to_thread(gate.reached.wait, 30)
            second = asyncio.ensure_future(server(2.0))
            await asyncio.sleep(0.05)
            second.cancel()
            await asyncio.sleep(0.05)
            gate.go.set()
            assert (await first).tolist() == [1.0]
            with pytest.raises(asyncio.CancelledError):
                await second
        return server.stats()

    assert asyncio.run(main()).outcomes == {"done": 1, "cancelled": 1}
    assert gate.rows == [1]


def test_only_those_that_fail_have_an_error():
    def half(x):
        if (x < 0).any():
            raise ValueError("a negative row")
        return x / 2

    async def fn(fold, x):
        if x == 666:
            raise KeyError("the number of the beast")
        return await halve(fold, x)

    with Server({"half": half}, fn, backend="numpy", wait=0.1) as server:
        good = [server.submit(x) for x in (7.0, 1.0, 20.0)]
        bad = [server.submit(x) for x in (-1.0, 666, -3.0)]
        good += [server.submit(x) for x in (3.0, 0.5)]
        assert [future.result(30).item() for future in good] == [0.875, 0.5, 0.625, 0.75, 0.25]
        errors = [future.exception(30) for future in bad]
    assert [type(error) for error in errors] == [LaunchError, KeyError, LaunchError]
    assert "a negative row" in str(errors[0])
    assert errors[1].__notes__ == ["Raised by request 4 of multifold.Server."]


def test_a_model_that_fails_on_everybody_is_told_to_everybody():
    def leaf(x):
        raise ValueError("no such table")

    with Server({"leaf": leaf}, total, backend="numpy", wait=0.05) as server:
        futures = [server.submit(i) for i in range(5)]
        assert all("no such table" in str(future.exception(30)) for future in futures)
    assert server.stats().outcomes == {"failed": 5}


def test_what_ends_a_thread_ends_only_the_requests_under_way(gate):
    def leave(x):
        raise SystemExit(3)

    def fn(fold, x):
        return fold.add("leave" if x == 666 else "gate", x)

    with Server({"gate": gate, "leave": leave}, fn, backend="numpy", wait=0) as server:
        gate.go.set()
        with pytest.raises(LaunchError, match="ended by SystemExit: 3"):
            server.submit(666).result(30)
        assert server.submit(1.0).result(30).tolist() == [1.0]


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("awaits", [False, True], ids=["plain", "async"])
def test_a_function_that_raises_what_ends_programs_fails_its_own_request_only(raised, awaits):
    def fn(fold, x):
        if x == 1:
            raise raised
        return fold.add("leaf", x)

    async def look(fold, x):
        await fold.value(node := fn(fold, x))
        return node

    with Server(make_model(), look if awaits else fn, backend="numpy", wait=0.05) as server:
        futures = [server.submit(x) for x in range(4)]
        with pytest.raises(RecordError, match=f"request 1 of multifold.Server raised {raised.__name__}"):
            futures[1].result(30)
        assert [futures[x].result(30).item() for x in (0, 2, 3)] == [0, 2, 3]


def test_an_error_of_one_request_among_many_has_one_cause():
    def picky(x):
        if (x == 5).any():
            raise ValueError("five")
        return x

    with Server(
        {"picky": picky}, lambda fold, x: fold.add("picky", x), backend="numpy", wait=0.1
    ) as server:
        error = [server.submit(x) for x in range(32)][5].exception(30)
    causes = []
    while error is not None:
        causes.append(type(error).__name__)
        error = error.__cause__ or error.__context__
    assert causes == ["LaunchError", "ValueError"]


def test_a_node_of_a_request_that_has_finished_is_refused():
    kept = []

    def fn(fold, x):
        kept.append(fold.add("half", x))
        return fold.add("add", kept[0], kept[-1])

    with Server(make_model(), fn, backend="numpy", wait=0) as server:
        assert server.submit(2.0).result(30).tolist() == [2.0]
        with pytest.raises(RecordError, match="belongs to another fold"):
            server.submit(4.0).result(30)


def test_a_node_of_a_request_that_has_finished_runs_again_while_others_run(gate):
    kept = []
    leaves = []

    async def fn(fold, example):
        if example == "long":
            while not gate.go.is_set():
                await fold.value(fold.add("half", 1.0))
                time.sleep(0.002)
        kept.append(fold.add("leaf", 1.0))
        return fold.add("add", kept[-1], kept[0] if example == "reads" else kept[-1])

    model = make_model() | {"leaf": lambda x: leaves.append(len(x)) or x}
    with Server(model, fn, backend="numpy", calls=20, wait=0) as server:
        server.submit("long")
        for _ in range(20):
            server.submit("short").result(30)
        assert leaves == [1] * 20
        assert server.submit("reads").result(30).tolist() == [2.0]
        assert leaves == [1] * 20 + [2]
        gate.go.set()


def test_a_shared_array_that_was_changed_is_never_read_silently(gate):
    """The request under way is told; the next one records the array as it is then."""
    table = np.ones(2)

    def fn(fold, x):
        return fold.add("scale", fold.add("gate", x), multifold.shared(table))

    model = {"gate": gate, "scale": lambda x, t: x * t.sum()}
    gate.go.set()
    with Server(model, fn, backend="numpy", wait=0.5) as server:
        before = server.submit(1.0)
        time.sleep(0.1)
        assert before.result(30).item() == 2.0
        table[:] = 3
        assert server.submit(1.0).result(30).item() == 6.0


def test_an_event_loop_is_not_awaited():
    async def fn(fold, x):
        await asyncio.sleep(0)

    with Server(make_model(), fn, backend="numpy") as server:
        error = server.submit(1).exception(30)
    assert "Expected request 0 of multifold.Server to await values" in str(error)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("calls", 0),
        ("calls", True),
        ("queue", 0),
        ("wait", -1),
        ("wait", "1"),
        ("timeout", 0),
        ("timeout", np.nan),
        ("join", "windows"),
    ],
)
def test_arguments_that_are_refused(name, value):
    with pytest.raises(RecordError, match=f"Expected {name} of multifold") as caught:
        Server(make_model(), total, **{name: value})
    assert ("more than 0 s." in str(caught.value)) == (name == "timeout")


def test_what_is_no_request():
    server = Server(make_model(), total, backend="numpy")
    with pytest.raises(LaunchError, match="that runs"):
        server.submit(1)
    with server, pytest.raises(LaunchError, match="does not run yet"):
        server.start()
    with pytest.raises(RecordError, match="the model comes first"):
        Server(total, make_model())


# ---- room -------------------------------------------------------------------------------------------


def test_a_request_that_is_larger_than_a_round_runs_alone():
    rows = []
    model = {"leaf": lambda x: rows.append(len(x)) or x, "add": lambda a, b: a + b}

    def leaves(fold, n):
        return [fold.add("leaf", i) for i in range(n)]

    with Server(model, leaves, backend="numpy", calls=10, wait=0.1) as server:
        futures = [server.submit(n) for n in (4, 30, 4, 4)]
        assert [len(future.result(30)) for future in futures] == [4, 30, 4, 4]
    assert sorted(rows) in ([4, 4, 4, 30], [4, 8, 30])


def test_smaller_priorities_are_taken_first(busy, gate):
    order = []
    futures = [busy.submit(("half", 1.0), priority=priority) for priority in (5, -5)]
    for name, future in zip("ab", futures, strict=True):
        future.add_done_callback(lambda _, name=name: order.append(name))
    busy._worker.calls = 1
    gate.go.set()
    wait(futures, 30)
    assert order == ["b", "a"]


def test_many_requests_with_little_room_leave_nothing_behind():
    """Engines are left after 16 * 8 calls, and results dropped after 8, while requests overlap."""
    with Server(make_model(), halve, backend="numpy", calls=8, queue=2000) as server:
        examples = [float(i % 50 + 0.5) for i in range(1000)]
        futures = [server.submit(x) for x in examples]
        for x, future in zip(examples, futures, strict=True):
            assert 0.5 <= future.result(60).item() < 1 or x == 0.5
        settled(server)
    stats = server.stats()
    assert (stats.running, stats.live_calls, stats.live_results, stats.live_tasks) == (0, 0, 0, 0)
    assert stats.rows_a_launch > 2


def settled(server):
    """Wait until the thread has let go of what it has served."""
    for _ in range(1000):
        if server.stats().running == 0 and server.stats().live_results == 0:
            return
        time.sleep(0.01)


def test_results_of_ended_requests_are_dropped_while_others_run():
    held = []

    async def fn(fold, n):
        for _ in range(n):
            await fold.value(fold.add("half", 1.0))
        held.append(server.stats().live_results)
        return fold.add("half", 1.0)

    with Server(make_model(), fn, backend="numpy", calls=20, wait=0, queue=1000) as server:
        long = server.submit(200)
        for _ in range(60):
            server.submit(1).result(30)
        long.result(30)
    assert max(held) < 60 + 200


@pytest.mark.parametrize("requests", [20_000, pytest.param(100_000, marks=pytest.mark.nightly)])
def test_the_memory_of_a_server_stays_the_same_for_all_of_its_requests(requests):
    with Server(make_model(), halve, backend="numpy", wait=0) as server:

        def held_after(count):
            for _ in range(count // 500):
                for future in [server.submit(1.0 + number % 7) for number in range(500)]:
                    future.result(30)
            gc.collect()
            return sys.getallocatedblocks()

        assert held_after(10_000) + 1_000 > held_after(requests - 10_000)  # a tenth of a block a request


# ---- beginning and ending ---------------------------------------------------------------------------


def test_leaving_serves_those_that_wait_and_stop_can_cancel_them(gate):
    gate.go.set()
    with Server({"gate": gate}, gated, backend="numpy") as server:
        futures = [server.submit(float(i)) for i in range(10)]
    assert [future.result(0).item() for future in futures] == [*range(10)]
    late = Gate()
    server = Server({"gate": late}, gated, backend="numpy", wait=0).start()
    under_way = server.submit(1.0)
    assert late.reached.wait(30)
    waits = server.submit(2.0)
    threading.Timer(0.2, late.go.set).start()
    server.stop(drain=False)
    for future in (under_way, waits):
        with pytest.raises((CancelledError, AssertionError)):
            assert future.result(0) is None
    assert sum(server.stats().outcomes.values()) == 2


def test_an_exception_inside_of_with_does_not_wait_for_those_that_wait():
    futures = []

    def leave():
        with Server(make_model(), total, backend="numpy", wait=30) as server:
            futures.append(server.submit(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    assert futures[0].cancelled()


def test_a_server_starts_again():
    server = Server(make_model(), total, backend="numpy")
    for _ in range(2):
        with server:
            assert server.submit((1, 2)).result(30).tolist() == [3]
    assert server.stats().outcomes == {"done": 2}


def test_another_model_serves_those_that_have_not_begun(gate):
    def fn(fold, x):
        return fold.add("scale", fold.add("gate", x))

    with Server({"gate": gate, "scale": lambda x: x * 2}, fn, backend="numpy", wait=0) as server:
        before = server.submit(1.0)
        assert gate.reached.wait(30)
        server.swap({"gate": lambda x: x, "scale": lambda x: x * 3})
        after = server.submit(1.0)
        gate.go.set()
        assert (before.result(30).item(), after.result(30).item()) == (2.0, 3.0)


def test_settings_change_while_it_runs(busy):
    waiting = [busy.submit(("half", 1.0)) for _ in range(2)]
    busy.change(queue=3, timeout=60, wait=0.1)
    waiting.append(busy.submit(("half", 1.0)))
    busy.change(queue=1)  # none of those that wait is dropped
    with pytest.raises(Overloaded, match="less than 1 requests"):
        busy.submit(("half", 1.0))
    assert [x.deadline < math.inf for x in waiting] == [False, False, True]
    assert not any(future.done() for future in waiting)


def test_rounds_of_requests_to_come_have_room_for_another_number_of_calls():
    rows = []
    model = {"half": lambda x: rows.append(len(x)) or x / 2}
    with Server(model, lambda fold, x: fold.add("half", x), backend="numpy", wait=0.2) as server:
        for calls in (64, 2, 64):
            server.change(calls=calls)
            rows.append("changed")
            wait([server.submit(float(x)) for x in range(8)], 30)
    served = [x for x in " ".join(map(str, rows)).split("changed") if x]
    most = [max(map(int, x.split())) for x in served]
    assert most[0] == most[2] == 8
    assert most[1] <= 2


def test_any_thread_may_start_and_stop_it():
    server, wrong = Server(make_model(), chain, backend="numpy"), []

    def work():
        for _ in range(50):
            try:
                server.start()
            except LaunchError:
                pass
            except Exception as error:  # noqa: BLE001 - there must be none
                wrong.append(error)
            server.stop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    with server:
        assert server.submit(("half", 1.0)).result(30).item() == 0.5
    assert not wrong


@pytest.mark.parametrize("large", [{"wait": math.inf}, {"wait": 1e12}, {"calls": 10**9}], ids=str)
def test_settings_may_be_large(large):
    with Server(make_model(), steps, backend="numpy") as server:
        server.change(**large)
        future = server.submit(("half", 1.0))
        time.sleep(0.1)  # so that the server waits for company, from which the next change wakes it
        server.change(wait=0.0)
        assert future.result(30).item() == 0.5


def test_a_wrong_priority_is_refused_and_harms_nobody(busy):
    waits = busy.submit(("half", 1.0))
    with pytest.raises(RecordError, match=r"Expected priority of multifold\.Server to be an integer"):
        busy.submit(("half", 1.0), priority=None)
    assert len(busy._admission) == 1 and not waits.done()


class Mute(Exception):
    """An error whose text cannot be told."""

    def __str__(self):
        return self.what


def nested(depth):
    return functools.reduce(lambda inner, _: [inner], range(depth), 1.0)


class Uncopied(np.ndarray):
    def copy(self, *_, **__):
        raise ValueError("no copies")


@pytest.mark.parametrize("bad", ["mute", "deep", "uncopied"])
def test_what_a_request_returns_or_raises_ends_that_request_alone(bad):
    def fn(fold, x):
        if x == bad:
            if x == "mute":
                raise Mute
            return nested(3000) if x == "deep" else np.zeros(2).view(Uncopied)
        return fold.add("half", x)

    with Server(make_model(), fn, backend="numpy", wait=0.05) as server:
        futures = [server.submit(x) for x in (1.0, bad, 2.0)]
        assert [futures[i].result(30).item() for i in (0, 2)] == [0.5, 1.0]
        assert futures[1].exception(30) is not None


@pytest.mark.parametrize("how", ["deadlines", "stop"])
def test_what_ends_a_process_does_not_end_a_server_where_a_request_is_closed(how):
    async def fn(fold, x):
        try:
            while True:
                await fold.value(fold.add("half", 1.0))
                if not x:
                    return fold.add("half", 1.0)
        finally:
            if x:
                raise SystemExit

    with Server(make_model(), fn, backend="numpy", wait=0) as server:
        futures = [server.submit(x, timeout=0.1 if x and how == "deadlines" else None) for x in (1, 1, 0)]
        assert futures[2].result(30).item() == 0.5
        if how == "stop":
            server.stop(drain=False)
        assert not wait(futures, 30).not_done


def test_ops_that_are_objects_are_forgotten_after_a_while(monkeypatch):
    monkeypatch.setattr("multifold._engine.run.launcher.MANY", 8)
    op = Gate()
    op.go.set()
    with Server({}, lambda fold, x: fold.add(op, x), backend="numpy", wait=0) as server:
        for _ in range(60):
            server.submit(1.0).result(30)
        known = server._worker.learned[1] or server._worker.engines[-1]
        assert len(known.loop.launcher.ops) <= 10


@pytest.mark.parametrize(
    "wrong", [{"calls": 0}, {"wait": -1.0}, {"queue": True}, {"timeout": math.nan}], ids=str
)
def test_wrong_settings_change_nothing(busy, wrong):
    with pytest.raises(RecordError, match=f"Expected {next(iter(wrong))} of multifold.Server to be"):
        busy.change(**{"queue": 9, **wrong})
    assert busy._admission.most == 2


def test_the_last_seconds_are_explained(gate):
    model = {"gate": gate, **make_model()}
    with Server(model, chain, backend="numpy", wait=0) as server:
        futures = [server.submit(("gate", "half", "half", 8.0))]
        assert gate.reached.wait(30)
        futures.append(server.submit(("leaf", "half", "half", 4.0)))
        gate.go.set()
        wait(futures, 30)
        text = str(server.explain())
        assert "2 rounds, 6 launches of 6 calls" in text
        assert "example 0 for half" in text and "example 1 for half" in text
        time.sleep(0.01)
        assert len(server.explain(seconds=0)) == 0


def test_warming_up_waits_for_all():
    async def main():
        async with Server(make_model(), total, backend="numpy", timeout=1e-9) as server:
            await server.warm(TREES)
            return server.stats()

    assert asyncio.run(main()).outcomes == {"done": 4}


def test_warming_up_sends_no_more_than_the_queue_holds():
    async def main():
        async with Server(make_model(), total, backend="numpy", queue=2) as server:
            await server.warm(iter([1, 2, 3, 4, 5]))
            return server.stats()

    assert asyncio.run(main()).outcomes == {"done": 5}


def test_warming_up_meets_the_sizes_that_smaller_launches_are_padded_to():
    class Padding(NumpyBackend):
        pads = True

        def padded_rows(self, rows):
            return 1 << (rows - 1).bit_length()

    async def main():
        async with Server(model, total, backend=Padding()) as server:
            await server.warm(range(100))

    sizes = set()
    model = {"leaf": lambda x: sizes.add(len(x)) or x * 1}
    asyncio.run(main())
    assert sizes == {1, 2, 4, 8, 16, 32, 64, 128}


@pytest.mark.parametrize(("warmed", "warnings"), [([], 0), (TREES[:1], 1), (TREES, 0)])
def test_a_warm_server_says_once_that_it_compiles(warmed, warnings, recwarn):
    class Compiling(NumpyBackend):
        def compilations(self):
            return len(sizes)

    async def main():
        async with Server(model, total, backend=Compiling()) as server:
            for tree in warmed:
                await server.warm([tree])
            for tree in TREES:
                await server(tree)

    sizes = set()
    model = {"leaf": lambda x: sizes.add(len(x)) or x * 1, "add": lambda a, b: a + b}
    asyncio.run(main())
    assert ["to compile" in str(one.message) for one in recwarn] == [True] * warnings


@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no clock of a single thread")
@pytest.mark.parametrize("fn", [total, halve])
def test_an_idle_server_sleeps(backend, fn):
    """Its thread does not wake up once, and no thread of the framework is busy either."""
    with Server(make_model(), fn, backend=backend) as server:
        server.submit(1).result(60)
        spent = time.pthread_getcpuclockid(server._thread.ident)
        time.sleep(0.1)  # it lets go of the request
        before = time.process_time(), time.clock_gettime(spent)
        time.sleep(0.5)
        assert time.process_time() - before[0] < 0.1
        assert time.clock_gettime(spent) == before[1]


# ---- all at once -------------------------------------------------------------------------------------


def test_every_request_has_one_outcome_and_leaves_nothing():
    """Requests that fail, are cancelled, are late or find the queue full, and two restarts."""
    nodes = count_nodes()
    soak = Soak("numpy", seed=1)
    soak.send(1200)
    settle(soak, nodes)
    counts = soak.counts
    assert min(counts[x] for x in ("done", "failed", "cancelled", "deadline")) > 5, counts


def test_a_thousand_idle_callers_use_no_cpu(gate):
    async def main():
        async with Server({"gate": gate}, gated, backend="numpy", queue=2000) as server:
            callers = [asyncio.ensure_future(server(float(i))) for i in range(1000)]
            await asyncio.to_thread(gate.reached.wait, 30)
            await asyncio.sleep(0.1)
            before = time.process_time()
            await asyncio.sleep(0.5)
            spent = time.process_time() - before
            gate.go.set()
            return spent, await asyncio.gather(*callers)

    spent, found = asyncio.run(main())
    assert spent < 0.1
    assert [int(x[0]) for x in found] == [*range(1000)]
