"""Two processes with gloo between them, shared by the tests of this folder: they take seconds to start."""

from __future__ import annotations

import pytest
from ranks import Ranks


def join(rank):
    """Let a process take part in the default group."""
    import datetime

    import torch

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=30))


@pytest.fixture(scope="session")
def kept():
    """The processes of the session: a list that is empty until the first test, and after a failure."""
    found = []
    yield found
    for ranks in found:
        ranks.close()


@pytest.fixture
def ranks(kept):
    """Two processes; new ones where a test has ended the last ones."""
    if kept and not all(process.is_alive() for process in kept[0].processes):
        kept.pop().close()
    if not kept:
        kept.append(Ranks(2, setup=join))
    return kept[0]
