"""Gate (j): child-sum cells, whose children are rows of a ragged operand, traced and by hand.

By hand that is a loop over the heights of the trees, on index arrays that were made before; the traces were
made and merged before, too. Both multiply the words of all heights by one launch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import multifold
from multifold import ops
from multifold.backend import Ragged
from multifold_bench.gates.figures import Figure, Numbers, Results, Step, Subject, milliseconds, share
from multifold_bench.graphs.base import CLASSES, WORDS
from multifold_bench.hand.levels import child_sum_levels

WIDTH = 100
ROW = ((WIDTH,), (WIDTH,))


class Word(NamedTuple):
    """A word of a sentence, and the words that depend on it."""

    word: int
    children: tuple[Any, ...]


def dependencies(rng: np.random.Generator) -> Word:
    """Draw a sentence of 4 to 30 words: each word hangs on any word before it."""
    length = int(rng.integers(4, 31))
    heads = [int(rng.integers(place)) for place in range(1, length)]
    children: list[list[Word]] = [[] for _ in range(length)]
    for place in reversed(range(length)):
        node = Word(int(rng.integers(WORDS)), tuple(reversed(children[place])))
        if place:
            children[heads[place - 1]].append(node)
    return node


def make_model() -> Any:
    """Return the cell of the documentation, with the words' part as an op of its own."""
    import torch

    class ChildSum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(WORDS, WIDTH)
            self.W = torch.nn.Linear(WIDTH, 3 * WIDTH)
            self.U = torch.nn.Linear(WIDTH, 3 * WIDTH)
            self.W_f = torch.nn.Linear(WIDTH, WIDTH)
            self.U_f = torch.nn.Linear(WIDTH, WIDTH)
            self.output = torch.nn.Linear(WIDTH, CLASSES)

        def words(self, word: Any) -> Any:
            x = self.embed(word)
            return self.W(x), self.W_f(x)

        def node(self, gates: Any, keep: Any, kids: Ragged) -> Any:
            h, c = kids.values
            f = torch.sigmoid(ops.take(keep, kids.segment_ids) + self.U_f(h))
            i, o, u = (gates + self.U(ops.segment_sum(h, kids))).chunk(3, dim=1)
            c = ops.segment_sum(f * c, kids) + torch.sigmoid(i) * torch.tanh(u)
            return torch.sigmoid(o) * torch.tanh(c), c

        def logits(self, h: Any) -> Any:
            return self.output(h)

    torch.manual_seed(0)
    return ChildSum()


def encode(fold: Any, tree: Word) -> Any:
    """Record a tree; its words are an op of their own, which runs once for all heights."""
    kids = [encode(fold, child) for child in tree.children]
    return fold.add("node", *fold.add("words", tree.word).split(2), multifold.ragged(kids, row_shape=ROW))


class Prepared(NamedTuple):
    """A minibatch for the program by hand.

    Attributes
    ----------
    words : tensor
        Those of all nodes, lowest ones first.
    sizes : list of int
        How many nodes each height has.
    heights : list
        For each height above the leaves where its nodes begin and end, and the `Ragged` numbers and rows of
        their children.
    roots : tensor
        The nodes of the roots.
    """

    words: Any
    sizes: list[int]
    heights: list[tuple[int, int, Any, Any, Any]]
    roots: Any


def prepared(trees: list[Word]) -> Prepared:
    """Sort the nodes of trees by height."""
    import torch

    levels = child_sum_levels(trees)
    words, *pieces, roots = torch.from_numpy(levels.indices).split(levels.sizes)
    ends = levels.offsets[1:]
    heights = zip(ends, ends[1:], pieces[::3], pieces[1::3], pieces[2::3], strict=False)
    return Prepared(words, np.diff(levels.offsets).tolist(), list(heights), roots)


def by_hand(trees: Prepared, model: Any) -> Any:
    """Return the logits of trees, a launch for each height."""
    words, sizes, heights, roots = trees
    # Sections of one split: the gradient of a slice would be zeros for all other rows, a height at a time.
    (gates, *all_gates), (keep, *all_keep) = (x.split(sizes) for x in model.words(words))
    h = gates.new_empty(len(words), WIDTH)
    c = gates.new_empty(len(words), WIDTH)
    leaves = sizes[0]
    empty = gates.new_empty(0, WIDTH)
    none = Ragged((empty, empty), words.new_zeros(leaves), words.new_empty(0))
    h[:leaves], c[:leaves] = model.node(gates, keep, none)
    for gates, keep, (begin, end, lengths, rows, ids) in zip(all_gates, all_keep, heights, strict=True):
        kids = Ragged((h.index_select(0, rows), c.index_select(0, rows)), lengths, ids)
        h[begin:end], c[begin:end] = model.node(gates, keep, kids)
    return model.logits(h.index_select(0, roots))


def ragged_step(size: int, train: bool, quick: bool) -> Step:
    """Return what takes a step of both ways on one minibatch."""
    subject = Subject("torch", make_model(), train)
    fold = multifold.Fold(backend="torch")  # of the training loop: traces are not recorded in it

    def step(number: int) -> tuple[Numbers, Results]:
        rng = np.random.default_rng(number)
        trees = [dependencies(rng) for _ in range(size // 4 if quick else size)]
        weights = rng.standard_normal((len(trees), CLASSES)) / len(trees)
        merged = multifold.merge([multifold.trace(classify, tree) for tree in trees])
        indices = prepared(trees)
        ways: dict[str, Callable[[Any], Any]] = {
            "traced": lambda model: fold.run(model, merged),
            "hand": partial(by_hand, indices),
        }
        # Who goes second finds the parameters in the caches: each way does in every other repetition.
        order = list(ways) if number % 2 else list(reversed(ways))
        found = {way: subject.step(ways[way], weights) for way in order}
        numbers = {way: seconds for way, (seconds, _) in found.items()}
        return numbers, {way: results for way, (_, results) in found.items()}

    return step


def classify(fold: Any, tree: Word) -> Any:
    """Record a tree; return the node of its logits."""
    return fold.add("logits", encode(fold, tree)[0])


def figure(size: int, train: bool) -> Figure:
    """Return a figure of gate (j)."""
    lines = (
        share("traced", "hand", most=1.15),
        milliseconds("traced"),
    )
    name = f"child-sum cells, {size} trees, {'training' if train else 'inference'}"
    return Figure("j", name, "torch", partial(ragged_step, size, train), lines)


FIGURES = [figure(size, train) for size in (32, 128) for train in (True, False)]
