"""The workload ``parser``: a greedy shift-reduce parser, whose next call depends on computed scores.

The program for a fold is a coroutine, run by `multifold.Fold.run`; the plain loop is the same program
without multifold. Examples are sentences as lists of word ids. A minibatch holds sentences of nearly
one length, as those who train parsers make them: the sentences are sorted, and cut anywhere.
"""

from __future__ import annotations

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
from multifold.models.layers import linear
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


@final
class ParserBenchmark(Benchmark):
    """SPINN with predicted transitions (Bowman et al., ACL 2016): greedy, and a class at the end."""

    family = "parser"
    in_rounds: ClassVar[bool] = True

    def model(self) -> Model:
        """Return the parser with the op that its loss reads."""
        return Parser(**self.sizes)

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
            parsed = await ShiftReduceParser.parse(fold, words)
            for shift, reduce in await fold.values(parsed.scores):
                found[number] = min(found[number], abs(shift - reduce))
            return parsed.h

        multifold.Fold(backend="numpy").run(model, list(enumerate(sentences)), parse)
        return found

    def apply(self, fold: Any, model: Any, examples: Sequence[Any]) -> Array:
        """Run the parser over sentences."""
        return fold.run(model, examples, self.parse)

    async def parse(self, fold: Any, words: list[int]) -> Any:
        """Record a sentence; return the node of what is judged of it."""
        parsed = await ShiftReduceParser.parse(fold, words)
        return fold.add("judge", parsed.h, ragged(parsed.scores, row_shape=(2,)))

    def record(self, fold: Any, example: Any) -> NoReturn:
        """Refuse: what is recorded depends on what is computed."""
        raise RecordError(
            "Expected the contenders loop, unfold or fold for the workload 'parser'. Received another, "
            "which needs all calls before any is run.",
            "give --contenders loop,fold.",
        )

    def loop(self, one: OneByOne, words: list[int]) -> Array:
        """Run the parser over one sentence, call by call."""
        model = one.model
        empty = model.empty()
        leaves = [model.shift(one.word(word)) for word in words]
        h, c = model.look_over(one.ragged([leaf[0] for leaf in leaves]))
        buffer, stack = [empty, *reversed(leaves)], [empty, empty]
        decisions = []
        for _ in range(2 * len(words) - 1):
            h, c, scores = model.step(stack[-2][0], stack[-1][0], buffer[-1][0], h, c)
            can_shift, can_reduce = len(buffer) > 1, len(stack) > 3
            if can_shift and can_reduce:
                shift, reduce = one.backend.to_numpy(scores)[0]
                transition = REDUCE if reduce > shift else SHIFT
                decisions.append(scores)
            else:
                transition = REDUCE if can_reduce else SHIFT
            if transition == SHIFT:
                stack.append(buffer.pop())
            else:
                right, left = stack.pop(), stack.pop()
                stack.append(model.reduce(*left, *right, h))
        return model.judge(stack[-1][0], one.ragged(decisions))


WORKLOADS = {"parser": Workload(read_sentences, ParserBenchmark)}
"""By name."""
