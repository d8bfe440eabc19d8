"""Files and tables of traces: what is read equals what was written, or is refused; nothing is executed."""

from __future__ import annotations

import dataclasses
import enum
import functools
import io
import json
import math
import os
import pickle
import sys
import types
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import multifold
from multifold import ExtraMissing, Fold, RecordError, ragged, shared, static, trace
from multifold._engine.record.damage import LAYOUT
from multifold._engine.record.freezing import freeze
from multifold._engine.record.texts import (
    BUILD,
    NoText,
    decode,
    encode,
    encode_dtype,
    look_up,
    name_of,
    text,
)
from multifold._engine.traces.leaves import write_leaf
from multifold._engine.traces.table import Reader
from multifold._engine.traces.vocabularies import read_vocabulary, write_vocabulary

pa = pytest.importorskip("pyarrow", reason="files of traces need the extra 'arrow'")
parquet = pytest.importorskip("pyarrow.parquet")


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    width: int
    sizes: list[int]


@dataclasses.dataclass
class Mutable:
    name: str


class Color(enum.Enum):
    RED = 1


class Model:
    @staticmethod
    def double(x: Any) -> Any:
        return 2 * x

    def leaf(self, x: Any) -> Any:
        return x


def triple(x: Any) -> Any:
    return 3 * x


TABLE = np.arange(6.0).reshape(2, 3)

MODEL = {
    "leaf": lambda x, scale: x * scale,
    "row": lambda x: x.sum(axis=1, dtype=float),
    "join": lambda x, y, by=1: x + y * by,
    "total": lambda x, rows: x + np.bincount(rows.segment_ids, rows.values, len(rows.lengths)),
    "look": lambda table, i: table[i % 2, 1],
    "pair": lambda nested: {"sum": nested["a"] + nested["b"][0], "rest": nested["b"][1]},
    "table": lambda: np.array([2.0, 3.0]),
    "pick": lambda table, x: table[1] * x,
}


def encode_example(fold: Any, picks: list[int]) -> Any:
    """Record a program with an operand of every kind, as some small integers decide."""
    nodes = [fold.add("leaf", 0.5, scale=2)]
    for pick in picks:
        node = nodes[pick % len(nodes)]
        match pick % 8:
            case 0:
                made = fold.add("leaf", pick / 3, scale=-0.0 if pick % 3 else 2.0)
            case 1:
                made = fold.add("row", np.full((1, pick), 0.25, np.float32))
            case 2:
                made = fold.add("join", node, nodes[-1], by=pick)
            case 3:
                rows = ragged([node, 1.5, np.float64(pick), np.ones(1)])
                made = fold.add("total", node, rows)
            case 4:
                made = fold.add("look", shared(TABLE), pick)
            case 5:
                made = fold.add("pair", {"b": [node, nodes[0]], "a": pick > 4})["sum"]
            case 6:
                made = fold.add("pick", fold.add("table").no_batch(), node)
            case _:
                made = fold.add(np.tanh, node)
        nodes.append(made)
    return {
        "rows": [*nodes, 2.5],
        "pair": Pair(nodes[-1], (nodes[0],)),
        "label": [picks[0]],
        "odd": [picks[0] % 2 == 1],
    }


EXAMPLES = [[7, 2, 3, 4], [1, 6, 5, 9, 3], [0], [16, 10, 11, 8]]


def made(examples: Any = EXAMPLES) -> list[multifold.Trace]:
    return [trace(encode_example, example) for example in examples]


def written(traces: Any, **options: Any) -> list[multifold.Trace]:
    file = io.BytesIO()
    multifold.save(traces, file)
    return multifold.load(file, **options)


relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)


# ---- what is written is read -------------------------------------------------------------------------


@relaxed
@given(st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=8), min_size=1, max_size=4))
def test_random_traces_come_back(examples):
    traces = made(examples)
    again = written(traces)
    assert again == traces
    assert [[*map(type, t.loose)] for t in again] == [[*map(type, t.loose)] for t in traces]
    assert [t.lines.tolist() for t in again] == [t.lines.tolist() for t in traces]
    ours, theirs = (
        Fold(backend="numpy").run(MODEL, multifold.merge([t], "auto")) for t in (traces[0], again[0])
    )
    assert ours["rows"].tobytes() == theirs["rows"].tobytes()


def test_a_trace_that_was_read_batches_with_one_that_was_recorded():
    traces = made()
    mixed = [traces[0], *written(traces)[1:]]
    assert str(multifold.merge(mixed).plan.schedule) == str(multifold.merge(traces).plan.schedule)
    ours, theirs = (Fold(backend="numpy").run(MODEL, some) for some in (traces, mixed))
    assert freeze(ours) == freeze(theirs)


def test_every_backend_runs_traces_that_were_read(backend, to_numpy):
    def chain(fold: Any, n: int) -> Any:
        x = fold.add("first", float(n))
        for _ in range(n):
            x = fold.add("next", x, shared(np.float32([0.5])), by=2)
        return x

    model = {"first": lambda n: n, "next": lambda x, row, by: x * row[0] + by}
    traces = [trace(chain, n) for n in (3, 0, 2)]
    ours, theirs = (Fold(backend=backend).run(model, some) for some in (traces, written(traces)))
    assert to_numpy(ours).tolist() == to_numpy(theirs).tolist() == [3.875, 0.0, 3.5]


ODD = [
    Config(3, [1, 2]),
    Mutable("a"),
    np.zeros((0, 3), ">i2"),
    np.array(2.5),
    np.array(["a", "bcd"]),
    np.array([(1, 2.0)], [("x", "i4"), ("y", "f8")]),
    np.dtype({"names": ["x"], "formats": ["i4"], "offsets": [4], "itemsize": 16}),
    range(2, 5, 2),
    np.arange(6, dtype=np.uint8).reshape(2, 3).T,
    np.datetime64("2026-01-01"),
    "\ud83d\ude00",
    functools.partial(triple, 1, by=(2,)),
]

plain = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(-(10**30), 10**30),
        st.floats(),
        st.text(st.characters()),
        st.binary(max_size=20),
        st.complex_numbers(),
        st.builds(slice, st.none() | st.integers(), st.none() | st.integers()),
        st.builds(range, st.integers(-5, 5), st.integers(-5, 5), st.integers(1, 3)),
        st.sampled_from(
            [..., Color.RED, np.tanh, len, np.float32, np.dtype("<M8[us]"), np.int8(3), np.float16("nan")]
        ),
        st.sampled_from(ODD),
        st.integers(4999, 5000).map(lambda digits: 10**digits),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.dictionaries(st.integers(), inner, max_size=3).map(OrderedDict),
        st.frozensets(st.text(max_size=3) | st.integers(), max_size=3),
        st.sets(st.integers(), max_size=3),
        st.builds(Pair, inner, inner),
    ),
    max_leaves=8,
)


@relaxed
@given(plain)
def test_plain_data_comes_back_with_its_types_and_its_order(value):
    again = decode(json.loads(text(encode(value))))
    assert freeze(again) == freeze(value)
    (one,) = written([trace(lambda fold, x: fold.add("f", static(x), by=static(x)), value)])
    signature = one.vocabulary.signatures[0]
    assert freeze(signature.static["by"]) == freeze(signature.slots[0].value) == freeze(value)


BUILTIN = [
    (1, "a"), [None, True], {1, 2}, frozenset({"a"}), {"a": 1.5}, OrderedDict(b=1, a=2),
    slice(1, None, 2), 2 - 1j, ..., b"ab", Color.RED, Pair(1, 2), np.int8(3), np.dtype("<f4"), -(2**70),
]  # fmt: skip


@pytest.mark.parametrize(
    "value", [*ODD, *BUILTIN, float("-inf"), -0.0, 2**63, 10**5000], ids=lambda x: type(x).__name__
)
def test_odd_values_come_back(value):
    again = decode(json.loads(text(encode({"a": value}))))["a"]
    assert freeze(again) == freeze(value)
    assert type(again) is type(value)


TEXTS = {
    "null": None,
    "true": True,
    r'"\u00e9"': "é",
    '["str","7aCA"]': "\ud800",
    '["int","0x8000000000000000"]': 2**63,
    '["float","AAAAAAAA8H8="]': math.inf,
    '["bytes","YWI="]': b"ab",
    '["tuple",1]': (1,),
    '["list",2.5]': [2.5],
    '["set",3,5]': {5, 3},
    '["frozenset",4]': frozenset({4}),
    '["dict","a",1]': {"a": 1},
    '["OrderedDict","a",1]': OrderedDict(a=1),
    '["slice",1,null,null]': slice(1, None),
    '["range",1,5,2]': range(1, 5, 2),
    '["complex",1.0,2.0]': 1 + 2j,
    '["Ellipsis"]': ...,
    '["dtype","<f4"]': np.dtype("<f4"),
    '["dtype",["dict","names",["list","a"],"formats",["list",["dtype","<i2"]],"offsets",["list",0],'
    '"itemsize",2]]': np.dtype([("a", "<i2")]),
    '["array",["dtype","<i2"],1,2,["bytes","AQACAA=="]]': np.array([[1, 2]], "<i2"),
    '["transpose",["array",["dtype","|i1"],2,2,["bytes","AQIDBA=="]],1,0]': np.int8([[1, 2], [3, 4]]).T,
    '["scalar",["dtype","<f4"],["bytes","AAAAPw=="]]': np.float32(0.5),
    '["partial",["name","builtins:max"],["tuple",1],["dict","key",["name","builtins:abs"]]]': (
        functools.partial(max, 1, key=abs)
    ),
    '["enum",["name","HERE:Color"],"RED"]': Color.RED,
    '["namedtuple",["name","HERE:Pair"],1,2]': Pair(1, 2),
    '["dataclass",["name","HERE:Config"],["tuple","width","sizes"],3,["list"]]': Config(3, []),
}
"""What files hold: who changes one of these texts raises the version of the layout."""


@pytest.mark.parametrize("written", TEXTS)
def test_a_value_has_the_text_that_it_has_in_the_files_there_are(written):
    value = TEXTS[written]
    written = written.replace("HERE", __name__)
    assert text(encode(value)) == written
    assert freeze(decode(json.loads(written))) == freeze(value)


def test_a_text_holds_no_number_that_json_does_not_know():
    with pytest.raises(ValueError, match="not JSON compliant"):
        text([math.nan])


@pytest.mark.parametrize("wrap", [lambda x: Pair(x, 1), Mutable, lambda x: [x], lambda x: {"a": x}])
def test_a_caller_says_what_stands_for_its_own_objects_wherever_they_are(wrap):
    own = object()
    code = encode(wrap(own), lambda x: ["own"] if x is own else None)
    again = decode(code, special={"own": lambda: own})
    assert again == wrap(own)


def test_a_value_that_would_be_read_as_another_one_is_refused(monkeypatch):
    """As a safeguard: everything that is written is read at once, and compared."""
    monkeypatch.setitem(BUILD, "tuple", lambda *parts: list(parts))
    with pytest.raises(
        RecordError, match="Received some that would be read as others, in trace 0 of ops f, g"
    ):
        multifold.to_arrow([trace(lambda fold, x: fold.add("g", fold.add("f", by=x)), (1, 2))])


def test_a_table_has_columns_of_these_types():
    schema = multifold.to_arrow(made()).schema
    assert {name: str(schema.field(name).type).partition("<")[0] for name in schema.names} == {
        "vocabulary": "dictionary", "values": "large_list", "integers": "large_list",
        "floats": "large_list", "lines": "large_list", "forms": "large_list",
        "leaves": "large_binary", "checksum": "uint32", "kept": "string",
    }  # fmt: skip


def test_a_table_without_rows_has_the_columns_of_any_other():
    assert multifold.to_arrow([]).schema.names == multifold.to_arrow(made()).schema.names
    for name in ("vocabulary", "values", "forms"):
        one, other = (multifold.to_arrow(x).schema.field(name).type for x in ([], made()))
        assert one == other


def test_a_shared_array_is_read_only_again():
    (one,) = written([trace(lambda fold, x: fold.add("f", shared(x), 1), TABLE)])
    assert not one.vocabulary.signatures[0].slots[0].value.flags.writeable


def test_the_numbers_of_an_array_lie_in_memory_as_they_did():
    for array in (np.asfortranarray(TABLE), np.zeros((2, 3, 4)).transpose(1, 2, 0), TABLE[:, ::2]):
        ours = trace(lambda fold, x: fold.add("f", static(x), shared(x)), array)
        (again,) = written([ours])
        for kept, read in zip(*[t.vocabulary.signatures[0].slots for t in (ours, again)], strict=True):
            assert kept.value.strides == read.value.strides


def test_no_traces_make_a_file_of_no_traces():
    assert written([]) == []


def test_traces_without_outputs_run_beside_those_that_were_read():
    def nothing(fold: Any, x: Any) -> Any:
        fold.add("f", x)
        return ()

    made = [trace(nothing, 1.0)]
    assert multifold.Fold(backend="numpy").run({"f": lambda x: x}, [*written(made), *made]) == ()


def test_paths_are_strings_paths_or_open_files(tmp_path):
    traces = made()
    for path in (tmp_path / "a.parquet", str(tmp_path / "b.parquet")):
        multifold.save(traces, path)
        assert multifold.load(path) == traces
    assert {path.name for path in tmp_path.iterdir()} == {"a.parquet", "b.parquet"}
    with open(tmp_path / "a.parquet", "rb") as file:
        assert multifold.load(file) == traces


# ---- size --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leaf", ["int", "array", "static"])
def test_a_thousand_traces_take_less_room_than_their_pickles(leaf):
    random = np.random.default_rng(0)

    def encode(fold: Any, n: int) -> Any:
        words = random.integers(0, 9999, n + 1)
        rows = {"int": int, "array": lambda i: random.standard_normal((1, 8)), "static": str}
        made = [fold.add("leaf", rows[leaf](word)) for word in words]
        while len(made) > 1:
            made.append(fold.add("cell", made.pop(), made.pop()))
        return made[0]

    traces = [trace(encode, n) for n in random.integers(1, 20, 1000).tolist()]
    file = io.BytesIO()
    multifold.save(traces, file)
    assert file.tell() < len(pickle.dumps(traces, protocol=5))


def test_each_op_and_each_value_is_written_once():
    """Each trace has a vocabulary of its own, all read one array of 80,000 bytes."""
    array = np.random.default_rng(0).standard_normal(10_000)
    traces = [
        trace(lambda fold, n: fold.add("f", shared(array), fold.add(f"only {n}")), n) for n in range(20)
    ]
    assert len({id(t.vocabulary) for t in traces}) == 20
    values = multifold.to_arrow(traces)["values"].combine_chunks().values.dictionary.to_pylist()
    assert len(values) == len(set(values)) == 22
    file = io.BytesIO()
    multifold.save(traces, file)
    assert file.tell() < 2 * array.nbytes
    assert multifold.load(file) == traces


# ---- tables in other hands ---------------------------------------------------------------------------


def without_dictionaries(table: Any) -> Any:
    """Return a table as Hugging Face datasets keep it."""
    plain = {pa.string(): pa.string(), pa.large_list(pa.string()): pa.list_(pa.string())}
    columns = {}
    for name in table.column_names:
        column = pa.array(table[name].to_pylist())
        columns[name] = column.cast(plain.get(column.type, column.type))
    return pa.table(columns)


def with_views(table: Any) -> Any:
    """Return a table as Polars hands it over when nothing is copied."""
    columns = dict(zip(table.column_names, table.combine_chunks().columns, strict=True))
    coded = columns["vocabulary"].combine_chunks()
    views = coded.dictionary.cast(pa.string_view())
    columns["vocabulary"] = pa.DictionaryArray.from_arrays(coded.indices, views)
    columns["leaves"] = columns["leaves"].cast(pa.binary_view())
    return pa.table(columns)


def with_large_strings(table: Any) -> Any:
    """Return a table as Polars exports it."""
    large = pa.dictionary(pa.uint32(), pa.large_string())
    columns = dict(zip(table.column_names, table.columns, strict=True))
    columns["vocabulary"] = columns["vocabulary"].cast(pa.large_string()).cast(large)
    columns["lines"] = columns["lines"].cast(pa.list_(pa.int32()))
    columns["leaves"] = columns["leaves"].cast(pa.binary())
    return pa.table(columns)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table,
        lambda table: table.combine_chunks(),
        lambda table: pa.Table.from_batches(table.to_batches(max_chunksize=1)),
        lambda table: table.replace_schema_metadata({"other": "words"}),
        lambda table: table.append_column("label", pa.array(["a"] * len(table))).select(
            ["label", *reversed(table.column_names)]
        ),
        lambda table: pa.concat_tables([table.slice(0, 1), table.slice(1)]),
        without_dictionaries,
        with_large_strings,
        with_views,
    ],
)
def test_a_table_is_read_as_other_libraries_hand_it_back(change):
    assert multifold.from_arrow(change(multifold.to_arrow(made()))) == made()


def test_rows_are_sliced_shuffled_and_filtered_and_keep_what_they_need():
    traces = made()
    table = multifold.to_arrow(traces)
    assert multifold.from_arrow(table.slice(2, 1)) == [traces[2]]
    assert multifold.from_arrow(table.take([3, 0, 3])) == [traces[3], traces[0], traces[3]]
    assert multifold.from_arrow(table.filter(pa.array([False, True, False, False]))) == [traces[1]]
    assert multifold.from_arrow(table.slice(0, 0)) == []
    assert multifold.from_arrow(table.to_batches()[0]) == traces


def test_rows_of_two_files_make_one_table(tmp_path):
    """The texts of the two have other numbers: each file numbers its own."""
    first = made(EXAMPLES[:1])
    second = made(EXAMPLES[1:])
    multifold.save(first, tmp_path / "first")
    multifold.save(second, tmp_path / "second")
    tables = [parquet.read_table(tmp_path / name) for name in ("second", "first")]
    joined = pa.concat_tables(tables)
    assert multifold.from_arrow(joined) == [*second, *first]
    assert multifold.from_arrow(joined.combine_chunks().take([3, 0])) == [first[0], second[0]]
    parquet.write_table(joined, tmp_path / "both")
    assert multifold.load(tmp_path / "both") == [*second, *first]


@pytest.mark.parametrize("lost", ["vocabulary", "values", "checksum", "kept"])
def test_a_table_without_one_of_its_columns_is_refused(lost):
    with pytest.raises(RecordError, match="Expected a table of traces, with the columns vocabulary"):
        multifold.from_arrow(multifold.to_arrow(made()).drop_columns([lost]))


@pytest.mark.parametrize("other", [[1, 2], "words", {"a": 1}, None])
def test_what_is_no_table_is_refused(other):
    with pytest.raises(RecordError, match="Expected a table of traces"):
        multifold.from_arrow(other)


# ---- what cannot be written --------------------------------------------------------------------------


class Plain:
    """An object of a class that no file knows."""


class Entries(dict):
    """A mapping that may keep more than its entries."""


def with_more() -> Any:
    value = Mutable("a")
    value.more = 1
    return value


def local(x: Any) -> Any:
    def inside(x: Any) -> Any:
        return x

    return inside


REFUSED = {
    "lambda": (lambda fold: fold.add(lambda x: x, 1), "the lambda"),
    "local function": (
        lambda fold: fold.add(local(1), 1),
        "the local function local.<locals>.inside as an op",
    ),
    "bound method": (lambda fold: fold.add(Model().leaf, 1), "the bound method Model.leaf as an op"),
    "object": (lambda fold: fold.add("f", 1, by=Plain()), r"Plain as the keyword argument 'by' of 'f'"),
    "inside": (lambda fold: fold.add("f", 1, by=({"a": [Plain()]},)), "Plain as the keyword argument 'by'"),
    "operand": (lambda fold: fold.add("f", static(Plain())), "Plain among the operands of 'f'"),
    "subclass": (lambda fold: fold.add("f", 1, by=Entries(a=1)), "Entries"),
    "more": (lambda fold: fold.add("f", 1, by=with_more()), "Mutable as the keyword argument 'by'"),
    "objects": (lambda fold: fold.add("f", 1, by=static(np.array([None]))), "an array of dtype object"),
    "partial": (lambda fold: fold.add(functools.partial(lambda x: x, 1)), "the lambda"),
    "row": (lambda fold: fold.add("f", np.zeros((1, 2)).view(np.recarray)), "recarray"),
    "loose": (lambda fold: fold.add("f", ragged([enum.IntEnum("Of", "A").A])), "an object of type"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_written_is_refused_by_name_and_line(name, tmp_path):
    record, said = REFUSED[name]
    refused = trace(lambda fold, _: record(fold), None)
    with pytest.raises(RecordError, match=said) as error:
        multifold.save([*made(), refused], tmp_path / "traces")
    assert "test_files.py" in str(error.value) and "trace 4" in str(error.value)
    assert error.value.hint
    assert not list(tmp_path.iterdir())


def test_what_is_refused_is_named_with_the_line_of_its_first_call():
    def record(fold, _):
        x = fold.add("f", fold.add("f", 1))
        for _ in range(2):
            x = fold.add("g", x, by=Plain())
        return x, fold.add("h", x)

    with pytest.raises(RecordError, match="Plain as the keyword argument 'by' of 'g'") as error:
        written([trace(record, 0)])
    line = record.__code__.co_firstlineno + 3
    assert f"recorded at {__file__}:{line} (trace 0)" in str(error.value)


class Odd(enum.IntEnum):
    ONE = 1


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({Plain(): [1.0]}, "Plain in what the traced function returned, recorded at no call (trace 0)"),
        ([Odd.ONE], "in trace 0, recorded in no file."),
    ],
)
def test_what_is_refused_in_a_trace_without_calls_was_recorded_nowhere(result, said):
    with pytest.raises(RecordError) as error:
        written([trace(lambda fold, _: result, 0)])
    assert said in str(error.value)


def test_values_that_are_nested_deeply_are_refused(monkeypatch):
    def too_deep(*_: Any) -> None:
        raise RecursionError

    made_before = made()[:1]
    monkeypatch.setattr("multifold._engine.traces.vocabularies.encode", too_deep)
    with pytest.raises(
        RecordError, match=r"not nested deeply\. Received one as an op, recorded at"
    ) as error:
        written(made_before)
    assert "test_files.py:" in str(error.value) and "(trace 0)" in str(error.value)
    assert error.value.hint.startswith("pass a flat value")


@pytest.mark.parametrize("damage", [ValueError, KeyError])
def test_a_vocabulary_that_cannot_be_read_again_is_refused(damage, monkeypatch):
    def fail(*_: Any) -> None:
        raise damage

    twice = trace(lambda fold, x: fold.add("g", fold.add("f", fold.add("f", x), by=1)), 1)
    monkeypatch.setattr("multifold._engine.traces.vocabularies.read_vocabulary", fail)
    with pytest.raises(RecordError, match=r"read as others, in trace 0 of ops f, g\."):
        written([twice])


def test_an_array_of_a_framework_is_refused(backend, array):
    shares = trace(lambda fold, x: fold.add("f", shared(x), 1), array([1.0]))
    if backend == "numpy":
        assert written([shares]) == [shares]
    else:
        with pytest.raises(RecordError, match="among the operands of 'f', recorded at") as error:
            written([shares])
        assert type(array([1.0])).__qualname__ in str(error.value)


def test_only_traces_are_written():
    batch = multifold.merge(made())
    for other in (batch, made()[0], [1], [*made(), "words"]):
        with pytest.raises(RecordError, match="Expected traces to write"):
            multifold.to_arrow(other)
    with pytest.raises(RecordError, match=rf"Received a str as number {len(made())}\."):
        multifold.to_arrow([*made(), "words"])


def test_a_file_is_on_the_disk_before_it_takes_the_place_of_another(tmp_path, monkeypatch):
    done = []
    for name in ("fsync", "replace"):
        step = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *x, name=name, step=step: done.append(name) or step(*x))
    multifold.save(made(), tmp_path / "traces")
    assert done == ["fsync", "replace"]


def test_the_pages_of_a_file_are_compressed_and_have_checksums():
    file = io.BytesIO()
    multifold.save(made(), file)
    group = parquet.ParquetFile(file).metadata.row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    assert {chunk.compression for chunk in chunks} == {"ZSTD"}
    data = bytearray(file.getvalue())
    data[chunks[0].data_page_offset + chunks[0].total_compressed_size - 1] ^= 1
    with pytest.raises(RecordError, match="CRC"):
        multifold.load(io.BytesIO(bytes(data)))


def test_a_save_that_fails_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "traces"
    multifold.save(made(), path)

    def fail(table: Any, file: Any, **_: Any) -> None:
        file.write(b"half of a file")
        raise KeyboardInterrupt

    monkeypatch.setattr(parquet, "write_table", fail)
    with pytest.raises(KeyboardInterrupt):
        multifold.save(made()[:1], path)
    assert [path] == list(tmp_path.iterdir())
    assert multifold.load(path) == made()


# ---- functions ---------------------------------------------------------------------------------------


def test_functions_are_found_in_modules_that_are_imported():
    ops = [math.sqrt, np.tanh, len, Model.double, triple]
    traces = [trace(lambda fold, op: fold.add(op, 4.0, act=op), op) for op in ops]
    assert [t.vocabulary.signatures[0].op for t in written(traces)] == ops
    assert name_of(Model.double) == f"{__name__}:Model.double"


@pytest.fixture
def gone(monkeypatch):
    """A function of a module that nobody imports any more, and would fail to."""
    module = types.ModuleType("gone_module")
    exec("def op(x):\n    return 10 * x", vars(module))
    monkeypatch.setitem(sys.modules, "gone_module", module)
    table = multifold.to_arrow([trace(lambda fold, x: fold.add(module.op, x), 2)])
    monkeypatch.delitem(sys.modules, "gone_module")
    return table


def test_a_function_that_is_not_imported_is_named_and_not_imported(gone, tmp_path, monkeypatch):
    (tmp_path / "gone_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RecordError, match="Expected 'gone_module:op' in `ops` or in a module") as error:
        multifold.from_arrow(gone)
    assert "import gone_module before, or pass ops={'gone_module:op': the function}" in error.value.hint
    assert "gone_module" not in sys.modules


def test_ops_stand_in_for_functions(gone):
    (one,) = multifold.from_arrow(gone, ops={"gone_module:op": triple})
    assert Fold(backend="numpy").run({}, [one]).tolist() == [6]


@pytest.mark.parametrize("as_file", [False, True], ids=["path", "file"])
def test_ops_stand_in_for_functions_of_a_file(gone, as_file, tmp_path):
    path = tmp_path / "gone.parquet"
    multifold.save(multifold.from_arrow(gone, ops={"gone_module:op": triple}), path)
    name = f"{__name__}:triple"
    with open(path, "rb") as file:
        (one,) = multifold.load(file if as_file else path, ops={name: quadruple})
    assert Fold(backend="numpy").run({}, [one]).tolist() == [8]


def quadruple(x):
    return 4 * x


def test_nothing_is_executed_when_a_table_is_read(monkeypatch):
    """What a hostile file could name: a class, a lazy attribute, a property, an enum of another kind."""
    ran = []

    class Trap(type):
        @property
        def inner(cls):
            ran.append("property")

    module = types.ModuleType("trap")
    vars(module).update(
        __getattr__=ran.append,
        call=lambda *x: ran.append("call"),
        Made=dataclasses.make_dataclass(
            "Made",
            ["name"],
            namespace={"__post_init__": ran.append, "__setattr__": lambda *x: ran.append(x)},
        ),
        Class=Trap("Class", (), {"__new__": lambda cls, *x: ran.append("new")}),
    )
    monkeypatch.setitem(sys.modules, "trap", module)
    for code in (
        ["name", "trap:missing"],
        ["name", "trap:Class.inner"],
        ["name", "trap:call"],
        ["namedtuple", ["name", "trap:Class"], 1],
        ["namedtuple", ["name", "trap:call"], 1],
        ["enum", ["name", "trap:Class"], "A"],
        ["dtype", ["name", "trap:Class"]],
        ["partial", ["name", "trap:call"], ["tuple"], ["dict"]],
        ["dataclass", ["name", "trap:Class"], ["tuple"]],
        ["dataclass", ["name", "trap:Made"], ["tuple", "name"], "a"],
        ["name", "os:system", "true"],
        ["call", ["name", "trap:call"]],
    ):
        try:
            decode(code)
        except (LookupError, TypeError, ValueError, AttributeError):
            continue
    assert ran == []


class Loose(Pair):
    """A named tuple with a `__dict__`, which a text would lose."""


class Called:
    def __call__(self) -> None: ...


def test_a_subclass_of_a_named_tuple_that_holds_more_is_refused():
    value = Loose(1, 2)
    assert decode(encode(value)) == value
    value.more = 3
    with pytest.raises(NoText):
        encode(value)


def test_a_partial_function_with_attributes_of_its_own_is_refused():
    value = functools.partial(triple, 1)
    assert decode(encode(value)).args == (1,)
    value.more = 3
    with pytest.raises(NoText):
        encode(value)


@pytest.mark.parametrize("damaged", ["YWI=!", "YW\nI=", "é"])
def test_bytes_of_other_letters_are_refused(damaged):
    assert decode(["bytes", "YWI="]) == b"ab"
    with pytest.raises(ValueError):  # noqa: PT011 - base64 says this and that
        decode(["bytes", damaged])


def test_an_object_without_a_name_is_refused_by_its_type():
    with pytest.raises(NoText, match=r"an object of type .*\.Called"):
        encode(Called())


class Fruit(enum.Enum):
    APPLE = 1
    PEAR = (2, "green")


@pytest.mark.parametrize("member", Fruit)
def test_a_member_of_an_enumeration_comes_back_as_itself(member):
    code = encode(member)
    assert code == ["enum", ["name", f"{__name__}:Fruit"], member.name]
    assert decode(json.loads(text(code))) is member


def test_a_function_is_named_by_any_module_that_holds_it(monkeypatch):
    """As torch.relu, which is written in C and does not know its module."""
    built_in = types.SimpleNamespace(__qualname__="Type.relu")
    module = types.ModuleType("of_users")
    module.relu = built_in
    monkeypatch.setitem(sys.modules, "a_longer_name_of_users", module)
    monkeypatch.setitem(sys.modules, "of_users", module)
    monkeypatch.setitem(sys.modules, "odd", Slotted())  # a module without names of its own
    assert name_of(built_in) == "of_users:relu"
    assert decode(["name", "of_users:relu"]) is built_in


class Slotted:
    __slots__ = ()


def test_a_function_that_its_module_holds_no_more_is_refused(monkeypatch):
    gone = triple
    monkeypatch.setitem(globals(), "triple", None)
    with pytest.raises(NoText, match="its module does not hold under its name"):
        encode(gone)


def test_a_dtype_with_metadata_is_refused():
    value = np.zeros(2, np.dtype("f8", metadata={"unit": "m"}))
    with pytest.raises(NoText, match="the dtype dtype") as caught:
        encode(value)
    assert "without metadata" in str(caught.value.hint)


@pytest.mark.parametrize("value", [0, 127, 2**62, 2**63 - 1, -(2**63), -1000])
def test_an_integer_of_64_bits_stands_in_a_text_as_it_is(value):
    assert encode(value) == value


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_a_wider_integer_is_written_in_digits_of_its_own(value):
    assert encode(value)[0] == "int"
    assert decode(encode(value)) == value


def test_an_attribute_that_a_class_lacks_is_not_found():
    with pytest.raises(LookupError):
        look_up("multifold:Fold.nothing")


def test_a_dtype_that_a_package_adds_is_named_by_its_class():
    """Its short form is that of as many bytes, as that of bfloat16 is."""
    added = types.SimpleNamespace(
        str="<V2", names=None, fields=None, metadata=None, isalignedstruct=False, type=np.float16
    )
    added.dtype = np.dtype(np.float16)
    assert encode_dtype(added) == ["dtype", ["name", "numpy:float16"]]


def test_a_mapping_stands_for_nothing_in_a_text():
    with pytest.raises(TypeError, match="a mapping of JSON stands for nothing"):
        decode({"dict": 1})


def test_a_dtype_is_named_by_its_class_or_its_short_form():
    assert decode(["dtype", ["name", "numpy:float32"]]) == decode(["dtype", "<f4"]) == np.float32


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (["enum", ["name", "a"], "RED"], "no enumeration: <class"),
        (["dtype", ["name", "a"]], "no dtype: <class"),
        (["namedtuple", ["name", "a"], 1], "no named tuple: <class"),
        (["dataclass", ["name", "b"], ["tuple", "c"], 1], "has other fields than"),
        (
            ["array", ["dtype", "<f4"], 2, ["bytes", ""]],
            r"of shape \[2\] .* other than 0 bytes",
        ),
    ],
    ids=lambda x: x[0] if isinstance(x, list) else "",
)
def test_what_a_text_names_must_be_of_the_kind_of_its_tag(code, message):
    names = {"a": type("Members", (), {"__members__": {"RED": 1}, "_fields": ("x",)}), "b": Config}
    with pytest.raises((TypeError, ValueError), match=message):
        decode(code, names.__getitem__)


# ---- damage ------------------------------------------------------------------------------------------


def damaged(table: Any, name: str, row: int, cell: Any) -> Any:
    """Return a table with another cell."""
    column = table[name].to_pylist()
    column[row] = cell
    return table.set_column(table.column_names.index(name), name, pa.array(column))


def changes(cell: Any) -> list[Any]:
    """Return what damage may make of a cell: entries changed, lost or moved."""
    if isinstance(cell, list):
        items = [
            [*cell[:i], new, *cell[i + 1 :]] for i, item in enumerate(cell) for new in changes(item)[:2]
        ]
        return [*items, cell[:-1], cell[1:], [*cell, *cell[:1]], cell[::-1]]
    if isinstance(cell, (str, bytes)):
        half = len(cell) // 2
        other = "5" if isinstance(cell, str) else b"5"
        return [cell[:half] + other + cell[half + 1 :], cell[:half], cell + cell]
    return [cell + 1, -cell]


@pytest.mark.parametrize(
    "name", ["vocabulary", "values", "integers", "floats", "lines", "forms", "leaves", "checksum", "kept"]
)
def test_a_damaged_cell_is_refused(name):
    table = multifold.to_arrow(made())
    cell = table[name].to_pylist()[1]
    found = [new for new in changes(cell) if new != cell and not (name == "checksum" and new < 0)]
    assert found
    for new in found:
        with pytest.raises(RecordError, match=r"damaged one in row 1"):
            multifold.from_arrow(damaged(table, name, 1, new))


def test_an_entry_that_moved_into_the_next_column_is_refused():
    table = multifold.to_arrow([trace(lambda fold, x: fold.add("f", x), 1)])
    integers, lines = (table[name].to_pylist()[0] for name in ("integers", "lines"))
    moved = damaged(table, "integers", 0, integers[:-1])
    with pytest.raises(RecordError, match="damaged one in row 0: its checksum"):
        multifold.from_arrow(damaged(moved, "lines", 0, [integers[-1], *lines]))


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("integers", None),
        ("leaves", None),
        ("checksum", None),
        ("vocabulary", None),
        ("kept", None),
        ("checksum", -1),
    ],
)
def test_a_cell_without_a_value_is_refused(name, cell):
    with pytest.raises(
        RecordError, match="Expected the columns of traces as multifold wrote them"
    ) as error:
        multifold.from_arrow(damaged(multifold.to_arrow(made()), name, 0, cell))
    assert ("1 cells without a value" in str(error.value)) is (cell is None)


def test_rows_that_took_cells_of_others_are_refused():
    table = multifold.to_arrow(made())
    for name in set(table.column_names) - {"floats"}:
        cells = table[name].to_pylist()
        if cells[0] != cells[1]:
            with pytest.raises(RecordError, match="damaged"):
                multifold.from_arrow(damaged(table, name, 0, cells[1]))


@relaxed
@given(st.integers(0, 10**9), st.integers(1, 255))
def test_a_file_with_one_changed_byte_is_refused_or_reads_the_same(place, bits):
    file = io.BytesIO()
    multifold.save(made(EXAMPLES[:2]), file)
    data = bytearray(file.getvalue())
    data[place % len(data)] ^= bits
    try:
        again = multifold.load(io.BytesIO(bytes(data)))
    except RecordError:
        return
    assert again == made(EXAMPLES[:2])


def test_a_file_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("no traces")
    with pytest.raises(RecordError, match=r"Expected a file that multifold\.save wrote") as error:
        multifold.load(path)
    assert f"Received {path}: " in str(error.value)
    with path.open("rb") as file, pytest.raises(RecordError, match=f"Received {path}: "):
        multifold.load(file)
    with pytest.raises(FileNotFoundError):
        multifold.load(tmp_path / "nothing")


def test_arrays_that_have_other_sizes_than_their_forms_are_refused():
    reader = Reader(None)
    forms = [reader.texts.number(write_leaf(x)[0]) for x in (1, np.ones(3), 2.5)]
    assert [np.sum(x) for x in reader.leaves(forms, bytes(40))] == [0, 0, 0]
    for size in (0, 8, 39, 41):
        with pytest.raises(ValueError, match=f"its arrays have 40 bytes, and {size} are there"):
            reader.leaves(forms, bytes(size))


def test_a_vocabulary_with_a_signature_twice_or_a_name_of_multifold_is_not_written():
    made_before = trace(lambda fold, x: [fold.add("f", x)], 1)
    form, values = write_vocabulary(made_before, 0)
    assert "multifold._" not in form  # what a file holds does not depend on where classes stand
    code = json.loads(form)
    code["signatures"] *= 2
    with pytest.raises(ValueError, match="two signatures are equal"):
        read_vocabulary(json.dumps(code), values, None)


def test_a_file_of_another_layout_is_refused(monkeypatch):
    monkeypatch.setattr("multifold._engine.traces.vocabularies.LAYOUT", LAYOUT + 1)
    monkeypatch.setattr("multifold._engine.traces.vocabularies.reads_as", lambda *_: True)
    table = multifold.to_arrow(made())
    monkeypatch.undo()
    with pytest.raises(RecordError, match="Received layout 5"):
        multifold.from_arrow(table)
    other_checksums = damaged(table, "checksum", 0, 1)
    with pytest.raises(RecordError, match="Received layout 5"):
        multifold.from_arrow(other_checksums)


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call in (multifold.to_arrow, multifold.from_arrow):
        with pytest.raises(ExtraMissing, match=r"pip install pyarrow"):
            call([])
