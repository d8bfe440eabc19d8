"""Results as JSON lines: one object a line, written by whoever measures, read by whoever compares.

A line says all that is needed to read it, so files of several machines are simply put together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from multifold._measure.files import Lines, PathLike

SOURCE = "a command writes such files that it was given --json FILE for, and reads its own."

Row = dict[str, Any]


def write(path: PathLike, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows to a file, one JSON object a line; numbers that are not finite become null.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "results.json")
    >>> write(path, [{"backend": "numpy", "fold_ms": 1.5}])
    >>> read(path)
    [{'backend': 'numpy', 'fold_ms': 1.5}]
    """
    Path(path).write_text("".join(map(line_of, rows)), encoding="utf-8")


def line_of(row: Mapping[str, Any]) -> str:
    r"""Return a row as a line of JSON that ends with a newline; numbers that are not finite become null.

    >>> line_of({"backend": "numpy", "fold_ms": float("nan")})
    '{"backend": "numpy", "fold_ms": null}\n'
    """
    return json.dumps(finite(row), allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """Return a nested value with None in the place of floats that are not finite.

    Dictionaries and lists are copied, and tuples become lists.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def read(path: PathLike, words: Collection[str] = (), figures: Collection[str] = ()) -> list[Row]:
    """Return the rows of a file that `write` has written, in order; skip blank lines.

    Parameters
    ----------
    path : str or path
        What `write` has written.
    words, figures : collections of str
        The strings and the numbers that each row must hold; one with a ``note``, which says why it has no
        figures, only the first of the words.

    Raises
    ------
    DatasetError
        If there is no file, or if a line is no such row; with file and line.
    """
    lines = Lines(path, SOURCE)
    rows = []
    for line in lines:
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise lines.error(f"expected a JSON object, but {error.msg}.") from error
        if not isinstance(row, dict):
            raise lines.error(f"expected a JSON object, received a {type(row).__name__}.")
        for name in [*words][:1] if "note" in row else [*words, *figures]:
            wanted: type | tuple[type, ...] = str if name in words else (int, float)
            if not isinstance(row.get(name), wanted):
                what = "a string" if name in words else "a number"
                raise lines.error(f"expected {what} as {name!r}, received {row.get(name)!r}.")
        rows.append(row)
    return rows
