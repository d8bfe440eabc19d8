"""accelerate hands batches from one process to the others as tensors, and says what to do with others."""

from __future__ import annotations

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.utils import concatenate
from random_trees import random_trees, record

import multifold

TRACES = multifold.traces(record, random_trees(0, 4))


class Stream(torch.utils.data.IterableDataset):
    """What accelerate dispatches by default."""

    def __iter__(self):
        return iter(TRACES)


@pytest.mark.parametrize("split", [False, True])
def test_dispatched_batches_are_refused_with_a_hint(split):
    how = DataLoaderConfiguration(dispatch_batches=True, split_batches=split)
    loader = torch.utils.data.DataLoader(Stream(), batch_size=2, collate_fn=multifold.merge)
    prepared = Accelerator(cpu=True, dataloader_config=how).prepare(loader)
    with pytest.raises(TypeError, match=r"Minibatch'>\. Hint: .*dispatch_batches=False"):
        next(iter(prepared))


@pytest.mark.parametrize("batch", [TRACES[0], multifold.merge(TRACES)], ids=["trace", "minibatch"])
def test_what_two_processes_stop_at_has_the_hint(batch):
    labels = torch.zeros(4)
    with pytest.raises(TypeError, match="dispatch_batches=False"):
        concatenate([(batch, labels), (batch, labels)])


def test_batches_that_are_not_dispatched_are_left_as_they_are():
    how = DataLoaderConfiguration(dispatch_batches=False)
    loader = torch.utils.data.DataLoader(Stream(), batch_size=2, collate_fn=multifold.merge)
    first, second = Accelerator(cpu=True, dataloader_config=how).prepare(loader)
    assert isinstance(first, multifold.Minibatch) and len(first) == len(second) == 2
    assert "Hint" not in repr(type(first))
