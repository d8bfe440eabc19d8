"""The workloads ``parser`` and ``light-parser``: greedy parsers, which look at scores at each step.

The program for a fold is a coroutine, run by `multifold.Fold.run`; the plain loop is the same program
without multifold. Models and programs are those of `multifold_bench.greedy`; the light parser takes some 45
rounds of two or three launches for 64 sentences. Examples are sentences as lists of word ids. A minibatch
holds sentences of nearly one length, as those who train parsers make them: the sentences are sorted, and
cut anywhere.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, NoReturn, final

import numpy as np

import multifold
from multifold._measure.benchmark import Batch, Benchmark, Examples, OneByOne, Rng, Tell, Workload
from multifold._measure.files import PathLike
from multifold.backend import Array
from multifold.errors import RecordError
from multifold.models import Model
from multifold_bench.datasets import DatasetError, WordIds, postorder, sst
from multifold_bench.graphs.base import CLASSES, WORDS
from multifold_bench.graphs.trees import Tree, sentence_tree
from multifold_bench.greedy import (
    DOUBT,
    GreedyParser,
    LightParser,
    Parse,
    judged,
    margin,
    parse,
    parse_lightly,
)
from multifold_bench.models.shift_reduce import REDUCE, SHIFT


def read_sentences(path: PathLike | None, limit: int, tell: Tell) -> Examples:
    """Read the sentences of a file of sentiment trees; without one, draw some of such lengths."""
    if path is None:
        rng = np.random.default_rng(0)
        sentences = [leaves_of(sentence_tree(rng)) for _ in range(limit)]
        return Examples(bucketed(sentences), WORDS, CLASSES)
    trees = list(islice(sst.read(path), limit))
    if not trees:
        raise DatasetError("expected a tree, received the end of the file.", path=path, line=1)
    texts = [[str(node.word) for node in postorder(tree) if node.word is not None] for tree in trees]
    words = WordIds(word for text in texts for word in text)
    sentences = [[words[word] for word in text] for text in texts]
    return Examples(bucketed(sentences), len(words), len(sst.LABELS))


def leaves_of(tree: Tree) -> list[int]:
    """Return the words of a tree, from left to right."""
    return [node for node in tree if isinstance(node, int)]


def bucketed(sentences: Sequence[list[int]]) -> Any:
    """Return what draws neighbours out of the sentences in the order of their lengths."""
    kept = sorted((sentence for sentence in sentences if len(sentence) > 2), key=len)

    def draw(rng: Rng, count: int) -> list[list[int]]:
        first = int(rng.integers(max(1, len(kept) - count + 1)))
        return [kept[i % len(kept)] for i in range(first, first + count)]

    return draw


class GreedyBenchmark(Benchmark):
    """A parser that takes what it scores highest."""

    in_rounds: ClassVar[bool] = True

    @abc.abstractmethod
    def program(self) -> Parse:
        """Return its program for a fold."""

    def minibatches(self, batch: int, seed: int) -> Iterator[Batch]:
        """Draw minibatches of sentences whose parses are beyond doubt."""
        model = self.model()
        fold = multifold.Fold(backend="numpy")
        for minibatch in super().minibatches(batch, seed):
            margins = fold.run(model, minibatch.examples, margin(self.program()))
            sure = [x for x, found in zip(minibatch.examples, margins, strict=True) if found > DOUBT]
            if sure:
                # The first one stands in for those that are left out.
                yield minibatch._replace(examples=sure + [sure[0]] * (len(margins) - len(sure)))

    def apply(self, fold: Any, model: Any, examples: Sequence[Any]) -> Array:
        """Run the parser over sentences."""
        return fold.run(model, examples, judged(self.program()))

    def record(self, fold: Any, example: Any) -> NoReturn:
        """Refuse: what is recorded depends on what is computed."""
        raise RecordError(
            f"Expected the contenders loop, unfold or fold for the workload '{self.family}'. Received "
            "another, which needs all calls before any is run.",
            "give --contenders loop,fold.",
        )


@final
class ParserBenchmark(GreedyBenchmark):
    """SPINN with predicted transitions (Bowman et al., ACL 2016): greedy, and a class at the end."""

    family = "parser"

    def program(self) -> Parse:
        """Return the program of `ShiftReduceParser`."""
        return parse

    def model(self) -> Model:
        """Return the parser with the op that its loss reads."""
        return GreedyParser(**self.sizes)

    def loop(self, one: OneByOne, words: list[int]) -> Array:
        """Run the parser over one sentence, call by call."""
        model = one.model
        empty = model.empty()
        leaves = [model.shift(one.word(word)) for word in words]
        h, c = model.look_over(one.ragged([leaf[0] for leaf in leaves]))
        buffer = [empty, *reversed(leaves)]
        stack = [empty, empty]
        decisions = []
        for _ in range(2 * len(words) - 1):
            h, c, scores = model.step(stack[-2][0], stack[-1][0], buffer[-1][0], h, c)
            can_shift = len(buffer) > 1
            can_reduce = len(stack) > 3
            if can_shift and can_reduce:
                shift, reduce = one.backend.to_numpy(scores)[0]
                transition = REDUCE if reduce > shift else SHIFT
                decisions.append(scores)
            else:
                transition = REDUCE if can_reduce else SHIFT
            if transition == SHIFT:
                stack.append(buffer.pop())
            else:
                right = stack.pop()
                left = stack.pop()
                stack.append(model.reduce(*left, *right, h))
        return model.judge(stack[-1][0], one.ragged(decisions))


@final
class LightParserBenchmark(GreedyBenchmark):
    """A parser whose steps are a few small operations each: what is left of a round is multifold's."""

    family = "light-parser"

    def program(self) -> Parse:
        """Return the program of `LightParser`."""
        return parse_lightly

    def model(self) -> Model:
        """Return the parser."""
        return LightParser(**self.sizes)

    def loop(self, one: OneByOne, words: list[int]) -> Array:
        """Run the parser over one sentence, call by call."""
        model = one.model
        end = model.end()
        buffer = [end, *[model.word(one.word(word)) for word in reversed(words)]]
        stack = [end, end]
        decisions = []
        for _ in range(2 * len(words) - 1):
            reduces = len(buffer) == 1
            if len(buffer) > 1 and len(stack) > 3:
                scores = model.score(stack[-2], stack[-1], buffer[-1])
                decisions.append(scores)
                shift, reduce = one.backend.to_numpy(scores)[0]
                reduces = reduce > shift
            if reduces:
                right = stack.pop()
                left = stack.pop()
                stack.append(model.join(left, right))
            else:
                stack.append(buffer.pop())
        return model.judge(stack[-1], one.ragged(decisions))


WORKLOADS = {
    "light-parser": Workload(read_sentences, LightParserBenchmark),
    "parser": Workload(read_sentences, ParserBenchmark),
}
"""By name."""
