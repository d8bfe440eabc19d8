"""Each kind of call that vmap runs proves itself: functions whose rule in vmap is wrong run row by row."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from multifold_torch.lazy import calls
from torch import nn

import multifold

torch.manual_seed(0)
LIN = nn.Linear(5, 5)
XS, SCORES = torch.randn(6, 4, 5), torch.randn(6, 4)
WRONG = "row by row: vmap gives other values"


@multifold.cell
def best(x, scores):
    return x.index_select(0, scores.argmax()).sum(0)


@multifold.cell
def selected(x):
    y = LIN(x)
    return y.select_scatter(y[0] * 2, 0, 1)


PROGRAMS = {
    "a value, in a cell": best,
    "a gradient of a parameter around a cell": lambda x, scores: selected(x),
    "a gradient of an operand": lambda x, scores: LIN(x).select_scatter(LIN(x)[0] * 2, 0, 1),
}


def slope(y):
    """Return the gradient of the weights of `LIN`."""
    return torch.autograd.grad(y.square().sum(), LIN.weight, retain_graph=True)[0]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_function_with_a_wrong_rule_runs_row_by_row(name):
    run = multifold.batched(PROGRAMS[name])
    loop = torch.stack([PROGRAMS[name](x, s) for x, s in zip(XS, SCORES, strict=True)])
    for _ in range(2):
        found = run(XS, SCORES)
        torch.testing.assert_close(found, loop)
        if loop.requires_grad:
            slopes = [
                torch.autograd.grad(y.square().sum(), LIN.weight, retain_graph=True) for y in (found, loop)
            ]
            torch.testing.assert_close(*slopes)
        assert WRONG in str(run.explain())


def test_a_right_function_is_proved_once(monkeypatch):
    proved = []
    agree = calls.agree
    monkeypatch.setattr(calls, "agree", lambda *call: proved.append(1) or agree(*call))
    run = multifold.batched(lambda x, width: F.pad(LIN(x), (0, width)).std(1))
    for width in range(1, 4):
        run(XS, [width] * len(XS))
        assert WRONG not in str(run.explain())
    assert len(proved) == 2  # pad and std, whatever the width


def test_nan_is_equal_to_nan():
    run = multifold.batched(lambda x: (LIN(x) * float("nan")).std(0))
    run(XS)
    assert WRONG not in str(run.explain())


def test_a_cell_row_by_row_has_memory_of_its_own():
    cell = multifold.cell(lambda x: x.as_strided((5,), (1,), 5) + x.renorm(2, 0, 1.0)[0])
    torch.testing.assert_close(multifold.batched(cell)(XS), torch.stack([cell(x.clone()) for x in XS]))
