"""A benchmark: examples, a model, and the two programs that a user would write for ONE example.

`Benchmark.record` is the program for a fold. `Benchmark.loop` is the plain one without multifold, which
calls the model's own ops with one row each.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from multifold._measure.files import PathLike
from multifold.backend import Array, Backend, Ragged
from multifold.models import Model

Rng = np.random.Generator
Example = Any
Tell = Callable[[int, int], object]
"""Called with how much is read, and how much there is."""


@dataclass(frozen=True)
class Examples:
    """Where examples come from.

    Attributes
    ----------
    draw : callable
        ``draw(rng, count) -> list`` gives the examples of a minibatch.
    words, classes : int
        How many word ids, and how many classes there are.
    """

    draw: Callable[[Rng, int], list[Example]]
    words: int
    classes: int


def drawn_from(kept: Sequence[Example], rng: Rng, count: int) -> list[Example]:
    """Draw from examples that were read, none twice in a minibatch unless there are too few."""
    places = rng.choice(len(kept), size=count, replace=count > len(kept))
    return [kept[place] for place in places.tolist()]


class Batch(NamedTuple):
    """The examples of one step.

    Attributes
    ----------
    examples : list
        As they were drawn.
    weights : float64 array of shape ``(rows, *row_shape)``
        The loss is the sum of the logits times these.
    """

    examples: list[Example]
    weights: np.ndarray


class OneByOne:
    """What the one-at-a-time programs share: a model, and index arrays on its device.

    Parameters
    ----------
    backend : Backend
        Whose arrays are made.
    model : object
        Its ops are attributes.
    """

    def __init__(self, backend: Backend, model: Any) -> None:
        self.backend = backend
        self.model = model
        self.device = backend.device(model)
        self.index_dtype = backend.number_dtype(int)
        self.segments: dict[int, tuple[Array, Array]] = {}

    def constant(self, values: np.ndarray) -> Array:
        """Bring values to the device."""
        return self.backend.constant(values, self.device)

    def word(self, word: int) -> Array:
        """Return a word id as a batch of one."""
        return self.constant(np.array([word], self.index_dtype))

    def join(self, rows: Sequence[Array]) -> Array:
        """Return rows as one array."""
        return self.backend.concat(rows) if len(rows) > 1 else rows[0]

    def ragged(self, rows: Sequence[Array]) -> Ragged:
        """Return one or more rows of a node; what says how many is made once for each number."""
        return Ragged(self.join(rows), *self.segments_of(len(rows)))

    def segments_of(self, count: int) -> tuple[Array, Array]:
        """Return the lengths and the segment ids of that many rows of one node."""
        if count not in self.segments:
            lengths = self.constant(np.array([count], self.index_dtype))
            self.segments[count] = lengths, self.constant(np.zeros(count, self.index_dtype))
        return self.segments[count]


class Benchmark(abc.ABC):
    """A model, examples for it, and the programs that a user writes for one example.

    Parameters
    ----------
    examples : Examples
        Where the examples come from.
    width : int
        The length of the model's states.
    """

    family: ClassVar[str]
    """The name of its hand-written programs: ``"binary"`` for all binary trees, for instance."""
    in_rounds: ClassVar[bool] = False
    """Whether the next call depends on values, so that only `apply` says which calls there are."""

    def __init__(self, examples: Examples, width: int) -> None:
        self.examples = examples
        self.width = width

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes of the model."""
        words = self.examples.words
        classes = self.examples.classes
        return {"vocabulary": words, "width": self.width, "classes": classes}

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row of the logits."""
        return (self.examples.classes,)

    def minibatches(self, batch: int, seed: int) -> Iterator[Batch]:
        """Draw minibatches for ever, the same ones for the same seed."""
        rng = np.random.default_rng(seed)
        while True:
            examples = self.examples.draw(rng, batch)
            rows = sum(map(self.rows, examples))
            yield Batch(examples, rng.standard_normal((rows, *self.row_shape)) / rows)

    @abc.abstractmethod
    def model(self) -> Model:
        """Return the model, written once for all backends."""

    @abc.abstractmethod
    def record(self, fold: Any, example: Any) -> Any:
        """Record one example; return the node, or the list of nodes, of its logits."""

    @abc.abstractmethod
    def loop(self, one: OneByOne, example: Any) -> Array:
        """Compute the logits of one example without multifold, by the model's own ops."""

    def rows(self, example: Any) -> int:
        """Return how many rows the logits of an example have."""
        return 1

    def stack(self, examples: Sequence[Any]) -> Any | None:
        """Return examples of one structure as one example whose words are batches; None if they differ."""
        return None

    def record_all(self, fold: Any, examples: Iterable[Any]) -> list[Any]:
        """Record examples; return the nodes of their logits, in order."""
        return [self.record(fold, example) for example in examples]

    def apply(self, fold: Any, model: Any, examples: Sequence[Any]) -> Array:
        """Compute the logits of examples with a fold, or with its eager twin."""
        return fold.apply(model, self.record_all(fold, examples))


@dataclass(frozen=True)
class Workload:
    """A benchmark by name: how its examples are read, and what is done with them."""

    read: Callable[[PathLike | None, int, Tell], Examples]
    benchmark: type[Benchmark]
