"""SICK: sentence pairs with a relatedness score, as dependency trees; a folder of parallel files.

Line i of ``a.toks`` holds the words of the first sentence of pair i, line i of ``a.parents`` the
head of each of them (counted from 1, 0 at the root), ``b.*`` the second sentence, ``sim.txt`` the
score.
This is the form that the Tree-LSTM paper's preprocessing writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from multifold._measure.files import Lines, PathLike, Progress, existing_folder
from multifold_bench.datasets.dependencies import DependencyTree, tree_of

SOURCE = (
    "run fetch_and_preprocess.sh of https://github.com/stanfordnlp/treelstm and pass the path of "
    "its data/sick/train, dev or test."
)
FILES = ("a.toks", "a.parents", "b.toks", "b.parents", "sim.txt")
"""What is read of the folder; other files in it are left alone."""


@dataclass(frozen=True, slots=True)
class RelatedPair:
    """Two sentences and how related they are, from 1 to 5."""

    left: DependencyTree
    right: DependencyTree
    similarity: float


def read(path: PathLike, progress: Progress | None = None) -> Iterator[RelatedPair]:
    """Read the pairs of a folder, in the order of its files.

    Parameters
    ----------
    path : str or path
        A folder that holds `FILES`.
    progress : callable, optional
        Called with the number of bytes that were read so far, of all `FILES` together.

    Raises
    ------
    DatasetError
        At once if the folder or one of the files is missing; at the pair concerned if files end at
        different lines, a sentence is not a tree, or a score is not a number from 1 to 5.

    References
    ----------
    Marelli et al., A SICK cure for the evaluation of compositional distributional semantic models,
    LREC 2014. Tai, Socher and Manning, Improved Semantic Representations From Tree-Structured Long
    Short-Term Memory Networks, ACL 2015.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> for name, text in {"a.toks": "dogs bark", "a.parents": "2 0", "b.toks": "silence",
    ...                    "b.parents": "0", "sim.txt": "1.5"}.items():
    ...     _ = (folder / name).write_text(text)
    >>> pair, = read(folder)
    >>> pair.left, pair.right, pair.similarity  # doctest: +NORMALIZE_WHITESPACE
    (DependencyTree(word='bark', position=1, children=<1>),
     DependencyTree(word='silence', position=0), 1.5)
    """
    folder = existing_folder(path, SOURCE)
    return _pairs([Lines(folder / name, SOURCE) for name in FILES], progress)


def _pairs(files: list[Lines], progress: Progress | None) -> Iterator[RelatedPair]:
    a_words, a_heads, b_words, b_heads, scores = files
    for rows in zip_longest(*files):
        for file, row in zip(files, rows, strict=True):
            if row is None:
                longest = max(files, key=lambda other: other.number)
                raise file.error(
                    f"expected {longest.number} lines or more, as in {longest.path.name}, "
                    f"received {file.number}."
                )
        yield RelatedPair(
            _tree(rows[0], rows[1], a_words, a_heads),
            _tree(rows[2], rows[3], b_words, b_heads),
            _score(rows[4], scores),
        )
        if progress is not None:
            progress(sum(file.done for file in files))


def _tree(words: str, heads: str, words_file: Lines, heads_file: Lines) -> DependencyTree:
    try:
        numbers = [int(head) for head in heads.split()]
    except ValueError as error:
        raise heads_file.error(f"expected numbers of words, received {heads!r}.") from error
    tokens = words.split()
    if not tokens:
        raise words_file.error("expected a sentence, received an empty line.")
    return tree_of(tokens, numbers, heads_file.error)


def _score(text: str, file: Lines) -> float:
    try:
        score = float(text)
    except ValueError:
        score = float("nan")
    if not 1 <= score <= 5:
        raise file.error(f"expected a score from 1 to 5, received {text!r}.")
    return score
