"""Results as JSON lines: one object a line, appended by whoever measures, read by whoever compares.

Lines of different commands, machines and versions may lie in one file; each says all that it needs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from multifold.datasets.files import Lines, PathLike

SOURCE = "`multifold compare --json FILE` and `multifold bench ... --json FILE` write such files."

Row = dict[str, Any]


def write(path: PathLike, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows to a file, one JSON object a line; what cannot be measured is null, never NaN.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "results.json")
    >>> write(path, [{"backend": "numpy", "fold_ms": 1.5}])
    >>> read(path)
    [{'backend': 'numpy', 'fold_ms': 1.5}]
    """
    lines = [json.dumps(finite(row), allow_nan=False) + "\n" for row in rows]
    Path(path).write_text("".join(lines), encoding="utf-8")


def finite(value: Any) -> Any:
    """Return a value with None for what JSON has no number for."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(inner) for key, inner in value.items()}
    return [finite(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def read(path: PathLike) -> list[Row]:
    """Read the rows of a file.

    Raises
    ------
    DatasetError
        If there is no file, or if a line is not a JSON object; with file and line.
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
        rows.append(row)
    return rows
