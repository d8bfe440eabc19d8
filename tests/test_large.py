"""Graphs of any size: no recursion over them, no cost that grows with the square."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import multifold
from multifold import Fold, Unfold, ragged
from multifold._engine.plan.policies import POLICIES

COUNT = 100_000


def one_more(x):
    return x + 1


@pytest.fixture
def shallow_stack():
    """Leave room for a few frames only, so that a recursion over the graph fails at once."""
    depth = 0
    frame = sys._getframe()
    while frame is not None:
        depth = depth + 1
        frame = frame.f_back
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(depth + 200)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.parametrize("count", [0, 1])
def test_no_call_and_one_call(backend, to_numpy, count):
    fold = Fold(backend=backend)
    nodes = tuple(fold.add(one_more, i) for i in range(count))
    got = to_numpy(fold({"rows": nodes, "labels": [1, 2]}))
    assert [x.tolist() for x in got["rows"]] == [[1]] * count
    assert got["labels"].tolist() == [1, 2]
    assert len(fold) == len(fold.schedule().launches) == count


def test_a_hundred_thousand_calls_are_one_launch(backend, counting, to_numpy):
    fold = Fold(backend=counting)
    nodes = [fold.add(one_more, i) for i in range(COUNT)]
    got = to_numpy(fold([nodes[::-1]])[0])
    assert (got == np.arange(COUNT, 0, -1)).all()
    assert counting.counts["call"] == 1


def test_very_many_rows_run_in_pieces_where_that_is_faster(backend, counting, to_numpy):
    fold = Fold(backend=counting)
    nodes = [fold.add(one_more, fold.add(one_more, i)) for i in range(20_000)]
    got = to_numpy(fold([nodes[::-1]])[0])
    assert (got == np.arange(20_001, 1, -1)).all()
    pieces = {"numpy": 2, "torch": 2, "mxnet": 2, "tensorflow": 1, "jax": 1}[backend]
    assert counting.counts["call"] == len(fold.explain()) == 1 + pieces
    assert len(fold.schedule()) == fold.explain().lower_bound == 2
    assert fold.explain().certificate == "optimal"
    assert ("1 launch more, since very many rows" in str(fold.explain())) == (pieces == 2)
    assert (fold.explain().why(nodes[0], nodes[-1]).cause == "pieces") == (pieces == 2)


@pytest.mark.parametrize("many", [8, 9])
def test_calls_that_read_numbers_stay_one_launch_for_longer(many, monkeypatch, seam, counting, to_numpy):
    monkeypatch.setattr("multifold._engine.plan.schedule.MANY_NUMBERS", many)
    monkeypatch.setattr(type(seam), "pieces", lambda self, rows, device: rows // 2)
    fold = Fold(backend=counting)
    assert to_numpy(fold([[fold.add(one_more, i) for i in range(8)]])[0]).tolist() == list(range(1, 9))
    assert counting.counts["call"] == (4 if many == 8 else 1)


def test_calls_without_operands_are_one_row_however_many(monkeypatch, seam, counting, array, to_numpy):
    monkeypatch.setattr("multifold._engine.plan.schedule.MANY_NUMBERS", 2)
    monkeypatch.setattr(type(seam), "pieces", lambda self, rows, device: rows // 2)
    fold = Fold(backend=counting)
    got = fold.apply({"one": lambda: array([1.0])}, [[fold.add("one") for _ in range(8)]])
    assert to_numpy(got[0]).tolist() == [1] * 8
    assert counting.counts["call"] == 1


def test_pieces_are_divided_where_shapes_differ(backend, monkeypatch, seam, array, column, to_numpy):
    monkeypatch.setattr(type(seam), "pieces", lambda self, rows, device: -(-rows // 4))
    fold = Fold(backend=backend)
    rows = [fold.add(one_more, fold.add("wide" if i % 3 else "narrow", i)) for i in range(30)]
    model = {
        name: lambda x, width=width: column(x) * array(np.ones((1, width)))
        for name, width in (("wide", 2), ("narrow", 1))
    }
    wide, narrow = fold.apply(model, [[r for i, r in enumerate(rows) if i % 3], rows[::3]])
    assert to_numpy(wide)[:, 1].tolist() == [i + 1 for i in range(30) if i % 3]
    assert to_numpy(narrow)[:, 0].tolist() == [i + 1 for i in range(0, 30, 3)]


@pytest.mark.parametrize("pieces", [2, 5])
def test_pieces_have_the_gradients_of_the_whole(backend, monkeypatch, seam, ops, gradients, pieces):
    monkeypatch.setattr(type(seam), "pieces", lambda self, rows, device: min(pieces, rows))

    def folded(p):
        fold = Fold(backend=backend)
        model = {
            "scale": lambda x, by: ops.tanh(x) * p["w"] + by,
            "leaf": lambda i: p["w"] * seam.gather(p["x"], i),
        }
        rows = [fold.add("leaf", i % 3) for i in range(12)]
        pairs = [fold.add("scale", left, right) for left, right in zip(rows, rows[::-1], strict=True)]
        return fold.apply(model, [fold.add("scale", x, y) for x, y in zip(pairs, rows, strict=True)])

    p = {"w": [[0.5, -1.0]], "x": [[1.0, 2.0], [3.0, -1.0], [0.5, 0.25]]}
    got = gradients(folded, p)
    monkeypatch.setattr(type(seam), "pieces", lambda self, rows, device: 1)
    for name, whole in gradients(folded, p).items():
        np.testing.assert_allclose(got[name], whole, rtol=1e-4, atol=1e-5)


def test_a_chain_of_a_hundred_thousand_calls(shallow_stack):
    fold = Fold(backend="numpy")
    x = 0
    for _ in range(COUNT):
        x = fold.add(one_more, x)
    assert fold([x]).tolist() == [COUNT]
    assert len(fold.schedule()) == fold.schedule().lower_bound == COUNT
    assert str(fold.schedule()).count("\n") == COUNT + 1


@pytest.mark.parametrize("policy", list(POLICIES))
def test_a_deep_graph_of_many_types_is_scheduled(shallow_stack, policy):
    fold = Fold(backend="numpy", schedule=policy)
    x = fold.add("op", 0)
    for i in range(5_000):
        x = fold.add("op", x, layer=i % 500)
    schedule = fold.schedule([x])
    assert len(schedule) == 5_001
    assert schedule.lower_bound <= 5_001


def test_a_deep_chain_runs_with_gradients(shallow_stack, backend, array, gradients):
    def folded(p):
        fold = Fold(backend=backend)
        x = p["x"]
        for _ in range(1_000):
            x = fold.add(one_more, x)
        return fold([fold.add(lambda x: x * x, x)])

    np.testing.assert_allclose(gradients(folded, {"x": [[2.0]]})["x"], [[2 * 1_002]], rtol=1e-4)


def test_a_block_is_read_by_ten_thousand_calls(backend, counting, gradients, equal, array, column):
    def folded(p, seam=backend):
        fold = Fold(backend=seam)
        x = fold.add(one_more, p["x"])
        nodes = [fold.add("scale", x, 2) for _ in range(10_000)]
        return fold.apply({"scale": lambda x, k: x * column(k)}, [nodes])

    np.testing.assert_allclose(gradients(folded, {"x": [[1.0, 5.0]]})["x"], 20_000, rtol=1e-4)
    equal(folded({"x": array([[1.0, 5.0]])}, counting)[0], [[4.0, 12.0]] * 10_000)
    assert (counting.counts["call"], counting.counts["gather"]) == (2, 1)


def test_ten_thousand_rows_of_one_ragged_operand(fold, to_numpy):
    node = fold.add("count", ragged([fold.add(one_more, i) for i in range(10_000)]))
    got = fold.apply({"count": lambda rows: rows.lengths}, [node])
    assert to_numpy(got).tolist() == [10_000]


def test_an_operand_may_be_nested_deeply(fold, equal):
    def deep(levels):
        operand = 1.0
        for _ in range(levels):
            operand = [operand]
        return operand

    def unwrapped(x):
        while isinstance(x, list):
            (x,) = x
        return x

    equal(fold([fold.add(unwrapped, deep(100)), fold.add(unwrapped, deep(100))]), [1, 1])
    assert len(fold.schedule()) == 1


def test_a_deep_tree_of_traces_runs(shallow_stack):
    def chain(recorder, length):
        x = length
        for _ in range(length):
            x = recorder.add("op", x)
        return x

    traces = [multifold.trace(chain, n) for n in (1, 3_000)]
    assert Fold(backend="numpy").run({"op": one_more}, traces).tolist() == [2, 6_000]


def test_the_eager_twin_runs_a_deep_chain(shallow_stack):
    unfold = Unfold(backend="numpy")
    x = 0
    for _ in range(20_000):
        x = unfold.add(one_more, x)
    assert unfold([x]).tolist() == [20_000]


# ---- cost ------------------------------------------------------------------------------------------


def lines_run(record, count):
    """Return how many lines of Python it takes to record and run ``count`` calls."""
    lines = 0
    before = sys.gettrace()

    def trace(frame, event, arg):
        nonlocal lines
        lines += event == "line"
        return trace

    sys.settrace(trace)
    try:
        record(count)
    finally:
        sys.settrace(before)
    return lines


def wide(count):
    fold = Fold(backend="numpy")
    fold([[fold.add(one_more, i) for i in range(count)]])


def arrays(count):
    fold = Fold(backend="numpy")
    x = np.ones((1, 2))
    fold([[fold.add(one_more, x) for _ in range(count)]])


def types(count):
    fold = Fold(backend="numpy")
    fold(tuple(fold.add(first, float(i), k=i) for i in range(count)))


def first(x, *others, **static):
    return x


def lists(count):
    fold = Fold(backend="numpy")
    nodes = [fold.add(one_more, i) for i in range(count)]
    fold([[fold.add(lengths_of, ragged(nodes[i : i + 3])) for i in range(count)]])


def lengths_of(rows):
    return rows.lengths


def wholes(count):
    fold = Fold(backend="numpy")
    tables = [fold.add(one_more, i).no_batch() for i in range(count)]
    fold(tuple(fold.add(first, i, table) for i, table in enumerate(tables)))


def deep(count):
    fold = Fold(backend="numpy")
    x = 0
    for i in range(count):
        x = fold.add(first, x, k=i % 7)
    fold([x])


def out_of_phase(count):
    """Two types on one cycle, in another order in each example: covered greedily."""
    fold = Fold(backend="numpy")
    rng = np.random.default_rng(0)
    for _ in range(count // 20):
        x = 0
        for k in rng.integers(2, size=20).tolist():
            x = fold.add(first, x, k=k)
    fold.schedule()


def two_widths(count):
    fold = Fold(backend="numpy")
    rows = [np.ones((1, 1 + i % 2)) for i in range(count)]
    fold(tuple([fold.add(one_more, fold.add(one_more, x)) for x in rows[i::2]] for i in (0, 1)))


def unfolded(count):
    unfold = Unfold(backend="numpy")
    x = np.ones((1, 2))
    for i in range(count):
        unfold.add(first, x, k=i)


@pytest.mark.parametrize(
    "record",
    [wide, arrays, types, lists, wholes, deep, out_of_phase, two_widths, unfolded],
)
def test_cost_grows_with_the_number_of_calls_and_not_with_its_square(record):
    record(40)  # what is imported or cached on first use does not count
    assert lines_run(record, 1_600) < 6 * lines_run(record, 400)
