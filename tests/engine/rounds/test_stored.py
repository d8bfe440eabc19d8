"""What is copied and kept over many rounds: blocks, pages, and results that nobody can ask for any more."""

from __future__ import annotations

import copy
import gc
import weakref

import numpy as np
import pytest
from awaits import grow

import multifold
from multifold import Fold, LaunchError, RecordError, Unfold, shared
from multifold._engine.rounds import pages, store
from multifold._engine.rounds.calls import CallTable
from multifold._engine.rounds.rounds import Rounds
from multifold._engine.rounds.store import Store
from multifold.testing import Counting


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
def planned(monkeypatch):
    """Have each round run by a plan."""
    monkeypatch.setattr(Rounds, "launches", lambda self, loop, calls: (calls, None))


@pytest.fixture
def tallest(monkeypatch, planned):
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


def test_rows_of_a_whole_result_are_counted_before_they_are_read(backend, model, seam):
    async def fn(fold, n):
        node = fold.add("stack", fold.add("leaf", n), fold.add("leaf", n))
        await fold.value(node.no_batch())
        return fold.add("double", node)

    model["stack"] = lambda x, y: seam.concat([x, y])
    with pytest.raises(LaunchError, match="has 2 rows, where one row a node is read"):
        Fold(backend=backend).run(model, [1, 2], fn)


def test_what_a_store_holds_is_what_its_results_hold(backend, model, monkeypatch, planned):
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
    add = Store.add

    def watched(known, *arguments):
        add(known, *arguments)
        held.append(len(known.results))

    async def walk(fold, n):
        first = node = fold.add("leaf", n)
        for _ in range(300):
            node = fold.add("add", first, node)
            await fold.value(node)
        return node

    monkeypatch.setattr(Store, "add", watched)
    monkeypatch.setattr(store, "MANY", 100)
    monkeypatch.setattr(store, "TOGETHER", 2)
    assert Fold(backend=backend).run(model, [1, 2], walk)[1][0] == 602
    assert len(held) >= 300 and max(held) < 110


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


@pytest.mark.parametrize("cse", [False, True])
def test_results_are_dropped_without_a_look_at_what_else_is_alive(monkeypatch, cse):
    monkeypatch.setattr(store, "MANY", 4)
    for name in ("get_objects", "get_referrers", "get_referents", "collect"):
        monkeypatch.setattr(gc, name, None)
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

    assert Fold(backend="numpy", cse=cse).run(None, [1, 2], example).tolist() == [41, 42]
    assert most < 20


def test_an_equal_call_whose_result_was_dropped_runs_again(monkeypatch):
    monkeypatch.setattr(store, "MANY", 1)

    async def example(fold, x):
        for _ in range(3):
            await fold.value(fold.add(abs, fold.add("negate", x)))
        return fold.add(abs, fold.add("negate", x))

    assert Fold(backend="numpy", cse=True).run({"negate": np.negative}, [1, 2], example).tolist() == [1, 2]


def test_the_nodes_of_a_call_are_counted():
    fold = Fold(backend="numpy")
    first = fold.add(abs, 1)
    copies = [copy.copy(first), *first.split(2), first.no_batch()]
    other = fold.add(abs, 2)
    assert [*fold._graph.holders] == [5, 1]
    del copies, other
    assert [*fold._graph.holders] == [1, 0]


def test_a_fold_that_merges_calls_keeps_what_was_recorded_behind_a_run():
    fold = Fold(backend="numpy", cse=True)
    fold.run(None, [1, 2], lambda fold, x: fold.add(abs, x))
    node = fold.add(abs, 1)
    assert fold.run(None, [3], lambda fold, x: fold.add(lambda x, y: x + y, node, x)).tolist() == [4]


def test_a_table_of_calls_keeps_its_signatures_until_there_are_more():
    fold = Fold()
    table = CallTable(fold._graph)
    kept = []
    for op in "ffg":
        fold.add(op, 1.0)
        table.extend()
        table.columns(table.select(np.array([0])))
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
    calls, rows, sources, begins = table.launch_rows(np.array([3, 4, 5]), 1)
    assert (calls.tolist(), rows.tolist()) == ([3, 5, 4], [5, 6, 7])
    assert (sources, begins) == ((1, 2), [0, 2, 3])


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
