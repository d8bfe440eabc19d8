"""Random programs whose control flow differs from example to example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multifold.operands import ragged
from multifold_bench.graphs.base import CLASSES, WORDS, Node, Recorder, Rng
from multifold_bench.graphs.trees import Tree


def shift_reduce(fold: Recorder, tree: Tree) -> list[Node]:
    """Record SPINN (Bowman et al., ACL 2016) along a known parse: a tracker sees every step."""
    tracker = fold.add("begin").split(2)
    stack = [fold.add("empty").split(2)]
    for node in tree:
        if isinstance(node, str):
            tracker = fold.add("track", stack[-2][0], stack[-1][0], *tracker).split(2)
            right = stack.pop()
            left = stack.pop()
            stack.append(fold.add("reduce", *left, *right, tracker[0]).split(2))
        else:
            word = fold.add("embed", node).split(2)
            tracker = fold.add("track", stack[-1][0], word[0], *tracker).split(2)
            stack.append(word)
    return [fold.add("logits", stack[-1][0])]


def sample_growth(rng: Rng) -> tuple[tuple[int, bool], ...]:
    """Draw a tree, parents first: for each node a label and whether it has children."""
    nodes = []
    levels = [0]
    while levels:
        level = levels.pop()
        grows = level < 2 or (level < 11 and rng.random() < 0.4)
        nodes.append((int(rng.integers(CLASSES)), grows))
        if grows:
            levels += [level + 1, level + 1]
    return tuple(nodes)


def grow(fold: Recorder, nodes: Sequence[tuple[int, bool]]) -> list[Node]:
    """Record a decoder of trees: told a label after guessing it, it goes on to the children."""
    pending = [fold.add("begin")]
    losses = []
    for label, grows in nodes:
        state = pending.pop()
        loss, state = fold.add("tell", fold.add("guess", state), state, label).split(2)
        losses.append(loss)
        if grows:
            pending += [fold.add("right", state), fold.add("left", state)]
    return losses


def sample_exit(rng: Rng) -> tuple[int, int]:
    """Draw an input and after how many of 12 layers its answer is certain enough."""
    return int(rng.integers(WORDS)), int(rng.integers(1, 13))


def early_exit(fold: Recorder, example: tuple[int, int]) -> list[Node]:
    """Record a deep network that asks after each layer whether to stop there.

    The answer weighs in how certain the network was on the way, after however many layers.
    """
    word, layers = example
    state = fold.add("embed", word)
    doubts = []
    for _ in range(layers):
        state = fold.add("layer", state)
        doubts.append(fold.add("confidence", state))
    return [fold.add("logits", state, ragged(doubts))]


def sample_grid(rng: Rng) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Draw the two sequences whose elements are compared, all with all."""
    first, second = (rng.integers(WORDS, size=rng.integers(4, 16)).tolist() for _ in range(2))
    return tuple(first), tuple(second)


def grid(fold: Recorder, pair: tuple[Sequence[int], Sequence[int]]) -> list[Node]:
    """Record a two-dimensional RNN: each cell reads its neighbours above and to the left."""
    rows, columns = ([fold.add("embed", word) for word in words] for words in pair)
    above = [fold.add("embed", 0)] * (len(columns) + 1)  # beyond the edges stands word 0
    for row in rows:
        states = above[:1]
        for place, column in enumerate(columns):
            states.append(fold.add("cell", row, column, above[place + 1], states[place]))
        above = states
    return [fold.add("logits", above[-1])]


def sample_cells(rng: Rng) -> tuple[int, ...]:
    """Draw which of two cells reads each word of a sentence."""
    return tuple(rng.integers(2, size=rng.integers(1, 32)).tolist())


def two_cells(fold: Recorder, cells: Sequence[int]) -> list[Node]:
    """Run two recurrent cells in the order that an example says."""
    state = fold.add("begin")
    for cell in cells:
        state = fold.add("ab"[cell], state)
    return [state]


def sample_modules(rng: Rng, depth: int = 0) -> tuple[Any, ...]:
    """Draw a question: up to six modules of seven on top of each other, and two such questions joined."""
    number = rng.integers(1, 7)
    modules = tuple(rng.integers(7, size=number).tolist())
    if depth == 2 or rng.random() >= 0.4:
        return (modules,)
    return modules, int(rng.integers(2)), sample_modules(rng, depth + 1)


def ask(fold: Recorder, question: Sequence[Any]) -> list[Node]:
    """Put modules together as a question says (Andreas et al. 2016, "Neural module networks")."""
    modules, *joined = question
    found = fold.add("scene", 1)
    for module in modules:
        found = fold.add(f"module_{module}", found)
    if joined:
        found = fold.add(("and", "or")[joined[0]], found, *ask(fold, joined[1]))
    return [found]


def sample_dag(rng: Rng) -> tuple[tuple[int, ...], ...]:
    """Draw calls in layers of 16: (0,) for an input, else a type and the places that it reads.

    A type from 1 to 5 has one, two or three operands, all from the two layers before.
    """
    calls: list[tuple[int, ...]] = [(0,)] * 16
    for place in range(16, 355):
        number = int(rng.integers(1, 6))
        layer = place - place % 16
        places = rng.integers(max(0, layer - 32), layer, size=1 + number % 3)
        calls.append((number, *places.tolist()))
    return tuple(calls)


def typed_dag(fold: Recorder, calls: Sequence[Sequence[int]]) -> list[Node]:
    """Record calls that read earlier results, whatever made them; every result is an output."""
    nodes: list[Node] = []
    for number, *places in calls:
        operands = [nodes[place] for place in places] or [len(nodes)]
        nodes.append(fold.add(f"op_{number}", *operands))
    return nodes
