"""What must be equal to share a launch: compared by value and type, decided while recording."""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import math
import pickle
from collections import Counter, OrderedDict, UserDict, namedtuple
from decimal import Decimal
from fractions import Fraction
from unittest.mock import Mock

import numpy as np
import pytest

from multifold import Fold, RecordError, merge, ragged, shared, static, trace
from multifold._engine.record import graph
from multifold._engine.record.anatomy import base_of
from multifold._engine.record.freezing import freeze, snapshot
from multifold._engine.record.kinds import COLUMNS, KINDS, LETTERS
from multifold._engine.record.recorder import Recorder
from multifold.operands import RaggedOperand, Shared, Static

Pair = namedtuple("Pair", "a b")


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Config:
    width: int
    names: list


@dataclasses.dataclass
class Other:
    width: int
    names: list


def double(x):
    return x * 2


TABLE = np.ones((3, 2))


def stateful(scale):
    """A partial function of a class that adds to it."""

    class Scaled(functools.partial):
        def __call__(self, x, **static):
            return super().__call__(x) * self.scale

    made = Scaled(double)
    made.scale = scale
    return made


class Cell:
    def step(self, x):
        return x


CELL = Cell()

SHARE = {
    "numbers of one kind": ([1], [2]),
    "numpy and python numbers": ([np.int32(1), np.float16(2)], [5, 2.5]),
    "bools of numpy and python": ([np.True_], [False]),
    "arrays of one class": ([np.ones((1, 2))], [np.zeros((1, 2))]),
    "equal static values": ([static((1, "a"))], [static((1, "a"))]),
    "equal static containers": ([static({"a": [1, {2}]})], [static({"a": [1, {2}]})]),
    "equal static arrays": ([static(np.arange(3))], [static(np.arange(3))]),
    "equal dataclasses": ([static(Config(1, ["a"]))], [static(Config(1, ["a"]))]),
    "equal enums": ([Colour.RED], [Colour.RED]),
    "nan is nan": ([static(math.nan)], [static(math.nan)]),
    "None and strings": ([None, "a"], [None, "a"]),
    "one shared array": ([shared(TABLE)], [shared(TABLE)]),
    "one structure": ([{"a": 1, "b": [2.0]}], [{"a": 4, "b": [3.0]}]),
    "all arities of a ragged operand": ([ragged([1, 2, 3])], [ragged([4.5])]),
    "ragged rows of equal shape": ([ragged([], (2,))], [ragged([np.ones((1, 2))], [2])]),
    "equal hashable values": ([Fraction(1, 2)], [Fraction(2, 4)]),
    "equal numbers of other types": ([static(1 + 2j), Decimal("1.5")], [static(1 + 2j), Decimal("1.5")]),
    "equal numbers of other types in a list": (
        [static([1j, Fraction(1, 2)])],
        [static([1j, Fraction(2, 4)])],
    ),
}

APART = {
    "int and float": ([1], [1.0]),
    "int and bool": ([1], [True]),
    "node count": ([1], [1, 2]),
    "number and array": ([1.0], [np.ones(1)]),
    "widths of arrays": ([np.ones((1, 2))], [np.ones((1, 3))]),
    "dimensions of arrays": ([np.ones((1, 2))], [np.ones((1, 2, 1))]),
    "dtypes of arrays": ([np.ones((1, 2))], [np.ones((1, 2), "float32")]),
    "the order of a dictionary": ([{"a": 1, "b": 2}], [{"b": 2, "a": 1}]),
    "the order of a dictionary in a list": ([[{"a": 1, "b": 2}]], [[{"b": 2, "a": 1}]]),
    "the order of a dictionary in another one": ([{"c": {"a": 1, "b": 2}}], [{"c": {"b": 2, "a": 1}}]),
    "number and static number": ([1], [static(1)]),
    "static 1 and 1.0": ([static(1)], [static(1.0)]),
    "static 1 and True": ([static(1)], [static(True)]),
    "static 0.0 and -0.0": ([static(0.0)], [static(-0.0)]),
    "static -1 and -2, of equal hash": ([static(-1)], [static(-2)]),
    "static list and tuple": ([static([1])], [static((1,))]),
    "types inside of containers": ([static((1, [2]))], [static((1, [2.0]))]),
    "static arrays by value": ([static(np.arange(3))], [static(np.arange(3)[::-1])]),
    "static arrays by dtype": ([static(np.arange(3))], [static(np.arange(3.0))]),
    "named tuples and tuples": ([static(Pair(1, 2))], [static((1, 2))]),
    "fields of dataclasses": ([static(Config(1, ["a"]))], [static(Config(1, ["b"]))]),
    "shapes of static arrays": ([static(np.zeros((2, 3)))], [static(np.zeros((3, 2)))]),
    "steps of slices": ([static(slice(0, 4, 1))], [static(slice(0, 4, 2))]),
    "types inside of sets": ([static(frozenset({1}))], [static(frozenset({True}))]),
    "classes of dataclasses": ([static(Config(1, ["a"]))], [static(Other(1, ["a"]))]),
    "types of other values": ([static(Fraction(1))], [static(Decimal(1))]),
    "complex and float": ([static(1 + 0j)], [static(1.0)]),
    "Decimal and int": ([static(Decimal(1))], [static(1)]),
    "enum members": ([Colour.RED], [Colour.BLUE]),
    "None and a string": ([None], ["None"]),
    "shared arrays, even if equal": ([shared(TABLE)], [shared(TABLE.copy())]),
    "shared and batched": ([shared(np.ones((1, 2)))], [np.ones((1, 2))]),
    "nesting": ([[1, 2]], [[1, [2]]]),
    "list and tuple": ([[1, 2]], [(1, 2)]),
    "keys": ([{"a": 1}], [{"b": 1}]),
    "lengths of lists": ([[1]], [[1, 1]]),
    "slices": ([static(slice(1))], [static(slice(2))]),
    "functions": ([double], [math.sqrt]),
}


@pytest.mark.parametrize(("first", "second"), SHARE.values(), ids=SHARE)
def test_calls_share_a_launch(first, second):
    fold = Fold(backend="numpy")
    for operands in (first, second, first):
        fold.add("f", *operands)
    assert len(fold.schedule().launches) == 1


@pytest.mark.parametrize(("first", "second"), APART.values(), ids=APART)
def test_calls_run_apart(first, second):
    fold = Fold(backend="numpy")
    for operands in (first, second, first, second):
        fold.add("f", *operands)
    assert sorted(len(launch) for launch in fold.schedule().launches) == [2, 2]


@pytest.mark.parametrize(("first", "second"), APART.values(), ids=APART)
def test_keyword_arguments_are_told_apart_like_static_operands(first, second):
    fold = Fold(backend="numpy")
    values = [getattr(x, "value", x) for (x, *_) in (first, second)]
    if freeze(values[0]) == freeze(values[1]):
        values = [*enumerate(values)]
    for value in values * 2:
        fold.add("f", 1, k=static(value))
    assert sorted(len(launch) for launch in fold.schedule().launches) == [2, 2]


def test_the_kind_of_producer_does_not_matter():
    fold = Fold(backend="numpy")
    rows = [fold.add("leaf", 1), fold.add("other", 2.0), fold.add("pair", 3).split(2)[1]]
    nodes = [fold.add("f", row) for row in rows]
    assert len(fold.schedule([nodes]).launches) == 3 + 1


OPS = {
    "a name": ("f", "f", 1),
    "two names": ("f", "g", 2),
    "a function": (double, double, 1),
    "two functions": (double, lambda x: x, 2),
    "methods of one object": (CELL.step, CELL.step, 1),
    "methods of two objects": (CELL.step, Cell().step, 2),
    "partials made apart": (functools.partial(double), functools.partial(double), 1),
    "partials with states of their own": (stateful(1), stateful(2), 2),
    "objects that only look like partials": (Mock(), Mock(), 2),
    "partials of other values": (functools.partial(double, k=1), functools.partial(double, k=2), 2),
    "a name and a function": ("double", double, 2),
}


@pytest.mark.parametrize(("first", "second", "launches"), OPS.values(), ids=OPS)
def test_ops_are_names_or_callables(first, second, launches):
    fold = Fold(backend="numpy")
    for op in (first, second):
        fold.add(op, 1)
        fold.add(op, 1, k=2)
    assert len(fold.schedule().launches) == 2 * launches


def test_an_op_that_cannot_be_hashed_is_itself():
    class Odd:
        __hash__ = None

        def __call__(self, x):
            return x + 1

    fold = Fold(backend="numpy")
    odd = Odd()
    nodes = [fold.add(odd, i) for i in range(3)]
    assert fold(nodes).tolist() == [1, 2, 3]
    assert len(fold.schedule().launches) == 1


def test_ops_that_are_equal_but_not_the_same_run_apart():
    class Scale:
        def __init__(self, by):
            self.by = by

        def __eq__(self, other):
            return True

        def __hash__(self):
            return 0

        def __call__(self, x):
            return x * self.by

    fold = Fold(backend="numpy")
    nodes = [fold.add(Scale(by), 1) for by in (2, 3)]
    assert fold(nodes).tolist() == [2, 3]


def test_a_static_argument_is_kept_as_it_was_when_recorded():
    fold = Fold(backend="numpy")
    sizes = [1, [2]]
    table = np.arange(2)
    node = fold.add(lambda x, s, t: x + s[1][0] + t[0], 1, static(sizes), t=static(table))
    sizes[1][0] = 100
    table[0] = 100
    assert fold(node).tolist() == [3]


def test_static_arguments_arrive_as_they_were_given():
    fold = Fold(backend="numpy")
    seen = []
    given = (None, "s", static([1, {"a": (2,)}]), Colour.RED, Pair, 2.0)

    def op(*operands, **kwargs):
        seen.append((operands[:4], kwargs))
        return operands[5]

    fold([fold.add(op, *given, op="sum", self=1, shape=(1, 2), deep=OrderedDict(a=[1]))])
    assert seen == [
        (
            (None, "s", [1, {"a": (2,)}], Colour.RED),
            {"op": "sum", "self": 1, "shape": (1, 2), "deep": {"a": [1]}},
        )
    ]


@pytest.mark.parametrize("value", [[1, [2]], {"a": {1}}, (1, [2])])
def test_a_snapshot_is_equal_and_apart(value):
    kept = snapshot(value)
    assert kept == value
    assert freeze(kept) == freeze(value)
    assert kept is not value


# ---- kinds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS.values(), ids=str)
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda kind: pickle.loads(pickle.dumps(kind))]
)
def test_there_is_one_object_of_each_kind(kind, copied):
    assert copied(kind) is kind


def test_each_kind_of_the_table_is_one_that_calls_have():
    fold = Fold(backend="numpy")
    node = fold.add("f", 1, 0.5, True, np.ones((1, 2)), ragged([1]), shared(2), static(3))
    fold.add("g", node, node.no_batch())
    slots = [slot for signature in fold._graph.signatures for slot in signature.slots]
    assert {slot.kind for slot in slots} == set(KINDS.values())
    assert {kind.column for kind in KINDS.values()} == {*COLUMNS, None}
    assert fold._columns().operand(*fold._graph.signatures[0].operands[2], 0).tolist() is True


@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1, np.int64(-(2**63))])
def test_the_least_and_the_greatest_int_of_64_bits_are_recorded(number):
    fold = Fold(backend="numpy")
    assert fold.apply({"f": lambda x: x}, fold.add("f", number)).tolist() == [int(number)]


def test_equal_calls_stay_one_when_a_fold_was_pickled():
    fold = Fold(backend="numpy", cse=True)
    node = fold.add("f", 1, [fold.add("g", 2), None])
    again, same = pickle.loads(pickle.dumps((fold, node)))
    assert again.add("f", 1, [again.add("g", 2), None])._ref == same._ref
    assert len(again) == len(fold) == 2


def test_a_schedule_and_a_minibatch_are_short_in_a_debugger():
    traces = [trace(lambda fold, x: fold.add("f", x), float(i)) for i in range(100)]
    batch = merge(traces)
    assert len(repr(batch.plan.schedule)) < 300
    assert repr(batch) == "<Minibatch: traces=100, calls=100, launches=1>"
    assert repr(traces[0]) == "<Trace: calls=1>"


def test_rows_of_a_shape_that_was_said_join_those_that_say_none():
    """Beside another operand, and from both sides."""
    fold = Fold(backend="numpy")
    said = ragged([], row_shape=(2,))
    open_ = ragged([fold.add("g", 1)])
    nodes = [fold.add("f", x, rows) for x, rows in [(1.0, said), (2.0, open_), (3.0, said)]]
    model = {
        "g": lambda n: np.ones((len(n), 2)),
        "f": lambda x, r: x + np.bincount(r.segment_ids, minlength=len(x)),
    }
    assert fold.apply(model, [nodes])[0].tolist() == [1.0, 3.0, 3.0]
    assert [launch.op for launch in fold.schedule().launches].count("f") == 1


# ---- ragged operands that say a shape, and others that do not ----------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (0, 2, 1), (1, 2, 0), (2, 0, 1)])
def test_rows_whose_shape_is_said_share_a_launch_with_rows_of_no_said_shape(order):
    fold = Fold(backend="numpy")
    row = fold.add("row")
    calls = [
        lambda: fold.add("f", ragged([row]), static("k"), by=1),
        lambda: fold.add("f", ragged([], row_shape=(2,)), static("k"), by=1),
        lambda: fold.add("f", ragged([row], row_shape=(2,)), static("k"), by=1),
    ]
    for i in order:
        calls[i]()
    assert [(launch.op, len(launch)) for launch in fold.schedule().launches] == [("row", 1), ("f", 3)]
    assert [x.slots[0].value for x in fold._graph.signatures if x.op == "f"] == [((2,), "float")]
    fold.add("f", ragged([], row_shape=(3,)), static("k"), by=1)
    fold.add("f", ragged([row]), static("other"), by=1)
    fold.add("f", ragged([row]), static("k"), by=2)
    assert sorted(len(launch) for launch in fold.schedule().launches) == [1, 1, 1, 1, 3]


def test_traces_of_which_one_says_the_shape_of_rows_are_merged_to_one_launch():
    def both(fold, row):
        fold.add("f", ragged([], row_shape=(2,)), by=1)
        return fold.add("f", ragged([row]), by=1)

    traces = [trace(both, np.ones((1, 2))), trace(lambda fold, x: fold.add("f", ragged(x, (2,)), by=1), [])]
    plan = merge(traces).plan
    assert [x.slots[0].value for x in plan.columns.signatures] == [((2,), "float")] and len(
        plan.schedule
    ) == 1


@pytest.mark.parametrize(("other", "launches"), [(2, 1), (3, 2)])
def test_traces_that_say_a_shape_beside_rows_of_no_said_shape_are_merged_by_it(other, launches):
    def both(width):
        def record(fold, row):
            fold.add("f", ragged([row]), by=1)
            return fold.add("f", ragged([], row_shape=(width,)), by=1)

        return trace(record, np.ones((1, width)))

    said = trace(lambda fold, x: fold.add("f", ragged(x, row_shape=(other,)), by=1), [])
    for traces in ([both(2), both(other)], [both(2), said], [said, both(2)]):
        assert len(merge(traces).plan.schedule) == launches
    assert (both(2).vocabulary == both(other).vocabulary) is (other == 2)


def test_the_order_of_a_dictionary_counts_beside_ragged_rows():
    fold = Fold(backend="numpy")
    fold.add("f", {"a": 1, "b": ragged([1.0])})
    fold.add("f", {"b": ragged([1.0]), "a": 1})
    assert len(fold._graph.signatures) == 2


def test_a_shape_is_said_by_a_ragged_operand_alone():
    fold = Fold(backend="numpy")
    fold.add("f", ragged([1.0]), static("k"), np.ones((1, 2)))
    fold.add("g", ragged([], row_shape=(2,)), static("k"), np.ones((1, 2)))
    assert [signature.says_rows for signature in fold._graph.signatures] == [False, True]


def signatures(*calls):
    """Return the signatures of some calls of ``f``, of two ragged operands and a keyword argument."""
    fold = Fold(backend="numpy")
    for first, second in calls:
        fold.add("f", ragged([1.0], first), {"a": 1.0}, ragged([1.0], second), by=1)
    return fold._graph.signatures


def test_a_joined_signature_is_that_of_a_call_that_says_both_shapes():
    (joined,) = signatures(((2,), None), (None, (3,)))
    (both,) = signatures(((2,), (3,)))
    (open_,) = signatures((None, None))
    assert (joined.slots, joined.key) == (both.slots, both.key)
    assert joined.open_key == both.open_key == open_.open_key == open_.key


def test_a_signature_says_rows_where_one_ragged_operand_does():
    said = [signatures(call)[0].says_rows for call in ((None, None), (None, (3,)), ((2,), (3,)))]
    assert said == [False, True, True]


# ---- large and small shared arrays -------------------------------------------------------------------


def scaled_by(array):
    """Return a fold, and a function that records a call that scales 1.0 by the sum of an array."""
    fold = Fold(backend="numpy")
    return fold, lambda x=array: fold.add(times_sum, 1.0, shared(x))


def times_sum(ones, x):
    return ones * x.sum()


@pytest.mark.parametrize("bytes_", [4096, 4104], ids="{} bytes".format)
def test_a_shared_array_of_4096_bytes_may_change_between_calls_and_a_larger_one_may_not(bytes_):
    array = np.ones(bytes_ // 8)
    fold, record = scaled_by(array)
    nodes = [record()]
    array += 1
    nodes += [record()]
    if bytes_ > 4096:
        with pytest.raises(RecordError, match="stay as it was when it was recorded"):
            fold.apply({}, [nodes])
    else:
        assert fold.apply({}, [nodes])[0].tolist() == [512.0, 1024.0]


def test_a_changed_array_is_found_behind_one_that_stayed_as_it_was():
    stays = np.ones(1000)
    changes = np.ones(1000)
    fold, record = scaled_by(stays)
    nodes = [record(), record(changes)]
    changes += 1
    with pytest.raises(RecordError, match="stay as it was when it was recorded"):
        fold.apply({}, [nodes])


def test_an_array_may_change_when_its_calls_have_run_although_others_have_not():
    changes = np.ones(1000)
    stays = np.ones(1000)
    fold, record = scaled_by(changes)
    assert fold.apply({}, [[record()]])[0].tolist() == [1000.0]
    changes += 1
    assert fold.apply({}, [[record(stays)]])[0].tolist() == [1000.0]
    assert fold.apply({}, [[record(changes)]])[0].tolist() == [2000.0]


# ---- copies ------------------------------------------------------------------------------------------


class Length(int):
    pass


class Point(namedtuple("PointBase", "x y")):
    pass


class Names(frozenset):
    pass


class Share(float):
    pass


@pytest.mark.parametrize(
    "value",
    [
        2,
        0.5,
        1 + 2j,
        (1, "a"),
        frozenset({1}),
        np.float32(1),
        range(3),
        slice(1),
        [].append,
        Length(3),
        Share(2.5),
        Names("a"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_cannot_change_is_kept_as_it_is(value):
    assert snapshot(value) is value


@pytest.mark.parametrize(
    "value",
    [
        *([1], {1}, {"a": 1}, OrderedDict(a=1)),
        *(np.ones(2), np.zeros(1, "i4,f4")[0]),
        functools.partial(max, 1, key=abs),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_may_change_is_copied_to_an_equal_value_of_its_type(value):
    made = snapshot(value)
    assert made is not value and type(made) is type(value)
    assert freeze(made) == freeze(value)


@pytest.mark.parametrize(
    "cls", [Length, Names, Point, type("Phase", (complex,), {}), Share, type("Metres", (np.float64,), {})]
)
def test_a_value_with_attributes_is_copied_with_them(cls):
    value = cls(1, 2) if issubclass(cls, (Point, complex)) else cls("7") if cls is Names else cls(7)
    value.unit = ["m"]
    made = snapshot(value)
    value.unit.append("s")
    assert type(made) is cls and made == value and made.unit == ["m"]


def test_sets_are_equal_in_whatever_order_they_were_filled():
    assert [*{0, 8}] != [*{8, 0}], "the order in which a set is walked through"
    for cls in (set, frozenset):
        assert freeze(cls([0, 8])) == freeze(cls([8, 0]))


def test_the_class_that_holds_the_fields_is_the_one_written_in_c():
    assert [base_of(x) for x in (Counter, Pair, UserDict, Length, int)] == [dict, tuple, object, int, int]


# ---- the table of kinds ------------------------------------------------------------------------------


def test_the_kinds_are_named_as_people_say_them():
    said = {kind.name: (kind.text, kind.letter, kind.column) for kind in KINDS.values()}
    assert said == {
        "node": ("a node", "n", "refs"),
        "shared node": ("a shared node", "n", "refs"),
        "int": ("an int", "i", "ints"),
        "float": ("a float", "f", "floats"),
        "bool": ("a bool", "i", "ints"),
        "array": ("an array", "a", "arrays"),
        "ragged": ("a ragged one", "r", "ragged"),
        "shared": ("a shared value", "v", None),
        "static": ("a static value", "v", None),
    }


def test_the_kinds_know_what_is_batched_shared_or_marked():
    assert [kind.name for kind in KINDS.values() if kind.shared] == ["shared node", "shared"]
    assert [kind.name for kind in KINDS.values() if not kind.batched] == ["shared node", "shared", "static"]
    numbers = {kind.name: kind.number for kind in KINDS.values() if kind.number}
    assert numbers == {"int": int, "float": float, "bool": bool}
    assert {kind.marker: kind.name for kind in KINDS.values() if kind.marker} == {
        RaggedOperand: "ragged",
        Shared: "shared",
        Static: "static",
    }


def test_the_quick_path_knows_the_letter_of_each_type_of_operand():
    letters = {int: "i", float: "f", bool: "i", RaggedOperand: "r", Shared: "v", Static: "v"}
    assert letters | {str: "s", type(None): "-"} == LETTERS


def test_wide_kinds_are_those_whose_rows_may_hold_many_numbers():
    assert {kind.name for kind in KINDS.values() if kind.wide} == {"node", "array", "ragged"}


def test_a_form_of_a_name_is_understood_once_in_all_folds(monkeypatch):
    understood = []
    understand = Recorder._understand
    monkeypatch.setattr(
        Recorder,
        "_understand",
        lambda self, op, *given: understood.append(op) or understand(self, op, *given),
    )
    monkeypatch.setattr(graph, "MOST_NAMED", 2)
    named = dict(graph.NAMED)
    graph.NAMED.clear()
    try:
        for _ in range(2):
            Fold(backend="numpy").add("named", 1, np.ones((1, 2)), "static")
            Fold(backend="numpy").add(abs, 1)
        assert understood == ["named", abs, abs]
        for op in ("second", "third", "named"):  # too many are forgotten, all at once
            Fold(backend="numpy").add(op, 1, np.ones((1, 2)), "static")
        assert understood[3:] == ["second", "third", "named"]
    finally:
        graph.NAMED.clear()
        graph.NAMED.update(named)
