"""Layers of PyTorch, and rows for them, that several files about plain programs share."""

from __future__ import annotations

import torch
from torch import nn

import multifold

torch.manual_seed(0)
XS = [torch.randn(4) for _ in range(5)]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.lin(x)) * 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.lin = nn.Linear(8, 8)
        self.scale = 1.0

    def compose(self, left, right):
        return self.lin(torch.cat([left, right])).chunk(2)

    @staticmethod
    def squared(x):
        return x * x

    def forward(self, x):
        left, right = self.compose(self.block(x), x)
        return self.squared(left) + doubled(right)


def doubled(x):
    return x + x


MODEL = Model()
PARAMETERS = [*MODEL.parameters()]


@multifold.cell
def branching(x):
    return x * 2 if x.sum() > 0 else x - 1
