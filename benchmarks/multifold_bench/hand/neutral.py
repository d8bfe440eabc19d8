"""Batching by hand for what has no program of its own framework: over the primitives of an adapter.

``gather``, ``concat`` and ``split`` of a `Backend` are the framework's own, so a program over them is what
a person would write for it. Frameworks that compile for each shape are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from multifold.backend import Array, Backend
from multifold.models.layers import parts, postorder


class Relating:
    """A model of pairs that looks like one of trees: its output for all roots is that for all pairs."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def logits(self, h: Array) -> Array:
        """Return the scores of pairs: of all first trees, then all second ones, the roots."""
        half = h.shape[0] // 2
        return self.model.similarity(h[:half], h[half:])


def sick(child_sum: Callable[..., Array]) -> Callable[..., Array]:
    """Return the program for pairs, from that for trees of any arity."""

    def forward(model: Any, pairs: Sequence[Any], width: int) -> Array:
        trees = [pair.left for pair in pairs] + [pair.right for pair in pairs]
        return child_sum(Relating(model), trees, width)

    return forward


def spinn(backend: Backend) -> Callable[..., Array]:
    """Return the program that steps through all sentences at once, and bundles the rows of each step.

    The way of PyTorch's SNLI example: states are kept as single rows, concatenated for a launch and cut
    behind it. All words are shifted in one launch.
    """

    def forward(model: Any, pairs: Sequence[Any], width: int) -> Array:
        trees = [pair.left for pair in pairs] + [pair.right for pair in pairs]
        sentences = sorted(enumerate(postorder(tree, parts) for tree in trees), key=lambda x: -len(x[1]))
        words = [node.word for _, nodes in sentences for node in nodes if node.word is not None]
        ids = backend.constant(np.array(words, backend.number_dtype(int)), backend.device(model))
        shifted = iter(rows(model.shift(ids)))
        empty = model.empty()
        buffers = []
        for _, nodes in sentences:
            read = [next(shifted) for node in nodes if node.word is not None]
            buffers.append([empty, *reversed(read)])
        stacks: list[list[Any]] = [[empty, empty] for _ in sentences]
        h, c = (backend.concat([x] * len(sentences)) for x in model.watch())
        for step in range(len(sentences[0][1])):
            active = sum(1 for _, nodes in sentences if len(nodes) > step)
            if active < h.shape[0]:
                h = h[:active]
                c = c[:active]
            running = range(active)
            second, first, following = (
                backend.concat([states[i][place][0] for i in running])
                for states, place in ((stacks, -2), (stacks, -1), (buffers, -1))
            )
            h, c = model.track(second, first, following, h, c)
            reducing = [i for i in running if sentences[i][1][step].word is None]
            for i in running:
                if sentences[i][1][step].word is not None:
                    stacks[i].append(buffers[i].pop())
            if reducing:
                right, left = ([stacks[i].pop() for i in reducing] for _ in range(2))
                operands = [
                    backend.concat([state[part] for state in states])
                    for states in (left, right)
                    for part in (0, 1)
                ]
                tracked = backend.concat([h[i : i + 1] for i in reducing])
                for i, state in zip(reducing, rows(model.reduce(*operands, tracked)), strict=True):
                    stacks[i].append(state)
        last = {place: stack[-1][0] for (place, _), stack in zip(sentences, stacks, strict=True)}
        states = [last[place] for place in range(len(last))]
        half = len(pairs)
        return model.logits(backend.concat(states[:half]), backend.concat(states[half:]))

    def rows(state: tuple[Array, Array]) -> Any:
        """Return a state ``(h, c)`` of many rows as one of each."""
        ones = [1] * state[0].shape[0]
        return zip(*(backend.split(x, ones) for x in state), strict=True) if len(ones) > 1 else [state]

    return forward
