"""`multifold train` in several processes: the losses of one, and runs that go on after a kill."""

from __future__ import annotations

import json
import os
import signal
import sys
import time

import made_up_ranks
import numpy as np
import pytest
from ranks import finished, started

from multifold_bench.made_up import MadeUpTask
from multifold_bench.train import checkpoint, train
from multifold_bench.train.run import BEST, CHECKPOINT, RESULT

pytestmark = pytest.mark.timeout(900)  # for all processes of a test, on a busy machine
SCRIPT = made_up_ranks.__file__
ALIKE = ("one example a step", "penalty")
SECONDS = 240


@pytest.fixture(scope="session")
def variables(tmp_path_factory):
    """Return what each environment has more: JAX compiles for seconds, the same in each process."""
    found = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("compiled")),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    return lambda rank: found


def command(backend, folder, *names):
    """Return what trains with each of some settings, in two processes."""
    folder.mkdir(exist_ok=True)
    return [sys.executable, SCRIPT, backend, str(folder), *names]


def result(folder):
    """Return the losses of all steps, and all scores."""
    found = json.loads((folder / RESULT).read_text())
    losses = [loss for entry in found["history"] for loss in entry["losses"]]
    return losses, [entry["dev"] for entry in found["history"]] + [found["test"]]


def test_two_processes_have_the_losses_and_scores_of_one(backend, variables, tmp_path):
    finished([command(backend, tmp_path / "two", *ALIKE)], variables, seconds=SECONDS)
    for name in ALIKE:
        train(MadeUpTask(), tmp_path / name, backend, made_up_ranks.SETTINGS[name])
        (losses, scores), alone = (result(tmp_path / path / name) for path in ("two", ""))
        np.testing.assert_allclose(losses, alone[0], rtol=1e-5)
        assert scores == alone[1]


def stamp(path):
    """Return when a file was replaced last."""
    return path.stat().st_mtime_ns if path.exists() else 0


def kill_worker(arguments, folder, rank, variables):
    """Start a run, kill one of its processes while it trains, and return what is printed."""
    pid = folder / f"{rank}.pid"
    written = folder / "long" / CHECKPOINT
    pid.unlink(missing_ok=True)
    with started([arguments], variables) as (launcher,):
        before = stamp(written)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end and (not pid.exists() or stamp(written) == before):
            time.sleep(0.01)
        os.kill(int(pid.read_text()), signal.SIGKILL)
        printed, _ = launcher.communicate(timeout=SECONDS)
        assert launcher.returncode
        return printed


def test_a_run_whose_workers_were_killed_ends_with_the_same_weights(backend, variables, tmp_path):
    cut, whole = (command(backend, tmp_path / name, "long") for name in ("cut", "whole"))
    for rank in (1, 0):
        assert "SIGKILL" in kill_worker(cut, tmp_path / "cut", rank, variables)
    for arguments in (cut, whole):
        finished([arguments], variables, seconds=SECONDS)
    for name in (CHECKPOINT, BEST):
        (arrays, progress), (other, others) = (
            checkpoint.read_arrays(tmp_path / folder / "long" / name) for folder in ("cut", "whole")
        )
        for kept in (progress, others) if progress else ():
            for entry in kept["history"]:
                del entry["seconds"]
        assert progress == others and arrays.keys() == other.keys()
        assert all(np.array_equal(arrays[key], other[key]) for key in arrays)


def test_the_command_starts_the_shards_that_it_is_asked_for(backend, variables, tmp_path):
    arguments = (sys.executable, "-m", "multifold", "train", "digits", "--backend", backend, "--width", "4")
    losses = []
    for shards in ("1", "2"):
        out = tmp_path / f"run-{shards}"
        file = tmp_path / f"{shards}.json"
        options = ("--epochs", "1", "--shards", shards, "--out", str(out), "--json", str(file))
        (printed,) = finished([[*arguments, *options]], variables, seconds=SECONDS)
        assert printed.count("epoch 1/1: loss") == 1  # of all processes the first one prints
        losses.append(result(out)[0])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
