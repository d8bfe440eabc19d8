"""Two logical devices in this process, and two workers that the tests share: they take seconds to start."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf
from ranks import Ranks, free_port

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
def kept():
    """The processes of the session: a list that is empty until the first test, and after a failure."""
    found = []
    yield found
    for ranks in found:
        ranks.close()


@pytest.fixture
def ranks(kept):
    """Two workers; new ones where a test has ended the last ones."""
    if kept and not all(process.is_alive() for process in kept[0].processes):
        kept.pop().close()
    if not kept:
        kept.append(Ranks(2, workers_of(2)))
    return kept[0]


@pytest.fixture
def cluster():
    """What two processes that a test starts itself have in their environments."""
    return workers_of(2)
