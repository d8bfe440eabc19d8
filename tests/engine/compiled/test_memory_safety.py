"""Damaged traces are refused with one error, or run within their own memory; so are damaged columns."""

from __future__ import annotations

import contextlib
import copy
import inspect
import os
import pickle
from itertools import product

import numpy as np
import pytest

import multifold
from multifold import Fold, LaunchError, RecordError, merge, ragged, trace
from multifold._engine import compiled
from multifold._engine.plan.columns import layouts_of
from multifold._engine.plan.schedule import POLICIES
from multifold._engine.record.damage import DAMAGE
from multifold._engine.record.kinds import COLUMNS
from multifold._engine.traces.trace import COUNTED, INTEGERS, pack

MANY = int(os.environ.get("MULTIFOLD_DAMAGED_TRACES", "500"))
"""How many damaged traces are run; the session ``sanitize`` of nox asks for 100,000."""

VALUES = (
    -(1 << 63),
    -(1 << 40),
    -2,
    -1,
    0,
    1,
    2,
    3,
    7,
    1 << 31,
    1 << 40,
    (1 << 40) + 1,
    1 << 62,
    (1 << 63) - 1,
)
"""What an integer may become, beside its neighbours."""

MODEL = {
    "leaf": lambda x: np.stack([x, x + 1.0], axis=1),
    "array": lambda x: x,
    "pair": lambda x, y: (x + y, x - y),
    "sum": lambda rows: np.stack(
        [rows.values[rows.segment_ids == i].sum(0) for i in range(len(rows.lengths))]
    ),
    "whole": lambda x, table: x + table.sum(0),
    "scale": lambda x, s: x * s[:, None],
}


def record(fold, word):
    """Record a call for each letter, which reads the calls of the letters before it."""
    nodes = [fold.add("leaf", len(word)), fold.add("array", np.float64([[0.5, 2.0]]))]
    for letter in word:
        if letter == "p":
            nodes += fold.add("pair", nodes[-1], nodes[0]).split(2)
        elif letter == "r":
            nodes.append(fold.add("sum", ragged([*nodes[-3:], np.float64([[1.0, 1.0]])])))
        elif letter == "w":
            nodes.append(fold.add("whole", nodes[-1], nodes[0].no_batch()))
        else:
            nodes.append(fold.add("scale", nodes[-1], 0.5))
    return {"last": nodes[-1], "all": nodes[-2:]}


WORDS = ("p", "sp", "rps", "prs", "ssr", "wp")


def run(traces):
    """Run traces in every way that reads them; a fold merges, schedules and wires them."""
    fold = Fold(backend="numpy")
    found = fold.run(MODEL, traces)
    str(fold.explain())
    return found


def refused_or_run(make):
    """Make and run traces; return the error, of which only two kinds may come."""
    try:
        run(make())
    except (
        RecordError,
        LaunchError,
    ) as error:  # rows of other shapes fail
        return error
    return None


def changed(made, **columns):
    """Return a trace with other columns that was not looked at when it was made."""
    other = copy.copy(made)
    for name, column in columns.items():
        object.__setattr__(other, name, column)
    return other


def replace(made, **columns):
    """Return a trace with other columns, which is looked at while it is made."""
    names = list(inspect.signature(type(made)).parameters)
    return type(made)(**{name: getattr(made, name) for name in names} | columns)


def damage(rng, made, others):
    """Return a trace with a random damage to its integers or with parts of another trace."""
    integers = made.integers.copy()
    other = others[rng.integers(len(others))]
    kind = rng.integers(8)
    if kind < 4:
        for place in rng.integers(len(integers), size=1 + kind // 2):
            near = int(integers[place]) + int(rng.integers(-3, 4))
            near = min(max(near, VALUES[0]), VALUES[-1])
            integers[place] = near if rng.integers(2) else VALUES[rng.integers(len(VALUES))]
        return changed(made, integers=integers)
    if kind == 4:
        low, high = np.sort(rng.integers(len(integers) + 1, size=2))
        return changed(made, integers=np.delete(integers, slice(low, high)))
    if kind == 5:
        low, high = rng.integers(len(integers), size=2)
        integers[[low, high]] = integers[[high, low]]
        return changed(made, integers=integers)
    name = ["integers", "vocabulary", "floats", "arrays", "loose", "lines"][rng.integers(6)]
    return changed(made, **{name: getattr(other, name)})


def test_damaged_traces_are_refused_or_run_within_their_memory():
    rng = np.random.default_rng(8)
    right = [trace(record, word) for word in WORDS]
    refused = 0
    for _ in range(MANY):
        made = [right[i] for i in rng.integers(len(right), size=rng.integers(1, 4))]
        place = rng.integers(len(made))
        made[place] = damage(rng, made[place], right)
        refused += refused_or_run(lambda made=made: made) is not None
    assert refused > MANY / 2


def test_a_trace_looks_at_its_columns_when_it_is_made():
    made = trace(record, "rps")
    other = trace(record, "s")
    wrong = [
        None,
        [],
        made.integers.tolist(),
        made.integers.astype(np.int32),
        made.integers[None],
        made.floats,
    ]
    columns = [{"integers": column} for column in wrong]
    columns += [
        {"integers": made.integers[:-1]},
        {"integers": made.integers[:5]},
        {"integers": -made.integers},
    ]
    columns += [{name: getattr(other, name)} for name in ("vocabulary", "loose", "lines")]
    columns += [{"floats": made.floats.astype(np.float32)}, {"floats": None}, {"lines": made.lines[1:]}]
    columns += [{"arrays": ()}, {"arrays": [*made.arrays]}, {"arrays": (None,)}, {"vocabulary": None}]
    for column in columns:
        with pytest.raises(RecordError, match="damaged"):
            replace(made, **column)


@pytest.mark.parametrize(
    ("name", "entry", "value"),
    [
        ("refs", 0, 4),  # a call that reads itself, or a later one: a cycle
        ("refs", 0, 1 << 39),
        ("refs", 0, -1),
        ("members", 0, -3),
        ("lengths", 0, -1),
        ("lengths", 0, 1 << 62),
        ("signature", 2, 0),
        ("signature", 0, 1 << 62),
        ("results", 0, -5),
    ],
)
def test_a_changed_integer_is_refused_with_the_number_of_the_trace(name, entry, value):
    right = trace(record, "rps")
    counts = right.integers[: len(COUNTED) + 2].tolist()
    columns = (*INTEGERS, "results")
    begin = len(counts) + sum(counts[: columns.index(name)])
    right.integers[begin + entry] = value
    made = [trace(record, "p"), right]
    for use in (
        run,
        lambda made: Fold(backend="numpy").program(made),
        lambda made: Fold(backend="numpy").run(MODEL, multifold.merge(made)),
    ):
        with pytest.raises(RecordError, match="damaged one") as caught:
            use(made)
        assert "Hint: record the example again" in str(caught.value)


@pytest.mark.parametrize("schedule", POLICIES)
def test_a_trace_whose_calls_run_out_of_order_is_refused(schedule):
    damaged = trace(record, "sp")
    first = len(COUNTED) + 2  # where the signatures of its four calls begin
    assert damaged.integers[first : first + 4].tolist() == [0, 1, 2, 3]
    damaged.integers[first : first + 3] = [2, 1, 0]  # now call 0 reads call 2, which might run first
    with pytest.raises(RecordError, match="damaged one"):
        Fold(backend="numpy", schedule=schedule).run(MODEL, [damaged])


def test_a_call_that_reads_a_later_one_is_refused():
    def record(fold, x):
        leaf = fold.add("leaf", x)
        fold.add("leaf", fold.add("leaf", leaf))
        return leaf

    damaged = trace(record, 1)
    at = len(COUNTED) + 1 + len(damaged)
    assert damaged.integers[at : at + 2].tolist() == [0, 1]
    damaged.integers[at] = 2  # call 1 reads call 2

    with pytest.raises(RecordError, match="damaged"):
        Fold(backend="numpy").run({"leaf": lambda x: x}, [damaged])


def test_each_byte_of_a_pickled_column_counts():
    made = trace(record, "rps")
    data = pickle.dumps(made)
    _, _, codes, packed, floats, *_ = pack([made])
    for column in (codes.encode(), packed, floats, *[x.tobytes() for x in (*made.arrays, *made.loose)]):
        begin = data.index(column)
        for at in range(begin, begin + len(column), 3):
            with pytest.raises(RecordError, match="damaged"):
                pickle.loads(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
    assert pickle.loads(data) == made


def test_each_byte_of_the_launches_of_a_pickled_minibatch_counts():
    made = merge([trace(record, word) for word in ("rps", "prsps")])
    make, (policy, bound, (code, calls), (_, bounds), *rest) = made.__reduce__()
    changes = [
        ("depth", bound, (code, calls), (code, bounds)),
        (policy, bound + 1, (code, calls), (code, bounds)),
    ]
    changes += [
        (policy, bound, ("b", calls), (code, bounds)),
        (policy, bound, (code, calls), ("b", bounds)),
    ]
    changes += [(policy, bound, (code, each), (code, bounds)) for each in changed_bytes(calls)]
    changes += [(policy, bound, (code, calls), (code, each)) for each in changed_bytes(bounds)]
    for change in changes:
        with pytest.raises(RecordError, match="the checksum of its launches"):
            make(*change, *rest)
    again = make(policy, bound, (code, calls), (code, bounds), *rest)
    schedule = made.plan.schedule
    assert (str(again.plan.schedule), again.plan.schedule.policy) == (str(schedule), "auto")


def changed_bytes(data):
    """Return some bytes with one of them changed, for each of them."""
    return [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in range(len(data))]


def test_launches_of_other_traces_are_refused():
    (make, one), (_, other) = (merge([trace(record, word)]).__reduce__() for word in ("rp", "ps"))
    with pytest.raises(RecordError, match="the checksum of its launches"):
        make(*other[:5], *one[5:])  # five values say what the launches are


def test_a_trace_that_another_version_pickled_is_refused(monkeypatch):
    data = pickle.dumps(trace(record, "rps"))
    monkeypatch.setattr("multifold._engine.record.damage.LAYOUT", 7)
    with pytest.raises(RecordError, match="Received layout 4"):
        pickle.loads(data)


@pytest.mark.parametrize(
    "other",
    [np.int64(1), 1.0, True, 2, np.array([[2]]), np.array([1]), np.array([[1]], np.int32)],
    ids=lambda x: f"{type(x).__name__} {x!r}".replace("\n", ""),
)
def test_each_value_of_a_pickle_counts_with_its_type_shape_and_dtype(other):
    """A trace whose result is a number or an array holds it as it is."""
    made, else_ = (trace(lambda fold, x: [fold.add("leaf", 1), x], x) for x in (1, np.array([[1]])))
    for right in (made, else_):
        make, (layout, crc, *values) = right.__reduce__()
        assert values[-2] == right.loose
        values[-2] = (other,)
        with pytest.raises(RecordError, match="damaged"):
            make(layout, crc, *values)


def test_the_error_of_wiring_says_what_compiled_code_has_found():
    made = trace(record, "sp")
    at = len(COUNTED) + 2
    refs = at + len(made)
    made.integers[refs] = 2  # the second call reads the third one
    with pytest.raises(RecordError, match="damaged one: A column of calls refers to what is not there"):
        Fold(backend="numpy").run(MODEL, [made])


def test_sizes_that_are_negative_are_refused_although_their_sum_is_right():
    made = trace(record, "sp")
    integers = made.integers.copy()
    lengths = COUNTED.index("lengths")
    members = COUNTED.index("members")
    integers[[lengths, members]] = [-1, 1]
    with pytest.raises(RecordError, match="are not those of its"):
        replace(made, integers=integers)


def test_a_trace_whose_result_is_a_call_of_the_next_trace_is_refused():
    made = [trace(record, "p"), trace(record, "p")]
    counts = made[0].integers[: len(COUNTED) + 2].tolist()
    made[0].integers[len(counts) + sum(counts[: len(INTEGERS)])] = len(made[0])
    with pytest.raises(RecordError, match="damaged one"):
        run(made)


@pytest.mark.parametrize("sizes", [[2, 4], [8, -1], [-1, 8], [4, 4]])
def test_lengths_that_are_not_those_of_the_members_are_refused(sizes):
    made = trace(record, "rr")
    counts = made.integers[: len(COUNTED) + 2].tolist()
    begin = len(counts) + sum(counts[: INTEGERS.index("lengths")])
    assert made.integers[begin : begin + 2].tolist() == [3, 4]
    made.integers[begin : begin + 2] = sizes
    with pytest.raises(RecordError, match="damaged one"):
        run([made, trace(record, "rr")])


def test_integers_behind_those_of_a_trace_are_refused():
    made = trace(record, "p")
    with pytest.raises(RecordError, match="damaged one"):
        run([changed(made, integers=np.append(made.integers, 0))])


@pytest.mark.parametrize("name", ["floats", "arrays"])
def test_a_trace_with_fewer_values_than_its_calls_take_is_refused(name):
    right, made = trace(record, "ss"), trace(record, "ss")
    made.integers[COUNTED.index(name)] -= 1
    with pytest.raises(RecordError, match="damaged one"):
        run([changed(made, **{name: getattr(made, name)[:-1]}), right])


def test_a_minibatch_of_another_layout_or_without_launches_is_refused():
    make, (policy, bound, calls, bounds, launches, layout, *rest) = merge(
        [trace(record, "rp")]
    ).__reduce__()
    with pytest.raises(RecordError, match="Received layout 7"):
        make(policy, bound, calls, bounds, launches, 7, *rest)
    for wrong in [
        (policy, bound, None, bounds),
        (policy, "bound", calls, bounds),
        (None, bound, calls, bounds),
    ]:
        with pytest.raises(RecordError, match="damaged one"):
            make(*wrong, launches, layout, *rest)
    with pytest.raises(RecordError, match="damaged one"):
        make(policy, bound, calls, bounds, launches)


def test_a_pickle_of_too_few_values_is_refused():
    make, (layout, crc, *values) = trace(record, "rp").__reduce__()
    with pytest.raises(RecordError, match="not enough values to unpack"):
        make(layout, crc, *values[:-1])
    with pytest.raises(RecordError, match="Received layout 7"):
        make(7, crc, *values)


def test_columns_that_are_no_arrays_are_refused():
    made = changed(trace(record, "s"), integers=None)
    with pytest.raises(RecordError, match="damaged one"):
        Fold(backend="numpy").run(MODEL, [trace(record, "p"), made])


def test_floats_of_another_dtype_are_refused():
    made = trace(record, "s")
    with pytest.raises(RecordError, match="Its floats are no floats"):
        run([changed(made, floats=made.floats.astype(np.float32))])


def test_a_result_that_is_one_node_has_one_row():
    made = trace(record, "s")
    sizes = len(COUNTED), len(COUNTED) + 2
    assert made.integers[slice(*sizes)].tolist() == [2, 1]  # "all" has two rows, "last" has one
    swapped = made.integers.copy()
    swapped[slice(*sizes)] = [1, 2]
    with pytest.raises(RecordError, match="its results, group, row, have the sizes"):
        replace(made, integers=swapped)
    with pytest.raises(RecordError, match="one node has another number of rows"):
        run([changed(made, integers=swapped)])


def test_a_program_refuses_a_call_that_reads_a_later_one():
    damaged = trace(record, "sp")
    at = len(COUNTED) + 2
    damaged.integers[at : at + 3] = [2, 1, 0]  # now call 0 reads call 2
    with pytest.raises(RecordError, match="damaged one"):
        Fold(backend="numpy").program([damaged])


def test_the_trace_that_is_named_is_the_damaged_one_behind_one_that_cannot_stand_alone():
    """An example may have no row in a group if others have some; alone it has no result."""

    def grouped(fold, n):
        return [fold.add("leaf", i) for i in range(n)]

    none = trace(grouped, 0)
    some = trace(grouped, 2)
    broken = changed(some, integers=-some.integers)
    with pytest.raises(RecordError, match=r"is not there\. It is trace 2 of 3"):
        run([none, some, broken])


def test_equal_vocabularies_have_equal_hashes():
    one, other = (trace(record, word).vocabulary for word in ("rps", "rps"))
    assert one == other and hash(one) == hash(other) != hash(trace(record, "p").vocabulary)


# ---- compiled functions --------------------------------------------------------------------------------

NAMES = (
    "ancestors", "bucket", "cut", "distinct", "edges", "located", "merge", "plan", "schedule",
    "typed_levels", "wire",
)  # fmt: skip


def calls_of_functions(monkeypatch):
    """Run traces and rounds of awaited values; return the arguments of each function, as they were."""
    found = {}

    def noting(name, function):
        def note(*arguments):
            arrays = [np.array(x) if type(x).__name__ == "Column" else x for x in arguments]
            found.setdefault(name, []).append(copy.deepcopy(arrays))
            return function(*arguments)

        return note

    async def awaited(fold, word):
        nodes = record(fold, word)
        await fold.value(nodes["last"])
        return record(fold, word)["all"]

    for name in NAMES:
        monkeypatch.setattr(compiled, name, noting(name, getattr(compiled, name)))
    run([trace(record, word) for word in ("rps", "prsps")])
    run([trace(record, word) for word in ("wp", "rwps")])
    Fold(backend="numpy", schedule="search").run(MODEL, [trace(record, "rps")])
    Fold(backend="numpy").run(MODEL, ["rps", "pp"], awaited)
    compiled.bucket(np.array([0, 1, 0]), np.array([0]), np.array([1]))
    compiled.typed_levels(np.array([0, 1, 0]), np.array([0]), np.array([1]))
    compiled.distinct(np.array([3, 1, 3]))
    monkeypatch.undo()
    return found


def damages(x):
    """Yield what may stand in the place of an argument."""
    yield from (None, [], "x", -1, 0, 1 << 62, -(1 << 63), 1 << 70)
    if not isinstance(x, np.ndarray):
        return
    yield from (
        x.astype(np.int32),
        x.astype(float),
        x.astype(object),
        x.tolist(),
        x[None],
        x[:0],
        x[:-1],
        x[1:],
    )
    yield from (
        np.append(x, x),
        np.repeat(x, 2, axis=0)[::2],
        x[::-1],
        x.astype(">i8"),
    )
    locked = x.copy()
    locked.flags.writeable = False
    yield locked
    for i, value in product(range(x.size), VALUES):
        other = x.copy()
        other.flat[i] = value
        yield other


@pytest.mark.skipif(not compiled.in_use, reason="NumPy checks what the references do")
@pytest.mark.parametrize("name", NAMES)
def test_no_function_trusts_its_arguments(name, monkeypatch):
    rng = np.random.default_rng(8)
    for arguments in calls_of_functions(monkeypatch)[name][:4]:
        tried = [(i, other) for i, x in enumerate(arguments) for other in damages(x)]
        few = rng.permutation(len(tried))[: max(MANY, 100)]
        for i, other in (tried[n] for n in few):
            with contextlib.suppress(*DAMAGE, MemoryError, BufferError, ArithmeticError):
                getattr(compiled, name)(
                    *copy.deepcopy(arguments[:i]), other, *copy.deepcopy(arguments[i + 1 :])
                )


class Store:
    """Results of one row, which are left as they are."""

    settle = staticmethod(lambda *given: False)
    rows = staticmethod(lambda numbers: [1] * len(numbers))


def described_by(fold):
    """Return what a round is told of signatures."""
    signatures = [*fold._graph.signatures]
    signatures = tuple(signatures + [x.bare for x in signatures])
    return signatures, *layouts_of(signatures)


@pytest.mark.skipif(not compiled.in_use, reason="NumPy checks what the references do")
def test_no_method_of_a_table_trusts_its_arguments():
    fold = Fold(backend="numpy")
    rng = np.random.default_rng(8)
    record(fold, "rps")
    widths = np.array([[getattr(s, name) for name in COLUMNS] for s in fold._graph.signatures], np.int64)
    few = np.array([0, len(fold) - 1])
    kept = np.arange(3)
    wants = 9, True, (tuple,) * 3, lambda *asked: (asked[2], ())
    methods = {
        "grow": (widths,), "store": (few, 1, few), "at": (0, few), "window": (few, len(widths)),
        "frontier": (few, np.arange(len(widths)), 0), "launch_rows": (few[:1], 0),
        "members_of": (few[:1],),
        "renumbered": (few,), "place": (kept, 4), "arrived": (few, [1, 1]), "reserve": (99,),
        "round": (widths, few, few, np.array([1, 1]), Store, None, 99, described_by(fold), wants),
    }  # fmt: skip
    for name, arguments in methods.items():
        tried = [(i, other) for i, x in enumerate(arguments) for other in damages(x)]
        for i, other in (tried[n] for n in rng.permutation(len(tried))[:MANY]):
            table = compiled.TableBase(fold._graph)
            if name != "grow":
                table.grow(widths)
            with contextlib.suppress(*DAMAGE, MemoryError, BufferError, ArithmeticError):
                getattr(table, name)(*arguments[:i], other, *arguments[i + 1 :])
                table.window(few, len(widths))
                table.place(few, 4)
