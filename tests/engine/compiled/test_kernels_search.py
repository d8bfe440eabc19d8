"""Compiled searches for few launches find the schedules that their references find."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_references import NONE, heights_of, problems

from multifold._engine import compiled
from multifold._engine.compiled.reference import covers
from multifold._engine.plan.levels import Problem

pytestmark = pytest.mark.skipif(not compiled.in_use, reason=compiled.state())


@given(problems(), st.sampled_from([1, 2, 12]), st.integers(1, 60))
@settings(deadline=None)
def test_a_beam_finds_the_same_schedule_as_its_reference(problem, width, most):
    number = np.unique(problem.types, return_inverse=True)[1].reshape(-1)
    columns = number, heights_of(problem), problem.sources, problem.readers, width, most
    found = compiled.beam(*columns)
    expected = covers.beam(*columns)
    np.testing.assert_array_equal(found, expected)
    if found is not None:
        assert (found[problem.sources] < found[problem.readers]).all() and found.max() < most


def covered_alike(problem, width, most):
    """Compare both covers of a problem; return the launches."""
    number = np.unique(problem.types, return_inverse=True)[1].reshape(-1)
    problem = Problem(number, problem.sources, problem.readers)
    columns = number, problem.levels, problem.cycles, problem.sources, problem.readers
    found, expected = (x.cover(*columns, width, problem.lower_bound, most) for x in (compiled, covers))
    assert (found is None) == (expected is None)
    for one, other in zip(found or (), expected or (), strict=True):
        np.testing.assert_array_equal(one, other)
    return found


@given(problems(), st.sampled_from([1, 2, 12]), st.integers(1, 60))
@settings(deadline=None)
def test_both_ways_find_the_same_schedule_as_their_reference(problem, width, most):
    found = covered_alike(problem, width, most)
    if found is not None:
        launch = np.empty(len(problem), np.int64)
        launch[found[0]] = np.repeat(np.arange(len(found[1]) - 1), np.diff(found[1]))
        assert (launch[problem.sources] < launch[problem.readers]).all() and launch.max() < most


def test_a_schedule_from_the_last_launch_to_the_first_is_taken_where_it_is_shorter():
    """Two chains of calls of types 0110 and 1011: a greedy rule takes six launches, and five backwards."""
    sources = np.array([0, 1, 2, 4, 5, 6])
    problem = Problem(np.array([0, 1, 1, 0, 1, 0, 1, 1]), sources, sources + 1)
    columns = problem.types, heights_of(problem), problem.sources, problem.readers
    assert compiled.beam(*columns, 1, 8).max() + 1 == 6
    assert len(covered_alike(problem, 1, 8)[1]) - 1 == 5


def test_calls_that_read_more_than_255_others_wait_for_all_of_them():
    """Call 300 of type 1 reads 300 calls of type 0, and one of type 0 reads it; beside them types 1, 0."""
    sources, readers = np.array([*((i, 300) for i in range(300)), (300, 301), (302, 303)]).T.copy()
    problem = Problem(np.array([0] * 300 + [1, 0, 1, 0]), sources, readers)
    assert len(covered_alike(problem, 2, 4)[1]) - 1 == 3


def test_more_than_1024_types_in_a_circle_are_covered():
    """Two chains of all types, one the other way round: only two calls share a launch."""
    types = np.arange(1100)
    sources = np.delete(np.arange(2199), 1099)
    problem = Problem(np.concatenate([types, types[::-1]]), sources, sources + 1)
    columns = problem.types, problem.levels, problem.cycles, problem.sources, problem.readers
    order, begin = compiled.cover(*columns, 2, problem.lower_bound, 2200)
    assert len(begin) - 1 == 2199 and sorted(order.tolist()) == list(range(2200))


@pytest.mark.parametrize(
    ("types", "levels", "cycles", "sources", "readers", "width"),
    [
        ([0, 2], [1, 1], [2, 2, 2], [0], [1], 1),
        ([0, 1], [1, 1], [2], [0], [1], 1),
        ([0, 1], [1, 3], [2, 2], [0], [1], 1),
        ([0, 1], [1, 0], [2, 2], [0], [1], 1),
        ([0, 1], [1], [2, 2], [0], [1], 1),
        ([0, 1], [1, 1], [2, 2], [1], [1], 1),
        ([0, 1], [1, 1], [2, 2], [0], [2], 1),
        ([0, 1], [1, 1], [2, 2], [0], [], 1),
        ([0, 1], [1, 1], [2, 2], [0], [1], 0),
    ],
)
@pytest.mark.parametrize("cover", [compiled.cover, covers.cover])
def test_a_cover_refuses_a_problem_out_of_range(cover, types, levels, cycles, sources, readers, width):
    columns = (np.array(column, np.int64) for column in (types, levels, cycles, sources, readers))
    with pytest.raises(IndexError, match="what is not there"):
        cover(*columns, width, 1, 2)


def chains(seed):
    """Return the columns of a problem: a few chains of calls, whose types have gaps, and more edges."""
    rng = np.random.default_rng(seed)
    bounds = np.cumsum(rng.integers(1, 6, size=rng.integers(2, 6)))
    types = rng.choice(rng.permutation(5)[:3], size=bounds[-1])
    number = np.arange(bounds[-1])
    edges = {(i, i + 1) for i in number[:-1] if i + 1 not in bounds}
    edges |= {(a, b) for a, b in rng.integers(bounds[-1], size=(rng.integers(3), 2)).tolist() if a < b}
    ends = np.array(sorted(edges, key=lambda edge: edge[1]), np.int64).reshape(-1, 2).T
    problem = Problem(np.minimum(types, bounds[-1] - 1), *np.ascontiguousarray(ends))
    return problem.types, heights_of(problem), problem.sources, problem.readers


def fewest_by_trying_all(types, _, sources, readers):
    """Return how many launches the calls need."""
    sources_of = [set(sources[readers == i].tolist()) for i in range(len(types))]
    states = {frozenset()}
    count = 0
    while not any(len(done) == len(types) for done in states):
        count += 1
        ready = [(x, {i for i in range(len(types)) if sources_of[i] <= x} - x) for x in states]
        states = {x | {i for i in some if types[i] == t} for x, some in ready for t in set(types)}
    return count


@pytest.mark.parametrize("seeds", [range(at, at + 25) for at in range(0, 150, 25)], ids=str)
def test_the_search_finds_the_fewest_launches_where_it_has_room_for_all_states(seeds):
    for columns in map(chains, seeds):
        count = fewest_by_trying_all(*columns)
        for beam in (compiled.beam, covers.beam):
            assert beam(*columns, 500, count).max() + 1 == count
            assert beam(*columns, 500, count - 1) is None if count > 1 else True


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5, 8])
def test_a_narrow_search_leaves_out_the_same_states_as_its_reference(width):
    for columns in map(chains, range(200)):
        best = int(compiled.beam(*columns, 500, len(columns[0])).max()) + 1
        for most in range(max(best - 1, 1), best + 2):
            np.testing.assert_array_equal(
                compiled.beam(*columns, width, most), covers.beam(*columns, width, most)
            )


@pytest.mark.parametrize("beam", [compiled.beam, covers.beam])
def test_the_search_for_no_calls_has_no_launches(beam):
    launches = beam(NONE, NONE, NONE, NONE, 1, 1)
    assert (launches.tolist(), launches.dtype) == ([], np.int64)


@pytest.mark.parametrize(
    ("calls", "weight"), [(1, 1), (2, 8), (1024, 1024**3), (1025, 1025**3), (9999, 1025**3)]
)
def test_a_call_weighs_the_cube_of_its_longest_path_which_is_scaled_from_1025_on(calls, weight):
    ones = np.ones(calls, np.int64)
    ends = np.arange(calls)
    assert covers.Weighed(0 * ones, ones, ends[:-1], ends[1:]).weights[0] == weight


def test_a_beam_over_long_chains_weighs_alike():
    rng = np.random.default_rng(0)
    types = rng.integers(2, size=3 * 1200)
    ends = np.arange(3 * 1200).reshape(3, 1200)
    problem = Problem(types, ends[:, :-1].ravel(), ends[:, 1:].ravel())
    columns = problem.types, heights_of(problem), problem.sources, problem.readers, 2, 3 * 1200
    np.testing.assert_array_equal(compiled.beam(*columns), covers.beam(*columns))


@pytest.mark.parametrize(
    ("types", "heights", "sources", "readers", "width", "most"),
    [
        ([0, 2], [1, 1], [0], [1], 1, 2),
        ([0, -1], [1, 1], [0], [1], 1, 2),
        ([0, 0], [3, 1], [0], [1], 1, 2),
        ([0, 0], [0, 1], [0], [1], 1, 2),
        ([0, 0], [2], [0], [1], 1, 2),
        ([0, 0], [2, 1], [1], [1], 1, 2),
        ([0, 0], [2, 1], [-1], [1], 1, 2),
        ([0, 0], [2, 1], [0], [2], 1, 2),
        ([0, 0], [2, 1], [0], [], 1, 2),
        ([0, 0], [2, 1], [0], [1], 0, 2),
        ([0, 0], [2, 1], [0], [1], 1, 0),
    ],
)
@pytest.mark.parametrize("beam", [compiled.beam, covers.beam])
def test_a_beam_refuses_a_problem_out_of_range(beam, types, heights, sources, readers, width, most):
    columns = (np.array(column, np.int64) for column in (types, heights, sources, readers))
    with pytest.raises(IndexError, match="what is not there"):
        beam(*columns, width, most)
