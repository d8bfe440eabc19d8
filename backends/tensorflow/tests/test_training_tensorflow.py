"""Training by programs: the same losses as an op at a time, and the end of programs that do not pay."""

from __future__ import annotations

import numpy as np
import pytest

from multifold_bench.made_up import MadeUpTask
from multifold_bench.train import train
from multifold_bench.train.on import tensorflow
from multifold_bench.train.on.tensorflow import TensorflowTrainer

CHOSEN = {"width": 3, "epochs": 3, "batch": 4, "optimizer": "adam", "rate": 0.01}


def losses_and_forms(folder, monkeypatch):
    """Train; return the loss of each step, and how many forms of programs there were."""
    made = []

    def noted(*arguments):
        made.append(TensorflowTrainer(*arguments[:4]))
        return made[0]

    monkeypatch.setattr(tensorflow, "trainer", noted)
    task = MadeUpTask()
    result = train(task, folder, "tensorflow", task.settings(**CHOSEN))
    return [loss for entry in result.history for loss in entry["losses"]], len(made[0].fold.programs.forms)


def test_programs_have_the_losses_of_an_op_at_a_time(tmp_path, monkeypatch):
    plain, none = losses_and_forms(tmp_path / "plain", monkeypatch)  # fewer steps than SHORT
    monkeypatch.setattr(tensorflow, "SHORT", 0)
    programs, few = losses_and_forms(tmp_path / "programs", monkeypatch)
    assert none == 0 and 1 <= few <= 4
    assert programs == pytest.approx(plain, rel=1e-5)


def test_a_run_with_many_forms_goes_on_without_programs(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorflow, "SHORT", 0)
    monkeypatch.setattr(tensorflow, "FORMS", 0)  # one form is too many until the eighth use
    losses, forms = losses_and_forms(tmp_path, monkeypatch)
    assert forms == 1 and np.isfinite(losses).all()
