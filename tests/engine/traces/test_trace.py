"""Traces: kept as integers, pickled, merged without a loop over calls, run like what was recorded."""

from __future__ import annotations

import copy
import math
import multiprocessing
import pickle
import subprocess
import sys
import weakref
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest

import multifold
from multifold import Fold, RecordError, trace
from multifold._engine import compiled
from multifold._engine.plan.wiring import Place, SlotFiller
from multifold._engine.traces import minibatch
from multifold._engine.traces.minibatch import merge
from multifold._engine.traces.trace import COUNTED, INTEGERS
from multifold._measure.workloads import BinaryTree, encode_binary
from multifold.testing import Counting

MODEL = {
    "leaf": lambda x: (x, x + 1),
    "node": lambda h, c, rows: (h + np.bincount(rows.segment_ids, rows.values, len(rows.lengths)), c),
    "scale": lambda x, by: x * by,
    "table": lambda: np.array([[5.0], [7.0]]),
    "pick": lambda table, x: table[:, 0].sum() * x,
}


def encode(fold: Any, example: int) -> dict[str, Any]:
    """Record a structure that depends on the example, with every kind of operand."""
    h, c = fold.add("leaf", float(example)).split(2)
    rows = [fold.add("leaf", float(i))[0] for i in range(example)]
    for _ in range(example % 3):
        h, c = fold.add("node", h, c, multifold.ragged([*rows, 0.5])).split(2)
    shared = fold.add("table").no_batch()
    picked = fold.add("pick", shared, h)
    return {"y": fold.add("scale", picked, by=2), "rows": [h, *rows], "labels": [example]}


def recorded(examples: list[int]) -> dict[str, np.ndarray]:
    fold = Fold(backend="numpy")
    results = [encode(fold, example) for example in examples]
    groups = {
        "y": [r["y"] for r in results],
        "rows": [row for r in results for row in r["rows"]],
        "labels": [label for r in results for label in r["labels"]],
    }
    return fold.apply(MODEL, groups)


def chain(fold: Any, n: int) -> Any:
    x = fold.add("first", n)
    for _ in range(n):
        x = fold.add("next", x)
    return fold.add("last", x)


def same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert got.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(got[name], values)


EXAMPLES = [3, 0, 5, 1, 5, 2]


def test_traces_run_like_what_was_recorded() -> None:
    traces = [trace(encode, example) for example in EXAMPLES]
    same(Fold(backend="numpy").run(MODEL, traces), recorded(EXAMPLES))


@pytest.mark.parametrize("policy", ["auto", "depth", "agenda", "search"])
def test_every_policy_runs_traces(policy: str) -> None:
    traces = [trace(encode, example) for example in EXAMPLES]
    same(Fold(backend="numpy", schedule=policy).run(MODEL, traces), recorded(EXAMPLES))


def test_traces_pickle_copy_and_compare_by_value() -> None:
    one = trace(encode, 4)
    assert pickle.loads(pickle.dumps(one)) == one == copy.deepcopy(one) == trace(encode, 4)
    assert one != trace(encode, 5)
    assert hash(pickle.loads(pickle.dumps(one))) == hash(one)


def test_numbers_of_other_types_make_other_traces() -> None:
    def scaled(fold: Any, by: Any) -> Any:
        return fold.add("scale", 1.0, by=by)

    kinds = [trace(scaled, by) for by in (1, 1.0, True)]
    assert len({id(t) for t in kinds if t == kinds[0]}) == 1
    assert trace(lambda fold, x: fold.add("f", x), 0.0) != trace(lambda fold, x: fold.add("f", x), -0.0)


def test_traces_made_by_other_processes_equal_those_made_here() -> None:
    """Spawned workers import what they run, so the traced function is one of the package."""
    spawn = multiprocessing.get_context("spawn")
    examples = [
        BinaryTree(None, BinaryTree(i), BinaryTree(None, BinaryTree(7), BinaryTree(i))) for i in range(4)
    ]
    with ProcessPoolExecutor(2, mp_context=spawn) as pool:
        traces = list(pool.map(trace, [encode_binary] * 4, examples, timeout=120))
    assert traces == [trace(encode_binary, example) for example in examples]
    assert len(merge(traces).plan.schedule.calls) == sum(map(len, traces))


def test_tracing_imports_no_framework() -> None:
    code = (
        "import sys, multifold, pickle\n"
        "t = multifold.trace(lambda fold, n: fold.add('f', n), 1)\n"
        "multifold.merge([t, t])\n"
        "bad = {'torch', 'tensorflow', 'jax', 'mxnet'} & set(sys.modules)\n"
        "sys.exit(bool(bad))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_merging_reaches_the_bound_across_examples_of_unequal_length() -> None:
    batch = merge([trace(chain, n) for n in range(1, 9)])
    assert len(batch.plan.schedule) == batch.plan.schedule.lower_bound == 1 + 8 + 1
    assert batch.plan.schedule.certificate == "optimal"


def test_merged_schedule_equals_the_recorded_one() -> None:
    fold = Fold(backend="numpy")
    nodes = [chain(fold, n) for n in (5, 1, 3)]
    batch = merge([trace(chain, n) for n in (5, 1, 3)])
    assert str(batch.plan.schedule) == str(fold.schedule(nodes))


def test_a_cycle_among_merged_buckets_is_scheduled_anew() -> None:
    def path(fold: Any, ops: str) -> Any:
        x = fold.add("start", 1)
        for op in ops:
            x = fold.add(op, x)
        return x

    batch = merge([trace(path, "ab"), trace(path, "ba")])
    model = {"start": lambda x: x, "a": lambda x: x + 1, "b": lambda x: x * 10}
    np.testing.assert_array_equal(Fold(backend="numpy").run(model, batch), [20, 11])
    assert len(batch.plan.schedule) == 4  # start, then a and b in some order, one of them twice


def words(fold: Any, ops: str) -> Any:
    x = fold.add("start", 1)
    for op in ops:
        x = fold.add(op, x)
    return x


WORDS = {"start": lambda x: x, "a": lambda x: x + 1, "b": lambda x: x * 10}


def test_minibatches_of_one_form_have_one_plan() -> None:
    fold = Fold(backend="numpy")
    kinds = [("ab", "ba"), ("abb", "ba"), ("ab", "ba"), ("ba", "ab")]
    found = [fold.run(WORDS, [trace(words, text) for text in kind]).tolist() for kind in kinds]
    assert found == [[20, 11], [200, 11], [20, 11], [11, 20]]
    # The third minibatch is the first one again, so its plan is kept. The fourth one is of the same form:
    # the op that is recorded first has the first type.
    assert (fold._plans.hits, len(fold._plans)) == (1, 1)
    fold.reset()
    fold.apply(WORDS, [[words(fold, text) for text in ("ab", "ba")]])
    assert (fold._plans.hits, len(fold._plans)) == (2, 1)


@pytest.mark.parametrize("policy", ["auto", "search", "agenda"])
def test_a_schedule_that_was_kept_equals_one_that_is_new(policy: str) -> None:
    warm = Fold(backend="numpy", schedule=policy)
    for texts in (["abab", "bbaa", "ab"], ["abab", "bbaa", "ba"]) * 2:
        cold = Fold(backend="numpy", schedule=policy)
        warm.reset()
        nodes = [[words(fold, text) for text in texts] for fold in (warm, cold)]
        one, other = (fold.schedule(x) for fold, x in zip((warm, cold), nodes, strict=True))
        np.testing.assert_array_equal(one.calls, other.calls)
        np.testing.assert_array_equal(one.bounds, other.bounds)
        assert one.lower_bound == other.lower_bound
    assert warm._plans.hits == 0  # each form was met twice


def test_only_what_the_results_need_is_run() -> None:
    def wasteful(fold: Any, n: int) -> Any:
        fold.add("never", n)
        return fold.add("double", n)

    counting = Counting("numpy")
    got = Fold(backend=counting).run({"double": lambda x: 2 * x}, [trace(wasteful, n) for n in (1, 2)])
    np.testing.assert_array_equal(got, [2, 4])
    assert counting.counts["call"] == 1


def test_whole_results_come_back_as_a_list() -> None:
    def whole(fold: Any, n: int) -> Any:
        return {"all": fold.add("pair", n).no_batch(), "n": fold.add("same", n)}

    model = {"pair": lambda x: np.concatenate([x, x]), "same": lambda x: x}
    got = Fold(backend="numpy").run(model, [trace(whole, n) for n in (1, 2)])
    assert [x.tolist() for x in got["all"]] == [[1, 1], [2, 2]]
    assert got["n"].tolist() == [1, 2]


def test_arrays_are_copied_into_a_trace() -> None:
    x = np.ones((1, 2))
    kept = trace(lambda fold, x: fold.add("same", x), x)
    x[:] = 9
    np.testing.assert_array_equal(Fold(backend="numpy").run({"same": lambda x: x}, [kept]), [[1, 1]])


def test_between_processes_an_op_that_cannot_be_pickled_raises_where_it_arrives() -> None:
    def record(fold: Any, op: Any) -> Any:
        return fold.add(op, 1, by=math.sin)

    sent = [multifold.trace(record, op) for op in (abs, lambda x: x)]
    assert pickle.loads(ForkingPickler.dumps(sent[0])) == sent[0]
    for lost in (sent[1], multifold.merge(sent[1:])):
        arrives = ForkingPickler.dumps(lost)
        with pytest.raises(RecordError, match=r"can't be pickled.* in a call of op '.*lambda"):
            pickle.loads(arrives)


def test_equal_shared_arrays_share_a_launch_after_pickling() -> None:
    def looked_up(fold: Any, i: int) -> Any:
        return fold.add("take", multifold.shared(np.array([10, 20, 30])), i)

    traces = [pickle.loads(pickle.dumps(trace(looked_up, i))) for i in (2, 0)]
    counting = Counting("numpy")
    got = Fold(backend=counting).run({"take": lambda table, i: table[i]}, traces)
    assert got.tolist() == [30, 10]
    assert counting.counts["call"] == 1


DOUBLING = {"first": lambda x: x, "next": lambda x: x * 2, "last": lambda x: -x}


@pytest.fixture
def wired(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """Return a list that fills with what places each wiring has filled in."""
    found: list[weakref.ref[Any]] = []
    wiring = SlotFiller.wiring

    def counted(slots: SlotFiller, place: Place, wired: Any) -> Any:
        found.append(weakref.ref(place.launch))
        return wiring(slots, place, wired)

    monkeypatch.setattr(SlotFiller, "wiring", counted)
    return found


def test_a_minibatch_that_was_made_ahead_is_wired_once(wired: list[weakref.ref[Any]]) -> None:
    batch = merge([trace(chain, n) for n in (1, 2)])
    fold = Fold(backend="numpy")
    assert len(wired) == 1
    for _ in range(3):
        assert fold.run(DOUBLING, batch).tolist() == [-2, -8]
    assert len(wired) == 1
    loaded = pickle.loads(pickle.dumps(batch))
    assert len(wired) == 2
    assert fold.run(DOUBLING, loaded).tolist() == [-2, -8]
    assert len(wired) == 2


def test_the_wiring_of_a_run_is_not_kept(wired: list[weakref.ref[Any]]) -> None:
    fold = Fold(backend="numpy")
    recorder = Fold(backend="numpy")
    fold.run(DOUBLING, [trace(chain, n) for n in (1, 2)])
    recorder.apply(DOUBLING, chain(recorder, 3))
    assert fold.explain().seconds["wiring"] > 0
    assert [place() for place in wired] == [None, None]


def test_what_comes_again_is_wired_twice_and_then_kept(wired: list[weakref.ref[Any]]) -> None:
    fold = Fold(backend="numpy")
    traces = [trace(chain, n) for n in (1, 2)]
    for count in (1, 2, 2, 2):
        assert fold.run(DOUBLING, traces).tolist() == [-2, -8]
        assert len(wired) == count


def test_a_program_needs_no_wiring(wired: list[weakref.ref[Any]]) -> None:
    fold = Fold(backend="numpy")
    fold.program([trace(chain, n) for n in (1, 2)])
    fold.program(chain(fold, 2))
    assert not wired


def test_errors_name_the_line_and_the_trace() -> None:
    def failing(x: np.ndarray) -> np.ndarray:
        raise ValueError("no")

    traces = [trace(chain, n) for n in (1, 2)]
    with pytest.raises(multifold.LaunchError, match=r"test_trace\.py:\d+ \(trace 0\)"):
        Fold(backend="numpy").run({"first": failing, "next": failing, "last": failing}, traces)


def test_traces_of_different_structure_are_refused() -> None:
    a = trace(lambda fold, n: fold.add("f", n), 1)
    b = trace(lambda fold, n: {"y": fold.add("f", n)}, 1)
    with pytest.raises(RecordError, match="one structure"):
        merge([a, b])
    with pytest.raises(RecordError, match="at least one trace"):
        merge([])


@pytest.mark.parametrize("examples", [[1, 2], 1])
def test_examples_without_a_function_are_refused(examples: Any) -> None:
    with pytest.raises(RecordError, match="at least one trace, since no function was given"):
        Fold(backend="numpy").run(None, examples)


@pytest.mark.skipif(not compiled.in_use, reason="Python plans in loops where they are not compiled")
def test_merging_does_not_loop_over_calls() -> None:
    """The Python and C calls of a merge do not grow with the calls of a trace."""

    def wide(fold: Any, n: int) -> Any:
        return [fold.add("last", fold.add("first", i)) for i in range(n)]

    def calls_made(n: int) -> int:
        traces = [trace(wide, n)] * 4
        count = 0
        merge(traces)  # what a vocabulary knows of itself is found once

        def profile(frame: Any, event: str, arg: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(profile)
        merge(traces)
        sys.setprofile(None)
        return count

    assert calls_made(500) == calls_made(20)


# ---- what a trace holds --------------------------------------------------------------------------


def test_an_array_of_three_rows_is_refused_in_a_trace_as_in_a_fold() -> None:
    for record in (lambda f: trace(f, 0), lambda f: f(Fold(backend="numpy"), 0)):
        with pytest.raises(RecordError, match=r"one row.* Received .*3"):
            record(lambda recorder, _: recorder.add("f", np.zeros((3, 2))))


def test_a_trace_keeps_what_was_recorded_and_nothing_that_follows_from_it() -> None:
    made = trace(chain, 2)
    columns = np.split(made.integers[len(COUNTED) + 1 :], np.cumsum(made.integers[: len(INTEGERS)]))
    named = dict(zip((*INTEGERS, "result"), columns, strict=True))
    assert named["signature"].tolist() == [0, 1, 1, 2]
    assert named["refs"].tolist() == [0, 1, 2]
    assert named["ints"].tolist() == [2]
    assert named["result"].tolist() == [3]


def test_a_trace_equals_no_other_object_and_no_other_trace() -> None:
    one, other = (trace(lambda fold, x: fold.add("f", x), x) for x in (1, 2))
    assert one.__eq__(3) is NotImplemented and one != 3
    assert one.__eq__(other) is False
    assert one.__eq__(trace(lambda fold, x: fold.add("f", x), 1)) is True


def test_traces_are_scheduled_by_the_policy_of_the_fold() -> None:
    """By depth the roots of chains of 1, 2 and 3 calls run apart, by typed level together."""

    def chain(fold: Any, n: int) -> Any:
        node = fold.add("leaf", n)
        for _ in range(n):
            node = fold.add("next", node)
        return fold.add("root", node)

    traces = [trace(chain, n) for n in (1, 2, 3)]
    launches = {name: len(merge(traces, name).plan.schedule) for name in ("auto", "depth")}
    assert launches == {"auto": 1 + 3 + 1, "depth": 1 + 3 + 3}


def test_a_vocabulary_of_known_names_is_merged_without_its_keys(monkeypatch):
    """Two traces number their signatures in other orders; the second has no name that the first lacks."""

    def both(fold, first):
        return [fold.add(op, 1.0) for op in (("f", "g") if first else ("g", "f"))]

    taken = []
    take_in = minibatch.take_in
    monkeypatch.setattr(minibatch, "take_in", lambda *args: taken.append(args[0].name) or take_in(*args))
    merged = merge([trace(both, first) for first in (True, False)])
    assert taken == ["f", "g"] and merged.plan.columns.signature.tolist() == [0, 1, 1, 0]


def read(fold, numbers):
    """Unroll an op of the model over some numbers."""
    inputs = [fold.add("number", x) for x in numbers]
    outputs, (total,) = fold.unroll("cell", len(inputs), inputs, begin_state=[fold.add("number", 0)])
    return {"all": outputs, "last": total}


def test_an_op_is_unrolled_by_its_name_on_a_fold_and_in_traces(fold, seam):
    model = {"number": lambda x: x, "cell": lambda x, total: (total + x, total + x)}
    for found in (
        fold.run(model, [[1, 2, 3], [4]], read),
        fold.run(model, multifold.traces(read, [[1, 2, 3], [4]])),
    ):
        assert seam.to_numpy(found["all"]).tolist() == [1, 3, 6, 4]
        assert seam.to_numpy(found["last"]).tolist() == [6, 4]
    with pytest.raises(RecordError, match="begin_state for a cell that is the op 'cell'"):
        fold.unroll("cell", 1, [fold.add("number", 1)])
