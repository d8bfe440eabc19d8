"""Gate (i): a training step that awaits 1,000 values in a row; the last cost what the first do."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, final

import numpy as np

import multifold
from multifold import ops
from multifold.backend import Array
from multifold.models import Model
from multifold.models.layers import Initial, linear
from multifold_bench.gates.figures import (
    Figure,
    Numbers,
    Results,
    Step,
    Subject,
    milliseconds,
    share,
)

WIDTH = 32
EXAMPLES = 8


@final
class Chain(Model):
    """A recurrent layer, and a score of its state."""

    def __init__(self) -> None:
        initial = Initial(0, "float32")
        super().__init__(initial.linear("cell", WIDTH, WIDTH) | initial.linear("score", WIDTH, 1))

    def advance(self, h: Array) -> Array:
        """Return the next state, ``(n, width)``."""
        return ops.tanh(linear(self.cell, h))

    def judge(self, h: Array) -> Array:
        """Return the scores of states, ``(n, 1)``."""
        return linear(self.score, h)


def chain_step(quick: bool) -> Step:
    """Return what takes a training step of many rounds, and notes when each of them ends."""
    rounds = 200 if quick else 1000
    part = rounds // 10
    subject = Subject("torch", Chain().on("torch"), train=True)
    ends: list[float] = []

    async def advance(fold: Any, numbered: tuple[int, Any]) -> Any:
        number, h = numbered
        for _ in range(rounds):
            h = fold.add("advance", h)
            await fold.value(fold.add("judge", h))
            if not number:
                ends.append(time.process_time())
        return h

    def step(number: int) -> tuple[Numbers, Results]:
        rng = np.random.default_rng(number)
        begin = rng.standard_normal((EXAMPLES, 1, WIDTH)).astype("float32")
        weights = rng.standard_normal((EXAMPLES, WIDTH)) / EXAMPLES
        ends.clear()
        seconds, results = subject.step(
            lambda model: multifold.Fold(backend="torch").run(model, list(enumerate(begin)), advance),
            weights,
        )
        numbers = {"step": seconds, "last": ends[-1] - ends[-1 - part], "first": ends[part] - ends[0]}
        return numbers, {"step": results}

    return step


FIGURES = [
    Figure(
        "i",
        "1,000 awaited rounds in a training step",
        "torch",
        partial(chain_step),
        (share("last", "first", most=1.2), milliseconds("step")),
        repetitions=7,
    )
]
