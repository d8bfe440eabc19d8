"""The tool itself: processes that work together, and that never hang."""

from __future__ import annotations

import os
import time

import pytest
import torch
from ranks import RankError, Ranks


def total(rank, x):
    number = torch.tensor(x + rank)
    torch.distributed.all_reduce(number)
    return int(number)


def fail_on_one(rank, way):
    if rank == 1:
        if way == "raises":
            raise ValueError("the second of two")
        os._exit(3) if way == "dies" else time.sleep(60)
    time.sleep(60)


def test_processes_add_up_their_numbers(ranks):
    assert ranks.run(total, 10) == [21, 21]


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("raises", "process 1 raised(.|\n)*the second of two"),
        ("dies", "process 1 died"),
        ("sleeps", "no answer in time of the processes \\[0, 1\\]"),
    ],
)
def test_one_process_that_fails_ends_all(way, message):
    began = time.monotonic()
    with Ranks(2) as own, pytest.raises(RankError, match=message):
        own.run(fail_on_one, way, seconds=10)
    assert time.monotonic() - began < 30
