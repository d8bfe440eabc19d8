"""From words to ids: the embedding's row of each word that training has seen often enough."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class WordIds:
    """Numbers for words: 0 for what is unknown, then 1, 2, ... from the most frequent word on.

    Words of equal frequency are in alphabetical order, so the same text always gives the same ids.

    Parameters
    ----------
    words : iterable of str
        The words of the training part, as often as they occur.
    least : int, optional
        Words that occur less often are unknown.

    Attributes
    ----------
    words : tuple of str
        The words by their ids; the first one is `UNKNOWN`.

    Examples
    --------
    >>> vocabulary = WordIds("the cat and the dog".split())
    >>> vocabulary.words
    ('<unknown>', 'the', 'and', 'cat', 'dog')
    >>> vocabulary["the"], vocabulary["bird"], len(vocabulary)
    (1, 0, 5)
    """

    UNKNOWN = "<unknown>"

    def __init__(self, words: Iterable[str], least: int = 1) -> None:
        counts = Counter(words)
        counts.pop(self.UNKNOWN, None)
        known = sorted(
            (word for word, count in counts.items() if count >= least),
            key=lambda word: (-counts[word], word),
        )
        self.words = (self.UNKNOWN, *known)
        self._ids = {word: number for number, word in enumerate(self.words)}

    def extended(self, words: Iterable[str]) -> WordIds:
        """Return ids for more words, after the others in alphabetical order; the others keep theirs.

        Examples
        --------
        >>> WordIds(["dog"]).extended(["cat", "bird", "dog"]).words
        ('<unknown>', 'dog', 'bird', 'cat')
        """
        more = WordIds(())
        more.words = (*self.words, *sorted({*words} - {*self.words}))
        more._ids = {word: number for number, word in enumerate(more.words)}
        return more

    def __getitem__(self, word: str) -> int:
        return self._ids.get(word, 0)

    def __contains__(self, word: object) -> bool:
        return word in self._ids

    def __len__(self) -> int:
        return len(self.words)

    def __repr__(self) -> str:
        return f"WordIds(<{len(self)} words>)"
