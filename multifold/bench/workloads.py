"""What a step of a benchmark runs on: examples, a model, and the two programs that a user would write.

A `Task` holds one model and says twice what it does with ONE example: `Task.record` for a fold, and
`Task.loop`, the plain program without multifold: the same recursion over the same objects, calling the
model's own ops with one row each. Nothing is looked up twice there that a careful person would keep.
"""

# ruff: noqa: D102 - what a task overrides is documented once, at Task

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from multifold.backend import Array, Backend, Ragged
from multifold.bench import generators
from multifold.datasets import (
    DatasetError,
    Vocabulary,
    bottom_up,
    conll,
    postorder,
    python_ast,
    sst,
)
from multifold.datasets.files import PathLike
from multifold.errors import MultifoldError
from multifold.models import BiLSTMTagger, BinaryTreeLSTM, ChildSumTreeLSTM, Model
from multifold.operands import ragged

Rng = np.random.Generator
Example = Any
Word = int | tuple[int, ...]
"""A word's id or, if it is rare, the ids of its characters."""
Tell = Callable[[int, int], object]
"""Called with how much is read, and how much there is."""


# ---- examples ------------------------------------------------------------------------------------


class BinaryTree:
    """A tree as a person would write it down: a word id at a leaf, two subtrees elsewhere."""

    __slots__ = ("left", "right", "word")

    def __init__(self, word: Any, left: Any = None, right: Any = None) -> None:
        self.word = word
        self.left = left
        self.right = right


class Branch:
    """A tree of any arity with a word id at every node."""

    __slots__ = ("children", "word")

    def __init__(self, word: int, children: Sequence[Branch]) -> None:
        self.word = word
        self.children = children


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


def random_trees(rng: Rng, count: int) -> list[BinaryTree]:
    """Draw binary trees of 14 to 22 leaves, cut anywhere: 36 calls on average with the output."""
    return [binary_tree(generators.random_tree(rng)) for _ in range(count)]


def binary_tree(nodes: generators.Tree) -> BinaryTree:
    """Return the tree behind a list of nodes, children first."""
    stack: list[BinaryTree] = []
    for node in nodes:
        if isinstance(node, str):
            right, left = stack.pop(), stack.pop()
            stack.append(BinaryTree(None, left, right))
        else:
            stack.append(BinaryTree(node))
    return stack[0]


def read_synthetic(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Return random trees, which need no file."""
    if path is not None:
        raise MultifoldError(f"Expected no files for the workload 'synthetic'. Received --data {path}.")
    return Examples(random_trees, generators.WORDS, generators.CLASSES)


def read_sst(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read all trees of a file of the Stanford Sentiment Treebank, of a folder its ``train.txt``."""
    if path is None:
        raise DatasetError("expected --data DIR for the workload 'sst'.", sst.SOURCE)
    file = Path(path) / "train.txt" if Path(path).is_dir() else Path(path)
    size = file.stat().st_size if file.is_file() else 0
    trees = list(sst.read(file, lambda done: tell(done, size)))
    if not trees:
        raise DatasetError("expected a tree, received the end of the file.", path=file, line=1)
    words = Vocabulary(node.word for tree in trees for node in postorder(tree) if node.word)

    def convert(node: sst.SentimentTree, children: Sequence[BinaryTree]) -> BinaryTree:
        return BinaryTree(None, *children) if children else BinaryTree(words[str(node.word)])

    kept = [bottom_up(tree, convert) for tree in trees]
    return Examples(partial(drawn_from, kept), len(words), len(sst.LABELS))


def read_python_ast(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read the first functions of the standard library, or of a folder."""
    functions = []
    for function in islice(python_ast.read(path), limit):
        functions.append(function)
        tell(len(functions), limit)
    if not functions:
        raise DatasetError("expected functions of 15 nodes or more, found none.", path=path)
    names = Vocabulary(node.name for function in functions for node in postorder(function.tree))

    def convert(node: python_ast.SyntaxTree, children: Sequence[Branch]) -> Branch:
        return Branch(names[node.name], tuple(children))

    kept = [bottom_up(function.tree, convert) for function in functions]
    return Examples(partial(drawn_from, kept), len(names), classes=50)


def read_tagger(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read the sentences of a file of CoNLL columns; without one, draw some of such lengths."""
    if path is None:
        return Examples(random_sentences, generators.WORDS, generators.CLASSES)
    sentences = list(conll.read(path))
    if not sentences:
        raise DatasetError("expected a sentence, received the end of the file.", path=path, line=1)
    words = Vocabulary((word for x in sentences for word in x.words), least=5)

    def convert(word: str) -> Word:
        spelled = tuple(ord(character) % generators.CHARACTERS for character in word)
        return words[word] if word in words else spelled  # noqa: SIM401 - a Vocabulary has no get

    kept = [[convert(word) for word in x.words] for x in sentences]
    tags = {tag for x in sentences for tag in x.tags}
    return Examples(partial(drawn_from, kept), len(words), len(tags))


def random_sentences(rng: Rng, count: int) -> list[list[Word]]:
    """Draw sentences of 3 to 60 words, 24 on average; a third of the words is rare."""
    return [[word for word, _ in generators.sample_tagged(rng, rare=0.36)] for _ in range(count)]


# ---- minibatches ---------------------------------------------------------------------------------


class Minibatch(NamedTuple):
    """The examples of one step.

    Attributes
    ----------
    examples : list
        As they were drawn.
    weights : float64 array of shape ``(rows, classes)``
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

    def ragged(self, rows: Sequence[Array]) -> Ragged:
        """Return one or more rows of a node; what says how many is made once for each number."""
        count = len(rows)
        if count not in self.segments:
            lengths = self.constant(np.array([count], self.index_dtype))
            self.segments[count] = lengths, self.constant(np.zeros(count, self.index_dtype))
        values = self.backend.concat(rows) if count > 1 else rows[0]
        return Ragged(values, *self.segments[count])


class Task(abc.ABC):
    """A model, examples for it, and the programs that a user writes for one example.

    Parameters
    ----------
    examples : Examples
        Where the examples come from.
    width : int
        The length of the model's states.
    """

    kind: ClassVar[str]
    """The name of its hand-written programs."""

    def __init__(self, examples: Examples, width: int) -> None:
        self.examples = examples
        self.width = width

    @property
    def sizes(self) -> dict[str, Any]:
        """The sizes of the model."""
        words, classes = self.examples.words, self.examples.classes
        return {"vocabulary": words, "width": self.width, "classes": classes}

    def minibatches(self, batch: int, seed: int) -> Iterator[Minibatch]:
        """Draw minibatches for ever, the same ones for the same seed."""
        rng = np.random.default_rng(seed)
        while True:
            examples = self.examples.draw(rng, batch)
            rows = sum(map(self.rows, examples))
            yield Minibatch(examples, rng.standard_normal((rows, self.examples.classes)) / rows)

    @abc.abstractmethod
    def model(self) -> Model:
        """Return the model, written once for all backends."""

    @abc.abstractmethod
    def record(self, fold: Any, example: Any) -> Any:
        """Record one example; return the node, or the list of nodes, of its logits."""

    @abc.abstractmethod
    def loop(self, one: OneByOne, example: Any) -> Array:
        """Compute the logits of one example."""

    def rows(self, example: Any) -> int:
        """Return how many rows the logits of an example have."""
        return 1

    def record_all(self, fold: Any, examples: Iterable[Any]) -> list[Any]:
        """Record examples; return the nodes of their logits, in order."""
        return [self.record(fold, example) for example in examples]


class BinaryTask(Task):
    """A binary Tree-LSTM with its output at the root (Tai, Socher and Manning, ACL 2015)."""

    kind = "binary"

    def model(self) -> Model:
        return BinaryTreeLSTM(**self.sizes)

    def record(self, fold: Any, tree: BinaryTree) -> Any:
        return fold.add("logits", encode_binary(fold, tree)[0])

    def loop(self, one: OneByOne, tree: BinaryTree) -> Array:
        model = one.model

        def encode(tree: BinaryTree) -> tuple[Array, Array]:
            if tree.left is None:
                return model.leaf(one.word(tree.word))
            left_h, left_c = encode(tree.left)
            right_h, right_c = encode(tree.right)
            return model.children(left_h, left_c, right_h, right_c)

        return model.logits(encode(tree)[0])


def encode_binary(fold: Any, tree: BinaryTree) -> Any:
    """Record a tree; return the nodes of its state ``(h, c)``."""
    if tree.left is None:
        return fold.add("leaf", tree.word).split(2)
    left_h, left_c = encode_binary(fold, tree.left)
    right_h, right_c = encode_binary(fold, tree.right)
    return fold.add("children", left_h, left_c, right_h, right_c).split(2)


class ChildSumTask(Task):
    """A child-sum Tree-LSTM over trees of any arity (Tai, Socher and Manning, ACL 2015)."""

    kind = "child_sum"

    def model(self) -> Model:
        return ChildSumTreeLSTM(**self.sizes)

    def record(self, fold: Any, tree: Branch) -> Any:
        return fold.add("logits", encode_any(fold, tree)[0])

    def loop(self, one: OneByOne, tree: Branch) -> Array:
        model = one.model

        def encode(tree: Branch) -> tuple[Array, Array]:
            word = one.word(tree.word)
            if not tree.children:
                return model.leaf(word)
            states = [encode(child) for child in tree.children]
            hs, cs = (one.ragged(rows) for rows in zip(*states, strict=True))
            return model.node(word, hs, cs)

        return model.logits(encode(tree)[0])


def encode_any(fold: Any, tree: Branch) -> Any:
    """Record a tree of any arity; return the nodes of its state ``(h, c)``."""
    if not tree.children:
        return fold.add("leaf", tree.word).split(2)
    states = [encode_any(fold, child) for child in tree.children]
    hs, cs = (ragged(rows) for rows in zip(*states, strict=True))
    return fold.add("node", tree.word, hs, cs).split(2)


class TaggerTask(Task):
    """A tagger that reads in both directions, and spells rare words (Neubig et al., NIPS 2017)."""

    kind = "tagger"

    def model(self) -> Model:
        return BiLSTMTagger(
            self.examples.words,
            generators.CHARACTERS,
            self.examples.classes,
            width=self.width,
            inputs=2 * self.width,
        )

    def rows(self, example: Any) -> int:
        return len(example)

    def record_all(self, fold: Any, examples: Iterable[Any]) -> list[Any]:
        return [node for example in examples for node in self.record(fold, example)]

    def record(self, fold: Any, words: Sequence[Word]) -> Any:
        def read(vectors: Sequence[Any], begin: Any, level: str, direction: str) -> list[Any]:
            h, c = begin
            states = []
            for x in vectors:
                h, c = fold.add("step", x, h, c, level, direction).split(2)
                states.append(h)
            return states

        def spell(characters: Sequence[int]) -> Any:
            vectors = [fold.add("look_up_character", character) for character in characters]
            begin = fold.add("begin", "word").split(2)
            right = read(vectors, begin, "word", "right")
            left = read(vectors[::-1], begin, "word", "left")
            return fold.add("join", right[-1], left[-1])

        vectors = [spell(word) if isinstance(word, tuple) else fold.add("look_up", word) for word in words]
        begin = fold.add("begin", "sentence").split(2)
        right = read(vectors, begin, "sentence", "right")
        left = read(vectors[::-1], begin, "sentence", "left")[::-1]
        return [fold.add("logits", *states) for states in zip(right, left, strict=True)]

    def loop(self, one: OneByOne, words: Sequence[Word]) -> Array:
        model = one.model

        def read(vectors: Sequence[Any], begin: Any, level: str, direction: str) -> list[Any]:
            h, c = begin
            states = []
            for x in vectors:
                h, c = model.step(x, h, c, level, direction)
                states.append(h)
            return states

        def spell(characters: Sequence[int]) -> Any:
            vectors = [model.look_up_character(one.word(character)) for character in characters]
            begin = model.begin("word")
            right = read(vectors, begin, "word", "right")
            left = read(vectors[::-1], begin, "word", "left")
            return model.join(right[-1], left[-1])

        vectors = [
            spell(word) if isinstance(word, tuple) else model.look_up(one.word(word)) for word in words
        ]
        begin = model.begin("sentence")
        right = read(vectors, begin, "sentence", "right")
        left = read(vectors[::-1], begin, "sentence", "left")[::-1]
        rows = [model.logits(*states) for states in zip(right, left, strict=True)]
        return one.backend.concat(rows) if len(rows) > 1 else rows[0]


@dataclass(frozen=True)
class Workload:
    """A task by name: how its examples are read, and what is done with them."""

    read: Callable[[PathLike | None, int, Tell], Examples]
    task: type[Task]


WORKLOADS = {
    "python-ast": Workload(read_python_ast, ChildSumTask),
    "sst": Workload(read_sst, BinaryTask),
    "synthetic": Workload(read_synthetic, BinaryTask),
    "tagger": Workload(read_tagger, TaggerTask),
}
"""What ``--workload`` takes."""
