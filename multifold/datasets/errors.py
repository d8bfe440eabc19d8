"""The error of the readers: which file, which line, what was expected there.

A data set is somebody else's file, so whoever reads the message needs a place to look at before
anything else: it begins with ``path:line:``, which editors and terminals turn into a link.
"""

from __future__ import annotations

import os

from multifold.errors import MultifoldError


class DatasetError(MultifoldError, ValueError):
    """A file of a data set that is missing, or that does not hold what its format promises.

    Parameters
    ----------
    message : str
        What was expected and what was there instead, without the place.
    hint : str, optional
        What to do about it; printed behind a blank line as ``Hint: ...``.
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
