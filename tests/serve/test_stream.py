"""Streams: a result for each example, in order, in bounded memory; here and in worker processes."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import time
import types
from itertools import groupby

import numpy as np
import pytest
from streamed import make_model, parse, raise_odd, threads, total, total_of_total, unvisited

from multifold import LaunchError, RecordError, each, stream
from multifold.serve.streaming import minibatches

TREES = [1, (2, 3), ((4, 5), 6), (7, (8, (9, 10)))] * 25
TOTALS = [1, 5, 15, 34] * 25

WAYS = {
    "here": {"model": make_model()},
    "made here": {"model": None, "make_model": make_model},
    "workers trace": {"model": make_model(), "workers": 2},
    "workers run": {"model": None, "make_model": make_model, "workers": 2},
}


@pytest.fixture(params=WAYS)
def way(request):
    return WAYS[request.param]


def streamed(way, examples, fn=total, **options):
    """Return a stream on NumPy in one of the ways, of minibatches of some twenty calls."""
    return stream(examples=examples, fn=fn, **{"backend": "numpy", "calls": 20} | way | options)


# ---- results ---------------------------------------------------------------------------------------


def test_each_example_has_its_result_in_order(backend, seam):
    found = list(stream(make_model(), iter(TREES), total, backend=backend, calls=20))
    assert [key for key, _ in found] == list(range(len(TREES)))
    assert all(type(result) is np.ndarray and result.shape == (1,) for _, result in found)
    assert [int(result[0]) for _, result in found] == TOTALS


def test_workers_have_the_results_of_one_process(way):
    found = list(streamed(way, TREES, key=str))
    assert found == [(str(tree), pytest.approx([n])) for tree, n in zip(TREES, TOTALS, strict=True)]


def test_workers_of_each_framework_build_their_model(backend):
    found = list(stream(None, TREES, total, backend=backend, make_model=make_model, workers=2))
    assert [int(result[0]) for _, result in found] == TOTALS


@pytest.mark.parametrize("name", ["here", "workers run"])
def test_a_function_that_awaits_streams_as_well(name):
    found = streamed(WAYS[name], TREES, total_of_total)
    assert [int(result[0]) for _, result in found] == TOTALS


def test_words_and_lists_of_rows_stay_with_their_example(way):
    for tree, (_, found) in zip(TREES, streamed(way, TREES, parse), strict=True):
        text, rows = found["own"]
        assert text == str(tree)
        assert list(rows) == list(range(len(text) % 3))
        assert found["none"] is None


def test_nothing_is_recorded_for_gradients(backend, seam, array):
    ones = np.ones((1, 2), "float32")
    recorded = []
    weights = array(ones) if "kit" in seam.gaps() else seam.kit.variable(ones)

    def scale(x):
        recorded.append(getattr(x * weights, "requires_grad", False))
        return x * weights

    examples = [ones, 2 * ones]
    found = stream({"scale": scale}, examples, lambda fold, x: fold.add("scale", x), backend=backend)
    assert [result.tolist() for _, result in found] == [[[1, 1]], [[2, 2]]]
    assert not any(recorded)


@pytest.mark.parametrize("said", [None, "3"])
def test_workers_take_one_thread_each_unless_another_number_was_said(monkeypatch, said):
    if said is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert {result for _, result in streamed(WAYS["workers run"], range(9), threads)} == {said or "1"}
    assert os.environ.get("OMP_NUM_THREADS") == said


def test_collections_in_a_worker_skip_what_its_framework_has_made():
    assert all(count > 1000 for _, count in streamed(WAYS["workers run"], range(9), unvisited))


def test_workers_have_ended_when_the_stream_has():
    assert len(list(streamed(WAYS["workers run"], TREES))) == 100
    assert not multiprocessing.active_children()


# ---- minibatches and memory ------------------------------------------------------------------------


def test_a_minibatch_ends_with_the_example_that_reaches_the_calls():
    rows = []
    model = {"leaf": lambda x: rows.append(len(x)) or x}
    list(stream(model, range(10), lambda fold, x: fold.add("leaf", x), backend="numpy", calls=4))
    assert rows == [4, 4, 2]


@pytest.mark.parametrize("fn", [total, lambda fold, tree: str(tree)], ids=["calls", "no calls"])
def test_examples_are_read_as_results_are_taken(fn):
    read = []
    found = stream(make_model(), (read.append(x) or x for x in range(1000)), fn, backend="numpy", calls=20)
    for _ in range(30):
        next(found)
    assert len(read) == 60  # a minibatch of which results were taken, and the next one


def test_a_minibatch_is_recorded_while_the_one_before_is_computed(monkeypatch):
    order = []
    monkeypatch.setattr(minibatches, "hosted", lambda backend, x: order.append("copy") or x)
    model = {"leaf": lambda x: order.append("launch") or x}
    list(stream(model, range(6), lambda fold, x: order.append("record") or fold.add("leaf", x), calls=2))
    middle = ["record", "copy", "launch"]
    assert [step for step, _ in groupby(order)] == ["record", "launch", *middle, *middle, "copy"]


def test_workers_have_two_chunks_each_under_way():
    read = []
    found = streamed(WAYS["workers run"], (read.append(x) or x for x in range(10_000)))
    next(found)
    assert len(read) <= 5 * 20
    found.close()


def test_progress_is_told_the_number_of_examples(way):
    done = []
    assert len(list(streamed(way, TREES, progress=done.append))) == 100
    assert done == sorted(set(done))
    assert done[-1] == 100


def test_chunks_grow_to_the_budget_and_shrink_with_longer_examples():
    sizes = []
    lengths = [1] * 520 + [50] * 300

    async def count(fold, n):
        for i in range(n):
            fold.add("leaf", i)
        return each(n)

    for _ in stream(make_model(), lengths, count, backend="numpy", calls=100, progress=sizes.append):
        pass
    taken = np.diff([0, *sizes])
    assert taken.max() == 100
    assert taken[-2] == 2


# ---- what fails ------------------------------------------------------------------------------------


def test_an_example_that_fails_is_named_after_everything_before_it_was_yielded(way):
    found = streamed(way, [*TREES[:33], 666, *TREES])
    results = [int(next(found)[1][0]) for _ in range(33)]
    assert results == TOTALS[:33]
    with pytest.raises(ValueError, match="beast") as raised:
        next(found)
    assert "Raised by example 33 of multifold.stream." in raised.value.__notes__


def test_an_example_that_fails_while_it_awaits_is_named():
    found = streamed(WAYS["here"], [*TREES[:33], 666, *TREES], total_of_total)
    assert [int(next(found)[1][0]) for _ in range(33)] == TOTALS[:33]
    with pytest.raises(ValueError, match="beast") as raised:
        next(found)
    assert "Raised by example 33 of multifold.stream." in raised.value.__notes__


def test_examples_that_end_with_an_error_lose_none_that_were_read(way):
    def read():
        yield from TREES[:7]
        raise OSError("the disk is full")

    found = streamed(way, read())
    assert [int(next(found)[1][0]) for _ in range(7)] == TOTALS[:7]
    with pytest.raises(OSError, match="the disk is full"):
        next(found)


def test_an_op_that_fails_names_the_examples():
    found = stream({"leaf": lambda x: x}, TREES, total, backend="numpy", calls=20)
    with pytest.raises(LaunchError, match="'add'") as raised:
        list(found)
    assert "Raised by examples 0 to 5 of multifold.stream." in raised.value.__notes__


@pytest.mark.parametrize("name", ["workers trace", "workers run"])
def test_a_worker_that_dies_is_an_error_that_names_its_examples(name):
    found = streamed(WAYS[name], [*TREES[:40], 999, *TREES])
    with pytest.raises(LaunchError, match="died before examples"):
        list(found)


def test_a_worker_that_dies_while_nobody_waits_is_an_error_later():
    found = streamed(WAYS["workers run"], [*TREES[:32], 999, *TREES])
    results = [int(next(found)[1][0]) for _ in range(8)]
    time.sleep(1)  # the four chunks that were handed out are done
    results += [int(next(found)[1][0]) for _ in range(8)]
    time.sleep(1)  # a worker dies of the fifth, before the sixth is handed out
    with pytest.raises(LaunchError, match="died before examples 32 to"):
        results.extend(int(result[0]) for _, result in found)
    assert results == TOTALS[:32]


def test_an_exception_that_no_other_process_can_read_is_told_in_words():
    found = streamed(WAYS["workers run"], [1], raise_odd)
    with pytest.raises(LaunchError, match="of class Odd") as raised:
        list(found)
    assert "in raise_odd" in "\n".join(raised.value.__notes__)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calls": 0}, "calls to be an integer"),
        ({"workers": 0}, "workers to be an integer"),
        ({"workers": True}, "workers to be an integer"),
        ({"make_model": make_model}, "a model or make_model"),
        ({"fn": TREES}, r"fn\(fold, example\)"),
        ({"fn": total_of_total, "workers": 2}, "Expected make_model"),
    ],
)
def test_what_no_stream_can_be_made_of_is_refused_at_once(options, message):
    with pytest.raises(RecordError, match=message):
        stream(make_model(), TREES, **{"fn": total} | options)


def test_workers_end_when_the_process_that_started_them_is_killed():
    command = [sys.executable, "-c", "import streamed; streamed.start_workers_and_die()"]
    paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    # `run` returns when no process holds the pipe of the output any more, and workers inherit it.
    done = subprocess.run(command, env=os.environ | paths, stdout=subprocess.PIPE, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL


def test_a_function_that_can_not_be_pickled_is_refused():
    with pytest.raises(RecordError, match="can be pickled"):
        next(stream(make_model(), TREES, lambda fold, x: x, workers=2))
    assert pickle.loads(pickle.dumps(total)) is total


def test_a_function_that_no_worker_can_import_is_an_error_that_says_so(monkeypatch):
    here = types.ModuleType("only_here")
    exec("def fn(fold, x): return x", vars(here))
    monkeypatch.setitem(sys.modules, "only_here", here)
    with pytest.raises(RecordError, match="ModuleNotFoundError: No module named 'only_here'"):
        next(stream(make_model(), TREES, here.fn, workers=2))


def test_a_stream_that_is_closed_early_ends_its_workers():
    found = streamed(WAYS["workers run"], TREES)
    next(found)
    found.close()
    assert next(found, None) is None
