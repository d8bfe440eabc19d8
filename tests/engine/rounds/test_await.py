"""Control flow that depends on computed values: rounds, what runs in them, and what goes wrong in them."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import re
import sys
import weakref
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import multifold
from multifold import Fold, LaunchError, MultifoldError, RecordError, Unfold, ragged, shared
from multifold._engine.rounds import held_nodes, pages, store
from multifold._engine.rounds.awaitables import GatherRequest
from multifold._engine.rounds.calls import CallTable
from multifold._engine.rounds.store import Store
from multifold._engine.rounds.tasks import ExampleTask, Tasks
from multifold._engine.run.blame import by_halves
from multifold.testing import Counting


@pytest.fixture
def model(column):
    """Ops on rows of shape (1,), and on numbers."""
    return {
        "leaf": lambda k: column(k) * 1.0,
        "double": lambda x: x * 2.0,
        "add": lambda x, y: x + y,
        "scale": lambda x, w: x * w,
    }


async def grow(fold, start):
    """Double until the value is at least 100; the number of steps depends on values."""
    node = fold.add("leaf", start)
    while (await fold.value(node))[0] < 100:
        node = fold.add("double", node)
    return node


def known(start: float) -> float:
    while start < 100:
        start *= 2
    return start


def rounds_of(fold: Fold) -> list[Counter[str]]:
    """Return the launches of each round by op."""
    return [Counter(launch.op for launch in part.launches) for part in fold.explain().rounds]


# ---- values, launches, copies -----------------------------------------------------------------------


def test_examples_go_on_as_their_values_say(backend, model, equal):
    got = Fold(backend=backend).run(model, [3, 70, 1, 200], grow)
    equal(got, [[known(x)] for x in (3, 70, 1, 200)])


def test_unfold_is_the_loop(backend, model, equal):
    got = Unfold(model, backend=backend).run(None, [3, 70, 1, 200], grow)
    equal(got, [[known(x)] for x in (3, 70, 1, 200)])


def test_a_round_is_a_launch_of_all_that_wait(counting, model):
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


# ---- forks and joins ----------------------------------------------------------------------------------


async def largest(fold, tree):
    """Return the largest number of a tree of pairs, through a task for each subtree."""
    if isinstance(tree, int):
        return (await fold.value(fold.add("leaf", tree)))[0]
    return max(await fold.gather(*[largest(fold, child) for child in tree]))


def test_siblings_wait_together(backend, model):
    async def fn(fold, tree):
        return fold.add("leaf", int(await largest(fold, tree)))

    fold = Fold(backend=backend)
    assert fold.run(model, [((1, 2), (3, 4)), 5], fn)[0][0] == 4
    assert rounds_of(fold) == [{"leaf": 1}, {"leaf": 1}]


def test_gather_goes_deeper_than_the_stack(backend, model):
    tree: Any = 1
    for n in range(5000):
        tree = (tree, 2) if n == 4000 else (tree,)

    async def fn(fold, tree):
        return fold.add("leaf", int(await largest(fold, tree)))

    assert Fold(backend=backend).run(model, [tree], fn)[0][0] == 2
    assert Unfold(model, backend=backend).run(None, [tree], fn)[0][0] == 2


def test_nested_awaits_that_are_too_deep_are_refused_with_the_loop(backend, model):
    async def deep(fold, n):
        return await deep(fold, n - 1) if n else fold.add("leaf", 1)

    with pytest.raises(RecordError, match=r"recursion limit .*\n\nHint: .*gather.*as a loop: `while "):
        Fold(backend=backend).run(model, [5000], deep)


def test_gather_takes_values_and_nothing_else(backend, model):
    async def fn(fold, n):
        node = fold.add("leaf", n)
        one, (two,) = await fold.gather(fold.value(node), fold.values([node]))
        assert one == two == n and await fold.gather() == []
        with pytest.raises(RecordError, match="Expected coroutines"):
            fold.gather(fn(fold, 1), 3)
        return node

    Fold(backend=backend).run(model, [1, 2], fn)


def test_an_exception_of_one_sibling_reaches_who_joins_them(backend, model):
    closed = []

    async def child(fold, n):
        try:
            await fold.value(fold.add("leaf", n))
            if n == 2:
                raise ValueError("two")
            await fold.value(fold.add("leaf", n))
        finally:
            closed.append(n)

    async def fn(fold, _):
        with pytest.raises(ValueError, match="two"):
            await fold.gather(child(fold, 1), child(fold, 2), child(fold, 3))
        return fold.add("leaf", 7)

    assert Fold(backend=backend).run(model, [0], fn)[0][0] == 7
    assert sorted(closed) == [1, 2, 3]


# ---- what goes wrong ------------------------------------------------------------------------------------


async def refuse_three(fold, n):
    node = fold.add("leaf", n)
    await fold.value(node)
    if n == 3:
        raise ValueError("three")
    return fold.add("double", node)


def test_an_exception_names_line_and_example_and_leaves_the_fold_usable(backend, model, equal):
    fold = Fold(backend=backend)
    with pytest.raises(ValueError, match="three") as caught:
        fold.run(model, [1, 2, 3], refuse_three)
    assert caught.traceback[-1].name == "refuse_three"
    assert caught.value.__notes__ == ["Raised by example 2 of fold.run."]
    equal(fold.run(model, [1, 2], refuse_three), [[2], [4]])


def test_failures_are_collected_while_the_others_finish(backend, model, equal):
    results, failures = Fold(backend=backend).run(model, [1, 3, 2], refuse_three, on_error="collect")
    equal(results, [[2], [4]])
    assert list(failures) == [1] and isinstance(failures[1], ValueError)
    results, failures = Fold(backend=backend).run(model, [3], refuse_three, on_error="collect")
    assert results is None and list(failures) == [0]


@pytest.mark.parametrize("awaited", [True, False])
def test_a_launch_that_fails_is_charged_to_its_example(backend, model, seam, equal, awaited):
    def picky(x):
        if (seam.to_numpy(x) == 3).any():
            raise ValueError("three")
        return x * 2.0

    async def fn(fold, n):
        node = fold.add("picky", fold.add("leaf", n))
        if awaited:
            await fold.value(node)
        return node

    fold = Fold(backend=backend)
    with pytest.raises(LaunchError, match="picky"):
        fold.run(model | {"picky": picky}, range(6), fn)
    results, failures = fold.run(model | {"picky": picky}, range(6), fn, on_error="collect")
    equal(results, [[0], [2], [4], [8], [10]])
    assert list(failures) == [3] and isinstance(failures[3], LaunchError)


def test_halves_run_without_those_that_a_blame_has_ended():
    ran, left = [], {*range(6)}

    def run(askers):
        ran.append(askers)
        if 0 in askers:
            raise MultifoldError("no")

    by_halves(
        left, run, lambda asker, error: left.difference_update((0, 1, 3)), still_asks=left.__contains__
    )
    assert ran == [[0, 1, 2, 3, 4, 5], [0, 1, 2], [0], [2], [4, 5]]


@pytest.mark.parametrize("wrong", range(4))
def test_those_of_whom_one_is_to_blame_do_not_fail_together(wrong):
    def run(askers):
        if wrong in askers:
            raise MultifoldError("no")

    blamed, both = [], []
    assert by_halves(
        range(4), run, lambda *told: blamed.append(told[0]), together=lambda *told: both.append(told)
    )
    assert (blamed, both) == ([wrong], [])


def test_a_cancelled_run_closes_its_examples_and_leaves_the_fold_usable(backend, model, equal):
    closed = []

    async def fn(fold, n):
        try:
            await fold.value(fold.add("leaf", n))
            if n == 2:
                raise KeyboardInterrupt
            await fold.value(fold.add("leaf", n))
        finally:
            closed.append(n)

    fold = Fold(backend=backend)
    with pytest.raises(KeyboardInterrupt):
        fold.run(model, [1, 2, 3], fn)
    assert sorted(closed) == [1, 2, 3]
    equal(fold.run(model, [3, 70], grow), [[192], [140]])


def test_other_awaitables_are_refused(backend, model):
    class Foreign:
        def __await__(self):
            yield "a socket"

    async def fn(fold, n):
        await Foreign()

    with pytest.raises(RecordError, match=r"Expected example 0 .* to await values"):
        Fold(backend=backend).run(model, [1], fn)


def test_values_are_awaited_in_a_run_only(backend, model):
    async def outside(fold):
        return await fold.value(fold.add("leaf", 1))

    fold = Fold(backend=backend)
    with pytest.raises(RecordError, match=r"inside fold\.run"):
        asyncio.run(outside(fold))
    with pytest.raises(RecordError, match="Expected a node"):
        fold.value(3)
    with pytest.raises(RecordError, match="another fold"):
        fold.value(Fold(backend=backend).add("leaf", 1))


def test_a_program_with_an_event_loop_may_call_it(backend, model, equal):
    async def main():
        return Fold(backend=backend).run(model, [3, 70], grow)

    equal(asyncio.run(main()), [[192], [140]])


def test_runs_do_not_nest_and_keep_their_graph(backend, model):
    async def fn(fold, n):
        with pytest.raises(RecordError, match="Expected no other run"):
            fold.run(model, [1], grow)
        with pytest.raises(RecordError, match="Expected no reset"):
            fold.reset()
        return fold.add("leaf", n)

    Fold(backend=backend).run(model, [1], fn)


def test_examples_must_return_one_structure(backend, model):
    async def fn(fold, n):
        node = fold.add("leaf", n)
        return [node] if n else (node, node)

    with pytest.raises(RecordError, match=r"from example 0 and .* from example 1"):
        Fold(backend=backend).run(model, [0, 1], fn)
    with pytest.raises(RecordError, match="at least one example"):
        Fold(backend=backend).run(model, [], fn)
    with pytest.raises(RecordError, match="'raise' or 'collect'"):
        Fold(backend=backend).run(model, [0], fn, on_error="ignore")


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


# ---- cost over many rounds ------------------------------------------------------------------------------


def test_rows_touched_grow_with_the_rows_read_and_not_with_rounds_times_rows(seam, model, monkeypatch):
    monkeypatch.setattr(store, "SMALL", 8)
    monkeypatch.setattr(store, "TOGETHER", 2)

    async def walk(fold, length):
        words = [fold.add("leaf", k) for k in range(length)]
        await fold.values(words)  # one block, of which each round reads a row for each example
        state = words[0]
        for word in words:
            state = fold.add("add", state, word)
            await fold.value(state)
        return state

    def touched(length):
        counting, rows = Counting(seam), []
        gather, split = counting.gather, counting.split
        counting.gather = lambda x, at: rows.append(counting.rows(x)) or gather(x, at)
        counting.split = lambda x, sizes: rows.append(sum(sizes)) or split(x, sizes)
        Fold(backend=counting).run(model, [length] * 5, walk)
        return sum(rows)

    assert touched(160) <= 12 * touched(20)  # eight times the rounds and the rows: not 64 times


def test_rows_of_a_divided_result_are_those_of_the_loop(backend, model, equal, to_numpy, monkeypatch):
    monkeypatch.setattr(store, "SMALL", 8)

    async def walk(fold, start):
        words = [fold.add("leaf", k) for k in range(40)]
        await fold.values(words)
        state = words[start]
        for word in words[start::7]:
            await fold.value(state := fold.add("add", state, word))
        return state

    expected = to_numpy(Unfold(model, backend=backend).run(None, [0, 3, 6], walk))
    equal(Fold(backend=backend).run(model, [0, 3, 6], walk), expected)


def test_small_blocks_that_are_read_together_cost_one_gather(counting, model):
    async def fn(fold, n):
        steps = [fold.add("leaf", n)]
        for _ in range(10):
            steps.append(fold.add("double", steps[-1]))
            await fold.value(steps[-1])
        counting.counts.clear()
        return steps if n else steps[:1]

    counting.pads = False
    Fold(backend=counting).run(model, [0, 1, 2], fn)
    assert counting.counts["gather"] + counting.counts["split"] <= 3  # of 11 blocks


@pytest.fixture
def tallest(monkeypatch):
    """The rows of the tallest block, whenever small blocks have been put together."""
    rows, put_together = [], Store._put_together

    def watched(known, *arguments):
        put_together(known, *arguments)
        rows.append(max((stored.rows for stored in known.results.values()), default=0))

    monkeypatch.setattr(Store, "_put_together", watched)
    return rows


async def doubled(fold, n, times):
    """Return a node and its doubles, each of them awaited."""
    steps = [fold.add("leaf", n)]
    for _ in range(times):
        steps.append(fold.add("double", steps[-1]))
        await fold.value(steps[-1])
    return steps


def test_blocks_are_put_together_up_to_a_page(seam, model, monkeypatch, tallest):
    async def fn(fold, n):
        return await doubled(fold, n, 10)

    monkeypatch.setattr(store, "TOGETHER", 6)
    counting = Counting(seam)
    counting.pads = False
    Fold(backend=counting).run(model, [0, 1, 2], fn)
    assert max(tallest) == 6  # of launches of three rows each


@pytest.mark.parametrize("other", ["tall", "whole", "flat"])
def test_blocks_are_put_together_behind_one_that_is_not(seam, model, monkeypatch, tallest, other):
    async def fn(fold, n):
        nodes = {
            "tall": lambda: [fold.add("leaf", k) for k in range(10)],
            "whole": lambda: [fold.add("one").no_batch()],
            "flat": lambda: [fold.add("flat", float(n))],
        }[other]()
        await fold.values(nodes)
        return await doubled(fold, n, 3), nodes[0]

    model |= {"one": lambda: seam.constant(np.ones(1), None), "flat": lambda x: x + x}
    monkeypatch.setattr(store, "TOGETHER", 16)
    counting = Counting(seam)
    counting.pads = False
    Fold(backend=counting).run(model, [1, 2], fn)
    assert tallest[-1] == (20 if other == "tall" else 8)


def test_a_result_of_which_many_rows_are_read_is_not_divided(counting, model, monkeypatch):
    monkeypatch.setattr(store, "SMALL", 8)

    async def fn(fold, n):
        words = [fold.add("leaf", k) for k in range(100)]
        await fold.values(words)
        counting.counts.clear()
        return words[::2]

    Fold(backend=counting).run(model, [1], fn)
    assert counting.counts["split"] == 0


def test_a_result_is_free_after_its_last_reader_of_the_last_round():
    made, alive = [], []

    def big(x):
        rows = np.tile(x[:, None], (1, 5000))
        made.append(weakref.ref(rows))
        return rows

    async def fn(fold, n):
        rows = fold.add("big", float(n))
        await fold.value(rows)
        return fold.add("end", fold.add("total", rows))

    def end(x):
        alive.extend(rows() is not None for rows in made)
        return x

    model = {"big": big, "total": lambda rows: rows.sum(1), "end": end}
    assert Fold(backend="numpy").run(model, [1, 2], fn).tolist() == [5000, 10000]
    assert alive == [False]


def test_a_value_of_unknown_size_counts_as_nothing():
    unknown = type("Unknown", (), {"shape": (None, 3)})()
    assert store.numbers_in(unknown) == 0 and store.numbers_in((np.ones((2, 3)), np.ones(4))) == 10


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


def test_rows_of_an_awaited_result_are_counted():
    async def fn(fold, n):
        node = fold.add("more", n)
        await fold.value(node.no_batch())
        return await fold.value(node)

    with pytest.raises(LaunchError, match="has 2 rows, where one row a node is read"):
        Fold(backend="numpy").run({"more": lambda x: np.append(x, 0)}, [1, 2], fn)


def test_a_whole_result_comes_to_the_host_with_what_is_no_array_in_it():
    async def fn(fold, n):
        found = await fold.value(fold.add("sizes", shared(np.ones(3))).no_batch())
        assert (found, type(found["sum"])) == ({"name": "ones", "sum": 3.0}, float)
        return n

    model = {"sizes": lambda x: {"name": "ones", "sum": np.asarray(x.sum())}}
    assert Fold(backend="numpy").run(model, [1, 2], fn).tolist() == [1, 2]


def test_of_two_examples_the_one_whose_last_launch_fails_is_found():
    def picky(x):
        if (x == 1).any():
            raise ValueError("one")
        return x

    for examples in (range(2), range(1, 3), range(9)):
        got, failures = Fold(backend="numpy").run(
            None, examples, lambda fold, n: fold.add(picky, n), on_error="collect"
        )
        assert got.tolist() == [n for n in examples if n != 1]
        assert [examples[i] for i in failures] == [1]


def test_rows_of_a_whole_result_are_counted_before_they_are_read(backend, model, seam):
    async def fn(fold, n):
        node = fold.add("stack", fold.add("leaf", n), fold.add("leaf", n))
        await fold.value(node.no_batch())
        return fold.add("double", node)

    model["stack"] = lambda x, y: seam.concat([x, y])
    with pytest.raises(LaunchError, match="has 2 rows, where one row a node is read"):
        Fold(backend=backend).run(model, [1, 2], fn)


def test_what_a_store_holds_is_what_its_results_hold(backend, model, monkeypatch):
    held = []
    settle = Store.settle

    def watched(known, *arguments):
        moved = settle(known, *arguments)
        held.append((known.held, sum(pages.numbers_in(x.value) for x in known.results.values())))
        return moved

    async def walk(fold, n):
        words = [fold.add("leaf", k) for k in range(20)]
        await fold.values(words)
        node = words[n]
        for word in words[:5]:
            node = fold.add("add", node, word)
            await fold.value(node)
        return node

    monkeypatch.setattr(Store, "settle", watched)
    monkeypatch.setattr(store, "SMALL", 8)
    Fold(backend=backend).run(model, [1, 2], walk)
    assert len(held) > 4 and all(said == counted for said, counted in held)


def test_blocks_that_no_node_can_ask_for_are_dropped(backend, model, monkeypatch):
    held = []
    keep = Store.keep

    def watched(known, *arguments):
        keep(known, *arguments)
        held.append(len(known.results))

    async def walk(fold, n):
        first = node = fold.add("leaf", n)
        for _ in range(300):
            node = fold.add("add", first, node)
            await fold.value(node)
        return node

    monkeypatch.setattr(Store, "keep", watched)
    monkeypatch.setattr(store, "MANY", 100)
    monkeypatch.setattr(store, "TOGETHER", 2)
    assert Fold(backend=backend).run(model, [1, 2], walk)[1][0] == 602
    assert len(held) == 300 and max(held) < 100


def test_a_block_that_one_example_can_still_ask_for_is_not_dropped(counting, model, monkeypatch):
    monkeypatch.setattr(store, "MANY", 4)

    async def walk(fold, n):
        first = node = fold.add("leaf", n)
        for _ in range(10):
            await fold.value(node := fold.add("double", node))
            first = first if n == 1 else node
        return fold.add("add", first, node)

    Fold(backend=counting).run(model, [1, 2], walk)
    assert counting.counts["call"] == 12  # no call has run twice


def test_a_fold_is_free_as_soon_as_nobody_holds_it(backend, model):
    fold = Fold(backend=backend)
    fold.apply(model, [[fold.add("leaf", n) for n in (1, 2)]])
    fold.run(model, [3, 70], grow)
    gone = weakref.ref(fold)
    gc.disable()
    try:
        del fold
        assert gone() is None  # found by counting references: nothing in it goes round in a circle
    finally:
        gc.enable()


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


# ---- against the loop -----------------------------------------------------------------------------------

small = st.integers(0, 30)
steps = st.lists(st.tuples(st.integers(0, 5), small, small), min_size=1, max_size=12)


async def wander(fold, program, p, turn):
    """Play a program whose steps are skipped, repeated or forked as values say."""
    rows = [fold.add("weigh", p[f"v{k}"], turn + k) for k in range(2)]
    limit = 30
    pending = list(reversed(program))
    while pending and limit:
        limit -= 1
        kind, a, b = pending.pop()
        x, y = rows[(a + turn) % len(rows)], rows[b % len(rows)]
        if kind == 0:
            rows.append(fold.add("squash", x))
        elif kind == 1:
            rows.append(fold.add("mix", x, y))
        elif kind == 2:
            rows += fold.add("pair", x).split(2)
        elif kind == 3 and (await fold.value(x)).sum() > 0.0173:
            rows.append(fold.add("mix", y, x))
        elif kind == 4:
            first, second = await fold.values((x, y))
            if first.sum() > second.sum() + 0.0173:
                pending.append((1, a, b))
        elif kind == 5:
            some = [follow(fold, row, k) for k, row in enumerate((x, y))]
            rows += await fold.gather(*some)
    return {"last": rows[-1], "all": rows[-3:]}


async def follow(fold, row, k):
    for _ in range(3):
        if abs((await fold.value(row)).mean()) < 0.3 + 0.0173 * k:
            break
        row = fold.add("squash", fold.add("mix", row, row))
    return row


relaxed = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def wandering(ops, column):
    def model(p):
        return {
            "weigh": lambda x, k: x * (column(k) * 0.3 - 0.5),
            "squash": lambda x: ops.tanh(x * 1.3),
            "mix": lambda x, y: ops.tanh(x) * y - x * 0.8 + p["s"],
            "pair": lambda x: (x * 0.7, ops.tanh(x)),
        }

    return model


@pytest.fixture
def parameters():
    rng = np.random.default_rng(0)
    return {name: rng.uniform(-1, 1, (1, 2)) for name in ("v0", "v1", "s")}


@settings(relaxed, max_examples=40)
@given(
    program=steps, turns=st.lists(st.integers(0, 9), min_size=1, max_size=5), unit=st.sampled_from([1, 4])
)
def test_random_programs_equal_the_loop(
    seam, backend, array, wandering, equal, to_numpy, parameters, program, turns, unit
):
    counting = Counting(seam)
    counting.pads, counting.padded_rows = True, lambda rows: -(-rows // unit) * unit
    p = {name: array(values) for name, values in parameters.items()}

    def fn(fold, turn):
        return wander(fold, program, p, turn)

    got = Fold(backend=counting).run(wandering(p), turns, fn)
    expected = Unfold(wandering(p), backend=backend).run(None, turns, fn)
    equal(got["last"], to_numpy(expected["last"]))
    equal(got["all"], to_numpy(expected["all"]))


@settings(relaxed, max_examples=15)
@given(program=steps, turns=st.lists(st.integers(0, 9), min_size=1, max_size=4))
def test_random_programs_have_the_gradients_of_the_loop(
    backend, wandering, gradients, parameters, program, turns
):
    def results(run):
        def of(p):
            found = run(wandering(p), turns, lambda fold, turn: wander(fold, program, p, turn))
            return [found["last"], found["all"]]

        return of

    got = gradients(results(Fold(backend=backend).run), parameters)
    loop = results(lambda model, *rest: Unfold(model, backend=backend).run(None, *rest))
    expected = gradients(loop, parameters)
    for name, gradient in expected.items():
        np.testing.assert_allclose(got[name], gradient, rtol=1e-3, atol=1e-4)


# ---- await, forgotten --------------------------------------------------------------------------------

FORGOTTEN = {
    "if": bool,
    "compared": lambda x: x == 1.0,
    "ordered": lambda x: x > 1,
    "looked for": lambda x: x in (1.0, 2.0),
    "unpacked": list,
    "indexed": lambda x: x[0],
    "a number": float,
    "an array": np.asarray,
    "added": lambda x: 1 + x,
}


@pytest.mark.parametrize("use", FORGOTTEN.values(), ids=FORGOTTEN)
@pytest.mark.parametrize("recorder", [Fold, Unfold])
def test_a_value_that_is_not_awaited_can_not_be_used(recorder, use):
    def forgetful(fold, x):
        node = fold.add(abs, x)
        use(fold.value(node))
        return node

    with pytest.raises(RecordError, match=r"(?s)Expected the value of a node.*write `await fold\.value"):
        recorder(backend="numpy").run(None, [1.0], forgetful)


def test_what_is_not_awaited_has_no_attributes_of_arrays():
    fold = Fold(backend="numpy")
    pending = fold.value(fold.add("double", 1.0))
    with pytest.raises(RecordError, match=r"write `await fold\.value\(node\)`"):
        pending.argmax()
    assert not hasattr(pending, "shape") and not hasattr(pending, "__fspath__")


@pytest.mark.parametrize("where", ["operand", "ragged", "output", "group"])
def test_what_is_not_awaited_is_neither_an_operand_nor_a_result(where):
    async def inner(fold, x):
        return fold.add("double", x)

    def forgetful(fold, x):
        pending = fold.value(fold.add("double", x))
        if where == "operand":
            return fold.add("double", pending)
        if where == "ragged":
            return fold.add("double", multifold.ragged([pending]))
        return [pending] if where == "group" else pending

    with pytest.raises(RecordError, match="Received a ValuesRequest"):
        Fold(backend="numpy").run({"double": lambda x: 2 * x}, [1.0], forgetful)
    fold = Fold(backend="numpy")
    coroutine = inner(fold, 1.0)
    with pytest.raises(RecordError, match="`await` it"):
        fold.add("double", coroutine)
    coroutine.close()


# ---- requests that are not of this run, cleanups, results that do not fit --------------------------------


@pytest.mark.parametrize("recorder", [Fold, Unfold])
@pytest.mark.parametrize("what", ["value", "gather"])
def test_values_of_another_fold_are_refused(recorder, what):
    outer, inner = recorder(backend="numpy"), recorder(backend="numpy")

    async def example(fold, x):
        node = fold.add(abs, 100 + x)

        async def within(other, k):
            other.add(abs, k)
            return await (fold.value(node) if what == "value" else fold.gather(fold.value(node)))

        return inner.run(None, [1, 2], within)

    with pytest.raises(RecordError, match=r"(?s)Received a request of another one.*outer fold before"):
        outer.run(None, [0, 1], example)


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
    "opens": (Tasks, "_open_task"),
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


def test_values_kept_from_an_earlier_run_are_refused():
    fold, kept = Fold(backend="numpy"), []

    async def keep(fold, x):
        kept.append(fold.value(fold.add(abs, x)))
        return x

    async def use(fold, x):
        fold.add(abs, x)
        return await kept[x]

    fold.run(None, [11, 12], keep)
    with pytest.raises(RecordError, match=r"(?s)from before a reset.*forgotten when the next one begins"):
        fold.run(None, [0, 1], use)


def test_gather_refuses_one_coroutine_twice():
    async def one(fold, x):
        return await fold.value(fold.add(abs, x))

    async def example(fold, x):
        coroutine = one(fold, x)
        return await fold.gather(coroutine, coroutine)

    with pytest.raises(RecordError, match="Received one of them twice"):
        Fold(backend="numpy").run(None, [1], example)


async def absolute(fold, x):
    return await fold.value(fold.add(abs, x))


async def gathers_itself(fold, own):
    return await fold.gather(own[0])


async def gathers_its_parent(fold, own):
    async def child():
        return await fold.gather(own[0])

    return await fold.gather(child())


async def gathers_one_by_two(fold, own):
    one = absolute(fold, 1)
    return await fold.gather(fold.gather(one), fold.gather(one))


async def gathers_one_that_is_done(fold, own):
    one = absolute(fold, 1)
    return await fold.gather(one) + await fold.gather(one)


@pytest.mark.parametrize("recorder", [Fold, Unfold])
@pytest.mark.parametrize(
    "fn", [gathers_itself, gathers_its_parent, gathers_one_by_two, gathers_one_that_is_done]
)
def test_a_coroutine_that_was_gathered_or_gathers_itself_is_refused(fn, recorder, backend):
    def start(fold, x):
        own = []
        own.append(fn(fold, own))
        return own[0]

    with pytest.raises(RecordError, match="have not begun"):
        recorder(backend=backend).run(None, [0], start)


def test_an_example_that_gathers_itself_fails_alone():
    def start(fold, x):
        own = []
        own.append(gathers_itself(fold, own) if x == 1 else absolute(fold, x))
        return own[0]

    got, failures = Fold(backend="numpy").run(None, [0, 1, 2], start, on_error="collect")
    assert got.tolist() == [0, 2] and list(failures) == [1]


def test_a_value_may_be_gathered_twice():
    async def example(fold, x):
        value = fold.value(fold.add(abs, x))
        return sum(await fold.gather(value, value))

    assert Fold(backend="numpy").run(None, [-1, -2], example).tolist() == [2, 4]


def test_a_plain_function_may_return_what_gather_does():
    async def one(fold, x):
        return await fold.value(fold.add(abs, x))

    got = Fold(backend="numpy").run(None, [-1, -2], lambda fold, x: fold.gather(one(fold, x), one(fold, 5)))
    assert got.tolist() == [1, 5, 2, 5]


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


def test_an_exception_that_takes_no_note_is_not_lost():
    class Frozen(Exception):
        def add_note(self, note):
            raise TypeError("frozen")

    def example(fold, x):
        if x:
            raise Frozen
        return fold.add(abs, x)

    results, failures = Fold(backend="numpy").run(None, [0, 1], example, on_error="collect")
    assert (results.tolist(), [type(error) for error in failures.values()]) == ([0], [Frozen])


UNFIT = {
    "structure": lambda fold, x: (fold.add(abs, x),) if x == 1 else fold.add(abs, x),
    "shape": lambda fold, x: fold.add(lambda x: np.stack([x, x], 1), x) if x == 1 else fold.add(abs, x),
    "number": lambda fold, x: 0.5 if x == 1 else fold.add(abs, x),
    "rows": lambda fold, x: fold.add(lambda x: np.ones(3), x) if x == 1 else fold.add(abs, x),
    "no result": lambda fold, x: "text" if x == 1 else fold.add(abs, x),
}


@pytest.mark.parametrize("recorder", [Fold, Unfold])
@pytest.mark.parametrize("example", UNFIT.values(), ids=UNFIT)
def test_a_result_that_does_not_fit_is_that_examples_failure(recorder, example):
    def numbered(fold, x):
        return {"y": example(fold, x), "x": x}

    results, failures = recorder(backend="numpy").run(None, [0, 1, 2, 3], numbered, on_error="collect")
    assert {name: y.tolist() for name, y in results.items()} == {"y": [0, 2, 3], "x": [0, 2, 3]}
    assert list(failures) == [1]


def test_the_first_example_with_rows_says_of_what_kind_they_are():
    def example(fold, x):
        return [fold.add("wide", np.ones((1, x))) for _ in range(min(x, 1))]

    got, failures = Fold(backend="numpy").run(
        {"wide": np.negative}, [0, 2, 3, 2], example, on_error="collect"
    )
    assert (got.tolist(), list(failures)) == ([[-1, -1]] * 2, [2])


@pytest.mark.parametrize("part", [lambda n: n["b"], lambda n: n["missing"]])
def test_a_part_that_holds_nothing_is_its_examples_failure(part):
    def halves(x):
        return {"a": x, "b": None}

    def example(fold, x):
        node = fold.add(halves, x)
        return part(node) if x == 1 else node["a"]

    got, failures = Fold(backend="numpy").run(None, [0, 1, 2], example, on_error="collect")
    assert (got.tolist(), list(failures)) == ([0, 2], [1])
    message = r"The result of <node 0 of .*halves>, recorded at .*test_await.py:\d+, h.* part"
    assert re.match(message, str(failures[1]))


def test_a_result_that_does_not_fit_fails_beside_one_that_is_read_whole():
    def example(fold, x):
        whole = fold.add("total", shared(np.full(3, x))).no_batch()
        return whole, [fold.add(abs, x)] * x, fold.add(abs, np.ones((1, 2 + (x == 1))))

    fold = Fold(backend="numpy")
    results, failures = fold.run({"total": np.sum}, range(3), example, on_error="collect")
    assert list(failures) == [1]
    assert (results[0], results[1].tolist(), results[2].tolist()) == ([0, 6], [2, 2], [[1, 1]] * 2)


@pytest.mark.parametrize("recorder", [Fold, Unfold])
def test_an_array_among_the_results_is_that_of_its_example(recorder):
    buffer = np.zeros((1, 1))

    def example(fold, x):
        buffer[:] = x
        return fold.add(abs, x), buffer

    got = recorder(backend="numpy").run(None, [1, 2, 3], example)
    assert [x.ravel().tolist() for x in got] == [[1, 2, 3]] * 2


def test_the_twin_collects_what_the_fold_collects():
    def rows(x):
        return np.ones(len(x) + int((x == 1).any()))

    async def example(fold, x):
        await fold.value(fold.add(rows, x))
        return "text" if x == 2 else x

    for recorder in (Fold, Unfold):
        results, failures = recorder(backend="numpy").run(None, [0, 1, 2], example, on_error="collect")
        assert (results.tolist(), sorted(failures)) == ([0], [1, 2])


def test_examples_that_compute_nothing_are_put_together():
    async def example(fold, x):
        return {"x": x, "half": x / 2}

    for collect in ("raise", "collect"):
        got = Fold(backend="numpy").run(None, [1, 2], example, on_error=collect)
        got = got[0] if collect == "collect" else got
        assert {name: x.tolist() for name, x in got.items()} == {"x": [1, 2], "half": [0.5, 1.0]}


# ---- blocks -------------------------------------------------------------------------------------------


def test_a_row_of_several_calls_stays_whole_when_small_blocks_are_put_together():
    async def example(fold, x):
        three, four = (fold.add("const", multifold.static(k)) for k in (3, 4))
        await fold.values([three, four])
        if not x:
            return 0
        got = await fold.values([three.no_batch(), four.no_batch()])
        assert [whole.tolist() for whole in got] == [[3], [4]]
        return 1

    model = {"const": lambda k: np.full((1,), float(k))}
    assert Fold(backend="numpy").run(model, [0, 1], example).tolist() == [0, 1]


def test_what_is_read_whole_is_never_padded():
    backend = Counting("numpy")
    backend.pads, backend.padded_rows = True, lambda rows: -(-rows // 8) * 8

    async def example(fold, x):
        return fold.add(lambda x, t: x + t.sum(), 1.0, fold.add(abs, x).no_batch())

    assert Fold(backend=backend).run(None, [5.0], example).tolist() == [6]


def test_large_results_are_dropped_long_before_there_are_many_calls(monkeypatch):
    monkeypatch.setattr(store, "HEAVY", 1000)
    made = []

    def step(x):
        rows = np.tile(x[:, :1] + 1, (1, 100))
        made.append(weakref.ref(rows))
        return rows, rows[:, 0].copy()

    most = 0

    async def example(fold, x):
        nonlocal most
        for _ in range(100):
            x, score = fold.add(step, x).split(2)
            await fold.value(score)
            most = max(most, sum(rows() is not None for rows in made))
        return score

    assert Fold(backend="numpy").run(None, [np.zeros((1, 1))], example).tolist() == [100]
    assert most < 40


def test_large_results_are_dropped_where_calls_were_recorded_before_the_run(monkeypatch):
    monkeypatch.setattr(store, "HEAVY", 1000)
    made, alive = [], []

    def step(x):
        rows = np.tile(x[:, :1] + 1, (1, 100))
        made.append(weakref.ref(rows))
        return rows

    async def example(fold, x):
        for _ in range(100):
            x = fold.add(step, x)
            await fold.value(x)
            alive.append(sum(rows() is not None for rows in made))
        return x

    fold = Fold(backend="numpy")
    fold.add(step, np.zeros((1, 1)))
    assert fold.run(None, [np.zeros((1, 1))], example)[0, 0] == 100
    assert max(alive) < 40


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


@pytest.mark.parametrize("examples", [[1.0], [1.0, 2.0]], ids=["one", "two"])
def test_a_result_of_a_users_class_is_plain_in_later_rounds(examples):
    """For one example as for many: an op gets a dict, whichever subclass another op returned."""

    class Answer(dict):
        pass

    seen = []

    async def fn(fold, x):
        both = fold.add(lambda x: Answer(a=x, b=x + 1), np.full((1, 1), x))
        await fold.value(both["a"])
        return fold.add(lambda whole: seen.append(type(whole)) or whole["b"], both)

    Fold(backend="numpy").run(None, examples, fn)
    assert set(seen) == {dict}


def test_failures_of_results_that_fit_nobody_are_collected_one_by_one():
    """Example 1 fails in its last op; example 2, after it, returns rows that fit no other."""

    def picky(x):
        if (x == 1).any():
            raise ValueError("one")
        return x

    async def fn(fold, n):
        await fold.value(fold.add(abs, float(n)))
        width = 2 if n == 2 else 1
        return fold.add(picky, np.full((1, width), float(n)))

    results, failures = Fold(backend="numpy").run(None, range(4), fn, on_error="collect")
    assert results.tolist() == [[0.0], [3.0]]
    assert sorted(failures) == [1, 2]
    assert "one" in str(failures[1]) and "rows of a group" in str(failures[2])


@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_what_an_example_returns_amiss_is_noted_with_its_number(on_error):
    async def fn(fold, n):
        node = fold.add(abs, float(n))
        return [node] if n < 2 else ["no node"]

    fold = Fold(backend="numpy")
    if on_error == "raise":
        with pytest.raises(RecordError) as caught:
            fold.run(None, range(3), fn)
        error = caught.value
    else:
        _, failures = fold.run(None, range(3), fn, on_error="collect")
        (error,) = failures.values()
    noted = [note for note in error.__notes__ if "example" in note]
    raised = ["Raised by example 2 of fold.run."] if on_error == "collect" else []
    assert noted == ["Returned by example 2 of fold.run.", *raised]


def test_a_report_names_the_part_that_was_waited_for():
    async def fn(fold, x):
        scores = fold.add(lambda x: {"left": (x, x + 1), "right": x}, x)
        await fold.values([scores["left"][1], scores["right"]])
        return scores["right"]

    fold = Fold(backend="numpy")
    fold.run(None, [1.0], fn)
    (wait,) = fold.explain().waits[0]
    assert [text.partition("[")[2] for text in wait[1]] == ["'left'][1]", "'right']"]


def test_a_deep_result_is_looked_through_once():
    """Were each list compared with all around it, 100,000 of them would take hours."""
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep, deep]

    async def returns(fold, x):
        return deep

    async def awaits(fold, x):
        return await fold.values(deep)

    with pytest.raises(RecursionError):
        Fold(backend="numpy").run(None, [1.0], returns)
    with pytest.raises(RecordError, match="nests deeper than Python's recursion limit"):
        Fold(backend="numpy").run(None, [1.0], awaits)
    with pytest.raises(RecursionError):
        Fold(backend="numpy").apply(None, deep)


def test_nothing_is_dropped_while_the_collector_is_frozen(monkeypatch):
    monkeypatch.setattr(store, "MANY", 4)

    async def example(fold, x):
        first = node = fold.add(abs, x)
        for _ in range(10):
            await fold.value(node)
            gc.freeze()
            node = fold.add(abs, node)
        return fold.add(np.add, first, node)

    try:
        assert Fold(backend="numpy").run(None, [1, 2], example).tolist() == [2, 4]
    finally:
        gc.unfreeze()


def test_blocks_are_dropped_although_other_objects_are_frozen(monkeypatch):
    monkeypatch.setattr(store, "MANY", 4)
    made, most = [], 0

    def step(x):
        rows = x + 1
        made.append(weakref.ref(rows))
        return rows

    async def example(fold, x):
        nonlocal most
        for _ in range(40):
            x = fold.add(step, x)
            await fold.value(x)
            most = max(most, sum(rows() is not None for rows in made))
        return x

    gc.freeze()
    try:
        assert Fold(backend="numpy").run(None, [1, 2], example).tolist() == [41, 42]
    finally:
        gc.unfreeze()
    assert most < 20


def test_the_collector_rests_while_it_is_asked_for_nodes(monkeypatch):
    seen = []
    monkeypatch.setattr(held_nodes.gc, "get_referrers", lambda graph: seen.append(gc.isenabled()) or [])
    assert held_nodes.HeldNodes(Fold(backend="numpy")._graph).calls().tolist() == []
    assert (seen, gc.isenabled()) == ([False], True)


def test_a_fold_that_merges_calls_keeps_what_was_recorded_behind_a_run():
    fold = Fold(backend="numpy", cse=True)
    fold.run(None, [1, 2], lambda fold, x: fold.add(abs, x))
    node = fold.add(abs, 1)
    assert fold.run(None, [3], lambda fold, x: fold.add(lambda x, y: x + y, node, x)).tolist() == [4]


# ---- examples do not disturb each other --------------------------------------------------------------

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


# ---- launches that fail ------------------------------------------------------------------------------


def careful(threes):
    """Return an op that refuses 3, and a function that goes on behind it."""

    def op(x):
        if (np.asarray(x) == 3).any():
            raise ValueError("three")
        return x

    async def fn(fold, x):
        try:
            await fold.value(fold.add("op", x))
        except LaunchError:
            threes.append(x)
            return fold.add("same", -1)
        return fold.add("same", x)

    return {"op": op, "same": lambda x: x}, fn


@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_a_launch_that_fails_raises_where_its_value_is_awaited(on_error):
    threes: list[int] = []
    ops, fn = careful(threes)
    got = Fold(backend="numpy").run(ops, [1, 3, 2, 3], fn, on_error=on_error)
    got = got if on_error == "raise" else got[0]
    assert got.tolist() == [1, -1, 2, -1] and threes == [3, 3]
    twin = Unfold(ops).run(None, [1, 3, 2, 3], fn)
    np.testing.assert_array_equal(got, twin)


def test_a_launch_that_fails_names_the_example_that_waits_for_it():
    ops, _ = careful([])

    async def fn(fold, x):
        return await fold.value(fold.add("op", x))

    with pytest.raises(LaunchError, match="three") as caught:
        Fold(backend="numpy").run(ops, [1, 2, 3], fn)
    assert caught.value.__notes__ == ["Raised by example 2 of fold.run."]
    assert any(frame.name == "fn" for frame in caught.traceback)


def test_an_op_that_fails_on_batches_only_ends_the_run():
    async def fn(fold, x):
        return await fold.value(fold.add("mean", x))

    calls: list[int] = []
    ops = {"mean": lambda x: calls.append(len(x)) or x.mean(keepdims=True)}
    with pytest.raises(LaunchError, match="1 row for 2 rows") as caught:
        Fold(backend="numpy").run(ops, [1.0, 2.0, 4.0, 5.0], fn)
    assert caught.value.__notes__ == ["Awaited by examples 0, 1 of fold.run."]
    assert calls == [4, 2, 1, 1]  # and no more: the first pair says enough


def test_an_error_of_a_batch_names_ten_of_its_examples():
    async def fn(fold, x):
        return await fold.value(fold.add("last", x))

    ops = {"last": lambda x: x[:-1] if len(x) > 6 else x}
    with pytest.raises(LaunchError) as caught:
        Fold(backend="numpy").run(ops, [float(i) for i in range(12)], fn)
    assert caught.value.__notes__ == ["Awaited by examples 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 of fold.run."]


def test_results_are_numbers_and_nodes_beside_numbers_that_ops_read():
    def fn(fold, x):
        total = fold.add("total", ragged([x, 10.0]))
        return total, x + 0.5

    model = {"total": lambda r: r.values.reshape(-1, 2).sum(1)}
    assert [x.tolist() for x in Fold(backend="numpy").run(model, [1.0, 2.0], fn)] == [[11, 12], [1.5, 2.5]]


def test_a_table_of_calls_keeps_its_signatures_until_there_are_more():
    fold = Fold()
    table = CallTable(fold._graph)
    kept = []
    for op in "ffg":
        fold.add(op, 1.0)
        table.extend()
        kept.append(table._signatures)
    assert kept[0] is kept[1] and len(kept[2]) == 2 * len(kept[1]) == 4


@pytest.fixture
def table():
    """A table of three calls and of three more that read one of these each; call 4 reads another result."""
    fold = Fold()
    for node in [fold.add("leaf", float(i)) for i in range(3)]:
        fold.add("read", node)
    table = CallTable(fold._graph)
    table.extend()
    table.store(np.array([0, 2]), 1, np.array([5, 6]))
    table.store(np.array([1]), 2, np.array([7]))
    return table


def test_who_waits_behind_one_whose_calls_have_not_run_has_its_own_rows(table):
    groups, sources, which, rows = table.arrived(np.array([0, 3, 2, 1]), [2, 2])
    assert (groups, sources.tolist(), which.tolist(), rows.tolist()) == ([1], [1, 2], [0, 1], [6, 7])


def test_calls_of_a_launch_are_grouped_by_what_they_read_and_keep_their_rows(table):
    calls, rows, groups = table.launch_rows(np.array([3, 4, 5]), [(3, 1, 3)], np.array([8, 0, 9]))
    assert (calls.tolist(), rows.tolist()) == ([3, 5, 4], [5, 6, 7, 8, 0, 9])
    assert groups == [((1, 2), [0, 2, 3])] and table.row[calls].tolist() == [8, 0, 9]


def test_what_siblings_of_siblings_wait_for_is_not_run_when_one_of_them_fails(counting, model):
    async def deep(fold, n):
        node = fold.add("leaf", n)
        for _ in range(5):
            await fold.value(node)
            node = fold.add("double", node)

    async def fails(fold):
        await fold.value(fold.add("leaf", 1))
        raise KeyError("no")

    async def both(fold, n):
        await fold.gather(deep(fold, n), deep(fold, n + 1))

    async def fn(fold, n):
        try:
            await fold.gather(fails(fold), both(fold, n))
        except KeyError:
            return fold.add("leaf", n)

    Fold(backend=counting).run(model, [1, 2], fn)
    assert counting.counts["call"] == 2


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


def test_to_wait_for_nothing_takes_no_round():
    async def fn(fold, n):
        assert (await fold.gather(), await fold.values([]), await fold.values({})) == ([], [], {})
        return n

    fold = Fold(backend="numpy")
    assert fold.run(None, [1, 2], fn).tolist() == [1, 2]
    assert len(fold.explain().rounds) == 1


def test_an_example_goes_on_after_a_launch_that_failed():
    async def child(fold, n):
        return await fold.value(fold.add("same", n))

    async def fn(fold, n):
        try:
            await fold.value(fold.add("fails", n))
        except LaunchError:
            return sum(await fold.gather(child(fold, n), child(fold, 2 * n)))

    def fails(x):
        raise ValueError("no")

    assert Fold(backend="numpy").run({"same": lambda x: x, "fails": fails}, [1, 2], fn).tolist() == [3, 6]


def test_a_coroutine_that_has_returned_is_free_while_others_go_on():
    finished = []

    async def work(fold, n):
        for _ in range(n):
            await fold.value(fold.add(abs, n))
            alive.append([coroutine() is not None for coroutine in finished])
        return n

    def start(fold, n):
        coroutine = work(fold, n)
        finished.append(weakref.ref(coroutine))
        return coroutine

    alive = []
    assert Fold(backend="numpy").run(None, [1, 4], start).tolist() == [1, 4]
    assert alive[-1] == [False, True]


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


@pytest.mark.parametrize("recorder", [Fold, Unfold])
@pytest.mark.parametrize("arguments", [(abs, [1, 2]), (abs, "text"), (3, "text")], ids=str)
def test_examples_come_before_the_function(recorder, arguments):
    with pytest.raises(RecordError, match=r"(?s)Expected examples and a function.*the examples come first"):
        recorder(backend="numpy").run(None, *arguments)


def test_a_join_is_awaited_once():
    async def child(fold):
        return await fold.value(fold.add("same", 1))

    async def fn(fold, n):
        both = fold.gather(child(fold))
        return await fold.gather(both, both)

    with pytest.raises(RecordError, match="awaited once"):
        Fold(backend="numpy").run({"same": lambda x: x}, [1], fn)


# ---- results -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("result", [(None,), ()])
def test_a_result_without_arrays_is_awaited_too(result):
    async def fn(fold, n):
        assert await fold.value(fold.add("nothing", n)) == result
        return n

    ops = {"nothing": lambda x: result}
    assert Fold(backend="numpy").run(ops, [1, 2], fn).tolist() == Unfold(ops).run(None, [1, 2], fn).tolist()


@pytest.mark.parametrize("traced", [False, True])
def test_a_row_of_one_example_and_a_group_of_another_are_not_put_together(traced):
    def fn(fold, n):
        node = fold.add("same", n)
        return node if n == 0 else [node, node]

    arguments = ([multifold.trace(fn, n) for n in (0, 1)],) if traced else ([0, 1], fn)
    with pytest.raises(RecordError, match=r"one structure.*a row.*a group"):
        Fold(backend="numpy").run({"same": lambda x: x}, *arguments)


def test_rows_beside_whole_results_are_named_where_another_example_returns_something_else():
    def fn(fold, n):
        node = fold.add("same", n)
        return [node.no_batch(), node] if n else node

    with pytest.raises(RecordError, match=r"\[a whole, a row\]"):
        Fold(backend="numpy").run({"same": lambda x: x}, [multifold.trace(fn, n) for n in (0, 1)])


def test_failures_are_collected_of_functions_and_not_of_traces():
    traces = [multifold.trace(lambda fold, n: fold.add("same", n), n) for n in (1, 2)]
    with pytest.raises(RecordError, match="Expected a function with on_error='collect'"):
        Fold(backend="numpy").run({"same": lambda x: x}, traces, on_error="collect")


def test_numbers_in_ragged_operands_and_in_results_of_one_run_stay_apart():
    async def example(fold, x):
        y = fold.add("total", ragged([fold.add("double", x), 0.5]))
        await fold.value(y)
        return {"y": fold.add("total", ragged([y, 0.25])), "label": 7.0 + x}

    model = {
        "double": lambda x: 2 * x,
        "total": lambda rows: np.bincount(rows.segment_ids, rows.values, len(rows.lengths)),
    }
    got = Fold(backend="numpy").run(model, [1.0, 2.0], example)
    assert got["y"].tolist() == [2.75, 4.75] and got["label"].tolist() == [8.0, 9.0]


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


def test_what_was_awaited_once_is_refused_with_a_hint():
    async def child():
        return 1

    async def parse(fold, x):
        request = fold.gather(child())
        await request
        await request

    with pytest.raises(RecordError, match="Received it a second time") as error:
        Fold(backend="numpy").run({}, [1.0], parse)
    assert error.value.hint.startswith("keep what `await` returned")


def test_values_of_none_are_refused_not_left_out():
    async def parse(fold, x):
        await fold.values([fold.add("double", x), None])

    with pytest.raises(RecordError, match=r"value can be awaited. Received a NoneType"):
        Fold(backend="numpy").run({"double": lambda x: 2 * x}, [1.0], parse)
