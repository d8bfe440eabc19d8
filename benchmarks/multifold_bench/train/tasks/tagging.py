"""Names in sentences: CoNLL files whose tags mark spans."""

# ruff: noqa: D102 - what a task overrides is documented once, at TrainingTask

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, final

import numpy as np

from multifold._compare.files import PathLike
from multifold.models import BiLSTMTagger
from multifold_bench.datasets import WordIds, conll
from multifold_bench.train.metrics import accuracy, precision_recall_f1, spans
from multifold_bench.train.tasks.parts import Tell, read_parts
from multifold_bench.train.tasks.task import Choice
from multifold_bench.train.tasks.words import WordsTask

SUFFIXES = (".conll", ".annotated", ".txt", ".tsv", ".bio")


@final
class TaggingTask(WordsTask):
    """Words that training has five times have vectors of their own; others are read by characters.

    Scores are precision, recall and F1 of the spans that BIO tags mark, and the accuracy of tags; only
    that where the tags of the training part mark no span, as parts of speech.

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
    proposed: ClassVar = {"optimizer": "adam", "rate": 0.003, "epochs": 12}

    def __init__(self, path: PathLike | None = None, tell: Tell = lambda done, total: None) -> None:
        super().__init__(read_parts(path, SUFFIXES, conll.SOURCE, conll.read, tell))
        sentences = self.parts["train"]
        self.characters = WordIds(x for sentence in sentences for word in sentence.words for x in word)
        self.tags = sorted({tag for sentence in sentences for tag in sentence.tags})
        self.marks_spans = any(spans(sentence.tags) for sentence in sentences)
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
        return np.array([[tag == known for known in self.tags] for tag in example.tags])

    def scores(self, examples: Sequence[Any], outputs: Sequence[np.ndarray]) -> dict[str, float]:
        predicted = [[self.tags[best] for best in rows.argmax(axis=1)] for rows in outputs]
        expected = [sentence.tags for sentence in examples]
        flat = [np.array([tag for tags in side for tag in tags]) for side in (predicted, expected)]
        if not self.marks_spans:
            return {"tags": accuracy(*flat)}
        pairs = [(spans(a), spans(b)) for a, b in zip(predicted, expected, strict=True)]
        precision, recall, f1 = precision_recall_f1(pairs)
        return {"f1": f1, "precision": precision, "recall": recall, "tags": accuracy(*flat)}
