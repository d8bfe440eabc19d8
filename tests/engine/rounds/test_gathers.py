"""Rounds of one launch of each op that run without a plan, where the framework was told of no gradient."""

from __future__ import annotations

import numpy as np
import pytest

from multifold import Fold, LaunchError, Unfold, ragged
from multifold._engine.plan import plan as planning
from multifold._engine.rounds import rounds, store
from multifold._engine.rounds.rounds import Rounds
from multifold.testing import Counting

WORDS = [[3, 1, 4, 1, 5], [2, 7, 1], [8, 2, 8, 1, 8, 2]]


@pytest.fixture
def counting(seam):
    """The backend under test, which counts, and says that no gradient is wanted."""
    counting = Counting(seam)
    counting.is_inference = lambda: True
    with seam.inference():
        yield counting


@pytest.fixture
def model(seam, column):
    """Ops on rows of a width that no launch has as its number of rows, so that none is put to a trial."""
    ones = seam.constant(np.ones((1, 101), seam.number_dtype(float)), None)
    return {
        "empty": lambda x: column(x) * ones,
        "word": lambda x: column(x) * ones,
        "join": lambda x, y: (x - y * 0.5, x + y),
        "score": lambda x, y, z: x + y * 2.0 - z,
        "named": lambda x: {"value": x},
    }


@pytest.fixture
def plans(monkeypatch):
    """What is planned, by the number of calls."""
    found = []
    make = planning.make_plan

    def noted(frame, *arguments, **named):
        found.append(len(frame.columns))
        return make(frame, *arguments, **named)

    monkeypatch.setattr(planning, "make_plan", noted)
    return found


async def parse(fold, words, *, join="join"):
    """Shift words to a stack or join its two topmost entries, as the score of these says."""
    empty = fold.add("empty", 0)
    stack = [empty, empty]
    buffer = [empty, *(fold.add("word", x) for x in reversed(words))]
    for _ in range(2 * len(words) - 1):
        shift = len(stack) < 4
        if len(buffer) > 1 and not shift:
            shift = (await fold.value(fold.add("score", stack[-2], stack[-1], buffer[-1])))[0] >= 3.0
        if shift:
            stack.append(buffer.pop())
        else:
            right = stack.pop()
            left = stack.pop()
            stack.append(fold.add(join, left, right)[1])
    return stack[-1]


@pytest.fixture
def the_loop(backend, model, to_numpy):
    """Return a function that runs examples one by one, and returns their rows on the host."""
    return lambda examples, fn: to_numpy(Unfold(model, backend=backend).run(None, examples, fn))


def plans_alone(monkeypatch):
    monkeypatch.setattr(Rounds, "launches", lambda self, loop, calls: (calls, None))


def test_values_are_those_of_the_loop(counting, model, equal, the_loop):
    equal(
        Fold(backend=counting).run(model, WORDS, parse),
        the_loop(WORDS, parse),
    )


def test_values_of_many_rounds_alike_are_those_of_the_loop(counting, model, equal, the_loop):
    many = [np.random.default_rng(i).integers(1, 9, 30).tolist() for i in range(8)]
    equal(Fold(backend=counting).run(model, many, parse), the_loop(many, parse))


def test_rounds_alike_need_no_plan(counting, model, plans):
    many = [np.random.default_rng(i).integers(1, 9, 30).tolist() for i in range(8)]
    fold = Fold(backend=counting)
    fold.run(model, many, parse)
    assert len(fold.explain().rounds) > 20
    # The first round, the first launches of `word` and `join` after it, and the results.
    assert len(plans) <= 8 or not counting.puts


def test_the_rows_of_all_operands_of_a_launch_are_one_upload(counting, model):
    def uploads(rounds):
        async def fn(fold, x):
            words = [fold.add("word", x + k) for k in range(3)]
            await fold.values(words)
            for _ in range(rounds):
                await fold.value(fold.add("score", *words))
            return words[0]

        counting.counts.clear()
        Fold(backend=counting).run(model, [3, 5], fn)
        return counting.counts["constant"]

    counting.host_view = lambda x: None
    # Padded launches upload for each operand, and for the write to a page.
    assert uploads(20) - uploads(10) == (40 if counting.pads else 10)


def test_a_launch_that_reads_all_rows_of_one_result_copies_nothing(counting, model):
    async def fn(fold, x):
        node = fold.add("word", x)
        for _ in range(10):
            node = fold.add("join", node, node)[1]
            await fold.value(fold.add("score", node, node, node))
        return node

    counting.host_view = lambda x: None
    Fold(backend=counting).run(model, [3, 5], fn)
    assert not (counting.counts["gather"] + counting.counts["concat"]) or counting.pads


def test_rows_of_few_results_are_put_together_and_those_of_many_moved_to_a_page(counting, model):
    def pages(results):
        async def fn(fold, x):
            nodes = [fold.add("word", x)]
            await fold.value(fold.add("count", ragged(nodes)))  # a plan runs the first one
            for _ in range(results - 1):
                nodes.append(fold.add("join", nodes[-1], nodes[0])[0])
                await fold.value(nodes[-1])
            await fold.value(fold.add("count", ragged(nodes)))
            found.append([page.used for page in rounds_of_it.store.pages.values()])
            return nodes[-1]

        found = []
        fold = Fold(backend=counting)
        with fold._rounds(model, collect=False) as rounds_of_it:
            rounds_of_it.run(fn, [3, 5])
        return sum(found[-1])

    model["count"] = lambda rows: rows.lengths
    assert pages(3) == 0 or counting.pads
    assert pages(9) == 18 or counting.pads or not counting.puts


@pytest.mark.parametrize("most", [0, 16])
def test_rows_that_numpy_does_not_see_are_those_of_the_loop(counting, model, equal, the_loop, most):
    def seen(x):  # pages have more rows than most, results have not
        return inner(x) if counting.rows(x) > most > 0 else None

    inner = counting.host_view
    counting.host_view = seen
    equal(Fold(backend=counting).run(model, WORDS, parse), the_loop(WORDS, parse))


def test_no_page_is_read_by_numpy_if_it_does_not_see_all(counting, model, equal, the_loop, plans):
    async def fn(fold, x):
        nodes = [fold.add("word", x), fold.add("short", x)]
        for _ in range(9):
            nodes = [fold.add("join", nodes[0], nodes[0])[0], fold.add("twice", nodes[1])]
            await fold.values(nodes)
        return nodes[0], nodes[1]

    model |= {"short": lambda x: x + x, "twice": lambda x: x + x}
    inner = counting.host_view
    counting.host_view = lambda x: inner(x) if len(x.shape) > 1 else None
    found = Fold(backend=counting).run(model, [3, 5], fn)
    assert len(plans) < 6 or not counting.puts
    for one, other in zip(found, the_loop([3, 5], fn), strict=True):
        equal(one, other)


def test_launches_that_were_foreseen_wrongly_run_again(counting, model, equal, the_loop):
    launches = []

    def join(x, y, plain=model["join"]):
        launches.append(len(launches))
        found = plain(x, y)
        return list(found) if len(launches) % 3 == 0 else found  # a list has no page

    fold = Fold(backend=counting)
    equal(fold.run({**model, "join": join}, WORDS, parse), the_loop(WORDS, parse))


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        (lambda x, whole: x[:, :1], (np.ndarray, (1,), "f")),
        (lambda x, whole: whole(x), (np.ndarray, (101,), "i")),
        (lambda x, whole: (x,), (tuple, (1, 101), "f")),
    ],
)
def test_a_result_of_another_form_is_not_written_to_rows_of_the_usual_one(
    counting, model, seam, other, kind
):
    kinds, launches = [], iter(range(100))

    def whole(x):
        return seam.constant(seam.to_numpy(x).astype(seam.number_dtype(int)), None)

    async def fn(fold, x):
        node = fold.add("word", x)
        for _ in range(8):
            found = await fold.value(fold.add("read", node))
            kinds.append((type(found), np.shape(found), np.asarray(found).dtype.kind))
        return node

    model["read"] = lambda x: other(x, whole) if next(launches) == 5 else x + 1.0
    Fold(backend=counting).run(model, [3], fn)
    assert kinds == [(np.ndarray, (101,), "f")] * 5 + [kind] + [(np.ndarray, (101,), "f")] * 2


def test_a_launch_behind_one_that_was_foreseen_wrongly_reads_its_result(counting, model):
    values, launches = [], iter(range(100))

    async def fn(fold, x):
        node = fold.add("word", x)
        for _ in range(12):
            node = fold.add("join", node, node)[1]
            values.append((await fold.value(fold.add("score", node, node, node)))[0])
        return node

    def join(x, y, plain=model["join"]):
        return list(plain(x, y)) if next(launches) == 9 else plain(x, y)  # a list has no page

    Fold(backend=counting).run({**model, "join": join}, [3], fn)
    assert values == [6.0 * 2**k for k in range(1, 13)]


def test_rows_that_were_taken_for_launches_that_did_not_run_are_free(counting, model, monkeypatch):
    used, launches, last = [], iter(range(1000)), Rounds.last

    def told(self, asked):
        for page in self.store.pages.values():
            used.append((page.used, int((self.table.result == page.number).sum())))
        return last(self, asked)

    def join(x, y, plain=model["join"]):
        return list(plain(x, y)) if next(launches) % 20 == 9 else plain(x, y)

    monkeypatch.setattr(Rounds, "last", told)
    many = [np.random.default_rng(i).integers(1, 9, 30).tolist() for i in range(8)]
    Fold(backend=counting).run({**model, "join": join}, many, parse)
    # A padded launch has its last call several times, and `Store.move` takes a row for each of these.
    assert all(taken == calls for taken, calls in used) and (used or not counting.puts)


def test_launches_and_waits_are_told_as_those_of_plans(counting, model, monkeypatch):
    def told(fold):
        fold.run(model, WORDS, parse)
        found = fold.explain()
        launches = [[(x.op, len(x)) for x in part.launches] for part in found.rounds]
        return launches, found.waits, len(found.calls)

    steps = told(Fold(backend=counting))
    plans_alone(monkeypatch)
    planned = told(Fold(backend=counting))
    assert [sorted(one) for one in steps[0]] == [sorted(one) for one in planned[0]]
    assert steps[1:] == planned[1:]


def test_a_launch_that_fails_late_fails_the_example_that_needs_it(counting, model, to_numpy):
    def score(x, y, z, plain=model["score"]):
        if 13.0 in to_numpy(z):
            raise ValueError("thirteen")
        return plain(x, y, z)

    words = [[*range(1, 9), 2, 3] for _ in range(4)]
    words[2][-2] = 13
    found, failures = Fold(backend=counting).run(
        {**model, "score": score}, words, parse, on_error="collect"
    )
    assert list(failures) == [2] and isinstance(failures[2], LaunchError)
    assert len(found) == 3


def test_a_chain_between_two_values_runs_level_by_level_without_a_plan(
    counting, model, equal, the_loop, plans
):
    async def fn(fold, x):
        node = fold.add("word", x)
        for _ in range(40):
            for _ in range(3):
                node = fold.add("join", node, node)[0]
            await fold.value(node)
        return node

    fold = Fold(backend=counting)
    equal(fold.run(model, [3, 5], fn), the_loop([3, 5], fn))
    assert [len(part) for part in fold.explain().rounds] == [4, *[3] * 39, 0]
    # The first round, the first launch of `join` after it, and the results.
    assert len(plans) <= 4 or not counting.puts


def test_rounds_that_never_find_their_rows_in_pages_ask_for_few_plans(
    counting, model, equal, the_loop, monkeypatch
):
    async def fn(fold, x):
        node = fold.add("word", x)
        for _ in range(3):
            for _ in range(100):
                node = fold.add("named", node)["value"]  # a dictionary has no page
            await fold.value(node)
        return node

    asked, compute = [], Rounds.compute
    monkeypatch.setattr(
        Rounds, "compute", lambda self, *rest, **named: asked.append(1) or compute(self, *rest, **named)
    )
    equal(Fold(backend=counting).run(model, [3, 5], fn), the_loop([3, 5], fn))
    assert len(asked) < 20


def test_the_seconds_of_launches_are_none_of_recording(counting, model, monkeypatch):
    clock = [0.0]

    def step(x):
        clock[0] += 1.0
        return x + 1.0

    async def fn(fold, x):
        node = fold.add("word", x)
        for _ in range(6):
            await fold.value(node := fold.add("step", node))
        return node

    monkeypatch.setattr(rounds, "perf_counter", lambda: clock[0])
    fold = Fold(backend=counting)
    fold.run({**model, "step": step}, [3], fn)
    assert [part.seconds["record"] for part in fold.explain().rounds] == [0.0] * 7


def test_chains_in_two_orders_are_planned(counting, model, equal, the_loop):
    async def fn(fold, x):
        node = fold.add("word", x)
        for _ in range(20):
            for op in ("left", "right") if x == 3 else ("right", "left"):
                node = fold.add(op, node)
            await fold.value(node)
        return node

    model |= {"left": lambda x: 1.0 - x, "right": lambda x: 3.0 + x * 0.5}
    fold = Fold(backend=counting)
    equal(fold.run(model, [3, 5], fn), the_loop([3, 5], fn))
    assert [len(part) for part in fold.explain().rounds] == [4, *[3] * 19, 0]


def test_results_without_a_page_are_read_as_ever(counting, model, equal, the_loop):
    async def fn(fold, x):
        node = fold.add("word", x)
        for _ in range(12):
            node = fold.add("named", fold.add("join", node, node)[1])["value"]
            await fold.value(node)
        return node

    equal(Fold(backend=counting).run(model, [3, 5], fn), the_loop([3, 5], fn))


def test_ragged_operands_and_tuples_that_are_awaited(counting, model, equal, the_loop):
    async def fn(fold, x):
        nodes = [fold.add("word", x)]
        for _ in range(6):
            _, total = await fold.value(fold.add("join", nodes[-1], nodes[0]))
            nodes.append(fold.add("word", int(total[0]) % 5))
            await fold.value(fold.add("count", ragged(nodes)))
        return nodes[-1]

    model["count"] = lambda rows: rows.lengths
    equal(Fold(backend=counting).run(model, [3, 5], fn), the_loop([3, 5], fn))


def test_numbers_beside_rows_of_a_ragged_operand(counting, model, seam):
    values, dtype = [], seam.number_dtype(float)

    def total(rows):
        members, lengths, at = map(seam.to_numpy, rows)
        found = np.bincount(at, members[:, 0], len(lengths)).astype(dtype)
        return seam.constant(found[:, None], None)

    async def fn(fold, x):
        node = fold.add("first", fold.add("word", x))
        for k in range(8):
            values.append(
                (await fold.value(fold.add("total", ragged([node, np.full((1, 1), k, dtype)]))))[0]
            )
        return node

    model |= {"first": lambda x: x[:, :1], "total": total}
    Fold(backend=counting).run(model, [3], fn)
    assert values == [3.0 + k for k in range(8)]


def test_values_out_of_two_pages_are_those_of_their_examples(counting, model):
    values = []

    async def fn(fold, x):
        for k in range(6):
            word, twice = await fold.values([fold.add("word", x + k), fold.add("twice", x + k)])
            values.append((x + k, float(word[0]), float(twice)))
        return fold.add("word", x)

    Fold(backend=counting).run(model | {"twice": lambda x: x + x}, [3, 5], fn)
    assert all(word == x and twice == 2 * x for x, word, twice in values) and len(values) == 12


def test_rows_that_no_node_can_ask_for_are_written_again(counting, model, monkeypatch):
    async def fn(fold, x):
        node = fold.add("word", x)
        for _ in range(400):
            node = fold.add("join", node, node)[0]
            await fold.value(node)
        return node

    kept = []
    monkeypatch.setattr(store, "MANY", 100)
    last = Rounds.last
    monkeypatch.setattr(
        Rounds, "last", lambda self, asked: kept.append(self.store.used) or last(self, asked)
    )
    Fold(backend=counting).run(model, [1, 2], fn)
    assert all(used < 200 for used in kept) and (kept or not counting.puts)


def test_an_op_that_writes_to_its_operand_changes_no_row(counting, model, equal, the_loop):
    def careless(x, y):
        found = x - y * 0.5, x + y
        if isinstance(x, np.ndarray) and x.flags.writeable:
            x[:] = 77.0
        return found

    expected = the_loop(WORDS, parse)
    equal(Fold(backend=counting).run({**model, "join": careless}, WORDS, parse), expected)
