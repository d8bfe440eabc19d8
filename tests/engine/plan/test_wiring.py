"""What is copied on the way between launches, counted: gathers, concatenations, splits and rows."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from multifold import Fold, LaunchError, merge, ragged, trace
from multifold._engine.plan import plan
from multifold._engine.record import graph
from multifold._engine.run.launcher import Launcher
from multifold._measure.benchmark import Examples
from multifold._measure.workloads import BinaryBenchmark, BinaryTree
from multifold.testing import Counting

HELD = [object()]
FREE = sys.getrefcount(HELD[0])
"""What `sys.getrefcount(results[i])` is where only the list ``results`` holds it."""


@pytest.fixture
def counted(counting, array):
    """Return a fold and the counts of its backend."""
    return Fold(backend=counting), counting.counts


def row(array, i):
    return array([[float(i), i + 1.0]])


MODEL = {
    "same": lambda x: x,
    "double": lambda x: x * 2,
    "add": lambda x, y: x + y,
    "step": lambda x, h: x + h,
    "pair": lambda x: (x + 1, x + 2),
}


# ---- sequences and trees -------------------------------------------------------------------------


def sequences(fold, array, lengths):
    """Record cells over sequences; longer ones first, so that each step keeps the first rows."""
    states = []
    for length in lengths:
        h = fold.add("begin")
        for i in range(length):
            h = fold.add("step", row(array, i), h)
        states.append(h)
    return states


def test_sequences_of_one_length_need_no_gather(counted, array):
    fold, counts = counted
    states = sequences(fold, array, [4] * 3)
    fold.apply({**MODEL, "begin": lambda: row(array, 0)}, states)
    assert counts["call"] == 1 + 4
    assert counts["gather"] == 1  # one row of `begin` becomes three
    assert counts["split"] == 0


@pytest.mark.parametrize("lengths", [(5, 3, 2), (2, 3, 5), (3, 5, 2)])
def test_a_cell_over_lengths_2_3_5_reads_the_last_launch_without_a_gather(
    backend, seam, array, equal, lengths
):
    counting = Counting(seam)
    fold = Fold(backend=counting)
    expected = [[n * (n - 1) / 2, n * (n + 1) / 2 + 1] for n in lengths]
    states = sequences(fold, array, lengths)
    got = fold.apply({**MODEL, "begin": lambda: row(array, 0)}, states)
    equal(got, np.array(expected) + 0.0)
    counts = counting.counts
    assert counts["call"] == 1 + 5
    assert counts["gather"] <= 1 + 1  # `begin`, and the order of the outputs
    assert counts["split"] == 2  # after steps 2 and 3, one sequence each has ended


def test_a_chain_moves_no_row(counted, array, equal):
    fold, counts = counted
    nodes = []
    for i in range(3):
        x = row(array, i)
        for _ in range(10):
            x = fold.add("double", x)
        nodes.append(x)
    equal(fold.apply(MODEL, nodes), 1024 * np.array([[0, 1], [1, 2], [2, 3]]))
    assert counts["gather"] == counts["split"] == 0
    assert counts["rows"] <= 3  # the leaves


def balanced(fold, array, levels):
    rows = [fold.add("same", row(array, i)) for i in range(1 << levels)]
    while len(rows) > 1:
        rows = [fold.add("add", *pair) for pair in zip(rows[::2], rows[1::2], strict=True)]
    return rows


def test_trees_are_read_by_splits_alone(counted, array, equal):
    fold, counts = counted
    outputs = [*balanced(fold, array, 3), *balanced(fold, array, 3)]
    equal(fold.apply(MODEL, outputs), [[28, 36]] * 2)
    assert counts["gather"] == 0
    assert counts["split"] == 3  # left and right operands of three levels
    assert counts["concat"] <= 1  # the leaves


def lopsided(fold, array, shape):
    if shape == 0:
        return fold.add("same", row(array, 1))
    return fold.add("add", *(lopsided(fold, array, child) for child in shape))


def test_lopsided_trees_gather_no_block_more_than_once(counted, array, equal):
    fold, counts = counted
    shapes = [(0, (0, (0, 0))), (((0, 0), 0), (0, 0)), (0, 0), (((0, 0), (0, 0)), 0)]
    outputs = [lopsided(fold, array, shape) for shape in shapes]
    equal(fold.apply(MODEL, outputs), [[4, 8], [5, 10], [2, 4], [5, 10]])
    launches = len(fold.schedule())
    assert counts["call"] == launches == 1 + 3
    assert counts["split"] <= launches


# ---- one gather a block, one permutation an operand ----------------------------------------------


def test_a_block_that_is_read_at_random_is_gathered_once(backend, seam, array, equal):
    rng = np.random.default_rng(0)
    counting = Counting(seam)
    fold = Fold(backend=counting)
    rows = [fold.add("same", row(array, i)) for i in range(20)]
    nodes = []
    expected = []
    for k in range(12):  # twelve launches, each reads the one block at random, with repeats
        for i in rng.integers(20, size=5):
            nodes.append(fold.add("scale", rows[i], k=k))
            expected.append([k * float(i), k * (i + 1.0)])
    equal(fold.apply({**MODEL, "scale": lambda x, k: x * k}, nodes), expected)
    assert counting.counts["call"] == 1 + 12
    assert counting.counts["gather"] == 1
    assert counting.counts["rows"] <= 20 + 60 + 60  # leaves, one gather, one concatenation


def test_copied_rows_do_not_grow_with_the_number_of_launches(backend, seam, array):
    def rows_copied(launches):
        counting = Counting(seam)
        fold = Fold(backend=counting)
        rows = [fold.add("same", row(array, i)) for i in range(48)]
        fold.apply(
            {**MODEL, "scale": lambda x, k: x * k},
            [[fold.add("scale", rows[i * 7 % 48], k=i % launches) for i in range(48)]],
        )
        return counting.counts["rows"]

    assert rows_copied(24) <= rows_copied(2) + 48


def test_an_operand_of_many_blocks_is_one_concatenation_and_at_most_one_gather(counted, array, equal):
    fold, counts = counted
    rows = []
    x = row(array, 0)
    for _ in range(6):
        x = fold.add("double", x)
        rows.append(x)
    picked = [3, 0, 5, 1, 0]
    sums = [fold.add("add", rows[i], rows[i]) for i in picked]
    equal(fold.apply(MODEL, sums), [[0, 2.0 * 2 ** (i + 1)] for i in picked])
    assert counts["concat"] <= 2
    assert counts["gather"] <= 2 + 2  # a block with a repeat or two readers each, one for each operand


def test_an_operand_that_is_a_whole_block_in_order_is_that_block(backend, seam, array):
    fold = Fold(backend=backend)
    seen = []

    def keep(x):
        seen.append(x)
        return x

    nodes = [fold.add("keep", fold.add("new", row(array, i))) for i in range(4)]
    (got,) = fold.apply({"keep": keep, "new": lambda x: seen.append(x + 1) or seen[-1]}, [nodes])
    assert got is seen[0] is seam.unprotected(seen[1])  # in NumPy a view that can't be written to


def test_rows_that_the_user_orders_backwards_are_turned_by_their_launch(counted, array, equal):
    fold, counts = counted
    rows = [fold.add("same", row(array, i)) for i in range(5)]
    nodes = [fold.add("double", x) for x in reversed(rows)]
    equal(fold.apply(MODEL, nodes), [[2.0 * i, 2.0 * (i + 1)] for i in (4, 3, 2, 1, 0)])
    assert counts["gather"] == 0


def test_the_first_reader_of_a_block_decides_the_order_of_its_rows(counted, array, equal):
    fold, counts = counted
    rows = [fold.add("same", row(array, i)) for i in range(6)]
    doubled = [fold.add("double", rows[i]) for i in (5, 2, 0, 4, 1, 3)]
    sums = [fold.add("add", doubled[j], rows[i]) for j, i in enumerate((3, 1))]
    got = fold.apply(MODEL, (sums, doubled))
    equal(got[0], [[13, 16], [5, 8]])
    equal(got[1], [[2.0 * i, 2.0 * (i + 1)] for i in (5, 2, 0, 4, 1, 3)])
    assert counts["rows"] <= 6 + 2  # the leaves, and two rows that are read again


def test_parts_of_a_result_are_read_apart(counted, array, equal):
    fold, counts = counted
    pairs = [fold.add("pair", row(array, i)).split(2) for i in range(3)]
    nodes = [fold.add("add", low, high) for low, high in pairs]
    equal(fold.apply(MODEL, nodes), [[3, 5], [5, 7], [7, 9]])
    assert counts["gather"] == counts["split"] == 0


def test_ragged_rows_of_trees_are_read_without_a_gather(counted, array, total, equal):
    fold, counts = counted
    rows = [fold.add("same", row(array, i)) for i in range(6)]
    nodes = [fold.add("total", ragged(rows[a:b])) for a, b in ((0, 3), (3, 4), (4, 6))]
    equal(fold.apply({**MODEL, "total": total}, nodes), [[3, 6], [3, 4], [9, 11]])
    assert counts["gather"] == 0


def test_shared_operands_and_numbers_are_never_copied_by_row(backend, seam, array, column):
    counting = Counting(seam)
    fold = Fold(backend=counting)
    table = fold.add("table").no_batch()
    nodes = [fold.add("use", table, i) for i in range(50)]
    fold.apply({"table": lambda: row(array, 1), "use": lambda t, i: t * column(i)}, [nodes])
    assert counting.counts["rows"] == counting.counts["gather"] == 0
    assert counting.counts["constant"] <= 1


def test_numbers_and_indices_are_uploaded_at_once(backend, seam, array, column):
    counting = Counting(seam)
    fold = Fold(backend=counting)
    x = 1.0
    for i in range(20):
        x = fold.add("use", x, i, 0.5, bool(i % 2))
    fold.apply({"use": lambda x, i, k, b: x + k}, [x, x, x])
    assert counting.counts["constant"] <= 3  # integers, floats and bools


def test_arrays_of_one_form_are_uploaded_at_once_whatever_reads_them(backend, seam, equal):
    counting = Counting(seam)
    fold = Fold(backend=counting)
    rows = [np.full((1, 2), i, np.float32) for i in range(3)]
    table = np.float32([[0.0, 1.0, 2.0]])
    sums = [fold.add("join", fold.add("same", x), x, table) for x in rows]
    found = fold.apply({"same": lambda x: x + 0, "join": lambda x, y, z: x + y + z[:, 1:]}, [sums])
    equal(found[0], [[2 * i + 1, 2 * i + 2] for i in range(3)])
    assert counting.counts["constant"] <= (3 if seam.pads or backend == "numpy" else 2)


# ---- memory --------------------------------------------------------------------------------------


def test_blocks_are_freed_after_their_last_reader(backend, array):
    results = []

    def step(x, y):
        results.append(x + y)
        alive.append(sum(sys.getrefcount(results[i]) > FREE for i in range(len(results) - 1)))
        return results[-1]

    fold = Fold(backend=backend, trials=False)
    alive = []
    pairs = [(row(array, i), row(array, i)) for i in range(3)]
    for _ in range(15):
        pairs = [(y, fold.add("step", x, y)) for x, y in pairs]
    last = fold.apply({"step": step}, [y for _, y in pairs])
    assert max(alive) <= 2  # the two launches that a step reads
    assert last is results[-1]
    del last
    assert [sys.getrefcount(results[i]) for i in range(15)] == [FREE] * 15


def test_a_block_that_is_asked_for_is_kept(fold, array, equal):
    nodes = [row(array, 1)]
    for _ in range(6):
        nodes.append(fold.add("double", nodes[-1]))
    first, last, whole = fold.apply(MODEL, ([nodes[1]], [nodes[6]], nodes[3].no_batch()))
    equal(first, [[2, 4]])
    equal(last, [[64, 128]])
    equal(whole, [[8, 16]])


def random_tree(rng, leaves):
    if leaves == 1:
        return BinaryTree(int(rng.integers(1000)))
    left = int(rng.integers(1, leaves))
    return BinaryTree(None, random_tree(rng, left), random_tree(rng, leaves - left))


def test_rows_are_ordered_by_source_where_that_saves_permutations():
    """A binary cell with two states would permute four operands; by source it gathers two blocks."""
    counting = Counting("numpy")
    fold = Fold(backend=counting)
    rng = np.random.default_rng(0)
    benchmark = BinaryBenchmark(Examples(list, words=1000, classes=5), width=4)
    trees = [random_tree(rng, int(rng.integers(14, 23))) for _ in range(128)]
    fold.apply(benchmark.model(), benchmark.record_all(fold, trees))
    assert counting.counts["gather"] <= 2 * counting.counts["call"]


def test_what_is_permuted_anyway_reads_results_whole(counted, array, equal):
    fold, counts = counted
    a = [fold.add("double", row(array, i)) for i in range(2)]
    b = [fold.add("same", row(array, i)) for i in range(2)]
    sums = [fold.add("add", node, node) for node in b]
    got = fold.apply(MODEL, [sums, [b[1], a[0], b[0], a[1]]])
    equal(got[1], [[1, 2], [0, 2], [0, 1], [2, 4]])
    assert counts["gather"] == 1  # the second group's rows, and none of `b` before


def test_results_may_go_after_the_launch_that_reads_them_last_or_whole():
    fold = Fold(backend="numpy")
    x = fold.add("f", 1.0)
    y = fold.add("g", x.no_batch(), 2.0)
    z = fold.add("h", ragged([y, 3.0]))
    launches = fold._plan([[fold.add("k", z), x]]).wired().wiring.launches
    assert [fold._graph.signatures[launch.signature].op for launch in launches] == ["f", "g", "h", "k"]
    assert [list(launch.last_read) for launch in launches] == [[], [], [1], [2]]
    launches = fold._plan([[fold.add("k", z)]]).wired().wiring.launches
    assert [list(launch.last_read) for launch in launches] == [[], [0], [1], [2]]


def test_a_ragged_operand_without_members_has_no_rows():
    fold = Fold(backend="numpy")
    (launch,) = fold._plan(fold.add("total", ragged([], ())).no_batch()).wired().wiring.launches
    assert [operand.rows for operand in launch.operands] == [0]


def test_one_row_that_several_ops_read_is_copied_for_all_but_the_first():
    fold = Fold(backend="numpy")
    zeros = fold.add("zeros")
    wiring = fold._plan([[fold.add("f", zeros, 1.0)], [fold.add("g", zeros)], [zeros]]).wired().wiring
    first = wiring.launches[0]
    assert [(rows.tolist(), rows.dtype) for rows in wiring.indices] == [([0, 0], np.int64)]
    (reading,) = first.readings
    assert (len(reading.whole), reading.gathered_sizes) == (1, (1, 1))
    fold = Fold(backend="numpy")
    one = fold.add("one", 1.0)  # its row is of one call, and an op has to copy what it writes to
    first, *_ = fold._plan([[fold.add("f", one, 1.0)], [fold.add("g", one)]]).wired().wiring.launches
    assert [(len(reading.whole), reading.gathered) for reading in first.readings] == [(2, ())]


def test_a_plan_knows_how_long_its_wiring_took():
    fold = Fold(backend="numpy")
    plan = fold._plan([[fold.add("g", fold.add("f", 1.0))]]).wired()
    assert plan.wiring.launches and 0 < plan.seconds["wiring"] < 60


# ---- one compiled call plans and wires -----------------------------------------------------------


TREE_MODEL = {"leaf": lambda x: x * 2.0, "pair": lambda x: (x, x + 1.0), "add": lambda x, y: x - y * 0.5}


def tree(fold, leaves):
    """Record a tree that leans to the left; each leaf has two parts."""
    node, *rest = [fold.add("add", *fold.add("pair", fold.add("leaf", float(x))).split(2)) for x in leaves]
    for leaf in rest:
        node = fold.add("add", node, leaf)
    return node


async def awaited(fold, leaves):
    node = tree(fold, leaves)
    for _ in leaves:
        node = fold.add("add", fold.add("leaf", await fold.value(node)), node)
    return node


LEAVES = [[1, 2, 3], [7], [5, 0, 4, 4]]
WAYS = {
    "apply": lambda fold: fold.apply(TREE_MODEL, [[tree(fold, x) for x in LEAVES]])[0],
    "a fold that is reset": lambda fold: [WAYS["apply"](fold), fold.reset(), WAYS["apply"](fold)][2],
    "traces": lambda fold: fold.run(TREE_MODEL, [trace(tree, x) for x in LEAVES]),
    "merged traces": lambda fold: fold.run(TREE_MODEL, merge([trace(tree, x) for x in LEAVES])),
    "the last round": lambda fold: fold.run(TREE_MODEL, LEAVES, tree),
}


@pytest.mark.parametrize("way", WAYS)
def test_one_compiled_call_schedules_and_wires(way, monkeypatch):
    fold = Fold(backend="numpy")
    plain = Fold(backend="numpy")
    with monkeypatch.context() as patch:
        for name in ("make_schedule", "wire"):
            patch.setattr(plan, name, None)  # a second step would fail
        found = WAYS[way](fold)
    with monkeypatch.context() as patch:  # in two steps
        patch.setattr(plan, "WIRED_AT_ONCE", -1)
        np.testing.assert_array_equal(WAYS[way](plain), found)
    assert launched(fold) == launched(plain)


def launched(fold):
    """Return the launches of the last run, with the calls in the order of their rows, and the phases."""
    told = fold.explain()
    parts = getattr(told, "rounds", [told])
    assert all(part.seconds["plan"] > 0 and part.seconds["wiring"] > 0 for part in parts)
    return [([x.tolist() for x in part.run.notes.calls], part.schedule.lower_bound) for part in parts]


def test_a_policy_goes_on_from_what_the_call_has_found(monkeypatch):
    """Calls of two types that read each other in a circle: the call can not choose their launches."""
    chosen = []
    fold = Fold(backend="numpy")
    by_policy = plan.by_policy
    monkeypatch.setattr(plan, "make_schedule", None)
    monkeypatch.setattr(plan, "by_policy", lambda *given: chosen.append(given[3]) or by_policy(*given))
    a = fold.add("leaf", 1.0)
    b = fold.add("leaf", 2.0)
    swapped = fold.add("half", fold.add("negate", a)), fold.add("negate", fold.add("half", b))
    model = {"leaf": lambda x: x, "negate": lambda x: -x, "half": lambda x: x / 2}
    assert fold.apply(model, [[*swapped]])[0].tolist() == [-0.5, -1.0]
    assert [pending.tolist() for pending in chosen] == [[0, 1, 2, 3, 4, 5]]


async def add_in_nine_rounds(fold, x):
    node = fold.add("leaf", x)
    for _ in range(9):
        node = fold.add("add", node, node)
        await fold.value(node)
    return node


def test_a_later_round_looks_at_no_result_that_is_like_an_earlier_one(monkeypatch):
    looked = []
    check = Launcher.check
    monkeypatch.setattr(
        Launcher, "check", lambda self, *given: looked.append(given[0]) or check(self, *given)
    )

    monkeypatch.setattr(graph, "NAMED", {})
    for _ in range(2):  # and no later fold does
        Fold(backend="numpy").run(TREE_MODEL, [1.0, 2.0], add_in_nine_rounds)
        assert [one.signature.op for one in looked] == ["leaf", "add"]


def test_a_later_round_with_another_result_is_looked_at():
    rounds = []

    def add(x, y):  # in the fifth round it returns too many rows, as no earlier round has
        rounds.append(len(x))
        return np.concatenate([x, y]) if len(rounds) == 5 else x + y

    with pytest.raises(LaunchError, match="returned 4 rows for 2 rows"):
        Fold(backend="numpy").run({**TREE_MODEL, "add": add}, [1.0, 2.0], add_in_nine_rounds)


def test_a_later_round_that_mixes_its_rows_is_refused():
    """Seven rows of width 3 can't be mixed with numbers of shape (7,). Three rows can, later on."""

    def scaled(x, by):
        return x * by[:, None] if len(by) != 3 else x * by

    async def many(fold, n):
        x = fold.add("wide", float(n))
        for _ in range(n):
            x = fold.add("scaled", x, float(n))
            await fold.value(x)
        return x

    model = {"wide": lambda x: np.stack([x, x + 1.0, x + 2.0], axis=1), "scaled": scaled}
    with pytest.raises(LaunchError, match="mixes its rows"):
        Fold(backend="numpy").run(model, [3, 3, 3, 3, 5, 6, 7], many)
