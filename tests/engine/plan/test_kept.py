"""What a fold keeps from one minibatch to the next: forms of calls, and plans of small minibatches.

What is kept saves time and must change nothing else. So most tests here compare a fold that has run
minibatches before with a new one: their launches, the order of their rows, their values.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import numpy as np
import pytest

from multifold import Fold, LaunchError, ragged, shared, static
from multifold._engine.plan import plan as planning
from multifold._engine.record import shared_arrays

MODEL = {
    "leaf": lambda x: x * 2.0,
    "add": lambda a, b: a + b,
    "scale": lambda x, k, *, by=1: x * k * by,
    "total": lambda rows: np.array(
        [part.sum() for part in np.split(rows.values, rows.lengths.cumsum()[:-1])]
    ),
    "any": lambda flags, x: np.where(flags, x, 0.0),
    "pair": lambda x: (x + 1.0, x + 2.0),
    "table": lambda i, table: table[i],
    "row": lambda x, y: x[:, 0] + y,
    "both": lambda x, whole: x + whole.sum(),
}


def chain(fold, x=1.0, y=2.0, op="add"):
    """Record two calls, where most tests need no more."""
    return fold.add(op, fold.add("leaf", x), y)


def leaves(fold, count):
    """Record some calls side by side."""
    return [fold.add("leaf", float(i)) for i in range(count)]


def totals(fold, *sizes):
    """Record the totals of so many calls each."""
    nodes = iter(leaves(fold, sum(sizes)))
    return [fold.add("total", ragged([*islice(nodes, size)])) for size in sizes]


def tree(fold, number):
    """Record a tree of `number + 1` leaves that leans to the left."""
    left = fold.add("leaf", float(number))
    return left if number == 0 else fold.add("add", tree(fold, number - 1), left)


PROGRAMS = {
    "numbers": lambda fold, i: chain(fold, i + 0.5, i / 4),
    "ints": lambda fold, i: fold.add("scale", fold.add("leaf", i), i + 2, by=3),
    "bools": lambda fold, i: fold.add("any", i % 2 == 0, fold.add("leaf", i + 0.5)),
    "strings and statics": lambda fold, i: fold.add(lambda x, how, k: x * k, i + 0.5, "how", static(7)),
    "ragged": lambda fold, i: fold.add("total", ragged([i + 0.5, fold.add("leaf", 1.0), 4.0])),
    "said": lambda fold, i: fold.add("total", ragged([i + 0.5], row_shape=())),
    "parts": lambda fold, i: fold.add("add", *fold.add("pair", i + 0.5).split(2)),
    "other parts": lambda fold, i: fold.add("add", *fold.add("pair", i + 0.5).split(2)[::-1]),
    "arrays": lambda fold, i: fold.add("row", np.full((1, 2), i + 0.5), fold.add("leaf", 1.0)),
    "shared": lambda fold, i: fold.add("table", i % 3, shared(np.array([4.0, 5.0, 6.0]) + i)),
    "whole": lambda fold, i: fold.add("both", 0.5, fold.add("leaf", i + 0.5).no_batch()),
    "tree": lambda fold, i: tree(fold, 5),
    "growing": tree,
}


def launches(fold, outputs):
    """Return all that a run would do, as it prints, with numbers and without the arrays of the user."""
    plan = fold._plan(outputs).wired()
    signatures = plan.columns.signatures
    wired = [
        (x.number, signatures[x.signature].name, x.calls, x.slots, x.operands, x.readings, x.last_read)
        for x in plan.wiring.launches
    ]
    rest = plan.wiring.place, plan.wiring.outputs, plan.wiring.sources, plan.wiring.numbers_of(plan.columns)
    return str(plan.schedule), repr((wired, rest, plan.wiring.loose, plan.schedule.calls, plan.alone))


PROCESS = """
import sys
import numpy as np
import multifold

weight = np.random.default_rng(0).normal(size=(8, 8))
model = {
    "leaf": lambda i: weight[i % 8],
    "join": lambda x, y: np.tanh(x @ weight + y),
    "turn": lambda x, y: np.sin(x @ weight - y),
}

def record(fold, i):  # two cells that read each other in any order: a policy has to choose
    x = fold.add("leaf", i)
    for k in range(3 + i % 5):
        x = fold.add("join" if i * k % 3 else "turn", x, fold.add("leaf", k))
    return x

fold, traces = multifold.Fold(backend="numpy"), multifold.traces(record, range(8))
for _ in range(int(sys.argv[1])):
    fold.reset()
    asked = [[record(fold, i) for i in range(8)]]
    results = [*fold.apply(model, asked), fold.run(model, traces)]
print(fold.schedule(asked), *[x.tobytes().hex() for x in results])
"""
"""Runs one minibatch several times; prints its schedule and the bits of its results."""


# ---- warm and cold -----------------------------------------------------------------------------------


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_a_fold_that_has_run_before_does_what_a_new_one_does(program):
    warm = Fold(backend="numpy")
    for i in range(6):
        cold = Fold(backend="numpy")
        warm.reset()
        asked = [[program(warm, i), i / 2]]
        fresh = [[program(cold, i), i / 2]]
        assert launches(warm, asked) == launches(cold, fresh)
        np.testing.assert_array_equal(warm.apply(MODEL, asked)[0], cold.apply(MODEL, fresh)[0])


def test_a_cold_and_a_warm_process_give_the_same_schedule_and_the_same_bits():
    def printed(runs, seed):
        command = [sys.executable, "-c", PROCESS, str(runs)]
        environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    cold = printed(1, seed=1)
    warm = printed(4, seed=2)
    assert cold == warm and "launches of" in cold


def test_signatures_are_numbered_by_their_first_call_whatever_was_recorded_before():
    fold = Fold(backend="numpy")
    fold.add("add", fold.add("leaf", 1.0), 2.0)
    fold.reset()
    fold.add("scale", 1.0, 2.0)
    fold.add("leaf", 1.0)
    assert [signature.op for signature in fold._graph.signatures] == ["scale", "leaf"]


# ---- forms of calls ----------------------------------------------------------------------------------


def test_a_form_is_understood_once():
    fold = Fold(backend="numpy")
    chain(fold)
    known = list(fold._graph.signatures)
    fold.reset()
    chain(fold)
    assert all(x is y for x, y in zip(fold._graph.signatures, known, strict=True))


def test_a_form_that_is_left_out_is_forgotten():
    fold = Fold(backend="numpy")
    chain(fold)
    known = fold._graph.signatures[0]
    for record in (lambda: fold.add("other", 1), lambda: chain(fold)):
        fold.reset()
        record()
    assert fold._graph.signatures[0].key == known.key and fold._graph.signatures[0] is not known


def test_a_second_reset_forgets_nothing():
    fold = Fold(backend="numpy")
    chain(fold)
    known = fold._graph.signatures[0]
    fold.reset()
    fold.reset()
    chain(fold)
    assert fold._graph.signatures[0] is known


def test_a_call_that_was_recalled_says_its_own_line():
    fold = Fold(backend="numpy")
    fold.add("leaf", 1.0)
    fold.reset()
    fold.add("leaf", 1.0)
    assert (
        fold._graph.line(0)[1]
        == test_a_call_that_was_recalled_says_its_own_line.__code__.co_firstlineno + 4
    )


@pytest.mark.parametrize(
    "record",
    [
        lambda fold, held: fold.add(held.op, 1),
        lambda fold, held: fold.add(lambda x, held=held: x, 1),
        lambda fold, held: fold.add(lambda x: held, 1),
        lambda fold, held: fold.add("f", shared(held.array)),
        lambda fold, held: fold.add("f", static(held.make())),
        lambda fold, held: fold.add("f", 1, by=held.make()),
        lambda fold, held: fold.add("f", held.array[None]),
    ],
    ids=["method", "default", "closure", "shared", "static", "keyword", "array"],
)
def test_a_reset_frees_what_a_minibatch_refers_to(record):
    class Held:
        array = np.ones(3)

        def op(self, x):
            return x

        def make(self):
            return lambda x: self

    fold = Fold(backend="numpy")
    for _ in range(3):
        held = Held()
        held.array = np.ones(3)
        gone = weakref.ref(held), weakref.ref(held.array)
        record(fold, held)
        fold.schedule()
        fold.reset()
        del held
        gc.collect()
        assert [x() for x in gone] == [None, None]


def test_what_cannot_be_recorded_is_refused_in_the_same_words_after_a_reset():
    fold = Fold(backend="numpy")
    said = []
    for _ in range(2):
        fold.add("f", np.ones((1, 2)))
        with pytest.raises(ValueError, match="one row") as refused:
            fold.add("f", np.ones((3, 2)))
        said.append(str(refused.value))
        fold.reset()
    assert said[0] == said[1]


def test_equal_calls_are_merged_after_a_reset_too():
    fold = Fold(backend="numpy", cse=True)
    for _ in range(3):
        fold.reset()
        assert chain(fold) == chain(fold) and len(fold) == 2


def test_a_fold_that_was_reset_can_be_pickled_whatever_it_has_recorded():
    fold = Fold(backend="numpy")
    fold.add(lambda x: x, shared(np.zeros(10_000)))
    fold.reset()
    again = pickle.loads(pickle.dumps(fold))
    assert again.apply(MODEL, chain(again)).tolist() == [4.0]


# ---- copies of shared arrays -------------------------------------------------------------------------


@pytest.fixture
def copies(monkeypatch):
    """Return the shared arrays that were copied."""
    copied = []
    copy_of = shared_arrays.read_only_copy
    monkeypatch.setattr(shared_arrays, "read_only_copy", lambda x: copied.append(x) or copy_of(x))
    return copied


def look_up(fold, table):
    """Run a call that reads a row of a table."""
    return fold.run(MODEL, [3], lambda fold, i: fold.add("table", i, shared(table))).tolist()


def test_a_shared_array_is_copied_once_for_each_change(copies):
    fold = Fold(backend="numpy")
    table = np.arange(10_000.0)
    assert [look_up(fold, table) for _ in range(3)] == [[3.0]] * 3
    assert len(copies) == 1
    table[3] = -0.0
    assert str([look_up(fold, table) for _ in range(2)]) == "[[-0.0], [-0.0]]"
    table[3] = 0.0
    assert str([look_up(fold, table) for _ in range(2)]) == "[[0.0], [0.0]]"
    assert len(copies) == 3


@pytest.mark.parametrize(
    "other",
    [
        lambda x: x.astype(np.float32),
        lambda x: x.view(np.int64),
        lambda x: x.reshape(2, -1),
        lambda x: x[::-1],
        lambda x: np.arange(20_000.0)[::2],
        lambda x: x.copy(),
    ],
    ids=["dtype", "view", "shape", "reversed", "strided", "equal"],
)
def test_another_shared_array_is_another_copy(copies, other):
    fold = Fold(backend="numpy")
    table = np.arange(10_000.0)
    for x in (table, other(table)):
        fold.reset()
        fold.add("table", 3, shared(x))
    assert len(copies) == 2


def test_an_array_that_is_not_contiguous_is_copied_in_each_run(copies):
    fold = Fold(backend="numpy")
    table = np.arange(20_000.0)[::2]
    assert [look_up(fold, table) for _ in range(3)] == [[6.0]] * 3
    assert len(copies) == 3


def test_a_copy_is_freed_with_its_array():
    fold = Fold(backend="numpy")
    table = np.arange(10_000.0)
    fold.add("table", 3, shared(table))
    copied = weakref.ref(next(iter(fold._graph.shared.copies.values())))
    fold.reset()
    assert copied() is not None
    del table
    assert copied() is None


def test_a_copy_is_freed_when_no_call_shares_its_array():
    fold = Fold(backend="numpy")
    table = np.arange(10_000.0)
    fold.add("table", 3, shared(table))
    copied = weakref.ref(next(iter(fold._graph.shared.copies.values())))
    for _ in range(2):
        fold.reset()
        chain(fold)
    assert copied() is None


# ---- plans -------------------------------------------------------------------------------------------


def test_a_form_that_is_met_again_has_its_plan_made_once():
    fold = Fold(backend="numpy")
    for i in range(5):
        fold.reset()
        assert fold.apply(MODEL, [[chain(fold, i + 0.5, 1.0)]])[0] == 2 * i + 2.0
    assert (len(fold._plans), fold._plans.hits) == (1, 3)  # the first time only its number is noted


def test_other_ops_have_the_plan_of_the_same_operands():
    fold = Fold(backend="numpy")
    for op in ("add", "scale", "add", "scale"):
        fold.reset()
        fold.apply(MODEL, chain(fold, op=op))
    assert fold._plans.hits == 2


def test_each_difference_that_planning_reads_is_another_plan():
    fold = Fold(backend="numpy")
    recordings = [
        lambda: [[chain(fold)]],
        lambda: [[chain(fold), chain(fold)]],
        lambda: [[chain(fold, 1)]],
        lambda: [[chain(fold), 1.0]],
        lambda: [[chain(fold)], [1.0]],
        lambda: [[chain(fold)], [chain(fold)]],
        lambda: [[fold.add("total", ragged([chain(fold)]))]],
        lambda: [[fold.add("total", ragged([chain(fold), 1.0]))]],
        lambda: [[fold.add("total", ragged([1.0, chain(fold)]))]],
        lambda: chain(fold).no_batch(),
        lambda: [[fold.add("add", *fold.add("pair", 1.0).split(2))]],
        lambda: [[fold.add("add", *[fold.add("pair", 1.0)[1]] * 2)]],
        lambda: [[fold.add("add", *leaves(fold, 2))]],
        lambda: [[fold.add("add", *leaves(fold, 2)[::-1])]],
        lambda: [totals(fold, 1, 2)],
        lambda: [totals(fold, 2, 1)],
    ]
    for record in recordings * 2:
        fold.reset()
        fold.apply(MODEL, record())
    assert (len(fold._plans), fold._plans.hits) == (len(recordings), 0)


@pytest.mark.parametrize(
    "other", [lambda fold: fold.add("leaf", 2.0), lambda fold: fold.add("pair", 3.0)[0]]
)
def test_rows_of_earlier_rounds_that_are_in_other_places_are_another_plan(other):
    async def fn(fold, turned):
        nodes = [fold.add("leaf", 1.0), other(fold)]
        for node in nodes[::-1] if turned else nodes:
            await fold.value(node)
        return tuple(nodes)

    fold = Fold(backend="numpy")
    for turned in (False, False, False, True):
        assert [x.tolist() for x in fold.run(MODEL, [turned], fn)] == [[2.0], [4.0]]


def test_a_value_that_is_awaited_whole_is_another_plan():
    async def fn(fold, whole):
        first, second = leaves(fold, 2)
        found = await fold.values([first.no_batch() if whole else first, second])
        return float(np.size(found[0]))

    fold = Fold(backend="numpy")
    assert [fold.run(MODEL, [whole], fn).tolist() for whole in (False, False, False, True)] == [[1.0]] * 4


def test_plans_are_bounded_and_the_last_ones_stay(monkeypatch):
    monkeypatch.setattr(planning, "MOST_PLANS", 3)
    fold = Fold(backend="numpy")
    for number in (1, 1, 2, 2, 3, 3, 1, 4, 4, 1, 2):  # 2 was used longest ago when 4 is kept
        fold.reset()
        fold.apply(MODEL, tree(fold, number))
    assert (len(fold._plans), fold._plans.hits) == (3, 2)


def test_forms_that_were_met_are_bounded(monkeypatch):
    monkeypatch.setattr(planning, "MOST_FORMS", 2)
    fold = Fold(backend="numpy")
    for number in (1, 2, 3, 1, 1):
        fold.reset()
        fold.apply(MODEL, tree(fold, number))
    assert (len(fold._plans), len(fold._plans._once)) == (1, 2)


def test_large_minibatches_are_planned_anew(monkeypatch):
    monkeypatch.setattr(planning, "MOST_CALLS", 3)
    fold = Fold(backend="numpy")
    for number in (1, 1, 2, 2):  # 3 calls and 5
        fold.reset()
        fold.apply(MODEL, tree(fold, number))
    assert len(fold._plans) == 1


def test_a_kept_plan_is_no_other_plan_in_pieces(monkeypatch):
    fold = Fold(backend="numpy")
    for pieces in (1, 1, 1, 2, 1):
        monkeypatch.setattr(
            type(fold._backend), "pieces", lambda self, rows, device, n=pieces: min(rows, n)
        )
        fold.reset()
        tops = [fold.add("add", fold.add("leaf", float(i)), 1.0) for i in range(4)]
        assert fold.apply(MODEL, [tops])[0].tolist() == [1.0, 3.0, 5.0, 7.0]
        assert len(fold.explain().launches) == (2 if pieces == 1 else 3)


def test_a_kept_plan_whose_rows_differ_is_divided():
    fold = Fold(backend="numpy")
    for width in (2, 3, 2, 5):
        fold.reset()
        rows = [fold.add("leaf", np.ones((1, 2))), fold.add("leaf", np.ones((1, width)))]
        sums = fold.apply({**MODEL, "sum": lambda x: x.sum(axis=1)}, [[fold.add("sum", x) for x in rows]])
        assert sums[0].tolist() == [4.0, 2.0 * width]


def test_the_user_may_write_to_results_of_a_kept_plan():
    fold = Fold(backend="numpy")
    for _ in range(4):
        fold.reset()
        (got,) = fold.apply({"same": lambda x: x}, [[fold.add("same", 1.0), fold.add("same", 2.0)]])
        assert got.tolist() == [1.0, 2.0]
        got += 10


def test_threads_share_kept_plans():
    plans = Fold(backend="numpy")._plans

    def run(seed):
        fold = Fold(backend="numpy")
        fold._plans = plans
        for i in range(50):
            fold.reset()
            assert fold.apply(MODEL, tree(fold, (seed + i) % 5)).tolist() == [
                2.0 * sum(range((seed + i) % 5 + 1))
            ]

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(run, range(4)))
    assert len(plans) == 5


def test_clear_forgets_forms_and_plans():
    fold = Fold(backend="numpy")
    for _ in range(3):
        fold.reset()
        fold.apply(MODEL, chain(fold))
    known = fold._graph.signatures[0]
    fold.clear()
    node = chain(fold)
    assert len(fold._plans) == 0 and fold._graph.signatures[0] is not known
    assert fold.apply(MODEL, node).tolist() == [4.0]


def test_a_copied_fold_begins_without_plans():
    fold = Fold(backend="numpy")
    for _ in range(3):
        fold.reset()
        node = chain(fold)
        fold.apply(MODEL, node)
    other = copy.deepcopy(fold)
    assert len(fold._plans) == 1 and len(other._plans) == 0 and other._plans.policy == "auto"


# ---- kept for explain --------------------------------------------------------------------------------


def test_a_run_with_a_kept_plan_explains_itself_as_the_first_did():
    fold = Fold(backend="numpy")
    said = []
    for i in range(4):
        fold.reset()
        fold.apply(MODEL, [[chain(fold, i + 0.5)]])
        said.append([(launch.op, launch.calls.tolist()) for launch in fold.explain().launches])
        assert list(fold._last[0].notes.seconds()) == ["record", "plan", "wiring", "upload", "gather", "op"]
    assert said == [[("leaf", [0]), ("add", [1])]] * 4


def test_an_op_that_is_missing_is_named_with_its_line_from_a_kept_plan():
    fold = Fold(backend="numpy")
    lines = []
    for _ in range(3):
        fold.reset()
        with pytest.raises(LaunchError, match="has no op 'leaf', recorded at") as error:
            fold.apply({"add": max}, chain(fold))
        lines.append(str(error.value))
    assert len(set(lines)) == 1 and f"test_kept.py:{chain.__code__.co_firstlineno + 2}" in lines[0]


@pytest.mark.parametrize("policy", ["auto", "depth", "agenda", "search"])
def test_each_policy_keeps_its_own_plans(policy):
    fold = Fold(backend="numpy", schedule=policy)
    for _ in range(3):
        fold.reset()
        fold.apply(MODEL, tree(fold, 3))
    assert fold._plans.hits == 1 and fold._plan(tree(fold, 3)).schedule.policy == policy
