"""Files of rows that grow while experiments run, and what tables and figures read out of rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from multifold._measure.files import PathLike
from multifold._measure.results import Row, line_of, read, write

__all__ = ["ORDER", "Row", "append", "backends_of", "mend", "per_example", "read", "write"]


def append(path: PathLike, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows behind those that a file holds already, all at once."""
    with Path(path).open("a", encoding="utf-8") as file:
        file.write("".join(map(line_of, rows)))


def mend(path: PathLike) -> None:
    """Cut off a last line that was not finished, as one that was being written on a full disk."""
    path = Path(path)
    content = path.read_bytes() if path.exists() else b""
    if content and not content.endswith(b"\n"):
        path.write_bytes(content[: content.rfind(b"\n") + 1])


ORDER = ("numpy", "torch", "tensorflow", "mxnet", "jax")
"""Backends as they are listed; others come behind."""


def backends_of(rows: Iterable[Row]) -> list[str]:
    """Return the backends in rows, in their order."""
    found = {row["backend"] for row in rows}
    return [name for name in ORDER if name in found] + sorted(found - set(ORDER))


def per_example(row: Row, value: float) -> float:
    """Return milliseconds an example."""
    return float(value / row["batch"])
