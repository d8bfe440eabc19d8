"""Compiled levels, launches and edges of calls do what their references do."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_references import NONE, calls, heights_of, problems, random_fold, with_references

from multifold import Fold
from multifold._engine import compiled
from multifold._engine.compiled import COUNTERS
from multifold._engine.plan.columns import Columns
from multifold._engine.plan.levels import Problem
from multifold._engine.plan.policies import bucketed
from multifold._engine.plan.schedule import call_types, make_schedule

pytestmark = pytest.mark.skipif(not compiled.in_use, reason=compiled.state())


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=80))
def test_levels_are_those_of_the_longest_paths(pairs):
    edges = sorted(((min(a, b), max(a, b)) for a, b in pairs if a != b), key=lambda edge: edge[1])
    level = [1] * 31
    for source, reader in edges:
        level[reader] = max(level[reader], level[source] + 1)
    ends = np.ascontiguousarray(np.array(edges, np.int64).reshape(-1, 2).T)
    assert Problem(np.arange(31), *ends).depths.tolist() == level


def levels_alike(problem):
    """Compare the typed levels of a problem; `Problem` has kept those of the compiled function."""
    edges = problem.sources, problem.readers
    for found, expected in zip(problem.counted, calls.typed_levels(problem.types, *edges), strict=True):
        np.testing.assert_array_equal(found, expected)


@given(problems())
@settings(deadline=None)
def test_typed_levels_and_launches_of_random_problems_are_alike(problem):
    levels_alike(problem)
    for levels in (problem.levels, problem.depths):
        found = bucketed(problem, levels)
        expected = with_references(bucketed, problem, levels)
        assert (found is None) == (expected is None)
        for one, other in zip(found or (), expected or (), strict=True):
            np.testing.assert_array_equal(one, other)


def test_heights_are_levels_counted_from_the_end():
    sources, readers = np.array([[0, 1, 0, 2], [2, 2, 3, 4]])
    assert heights_of(Problem(np.array([0, 0, 0, 1, 0]), sources, readers)).tolist() == [3, 3, 2, 1, 1]


@pytest.mark.parametrize("kinds", [COUNTERS - 1, COUNTERS, COUNTERS + 1])
def test_types_on_a_wide_cycle_are_counted_by_depth_as_numpy_does(kinds):
    types = np.tile(np.arange(kinds), 3)
    number = np.arange(3 * kinds)
    problem = Problem(types, number[:-1], number[1:])
    levels_alike(problem)
    by_type = kinds <= COUNTERS
    assert problem.levels.tolist() == (1 + (number // kinds if by_type else number)).tolist()
    columns = number[:-1], np.append(0, number), NONE, NONE, NONE
    for module in (compiled, calls):
        order, bounds, lower_bound = module.schedule(types, number, *columns)
        assert (order.tolist(), bounds.tolist()) == (number.tolist(), [*number, 3 * kinds])
        assert lower_bound == (3 * kinds if by_type else kinds)


@pytest.mark.parametrize("module", [compiled, calls])
def test_no_calls_have_no_levels_and_no_launches(module):
    for column in module.typed_levels(NONE, NONE, NONE):
        assert (column.tolist(), column.dtype) == ([], np.int64)
    order, bounds = module.bucket(NONE, NONE, NONE)
    assert (order.tolist(), bounds.tolist(), order.dtype, bounds.dtype) == ([], [0], np.int64, np.int64)


@pytest.mark.parametrize("module", [compiled, calls])
@pytest.mark.parametrize("last", [5, 1 << 22, 1 << 60])
def test_codes_may_be_far_apart(module, last):
    order, bounds = module.bucket(np.array([last, 4, 4, last]), np.array([4]), np.array([last]))
    assert (order.tolist(), bounds.tolist()) == ([1, 2, 0, 3], [0, 2, 4])


@pytest.mark.parametrize("module", [compiled, calls])
def test_the_edges_of_one_reader_come_in_the_order_of_its_operands(module):
    rng = np.random.default_rng(0)
    count = 200
    zeros = np.zeros(200, np.int64)
    refs = rng.integers(count, size=600)
    members = rng.integers(count, size=600)
    # two calls read
    ends = np.append(zeros, [0, 300, 600])
    ragged_ends = np.append(zeros, [0, 1, 2])
    columns = refs, ends, members, np.array([0, 300, 600]), ragged_ends
    sources, readers = module.edges(np.arange(count + 2), *columns)
    assert (
        sources.tolist() == np.concatenate([refs[:300], members[:300], refs[300:], members[300:]]).tolist()
    )
    assert readers.tolist() == [count] * 600 + [count + 1] * 600


def test_an_edge_counts_although_its_source_was_read_first():
    """Calls of type 0 on the path to the last one: 0, 2 and 4, which reads 3 before 0."""
    problem = Problem(np.array([0, 1, 0, 1, 0]), np.array([0, 1, 3, 0]), np.array([1, 2, 4, 4]))
    levels_alike(problem)
    assert problem.levels.tolist() == [1, 1, 2, 1, 2]


def scheduled(fold, pending):
    """Return the launches of some calls, and their lower bound."""
    columns = fold._columns()
    types = call_types(columns, columns.shared_calls)
    schedule = make_schedule(columns, columns, types, pending, "auto")
    return schedule.calls, schedule.bounds, schedule.lower_bound


def test_every_graph_is_scheduled_alike(graph):
    fold = Fold()
    for example in graph.examples(batch=6):
        graph.record(fold, example)
    for pending in (np.arange(len(fold)), np.arange(len(fold) // 3, len(fold))):
        found = scheduled(fold, pending)
        expected = with_references(scheduled, fold, pending)
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other)


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_what_outputs_need_is_found_alike(data):
    fold = random_fold(data)
    outputs = np.array(data.draw(st.lists(st.integers(0, len(fold) - 1), max_size=4)), np.int64)
    columns = fold._columns()
    np.testing.assert_array_equal(columns.ancestors(outputs), calls.ancestors(outputs, *columns.reads))
    pending = np.array(data.draw(st.lists(st.integers(0, len(fold) - 1), unique=True)), np.int64)
    pending.sort()
    for one, other in zip(
        compiled.edges(pending, *columns.reads), calls.edges(pending, *columns.reads), strict=True
    ):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("module", [compiled, calls])
def test_an_output_that_needs_every_call_finds_them(module):
    needed = module.ancestors(np.array([2]), np.array([0, 1]), np.array([0, 0, 1, 2]), NONE, NONE, NONE)
    assert needed.tolist() == [0, 1, 2]


def test_an_output_or_a_source_that_is_not_there_is_not_looked_for():
    fold = Fold()
    fold.add("next", fold.add("first", 1))
    columns = fold._columns()
    with pytest.raises(IndexError, match="what is not there"):
        columns.ancestors(np.array([2]))
    columns = Columns.of(fold._graph)
    columns.refs[0] = 1  # of a call that reads itself
    with pytest.raises(IndexError, match="what is not there"):
        columns.ancestors(np.array([1]))


@pytest.mark.parametrize(("types", "source"), [([0, 0], 2), ([0, -1], 0)])
def test_a_problem_out_of_range_is_refused(types, source):
    types, *edges = np.array(types), np.array([source]), np.array([1])
    with pytest.raises(IndexError, match="what is not there"):
        compiled.typed_levels(types, *edges)
    with pytest.raises(IndexError, match="what is not there"):
        compiled.bucket(types, *edges)


def test_more_types_than_the_kernel_has_a_table_for_are_served_by_the_reference():
    problem = Problem(np.arange(3000), np.arange(2999), np.arange(1, 3000))
    assert problem.lower_bound == 3000


@pytest.mark.parametrize("module", [compiled, calls])
def test_a_call_that_reads_itself_or_what_is_not_there_has_no_edges(module):
    with pytest.raises(IndexError, match="what is not there"):
        module.edges(np.array([0, 1]), np.array([1]), np.array([0, 0, 1]), NONE, NONE, NONE)
    for ref in (2, 3, 1 << 39):
        with pytest.raises(IndexError):
            module.edges(np.array([0, 1]), np.array([ref]), np.array([0, 0, 1]), NONE, NONE, NONE)
