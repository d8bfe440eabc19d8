"""``batched(fn, keep=True)``: the code of an example runs once, and its calls are replayed from then on."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest

import multifold
from multifold.lazy import met
from multifold.lazy.met import MetExamples

RAN = []


class Tree:
    """A binary tree of numbers; a leaf has a number and no parts."""

    def __init__(self, *parts, number=0.0):
        self.parts = parts
        self.number = number


@multifold.cell
def join(left, right, scale=1.0):
    return np.tanh(left + right) * scale


def total(tree, scale=1.0):
    RAN.append(tree)
    if not tree.parts:
        return np.full(2, tree.number)
    return join(*[total(part, scale) for part in tree.parts], scale)


def looped(trees, **shared):
    return np.stack([total(tree, **shared) for tree in trees])


@pytest.fixture
def trees():
    leaves = [Tree(number=x) for x in range(8)]
    return [Tree(*leaves[:2]), Tree(Tree(*leaves[2:4]), leaves[4]), leaves[5], Tree(*leaves[6:])]


@pytest.fixture
def run():
    return multifold.batched(total, keep=True, backend="numpy")


def test_the_code_of_an_example_runs_once(run, trees):
    wanted = looped(trees)
    RAN.clear()
    for _ in range(3):
        np.testing.assert_allclose(run(trees), wanted, rtol=1e-6)
        np.testing.assert_allclose(run(trees[::-1]), wanted[::-1], rtol=1e-6)
    assert len(RAN) == 12 and len(run.explain()) == 2
    run([*trees, Tree(number=9)])
    assert len(RAN) == 13


def test_other_keywords_make_another_example(run, trees):
    for scale in (1.0, 2.0, 1.0):
        np.testing.assert_allclose(run(trees, scale=scale), looped(trees, scale=scale), rtol=1e-6)
    assert len(run.met) == 8


def test_an_example_is_kept_as_long_as_its_object_lives(run, trees):
    run(trees)
    del trees[0]
    RAN.clear()
    gc.collect()
    assert len(run.met) == 3


@pytest.mark.parametrize(
    "of", [lambda x: x, lambda x: (x, x), lambda x: [x]], ids=["value", "tuple", "list"]
)
def test_what_has_no_weak_reference_is_told_by_value_or_lives_on(of):
    seen = []
    run = multifold.batched(
        lambda x: seen.append(x) or join(np.ones(2), np.ones(2)), keep=True, backend="numpy"
    )
    examples = [of(x) for x in range(5)]
    for _ in range(3):
        run(examples)
    assert len(seen) == 5


def test_a_loader_of_new_objects_is_told_that_nothing_comes_again(run, monkeypatch):
    monkeypatch.setattr(met, "MANY", 8)
    kept = [[Tree(number=x) for x in range(4)] for _ in range(3)]
    run(kept[0])
    with pytest.warns(UserWarning, match="Of 8 examples none has come again"):
        run(kept[1])
    np.testing.assert_allclose(run(kept[2]), looped(kept[2]))
    assert run.met is None


def test_check_shows_an_example_that_has_changed(run, trees):
    run.check(trees)
    trees[2].number = 11.0
    with pytest.raises(multifold.MismatchError, match="Example 2"):
        run.check(trees)


def test_a_program_that_reads_values_is_refused():
    run = multifold.batched(lambda x: join(x, x) if join(x, x)[0] > 0 else x, keep=True, backend="numpy")
    with pytest.raises(multifold.RecordError, match="reads a computed value"):
        run([np.ones(2), np.zeros(2)])


@pytest.mark.parametrize("option", [{"own": True}, {"seed": 0}, {"on_error": "collect"}], ids=str)
def test_what_needs_the_code_to_run_is_refused(option):
    with pytest.raises(multifold.RecordError, match="keep=True without own, seed"):
        multifold.batched(total, keep=True, backend="numpy", **option)


def test_a_copy_has_met_no_example(trees):
    kept = MetExamples(lambda x: 0)
    kept.note((), (trees[0],), "trace")
    assert len(pickle.loads(pickle.dumps(MetExamples(abs)))) == 0
    assert kept.find((), (trees[0],)) == "trace" and kept.find((), (trees[1],)) is None


def test_values_that_are_equal_and_not_the_same_are_told_apart():
    run = multifold.batched(lambda x: join(np.full(2, x), np.full(2, 1 / x)), keep=True, backend="numpy")
    with np.errstate(divide="ignore"):
        for x in (np.float64(2), 0.5, 2, True):
            wanted = np.tanh(np.full((1, 2), x + 1 / x))
            np.testing.assert_allclose(run([x]), wanted, rtol=1e-6)
    kept = MetExamples(lambda x: 0)
    kept.note((), (0.0,), "positive")
    assert kept.find((), (-0.0,)) is None and kept.find((), (0,)) is None


def test_an_example_that_was_changed_replaces_itself():
    versions = [0]
    kept, tree = MetExamples(lambda x: versions[0]), Tree()
    for version in range(3):
        versions[0] = version
        assert kept.find((), (tree,)) is None
        kept.note((), (tree,), version)
    assert len(kept) == 1 and kept.find((), (tree,)) == 2
