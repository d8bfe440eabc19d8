"""A batched program of a module: its state, copies of it, and what it says of itself."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys

import pytest
import torch

import multifold


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)

    def step(self, x):
        return torch.tanh(self.layer(x))

    def forward(self, x):
        return self.step(self.step(x))


XS = list(torch.randn(6, 4))


@pytest.fixture
def net():
    return Net().eval()


def holder(part):
    """Return a module that has another one as ``inner``."""
    found = torch.nn.Module()
    found.inner = part
    return found


def test_checkpoints_of_a_model_and_of_its_batched_program_are_the_same(net):
    run, other = multifold.batched(net), multifold.batched(Net())
    assert run.state_dict().keys() == net.state_dict().keys()
    other.load_state_dict(net.state_dict())
    Net().load_state_dict(other.state_dict())
    torch.testing.assert_close(dict(other.state_dict()), dict(net.state_dict()))


def test_inside_of_another_module_the_names_are_those_of_the_model_too(net):
    whole, other = holder(multifold.batched(net)), holder(multifold.batched(Net()))
    assert whole.state_dict().keys() == holder(net).state_dict().keys()
    for state in (whole.state_dict(), holder(net).state_dict(), named(whole)):
        other.load_state_dict(state)
        torch.testing.assert_close(dict(other.state_dict()), dict(whole.state_dict()))


def named(module):
    """Return parameters and buffers by the names under which PyTorch finds them."""
    return dict([*module.named_parameters(), *module.named_buffers()])


def test_a_state_that_lacks_a_name_is_refused(net):
    state = net.state_dict()
    del state["layer.bias"]
    with pytest.raises(RuntimeError, match=r"Missing key.*layer\.bias"):
        multifold.batched(net).load_state_dict(state)


@pytest.mark.parametrize("cells", [None, [Net.step]], ids=["found", "named"])
@pytest.mark.parametrize("how", ["pickle", "deepcopy", "torch.save"])
def test_a_run_can_be_copied_after_it_has_run(how, cells, net):
    run = multifold.batched(net, cells=cells)
    wanted = run(XS)
    if how == "torch.save":
        file = io.BytesIO()
        torch.save(run, file)
        file.seek(0)
        again = torch.load(file, weights_only=False)
    else:
        again = pickle.loads(pickle.dumps(run)) if how == "pickle" else copy.deepcopy(run)
    torch.testing.assert_close(again(XS), wanted)
    assert again.module is not net


def test_it_says_what_it_is(net):
    run = multifold.batched(net)
    assert "batched Net, not called yet" in repr(run)
    run(XS)
    assert f"{len(run.explain())} launches of {len(run.run.fold)} calls for 6 examples" in repr(run)


OWN = """
import torch, multifold

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.run = multifold.batched(self)

Own()
"""


def test_a_model_that_would_be_a_part_of_itself_is_refused():
    # In a process of its own: the hook that refuses it is one for all modules of the process.
    found = subprocess.run([sys.executable, "-c", OWN], capture_output=True, text=True, check=False)
    assert "RecordError: The Own keeps a batched program of itself as attribute 'run'" in found.stderr


async def waits(x):
    return torch.tanh(x)


def yields(x):
    yield torch.tanh(x)


@pytest.mark.parametrize(("fn", "what"), [(waits, "async def"), (yields, "generator")])
def test_a_function_that_returns_before_it_computes_is_refused(fn, what):
    with pytest.raises(multifold.RecordError, match=f"Received the {what}"):
        multifold.batched(fn)


def test_completion_shows_what_is_public():
    assert dir(multifold) == sorted(multifold.__all__)
