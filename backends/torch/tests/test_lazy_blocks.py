"""`multifold.pending` in PyTorch: values and gradients of loops in a method are those of the loop."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import multifold
from multifold import RecordError
from multifold.lazy.current import CURRENT

torch.manual_seed(0)
TREES = [(1, 2), ((3, 4), 5), 6, ((1, (2, 3)), (4, 5)), (7, (8, 9))]


class Forest(nn.Module):
    def __init__(self, block=None, rate=0.0):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.join = nn.Linear(8, 4)
        self.drop = nn.Dropout(rate)
        self.register_buffer("shift", torch.randn(4))
        self.block = block

    def compose(self, left, right):
        return self.drop(torch.tanh(self.join(torch.cat([left, right])) + self.shift))

    def encode(self, tree):
        if isinstance(tree, int):
            return self.embed(torch.tensor(tree))
        return self.compose(self.encode(tree[0]), self.encode(tree[1]))

    def forward(self, trees):
        with self.block or contextlib.nullcontext():
            states = [self.encode(tree) for tree in trees]
            longest = max(states, key=lambda x: x.norm().item()) if self.training else states[0]
        return torch.stack([*states, longest])


def pair(**options):
    """Return a model with a block, and the same one without."""
    made = [Forest(multifold.pending(**options)), Forest()]
    made[1].load_state_dict(made[0].state_dict())
    return made


@pytest.mark.parametrize("cells", [(), (Forest.compose,)])
@pytest.mark.parametrize("training", [True, False])
def test_values_and_gradients_are_those_of_the_loop(cells, training, comparing):
    outcome, assert_equal = comparing
    found, wanted = [
        outcome(lambda model=model: model.train(training)(TREES), [*model.parameters()])
        for model in pair(cells=cells)
    ]
    assert_equal(found[0], wanted[0], 1e-6)
    [assert_equal(x, y, 1e-6) for x, y in zip(found[1], wanted[1], strict=True)]
    assert nn.Module.__call__.__module__.startswith("torch") and CURRENT.recording is None


def test_a_cell_of_a_level_is_one_launch():
    model = Forest(multifold.pending(cells=[Forest.compose])).eval()
    model(TREES)
    run = multifold.batched(model.encode, cells=[Forest.compose])
    run(TREES)
    assert len(model.block.explain()) == len(run.explain()) == 4


def test_modes_hold_as_in_the_loop():
    model, loop = pair()
    with torch.no_grad():
        torch.testing.assert_close(model(TREES), loop(TREES))
        assert not model(TREES).requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(model(TREES), loop(TREES), rtol=0.05, atol=0.05)
    with multifold.pending(backend="torch"):
        x = model.embed(torch.tensor(1))
        with torch.no_grad():
            y = model.join(torch.cat([x, x]))
        z = model.join(torch.cat([x, x]))
    assert (y.requires_grad, z.requires_grad) == (False, True)


REFUSED = {
    "sum the losses .* after the with statement": lambda y: y.sum().backward(),
    "do that after the with statement": lambda y: y.register_hook(print),
}


@pytest.mark.parametrize("hint", REFUSED)
def test_what_a_block_refuses_is_to_be_done_after_it(hint):
    layer = nn.Linear(4, 4)
    with pytest.raises(RecordError, match=hint), multifold.pending():
        REFUSED[hint](layer(torch.ones(4)))


def test_models_with_blocks_are_trained_copied_and_saved(tmp_path):
    model, loop = pair()
    torch.save(model, tmp_path / "model")
    model = torch.load(tmp_path / "model", weights_only=False)
    optimizers = [torch.optim.SGD(x.parameters(), 0.1) for x in (model, loop)]
    for _ in range(3):
        losses = [x(TREES).square().mean() for x in (model, loop)]
        torch.testing.assert_close(*losses)
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_dropout_draws_in_a_block():
    model = Forest(multifold.pending(), rate=0.5).train()
    assert 0.3 < (torch.cat([model(TREES * 20) for _ in range(3)]) == 0).float().mean() < 0.55


def test_weights_that_change_before_their_calls_run_are_refused():
    model = Forest()
    with pytest.raises((RecordError, multifold.LaunchError), match="changed in place during the run"):
        changed(model)


def changed(model):
    with multifold.pending():
        found = model.encode(TREES[0])
        with torch.no_grad():
            model.join.weight.mul_(2)
    return found


def test_a_read_in_the_middle_of_a_function_is_that_of_the_loop():
    model = Forest()
    with multifold.pending():
        found = torch.tensor([model.encode(TREES[0]).sum()])
    torch.testing.assert_close(found, model.encode(TREES[0]).sum().detach()[None])
