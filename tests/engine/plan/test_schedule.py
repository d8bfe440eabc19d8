"""Schedules: valid under every policy, never below the bound, and optimal where they say so."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import multifold
from multifold import Fold, RecordError, Unfold, ragged
from multifold._engine import compiled
from multifold._engine.compiled import COUNTERS
from multifold._engine.plan.levels import Problem
from multifold._engine.plan.policies import POLICIES, WIDTH, depth, length, search, shorter, without_buckets
from multifold._engine.plan.schedule import call_types
from multifold._engine.plan.schedule import problem_of as to_problem


def record(types, parents, policy="auto"):
    """Record a graph: call i has op ``types[i]`` and reads the calls ``parents[i]``."""
    fold = Fold(backend="numpy", schedule=policy)
    nodes = []
    for kind, sources in zip(types, parents, strict=True):
        nodes.append(fold.add(str(kind), ragged([nodes[i] for i in sources], ())))
    return fold, nodes


def random_graph(rng, largest=8):
    """Return types and parents of a random graph: up to ``largest`` calls of up to four types."""
    size = int(rng.integers(1, largest + 1))
    kinds = int(rng.integers(1, 5))
    density = rng.random()
    types = rng.integers(kinds, size=size).tolist()
    return types, [np.flatnonzero(rng.random(i) < density).tolist() for i in range(size)]


def fewest_launches(types, parents):
    """Return the fewest launches of any schedule, by trying all: a launch is any set of ready calls."""
    size = len(types)
    needs = [sum(1 << source for source in sources) for sources in parents]
    best = [0] + [size] * ((1 << size) - 1)
    for done in range(1 << size):
        ready: dict[int, int] = {}
        for call in range(size):
            if not done >> call & 1 and needs[call] & ~done == 0:
                ready[types[call]] = ready.get(types[call], 0) | 1 << call
        for calls in ready.values():
            launch = calls
            while launch:
                best[done | launch] = min(best[done | launch], best[done] + 1)
                launch = (launch - 1) & calls
    return best[-1]


def assert_valid(schedule, types, parents, nodes):
    """Check that every call is in one launch, with calls of its type, after what it reads."""
    number = {node: i for i, node in enumerate(nodes)}
    launch_of = {}
    for position, launch in enumerate(schedule.launches):
        assert len(launch.nodes) > 0
        assert {types[number[node]] for node in launch.nodes} == {int(launch.op)}
        for node in launch.nodes:
            assert number[node] not in launch_of
            launch_of[number[node]] = position
    assert len(launch_of) == len(types)
    assert all(launch_of[i] < launch_of[j] for j in range(len(types)) for i in parents[j])


def problem_of(types, *edges):
    """Return calls of some types as integers; ``edges`` are pairs of a call and one that reads it."""
    sources, readers = np.array(edges, np.int64).reshape(-1, 2).T.copy()
    return Problem(np.array(types, np.int64), sources, readers)


def random_problem(rng, size=30):
    """Draw calls of five types, each of which reads two or three earlier ones on average."""
    types = np.unique(rng.integers(5, size=size), return_inverse=True)[1]
    edges = [(s, r) for r in range(1, size) for s in np.flatnonzero(rng.random(r) < 2.5 / r).tolist()]
    return problem_of(types, *edges)


# ---- levels --------------------------------------------------------------------------------------


def test_a_call_has_a_level_and_a_depth():
    problem = problem_of([0, 0, 1, 1, 1], (0, 1), (1, 2), (2, 3), (3, 4))
    assert problem.levels.tolist() == [1, 2, 1, 2, 3]
    assert problem.depths.tolist() == [1, 2, 3, 4, 5]
    assert problem.bounds.tolist() == [2, 3] and problem.lower_bound == 5


@pytest.mark.parametrize(("types", "bound"), [(COUNTERS, 2), (COUNTERS + 1, 1)])
def test_a_bound_counts_each_type_of_a_cycle_unless_there_are_too_many(types, bound):
    chain = [(i, i + 1) for i in range(2 * types - 1)]
    problem = problem_of([i % types for i in range(2 * types)], *chain)
    assert set(problem.cycles.tolist()) == {types}
    assert set(problem.bounds.tolist()) == {bound}


@pytest.mark.parametrize("policy", list(POLICIES))
def test_no_calls_need_no_launch_under_any_policy(policy):
    calls, begin = POLICIES[policy](problem_of([]))
    assert len(calls) == 0 and begin.tolist() == [0]
    assert problem_of([]).lower_bound == 0


# ---- any graph -----------------------------------------------------------------------------------


def test_the_lower_bound_holds_against_exhaustive_search():
    rng = np.random.default_rng(0)
    for _ in range(2_000):
        types, parents = random_graph(rng)
        schedule = record(types, parents)[0].schedule()
        fewest = fewest_launches(types, parents)
        assert schedule.lower_bound <= fewest <= len(schedule.launches)
        assert schedule.certificate in ("optimal", "heuristic")
        assert schedule.certificate == "heuristic" or len(schedule.launches) == fewest


def test_bounds_and_policies_are_as_near_to_the_fewest_launches_as_ever():
    """Ten thousand graphs of up to eight calls, of which every schedule is tried."""
    rng = np.random.default_rng(0)
    totals = dict.fromkeys(["depth", "auto", "fewest", "bound"], 0)
    for _ in range(10_000):
        types, parents = random_graph(rng)
        edges = [(source, reader) for reader in range(len(types)) for source in parents[reader]]
        problem = problem_of(np.unique(types, return_inverse=True)[1], *edges)
        fewest = fewest_launches(types, parents)
        assert problem.lower_bound <= fewest <= length(POLICIES["auto"](problem))
        totals["depth"] += length(depth(problem))
        totals["auto"] += length(POLICIES["auto"](problem))
        totals["fewest"] += fewest
        totals["bound"] += problem.lower_bound
    assert list(totals.values()) == [35_293, 33_905, 33_905, 33_850]


def record_words(words, policy="auto"):
    """Record a chain of calls for each word, a call for each letter; return the fold."""
    fold = Fold(backend="numpy", schedule=policy)
    for word in words:
        x = fold.add("start", 1.0)
        for op in word:
            x = fold.add(op, x)
    return fold


@pytest.mark.parametrize(
    ("words", "launches", "bound"), [(["ab", "ba"], 4, 3), (["abab", "bbaa", "ba"], 7, 5)]
)
@pytest.mark.parametrize("policy", ["auto", "search"])
def test_the_bound_does_not_see_that_two_types_in_turn_need_more_launches(words, launches, bound, policy):
    fold = record_words(words, policy)
    schedule = fold.schedule()
    assert (len(schedule), schedule.lower_bound, schedule.certificate) == (launches, bound, "heuristic")
    assert f"lower bound {bound}: heuristic" in str(fold.explain())


@pytest.mark.parametrize("policy", list(POLICIES))
def test_schedules_are_valid_under_every_policy(policy):
    rng = np.random.default_rng(1)
    for _ in range(400):
        types, parents = random_graph(rng, largest=25)
        fold, nodes = record(types, parents, policy)
        schedule = fold.schedule()
        assert_valid(schedule, types, parents, nodes)
        assert len(schedule.launches) >= schedule.lower_bound


def test_schedules_are_optimal_where_no_two_types_depend_on_each_other():
    rng = np.random.default_rng(2)
    for _ in range(400):
        types, parents = random_graph(rng, largest=25)
        ordered = [[i for i in sources if types[i] <= types[j]] for j, sources in enumerate(parents)]
        assert record(types, ordered)[0].schedule().certificate == "optimal"


@pytest.mark.parametrize(
    ("policy", "launches"),
    [
        (POLICIES["auto"], 644),
        (POLICIES["depth"], 944),
        (POLICIES["agenda"], 855),
        (POLICIES["search"], 644),
    ],
    ids=["auto", "depth", "agenda", "search"],
)
def test_each_policy_needs_as_many_launches_as_ever_on_random_graphs(policy, launches):
    """A figure of quality: a policy that chooses worse passes every other test."""
    rng = np.random.default_rng(0)
    assert sum(length(policy(random_problem(rng))) for _ in range(40)) == launches


def test_a_wider_beam_and_a_larger_budget_find_shorter_schedules():
    problem = random_problem(np.random.default_rng(3), size=150)
    greedy = shorter(problem, 1, 150)
    found = without_buckets(problem)
    assert [length(x) for x in (depth(problem), greedy, found)] == [77, 38, 37]
    assert [length(search(problem, budget)) for budget in (0, 1_200, 4_000)] == [37, 37, 36]
    assert shorter(problem, 1, 37) is None


def framed(problem):
    """Return a problem in which each call reads a word besides, and is read by an output."""
    count = len(problem)
    word, output = problem.types.max() + np.array([1, 2])
    words, calls, outputs = np.arange(3 * count).reshape(3, count)
    types = [*np.full(count, word), *problem.types, *np.full(count, output)]
    edges = [*zip(words, calls, strict=True), *zip(calls, outputs, strict=True)]
    edges += zip(problem.sources + count, problem.readers + count, strict=True)
    return problem_of(types, *sorted(edges, key=lambda edge: edge[1]))


def test_calls_in_no_circle_take_one_launch_a_type_and_cost_the_others_none():
    for seed in range(20):
        inner = random_problem(np.random.default_rng(seed), size=60)
        problem = framed(inner)
        order, begin = without_buckets(problem)
        assert length(without_buckets(problem)) == length(without_buckets(inner)) + 2
        launch = np.empty(len(problem), np.int64)
        launch[order] = np.repeat(np.arange(len(begin) - 1), np.diff(begin))
        assert (launch[problem.sources] < launch[problem.readers]).all()


def problem_of_words(words, copies=1):
    """Return chains of calls whose types are the letters of words, each word so many times."""
    types = np.array([ord(letter) - ord("a") for word in words for letter in word])
    readers = np.flatnonzero(np.concatenate([np.arange(len(word)) > 0 for word in words]))
    sources, readers = (
        (column + len(types) * np.arange(copies)[:, None]).ravel() for column in (readers - 1, readers)
    )
    return Problem(np.tile(types, copies), sources, readers)


@pytest.mark.parametrize(
    ("words", "copies", "budget", "width"),
    [
        (["ab", "ba"], 1, None, 250),  # 2,000 launches for schedules of four, both ways
        (["abab", "bab"], 1, None, 142),  # 7 launches
        (["ab", "ba"], 150, None, 600),  # 4,800 launches, eight for each call
        (["ab", "ba"], 150, 16, 2),
        (["ab", "ba"], 150, 7, 1),
        (["ab", "ba"], 1 << 15, 1 << 30, 16),  # as many as there is room for
    ],
)
def test_a_search_is_as_wide_as_its_budget_and_its_room_allow(words, copies, budget, width, monkeypatch):
    tried = []
    monkeypatch.setattr(compiled, "cover", lambda *columns: tried.append(columns[5]))
    search(problem_of_words(words, copies), budget)
    assert tried == [WIDTH, width]


# ---- kept schedules ------------------------------------------------------------------------------


def test_auto_needs_fewer_launches_than_depth_and_agenda():
    totals = dict.fromkeys(POLICIES, 0)
    for policy in POLICIES:
        rng = np.random.default_rng(3)
        for _ in range(200):
            totals[policy] += len(record(*random_graph(rng, largest=30), policy)[0].schedule())
    assert totals["search"] <= totals["auto"] < min(totals["depth"], totals["agenda"])


def test_many_types_on_one_cycle_keep_a_valid_bound():
    types = [i % 70 for i in range(300)]  # more types than are counted one by one
    parents = [[], *([i] for i in range(299))]
    fold, nodes = record(types, parents)
    schedule = fold.schedule()
    assert_valid(schedule, types, parents, nodes)
    assert schedule.lower_bound <= len(schedule) == 300


def test_merged_traces_of_many_types_on_one_cycle_keep_a_valid_bound():
    def chain(recorder, steps):
        x = recorder.add("op", 0, layer=-1)
        for i in range(100):
            x = recorder.add("op", x, layer=i * steps % 70)
        return x

    schedule = multifold.merge([multifold.trace(chain, steps) for steps in (1, 3)]).plan.schedule
    assert sum(map(len, schedule.launches)) == 2 * 101
    assert all(len(launch) > 0 for launch in schedule.launches)
    assert schedule.lower_bound <= len(schedule)


# ---- known graphs --------------------------------------------------------------------------------


def trees_of_all_heights(policy):
    fold = Fold(backend="numpy", schedule=policy)
    outputs = []
    for height in range(1, 9):
        x = fold.add("leaf", height)
        for _ in range(height):
            x = fold.add("node", x)
        outputs.append(fold.add("logits", x))
    return fold, outputs


@pytest.mark.parametrize(
    ("policy", "launches"), [("auto", 10), ("agenda", 10), ("search", 10), ("depth", 17)]
)
def test_outputs_at_eight_heights(policy, launches):
    fold, _ = trees_of_all_heights(policy)
    schedule = fold.schedule()
    assert (len(schedule), schedule.lower_bound) == (launches, 1 + 8 + 1)
    assert schedule.certificate == ("optimal" if launches == 10 else "heuristic")


def test_a_type_may_be_absent_from_some_depths():
    fold, nodes = record([0, 1, 0, 1, 1, 0], [[], [0], [1], [2], [3], [4]], "depth")
    assert [len(launch) for launch in fold.schedule().launches] == [1] * 6
    assert_valid(fold.schedule(), [0, 1, 0, 1, 1, 0], [[], [0], [1], [2], [3], [4]], nodes)


def test_only_what_the_outputs_need_is_scheduled():
    fold, outputs = trees_of_all_heights("auto")
    schedule = fold.schedule([outputs[:2]])
    assert len(schedule.calls) == 3 + 4
    assert len(schedule) == schedule.lower_bound == 1 + 2 + 1
    assert len(fold.schedule([])) == 0


def test_no_batch_calls_run_in_launches_of_their_own():
    fold = Fold(backend="numpy")
    tables = [fold.add("table", i) for i in range(3)]
    nodes = [fold.add("read", tables[i % 3].no_batch(), i) for i in range(6)]
    for schedule in (fold.schedule(), fold.schedule([nodes])):
        rows = sorted((launch.op, len(launch)) for launch in schedule.launches)
        assert rows == [("read", 2)] * 3 + [("table", 1)] * 3
        assert schedule.certificate == "optimal"


def test_calls_that_share_two_nodes_share_a_launch_where_both_are_equal():
    def record(fold):
        tables = [fold.add("table", i) for i in range(3)]
        pairs = [(0, 0), (0, 1), (0, 1), (1, 1), (2, 0), (2, 0)]
        return [
            fold.add("add", i, tables[one].no_batch(), tables[other].no_batch())
            for i, (one, other) in enumerate(pairs)
        ]

    model = {"table": lambda x: 10 * x[:, None], "add": lambda x, one, other: x + one[0] + 10 * other[0]}
    fold = Fold(backend="numpy")
    loop = Unfold(model, backend="numpy")
    nodes = record(fold)
    sizes = sorted(len(launch) for launch in fold.schedule([nodes]).launches if launch.op == "add")
    assert sizes == [1, 1, 2, 2]
    np.testing.assert_array_equal(fold.apply(model, [nodes]), loop.apply(None, [record(loop)]))


def test_types_are_numbered_anew_for_some_of_the_calls():
    fold = Fold(backend="numpy")
    for op in "abcab":
        fold.add(op, 1.0)
    columns = fold._columns()
    types = call_types(columns, columns.shared_calls)
    for pending, found in (([1, 2, 4], [0, 1, 0]), (range(5), [0, 1, 2, 0, 1]), ([2], [0]), ([], [])):
        assert to_problem(columns, types, np.array(pending, np.int64)).types.tolist() == found


def test_asking_for_a_whole_result_runs_its_call_alone():
    fold = Fold(backend="numpy")
    nodes = [fold.add("f", i) for i in range(3)]
    assert len(fold.schedule((nodes[:2], nodes[2].no_batch()))) == 2
    assert len(fold.schedule((nodes[:2], nodes[2]))) == 1


# ---- a schedule as an object ---------------------------------------------------------------------


def test_a_schedule_prints_as_a_table():
    fold, _ = trees_of_all_heights("auto")
    head, columns, *rows = str(fold.schedule()).splitlines()
    assert head.startswith("10 launches of 52 calls, lower bound 10: optimal (auto)")
    assert columns.split() == ["launch", "op", "rows"]
    assert next(row.split() for row in rows) == ["0", "leaf", "8"]
    assert len(rows) == 10


def test_launches_name_ops_and_nodes():
    fold = Fold(backend="numpy")
    nodes = [fold.add("f", i) for i in range(3)]
    (launch,) = fold.schedule().launches
    assert (launch.op, launch.nodes) == ("f", tuple(nodes)) and fold.schedule().mean_rows == 3
    assert fold.apply({"f": lambda x: x * 2}, [launch.nodes[1]]).tolist() == [2]


def test_an_empty_fold_has_an_empty_schedule():
    schedule = Fold().schedule()
    assert (len(schedule), schedule.launches, schedule.lower_bound) == (0, (), 0)
    assert schedule.certificate == "optimal"
    assert "0 launches" in str(schedule)


@pytest.mark.parametrize("keep", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_schedules_can_be_copied_and_pickled(keep):
    fold, _ = trees_of_all_heights("auto")
    schedule = fold.schedule()
    kept = keep(schedule)
    assert str(kept) == str(schedule)
    assert repr(kept.launches[-1].nodes) == repr(schedule.launches[-1].nodes)


def test_an_unknown_policy_is_refused():
    with pytest.raises(RecordError, match=r"auto, depth, agenda.*schedule='bfs'"):
        multifold.Fold(schedule="bfs")


def test_a_launch_of_many_rows_is_divided_into_pieces_of_nearly_equal_sizes():
    fold = Fold(backend="numpy")
    x = fold.add("f", 1.0)
    schedule = fold.schedule([[fold.add("g", x) for _ in range(21)]])
    divided = schedule.in_pieces(lambda rows: -(-rows // 11))
    assert divided.bounds.tolist() == [0, 1, 11, 22] and divided.continued == (2,)
    assert (divided.lower_bound, divided.certificate) == (2, "optimal")
    assert schedule.in_pieces(lambda rows: 1) is schedule
    assert len(schedule.in_pieces(lambda rows: 1 + (rows > 20))) == 3


def test_a_schedule_is_printed_as_a_table_as_wide_as_its_longest_op():
    fold = Fold(backend="numpy")
    for i in range(3):
        fold.add("a_long_name", fold.add("f", i))
    assert str(fold.schedule()).splitlines()[1:] == [
        "launch  op             rows",
        "     0  f                 3",
        "     1  a_long_name       3",
    ]


def test_the_table_of_a_schedule_is_as_wide_as_its_heading():
    fold = Fold(backend="numpy")
    fold.add("f", 1.0)
    assert str(fold.schedule()).splitlines()[1:] == ["launch  op    rows", "     0  f        1"]


def test_a_schedule_shows_no_columns():
    fold = Fold(backend="numpy")
    fold.add("f", 1.0)
    assert repr(fold.schedule()) == "Schedule(lower_bound=1, policy='auto')"


def test_numbers_run_in_pieces_from_131072_rows_on():
    fold = Fold(backend="numpy")
    nodes = [fold.add("f", i) for i in range(1 << 17)]
    for asked, launches in ((nodes, 2), (nodes[1:], 1)):
        assert len(fold.schedule([asked]).in_pieces(lambda rows: 2)) == launches


def test_a_beam_that_finds_no_shorter_schedule_changes_none():
    for seed in range(40):
        problem = random_problem(np.random.default_rng(seed))
        found = without_buckets(problem)
        for width in (1, 2, 8):
            other = shorter(problem, width, length(found) - 1)
            assert other is None or length(other) < length(found)
