"""What an await returns, which calls run for it, and how they share launches."""

from __future__ import annotations

import types

import numpy as np
import pytest
from awaits import grow, rounds_of

import multifold
from multifold import Fold, LaunchError, RecordError, Unfold, ragged, shared
from multifold.testing import Counting


def known(start: float) -> float:
    while start < 100:
        start *= 2
    return start


def test_examples_go_on_as_their_values_say(backend, model, equal):
    got = Fold(backend=backend).run(model, [3, 70, 1, 200], grow)
    equal(got, [[known(x)] for x in (3, 70, 1, 200)])


def test_unfold_is_the_loop(backend, model, equal):
    got = Unfold(model, backend=backend).run(None, [3, 70, 1, 200], grow)
    equal(got, [[known(x)] for x in (3, 70, 1, 200)])


def test_a_round_is_a_launch_of_all_that_wait(counting, model):
    counting.host_view = lambda x: None  # what NumPy sees is not copied by the framework
    Fold(backend=counting).run(model, [13, 70, 30], grow)  # 3, 1 and 2 doublings
    assert counting.counts["call"] == 1 + 3
    assert counting.counts["to_numpy"] == 1 + 3  # one copy a round


def test_without_an_await_the_launches_are_those_of_apply(counting, model):
    async def later(fold, n):
        node = fold.add("leaf", n)
        for _ in range(n):
            node = fold.add("double", node)
        return {"last": node, "all": [node, node]}

    plain = Fold(backend=counting)
    plain.apply(model, [[plain.add("leaf", n) for n in range(4)]])
    counting.counts.clear()
    fold = Fold(backend=counting)
    got = fold.run(model, range(4), later)
    assert counting.counts["call"] == 4 and len(rounds_of(fold)) == 1
    assert got["last"].shape == (4, 1) and got["all"].shape == (8, 1)


def test_only_ancestors_of_what_is_awaited_run(backend, model, equal):
    async def fn(fold, n):
        aside = fold.add("double", fold.add("leaf", n))
        seen = await fold.value(fold.add("leaf", n + 10))
        return fold.add("scale", fold.add("double", aside), shared(float(seen[0])))

    fold = Fold(backend=backend)
    equal(fold.run(model, [1, 2], fn), [[4 * 11], [8 * 12]])
    assert rounds_of(fold) == [{"leaf": 1}, {"leaf": 1, "double": 2, "scale": 2}]


def test_pending_calls_share_launches_with_later_ones(backend, model, equal):
    async def fn(fold, n):
        aside = fold.add("double", fold.add("leaf", n))
        if n % 2:
            await fold.value(fold.add("add", fold.add("leaf", n), fold.add("leaf", 1)))
        return aside

    fold = Fold(backend=backend)
    equal(fold.run(model, range(4), fn), [[0], [2], [4], [6]])
    assert rounds_of(fold) == [{"leaf": 1, "add": 1}, {"leaf": 1, "double": 1}]


def test_several_values_come_in_their_structure(backend, model):
    async def fn(fold, n):
        x, y = fold.add("leaf", n), fold.add("leaf", n + 1)
        found = await fold.values({"pair": [x, y], "sum": fold.add("add", x, y)})
        assert found["pair"][0][0] + found["pair"][1][0] == found["sum"][0] == 2 * n + 1
        assert await fold.values([]) == []
        return x

    Fold(backend=backend).run(model, range(3), fn)


def test_tasks_that_await_one_node_get_arrays_of_their_own(backend, model, to_numpy):
    async def twice(fold, k):
        node = fold.add("leaf", k)
        one, other = await fold.gather(fold.value(node), fold.value(node))
        one += 1
        return other.item()

    assert to_numpy(Fold(backend=backend).run(model, [3, 5], twice)).tolist() == [3, 5]


def test_a_row_that_is_one_number_is_a_python_number(backend):
    async def fn(fold, n):
        for x, kind in ((3, int), (0.5, float), (True, bool)):
            value = await fold.value(fold.add("same", x))
            assert type(value) is kind and value == x
        return fold.add("same", n)

    model = {"same": lambda x: x}
    Fold(backend=backend).run(model, [1, 2], fn)
    Unfold(model, backend=backend).run(None, [1, 2], fn)


def test_results_with_parts_are_awaited_whole_or_in_part(backend, model):
    async def fn(fold, n):
        pair = fold.add("pair", fold.add("leaf", n))
        assert await fold.value(pair[1]) == 2 * n
        low, high = await fold.value(pair)
        assert (low, high) == (n, 2 * n)
        return pair[0]

    model["pair"] = lambda x: (x, x * 2)
    Fold(backend=backend).run(model, [1, 2, 3], fn)
    Unfold(model, backend=backend).run(None, [1, 2, 3], fn)


def test_a_whole_result_is_awaited_through_no_batch(backend, model, seam):
    async def fn(fold, n):
        rows = fold.add("stack", fold.add("leaf", n), fold.add("leaf", n + 1)).no_batch()
        assert (await fold.value(rows)).shape == (2, 1)
        return fold.add("plus", fold.add("leaf", n), rows)

    model |= {"stack": lambda x, y: seam.concat([x, y]), "plus": lambda x, rows: x * float(len(rows))}
    assert Fold(backend=backend).run(model, [1, 2], fn).shape == (2, 1)


def test_a_plain_function_is_run_like_one_without_await(backend, model, equal):
    fold = Fold(backend=backend)
    equal(fold.run(model, [1, 2], lambda fold, n: fold.add("double", fold.add("leaf", n))), [[2], [4]])


def test_numbers_and_groups_are_results_too(backend, model, to_numpy):
    async def fn(fold, n):
        nodes = [fold.add("leaf", k) for k in range(n)]
        await fold.value(nodes[0])
        return nodes, n, [node.no_batch() for node in nodes[:0]] or nodes[-1]

    rows, numbers, last = to_numpy(Fold(backend=backend).run(model, [2, 3], fn))
    assert rows.ravel().tolist() == [0, 1, 0, 1, 2] and numbers.tolist() == [2, 3]
    assert last.ravel().tolist() == [1, 2]


def test_launches_are_padded_to_what_the_backend_says(counting, model, equal, seam):
    rows = []
    counting.pads, counting.padded_rows = True, lambda n: 8
    model["double"] = lambda x: rows.append(seam.rows(x)) or x * 2.0
    fold = Fold(backend=counting)
    equal(fold.run(model, [3, 70, 1, 200, 5], grow), [[known(x)] for x in (3, 70, 1, 200, 5)])
    assert set(rows) == {8}
    assert "rows for 24 calls" in str(fold.explain())


def test_launches_are_padded_although_they_were_planned_without(counting, model, seam):
    rows = []
    counting.padded_rows = lambda n: 8
    model["double"] = lambda x: rows.append(seam.rows(x)) or x * 2.0
    fold = Fold(backend=counting)
    for counting.pads in (False, False, False, True):
        rows.clear()
        fold.run(model, [3, 70], grow)
    assert set(rows) == {8}


def test_an_error_of_a_padded_launch_counts_the_nodes_that_were_recorded(counting, model):
    counting.pads, counting.padded_rows = True, lambda n: 8
    model["bad"] = lambda x: x[:, None, :] @ x
    with pytest.raises(LaunchError, match="The launch of op 'bad' for 3 nodes"):
        Fold(backend=counting).run(model, [1, 2, 3], lambda fold, n: fold.add("bad", fold.add("leaf", n)))


def test_a_group_may_be_empty_in_some_examples(backend, model, equal):
    async def fn(fold, n):
        return {"all": [fold.add("leaf", k) for k in range(n)], "one": fold.add("leaf", n)}

    for run in (Fold(backend=backend).run, lambda m, *rest: Unfold(m, backend=backend).run(None, *rest)):
        equal(run(model, [0, 2, 1], fn)["all"], [[0], [1], [0]])
        equal(run(model, [0, 2], lambda fold, n: [fold.add("leaf", k) for k in range(n)]), [[0], [1]])
        with pytest.raises(RecordError, match="none from any example"):
            run(model, [0, 0], fn)


def test_a_trace_holds_no_values(model):
    with pytest.raises(RecordError, match="trace"):
        multifold.trace(grow, 3)
    with pytest.raises(RecordError, match="trace"):
        multifold.trace(lambda fold, n: fold.value(fold.add("leaf", n)), 3)


def test_a_node_that_ran_with_others_can_not_be_read_whole_later(backend, model):
    async def fn(fold, n):
        node = fold.add("leaf", n)
        await fold.value(node)
        return fold.add("add", node.no_batch(), node)

    with pytest.raises(RecordError, match="before anything that needs the node is awaited"):
        Fold(backend=backend).run(model, [1, 2], fn)


def test_a_node_that_is_read_whole_after_another_operand_runs_alone(backend, model, equal):
    async def fn(fold, n):
        node = fold.add("leaf", n)
        scaled = fold.add("scale", fold.add("double", fold.add("leaf", 5)), node.no_batch())
        await fold.value(node)
        return scaled

    equal(Fold(backend=backend).run(model, [1, 2], fn), [[10.0], [20.0]])


def test_an_example_goes_on_after_the_last_call_that_reads_a_whole_result(backend, model, equal):
    async def fn(fold, n):
        scaled = fold.add("scale", fold.add("leaf", 5), fold.add("leaf", n).no_batch())
        await fold.value(scaled)
        return fold.add("double", scaled)

    equal(Fold(backend=backend).run(model, [1, 2], fn), [[10.0], [20.0]])


def test_calls_of_the_last_run_are_forgotten(backend, model, equal):
    fold = Fold(backend=backend)
    for _ in range(3):
        equal(fold.run(model, [3, 70], grow), [[192], [140]])
    before = len(fold)
    fold.run(model, [3, 70], grow)
    assert len(fold) == before


def test_calls_recorded_before_a_run_can_be_read_in_it(backend, model, equal):
    fold = Fold(backend=backend)
    base = fold.add("leaf", 50)

    async def fn(fold, n):
        assert (await fold.value(fold.add("add", base, fold.add("leaf", n)))) == 50 + n
        return fold.add("add", base, base)

    equal(fold.run(model, [1, 2], fn), [[100], [100]])
    equal(fold.apply(model, [base]), [[50]])


def test_what_is_read_whole_is_never_padded():
    backend = Counting("numpy")
    backend.pads, backend.padded_rows = True, lambda rows: -(-rows // 8) * 8

    async def example(fold, x):
        return fold.add(lambda x, t: x + t.sum(), 1.0, fold.add(abs, x).no_batch())

    assert Fold(backend=backend).run(None, [5.0], example).tolist() == [6]


def test_a_result_that_was_computed_with_others_cannot_be_awaited_whole(backend, model):
    async def fn(fold, n):
        node = fold.add("leaf", n)
        await fold.value(node)
        return await fold.value(node.no_batch())

    with pytest.raises(RecordError, match="computed in a launch with others, for a value that was awaited"):
        Fold(backend=backend).run(model, [1, 2], fn)


def test_a_whole_result_is_what_the_op_returned():
    """A subclass of dict stays one where it is read whole, in the round that computes it and later."""

    class Answer(dict):
        pass

    async def fn(fold, x):
        node = fold.add(lambda x: Answer(a=x, b=x + 1), np.full((1, 1), x)).no_batch()
        types.append(type(await fold.value(node)))
        types.append(type(await fold.value(node)))
        return fold.add(lambda whole, x: whole["b"] + x, node, np.full((1, 1), x))

    types: list[type] = []
    assert Fold(backend="numpy").run(None, [1.0], fn).tolist() == [[3.0]]
    assert len(set(types)) == 1


def test_results_are_numbers_and_nodes_beside_numbers_that_ops_read():
    def fn(fold, x):
        total = fold.add("total", ragged([x, 10.0]))
        return total, x + 0.5

    model = {"total": lambda r: r.values.reshape(-1, 2).sum(1)}
    assert [x.tolist() for x in Fold(backend="numpy").run(model, [1.0, 2.0], fn)] == [[11, 12], [1.5, 2.5]]


def test_to_wait_for_nothing_takes_no_round():
    async def fn(fold, n):
        assert (await fold.gather(), await fold.values([]), await fold.values({})) == ([], [], {})
        return n

    fold = Fold(backend="numpy")
    assert fold.run(None, [1, 2], fn).tolist() == [1, 2]
    assert len(fold.explain().rounds) == 1


@types.coroutine
def delegated(request):
    """Await by ``yield from`` in a generator."""
    return (yield from request.__await__())


@types.coroutine
def driven(request):
    """Await as code does that drives a coroutine by itself: what is asked goes out, the answer comes in."""
    inner = waits(request)
    asked = inner.send(None)
    try:
        inner.send((yield asked))
    except StopIteration as end:
        return end.value


async def waits(request):
    """Await."""
    return await request


class Waits:
    """What is awaited through an ``__await__`` of its own."""

    def __init__(self, request):
        self.request = request

    def __await__(self):
        return self.request.__await__()


@pytest.mark.parametrize("by", [waits, delegated, driven, Waits])
@pytest.mark.parametrize("recorder", [Fold, Unfold])
def test_values_reach_those_who_await_them_in_ways_of_their_own(by, recorder):
    async def fn(fold, n):
        node, request = fold.add(abs, -n), fold.value(fold.add(abs, n))
        assert await by(fold.values((node, node))) == (n, n)
        return [await by(request), await by(request)]  # a request may be awaited again

    assert recorder(backend="numpy").run(None, [3, 4], fn).tolist() == [3, 3, 4, 4]
