"""Damaged files and tables of traces are refused, whatever was changed in them."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from trace_files import EXAMPLES, made, pa, relaxed

import multifold
from multifold import RecordError, trace
from multifold._engine.record.damage import LAYOUT
from multifold._engine.traces.leaves import write_leaf
from multifold._engine.traces.table import Reader


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
