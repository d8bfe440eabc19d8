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
        os._exit(3) if way == "dies" else time.sleep(600)
    time.sleep(600)


def test_processes_add_up_their_numbers(ranks):
    assert ranks.run(total, 10) == [21, 21]


@pytest.mark.parametrize(
    ("way", "seconds", "message"),
    [
        ("raises", 60, "process 1 raised(.|\n)*the second of two"),
        ("dies", 60, "process 1 died"),
        ("sleeps", 3, "no answer in time of the processes \\[0, 1\\]"),
    ],
)
def test_one_process_that_fails_ends_all(way, seconds, message):
    with Ranks(2) as own, pytest.raises(RankError, match=message):
        own.run(fail_on_one, way, seconds=seconds)
