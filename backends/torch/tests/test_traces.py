"""Traces made by the workers of a `torch.utils.data.DataLoader`, one by one or merged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import multifold


def record(fold, length):
    x = fold.add("embed", length)
    for _ in range(length):
        x = fold.add("step", x)
    return {"y": x, "length": [length]}


class Examples(torch.utils.data.Dataset):
    def __init__(self, lengths, make):
        self.lengths, self.make = lengths, make

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return self.make(self.lengths[index])


def traced(length):
    return multifold.trace(record, length)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(10, 3)
        self.step = torch.nn.Linear(3, 3)


@pytest.mark.parametrize("collate", [list, multifold.merge])
def test_traces_of_workers_run_with_gradients(collate):
    lengths, model = [3, 0, 5, 1, 2, 4], Model()
    loader = torch.utils.data.DataLoader(
        Examples(lengths, traced), batch_size=3, num_workers=2, collate_fn=collate
    )
    results = [multifold.Fold("torch").run(model, batch) for batch in loader]
    fold = multifold.Fold("torch")
    expected = fold.apply(model, [record(fold, n)["y"] for n in lengths])
    torch.testing.assert_close(torch.cat([r["y"] for r in results]), expected)
    np.testing.assert_array_equal(torch.cat([r["length"] for r in results]), lengths)
    results[0]["y"].sum().backward()
    assert model.step.weight.grad.abs().sum() > 0
