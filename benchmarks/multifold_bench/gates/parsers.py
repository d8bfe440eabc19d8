"""Gates (c) and (i): programs that await values.

Greedy parsers await their scores before each step, on sentences of nearly one length. A chain of 1,000
awaits in one training step shows whether a round costs more the more rounds there were before it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import multifold
from multifold.models import Model
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

WIDTH = 100


def light_parser() -> LightParser:
    """Return the parser whose steps are a few small operations each."""
    return LightParser(WORDS, WIDTH, CLASSES)


def greedy_parser() -> GreedyParser:
    """Return SPINN with predicted transitions."""
    return GreedyParser(vocabulary=WORDS, width=WIDTH, classes=CLASSES)


def sure_sentences(model: Model, parse: Parse, count: int) -> list[list[int]]:
    """Draw sentences, and return those whose decisions are beyond doubt, sorted by length."""
    rng = np.random.default_rng(0)
    trees = [sentence_tree(rng) for _ in range(count)]
    sentences = [[node for node in tree if isinstance(node, int)] for tree in trees]
    sentences = [sentence for sentence in sentences if len(sentence) > 3]
    # One row at a time: then both checkouts round alike, and leave out the same sentences.
    margins = multifold.Unfold(model, backend="numpy").run(None, sentences, margin(parse))
    kept = [sentence for sentence, found in zip(sentences, margins, strict=True) if found > DOUBT]
    return sorted(kept, key=len)


def parser_step(make: Callable[[], Model], parse: Parse, train: bool, quick: bool) -> Step:
    """Return what parses a minibatch of neighbours in the order of their lengths."""
    model = make()
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
    subject = ModelStep("torch", light_parser().on("torch"), train=True)
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


def figure(name: str, make: Callable[[], Model], parse: Parse, train: bool) -> Figure:
    """Return a figure of gate (c)."""
    lines = (
        milliseconds("step", beside=1.10),
        Line("launches", lambda found: found["launches"], beside=1.03),
    )
    name = f"{name}, {'training' if train else 'inference'}"
    return Figure("c", name, "torch", partial(parser_step, make, parse, train), lines, repetitions=9)


FIGURES = [
    *[
        figure(name, make, parse, train)
        for name, make, parse in (
            ("parser", greedy_parser, parse),
            ("light parser", light_parser, parse_lightly),
        )
        for train in (True, False)
    ],
    CHAIN,
]
