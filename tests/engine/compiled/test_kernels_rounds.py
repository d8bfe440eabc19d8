"""Compiled tables of rounds, and the tasks that wait in them, do what their references do."""

from __future__ import annotations

from collections import Counter
from contextvars import copy_context
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_references import random_fold, rounds, tasks

from multifold import Fold, ragged
from multifold._engine import compiled
from multifold._engine.record.kinds import COLUMNS
from multifold._engine.record.node import Node, SharedNode

pytestmark = pytest.mark.skipif(not compiled.in_use, reason=compiled.state())


def widths_of(fold):
    """Return how many entries a call of each signature has in each column."""
    return np.array([[getattr(one, name) for name in COLUMNS] for one in fold._graph.signatures], np.int64)


def all_of(table, read, signatures):
    """Return all that a table says of the calls of a round."""
    found = table.window(read, signatures)
    given = found[0][: found[1]]
    calls = found[0][found[1] :]
    entries = [table.at(column, calls) for column in range(len(COLUMNS))]
    placed = table.place(given, len(found[0]))
    return [*found, *entries, *placed, table.renumbered(np.append(found[0], -1)), table.result, table.row]


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_the_calls_of_a_round_are_selected_alike(data):
    fold = random_fold(data)
    tables = [module.TableBase(fold._graph) for module in (compiled, rounds)]
    for number in range(1, 5):
        read = np.array(data.draw(st.lists(st.integers(0, len(fold) - 1), max_size=5)), np.int64)
        for table in tables:
            table.grow(widths_of(fold))
        found = [all_of(table, read, len(fold._graph.signatures)) for table in tables]
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)
        kept, given, *_ = found[0]
        for table in tables:
            table.store(kept[given:], number, np.arange(len(kept) - given)[::-1].copy())
        for _ in range(data.draw(st.integers(0, 70))):  # more than a new table has room for
            fold.add("later", Node(fold._graph, len(fold) - 1), 1, ragged([Node(fold._graph, 0), 2.5]))


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_rounds_are_cut_out_alike(data):
    fold = random_fold(data)
    tables = [module.TableBase(fold._graph) for module in (compiled, rounds)]
    for table in tables:
        table.grow(widths_of(fold))
    for number in range(1, 5):
        read = np.array(data.draw(st.lists(st.integers(0, len(fold) - 1), max_size=5)), np.int64)
        found = []
        for table in tables:
            kept, first, *columns = table.window(read, len(fold._graph.signatures))
            place = table.place(kept[:first], len(kept))
            found.append(repr((kept, first, columns, place, table.renumbered(read))))
            table.store(kept[first:], number, np.arange(len(kept) - first))
        assert found[0] == found[1]


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_the_next_calls_and_their_rows_are_found_alike(data):
    fold = random_fold(data)
    tables = [module.TableBase(fold._graph) for module in (compiled, rounds)]
    read = np.array(data.draw(st.lists(st.integers(0, len(fold) - 1), min_size=1, max_size=5)), np.int64)
    rank = np.array(data.draw(st.permutations(range(len(fold._graph.signatures)))), np.int64)
    for table in tables:
        table.grow(widths_of(fold))
    for number in range(1, len(fold) + 2):  # each round runs something until all has run
        found = []
        for table in tables:
            calls, begins = table.frontier(read, rank, 0)
            found.append([calls, begins])
            counts = np.diff(begins).tolist()
            signatures = np.argsort(rank).tolist()
            told = []
            for signature, own in zip(signatures, np.split(calls, np.cumsum(counts)[:-1]), strict=True):
                told += table.launch_rows(own, fold._graph.signatures[signature].refs)
                table.store(told[-4], number, own)
            both = np.repeat(read, 2) | [0, 1 << 40] * len(read)  # two parts of each
            found[-1] += [
                *table.arrived(both, [2] * len(read)),
                table.result,
                table.row,
                *told,
            ]
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)
    assert not len(found[0][0]) and all((table.result[read] > 0).all() for table in tables)


@pytest.mark.parametrize("module", [compiled, rounds])
def test_the_next_calls_are_found_again_where_the_order_is_not_one_for_them(module):
    fold = Fold()
    fold.add("second", fold.add("first", 1))
    table = module.TableBase(fold._graph)
    table.grow(widths_of(fold))
    first = np.array([0])
    second = np.array([1])
    assert table.frontier(second, np.array([0, 1]), 1) is not None
    assert table.frontier(first, np.array([0, 1]), 1) is None  # it is awaited, and is not among the last
    assert table.frontier(second, np.array([0]), 0) is None  # it has no place in the order
    assert table.frontier(second, np.array([], np.int64), 0) is None


@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.data())
def test_awaited_rows_are_located_alike(launch, data):
    row = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(launch), max_size=len(launch))))
    launch = np.array(launch)
    rows = data.draw(st.lists(st.integers(1, 9), min_size=13, max_size=13))
    refs = np.array(data.draw(st.lists(st.integers(0, len(launch) - 1), max_size=50)), np.int64)
    refs |= (
        np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(refs), max_size=len(refs))), int) << 40
    )
    found = [module.located(refs, launch, row, rows) for module in (compiled, tasks)]
    assert [(x[0], x[1].tolist(), x[2].tolist(), bool(x[3])) for x in found[:1]] == [
        (x[0], x[1].tolist(), x[2].tolist(), bool(x[3])) for x in found[1:]
    ]


@pytest.mark.parametrize("module", [compiled, tasks])
def test_rows_that_are_all_of_a_result_in_order_are_straight(module):
    place = np.array([0, 1, 1, 1]), np.array([0, 0, 1, 2]), [1, 3]
    for read, straight in (
        ([1, 2, 3], True),
        ([1, 2], False),
        ([2, 1, 3], False),
        ([0], True),
        ([0, 1], False),
    ):
        assert module.located(np.array(read), *place)[-1] == straight


@given(st.lists(st.integers(-3, 40), max_size=90) | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9))
def test_distinct_integers_are_those_that_numpy_finds(values):
    values = np.array(values, np.int64)
    expected = np.unique(values, return_inverse=True, return_counts=True)
    for one, other in zip(compiled.distinct(values), expected, strict=True):
        np.testing.assert_array_equal(one, other)


class Result:
    """Stands for a node."""


class Awaited:
    """What hands anything to the tasks that it is awaited in."""

    def __init__(self, x):
        self.x = x

    def __await__(self):
        return (yield self.x)


GRAPH = SimpleNamespace(node_type=Result, signature=[0])


async def steps(*awaited, then=None):
    """Await what is given, then raise an exception, or return anything else."""
    found = [await Awaited(x) for x in awaited]
    if isinstance(then, Exception):
        raise then
    return found if then is None else then


def tasks_of(module, *coroutines, context=bool):
    """Return the tasks of some examples, and a list of them."""
    found = module.TasksBase(GRAPH, context)
    made = [module.TaskBase(example, x, copy_context()) for example, x in enumerate(coroutines)]
    for task in made:
        found.open_task(task)
    return found, made


def request(module, *nodes):
    """Return what a task awaits: the values of some nodes of `GRAPH`."""
    return module.RequestBase(SimpleNamespace(_graph=GRAPH), [*nodes], None)


MODULES = pytest.mark.parametrize("module", [compiled, tasks])


ENDS = {
    "raises": (None, KeyError(), KeyError),
    "returns": (None, 3, StopIteration),
    "awaits a number": (7, None, type(None)),
    "awaits no values": ((), None, type(None)),
}
"""What a task awaits, what it raises or returns then, and the class of the error that is reported."""


@MODULES
@pytest.mark.parametrize(("awaited", "then", "error"), ENDS.values(), ids=ENDS)
def test_tasks_run_until_one_does_not_wait_for_values(module, awaited, then, error):
    awaited = request(module) if awaited == () else awaited
    other = steps(then=then) if awaited is None else steps(awaited)
    wanted = [request(module, Result()) for _ in range(2)]
    all_tasks, made = tasks_of(module, steps(wanted[0]), other, steps(wanted[1]))
    all_tasks.owners = module.Owners(GRAPH, 8)
    found = all_tasks.run_ready()
    assert found[:2] == (made[1], awaited) and isinstance(found[2], error)
    assert all_tasks.waiting() == [(made[0], wanted[0].nodes)]
    assert all_tasks.owners.of_calls.tolist() == [0]  # the first that ran has recorded all
    assert all_tasks.run_ready() is None and len(all_tasks.waiting()) == 2


@MODULES
def test_a_task_that_returns_a_node_is_done(module):
    all_tasks, _ = tasks_of(module, steps(then=Result()))
    assert all_tasks.run_ready() is None
    assert not all_tasks.waiting() and type(all_tasks.results[0]) is Result


@MODULES
def test_tasks_go_on_with_their_values_or_with_an_error(module):
    all_tasks, made = tasks_of(module, *[steps(request(module, Result())) for _ in range(3)])
    assert all_tasks.run_ready() is None
    all_tasks.answer(made[:2], [(5,), "six"])
    all_tasks.go_on(made[2], KeyError("seven"), raises=True)
    assert not all_tasks.waiting()
    one, two, three = [all_tasks.run_ready()[2] for _ in made]
    assert (one.value, two.value, repr(three)) == ([(5,)], ["six"], "KeyError('seven')")


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 80), st.booleans()), max_size=20))
def test_calls_have_the_owners_that_recorded_them(steps):
    graph = SimpleNamespace(signature=np.zeros(0, np.int64))
    both = [x.Owners(graph, 5) for x in (compiled, tasks)]
    expected = []
    ended = set()
    total = Counter()
    for example, count, ends in steps:
        expected += [example] * count
        graph.signature = np.append(graph.signature, np.arange(count))
        total[example] += count * (example not in ended)
        for owners in both:
            owners.note(example)
            if ends:
                assert owners.end(example) == total[example]
        if ends:
            ended.add(example)
            del total[example]
        for owners in both:
            assert owners.of_calls.tolist() == expected
            assert owners.total == total.total()
            assert owners.load == sum(min(count, 5) for count in total.values())


@MODULES
def test_a_task_that_leaves_a_with_open_does_not_wait(module):
    modes = iter([1, 2])
    one = steps(request(module, Result()))
    all_tasks, made = tasks_of(module, one, context=lambda: next(modes))
    task, awaited, error = all_tasks.run_ready()
    assert task is made[0] and type(awaited) is module.RequestBase and error is None


@given(st.lists(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=4), max_size=5))
def test_what_tasks_wait_for_is_found_alike(asked):
    fold = Fold()
    nodes = [[SharedNode(fold._graph, r) if x else Node(fold._graph, r) for r, x in one] for one in asked]
    waiting = [(SimpleNamespace(example=example), one) for example, one in enumerate(nodes)]
    found = [module.awaited(waiting, SharedNode) for module in (compiled, tasks)]
    assert [[list(column) for column in one] for one in found[:1]] == [
        [list(column) for column in one] for one in found[1:]
    ]
    assert found[0][0].dtype == found[0][1].dtype == np.int64


@pytest.mark.parametrize("damaged", ["refs", "widths", "awaited", "members"])
def test_a_round_of_calls_that_are_not_there_is_refused(damaged):
    fold = Fold()
    fold.add("next", fold.add("first", 1), ragged([fold.add("other")]))
    table = compiled.TableBase(fold._graph)
    widths = widths_of(fold)
    if damaged in ("refs", "members"):
        getattr(fold._graph, damaged)[0] = 9
    if damaged == "widths":
        widths[2, 0] = 5
    table.grow(widths)
    with pytest.raises(IndexError, match="what is not there"):
        table.window(np.array([7 if damaged == "awaited" else 2]), 3)
    for call in (-1, 3):
        for refused in (
            lambda call=call: table.at(0, np.array([call])),
            lambda call=call: table.place(np.array([call]), 1),
            lambda call=call: table.store(np.array([call]), 1, np.array([0])),
        ):
            with pytest.raises(IndexError, match="what is not there"):
                refused()
    with pytest.raises(IndexError, match="what is not there"):
        table.renumbered(np.array([3]))
