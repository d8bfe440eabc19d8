"""Static values: what was recorded stays as it was, and values that an op can tell apart run apart.

Each line of `CHANGES` is a value, a change of it, and a number that an op reads from it. Each line of
`APART` is two values that are equal, or look equal, and that an op can tell apart all the same.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import ipaddress
import itertools
import pathlib
import random
import re
import threading
import types
import uuid
import zoneinfo
from collections import (
    ChainMap,
    Counter,
    OrderedDict,
    UserDict,
    UserList,
    UserString,
    defaultdict,
    deque,
    namedtuple,
)
from collections.abc import Mapping

import numpy as np
import pytest

import multifold.program
from multifold import Fold, RecordError, Unfold, ragged, shared, static, trace
from multifold._engine.record.freezing import freeze, snapshot

# ---- classes of users ------------------------------------------------------------------------------


class Sized(tuple):
    """A tuple with attributes, and no slots."""


class Text(str):
    pass


class Bytes(bytes):
    pass


class Whole(int):
    pass


class Real(float):
    pass


class Complex(complex):
    pass


class Numpys(np.float64):
    pass


class Items(list):
    pass


class Table(dict):
    pass


class Ordered(OrderedDict):
    pass


class Queue(deque):
    pass


class Members(set):
    pass


class Frozen(frozenset):
    pass


class Cube(np.ndarray):
    pass


class Money(decimal.Decimal):
    pass


class Day(datetime.date):
    pass


class Half(fractions.Fraction):
    pass


Pair = namedtuple("Pair", "k more")


class Named(Pair):
    """A named tuple with attributes."""


@dataclasses.dataclass
class Record:
    k: int
    more: list = dataclasses.field(default_factory=list)
    note: list = dataclasses.field(default_factory=list, compare=False)


@dataclasses.dataclass(frozen=True)
class Fixed:
    k: list


@dataclasses.dataclass(slots=True)
class Slotted:
    k: int


@dataclasses.dataclass(eq=False)
class Nameless:
    k: int


class Comparable:
    """An object with slots and an `__eq__` that sees less than an op."""

    __slots__ = ("__dict__", "k")

    def __init__(self, k):
        self.k = k
        self.unseen = 0

    def __eq__(self, other):
        return isinstance(other, Comparable)

    def __hash__(self):
        return 1


class Around(Mapping):
    """A mapping of the user's own."""

    def __init__(self, kept):
        self.kept = kept

    def __getitem__(self, key):
        return self.kept[key]

    def __iter__(self):
        return iter(self.kept)

    def __len__(self):
        return len(self.kept)


class Plain:
    """An object that is equal only to itself."""

    def __init__(self, k):
        self.k = k


class Guarded(Plain):
    """An object that lets nobody set its attributes."""

    def __init__(self, k):
        object.__setattr__(self, "k", k)

    def __setattr__(self, name, value):
        raise AttributeError(name)

    def __delattr__(self, name):
        raise AttributeError(name)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Access(enum.Flag):
    READ = 1
    WRITE = 2


def with_unit(value, unit=1):
    """Give an object an attribute."""
    value.unit = unit
    return value


def set_unit(value):
    value.unit = 2


def unit(value):
    return value.unit


def set_first(value):
    value[0] = 9


def first(value):
    return float(value[0])


def set_k(value):
    value["k"] = 9


def k(value):
    return value["k"]


def set_attribute(value):
    value.k = 9


def attribute(value):
    return value.k


def objects(*entries):
    made = np.empty(len(entries), object)
    made[:] = entries
    return made


def cached_path():
    path = pathlib.PurePosixPath("a", "b")
    str(path), hash(path), path.parts
    return path


CHANGES = {
    "list": (lambda: [1], set_first, first),
    "list in a tuple": (lambda: ([1],), lambda x: set_first(x[0]), lambda x: x[0][0]),
    "list in a list": (lambda: [[1]], lambda x: set_first(x[0]), lambda x: x[0][0]),
    "list subclass": (lambda: Items([1]), set_first, first),
    "dict": (lambda: {"k": 1}, set_k, k),
    "dict in a dict": (lambda: {"a": {"k": 1}}, lambda x: set_k(x["a"]), lambda x: x["a"]["k"]),
    "dict subclass": (lambda: Table(k=1), set_k, k),
    "OrderedDict": (lambda: OrderedDict(k=1), set_k, k),
    "order of an OrderedDict": (
        lambda: OrderedDict(a=1, b=2),
        lambda x: x.move_to_end("a"),
        lambda x: next(iter(x.values())),
    ),
    "Counter": (lambda: Counter("aab"), lambda x: x.update("a"), lambda x: x["a"]),
    "ChainMap": (lambda: ChainMap({"k": 1}, {}), set_k, k),
    "ChainMap, below": (lambda: ChainMap({}, {"k": 1}), lambda x: set_k(x.maps[1]), k),
    "UserDict": (lambda: UserDict(k=1), set_k, k),
    "UserList": (lambda: UserList([1]), set_first, first),
    "UserString": (lambda: UserString("a"), lambda x: setattr(x, "data", "abc"), len),
    "Mapping": (lambda: Around({"k": 1}), lambda x: set_k(x.kept), k),
    "set": (lambda: {1}, lambda x: x.add(9), len),
    "set subclass": (lambda: Members({1}), lambda x: x.add(9), len),
    "named tuple": (lambda: Pair(1, [1]), lambda x: set_first(x.more), lambda x: x.more[0]),
    "argparse.Namespace": (lambda: argparse.Namespace(k=1), set_attribute, attribute),
    "dataclass": (lambda: Record(1), set_attribute, attribute),
    "list in a dataclass": (lambda: Record(1, [1]), lambda x: set_first(x.more), lambda x: x.more[0]),
    "field that is not compared": (lambda: Record(1), lambda x: x.note.append(1), lambda x: len(x.note)),
    "attribute that is no field": (lambda: with_unit(Record(1)), set_unit, unit),
    "frozen dataclass": (lambda: Fixed([1]), lambda x: set_first(x.k), lambda x: x.k[0]),
    "dataclass with slots": (lambda: Slotted(1), set_attribute, attribute),
    "dataclass without eq": (lambda: Nameless(1), set_attribute, attribute),
    "object with __eq__": (lambda: Comparable(1), set_attribute, attribute),
    "object with __eq__, unseen": (
        lambda: Comparable(1), lambda x: setattr(x, "unseen", 9), lambda x: x.unseen
    ),
    "object in a tuple": (lambda: (Comparable(1),), lambda x: set_attribute(x[0]), lambda x: x[0].k),
    "key of a dict": (
        lambda: {Comparable(1): 1}, lambda x: set_attribute(next(iter(x))), lambda x: next(iter(x)).k
    ),
    "attribute of a tuple": (lambda: with_unit(Sized((1,))), set_unit, unit),
    "attribute of a named tuple": (lambda: with_unit(Named(1, 2)), set_unit, unit),
    "attribute of a str": (lambda: with_unit(Text("a")), set_unit, unit),
    "attribute of bytes": (lambda: with_unit(Bytes(b"a")), set_unit, unit),
    "attribute of an int": (lambda: with_unit(Whole(1)), set_unit, unit),
    "attribute of a float": (lambda: with_unit(Real(1)), set_unit, unit),
    "attribute of a complex": (lambda: with_unit(Complex(1)), set_unit, unit),
    "attribute of a NumPy scalar": (lambda: with_unit(Numpys(1)), set_unit, unit),
    "attribute of a list": (lambda: with_unit(Items([1])), set_unit, unit),
    "attribute of a dict": (lambda: with_unit(Table(k=1)), set_unit, unit),
    "attribute of an OrderedDict": (lambda: with_unit(Ordered(k=1)), set_unit, unit),
    "attribute of a set": (lambda: with_unit(Members({1})), set_unit, unit),
    "attribute of a frozenset": (lambda: with_unit(Frozen({1})), set_unit, unit),
    "attribute of an array": (lambda: with_unit(np.zeros(2).view(Cube)), set_unit, unit),
    "attribute of a Decimal": (lambda: with_unit(Money("1.0")), set_unit, unit),
    "attribute of a date": (lambda: with_unit(Day(2020, 1, 1)), set_unit, unit),
    "attribute of a Fraction": (lambda: with_unit(Half(1, 2)), set_unit, unit),
    "array": (lambda: np.ones(2), set_first, first),
    "array of structures": (
        lambda: np.ones(1, [("a", "f4")]), lambda x: x["a"].fill(9), lambda x: float(x["a"][0])
    ),
    "structure": (
        lambda: np.ones(1, [("a", "f4")])[0], lambda x: x.__setitem__("a", 9), lambda x: float(x["a"])
    ),
    "array of objects": (lambda: objects([1], [2]), lambda x: set_first(x[0]), lambda x: x[0][0]),
    "array of dates": (
        lambda: np.array(["2020-01-01"], "M8[D]"),
        lambda x: x.fill(np.datetime64("2021-01-01")),
        lambda x: float(x[0].astype(int)),
    ),
    "array of text": (lambda: np.array(["a"]), lambda x: x.fill("b"), lambda x: ord(str(x[0]))),
    "view of an array": (lambda: np.zeros((2, 2))[0], set_first, first),
    "slice of lists": (lambda: slice([1]), lambda x: set_first(x.stop), lambda x: x.stop[0]),
    "partial": (
        lambda: functools.partial(max, [1], key=None), lambda x: set_first(x.args[0]), lambda x: x()
    ),
    "partial's keywords": (
        lambda: functools.partial(dict, k=[1]), lambda x: set_first(x.keywords["k"]), lambda x: x()["k"][0]
    ),
    "partial's own keywords": (
        lambda: functools.partial(dict, k=1), lambda x: set_k(x.keywords), lambda x: x()["k"]
    ),
    "partial of a partial": (
        lambda: functools.partial(functools.partial(max, [1]), key=None),
        lambda x: set_first(x.args[0]),
        lambda x: x(),
    ),
    "attribute of a partial": (lambda: with_unit(functools.partial(max)), set_unit, unit),
    "partial in a list": (
        lambda: [functools.partial(max, [1])], lambda x: set_first(x[0].args[0]), lambda x: x[0]()
    ),
}  # fmt: skip
"""Name -> make the value, change it, and what an op reads of it."""


def run(fold, record, *examples):
    return fold([[record(fold, x) for x in examples]])[0]


def run_traces(fold, record, *examples):
    return fold.run(None, [trace(record, x) for x in examples])


def run_program(fold, record, *examples):
    program = fold.program([trace(record, x) for x in examples])
    return fold._backend_of(None).constant(multifold.program.run(None, program), None)


RUNS = {
    "fold": lambda backend, *what: run(Fold(backend=backend), *what),
    "unfold": lambda backend, *what: run(Unfold(backend=backend), *what),
    "cse": lambda backend, *what: run(Fold(backend=backend, cse=True), *what),
    "traces": lambda backend, *what: run_traces(Fold(backend=backend), *what),
    "program": lambda backend, *what: run_program(Fold(backend=backend), *what),
}
"""Name -> a function of a backend, of what records an example, and of examples."""


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
@pytest.mark.parametrize(("make", "change", "look"), CHANGES.values(), ids=CHANGES)
def test_a_static_value_stays_as_it_was_recorded(make, change, look, run, backend, to_numpy):
    def op(x, value, same):
        return x * look(value) + 100 * look(same)

    value = make()
    then = []

    def record(fold, x):
        node = fold.add(op, x, static(value), same=static(value))
        then.append(101 * look(value))
        change(value)
        return node

    got = to_numpy(run(backend, record, 1.0, 1.0))
    assert got.tolist() == then and then[0] != 101 * look(value)


@pytest.mark.parametrize("make", [make for make, _, _ in CHANGES.values()], ids=CHANGES)
def test_equal_values_share_a_launch_and_have_copies(make):
    fold = Fold(backend="numpy")
    value = make()
    for x in (value, make(), value, snapshot(value)):
        fold.add("f", 1, static(x), k=static(x))
    again = fold._graph.signatures[0].static["k"]
    assert len(fold.schedule()) == 1
    assert type(again) is type(value) and freeze(again) == freeze(value)


@pytest.mark.parametrize(("make", "change", "look"), CHANGES.values(), ids=CHANGES)
def test_bound_arguments_stay_as_they_were_recorded(make, change, look, backend, to_numpy):
    def op(value, x, same=None):
        return x * look(value) + 100 * look(same)

    fold = Fold(backend=backend)
    value = make()
    nodes = []
    then = []
    bound = functools.partial(op, value, same=value)
    for _ in range(2):
        nodes += [fold.add(bound, 1.0), fold.add("call", 1.0, op=bound)]
        then += [101 * look(value)] * 2
        change(value)
    got = fold.apply({"call": lambda x, op: op(x)}, [nodes])[0]
    assert to_numpy(got).tolist() == then


@pytest.mark.parametrize(("make", "change", "look"), CHANGES.values(), ids=CHANGES)
def test_a_shared_value_stays_as_it_was_recorded(make, change, look, backend, to_numpy):
    if isinstance(make(), np.ndarray):
        return  # becomes an array of the backend; `test_isolation` has those
    fold = Fold(backend=backend)
    value = make()
    nodes = []
    then = []

    def op(value, x):
        return x * look(value)

    for _ in range(2):
        nodes.append(fold.add(op, shared(value), 1.0))
        then.append(look(value))
        change(value)
    assert to_numpy(fold([nodes])[0]).tolist() == then


# ---- values that differ ------------------------------------------------------------------------------


APART = {
    "digits of a Decimal": (lambda: decimal.Decimal("1.0"), lambda: decimal.Decimal("1.00")),
    "exponents of a Decimal": (lambda: decimal.Decimal("100"), lambda: decimal.Decimal("1E2")),
    "signs of a Decimal": (lambda: decimal.Decimal("0"), lambda: decimal.Decimal("-0")),
    "Decimals in a list": (lambda: [decimal.Decimal("1.0")], lambda: [decimal.Decimal("1.00")]),
    "Decimals as keys": (lambda: {decimal.Decimal("1.0"): 1}, lambda: {decimal.Decimal("1.00"): 1}),
    "fold of a datetime": (
        lambda: datetime.datetime(2020, 1, 1), lambda: datetime.datetime(2020, 1, 1, fold=1)
    ),
    "fold of a time": (lambda: datetime.time(1), lambda: datetime.time(1, fold=1)),
    "time zones": (
        lambda: datetime.datetime(2020, 1, 1, 12, tzinfo=datetime.UTC),
        lambda: datetime.datetime(2020, 1, 1, 13, tzinfo=datetime.timezone(datetime.timedelta(hours=1))),
    ),
    "names of time zones": (
        lambda: datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
        lambda: datetime.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo("UTC")),
    ),
    "stops of a range": (lambda: range(0, 3, 2), lambda: range(0, 4, 2)),
    "empty ranges": (lambda: range(0), lambda: range(1, 1)),
    "steps of a slice": (lambda: slice(0, 4), lambda: slice(0, 4, 1)),
    "types in a slice": (lambda: slice(1), lambda: slice(True)),
    "zeros of a slice": (lambda: slice(0.0), lambda: slice(-0.0)),
    "attributes of a tuple": (lambda: with_unit(Sized((1,)), 1), lambda: with_unit(Sized((1,)), 2)),
    "attributes of a named tuple": (lambda: with_unit(Named(1, 2), 1), lambda: with_unit(Named(1, 2), 2)),
    "attributes of a dict": (lambda: with_unit(Table(k=1), 1), lambda: with_unit(Table(k=1), 2)),
    "attributes of a float": (lambda: with_unit(Real(1), 1), lambda: with_unit(Real(1), 2)),
    "attributes of an int": (lambda: with_unit(Whole(1), 1), lambda: with_unit(Whole(1), 2)),
    "attributes of a str": (lambda: with_unit(Text("a"), 1), lambda: with_unit(Text("a"), 2)),
    "attributes of an array": (
        lambda: with_unit(np.zeros(2).view(Cube), 1), lambda: with_unit(np.zeros(2).view(Cube), 2)
    ),
    "types of attributes": (lambda: with_unit(Sized((1,)), 1), lambda: with_unit(Sized((1,)), 1.0)),
    "attribute and none": (lambda: with_unit(Sized((1,)), 1), lambda: Sized((1,))),
    "fields that are not compared": (lambda: Record(1, [], [1]), lambda: Record(1, [], [2])),
    "objects that say they are equal": (lambda: Comparable(1), lambda: Comparable(2)),
    "order of a Counter": (lambda: Counter("ab"), lambda: Counter("ba")),
    "maps of a ChainMap": (lambda: ChainMap({"k": 1}, {}), lambda: ChainMap({}, {"k": 1})),
    "UserList and list": (lambda: UserList([1]), lambda: [1]),
    "zeros in a UserDict": (lambda: UserDict(k=0.0), lambda: UserDict(k=-0.0)),
    "zeros in a frozenset": (lambda: frozenset({0.0}), lambda: frozenset({-0.0})),
    "members of a Flag": (lambda: Access.READ, lambda: Access.READ | Access.WRITE),
    "member and its value": (lambda: Colour.RED, lambda: 1),
    "flags of a pattern": (lambda: re.compile("a"), lambda: re.compile("a", re.I)),
    "paths": (lambda: pathlib.PurePosixPath("a"), lambda: pathlib.PureWindowsPath("a")),
    "Fraction and int": (lambda: fractions.Fraction(1), lambda: 1),
    "timedelta": (lambda: datetime.timedelta(1), lambda: datetime.timedelta(2)),
    "UUIDs": (lambda: uuid.UUID(int=1), lambda: uuid.UUID(int=2)),
    "safety of a UUID": (
        lambda: uuid.UUID(int=1), lambda: uuid.UUID(int=1, is_safe=uuid.SafeUUID.safe)
    ),
    "addresses": (lambda: ipaddress.ip_address("::1"), lambda: ipaddress.ip_address("::2")),
    "dtypes": (lambda: np.dtype("<f4"), lambda: np.dtype(">f4")),
    "units of a NumPy date": (lambda: np.datetime64("2020", "Y"), lambda: np.datetime64("2020-01", "M")),
    "NumPy scalar and float": (lambda: np.float64(1), lambda: 1.0),
    "bits of NaN": (
        lambda: np.array([0x7FF8000000000000]).view("f8"), lambda: np.array([0x7FF8000000000001]).view("f8")
    ),
    "layouts of an array": (
        lambda: np.arange(4.0).reshape(2, 2), lambda: np.asfortranarray(np.arange(4.0).reshape(2, 2))
    ),
    "objects in an array": (lambda: objects([1], [2]), lambda: objects([1], (2,))),
    "array and matrix": (lambda: np.zeros((1, 2)), lambda: np.asmatrix(np.zeros((1, 2)))),
    "arguments of partials": (lambda: functools.partial(max, 1), lambda: functools.partial(max, True)),
    "functions of partials": (lambda: functools.partial(max, 1), lambda: functools.partial(min, 1)),
    "attributes of partials": (
        lambda: with_unit(functools.partial(max), 1), lambda: with_unit(functools.partial(max), 2)
    ),
    "objects": (object, object),
    "functions made twice": (lambda: lambda: 0, lambda: lambda: 0),
}  # fmt: skip
"""Name -> two values."""


@pytest.mark.parametrize("mark", ["keyword", "operand", "shared", "bound", "traces"])
@pytest.mark.parametrize(("one", "other"), APART.values(), ids=APART)
def test_values_that_an_op_can_tell_apart_run_apart(one, other, mark):
    if mark == "shared" and isinstance(one(), (np.ndarray, int)):
        return  # each array is one object; numbers become arrays

    def record(fold, value):
        if mark == "keyword":
            return fold.add("f", 1, k=static(value))
        if mark == "bound":
            return fold.add(functools.partial(record, value), 1)
        return fold.add("f", 1, shared(value) if mark == "shared" else static(value))

    fold = Fold(backend="numpy")
    values = [one(), other()] * 2
    if mark == "traces":
        record_all = multifold.merge([trace(record, value) for value in values])
        assert len(record_all.plan.schedule) == 2
    else:
        for value in values:
            record(fold, value)
        assert [len(launch) for launch in fold.schedule().launches] == [2, 2]


def test_keys_of_operands_are_told_apart_with_their_types():
    fold = Fold(backend="numpy")
    for key in (1, True, 1.0):
        fold.add("f", {key: 5})
    assert len(fold.schedule()) == 3


# ---- values that say how they are copied ------------------------------------------------------------


class Sealed:
    """An object that compares itself and cannot be pickled."""

    def __eq__(self, other):
        return type(other) is type(self)

    def __hash__(self):
        return 7

    def __reduce__(self):
        raise TypeError("sealed")


class Open(Sealed):
    """An object that may change."""

    __hash__ = None


class Entries(Sealed):
    """An object that is pickled as a list is: by its entries."""

    def __reduce__(self):
        return Entries, (), None, iter([1])


@pytest.mark.parametrize("cls", [Sealed, Entries])
def test_an_object_that_cannot_be_copied_is_compared_as_it_is(cls):
    value = cls()
    assert snapshot(value) is value
    assert freeze(value) == freeze(cls())


# ---- values that are themselves ------------------------------------------------------------------------

LOCK = threading.Lock()
RANDOM = random.Random(0)
GENERATOR = np.random.default_rng(0)

THEMSELVES = [
    object(),
    Guarded(1),
    LOCK,
    RANDOM,
    GENERATOR,
    len,
    Record,
    np,
    Colour.RED,
    Access.READ | Access.WRITE,
    io.StringIO(),
]


@pytest.mark.parametrize("value", THEMSELVES, ids=lambda value: type(value).__name__)
def test_a_value_of_which_there_is_one_reaches_the_op_itself(value):
    fold = Fold(backend="numpy")
    seen = []
    nodes = [fold.add(lambda x, k: seen.append(k) or x, 1, k=value)]
    fold(nodes)
    assert seen[0] is value


def test_a_path_is_one_value_whatever_it_has_computed():
    assert freeze(cached_path()) == freeze(pathlib.PurePosixPath("a/b")) == freeze(snapshot(cached_path()))


# ---- values that are refused ---------------------------------------------------------------------------


def itself():
    made = [1]
    made.append(made)
    return made


def dict_of_itself():
    made = {}
    made["me"] = made
    return made


def objects_of_themselves():
    made = objects(None)
    made[0] = made
    return made


REFUSED = {
    "object without __eq__": (lambda: Plain(1), "attributes and no __eq__"),
    "in a list": (lambda: [Plain(1)], "attributes and no __eq__"),
    "in a partial": (lambda: functools.partial(max, Plain(1)), "attributes and no __eq__"),
    "generator": (lambda: (i for i in range(3)), "pass tuple"),
    "iterator": (lambda: iter([1]), "pass tuple"),
    "map": (lambda: map(int, "12"), "pass tuple"),
    "itertools": (itertools.count, "pass tuple"),
    "keys": ({"a": 1}.keys, "pass tuple"),
    "values": ({"a": 1}.values, "pass tuple"),
    "items": ({"a": 1}.items, "pass tuple"),
    "keys of a mapping": (lambda: Around({"a": 1}).keys(), "pass tuple"),
    "memoryview": (lambda: memoryview(bytearray(b"a")), "pass bytes"),
    "read-only memoryview": (lambda: memoryview(bytearray(b"a")).toreadonly(), "pass bytes"),
    "ctypes": (lambda: ctypes.c_int(1), "pass bytes"),
    "bytearray": (lambda: bytearray(b"a"), "pass bytes"),
    "array.array": (lambda: array.array("i", [1]), "or tuple"),
    "deque": (lambda: deque([1]), "pass a tuple, a list"),
    "subclass of deque": (lambda: with_unit(Queue([1])), "pass a tuple, a list"),
    "deque in a tuple": (lambda: (deque([1]),), "pass a tuple, a list"),
    "mappingproxy": (lambda: types.MappingProxyType({"k": 1}), "pass a tuple, a list"),
    "SimpleNamespace": (lambda: types.SimpleNamespace(k=1), "pass a tuple, a list"),
    "object that says how it is pickled": (Open, "pass a tuple, a list"),
    "defaultdict": (lambda: defaultdict(int), "pass dict"),
    "masked array": (lambda: np.ma.array([1.0], mask=[True]), "pass its data and its mask"),
    "list of itself": (itself, "contains itself"),
    "dict of itself": (dict_of_itself, "contains itself"),
    "array of itself": (objects_of_themselves, "contains itself"),
    "tuple of a list of itself": (lambda: (itself(),), "contains itself"),
}
"""Name -> make the value, and what the error says."""


@pytest.mark.parametrize(
    "recorder", [Fold, Unfold, lambda **_: multifold._engine.traces.tracer.TraceRecorder()]
)
@pytest.mark.parametrize("mark", ["keyword", "static", "shared", "bound"])
@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_values_that_may_change_under_a_call_are_refused(make, message, mark, recorder):
    fold = recorder(backend="numpy")
    value = make()
    calls = {
        "keyword": lambda: fold.add("f", 1, options=static(value)),
        "static": lambda: fold.add("f", 1, static(value)),
        "shared": lambda: fold.add("f", 1, shared(value)),
        "bound": lambda: fold.add(functools.partial(max, value), 1),
    }
    with pytest.raises(RecordError, match=message) as error:
        calls[mark]()
    assert (" of op '" in str(error.value) and "Hint: pass" in str(error.value)) or "Plain" in str(
        error.value
    )
    assert len(fold) == 0


@pytest.mark.parametrize("make", [itself, dict_of_itself, lambda: (itself(), 1)])
def test_operands_that_contain_themselves_are_refused(make, fold):
    for operands in ((make(),), (1, make()), (ragged([1]), [make()])):
        with pytest.raises(RecordError, match="contains itself"):
            fold.add("f", *operands)


def test_a_value_that_nests_too_deeply_is_no_call():
    deep = ()
    for _ in range(100_000):
        deep = (deep,)
    fold = Fold(backend="numpy")
    for record in (lambda: fold.add("f", 1, k=deep), lambda: fold.add("f", static(deep))):
        with pytest.raises(RecursionError):
            record()
    assert len(fold) == 0


def test_a_recursion_of_the_user_that_is_too_deep_is_none_of_a_value():
    fold = Fold(backend="numpy")

    def down(n):
        fold.add("f", [n], k=[n])
        return down(n + 1)

    with pytest.raises(RecursionError):
        down(0)


# ---- ops that change what they are given ---------------------------------------------------------------


def appends(x, operand, *, keyword, bound=()):
    """Add the lengths of lists, and append to each of them."""
    total = len(operand) + len(keyword["k"]) + len(bound)
    operand.append(0)
    keyword["k"].append(0)
    return x * 0 + total


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_an_op_that_changes_its_static_values_changes_copies(run, backend, to_numpy):
    def record(fold, x):
        first = fold.add(appends, x, static([]), keyword={"k": []})
        return fold.add(appends, first, static([]), keyword={"k": []})

    got = run(backend, record, 1.0, 1.0)
    assert to_numpy(got).tolist() == [0, 0]


def test_an_op_that_changes_its_static_values_may_run_again(fold, to_numpy):
    node = fold.add(appends, 1.0, static([]), keyword={"k": []})
    assert [to_numpy(fold(node)).tolist() for _ in range(3)] == [[0]] * 3
    fold.check(None, node)


def test_an_object_that_has_a_shape_and_no_dtype_is_no_array(fold, to_numpy):
    class Layout(enum.Enum):
        wide = 3

        @property
        def shape(self):
            return (1, self.value)

    node = fold.add(lambda x, layout: x * layout.shape[1], 2.0, Layout.wide)
    assert to_numpy(fold([[node]])[0]).tolist() == [6]


def test_a_class_of_a_package_whose_name_begins_like_numpys_is_compared_by_its_attributes(fold, equal):
    class Normal:
        def __init__(self, loc):
            self.loc = loc

        def __eq__(self, other):
            return self.loc == other.loc

        __hash__ = None

    Normal.__module__ = "numpyro.distributions"
    nodes = [fold.add(lambda x, normal: x + normal.loc, 1.0, static(Normal(loc))) for loc in (0.0, 5.0)]
    equal(fold.apply(None, [nodes])[0], [1, 6])
