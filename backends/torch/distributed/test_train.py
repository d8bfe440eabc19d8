"""`multifold train` in several processes: the losses of one, and runs that go on after a kill."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import numpy as np
import pytest
from ranks import finished, started

from multifold_bench.made_up import MadeUpTask
from multifold_bench.train import Settings, checkpoint, train
from multifold_bench.train.run import BEST, CHECKPOINT

LOCAL = ("--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2")
TORCHRUN = ("-m", "torch.distributed.run", *LOCAL)
SCRIPT = """
import os, pathlib, sys
from multifold_bench.made_up import MadeUpTask
from multifold_bench.train import Settings, train

out = pathlib.Path(sys.argv[1])
out.with_name(f"{out.name}.{os.environ['RANK']}").write_text(str(os.getpid()))
train(MadeUpTask(train=60), out, "torch", Settings("binary", 3, epochs=6, batch=6), save_seconds=0)
"""


def train_here(rank, out, settings):
    """Train with the processes of this session; return the losses and the scores of each epoch."""
    found = train(MadeUpTask(), out, "torch", settings)
    losses, scores = ([entry[key] for entry in found.history] for key in ("losses", "dev"))
    return losses, scores, found.test


SETTINGS = {
    "alike": {"batch": 6},
    "one example a step": {"batch": 1},
    "penalty": {"batch": 7, "l2": 0.1, "optimizer": "adam", "model": "child-sum"},
}


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
def test_two_processes_have_the_losses_and_scores_of_one(ranks, options, tmp_path):
    settings = Settings(**{"model": "binary", "width": 3, "epochs": 2} | options)
    alone = train_here(0, tmp_path / "one", settings)
    for found in ranks.run(train_here, tmp_path / "two", settings):
        np.testing.assert_allclose(found[0], alone[0], rtol=1e-5)
        assert found[1:] == alone[1:]


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def stamp(path):
    """Return when a file was replaced last."""
    return path.stat().st_mtime_ns if path.exists() else 0


def kill_worker(command, out, rank):
    """Start a run, kill one of its processes while it trains, and wait for the launcher to end."""
    pid = out.with_name(f"{out.name}.{rank}")
    pid.unlink(missing_ok=True)
    with started([command]) as (launcher,):
        before, end = stamp(out / CHECKPOINT), time.monotonic() + 60
        while time.monotonic() < end and (not pid.exists() or stamp(out / CHECKPOINT) == before):
            time.sleep(0.01)
        os.kill(int(pid.read_text()), signal.SIGKILL)
        printed, _ = launcher.communicate(timeout=60)
        assert launcher.returncode and "Signal 9 (SIGKILL)" in printed


def test_a_run_whose_workers_were_killed_ends_with_the_same_weights(script, tmp_path):
    command = [sys.executable, *TORCHRUN, str(script)]
    cut, whole = ([*command, str(tmp_path / name)] for name in ("cut", "whole"))
    for rank in (1, 0):
        kill_worker(cut, tmp_path / "cut", rank)
    finished([cut], seconds=90)
    finished([whole], seconds=90)
    for name in (CHECKPOINT, BEST):
        (arrays, progress), (other, others) = (
            checkpoint.read_arrays(tmp_path / folder / name) for folder in ("cut", "whole")
        )
        for kept in (progress, others) if progress else ():
            for entry in kept["history"]:
                del entry["seconds"]
        assert progress == others and arrays.keys() == other.keys()
        assert all(np.array_equal(arrays[key], other[key]) for key in arrays)


def test_the_command_starts_the_shards_that_it_is_asked_for(tmp_path):
    command = (sys.executable, "-m", "multifold", "train", "digits", "--backend", "torch", "--width", "4")
    losses = []
    for shards in ("1", "2"):
        out, file = tmp_path / f"run-{shards}", tmp_path / f"{shards}.json"
        options = ("--epochs", "1", "--shards", shards, "--out", str(out), "--json", str(file))
        (printed,) = finished([[*command, *options]], seconds=100)
        assert printed.count("epoch 1/1") == 1
        losses.append(json.loads((out / "result.json").read_text())["history"][0]["losses"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
