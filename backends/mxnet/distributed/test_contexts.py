"""Contexts and workers give losses and weights of one process on all their examples, whatever each has."""

from __future__ import annotations

import signal
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, gluon
from ranks import RankError, Ranks, free_port, started
from shards import WORDS, score, shards_of, trees_of

from multifold import Fold


class Encoder(gluon.Block):
    """The ops of `shards.score`."""

    def __init__(self, width=5):
        super().__init__()
        self.embed = gluon.nn.Embedding(WORDS, width)
        self.gates = gluon.nn.Dense(width, in_units=2 * width)
        self.turn = gluon.nn.Dense(width, in_units=width)
        self.out = gluon.nn.Dense(2, in_units=width)

    def join(self, left, right):
        return mx.nd.tanh(self.gates(mx.nd.concat(left, right, dim=1)))

    def flip(self, x):
        return mx.nd.tanh(self.turn(x))


STEPS = [
    shards_of(0),  # seven trees and three, of which none flips
    [trees_of(1, 4), []],
    [trees_of(2, 2, flips=False), trees_of(3, 5)],
    [trees_of(4, 2, flips=False), trees_of(5, 1, flips=False)],  # no flips at all
]
"""The trees of two shards in each of four steps."""

WHOLE = [[[tree for trees in shards for tree in trees]] for shards in STEPS]
"""The same examples as those of one shard."""


def train(steps, contexts, kvstore, own=slice(None)):
    """Train on some of the shards, each on a context of its own; return their losses and all weights."""
    mx.random.seed(0)
    model = Encoder()
    model.initialize(mx.init.Xavier(), ctx=contexts)
    folds = [Fold(backend="mxnet", device=context) for context in contexts]
    update = kvstore is not None or None
    trainer = gluon.Trainer(
        model.collect_params(), "sgd", {"learning_rate": 0.5}, kvstore=kvstore, update_on_kvstore=update
    )
    cross_entropy = gluon.loss.SoftmaxCrossEntropyLoss()
    losses = []
    for shards in steps:
        total = sum(map(len, shards))
        model.collect_params().zero_grad()  # a parameter that no example reads keeps its last gradient else
        found = []
        with autograd.record():
            for fold, trees, context in zip(folds, shards[own], contexts, strict=True):
                if trees:
                    fold.reset()
                    labels = mx.nd.array([len(str(tree)) % 2 for tree in trees], ctx=context)
                    loss = cross_entropy(fold.run(model, trees, score), labels).sum() / total
                    found.append(loss)
        if found:
            autograd.backward(found)
        trainer.step(1, ignore_stale_grad=True)
        losses.append(sum(float(loss.asscalar()) for loss in found))
    weights = [
        [x.asnumpy() for x in parameter.list_data()] for parameter in model.collect_params().values()
    ]
    return losses, weights


def close(got, expected):
    """Compare the weights on all contexts with those of one."""
    for copies, (one,) in zip(got, expected, strict=True):
        for copy in copies:
            np.testing.assert_allclose(copy, one, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def alone():
    return train(WHOLE, [mx.cpu(0)], None)


@pytest.mark.parametrize("kvstore", ["local", "device"])
def test_two_contexts_train_as_one(kvstore, alone):
    losses, weights = train(STEPS, [mx.cpu(0), mx.cpu(1)], kvstore)
    np.testing.assert_allclose(losses, alone[0], rtol=1e-5)
    close(weights, alone[1])


# ---- workers ---------------------------------------------------------------------------------------


def as_worker(rank, steps):
    return train(steps, [mx.cpu(0)], "dist_sync", slice(rank, rank + 1))


def roles(port):
    """Return what tells a process of its part, and of two workers and a server."""
    common = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
    }
    return lambda role: {**common, "DMLC_ROLE": role}


@pytest.fixture
def workers():
    """Return two workers, with a scheduler and a server."""
    role = roles(free_port())
    serve = [sys.executable, "-c", "import mxnet"]  # which serves until the workers have gone
    with (
        started([serve, serve], lambda rank: role(["scheduler", "server"][rank])),
        Ranks(2, lambda rank: role("worker")) as found,
    ):
        yield found


def test_an_example_that_fails_in_one_worker_is_named(workers):
    with pytest.raises(RankError, match=r"process 1 raised(.|\n)*example 2"):
        workers.run(as_worker, [STEPS[0], [trees_of(1, 3), [1, 2, None]]])


def test_two_workers_train_as_one(workers, alone):
    found = workers.run(as_worker, STEPS)
    np.testing.assert_allclose(sum(np.array(losses) for losses, _ in found), alone[0], rtol=1e-5)
    for _, weights in found:
        close(weights, alone[1])


HALF_WAY = """
import os, signal
import mxnet as mx
from multifold_mxnet.alive import watch

store = mx.kv.create("dist_sync")
watch(store)
store.init("sum", mx.nd.zeros(1))
for step in range(2):
    if step == 1 and store.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    found = mx.nd.ones(1)
    store.push("sum", found)
    store.pull("sum", found)
    found.wait_to_read()
"""


def test_a_worker_that_dies_ends_all_with_its_name():
    role = roles(free_port())
    beats = {"PS_HEARTBEAT_INTERVAL": "2"}
    scheduler = [sys.executable, "-m", "multifold_mxnet.alive"]
    serve, work = [[sys.executable, "-c", code] for code in ("import mxnet", HALF_WAY)]
    parts = ("worker", "server", "worker", "worker")  # the scheduler sets its role itself
    with started([scheduler, serve, work, work], lambda rank: role(parts[rank]) | beats) as running:
        says, *workers = (process.communicate(timeout=100)[0] for process in (running[0], *running[2:]))
        assert running[0].returncode == 1 and "Received nothing of worker 1 for 6 s" in says
        assert sorted(process.returncode for process in running[2:]) == [-signal.SIGKILL, 1]
        assert any("Received nothing of the scheduler" in text for text in workers)
