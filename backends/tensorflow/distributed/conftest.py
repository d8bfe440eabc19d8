"""Two logical devices in this process, and two workers that the tests share: they take seconds to start."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf
from ranks import Ranks, free_port, kept

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


def workers_of(count):
    """Return what tells each of some processes which workers there are."""
    workers = [f"127.0.0.1:{free_port()}" for _ in range(count)]

    def environment(rank):
        task = {"type": "worker", "index": rank}
        config = {"cluster": {"worker": workers}, "task": task}
        return {"TF_CONFIG": json.dumps(config), "TF_CPP_MIN_LOG_LEVEL": "2"}

    return environment


@pytest.fixture(scope="session")
def processes():
    """Return a function that returns two workers; new ones where a test has ended the last ones."""
    with kept(lambda: Ranks(2, workers_of(2))) as found:
        yield found


@pytest.fixture
def ranks(processes):
    return processes()


@pytest.fixture
def cluster():
    """What two processes that a test starts itself have in their environments."""
    return workers_of(2)
