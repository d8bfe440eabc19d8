"""A `torch.utils.data.DataLoader`: workers make traces, one by one or merged; a budget samples for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import multifold
from multifold.sampling import CallBudget


def record(fold, length):
    x = fold.add("embed", length)
    for _ in range(length):
        x = fold.add("step", x)
    return {"y": x, "length": [length]}


class Examples(torch.utils.data.Dataset):
    def __init__(self, lengths, make):
        self.lengths = lengths
        self.make = make

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
    lengths = [3, 0, 5, 1, 2, 4]
    model = Model()
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


def traced_with(op):
    return multifold.trace(lambda fold, op: fold.add(op, 1.0), op)


@pytest.mark.parametrize("collate", [list, multifold.merge])
@pytest.mark.parametrize("op", [lambda x: x, Model().forward])
def test_an_op_that_a_worker_cannot_send_is_told_to_who_waits_for_it(op, collate):
    loader = torch.utils.data.DataLoader(
        Examples([op], traced_with), num_workers=1, collate_fn=collate, timeout=30
    )
    with pytest.raises(multifold.RecordError, match="can't be pickled"):
        list(loader)


def test_functions_of_torch_are_sent_from_workers():
    loader = torch.utils.data.DataLoader(
        Examples([torch.relu, torch.neg], traced_with),
        num_workers=1,
        collate_fn=multifold.merge,
        timeout=30,
    )
    assert [float(multifold.Fold("torch").run(None, batch)) for batch in loader] == [1.0, -1.0]


def test_a_data_loader_takes_a_budget_as_its_batch_sampler():
    costs = np.random.default_rng(5).integers(1, 100, 100).tolist()
    budget = CallBudget(costs, 300)
    loader = torch.utils.data.DataLoader(costs, batch_sampler=budget, collate_fn=sum)
    assert len(loader) == len(budget)
    assert sum(loader) == sum(costs)
    assert max(loader) <= 300
