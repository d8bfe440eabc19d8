"""Greedy parsers, whose next step is what their own scores say: two models, and the programs that run them.

The light parser has a few small operations a step, so that the price of a round shows. Where two scores are
nearly equal rounding decides, which differs with the number of rows. So sentences are sorted out first, by
how near the scores of their decisions come (`margin`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, final

import numpy as np

import multifold
from multifold import ops
from multifold.backend import Array, Ragged
from multifold.models.layers import Initial, linear
from multifold.models.model import Classifier
from multifold_bench.models import ShiftReduceParser

DOUBT = 1e-4
"""Sentences with a `margin` below this are left out."""

Parse = Callable[[Any, Sequence[int]], Awaitable[tuple[Any, list[Any]]]]
"""``await parse(fold, words)`` parses a sentence step by step.

It returns the node of the sentence, and a node of two scores for each step where there was a choice.
"""


@final
class GreedyParser(Classifier):
    """SPINN with predicted transitions, and one op more: what its loss reads of a sentence."""

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

    judge = GreedyParser.judge


async def parse(fold: Any, words: Sequence[int]) -> tuple[Any, list[Any]]:
    """Run `GreedyParser`, or `multifold_bench.models.ShiftReduceParser`."""
    parsed = await ShiftReduceParser.parse(fold, words)
    return parsed.h, parsed.scores


async def parse_lightly(fold: Any, words: Sequence[int]) -> tuple[Any, list[Any]]:
    """Run `LightParser`."""
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


def classified(parse: Parse) -> Callable[[Any, Sequence[int]], Any]:
    """Return the function that parses a sentence and records the scores of its class."""

    async def classify(fold: Any, words: Sequence[int]) -> Any:
        h, _ = await parse(fold, words)
        return fold.add("logits", h)

    return classify


def judged(parse: Parse) -> Callable[[Any, Sequence[int]], Any]:
    """Return the function that parses a sentence and records what its loss reads."""

    async def judge(fold: Any, words: Sequence[int]) -> Any:
        h, scores = await parse(fold, words)
        return fold.add("judge", h, multifold.ragged(scores, row_shape=(2,)))

    return judge


def margin(parse: Parse) -> Callable[[Any, Sequence[int]], Any]:
    """Return the function that parses a sentence and returns how near the two scores of a decision come."""

    async def nearest(fold: Any, words: Sequence[int]) -> Any:
        _, scores = await parse(fold, words)
        pairs = await fold.values(scores)
        return multifold.each(min((abs(shift - reduce) for shift, reduce in pairs), default=np.inf))

    return nearest
