"""Opening the files of a data set: every reader's way in, so that all of them fail alike.

The one idea: a reader walks over a `Lines`, which knows where it is; whatever goes wrong becomes
``lines.error("expected ...")``, with the path and the line already in it. A file that is missing is
found out when `Lines` is made, not when the first example is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from multifold.errors import MultifoldError

PathLike = str | os.PathLike[str]

Progress = Callable[[int], object]
"""Called now and then with the number of bytes that were read so far, at last with all of them."""


class DatasetError(MultifoldError, ValueError):
    """A file of a data set that is missing, or that does not hold what its format promises.

    Parameters
    ----------
    message : str
        What was expected and what was there instead, without the place.
    hint : str, optional
        What to do about it; printed after a blank line as ``Hint: ...``.
    path : str or path, optional
        The file, printed in front of the message.
    line : int, optional
        The line, counted from 1; left out where a format has no lines.

    Examples
    --------
    >>> print(DatasetError("expected ')' at the end of the line.", path="train.txt", line=17))
    train.txt:17: expected ')' at the end of the line.
    """

    def __init__(
        self,
        message: str,
        hint: str | None = None,
        *,
        path: str | os.PathLike[str] | None = None,
        line: int | None = None,
    ) -> None:
        self.path = None if path is None else os.fspath(path)
        self.line = line
        place = "".join(f"{part}:" for part in (self.path, line) if part is not None)
        super().__init__(f"{place} {message}" if place else message, hint)


def source_hint(path: PathLike, source: str) -> str:
    """Return the hint for a missing file: ``source``, which says where to get the data, in most cases.

    If the folder of ``path``, or ``path`` itself, holds just one more folder, as unpacked archives may, the
    hint is a sentence which says to pass that. Names that begin with ``.`` or ``_`` do not count.
    """
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    inside = [x for x in folder.iterdir() if x.name[0] not in "._"] if folder.is_dir() else []
    if len(inside) == 1 and inside[0].is_dir():
        return f"{folder} holds one folder, '{inside[0].name}', and no files: pass {inside[0]}."
    return source


def existing_file(path: PathLike, source: str) -> Path:
    """Return ``path`` as a `Path` if a file lies there.

    Parameters
    ----------
    path : str or path
        Where the file should be.
    source : str
        Where to get the data; the hint of the error if it is missing.

    Raises
    ------
    DatasetError
        If there is no file, with ``source`` as the hint.
    """
    path = Path(path)
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise DatasetError(f"expected a file, found {found}.", source_hint(path, source), path=path)
    return path


def existing_folder(path: PathLike, source: str) -> Path:
    """Return ``path`` as a `Path` if a folder lies there; else raise a `DatasetError`.

    The hint of the error is ``source``.
    """
    path = Path(path)
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise DatasetError(f"expected a folder, found {found}.", source, path=path)
    return path


class Lines:
    r"""The lines of a UTF-8 text file, one after the other, and the errors that point at them.

    A line ends at ``\n`` or ``\r\n`` only: U+0085 and U+2028, where `str.splitlines` would cut, may
    stand inside a word.

    Parameters
    ----------
    path : str or path
        The file.
    source : str
        Where to get the data, for the error if there is no such file.
    progress : callable, optional
        Called after each line with the number of bytes that were read so far.

    Attributes
    ----------
    number : int
        The number of the line that was read last, counted from 1.
    done : int
        The number of bytes that were read so far.

    Raises
    ------
    DatasetError
        If there is no such file; while iterating, if a line is not UTF-8.
    """

    def __init__(self, path: PathLike, source: str, progress: Progress | None = None) -> None:
        self.path = existing_file(path, source)
        self.number = 0
        self.done = 0
        self._progress = progress

    def __iter__(self) -> Iterator[str]:
        with self.path.open("rb") as file:
            for raw in file:
                self.number += 1
                self.done += len(raw)
                try:
                    text = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise self.error(f"expected UTF-8, but {error.reason}.") from error
                if self.number == 1:
                    # A byte order mark, which some editors write in front.
                    text = text.removeprefix("\ufeff")
                yield text.removesuffix("\n").removesuffix("\r")
                if self._progress is not None:
                    self._progress(self.done)

    def error(self, message: str, hint: str | None = None) -> DatasetError:
        """Return, to be raised, the error with the path and the number of the line that was read last."""
        return DatasetError(message, hint, path=self.path, line=self.number)
