"""Tables of traces in other hands: cast, sliced, shuffled, filtered and joined, they read the same."""

from __future__ import annotations

from typing import Any

import pytest
from trace_files import EXAMPLES, made, pa, parquet

import multifold
from multifold import RecordError


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
