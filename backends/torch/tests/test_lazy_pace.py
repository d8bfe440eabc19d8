"""Batched programs: the loop takes their place where it is faster.

Times are not measured here: each example takes as long as the test says, in the loop and batched.
"""

from __future__ import annotations

import random
from itertools import repeat

import pytest
import torch
from multifold_torch.lazy.backward import time_backward

import multifold
from multifold.lazy import batching
from multifold.lazy.current import CURRENT

LAYER = torch.nn.Linear(2, 2)
ROWS = [*torch.arange(32.0).reshape(16, 2)]


class Clock:
    """Stands for the time: an example takes ``in_loop`` or ``batched`` seconds."""

    def __init__(self, monkeypatch, in_loop, batched):
        self.now = 0.0
        self.in_loop, self.batched = in_loop, batched
        self.looped = []  # the examples of the last run that were not recorded
        monkeypatch.setattr(batching, "moment", lambda backend, timed: self.now)

    def took(self, x):
        """Let the time go on by one example."""
        if CURRENT.recording is None:
            self.looped.append(x)
        self.now += self.in_loop if CURRENT.recording is None else self.batched

    def program(self, **keywords):
        """Return a batched layer that takes time, and a function that counts examples in the loop."""

        def program(x):
            self.took(x)
            return torch.relu(LAYER(x))

        run = multifold.batched(program, **keywords)

        def looped(xs=ROWS, backward=False):
            self.looped.clear()
            found = run(xs)
            assert torch.allclose(found, torch.relu(LAYER(torch.stack(xs))))
            if backward:
                found.sum().backward()
            return len(self.looped)

        return run, looped


def test_the_loop_is_taken_where_it_is_faster(monkeypatch):
    run, looped = Clock(monkeypatch, 1.0, 2.0).program()
    with torch.no_grad():
        assert [looped() for _ in range(4)] == [0, 1, 16, 16]
    assert "In the loop an example takes 1000.00 ms, and batched 2000.00 ms" in str(run.explain())


def test_runs_stay_batched_where_that_is_faster(monkeypatch):
    run, looped = Clock(monkeypatch, 2.0, 1.0).program()
    with torch.no_grad():
        assert [looped() for _ in range(4)] == [0, 1, 16, 0]
    assert not run.explain().pace


def test_the_loop_is_never_taken_if_it_may_not(monkeypatch):
    _, looped = Clock(monkeypatch, 1.0, 2.0).program(may_loop=False)
    with torch.no_grad():
        assert [looped() for _ in range(4)] == [0] * 4


def test_with_a_seed_the_loop_is_taken_where_it_is_faster_and_draws_the_same(monkeypatch):
    clock = Clock(monkeypatch, 1.0, 2.0)
    run = multifold.batched(lambda x: clock.took(x) or LAYER(x) + torch.rand(2), seed=3)
    often = []
    with torch.no_grad():
        expected = run.loop(ROWS)
        for _ in range(4):
            clock.looped.clear()
            torch.testing.assert_close(run(ROWS), expected)
            often.append(len(clock.looped))
    assert often == [0, 1, 16, 16]


def test_a_program_that_draws_without_a_seed_is_told_if_the_loop_is_faster(monkeypatch, recwarn):
    clock = Clock(monkeypatch, 1.0, 2.0)
    run = multifold.batched(lambda x: clock.took(x) or LAYER(x) + torch.rand(2))
    with torch.no_grad():
        for _ in range(15):
            run(ROWS)
    told = [str(x.message) for x in recwarn if "slower than the loop" in str(x.message)]
    assert len(told) == 1 and "With seed=0 it draws the same in both" in told[0]


@pytest.mark.parametrize(("backward", "often"), [(True, [0, 1, 16, 16]), (False, [0, 1, 0, 0])])
def test_with_gradients_the_loop_is_taken_once_a_backward_pass_has_shown_it(monkeypatch, backward, often):
    _, looped = Clock(monkeypatch, 1.0, 2.0).program()
    assert [looped(backward=backward) for _ in range(4)] == often


def test_runs_with_and_without_gradients_are_measured_by_themselves(monkeypatch):
    _, looped = Clock(monkeypatch, 1.0, 2.0).program()
    with torch.no_grad():
        assert [looped() for _ in range(3)] == [0, 1, 16]
    assert [looped(backward=True) for _ in range(3)] == [0, 1, 16]


def passed(xs, clock, seconds):
    """Return results whose backward pass takes ``seconds``."""
    hidden = LAYER(xs)
    hidden.register_hook(lambda _: clock.append(clock[-1] + seconds))
    return torch.relu(hidden)


@pytest.mark.parametrize("used", ["both", "one"])
def test_a_backward_pass_is_timed_by_parts_if_it_goes_through_both(used):
    clock, noted = [0.0], []
    looped = [passed(row, clock, 3.0) for row in ROWS[:2]]
    batched = passed(torch.stack(ROWS[2:]), clock, 5.0).unbind()
    time_backward(looped, batched, lambda: clock[-1], lambda *found: noted.append(found))
    torch.stack([*looped, *batched] if used == "both" else looped).sum().backward()
    assert noted == ([(6.0, 5.0)] if used == "both" else [])


def test_without_any_gradient_there_is_no_backward_pass_to_wait_for():
    noted = []
    time_backward(ROWS[:2], [None, 3], lambda: 0.0, lambda *found: noted.append(found))
    assert noted == [(0.0, 0.0)]


@pytest.mark.parametrize("draw", [lambda: torch.rand(2), random.random], ids=["torch", "python"])
@pytest.mark.parametrize("gradients", [True, False])
def test_a_program_that_draws_is_batched_whatever_it_takes(monkeypatch, draw, gradients):
    clock = Clock(monkeypatch, 1.0, 2.0)
    run = multifold.batched(lambda x: clock.took(x) or LAYER(x) + draw())
    with torch.set_grad_enabled(gradients):
        for _ in range(4):
            run(ROWS)
    assert not clock.looped


def test_collected_failures_keep_their_numbers(monkeypatch):
    run = multifold.batched(lambda x: LAYER(x) if x[0] != 6 else LAYER(x[:1]), on_error="collect")
    with torch.no_grad():
        assert [[*run(ROWS)[1]] for _ in range(4)] == [[3]] * 4


def test_examples_of_a_measured_run_go_in_their_order(monkeypatch):
    seen = []
    run = multifold.batched(lambda x: seen.append(x[0].item()) or LAYER(x))
    with torch.no_grad():
        for _ in range(2):
            seen.clear()
            run(ROWS)
    assert seen == [row[0].item() for row in ROWS]


@pytest.mark.parametrize(
    ("bad", "note"),
    [(0, "example 0 of the batched program"), (3, "after the first 1, which ran in the loop")],
    ids=["in the loop", "after it"],
)
def test_an_error_of_a_measured_run_tells_its_example(bad, note):
    def program(x, is_bad):
        if is_bad:
            raise ValueError("bad")
        return LAYER(x)

    run = multifold.batched(program)
    with torch.no_grad():
        run(ROWS, repeat(False, 16))
        with pytest.raises(ValueError, match="bad") as raised:
            run(ROWS, [number == bad for number in range(16)])
    assert note in "".join(raised.value.__notes__)
