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
    """A source of examples, with the sizes of their vocabularies.

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
    """Return ``count`` of the examples in ``kept``, drawn by ``rng``; none twice if there are enough."""
    places = rng.choice(len(kept), size=count, replace=count > len(kept))
    return [kept[place] for place in places.tolist()]


class Batch(NamedTuple):
    """A minibatch: the examples of one step, and the weights of its loss.

    Attributes
    ----------
    examples : list
        The examples of the minibatch, in the order in which they were drawn.
    weights : float64 array of shape ``(rows, *row_shape)``
        The loss is the sum of the logits times these.
    """

    examples: list[Example]
    weights: np.ndarray


class OneByOne:
    """Makes the arrays that one-at-a-time programs need, on the device of their model.

    Parameters
    ----------
    backend : Backend
        The framework whose arrays are made.
    model : object
        The model, whose ops are its attributes.
    """

    def __init__(self, backend: Backend, model: Any) -> None:
        self.backend = backend
        self.model = model
        self.device = backend.device(model)
        self.index_dtype = backend.number_dtype(int)
        self.segments: dict[int, tuple[Array, Array]] = {}

    def constant(self, values: np.ndarray) -> Array:
        """Return an array of the framework with these values, on the device of the model."""
        return self.backend.constant(values, self.device)

    def word(self, word: int) -> Array:
        """Return a word id as an array of shape ``(1,)``, of the framework's integers."""
        return self.constant(np.array([word], self.index_dtype))

    def join(self, rows: Sequence[Array]) -> Array:
        """Return some arrays, concatenated along axis 0; a single one is returned itself."""
        return self.backend.concat(rows) if len(rows) > 1 else rows[0]

    def ragged(self, rows: Sequence[Array]) -> Ragged:
        """Return arrays of one row each as the `Ragged` operand of one node.

        It has the rows concatenated, their number, and as many zeros as segment ids.
        """
        return Ragged(self.join(rows), *self.segments_of(len(rows)))

    def segments_of(self, count: int) -> tuple[Array, Array]:
        """Return the lengths ``[count]`` and the segment ids ``[0] * count`` of one node's rows.

        Both are arrays of the framework's integers; they are made once for each ``count``.
        """
        if count not in self.segments:
            lengths = self.constant(np.array([count], self.index_dtype))
            self.segments[count] = lengths, self.constant(np.zeros(count, self.index_dtype))
        return self.segments[count]


class Benchmark(abc.ABC):
    """A model, examples for it, and the two programs that a user would write for one example.

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
        """The sizes that the model takes as keywords: ``vocabulary``, ``width`` and ``classes``."""
        words = self.examples.words
        classes = self.examples.classes
        return {"vocabulary": words, "width": self.width, "classes": classes}

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row of the logits: ``(classes,)`` by default."""
        return (self.examples.classes,)

    def minibatches(self, batch: int, seed: int) -> Iterator[Batch]:
        """Yield minibatches of ``batch`` examples for ever, the same ones for the same seed."""
        rng = np.random.default_rng(seed)
        while True:
            examples = self.examples.draw(rng, batch)
            rows = sum(map(self.rows, examples))
            yield Batch(examples, rng.standard_normal((rows, *self.row_shape)) / rows)

    @abc.abstractmethod
    def model(self) -> Model:
        """Return a new model for all backends: ``model.on(backend)`` makes that of a framework."""

    @abc.abstractmethod
    def record(self, fold: Any, example: Any) -> Any:
        """Record one example on a fold; return the node, or the list of nodes, of its logits."""

    @abc.abstractmethod
    def loop(self, one: OneByOne, example: Any) -> Array:
        """Return the logits of one example, computed by calls of ``one.model`` without multifold.

        Their shape is ``(rows, *row_shape)``; see `rows`.
        """

    def rows(self, example: Any) -> int:
        """Return how many rows the logits of an example have; 1 by default."""
        return 1

    def stack(self, examples: Sequence[Any]) -> Any | None:
        """Return examples of one structure as one example, or None if they differ or it can't be done.

        Where a single example has a word id, the stacked one has those of all. The default returns None.
        """
        return None

    def record_all(self, fold: Any, examples: Iterable[Any]) -> list[Any]:
        """Record examples on a fold; return what `record` returns for each, in order."""
        return [self.record(fold, example) for example in examples]

    def apply(self, fold: Any, model: Any, examples: Sequence[Any]) -> Array:
        """Return the logits of all examples: record them on a fold, and run it with ``model``.

        ``fold`` may also be an `Unfold`, its eager twin. The shape is ``(rows, *row_shape)``, with the rows
        of all examples in order.
        """
        return fold.apply(model, self.record_all(fold, examples))


@dataclass(frozen=True)
class Workload:
    """A named benchmark.

    Attributes
    ----------
    read : callable
        ``read(path, limit, tell)`` reads examples, ``limit`` at most if the data is not a given set.
    benchmark : type
        The subclass of `Benchmark`, made of these examples and a width.
    """

    read: Callable[[PathLike | None, int, Tell], Examples]
    benchmark: type[Benchmark]
