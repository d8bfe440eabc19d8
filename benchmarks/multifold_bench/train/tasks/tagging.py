"""Names in sentences: CoNLL files whose tags mark spans."""

# ruff: noqa: D102 - what a task overrides is documented once, at TrainingTask

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import Any, ClassVar, final

import numpy as np

from multifold._measure.files import PathLike
from multifold_bench.datasets import WordIds, conll
from multifold_bench.models import BiLSTMTagger
from multifold_bench.train.metrics import accuracy, precision_recall_f1, spans
from multifold_bench.train.tasks.parts import Tell, read_parts
from multifold_bench.train.tasks.task import Choice
from multifold_bench.train.tasks.words import WordsTask

SUFFIXES = (".conll", ".annotated", ".txt", ".tsv", ".bio")

NAMED = 5.0
"""How much a word of a name counts in the loss where most words are of none, which count 1.

Few words of WNUT-17 are of a name, and fewer in its training part than in the others. With equal weights,
the tagger would mark too few names there.
"""


@final
class TaggingTask(WordsTask):
    """Words that training has five times have vectors of their own; others are read by characters.

    Scores are precision, recall and F1 of the spans that BIO tags mark, and the accuracy of tags; only
    that where the tags of the training part mark no span, as parts of speech. The tags of a sentence are
    the `best_path` through the model's scores.

    Parameters
    ----------
    path : path
        A folder with a file for each part, or one file, which is divided.
    tell : callable, optional
        Called with how many bytes are read, and how many there are.

    References
    ----------
    Tjong Kim Sang and De Meulder, Introduction to the CoNLL-2003 Shared Task, CoNLL 2003: spans count
    if both ends and the label are right.
    """

    name = "tagging"
    embedding = "words"
    least = 5
    criterion = "f1"
    models: ClassVar = {"bilstm-tagger": Choice(lambda task, width, seed: task.make(width, seed), 50)}
    proposed: ClassVar = {"optimizer": "adam", "rate": 0.003, "schedule": "cosine", "epochs": 8}

    def __init__(self, path: PathLike | None = None, tell: Tell = lambda done, total: None) -> None:
        super().__init__(read_parts(path, SUFFIXES, conll.SOURCE, conll.read, tell))
        sentences = self.parts["train"]
        self.characters = WordIds(x for sentence in sentences for word in sentence.words for x in word)
        tags = Counter(tag for sentence in sentences for tag in sentence.tags)
        self.tags = sorted(tags)
        self.named = NAMED if 2 * tags["O"] > tags.total() else 1.0
        openers = {s.tags[first] for s in sentences for first, _, _ in spans(s.tags)}
        self.marks_spans = bool(openers)
        self.follows = follows(self.tags, openers)
        if not self.marks_spans:
            self.criterion = "tags"

    def make(self, width: int, seed: int) -> BiLSTMTagger:
        """Return the model with the sizes of these data."""
        sizes = len(self.words), len(self.characters), len(self.tags)
        options: dict[str, Any] = {} if self.inputs is None else {"inputs": self.inputs + self.inputs % 2}
        return BiLSTMTagger(*sizes, width=width, seed=seed, **options)

    def words_of(self, example: Any) -> Iterable[str]:
        found: Iterable[str] = example.words
        return found

    def record(self, model: Any, fold: Any, example: Any) -> list[Any]:
        def spelled(word: str) -> int | tuple[int, ...]:
            return self.words[word] if word in self.words else tuple(self.characters[x] for x in word)

        nodes: list[Any] = model.tag_words(fold, [spelled(word) for word in example.words])
        return nodes

    def targets(self, model: Any, example: Any) -> np.ndarray:
        # A tag that training lacks has no class: its row is all zeros, and no loss.
        rows = np.array([[tag == known for known in self.tags] for tag in example.tags], np.float32)
        return rows * [[1 if tag == "O" else self.named] for tag in example.tags]

    def scores(self, examples: Sequence[Any], outputs: Sequence[np.ndarray]) -> dict[str, float]:
        predicted = [[self.tags[best] for best in best_path(rows, self.follows)] for rows in outputs]
        expected = [sentence.tags for sentence in examples]
        flat = [np.array([tag for tags in side for tag in tags]) for side in (predicted, expected)]
        if not self.marks_spans:
            return {"tags": accuracy(*flat)}
        pairs = [(spans(a), spans(b)) for a, b in zip(predicted, expected, strict=True)]
        precision, recall, f1 = precision_recall_f1(pairs)
        return {"f1": f1, "precision": precision, "recall": recall, "tags": accuracy(*flat)}


def follows(tags: Sequence[str], openers: Container[str]) -> np.ndarray:
    """Return whether a tag, a column, may follow another one, a row; the last row begins a sentence.

    In BIO tags ``I-x`` goes on with a span of ``x``. It may open one only where it is among the
    ``openers``, the tags that open spans in training: that depends on who has annotated the data.

    Examples
    --------
    >>> follows(["B-x", "I-x", "O"], openers={"B-x"}).astype(int)
    array([[1, 1, 1],
           [1, 1, 1],
           [1, 0, 1],
           [1, 0, 1]])
    """
    free = [tag in openers or not tag.startswith("I-") for tag in tags]
    goes_on = [[before[1:] == tag[1:] for tag in tags] for before in (*tags, "O")]
    return np.array(free) | np.array(goes_on)


def best_path(rows: np.ndarray, follows: np.ndarray) -> list[int]:
    """Return the tags of a sentence with the largest sum of scores in which each may follow the one before.

    Parameters
    ----------
    rows : array of shape ``(words, tags)``
        The scores of each word, one word or more.
    follows : bool array of shape ``(tags + 1, tags)``
        What the function `follows` returns.

    References
    ----------
    Viterbi, Error Bounds for Convolutional Codes, IEEE Transactions on Information Theory 13, 1967.

    Examples
    --------
    Word by word, ``O`` and then ``I-x`` have the best scores, but no name begins with ``I-x``:

    >>> rows = np.array([[2.0, 0.0, 3.0], [0.0, 4.0, 1.0]])  # of B-x, I-x and O
    >>> best_path(rows, follows(["B-x", "I-x", "O"], openers={"B-x"}))
    [0, 1]
    """
    costs = np.where(follows, 0.0, -np.inf)
    sums = rows[0] + costs[-1]
    came_from = []
    for row in rows[1:]:
        reached = sums[:, None] + costs[:-1]
        came_from.append(reached.argmax(axis=0))
        sums = reached.max(axis=0) + row
    path = [int(sums.argmax())]
    for before in reversed(came_from):
        path.append(int(before[path[-1]]))
    return path[::-1]
