"""`Fold.reduce`: a sequence joined level by level, compared with a plain loop over the same values."""

from __future__ import annotations

import functools
import pickle

import numpy as np
import pytest

import multifold
from multifold import Fold, RecordError, Unfold, trace
from multifold.testing import Counting


@pytest.fixture
def model(seam):
    """A row as it is, the sum of two, and digits of a number: an op that sees the order of its operands."""

    def append(left, right, *, base):
        return left * base + right

    return {"same": lambda x: x, "join": lambda x, y: x + y, "append": append}


def levels(n: int) -> int:
    """Return ``ceil(log2(n))``."""
    return (n - 1).bit_length()


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 33])
def test_reducing_equals_a_loop_in_few_levels(backend, counting, model, array, equal, n):
    values = np.random.default_rng(n).standard_normal((n, 3)).astype(np.float32)
    fold = Fold(backend=counting)
    root = fold.reduce("join", [fold.add("same", array(x[None])) for x in values])
    assert len(fold) == n + n - 1
    equal(fold.apply(model, root), functools.reduce(np.add, values)[None])
    assert counting.counts["call"] == 1 + levels(n)


def test_sequences_of_all_examples_share_launches(backend, counting, model, equal):
    def total(fold, xs):
        return fold.reduce("join", [fold.add("same", x) for x in xs], empty=0.0)

    sequences = [[float(i) for i in range(n)] for n in (5, 0, 1, 8, 3)]
    equal(Fold(backend=counting).run(model, sequences, total), [sum(xs) for xs in sequences])
    assert counting.counts["call"] == 1 + levels(8)
    equal(Unfold(model, backend=backend).run(None, sequences, total), [sum(xs) for xs in sequences])


def test_neighbours_stay_in_their_order(fold, model, equal):
    """By levels 1 2 3 4 5 6 7 are 12 34 56 7, then 154 and 567, then 2107."""
    equal(fold.apply(model, fold.reduce("append", [float(i) for i in range(1, 8)], base=10.0)), [2107])
    same = [fold.add("same", float(i)) for i in range(1, 8)]
    equal(fold.apply(model, fold.reduce("append", same, base=10.0)), [2107])


def test_one_item_is_returned_as_it_is(fold):
    node = fold.add("same", 1.0)
    row = np.ones((1, 2))
    assert fold.reduce("join", [node]) is node
    assert fold.reduce("join", iter([row])) is row
    assert fold.reduce("join", (), empty=None) is None
    assert fold.reduce("join", [], empty=node) is node
    assert len(fold) == 1


def test_gradients_of_a_reduction_are_those_of_a_loop(backend, model, array):
    fold = Fold(backend=backend)
    rows = [fold.add("same", array(np.full((1, 2), i, np.float32))) for i in range(5)]
    fold.check(model, [[fold.reduce("join", rows[:n]) for n in range(1, 6)]])


def test_traces_reduce_as_a_fold_does(backend, counting, model, equal):
    def total(fold, n):
        return fold.reduce("join", [fold.add("same", float(i)) for i in range(n)], empty=-1.0)

    made = multifold.traces(total, [5, 0, 3])
    assert made[2] == trace(total, 3) == pickle.loads(pickle.dumps(made[2]))
    equal(Fold(backend=counting).run(model, made), [10, -1, 3])
    assert counting.counts["call"] == 1 + levels(5)


def test_what_was_awaited_may_be_reduced(backend, model, equal):
    async def total(fold, n):
        first = fold.add("same", n)
        items = [fold.add("same", float(i)) for i in range(await fold.value(first))]
        return fold.reduce("join", items, empty=0.0)

    equal(Fold(backend=backend).run(model, [4, 0, 6], total), [6, 0, 15])


def test_equal_joins_are_one_call_with_cse(backend, model, equal):
    fold = Fold(backend=backend, cse=True)
    twice = [fold.reduce("join", [fold.add("same", float(i)) for i in range(4)]) for _ in range(2)]
    assert twice[0] == twice[1]
    assert len(fold) == 4 + 3
    equal(fold.apply(model, twice), [6, 6])


def test_nothing_to_reduce_is_refused_where_nothing_stands_for_it():
    for recorder in (Fold(backend="numpy"), Unfold(backend="numpy")):
        with pytest.raises(RecordError, match="empty=0"):
            recorder.reduce("join", [])
        assert len(recorder) == 0
    with pytest.raises(RecordError, match="to reduce by op 'join'"):
        trace(lambda fold, x: fold.reduce("join", x), [])


def test_reducing_touches_no_array():
    """It only records calls, here 1,023 of them."""
    counting = Counting("numpy")
    Fold(backend=counting).reduce("join", list(map(float, range(1024))))
    assert not sum(counting.counts.values())
