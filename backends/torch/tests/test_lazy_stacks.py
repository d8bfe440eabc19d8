"""Stacks: an example that has ended leaves its stack to one that comes later, with nothing of its own."""

from __future__ import annotations

import contextvars
import gc
import sys
import threading
import weakref

import pytest
import torch
from multifold_torch.lazy.whole import RealCalls
from torch import nn

import multifold
from multifold.lazy import waiting
from multifold.lazy.current import CURRENT
from multifold.lazy.sharing import Sharing
from multifold.lazy.straight import StraightGuard

pytest.importorskip("greenlet")
torch.manual_seed(0)
LIN = nn.Linear(4, 4)
XS = [torch.randn(1, 4) for _ in range(6)]
NAME = contextvars.ContextVar("NAME", default="outer")


def reading(x):
    y = LIN(x)
    if y.sum().item() > 0:
        y = torch.tanh(y)
    return y * y.sum().item()


def wanted(fn=reading, xs=XS):
    return torch.stack([fn(x) for x in xs])


def batched(fn=reading, **options):
    """Return a program that has read before, so that its examples wait."""
    run = multifold.batched(fn, may_loop=False, **options)
    run(XS)
    return run


@pytest.fixture
def made(monkeypatch):
    """Count the stacks that are made, without those of other tests."""
    found = []
    init = waiting.ExampleStack.__init__

    def noted(self):
        found.append(weakref.ref(self))
        init(self)

    monkeypatch.setattr(waiting.ExampleStack, "__init__", noted)
    waiting.MAIN_STACKS.close()
    return found


def test_later_runs_take_the_stacks_of_those_before(made):
    run = batched()
    torch.testing.assert_close(run(XS), wanted())
    torch.testing.assert_close(run(XS), wanted())
    assert len(made) == len(XS) == len(waiting.MAIN_STACKS.free)


def test_a_program_has_the_stacks_of_another_one(made):
    batched()(XS)
    torch.testing.assert_close(batched(lambda x: reading(x) + 1)(XS), wanted() + 1)
    assert len(made) == len(XS)


def test_stacks_rest_with_nothing_of_what_ran_on_them(made):
    class Example:
        pass

    def fn(example):
        return reading(XS[0]), example

    run = multifold.batched(fn, join="list", may_loop=False)
    run([Example(), Example()])
    example = Example()
    ref, found = weakref.ref(example), run([example, Example()])
    assert made and found[0][1] is example
    del example, found, run
    gc.collect()
    assert ref() is None


def test_what_an_example_raises_is_raised_and_its_stack_goes_on(made):
    def fn(x):
        if reading(x).sum().item() > float("-inf") and x is XS[2]:
            raise ValueError("of the example")
        return reading(x)

    run = batched()
    for _ in range(2):
        with pytest.raises(ValueError, match="of the example") as raised:
            multifold.batched(fn, may_loop=False)(XS)
        assert raised.traceback[-1].name == "fn"
    torch.testing.assert_close(run(XS), wanted())
    assert len(made) == len(XS)


def test_what_waits_when_a_run_fails_ends_and_its_stack_goes_on(made):
    ended = []

    def fn(x):
        try:
            LIN(x).sum().item()
            return LIN(torch.cat([LIN(x)] * 2)) if x is XS[3] else LIN(x)
        finally:
            ended.append(x)

    run = batched()
    failing = multifold.batched(fn, may_loop=False)
    with pytest.raises(RuntimeError):
        failing([*XS[:3], torch.randn(1, 5)])
    torch.testing.assert_close(run(XS), wanted())
    assert len(ended) == 4
    assert all(stack.is_free for stack in waiting.MAIN_STACKS.free)


def test_examples_that_take_a_stack_have_their_own_context(made):
    seen = []

    def fn(x):
        seen.append(NAME.get())
        NAME.set(str(len(seen)))
        return reading(x)

    run = multifold.batched(fn, join="list", may_loop=False)
    token = NAME.set("outer")
    run.loop(XS)
    in_loop = [*seen]
    for _ in range(2):
        seen.clear()
        NAME.reset(token)
        token = NAME.set("outer")
        run(XS)
        assert seen == in_loop
    NAME.reset(token)


def test_the_stacks_of_another_thread_end_with_its_run(made):
    found = []
    run = multifold.batched(reading, may_loop=False)

    def work():
        run(XS)
        found.append(run(XS))
        found.append([stack for ref in made if (stack := ref()) is not None and not stack.dead])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    torch.testing.assert_close(found[0], wanted())
    assert made and not found[1] and not waiting.MAIN_STACKS.free


def test_a_debugger_sees_examples_that_would_take_a_stack(made):
    run = batched()
    run(XS)
    lines = []

    def trace(frame, event, argument):
        if frame.f_code is reading.__code__ and event == "line":
            lines.append(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        run(XS)
    finally:
        sys.settrace(before)
    assert len(lines) >= 3 * len(XS)
    torch.testing.assert_close(run(XS), wanted())


def test_a_run_inside_of_another_greenlet_has_stacks_of_its_own(made):
    import greenlet

    run = batched()
    run(XS)
    found = greenlet.greenlet(lambda: run(XS)).switch()
    torch.testing.assert_close(found, wanted())
    torch.testing.assert_close(run(XS), wanted())
    assert alive(made) == len(waiting.MAIN_STACKS.free) <= len(XS)


def alive(made):
    gc.collect()
    return sum((stack := ref()) is not None and not stack.dead for ref in made)


def test_stacks_that_are_not_kept_end(made, monkeypatch):
    run = batched()
    monkeypatch.setattr(waiting, "MOST_STACKS", 2)
    run(XS)
    assert alive(made) == 2
    waiting.MAIN_STACKS.close()
    sys.setprofile(lambda *_: None)
    try:
        run(XS)
    finally:
        sys.setprofile(None)
    assert alive(made) == 0


def at_depth(depth, call):
    return at_depth(depth - 1, call) if depth else call()


def test_stacks_that_were_made_deep_in_calls_are_not_taken_at_the_top(made):
    def nested(x, depth):
        return at_depth(depth, lambda: reading(x))

    run = multifold.batched(nested, may_loop=False, cells=())
    run(XS, [1] * len(XS))
    waiting.MAIN_STACKS.close()
    room = sys.getrecursionlimit() - 100
    at_depth(room - 100, lambda: run(XS, [1] * len(XS)))
    torch.testing.assert_close(run(XS, [room // 2] * len(XS)), wanted())


def test_stacks_that_rest_keep_no_greenlet_of_the_user(made):
    import greenlet

    run, ended = batched(), []

    def task():
        try:
            run(XS)
            greenlet.getcurrent().parent.switch()
        finally:
            ended.append(True)

    other = greenlet.greenlet(task)
    other.switch()
    del other
    gc.collect()
    assert ended


def test_stacks_that_were_made_deep_in_calls_end_where_a_greenlet_of_the_user_runs(made):
    import greenlet

    run = batched()
    at_depth(200, lambda: run(XS))
    other = greenlet.greenlet(lambda: run(XS))
    torch.testing.assert_close(other.switch(), wanted())
    assert other.dead


def test_a_stack_that_is_ended_goes_on_where_that_is_done(made):
    import greenlet

    stack = waiting.ExampleStack()
    stack.begin(lambda: "found")
    other = greenlet.greenlet(lambda: (stack.taken(), stack.end()))
    assert other.switch() == ("found", None)
    assert stack.dead


@multifold.cell
def nested(x):
    """Run another program in a launch, where an example waits."""
    return multifold.batched(reading, may_loop=False)([x, x + 1]).sum(0)


def test_runs_inside_of_examples_have_stacks_of_their_own(made):
    def outer(x):
        return nested(reading(x))

    run = multifold.batched(outer, may_loop=False)
    for depth in (0, 100, 0):
        torch.testing.assert_close(at_depth(depth, lambda: run(XS)), wanted(outer))


def test_what_a_key_press_has_left_open_ends_with_the_run(made):
    """It may come between the begin of a guard and the statement that would end it."""
    run = batched()
    calls = RealCalls()

    def fn(x):
        calls.__enter__()
        StraightGuard(lambda module: True).__enter__()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        multifold.batched(fn, may_loop=False)(XS)
    assert sys.getprofile() is None and CURRENT.recording is None
    torch.testing.assert_close(run(XS), wanted())


def test_what_recorded_when_a_key_press_came_at_the_end_of_a_turn_does_so_no_more(made, monkeypatch):
    run = batched()

    def pressed(self, example):
        raise KeyboardInterrupt

    monkeypatch.setattr(Sharing, "rest", pressed)
    with pytest.raises(KeyboardInterrupt):
        multifold.batched(reading, may_loop=False)(XS)
    assert CURRENT.recording is None
    monkeypatch.undo()
    torch.testing.assert_close(run(XS), wanted())
