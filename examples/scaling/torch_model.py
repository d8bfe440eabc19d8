"""The model of the formulas for PyTorch, and how a loader puts traces and labels together."""

import torch
from formulas import MEANING
from torch import nn

import multifold


class Gate(nn.Linear):
    def __init__(self, width):
        super().__init__(2 * width, width)

    def forward(self, left, right):  # two arrays of shape (n, width)
        return torch.tanh(super().forward(torch.cat([left, right], dim=1)))


class Logic(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        torch.manual_seed(0)  # the same weights on every rank
        self.value = nn.Embedding(2, width)
        self.gates = nn.ModuleDict({name: Gate(width) for name in MEANING})
        self.logits = nn.Linear(width, 2)


def mean_loss(logits, labels):
    """Return the mean over a minibatch; a zero where a rank has no example, and takes part anyway."""
    return nn.functional.cross_entropy(logits, labels) if len(labels) else logits.sum()


def collate(pairs):
    """Return traces as one minibatch, and labels; a rank may have none of them."""
    traces, labels = zip(*pairs, strict=True) if pairs else ((), ())
    return multifold.merge(traces) if traces else [], torch.tensor(labels, dtype=torch.int64)
