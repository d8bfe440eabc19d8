"""The programs in examples/scaling run under their launchers, and train as one process does."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch
from multifold_torch import Folded
from ranks import finished, free_port

import multifold
from multifold.sampling import CallBudget

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "scaling"
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1")


def launch(*arguments):
    """Run Python with arguments; return what it prints."""
    return finished([[sys.executable, *map(str, arguments)]], seconds=90)[0]


def torchrun(*arguments):
    return launch(*TORCHRUN, "--master-port", free_port(), *arguments)


@pytest.fixture(scope="module")
def one_process():
    """The weights after two epochs, where each step takes the examples of both shards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        formulas = runpy.run_path(str(FOLDER / "formulas.py"))
        model = runpy.run_path(str(FOLDER / "torch_model.py"))
    examples, labels = formulas["examples"](200)
    traces = multifold.traces(formulas["record"], examples)
    module = Folded(model["Logic"]())
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    budget = CallBudget([len(trace) for trace in traces], calls=300, shards=2)
    for epoch in range(2):
        budget.set_epoch(epoch)
        for step in budget.steps():
            chosen = [i for shard in step for i in shard]
            logits = module([traces[i] for i in chosen])
            optimizer.zero_grad()
            model["mean_loss"](logits, torch.tensor([labels[i] for i in chosen])).backward()
            optimizer.step()
    return {name.removeprefix("model."): x for name, x in module.state_dict().items()}


PROGRAMS = {
    "ddp": lambda out: torchrun(FOLDER / "torch_ranks.py", "--out", out),
    "fsdp": lambda out: torchrun(FOLDER / "torch_ranks.py", "--fsdp", "--out", out),
    "lightning": lambda out: launch(FOLDER / "torch_lightning.py", "--devices", 2, "--out", out),
    "accelerate": lambda out: torchrun(FOLDER / "torch_accelerate.py", "--out", out),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_two_ranks_train_as_one_process(program, one_process, tmp_path):
    PROGRAMS[program](tmp_path / "weights.pt")
    found = {name.split("model.")[-1]: x for name, x in torch.load(tmp_path / "weights.pt").items()}
    assert found.keys() == one_process.keys()
    for name, x in found.items():
        torch.testing.assert_close(x, one_process[name], rtol=1e-4, atol=1e-5)


def test_lightning_trains_in_bfloat16(tmp_path):
    out = tmp_path / "weights.pt"
    launch(FOLDER / "torch_lightning.py", "--precision", "bf16-true", "--out", out)
    assert {x.dtype for x in torch.load(out).values()} == {torch.bfloat16}
