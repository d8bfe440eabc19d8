"""CoNLL columns for tagging: one word a line with its tag, blank lines between sentences.

``Sonmarg<TAB>B-location``: WNUT-17, CoNLL-2000 and CoNLL-2003 look like that, apart from the number
of columns and whether TABs or spaces separate them. The traps: WNUT-17's training file also
separates sentences by lone TABs, and a line that begins with ``#`` is a word, not a comment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from multifold._measure.files import Lines, PathLike, Progress

SOURCE = (
    "WNUT-17 is at https://github.com/leondz/emerging_entities_17: pass the path of its "
    "wnut17train.conll, emerging.dev.conll or emerging.test.annotated."
)


@dataclass(frozen=True, slots=True)
class TaggedSentence:
    """The words of a sentence and their tags, equally many."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


def read(path: PathLike, progress: Progress | None = None) -> Iterator[TaggedSentence]:
    r"""Read the sentences of a file, in its order.

    Parameters
    ----------
    path : str or path
        The first column of a line is the word, the last one its tag. TABs separate columns, or
        spaces in a line without a TAB.
    progress : callable, optional
        Called with the number of bytes that were read so far.

    Raises
    ------
    DatasetError
        At once if there is no file; at the sentence concerned if a word has no tag.

    References
    ----------
    Derczynski et al., Results of the WNUT2017 Shared Benchmark on Novel and Emerging Entity Recognition,
    W-NUT 2017.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "train.conll")
    >>> _ = path.write_text("Near\tO\nSonmarg\tB-location\n\t\nYes\tO\n")
    >>> for sentence in read(path):
    ...     print(sentence.words, sentence.tags)
    ('Near', 'Sonmarg') ('O', 'B-location')
    ('Yes',) ('O',)
    """
    return _sentences(Lines(path, SOURCE, progress))


def _sentences(lines: Lines) -> Iterator[TaggedSentence]:
    words: list[str] = []
    tags: list[str] = []
    for line in lines:
        if line.strip("\t "):
            columns = line.split("\t" if "\t" in line else " ")
            if len(columns) < 2 or not columns[0] or not columns[-1]:
                raise lines.error(f"expected a word, a TAB and a tag, received {line!r}.")
            words.append(columns[0])
            tags.append(columns[-1])
        elif words:
            yield TaggedSentence(tuple(words), tuple(tags))
            words = []
            tags = []
    if words:
        yield TaggedSentence(tuple(words), tuple(tags))
