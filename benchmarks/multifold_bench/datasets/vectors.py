"""Pretrained vectors of words: the text formats of GloVe and of word2vec, which fastText writes as well.

``the 0.418 0.24968 -0.41242``: a line has a word and its numbers. word2vec puts a line before the first
one that says how many words there are and how many numbers each has, ``400000 300``; GloVe does not. The
traps: some words of GloVe's largest file have spaces in them (``. . .``), so numbers are counted from the
right, and word2vec ends each line with a space.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from multifold._measure.files import Lines, PathLike, Progress

SOURCE = (
    "GloVe's vectors are at https://nlp.stanford.edu/projects/glove: unpack the archive and pass the path "
    "of one of its txt files."
)


@dataclass(frozen=True, eq=False)
class WordVectors:
    """The vectors of those words that were asked for.

    Attributes
    ----------
    rows : dict of str to float32 array of shape (width,)
        By the word.
    width : int
        How many numbers a word has.
    """

    rows: dict[str, np.ndarray]
    width: int


def read(path: PathLike, words: Collection[str], progress: Progress | None = None) -> WordVectors:
    r"""Read the vectors of some words; all lines are checked, and only those of these words are kept.

    Parameters
    ----------
    path : str or path
        A text file of GloVe, word2vec or fastText.
    words : collection of str
        The words whose vectors are kept. Where a file has a word twice, its first vector counts.
    progress : callable, optional
        Called with the number of bytes that were read so far.

    Raises
    ------
    DatasetError
        At once if there is no file; if a line has fewer numbers than the first one or something that is no
        finite number, or if the file has not as many words as its first line says.

    References
    ----------
    Pennington, Socher and Manning, GloVe: Global Vectors for Word Representation, EMNLP 2014.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "vectors.txt")
    >>> _ = path.write_text("a 0.5 1\ndog -1 2\n")
    >>> found = read(path, {"dog", "cat"})
    >>> found.width, found.rows
    (2, {'dog': array([-1.,  2.], dtype=float32)})
    """
    lines = Lines(path, SOURCE, progress)
    wanted = set(words)
    rows = {}
    width = 0
    promised = None
    count = 0
    for line in lines:
        columns = line.rstrip(" \t").replace("\t", " ").split(" ")
        if lines.number == 1 and len(columns) == 2 and all(map(str.isdecimal, columns)):
            promised, width = (int(column) for column in columns)
            continue
        width = width or len(columns) - 1
        count += 1
        if width < 1 or len(columns) <= width:
            raise lines.error(
                f"expected a word and {max(width, 1)} numbers, as in the first line, "
                f"received {_shown(line)}: {len(columns) - 1} of them."
            )
        word = " ".join(columns[:-width])
        values = _numbers(columns[-width:], line, lines)
        if word in wanted and word not in rows:
            rows[word] = values
    if not count:
        raise lines.error("expected a word and its numbers, received an empty file.", SOURCE)
    if promised is not None and count != promised:
        raise lines.error(
            f"expected {promised} words, as the first line says, received {count}.",
            "was the download cut off? Load the file again.",
        )
    return WordVectors(rows, width)


def _numbers(columns: Sequence[str], line: str, lines: Lines) -> np.ndarray:
    try:
        values = np.array(columns, np.float32)
    except ValueError:
        values = np.full(1, np.nan, np.float32)
    if not np.isfinite(values).all():
        raise lines.error(f"expected {len(columns)} numbers behind a word, received {_shown(line)}.")
    return values


def _shown(line: str) -> str:
    return repr(line if len(line) <= 40 else f"{line[:40]}...")
