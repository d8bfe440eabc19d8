"""Which way a run goes, from times that are given here; the tests of PyTorch run programs."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from paced import Clock

import multifold
from multifold.lazy.pace import LoopPace, RunWay
from multifold.testing import Counting


@multifold.cell
def double(x):
    return x * 2


def ways(runs, count, in_loop, batched):
    """Return how each of ``runs`` runs goes, where an example takes so many seconds either way."""
    pace, found = LoopPace(), []
    for _ in range(runs):
        found.append(way := pace.next(count))
        if way.timed:
            rest = count - way.looped
            pace.note(count, looped=way.looped, in_loop=way.looped * in_loop, batched=rest * batched)
    return [way.looped for way in found]


def test_the_loop_is_taken_after_the_second_run_if_it_is_faster():
    assert ways(5, 64, 1.0, 2.0) == [0, 2, 64, 64, 64]


@pytest.mark.parametrize("batched", [1.0, 1.05])
def test_runs_stay_batched_if_the_loop_gains_nothing_beyond_noise(batched):
    assert ways(5, 64, 1.0, batched) == [0, 2, 64, 0, 0]


def test_few_examples_are_enough_where_one_way_is_far_faster():
    assert ways(5, 64, 4.0, 1.0) == [0, 2, 0, 0, 0]


def test_whole_runs_go_the_other_way_when_they_are_measured_again():
    assert ways(21, 64, 1.0, 2.0) == [0, 2, *[64] * 17, 0, 64]
    assert ways(12, 64, 1.0, 1.0) == [0, 2, 64, *[0] * 8, 64]


@pytest.mark.parametrize(("in_loop", "often"), [(1, [1, 2, 11]), (4, [1, 18]), (16, [1])])
def test_runs_are_measured_again_the_later_the_more_it_costs(in_loop, often):
    assert [run for run, looped in enumerate(ways(40, 64, in_loop, 1.0)) if looped][:3] == often


def test_one_example_goes_either_way_when_it_is_measured():
    assert ways(13, 1, 1.0, 2.0) == [0, 0, *[1] * 9, 0, 1]
    assert ways(13, 1, 2.0, 1.0) == [0, 0, 1, *[0] * 8, 1, 0]


def test_a_run_of_which_nothing_was_noted_is_measured_again_later():
    pace = LoopPace()
    assert [run for run in range(40) if pace.next(64).timed] == [1, 6, 15, 32]


def test_runs_of_another_size_are_measured_by_themselves():
    pace = LoopPace()
    for _ in range(2):
        pace.next(64)
    pace.note(64, looped=0, in_loop=0.0, batched=1.0)
    assert pace.next(8) == RunWay(0, timed=False)
    assert pace.next(127) == RunWay(3, timed=True)


def test_what_was_measured_last_counts():
    pace = LoopPace()
    pace.next(64)
    for batched in (9.0, 1.0, 1.0):
        pace.note(64, looped=8, in_loop=16.0, batched=56 * batched)
    assert pace.said()
    pace.note(64, looped=8, in_loop=16.0, batched=56.0)
    assert not pace.said()


def test_runs_that_compile_are_not_measured():
    pace = LoopPace()
    pace.next(64)
    for _ in range(8):
        assert pace.next(64).timed and pace.put_off(64)
    assert pace.next(64).timed and not pace.put_off(64)
    pace.note(64, looped=2, in_loop=2.0, batched=62 * 9.0)
    assert pace.next(64) == RunWay(looped=64, timed=True)


def test_programs_of_numpy_take_the_loop_where_it_is_faster(monkeypatch):
    clock = Clock(monkeypatch, in_loop=1.0, batched=2.0)
    run = multifold.batched(lambda x: clock.took() or double(x), backend="numpy")
    for looped in (0, 1, 16, 16):
        assert run(list(np.ones((16, 2)))).tolist() == [[2.0, 2.0]] * 16
        assert clock.count() == looped


def test_a_program_that_goes_on_compiling_is_measured_in_the_end(monkeypatch):
    clock, counting, compilations = Clock(monkeypatch, 1.0, 2.0), Counting("numpy"), count()
    monkeypatch.setattr(counting, "compilations", lambda: next(compilations))
    run = multifold.batched(lambda x: clock.took() or double(x), backend=counting)
    found = []
    for _ in range(12):
        run(list(np.ones((16, 2))))
        found.append(clock.count())
    assert found == [0, *[1] * 9, 16, 16]
