"""Trials: the first launches of an op show whether it keeps the rows of nodes apart."""

from __future__ import annotations

import numpy as np
import pytest
from trials import MIXING_OPS, column, mean_of, normal, one_group, refuse_in, scaled

from multifold import Fold, LaunchError, ragged
from multifold._engine.ops.trial import nonzero
from multifold.ops import segment_sum

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("rows", [2, 3, 8])
@pytest.mark.parametrize("name", MIXING_OPS)
def test_an_op_that_mixes_rows_is_refused(name, rows):
    xs = np.random.default_rng(0).normal(size=(rows, 1, 3))
    fold = Fold(backend="numpy")
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.apply(None, one_group(fold, MIXING_OPS[name], xs))


def test_an_op_that_subtracts_the_mean_of_all_rows_is_refused(backend, rows):
    fold = Fold(backend=backend)
    with pytest.raises(LaunchError, match="when row 1 was replaced, row 0 and one other changed"):
        fold.apply(None, one_group(fold, lambda x: x - mean_of(x), rows(3, 4)))


def test_an_op_that_keeps_rows_apart_runs_seven_times_at_first_and_then_once(backend, rows, counted):
    op = counted(lambda x: x * 2.0)
    for _ in range(3):
        fold = Fold(backend=backend)
        fold.apply(None, one_group(fold, op, rows(16, 4)))
    assert op.rows == [16] * 9


def test_an_op_is_tried_until_it_has_had_sixteen_rows(backend, rows, counted):
    op = counted(lambda x: x * 2.0)
    for _ in range(6):
        fold = Fold(backend=backend)
        fold.apply(None, one_group(fold, op, rows(4, 3)))
    assert op.rows == [4] * (4 * 7 + 2)


def test_an_op_that_mixes_few_rows_is_refused_where_it_shows():
    def op(x):
        return np.where(x > 0, x - x[:1], x)

    fold = Fold(backend="numpy")
    fold.apply(None, one_group(fold, op, -abs(normal(4))))
    refuse_in(fold, None, one_group(fold, op, abs(normal(4))))


def test_a_single_row_waits_for_company(counted):
    op = counted(lambda x: x - x.mean(0))
    for count in (1, 1, 2):
        fold = Fold(backend="numpy")
        outputs = one_group(fold, op, np.random.default_rng(0).normal(size=(count, 1, 3)))
        if count == 1:
            fold.apply(None, outputs)
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.apply(None, outputs)


@pytest.mark.parametrize(("value", "runs"), [(2.0, 9), (2, 9), (0.0, 21), (0, 15)])
def test_equal_rows_are_halved_and_zeros_wait(value, runs, counted):
    """A result of zeros tells nothing; nor do integers that nothing can be put in the place of."""
    op = counted(lambda x: x * 1)
    for _ in range(3):
        fold = Fold(backend="numpy")
        fold.apply(None, one_group(fold, op, [np.full((1, 2), value)] * 16))
    assert len(op.rows) == runs


def test_numbers_that_are_equal_in_all_rows_hide_nothing(refused):
    fold = Fold(backend="numpy")
    xs = np.random.default_rng(0).normal(size=(3, 1, 1))
    refused(lambda: fold.apply(None, scaled(fold, lambda x, y: (x - y).mean(1)[:, None], xs, [1.0] * 3)))


def test_an_op_is_tried_again_where_there_are_as_many_rows_as_columns():
    def op(x):
        return x @ np.ones((3, 3)) if len(x) != 3 else np.ones((3, 3)) @ x

    fold = Fold(backend="numpy", trials=True)
    xs = np.random.default_rng(0).normal(size=(5, 1, 3))
    fold.apply(None, one_group(fold, op, xs))
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.apply(None, one_group(fold, op, xs[:3]))


def test_nodes_of_ragged_operands_are_replaced_by_nodes_with_as_many_members(refused):
    def mixes(kids):
        return np.add.reduceat(kids.values, [0, 2, 4, 5]) + kids.values[:1]

    fold = Fold(backend="numpy")
    xs = np.random.default_rng(0).normal(size=(8, 1, 2))
    nodes = [fold.add(mixes, ragged(list(xs[i:j]))) for i, j in ((0, 2), (2, 4), (4, 5), (5, 8))]
    with pytest.raises(LaunchError, match="mixes its rows"):
        fold.apply(None, [nodes])


def test_a_column_for_each_row_is_refused_where_all_columns_are_equal():
    fold = Fold(backend="numpy")
    outputs = one_group(fold, lambda x: np.broadcast_to(x[:, :1], (len(x), len(x))), normal(3, 5))
    refuse_in(fold, None, outputs, r"it returned \(3, 3\) for 3, and \(5, 5\) for 5")


def dropping(kids):
    return segment_sum(kids.values * RNG.integers(2, size=kids.values.shape), kids)


@pytest.mark.parametrize("seed", range(4))
def test_an_op_that_draws_for_each_member_passes_with_an_odd_number_of_nodes(seed):
    """In reverse order the node in the middle stays, and its members draw what others drew before."""
    rng = np.random.default_rng(seed)
    fold = Fold(backend="numpy")
    lengths = rng.integers(1, 5, 15).tolist()
    nodes = [fold.add(dropping, ragged(list(rng.normal(size=(n, 1, 8))))) for n in lengths]
    assert fold.apply(None, [nodes])[0].shape == (15, 8)


def test_a_ragged_op_may_make_as_many_columns_as_it_has_rows():
    fold = Fold(backend="numpy")
    nodes = [fold.add("op", ragged(list(np.ones((k, 1, 5)))), 1.0) for k in (1, 2, 2)]
    model = {
        "op": lambda r, s: (
            np.add.reduceat(r.values, np.cumsum(r.lengths) - r.lengths) @ np.ones((5, 3)) * s[:, None]
        )
    }
    assert fold.apply(model, [nodes])[0].tolist() == [[5.0] * 3, [10.0] * 3, [10.0] * 3]


def test_nodes_that_all_have_other_numbers_of_members_are_halved():
    """They change places, too; but the mean of all members is the same then."""

    def mixes(r):
        return np.add.reduceat(r.values - r.values.mean(0), np.cumsum(r.lengths) - r.lengths)

    fold = Fold(backend="numpy")
    xs = normal(6)
    refuse_in(fold, None, [[fold.add(mixes, ragged(list(xs[i:j]))) for i, j in ((0, 1), (1, 3), (3, 6))]])


def test_members_of_nodes_that_change_places_are_numbered_by_their_new_nodes():
    def summed(r):
        found = np.zeros((len(r.lengths), *r.values.shape[1:]))
        np.add.at(found, r.segment_ids, r.values)
        return found

    fold = Fold(backend="numpy")
    nodes = [fold.add(summed, ragged(list(np.ones((k, 1, 2))))) for k in (1, 2, 4)]
    assert fold.apply(None, [nodes])[0].tolist() == [[1.0] * 2, [2.0] * 2, [4.0] * 2]


def test_numbers_that_an_op_does_not_take_when_halved_tell_nothing():
    def op(x):
        if not np.isin(x, (1, 2, 4)).all():
            raise ValueError("no power of two")
        return x * x.max()

    fold = Fold(backend="numpy")
    assert fold.apply(None, one_group(fold, op, [np.ones((1, 2))] * 3))[0].tolist() == [[1.0] * 2] * 3
    refuse_in(fold, None, one_group(fold, op, [np.full((1, 2), float(i)) for i in (1, 2, 4)]))


def test_a_row_that_equals_the_one_before_is_replaced_by_one_that_differs():
    fold = Fold(backend="numpy")
    xs = [np.full((1, 1), i) for i in (0, 0, 2)]  # integers, where halving changes no zero
    refuse_in(fold, None, one_group(fold, lambda x: x + x[1:2], xs))


@pytest.mark.parametrize("paired", [False, True])
def test_an_operand_that_can_not_be_changed_tells_nothing_of_it(paired):
    def mixes(x, s):
        return x + column(s - s[:1])

    fold = Fold(backend="numpy")
    model = {"op": (lambda pair: mixes(*pair)) if paired else mixes, "pair": lambda x, s: (x, s)}
    for numbers in ([0, 0, 0], [0, 1, 2]):
        pairs = [(x, s) for x, s in zip(normal(3), numbers, strict=True)]
        outputs = [[fold.add("op", fold.add("pair", *x)) if paired else fold.add("op", *x) for x in pairs]]
        if len(set(numbers)) == 1:
            fold.apply(model, outputs)
    refuse_in(fold, model, outputs)


@pytest.mark.parametrize("kind", [float, int])
def test_the_largest_number_of_all_rows_is_refused_where_many_rows_have_it(kind):
    """As long as half of the rows stay in their places, it is the same."""
    fold = Fold(backend="numpy")
    xs = np.array([1, 3, 3, 2, 3, 1, 3, 3], kind)[:, None, None]
    refuse_in(fold, None, one_group(fold, lambda x: x.max() - x, xs))


@pytest.mark.parametrize("value", [0, 2, 0.0, 2.0])
def test_places_are_seen_where_all_rows_are_equal(value):
    fold = Fold(backend="numpy")
    xs = [np.full((1, 2), value)] * 4
    refuse_in(fold, None, one_group(fold, lambda x: x + np.arange(len(x))[:, None], xs))


def test_places_are_seen_beside_an_operand_that_is_the_same_in_all_rows():
    def op(x, s):
        return x * np.arange(1, 4)[:, None] * s[:, None]

    fold = Fold(backend="numpy")
    refuse_in(fold, None, [[fold.add(op, x, 1.0) for x in normal(3)]])


@pytest.mark.parametrize("value", [3, 0.0])
def test_integers_that_are_equal_are_halved_and_floating_zeros_become_numbers(value):
    fold = Fold(backend="numpy")
    refuse_in(fold, None, one_group(fold, lambda x: x + 1 + x.sum(), [np.full((1, 1), value)] * 3))


def test_a_result_of_zeros_tells_nothing():
    def op(x):
        return x * (x.max() > 10)

    fold = Fold(backend="numpy")
    fold.apply(None, one_group(fold, op, normal(4)))
    refuse_in(fold, None, one_group(fold, op, np.array([1.0, 2.0, 3.0, 11.0])[:, None, None]))


def test_a_form_that_follows_the_first_row_is_refused():
    fold = Fold(backend="numpy")
    xs = np.array([[-1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [-1.0, 2.0, -1.0], [3.0, 1.0, 1.0]])[:, None]
    outputs = one_group(fold, lambda x: x[:, : 1 + (x[:, 0] > 0).sum()], xs)
    refuse_in(fold, None, outputs, "its result had another form")


@pytest.mark.parametrize("most", [np.max, np.min])
@pytest.mark.parametrize("value", [2.0, -2.0])
def test_the_largest_of_equal_rows_shows(most, value):
    fold = Fold(backend="numpy")
    refuse_in(fold, None, one_group(fold, lambda x: x - 0.2 * most(x, 0), [np.full((1, 2), value)] * 4))


def test_equal_floats_beside_equal_integers_are_halved():
    fold = Fold(backend="numpy")
    ones = [np.ones((1, 2), int)] * 3
    refuse_in(fold, None, scaled(fold, lambda x, k: x - x.mean(0) + k, [2.0 * x for x in ones], ones))


@pytest.mark.parametrize(
    ("op", "trials", "runs"),
    [(lambda x: x * 2, 1, 7), (lambda x: x * np.random.random(x.shape), 4, 14), (lambda x: x * 0, 16, 7)],
    ids=["values", "random numbers", "zeros"],
)
def test_trials_count_by_what_they_can_tell(op, trials, runs, counted):
    op = counted(op)
    for _ in range(trials + 2):
        fold = Fold(backend="numpy")
        fold.apply(None, one_group(fold, op, normal(16)))
    assert len(op.rows) == trials * runs + 2


def test_a_result_of_zeros_beside_another_one_hides_nothing(counted):
    op = counted(lambda x: (x, x * 0))
    for _ in range(2):
        fold = Fold(backend="numpy")
        fold.apply(None, [[fold.add(op, x)[0] for x in normal(16)]])
    assert op.rows == [16] * 8


def test_what_has_an_entry_that_is_neither_zero_nor_infinite():
    arrays = [["a"], [0], [1], [False], [True], [np.nan, 0.0], [np.inf, 0.5]]
    assert [nonzero(np.array(x)) for x in arrays] == [True, False, True, False, True, False, True]
