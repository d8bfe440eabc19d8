"""Traces of plain programs: the code of each example runs once, for many epochs."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import multifold
from multifold import RecordError

torch.manual_seed(0)
TREES = [(1, 2), ((3, 4), 5), 6, ((1, (2, 3)), (4, 5))]


class TreeRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 4)
        self.join = nn.Linear(8, 4)
        self.drop = nn.Dropout(0.5)

    def compose(self, left, right):
        return torch.tanh(self.join(torch.cat([left, right])))

    def forward(self, tree):
        if isinstance(tree, int):
            return self.embed(torch.tensor(tree))
        return self.compose(self(tree[0]), self(tree[1]))


def test_the_first_traces_of_a_program_have_its_found_cells():
    run = multifold.batched(TreeRNN())
    run.replay(run.traces(TREES))
    first = len(run.explain())
    run.replay(run.traces(TREES))
    assert len(run.explain()) == first


def through_a_function(x):
    return torch.tanh(LIN(x)) * 2


def test_models_are_found_behind_a_function_that_is_recorded_whole():
    run = multifold.batched(lambda x: through_a_function(x) + 1)
    made = run.traces(XS)
    assert run.function.found.cells and made[0].modes == run.traces(XS)[0].modes
    torch.testing.assert_close(run.replay(made), run.loop(XS))


@pytest.mark.parametrize("cells", [(), (TreeRNN.compose,)], ids=["as it stands", "with a cell"])
def test_traces_compute_what_the_loop_computes_in_each_epoch(cells):
    model = TreeRNN()
    run = multifold.batched(model, cells=cells)
    made = run.traces(TREES)
    for _ in range(3):
        gradients = []
        for found in (run.replay(made), torch.stack([model(tree) for tree in TREES])):
            model.zero_grad()
            found.square().sum().backward()
            gradients.append([x.grad.clone() for x in model.parameters()])
            values = found
        torch.testing.assert_close(run.replay(made), values)
        torch.testing.assert_close(*gradients)
        torch.optim.SGD(model.parameters(), 0.1).step()


def test_the_code_of_a_traced_example_runs_once():
    calls = []

    def program(x):
        calls.append(x)
        return LIN(x), "a word", {"twice": LIN(x) * 2}

    run = multifold.batched(program, join="list")
    made = run.traces(XS)
    results = [run.replay(made[:2]), run.replay(made[::-1])]
    assert len(calls) == len(XS) and [len(result) for result in results] == [2, len(XS)]
    for (x, word, parts), own in zip(results[1], XS[::-1], strict=True):
        assert word == "a word"
        torch.testing.assert_close([x, parts["twice"]], [LIN(own), LIN(own) * 2])


LIN = nn.Linear(4, 4)
XS = [torch.randn(4) for _ in range(3)]


def test_dropout_of_traces_is_drawn_anew():
    model = TreeRNN()
    run = multifold.batched(lambda tree: model.drop(model(tree)))
    made = run.traces(TREES)
    assert not torch.equal(run.replay(made), run.replay(made))


def test_launches_of_traces_are_those_of_the_run():
    run = multifold.batched(TreeRNN())
    run(TREES * 3)
    run(TREES * 3)  # with the cells that the first run has found
    launches = len(run.explain())
    run.replay(run.traces(TREES * 3))
    assert len(run.explain()) == launches


def test_a_program_that_reads_makes_no_traces():
    with pytest.raises(RecordError, match="reads a computed value"):
        multifold.batched(lambda x: LIN(x).sum().item()).traces(XS)


def test_traces_are_replayed_in_their_modes():
    run = multifold.batched(TreeRNN())
    with torch.no_grad():
        made = run.traces(TREES)
        assert not run.replay(made).requires_grad
    with pytest.raises(RecordError, match="modes in which they were made"):
        run.replay(made)


def test_other_traces_are_refused():
    with pytest.raises(RecordError, match=r"that run\.traces"):
        multifold.batched(TreeRNN()).replay([1])


def test_a_tensor_that_needs_a_gradient_is_no_operand_of_a_trace():
    weight = torch.ones(4, requires_grad=True)
    with pytest.raises(RecordError, match="needs a gradient"):
        multifold.batched(lambda x: LIN(x) * weight).traces(XS)


def test_a_tensor_that_needs_a_gradient_is_no_result_of_a_trace():
    weight = torch.ones(4, requires_grad=True)
    computed = weight * 2
    for program in (lambda x: weight * x, lambda x: computed, lambda x: (LIN(x), weight.exp())):
        with pytest.raises(RecordError, match="needs a gradient"):
            multifold.batched(program, backend="torch").traces(XS)


def test_a_cell_of_traces_reads_what_its_module_has_when_it_runs():
    class Scaled(TreeRNN):
        scale = 1

        @multifold.cell
        def compose(self, left, right):
            return super().compose(left, right) * self.scale

    model = Scaled()
    run = multifold.batched(model)
    made = run.traces(TREES)
    run.replay(made)
    model.scale = 2
    torch.testing.assert_close(run.replay(made), torch.stack([model(tree) for tree in TREES]))


class Raw(nn.Module):
    """A model with parameters and a buffer that it uses itself, outside of layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Linear(4, 4)
        self.w = nn.Parameter(torch.randn(4))
        self.table = nn.Parameter(torch.randn(5, 4))
        self.register_buffer("scale", torch.rand(4))
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.mixed = nn.Bilinear(4, 4, 4)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w, x):
        ctx.save_for_backward(w, x)
        return w * x * 2

    @staticmethod
    def backward(ctx, gradient):
        w, x = ctx.saved_tensors
        return gradient * x * 2, gradient * w * 2


def written(net, x):
    found = torch.zeros(2, 4)
    found[0] = net.w
    found[1] = net.layer(x)
    return found


def summed(net, x):
    found = net.w.clone()
    found += x
    return found.mul_(net.scale)


RAW = {
    "an operand": lambda net, x: torch.tanh(net.w * x),
    "a factor": lambda net, x: net.layer(x) * net.w.exp(),
    "a penalty": lambda net, x: net.layer(x) + sum(w.square().sum() for w in net.parameters()),
    "nothing else": lambda net, x: net.w.square(),
    "itself": lambda net, x: net.w,
    "without gradient": lambda net, x: net.w.detach() * x + net.w.data,
    "a row": lambda net, x: net.table[3] * x + net.table[torch.tensor(1)],
    "rows": lambda net, x: net.table[:4] @ x + sum(row for row in net.table),
    "rows by example": lambda net, x: net.table[(x > 0).long()].sum(0) + net.w[x > 0].sum(),
    "a buffer": lambda net, x: net.scale * x,
    "a state": lambda net, x: torch.cat([net.w.expand(2, 4), net.layer(x)[None]]),
    "written": written,
    "summed": summed,
    "an autograd function": lambda net, x: Double.apply(net.w, x),
    "computed weights": lambda net, x: net.normed(torch.relu(net.normed(x))),
    "other layers": lambda net, x: net.mixed(x, x),
    "shapes": lambda net, x: x.new_zeros(net.w.shape) + len(net.table) * x + torch.zeros_like(net.w),
}


class Program(nn.Module):
    def __init__(self, code):
        super().__init__()
        self.net = Raw()
        self.code = code

    def forward(self, x):
        return self.code(self.net, x)


@pytest.mark.parametrize("is_model", [True, False], ids=["model", "function"])
@pytest.mark.parametrize("grad", [True, False], ids=["gradient", "no gradient"])
@pytest.mark.parametrize("code", RAW.values(), ids=RAW)
def test_what_comes_from_parameters_is_computed_anew(code, grad, is_model):
    program = Program(code)
    net = program.net
    run = multifold.batched(program if is_model else lambda x: code(net, x))
    with torch.set_grad_enabled(grad):
        made = run.traces(XS)
        for _ in range(2):
            with torch.no_grad():
                for x in (*net.parameters(), *net.buffers()):
                    x.mul_(0.5)
            found, wanted = run.replay(made), torch.stack([program(x) for x in XS])
            torch.testing.assert_close(found, wanted)
            if wanted.requires_grad:
                own = [*net.parameters()]
                gradients = [torch.autograd.grad(x.sum(), own, allow_unused=True) for x in (found, wanted)]
                torch.testing.assert_close(*gradients)


VALUES = {
    "item": lambda net, x: net.layer(x) * net.w[0].item(),
    "float": lambda net, x: x * float(net.w[0]),
    "a branch": lambda net, x: x if net.w[0] > 0 else -x,
    "list": lambda net, x: x * net.w.tolist()[0],
    "numpy": lambda net, x: x + net.w.detach().numpy(),
    "its array": lambda net, x: x + net.scale.numpy(),
    "a new tensor": lambda net, x: x.new_tensor(net.w),
    "a copy": lambda net, x: copy.deepcopy(net.layer)(x),
    "a change": lambda net, x: net.layer(x) * net.scale.mul_(0.9),
    "a change in a view": lambda net, x: net.layer(x) * net.scale.view(2, 2).mul_(0.9).sum(),
    "a function of it alone": lambda net, x: Double.apply(net.w, net.scale) * x,
}


@pytest.mark.parametrize("grad", [True, False], ids=["gradient", "no gradient"])
@pytest.mark.parametrize("code", VALUES.values(), ids=VALUES)
def test_values_of_parameters_are_refused_in_traces(code, grad):
    run = multifold.batched(Program(code))
    with torch.set_grad_enabled(grad), pytest.raises(RecordError):
        run.traces(XS)


def test_a_count_may_be_kept_while_traces_are_made():
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    run = multifold.batched(lambda x: net(torch.stack([x, -x])))
    assert len(run.traces(XS)) == len(XS)


def test_weights_that_are_replaced_after_a_trace_are_refused():
    net = nn.Linear(4, 4)
    run = multifold.batched(net)
    made = run.traces(XS)
    run.replay(made)
    net.weight = nn.Parameter(net.weight * 2)
    with pytest.raises(RecordError, match="make new traces"):
        run.replay(made)


def test_parameters_that_are_replaced_after_a_trace_are_refused():
    program = Program(lambda net, x: net.w * x)
    run = multifold.batched(program)
    made = run.traces(XS)
    program.net.w = nn.Parameter(torch.ones(4))
    with pytest.raises(RecordError, match="make new traces"):
        run.replay(made)
    torch.testing.assert_close(run.replay(run.traces(XS)), torch.stack(XS))
