"""Where words begin in a text without spaces: any CoNLL file, its words run together."""

# ruff: noqa: D102 - what a task overrides is documented once, at TrainingTask

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np

from multifold._measure.files import PathLike
from multifold_bench.datasets import WordIds, conll
from multifold_bench.models import LatticeLSTM
from multifold_bench.train.metrics import accuracy, precision_recall_f1, spans
from multifold_bench.train.tasks.parts import Tell, read_parts
from multifold_bench.train.tasks.tagging import SUFFIXES
from multifold_bench.train.tasks.task import Choice, TrainingTask

BEGINS = 0
GOES_ON = 1
TAGS = ("B-word", "I-word")


@final
class SegmentationTask(TrainingTask):
    """The lexicon of the lattice are the words of two characters or more that training has twice.

    Scores are precision, recall and F1 of whole words, and the accuracy of characters.

    Parameters
    ----------
    path : path
        A folder with a file for each part, or one file, which is divided.
    tell : callable, optional
        Called with how many bytes are read, and how many there are.

    References
    ----------
    Zhang and Yang, Chinese NER Using Lattice LSTM, ACL 2018, for the model.
    """

    name = "segmentation"
    criterion = "f1"
    models: ClassVar = {"lattice-lstm": Choice(lambda task, width, seed: task.make(width, seed), 50)}

    def __init__(self, path: PathLike | None = None, tell: Tell = lambda done, total: None) -> None:
        super().__init__(read_parts(path, SUFFIXES, conll.SOURCE, conll.read, tell))
        words = [word for sentence in self.parts["train"] for word in sentence.words]
        self.characters = WordIds("".join(words))
        self.lexicon = WordIds((word for word in words if len(word) > 1), least=2)
        self.longest = max(map(len, self.lexicon.words[1:]), default=0)

    def make(self, width: int, seed: int) -> LatticeLSTM:
        """Return the model with the sizes of these data."""
        return LatticeLSTM(len(self.characters), len(self.lexicon), len(TAGS), width, seed=seed)

    def words_that_end(self, text: str, place: int) -> list[tuple[int, int]]:
        """Return the lexicon's words that end at a character: where each begins, and its id."""
        firsts = range(max(0, place + 1 - self.longest), place)
        found = ((first, text[first : place + 1]) for first in firsts)
        return [(first, self.lexicon[word]) for first, word in found if word in self.lexicon]

    def record(self, model: Any, fold: Any, example: Any) -> list[Any]:
        text = "".join(example.words)
        places = [(self.characters[x], self.words_that_end(text, i)) for i, x in enumerate(text)]
        nodes: list[Any] = model.tag_characters(fold, places)
        return nodes

    def targets(self, model: Any, example: Any) -> np.ndarray:
        return np.eye(len(TAGS))[tags_of(example.words)]

    def scores(self, examples: Sequence[Any], outputs: Sequence[np.ndarray]) -> dict[str, float]:
        predicted = [rows.argmax(axis=1) for rows in outputs]
        expected = [tags_of(sentence.words) for sentence in examples]
        pairs = [
            (spans([TAGS[tag] for tag in a]), spans([TAGS[tag] for tag in b]))
            for a, b in zip(predicted, expected, strict=True)
        ]
        precision, recall, f1 = precision_recall_f1(pairs)
        characters = accuracy(np.concatenate(predicted), np.concatenate(expected))
        return {"f1": f1, "precision": precision, "recall": recall, "characters": characters}


def tags_of(words: Sequence[str]) -> np.ndarray:
    """Return for each character whether it begins a word or goes on with one.

    Examples
    --------
    >>> tags_of(["I", "am"])
    array([0, 0, 1])
    """
    return np.array([BEGINS if place == 0 else GOES_ON for word in words for place in range(len(word))])
