"""Files of traces: Parquet, written by pyarrow; `table` says what the columns are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, BinaryIO

from multifold._engine.record.damage import DAMAGE
from multifold._engine.traces.table import arrow, from_arrow, to_arrow
from multifold._engine.traces.trace import Trace
from multifold.errors import RecordError

Path = str | os.PathLike[str] | BinaryIO


def save(traces: Iterable[Trace], path: Path) -> None:
    """Write traces into a Parquet file, without pickle.

    Each op and each static value is written once for a file, an op as its name or, if it is a function, as
    ``module:qualname``. A save that is interrupted leaves the file that was there before.

    Parameters
    ----------
    traces : iterable of Trace
        Their ops are names or importable functions; their static and shared values, and what
        `multifold.each` keeps, are plain data: None,
        numbers, strings, bytes, tuples, lists, dictionaries, sets, slices, ranges, NumPy arrays, scalars
        and dtypes; and of what can be imported functions, classes, named tuples, dataclasses and members of
        enumerations.
    path : path or file object
        A path, or a file that is open for writing bytes.

    Raises
    ------
    RecordError
        If something in a trace cannot be written; the message names it and the line that recorded it.
    ExtraMissing
        Without pyarrow, which ``pip install pyarrow`` installs.

    Examples
    --------
    >>> import multifold, os, tempfile
    >>> def halves(fold, n):
    ...     return 1.0 if n == 0 else fold.add("half", halves(fold, n - 1))
    >>> traces = [multifold.trace(halves, n) for n in (1, 2, 3)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "halves.parquet")
    ...     multifold.save(traces, path)
    ...     again = multifold.load(path)
    >>> again == traces
    True
    >>> multifold.Fold(backend="numpy").run({"half": lambda x: x / 2}, again)
    array([0.5  , 0.25 , 0.125])
    """
    table = to_arrow(traces)
    if not isinstance(path, (str, os.PathLike)):
        write(table, path)
        return
    target = os.path.realpath(path)  # a link stays, and what it leads to is replaced
    # The name has the process in it, since two may save to one path. The last to finish replaces the file.
    unfinished = f"{target}.{os.getpid()}.part"
    try:
        with open(unfinished, "wb") as file:
            write(table, file)
            # The bytes are on the disk before the name leads to them. Else a crash of the machine might
            # leave an empty file of that name.
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
    except BaseException:
        # Ctrl-C, too, leaves no unfinished file.
        if os.path.exists(unfinished):
            os.remove(unfinished)
        raise


def write(table: Any, file: BinaryIO) -> None:
    """Write a ``pyarrow.Table`` as Parquet into a file that is open for writing bytes.

    All its rows are one row group, since Parquet keeps each distinct text once for a row group.
    """
    import pyarrow.parquet as parquet

    rows = max(table.num_rows, 1)
    parquet.write_table(table, file, compression="zstd", row_group_size=rows, write_page_checksum=True)


def load(path: Path, ops: Mapping[str, Callable[..., Any]] | None = None) -> list[Trace]:
    """Return the traces of a file that `save` wrote, in their order.

    Nothing of the file is executed, and no module is imported. Running a trace calls its ops, though: of a
    file that is not yours run those traces only whose ops you know.

    Parameters
    ----------
    path : path or file object
        A path, or a file that is open for reading bytes.
    ops : mapping of str to callable, optional
        Functions by their names, ``module:qualname``, that stand in for those which were written. All other
        functions are those of modules that are imported already.

    Raises
    ------
    RecordError
        If it is no file of traces, if it was damaged or written in another layout, or if a function is not
        found.
    ExtraMissing
        Without pyarrow, which ``pip install pyarrow`` installs.

    Examples
    --------
    >>> import io, multifold
    >>> file = io.BytesIO()
    >>> multifold.save([multifold.trace(lambda fold, x: fold.add("double", x), 4)], file)
    >>> multifold.Fold(backend="numpy").run({"double": lambda x: 2 * x}, multifold.load(file))
    array([8])
    """
    pa = arrow()
    if isinstance(path, (str, os.PathLike)):
        with open(path, "rb") as file:
            return load(file, ops)
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            table = file.read()
    except (pa.ArrowException, OSError, *DAMAGE) as error:
        raise RecordError(
            f"Expected a file that multifold.save wrote. Received {getattr(path, 'name', path)}: {error}",
            "write the traces again: it is damaged, or another kind of file.",
        ) from error
    return from_arrow(table, ops)
