"""Programs: schedules laid out as data, held to what a fold and its eager twin compute."""

from __future__ import annotations

import importlib.util
import pickle
import sys
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import multifold
from multifold import Fold, LaunchError, Unfold, ragged
from multifold._numpy.backend import NumpyBackend
from multifold.program import Programs, Tiler, run

# Test modules do not import each other: the random graphs are loaded by their file.
spec = importlib.util.spec_from_file_location("graphs", Path(__file__).parents[1] / "test_properties.py")
graphs = importlib.util.module_from_spec(spec)
spec.loader.exec_module(graphs)
model = graphs.model
parameters = graphs.parameters


@pytest.fixture
def numpy_only(backend):
    if backend != "numpy":
        pytest.skip("the interpreter is NumPy's; executors have tests beside them")


@settings(graphs.relaxed, max_examples=60)
@given(program=graphs.programs, choice=graphs.picks, policy=graphs.policies)
def test_interpreter_equals_unfold(numpy_only, array, model, equal, parameters, program, choice, policy):
    p = {name: array(values) for name, values in parameters.items()}
    fold = Fold(backend="numpy", schedule=policy)
    unfold = Unfold(model(p), backend="numpy")
    laid_out = fold.program(graphs.groups(graphs.record(fold, program, p), choice), model(p))
    tiler = Tiler(laid_out)
    got = run(model(p), laid_out)
    tiled = run(model(p), tiler.tiled(tiler.own()))
    cycles = Tiler(laid_out, cycles=True)
    in_turns = run(model(p), cycles.tiled(cycles.own()))
    expected = unfold.apply(None, graphs.groups(graphs.record(unfold, program, p), choice))
    for *own, x in zip(got, tiled, in_turns, expected, strict=True):
        for y in own:
            equal(y, x)


def test_a_tile_pads_before_any_row_of_its_slab_is_computed(numpy_only, model, parameters):
    fold = Fold(backend="numpy")
    empty = fold.add("total", ragged([], row_shape=(2,)))
    total = fold.add("total", ragged([empty], row_shape=(2,)))
    tiler = Tiler(fold.program([[total]]))
    assert run(model(parameters), tiler.tiled(tiler.own()))[0].tolist() == [[0, 0]]


def test_a_tile_pads_rows_that_are_pairs_before_any_is_computed(numpy_only):
    def twice(rows):
        return tuple(np.add(sums(rows, x), 1.0) for x in rows.values)

    def sums(rows, x):
        return np.array([part.sum(0) for part in np.split(x, np.cumsum(rows.lengths)[:-1])])

    fold = Fold(backend="numpy")
    pair = fold.add("twice", ragged([fold.add("twice", ragged([], ((2,), ())))], ((2,), ())))
    tiler = Tiler(fold.program([[pair[0]], [pair[1]]]))
    got = run({"twice": twice}, tiler.tiled(tiler.own()))
    assert [x.tolist() for x in got] == [[[2.0, 2.0]], [2.0]]


@settings(graphs.relaxed, max_examples=40)
@given(first=graphs.programs, second=graphs.programs)
def test_programs_of_one_fold_share_what_they_learn_and_stay_right(
    numpy_only, array, model, equal, parameters, first, second
):
    p = {name: array(values) for name, values in parameters.items()}
    fold = Fold(backend="numpy")

    def example(recorder, program, turn):
        made = graphs.record(recorder, (program, [turn]), p)
        return {"narrow": made[2][-3:], "wide": made[3][:-3:-1]}

    for instructions, turns in (first, second, first):
        traces = [
            multifold.trace(lambda recorder, turn, i=instructions: example(recorder, i, turn), turn)
            for turn in turns
        ]
        laid_out = fold.program(traces, model(p))
        expected = Fold(backend="numpy").run(model(p), traces)
        tiler = Tiler(laid_out, pad=True)
        tiled = run(model(p), tiler.tiled(tiler.own()))
        for name, rows in run(model(p), laid_out).items():
            equal(rows, expected[name])
            equal(tiled[name][: len(rows)], expected[name])


# ---- operands --------------------------------------------------------------------------------------


TOTALS = {
    "double": lambda x: 2 * x,
    "total": lambda rows: np.add.reduceat(rows.values, np.cumsum(rows.lengths) - rows.lengths),
}


@pytest.mark.parametrize("model", [None, TOTALS])
@pytest.mark.parametrize("leaf", [1.0, np.array([[1.0, 2.0]])])
def test_numbers_and_arrays_inside_ragged_operands_enter_programs(leaf, model):
    fold = Fold(backend="numpy")
    node = fold.add("double", leaf)
    totals = [fold.add("total", ragged(items)) for items in ([node, 3 * leaf], [5 * leaf, node, 7 * leaf])]
    got = run(TOTALS, fold.program([totals], model))[0]
    assert got.tolist() == np.concatenate([[5 * leaf], [14 * leaf]]).reshape(got.shape).tolist()


def test_static_arguments_reach_ops_before_and_in_a_program_laid_out_with_the_model():
    fold = Fold(backend="numpy")
    model = {"widen": lambda x, width: np.repeat(x[:, None], width, axis=1)}
    outputs = [[fold.add("widen", 2.0, width=width)] for width in (1, 3)]
    assert [x.tolist() for x in run(model, fold.program(outputs, model))] == [[[2.0]], [[2.0] * 3]]


def test_shared_and_whole_operands_enter_programs():
    fold = Fold(backend="numpy")
    model = {"table": lambda: np.array([[5.0], [7.0]]), "pick": lambda t, by, x: t.sum() * by[0] * x}
    table = fold.add("table").no_batch()
    by = multifold.shared(np.array([10.0]))
    outputs = [fold.add("pick", table, by, x) for x in (1.0, 2.0)]
    assert run(model, fold.program([outputs], model))[0].tolist() == [120.0, 240.0]


def test_a_result_that_is_asked_for_whole_is_returned_whole():
    fold = Fold(backend="numpy")
    model = {"table": lambda: np.array([[5.0], [7.0]])}
    got = run(model, fold.program([fold.add("table").no_batch()]))
    assert got[0].tolist() == [[5.0], [7.0]]


def test_calls_of_two_widths_have_one_form_in_whichever_order_they_come():
    fold = Fold(backend="numpy")
    model = {"f": lambda x: x * 2}
    programs = [
        fold.program([[fold.add("f", fold.add("f", np.ones((1, width))))] for width in widths], model)
        for widths in ((2, 3), (3, 2), (2, 3))
    ]
    for program, widths in zip(programs, ((2, 3), (3, 2), (2, 3)), strict=True):
        assert [x.tolist() for x in run(model, program)] == [[[4.0] * width] for width in widths]
    assert programs[0].form == programs[2].form
    assert [(len(x.form.kernels), x.form.slabs) for x in programs] == [(4, 6)] * 3


# ---- forms and sizes -----------------------------------------------------------------------------


def chain(fold, ops):
    """Apply an op for each letter."""
    x = fold.add("start", 1)
    for op in ops:
        x = fold.add(op, x)
    return fold.add("end", x)


def traces_of(*words):
    return [multifold.trace(chain, word) for word in words]


def test_one_form_whatever_the_structure_the_order_and_the_ops_that_are_missing():
    fold = Fold(backend="numpy")
    forms = [fold.program(traces_of(*words)).form for words in (("ab", "ba"), ("aab",), ("b", "aa"), ("",))]
    assert len(set(forms)) == 1
    assert Fold(backend="numpy").program(traces_of("ba", "ab")).form == forms[0]


def test_a_new_op_and_a_new_static_argument_are_new_forms():
    fold = Fold(backend="numpy")
    for by in (1, 2, 1):
        fold.program([multifold.trace(lambda f, x, by=by: f.add("end", f.add("f", x, by=by)), 1)])
    assert len(fold.programs) == 2


@pytest.mark.parametrize("width", [2, 3])
def test_ragged_operands_without_rows_are_of_the_kernel_of_those_with_rows(width):
    def record(fold, rows):
        return fold.add("sum", ragged([np.ones((1, 2))] * rows, None if rows else (width,)))

    def total(rows):
        sums = np.zeros((len(rows.lengths), *rows.values.shape[1:]))
        np.add.at(sums, rows.segment_ids, rows.values)
        return sums

    fold = Fold(backend="numpy")
    model = {"sum": total}
    program = fold.program(tuple(record(fold, rows) for rows in (2, 0)), model)
    assert len(program.form.kernels) == (1 if width == 2 else 2)
    assert [x.tolist() for x in run(model, program)] == [[[2, 2]], [[0] * width]]


def test_a_launch_of_a_ragged_op_has_a_segment_for_each_of_its_rows():
    def total(rows):
        assert len(rows.segment_ids) == len(rows.values) == rows.lengths.sum()
        return np.bincount(rows.segment_ids, rows.values, len(rows.lengths))

    fold = Fold(backend="numpy")
    x = fold.add("total", ragged([1.0, 2.0]))
    for n in (3, 1, 2):
        x = fold.add("total", ragged([x] * n))
    assert [rows.tolist() for rows in run({"total": total}, fold.program([[x]]))] == [[18.0]]


def test_slices_of_results_may_be_read_by_ops_and_asked_for():
    def record(fold, x):
        parts = fold.add("three", x)
        read = fold.add("plus", parts[::2][1], parts[1:][0])
        return {"slice": parts[1:], "part": parts[:2][1], "read": read}

    model = {"three": lambda x: (x, 2 * x, 3 * x), "plus": lambda a, b: a + b}
    fold = Fold(backend="numpy")
    traces = [multifold.trace(record, x) for x in (1, 2)]
    program = fold.program(traces)
    again = pickle.loads(pickle.dumps(fold.program(traces[::-1])))
    got = run(model, program)
    assert [x.tolist() for x in got["slice"]] == [[2, 4], [3, 6]]
    assert (got["part"].tolist(), got["read"].tolist()) == ([2, 4], [5, 10])
    assert program.form == again.form and hash(program.form) == hash(again.form)


def test_results_of_different_shapes_may_be_asked_for_in_turn():
    fold = Fold(backend="numpy")
    model = {"two": lambda x: np.stack([x, x], 1), "sum": lambda x: x.sum(1)}
    rows = [fold.add("two", i) for i in range(2)]
    for outputs, expected in ((rows, [[0, 0], [1, 1]]), ([fold.add("sum", x) for x in rows], [0, 2])):
        np.testing.assert_array_equal(run(model, fold.program([outputs]))[0], expected)


def test_programs_pickle():
    program = Fold(backend="numpy").program(traces_of("ab", "b"))
    again = pickle.loads(pickle.dumps(program))
    assert again.form == program.form and hash(again.form) == hash(program.form)
    model = {"start": lambda x: x, "a": lambda x: x + 1, "b": lambda x: 2 * x, "end": lambda x: -x}
    assert run(model, again).tolist() == [-4, -2]


def test_a_partial_function_made_again_is_the_same_op_of_a_form():
    forms = [forms_of(lambda fold: [[fold.add(partial(np.add, 1), 1.0)]])[0] for _ in range(2)]
    assert forms[0] == forms[1] and hash(forms[0]) == hash(forms[1])


def random_tree(fold, sizes):
    """Record a binary tree whose left subtrees have some share of the leaves."""
    rng = np.random.default_rng(sizes)
    stack = [fold.add("leaf", i) for i in range(40)]
    while len(stack) > 1:
        at = int(rng.integers(len(stack) - 1))
        stack[at : at + 2] = [fold.add("join", *stack[at : at + 2])]
    return stack[0]


def test_trees_are_packed_into_as_few_tiles_as_there_can_be():
    program = Fold(backend="numpy").program([multifold.trace(random_tree, i) for i in range(20)])
    depth = len(program.launches) - 1
    for tile in (8, 16, 64):
        packing = Tiler(program).packed(1, tile, ((),))
        # No schedule has fewer tiles than there are levels, or than the rows need; the two add up at worst.
        assert len(packing.kernel) <= max(depth, -(-20 * 39 // tile)) + 3
    cut = sum(-(-rows // 64) for rows in program.launches[1:, 2].tolist())
    assert len(Tiler(program).packed(1, 64, ((),)).kernel) < cut


def test_every_tile_that_pads_before_its_slab_is_computed_has_rows_of_its_own():
    fold = Fold(backend="numpy")
    empty = [fold.add("sum", ragged([], row_shape=(2,))) for _ in range(300)]
    tiler = Tiler(
        fold.program([[fold.add("sum", ragged([fold.add("plus", x) for x in empty], row_shape=(2,)))]])
    )
    made = tiler.tiled(tiler.own())
    assert np.count_nonzero(made.launches[:, 2]) > 3
    assert run({"sum": sums, "plus": lambda x: x + 1}, made)[0].tolist() == [[300.0, 300.0]]


def test_a_ragged_tile_has_a_row_and_a_member_that_pad():
    def total(fold, lengths):
        x = fold.add("leaf", 1.0)
        for length in lengths:
            x = fold.add("total", ragged([x] * length, ()))
        return x

    program = Fold(backend="numpy").program([multifold.trace(total, (n % 3, 2, n)) for n in range(1, 9)])
    tiler = Tiler(program)
    tiled = tiler.tiled(tiler.own())
    (loop,) = [phase for phase in tiled.form.phases if phase.loop]
    kernel = loop.kernels[0]
    (operand,) = tiled.form.kernels[kernel].operands
    (column,) = tiled.columns[kernel]
    for _, first, rows in tiled.launches[tiled.bounds[1] : tiled.bounds[2]].tolist():
        if rows:
            splits = column.splits[first : first + rows + 1]
            assert splits[-1] - splits[0] == operand.edges
            assert splits[-1] > splits[-2]  # nor is the last row empty, which always pads
            members = column.segments[splits[0] : splits[-1]]
            np.testing.assert_array_equal(np.bincount(members, minlength=rows), np.diff(splits))


def programs_in_tiles(budget):
    """Return the programs of a fold whose backend pads launches to tiles, and the fold."""

    class Tiles(NumpyBackend):
        tiles = True

    fold = Fold(backend=Tiles())
    fold._programs = programs = Programs("auto")
    programs.budget = budget
    return programs, fold


def test_a_program_takes_sizes_that_another_had():
    programs, fold = programs_in_tiles(budget=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for words in (["abab", "ba"] * 10, ["ba"] * 20, ["b", "a"] * 10):
            fold.program(traces_of(*words))
    said = r"have 2 forms, and .* the budget is 1\. New: .*once start: 320 rows \(before 20 rows\); "
    with pytest.warns(UserWarning, match=said):
        fold.program(traces_of(*["ab"] * 300))
    assert "4 programs of 2 forms (budget 1)" in str(programs)
    assert "once start: 20 rows; loop a, b" in str(programs)


def test_forms_beyond_the_budget_are_told_of_when_they_double_and_how_to_pad_results():
    programs, fold = programs_in_tiles(budget=2)
    warned = []
    for n in range(1, 10):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fold.program([fold.add("double", 1.0)] * n)
        warned += [(len(programs), str(one.message)) for one in caught]
    assert [forms for forms, _ in warned] == [3, 5, 9]
    assert all("Hint: pad results by fold.program(traces, pad=True)" in text for _, text in warned)


def test_making_a_program_does_not_loop_over_calls():
    """The Python and C calls do not grow with the calls of a trace."""

    def wide(fold, n):
        return [fold.add("last", fold.add("first", i)) for i in range(n)]

    def calls_made(n):
        batch = multifold.merge([multifold.trace(wide, n)] * 4)
        fold = Fold(backend="numpy")
        count = 0

        def profile(frame, event, arg):
            nonlocal count
            count += event in ("call", "c_call")

        fold.program(batch)
        sys.setprofile(profile)
        fold.program(batch)
        sys.setprofile(None)
        return count

    assert calls_made(500) == calls_made(20)


# ---- what programs of one fold share ---------------------------------------------------------------


def forms_of(*records):
    """Return the forms of programs of one fold."""
    fold = Fold(backend="numpy")
    return [fold.program(record(fold)).form for record in records]


def with_table(values):
    table = multifold.shared(np.array(values))
    return lambda fold: [[fold.add("plus", table, x) for x in (1.0, 2.0)]]


def test_shared_arrays_are_data_of_a_program_and_not_of_its_form():
    fold = Fold(backend="numpy")
    model = {"plus": lambda table, x: table.sum() + x}
    programs = [fold.program(with_table(values)(fold)) for values in ([1.0], [5.0, 5.0])]
    assert programs[0].form == programs[1].form and len(programs[0].shared) == 1
    assert [run(model, program)[0].tolist() for program in programs] == [[2.0, 3.0], [11.0, 12.0]]


@pytest.mark.parametrize("operand", [multifold.static, multifold.shared])
def test_positional_values_are_of_the_form(operand):
    def record(value):
        return lambda fold: [[fold.add("f", operand(value), 1.0)]]

    one, same, other = (forms_of(record(value))[0] for value in (2, 2, 3))
    assert one == same and one != other
    assert [len(form.kernels) for form in forms_of(record(2), record(3), record(2))] == [1, 2, 2]


def test_forms_do_not_depend_on_the_order_of_static_values_and_of_parts():
    def of_statics(values):
        return lambda fold: [[fold.add("f", multifold.static(value), 1.0) for value in values]]

    def of_parts(parts):
        def record(fold):
            pair = fold.add("pair", 1.0)
            return [[fold.add("f", pair[part]) for part in parts]]

        return record

    assert forms_of(of_statics("ab")) == forms_of(of_statics("ba"))
    assert forms_of(of_parts((0, 1))) == forms_of(of_parts((1, 0)))


def test_ops_that_can_not_be_hashed_have_one_kernel_each():
    class Op:
        __hash__ = None

        def __init__(self, by):
            self.by = by

        def __call__(self, x):
            return self.by * x

    fold = Fold(backend="numpy")
    double = Op(2)
    triple = Op(3)
    program = fold.program([[fold.add(op, 1.0) for op in (double, triple, double)]])
    assert len(program.form.kernels) == 2
    assert run(None, program)[0].tolist() == [2.0, 3.0, 2.0]


@pytest.mark.parametrize("value", [0.5, True, np.ones((1, 2), np.float32), np.ones((1, 3), np.int16)])
def test_given_rows_of_an_earlier_program_are_empty_arrays_of_their_class(value):
    fold = Fold(backend="numpy")
    first = fold.program([[fold.add("sum", ragged([fold.add("leaf", 1.0), value]))]])
    later = fold.program([[fold.add("sum", ragged([fold.add("leaf", 1.0)]))]])
    (before,) = first.given
    (after,) = later.given
    assert (before.dtype, before.shape) == (after.dtype, (1, *after.shape[1:])) and len(after) == 0
    assert first.form == later.form


def test_calls_that_no_output_needs_make_no_loop_and_no_row():
    fold = Fold(backend="numpy")
    one = fold.add("f", 1.0)
    fold.add("g", fold.add("f", 2.0), one)
    program = fold.program([[one]])
    assert [phase.loop for phase in program.form.phases] == [False] and program.sizes.tolist() == [1]


def test_calls_without_batched_operands_share_one_row():
    fold = Fold(backend="numpy")
    model = {"zeros": lambda: np.zeros((1, 2)), "f": lambda x, y: x + y[:, None]}
    outputs = [[fold.add("f", fold.add("zeros"), i) for i in range(3)]]
    program = fold.program(outputs)
    zeros = next(i for i, kernel in enumerate(program.form.kernels) if kernel.name == "zeros")
    assert program.sizes.tolist()[program.form.sources_of(zeros)[0][1].slab] == 1
    assert run(model, program)[0].tolist() == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]


@pytest.mark.parametrize("outputs", [lambda fold: [[1.0, 2.0]], lambda fold: [[fold.add("f", 1.0)], [2.0]]])
@pytest.mark.parametrize("model", [None, {"f": lambda x: x}])
def test_all_integers_of_a_program_have_32_bits(outputs, model):
    fold = Fold(backend="numpy")
    program = fold.program(outputs(fold), model)
    integers = [program.starts, program.sizes, program.bounds, program.launches, program.counts]
    assert {x.dtype for x in (*integers, *program.groups)} == {np.dtype(np.int32)}
    assert program.arrays == (
        *integers[:4],
        program.columns,
        program.groups,
        program.given,
        (),
        program.counts,
    )
    assert program.form.tiled == (not program.form.phases)


def test_a_result_that_is_asked_for_whole_counts_once():
    fold = Fold(backend="numpy")
    program = fold.program((fold.add("table").no_batch(), [fold.add("f", i) for i in range(3)]))
    assert program.counts.tolist() == [1, 3] and [x.whole for x in program.form.groups] == [0, -1]


def test_rows_are_promoted_beside_rows_that_stay_as_they_are():
    fold = Fold(backend="numpy")
    model = {
        "half": lambda x: x.astype(np.float16)[:, None],
        "single": lambda x: x.astype(np.float32)[:, None],
    }
    half = fold.add("half", 1.5)
    single = fold.add("single", 2.5)
    outputs = [[half], [single], [half, single]]
    program = fold.program(outputs, model)
    assert sorted(str(x.dtypes) for x in program.form.sources) == ["()", "()", "(dtype('float32'),)"]
    assert [x.dtype for x in run(model, program)] == [np.float16, np.float32, np.float32]


def test_a_slab_of_two_leaves_is_refused_with_both_dtypes_of_each_class():
    def pair(width):
        return lambda x: (np.ones((len(x), width)), np.ones((len(x), 1), np.float32))

    fold = Fold(backend="numpy")
    program = fold.program([[fold.add("same", fold.add(op, 1.0)) for op in "ab"]])
    with pytest.raises(
        LaunchError, match=r"classes: float64\[3\], float32\[1\] and float64\[2\], float32\[1\]"
    ):
        run({"a": pair(2), "b": pair(3), "same": lambda x: x}, program)


def test_a_program_of_given_rows_alone_returns_them():
    for model in (None, {"f": lambda x: x}):
        program = Fold(backend="numpy").program({"x": [1.0, 2.0], "n": [3]}, model)
        assert {name: x.tolist() for name, x in run({}, program).items()} == {"x": [1.0, 2.0], "n": [3]}


def test_results_of_a_tiled_program_are_padded_if_that_is_asked_for():
    class Tiles(NumpyBackend):
        tiles = True

    fold = Fold(backend=Tiles())
    traces = traces_of("ab", "ba", "b")
    assert [len(fold.program(traces, pad=pad).groups[0]) for pad in (False, True)] == [3, 8]


# ---- calls that are run to learn shapes --------------------------------------------------------------


def record_of(widths, op="f"):
    return lambda fold: [[fold.add(op, np.ones((1, width)))] for width in widths]


def kernels_of(record, model):
    fold = Fold(backend="numpy")
    program = fold.program(record(fold), model)
    return len(program.form.kernels), [x.tolist() for x in run(model, program)]


def test_an_op_that_fails_on_its_sample_is_named_with_its_line():
    def broken(x):
        raise KeyError("weights")

    fold = Fold(backend="numpy")
    node = fold.add("broken", 1.0)
    with pytest.raises(
        LaunchError, match=r"op 'broken', first recorded at .*test_program.py:\d+, raised KeyError"
    ) as e:
        fold.program([[node]], {"broken": broken})
    assert isinstance(e.value.__cause__, KeyError)


class Seen(list):
    """What an op has met; a trial would leave a plain list as it was."""


def test_an_op_is_tried_on_the_rows_of_three_calls():
    seen = Seen()

    def scale(x, s):
        seen.append(s.tolist())
        return x * s[:, None]

    fold = Fold(backend="numpy")
    fold.program([[fold.add("scale", np.ones((1, 3)), s) for s in (1.0, 2.0, 3.0, 4.0)]], {"scale": scale})
    assert seen[:4] == [[1.0], [1.0, 2.0, 3.0], [1.0, 1.0, 3.0], [2.0, 2.0, 2.0]]
    assert seen[4:] == [[s] * 3 for s in (1.0, 2.0, 2.0, 3.0)]


def test_an_op_that_mixes_rows_beside_a_shared_operand_is_refused():
    fold = Fold(backend="numpy")
    by = multifold.shared(np.ones(3))
    outputs = [[fold.add("scale", np.ones((1, 3)), by, s) for s in (1.0, 2.0, 3.0)]]
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.program(outputs, {"scale": lambda x, by, s: x * by * s})


def test_nested_operands_reach_an_op_that_is_tried():
    fold = Fold(backend="numpy")
    model = {"scale": lambda pair, s: pair["x"] * pair["by"][:, None] * s[:, None]}
    outputs = [[fold.add("scale", {"x": np.ones((1, 3)), "by": s}, s) for s in (1.0, 2.0)]]
    assert run(model, fold.program(outputs, model))[0].tolist() == [[1.0] * 3, [4.0] * 3]


def test_an_op_writes_to_no_shared_array_while_it_is_tried():
    def fill(table, x):
        table[:] = 7
        return x

    fold = Fold(backend="numpy")
    table = np.ones(2)
    nodes = [fold.add("fill", multifold.shared(table), 1.0)]
    with pytest.raises(LaunchError):
        fold.program([nodes], {"fill": fill})
    assert table.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("turn", [1, -1])
def test_parts_of_one_result_have_classes_of_their_own(turn):
    model = {
        "pair": lambda x: (np.ones((len(x), 2)), np.ones((len(x), 3))),
        "f": lambda x, y: x + y[:, None],
    }

    def record(fold):
        pair = fold.add("pair", 1.0)
        return [[fold.add("f", part, 1.0)] for part in pair.split(2)[::turn]]

    assert kernels_of(record, model) == (3, [[[2.0] * width] for width in (2, 3)[::turn]])


def test_calls_that_agree_in_one_operand_only_are_told_apart():
    model = {"f": lambda x, y: x.sum(1) + y.sum(1), "g": lambda x: x}

    def record(fold):
        one, *others = (fold.add("g", np.ones((1, width))) for width in (1, 2, 3))
        return [[fold.add("f", one, other) for other in others]]

    assert kernels_of(record, model) == (5, [[3.0, 4.0]])


@pytest.mark.parametrize("widths", [(2, 3), (3, 2)])
def test_rows_of_the_first_call_and_of_others_are_told_apart(widths):
    model = {
        "first": lambda: np.ones((1, widths[0])),
        "other": lambda x: np.ones((len(x), widths[1])),
        "f": lambda x: x,
    }

    def record(fold):
        first = fold.add("first")
        outputs = [[fold.add("f", first)], [fold.add("f", fold.add("other", 1.0))]]
        return [*outputs, first.no_batch()]

    count, values = kernels_of(record, model)
    assert (count, values[:2]) == (4, [[[1.0] * width] for width in widths])


def sums(rows, *others):
    made = np.zeros((len(rows.lengths), *rows.values.shape[1:]))
    np.add.at(made, rows.segment_ids, rows.values)
    return made


def test_numbers_without_rows_are_of_the_kernel_of_those_with_rows():
    def record(fold):
        return [[fold.add("sum", ragged([1.0, 2.0])), fold.add("sum", ragged([], ()))]]

    assert kernels_of(record, {"sum": sums}) == (1, [[3.0, 0.0]])


@pytest.mark.parametrize(("width", "count"), [(2, 1), (3, 2)])
def test_each_ragged_operand_without_rows_must_have_the_shape_that_was_said(width, count):
    def record(fold):
        x = np.ones((1, 2))
        full = fold.add("sum", ragged([x, x]), ragged([x]))
        return [full], [fold.add("sum", ragged([], row_shape=(width,)), ragged([x]))]

    assert kernels_of(record, {"sum": sums}) == (count, [[[2.0, 2.0]], [[0.0] * width]])


def test_halves_of_another_operand_do_not_keep_calls_without_rows_apart():
    def record(fold):
        half = ragged([np.ones((1, 2), np.float16)], row_shape=(2,))
        some = [ragged([np.ones((1, 2))] * n, row_shape=(2,)) for n in (1, 0)]
        return [[fold.add("sum", half, x) for x in some]]

    model = {"sum": lambda half, rows: sums(rows)}
    assert kernels_of(record, model) == (1, [[[1.0, 1.0], [0.0, 0.0]]])


def test_rows_of_two_dtypes_may_meet_in_a_third_one():
    """Of float16 and complex64, and so that a class of rows which is converted has any number."""
    model = {
        "half": lambda x: x.astype(np.float16)[:, None],
        "complex": lambda x: x.astype(np.complex64)[:, None],
        "double": lambda x: x.astype(np.float64)[:, None],
        "sum": lambda rows: rows.values.sum(0)[None],
    }

    def record(fold):
        return [[fold.add("sum", ragged([fold.add(op, 1.0) for op in ("double", "complex", "half")]))]]

    assert kernels_of(record, model) == (4, [[[3.0 + 0.0j]]])
    fold = Fold(backend="numpy")
    outputs = [[fold.add(op, 1.0) for op in ("double", "complex")]]
    assert run(model, fold.program(outputs, model))[0].dtype == np.complex128


# ---- errors --------------------------------------------------------------------------------------


def test_rows_of_two_shapes_are_refused_without_the_model_and_told_apart_with_it():
    fold = Fold(backend="numpy")
    model = {"f": lambda x: x * 2}
    outputs = [[fold.add("f", fold.add("f", np.ones((1, n))))] for n in (2, 3)]
    with pytest.raises(
        LaunchError, match=r"op 'f', first recorded at .*, would read rows of different classes"
    ) as e:
        run(model, fold.program(outputs))
    assert "fold.program(outputs, model)" in str(e.value)
    for rows, width in zip(run(model, fold.program(outputs, model)), (2, 3), strict=True):
        np.testing.assert_array_equal(rows, np.full((1, width), 4.0))


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (lambda x: x[:1], "returned 1 row for 2 rows"),
        (lambda x: x.sum(), "returned an array of 0 dimensions"),
        (lambda x: x.missing, "raised AttributeError"),
    ],
)
def test_errors_name_the_op_and_the_line(op, message):
    fold = Fold(backend="numpy")
    program = fold.program([[fold.add("f", 1.0), fold.add("f", 2.0)]])
    with pytest.raises(LaunchError, match=rf"op 'f', first recorded at .*test_program\.py:\d+, {message}"):
        run({"f": op}, program)


def failing(op, outputs=lambda fold: [fold.add("f", 1.0)]):
    """Return the error of a program of one op."""
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError) as error:
        run({"f": op}, fold.program([outputs(fold)]))
    return error.value


def test_a_wrong_number_of_rows_names_both_numbers_and_the_way_out():
    error = failing(lambda x: np.zeros(3))
    assert "returned 3 rows for 1 row." in error.message and "no_batch()" in error.hint


def test_an_op_without_batched_operands_is_told_that_it_returns_one_row():
    error = failing(lambda: np.zeros(3), lambda fold: [fold.add("f")])
    assert "returned 3 rows for 1 row (no operand is batched)." in error.message


def test_a_part_that_a_result_lacks_is_named_with_a_hint():
    error = failing(lambda x: (x, x), lambda fold: [fold.add("f", 1.0)["h"]])
    assert "returned a result that " in error.message and "'h'" in error.message and error.hint


def test_an_op_of_ragged_rows_whose_shapes_do_not_meet_gets_the_hint_on_columns():
    error = failing(lambda rows: np.ones(2) + np.ones(3), lambda fold: [fold.add("f", ragged([1.0, 2.0]))])
    assert "s[:, None]" in error.hint


def test_a_program_that_lacks_an_op_says_that_the_fold_keeps_ops():
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match="has no op 'f'") as error:
        run({}, fold.program([[fold.add("f", 1.0)]]))
    assert "A fold keeps the ops of all its programs" in error.value.hint


def test_forms_are_equal_wherever_their_calls_were_recorded():
    """So that one compiled executor serves programs of two functions that record the same."""

    def here(fold):
        return [fold.add("f", 1.0)]

    def there(fold):
        return [fold.add("f", 1.0)]

    folds = Fold(backend="numpy"), Fold(backend="numpy")
    one, other = (fold.program(record(fold)) for fold, record in zip(folds, (here, there), strict=True))
    assert one.form.kernels[0].site != other.form.kernels[0].site
    assert one.form == other.form and hash(one.form) == hash(other.form)


def test_a_program_prints_a_line_for_each_phase():
    fold = Fold(backend="numpy")
    program = fold.program([fold.add("g", fold.add("f", 1.0))])
    lines = str(program).splitlines()
    assert len(lines) == 1 + len(program.form.phases) == 3
    assert [line.split(":")[0].split()[-1] for line in lines[1:]] == ["f", "g"]


def test_a_program_names_the_call_whose_ragged_rows_do_not_agree():
    fold = Fold(backend="numpy")
    whole = fold.add("whole", 1)
    broken = fold.add("broken", 1.0)
    fold.add("sum", ragged([whole, whole]))
    wrong = fold.add("sum", ragged([whole, broken]))  # this line
    here = sys._getframe().f_lineno - 1
    model = {"whole": lambda n: n[:, None], "broken": lambda x: x[:, None], "sum": lambda r: r.values}
    with pytest.raises(LaunchError, match=f"a ragged operand, in the call recorded at .*:{here},"):
        fold.program([wrong], model)


@pytest.mark.parametrize("given", [[], 3, "traces"])
def test_what_is_no_program_is_refused_with_the_way_to_one(given):
    if given == "traces":
        given = multifold.traces(lambda fold, x: fold.add("double", x), [1, 2])
    with pytest.raises(multifold.RecordError, match=r"Expected a program(.|\n)*fold\.program\(traces\)"):
        run({"double": lambda x: 2 * x}, given)
