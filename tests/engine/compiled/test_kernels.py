"""Compiled functions do what their references do, by name, and refuse what is out of range."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections import Counter, deque
from types import SimpleNamespace

import numpy as np
import optree
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multifold import Fold, ragged, trace, traces
from multifold._engine import compiled
from multifold._engine.compiled import COUNTERS
from multifold._engine.compiled.arrays import PART_BITS
from multifold._engine.compiled.reference import covers, recording
from multifold._engine.compiled.sources import SOURCES, uncompiled
from multifold._engine.plan.columns import Columns
from multifold._engine.plan.levels import Problem
from multifold._engine.plan.policies import bucketed
from multifold._engine.plan.schedule import call_types, make_schedule
from multifold._engine.plan.wiring import Place, Planned, Wiring, plan_and_wire, wire
from multifold._engine.record.kinds import COLUMNS
from multifold._engine.record.node import Node, SharedNode
from multifold._engine.traces.minibatch import Merger

pytestmark = pytest.mark.skipif(not compiled.in_use, reason=compiled.state())


def loaded_uncompiled():
    """Return the modules as they run uncompiled; imports go on to find the compiled ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name in SOURCES:
            full = f"multifold._engine.compiled.{name}"
            patch.setitem(sys.modules, full, sys.modules[full])  # is put back in the end
        return uncompiled()


calls, plans, merging, rounds, tasks, glue = loaded_uncompiled().values()
NONE = np.zeros(0, np.int64)
REFERENCES = {
    "_calls": calls,
    "_covers": covers,
    "_rows": plans,
    "_merging": merging,
    "_table": rounds,
    "_tasks": tasks,
    "_lazy": glue,
    "_recording": recording,
}


def defines(module, name):
    """Return whether a module defines a name, and did not import it."""
    own = module.__name__
    return name in vars(module) and getattr(vars(module)[name], "__module__", own) == own


FUNCTIONS = {
    name: getattr(module, name)
    for module in REFERENCES.values()
    for name in compiled.__all__
    if name.islower() and defines(module, name)
}


def test_every_name_of_the_door_is_compiled_and_has_a_reference():
    names = set(compiled.__all__) - {"in_use", "missing", "state"}
    for name in names:
        (module,) = [x for x in REFERENCES.values() if defines(x, name)]
        found = getattr(compiled, name)
        reference = getattr(module, name)
        assert found is not reference or isinstance(found, int)
        if isinstance(reference, int):
            assert found == reference
        elif not isinstance(reference, type):
            assert list(inspect.signature(found).parameters) == list(
                inspect.signature(reference).parameters
            )


def test_no_compiled_function_is_left_out_of_the_door():
    for name in REFERENCES:
        module = importlib.import_module(f"multifold._engine.compiled.{name}")
        own = {key for key in vars(module) if not key.startswith("_") and defines(module, key)}
        functions = {key for key in own if callable(vars(module)[key]) and key.islower()}
        assert functions <= set(compiled.__all__)


def with_references(fn, *arguments):
    """Return what a function returns with the references in the place of the compiled functions."""
    with pytest.MonkeyPatch.context() as patch:
        for name, reference in FUNCTIONS.items():
            patch.setattr(compiled, name, reference)
        return fn(*arguments)


def wired(fold, outputs):
    """Return all that planning in one call and wiring find out about some outputs."""
    columns = fold._columns()
    asked = [np.array([node._ref for node in outputs])]
    found = []
    for wiring in (
        wire(columns, fold.schedule(), Place.nowhere(len(columns)), asked),
        planned(columns, asked),
    ):
        if isinstance(wiring, Wiring):
            place = wiring.place
            found += map(repr, (wiring.launches, wiring.outputs, wiring.sources, place.rows))
            found += [launch.calls for launch in wiring.launches]
            found += [*wiring.indices, place.launch, place.row]
        else:
            found += wiring
    return found


def planned(columns, asked):
    """Return the wiring of what is planned in one call, or what a policy has to know."""
    found = plan_and_wire(columns, columns, asked, Place.nowhere(len(columns)), None)
    return found.wiring if isinstance(found, Planned) else found


def same(fold, outputs):
    found = wired(fold, outputs)
    expected = with_references(wired, fold, outputs)
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(other, one)
        assert getattr(one, "dtype", None) == getattr(other, "dtype", None)


def test_every_graph_is_wired_alike(graph):
    fold = Fold()
    outputs = [graph.record(fold, example) for example in graph.examples(batch=6)]
    same(fold, [x for x in optree.tree_leaves(outputs) if isinstance(x, Node)])


@pytest.mark.parametrize("operands", [61, 62, 63])
def test_rows_are_ordered_by_as_many_operands_as_a_word_has_room_for(operands):
    fold = Fold()
    rng = np.random.default_rng(0)
    leaves = [fold.add(name, fold.add("c", float(i))) for i, name in enumerate("ab")]
    first = np.zeros((2, operands), np.int64)
    last = np.ones((2, operands), np.int64)
    # they differ from those before them in the last operand only
    first[1, -1] = 1
    last[1, -1] = 0
    reads = np.concatenate([first, last, [np.arange(operands) % 2], rng.integers(2, size=(1, operands))])
    same(fold, [fold.add("f", *(leaves[x] for x in read)) for read in np.concatenate([reads, reads[::-1]])])


def test_rows_that_nobody_reads_stay_in_the_order_of_recording():
    fold = Fold()
    nodes = [fold.add("leaf", float(i)) for i in range(300)]
    same(fold, nodes[-1:150:-7])


@pytest.mark.parametrize(("launches", "parts"), [(65534, 1), (65536, 1), (40000, 2), (22000, 3)])
def test_reads_are_grouped_alike_whether_or_not_parts_are_numbered_by_16_bits(launches, parts):
    number = np.arange(launches)
    rng = np.random.default_rng(0)
    reads = rng.integers(launches, size=500) | rng.integers(parts, size=500) << PART_BITS
    reads = np.append(reads, [-1, launches - 1 | (parts - 1) << PART_BITS, 0, -2])
    starts = np.zeros(launches + 1, np.int64)
    found = []
    for module in (compiled, plans):
        none = NONE, starts[:1], NONE, starts, NONE, NONE, NONE
        signatures = NONE, NONE, starts[:1], NONE, NONE
        place = number.copy(), 0 * number, [1] * launches
        groups = reads, np.array([250, 254])
        wants = parts, False, (tuple,) * 3, None
        *wired, indices = module.wire(*none, *groups, *signatures, *place, *wants)
        found.append([wired, [rows.tolist() for rows in indices]])
    assert str(found[0]) == str(found[1])


@pytest.mark.parametrize("kinds", [7, 8, 9])
def test_rows_are_ordered_by_source_where_there_are_few_stretches(kinds):
    fold = Fold()
    leaves = [fold.add(name, float(i)) for i, name in enumerate("ab")]
    reads = [[leaves[i >> bit & 1] for bit in range(4)] for i in (*range(kinds), *range(kinds))]
    same(fold, [fold.add("f", *read) for read in reads])


def test_the_reads_of_a_call_come_in_the_order_of_its_operands():
    fold = Fold()
    nodes = [fold.add("leaf", float(i)) for i in range(40)]
    for i in range(1, 40):
        fold.add("sum", ragged(nodes[-i::-1], ()))
    columns = fold._columns()
    pending = np.arange(len(fold))
    found, expected = (edges(pending, *columns.reads) for edges in (compiled.edges, calls.edges))
    np.testing.assert_array_equal(found, expected)


def test_the_entries_of_calls_begin_one_after_the_other():
    fold = Fold()
    for i in range(3):
        fold.add("sum", i, ragged([fold.add("leaf", 0.5)] * i, ()), fold.add("none"))
    columns = fold._columns()
    for name in ("refs", "ints", "floats", "arrays", "ragged"):
        widths = [getattr(columns.signatures[number], name) for number in columns.signature]
        assert np.diff(columns.starts(name)).tolist() == widths


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
            nodes.append(fold.add("sum", data.draw(node), ragged(rows, ())))
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
    same(fold, nodes)


def merged(traces):
    """Return all that merging finds out about some traces."""
    merger = Merger(traces)
    merger.columns()
    return [merger.calls, *merger.integers.values(), *merger.results, list(merger.sizes.items())]


def merged_alike(traces):
    got = merged(traces)
    expected = with_references(merged, traces)
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(other, one)
    return got


def test_every_graph_is_merged_alike(graph):
    merged_alike([trace(graph.record, x) for x in graph.examples(batch=6)])


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
    merged_alike([trace(words, text + "w" * shared) for text in texts])


@given(st.lists(st.text("abcrpw", max_size=8), min_size=1, max_size=6))
@settings(deadline=None, max_examples=60)
def test_random_examples_are_cut_alike(texts):
    found, expected = (run(lambda: traces(words, texts)) for run in (lambda f: f(), with_references))
    for one, other in zip(found, expected, strict=True):
        assert (one, one.lines.tolist()) == (other, other.lines.tolist())


@pytest.mark.parametrize("value", [-5, 1 << 39, 1 << 50])
def test_a_broken_trace_is_refused_or_does_no_harm(value):
    right = trace(words, "arbp")
    refused = 0
    for place in range(len(right.integers)):
        broken = trace(words, "arbp")
        broken.integers[place] = value
        try:
            Merger([right, broken]).columns()
        except IndexError:
            refused += 1
    assert refused > len(right.integers) / 2  # not the numbers, and what only makes other launches


def merged_or_refused(merge, arguments):
    """Return all that merging returns, with the dtypes, or nothing where it refuses."""
    try:
        calls, sizes, columns = merge(*arguments)
    except IndexError:
        return None
    return [(x.tolist(), str(x.dtype)) for x in (calls, sizes, *columns)]


def arguments_of_merge(*texts):
    """Return what merging is called with for traces of some words."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        merge = compiled.merge
        patch.setattr(compiled, "merge", lambda *arguments: found.append(arguments) or merge(*arguments))
        Merger([trace(words, text) for text in texts])
    return list(found[0])


NEIGHBOURS = (-(1 << 40), -2, -1, 1, 2, 1 << 40)
"""How much a number changes: with 1 << 40 a reference is to the next part of a result."""
LIMITS = (-1, 0, 1, 1 << 40, (1 << 40) + 1, 1 << 41)


@pytest.mark.parametrize("texts", [("rp",), ("ap", "par"), ("", "rpr", "wp")], ids=str)
@pytest.mark.parametrize("argument", [0, 1], ids=["integers", "signatures"])
def test_a_changed_integer_is_merged_or_refused_alike(argument, texts):
    right = arguments_of_merge(*texts)
    assert merged_or_refused(merging.merge, right) == merged_or_refused(compiled.merge, right) is not None
    refused = 0
    for place, value in enumerate(right[argument].tolist()):
        for other in (*(value + more for more in NEIGHBOURS), *LIMITS):
            changed = right[argument].copy()
            changed[place] = other
            arguments = [changed if n == argument else x for n, x in enumerate(right)]
            found = merged_or_refused(merging.merge, arguments)
            assert found == merged_or_refused(compiled.merge, arguments), (place, value, other)
            refused += found is None
    assert refused


def test_a_trace_that_is_cut_short_is_refused():
    made = trace(words, "ab")
    object.__setattr__(made, "integers", made.integers[:-1])
    with pytest.raises(IndexError, match="what is not there"):
        Merger([made])


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=80))
def test_levels_are_those_of_the_longest_paths(pairs):
    edges = sorted(((min(a, b), max(a, b)) for a, b in pairs if a != b), key=lambda edge: edge[1])
    level = [1] * 31
    for source, reader in edges:
        level[reader] = max(level[reader], level[source] + 1)
    ends = np.ascontiguousarray(np.array(edges, np.int64).reshape(-1, 2).T)
    assert Problem(np.arange(31), *ends).depths.tolist() == level


@st.composite
def problems(draw):
    """Draw types of calls, of few or of many, and edges from earlier to later ones."""
    count = draw(st.integers(1, 60))
    kinds = draw(st.sampled_from([1, 2, 5, 90]))
    types = np.array(draw(st.lists(st.integers(0, kinds - 1), min_size=count, max_size=count)), np.int64)
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    pairs = draw(st.lists(ends, max_size=3 * count))
    edges = sorted(((min(a, b), max(a, b)) for a, b in pairs if a != b), key=lambda edge: edge[1])
    return Problem(types, *np.ascontiguousarray(np.array(edges, np.int64).reshape(-1, 2).T))


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


def heights_of(problem):
    """Return the typed levels of calls counted from the sinks: those of the problem turned round."""
    last = len(problem) - 1
    columns = problem.types, last - problem.readers, last - problem.sources
    turned = Problem(*(np.ascontiguousarray(column[::-1]) for column in columns))
    return np.ascontiguousarray(turned.levels[::-1])


def test_heights_are_levels_counted_from_the_end():
    sources, readers = np.array([[0, 1, 0, 2], [2, 2, 3, 4]])
    assert heights_of(Problem(np.array([0, 0, 0, 1, 0]), sources, readers)).tolist() == [3, 3, 2, 1, 1]


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


def widths_of(fold):
    """Return how many entries a call of each signature has in each column."""
    return np.array([[getattr(one, name) for name in COLUMNS] for one in fold._graph.signatures], np.int64)


def all_of(table, read, signatures):
    """Return all that a table says of the calls of a round."""
    found = table.window(read, signatures)
    given = found[0][: found[1]]
    calls = found[0][found[1] :]
    entries = [table.at(column, calls) for column in range(len(COLUMNS))]
    placed = table.place(given, len(found[0]))
    return [*found, *entries, *placed, table.renumbered(np.append(found[0], -1)), table.result, table.row]


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_the_calls_of_a_round_are_selected_alike(data):
    fold = random_fold(data)
    tables = [module.TableBase(fold._graph) for module in (compiled, rounds)]
    for number in range(1, 5):
        read = np.array(data.draw(st.lists(st.integers(0, len(fold) - 1), max_size=5)), np.int64)
        for table in tables:
            table.grow(widths_of(fold))
        found = [all_of(table, read, len(fold._graph.signatures)) for table in tables]
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)
        kept, given, *_ = found[0]
        for table in tables:
            table.store(kept[given:], number, np.arange(len(kept) - given)[::-1].copy())
        for _ in range(data.draw(st.integers(0, 70))):  # more than a new table has room for
            fold.add("later", Node(fold._graph, len(fold) - 1), 1, ragged([Node(fold._graph, 0), 2.5]))


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_rounds_are_cut_out_alike(data):
    fold = random_fold(data)
    tables = [module.TableBase(fold._graph) for module in (compiled, rounds)]
    for table in tables:
        table.grow(widths_of(fold))
    for number in range(1, 5):
        read = np.array(data.draw(st.lists(st.integers(0, len(fold) - 1), max_size=5)), np.int64)
        found = []
        for table in tables:
            kept, first, *columns = table.window(read, len(fold._graph.signatures))
            place = table.place(kept[:first], len(kept))
            found.append(repr((kept, first, columns, place, table.renumbered(read))))
            table.store(kept[first:], number, np.arange(len(kept) - first))
        assert found[0] == found[1]


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_the_next_calls_and_their_rows_are_found_alike(data):
    fold = random_fold(data)
    tables = [module.TableBase(fold._graph) for module in (compiled, rounds)]
    read = np.array(data.draw(st.lists(st.integers(0, len(fold) - 1), min_size=1, max_size=5)), np.int64)
    rank = np.array(data.draw(st.permutations(range(len(fold._graph.signatures)))), np.int64)
    for table in tables:
        table.grow(widths_of(fold))
    for number in range(1, len(fold) + 2):  # each round runs something until all has run
        found = []
        for table in tables:
            calls, begins = table.frontier(read, rank, 0)
            found.append([calls, begins])
            counts = np.diff(begins).tolist()
            signatures = np.argsort(rank).tolist()
            widths = [fold._graph.signatures[signature].refs for signature in signatures]
            launches = [*zip(counts, widths, [number] * len(counts), strict=True)]
            ordered, rows, groups = table.launch_rows(calls, launches, calls)
            both = np.repeat(read, 2) | [0, 1 << 40] * len(read)  # two parts of each
            found[-1] += [
                *table.arrived(both, [2] * len(read)),
                ordered,
                rows,
                table.result,
                table.row,
                *(x for pair in groups for x in pair),
            ]
        for one, other in zip(*found, strict=True):
            np.testing.assert_array_equal(one, other)
    assert not len(found[0][0]) and all((table.result[read] > 0).all() for table in tables)


@pytest.mark.parametrize("module", [compiled, rounds])
def test_the_next_calls_are_found_again_where_the_order_is_not_one_for_them(module):
    fold = Fold()
    fold.add("second", fold.add("first", 1))
    table = module.TableBase(fold._graph)
    table.grow(widths_of(fold))
    first = np.array([0])
    second = np.array([1])
    assert table.frontier(second, np.array([0, 1]), 1) is not None
    assert table.frontier(first, np.array([0, 1]), 1) is None  # it is awaited, and is not among the last
    assert table.frontier(second, np.array([0]), 0) is None  # it has no place in the order
    assert table.frontier(second, np.array([], np.int64), 0) is None


@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.data())
def test_awaited_rows_are_located_alike(launch, data):
    row = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(launch), max_size=len(launch))))
    launch = np.array(launch)
    rows = data.draw(st.lists(st.integers(1, 9), min_size=13, max_size=13))
    refs = np.array(data.draw(st.lists(st.integers(0, len(launch) - 1), max_size=50)), np.int64)
    refs |= (
        np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(refs), max_size=len(refs))), int) << 40
    )
    found = [module.located(refs, launch, row, rows) for module in (compiled, tasks)]
    assert [(x[0], x[1].tolist(), x[2].tolist(), bool(x[3])) for x in found[:1]] == [
        (x[0], x[1].tolist(), x[2].tolist(), bool(x[3])) for x in found[1:]
    ]


@pytest.mark.parametrize("module", [compiled, tasks])
def test_rows_that_are_all_of_a_result_in_order_are_straight(module):
    place = np.array([0, 1, 1, 1]), np.array([0, 0, 1, 2]), [1, 3]
    for read, straight in (
        ([1, 2, 3], True),
        ([1, 2], False),
        ([2, 1, 3], False),
        ([0], True),
        ([0, 1], False),
    ):
        assert module.located(np.array(read), *place)[-1] == straight


@given(st.lists(st.integers(-3, 40), max_size=90) | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9))
def test_distinct_integers_are_those_that_numpy_finds(values):
    values = np.array(values, np.int64)
    expected = np.unique(values, return_inverse=True, return_counts=True)
    for one, other in zip(compiled.distinct(values), expected, strict=True):
        np.testing.assert_array_equal(one, other)


class Task:
    """A task that has an example, and a step for each of some requests, the last of which it raises."""

    def __init__(self, example, steps):
        self.example = example
        self.steps = iter(steps)
        self.context = self

    def run(self, method, argument):
        found = method(argument)
        if isinstance(found, Exception):
            raise found
        return found

    def step(self, _):
        return next(self.steps)


class Request:
    graph = "graph"
    nodes = (1,)


class Empty(Request):
    nodes = ()

    def __repr__(self):  # names a test, so it is the same in each process
        return "Empty()"


@pytest.mark.parametrize("module", [compiled, tasks])
@pytest.mark.parametrize("last", [KeyError(), Empty(), 7, StopIteration(3)], ids=repr)
def test_tasks_run_until_one_does_not_wait_for_values(module, last):
    waits = Task(0, [Request()])
    other = Task(1, [last])
    gone = Task(2, [])
    graph = SimpleNamespace(signature=[0])
    owners = module.Owners(graph, 8)
    ready = deque((task, task.step, None) for task in (gone, waits, other, waits))
    open_tasks = {waits: None, other: None}
    found = module.run_ready(ready, open_tasks, Request, "graph", None, (), owners)
    raised = isinstance(last, Exception)
    assert found == (other, None if raised else last, last if raised else None)
    assert type(open_tasks[waits]) is Request and len(ready) == 1
    assert owners.of_calls.tolist() == [0]  # the first that ran has recorded all
    assert module.run_ready(deque(), open_tasks, Request, "graph", None, (), None) is None


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 80), st.booleans()), max_size=20))
def test_calls_have_the_owners_that_recorded_them(steps):
    graph = SimpleNamespace(signature=np.zeros(0, np.int64))
    both = [x.Owners(graph, 5) for x in (compiled, tasks)]
    expected = []
    ended = set()
    total = Counter()
    for example, count, ends in steps:
        expected += [example] * count
        graph.signature = np.append(graph.signature, np.arange(count))
        total[example] += count * (example not in ended)
        for owners in both:
            owners.note(example)
            if ends:
                assert owners.end(example) == total[example]
        if ends:
            ended.add(example)
            del total[example]
        for owners in both:
            assert owners.of_calls.tolist() == expected
            assert owners.total == total.total()
            assert owners.load == sum(min(count, 5) for count in total.values())


@pytest.mark.parametrize("module", [compiled, tasks])
def test_a_task_that_leaves_a_with_open_does_not_wait(module):
    task = Task(0, [Request()])
    found = module.run_ready(
        deque([(task, task.step, 0)]), {task: None}, Request, "graph", lambda: 2, 1, None
    )
    assert found[0] is task and type(found[1]) is Request and found[2] is None


@given(st.lists(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=4), max_size=5))
def test_what_tasks_wait_for_is_found_alike(asked):
    fold = Fold()
    nodes = [[SharedNode(fold._graph, r) if x else Node(fold._graph, r) for r, x in one] for one in asked]
    waiting = [(Task(example, ()), one) for example, one in enumerate(nodes)]
    found = [module.awaited(waiting, SharedNode) for module in (compiled, tasks)]
    assert [[list(column) for column in one] for one in found[:1]] == [
        [list(column) for column in one] for one in found[1:]
    ]
    assert found[0][0].dtype == found[0][1].dtype == np.int64


@pytest.mark.parametrize("damaged", ["refs", "widths", "awaited", "members"])
def test_a_round_of_calls_that_are_not_there_is_refused(damaged):
    fold = Fold()
    fold.add("next", fold.add("first", 1), ragged([fold.add("other")]))
    table = compiled.TableBase(fold._graph)
    widths = widths_of(fold)
    if damaged in ("refs", "members"):
        getattr(fold._graph, damaged)[0] = 9
    if damaged == "widths":
        widths[2, 0] = 5
    table.grow(widths)
    with pytest.raises(IndexError, match="what is not there"):
        table.window(np.array([7 if damaged == "awaited" else 2]), 3)
    for call in (-1, 3):
        for refused in (
            lambda call=call: table.at(0, np.array([call])),
            lambda call=call: table.place(np.array([call]), 1),
            lambda call=call: table.store(np.array([call]), 1, np.array([0])),
        ):
            with pytest.raises(IndexError, match="what is not there"):
                refused()
    with pytest.raises(IndexError, match="what is not there"):
        table.renumbered(np.array([3]))


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


@pytest.mark.parametrize("ref", [1, 1 << 39, 1 << 50])
@pytest.mark.parametrize("module", [compiled, plans])
def test_a_reference_to_the_call_itself_or_to_what_is_not_there_is_refused(module, ref, monkeypatch):
    monkeypatch.setattr(compiled, "wire", module.wire)
    fold = Fold()
    fold.add("next", fold.add("first", 1))
    columns = fold._columns()
    schedule = fold.schedule()
    columns.refs[0] = ref
    with pytest.raises(IndexError):
        wire(columns, schedule, Place.nowhere(2), [np.array([1])])


@pytest.mark.parametrize("module", [compiled, calls])
def test_a_call_that_reads_itself_or_what_is_not_there_has_no_edges(module):
    with pytest.raises(IndexError, match="what is not there"):
        module.edges(np.array([0, 1]), np.array([1]), np.array([0, 0, 1]), NONE, NONE, NONE)
    for ref in (2, 3, 1 << 39):
        with pytest.raises(IndexError):
            module.edges(np.array([0, 1]), np.array([ref]), np.array([0, 0, 1]), NONE, NONE, NONE)


def test_other_dtypes_and_orders_are_refused():
    for column in (np.zeros(1, np.int32), np.zeros(4, np.int64)[::2], np.zeros((1, 1), np.int64), None):
        with pytest.raises((TypeError, ValueError)):
            compiled.typed_levels(column, np.zeros(0, np.int64), np.zeros(0, np.int64))
