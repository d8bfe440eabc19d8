"""What tasks over words have in common: an id for each word, and pretrained vectors of words.

The words that the training part has at least twice are numbered from 1, and all others are 0, unknown.
Pretrained vectors (``multifold train sick --vectors glove.txt``) add words of the other parts that the file
has, and replace the rows of the model's embedding with which training begins.
"""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, ClassVar

import numpy as np

from multifold._measure.files import PathLike
from multifold.models import Model
from multifold_bench.datasets import WordIds, vectors
from multifold_bench.datasets.vectors import WordVectors
from multifold_bench.train.settings import Settings, SettingsError
from multifold_bench.train.tasks.parts import Tell, file_size
from multifold_bench.train.tasks.task import Coverage, TrainingTask


class WordsTask(TrainingTask):
    """Words have ids by what the training part holds, and a row each of one parameter of the model.

    Attributes
    ----------
    words : WordIds
        The ids of words, 0 for those that training has less often than `least`. Pretrained vectors add
        words.
    embedding : str
        The name of the parameter with a row for each id.
    without_vectors : frozenset of str
        The models that have no place for them.
    least : int
        How often training must have a word.
    inputs : int or None
        The width of the pretrained vectors, None without any.
    """

    embedding: ClassVar[str] = "embedding"
    without_vectors: ClassVar[frozenset[str]] = frozenset()
    least: ClassVar[int] = 2

    def __init__(self, parts: Mapping[str, Sequence[Any]]) -> None:
        super().__init__(parts)
        found = (word for example in self.parts["train"] for word in self.words_of(example))
        self.words = WordIds(found, self.least)
        self.inputs: int | None = None
        self.rows: dict[int, np.ndarray] = {}

    @abc.abstractmethod
    def words_of(self, example: Any) -> Iterable[str]:
        """Return the words of an example, as `words` spells them."""

    def use_vectors(self, path: PathLike, tell: Tell = lambda done, total: None) -> Coverage:
        """Take over pretrained vectors; words of any part that have one are known from now on.

        A vector is that of the word itself or, where the file lacks it, of the word in small letters.
        """
        examples = [example for part in self.parts.values() for example in part]
        words = {word for example in examples for word in self.words_of(example)}
        size = file_size(path)
        known = words | set(self.words.words[1:])
        asked = known | {word.lower() for word in known}
        found = vectors.read(path, asked, lambda done: tell(done, size))
        self.words = self.words.extended(words & found.rows.keys())
        self.rows = self._rows(found)
        self.inputs = found.width
        self.vectors = digest(self.rows)
        covered = sum(word in found.rows or word.lower() in found.rows for word in words)
        return Coverage(len(words), covered, found.width)

    def _rows(self, found: WordVectors) -> dict[int, np.ndarray]:
        rows = {}
        for number, word in enumerate(self.words.words[1:], 1):
            vector = found.rows.get(word, found.rows.get(word.lower()))
            if vector is not None:
                rows[number] = vector
        return rows

    def model(self, settings: Settings) -> Model:
        """Return the model that settled settings name; pretrained vectors replace initial values."""
        if self.rows and settings.model in self.without_vectors:
            raise SettingsError(
                f"Expected a model for {self.name} that takes pretrained vectors. Received "
                f"{settings.model!r}.",
                "leave --vectors out, or choose another --model.",
            )
        model = super().model(settings)
        if self.rows:
            rows = attrgetter(self.embedding)(model)
            rows[list(self.rows), : self.inputs] = np.stack(list(self.rows.values()))
        return model


def digest(rows: Mapping[int, np.ndarray]) -> str:
    """Return a text that is equal for equal vectors of equal words."""
    state = hashlib.blake2b(digest_size=8)
    for number, row in rows.items():
        state.update(number.to_bytes(8, "little") + row.tobytes())
    return state.hexdigest()
