"""Processes of JAX on this machine, each with virtual devices; tests share them, as they start slowly."""

from __future__ import annotations

import pytest
from ranks import Ranks, free_port, kept

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


def two_of_two():
    """Start two processes of two devices each."""
    address = {"COORDINATOR": f"127.0.0.1:{free_port()}"}
    return Ranks(2, lambda rank: environment(2) | address, join)


@pytest.fixture(scope="session")
def processes():
    """Return a function that returns two processes; new ones where a test has ended the last ones."""
    with kept(two_of_two) as found:
        yield found


@pytest.fixture
def two_processes(processes):
    return processes()
