"""Minibatches of at most so many calls: alike on all shards, each example once, whatever the costs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from multifold import RecordError
from multifold.sampling import CallBudget, mean_weight
from multifold.sampling import budget as budget_room

COSTS = st.lists(st.integers(0, 40), max_size=60)


def shards_of(costs, calls, shards, **options):
    """Return the minibatches of each shard, as lists of indices."""
    return [list(CallBudget(costs, calls, shards=shards, shard=i, **options)) for i in range(shards)]


def long_tailed(seed, count):
    """Return costs as sentences or functions have: most are small, and some a hundred times as large."""
    return np.ceil(np.random.default_rng(seed).lognormal(3.5, 0.8, count)).astype(int)


# ---- what holds for all costs ----------------------------------------------------------------------


@given(COSTS, st.integers(1, 50), st.integers(1, 4), st.integers(0, 3))
def test_each_example_comes_once_an_epoch(costs, calls, shards, seed):
    found = shards_of(costs, calls, shards, seed=seed)
    assert sorted(itertools.chain(*itertools.chain(*found))) == list(range(len(costs)))


@given(COSTS, st.integers(1, 50), st.integers(1, 4))
def test_no_minibatch_is_above_the_budget_but_one_example(costs, calls, shards):
    for batch in itertools.chain(*shards_of(costs, calls, shards)):
        assert sum(costs[i] for i in batch) <= calls or sum(costs[i] > 0 for i in batch) == 1


@given(COSTS, st.integers(1, 50), st.integers(1, 4))
def test_all_shards_have_the_same_number_of_steps(costs, calls, shards):
    budgets = [CallBudget(costs, calls, shards=shards, shard=i) for i in range(shards)]
    assert len({len(budget) for budget in budgets}) == 1
    assert [len(list(budget)) for budget in budgets] == [len(budgets[0])] * shards


# ---- balance ---------------------------------------------------------------------------------------


def slowest(steps, costs):
    """Return by how much the slowest shard of a step has more than the mean, on average over the steps."""
    loads = np.array([[sum(costs[i] for i in batch) for batch in step] for step in steps])
    return float((loads.max(axis=1) / loads.mean(axis=1)).mean())


def test_the_slowest_shard_has_a_tenth_more_than_the_mean_at_most():
    costs = long_tailed(0, 4000)
    steps = CallBudget(costs, 2000, shards=4).steps()
    order = np.random.default_rng(0).permutation(len(costs)).reshape(-1, 4, 40)  # as many examples each
    assert slowest(steps, costs) < 1.02
    assert slowest(order, costs) > 1.1


def test_steps_are_as_few_as_the_budget_allows():
    costs = long_tailed(1, 4000)
    steps = CallBudget(costs, 2000, shards=4).steps()
    assert len(steps) == np.ceil(costs.sum() / (4 * 2000))
    assert min(sum(map(len, step)) for step in steps) > 0.5 * len(costs) / len(steps)


def test_a_step_of_many_shards_is_shared_out_in_few_attempts(monkeypatch):
    attempts = []
    share = budget_room.share_out
    monkeypatch.setattr(budget_room, "share_out", lambda *args: attempts.append(args[2]) or share(*args))
    steps = CallBudget(long_tailed(6, 20_000), 2000, shards=200).steps()
    assert len(attempts) <= 4 * len(steps) + 2


def test_an_example_above_the_budget_is_a_minibatch_of_its_own():
    (step,) = CallBudget([100, 3, 4, 3], 10, shards=2).steps()
    assert sorted(map(sorted, step)) == [[0], [1, 2, 3]]


def test_with_fewer_examples_than_shards_some_minibatches_are_empty():
    assert shards_of([5, 4], 10, 4) == [[[0]], [[1]], [[]], [[]]]


def test_without_examples_there_is_no_step():
    assert shards_of([], 10, 2) == [[], []]


# ---- epochs, and going on --------------------------------------------------------------------------


def test_each_epoch_has_another_order_and_comes_again_alike():
    budget = CallBudget(long_tailed(2, 200), 500)
    first = list(budget)
    budget.set_epoch(1)
    assert list(budget) != first
    budget.set_epoch(0)
    assert list(budget) == first


def test_another_seed_is_another_order():
    costs = long_tailed(2, 200)
    assert list(CallBudget(costs, 500)) != list(CallBudget(costs, 500, seed=1))


@pytest.mark.parametrize("way", ["state", "count"])
def test_a_run_that_was_stopped_goes_on_with_the_next_step(way):
    costs = long_tailed(3, 200)
    made = []
    budget = CallBudget(costs, 500, seed=4)
    budget.set_epoch(2)
    whole = list(budget)
    for batch in budget:
        made.append(batch)
        if len(made) == 3:
            break
    again = CallBudget(costs, 500, seed=4)
    if way == "state":
        again.load_state_dict(budget.state_dict())
    else:
        again.set_epoch(2, step=len(made))
    assert made + list(again) == whole
    assert list(again) == whole  # the next time from its beginning


def test_trainers_find_what_sets_the_epoch():
    budget = CallBudget([1], 3)
    assert budget.sampler is budget


# ---- means -----------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.floats(-10, 10), max_size=5), min_size=1, max_size=4))
def test_weighted_means_of_shards_average_to_the_mean_of_all(shards):
    total = sum(map(len, shards))
    weights = [mean_weight(len(losses), len(shards), lambda count: total) for losses in shards]
    means = [float(np.mean(losses)) if losses else 0.0 for losses in shards]
    found = float(np.mean([weight * mean for weight, mean in zip(weights, means, strict=True)]))
    assert found == pytest.approx(float(np.mean([*itertools.chain(*shards)])) if total else 0.0, abs=1e-9)


# ---- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize("costs", [[1, -1], [float("nan")], [[1, 2]], ["a"], 3, [float("inf")]])
def test_costs_that_are_none_are_refused(costs):
    with pytest.raises(RecordError, match="Expected the cost of each example"):
        CallBudget(costs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calls": 0}, "at least one call"),
        ({"shards": 2, "shard": 2}, "a shard out of 2"),
        ({"shards": 0}, "of 0"),
    ],
)
def test_budgets_and_shards_that_there_are_not_are_refused(options, message):
    with pytest.raises(RecordError, match=message):
        CallBudget([1], **options)


def test_a_sum_that_is_a_mean_is_noticed():
    with pytest.raises(RecordError, match="not the mean"):
        mean_weight(3, 2, lambda count: 2)
