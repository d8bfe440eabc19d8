"""Files that are whole or not there at all, whenever the process is killed.

A file is written under another name, brought to the disk, and renamed, which the system does at once.
Arrays are ``.npz`` and all else is JSON: reading a checkpoint runs no code of whoever wrote it.
"""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from multifold.errors import MultifoldError

LOCK = ".lock"
"""The file that the process which trains in a folder holds."""

PROGRESS = "progress.json"
"""The entry of a checkpoint that is no array of the model or the optimizer."""


class CheckpointError(MultifoldError, ValueError):
    """A file in the folder of a run that this program has not written."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Let no other process train in a folder until the block ends; what was killed holds nothing.

    Raises
    ------
    CheckpointError
        If another process trains there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (folder / LOCK).open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CheckpointError(
                f"Expected to be the only process that trains in {folder}. Received another one there.",
                "wait for it, or use a folder of its own.",
            ) from error
        for left in folder.glob("*.part"):  # of a process that was killed while it wrote
            left.unlink()
        yield


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` when the block ends, and not before.

    The bytes are on the disk before the name is, and the name before this returns: a loss of power
    leaves the old file or the new one.
    """
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError as error:  # a full disk, say, which has no need of half a file
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise CheckpointError(
            f"Expected to write {path}. Received {error.strerror or error}.",
            "the file of before is still there: make room, and start the run again to go on.",
        ) from error
    with contextlib.suppress(OSError):  # not every system opens folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, for people to read as well."""
    with replacing(path) as file:
        file.write((json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Return what `write_json` has written.

    Raises
    ------
    CheckpointError
        If the file is no JSON.
    """
    return _read(path, lambda file: mapping(json.loads(file.read())))


def mapping(value: Any) -> dict[str, Any]:
    """Return a value that must be a dictionary."""
    if not isinstance(value, dict):
        raise ValueError(f"it holds a {type(value).__name__}")
    return value


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], progress: Any = None) -> None:
    """Write arrays by name, and a value as JSON beside them if it is given."""
    entries = dict(arrays)
    if progress is not None:
        entries[PROGRESS] = np.frombuffer(json.dumps(progress).encode(), np.uint8)
    with replacing(path) as file:
        np.savez(file, **entries)  # type: ignore[arg-type]  # NumPy 2.4 names a keyword


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], Any]:
    """Return the arrays and the value that `write_arrays` has written; None without a value.

    Raises
    ------
    CheckpointError
        If the file is no such file.
    """

    def read(file: IO[bytes]) -> tuple[dict[str, np.ndarray], Any]:
        with np.load(file, allow_pickle=False) as entries:
            arrays = dict(entries)
        progress = arrays.pop(PROGRESS, None)
        return arrays, None if progress is None else mapping(json.loads(progress.tobytes()))

    return _read(path, read)


def _read(path: Path, read: Callable[[IO[bytes]], Any]) -> Any:
    try:
        with path.open("rb") as file:
            return read(file)
    except (ValueError, TypeError, AttributeError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise CheckpointError(
            f"Expected a whole file of a run in {path}, but {error}.",
            "files of a run are never half written here: was it changed, or copied in part?",
        ) from error
