"""Two processes with gloo between them, shared by the tests of this folder: they take seconds to start."""

from __future__ import annotations

import pytest
from ranks import Ranks, kept


def join(rank):
    """Let a process take part in the default group."""
    import datetime

    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))


@pytest.fixture(scope="session")
def processes():
    """Return a function that returns two processes; new ones where a test has ended the last ones."""
    with kept(lambda: Ranks(2, setup=join)) as found:
        yield found


@pytest.fixture
def ranks(processes):
    return processes()
