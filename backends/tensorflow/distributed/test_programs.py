"""The program in examples/scaling: two replicas of a process and two processes end with equal weights."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from ranks import finished

PROGRAM = Path(__file__).resolve().parents[3] / "examples" / "scaling" / "tensorflow_replicas.py"


def launch(environment, *options):
    """Start the program once for each of the options; wait for all."""
    commands = [[sys.executable, str(PROGRAM), *map(str, own)] for own in options]
    return finished(commands, environment, seconds=100)


def test_replicas_and_workers_train_alike(cluster, tmp_path):
    paths = [tmp_path / f"{name}.npz" for name in ("workers", "replicas")]
    launch(lambda rank: {}, ("--replicas", 2, "--out", paths[1], "--export", tmp_path / "served"))
    launch(cluster, ("--out", paths[0]), ("--out", tmp_path / "other.npz"))
    found = [np.load(path) for path in paths]
    for name in found[0]:
        np.testing.assert_allclose(found[1][name], found[0][name], rtol=1e-4, atol=1e-5)
    assert (tmp_path / "served" / "saved_model.pb").exists()
