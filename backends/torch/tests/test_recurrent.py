"""Recurrent modules of PyTorch: unrolled, they give their own outputs, states and gradients."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

from multifold import BackendError, Fold, LaunchError, ops


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


LENGTHS = (2, 5, 1, 3)


@pytest.mark.parametrize("kind", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells_unroll_like_their_loop(kind, bias):
    cell = kind(3, 4, bias=bias)
    fold = Fold()
    xs = [torch.randn(1, n, 3) for n in LENGTHS]
    unrolled = [fold.unroll(cell, n, x) for n, x in zip(LENGTHS, xs, strict=True)]
    got = fold(tuple((outputs, *states) for outputs, states in unrolled))
    for x, (outputs, *states) in zip(xs, got, strict=True):
        state = None
        expected = []
        for t in range(x.shape[1]):
            state = cell(x[:, t], state)
            expected.append(state[0] if isinstance(state, tuple) else state)
        torch.testing.assert_close(outputs, torch.cat(expected))
        torch.testing.assert_close(states, list(state) if isinstance(state, tuple) else [state])
    assert len(fold.schedule()) == 1 + max(LENGTHS)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("both", [False, True], ids=["forward", "bidirectional"])
@pytest.mark.parametrize("layout", ["NTC", "TNC"])
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_modules_unroll_to_their_own_outputs_and_gradients(kind, layout, layers, both):
    time = layout.index("T")
    module = kind(3, 4, num_layers=layers, bidirectional=both, batch_first=time == 1).double()
    xs = [torch.randn(1, n, 3, dtype=torch.float64) for n in LENGTHS]
    xs = [x if time else x.transpose(0, 1) for x in xs]
    fold = Fold()
    nodes = [fold.unroll(module, x.shape[time], x, layout=layout)[0] for x in xs]
    got = fold(nodes)
    expected = [module(x)[0].flatten(0, 1) for x in xs]
    for outputs, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(outputs, wanted)
    parameters = list(module.parameters())
    grads = [torch.autograd.grad(torch.cat(list(y)).pow(2).sum(), parameters) for y in (got, expected)]
    torch.testing.assert_close(*grads)


def test_the_last_states_of_a_recurrent_module_are_its_own():
    module = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    fold = Fold()
    x = torch.randn(1, 3, 3)
    states = fold([state for layer in fold.unroll(module, 3, x)[1] for way in layer for state in way])
    h, c = module(x)[1]
    torch.testing.assert_close(states.view(4, 2, 4), torch.stack([h, c], dim=2)[:, 0])


def test_a_step_and_a_function_are_called_by_the_names_that_people_know():
    fold = Fold()
    x = torch.randn(1, 1, 3)
    fold.add(torch.mul, x[0], 2.0)
    fold.unroll(nn.LSTMCell(3, 4), 1, x)
    fold.unroll(nn.GRU(3, 4), 1, x)
    names = [signature.name for signature in fold._graph.signatures]
    assert names[::2] == ["mul", "step_cell(LSTMCell)", "step_layer(GRU)"]


def test_an_unroll_begins_with_the_states_it_is_given():
    cell = nn.LSTMCell(3, 4)
    fold = Fold()
    x = torch.randn(1, 1, 3)
    begin = (torch.randn(1, 4), torch.randn(1, 4))
    outputs, _ = fold.unroll(cell, 1, x, begin_state=begin)
    torch.testing.assert_close(fold(outputs), cell(x[:, 0], begin)[0])


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_an_unroll_goes_on_from_the_last_states(kind):
    module = kind(3, 4, num_layers=2, batch_first=True)
    fold = Fold()
    x = torch.randn(1, 5, 3)
    head, states = fold.unroll(module, 2, x[:, :2])
    tail, _ = fold.unroll(module, 3, x[:, 2:], begin_state=states)
    torch.testing.assert_close(fold([*head, *tail]), module(x)[0][0])


def test_both_directions_begin_with_the_states_they_are_given():
    module = nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)
    fold = Fold()
    x = torch.randn(1, 3, 3)
    h = torch.randn(4, 1, 4)
    c = torch.randn(4, 1, 4)
    begin = [[(h[i], c[i]) for i in (layer, layer + 1)] for layer in (0, 2)]
    outputs, _ = fold.unroll(module, 3, x, begin_state=begin)
    torch.testing.assert_close(fold(outputs), module(x, (h, c))[0][0])


def test_unrolling_a_stack_once_warns_of_nothing():
    fold = Fold()
    outputs, _ = fold.unroll(nn.GRU(3, 4, num_layers=3), 2, torch.randn(2, 1, 3), layout="TNC")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fold(outputs)


def test_a_list_of_cells_is_a_stack():
    cells = [nn.GRUCell(3, 4), nn.GRUCell(4, 2)]
    fold = Fold()
    x = torch.randn(1, 2, 3)
    h = [cells[0](x[:, 0]), None]
    h = [h[0], cells[0](x[:, 1], h[0])]
    expected = cells[1](h[1], cells[1](h[0]))
    torch.testing.assert_close(fold([fold.unroll(cells, 2, x)[0][-1]]), expected)
    torch.testing.assert_close(fold([fold.unroll(nn.ModuleList(cells), 2, x)[0][-1]]), expected)


class Louder(nn.GRU):
    def forward(self, *args):
        y, h = super().forward(*args)
        return 2 * y, h


def hooked(module):
    module.register_forward_pre_hook(lambda module, args: None)
    return module


@pytest.mark.parametrize(
    "module",
    [Louder(2, 3), hooked(nn.LSTM(2, 3)), nn.utils.weight_norm(nn.RNN(2, 3), "weight_hh_l0")],
    ids=["own forward", "hook", "weight_norm"],
)
def test_a_recurrent_module_that_does_more_than_its_weights_say_is_refused(module):
    with pytest.raises(BackendError, match="without hooks and with its own forward"):
        Fold().unroll(module, 2, torch.ones(1, 2, 2))


def test_dropout_between_layers_is_refused_whenever_the_mode_changes():
    module = nn.LSTM(2, 3, 2, dropout=0.5).eval()
    fold = Fold()
    fold.unroll(module, 2, torch.ones(1, 2, 2))
    module.train()
    fold.reset()
    outputs, _ = fold.unroll(module, 2, torch.ones(1, 2, 2))
    with pytest.raises(LaunchError, match="without dropout"):
        fold(outputs)


def test_one_long_sequence_has_one_split_and_a_linear_gradient(monkeypatch):
    x = torch.ones(1, 50, 2, requires_grad=True)
    cell = nn.RNNCell(2, 3)
    outputs, _ = Fold().unroll(cell, 50, x)
    assert len(outputs) == 50
    fold = Fold()
    outputs, _ = fold.unroll(cell, 50, x)
    fold([outputs])[0].sum().backward()
    expected = x.grad.clone()
    x.grad = None
    h = torch.zeros(1, 3)
    total = 0
    for t in range(50):
        h = cell(x[:, t], h)
        total = total + h.sum()
    total.backward()
    torch.testing.assert_close(expected, x.grad)


def unrolled(fold, cell):
    fold.reset()
    return fold([fold.unroll(cell, 3, torch.ones(1, 3, 2))[0]])[0]


def test_a_cell_is_what_it_is_when_it_is_unrolled():
    fold = Fold()
    cells = nn.ModuleList([nn.GRUCell(2, 2)])
    unrolled(fold, cells)
    cells[0] = nn.GRUCell(2, 2)
    torch.testing.assert_close(unrolled(fold, cells), unrolled(Fold(), cells))

    fold.reset()
    copied = copy.deepcopy(fold)
    nn.init.ones_(cells[0].weight_hh)
    torch.testing.assert_close(unrolled(copied, cells), unrolled(Fold(), cells))


def test_a_module_that_has_hooks_by_now_is_refused():
    fold = Fold()
    gru = nn.GRU(2, 3)
    unrolled(fold, gru)
    gru.register_forward_hook(lambda module, inputs, output: output)
    with pytest.raises(LaunchError, match="without hooks"):
        unrolled(fold, gru)


def test_states_begin_in_the_dtype_that_a_parametrized_module_has_by_now():
    fold = Fold()
    lstm = nn.utils.parametrizations.weight_norm(nn.LSTM(2, 3), "weight_hh_l0")
    unrolled(fold, lstm)
    lstm.double()
    fold.reset()
    outputs, _ = fold.unroll(lstm, 3, torch.ones(1, 3, 2, dtype=torch.float64))
    torch.testing.assert_close(fold([outputs])[0], lstm(torch.ones(3, 2, dtype=torch.float64))[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cells", [0, 1, 2])
@pytest.mark.parametrize("rows", [1, 3, 300])
def test_the_state_of_an_lstm_is_the_same_without_gradients(rows, cells, dtype):
    gates = torch.randn(rows, (3 + cells) * 50, dtype=dtype)
    kept = torch.randn(rows, 50, dtype=dtype)
    states = list(torch.randn(cells, rows, 50, dtype=dtype))
    expected = ops.lstm_state(gates, states, kept)
    with torch.no_grad():
        found = ops.lstm_state(gates, states, kept)
    for x, y in zip(found, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=8 * torch.finfo(dtype).eps)
