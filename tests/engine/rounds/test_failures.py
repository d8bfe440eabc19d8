"""What fails in a round, an example or a launch, is charged to who caused it, while the others finish."""

from __future__ import annotations

import numpy as np
import pytest
from awaits import grow

import multifold
from multifold import Fold, LaunchError, MultifoldError, RecordError, Unfold
from multifold._engine.run.blame import by_halves


async def refuse_three(fold, n):
    node = fold.add("leaf", n)
    await fold.value(node)
    if n == 3:
        raise ValueError("three")
    return fold.add("double", node)


def test_an_exception_names_line_and_example_and_leaves_the_fold_usable(backend, model, equal):
    fold = Fold(backend=backend)
    with pytest.raises(ValueError, match="three") as caught:
        fold.run(model, [1, 2, 3], refuse_three)
    assert caught.traceback[-1].name == "refuse_three"
    assert caught.value.__notes__ == ["Raised by example 2 of fold.run."]
    equal(fold.run(model, [1, 2], refuse_three), [[2], [4]])


def test_failures_are_collected_while_the_others_finish(backend, model, equal):
    results, failures = Fold(backend=backend).run(model, [1, 3, 2], refuse_three, on_error="collect")
    equal(results, [[2], [4]])
    assert list(failures) == [1] and isinstance(failures[1], ValueError)
    results, failures = Fold(backend=backend).run(model, [3], refuse_three, on_error="collect")
    assert results is None and list(failures) == [0]


@pytest.mark.parametrize("awaited", [True, False])
def test_a_launch_that_fails_is_charged_to_its_example(backend, model, seam, equal, awaited):
    def picky(x):
        if (seam.to_numpy(x) == 3).any():
            raise ValueError("three")
        return x * 2.0

    async def fn(fold, n):
        node = fold.add("picky", fold.add("leaf", n))
        if awaited:
            await fold.value(node)
        return node

    fold = Fold(backend=backend)
    with pytest.raises(LaunchError, match="picky"):
        fold.run(model | {"picky": picky}, range(6), fn)
    results, failures = fold.run(model | {"picky": picky}, range(6), fn, on_error="collect")
    equal(results, [[0], [2], [4], [8], [10]])
    assert list(failures) == [3] and isinstance(failures[3], LaunchError)


def test_halves_run_without_those_that_a_blame_has_ended():
    ran, left = [], {*range(6)}

    def run(askers):
        ran.append(askers)
        if 0 in askers:
            raise MultifoldError("no")

    by_halves(
        left, run, lambda asker, error: left.difference_update((0, 1, 3)), still_asks=left.__contains__
    )
    assert ran == [[0, 1, 2, 3, 4, 5], [0, 1, 2], [0], [2], [4, 5]]


@pytest.mark.parametrize("wrong", range(4))
def test_those_of_whom_one_is_to_blame_do_not_fail_together(wrong):
    def run(askers):
        if wrong in askers:
            raise MultifoldError("no")

    blamed, both = [], []
    assert by_halves(
        range(4), run, lambda *told: blamed.append(told[0]), together=lambda *told: both.append(told)
    )
    assert (blamed, both) == ([wrong], [])


def test_a_cancelled_run_closes_its_examples_and_leaves_the_fold_usable(backend, model, equal):
    closed = []

    async def fn(fold, n):
        try:
            await fold.value(fold.add("leaf", n))
            if n == 2:
                raise KeyboardInterrupt
            await fold.value(fold.add("leaf", n))
        finally:
            closed.append(n)

    fold = Fold(backend=backend)
    with pytest.raises(KeyboardInterrupt):
        fold.run(model, [1, 2, 3], fn)
    assert sorted(closed) == [1, 2, 3]
    equal(fold.run(model, [3, 70], grow), [[192], [140]])


def test_of_two_examples_the_one_whose_last_launch_fails_is_found():
    def picky(x):
        if (x == 1).any():
            raise ValueError("one")
        return x

    for examples in (range(2), range(1, 3), range(9)):
        got, failures = Fold(backend="numpy").run(
            None, examples, lambda fold, n: fold.add(picky, n), on_error="collect"
        )
        assert got.tolist() == [n for n in examples if n != 1]
        assert [examples[i] for i in failures] == [1]


def test_an_exception_that_takes_no_note_is_not_lost():
    class Frozen(Exception):
        def add_note(self, note):
            raise TypeError("frozen")

    def example(fold, x):
        if x:
            raise Frozen
        return fold.add(abs, x)

    results, failures = Fold(backend="numpy").run(None, [0, 1], example, on_error="collect")
    assert (results.tolist(), [type(error) for error in failures.values()]) == ([0], [Frozen])


def test_the_twin_collects_what_the_fold_collects():
    def rows(x):
        return np.ones(len(x) + int((x == 1).any()))

    async def example(fold, x):
        await fold.value(fold.add(rows, x))
        return "text" if x == 2 else x

    for recorder in (Fold, Unfold):
        results, failures = recorder(backend="numpy").run(None, [0, 1, 2], example, on_error="collect")
        assert (results.tolist(), sorted(failures)) == ([0], [1, 2])


def test_failures_of_results_that_fit_nobody_are_collected_one_by_one():
    """Example 1 fails in its last op; example 2, after it, returns rows that fit no other."""

    def picky(x):
        if (x == 1).any():
            raise ValueError("one")
        return x

    async def fn(fold, n):
        await fold.value(fold.add(abs, float(n)))
        width = 2 if n == 2 else 1
        return fold.add(picky, np.full((1, width), float(n)))

    results, failures = Fold(backend="numpy").run(None, range(4), fn, on_error="collect")
    assert results.tolist() == [[0.0], [3.0]]
    assert sorted(failures) == [1, 2]
    assert "one" in str(failures[1]) and "rows of a group" in str(failures[2])


def test_a_report_names_the_part_that_was_waited_for():
    async def fn(fold, x):
        scores = fold.add(lambda x: {"left": (x, x + 1), "right": x}, x)
        await fold.values([scores["left"][1], scores["right"]])
        return scores["right"]

    fold = Fold(backend="numpy")
    fold.run(None, [1.0], fn)
    (wait,) = fold.explain().waits[0]
    assert [text.partition("[")[2] for text in wait[1]] == ["'left'][1]", "'right']"]


def careful(threes):
    """Return an op that refuses 3, and a function that goes on behind it."""

    def op(x):
        if (np.asarray(x) == 3).any():
            raise ValueError("three")
        return x

    async def fn(fold, x):
        try:
            await fold.value(fold.add("op", x))
        except LaunchError:
            threes.append(x)
            return fold.add("same", -1)
        return fold.add("same", x)

    return {"op": op, "same": lambda x: x}, fn


@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_a_launch_that_fails_raises_where_its_value_is_awaited(on_error):
    threes: list[int] = []
    ops, fn = careful(threes)
    got = Fold(backend="numpy").run(ops, [1, 3, 2, 3], fn, on_error=on_error)
    got = got if on_error == "raise" else got[0]
    assert got.tolist() == [1, -1, 2, -1] and threes == [3, 3]
    twin = Unfold(ops).run(None, [1, 3, 2, 3], fn)
    np.testing.assert_array_equal(got, twin)


def test_a_launch_that_fails_names_the_example_that_waits_for_it():
    ops, _ = careful([])

    async def fn(fold, x):
        return await fold.value(fold.add("op", x))

    with pytest.raises(LaunchError, match="three") as caught:
        Fold(backend="numpy").run(ops, [1, 2, 3], fn)
    assert caught.value.__notes__ == ["Raised by example 2 of fold.run."]
    assert any(frame.name == "fn" for frame in caught.traceback)


def test_an_op_that_fails_on_batches_only_ends_the_run():
    async def fn(fold, x):
        return await fold.value(fold.add("mean", x))

    calls: list[int] = []
    ops = {"mean": lambda x: calls.append(len(x)) or x.mean(keepdims=True)}
    with pytest.raises(LaunchError, match="1 row for 2 rows") as caught:
        Fold(backend="numpy").run(ops, [1.0, 2.0, 4.0, 5.0], fn)
    assert caught.value.__notes__ == ["Awaited by examples 0, 1 of fold.run."]
    assert calls == [4, 2, 1, 1]  # and no more: the first pair says enough


def test_an_error_of_a_batch_names_ten_of_its_examples():
    async def fn(fold, x):
        return await fold.value(fold.add("last", x))

    ops = {"last": lambda x: x[:-1] if len(x) > 6 else x}
    with pytest.raises(LaunchError) as caught:
        Fold(backend="numpy").run(ops, [float(i) for i in range(12)], fn)
    assert caught.value.__notes__ == ["Awaited by examples 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 of fold.run."]


def test_an_example_goes_on_after_a_launch_that_failed():
    async def child(fold, n):
        return await fold.value(fold.add("same", n))

    async def fn(fold, n):
        try:
            await fold.value(fold.add("fails", n))
        except LaunchError:
            return sum(await fold.gather(child(fold, n), child(fold, 2 * n)))

    def fails(x):
        raise ValueError("no")

    assert Fold(backend="numpy").run({"same": lambda x: x, "fails": fails}, [1, 2], fn).tolist() == [3, 6]


def test_failures_are_collected_of_functions_and_not_of_traces():
    traces = [multifold.trace(lambda fold, n: fold.add("same", n), n) for n in (1, 2)]
    with pytest.raises(RecordError, match="Expected a function with on_error='collect'"):
        Fold(backend="numpy").run({"same": lambda x: x}, traces, on_error="collect")
