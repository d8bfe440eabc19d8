"""The logger `multifold`: what is learnt, found and launched."""

from __future__ import annotations

import logging

import torch
from torch import nn

import multifold

LAYER, FACTORS = nn.Linear(4, 4), [1.0, 2.0]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def step(self, x):
        return torch.tanh(self.layer(x))

    def pairs(self, x):
        return torch.stack([x * factor for factor in FACTORS])

    def forward(self, x):
        return self.pairs(self.step(self.step(x)))


def test_it_tells_what_was_found_and_each_launch(caplog):
    with caplog.at_level(logging.DEBUG, logger="multifold"):
        multifold.batched(Net(), may_loop=False)(list(torch.randn(16, 4)))
    levels = {record.getMessage().split(" (")[0]: record.levelname for record in caplog.records}
    assert levels["Net.step"] == "INFO" and "Net.pairs" not in levels
    launches = [record.args for record in caplog.records if record.levelname == "DEBUG"]
    assert ("step", 15) in {args[:2] for args in launches}


def test_it_is_silent_unless_it_is_set_up(capfd):
    multifold.batched(Net(), may_loop=False)(list(torch.randn(16, 4)))
    assert not capfd.readouterr().err
