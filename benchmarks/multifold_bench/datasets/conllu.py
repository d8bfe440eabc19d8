"""CoNLL-U: Universal Dependencies, ten columns a word, a basic tree and an enhanced graph.

The traps: ``1-2`` lines give the spelling of two words that are written as one and are no words;
``8.1`` lines are words that are understood but not said, which only the enhanced graph knows; and
enhanced graphs may have cycles (a relative clause and the noun that it describes, say), which
cannot be computed from dependents to heads: `ParsedSentence.graph` refuses those and names the cycle.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from multifold._compare.files import DatasetError, Lines, PathLike, Progress
from multifold_bench.datasets.dependencies import DependencyGraph, DependencyTree, graph_of, tree_of

SOURCE = (
    "get a treebank from https://universaldependencies.org (UD_English-EWT, say) and pass the path "
    "of one of its conllu files."
)
COLUMNS = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")


class EnhancedWord(NamedTuple):
    """A word of the enhanced graph: its number (``"8"``, ``"8.1"``), itself, its heads' numbers."""

    number: str
    word: str
    heads: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ParsedSentence:
    """A sentence of a treebank.

    Attributes
    ----------
    words, tags, relations : tuple of str
        The words, their universal parts of speech, and their relations to their heads.
    heads : tuple of int
        For each word its head, counted from 1; 0 at the root.
    enhanced : tuple of EnhancedWord
        The words of the enhanced graph, those understood included, in the order of the sentence.
    path : str
        The file that the sentence comes from.
    line : int
        The line of its first word.
    """

    words: tuple[str, ...]
    tags: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    enhanced: tuple[EnhancedWord, ...]
    path: str
    line: int

    def tree(self) -> DependencyTree:
        """Return the basic tree.

        Raises
        ------
        DatasetError
            If there is not exactly one root, or if heads form a cycle.
        """
        return tree_of(self.words, self.heads, self._error)

    def graph(self) -> DependencyGraph:
        """Return the enhanced graph, whose words may have several heads.

        Raises
        ------
        DatasetError
            If the file gives no enhanced graph, or if it has a cycle; the message names the cycle.
        """
        if not any(word.heads for word in self.enhanced):
            raise self._error("expected an enhanced graph in column DEPS, received none.")
        numbers, words, heads = zip(*self.enhanced, strict=True)
        return graph_of(numbers, words, heads, self._error)

    def _error(self, message: str) -> DatasetError:
        return DatasetError(message, path=self.path, line=self.line)


def read(path: PathLike, progress: Progress | None = None) -> Iterator[ParsedSentence]:
    r"""Read the sentences of a file, in its order.

    Parameters
    ----------
    path : str or path
        A conllu file; comments are skipped.
    progress : callable, optional
        Called with the number of bytes that were read so far.

    Raises
    ------
    DatasetError
        At once if there is no file; at the sentence concerned if a line has not ten columns, words
        are not numbered 1, 2, 3, ..., or a head is not a number.

    References
    ----------
    https://universaldependencies.org/format.html

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "train.conllu")
    >>> _ = path.write_text(
    ...     "1-2\tdon't\t_\t_\t_\t_\t_\t_\t_\t_\n"
    ...     "1\tdo\t_\tAUX\t_\t_\t3\taux\t3:aux\t_\n"
    ...     "2\tn't\t_\tPART\t_\t_\t3\tadvmod\t3:advmod\t_\n"
    ...     "3\tgo\t_\tVERB\t_\t_\t0\troot\t0:root\t_\n")
    >>> sentence, = read(path)
    >>> sentence.words, sentence.tags
    (('do', "n't", 'go'), ('AUX', 'PART', 'VERB'))
    >>> sentence.tree(), sentence.graph().order
    (DependencyTree(word='go', position=2, children=<2>), (0, 1, 2))
    """
    return _sentences(Lines(path, SOURCE, progress))


def _sentences(lines: Lines) -> Iterator[ParsedSentence]:
    rows: list[list[str]] = []
    first = 0
    for line in lines:
        if not line.strip("\t "):
            if rows:
                yield _sentence(rows, lines, first)
                rows = []
        elif not line.startswith("#"):
            row = line.split("\t")
            if len(row) != len(COLUMNS):
                raise lines.error(f"expected {len(COLUMNS)} columns, received {len(row)}.")
            first = first if rows else lines.number
            _check(row, rows, lines)
            rows.append(row)
    if rows:
        yield _sentence(rows, lines, first)


def _check(row: list[str], rows: list[list[str]], lines: Lines) -> None:
    number, head = row[0], row[6]
    if number.isdecimal():
        expected = 1 + sum(other[0].isdecimal() for other in rows)
        if int(number) != expected:
            raise lines.error(f"expected word number {expected}, received {number}.")
        if not head.isdecimal():
            raise lines.error(f"expected the number of the head in column HEAD, received {head!r}.")
    elif not number.replace("-", "", 1).isdecimal() and not number.replace(".", "", 1).isdecimal():
        raise lines.error(f"expected a word number like 8, 8-9 or 8.1, received {number!r}.")


def _sentence(rows: list[list[str]], lines: Lines, first: int) -> ParsedSentence:
    words = [row for row in rows if row[0].isdecimal()]
    return ParsedSentence(
        words=tuple(row[1] for row in words),
        tags=tuple(row[3] for row in words),
        heads=tuple(int(row[6]) for row in words),
        relations=tuple(row[7] for row in words),
        enhanced=tuple(
            EnhancedWord(row[0], row[1], _enhanced_heads(row[8])) for row in rows if "-" not in row[0]
        ),
        path=str(lines.path),
        line=first,
    )


def _enhanced_heads(text: str) -> tuple[str, ...]:
    """Return the heads of ``"4:nsubj|6.1:nsubj"``; ``"_"`` stands for none."""
    return () if text == "_" else tuple(part.partition(":")[0] for part in text.split("|"))
