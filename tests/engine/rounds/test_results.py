"""What examples return from a run with rounds: put together where it fits, refused where it does not."""

from __future__ import annotations

import re

import numpy as np
import pytest

import multifold
from multifold import Fold, RecordError, Unfold, ragged, shared


def test_examples_must_return_one_structure(backend, model):
    async def fn(fold, n):
        node = fold.add("leaf", n)
        return [node] if n else (node, node)

    with pytest.raises(RecordError, match=r"from example 0 and .* from example 1"):
        Fold(backend=backend).run(model, [0, 1], fn)
    with pytest.raises(RecordError, match="at least one example"):
        Fold(backend=backend).run(model, [], fn)
    with pytest.raises(RecordError, match="'raise' or 'collect'"):
        Fold(backend=backend).run(model, [0], fn, on_error="ignore")


UNFIT = {
    "structure": lambda fold, x: (fold.add(abs, x),) if x == 1 else fold.add(abs, x),
    "shape": lambda fold, x: fold.add(lambda x: np.stack([x, x], 1), x) if x == 1 else fold.add(abs, x),
    "number": lambda fold, x: 0.5 if x == 1 else fold.add(abs, x),
    "rows": lambda fold, x: fold.add(lambda x: np.ones(3), x) if x == 1 else fold.add(abs, x),
    "no result": lambda fold, x: "text" if x == 1 else fold.add(abs, x),
}


@pytest.mark.parametrize("recorder", [Fold, Unfold])
@pytest.mark.parametrize("example", UNFIT.values(), ids=UNFIT)
def test_a_result_that_does_not_fit_is_that_examples_failure(recorder, example):
    def numbered(fold, x):
        return {"y": example(fold, x), "x": x}

    results, failures = recorder(backend="numpy").run(None, [0, 1, 2, 3], numbered, on_error="collect")
    assert {name: y.tolist() for name, y in results.items()} == {"y": [0, 2, 3], "x": [0, 2, 3]}
    assert list(failures) == [1]


def test_the_first_example_with_rows_says_of_what_kind_they_are():
    def example(fold, x):
        return [fold.add("wide", np.ones((1, x))) for _ in range(min(x, 1))]

    got, failures = Fold(backend="numpy").run(
        {"wide": np.negative}, [0, 2, 3, 2], example, on_error="collect"
    )
    assert (got.tolist(), list(failures)) == ([[-1, -1]] * 2, [2])


@pytest.mark.parametrize("part", [lambda n: n["b"], lambda n: n["missing"]])
def test_a_part_that_holds_nothing_is_its_examples_failure(part):
    def halves(x):
        return {"a": x, "b": None}

    def example(fold, x):
        node = fold.add(halves, x)
        return part(node) if x == 1 else node["a"]

    got, failures = Fold(backend="numpy").run(None, [0, 1, 2], example, on_error="collect")
    assert (got.tolist(), list(failures)) == ([0, 2], [1])
    message = r"The result of <node 0 of .*halves>, recorded at .*test_results.py:\d+, h.* part"
    assert re.match(message, str(failures[1]))


def test_a_result_that_does_not_fit_fails_beside_one_that_is_read_whole():
    def example(fold, x):
        whole = fold.add("total", shared(np.full(3, x))).no_batch()
        return whole, [fold.add(abs, x)] * x, fold.add(abs, np.ones((1, 2 + (x == 1))))

    fold = Fold(backend="numpy")
    results, failures = fold.run({"total": np.sum}, range(3), example, on_error="collect")
    assert list(failures) == [1]
    assert (results[0], results[1].tolist(), results[2].tolist()) == ([0, 6], [2, 2], [[1, 1]] * 2)


@pytest.mark.parametrize("recorder", [Fold, Unfold])
def test_an_array_among_the_results_is_that_of_its_example(recorder):
    buffer = np.zeros((1, 1))

    def example(fold, x):
        buffer[:] = x
        return fold.add(abs, x), buffer

    got = recorder(backend="numpy").run(None, [1, 2, 3], example)
    assert [x.ravel().tolist() for x in got] == [[1, 2, 3]] * 2


def test_examples_that_compute_nothing_are_put_together():
    async def example(fold, x):
        return {"x": x, "half": x / 2}

    for collect in ("raise", "collect"):
        got = Fold(backend="numpy").run(None, [1, 2], example, on_error=collect)
        got = got[0] if collect == "collect" else got
        assert {name: x.tolist() for name, x in got.items()} == {"x": [1, 2], "half": [0.5, 1.0]}


@pytest.mark.parametrize("examples", [[1.0], [1.0, 2.0]], ids=["one", "two"])
def test_a_result_of_a_users_class_is_plain_in_later_rounds(examples):
    """For one example as for many: an op gets a dict, whichever subclass another op returned."""

    class Answer(dict):
        pass

    seen = []

    async def fn(fold, x):
        both = fold.add(lambda x: Answer(a=x, b=x + 1), np.full((1, 1), x))
        await fold.value(both["a"])
        return fold.add(lambda whole: seen.append(type(whole)) or whole["b"], both)

    Fold(backend="numpy").run(None, examples, fn)
    assert set(seen) == {dict}


@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_what_an_example_returns_amiss_is_noted_with_its_number(on_error):
    async def fn(fold, n):
        node = fold.add(abs, float(n))
        return [node] if n < 2 else ["no node"]

    fold = Fold(backend="numpy")
    if on_error == "raise":
        with pytest.raises(RecordError) as caught:
            fold.run(None, range(3), fn)
        error = caught.value
    else:
        _, failures = fold.run(None, range(3), fn, on_error="collect")
        (error,) = failures.values()
    noted = [note for note in error.__notes__ if "example" in note]
    raised = ["Raised by example 2 of fold.run."] if on_error == "collect" else []
    assert noted == ["Returned by example 2 of fold.run.", *raised]


@pytest.mark.parametrize("result", [(None,), ()])
def test_a_result_without_arrays_is_awaited_too(result):
    async def fn(fold, n):
        assert await fold.value(fold.add("nothing", n)) == result
        return n

    ops = {"nothing": lambda x: result}
    assert Fold(backend="numpy").run(ops, [1, 2], fn).tolist() == Unfold(ops).run(None, [1, 2], fn).tolist()


@pytest.mark.parametrize("traced", [False, True])
def test_a_row_of_one_example_and_a_group_of_another_are_not_put_together(traced):
    def fn(fold, n):
        node = fold.add("same", n)
        return node if n == 0 else [node, node]

    arguments = ([multifold.trace(fn, n) for n in (0, 1)],) if traced else ([0, 1], fn)
    with pytest.raises(RecordError, match=r"one structure.*a row.*a group"):
        Fold(backend="numpy").run({"same": lambda x: x}, *arguments)


def test_rows_beside_whole_results_are_named_where_another_example_returns_something_else():
    def fn(fold, n):
        node = fold.add("same", n)
        return [node.no_batch(), node] if n else node

    with pytest.raises(RecordError, match=r"\[a whole, a row\]"):
        Fold(backend="numpy").run({"same": lambda x: x}, [multifold.trace(fn, n) for n in (0, 1)])


def test_numbers_in_ragged_operands_and_in_results_of_one_run_stay_apart():
    async def example(fold, x):
        y = fold.add("total", ragged([fold.add("double", x), 0.5]))
        await fold.value(y)
        return {"y": fold.add("total", ragged([y, 0.25])), "label": 7.0 + x}

    model = {
        "double": lambda x: 2 * x,
        "total": lambda rows: np.bincount(rows.segment_ids, rows.values, len(rows.lengths)),
    }
    got = Fold(backend="numpy").run(model, [1.0, 2.0], example)
    assert got["y"].tolist() == [2.75, 4.75] and got["label"].tolist() == [8.0, 9.0]


def test_values_of_none_are_refused_not_left_out():
    async def parse(fold, x):
        await fold.values([fold.add("double", x), None])

    with pytest.raises(RecordError, match=r"value can be awaited. Received a NoneType"):
        Fold(backend="numpy").run({"double": lambda x: 2 * x}, [1.0], parse)


def test_results_that_are_returned_twice_share_no_memory(backend, model, seam, equal, to_numpy):
    async def fn(fold, x):
        node = fold.add("leaf", x)
        await fold.value(node)
        last = fold.add("double", node)
        return last, last, node

    with seam.inference():
        one, same, _ = Fold(backend=backend).run(model, [1, 2, 3], fn)
    assert one is not same and not np.shares_memory(seam.host_view(one), seam.host_view(same))
    expected = to_numpy(Unfold(model, backend=backend).run(None, [1, 2, 3], fn)[0])
    equal(one, expected)
    equal(same, expected)
