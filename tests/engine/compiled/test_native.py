"""Recording, compiled and in plain Python: two versions of one thing, chosen when multifold is imported.

All tests run with either; nox runs those of the core with both. Here: that the quick path of either is
taken, puts the same into the columns as the slow one, and that the two agree call by call.
"""

from __future__ import annotations

import copy
import doctest
import gc
import inspect
import json
import os
import pickle
import subprocess
import sys
import sysconfig
import weakref
from pathlib import Path
from shutil import which

import numpy as np
import pytest

from multifold import Fold, ragged, shared, static
from multifold._engine import compiled
from multifold._engine.compiled.reference import recording
from multifold._engine.plan.columns import Columns
from multifold._engine.record.graph import LISTS, NUMERIC
from multifold._engine.record.node import Node
from multifold.errors import RecordError

TABLE = np.ones((3, 2))


def test_the_compiled_version_is_there_where_it_can_be_built():
    if os.environ.get("MULTIFOLD_NATIVE") == "0":
        pytest.skip("switched off by MULTIFOLD_NATIVE=0")
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    if not which(compiler) or not Path(sysconfig.get_paths()["include"], "Python.h").exists():
        pytest.skip("no C compiler, or no headers of Python")
    assert compiled.in_use, "the compiled modules are missing: install multifold again (pip install -e .)"


def test_both_versions_have_the_same_constants_and_documentation():
    if not compiled.in_use:
        pytest.skip("this is the plain version")
    from multifold._engine.compiled import _recording

    assert _recording.PART_BITS == recording.PART_BITS
    for ours, python in (
        (_recording.RecorderBase.add, recording.RecorderBase.add),
        (_recording.NodeBase.split, recording.NodeBase.split),
    ):
        assert inspect.cleandoc(ours.__doc__) == inspect.cleandoc(python.__doc__)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(python).parameters)


def test_the_documentation_of_add_stands_on_fold_and_its_example_runs():
    example = doctest.DocTestParser().get_doctest(Fold.add.__doc__, {}, "Fold.add", None, 0)
    found = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(example)
    assert (found.attempted, found.failed) == (4, 0)
    assert "add" in vars(Fold) and [*inspect.signature(Fold.add).parameters][1:] == [
        "op",
        "operands",
        "static",
    ]


# ---- the quick path against the slow one -----------------------------------------------------------


class Counting(Fold):
    """A fold that counts the calls that did not take the quick path."""

    def __init__(self, **options) -> None:
        super().__init__(backend="numpy", **options)
        self.slow = 0

    def _record(self, op, operands, static, frame):
        self.slow += 1
        return super()._record(op, operands, static, frame)


def columns(fold):
    """Return all columns but the sites, in comparable form."""
    graph = fold._graph
    found = {
        name: list(getattr(graph, name))
        for name in (*NUMERIC, *LISTS)
        if name not in ("codes", "instructions")
    }
    return {
        name: [x.tolist() if isinstance(x, np.ndarray) else x for x in values]
        for name, values in found.items()
    }


ARRAY = np.ones((1, 3))
OTHER = np.zeros((1, 3))
QUICK = {
    "nothing": lambda a, b, i: (),
    "nodes": lambda a, b, i: (a, b, a),
    "parts": lambda a, b, i: a.split(3),
    "a shared node": lambda a, b, i: (a.no_batch(), b),
    "numbers": lambda a, b, i: (i, i + 0.5, bool(i)),
    "numbers of numpy": lambda a, b, i: (np.int32(i), np.float32(i), np.float64(i)),
    "strings and None": lambda a, b, i: (a, "word", None),
    "one array": lambda a, b, i: (ARRAY, i),
    "two arrays": lambda a, b, i: (a, ARRAY if i else OTHER),
    "static values": lambda a, b, i: (static((1, "x")), a, static(2.0)),
    "a shared array": lambda a, b, i: (shared(TABLE), i),
    "a list of nodes": lambda a, b, i: ([a, b],),
    "lists and tuples": lambda a, b, i: ([a, i], (0.5, b, True), []),
    "ragged nodes": lambda a, b, i: (ragged([a, b, a][i:]),),
    "ragged numbers": lambda a, b, i: (ragged([i, 0.5, b]), ragged([], (2,))),
    "ragged arrays": lambda a, b, i: (ragged([ARRAY, a, OTHER][i:]), ragged([True, np.float32(i)])),
}
SLOW = {
    "a dictionary": lambda a, b, i: ({"x": a},),
    "nested lists": lambda a, b, i: ([[a], b],),
    "a hashable value": lambda a, b, i: (a, 1j, frozenset()),
    "a list with a string": lambda a, b, i: ([a, "x"],),
}


def record_three(add, make):
    """Record three calls of a form, with what `make` returns for 0, 1 and 2."""
    a = add("leaf", (1,), {})
    b = add("leaf", (2,), {})
    for i in range(3):
        add("f", make(a, b, i), {})
        add("f", make(a, b, i), {"k": 3, "act": np.tanh is None, "name": "x"})


@pytest.mark.parametrize(
    ("make", "slow"),
    [(x, 3) for x in QUICK.values()] + [(x, 7) for x in SLOW.values()],
    ids=[*QUICK, *SLOW],
)
def test_the_quick_path_is_taken_and_puts_the_same_into_the_columns(make, slow):
    quick = Counting()
    reference = Fold(backend="numpy")
    record_three(lambda op, operands, static: quick.add(op, *operands, **static), make)
    frame = sys._getframe()
    record_three(lambda op, operands, static: reference._record(op, operands, static, frame), make)
    assert quick.slow == slow
    assert columns(quick) == columns(reference)
    assert [s.key for s in quick._graph.signatures] == [s.key for s in reference._graph.signatures]
    assert len({quick._graph.site(call) for call in range(2, 8)}) == 2 - 1


@pytest.mark.parametrize("make", QUICK.values(), ids=QUICK)
def test_equal_calls_become_one_on_the_quick_path(make):
    quick = Counting(cse=True)
    reference = Fold(backend="numpy", cse=True)
    frame = sys._getframe()
    for _ in range(2):
        record_three(lambda op, operands, static: quick.add(op, *operands, **static), make)
        record_three(lambda op, operands, static: reference._record(op, operands, static, frame), make)
        assert columns(quick) == columns(reference)
    assert quick.slow == 3
    assert quick._graph.merged == reference._graph.merged
    assert sorted(quick._graph.merged.values()) == list(range(len(quick)))


def test_a_call_that_is_met_on_both_paths_is_one():
    fold = Fold(backend="numpy", cse=True)
    frame = sys._getframe()
    buffer = np.zeros((1, 2))
    node = fold.add("leaf", 1)
    nan = float("nan")
    for value in (0.0, 1.0, 7, 0):  # each value twice on the slow path, and twice on the quick one
        buffer[:] = value
        for operands in ((node, value, True), (ragged([node, value]),), (buffer,), (nan, -0.0, node[1])):
            calls = [fold._record("f", operands, {}, frame) for _ in range(2)]
            assert {*calls, fold.add("f", *operands), fold.add("f", *operands)} == {calls[0]}
    assert len(fold) == 1 + 4 + 4 + 3 + 1


def test_numbers_that_an_op_can_tell_apart_are_two_calls():
    fold = Counting(cse=True)
    values = [1, 1.0, True, 0, 0.0, -0.0, False, 2**63 - 1, -(2**63), float("nan"), float("-inf")]
    for make in (lambda x: x, lambda x: [x], lambda x: ragged([2, x])):
        calls = [fold.add("f", make(x)) for _ in range(2) for x in values]
        assert calls[: len(values)] == calls[len(values) :] and len(set(calls)) == len(values)
    assert len({fold.add("f", ragged(x), ragged(y)) for x, y in (([1, 2], [3]), ([1], [2, 3]))}) == 2


def test_a_call_that_was_merged_is_kept_by_a_copy_and_forgotten_by_reset():
    fold = Fold(backend="numpy", cse=True)
    calls = [fold.add("f", 1, ARRAY), fold.add("f", 2, ARRAY)]
    twin, nodes = copy.deepcopy((fold, calls))
    assert twin.add("f", 1, 2.0) not in nodes
    assert twin.add("f", 1, 2.0)._ref == 2 == len(twin) - 1
    assert pickle.loads(pickle.dumps(fold))._graph.merged.keys() != {}
    fold.reset()
    assert fold._graph.merged == {} and fold.add("f", 2, ARRAY)._ref == 0


def test_values_that_differ_do_not_take_the_path_of_others():
    fold = Counting()
    node = fold.add("leaf", 1)
    for operands in (
        ("a",),
        ("b",),
        (static(1),),
        (static(True),),
        (static(1.0),),
        (ragged([], (1,)),),
        (ragged([], (2,)),),
    ):
        fold.add("f", node, *operands)
    for value in (1, True, "1", 1.0, None):
        fold.add("f", node, k=value)
    assert len(fold.schedule().launches) == len(fold) == 13


def test_keyword_arguments_that_may_change_take_the_slow_path():
    fold = Counting()
    value = [1]
    for _ in range(2):
        fold.add("f", 1, k=value)
        value.append(2)
    assert fold.slow == 2 and len(fold._graph.signatures) == 2


def test_ops_that_compare_by_value_take_the_slow_path():
    class Op:
        __hash__ = object.__hash__

        def __eq__(self, other):
            return True

        def __call__(self, x):
            return x

    fold = Counting()
    for op in (Op(), Op()):
        fold.add(op, 1)
        fold.add(op, 1)
    assert fold.slow == 4


BAD = {
    "a node of another fold": lambda: Fold(backend="numpy").add("g", 1),
    "an int of 65 bits": lambda: 1 << 64,
    "an array of two rows": lambda: np.ones((2, 3)),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize(
    "wrap",
    [lambda x: (x,), lambda x: ([1, 0.5, x],), lambda x: (ragged([1, x]),)],
    ids=["plain", "list", "ragged"],
)
def test_a_refused_call_of_a_known_form_records_nothing(bad, wrap):
    fold = Fold(backend="numpy")
    a = fold.add("leaf", 1)
    good = {Node: a, int: 5, np.ndarray: ARRAY}[type(bad())]

    def operands(last):
        return (a, 1, 2.0, [a, 1, 2.0], ragged([a, 1, 2.0]), ARRAY, *wrap(last))

    for _ in range(2):
        fold.add("f", *operands(good))
    before = columns(fold)
    for _ in range(2):
        with pytest.raises(RecordError):
            fold.add("f", *operands(bad()))
    assert columns(fold) == before
    fold.add("f", *operands(good))
    assert len(fold) == 4 and len(fold._graph.signatures) == 2


@pytest.mark.parametrize("others", [(), (1,), (0.5, "word")], ids=repr)
def test_a_node_of_another_fold_is_refused_by_either_path(others):
    fold = Fold(backend="numpy")
    stranger = Fold(backend="numpy").add("g", 1)
    node = fold.add("leaf", 1)
    for _ in range(2):
        fold.add("f", node, *others)
    before = columns(fold)
    with pytest.raises(RecordError, match="belongs to another fold"):
        fold.add("f", stranger, *others)
    assert columns(fold) == before


@pytest.mark.parametrize(
    "wrap", [lambda *arrays: arrays, lambda *arrays: (ragged(arrays),)], ids=["plain", "ragged"]
)
def test_an_array_that_is_changed_after_its_call_was_recorded_keeps_its_value(wrap):
    fold = Counting()
    first = np.ones((1, 2))
    second = np.ones((1, 2))
    kept = []
    for i in range(5):
        first[:] = i
        second[:] = 10 + i
        fold.add("f", *(wrap(first, second) if i < 3 else (i,)))
        found = fold._graph.arrays + fold._graph.loose
        assert all(one is other for one, other in zip(kept, found, strict=False))  # copied only once
        kept = found
    assert [x[0, 0] for x in kept] == [0, 10, 1, 11, 2, 12]
    assert fold.slow == 2


def test_calls_made_by_map_and_partial_are_recorded_where_they_run():
    fold = Fold(backend="numpy")
    for _ in range(2):
        nodes = list(map(fold.add, ["f", "g"], [1, 2]))
    line = inspect.currentframe().f_lineno - 1
    assert {fold._graph.site(node._ref).rpartition(":")[2] for node in nodes} == {str(line)}


# ---- nodes and memory ------------------------------------------------------------------------------


def test_nodes_are_values():
    fold = Fold(backend="numpy")
    node = fold.add("f", 1)
    other = fold.add("f", 1)
    low, high = node.split(n=2)
    assert node == Node(node._graph, 0) and hash(node) == hash(Node(node._graph, 0))
    assert len({node, other, low, high, node[0], *node.split(2)}) == 5
    assert node != node.no_batch() and node != 0 and not node == None  # noqa: E711, SIM201
    assert copy.copy(high) == high
    for again in (copy.deepcopy(high), pickle.loads(pickle.dumps(high))):
        assert repr(again) == repr(high) and again != high
        assert again.split(2)[0]._graph is again._graph
        assert again._graph.site(0) == high._graph.site(0)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_parts_follow_the_node_in_their_order(n):
    fold = Fold(backend="numpy")
    node = fold.add("f", 10)
    parts = node.split(n)
    assert parts == node.split(n)
    assert fold.apply({"f": lambda x: [x + i for i in range(n)]}, parts) == tuple(range(10, 10 + n))


def test_a_graph_that_was_pickled_goes_on():
    fold = Fold(backend="numpy")
    node = fold.add("f", 1, ragged([2.5, 3.5]), ARRAY)
    node = pickle.loads(pickle.dumps(node))
    fold._graph = node._graph
    for _ in range(2):
        node = fold.add("g", node)
    assert fold.apply({"f": lambda i, r, x: i, "g": lambda x: x + 1}, node) == [3]


def test_nothing_stays_alive_after_the_fold():
    fold = Fold(backend="numpy")
    array = np.ones((1, 2))
    for _ in range(3):
        node = fold.add("f", array, ragged([fold.add("g", 1), 2.0]), [fold.add("g", 2)], k="x")
    gone = weakref.ref(array)
    del fold, node, array
    assert gone() is None  # at once: there is no cycle


def test_a_cycle_through_a_node_is_collected():
    class Parser:
        def __init__(self, fold):
            self.state = fold.add("begin")
            self.next = [fold.add(self.step, self.state).split(2) for _ in range(3)]

        def step(self, x):
            return x, x

    fold = Fold(backend="numpy")
    gone = weakref.ref(Parser(fold))
    fold.reset()
    gc.collect()
    assert gone() is None


def test_recording_and_refusing_leak_no_references():
    fold = Fold(backend="numpy")
    stranger = Fold(backend="numpy").add("g", 1)
    op = "an op"
    text = "a text"
    items = (1.5, 2.5)
    node = fold.add(op, 1)
    held = (op, text, items, stranger, node, *items, test_nodes_are_values.__code__)

    def program():
        for _ in range(50):
            fold.reset()
            a = fold.add(op, 1)
            for _ in range(3):
                fold.add(op, a, text, ragged(items), [a, 1.5], k=text)[1].split(3)
                for bad in (stranger, 1 << 70, np.ones((2, 2)), {1}):
                    with pytest.raises(RecordError):
                        fold.add(op, bad, text, k=text)
        fold.reset()

    program()
    gc.collect()
    before = [sys.getrefcount(x) for x in held]
    program()
    gc.collect()
    assert [sys.getrefcount(x) for x in held] == before


# ---- columns ---------------------------------------------------------------------------------------


def test_columns_grow_and_become_arrays():
    fold = Fold(backend="numpy")
    node = fold.add("f", 0, 0.0)
    for i in range(1, 1000):
        fold.add("f", i, i / 2)
        node = fold.add("g", node)
    graph = fold._graph
    assert (len(graph.ints), graph.ints[-1], list(graph.ints[3:5]), graph.floats[999]) == (
        1000,
        999,
        [3, 4],
        499.5,
    )
    found = Columns.of(graph)
    assert (found.ints.dtype, found.floats.dtype, found.refs.dtype) == ("int64", "float64", "int64")
    assert found.ints.tolist() == list(range(1000)) and found.floats.tolist() == [
        i / 2 for i in range(1000)
    ]
    assert np.array(graph.refs[-2:]).tolist() == found.refs[-2:].tolist()
    assert (list(graph.ints[::-400]), list(graph.ints[5:2])) == ([999, 599, 199], [])
    with pytest.raises(IndexError):
        graph.refs[len(graph.refs)]
    with pytest.raises(OverflowError):
        graph.ints.append(1 << 63)


def test_a_column_does_not_move_while_an_array_shares_its_memory():
    if not compiled.in_use:
        pytest.skip("lists share no memory")
    fold = Fold(backend="numpy")
    fold.add("f", 1)
    view = np.asarray(fold._graph.ints)
    with pytest.raises(BufferError):
        fold._graph.ints.extend(range(100))
    assert view[0] == 1
    del view
    fold._graph.ints.append(5)


# ---- both versions, call by call -------------------------------------------------------------------

PROGRAM = """
import json, random, sys
import numpy as np
from multifold import Fold, ragged, shared, static, errors
from multifold._engine import compiled
stranger = Fold(backend="numpy").add("g", 1)
table, wide = np.ones((2, 2)), np.ones((1, 2))
answers = []
for seed in range(60):
    rng = random.Random(seed)
    fold = Fold(backend="numpy", cse=seed % 10 == 0)
    nodes = [fold.add("leaf", 1)]
    def leaf(node=lambda: rng.choice(nodes)):
        return rng.choice([node, node, node, lambda: 3, lambda: 2.5, lambda: True, lambda: np.int8(4),
            lambda: np.float32(1.5), lambda: np.True_])()
    def operand():
        return rng.choice([leaf, leaf, leaf, lambda: rng.choice(["a", "b", None]), lambda: wide,
            lambda: [leaf() for _ in range(rng.randrange(3))], lambda: (leaf(), [leaf()]),
            lambda: ragged([leaf() for _ in range(rng.randrange(4))], rng.choice([None, (), (2,)])),
            lambda: shared(table), lambda: static(rng.choice([1, 1.0, True])), lambda: nodes[0].no_batch(),
            lambda: rng.choice([stranger, 1 << 63, -(1 << 64), table, {1}, object, 1j]),
            lambda: ragged([rng.choice([stranger, 1 << 63, table, wide, nodes[0].no_batch()])])])()
    for _ in range(60):
        op = rng.choice(["f", "f", "g", len, "a.b"])
        names = {name: rng.choice([1, "x", 1.5, len]) for name in "kl" if rng.random() < 0.2}
        try:
            node = fold.add(op, *[operand() for _ in range(rng.randrange(4))], **names)
            nodes += rng.choice([lambda: [node, node[0]], lambda: node.split(rng.randrange(1, 4))])()
        except errors.MultifoldError as error:
            answers.append(str(error))
    graph = fold._graph
    for name in ("signature", "refs", "ints", "floats", "lengths", "members", "loose"):
        answers.append(list(map(repr, getattr(graph, name))))
    answers.append([graph.site(call) for call in range(len(fold))])
    answers += [len(graph.arrays), len(graph.parts), repr(nodes), [s.name for s in graph.signatures]]
print(json.dumps([compiled.in_use, answers]))
"""


def test_both_versions_record_and_refuse_the_same():
    if not compiled.in_use:
        pytest.skip("there is one version here")
    versions = {}
    for wanted in ("1", "0"):
        env = {**os.environ, "MULTIFOLD_NATIVE": wanted}
        done = subprocess.run(
            [sys.executable, "-P", "-c", PROGRAM], env=env, check=True, capture_output=True, text=True
        )
        used, versions[wanted] = json.loads(done.stdout)
        assert used == (wanted == "1")
    assert sum("Hint" in str(answer) for answer in versions["0"]) > 500
    assert versions["1"] == versions["0"]
