"""`multifold.plain`: programs among other functions of examples, on folds, servers, streams and traces."""

from __future__ import annotations

import pickle
import threading

import numpy as np
import pytest

import multifold
from multifold import RecordError
from multifold.lazy.current import CELL, CURRENT

RNG = np.random.default_rng(0)
W = RNG.normal(size=(4, 4))
XS = [RNG.normal(size=4) for _ in range(6)]


@multifold.cell
def layer(x):
    return np.tanh(x @ W)


def half(x):
    return x / 2


def settled(x):
    """Read a value after each step."""
    steps = 0
    h = layer(x)
    while np.abs(h).sum() > 0.5:
        h, steps = half(layer(h)), steps + 1
    return {"state": h, "steps": steps, "name": f"after {steps}"}


def equal(found, x):
    wanted = settled(x)
    np.testing.assert_allclose(np.asarray(found["state"]).reshape(4), wanted["state"])
    assert (found["steps"], found["name"]) == (wanted["steps"], wanted["name"])


def test_a_fold_runs_a_program_beside_other_functions_of_its_examples():
    fold, program = multifold.Fold(backend="numpy"), multifold.plain(settled)

    async def twice(fold, x):
        found = await program(fold, x)
        return found["state"], fold.add("double", found["state"])

    one, double = fold.run({"double": lambda x: 2 * x}, XS, twice)
    np.testing.assert_allclose(one, [settled(x)["state"] for x in XS])
    np.testing.assert_allclose(double, 2 * one)


def test_examples_of_a_program_share_launches_and_rounds():
    fold = multifold.Fold(backend="numpy")
    found = fold.run(None, XS, multifold.plain(settled))
    [equal({k: found[k][i] for k in found}, x) for i, x in enumerate(XS)]
    alone = []
    for x in XS:
        fold.run(None, [x], multifold.plain(settled))
        alone.append(len(fold.explain()))
    fold.run(None, XS, multifold.plain(settled))
    assert len(fold.explain()) == max(alone)


def test_cells_and_what_records_are_there_only_while_a_fold_runs():
    seen = []

    def program(x):
        seen.append((hasattr(half, CELL), CURRENT.recording is not None))
        return half(layer(x))

    async def beside(fold, x):
        row = await multifold.plain(program, cells=[half])(fold, x)
        seen.append((hasattr(half, CELL), CURRENT.recording is not None))
        return row

    fold = multifold.Fold(backend="numpy")
    fold.run(None, XS[:1], beside)
    assert seen == [(True, True), (True, False)] and not hasattr(half, CELL)
    assert [x.op for x in fold.explain().launches] == ["layer", "half"]


def test_a_failed_example_ends_no_other_one():
    def program(x):
        h = layer(x)
        if h[0] > 0:
            raise ValueError("positive")
        return h

    fold = multifold.Fold(backend="numpy")
    found, failures = fold.run(None, XS, multifold.plain(program), on_error="collect")
    good = [i for i, x in enumerate(XS) if layer(x)[0] <= 0]
    np.testing.assert_allclose(found, [layer(XS[i]) for i in good])
    assert [*failures] == [i for i in range(6) if i not in good] and CURRENT.recording is None


def counted(pair):
    x, counts = pair
    counts[0] += 1
    return layer(x) * counts[0] if layer(x)[0] > -9 else layer(x)


def test_a_list_that_all_examples_count_in_has_the_counts_of_the_loop():
    counts = [0]
    found = multifold.Fold(backend="numpy").run(None, [(x, counts) for x in XS], multifold.plain(counted))
    np.testing.assert_allclose(found, [layer(x) * (i + 1) for i, x in enumerate(XS)])


def test_a_list_that_late_examples_count_in_while_one_waits_is_refused():
    counts = [0]
    pairs = [(x, counts if i > 4 else [0]) for i, x in enumerate([*XS, *XS])]
    with pytest.raises(RecordError, match="share a list"):
        multifold.Fold(backend="numpy").run(None, pairs, multifold.plain(counted))


def test_a_server_answers_what_the_program_returns():
    with multifold.Server(None, multifold.plain(settled), backend="numpy") as server:
        requests = [server.submit(x) for x in XS * 5]
        [equal(request.result(60), x) for request, x in zip(requests, XS * 5, strict=True)]
    assert CURRENT.recording is None


def test_streams_yield_what_the_program_returns():
    found = [x for _, x in multifold.stream(None, XS, multifold.plain(settled), backend="numpy")]
    [equal(one, x) for one, x in zip(found, XS, strict=True)]


def test_a_program_without_reads_makes_traces():
    program = multifold.plain(lambda x: (half(layer(x)), 3, "text", x), cells=[half])
    made = multifold.traces(program, XS)
    h, three, text, x = multifold.Fold(backend="numpy").run(None, made)
    np.testing.assert_allclose(h, [half(layer(x)) for x in XS])
    np.testing.assert_allclose(x, XS)
    assert three == [3] * 6 and text == ["text"] * 6
    with pytest.raises(RecordError, match="reads a computed value"):
        multifold.traces(multifold.plain(settled), XS)


def test_the_eager_twin_runs_a_program():
    fold = multifold.Fold(backend="numpy")
    fold.check(None, XS, multifold.plain(lambda x: half(layer(x))))
    with pytest.raises(multifold.MismatchError):
        fold.check(None, XS, multifold.plain(lambda x: layer(x) * RNG.random()))


def test_folds_in_several_threads_run_one_program():
    program, found = multifold.plain(settled), {}

    def work(number):
        for _ in range(5):
            found[number] = multifold.Fold(backend="numpy").run(None, XS, program)["state"]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    wanted = [settled(x)["state"] for x in XS]
    assert len(found) == 4
    [np.testing.assert_allclose(x, wanted) for x in found.values()]


def test_a_program_is_pickled_for_processes():
    program = pickle.loads(pickle.dumps(multifold.plain(settled)))
    found = multifold.Fold(backend="numpy").run(None, XS, program)
    np.testing.assert_allclose(found["state"], [settled(x)["state"] for x in XS])


def test_a_program_that_no_fold_runs_is_refused():
    with pytest.raises(RecordError, match="called by itself"):
        multifold.plain(settled)(multifold.Fold(backend="numpy"), XS[0]).send(None)


def test_a_server_says_that_a_program_has_changed_what_its_cells_use():
    scale = np.ones(4)

    @multifold.cell
    def scaled(x):
        return x * scale

    def program(x):
        found = scaled(x)
        scale[0] += 1
        return found

    with (
        pytest.warns(UserWarning, match="uses was changed during the run"),
        multifold.Server(None, multifold.plain(program), backend="numpy") as server,
    ):
        assert server.submit(XS[0]).result(60).shape == (1, 4)


def test_a_fold_that_runs_a_program_inside_of_another_one_is_refused():
    def outer(x):
        return multifold.Fold(backend="numpy").run(None, [x], multifold.plain(layer))

    with pytest.raises(RecordError, match="inside of the code of another"):
        multifold.batched(outer, backend="numpy")(XS)


def test_lists_of_values_may_be_of_any_length():
    def program(n):
        return {"x": layer(np.eye(4)[n]), "steps": [*range(n)], "pair": (n, [n, [n]])}

    found = multifold.Fold(backend="numpy").run(None, [2, 0, 1], multifold.plain(program))
    np.testing.assert_allclose(found["x"], np.tanh(W)[[2, 0, 1]])
    assert found["steps"] == [[0, 1], [], [0]]
    assert found["pair"] == ([2, 0, 1], [[2, [2]], [0, [0]], [1, [1]]])
