"""`multifold.pending`: loops inside of a method, whose equal steps run together."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

import multifold
from multifold import LaunchError, RecordError
from multifold.lazy.current import CELL, CURRENT

RNG = np.random.default_rng(0)
W = RNG.normal(size=(4, 4))
WORDS = RNG.normal(size=(10, 4))
TREES = [(1, 2), ((3, 4), 5), 6, ((1, (2, 3)), (4, 5)), (7, (8, 9))]


@multifold.cell
def combine(left, right):
    return np.tanh((left + right) @ W)


def half(x):
    return x / 2


class Encoder:
    def __init__(self):
        self.weights = RNG.normal(size=(4, 4))
        self.block = multifold.pending()

    def node(self, tree):
        if isinstance(tree, int):
            return WORDS[tree]
        return half(combine(self.node(tree[0]), self.node(tree[1])) @ self.weights)

    def loop(self, trees):
        return [self.node(tree) for tree in trees]

    def together(self, trees, **options):
        with multifold.pending(**options) as block:
            states = [self.node(tree) for tree in trees]
        return states, block

    def again(self, trees):
        with self.block:
            return [self.node(tree) for tree in trees]


ENCODER = Encoder()


def same(found, wanted):
    [np.testing.assert_allclose(x, y) for x, y in zip(found, wanted, strict=True)]


@pytest.mark.parametrize("cells", [(), (half,)])
def test_equal_steps_of_a_loop_run_together(cells):
    states, block = ENCODER.together(TREES, cells=cells)
    same(states, ENCODER.loop(TREES))
    run = multifold.batched(ENCODER.node, cells=cells, backend="numpy")
    same(run(TREES), states)
    assert len(block.explain()) == len(run.explain()) < len(TREES) * 3
    assert not hasattr(half, CELL) and CURRENT.recording is None


def test_weights_that_a_function_finds_around_it_are_passed_whole():
    with multifold.pending() as block:
        found = [half(combine(WORDS[i], WORDS[i + 1])) @ W for i in range(4)]
    same(found, [half(combine(WORDS[i], WORDS[i + 1])) @ W for i in range(4)])
    assert len(block.explain()) == 3


def test_a_read_runs_at_once_what_it_needs():
    steps = []
    with multifold.pending() as block:
        found = []
        for tree in [(1, 2), (3, 4), (5, 6)]:
            h = combine(*map(WORDS.__getitem__, tree))
            count = 0
            while np.abs(h).sum() > 0.5 and count < 4:
                h, count = combine(h, h) / 2, count + 1
            steps.append(count)
            found.append(h + 1)
    assert steps and len(block.explain().rounds) > 3
    assert [type(x.sum()) for x in found] == [np.float64] * 3
    for tree, x, wanted in zip([(1, 2), (3, 4), (5, 6)], found, steps, strict=True):
        h = combine(*map(WORDS.__getitem__, tree))
        for _ in range(wanted):
            h = combine(h, h) / 2
        np.testing.assert_allclose(x, h + 1)
        assert np.abs(h).sum() <= 0.5 or wanted == 4


def test_changes_in_place_hold_across_a_read():
    with multifold.pending():
        h = combine(WORDS[1], WORDS[2])
        first = h[:2]
        before = float(h.sum())
        h += 1
        late = h * 1
    want = combine(WORDS[1], WORDS[2])
    assert before == pytest.approx(want.sum())
    np.testing.assert_allclose(late, want + 1)
    np.testing.assert_allclose(h, want + 1)
    with pytest.raises(RecordError, match="outside of its batched program"):
        first + 1  # it shares its memory with what was changed, so it stands for nothing


def test_an_object_that_is_used_again_knows_what_it_has_met():
    same(ENCODER.again(TREES), ENCODER.loop(TREES))
    known = {*ENCODER.block.function.recorder.known}
    same(ENCODER.again(TREES[::-1]), ENCODER.loop(TREES[::-1]))
    assert known and {*ENCODER.block.function.recorder.known} == known
    other = pickle.loads(pickle.dumps(copy.deepcopy(ENCODER)))
    same(other.again(TREES), ENCODER.loop(TREES))


def test_a_block_inside_of_a_batched_program_or_of_a_block_is_a_part_of_it():
    run = multifold.batched(ENCODER.again, backend="numpy", join="list")
    same([x for xs in run([TREES[:2], TREES[2:]]) for x in xs], ENCODER.loop(TREES))
    assert len(run.explain()) == 10
    with multifold.pending(backend="numpy") as block:
        states = ENCODER.again(TREES)
        assert [type(x).__name__ for x in states[:1]] == ["PendingArray"]
    same(states, ENCODER.loop(TREES))
    assert len(block.explain()) == 10


def failing(kept, *made):
    with multifold.pending(backend="numpy"):
        kept.extend(make() for make in made)
        raise KeyError


def test_what_was_recorded_runs_before_an_exception_goes_on():
    kept = []
    with pytest.raises(KeyError):
        failing(kept, lambda: combine(WORDS[1], WORDS[2]), lambda: kept[0].reshape(2, 2) @ np.ones(2))
    same(kept, [combine(WORDS[1], WORDS[2]), combine(WORDS[1], WORDS[2]).reshape(2, 2) @ np.ones(2)])
    assert CURRENT.recording is None


def large():
    return combine(WORDS[1], WORDS[2]) * 0 + 9


@multifold.cell
def picky(x):
    if x.max() > 5:
        raise ValueError("too large")
    return x + 1


def test_a_launch_that_fails_leaves_the_rest_computed_where_an_exception_ends_the_block():
    kept = []
    with pytest.raises(KeyError):
        failing(kept, lambda: picky(large()), lambda: combine(WORDS[1], WORDS[2]))
    np.testing.assert_allclose(kept[1], combine(WORDS[1], WORDS[2]))
    with pytest.raises(LaunchError, match="too large"), multifold.pending():
        kept[0] = picky(large())


def test_a_block_needs_a_framework():
    with pytest.raises(RecordError, match="name the framework"):
        outside_of_arrays()
    with pytest.raises(RecordError, match="Expected a block to explain"):
        multifold.pending().explain()


def outside_of_arrays():
    with multifold.pending():
        return 1


def test_blocks_run_in_several_threads():
    found = {}

    def work(number):
        found[number] = [ENCODER.again(TREES) for _ in range(4)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(found) == 3
    [same(states, ENCODER.loop(TREES)) for runs in found.values() for states in runs]


BLOCK = multifold.pending(backend="numpy")


def test_a_block_that_has_run_pickles_without_what_it_has_learnt():
    with BLOCK:
        np.tanh(np.ones(2))
    assert BLOCK.function is not None and pickle.loads(pickle.dumps(BLOCK)).function is None
