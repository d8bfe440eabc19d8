"""Compiled wiring does what its reference does, for known graphs and random ones."""

from __future__ import annotations

import numpy as np
import optree
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_references import NONE, calls, plans, random_fold, with_references

from multifold import Fold, ragged
from multifold._engine import compiled
from multifold._engine.compiled.arrays import PART_BITS
from multifold._engine.plan.wiring import Place, Planned, Wiring, plan_and_wire, wire
from multifold._engine.record.node import Node

pytestmark = pytest.mark.skipif(not compiled.in_use, reason=compiled.state())


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


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_random_graphs_are_wired_alike(data):
    fold = random_fold(data)
    nodes = [Node(fold._graph, call) for call in range(len(fold))]
    same(fold, nodes)


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
