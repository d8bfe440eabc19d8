"""Pieces: which calls of a program a person would write as one op."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

import multifold
from multifold._measure.foretold import WatchedBatched
from multifold._measure.outline import Outline
from multifold._measure.pieces import pieces_of
from multifold._measure.watched import WatchedLoop

NUMPY = multifold.load_backend("numpy")
ONE = np.ones(2)


@multifold.cell
def half(x):
    return x / 2


@multifold.cell
def plus(x, y):
    return x + y


def inline(tree):
    if isinstance(tree, int):
        return half(plus(ONE * tree, ONE))
    left, right = map(inline, tree)
    return half(plus(half(left), half(right)))


def chain(count):
    x = half(ONE * count)
    for _ in range(count):
        x = half(plus(x, x))
    return x


def fixed(count):
    x = half(ONE * count)
    for _ in range(3):
        x = half(plus(x, x))
    return x


def long(count):
    x = half(ONE * count)
    for _ in range(20):
        x = half(plus(x, x))
    return x


def side_by_side(count):
    parts = [half(plus(ONE * i, ONE)) for i in range(count)]
    return half(plus(parts[0], parts[-1]))


def from_the_root(tree):
    return top_down(tree, ONE * len(str(tree)))


def top_down(tree, state):
    state = half(plus(state, state))
    if isinstance(tree, tuple):
        return plus(*[top_down(part, state) for part in tree])
    return state


def reading(count):
    x = half(ONE * count)
    while x[0] > 1:
        x = half(plus(x, x) / 2)
    return x


def outline_of(fn, examples):
    with WatchedLoop(NUMPY, fn) as watch:
        for example in examples:
            fn(example)
    options = {"device": None, "own": False, "seed": None, "on_error": "raise", "keep": False}
    own = {"cells": (), "join": "list", "backend": NUMPY, "may_loop": False}
    run = WatchedBatched(watch.is_of_program, fn, **own, **options)
    run(examples)
    return Outline(NUMPY, *pieces_of(run.fold, watch.looping, lambda op: 2), run.fold, None)


def pieces_in(fn, examples):
    """The number of pieces of each kind, by the first line of each, and how many calls they have."""
    outline = outline_of(fn, examples)
    return [*outline.counts.values()], sum(len(piece.members) for piece in outline.pieces)


TREES = [((1, 2), 3), (1, 2), ((1, 2), (3, 4))]


@pytest.mark.parametrize(
    ("fn", "examples", "pieces", "calls"),
    [
        (inline, TREES, [9, 6], 9 * 2 + 6 * 4),
        (chain, [2, 3, 5], [3, 7], 3 + 2 * 10),
        (fixed, [2, 3, 5], [3], 3 * 7),
        (long, [2, 3, 5], [3, 60 - 3], 3 * 41),
        (side_by_side, [2, 3, 5], [3], 2 * 10 + 2 * 3),
        (from_the_root, TREES, [15, 6], 2 * 15 + 6),
    ],
    ids=[
        "a recursion",
        "a loop",
        "a loop of equal turns",
        "a long one",
        "a comprehension",
        "from the root",
    ],
)
def test_calls_that_one_op_can_compute_are_one_piece(fn, examples, pieces, calls):
    assert pieces_in(fn, examples) == (pieces, calls)


def test_a_piece_ends_where_a_value_is_read():
    outline = outline_of(reading, [1, 3, 9])
    reads = [sum(map(len, own.values())) for own in outline.reads.values()]
    assert sorted(reads) == [1, 2, 4] and sum(outline.counts.values()) == 7


@pytest.mark.parametrize(("fn", "examples"), [(inline, TREES), (chain, [2, 3, 5]), (reading, [1, 3, 9])])
def test_an_outline_has_a_call_for_each_piece_and_one_for_each_example(fn, examples):
    outline = outline_of(fn, examples)
    fold = multifold.Fold(backend="numpy")
    fold.run(None, outline.examples, outline.recorder(lambda op: op))
    names = Counter(op.name for part in fold.explain().rounds for op in part.ops for _ in range(op.calls))
    assert names.pop("end") == 3 and sum(names.values()) == len(outline.pieces)


def test_ops_are_named_by_their_lines():
    first = inline.__code__.co_firstlineno
    assert outline_of(inline, TREES).ops() == [
        (f"inline, line {first + 2}", 9),
        (f"inline, line {first + 4}", 6),
    ]
