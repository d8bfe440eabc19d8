"""Processes of JAX on this machine, each with virtual devices; tests share them, as they start slowly."""

from __future__ import annotations

import pytest
from ranks import Ranks, free_port

DEVICES = "--xla_force_host_platform_device_count"


def environment(devices):
    """Return the variables of a process with so many devices; JAX reads them when it is imported."""
    return {"XLA_FLAGS": f"{DEVICES}={devices}", "JAX_PLATFORMS": "cpu"}


@pytest.fixture(scope="session")
def four_devices():
    """One process of four devices."""
    with Ranks(1, lambda rank: environment(4)) as ranks:
        yield ranks


def join(rank):
    """Let a process take part; it hears of another that died within ten seconds."""
    import os

    import jax

    address = os.environ["COORDINATOR"]
    jax.distributed.initialize(address, 2, rank, heartbeat_timeout_seconds=10)


@pytest.fixture(scope="session")
def kept():
    """The two processes of the session: a list that is empty until the first test, and after a failure."""
    found = []
    yield found
    for ranks in found:
        ranks.close()


@pytest.fixture
def two_processes(kept):
    """Two processes of two devices each; new ones where a test has ended the last ones."""
    if kept and not all(process.is_alive() for process in kept[0].processes):
        kept.pop().close()
    if not kept:
        address = {"COORDINATOR": f"127.0.0.1:{free_port()}"}
        kept.append(Ranks(2, lambda rank: environment(2) | address, join))
    return kept[0]
