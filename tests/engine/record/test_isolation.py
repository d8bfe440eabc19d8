"""What is recorded is as it was then: nothing that is changed later, nor any other call, reaches it."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import pickle
import subprocess
import sys
import weakref
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import MutableMapping

import numpy as np
import pytest

import multifold.program
from multifold import Fold, RecordError, Unfold, merge, ragged, shared, static, trace
from multifold._engine.record import shared_arrays
from multifold._engine.record.freezing import freeze, same, snapshot
from multifold.testing import Counting

Pair = namedtuple("Pair", "k more")


@dataclasses.dataclass
class Config:
    k: int
    more: list


@dataclasses.dataclass(frozen=True)
class Frozen:
    k: int
    more: list


class Items(list):
    """A list that optree does not open."""


class Members(set):
    """A set of the user's own."""


class Around(MutableMapping):
    """A mapping around a dictionary."""

    def __init__(self, d):
        self.d = d

    def __getitem__(self, key):
        return self.d[key]

    def __setitem__(self, key, value):
        self.d[key] = value

    def __delitem__(self, key):
        del self.d[key]

    def __iter__(self):
        return iter(self.d)

    def __len__(self):
        return len(self.d)


# ---- arrays and containers that the user changes ---------------------------------------------------


@pytest.mark.parametrize("recorder", [Fold, Unfold])
def test_a_buffer_may_be_used_for_the_next_row(recorder):
    def plus(x, r):
        return x + r.values

    fold = recorder(backend="numpy")
    buffer = np.zeros((1, 2))
    nodes = []
    for i in range(4):  # the first goes the slow path of recording, the others the quick one
        buffer[:] = i
        nodes.append(fold.add(plus, buffer, ragged([buffer])))
    buffer[:] = 9
    assert fold(nodes)[:, 0].tolist() == [0, 2, 4, 6]


def test_a_buffer_may_be_used_for_the_next_row_of_a_trace():
    def record(fold, x):
        rows = []
        for i in range(3):
            x[:] = i
            rows.append(fold.add("double", x))
        return rows

    traces = [trace(record, np.zeros((1, 1))) for _ in range(2)]
    assert Fold(backend="numpy").run({"double": lambda x: 2 * x}, traces).ravel().tolist() == [0, 2, 4] * 2


def test_an_array_is_one_row_with_cse_until_it_is_changed():
    fold = Fold(backend="numpy", cse=True)
    x = np.zeros((1, 1))
    nodes = [fold.add("f", x), fold.add("f", x)]
    x[:] = 1
    nodes.append(fold.add("f", x))
    assert nodes[0] == nodes[1] != nodes[2]
    assert fold.apply({"f": lambda x: x}, nodes).ravel().tolist() == [0, 0, 1]


def test_traces_keep_shared_arrays_as_they_were():
    def record(fold, x):
        return fold.add("first", shared(x), 1.0)

    model = {"first": lambda s, x: s[:1] * x}
    buffer = np.zeros(2)
    kept = trace(record, buffer)
    buffer[:] = 5
    assert Fold(backend="numpy").run(model, [kept, trace(record, np.zeros(2))]).tolist() == [0, 0]


@pytest.mark.parametrize(
    "value",
    [
        {"k": 1, "more": [1]},
        OrderedDict(k=1, more=[1]),
        UserDict(k=1, more=[1]),
        Config(1, [1]),
        Frozen(1, [1]),
        Pair(1, [1]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_static_value_is_kept_as_it_was(value):
    inner = value.more if hasattr(value, "more") else value["more"]
    kept = snapshot(value)
    assert freeze(kept) == freeze(value)
    assert type(kept) is type(value)
    inner.append(2)
    assert freeze(kept) != freeze(value)


@pytest.mark.parametrize(
    "value",
    [Items([1, [2]]), Members({1, 2})],
    ids=lambda value: type(value).__name__,
)
def test_a_static_sequence_is_kept_as_it_was(value):
    kept = snapshot(value)
    assert (type(kept), freeze(kept)) == (type(value), freeze(value))
    if isinstance(value, set):
        value.add(3)
    else:
        value[1].append(3)
    assert freeze(kept) != freeze(value)


def test_a_mapping_of_the_users_own_is_not_written_to():
    layers = [1]
    config = Around({"layers": layers})
    Fold(backend="numpy").add("f", 1.0, config=config)
    assert config["layers"] is layers


def test_two_calls_with_one_dictionary_that_changes_between_them_have_their_own():
    fold = Fold(backend="numpy")
    options = OrderedDict(k=1)
    first = fold.add(lambda x, o: x + o["k"], 0, o=options)
    options["k"] = 2
    second = fold.add(fold._graph.signatures[0].op, 0, o=options)
    assert fold([first, second]).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
        (complex(-1, 0.0), complex(-1, -0.0)),
        (type("Metres", (float,), {})(0.0), type("Metres", (float,), {})(-0.0)),
        (np.zeros(1, [("a", "f4"), ("b", "f4")]), np.zeros(1, [("b", "f4"), ("a", "f4")])),
    ],
    ids=["dict", "OrderedDict", "complex", "float", "structured"],
)
def test_static_values_that_an_op_can_tell_apart_are_apart(one, other):
    assert freeze(one) != freeze(other)
    assert freeze(one) == freeze(one)


def test_the_order_of_keyword_arguments_does_not_matter():
    fold = Fold(backend="numpy")
    nodes = [fold.add("f", 1, a=1, b=2), fold.add("f", 2, b=2, a=1)]
    assert fold.apply({"f": lambda x, a, b: x + 10 * a + b}, nodes).tolist() == [13, 14]
    assert len(fold.schedule()) == 1


# ---- results that are written to --------------------------------------------------------------------


def test_results_that_share_a_row_can_be_written_to():
    fold = Fold(backend="numpy")
    first, second = fold.apply({"zeros": lambda: np.zeros((1, 1))}, [[fold.add("zeros")] for _ in range(2)])
    first += 1
    assert second.tolist() == [[0]]


def test_a_row_with_one_reader_is_not_copied():
    backend = Counting("numpy")
    fold = Fold(backend=backend)
    fold.apply({"zeros": lambda: np.zeros((1, 1)), "f": lambda h: h}, [fold.add("f", fold.add("zeros"))])
    assert backend.counts["gather"] == 0


@pytest.mark.parametrize("op", [lambda x: x, lambda x: np.add(x, 1, out=x)], ids=["result", "operand"])
def test_a_merged_minibatch_stays_as_it_is(op):
    batch = merge([trace(lambda fold, x: fold.add("f", x), x) for x in (1, 2)])
    fold = Fold(backend="numpy")
    expected = op(np.array([1, 2])).tolist()
    for _ in range(3):
        got = fold.run({"f": op}, batch)
        assert got.tolist() == expected
        got += 10


# ---- traces ----------------------------------------------------------------------------------------


def test_traces_of_zeros_of_both_signs_are_not_one_minibatch():
    fold = Fold(backend="numpy")
    model = {"inverse": lambda rows: 1 / rows.values}

    def record(fold, x):
        return fold.add("inverse", ragged([x]))

    with np.errstate(divide="ignore"):
        got = [fold.run(model, [trace(record, x)]).tolist() for x in (0.0, -0.0, 0.0)]
    assert got == [[np.inf], [-np.inf], [np.inf]]


def test_a_trace_that_is_gone_keeps_nothing_alive():
    class Model:
        def op(self, x):
            return x

    model = Model()
    kept = trace(lambda fold, op: fold.add(op, 1), model.op)
    alive = weakref.ref(model)
    del kept, model
    gc.collect()
    assert alive() is None


def test_an_example_may_have_no_rows_of_a_group():
    def record(fold, words):
        return {"words": [fold.add("double", word) for word in words], "n": len(words)}

    model = {"double": lambda x: 2 * x}
    traces = [trace(record, words) for words in ([], [1, 2])]
    got = Fold(backend="numpy").run(model, traces)
    assert {name: x.tolist() for name, x in got.items()} == {"words": [2, 4], "n": [0, 2]}
    for run in (
        lambda fold: fold.run(model, traces[:1]),
        lambda fold: fold.run(model, [[], []], record),
        lambda fold: fold.program(traces[:1], model),
        lambda fold: fold.check(model, traces[:1]),
    ):
        with pytest.raises(RecordError, match=r"results\['words'\].*\n\nHint: .*multifold\.each"):
            run(Fold(backend="numpy"))


def test_a_trace_says_how_cells_are_recorded():
    with pytest.raises(RecordError, match="no recurrent cell"):
        trace(lambda fold, x: fold.unroll(None, 1, x), [1.0])


# ---- folds -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
@pytest.mark.parametrize("recorder", [Fold, Unfold])
def test_a_fold_can_be_copied(recorder, make):
    fold = recorder(backend="numpy")
    node = fold.add(abs, -1)
    again = make(fold)
    assert len(again) == 1
    assert fold([node])[0] == 1


def test_a_subclass_may_have_a_new_of_its_own():
    class Mine(Fold):
        def __new__(cls, *args, **kwargs):
            return super().__new__(cls)

    assert len(Mine(backend="numpy")) == 0


# ---- results and operands of unusual kinds ---------------------------------------------------------


class Outputs(OrderedDict):
    """As the outputs of Hugging Face's models are."""


def test_results_may_be_subclasses_of_containers(equal, backend):
    def op(x):
        return Outputs(h=x * 2, rest=Items([x, (x + 1,)]))

    got = []
    for fold in (Fold(backend=backend), Unfold(backend=backend)):
        nodes = [fold.add(op, float(i)) for i in range(3)]
        parts = {"h": [n["h"] for n in nodes], "last": [n["rest"][1][0] for n in nodes], "all": nodes}
        got.append(fold.apply(None, parts))
    equal(got[0]["h"], [0, 2, 4])
    equal(got[1]["last"], [1, 2, 3])
    assert [type(x["all"]["rest"]) for x in got] == [list, list]


class Table(dict):
    """A dictionary with a method."""

    def look(self, i):
        return self["rows"][i]


@pytest.mark.parametrize("recorder", [Fold, lambda **k: Unfold({"make": make, "use": Table.look}, **k)])
def test_what_is_read_whole_stays_of_its_class(recorder):
    fold = recorder(backend="numpy")
    table = fold.add("make").no_batch()
    nodes = [fold.add("use", table, i) for i in (3, 1)]
    model = {"make": make, "use": Table.look} if recorder is Fold else None
    whole, rows, part = fold.apply(model, (table, nodes, fold.add("make").no_batch()["rows"]))
    assert (type(whole), rows.tolist(), part.tolist()) == (Table, [3, 1], [0, 1, 2, 3, 4])


def make():
    return Table(rows=np.arange(5.0))


def test_an_awaited_whole_result_stays_of_its_class():
    async def example(fold, x):
        return len(await fold.value(fold.add(make).no_batch())) + x

    assert Fold(backend="numpy").run(None, [1, 2], example).tolist() == [2, 3]


def test_outputs_keep_their_order_and_kind():
    fold = Fold(backend="numpy")
    got = fold(OrderedDict(b=[fold.add(abs, -1)], a=[2]))
    assert type(got) is OrderedDict
    assert {name: x.tolist() for name, x in got.items()} == {"b": [1], "a": [2]}


@pytest.mark.parametrize("record", [lambda x: Fold(backend="numpy").add("f", x), lambda x: trace(use, x)])
def test_an_array_with_a_mask_is_refused(record):
    with pytest.raises(RecordError, match="without a mask"):
        record(np.ma.array([[1.0, 2.0]], mask=[[False, True]]))


def use(fold, x):
    return fold.add("f", x)


def test_a_complex_scalar_is_refused_with_what_to_do():
    with pytest.raises(RecordError, match="Received a complex64"):
        Fold(backend="numpy").add("f", np.complex64(1j))


@pytest.mark.parametrize("recorder", [Fold, Unfold])
def test_a_number_of_more_than_64_bits_is_refused_in_a_group(recorder):
    with pytest.raises(RecordError, match="at most 64 bits"):
        recorder(backend="numpy")([[2**63]])


def test_check_compares_complex_values_with_a_tolerance():
    fold = Fold(backend="numpy")
    w = np.full((7, 7), 1 / 3, np.complex64)
    row = np.full((1, 7), 0.1 + 0.2j, np.complex64)
    nodes = [fold.add("f", row * i) for i in range(9)]
    fold.check({"f": lambda x: x @ w}, nodes)
    with pytest.raises(multifold.MismatchError):
        fold.check({"f": lambda x: x @ w + 1j * (len(x) > 1)}, nodes)


def test_static_values_of_the_same_mapping_share_a_launch():
    fold = Fold(backend="numpy")
    nodes = [fold.add("f", i, static({"a": [1], "b": 2})) for i in range(3)]
    fold.apply({"f": lambda x, o: x + o["b"]}, nodes)
    assert len(fold.schedule()) == 1


def test_check_finds_errors_of_small_values():
    fold = Fold(backend="numpy")
    nodes = [fold.add("f", float(i)) for i in range(8)]
    with pytest.raises(multifold.MismatchError):
        fold.check({"f": lambda x: x * 1e-12 * len(x)}, nodes)
    fold.check({"f": lambda x: x * 1e-12}, nodes)


def test_a_fold_pickles_after_a_run_with_a_function():
    fold = Fold(backend="numpy")
    model = {"double": lambda x: 2 * x}
    fold.run(model, [1, 2], lambda fold, x: fold.add("double", x))
    again = pickle.loads(pickle.dumps(fold))
    assert again.run(model, [3], lambda fold, x: fold.add("double", x)).tolist() == [6]


def test_the_rooms_that_programs_use_are_attributes():
    program = "import multifold; multifold.ops.tanh, multifold.models.MLP"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'opps'"):
        multifold.opps  # noqa: B018


# ---- shared arrays and operands with names ------------------------------------------------------------


def recorded_in_a_loop(recorder, size):
    """Calls that add one array in three states to a number."""
    buffer = np.zeros(size)
    nodes = []
    for i in range(3):
        buffer[:] = i
        nodes.append(recorder.add(lambda x, table: x + table[0], 0.0, shared(buffer)))
    return nodes


@pytest.mark.parametrize("size", [8, shared_arrays.SMALL // 8], ids=["small", "just small"])
@pytest.mark.parametrize("recorder", [lambda: Fold(backend="numpy"), lambda: Unfold(None)])
def test_a_small_shared_array_is_what_it_was_in_each_call(recorder, size):
    fold = recorder()
    assert [x.item() for x in fold(recorded_in_a_loop(fold, size))] == [0, 1, 2]
    assert isinstance(fold, Unfold) or not fold._graph.shared.copies


def test_the_second_of_two_large_shared_arrays_may_be_the_one_that_was_changed():
    fold = Fold(backend="numpy")
    tables = [np.zeros(10_000), np.zeros(10_000)]
    nodes = [fold.add(lambda x, table: x + table[0], 1.0, shared(table)) for table in tables]
    tables[1][0] = 5
    with pytest.raises(RecordError, match=r"shared\(...\) to stay as it was"):
        fold([nodes])


def test_a_shared_array_may_change_while_calls_of_others_are_recorded():
    fold = Fold(backend="numpy")
    first = np.zeros(10_000)
    second = np.ones(10_000)
    early = fold.add("f", 1.0, shared(first))
    model = {"f": lambda x, table: x + table[0]}
    assert fold.apply(model, early).tolist() == [1]
    first[0] = 5
    late = fold.add("f", 1.0, shared(second))
    assert fold.apply(model, [[early, late]])[0].tolist() == [1, 2]


@pytest.mark.parametrize(
    "run",
    [
        lambda fold: fold([recorded_in_a_loop(fold, 10_000)]),
        lambda fold: fold.program([recorded_in_a_loop(fold, 10_000)]),
        lambda fold: fold.run(None, [0], lambda fold, _: recorded_in_a_loop(fold, 10_000)),
    ],
    ids=["apply", "program", "run"],
)
def test_a_large_shared_array_that_was_changed_is_refused(run):
    with pytest.raises(RecordError, match=r"shared\(...\) to stay as it was"):
        run(Fold(backend="numpy"))


@pytest.mark.parametrize("size", [1, 10_000])
def test_a_shared_array_may_change_when_its_calls_have_run(size):
    def first(x, table):
        return x + table[0]

    fold = Fold(backend="numpy")
    table = np.zeros(size)
    early = fold.add(first, 1.0, shared(table))
    assert fold(early).tolist() == [1]
    table[:] = 5
    assert fold(early).tolist() == [1]  # what was recorded stays as it was
    late = fold.add(first, 1.0, shared(table))
    assert fold([[early, late]])[0].tolist() == [1, 6]


def test_a_large_shared_array_is_copied_once_and_nan_is_itself():
    fold = Fold(backend="numpy")
    table = np.full((1, 1000), np.nan)
    nodes = [fold.add(np.add, np.ones((1, 1000)), shared(table), where=True) for _ in range(3)]
    nodes += [fold.add(np.subtract, np.ones((1, 1000)), shared(table)) for _ in range(3)]
    assert len(fold._graph.shared.copies) == 1 and np.isnan(fold([nodes])[0]).all()


def look_at(seen):
    def look(x, table):
        seen.append(table)
        return x + table[0]

    return look


@pytest.mark.parametrize("size", [8, 10_000])
def test_all_runs_get_the_one_copy_of_a_shared_array(size):
    fold = Fold(backend="numpy")
    table = np.arange(size, dtype=float)
    seen = []
    look = look_at(seen)
    for _ in range(3):
        fold(fold.add(look, 1.0, shared(table)))
    assert len({x.ctypes.data for x in seen}) == 1 and not np.shares_memory(seen[0], table)


def test_all_rounds_and_merged_traces_get_the_one_copy_of_a_shared_array():
    table = np.arange(10_000.0)
    seen = []
    look = look_at(seen)

    async def example(fold, x):
        while await fold.value(x) < 3:
            x = fold.add(look, x, shared(table))
        return x

    def record(fold, x):
        return fold.add(look, x, shared(table))

    table[0] = 1
    Fold(backend="numpy").run(None, [0.0, 1.0], lambda fold, x: example(fold, fold.add(np.abs, x)))
    assert len(seen) == 3 and len({x.ctypes.data for x in seen}) == 1
    seen.clear()
    batch = merge([trace(record, x) for x in (1.0, 2.0)])
    fold = Fold(backend="numpy")
    for _ in range(2):
        fold.run(None, batch)
    assert len(seen) == 2 and len({x.ctypes.data for x in seen}) == 1


@pytest.mark.parametrize("pickled", [False, True])
def test_an_op_that_writes_to_a_shared_array_is_refused(pickled):
    fold = Fold(backend="numpy")
    table = np.zeros(10_000)
    node = fold.add("write", 1.0, shared(table))
    if pickled:
        fold, node = pickle.loads(pickle.dumps((fold, node)))
    with pytest.raises(multifold.LaunchError, match="read-only"):
        fold.apply({"write": lambda x, table: np.add(table, 1, out=table)[: len(x)]}, node)
    assert fold.apply({"write": lambda x, table: x + table[0]}, node).tolist() == [1]


def test_a_shared_array_that_cannot_change_is_never_copied_nor_compared(monkeypatch):
    monkeypatch.setattr(shared_arrays, "same", None)
    fold = Fold(backend="numpy")
    table = np.frombuffer(np.arange(10_000.0).tobytes())
    seen = []
    node = fold.add(look_at(seen), 1.0, shared(table[10:]))
    assert fold(node).tolist() == [11] and np.shares_memory(seen[0], table)
    with pytest.raises(TypeError):  # which is how this test sees a comparison
        fold(fold.add(look_at(seen), 1.0, shared(np.arange(10_000.0))))


def zeros(shape):
    return np.zeros(shape, "float32")


def read_only(view):
    view.setflags(write=False)
    return view


def owner_and_view(size, tmp_path):
    """An array that is read-only, and a view of the same memory that was made before."""
    owner = zeros(size)
    return owner[:], read_only(owner)


def mapped_twice(size, tmp_path):
    """A file that is mapped into memory to be written, and again to be read."""
    np.save(tmp_path / "table.npy", zeros(size))
    return tuple(np.load(tmp_path / "table.npy", mmap_mode=mode) for mode in ("r+", "r"))


READ_ONLY = {
    "view": lambda size, _: (owner := zeros(size), read_only(owner[:])),
    "view of a view": lambda size, _: (owner := zeros(size), read_only(read_only(owner[:])[:])),
    "broadcast": lambda size, _: (owner := zeros((1, size)), np.broadcast_to(owner, (3, size))[1]),
    "window": lambda size, _: (
        owner := zeros(size), np.lib.stride_tricks.sliding_window_view(owner, size // 2)[0]
    ),
    "owner": owner_and_view,
    "bytearray": lambda size, _: (
        owner := np.frombuffer(bytearray(4 * size), "f4"),
        np.frombuffer(memoryview(owner).toreadonly(), "f4"),
    ),
    "file": mapped_twice,
}  # fmt: skip
"""Name -> an array that can be written to, and one with the same memory that can't."""


@pytest.mark.parametrize("size", [8, 20_000])
@pytest.mark.parametrize("pair", READ_ONLY.values(), ids=READ_ONLY)
def test_a_read_only_view_of_what_changes_is_copied(pair, size, tmp_path, backend, to_numpy):
    def first(x, table):
        return x + table[0]

    writeable, view = pair(size, tmp_path)
    assert not view.flags.writeable
    fold = Fold(backend=backend)
    early = fold.add(first, 1.0, shared(view))
    assert to_numpy(fold(early)).tolist() == [1]
    writeable[:] = 5
    assert to_numpy(fold(early)).tolist() == [1]
    late = fold.add(first, 1.0, shared(view))
    assert to_numpy(fold([[early, late]])[0]).tolist() == [1, 6]


@pytest.mark.parametrize("pair", READ_ONLY.values(), ids=READ_ONLY)
def test_a_large_read_only_view_that_was_changed_is_refused(pair, tmp_path):
    writeable, view = pair(20_000, tmp_path)
    fold = Fold(backend="numpy")
    node = fold.add(np.add, 1.0, shared(view))
    writeable[:] = 1
    with pytest.raises(RecordError, match=r"shared\(...\) to stay as it was"):
        fold(node)


@pytest.mark.parametrize(
    "table",
    [
        np.array([np.ones(2), np.zeros(3)], object),
        np.array([(1, np.nan)] * 500, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    ],
    ids=["objects", "padded records"],
)
def test_shared_arrays_of_any_dtype_are_compared(table):
    fold = Fold(backend="numpy")
    node = fold.add(lambda x, table: x + len(table), 1.0, shared(np.tile(table, 300)))
    assert fold(node).tolist() == [300 * len(table) + 1]


@pytest.mark.parametrize("run", ["apply", "unfold", "traces", "program"])
def test_an_op_sees_the_entries_of_each_dictionary_in_their_order(run):
    def first(d):
        return next(iter(d.values()))

    def record(fold, pair):
        return fold.add(first, dict(pair))

    examples = [(("b", 1.0), ("a", 2.0)), (("a", 3.0), ("b", 4.0))]
    traces = [trace(record, example) for example in examples]
    fold = Unfold(None) if run == "unfold" else Fold(backend="numpy")
    if run == "traces":
        got = fold.run(None, traces)
    elif run == "program":
        got = multifold.program.run(None, fold.program(traces))
    else:
        got = fold.apply(None, [[record(fold, example) for example in examples]])[0]
    assert got.tolist() == [1, 3]


def test_programs_of_other_orders_are_other_forms():
    def form(*names):
        fold = Fold(backend="numpy")
        return fold.program([[fold.add("op", dict.fromkeys(names, 1.0))]]).form

    assert form("a", "b") == form("a", "b") != form("b", "a")


def test_results_that_are_one_block_can_be_changed_apart(backend, to_numpy, column):
    fold = Fold(backend=backend)
    nodes = [fold.add("leaf", i) for i in range(2)]
    first, second, third = fold.apply({"leaf": lambda k: column(k) * 1.0}, [nodes, nodes, nodes])
    if backend in ("numpy", "torch", "mxnet"):  # whose arrays can be changed
        first += 100
        third += 7
    assert to_numpy(second).tolist() == [[0], [1]]


def test_a_counting_backend_hands_everything_on():
    own = {name for name, x in vars(Counting).items() if callable(x)}
    seam = {name for name, x in vars(multifold.Backend).items() if callable(x) and name[0] != "_"}
    assert seam <= own | {"unsupported"}


def test_a_structured_array_is_unchanged_only_where_all_its_fields_are():
    array = np.zeros(3, [("x", np.int64), ("y", np.float64)])
    array["y"][1] = np.nan
    copied = array.copy()
    assert same(array, copied)
    copied["y"][0] = 1
    assert not same(array, copied)


# ---- arrays of a framework that counts changes ---------------------------------------------------


def scaled(x, by):
    return x * by


BY_BUFFER = {
    "operand": lambda fold, x, buffer: fold.add(scaled, buffer, x),
    "shared": lambda fold, x, buffer: fold.add(scaled, x, multifold.shared(buffer)),
    "static": lambda fold, x, buffer: fold.add(scaled, x, multifold.static(buffer)),
    "keyword": lambda fold, x, buffer: fold.add(scaled, x, by=multifold.static(buffer)),
    "bound": lambda fold, x, buffer: fold.add(functools.partial(scaled, by=buffer), x),
}


@pytest.mark.parametrize("how", BY_BUFFER)
def test_an_array_that_is_filled_anew_for_each_example_is_refused_where_changes_are_counted(
    seam, array, how
):
    if not seam.counts_changes:
        return
    buffer, fold = array([[0.0, 0.0]]), Fold(backend=seam)

    def record(fold, x):
        buffer[0, 0] = x
        return BY_BUFFER[how](fold, array([[1.0, 2.0]]), buffer)

    fold.run(None, [1.0], record)  # later runs record such a call without a look at each part of it
    with pytest.raises(RecordError, match="stay as it was until its calls have run") as raised:
        fold.run(None, [1.0, 2.0], record)
    assert "Raised by example 1 of fold.run." in raised.value.__notes__


def test_an_array_that_changes_between_recording_and_run_is_refused_and_later_it_may(seam, array, to_numpy):
    if not seam.counts_changes:
        return
    buffer = array([[1.0, 1.0]])
    fold = Fold(backend=seam)
    model = {"double": lambda x: 2 * x}
    early = fold.add("double", buffer[:, :1])  # a view counts with what it is a view of
    buffer += 1
    with pytest.raises(RecordError, match="changed in place since it was recorded"):
        fold.apply(model, [early])
    fold.reset()
    assert to_numpy(fold.apply(model, [fold.add("double", buffer)])[0]).tolist() == [4.0, 4.0]
    buffer += 1
    assert to_numpy(fold.apply(model, [fold.add("double", buffer)])[0]).tolist() == [6.0, 6.0]


def test_an_eager_twin_may_be_given_an_array_that_changes(seam, array, to_numpy):
    if not seam.counts_changes:
        return
    buffer = array([[1.0]])
    unfold = multifold.Unfold({"double": lambda x: 2 * x}, backend=seam)
    first = unfold.add("double", buffer)
    buffer += 1
    both = unfold([[first, unfold.add("double", buffer)]])[0]
    assert to_numpy(both).tolist() == [[2.0], [4.0]]
