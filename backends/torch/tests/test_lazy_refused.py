"""What a plain program cannot do is an error at its line, or as in the loop; never another result."""

from __future__ import annotations

import pickle
import threading

import pytest
import torch
from torch import nn

import multifold
from multifold import RecordError

torch.manual_seed(0)
LIN = nn.Linear(4, 4)
XS = [torch.randn(4) for _ in range(3)]


def run(fn):
    return multifold.batched(fn, join="list", backend="torch")(XS)


def changed(y, view):
    """Change a tensor in place, and return what was a view of it."""
    y += 1
    return view


def changed_view(y, view):
    view += 1
    return y


STALE = {
    "returned": lambda y: changed(y, y[1:]),
    "an operand": lambda y: changed(y, y.view(2, 2)) * 2,
    "one of several parts": lambda y: changed(y, y.chunk(2)[1]),
    "a part that was changed": lambda y: changed_view(y, y.chunk(2)[1]),
    "a view that was changed": lambda y: changed_view(y, y.view(2, 2)),
    "a view of a view": lambda y: changed(y, y.view(2, 2).t()[0]),
    "detached": lambda y: changed(y.detach(), y),
    "contiguous": lambda y: changed_view(y, y.contiguous()),
    "a row of it": lambda y: changed(y, y.view(2, 2))[0],
    "rows of it": lambda y: [*changed(y, y.view(2, 2))],
    "in place again": lambda y: changed(y, y.view(2, 2)).add_(1),
    "an item set": lambda y: changed(y, y.view(2, 2)).__setitem__(0, 1.0) or y,
    "broadcast": lambda y: changed(y, torch.broadcast_tensors(torch.ones(4), y)[1]),
}


@pytest.mark.parametrize("case", STALE)
def test_a_view_whose_memory_was_changed_is_refused(case):
    with pytest.raises(RecordError, match="shares its memory"):
        run(lambda x: STALE[case](LIN(x) * 1))


def test_a_view_of_a_real_tensor_that_was_changed_is_refused():
    def fn(x):
        real = torch.ones(4)
        view = real.expand_as(LIN(x))
        real += 1
        return view

    with pytest.raises(RecordError, match="shares its memory"):
        run(fn)


WRITTEN = {
    "a row": lambda y: changed_view(y, y[0]),
    "a slice": lambda y: changed_view(y, y[1:3]),
    "a row of a slice": lambda y: changed_view(y, y[1:3][0]),
    "and the part itself": lambda y: (v := y[1:], v.mul_(2), v * y[1:])[2],
    "an added item": lambda y: (y.__setitem__(0, y[0].add_(1)), y)[1],
    "then the whole": lambda y: (v := y[1:], v.mul_(2), y.add_(1), y)[3],
}


@pytest.mark.parametrize("case", WRITTEN)
def test_a_part_that_is_changed_in_place_is_changed_in_the_whole(case, as_loop):
    as_loop(lambda x: WRITTEN[case](LIN(x) * 1), XS, parameters=[*LIN.parameters()])


def test_other_parts_of_a_whole_that_a_part_has_changed_are_refused():
    with pytest.raises(RecordError, match="shares its memory"):
        run(lambda x: (y := LIN(x) * 1, a := y[:2], b := y[1:], a.add_(1), b)[4])


REFUSED = {
    "a hook": (lambda y: y.register_hook(print), "given a hook"),
    "a backward pass": (lambda y: y.sum().backward(), "sum the losses of all"),
    "a gradient": (lambda y: torch.autograd.grad(y.sum(), LIN.weight), "differentiated"),
    "a kept gradient": (lambda y: y.retain_grad(), "its gradient"),
    "pickle": (pickle.dumps, "pickled"),
    "memory": (lambda y: y.data_ptr(), "memory"),
    "strides": (lambda y: y.as_strided((2,), (2,)), "strides"),
    "storage": (lambda y: y.untyped_storage(), "memory"),
    "another device": (lambda y: y.to("meta"), "another device"),
    "a leaf": (lambda y: y.detach().requires_grad_(), "a leaf"),
    "numbers that are one": (lambda y: y.sum().expand(3).__setitem__(0, 1.0), "are one"),
    "a row of rows that are one": (lambda y: y.expand(3, 4)[0].add_(1), "are one"),
    "out of another shape": (lambda y: torch.add(y.detach(), 1, out=torch.zeros(3)), "y = f"),
    "out of another dtype": (lambda y: torch.add(y.detach(), 1, out=torch.zeros(4).double()), "y = f"),
    "an attribute": (lambda y: setattr(y, "data", y + 1), "another attribute"),
    "a function of Python in place": (lambda y: y.detach().apply_(abs), "changed by apply_"),
    "an array with a gradient": (lambda y: y.numpy(), "no gradient"),
    "inference mode": (lambda y: torch.inference_mode()(lambda: y + 1)(), "inference mode"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_recorded_is_refused(case):
    call, why = REFUSED[case]
    with pytest.raises(RecordError, match=why):
        run(lambda x: call(LIN(x)))


@pytest.mark.parametrize("waits", [False, True])
def test_a_refusal_that_the_program_catches_is_an_error(waits):
    def fn(x):
        y = LIN(x) * 1
        view = y.view(2, 2)
        y += 1
        try:
            return view * 2
        except ValueError:
            return y if not waits or y.sum() > 0 else x

    with pytest.raises(RecordError, match="has caught an error of multifold"):
        run(fn)


@pytest.mark.parametrize("cell", [lambda y: float(len(y)), lambda y: y.add_(1)], ids=["number", "in place"])
def test_a_refusal_of_a_cell_that_the_program_catches_is_an_error(cell):
    cell = multifold.cell(cell)

    def fn(x):
        y = LIN(x)
        try:
            return y * cell(y)
        except Exception:  # noqa: BLE001 - as programs have it
            return y

    with pytest.raises(RecordError, match="has caught an error of multifold"):
        run(fn)


def test_a_shape_that_does_not_fit_is_the_error_of_the_loop():
    with pytest.raises(RuntimeError, match=r"shape '\[3, 3\]' is invalid"):
        run(lambda x: LIN(x).view(3, 3))
    with pytest.raises(IndexError, match="out of bounds"):
        run(lambda x: LIN(x)[4])
    with pytest.raises(TypeError, match="0-d"):
        run(lambda x: [*LIN(x).sum()])


def test_another_thread_sees_no_pending_tensors():
    caught = []

    def fn(x):
        y = LIN(x)

        def work():
            try:
                caught.append(y + 1)
            except RecordError as error:
                caught.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return y

    run(fn)
    assert [str(x).startswith("A pending array is used outside") for x in caught] == [True] * 3


def test_a_pending_tensor_tells_its_form():
    texts = []
    run(lambda x: texts.append(repr(LIN(x))))
    assert texts[0].startswith("<pending tensor (4,) torch.float32,")


def test_a_pending_tensor_of_an_interrupted_run_is_refused():
    kept = []

    def fn(x):
        kept.append(LIN(x))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(fn)
    with pytest.raises(RecordError, match="outside of its batched program"):
        kept[0] + 1


def test_out_of_what_needs_a_gradient_raises_what_the_loop_raises():
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        run(lambda x: torch.add(LIN(x), 1, out=torch.zeros(4)))
