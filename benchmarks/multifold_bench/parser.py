"""The workloads ``parser`` and ``light-parser``: greedy parsers, which look at scores at each step.

The program for a fold is a coroutine, run by `multifold.Fold.run`; the plain loop is the same program
without multifold. The light parser has a few small operations a step, so that the price of a round shows:
some 45 rounds of two or three launches for 64 sentences. Examples are sentences as lists of word ids. A
minibatch holds sentences of nearly one length, as those who train parsers make them: the sentences are
sorted, and cut anywhere.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, NoReturn, final

import numpy as np

import multifold
from multifold import ops
from multifold._compare.benchmark import Batch, Benchmark, Examples, OneByOne, Rng, Tell, Workload
from multifold._compare.files import PathLike
from multifold.backend import Array, Ragged
from multifold.errors import RecordError
from multifold.models import Model, ShiftReduceParser
from multifold.models.layers import Initial, linear
from multifold.models.model import Classifier
from multifold.models.shift_reduce import REDUCE, SHIFT
from multifold.operands import ragged
from multifold_bench.datasets import DatasetError, WordIds, postorder, sst
from multifold_bench.graphs.base import CLASSES, WORDS
from multifold_bench.graphs.trees import Tree, sentence_tree

DOUBT = 1e-4
"""Sentences with two scores nearer than this are left out: rounding would decide how they are parsed."""


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


@final
class Parser(Model):
    """The parser, and one op more: what its loss reads of a sentence."""

    def __init__(self, **sizes: Any) -> None:
        parser = ShiftReduceParser(**sizes)
        super().__init__(parser.parameters, **parser.settings)

    shift = ShiftReduceParser.shift
    empty = ShiftReduceParser.empty
    reduce = ShiftReduceParser.reduce
    look_over = ShiftReduceParser.look_over
    step = ShiftReduceParser.step

    def judge(self, h: Array, scores: Ragged) -> Array:
        """Return the log-probabilities of the classes, plus that of the decisions: ``(n, classes)``."""
        classes = ops.log_softmax(linear(self.output, h), axis=1)
        decisions = ops.max(ops.log_softmax(scores.values, axis=1), axis=1)
        return classes + ops.segment_sum(ops.reshape(decisions, (1,)), scores)


class GreedyBenchmark(Benchmark):
    """A parser that takes what it scores highest."""

    in_rounds: ClassVar[bool] = True

    @staticmethod
    @abc.abstractmethod
    async def scored(fold: Any, words: Sequence[int]) -> tuple[Any, list[Any]]:
        """Parse a sentence; return the node of all of it, and the scores where there was a choice."""

    def minibatches(self, batch: int, seed: int) -> Iterator[Batch]:
        """Draw minibatches of sentences whose parses are beyond doubt."""
        model = self.model()
        for minibatch in super().minibatches(batch, seed):
            sure = {i for i, margin in enumerate(self.margins(model, minibatch.examples)) if margin > DOUBT}
            if not sure:
                continue
            spare = minibatch.examples[min(sure)]
            examples = [x if i in sure else spare for i, x in enumerate(minibatch.examples)]
            yield minibatch._replace(examples=examples)

    def margins(self, model: Model, sentences: Sequence[list[int]]) -> list[float]:
        """Return how near the two scores of a decision come in each sentence."""
        found = [np.inf] * len(sentences)

        async def parse(fold: Any, numbered: tuple[int, list[int]]) -> Any:
            number, words = numbered
            h, scores = await self.scored(fold, words)
            for shift, reduce in await fold.values(scores):
                found[number] = min(found[number], abs(shift - reduce))
            return h

        multifold.Fold(backend="numpy").run(model, list(enumerate(sentences)), parse)
        return found

    def apply(self, fold: Any, model: Any, examples: Sequence[Any]) -> Array:
        """Run the parser over sentences."""
        return fold.run(model, examples, self.judged)

    async def judged(self, fold: Any, words: list[int]) -> Any:
        """Record a sentence; return the node of what is judged of it."""
        h, scores = await self.scored(fold, words)
        return fold.add("judge", h, ragged(scores, row_shape=(2,)))

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

    def model(self) -> Model:
        """Return the parser with the op that its loss reads."""
        return Parser(**self.sizes)

    @staticmethod
    async def scored(fold: Any, words: Sequence[int]) -> tuple[Any, list[Any]]:
        """Parse a sentence, step by step."""
        parsed = await ShiftReduceParser.parse(fold, words)
        return parsed.h, parsed.scores

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
class LightParser(Classifier):
    """Words as vectors, one layer that joins two phrases, and two layers that score shift and reduce.

    Parameters
    ----------
    vocabulary, width, classes : int
        The numbers of word ids, of entries of a phrase, and of classes of a sentence.
    """

    def __init__(self, vocabulary: int, width: int, classes: int) -> None:
        initial = Initial(0, "float32")
        parameters = {
            "embedding": initial.embedding(vocabulary, width),
            "nothing": initial.state(width),
            **initial.linear("joined", 2 * width, width),
            **initial.linear("seen", 3 * width, width),
            **initial.linear("transition", width, 2),
            **initial.linear("output", width, classes),
        }
        super().__init__(parameters, width=width)

    def word(self, word: Array) -> Array:
        """Return the vectors ``(n, width)`` of words ``(n,)``."""
        return ops.take(self.embedding, word)

    def end(self) -> Array:
        """Return what stands below the stack and after the last word, ``(1, width)``."""
        return self.nothing

    def join(self, left: Array, right: Array) -> Array:
        """Return a phrase ``(n, width)`` made of two."""
        return ops.tanh(linear(self.joined, left, right))

    def score(self, second: Array, first: Array, following: Array) -> Array:
        """Return the scores ``(n, 2)`` of shift and reduce, from the top of the stack and the next word."""
        return linear(self.transition, ops.tanh(linear(self.seen, second, first, following)))

    judge = Parser.judge


@final
class LightParserBenchmark(GreedyBenchmark):
    """A parser whose steps are a few small operations each: what is left of a round is multifold's."""

    family = "light-parser"

    def model(self) -> Model:
        """Return the parser."""
        return LightParser(**self.sizes)

    @staticmethod
    async def scored(fold: Any, words: Sequence[int]) -> tuple[Any, list[Any]]:
        """Parse a sentence, step by step."""
        end = fold.add("end")
        buffer = [end, *[fold.add("word", word) for word in reversed(words)]]
        stack = [end, end]
        decisions = []
        for _ in range(2 * len(words) - 1):
            reduces = len(buffer) == 1
            if len(buffer) > 1 and len(stack) > 3:
                scores = fold.add("score", stack[-2], stack[-1], buffer[-1])
                decisions.append(scores)
                shift, reduce = await fold.value(scores)
                reduces = reduce > shift
            if reduces:
                right = stack.pop()
                left = stack.pop()
                stack.append(fold.add("join", left, right))
            else:
                stack.append(buffer.pop())
        return stack[-1], decisions

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
