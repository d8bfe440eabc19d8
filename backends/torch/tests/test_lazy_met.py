"""``batched(fn, keep=True)`` in PyTorch: new weights, modes, and tensors that change."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import multifold

torch.manual_seed(0)


class Net(torch.nn.Module):
    """A network of a few steps, which counts how often its code runs."""

    def __init__(self):
        super().__init__()
        self.layer, self.drop = torch.nn.Linear(4, 4), torch.nn.Dropout(0.0)
        self.ran = []

    def step(self, x):
        return self.drop(torch.tanh(self.layer(x)) + x * 0.5)

    def forward(self, x, count):
        self.ran.append(count)
        for _ in range(count):
            x = self.step(x)
        return x if self.training else -x


XS, COUNTS = list(torch.randn(16, 4)), [number % 5 + 1 for number in range(16)]


def test_new_weights_have_new_values_and_gradients(comparing):
    outcome, assert_equal = comparing
    net = Net()
    run, parameters = multifold.batched(net, keep=True), [*net.parameters()]
    for _ in range(4):
        wanted, slopes = outcome(lambda: torch.stack([*map(net, XS, COUNTS)]), parameters)
        found, own = outcome(lambda: run(XS, COUNTS), parameters)
        for x, y in zip([wanted, *slopes], [found, *own], strict=True):
            assert_equal(x, y, 1e-4)
        with torch.no_grad():
            net.layer.weight.mul_(0.9)
    assert len(net.ran) == 4 * 16 + 16  # the loop has run it four times
    assert "Net.step" in str(run.explain())


def test_modes_of_gradients_and_of_training_are_kept_apart():
    net = Net()
    run = multifold.batched(net, keep=True, cells=())
    for training in (True, False, True, False):
        for gradients in (True, False):
            net.train(training)
            with torch.set_grad_enabled(gradients):
                torch.testing.assert_close(run(XS, COUNTS), torch.stack([*map(net, XS, COUNTS)]))
                assert run(XS, COUNTS).requires_grad == gradients
    assert len(run.run.met) == 4 * 16


def test_a_tensor_that_was_changed_in_place_is_another_example():
    net, xs = Net(), [x.clone() for x in XS]
    run = multifold.batched(net, keep=True)
    for _ in range(3):
        torch.testing.assert_close(run(xs, COUNTS), torch.stack([*map(net, xs, COUNTS)]))
        xs[3].add_(1.0)


def test_traces_made_in_training_are_not_replayed_in_evaluation():
    net = Net()
    run = multifold.batched(net)
    traces = run.traces(XS, COUNTS)
    net.eval()
    with pytest.raises(multifold.RecordError, match="in the modes in which they were made"):
        run.replay(traces)


def unfrozen(model):
    model[0].requires_grad_(True)


def another_layer(model):
    model[2] = nn.Linear(4, 2)


def a_hook(model):
    model[2].register_forward_hook(lambda module, given, found: found * 3)


@pytest.mark.parametrize("change", [unfrozen, another_layer, a_hook])
def test_examples_are_recorded_anew_after_a_change_of_the_model(change, comparing):
    outcome, _ = comparing
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    xs = [torch.randn(2, 3) for _ in range(4)]
    run = multifold.batched(model, keep=True, join="list", may_loop=False)
    run(xs)
    change(model)
    parameters = [*model.parameters()]
    wanted = outcome(lambda: [model(x) for x in xs], parameters)
    torch.testing.assert_close(outcome(lambda: run(xs), parameters), wanted)
