"""Random programs against a loop that shares no code with multifold: ``nox -s soak``.

A program is a list of instructions in small integers, which hypothesis draws and shrinks. `play` records
one example of it through a small interface that two classes have. `Recording` hands everything on to a
fold, to the recorder of a trace, or to the eager twin. `Loop` is the reference: it computes each call at
once, in NumPy, on one row without a batch axis, with its own ops (`ROWS`) and its own parts, groups and
shared values. Both must give the same numbers, however multifold batches the calls: with each policy, with
and without `cse`, in pieces, merged from pickled traces, in rounds of `await`, as requests to a server, and
laid out as a program. A program in which an op mixes rows may be refused instead; no other one may.

``pytest tests/soak.py --backend torch --programs 10000`` runs it without nox. The tests of NumPy run
a hundred programs in each mode.
"""

from __future__ import annotations

import importlib
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import multifold
from multifold import Fold, Unfold, ops
from multifold.program import Tiler, run

POLICIES = ("auto", "depth", "agenda", "search")
WIDTHS = (2, 3)
SEED = np.random.default_rng(7)
ROWS_OF = {width: SEED.uniform(-1, 1, (2, 1, width)) for width in WIDTHS}
"""Two arrays of one row, ``(1, width)``, for each width: the leaves of all programs."""
TABLE_OF = {width: SEED.uniform(-0.5, 0.5, (width, width)) for width in WIDTHS}
"""A matrix for each width, which programs share."""
TAGS = itertools.count()
"""Static arguments that keep ``cse=True`` from finding a call equal to another one."""


# ---- the ops, once on a batch and once on a row --------------------------------------------------


def column(numbers: Any, like: Any) -> Any:
    """Return a batch of numbers, ``(n,)``, as a column, ``(n, 1)``, of the dtype of other rows."""
    return ops.reshape(ops.cast(numbers, like), (1,))


def summed(rows: multifold.Ragged) -> Any:
    """Return the sum of each node's rows, ``(n, *s)``."""
    return ops.segment_sum(rows.values, rows)


class Watching:
    """Ops that keep something which no later result depends on."""

    def __init__(self) -> None:
        self.calls = 0
        self.last: Any = None

    def counted(self, x: Any) -> Any:
        self.calls += 1
        return x * 0.6

    def logged(self, x: Any) -> Any:
        self.last = x
        return x * 0.4


def noisy(x: Any) -> Any:
    """Draw a number that changes nothing."""
    return x * (0.7 + 0.0 * float(np.random.random()))


def turned(x: Any) -> Any:
    """Put the first row behind the others."""
    return ops.concat([x[1:], x[:1]], axis=0) if x.shape[0] > 1 else x


def of_all(reduce: Callable[[Any, int], Any], x: Any) -> Any:
    """Return a reduction over all rows, as one row."""
    return ops.stack([reduce(x, 0)], axis=0)


MIXING: dict[str, Callable[..., Any]] = {
    "turned": turned,
    "first": lambda x: x + x[:1] * 0.1,
    "average": lambda x: x + of_all(ops.mean, x) * 0.3,
    "largest": lambda x: x - of_all(ops.max, x) * 0.2,
    "drawn average": lambda x: noisy(x + of_all(ops.mean, x) * 0.3),
}
"""Ops that mix the rows of a launch: each is refused, or its result is that of a loop."""

WATCHING = Watching()

BATCHED: dict[str, Callable[..., Any]] = MIXING | {
    "counted": WATCHING.counted,
    "logged": WATCHING.logged,
    "noisy": noisy,
    "leaf": lambda x: x * 1.5,
    "squash": ops.tanh,
    "mix": lambda x, y: (ops.tanh(x) * y - x) * 0.5,
    "count": lambda k: k + 1,
    "number": lambda x, k: x * column(k, x) * 0.2,
    "numbers": lambda x, a, b: x + column(a, x) * 0.1 - column(b, x),
    "project": ops.matmul,
    "both": lambda d: {"sum": (d["x"] + d["yz"][0]) * 0.5, "pair": (d["yz"][1] * 0.5, [d["x"]])},
    "three": lambda x: [x * 0.9, x * 0.7, ops.tanh(x)],
    "total": lambda rows: summed(rows) * 0.3,
    "beside": lambda x, rows: x * 0.5 - summed(rows) * 0.2,
    "weigh": lambda x, numbers: x * column(summed(numbers), x) * 0.1,
    "scaled": lambda x, k, by, word: x * (k + by + len(word)) * 0.3,
    "tagged": lambda x, tag: x * 0.8,
    "pile": lambda *xs: ops.concat(xs, axis=0),
    "whole": lambda pile, x: ops.sum(pile, axis=0) * 0.2 + x * 0.5,
    "constant": lambda table: table[:1] * 2.0,
}
"""What a fold is applied to: each batched operand comes as ``(n, *s)``. No op makes rows much larger."""

ROWS: dict[str, Callable[..., Any]] = BATCHED | {
    "noisy": lambda x: x * 0.7,
    "turned": lambda x: x,
    "first": lambda x: x * 1.1,
    "average": lambda x: x * 1.3,
    "largest": lambda x: x * 0.8,
    "drawn average": lambda x: x * 0.91,
    "squash": np.tanh,
    "mix": lambda x, y: (np.tanh(x) * y - x) * 0.5,
    "number": lambda x, k: x * k * 0.2,
    "numbers": lambda x, a, b: x + a * 0.1 - b,
    "project": lambda x, table: x @ table,
    "three": lambda x: [x * 0.9, x * 0.7, np.tanh(x)],
    "total": lambda rows: sum(rows) * 0.3,
    "beside": lambda x, rows: x * 0.5 - sum(rows) * 0.2,
    "weigh": lambda x, numbers: x * sum(numbers) * 0.1,
    "pile": lambda *xs: np.stack(xs),
    "whole": lambda pile, x: pile.sum(axis=0) * 0.2 + x * 0.5,
    "constant": lambda table: table[0] * 2.0,
}
"""The same ops in NumPy, where each operand comes as one row, ``s``. Those not named are alike."""


# ---- two ways to play a program ------------------------------------------------------------------


class Recording:
    """Hands all on to multifold. ``array`` makes the arrays that are recorded of those of NumPy."""

    def __init__(self, fold: Any, array: Callable[[np.ndarray], Any]) -> None:
        self.add = fold.add
        self.array = array

    def row(self, width: int, which: int) -> Any:
        return self.array(ROWS_OF[width][which % 2])

    def table(self, width: int) -> Any:
        return multifold.shared(self.array(TABLE_OF[width]))

    def whole(self, node: Any) -> Any:
        return node.no_batch()

    def ragged(self, items: list[Any], *shape: int) -> Any:
        return multifold.ragged(items, row_shape=shape)

    def static(self, value: Any) -> Any:
        return multifold.static(value)

    def tag(self) -> int:
        return next(TAGS)


class Loop:
    """Computes each call at once, on one row."""

    def add(self, op: str, *operands: Any, **static: Any) -> Any:
        return ROWS[op](*operands, **static)

    def row(self, width: int, which: int) -> np.ndarray:
        return ROWS_OF[width][which % 2][0]

    def table(self, width: int) -> np.ndarray:
        return TABLE_OF[width]

    def whole(self, value: np.ndarray) -> np.ndarray:
        return value if value.ndim == 2 else value[None]

    def ragged(self, items: list[Any], *shape: int) -> list[Any]:
        return items or [np.zeros(shape)]

    def static(self, value: Any) -> Any:
        return value

    def tag(self) -> int:
        return 0


def play(to: Any, program: list[Any], turn: int) -> Iterator[Any]:
    """Play one example: yield what a branch depends on, get back its row, return the outputs."""
    made = {w: [to.add("leaf", to.row(w, 0)), to.add("number", to.row(w, 1), 2)] for w in WIDTHS}
    piles: dict[int, list[Any]] = {width: [] for width in WIDTHS}
    counts = [to.add("count", turn)]
    for kind, width, a, b, c in program:
        rows = made[width]
        new = []
        x, y, z = (rows[(i + turn) % len(rows)] for i in (a, b, c))
        if kind == 0:
            new = [to.add("leaf", to.row(width, a))]
        elif kind == 1:
            new = [to.add("squash", x)]
        elif kind == 2:
            new = [to.add("mix", x, y)]
        elif kind == 3:
            new = [to.add("number", x, (b % 7, b / 8, bool(b % 2), np.float32(b / 4), counts[-1])[c % 5])]
        elif kind == 4:
            new = [to.add("numbers", x, b % 5, c / 16)]
        elif kind == 5:
            new = [to.add("project", x, to.table(width))]
        elif kind == 6:
            parts = to.add("both", {"x": x, "yz": [y, z]})
            new = [parts["sum"], parts["pair"][0], parts["pair"][1][0]]
        elif kind == 7:
            parts = to.add("three", x)
            new = [parts[1:][b % 2], parts[c % 3], parts[::-1][0]]
        elif kind == 8:
            new = [to.add("total", to.ragged([x, to.row(width, b), y, z][: b % 5], width))]
        elif kind == 9:
            new = [to.add("beside", x, to.ragged([y, to.row(width, 0), z][: c % 4], width))]
        elif kind == 10:
            new = [to.add("weigh", x, to.ragged([0.5, b / 4, c / 8][: c % 4]))]
        elif kind == 11:
            new = [to.add("scaled", x, to.static(b % 2), by=c % 2, word="ab"[: c % 3])]
        elif kind == 12:
            piles[width].append(to.whole(to.add("pile", *[x, y, z][: 2 + c % 2])))
        elif kind == 13 and piles[width]:
            new = [to.add("whole", piles[width][b % len(piles[width])], x)]
        elif kind == 14:  # read whole by one call and by rows by another; fresh, so nothing awaited it
            fresh = to.add("tagged", x, tag=to.tag())
            new = [to.add("whole", to.whole(fresh), y), to.add("squash", fresh)]
        elif kind == 15:
            new = [to.add("constant", to.table(width))]
        elif kind == 16:
            counts.append(to.add("count", counts[b % len(counts)]))
        elif kind == 17:
            new = [to.add(("counted", "logged", "noisy")[b % 3], x)]
        elif kind == MIXES:
            new = [to.add([*MIXING][b % len(MIXING)], x)]
        elif kind == 19:
            seen = yield x
            new = [to.add("mix", y, x) if seen[0] > 0 else to.add("leaf", z)]
        rows += new
    return {
        "narrow": [*made[2][-3:], to.row(2, turn)],
        "wide": made[3][:-4:-1],
        "counts": counts,
        "last": made[2][-1],
        "piles": tuple(piles[2]),
    }


def finish(steps: Iterator[Any], look: Callable[[Any], Any]) -> Any:
    """Run an example to its end; `look` gives the row of each value that a branch depends on."""
    try:
        asked = next(steps)
        while True:
            asked = steps.send(look(asked))
    except StopIteration as end:
        return end.value


def joined(examples: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the outputs of all examples as groups; whole results stay apart, since shapes may differ."""
    groups = {name: [row for x in examples for row in x[name]] for name in ("narrow", "wide", "counts")}
    return groups | {"last": [x["last"] for x in examples], "piles": [x["piles"] for x in examples]}


class Expected:
    """What the loop computes for a program, and the rows that its branches saw, example by example."""

    def __init__(self, program: list[Any], turns: list[int]) -> None:
        self.program = program
        self.turns = turns
        self.seen: list[list[np.ndarray]] = [[] for _ in turns]
        self.examples = [
            finish(play(Loop(), program, turn), lambda x, seen=seen: seen.append(x) or x)
            for turn, seen in zip(turns, self.seen, strict=True)
        ]
        self.groups = joined(self.examples)

    def example(self, number: int, to: Recording) -> Any:
        """Record one example, with the branches that the loop took."""
        seen = iter(self.seen[number])
        return finish(play(to, self.program, self.turns[number]), lambda x: next(seen))

    async def waiting(self, fold: Any, number: int, leaf: Callable[[np.ndarray], Any]) -> Any:
        """Record one example that awaits what its branches depend on: the rows of the loop."""
        steps = play(Recording(fold, leaf), self.program, self.turns[number])
        seen = iter(self.seen[number])
        try:
            asked = next(steps)
            while True:
                value = await fold.value(asked)
                row = next(seen)
                close(value, row)
                asked = steps.send(row)
        except StopIteration as end:
            return end.value


# ---- what is compared ----------------------------------------------------------------------------


def close(got: Any, expected: Any) -> None:
    """Compare an array of NumPy with what the loop computed, in shape and to the precision of float32."""
    expected = np.asarray(expected)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


MIXES = 18
KINDS = [*range(MIXES), 19] * 9 + [MIXES]
"""The kinds of instructions: of 20 programs, one has an op that mixes rows."""

instruction = st.tuples(st.sampled_from(KINDS), st.sampled_from(WIDTHS), *[st.integers(0, 30)] * 3)
programs = st.lists(instruction, min_size=1, max_size=16)
turns = st.lists(st.integers(0, 6), min_size=1, max_size=5)
Check = Callable[[Expected, Fold], dict[str, Any]]


@pytest.fixture
def soak(request, backend, to_numpy):
    """Return a function that draws programs, and compares what a check returns with what the loop does."""

    def soak(check: Check, share: int = 1) -> None:
        asked = max(1, request.config.getoption("--programs") // share)

        @settings(
            max_examples=asked,
            derandomize=asked < 1000,  # CI runs a few, and the same ones each time
            deadline=None,
            database=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(programs, turns, st.sampled_from(POLICIES), st.booleans())
        def run(program: Any, turns: list[int], policy: str, cse: bool) -> None:
            expected = Expected(program, turns)
            try:
                found = check(expected, Fold(backend=backend, schedule=policy, cse=cse))
            except multifold.LaunchError as error:
                if "mixes its rows" in str(error) and any(kind == MIXES for kind, *_ in program):
                    return
                raise
            for name, got in found.items():
                if name == "piles":
                    for pile, rows in zip(sum(got, ()), sum(expected.groups[name], ()), strict=True):
                        close(to_numpy(pile), rows)
                else:
                    on_host = got if isinstance(got, np.ndarray) else to_numpy(got)
                    close(on_host, np.stack(expected.groups[name]))

        run()

    return soak


@pytest.fixture
def leaf(seam):
    """Return a function that makes an array of NumPy in the backend's float."""
    return lambda values: values.astype(seam.number_dtype(float))


def without_piles(example: dict[str, Any]) -> dict[str, Any]:
    """Leave out the whole results: those of several examples have no common shape."""
    return {name: rows for name, rows in example.items() if name != "piles"}


def traces(expected: Expected, leaf: Callable[[np.ndarray], np.ndarray]) -> list[Any]:
    """Record each example by itself, and send it through a pickle."""

    def one(recorder: Any, number: int) -> Any:
        return without_piles(expected.example(number, Recording(recorder, leaf)))

    made = [multifold.trace(one, number) for number in range(len(expected.turns))]
    return pickle.loads(pickle.dumps(made))


def answers(server: multifold.Server, expected: Expected) -> dict[str, Any]:
    """Return what a server answers for all examples of a program, asked for at once."""
    asked = [server.submit((expected, number)) for number in range(len(expected.turns))]
    groups = joined([{"piles": (), **future.result(60)} for future in asked])
    del groups["piles"]
    return {name: (np.concatenate if name == "last" else np.stack)(rows) for name, rows in groups.items()}


# ---- the modes -----------------------------------------------------------------------------------


def recorded(expected: Expected, fold: Any, array: Callable[[np.ndarray], Any]) -> dict[str, Any]:
    """Record all examples into one fold."""
    to = Recording(fold, array)
    return joined([expected.example(number, to) for number in range(len(expected.turns))])


def awaited(expected: Expected, fold: Fold, leaf: Callable[[np.ndarray], Any]) -> dict[str, Any]:
    """Run all examples, which await what their branches depend on."""

    async def example(fold: Any, number: int) -> dict[str, Any]:
        return without_piles(await expected.waiting(fold, number, leaf))

    found: dict[str, Any] = fold.run(BATCHED, range(len(expected.turns)), example)
    return found


def test_apply(soak, array):
    def check(expected, fold):
        outputs = recorded(expected, fold, array)
        fold.apply(BATCHED, outputs["last"])  # a fold may be applied again, to more of its nodes
        return fold.apply(BATCHED, outputs)

    soak(check)


def test_pieces(soak, array, seam, monkeypatch):
    monkeypatch.setattr(type(seam), "pieces", lambda self, rows, device: (rows + 1) // 2)
    soak(lambda expected, fold: fold.apply(BATCHED, recorded(expected, fold, array)), share=4)


def test_unfold(soak, array, backend):
    def check(expected, fold):
        twin = Unfold(BATCHED, backend=backend)
        return twin.apply(None, recorded(expected, twin, array))

    soak(check, share=4)


def test_traces(soak, leaf):
    soak(lambda expected, fold: fold.run(BATCHED, traces(expected, leaf)))


def test_await(soak, leaf):
    soak(lambda expected, fold: awaited(expected, fold, leaf))


def test_await_without_gradients(soak, leaf, seam, monkeypatch):
    """Where no gradient is wanted, launches like those before are repeated without a plan."""
    if not seam.puts:
        pytest.skip("the backend writes to no array in place")
    monkeypatch.setattr(type(seam), "is_inference", lambda self: True)
    with seam.inference():
        soak(lambda expected, fold: awaited(expected, fold, leaf))


@pytest.mark.parametrize("join", ["launches", "rounds"])
def test_served(soak, leaf, backend, join):
    """One server for all programs: what it has learned of one must not change a number of another."""

    async def waiting(fold, example):
        expected, number = example
        return without_piles(await expected.waiting(fold, number, leaf))

    with multifold.Server(BATCHED, waiting, backend=backend, join=join) as server:
        soak(lambda expected, fold: answers(server, expected))


def test_served_without_await(soak, leaf, backend):
    def recorded(fold, example):
        expected, number = example
        return without_piles(expected.example(number, Recording(fold, leaf)))

    with multifold.Server(BATCHED, recorded, backend=backend) as server:
        soak(lambda expected, fold: answers(server, expected))


def test_programs(soak, leaf, backend):
    """Where programs are compiled, laying one out takes a second, so few are drawn."""
    package = {"jax": "multifold_jax", "tensorflow": "multifold_tensorflow"}
    if backend not in package:
        pytest.skip("NumPy interprets programs, see the next test, and the other backends run none")
    run = importlib.import_module(package[backend]).run
    soak(
        lambda expected, fold: run(BATCHED, fold.program(traces(expected, leaf), BATCHED)),
        share=50,
    )


@pytest.mark.parametrize("tiled", [False, True])
def test_interpreted_programs(soak, leaf, backend, tiled):
    """The interpreter runs ragged programs, and tiled ones as JAX compiles them."""
    if backend != "numpy":
        pytest.skip("the interpreter is NumPy's")

    def check(expected, fold):
        program = fold.program(traces(expected, leaf), BATCHED)
        tiler = Tiler(program)
        return run(BATCHED, tiler.tiled(tiler.own()) if tiled else program)

    soak(check)
