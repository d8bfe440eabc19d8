"""The compiled kernels do what NumPy does, and refuse what is out of range."""

from __future__ import annotations

import numpy as np
import optree
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multifold import Fold, ragged, trace
from multifold._await import calls as rounds
from multifold._await.calls import CallTable
from multifold._compiled.choice import kernels
from multifold._record.node import Node
from multifold._schedule.columns import starts
from multifold._schedule.levels import COUNTERS, Problem, chain_levels, typed_levels, typed_levels_in_numpy
from multifold._schedule.policies import bucketed, bucketed_in_numpy
from multifold._schedule.schedule import call_types, make_schedule, make_schedule_in_numpy
from multifold._traces import minibatch
from multifold._wiring import order as reads
from multifold._wiring import sections
from multifold._wiring.order import Place

pytestmark = pytest.mark.skipif(kernels is None, reason="multifold was installed without a C compiler")


def wired(fold, outputs, monkeypatch, compiled):
    """Return all that ordering and grouping find out about some outputs."""
    for module in (reads, sections):
        monkeypatch.setattr(module, "kernels", kernels if compiled else None)
    columns, schedule = fold._columns(), fold.schedule()
    place = Place.nowhere(len(columns))
    found = reads.order_rows(columns, schedule, place, [np.array([node._ref for node in outputs])])
    grouped = sections.group(found, place, len(columns.parts))
    pieces = sections.plan_reads(grouped, place.rows, len(columns.parts), len(found.sizes))
    assert [len(piece) for piece in pieces.sections] == np.bincount(
        grouped.owner, minlength=len(found.sizes)
    ).tolist()
    return [  # repr, since NumPy compares no lists of unequal lengths
        *map(repr, (pieces.sections, pieces.sources, pieces.blocks)),
        pieces.rows[: pieces.blocks[-1][2]],
        *found.calls,
        *(getattr(found, name) for name in ("refs", "sizes", "by_source")),
        *(getattr(place, name) for name in ("launch", "row", "rows")),
        *(getattr(grouped, name) for name in sections.Sections.__slots__),
    ]


def same(fold, outputs, monkeypatch):
    pairs = zip(*(wired(fold, outputs, monkeypatch, compiled) for compiled in (False, True)), strict=True)
    for expected, got in pairs:
        np.testing.assert_array_equal(got, expected)


def test_every_graph_is_wired_alike(graph, monkeypatch):
    fold = Fold()
    outputs = [graph.record(fold, example) for example in graph.examples(batch=6)]
    same(fold, [x for x in optree.tree_leaves(outputs) if isinstance(x, Node)], monkeypatch)


def test_the_entries_of_calls_begin_where_numpy_says():
    fold = Fold()
    for i in range(3):
        fold.add("sum", i, ragged([fold.add("leaf", 0.5)] * i), fold.add("none"))
    columns = fold._columns()
    for name in ("refs", "ints", "floats", "arrays", "ragged"):
        assert columns.starts(name).tolist() == starts(columns.widths(name)).tolist()


def random_fold(data):
    """Draw a graph with parts of results, ragged operands and nodes that are read whole."""
    fold = Fold()
    nodes = [fold.add("leaf", i) for i in range(data.draw(st.integers(1, 6)))]
    for _ in range(data.draw(st.integers(0, 60))):
        node = st.sampled_from(nodes)
        kind = data.draw(st.sampled_from(["one", "two", "pair", "sum", "whole"]))
        if kind == "pair":
            nodes += fold.add("pair", data.draw(node), data.draw(node)).split(2)
        elif kind == "sum":
            rows = data.draw(st.lists(st.one_of(node, st.floats(0, 1)), max_size=4))
            nodes.append(fold.add("sum", data.draw(node), ragged(rows)))
        elif kind == "whole":
            nodes.append(fold.add("whole", data.draw(node), data.draw(node).no_batch()))
        else:
            nodes.append(fold.add(kind, *(data.draw(node) for _ in range(1 + (kind == "two")))))
    return fold


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_random_graphs_are_wired_alike(data):
    fold = random_fold(data)
    nodes = [Node(fold._graph, call) for call in range(len(fold))]
    with pytest.MonkeyPatch.context() as monkeypatch:
        same(fold, nodes, monkeypatch)


def merged(traces, monkeypatch, compiled):
    """Return all that merging finds out about some traces."""
    monkeypatch.setattr(minibatch, "kernels", kernels if compiled else None)
    merger = minibatch.Merger(traces)
    columns, found = merger.columns(), merger.merged
    schedule = merger.schedule(columns)
    return [
        found.calls,
        *found.columns.values(),
        *found.results,
        list(found.sizes.items()),
        *([] if schedule is None else [schedule.calls, schedule.bounds, [schedule.lower_bound]]),
    ]


def merged_alike(traces, monkeypatch):
    expected, got = (merged(traces, monkeypatch, compiled) for compiled in (False, True))
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(other, one)
    return got


def test_every_graph_is_merged_alike(graph, monkeypatch):
    merged_alike([trace(graph.record, x) for x in graph.examples(batch=6)], monkeypatch)


def words(fold, word):
    """Record a call for each letter: ``r`` reads all that are there, ``w`` shares one, ``p`` has parts."""
    nodes = [fold.add("begin", len(word))]
    for letter in word:
        if letter == "r":
            nodes.append(fold.add("sum", ragged([*nodes, 0.5])))
        elif letter == "w":
            nodes.append(fold.add("whole", nodes[-1].no_batch(), nodes[0]))
        elif letter == "p":
            nodes += fold.add("pair", nodes[-1]).split(2)
        else:
            nodes.append(fold.add(letter, nodes[-1], nodes[len(nodes) // 2]))
    return {"last": nodes[-1], "all": nodes, "number": [7, nodes[0]]}


@given(st.lists(st.text("abcrp", max_size=8), min_size=1, max_size=6), st.booleans())
@settings(deadline=None, max_examples=60)
def test_random_traces_are_merged_alike(texts, shared):
    with pytest.MonkeyPatch.context() as monkeypatch:
        merged_alike([trace(words, text + "w" * shared) for text in texts], monkeypatch)


def test_examples_that_are_a_cycle_together_have_no_schedule_by_levels(monkeypatch):
    traces = [trace(words, text) for text in ("ab", "ba")]
    assert len(merged_alike(traces[:1], monkeypatch)) == len(merged_alike(traces, monkeypatch)) + 3


@pytest.mark.parametrize("value", [-5, 1 << 39, 1 << 50])
def test_a_broken_trace_is_refused_or_does_no_harm(value):
    right, refused = trace(words, "arbp"), 0
    for place in range(len(right.integers)):
        broken = trace(words, "arbp")
        broken.integers[place] = value
        try:
            merger = minibatch.Merger([right, broken])
            merger.schedule(merger.columns())
        except IndexError:
            refused += 1
    assert refused > len(right.integers) / 2  # not the numbers, and what only makes other launches


def test_a_trace_that_is_cut_short_is_refused():
    made = trace(words, "ab")
    object.__setattr__(made, "integers", made.integers[:-1])
    with pytest.raises(IndexError, match="what is not there"):
        minibatch.Merger([made])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=80))
def test_levels_are_those_of_the_longest_paths(pairs):
    edges = sorted(((min(a, b), max(a, b)) for a, b in pairs if a != b), key=lambda edge: edge[1])
    sources, readers = np.array(edges, np.int64).reshape(-1, 2).T
    level = [1] * 31
    for source, reader in edges:
        level[reader] = max(level[reader], level[source] + 1)
    assert chain_levels(31, sources, readers).tolist() == level


@st.composite
def problems(draw):
    """Draw types of calls, of few or of many, and edges from earlier to later ones."""
    count, kinds = draw(st.integers(1, 60)), draw(st.sampled_from([1, 2, 5, 90]))
    types = np.array(draw(st.lists(st.integers(0, kinds - 1), min_size=count, max_size=count)), np.int64)
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    pairs = draw(st.lists(ends, max_size=3 * count))
    edges = sorted(((min(a, b), max(a, b)) for a, b in pairs if a != b), key=lambda edge: edge[1])
    return Problem(types, *np.array(edges, np.int64).reshape(-1, 2).T)


@given(problems())
@settings(deadline=None)
def test_typed_levels_and_launches_of_random_problems_are_alike(problem):
    for found, expected in zip(typed_levels(problem), typed_levels_in_numpy(problem), strict=True):
        np.testing.assert_array_equal(found, expected)
    for levels in (problem.levels, problem.depths):
        np.testing.assert_array_equal(bucketed(problem, levels), bucketed_in_numpy(problem, levels))


def test_types_on_a_wide_cycle_are_counted_by_depth_as_numpy_does():
    types = np.tile(np.arange(COUNTERS + 3), 3)
    problem = Problem(types, np.arange(len(types) - 1), np.arange(1, len(types)))
    for found, expected in zip(typed_levels(problem), typed_levels_in_numpy(problem), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert problem.levels.tolist() == list(range(1, len(types) + 1))


def scheduled(fold, make, pending):
    """Return the launches of some calls, and their lower bound."""
    columns = fold._columns()
    types = call_types(columns, columns.shared_calls)
    schedule = make(columns, columns, types, pending, "auto")
    return schedule.calls, schedule.bounds, schedule.lower_bound


def test_every_graph_is_scheduled_alike(graph):
    fold = Fold()
    for example in graph.examples(batch=6):
        graph.record(fold, example)
    for pending in (np.arange(len(fold)), np.arange(len(fold) // 3, len(fold))):
        found = [scheduled(fold, make, pending) for make in (make_schedule, make_schedule_in_numpy)]
        for compiled, expected in zip(*found, strict=True):
            np.testing.assert_array_equal(compiled, expected)


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_what_outputs_need_is_found_alike(data):
    fold = random_fold(data)
    outputs = np.array(data.draw(st.lists(st.integers(0, len(fold) - 1), max_size=4)), np.int64)
    columns = fold._columns()
    np.testing.assert_array_equal(columns.ancestors(outputs), columns.ancestors_in_numpy(outputs))


def test_an_output_or_a_source_that_is_not_there_is_not_looked_for():
    fold = Fold()
    fold.add("next", fold.add("first", 1))
    columns = fold._columns()
    with pytest.raises(IndexError, match="what is not there"):
        columns.ancestors(np.array([2]))
    columns.refs[0] = 1  # of a call that reads itself
    with pytest.raises(IndexError, match="what is not there"):
        columns.ancestors(np.array([1]))


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_the_calls_of_a_round_are_selected_alike(data):
    fold = random_fold(data)
    tables = [CallTable(fold._graph), CallTable(fold._graph)]
    for number in range(1, 4):
        read = np.array(data.draw(st.lists(st.integers(0, len(fold) - 1), max_size=5)), np.int64)
        found = []
        for table, compiled in zip(tables, (kernels, None), strict=True):
            with pytest.MonkeyPatch.context() as monkeypatch:
                monkeypatch.setattr(rounds, "kernels", compiled)
                table.extend()
                found.append((*table.select(read), table._starts.values))
            table.result.values[found[-1][0]] = number
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(*[table._number.values for table in tables])


@given(st.lists(st.integers(-3, 40), max_size=90) | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9))
def test_distinct_integers_are_found_alike(values):
    found = []
    for compiled in (kernels, None):
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(rounds, "kernels", compiled)
            found.append(rounds.distinct(np.array(values, np.int64)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("column", ["refs", "starts", "awaited"])
def test_a_round_of_calls_that_are_not_there_is_refused(column):
    fold = Fold()
    fold.add("next", fold.add("first", 1))
    table, awaited = CallTable(fold._graph), np.array([7 if column == "awaited" else 1])
    table.extend()
    if column == "refs":
        table._values["refs"].values[0] = 9
    if column == "starts":
        table._starts.values[2] = 5
    with pytest.raises(IndexError, match="what is not there"):
        table.select(awaited)


@pytest.mark.parametrize(("types", "source"), [([0, 0], 2), ([0, -1], 0)])
def test_a_problem_out_of_range_is_refused(types, source):
    columns = np.array(types), np.array([source]), np.array([1])
    with pytest.raises(IndexError, match="what is not there"):
        kernels.typed_levels(*columns, np.empty(1, np.int64), np.empty(2, np.int64))
    with pytest.raises(IndexError, match="what is not there"):
        kernels.bucket(columns[0], np.ones(2, np.int64), *columns[1:], np.empty(2, np.int64))


def test_more_types_than_the_kernel_has_a_table_for_are_served_by_numpy():
    problem = Problem(np.arange(3000), np.arange(2999), np.arange(1, 3000))
    assert not kernels.typed_levels(
        problem.types, problem.sources, problem.readers, np.empty(3000, np.int64), np.empty(3000, np.int64)
    )
    assert problem.lower_bound == 3000


def test_a_source_that_is_not_there_is_refused():
    with pytest.raises(IndexError, match="what is not there"):
        chain_levels(3, np.array([3]), np.array([1]))


@pytest.mark.parametrize("ref", [1 << 39, 1 << 50])
def test_a_reference_to_what_is_not_there_is_refused(ref):
    fold = Fold()
    fold.add("next", fold.add("first", 1))
    columns, schedule = fold._columns(), fold.schedule()
    columns.refs[0] = ref
    with pytest.raises(IndexError, match="what is not there"):
        reads.order_rows(columns, schedule, Place.nowhere(2), [np.array([1])])


@pytest.mark.parametrize("column", ["block", "owner", "begin", "size", "by_operand"])
@pytest.mark.parametrize("value", [-1, 1 << 40])
def test_a_section_of_what_is_not_there_is_refused(column, value):
    fold = Fold()
    fold.add("next", fold.add("first", 1))
    columns, place = fold._columns(), Place.nowhere(2)
    found = reads.order_rows(columns, fold.schedule(), place, [np.array([1])])
    grouped = sections.group(found, place, len(columns.parts))
    columns_of = {name: getattr(grouped, name).copy() for name in sections.Sections.__slots__}
    columns_of[column][0] = value
    with pytest.raises(IndexError, match="what is not there"):
        sections.plan_reads(
            sections.Sections(**columns_of), place.rows, len(columns.parts), len(found.sizes)
        )


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="Expected columns of int64"):
        kernels.levels(np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros(2, np.int64))
