"""Workloads: sizes, types and bounds as published, counted by a recorder of a few lines."""

from __future__ import annotations

import pickle
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import multifold
from multifold.operands import RaggedOperand
from multifold_bench.graphs import GRAPHS
from multifold_bench.graphs.trees import (
    balanced_split,
    comb_split,
    draw_tree,
    parse_split,
    tree_lstm,
    uniform_split,
)


@dataclass(frozen=True)
class Part:
    """A call, or a part of its result."""

    call: int
    recorder: Recorder
    path: tuple[int, ...] = ()

    def split(self, n: int) -> tuple[Part, ...]:
        assert not self.path
        assert self.recorder.widths.setdefault(self.call, n) == n
        return tuple(self[i] for i in range(n))

    def __getitem__(self, i: int) -> Part:
        return Part(self.call, self.recorder, (*self.path, i))


class Recorder:
    """Keeps the type of each call and the calls that it reads, and refuses what makes no sense."""

    def __init__(self) -> None:
        self.types: list[Any] = []
        self.reads: list[set[int]] = []
        self.widths: dict[int, int] = {}  # into how many parts a call's result was split

    def add(self, op: str, *operands: Any, **static: Any) -> Part:
        reads: set[int] = set()

        def kind(x: Any) -> Any:
            if isinstance(x, Part):
                # A result in parts is always used by its parts, any other as a whole.
                assert x.recorder is self
                assert bool(x.path) == (x.call in self.widths)
                reads.add(x.call)
                return "node"
            if isinstance(x, RaggedOperand):
                return ("ragged", *{kind(item) for item in x.items})
            if isinstance(x, list):
                return tuple(map(kind, x))
            assert type(x) is int
            return "int"

        self.types.append((op, *map(kind, operands), *static.items()))
        self.reads.append(reads)
        return Part(len(self.types) - 1, self)

    def needed(self, outputs: list[Part]) -> int:
        """Return how many calls the outputs need."""
        found: set[int] = set()
        pending = [node.call for node in outputs]
        while pending:
            call = pending.pop()
            if call not in found:
                found.add(call)
                pending += self.reads[call]
        return len(found)

    def typed_levels(self) -> tuple[list[int], list[int]]:
        """Return each call's type as a number, and the most calls of it on a path to the call."""
        numbers = {name: number for number, name in enumerate(dict.fromkeys(self.types))}
        types = [numbers[name] for name in self.types]
        counts = np.zeros((len(types), len(numbers)), np.int64)
        for call, reads in enumerate(self.reads):
            if reads:
                counts[call] = counts[list(reads)].max(axis=0)
            counts[call, types[call]] += 1
        return types, counts[np.arange(len(types)), types].tolist()

    def lower_bound(self) -> int:
        """Return the sum over all types of the longest chain of calls of that type."""
        return len(set(zip(*self.typed_levels(), strict=True)))

    def reaches_the_bound(self) -> bool:
        """Return whether calls of equal type and typed level can share a launch: no cycle."""
        buckets = list(zip(*self.typed_levels(), strict=True))
        before = defaultdict(set)
        for call, reads in enumerate(self.reads):
            before[buckets[call]] |= {buckets[source] for source in reads}
        done: set[Any] = set()
        while ready := [bucket for bucket in before.keys() - done if before[bucket] <= done]:
            done.update(ready)
        return len(done) == len(before)


def recorded(name: str, seed: int = 0, batch: int | None = None) -> tuple[Recorder, list[Part]]:
    recorder = Recorder()
    return recorder, GRAPHS[name](recorder, seed, batch)


# Nodes, types and lower bound of the graphs that the generators stand for.
PUBLISHED = {
    "sst-root": (3990, 4, 27),
    "sst-nodes": (6522, 4, 27),
    "sst-two-cells": (6522, 5, 30),
    "mv-rnn": (12788, 9, 147),
    "tagger": (14159, 10, 194),
    "tagger-chars": (27496, 15, 221),
    "lattice": (14679, 10, 219),
    "encoder-decoder": (8404, 7, 84),
    "nested-rnn": (7591, 4, 1245),
    "shift-reduce": (5330, 6, 121),
    "top-down": (3408, 5, 42),
    "early-exit": (994, 4, 15),
    "grid": (1767, 3, 30),
    "typed-dag": (5680, 6, 72),
    "synthetic": (4598, 3, 13),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_minibatch_has_the_published_size(name):
    nodes, types, bound = PUBLISHED[name]
    recorder, _ = recorded(name)
    assert len(recorder.types) == pytest.approx(nodes, rel=0.15)
    assert len(set(recorder.types)) == types
    assert recorder.lower_bound() == pytest.approx(bound, rel=0.15)


@pytest.mark.parametrize("name", GRAPHS)
def test_typed_levels_reach_the_bound_where_that_is_expected(name):
    recorder, _ = recorded(name, seed=1)
    assert recorder.reaches_the_bound() == GRAPHS[name].optimal


@pytest.mark.parametrize("name", GRAPHS)
def test_schedules_reach_the_bound_where_that_is_expected_and_are_never_worse_than_depth(name):
    fold = multifold.Fold(backend="numpy")
    schedule = fold.schedule(GRAPHS[name](fold, seed=1))
    assert (schedule.certificate == "optimal") >= GRAPHS[name].optimal
    fold = multifold.Fold(backend="numpy", schedule="depth")
    assert len(schedule) <= len(fold.schedule(GRAPHS[name](fold, seed=1)))


def test_a_lattice_comes_near_the_bound_with_a_ragged_sum():
    fold = multifold.Fold(backend="numpy")
    schedule = fold.schedule(GRAPHS["lattice-ragged"](fold))
    assert len(schedule) <= 1.1 * schedule.lower_bound
    fold = multifold.Fold(backend="numpy")
    assert len(fold.schedule(GRAPHS["lattice"](fold))) <= 280


@pytest.mark.parametrize("name", ["two-cells", "modules", "sst-two-cells"])
def test_types_in_random_order_come_near_the_bound(name):
    fold = multifold.Fold(backend="numpy")
    launches = len(fold.schedule(GRAPHS[name](fold)))
    fold = multifold.Fold(backend="numpy", schedule="search")
    searched = fold.schedule(GRAPHS[name](fold))
    assert len(searched) <= launches <= 1.3 * searched.lower_bound


@pytest.mark.parametrize("name", ["two-cells", "modules"])
def test_auto_takes_at_most_three_tenths_more_launches_than_the_bound(name):
    launches = bound = 0
    for seed in range(6):
        fold = multifold.Fold(backend="numpy")
        schedule = fold.schedule(GRAPHS[name](fold, seed))
        launches += len(schedule)
        bound += schedule.lower_bound
    assert bound < launches <= 1.3 * bound


@pytest.mark.parametrize("name", GRAPHS)
def test_the_same_seed_records_the_same_calls(name):
    one, _ = recorded(name, 3, batch=4)
    again, _ = recorded(name, 3, batch=4)
    assert (one.types, one.reads) == (again.types, again.reads)
    workload = GRAPHS[name]
    assert workload.examples(3, batch=4) == workload.examples(3, batch=4)
    assert workload.examples(3, batch=4) != workload.examples(4, batch=4)


@pytest.mark.parametrize("name", GRAPHS)
def test_outputs_need_every_call(name):
    recorder, outputs = recorded(name, batch=8)
    assert recorder.needed(outputs) == len(recorder.types)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_minibatch_is_its_examples_one_after_the_other(name):
    recorder, outputs = recorded(name, seed=5, batch=3)
    apart = Recorder()
    workload = pickle.loads(pickle.dumps(GRAPHS[name]))
    examples = pickle.loads(pickle.dumps(workload.examples(seed=5, batch=3)))
    found = [node.call for example in examples for node in workload.record(apart, example)]
    assert found == [node.call for node in outputs]
    assert (apart.types, apart.reads) == (recorder.types, recorder.reads)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_number_of_examples_can_be_chosen(name):
    assert len(GRAPHS[name].examples(batch=2)) == 2
    assert len(GRAPHS[name].examples()) == GRAPHS[name].batch


def test_a_ragged_sum_has_one_type_where_lists_have_one_per_arity():
    lists, _ = recorded("lattice")
    rows, _ = recorded("lattice-ragged")
    assert len(lists.types) == len(rows.types)
    assert len({kind for kind in lists.types if kind[0] == "merge"}) == 3
    assert len({kind for kind in rows.types if kind[0] == "merge"}) == 1


@pytest.mark.parametrize("split", [uniform_split, parse_split, balanced_split, comb_split])
def test_trees_have_as_many_leaves_as_asked_for(split):
    nodes = draw_tree(np.random.default_rng(0), 20, split, ["a", "b"])
    assert len(nodes) == 39
    assert sum(isinstance(node, int) for node in nodes) == 20
    assert {node for node in nodes if isinstance(node, str)} == {"a", "b"}


def test_trees_are_lists_of_nodes_with_children_first():
    rng = np.random.default_rng(0)
    shape = ["+" if isinstance(node, str) else "w" for node in draw_tree(rng, 4, balanced_split)]
    assert "".join(shape) == "ww+ww++"
    shape = ["+" if isinstance(node, str) else "w" for node in draw_tree(rng, 4, comb_split)]
    assert "".join(shape) == "wwww+++"


def test_a_comb_of_100_000_leaves_can_be_drawn_and_recorded():
    workload = GRAPHS["comb-trees"]
    recorder = Recorder()
    workload.record(recorder, draw_tree(np.random.default_rng(0), 100_000, comb_split))
    assert len(recorder.types) == 200_000


@pytest.mark.parametrize("name", ["synthetic", "random-trees", "balanced-trees", "comb-trees"])
def test_tree_workloads_run_and_equal_the_eager_twin(name):
    model = tree_lstm(width=4)
    fold = multifold.Fold(backend="numpy")
    unfold = multifold.Unfold(model, backend="numpy")
    (folded,) = fold.apply(model, [GRAPHS[name](fold, seed=2, batch=3)])
    (eager,) = unfold.apply(model, [GRAPHS[name](unfold, seed=2, batch=3)])
    assert folded.shape == (3, 5)
    np.testing.assert_allclose(folded, eager, rtol=1e-12, atol=1e-12)
