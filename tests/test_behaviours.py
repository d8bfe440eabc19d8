"""What predecessors of multifold got wrong, or never did: a test for each, on every backend.

Numbered as the behaviours are in the design notes; each test fails on the behaviour that it is about.
"""

from __future__ import annotations

import functools
import operator
import sys
import warnings
from typing import Any, NamedTuple

import numpy as np
import pytest

import multifold
from multifold import Fold, LaunchError, RecordError, ragged, shared, static, trace
from multifold.testing import Counting

HELD = [object()]
FREE = sys.getrefcount(HELD[0])
"""What `sys.getrefcount(results[i])` is where only the list ``results`` holds it."""


class Both(NamedTuple):
    """Two outputs by name."""

    first: Any
    second: Any


@pytest.fixture
def model(seam):
    """Ops on floats that are the same in every framework."""
    return {
        "same": lambda x: x,
        "double": lambda x: x * 2,
        "triple": lambda x: x * 3,
        "add": lambda *xs: functools.reduce(operator.add, xs),
        "minus": lambda x, k: x - k,
        "pair": lambda x: (x + 1, x + 2),
        "join": lambda *xs: seam.concat(xs),
        "plus_whole": lambda whole, x: functools.reduce(
            operator.add, seam.split(whole, [1] * seam.rows(whole)), x
        ),
    }


@pytest.fixture
def counted(backend, counting, model):
    """Return a fold, its model and a function that says how many launches it took."""
    return multifold.Fold(backend=counting), model, lambda: counting.counts["call"]


# ---- 1-3: what is one call, and what may share a launch ------------------------------------------


@pytest.mark.parametrize("cse", [False, True])
def test_01_calls_on_different_nodes_stay_different(backend, model, equal, cse):
    fold = multifold.Fold(backend=backend, cse=cse)
    x = fold.add("same", 1.0)
    nodes = [fold.add("same", fold.add(op, x)) for op in ("double", "triple")]
    equal(fold.apply(model, nodes), [2, 3])


@pytest.mark.parametrize("wrap", [lambda k: k, static], ids=["number", "static"])
@pytest.mark.parametrize("cse", [False, True])
def test_01_numbers_of_equal_hash_stay_different(backend, model, equal, cse, wrap):
    assert hash(-1.0) == hash(-2.0)
    fold = multifold.Fold(backend=backend, cse=cse)
    x = fold.add("same", 5.0)
    nodes = [fold.add("minus", x, wrap(k)) for k in (-1.0, -2.0)]
    equal(fold.apply(model, nodes), [6, 7])


def test_02_calls_with_different_constants_run_apart_with_their_own(counted, equal):
    fold, model, calls = counted
    nodes = [fold.add("minus", 1.0, static(k)) for k in (10.0, 20.0, 10.0)]
    equal(fold.apply(model, nodes), [-9, -19, -9])
    assert calls() == 2


def test_03_calls_with_more_operands_keep_them_all(fold, model, equal):
    nodes = [fold.add("add", 1.0, 2.0), fold.add("add", 3.0, 4.0, 5.0)]
    equal(fold.apply(model, nodes), [3, 12])


# ---- 4-6: shared operands ------------------------------------------------------------------------


def test_04_a_shared_first_operand_does_not_set_the_number_of_rows(counted, array, take, equal):
    fold, _, calls = counted
    table = shared(array([[0.0, 1.0], [10.0, 11.0], [20.0, 21.0], [30.0, 31.0]]))
    nodes = [fold.add(take, table, i) for i in (3, 0)]
    equal(fold(nodes), [[30, 31], [0, 1]])
    assert calls() == 1


def test_05_two_no_batch_producers_of_one_level_are_not_interleaved(fold, model, equal):
    a = [fold.add("same", float(i)) for i in range(4)]
    first = fold.add("join", a[0], a[1])
    second = fold.add("join", a[2], a[3])
    results = fold.apply(model, (first.no_batch(), second.no_batch()))
    equal(results[0], [0, 1])
    equal(results[1], [2, 3])


def test_06_no_batch_leaves_the_node_as_it_was(fold, model, equal):
    node = fold.add("same", 3.0)
    view = node.no_batch()
    assert view != node
    others = [fold.add("double", x) for x in (node, fold.add("same", 4.0))]
    equal(fold.apply(model, others), [6, 8])


def test_06_no_batch_survives_split_and_index(fold, array, model, equal):
    model["wide"] = lambda: (array([1.0, 2.0, 3.0]), {"k": array([4.0, 5.0])})
    view = fold.add("wide").no_batch()
    tops = [view.split(2)[0], view[0], view[1]["k"]]
    nodes = [fold.add("plus_whole", top, 0.5) for top in tops]
    equal(fold.apply(model, nodes), [6.5, 6.5, 9.5])


# ---- 7-8: what is refused ------------------------------------------------------------------------


def test_07_fewer_rows_than_nodes_are_an_error_with_both_counts(fold, seam):
    nodes = [fold.add("first", float(i)) for i in range(3)]
    with pytest.raises(LaunchError, match=r"3 nodes.* returned 2 rows for 3 rows"):
        fold.apply({"first": lambda x: seam.split(x, [2, 1])[0]}, nodes)


def test_07_a_result_without_dimensions_is_an_error(fold, array):
    nodes = [fold.add("sum", float(i)) for i in range(3)]
    with pytest.raises(LaunchError, match="returned an array of 0 dimensions for 3 rows"):
        fold.apply({"sum": lambda x: array(7.0)}, nodes)


@pytest.mark.parametrize("place", ["operand", "nested", "ragged", "shared", "part"])
def test_08_a_node_of_another_fold_is_refused(backend, fold, place):
    stranger = multifold.Fold(backend=backend).add("same", 1.0)
    wrap = {"operand": lambda x: x, "nested": lambda x: [x], "ragged": lambda x: ragged([x])}
    wrap |= {"shared": shared, "part": lambda x: x.split(2)[1]}
    with pytest.raises(RecordError, match="another fold"):
        fold.add("add", 1.0, wrap[place](stranger))
    with pytest.raises(RecordError, match="another fold"):
        fold.apply({"same": lambda x: x}, [stranger])
    assert len(fold) == 0


def test_08_a_node_from_before_a_reset_is_refused(fold, model, equal):
    old = fold.add("same", 1.0)
    fold.reset()
    assert len(fold) == 0
    with pytest.raises(RecordError, match="reset"):
        fold.add("same", old)
    with pytest.raises(RecordError, match="reset"):
        fold.apply(model, [old])
    equal(fold.apply(model, [fold.add("double", 4.0)]), [8])


# ---- 9-12: types ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("cse", "rows"), [(False, 3), (True, 1)])
def test_09_equal_calls_are_merged_with_cse_only(backend, seam, equal, cse, rows):
    fold = multifold.Fold(backend=backend, cse=cse)
    seen = []

    def dropout(x):
        seen.append(seam.rows(x))
        return x

    equal(fold.apply({"dropout": dropout}, [fold.add("dropout", 0.5) for _ in range(3)]), [0.5] * 3)
    assert seen == [rows]


def test_09_cse_tells_types_operands_and_static_arguments_apart(backend, array):
    fold = multifold.Fold(backend=backend, cse=True)
    node = fold.add("g")
    x = array([[1.0]])
    y = array([[1.0]])
    distinct = [
        *((1,), (2,), (1.0,), (2.0,), (True,), (False,), (1, 1), ([1],), (static(1),), (static(1.0),)),
        *((node,), (node.split(2)[1],), (node.no_batch(),), (x,), (y,), (shared(x),), (shared(y),)),
        *((ragged([1]),), (ragged([2]),), (ragged([1, 2]),), (ragged([node]),), (ragged([x]),)),
    ]
    keywords = ({}, {"k": 1}, {"k": 1.0}, {"k": True})
    calls = [fold.add("f", *operands, **k) for operands in distinct * 2 for k in keywords]
    assert len(fold) - 1 == len(set(calls)) == len(distinct) * len(keywords)


def test_10_int_and_float_rows_of_one_op_do_not_promote_each_other(counted, to_numpy):
    fold, model, calls = counted
    nodes = [fold.add("same", fold.add("same", x)) for x in (1, 2.5, 3, 4.5)]
    ints, floats = to_numpy(fold.apply(model, (nodes[::2], nodes[1::2])))
    assert (ints.dtype.kind, ints.tolist()) == ("i", [1, 3])
    assert (floats.dtype.kind, floats.tolist()) == ("f", [2.5, 4.5])
    assert calls() == 4


def test_11_two_trailing_shapes_at_one_level_are_two_launches(counted, array, equal):
    fold, model, calls = counted
    rows = [array([[1.0, 2.0]]), array([[3.0]]), array([[4.0, 5.0]])]
    nodes = [fold.add("double", fold.add("same", x)) for x in rows]
    wide, slim = fold.apply(model, ([nodes[0], nodes[2]], [nodes[1]]))
    equal(wide, [[2, 4], [8, 10]])
    equal(slim, [[6]])
    assert calls() == 4


def test_11_two_shared_operands_at_one_level_are_two_launches(counted, array, take, equal):
    fold, _, calls = counted
    tables = [shared(array([k, k + 1.0])) for k in (10.0, 20.0)]
    nodes = [fold.add(take, tables[i % 2], i // 2) for i in range(4)]
    equal(fold(nodes), [10, 20, 11, 21])
    assert calls() == 2


def test_12_nodes_arrays_and_numbers_meet_where_their_types_agree(fold, seam, array, model, equal, total):
    node = fold.add("double", 4.0)
    mixed = [node, 1.0, array([2.0]), np.array([3.0], seam.number_dtype(float))]
    nodes = [fold.add(total, ragged(mixed)), *(fold.add("double", x) for x in mixed)]
    group, values = fold.apply(model, (mixed, nodes))
    equal(group, [8, 1, 2, 3])
    equal(values, [14, 16, 2, 4, 6])


def test_12_rows_that_do_not_agree_are_an_error_that_names_both(fold, array, model, total):
    row = fold.add("same", array([[1.0, 2.0]]))
    slim = fold.add("same", array([[3.0]]))
    with pytest.raises(LaunchError, match=r"(?s)\(2,\).*\(1,\)|2.*1"):
        fold.apply(model, [row, slim])
    with pytest.raises(LaunchError, match=rf"(?s)total.*{__file__}"):
        fold.apply(model, [fold.add(total, ragged([row, slim]))])
    with pytest.raises(LaunchError, match=r"(?s)int.*float|float.*int"):
        fold.apply(model, [[1, 2.0]])


# ---- 13-17: misuse -------------------------------------------------------------------------------


def unpack(node):
    _, _ = node


def test_an_array_in_ragged_has_the_rows_of_a_node(fold, array, seam):
    """The framework's, or NumPy's: no row of it need be cut out by hand."""
    rows, none = array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), array(np.zeros((0, 2)))
    one = fold.add("same", array([[7.0, 8.0]]))
    own = np.ones((2, 2), seam.number_dtype(float))
    found = fold.apply(
        {"same": lambda x: x, "sum": lambda kids: multifold.ops.segment_sum(kids.values, kids)},
        [[fold.add("sum", ragged(x)) for x in (rows, none, own, [one, one])]],
    )
    assert seam.to_numpy(found[0]).tolist() == [[9, 12], [0, 0], [2, 2], [14, 16]]
    assert [len(launch) for launch in fold.schedule().launches] == [1, 4]


def test_a_single_number_is_no_list_of_rows():
    with pytest.raises(RecordError, match="write the brackets"):
        ragged(np.ones(()))


@pytest.mark.parametrize(
    "use", [list, lambda n: max(*n), lambda n: 1 in n, unpack, tuple, sum, iter], ids=range(7)
)
def test_13_a_node_can_not_be_iterated(fold, use):
    with pytest.raises(RecordError, match=r"Hint: use \.split\(n\)"):
        use(fold.add("pair", 1.0))


def test_14_an_op_that_raises_is_named_with_its_launch_and_the_line(fold, array, model, equal):
    def broken(x, y, k):
        raise KeyError("on purpose")

    nodes = [fold.add("broken", array([[1.0, 2.0]]), float(i), k=3) for i in range(5)]
    line = sys._getframe().f_lineno - 1
    with pytest.raises(LaunchError) as caught:
        fold.apply({"broken": broken}, nodes)
    for words in ("'broken'", "5 nodes", "KeyError", "(5, 2)", "(5,)", f"{__file__}:{line}"):
        assert words in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)
    equal(fold.apply({"broken": lambda x, y, k: x * k}, nodes), [[3, 6]] * 5)


@pytest.mark.parametrize("outputs", [[], (), {}])
def test_15_no_outputs_are_no_results(fold, model, outputs):
    fold.add("same", 1.0)
    assert fold.apply(model, outputs) == outputs
    assert multifold.Unfold(model, backend="numpy").apply(None, outputs) == outputs


def test_15_outputs_keep_the_class_of_their_tuples(fold, model, equal):
    got = fold.apply(model, Both([fold.add("same", 1.0)], fold.add("same", 2.0)))
    assert type(got) is Both
    equal(got.first, [1.0])
    equal(got.second, [2.0])


def test_15_outputs_that_were_not_awaited_are_refused_with_the_way_out(fold):
    async def node():
        return fold.add("same", 1.0)

    waiting = node()
    with pytest.raises(RecordError, match="`await` it first"):
        fold([waiting])
    waiting.close()


@pytest.mark.parametrize("wrap", [lambda g: [g], lambda g: (g, [1]), lambda g: {"a": g}])
def test_15_an_empty_group_is_an_error_that_says_what_to_do(fold, model, wrap):
    with pytest.raises(RecordError, match="Hint: leave the group out"):
        fold.apply(model, wrap([]))


@pytest.fixture
def running_total():
    """A cell with two states: the sum of its inputs, and the number of steps."""

    def cell(seam, width):
        start = np.zeros((1, width), seam.number_dtype(float))
        begin = lambda: (seam.constant(start, None), seam.constant(start, None))  # noqa: E731
        return multifold.Cell(lambda x, s, k: (s + x + k, s + x, k + 1), begin, 2)

    return cell


def by_hand(x):
    """Return outputs and last states of the running total over rows ``x``."""
    steps = np.arange(len(x))[:, None]
    return np.cumsum(x, 0) + steps, [x.sum(0, keepdims=True), np.full((1, x.shape[1]), len(x))]


@pytest.mark.parametrize("layout", ["NTC", "TNC"])
def test_16_cells_unroll_in_both_layouts(fold, seam, array, running_total, equal, layout):
    cell = running_total(seam, 2)
    xs = [np.arange(2.0 * n).reshape(n, 2) for n in (3, 1, 4)]
    for x in xs:
        given = array(x[None] if layout == "NTC" else x[:, None])
        outputs, states = fold.unroll(cell, len(x), given, layout=layout)
        expected, last = by_hand(x)
        got = fold((outputs, *states))
        equal(got[0], expected)
        equal(got[1], last[0])
        equal(got[2], last[1])


def test_16_stacked_and_bidirectional_cells_unroll(fold, seam, array, running_total, equal):
    cell = running_total(seam, 1)
    x = np.array([[1.0], [2.0], [4.0]])
    both = multifold.Bidirectional(cell, cell, lambda a, b: a - b)
    outputs, states = fold.unroll(multifold.Stack((both, cell)), 3, array(x[None]))
    layer = by_hand(x)[0] - by_hand(x[::-1])[0][::-1]
    equal(fold(outputs), by_hand(layer)[0])
    equal(fold(states[0][1][0]), [[7]])
    equal(fold(states[1][0]), [[layer.sum()]])


def test_16_a_layer_without_states_may_stand_in_a_stack(fold, seam, array, running_total, equal):
    """As a layer of dropout does."""
    twice = multifold.Cell(lambda x: (x + x,), None, 0)
    stack = multifold.Stack((twice, running_total(seam, 1)))
    outputs, (none, (total, _)) = fold.unroll(stack, 3, array([[[1.0], [2.0], [4.0]]]))
    assert none == []
    equal(fold([*outputs, total]), [[2], [7], [16], [14]])


def test_16_the_steps_of_an_input_may_be_numbers(fold, seam, array, running_total, equal):
    start = seam.constant(np.zeros(1, seam.number_dtype(float)), None)
    cell = multifold.Cell(lambda x, s: (s + x, s + x), lambda: (start,), 1)
    outputs, _ = fold.unroll(cell, 3, array([[1.0, 2.0, 4.0]]))
    equal(fold(outputs), [1, 3, 7])


def test_16_each_direction_begins_with_its_own_state(fold, seam, array, running_total, equal):
    cell = running_total(seam, 1)
    x = np.array([[1.0], [2.0]])
    both = multifold.Bidirectional(cell, cell, lambda a, b: a - b)
    begin = [[array([[value]])] * cell.states for value in (10.0, 200.0)]
    _, (there, back) = fold.unroll(both, 2, array(x[None]), begin_state=begin)
    equal(fold(there[0]), [[13]])
    equal(fold(back[0]), [[203]])


def test_16_steps_of_many_examples_share_launches(counted, seam, array, running_total, equal):
    fold, _, calls = counted
    cell = running_total(seam, 1)
    ones = {n: fold.unroll(cell, n, [array([[1.0]]) for _ in range(n)]) for n in (2, 3, 5)}
    equal(fold([states[0] for _, states in ones.values()]), [[2], [3], [5]])
    assert calls() == 1 + 5


def test_17_a_new_function_for_each_call_warns_once_and_names_the_line(fold):
    nodes = [fold.add(lambda x: x, float(i)) for i in range(5)]
    line = sys._getframe().f_lineno - 1
    with pytest.warns(UserWarning, match=rf"{__file__}:{line}") as caught:
        fold(nodes)
    assert [(warning.filename, warning.lineno) for warning in caught] == [(__file__, line + 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fold(nodes)


def test_17_functions_that_are_made_once_do_not_warn(fold, array):
    def double(x):
        return x + x

    nodes = [fold.add(double, array(np.ones((1, width)))) for width in (1, 2, 3)]
    nodes += [fold.add(double, 1.0), fold.add(double, 1), fold.add(lambda x: x, 1.0)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fold(tuple(nodes))


# ---- 18-21: sizes, order, levels -----------------------------------------------------------------


def test_18_none_one_and_a_diamond(fold, model, equal):
    assert len(fold) == len(fold.schedule()) == 0
    top = fold.add("same", 1.0)
    assert len(fold.schedule()) == 1
    bottom = fold.add("add", fold.add("double", top), fold.add("triple", top))
    equal(fold.apply(model, [bottom, top]), [5, 1])


def test_19_rows_come_back_in_the_order_asked(fold, model, equal):
    nodes = [fold.add("same", fold.add("double", float(i))) for i in range(6)]
    orders = {"b": [5, 0, 3], "a": [2, 2, 1, 5], "c": [4]}
    got = fold.apply(model, {name: [nodes[i] for i in order] for name, order in orders.items()})
    assert list(got) == ["b", "a", "c"]
    for name, order in orders.items():
        equal(got[name], 2.0 * np.array(order))


def test_20_a_shared_operand_of_the_same_minibatch_has_values_and_gradients(
    backend, model, equal, gradients
):
    def run(p):
        fold = multifold.Fold(backend=backend)
        rows = [fold.add("double", fold.add("same", p[name])) for name in "abc"]
        whole = fold.add("join", *rows[:2]).no_batch()
        return fold.apply(model, [fold.add("plus_whole", whole, row) for row in rows])

    values = {name: [[float(i), i + 1.0]] for i, name in enumerate("abc")}
    found = gradients(run, values)
    for name, count in zip("abc", (4, 4, 1), strict=True):
        np.testing.assert_allclose(found[name], [[2.0 * count] * 2], rtol=1e-4)
    equal(run({k: np.array(v) for k, v in values.items()}), [[2, 8], [4, 10], [6, 12]])


def test_21_outputs_at_eight_heights_are_one_launch(counted, equal):
    fold, model, calls = counted
    outputs = []
    for height in range(1, 9):
        x = 1.0
        for _ in range(height):
            x = fold.add("double", x)
        outputs.append(fold.add("triple", x))
    equal(fold.apply(model, outputs), 3.0 * 2 ** np.arange(1, 9))
    assert calls() == 1 + 7 + 1  # double on a number, seven times on a node, triple once


# ---- 22-24: frameworks ---------------------------------------------------------------------------


def test_22_ops_are_looked_up_inside_wrappers(fold, seam, model, equal, monkeypatch):
    class Wrapper:
        def __init__(self, module):
            self.module = module

    inside = lambda self, x: inside(self, x.module) if isinstance(x, Wrapper) else x  # noqa: E731
    monkeypatch.setattr(type(seam), "unwrap", inside)
    wrapped = Wrapper(Wrapper({**model, "inner": Wrapper(model)}))
    equal(fold.apply(wrapped, [fold.add("inner.double", fold.add("triple", 2.0))]), [12])


def test_23_indices_of_the_library_are_within_bounds(backend, seam, array, monkeypatch):
    gather = type(seam).gather
    checked = []

    def careful(self, x, rows):
        at = self.to_numpy(rows)
        checked.append(at.min() >= 0 and at.max() < self.rows(x))
        return gather(self, x, rows)

    monkeypatch.setattr(type(seam), "gather", careful)
    fold = multifold.Fold(backend=backend)
    rows = [fold.add("same", array([[float(i)]])) for i in range(7)]
    sums = [fold.add("add", rows[i], rows[6 - i // 2]) for i in (3, 1, 5, 0, 6)]
    fold.apply({"same": lambda x: x, "add": lambda a, b: a + b}, [*sums[::-1], rows[2], sums[0]])
    assert checked
    assert all(checked)


def test_23_an_index_error_of_the_users_op_surfaces(fold, seam):
    nodes = [fold.add("embed", i) for i in (0, 3)]
    with pytest.raises(LaunchError, match=r"2 nodes.* IndexError") as caught:
        fold.apply({"embed": lambda i: np.arange(3)[seam.to_numpy(i)]}, nodes)
    assert isinstance(caught.value.__cause__, IndexError)


def test_24_blocks_are_freed_after_their_last_reader(fold, array):
    results = []
    held = []

    def step(x):
        held.append(sum(sys.getrefcount(results[i]) > FREE for i in range(len(results) - 1)))
        results.append(x + 1)
        return results[-1]

    x = array([[0.0, 1.0]])
    for _ in range(20):
        x = fold.add(step, x)
    last = fold([x])
    assert max(held) == 0
    del last, x
    assert [sys.getrefcount(results[i]) for i in range(20)] == [FREE] * 20


def test_a_model_that_is_a_mapping_may_have_methods(fold):
    class Model(dict):
        def __call__(self, x):
            return x + x

    assert fold.apply(Model(), [[fold.add("__call__", 1.0)]])[0].shape == (1,)


def test_what_launches_have_shown_is_not_found_out_again_at_each_level():
    """Two widths through twelve levels of three ops: each op is divided once, then its shapes are known."""
    counting = Counting("numpy")
    fold = Fold(backend=counting)
    nodes = []
    for width in (2, 3):
        for ops in ("bca" * 4, "abc" * 4):
            x = fold.add("start", np.ones((1, width)))
            for op in ops:
                x = fold.add(op, x)
            nodes.append(x)
    fold.apply({op: lambda x: x + 1 for op in ("start", "a", "b", "c")}, tuple(nodes))
    # The orders are out of phase by two ops. Where they begin, calls of a width lie together or apart.
    assert counting.counts["call"] <= 2 + 2 * 14


# ---- ragged operands without rows ------------------------------------------------------------------

SAID = {
    "empty": ([(1, 2, False), (1, 0, True)], 1),
    "empty first": ([(1, 0, True), (1, 2, False)], 1),
    "all said": ([(1, 0, True), (1, 2, True)], 1),
    "another width": ([(1, 2, False), (2, 0, True)], 2),
    "another width first": ([(2, 0, True), (1, 2, False)], 2),
    "two widths said": ([(1, 0, True), (2, 0, True), (1, 2, False)], 2),
    "first of two widths": ([(1, 2, False), (2, 2, False), (1, 0, True)], 2),
    "second of two widths": ([(1, 2, False), (2, 2, False), (2, 0, True)], 2),
}
"""Name -> for each call the width of a row, how many rows, and whether the width is said; launches."""


@pytest.mark.parametrize("traced", [False, True], ids=["fold", "trace"])
@pytest.mark.parametrize(("calls", "launches"), SAID.values(), ids=SAID)
def test_nodes_without_rows_share_the_launch_of_those_with_rows(
    calls, launches, traced, backend, total, seam, to_numpy
):

    def row(i, width):
        made = np.repeat(seam.to_numpy(i)[:, None] + 1.0, width, 1)
        return seam.constant(made.astype(seam.number_dtype(float)), None)

    def record(fold, _):
        nodes = []
        for width, rows, said in calls:
            made = [fold.add("row", i, width=width) for i in range(rows)]
            nodes.append(fold.add("sum", ragged(made, (width,) if said else None)))
        return tuple(nodes)

    model = {"row": row, "sum": total}
    fold = Fold(backend=backend)
    expected = [[n * (n + 1) / 2] * w for w, n, _ in calls]
    got = fold.run(model, [trace(record, 0)]) if traced else fold.apply(model, record(fold, 0))
    assert [x.tolist() for x in to_numpy(got)] == [[one] for one in expected]
    assert len(fold._last[0].notes.times) == launches + len({w for w, n, _ in calls if n})


def test_traces_with_and_without_rows_share_a_launch(fold, total, to_numpy):
    def record(fold, rows):
        return fold.add("sum", ragged([np.ones((1, 2), "float32")] * rows, (2,), "float32"))

    fold = Fold(backend=fold._backend)
    batch = multifold.merge([trace(record, rows) for rows in (2, 0, 1)])
    assert len(batch.plan.schedule) == 1
    assert to_numpy(fold.run({"sum": total}, batch)).tolist() == [[2, 2], [0, 0], [1, 1]]
