"""Which file is for training, which for development and which for testing; or one data set divided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from multifold._measure.files import PathLike, source_hint
from multifold_bench.datasets import DatasetError

Example = TypeVar("Example")
Tell = Callable[[int, int], object]
"""Called with how many bytes are read, and how many there are."""

NAMES = {"train": ("train",), "dev": ("dev", "valid"), "test": ("test",)}
SHARES = {"train": 0.8, "dev": 0.1, "test": 0.1}


def read_parts(
    path: PathLike | None,
    suffixes: tuple[str, ...],
    source: str,
    read: Callable[..., Iterable[Any]],
    tell: Tell,
) -> dict[str, list[Any]]:
    """Read a folder with a file for each part, or a single file, which is divided.

    Parameters
    ----------
    path : path or None
        The folder: a file is the one for training if ``train`` is in its name, and so on.
    suffixes : tuple of str
        How the names of such files end.
    source : str
        Where to get the data, for errors.
    read : callable
        ``read(path, progress)`` gives the examples of a file.
    tell : callable
        Called with how much is read.

    Raises
    ------
    DatasetError
        If there is no path, or not one file for each part.
    """
    path = given(path, source)
    if not path.is_dir():
        size = file_size(path)
        return divided(list(read(path, lambda done: tell(done, size))), path)
    files = {part: _file_of(part, path, suffixes, source) for part in NAMES}
    total = sum(file.stat().st_size for file in files.values())
    done = 0
    found = {}
    for part, file in files.items():
        found[part] = list(read(file, lambda more, done=done: tell(done + more, total)))
        done += file.stat().st_size
    return found


def file_size(path: PathLike) -> int:
    """Return the number of bytes of a file, 0 if there is none."""
    return Path(path).stat().st_size if Path(path).is_file() else 0


def given(path: PathLike | None, source: str) -> Path:
    """Return a path, or refuse that there is none."""
    if path is None:
        raise DatasetError("expected the path of the data, received none.", f"--data names it. {source}")
    return Path(path)


def _file_of(part: str, folder: Path, suffixes: tuple[str, ...], source: str) -> Path:
    found = [
        file
        for file in sorted(folder.iterdir())
        if file.name.endswith(suffixes) and any(word in file.name.lower() for word in NAMES[part])
    ]
    if len(found) != 1:
        names = " or ".join(f"*{word}*{suffix}" for word in NAMES[part] for suffix in suffixes)
        received = ", ".join(file.name for file in found) or "none"
        hint = source_hint(folder, source)
        raise DatasetError(f"expected one file {names}, found {received}.", hint, path=folder)
    return found[0]


def divided(examples: Sequence[Example], path: PathLike) -> dict[str, list[Example]]:
    """Divide examples at random, always alike, into 80 % for training and 10 % for each other part.

    Examples
    --------
    >>> {part: len(found) for part, found in divided(range(22), "plans").items()}
    {'train': 18, 'dev': 2, 'test': 2}
    """
    if len(examples) < 3:
        raise DatasetError(
            f"expected three examples or more, to divide them, received {len(examples)}.", path=path
        )
    places = np.random.default_rng(0).permutation(len(examples)).tolist()
    held = max(1, int(SHARES["dev"] * len(examples)))
    chosen = {"dev": places[:held], "test": places[held : 2 * held], "train": places[2 * held :]}
    return {part: [examples[place] for place in sorted(chosen[part])] for part in NAMES}
