"""The benchmarks: a harness that believes no time before its result, and contenders that agree."""

from __future__ import annotations

import itertools
import json
import sys
import textwrap
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import threadpoolctl

import multifold
from multifold import MismatchError
from multifold._engine.frameworks import registry
from multifold._measure import machine
from multifold._measure.contenders import Subject
from multifold._measure.timing import Step
from multifold._measure.workloads import BinaryBenchmark, BinaryTree, Branch
from multifold_bench import hand, results
from multifold_bench.contenders import InProcess, loop
from multifold_bench.datasets import DatasetError
from multifold_bench.dynet_process import contender as dynet_contender
from multifold_bench.dynet_process import flat
from multifold_bench.graphs import GRAPHS
from multifold_bench.hand.jax import pack
from multifold_bench.hand.levels import binary_levels, child_sum_levels, frontier_levels
from multifold_bench.harness import Contender, Pace, measure
from multifold_bench.plan import measure_planning
from multifold_bench.step import Setting, make_contenders, measure_step
from multifold_bench.workloads import WORKLOADS, random_trees

# ---- the harness ---------------------------------------------------------------------------------


class Scripted(Contender):
    """A contender that computes as it is told, and writes down what it was given."""

    def __init__(self, name, compute=np.sqrt, seconds=1.0, diary=None):
        self.name = name
        self.compute = compute
        self.seconds = seconds
        self.diary = [] if diary is None else diary

    def step(self, prepared):
        self.diary.append((self.name, prepared))
        values = self.compute(np.array([float(prepared)]))
        return Step(self.seconds, lambda: {"the values": values})


def test_contenders_take_turns_on_a_new_minibatch_each_round():
    diary = []
    one = Scripted("one", diary=diary)
    two = Scripted("two", diary=diary)
    measure([one, two], range(4), Pace(2, warmup=1), reference=one)
    assert diary == [(name, i) for i in range(4) for name in ("one", "two")]


def test_only_rounds_behind_the_warm_up_count():
    one = Scripted("one", seconds=2.0)
    (timing,) = measure([one], range(5), Pace(3, warmup=1), reference=one)
    assert (timing.first, timing.rounds) == (2.0, {0: 2.0, 1: 2.0, 2: 2.0})


@pytest.mark.parametrize(
    "compute",
    [np.cbrt, lambda x: np.sqrt(x).astype(np.float32), lambda x: np.sqrt(x)[None], lambda x: x * np.nan],
    ids=["value", "dtype", "shape", "nan"],
)
def test_a_different_result_stops_the_benchmark(compute):
    right = Scripted("right")
    wrong = Scripted("wrong", compute)
    with pytest.raises(MismatchError, match="the values of contender 'wrong'"):
        measure([right, wrong], range(2, 9), Pace(1), reference=right)


def test_a_result_that_differs_in_a_later_round_stops_it_too():
    right = Scripted("right")
    wrong = Scripted("wrong", lambda x: np.sqrt(x) + (x > 3))
    with pytest.raises(MismatchError, match="'wrong' to equal that of 'right'"):
        measure([right, wrong], range(1, 9), Pace(4), reference=right)


def test_a_slow_contender_leaves_when_its_time_is_used_up():
    quick = Scripted("quick", seconds=1.0)
    slow = Scripted("slow", seconds=30.0)
    timings = measure([quick, slow], range(99), Pace(9, seconds=40, least=2), reference=quick)
    assert [len(timing.rounds) for timing in timings] == [9, 2]


def test_a_contender_that_was_slow_once_is_warmed_up_and_one_that_was_twice_is_not():
    diary = []
    slow = Scripted("slow", seconds=30.0, diary=diary)
    compiling = Scripted("compiling", diary=diary)
    compiling.step = lambda x, step=compiling.step: replace(step(x), seconds=30.0 if x == 0 else 1.0)
    measure([slow, compiling], range(5), Pace(1, warmup=3, seconds=20), reference=slow)
    assert [x for name, x in diary if name == "slow"] == [0, 1, 4]
    assert [x for name, x in diary if name == "compiling"] == [0, 1, 2, 3, 4]


def test_a_ratio_compares_the_rounds_that_both_took_part_in():
    one = Scripted("one")
    two = Scripted("two", seconds=3.0)
    first, second = measure([one, two], range(9), Pace(3, warmup=0), reference=one)
    first.rounds[7] = 100.0
    assert second.ratio(first) == 3.0


def test_blas_has_its_threads_back_behind_the_block():
    def threads():
        found = threadpoolctl.threadpool_info()
        return [x["num_threads"] for x in found if x["internal_api"] == "openblas"]

    before = threads()
    with machine.one_blas_thread():
        assert set(threads()) <= {1}
    assert threads() == before


# ---- contenders ----------------------------------------------------------------------------------


def benchmark_of(name, width=6):
    read = WORKLOADS[name].read
    examples = read(None, 40, lambda done, total: None)
    return WORKLOADS[name].benchmark(examples, width)


KINDS = ["synthetic", "python-ast"]


def small(benchmark):
    """The benchmark with the smallest of its examples only: some frameworks compile for each shape."""
    fold = multifold.Fold(backend="numpy")

    def calls(example):
        before = len(fold)
        benchmark.record(fold, example)
        return len(fold) - before

    smallest = sorted(benchmark.examples.draw(np.random.default_rng(0), 40), key=calls)
    examples = replace(benchmark.examples, draw=lambda rng, count: smallest[:count])
    return type(benchmark)(examples, benchmark.width)


@pytest.mark.parametrize("name", KINDS)
def test_all_contenders_agree_in_values_and_gradients(seam, name):
    train = "kit" not in seam.gaps()
    benchmark = small(benchmark_of(name))
    subject = Subject(benchmark, seam, benchmark.model().on(seam), train)
    names = ["loop", "hand", "fold", "fold-traced"]
    if hasattr(hand.find_module(seam), f"{benchmark.family}_frontier"):
        names.append("hand-frontier")
    contenders = make_contenders(names, subject, {})
    # What differs, raises.
    timings = measure(contenders, benchmark.minibatches(3, 0), Pace(0, warmup=0), reference=contenders[0])
    assert [timing.name for timing in timings if timing.difference < 1e-4] == names


class Counted:
    """A model that counts the calls of its ops."""

    def __init__(self, model):
        self.model = model
        self.calls = 0

    def __getattr__(self, name):
        op = getattr(self.model, name)

        def counted(*operands):
            self.calls += 1
            return op(*operands)

        return counted


@pytest.mark.parametrize("name", KINDS)
def test_the_loop_calls_an_op_for_each_recorded_node(name):
    benchmark = benchmark_of(name)
    model = Counted(benchmark_of(name).model())
    subject = Subject(benchmark, registry.load_backend("numpy"), model, train=False)
    minibatch = next(benchmark.minibatches(3, seed=0))
    fold = multifold.Fold(backend="numpy")
    benchmark.record_all(fold, minibatch.examples)
    contender = loop(subject)
    contender.step(contender.prepare(minibatch))
    assert model.calls == len(fold)


@pytest.mark.parametrize("name", KINDS)
def test_batching_by_hand_has_as_many_launches_as_the_lower_bound(name):
    benchmark = benchmark_of(name)
    model = Counted(benchmark_of(name).model())
    minibatch = next(benchmark.minibatches(5, seed=0))
    fold = multifold.Fold(backend="numpy")
    nodes = benchmark.record_all(fold, minibatch.examples)
    by_hand = hand.find(registry.load_backend("numpy"), benchmark.family)
    by_hand(model, minibatch.examples, benchmark.width)
    assert model.calls == fold.schedule(nodes).lower_bound


def test_a_wrong_program_by_hand_is_found():
    benchmark = benchmark_of("synthetic")
    numpy = registry.load_backend("numpy")
    subject = Subject(benchmark, numpy, benchmark.model(), train=False)
    right = loop(subject)
    wrong = InProcess("wrong", subject, lambda model, trees: right.forward(model, trees[::-1]))
    with pytest.raises(MismatchError, match="the logits of contender 'wrong'"):
        measure([right, wrong], benchmark.minibatches(4, seed=0), Pace(1), reference=right)


def test_a_framework_without_a_program_by_hand_is_named():
    backend = SimpleNamespace(name="abacus")
    with pytest.raises(multifold.BackendError, match="hand-written 'binary' for backend 'abacus'"):
        hand.find(backend, "binary")


FAKE_DYNET = """
    import numpy as np
    __version__ = "0"

    class Expression(np.ndarray):
        def __mul__(self, other): return self @ other
        def dim(self): return self.shape, 1

    class ParameterCollection:
        lookup_parameters_from_numpy = parameters_from_numpy = staticmethod(lambda x: x.view(Expression))

    def renew_cg(): pass
    def lookup(table, row): return table[row].T  # matrices of DyNet lie column by column
    def affine_transform(parts): return parts[0] + sum(map(np.matmul, parts[1::2], parts[2::2]))
    def pick_range(x, begin, end): return x[begin:end]
    def logistic(x): return 1 / (1 + np.exp(-x))
    def esum(xs): return sum(xs)
    def concatenate(xs): return np.concatenate(xs).view(Expression)
    tanh, cmult = np.tanh, np.multiply

    class concatenate_to_batch(list):
        def npvalue(self): return np.stack(self, axis=1)
"""


@pytest.fixture
def dynet(tmp_path, monkeypatch):
    """A Python that has something like DyNet, in NumPy."""
    (tmp_path / "dynet.py").write_text(textwrap.dedent(FAKE_DYNET))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return sys.executable


@pytest.mark.parametrize("name", ["synthetic", "mv-rnn", "lattice-lstm", "deep-tagger-spelling"])
def test_dynet_computes_the_same_in_a_process_of_its_own(dynet, name):
    rows = measure_step(
        benchmark_of(name),
        registry.load_backend("numpy"),
        ["loop", "dynet"],
        Setting(batch=3, train=False, rounds=2, seconds=1),
        others={"dynet": dynet_contender(dynet, 1)},
    )
    assert rows[1]["rounds"] == 2 and rows[1]["environment"]["dynet"] == "0"


def test_a_python_without_dynet_says_so(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    subject = Subject(benchmark_of("synthetic"), registry.load_backend("numpy"), None, train=False)
    with pytest.raises(multifold.BackendError, match="No module named 'dynet'"):
        dynet_contender(sys.executable, 1)(subject)


# ---- structure by hand ---------------------------------------------------------------------------

LEAF = BinaryTree(7)
OTHER = BinaryTree(8)
TREES = [BinaryTree(None, LEAF, BinaryTree(None, OTHER, LEAF)), BinaryTree(None, LEAF, OTHER)]
"""Rows by height: 7 8 7, then 7 8; (8 7), (7 8) and at last the first root."""


def cut(levels):
    return [x.tolist() for x in np.split(levels.indices, np.cumsum(levels.sizes)[:-1])]


def test_levels_of_binary_trees_hold_left_rows_then_right_rows():
    words, first, second, roots = cut(binary_levels(TREES))
    assert words == [7, 8, 7, 7, 8]
    assert (first, second, roots) == ([1, 3, 2, 4], [0, 5], [7, 6])


def test_the_frontier_carries_only_what_is_still_to_be_read():
    words, first, second, roots = cut(frontier_levels(TREES))
    assert words == [7, 8, 7, 7, 8]
    assert first == [1, 3, 2, 4, 0]  # carried on: row 0, then the two new ones
    assert second == [0, 1, 2]
    assert roots == [1, 0]


def test_levels_of_any_arity_hold_words_lengths_rows_and_segments():
    tree = Branch(1, [Branch(2, []), Branch(3, [Branch(4, [])]), Branch(5, [])])
    words, lengths, rows, ids, *top, roots = cut(child_sum_levels([tree]))
    assert words == [2, 4, 5, 3, 1]
    assert (lengths, rows, ids) == ([1], [1], [0])
    assert top == [[3], [0, 3, 2], [0, 0, 0]]
    assert roots == [4]


def test_packing_never_fills_the_last_place_of_a_tile():
    places, firsts, tiles = pack([[1] * 200, [2]], edges=128)
    assert tiles == 5 and (places % 64 < 63).all()
    assert len(set(places)) == len(set(firsts)) == 201


# ---- rows ----------------------------------------------------------------------------------------


def test_rows_survive_a_file_and_what_is_no_number_is_null(tmp_path):
    rows = [{"backend": "numpy", "ms": float("nan"), "quartiles": [1.0, float("inf")]}, {"b": 2}]
    results.write(tmp_path / "rows.json", rows)
    for line in (tmp_path / "rows.json").read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)
    read = results.read(tmp_path / "rows.json")
    assert read == [{"backend": "numpy", "ms": None, "quartiles": [1.0, None]}, {"b": 2}]


def test_a_row_that_lacks_a_figure_is_named(tmp_path):
    results.write(tmp_path / "rows.json", [{"backend": "numpy", "ms": 1}, {"backend": "numpy"}])
    with pytest.raises(DatasetError, match=r"rows.json:2: expected a number as 'ms', received None"):
        results.read(tmp_path / "rows.json", ["backend"], ["ms"])


@pytest.mark.parametrize("name", ["sst-root", "tagger", "typed-dag"])
def test_planning_says_optimal_exactly_where_the_bound_is_met(name):
    for row in measure_planning(name, ["auto", "depth"], batch=3, rounds=1):
        assert row["launches"] >= row["lower_bound"]
        assert (row["certificate"] == "optimal") == (row["launches"] == row["lower_bound"])


def test_minibatches_are_the_same_for_the_same_seed_and_never_repeat():
    benchmark = BinaryBenchmark(WORKLOADS["synthetic"].read(None, 0, print), width=2)

    def drawn(seed):
        return [
            [flat(x) for x in one.examples] for one in itertools.islice(benchmark.minibatches(3, seed), 4)
        ]

    assert drawn(0) == drawn(0) != drawn(1)
    assert len({str(examples) for examples in drawn(0)}) == 4


def test_synthetic_trees_are_those_of_the_planning_benchmark():
    (tree,) = random_trees(np.random.default_rng(3), 1)
    (same,) = GRAPHS["synthetic"].examples(3, 1)
    assert flat(tree) == list(same)
