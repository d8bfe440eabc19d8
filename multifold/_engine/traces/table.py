"""Traces as a table of Arrow: one row for each trace, and each row stands for itself.

The columns of integers and numbers are those of `Trace`. What many traces have in common is text:
``vocabulary`` is one text, ``values`` the texts of ops and static values that it names by number,
``forms`` the dtypes and shapes of the leaf arrays whose bytes are in ``leaves``. These columns are
dictionary-encoded: Arrow keeps each distinct text once for a table and gives each row numbers of texts, and
Parquet does the same for a file. So rows can be sliced, shuffled, filtered, and joined to those of other
files: the libraries that do so carry along the texts that a row needs. Those that know no dictionaries
write the texts out, which takes more room and reads the same.

Where results keep their example (`multifold.each`), ``kept`` has the text of what they keep.

Each row has a checksum over all its cells, the texts included. A row that was damaged is refused.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np

from multifold._engine.compiled.arrays import Integers, starts
from multifold._engine.plan.each import Hole
from multifold._engine.record.damage import DAMAGE, checksum, refuse_other_layout
from multifold._engine.record.texts import NoText, decode, encode, look_up, text
from multifold._engine.traces.leaves import LeafForm, write_leaf
from multifold._engine.traces.trace import COUNTED, Trace, Vocabulary
from multifold._engine.traces.vocabularies import read_vocabulary, write_vocabulary
from multifold.errors import ExtraMissing, RecordError, type_of

COLUMNS = ("vocabulary", "values", "integers", "floats", "lines", "forms", "leaves", "checksum", "kept")
"""The columns of a table of traces. It may have others, as labels, which are left out when it is read."""


def arrow() -> Any:
    """Import pyarrow, which only tables and files need, and return it; without it raise `ExtraMissing`."""
    try:
        import pyarrow
    except ImportError as error:
        raise ExtraMissing(
            f"Expected pyarrow, which tables and files of traces need. Received {error}.",
            "pip install pyarrow",
        ) from error
    return pyarrow


class Texts:
    """Distinct texts, numbered from 0 in the order in which they come.

    ``texts`` has them by number, ``sums`` their CRC-32 checksums, and ``numbers`` is text -> number.
    """

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.texts: list[str] = []
        self.sums: list[int] = []

    def number(self, one: str) -> int:
        """Return the number of a text; one that is new is appended, with its checksum."""
        number = self.numbers.setdefault(one, len(self.texts))
        if number == len(self.texts):
            self.texts.append(one)
            self.sums.append(zlib.crc32(one.encode()))
        return number


def to_arrow(traces: Iterable[Trace]) -> Any:
    """Return traces as a ``pyarrow.Table``, one row for each.

    Rows can be sliced, filtered, shuffled and put after those of another table, by pyarrow, Polars, Ray
    Data or Hugging Face datasets; columns of labels can be added. `from_arrow` makes traces of the rows.

    Parameters
    ----------
    traces : iterable of Trace
        Their ops are names or importable functions, their static values plain data.

    Returns
    -------
    pyarrow.Table
        Of shape ``(traces, 9)``.

    Raises
    ------
    RecordError
        If something in a trace cannot be written; the message names it and the line that recorded it.
    ExtraMissing
        Without pyarrow.

    Examples
    --------
    >>> import multifold
    >>> traces = [multifold.trace(lambda fold, x: fold.add("double", x), x) for x in (1, 2, 3)]
    >>> table = multifold.to_arrow(traces)
    >>> table.num_rows, table.column_names[:4]
    (3, ['vocabulary', 'values', 'integers', 'floats'])
    >>> multifold.from_arrow(table.take([2, 0])) == [traces[2], traces[0]]
    True
    """
    pa = arrow()
    rows = Rows()
    for trace in as_traces(traces):
        rows.append(trace)

    def texts(numbers: Sequence[int], among: Texts) -> Any:
        indices = pa.array(np.array(numbers, np.int32))
        return pa.DictionaryArray.from_arrays(indices, pa.array(among.texts, pa.string()))

    # Offsets have 64 bits, since all traces together may have more than 2**31 integers.
    def lists(sizes: Iterable[int], values: Any) -> Any:
        return pa.LargeListArray.from_arrays(pa.array(starts(np.array([*sizes], np.int64))), values)

    def listed(column: Sequence[Sequence[int]], among: Texts) -> Any:
        return lists(map(len, column), texts(list(chain.from_iterable(column)), among))

    def numbers(column: Sequence[np.ndarray], dtype: Any) -> Any:
        return lists(map(len, column), pa.array(np.concatenate([np.zeros(0, dtype), *column])))

    columns = [
        texts(rows.vocabulary, rows.vocabularies),
        listed(rows.values, rows.known),
        numbers(rows.integers, np.int64),
        numbers(rows.floats, np.float64),
        numbers(rows.lines, np.int64),
        listed(rows.forms, rows.known_forms),
        pa.array(rows.leaves, pa.large_binary()),
        pa.array(rows.checksums, pa.uint32()),
        pa.array(rows.kept, pa.string()),
    ]
    return pa.table(dict(zip(COLUMNS, columns, strict=True)))


def as_traces(traces: Iterable[Trace]) -> list[Trace]:
    """Return traces as a list; raise `RecordError` for anything that is no iterable of traces."""
    found = list(traces) if isinstance(traces, Iterable) else [traces]
    for i, trace in enumerate(found):
        if not isinstance(trace, Trace) or not isinstance(traces, Iterable):
            raise RecordError(
                f"Expected traces to write. Received {type_of(trace)}"
                f"{f' as number {i}' if isinstance(traces, Iterable) else ''}.",
                "make them with multifold.trace(fn, example); a minibatch keeps its own in batch.traces.",
            )
    return found


class Rows:
    """The cells of the rows of a table, by column, while the table is being made.

    ``vocabulary``, ``values`` and ``forms`` hold numbers of the texts in ``vocabularies``, ``known`` and
    ``known_forms``. ``written`` is the id of a vocabulary -> that vocabulary, the number of its text, the
    numbers of its values, and the checksums of all these texts.
    """

    def __init__(self) -> None:
        self.vocabularies = Texts()
        self.known = Texts()
        self.known_forms = Texts()
        self.written: dict[int, tuple[Vocabulary, int, list[int], list[int]]] = {}
        self.vocabulary: list[int] = []
        self.values: list[list[int]] = []
        self.integers: list[Integers] = []
        self.floats: list[np.ndarray] = []
        self.lines: list[Integers] = []
        self.forms: list[list[int]] = []
        self.leaves: list[bytes] = []
        self.checksums: list[int] = []
        self.kept: list[str] = []

    def append(self, trace: Trace) -> None:
        """Append the cells of a trace, and new texts; raise `RecordError` if it cannot be written."""
        example = len(self.checksums)
        vocabulary = trace.vocabulary
        if id(vocabulary) not in self.written:
            form, values = write_vocabulary(trace, example)
            numbers = [self.known.number(value) for value in values]
            number = self.vocabularies.number(form)
            sums = [self.vocabularies.sums[number], *[self.known.sums[x] for x in numbers]]
            # The entry keeps the vocabulary alive: Python gives the id of an object that is gone to a new
            # one.
            self.written[id(vocabulary)] = vocabulary, number, numbers, sums
        _, number, numbers, sums = self.written[id(vocabulary)]
        forms, data = self.leaves_of(trace, example) if trace.arrays or trace.loose else ([], b"")
        self.vocabulary.append(number)
        self.values.append(numbers)
        self.integers.append(trace.integers)
        self.floats.append(trace.floats)
        self.lines.append(trace.lines)
        self.forms.append(forms)
        self.leaves.append(data)
        kept = self.kept_of(trace, example) if trace.kept else ""
        self.kept.append(kept)
        columns = trace.integers, trace.floats, trace.lines, data, kept.encode()
        self.checksums.append(checksum([*sums, *[self.known_forms.sums[x] for x in forms]], columns))

    def kept_of(self, trace: Trace, example: int) -> str:
        """Return as text the forms of the results that `multifold.each` marks in a trace.

        Raises `RecordError`, which calls the trace number ``example``, if one of them is no plain data.
        """
        try:
            return text(encode(trace.kept, lambda x: ["hole", *x] if type(x) is Hole else None))
        except NoText as error:
            raise RecordError(
                "Expected plain data in multifold.each(...) of a trace that is written. Received "
                f"{error.what}, in trace {example}.",
                error.hint,
            ) from error

    def leaves_of(self, trace: Trace, example: int) -> tuple[list[int], bytes]:
        """Return the forms of a trace's arrays and then of its loose values, and the bytes of all, joined.

        A form is a number of ``known_forms``. Raises `RecordError`, which calls the trace number
        ``example``, if one is neither an array of NumPy nor a number.
        """
        try:
            leaves = [write_leaf(x) for x in (*trace.arrays, *trace.loose)]
        except NoText as error:
            files = ", ".join(dict.fromkeys(trace.vocabulary.files))
            raise RecordError(
                "Expected NumPy arrays and plain numbers as operands of a trace that is written. Received "
                f"{error.what}, in trace {example}, recorded in {files or 'no file'}.",
                error.hint,
            ) from error
        return [self.known_forms.number(form) for form, _ in leaves], b"".join(data for _, data in leaves)


def from_arrow(data: Any, ops: Mapping[str, Callable[..., Any]] | None = None) -> list[Trace]:
    """Return the traces of the rows of a table that `to_arrow` made, in their order.

    Nothing of the table is executed, and no module is imported. Running a trace calls its ops, though: of a
    table that is not yours run those traces only whose ops you know.

    Parameters
    ----------
    data : pyarrow.Table, pyarrow.RecordBatch, or another table that Arrow can read
        A data frame of Polars is one; ``dataset.with_format("arrow")[:]`` makes one of Hugging Face's.
    ops : mapping of str to callable, optional
        Functions by their names, ``module:qualname``, that stand in for those which were written. All other
        functions are those of modules that are imported already.

    Raises
    ------
    RecordError
        If columns are missing, if a row was damaged or written in another layout, or if a function is not
        found.
    ExtraMissing
        Without pyarrow.

    Examples
    --------
    >>> import math, multifold
    >>> table = multifold.to_arrow([multifold.trace(lambda fold, x: fold.add(math.sqrt, x), 4.0)])
    >>> (trace,) = multifold.from_arrow(table, ops={"math:sqrt": abs})
    >>> trace.vocabulary.signatures[0].op
    <built-in function abs>
    """
    pa = arrow()
    try:
        table = data if isinstance(data, pa.Table) else pa.table(data)
        table = table.select(COLUMNS)
    except (pa.ArrowException, LookupError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(
            f"Expected a table of traces, with the columns {', '.join(COLUMNS)}. Received a "
            f"{type(data).__qualname__}: {error}.",
            "make it with multifold.to_arrow(traces), and keep all of its columns.",
        ) from error
    reader = Reader(ops)
    return [trace for batch in table.to_batches() for trace in reader.traces(batch)]


class Reader:
    """Makes traces of the rows of a table; it reads each vocabulary and each text once.

    ``rows`` counts the rows that were read, ``texts`` are the texts that they use. ``vocabularies`` and
    ``forms`` have numbers of texts -> the vocabulary, and the number of a text -> the form.
    """

    def __init__(self, ops: Mapping[str, Callable[..., Any]] | None) -> None:
        self.ops = ops
        self.rows = 0
        self.texts = Texts()
        self.vocabularies: dict[tuple[int, ...], Vocabulary] = {}
        self.forms: dict[int, LeafForm] = {}

    def find(self, name: str) -> Any:
        """Return the function ``module:qualname`` out of ``ops`` or of a module that is imported already.

        Raises `RecordError` if there is none.
        """
        try:
            return look_up(name, self.ops)
        except LookupError:
            module = name.partition(":")[0]
            raise RecordError(
                f"Expected {name!r} in `ops` or in a module that is imported. Found no such name for row "
                f"{self.rows} of the traces.",
                f"import {module} before, or pass ops={{{name!r}: the function}}.",
            ) from None

    def traces(self, batch: Any) -> list[Trace]:
        """Return a trace for each row of a ``pyarrow.RecordBatch``, in order; add their count to ``rows``.

        Raises `RecordError` if its columns are no columns of traces, or if a row is damaged.
        """
        pa = arrow()
        try:
            columns = [batch.column(name) for name in COLUMNS]
            # The columns of lists: values, integers, floats, lines and forms.
            lists = [listed(column) for column in columns[1:6]]
            vocabulary = self.numbers_of(columns[0])
            values, forms = (self.numbers_of(lists[i][0]) for i in (0, 4))
            integers, floats, lines = (
                whole(lists[i][0], dtype) for i, dtype in ((1, "int64"), (2, "float64"), (3, "int64"))
            )
            for column in (columns[6], columns[8]):
                refuse_null(column)
            leaves = columns[6].to_pylist()
            checksums = whole(columns[7], "uint32").tolist()
            known = columns[8].to_pylist()
        except (pa.ArrowException, *DAMAGE) as error:
            raise RecordError(
                f"Expected the columns of traces as multifold wrote them. Received others: {error}.",
                "select, slice and shuffle rows, but leave the columns as they are.",
            ) from error
        bounds = zip(*[pairwise(begin.tolist()) for _, begin in lists], strict=True)
        made = []
        for number, data, crc, kept, cells in zip(
            vocabulary, leaves, checksums, known, bounds, strict=True
        ):
            parts: Any = zip((values, integers, floats, lines, forms), cells, strict=True)
            row = [column[begin:end] for column, (begin, end) in parts]
            made.append(self.trace(number, data, crc, kept, *row))
            self.rows += 1
        return made

    def numbers_of(self, column: Any) -> list[int]:
        """Return for each cell of a column of strings the number of its text in ``texts``.

        New texts are appended there. Arrow may keep the column dictionary-encoded or written out. Raises
        `ValueError` if a cell is null.
        """
        refuse_null(column)
        if not arrow().types.is_dictionary(column.type):
            return [self.texts.number(one) for one in column.to_pylist()]
        used, numbers = np.unique(column.indices.to_numpy(), return_inverse=True)
        # One by one: a slice of few rows has the dictionary of all, and pyarrow 26 takes no string views.
        known = [column.dictionary[i].as_py() for i in used.tolist()]
        mine = np.array([self.texts.number(one) for one in known], np.int64)
        return mine[numbers.ravel()].tolist()

    def trace(
        self,
        number: int,
        data: bytes,
        crc: int,
        kept: str,
        values: list[int],
        integers: Integers,
        floats: np.ndarray,
        lines: Integers,
        forms: list[int],
    ) -> Trace:
        """Return the trace of one row, a copy of its cells.

        Parameters
        ----------
        number, values, forms : int and lists of int
            The texts of the vocabulary, its values and the forms of the leaves: numbers of ``texts``.
        data : bytes
            The bytes of all leaves.
        crc : int
            The checksum of the row.
        kept : str
            The text that `Rows.kept_of` returned, or "".
        integers, floats, lines : arrays
            The columns of `Trace`.

        Raises
        ------
        RecordError
            If the cells do not have the checksum ``crc``, or are damaged, of another layout, or name a
            function that is not found.
        """
        sums = [self.texts.sums[i] for i in (number, *values, *forms)]
        try:
            if checksum(sums, (integers, floats, lines, data, kept.encode())) != crc:
                # Another layout may have another checksum, and has an error of its own.
                refuse_other_layout(json.loads(self.texts.texts[number])["multifold"])
                raise ValueError("its checksum is another one")
            vocabulary = self.vocabulary((number, *values))
            arrays = int(integers[COUNTED.index("arrays")])
            leaves = self.leaves(forms, data)
            # A view would keep the whole table in memory as long as one of its traces, so these are copies.
            trace = Trace(
                vocabulary,
                integers.copy(),
                floats.copy(),
                tuple(leaves[:arrays]),
                tuple(leaves[arrays:]),
                lines.copy(),
                decode(json.loads(kept), self.find, {"hole": Hole}) if kept else (),
            )
        except RecordError:
            raise
        except DAMAGE as error:
            raise RecordError(
                "Expected traces as multifold wrote them. Received a damaged one in row "
                f"{self.rows}: {error}.",
                "write the traces again, or leave this row out.",
            ) from error
        trace.digest  # noqa: B018 - made here, so that no step has to wait for it
        return trace

    def vocabulary(self, key: tuple[int, ...]) -> Vocabulary:
        """Return the vocabulary of a key, which is read at the key's first use.

        ``key`` holds numbers of ``texts``: first that of the vocabulary's text, then those of its values.
        """
        found = self.vocabularies.get(key)
        if found is None:
            form, *values = (self.texts.texts[number] for number in key)
            found = self.vocabularies[key] = read_vocabulary(form, values, self.find)
        return found

    def leaves(self, forms: Sequence[int], data: bytes) -> list[Any]:
        """Return the arrays and loose values of a row, in order.

        ``forms`` has for each the number of its form in ``texts``; ``data`` has the bytes of all, joined.
        Raises `ValueError` if these are more or fewer bytes than the forms have.
        """
        if not forms:
            return []
        for number in set(forms) - self.forms.keys():
            self.forms[number] = LeafForm(self.texts.texts[number])
        known = [self.forms[number] for number in forms]
        ends = list(accumulate(form.size for form in known))
        if ends[-1] != len(data):
            raise ValueError(f"its arrays have {ends[-1]} bytes, and {len(data)} are there")
        view = memoryview(data)
        return [form.read(view[end - form.size : end]) for form, end in zip(known, ends, strict=True)]


def refuse_null(column: Any) -> None:
    """Raise `ValueError` if a column of Arrow has cells without a value."""
    if column.null_count:
        raise ValueError(f"a column of type {column.type} has {column.null_count} cells without a value")


def listed(column: Any) -> tuple[Any, Integers]:
    """Return the entries of all lists of a column of lists, and where those of each row begin.

    The first is an array of Arrow, the second an int64 array of shape ``(rows + 1,)``. Raises `ValueError`
    if a cell is null.
    """
    refuse_null(column)
    pa = arrow()
    # Other libraries may have made plain lists of these. `flatten` respects slices, and `values` does not.
    column = column.cast(pa.large_list(column.type.value_type))
    return column.flatten(), starts(column.value_lengths().to_numpy().astype(np.int64))


def whole(column: Any, dtype: str) -> np.ndarray:
    """Return an Arrow column of numbers as a NumPy array of a dtype, such as "int64".

    Raises `ValueError` if a cell is null, and `pyarrow.ArrowInvalid` if a number does not fit.
    """
    refuse_null(column)
    values: np.ndarray = column.cast(dtype).to_numpy()
    return values
