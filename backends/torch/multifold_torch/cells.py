"""PyTorch's recurrent cells in the form that `multifold.Fold.unroll` knows.

`torch.nn.RNN`, `GRU` and `LSTM`, with any number of layers and in one or both directions, are unrolled
through their own weights, so that outputs and gradients are those of the module.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from multifold.backend import Bidirectional, Cell, Stack
from multifold.errors import BackendError

CELLS = (torch.nn.RNNCell, torch.nn.GRUCell, torch.nn.LSTMCell)
LAYERS = (torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM)


def cell_of(cell: Any) -> Cell | Stack | Bidirectional:
    """Return a cell of torch.nn as a `Cell`; a module with layers, or a list of cells, as a `Stack`.

    Each layer is one `Cell`, or a `Bidirectional` of two. Raises `BackendError` for anything else.
    """
    if isinstance(cell, (list, tuple, torch.nn.ModuleList, torch.nn.Sequential)):
        return Stack(tuple(map(cell_of, cell)))
    if isinstance(cell, CELLS):
        pair = isinstance(cell, torch.nn.LSTMCell)
        return make_cell(functools.partial(step_cell, cell, pair), cell, "weight_hh", pair)
    if isinstance(cell, LAYERS):
        refuse_dropout(cell)
        refuse_wrapped(cell)
        return Stack(tuple(layer_of(cell, number) for number in range(cell.num_layers)))
    raise BackendError(
        f"Expected a recurrent cell or module of torch.nn. Received a {type(cell).__qualname__}.",
        "pass a multifold.Cell(step, begin, states) built around it.",
    )


def refuse_dropout(module: Any) -> None:
    """Raise `BackendError` if a module of several layers drops out between them in its mode now."""
    if module.dropout and module.training and module.num_layers > 1:
        raise BackendError(
            f"Expected a recurrent module without dropout between its layers to unroll. Received {module}.",
            "unroll a list of cells, and record dropout as an op between them.",
        )


def refuse_wrapped(module: Any) -> None:
    """Raise `BackendError` for a module with hooks or a forward of its own.

    Steps read only the weights of the module, and would skip both.
    """
    own = next(kind for kind in LAYERS if isinstance(module, kind))
    hooks = (module._forward_pre_hooks, module._forward_hooks, module._backward_hooks)
    if type(module).forward is not own.forward or any(hooks) or module._backward_pre_hooks:
        raise BackendError(
            f"Expected a torch.nn.{own.__name__} without hooks and with its own forward to unroll. "
            f"Received a {type(module).__qualname__} that has others.",
            "unroll a list of cells, whose hooks are called; torch.nn.utils.parametrizations need none.",
        )


def make_cell(step: Any, module: Any, weight: str, pair: bool) -> Cell:
    """Return a `Cell` around ``step`` that begins with zeros, one state, or two if ``pair``.

    ``weight`` names the module's parameter that `begin_states` takes dtype and device from.
    """
    return Cell(step, functools.partial(begin_states, module, weight, 1 + pair), 1 + pair)


def begin_states(module: Any, weight: str, states: int) -> tuple[torch.Tensor, ...]:
    """Return a tuple of zeros, each ``(1, hidden_size)``, one for each state.

    They have the dtype and device that the parameter ``weight`` of the module has now.
    """
    like = getattr(module, weight)
    return tuple(like.new_zeros(1, module.hidden_size) for _ in range(states))


def step_cell(cell: torch.nn.Module, pair: bool, x: torch.Tensor, *states: torch.Tensor) -> Any:
    """Return ``(output, *states)`` of one call of a cell; ``pair`` says whether it is an LSTM cell.

    ``x`` is ``(n, input_size)``, each state ``(n, hidden_size)``. The hooks of the cell are called.
    """
    result = cell(x, states if pair else states[0])
    # A cell returns its output first and then its states. The output of an LSTM is h once more.
    return (result[0], *result) if pair else (result, result)


def layer_of(module: Any, number: int) -> Cell | Bidirectional:
    """Return layer ``number``, counted from 0, of a recurrent module, as a `Cell` or `Bidirectional`."""
    forward = direction_of(module, f"l{number}")
    if not module.bidirectional:
        return forward
    return Bidirectional(forward, direction_of(module, f"l{number}_reverse"), join)


def join(forward: torch.Tensor, backward: torch.Tensor) -> torch.Tensor:
    """Return the outputs of both directions joined along the last axis."""
    return torch.cat([forward, backward], dim=-1)


def direction_of(module: Any, suffix: str) -> Cell:
    """Return one layer in one direction as a `Cell`.

    ``suffix`` is that of its weights, as ``"l0_reverse"``. Raises `BackendError` for an LSTM with
    ``proj_size``.
    """
    if getattr(module, "proj_size", 0):
        raise BackendError(
            "Expected an LSTM without projections to unroll. Received proj_size > 0.",
            "pass a multifold.Cell(step, begin, states) built around it.",
        )
    pair = isinstance(module, torch.nn.LSTM)
    step = functools.partial(step_layer, module, suffix)
    return make_cell(step, module, f"weight_hh_{suffix}", pair)


def step_layer(module: Any, suffix: str, x: torch.Tensor, *states: torch.Tensor) -> Any:
    """Return ``(output, *states)`` of one step, on the weights that end in ``suffix``, as ``"l0"``.

    ``x`` is ``(n, input_size)``, each state ``(n, hidden_size)``. Raises as `refuse_dropout` and
    `refuse_wrapped`.
    """
    # A fold keeps the cell that it unrolled first. Since then the module may have changed its mode, or
    # got hooks, so it is asked again at each step.
    refuse_dropout(module)
    refuse_wrapped(module)
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    weights = [getattr(module, f"{name}_{suffix}", None) for name in names]
    if isinstance(module, torch.nn.LSTM):
        h, c = torch.lstm_cell(x, states, *weights)
        return h, h, c
    if isinstance(module, torch.nn.GRU):
        h = torch.gru_cell(x, states[0], *weights)
    else:
        run = torch.rnn_tanh_cell if module.nonlinearity == "tanh" else torch.rnn_relu_cell
        h = run(x, states[0], *weights)
    return h, h
