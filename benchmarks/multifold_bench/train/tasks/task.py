"""What a task is: examples in three parts, a model for them, targets, and scores."""

from __future__ import annotations

import abc
import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from multifold._measure.files import PathLike
from multifold.models import Model
from multifold_bench.train.objectives import Objective, cross_entropy
from multifold_bench.train.settings import Settings, SettingsError, refuse_unknown
from multifold_bench.train.tasks.parts import Tell

PARTS = ("train", "dev", "test")


@dataclass(frozen=True)
class Choice:
    """A model that a task can be done with.

    Attributes
    ----------
    make : callable
        ``make(task, width, seed)`` returns the model.
    width : int
        The usual width of its states.
    """

    make: Callable[[Any, int, int], Model]
    width: int


class Coverage(NamedTuple):
    """How many different words the examples have, how many of those have a vector, and how wide it is."""

    words: int
    covered: int
    width: int


class TrainingTask(abc.ABC):
    """Examples, and what to do with them.

    Parameters
    ----------
    parts : mapping
        The examples of ``"train"``, ``"dev"`` and ``"test"``.

    Attributes
    ----------
    name : str
        What the task is called.
    models : mapping of str to Choice
        The models by name; the first one is usual.
    criterion : str
        The score that says which epoch is the best.
    minimised : bool
        Whether a smaller score is better.
    proposed : mapping
        Those of `Settings` that are other than usual.
    objective : callable
        The loss, of `multifold_bench.train.objectives`.
    turns : int
        How many trainings there are, so that each example is once in the test part; usually one.
    chooses : bool
        Whether the best epoch is chosen on the development part; otherwise it is the last one.
    vectors : str or None
        A digest of the pretrained vectors that the model begins with.
    """

    name: ClassVar[str]
    models: ClassVar[Mapping[str, Choice]]
    criterion: str
    minimised: ClassVar[bool] = False
    proposed: ClassVar[Mapping[str, Any]] = {}
    objective: Objective = staticmethod(cross_entropy)
    turns: int = 1
    chooses: bool = True
    vectors: str | None = None

    def __init__(self, parts: Mapping[str, Sequence[Any]]) -> None:
        for part in PARTS:
            if not parts.get(part):
                raise SettingsError(
                    f"Expected examples in the parts {', '.join(PARTS)}. Received none in {part}."
                )
        self.parts = {part: list(parts[part]) for part in PARTS}

    def turn(self, number: int) -> Self:
        """Return the task with the examples divided anew, so that each is tested in one of the `turns`.

        There are three turns or more: another part is for development, and the others for training.
        """
        examples = [example for part in PARTS for example in self.parts[part]]
        places = np.random.default_rng(0).permutation(len(examples)) % self.turns
        wanted = {"test": {number}, "dev": {(number + 1) % self.turns}}
        wanted["train"] = {*range(self.turns)} - wanted["test"] - wanted["dev"]
        other = copy.copy(self)
        other.parts = {
            part: [x for x, place in zip(examples, places.tolist(), strict=True) if place in wanted[part]]
            for part in PARTS
        }
        return other

    def settings(self, **chosen: Any) -> Settings:
        """Return the settings that the task proposes, but for those that are chosen."""
        refuse_unknown(chosen)
        return self.settled(Settings(**{**self.proposed, **chosen}))

    def settled(self, settings: Settings) -> Settings:
        """Return settings with the names of model and width filled in.

        Raises
        ------
        SettingsError
            If the task has no such model.
        """
        name = settings.model or next(iter(self.models))
        if name not in self.models:
            raise SettingsError(
                f"Expected a model for {self.name} out of {', '.join(self.models)}. Received {name!r}."
            )
        width = settings.width or self.models[name].width
        return dataclasses.replace(settings, model=name, width=width)

    def model(self, settings: Settings) -> Model:
        """Return the model that settled settings name, with its initial weights."""
        return self.models[settings.model].make(self, settings.width, settings.seed)

    def use_vectors(self, path: PathLike, tell: Tell = lambda done, total: None) -> Coverage:
        """Let the model begin with the pretrained vectors of a file; `datasets.vectors` reads it.

        Parameters
        ----------
        path : path
            A text file of GloVe or word2vec.
        tell : callable, optional
            Called with how many bytes are read, and how many there are.

        Raises
        ------
        SettingsError
            If the task has no words.
        DatasetError
            If the file is no such file.
        """
        raise SettingsError(
            f"Expected a task whose examples are words, for the vectors of {path}. Received {self.name}."
        )

    @abc.abstractmethod
    def record(self, model: Any, fold: Any, example: Any) -> list[Any]:
        """Record an example; return a list of nodes, whose rows are the model's outputs."""

    @abc.abstractmethod
    def targets(self, model: Any, example: Any) -> np.ndarray:
        """Return what the objective compares the outputs with: a row for each node of `record`."""

    @abc.abstractmethod
    def scores(self, examples: Sequence[Any], outputs: Sequence[np.ndarray]) -> dict[str, float]:
        """Return scores by name, from the examples of a part and the rows of each."""
