"""How the examples of a workload are read from files, or drawn one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from multifold._compare.benchmark import Examples, Rng, Tell
from multifold._compare.files import PathLike
from multifold.errors import MultifoldError
from multifold_bench.datasets import (
    DatasetError,
)


def kept(examples: Iterable[Any], limit: int, tell: Tell, path: PathLike) -> list[Any]:
    """Read the first examples of a file, at least one."""
    found = []
    for example in islice(examples, limit):
        found.append(example)
        tell(len(found), limit)
    if not found:
        raise DatasetError("expected an example, received the end of the file.", path=path, line=1)
    return found


def no_files(path: PathLike | None, name: str) -> None:
    """Refuse a path for what is always drawn."""
    if path is not None:
        raise MultifoldError(f"Expected no files for the workload '{name}'. Received --data {path}.")


def drawn(sample: Callable[[Rng], Any], words: int, classes: int) -> Examples:
    """Return examples that are drawn one by one."""
    return Examples(lambda rng, count: [sample(rng) for _ in range(count)], words, classes)
