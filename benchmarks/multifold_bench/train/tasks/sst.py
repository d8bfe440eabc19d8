"""Sentiment of all phrases of a sentence: the Stanford Sentiment Treebank."""

# ruff: noqa: D102 - what a task overrides is documented once, at TrainingTask

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, final

import numpy as np

from multifold._measure.files import PathLike
from multifold.models import BinaryTreeLSTM, ChildSumTreeLSTM, Model
from multifold_bench.datasets import postorder, sst
from multifold_bench.models import MVRNN
from multifold_bench.train.metrics import accuracy
from multifold_bench.train.tasks.parts import Tell, read_parts
from multifold_bench.train.tasks.task import Choice
from multifold_bench.train.tasks.words import WordsTask

CLASSES = len(sst.LABELS)
NEUTRAL = 2


@final
class SentimentTask(WordsTask):
    """Every phrase is supervised; words are lower-cased, and unknown if training has them once only.

    Scores are accuracies at the roots and at all nodes: among five classes, and positive against
    negative, where a phrase counts if it is not neutral and the likelier one of the two is predicted.

    Parameters
    ----------
    path : path
        The folder of ``train.txt``, ``dev.txt`` and ``test.txt``, or one file, which is divided.
    tell : callable, optional
        Called with how many bytes are read, and how many there are.

    References
    ----------
    Socher et al., EMNLP 2013; Tai, Socher and Manning, ACL 2015, section 5.1.
    """

    name = "sst"
    criterion = "root 5-way"
    models: ClassVar = {
        "binary-tree-lstm": Choice(lambda task, width, seed: task.make(BinaryTreeLSTM, width, seed), 150),
        "child-sum-tree-lstm": Choice(
            lambda task, width, seed: task.make(ChildSumTreeLSTM, width, seed), 150
        ),
        "mv-rnn": Choice(lambda task, width, seed: task.make(MVRNN, width, seed), 25),
    }
    without_vectors = frozenset({"mv-rnn"})
    proposed: ClassVar = {"schedule": "cosine"}

    def __init__(self, path: PathLike | None = None, tell: Tell = lambda done, total: None) -> None:
        super().__init__(read_parts(path, (".txt",), sst.SOURCE, sst.read, tell))

    @property
    def phrase(self) -> int:
        """The id of what is no word: what a child-sum Tree-LSTM reads where children meet."""
        return len(self.words)

    def make(self, family: Any, width: int, seed: int) -> Model:
        """Return a model of a class with the sizes of these data."""
        sizes = {"vocabulary": len(self.words) + 1, "width": width, "classes": CLASSES}
        if self.inputs is not None:
            sizes["inputs"] = self.inputs
        model: Model = family(**sizes, seed=seed)
        return model

    def words_of(self, example: Any) -> Iterable[str]:
        return (node.word.lower() for node in postorder(example) if node.word is not None)

    def word(self, node: Any) -> int:
        """Return the id of a node's word."""
        return self.phrase if node.word is None else self.words[node.word.lower()]

    def record(self, model: Any, fold: Any, example: Any) -> list[Any]:
        return [fold.add("logits", state[0]) for state in model.encode_all(fold, example, self.word)]

    def targets(self, model: Any, example: Any) -> np.ndarray:
        return np.eye(CLASSES)[labels(example)]

    def scores(self, examples: Sequence[Any], outputs: Sequence[np.ndarray]) -> dict[str, float]:
        found: dict[str, float] = {}
        expected = [labels(tree) for tree in examples]
        roots = np.stack([rows[-1] for rows in outputs]), np.array([all_[-1] for all_ in expected])
        for where, (logits, gold) in {
            "root": roots,
            "node": (np.concatenate(outputs), np.concatenate(expected)),
        }.items():
            polar = gold != NEUTRAL
            found[f"{where} 5-way"] = accuracy(logits.argmax(axis=1), gold)
            found[f"{where} binary"] = accuracy(positive(logits[polar]), gold[polar] > NEUTRAL)
        return found


def labels(tree: Any) -> np.ndarray:
    """Return the labels of all nodes, children first."""
    return np.array([node.label for node in postorder(tree)])


def positive(logits: np.ndarray) -> np.ndarray:
    """Return whether the classes above neutral are likelier together than those below."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers[:, NEUTRAL + 1 :].sum(axis=1) > powers[:, :NEUTRAL].sum(axis=1))
