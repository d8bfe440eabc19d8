"""Files of traces: what is read equals what was written, and a save that fails harms no other file."""

from __future__ import annotations

import functools
import io
import json
import os
import pickle
import sys
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import TABLE, Color, Config, Mutable, Pair, made, parquet, relaxed, triple, written

import multifold
from multifold import ExtraMissing, Fold, RecordError, shared, static, trace
from multifold._engine.record.freezing import freeze
from multifold._engine.record.texts import decode, encode, text

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


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for call in (multifold.to_arrow, multifold.from_arrow):
        with pytest.raises(ExtraMissing, match=r"pip install pyarrow"):
            call([])
