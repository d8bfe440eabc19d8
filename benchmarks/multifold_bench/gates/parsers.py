"""Gates (c) and (i): programs that await values.

Greedy parsers await their scores before each step, on sentences of nearly one length. A chain of 1,000
awaits in one training step shows whether a round costs more the more rounds there were before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, final

import numpy as np

import multifold
from multifold import ops
from multifold.backend import Array, Ragged
from multifold.models import Model, ShiftReduceParser
from multifold.models.layers import Initial, linear
from multifold_bench.gates.figures import (
    Figure,
    Line,
    ModelStep,
    Numbers,
    Results,
    Step,
    milliseconds,
    share,
)
from multifold_bench.graphs.base import CLASSES, WORDS
from multifold_bench.graphs.trees import sentence_tree

WIDTH = 100

DOUBT = 1e-4
"""Sentences with two scores nearer than this are left out: rounding would decide how they are parsed."""


class JudgingModel(Model):
    """A parser with two ops more: the class of a sentence, and what its loss reads."""

    def logits(self, h: Array) -> Array:
        """Return the scores of the classes, ``(n, classes)``."""
        return linear(self.output, h)

    def judge(self, h: Array, scores: Ragged) -> Array:
        """Return the log-probabilities of the classes, plus that of the decisions: ``(n, classes)``."""
        classes = ops.log_softmax(self.logits(h), axis=1)
        decisions = ops.max(ops.log_softmax(scores.values, axis=1), axis=1)
        return classes + ops.segment_sum(ops.reshape(decisions, (1,)), scores)


@final
class GreedyParser(JudgingModel):
    """SPINN with predicted transitions, as `multifold.models` has it."""

    def __init__(self) -> None:
        parser = ShiftReduceParser(WORDS, WIDTH, CLASSES)
        super().__init__(parser.parameters, **parser.settings)

    shift = ShiftReduceParser.shift
    empty = ShiftReduceParser.empty
    reduce = ShiftReduceParser.reduce
    look_over = ShiftReduceParser.look_over
    step = ShiftReduceParser.step


@final
class LightGreedyParser(JudgingModel):
    """A parser of a few small operations a step, so that the price of a round shows."""

    def __init__(self) -> None:
        initial = Initial(0, "float32")
        parameters = {
            "embedding": initial.embedding(WORDS, WIDTH),
            "nothing": initial.state(WIDTH),
            **initial.linear("joined", 2 * WIDTH, WIDTH),
            **initial.linear("seen", 3 * WIDTH, WIDTH),
            **initial.linear("transition", WIDTH, 2),
            **initial.linear("output", WIDTH, CLASSES),
        }
        super().__init__(parameters, width=WIDTH)

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
        """Return the scores ``(n, 2)`` of shift and reduce."""
        return linear(self.transition, ops.tanh(linear(self.seen, second, first, following)))


Parse = Callable[[Any, Sequence[int]], Any]
"""A coroutine function that returns the node of a sentence, and the scores of its decisions."""


async def parse(fold: Any, words: Sequence[int]) -> tuple[Any, list[Any]]:
    """Run the parser of `multifold.models`."""
    parsed = await ShiftReduceParser.parse(fold, words)
    return parsed.h, parsed.scores


async def parse_lightly(fold: Any, words: Sequence[int]) -> tuple[Any, list[Any]]:
    """Run the light parser."""
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


def judged(parse: Parse) -> Any:
    """Return the function that records a sentence up to what its loss reads."""

    async def judge(fold: Any, words: Sequence[int]) -> Any:
        h, scores = await parse(fold, words)
        return fold.add("judge", h, multifold.ragged(scores, row_shape=(2,)))

    return judge


def sure_sentences(model: Model, parse: Parse, count: int) -> list[list[int]]:
    """Draw sentences, and return those whose decisions are beyond doubt, sorted by length."""

    async def doubt(fold: Any, words: Sequence[int]) -> Any:
        _, scores = await parse(fold, words)
        pairs = await fold.values(scores)
        return multifold.each(min((abs(shift - reduce) for shift, reduce in pairs), default=1.0))

    rng = np.random.default_rng(0)
    trees = [sentence_tree(rng) for _ in range(count)]
    sentences = [[node for node in tree if isinstance(node, int)] for tree in trees]
    sentences = [sentence for sentence in sentences if len(sentence) > 3]
    # One row at a time: then both checkouts round alike, and leave out the same sentences.
    doubts = multifold.Unfold(model, backend="numpy").run(None, sentences, doubt)
    kept = [sentence for sentence, found in zip(sentences, doubts, strict=True) if found > DOUBT]
    return sorted(kept, key=len)


def parser_step(kind: type[JudgingModel], parse: Parse, train: bool, quick: bool) -> Step:
    """Return what parses a minibatch of neighbours in the order of their lengths."""
    model = kind()  # type: ignore[call-arg]
    subject = ModelStep("torch", model.on("torch"), train)
    size = 16 if quick else 128
    sentences = sure_sentences(model, parse, 2 * size)
    fn = judged(parse)

    def step(number: int) -> tuple[Numbers, Results]:
        rng = np.random.default_rng(number)
        first = int(rng.integers(len(sentences) - size))
        examples = sentences[first : first + size]
        weights = rng.standard_normal((size, CLASSES)) / size
        fold = multifold.Fold(backend="torch")
        seconds, results = subject.step(lambda model: fold.run(model, examples, fn), weights)
        return {"step": seconds, "launches": len(fold.explain())}, {"step": results}

    return step


def chain_step(quick: bool) -> Step:
    """Return what takes a training step of many rounds, and notes when each of them ends."""
    rounds = 200 if quick else 1000
    part = rounds // 10
    subject = ModelStep("torch", LightGreedyParser().on("torch"), train=True)
    ends: list[float] = []

    async def advance(fold: Any, word: int) -> Any:
        h = vector = fold.add("word", word)
        for _ in range(rounds):
            h = fold.add("join", h, vector)
            await fold.value(fold.add("score", h, h, vector))
            if not word:
                ends.append(time.process_time())
        return h

    def step(number: int) -> tuple[Numbers, Results]:
        weights = np.random.default_rng(number).standard_normal((8, WIDTH))
        fold = multifold.Fold(backend="torch")
        ends.clear()
        seconds, results = subject.step(lambda model: fold.run(model, range(8), advance), weights)
        numbers = {"step": seconds, "last": ends[-1] - ends[-1 - part], "first": ends[part] - ends[0]}
        return numbers, {"step": results}

    return step


CHAIN = Figure(
    "i",
    "1,000 awaited rounds in a training step",
    "torch",
    chain_step,
    (share("last", "first", most=1.2), milliseconds("step")),
    repetitions=7,
)
"""Gate (i), for the last and the first tenth of the rounds."""


def figure(name: str, kind: type[JudgingModel], parse: Parse, train: bool) -> Figure:
    """Return a figure of gate (c)."""
    lines = (
        milliseconds("step", beside=1.10),
        Line("launches", lambda found: found["launches"], beside=1.03),
    )
    name = f"{name}, {'training' if train else 'inference'}"
    return Figure("c", name, "torch", partial(parser_step, kind, parse, train), lines, repetitions=9)


FIGURES = [
    *[
        figure(name, kind, parse, train)
        for name, kind, parse in (
            ("parser", GreedyParser, parse),
            ("light parser", LightGreedyParser, parse_lightly),
        )
        for train in (True, False)
    ],
    CHAIN,
]
