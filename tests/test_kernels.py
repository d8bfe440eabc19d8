"""The compiled kernels do what NumPy does, and refuse what is out of range."""

from __future__ import annotations

import numpy as np
import optree
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from multifold import Fold, ragged, reads, sections
from multifold.bench.generators import WORKLOADS
from multifold.compiled import kernels
from multifold.graph import Node
from multifold.levels import chain_levels
from multifold.reads import Place

pytestmark = pytest.mark.skipif(kernels is None, reason="multifold was installed without a C compiler")


def wired(fold, outputs, monkeypatch, compiled):
    """Return all that ordering and grouping find out about some outputs."""
    for module in (reads, sections):
        monkeypatch.setattr(module, "kernels", kernels if compiled else None)
    columns, schedule = fold._columns(), fold.schedule()
    place = Place.nowhere(len(columns))
    found = reads.order_rows(columns, schedule, place, [np.array([node._ref for node in outputs])])
    grouped = sections.group(found, place, len(columns.parts))
    return [
        *found.calls,
        *(getattr(found, name) for name in ("refs", "sizes", "runs")),
        *(getattr(place, name) for name in ("launch", "row", "rows")),
        *(getattr(grouped, name) for name in sections.Sections.__slots__),
    ]


def same(fold, outputs, monkeypatch):
    pairs = zip(*(wired(fold, outputs, monkeypatch, compiled) for compiled in (False, True)), strict=True)
    for expected, got in pairs:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_wired_alike(name, monkeypatch):
    fold, workload = Fold(), WORKLOADS[name]
    outputs = [workload.record(fold, example) for example in workload.examples(batch=6)]
    same(fold, [x for x in optree.tree_leaves(outputs) if isinstance(x, Node)], monkeypatch)


@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_random_graphs_are_wired_alike(data):
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
    with pytest.MonkeyPatch.context() as monkeypatch:
        same(fold, nodes, monkeypatch)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=80))
def test_levels_are_those_of_the_longest_paths(pairs):
    edges = sorted(((min(a, b), max(a, b)) for a, b in pairs if a != b), key=lambda edge: edge[1])
    sources, readers = np.array(edges, np.int64).reshape(-1, 2).T
    level = [1] * 31
    for source, reader in edges:
        level[reader] = max(level[reader], level[source] + 1)
    assert chain_levels(31, sources, readers).tolist() == level


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


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="Expected columns of int64"):
        kernels.levels(np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros(2, np.int64))
