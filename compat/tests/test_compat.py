"""The doors for programs of predecessors, as far as any backend can show them.

What needs modules, blocks, autograd or cells is tested beside the adapters: the predecessors' own
programs for PyTorch in ``backends/torch/tests``, those for MXNet in ``backends/mxnet/tests``.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import multifold
from multifold import LaunchError, RecordError
from multifold._engine.record import graph
from multifold._engine.record.recorder import Recorder
from multifold_compat import mxnet_fold, torchfold


class Model:
    """Ops on numbers, for any framework."""

    def __init__(self, seam):
        self.seam = seam

    def same(self, x):
        return x

    def double(self, x):
        return x * 2

    def total(self, *xs):
        return sum(xs[1:], start=xs[0])

    def pair(self, x):
        return x, x * 10

    def join(self, *xs):
        return self.seam.concat(xs)

    def take(self, table, i):
        return self.seam.gather(table, i)

    def fail(self, x):
        raise ValueError("no luck")


@pytest.fixture
def model(seam):
    return Model(seam)


@pytest.fixture(params=["Fold", "Unfold"])
def door(request, backend, model):
    """TorchFold's fold, and its eager twin."""
    if request.param == "Fold":
        return torchfold.Fold(backend=backend)
    return torchfold.Unfold(model, backend=backend)


def test_torchfold_returns_an_array_for_each_group(door, model, equal):
    nodes = [door.add("double", i) for i in (3, 1, 2)]
    values, labels = door.apply(model, [nodes, [7, 8]])
    equal(values, [6, 2, 4])
    equal(labels, [7, 8])


def test_torchfold_takes_groups_of_any_iterable(door, model, equal):
    values, labels = door.apply(model, ((door.add("same", i) for i in (1, 2)), (True, False)))
    equal(values, [1, 2])
    equal(labels, [1, 0])


def test_torchfold_splits_results(door, model, equal):
    left, right = door.add("pair", 3).split(2)
    equal(door.apply(model, [[door.add("total", left, right), right]])[0], [33, 30])


def test_torchfold_nobatch_gives_the_whole_result_to_its_readers(door, model, equal):
    table = door.add("join", *[door.add("same", i) for i in (5, 6, 7)]).nobatch()
    nodes = [door.add("take", table, i) for i in (2, 0)]
    picked, whole = door.apply(model, [nodes, [table]])
    equal(picked, [7, 5])
    equal(whole, [5, 6, 7])


def test_torchfold_nobatch_survives_split_and_leaves_the_node_as_it_is(door, model, equal):
    pair = door.add("pair", 3)
    whole = pair.nobatch().split(2)[1]
    equal(door.apply(model, [[door.add("take", whole, 0), pair.split(2)[0]]])[0], [30, 3])


def test_torchfold_calls_without_operands_are_one_row(door, seam, equal):
    class Initial:
        def init(self):
            return seam.constant(np.array([5], seam.number_dtype(int)), None)

        def child(self, state, x):
            return state + x

    model = Initial()
    if isinstance(door, torchfold.Unfold):
        door = torchfold.Unfold(model, backend=seam)
    nodes = [door.add("child", door.add("init"), i) for i in (1, 2)]
    equal(door.apply(model, [nodes])[0], [6, 7])


def test_torchfold_keeps_all_operands_of_longer_calls(door, model, equal):
    nodes = [door.add("total", 1, 2), door.add("total", 3, 4, 5)]
    equal(door.apply(model, [nodes])[0], [3, 12])


def test_torchfold_keeps_two_whole_results_at_one_level_apart(door, model, equal):
    tables = [door.add("join", i, i + 1).nobatch() for i in (0, 10)]
    nodes = [door.add("take", table, 1) for table in tables]
    equal(door.apply(model, [nodes])[0], [1, 11])


def test_torchfold_merges_identical_calls_unless_told_otherwise(backend):
    folds = [torchfold.Fold(backend=backend, cse=cse) for cse in (True, False)]
    for fold in folds:
        for _ in range(3):
            fold.add("double", fold.add("same", 1))
    assert [len(fold) for fold in folds] == [2, 6]


def test_torchfold_takes_a_truth_value_for_an_integer(backend, equal, column):
    fold = torchfold.Fold(backend=backend)
    nodes = [fold.add("leaf", x) for x in (2, True, 1, False, True)]
    assert len(fold) == 3 and nodes[1] == nodes[2] == nodes[4]
    assert {type(node) for node in nodes} == {torchfold.FoldNode}
    model = SimpleNamespace(leaf=lambda x: column(x + x))
    equal(fold.apply(model, [nodes])[0], [[4], [2], [2], [0], [2]])


def test_torchfold_records_as_a_fold_does_and_names_the_users_line(backend):
    """Also after a reset, and for calls that the quick path knows."""
    fold = torchfold.Fold(backend=backend)
    for _ in range(2):
        nodes = [fold.add("leaf", i) for i in range(3)]
        joined = fold.add("join", *nodes)
        assert {type(node) for node in (*nodes, joined, *joined.split(2))} == {torchfold.FoldNode}
        assert all(fold._graph.site(call).startswith(f"{__file__}:") for call in range(len(fold)))
        fold.reset()


def test_torchfold_merges_nothing_that_only_has_the_same_hash(backend, model, equal):
    assert hash(-1) == hash(-2)
    fold = torchfold.Fold(backend=backend)
    equal(fold.apply(model, [[fold.add("same", i) for i in (-1, -2)]])[0], [-1, -2])


def test_torchfold_runs_an_op_at_many_heights_once(backend, launches):
    fold = torchfold.Fold(backend=backend)
    outputs = []
    x = 1
    for _ in range(8):
        x = fold.add("double", x)
        outputs.append(fold.add("same", x))
    assert launches(fold, [outputs])["same"] == 1


def test_torchfold_applies_again_and_to_another_model(backend, model, seam, equal):
    class Negative(Model):
        def double(self, x):
            return x * -2

    fold = torchfold.Fold(backend=backend)
    nodes = [fold.add("double", 3)]
    answers = [fold.apply(each, [nodes])[0] for each in (model, Negative(seam), model)]
    equal(seam.concat(answers), [6, -6, 6])


def test_torchfold_is_checked_like_any_fold(backend, model):
    fold = torchfold.Fold(backend=backend)
    table = fold.add("join", 5, 6, 7).nobatch()
    nodes = (fold.add("take", table, i) for i in (2, 0))
    fold.check(model, (nodes, [table], [True, False]))


def test_torchfold_also_takes_what_only_multifold_knows_how_to_ask_for(door, model, equal):
    x = door.add("double", 3)
    answer = door.apply(model, {"rows": [x, x], "node": x})
    equal(answer["rows"], [6, 6])
    equal(answer["node"], [6])


def test_torchfold_refuses_whole_results_among_rows(door, model):
    node = door.add("double", 3)
    with pytest.raises(RecordError, match="group"):
        door.apply(model, [[node, node.nobatch()]])


@pytest.fixture
def understood(monkeypatch):
    """The ops of the calls that were recorded on the slow path, one after the other; no form is known."""
    ops = []
    monkeypatch.setattr(graph, "NAMED", {})
    slow = Recorder._understand

    def understand(recorder, op, *others):
        ops.append(op)
        return slow(recorder, op, *others)

    monkeypatch.setattr(Recorder, "_understand", understand)
    return ops


def test_torchfold_records_calls_of_known_forms_on_the_quick_path(backend, understood):
    fold = torchfold.Fold(backend=backend)
    nodes = [fold.add("double", fold.add("same", i % 3)) for i in range(6)]
    assert understood == ["same", "double"]
    assert nodes[:3] == nodes[3:] and {type(node) for node in nodes} == {torchfold.FoldNode}
    assert fold.add("same", True) == fold.add("same", 1) and len(fold) == 6


def test_torchfold_prints_as_its_schedule(backend):
    fold = torchfold.Fold(backend=backend)
    fold.add("double", fold.add("same", 1))
    assert str(fold) == repr(fold) == str(fold.schedule())
    assert "double" in str(fold)


def test_torchfold_errors_name_the_line_that_recorded_the_call(backend, model):
    fold = torchfold.Fold(backend=backend)
    node = fold.add("fail", 1)
    with pytest.raises(LaunchError, match=r"'fail'.*test_compat\.py:\d+.*no luck"):
        fold.apply(model, [[node]])


def test_torchfold_unfold_runs_each_call_at_once(backend, model, equal):
    unfold = torchfold.Unfold(model, backend=backend)
    node = unfold.add("pair", 3)
    equal(node.split(2)[1].tensor, [30])
    equal(node[0].tensor, [3])
    assert repr(node[0]) == str(node[0].tensor)
    with pytest.raises(LaunchError, match=r"test_compat\.py:\d+.*no luck"):
        unfold.add("fail", 1)


def test_torchfold_unfold_refuses_another_model(backend, model, seam):
    unfold = torchfold.Unfold(model, backend=backend)
    with pytest.raises(ValueError, match="model"):
        unfold.apply(Model(seam), [[unfold.add("same", 1)]])


def test_torchfold_nodes_are_of_the_class_that_its_fold_names(backend, model):
    for door in (torchfold.Fold(backend=backend), torchfold.Unfold(model, backend=backend)):
        node = door.add("pair", 1)
        parts = (node, *node.split(2), node.nobatch(), *node.nobatch().split(2))
        assert all(isinstance(x, type(door).Node) for x in parts)


def test_torchfold_tells_its_nodes_by_height_and_by_op(backend):
    fold = torchfold.Fold(backend=backend)
    one, two, again = (fold.add("same", i) for i in (1, 2, 1))
    part = fold.add("pair", two).split(2)[1]
    root = fold.add("total", one, part)
    assert again == one and fold.total_nodes == len(fold) == 4
    assert fold.steps == {
        0: {"same": [one, two]},
        1: {"pair": [fold.add("pair", two)]},
        2: {"total": [root]},
    }
    assert fold.cached_nodes["same"] == {0: one, 1: two}


def test_torchfold_counts_merged_calls_once_and_others_each(backend):
    for cse, calls in ((True, 1), (False, 3)):
        fold = torchfold.Fold(backend=backend, cse=cse)
        for _ in range(3):
            fold.add("same", 1)
        assert fold.total_nodes == sum(map(len, fold.cached_nodes.values())) == calls


def test_a_door_without_calls_has_no_steps(backend, model):
    fold = torchfold.Fold(backend=backend)
    fold.run(model, [multifold.trace(lambda fold, i: fold.add("double", fold.add("same", i)), 1)])
    assert (fold.total_nodes, fold.steps, fold.cached_nodes) == (0, {}, {})


@pytest.fixture
def pool(backend):
    """A fold by the names of mxnet-jit-batch."""
    return mxnet_fold.Fold(backend=backend)


def double(x):
    return x * 2


def triple(x):
    return x * 3


def minus(x, k):
    return x - k


def test_mxnet_fold_batches_nodes_and_arrays(pool, array, equal, launches):
    nodes = [pool.record(0, double, pool.record(0, double, array([[i]]))) for i in (1.0, 2.0)]
    assert launches(pool) == {"double": 2}
    equal(pool([nodes])[0], [[4], [8]])


def test_mxnet_fold_resets_unless_told_otherwise(pool, array, equal):
    node = pool.record(0, double, array([1.0]))
    for _ in range(2):
        equal(pool([[node]], reset=False)[0], [2])
    pool([[node]])
    assert len(pool) == 0
    with pytest.raises(RecordError, match="reset"):
        pool([[node]])


def test_mxnet_fold_keeps_its_calls_when_one_fails(pool, array, equal):
    broken = {"now": True}

    def fragile(x):
        if broken.pop("now", False):
            raise ValueError("no luck")
        return x

    node = pool.record(0, fragile, array([1.0]))
    with pytest.raises(LaunchError, match=r"fragile.*test_compat\.py:\d+.*no luck"):
        pool([[node]])
    equal(pool([[node]])[0], [1])


def test_mxnet_fold_passes_numbers_as_they_are(pool, array, equal, launches):
    nodes = [pool.record(0, minus, array([50.0]), k) for k in (10, 20, 10)]
    assert launches(pool) == {"minus": 2}  # each constant runs by itself, with its own value
    equal(pool([nodes])[0], [40, 30, 40])


def test_mxnet_fold_merges_identical_calls_unless_told_otherwise(backend, array):
    x = array([1.0])
    for cse, calls in ((True, 2), (False, 6)):
        pool = mxnet_fold.Fold(backend=backend, cse=cse)
        for _ in range(3):
            pool.record(0, triple, pool.record(0, double, x))
        assert len(pool) == calls


def test_mxnet_fold_merges_nothing_that_only_has_the_same_hash(pool, array, equal):
    x = pool.record(0, double, array([0.5]))
    nodes = [pool.record(0, double, pool.record(0, op, x)) for op in (double, triple)]
    nodes += [pool.record(0, minus, x, k) for k in (-1, -2)]
    equal(pool([nodes])[0], [4, 6, 2, 3])


def test_mxnet_fold_nests_arguments_and_results(pool, array, equal):
    def cell(x, states):
        assert [type(states), type(states[1])] == [list, list]  # tuples arrive as lists
        h, (c,) = states
        return h + x, [h * c, (x, c)]

    x, h, c = (pool.record(0, double, array([i])) for i in (1.0, 2.0, 3.0))
    node = pool.record(0, cell, x, (h, (c,)))
    first = node[0]
    x_again, c_again = node[1][1][:2]
    equal(pool([[first, node[1][0], x_again, c_again]])[0], [6, 24, 2, 6])


def test_mxnet_fold_slices_are_parts(pool, array, equal):
    node = pool.record(0, lambda x: [x, x * 2, x * 3], array([1.0]))
    equal(pool([[*node[1:3], *node.split(3)[:1]]])[0], [2, 3, 1])


@pytest.mark.parametrize("key", [slice(None), slice(1, None), slice(-1), slice(-2, 2)])
def test_mxnet_fold_slices_without_a_known_end_are_refused(pool, array, key):
    node = pool.record(0, double, array([1.0]))
    with pytest.raises(RecordError, match="split"):
        node[key]


def test_mxnet_fold_no_batch_gives_the_whole_result_to_its_readers(pool, array, seam, equal):
    def join(*xs):
        return seam.concat(xs)

    def add_last(x, table):
        return x + seam.split(table, [1] * seam.rows(table))[-1]

    xs = [array([i]) for i in (1.0, 2.0)]
    tables = [pool.record(0, join, *pair).no_batch() for pair in (xs, xs[::-1])]
    nodes = [pool.record(0, add_last, x, table) for table in tables for x in xs]
    sums, whole = pool([nodes, [tables[1]]])
    equal(sums, [3, 4, 2, 3])
    equal(whole, [2, 1])


def test_mxnet_fold_no_batch_survives_split_and_leaves_the_node_as_it_is(pool, array, equal):
    pair = pool.record(0, lambda x: (x, x * 2), array([3.0]))
    whole = pair.no_batch().split(2)[1]
    nodes = [pool.record(0, minus, array([i]), whole) for i in (10.0, 20.0)]
    rows, part = pool([[*nodes, pair[0]], [whole]])
    equal(rows, [4, 14, 3])
    equal(part, [6])


def test_mxnet_fold_calls_without_arrays_serve_all_their_readers(pool, array, seam, equal):
    def zeros(rows):
        return seam.constant(np.zeros((rows, 2), np.float32), None)

    def add(x, y):
        return x + y

    nodes = [pool.record(0, add, array([[i, i]], "float32"), pool.record(0, zeros, 1)) for i in (1, 2)]
    equal(pool([nodes])[0], [[1, 1], [2, 2]])


def test_mxnet_fold_takes_the_operands_that_only_multifold_has(pool, array, total, equal):
    def add(x, table, rows):
        return x + table + total(rows)

    x = array([1.0])
    table = multifold.shared(array([10.0]))
    node = pool.record(0, add, x, table, multifold.ragged([x, x, array([5.0])]))
    equal(pool([[node]])[0], [18])


def test_mxnet_fold_refuses_whole_results_among_rows(pool, array):
    node = pool.record(0, double, array([1.0]))
    with pytest.raises(RecordError, match="group"):
        pool([[node, node.no_batch()]])


def test_mxnet_fold_prints_as_its_schedule(pool, array):
    pool.record(0, double, array([1.0]))
    assert repr(pool) == str(pool.schedule())
    assert "double" in repr(pool)


def test_mxnet_fold_tells_its_nodes_until_it_is_reset(pool, array):
    leaf = pool.record(0, double, array([[1.0]]))
    root = pool.record(0, triple, leaf)
    assert pool.steps == {0: {double: [leaf]}, 1: {triple: [root]}}
    assert pool.cached_nodes == {double: {0: leaf}, triple: {1: root}} and pool.total_nodes == 2
    pool([[root]])
    assert not pool.steps and not pool.cached_nodes


def test_mxnet_fold_refuses_what_it_cannot_record(pool, array):
    with pytest.raises(RecordError, match="callable"):
        pool.record(0, "double", array([1.0]))
    with pytest.raises(RecordError, match="batch_axis=-1"):
        pool.record(-1, double, array([1.0]))
    with pytest.raises(RecordError, match="ctx"):
        mxnet_fold.Fold("cpu")
    with pytest.raises(RecordError, match="list of groups"):
        pool(pool.record(0, double, array([1.0])))


def test_mxnet_fold_runs_ops_inside_its_context(backend, array):
    class Context:
        entered = 0

        def __enter__(self):
            self.entered += 1

        def __exit__(self, *error):
            self.entered -= 1

    context = Context()
    pool = mxnet_fold.Fold(context, backend=backend)

    def op(x):
        assert context.entered == 1
        return x

    pool([[pool.record(0, op, array([1.0]))]])
    assert context.entered == 0


@pytest.fixture
def numpy_pool():
    return mxnet_fold.Fold(backend="numpy")


SERIES = [np.arange(6.0).reshape(3, 1, 2) + 10 * i for i in range(4)]
"""Four examples of three steps: ``(time, 1, width)``."""


def running(x):
    """Sum over the time so far: ``(time, n, width) -> (time, n, width)``."""
    return np.cumsum(x, axis=0)


def test_records_of_mxnet_fold_are_its_nodes_and_name_the_users_line(numpy_pool):
    """Calls of axis 0 take the quick path, as long as no node has another axis."""
    for axis in (0, 1, 0):
        nodes = [numpy_pool.record(axis, np.add, np.full((1, 1, 2), i), 1) for i in range(3)]
        nodes += [numpy_pool.record(axis, np.add, node, node) for node in nodes]
        assert {type(x) for x in (*nodes, nodes[0][0], *nodes[0].split(2))} == {mxnet_fold.Virtual}
        assert all(
            numpy_pool._graph.site(call).startswith(f"{__file__}:") for call in range(len(numpy_pool))
        )
        assert numpy_pool([nodes])[0].shape == ((6, 1, 2) if axis == 0 else (1, 6, 2))


def test_an_array_that_changed_between_two_equal_records_makes_two_calls(numpy_pool):
    x = np.ones((1, 2))
    first = numpy_pool.record(0, np.negative, x)
    same = numpy_pool.record(0, np.negative, x)
    x += 1
    other = numpy_pool.record(0, np.negative, x)
    assert first == same and first != other
    assert numpy_pool([[first, other]])[0].tolist() == [[-1, -1], [-2, -2]]


def test_equal_arrays_are_two_operands_even_where_each_is_gone_before_the_next(numpy_pool):
    nodes = [numpy_pool.record(0, np.negative, np.ones((1, 2))) for _ in range(4)]
    assert len(set(nodes)) == 4  # Python gives the id of an array that is gone to the next one


def test_a_number_is_passed_on_by_record_and_is_a_row_for_add(numpy_pool):
    kinds = []

    def note(x, k):
        kinds.append(type(k))
        return x * k

    x = np.ones((1, 1))
    ways = (partial(numpy_pool.record, 0), numpy_pool.add)
    nodes = [record(note, x, 3) for record in ways for _ in range(2)]
    assert numpy_pool([nodes])[0].tolist() == [[3]] * 4
    assert sorted(kinds, key=str) == [int, np.ndarray]


@pytest.mark.parametrize("constants", [(1, True, 1.0, "1", None), (0.0, -0.0)])
def test_constants_that_an_op_can_tell_apart_are_recorded_apart(numpy_pool, constants):
    x = np.ones((1, 1))
    nodes = [numpy_pool.record(0, np.full_like, x, k) for k in constants * 2]
    assert len(set(nodes)) == len(numpy_pool.schedule([nodes]).launches) == len(constants)


def test_record_takes_axis_and_op_by_name_and_says_what_it_lacks(numpy_pool):
    node = numpy_pool.record(batch_axis=0, op=partial(np.ones, (1, 2)))
    assert numpy_pool([[node]])[0].tolist() == [[1, 1]]
    with pytest.raises(TypeError, match="op"):
        numpy_pool.record(0)


def test_a_batch_axis_of_one_joins_rows_there(numpy_pool):
    nodes = [numpy_pool.record(1, running, x) for x in SERIES]
    nodes = [numpy_pool.record(1, running, x) for x in nodes]
    launches = numpy_pool.schedule().launches
    assert [len(x) for x in launches if isinstance(x.op, mxnet_fold.AlongAxis)] == [4, 4]
    (result,) = numpy_pool([nodes])
    np.testing.assert_array_equal(result, running(running(np.concatenate(SERIES, axis=1))))


def test_a_batch_axis_of_two_keeps_the_order_of_the_axes(numpy_pool):
    def op(x, y):
        assert x.shape == y.shape == (3, 2, 4)
        return x - y[::-1]

    turned = [x.swapaxes(1, 2) for x in SERIES]
    nodes = [numpy_pool.record(2, op, x, x) for x in turned]
    expected = np.concatenate([x - x[::-1] for x in turned], axis=2)
    np.testing.assert_array_equal(numpy_pool([nodes])[0], expected)


def test_nested_arguments_and_results_move_their_axes_too(numpy_pool):
    def op(states, scale):
        return [states[0] * scale, (states[1][0] + states[0],)]

    nodes = [numpy_pool.record(1, op, (x, [2 * x]), 5) for x in SERIES]
    both = np.concatenate(SERIES, axis=1)
    scaled, added = numpy_pool([[x[0] for x in nodes], [x[1][0] for x in nodes]])
    np.testing.assert_array_equal(scaled, both * 5)
    np.testing.assert_array_equal(added, both * 3)


def test_nodes_pass_from_one_batch_axis_to_another(numpy_pool):
    def last(x):
        return x[-1:]

    nodes = [numpy_pool.record(1, last, x) for x in SERIES]  # (1, n, 2), rows on axis 1
    nodes = [numpy_pool.record(0, double, x) for x in nodes]  # (n, 1, 2), rows on axis 0
    np.testing.assert_array_equal(numpy_pool([nodes], False)[0], [2 * x[-1] for x in SERIES])
    nodes = [numpy_pool.record(1, double, x) for x in nodes]
    np.testing.assert_array_equal(numpy_pool([nodes])[0], [[4 * x[-1, 0] for x in SERIES]])


def test_a_whole_value_comes_as_its_op_returned_it(numpy_pool):
    whole = numpy_pool.record(1, lambda *xs: np.concatenate(xs, axis=2), *SERIES).no_batch()
    seen = numpy_pool.record(0, lambda table, x: x + table.shape[2], whole, np.array([[0]]))
    result, number = numpy_pool([[whole], [seen]])
    np.testing.assert_array_equal(result, np.concatenate(SERIES, axis=2))
    np.testing.assert_array_equal(number, [[8]])


def test_a_value_of_fewer_axes_is_whole_as_well(numpy_pool):
    whole = numpy_pool.record(1, np.sum, SERIES[0]).no_batch()
    np.testing.assert_array_equal(numpy_pool([[whole]])[0], SERIES[0].sum())


def test_arrays_and_results_of_another_length_along_the_batch_axis_are_refused(numpy_pool):
    with pytest.raises(RecordError, match=r"length 1 along batch axis 2.*\(3, 1, 2\)"):
        numpy_pool.record(2, running, SERIES[0])
    with pytest.raises(RecordError, match="length 1 along batch axis 3"):
        numpy_pool.record(3, running, SERIES[0])
    node = numpy_pool.record(0, double, numpy_pool.record(1, running, SERIES[0]))
    with pytest.raises(LaunchError, match="length 1 along batch axis 0"):
        numpy_pool([[node]])


def test_a_group_of_two_batch_axes_is_refused(numpy_pool):
    nodes = [numpy_pool.record(axis, double, np.ones((1, 1))) for axis in (0, 1)]
    with pytest.raises(RecordError, match="one batch axis"):
        numpy_pool([nodes])


def test_errors_of_ops_along_other_axes_name_the_users_line(numpy_pool):
    node = numpy_pool.record(1, np.linalg.inv, SERIES[0])
    with pytest.raises(LaunchError, match=r"inv.*test_compat\.py:\d+"):
        numpy_pool([[node]])


def test_calls_of_known_forms_are_recorded_on_the_quick_path_at_the_users_line(understood):
    fold = mxnet_fold.Fold(backend="numpy")
    x = np.ones((1, 2))
    line = sys._getframe().f_lineno + 2
    for _ in range(3):
        nodes = [fold.record(0, np.add, fold.record(0, np.negative, x), 2) for x in (x, 2 * x)]
    assert understood == [np.negative, np.add]
    assert {type(node) for node in nodes} == {mxnet_fold.Virtual}
    assert {fold._graph.line(call) for call in range(len(fold))} == {(__file__, line)}
    assert fold([nodes])[0].tolist() == [[1, 1], [0, 0]]


def test_an_operand_keeps_its_axis_behind_calls_of_the_quick_path(numpy_pool):
    plain = [numpy_pool.record(0, np.negative, np.full((1, 1), x)) for x in (1.0, 2.0)]
    turned = numpy_pool.record(1, np.negative, np.ones((1, 1)))
    nodes = [numpy_pool.record(0, np.negative, x) for x in (turned, plain[1])]
    axes = [getattr(launch.op, "axis", None) for launch in numpy_pool.schedule([nodes]).launches]
    assert sorted(axes, key=str) == [0, 1, None, None]  # None where no axis moves
    assert [x.tolist() for x in numpy_pool([[node] for node in nodes])] == [[[1]], [[2]]]


def test_recording_along_another_axis_warns_of_nothing(numpy_pool):
    nodes = [numpy_pool.record(1, running, x) for x in SERIES]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numpy_pool([nodes])


def test_fold_unroll_takes_cell_and_fold_in_either_order():
    cell = multifold.Cell(lambda x, s: (s + x, s + x), lambda: (np.zeros((1, 2)),), 1)
    for swap in (False, True):
        fold = mxnet_fold.Fold(backend="numpy")
        first = (fold, cell) if swap else (cell, fold)
        inputs = np.arange(6.0).reshape(3, 1, 2)
        outputs, states = mxnet_fold.fold_unroll(*first, 3, inputs, layout="TNC")
        both, last = fold([outputs, states])
        np.testing.assert_array_equal(both, np.cumsum(inputs[:, 0], axis=0))
        np.testing.assert_array_equal(last, both[-1:])


def test_the_doors_import_no_framework():
    code = (
        "import sys, multifold_compat.torchfold, multifold_compat.mxnet_fold.rnn\n"
        "print({'torch', 'mxnet', 'jax', 'tensorflow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_a_subclass_that_counts_nodes_itself_is_told_what_to_remove():
    class Counting(torchfold.Fold):
        def add(self, op, *args):
            self.total_nodes += 1
            return super().add(op, *args)

    with pytest.raises(RecordError, match="read only") as caught:
        Counting(backend="numpy").add("leaf", 1)
    assert "remove the override" in caught.value.hint


@pytest.mark.parametrize("door", [torchfold.Fold, mxnet_fold.Fold])
@pytest.mark.parametrize(
    "read",
    [
        lambda fold, node: node.step,
        lambda fold, node: node.split(2)[0].op,
        lambda fold, node: fold.cached_nodes["never"],
        lambda fold, node: fold.steps[7]["leaf"],
        lambda fold, node: fold.steps[0]["never"],
        lambda fold, node: type(node)("leaf", 0, 0, node),
    ],
)
def test_a_subclass_that_makes_nodes_itself_is_told_what_to_remove(door, read):
    fold = door(backend="numpy")
    with pytest.raises(RecordError) as caught:
        read(fold, multifold.Fold.add(fold, "leaf", 1))
    assert "remove the override" in caught.value.hint


def test_what_a_node_of_a_door_is_set_or_asked_is_told_by_another_name():
    node = torchfold.Fold(backend="numpy").add("leaf", 1)
    with pytest.raises(RecordError, match=r"node.no_batch\(\)"):
        node.batch = False
    with pytest.raises(RecordError, match="as an output"):
        node.get({})
    assert not hasattr(node, "batch") and not hasattr(node, "step")


STATEMENTS = ["from multifold.blocks import FC", "from multifold.compat import torchfold"]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_an_import_from_where_a_name_was_says_where_it_is(statement):
    with pytest.raises(ImportError, match="pip install multifold-compat"):
        exec(statement)


def test_where_names_were_is_a_module_that_tools_can_read():
    assert not hasattr(multifold.blocks, "__all__") and "multifold_compat" in multifold.compat.__doc__
