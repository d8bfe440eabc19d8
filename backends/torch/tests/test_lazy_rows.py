"""Cells whose functions run on the rows of all examples: recurrent layers, what vmap has no rule for."""

from __future__ import annotations

import ctypes
import warnings

import pytest
import torch
from torch import nn
from torch_cells import MODEL, PARAMETERS, XS

import multifold
from multifold import LaunchError

torch.manual_seed(0)


def test_a_cell_of_rows_takes_them_as_ops_do(as_loop):
    @multifold.op
    def cell(x, y):
        return x * 2 + y, torch.tanh(y)

    run = as_loop(lambda x: cell(MODEL.block(x)[None], x[None]), XS, parameters=PARAMETERS)
    assert len(run.explain()) == 5


def test_a_cell_of_rows_that_mixes_them_is_refused():
    @multifold.op
    def cell(x):
        return torch.softmax(x, 0)

    with pytest.raises(LaunchError, match="row"):
        multifold.batched(lambda x: cell(MODEL.block(x)[None]), backend="torch")(XS)


def test_a_cell_of_rows_that_is_trusted_runs_once_a_launch():
    rows = []

    @multifold.op
    @multifold.trusted
    def cell(x):
        rows.append(len(x))
        return x * 2

    run = multifold.batched(lambda x: cell(MODEL.block(x)[None]), backend="torch")
    run(XS)
    assert rows.count(len(XS)) == 1


def test_a_cell_of_rows_is_tried_in_the_first_runs_and_then_runs_once_a_launch():
    called = ctypes.c_int(0)  # a cell that counts in an object of Python's would be refused

    @multifold.op
    def cell(x):
        called.value += 1
        return x * 2

    run = multifold.batched(lambda x: cell(cell(MODEL.block(x)[None])), backend="torch")
    for _ in range(3):
        run(XS * 4)
    called.value = 0
    run(XS * 4)
    assert called.value == 2


def test_a_recurrent_cell_may_begin_with_a_state_that_all_examples_share(as_loop):
    gru, lstm = torch.nn.GRUCell(4, 4), torch.nn.LSTMCell(4, 4)
    begin = torch.nn.Parameter(torch.ones(1, 4))

    def read(x):
        vector = MODEL.block(x)[None]
        return gru(vector, begin), lstm(vector, (begin, begin)), gru(vector[0], begin[0])

    as_loop(read, XS, parameters=[begin, *gru.parameters(), *lstm.parameters()])


def test_a_cell_of_rows_needs_an_axis_of_one():
    cell = multifold.op(lambda x: x * 2)
    with pytest.raises(LaunchError, match="first axis of its arguments has size 1"):
        multifold.batched(lambda x: cell(MODEL.block(x)), backend="torch")(XS)


RECURRENT = {
    "GRU cell": nn.GRUCell(4, 4),
    "RNN cell": nn.RNNCell(4, 4),
    "LSTM cell": nn.LSTMCell(4, 4),
    "GRU": nn.GRU(4, 4, num_layers=2),
    "LSTM": nn.LSTM(4, 4, batch_first=True),
}


class Reader(nn.Module):
    """Reads a series, with a recurrent layer inside of a cell; the last call begins with a shared state."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        self.before, self.after = nn.Linear(4, 4), nn.Linear(4, 4)
        ones = torch.ones(*[1] * (1 if isinstance(layer, nn.RNNCellBase) else 2), 4)
        self.begin = nn.Parameter(ones.repeat(getattr(layer, "num_layers", 1), *[1] * (ones.dim() - 1)))

    def step(self, x, state):
        found = self.layer(self.before(x).tanh(), state)
        found = found if isinstance(found, tuple) else (found, found)
        return self.after(found[0]), found if isinstance(self.layer, nn.LSTMCell) else found[1]

    def forward(self, xs):
        begin = (self.begin, self.begin) if isinstance(self.layer, (nn.LSTM, nn.LSTMCell)) else self.begin
        state = None
        for x in xs:
            y, state = self.step(x.reshape([1] * (self.begin.dim() - 1) + [4]), state)
        return y, state, self.step(y, begin)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", RECURRENT)
def test_recurrent_layers_inside_of_a_cell_run_on_the_rows_of_all(case, as_loop, monkeypatch):
    layer = RECURRENT[case]
    reader, xs = Reader(layer), [torch.randn(3, 4) for _ in range(5)]
    run = as_loop(reader, xs, parameters=[*reader.parameters()], cells=[Reader.step])
    assert len(run.explain()) == 4 and "row by row" not in str(run.explain())
    calls, forward = [], type(layer).forward
    monkeypatch.setattr(type(layer), "forward", lambda *args: calls.append(args) or forward(*args))
    run(xs)
    assert len(calls) == 4


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell])
def test_a_class_of_recurrent_cells_is_a_cell(kind, as_loop, monkeypatch):
    cell = kind(4, 4)
    run = as_loop(lambda x: cell(MODEL.block(x)[None]), XS, parameters=[*cell.parameters()], cells=[kind])
    called, forward = ctypes.c_int(0), kind.forward  # as above

    def counted(*args):
        called.value += 1
        return forward(*args)

    monkeypatch.setattr(kind, "forward", counted)
    run(XS)
    called.value = 0
    run(XS)
    assert called.value == 1


def test_a_trace_of_a_cell_with_a_recurrent_layer_is_replayed_on_rows(monkeypatch):
    reader, xs = Reader(RECURRENT["GRU cell"]), [torch.randn(3, 4) for _ in range(5)]
    cell = multifold.cell(reader.step)
    made = multifold.traces(multifold.plain(lambda x: cell(x[:1], None)[0], backend="torch"), xs)
    multifold.Fold(backend="torch").run(None, made)  # the first launch proves that vmap is right
    calls, forward = [], nn.GRUCell.forward
    monkeypatch.setattr(nn.GRUCell, "forward", lambda *args: calls.append(args) or forward(*args))
    found = multifold.Fold(backend="torch").run(None, made)
    assert len(calls) == 1
    torch.testing.assert_close(found, torch.stack([reader.step(x[:1], None)[0] for x in xs]))


@multifold.cell
def limited(x):
    return x[None].renorm(2, 0, 1.0)[0] * 2


@pytest.mark.filterwarnings("error")
def test_explain_says_what_vmap_has_no_rule_for(as_loop):
    run = as_loop(lambda x: limited(MODEL.block(x)), XS, parameters=PARAMETERS)
    run(XS)
    assert "limited (aten::renorm row by row)" in str(run.explain())


@multifold.cell
def warning(x):
    warnings.warn("from the cell", stacklevel=1)
    return x * 2


def test_a_warning_of_a_cell_is_seen():
    run = multifold.batched(lambda x: warning(MODEL.block(x)), backend="torch")
    with pytest.warns(UserWarning, match="from the cell") as seen:
        run(XS)
    assert len(seen) == 2  # when it was learnt, and when it was launched


class Straight(torch.autograd.Function):
    """A function whose gradient is not that of its forward pass."""

    @staticmethod
    def forward(ctx, x, by):
        ctx.by = by
        ctx.save_for_backward(x)
        return (x > 0).to(x.dtype) * by

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x * g * ctx.by, None


def test_an_autograd_function_keeps_its_gradient(as_loop):
    as_loop(lambda x: Straight.apply(MODEL.block(x), 2.0), XS, parameters=PARAMETERS)
    xs = [x.clone().requires_grad_() for x in XS]
    as_loop(
        lambda x: Straight.apply(x, 2.0) + Straight.apply(MODEL.block(x), 3),
        xs,
        parameters=[*PARAMETERS, *xs],
    )
    assert Straight.apply(XS[0], 1.0).shape == (4,)


class OverRows(torch.autograd.Function):
    """The same for all rows at once."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return 2 * g * ctx.saved_tensors[0]


def test_an_autograd_function_with_a_rule_for_vmap_runs_once_for_all(as_loop):
    run = as_loop(lambda x: OverRows.apply(MODEL.block(x)), XS, parameters=PARAMETERS)
    assert "row by row" not in str(run.explain())


def test_explain_says_what_an_autograd_function_lacks(as_loop):
    run = as_loop(lambda x: Straight.apply(MODEL.block(x), 2.0), XS, parameters=PARAMETERS)
    assert "write generate_vmap_rule = True into the class Straight" in str(run.explain())


LIN = nn.Linear(4, 4)
FROZEN = torch.jit.freeze(torch.jit.script(nn.Linear(4, 4).eval()))
OPERANDS = {
    "sparse": (lambda x: torch.sparse.mm(x, LIN(x.to_dense())), lambda: torch.eye(4).to_sparse()),
    "meta": (nn.Linear(4, 4, device="meta"), lambda: torch.empty(4, device="meta")),
    "frozen": (lambda x: FROZEN(LIN(x)), lambda: torch.randn(4)),
}


@pytest.mark.parametrize("kind", OPERANDS)
def test_what_numpy_cannot_hold_may_be_an_operand(kind):
    fn, make = OPERANDS[kind]
    xs = [make() for _ in range(3)]
    for found, x in zip(multifold.batched(fn, join="list", may_loop=False)(xs), xs, strict=True):
        assert found.shape == fn(x).shape and (found.is_meta or torch.allclose(found, fn(x), atol=1e-5))


class Wrapper(nn.Module):
    """Holds a module by the name that torch.compile uses, and does something else with it."""

    def __init__(self, inner):
        super().__init__()
        self._orig_mod = inner

    def forward(self, x):
        return self._orig_mod(x) * 2


def with_own_forward(inner):
    """Return a layer with the weights of another one, and a ``forward`` of its own."""
    layer = nn.Linear(4, 4)
    layer.weight, layer.bias = inner.weight, inner.bias
    layer.forward = lambda x: nn.functional.linear(x, inner.weight, inner.bias).mean() + x
    return layer


@pytest.mark.parametrize("made", [Wrapper, with_own_forward], ids=["_orig_mod", "forward"])
def test_modules_run_what_they_say_and_not_what_their_names_suggest(made, as_loop):
    inner = nn.Linear(4, 4)
    other = made(inner)
    as_loop(lambda x: other(inner(x)) - inner(x), [torch.randn(4) for _ in range(5)])


@pytest.mark.parametrize("which", ["a part", "all"])
def test_modules_that_compile_themselves_run_as_they_were_written(which):
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    xs = [torch.randn(1, 4) for _ in range(5)]
    wanted = torch.cat([model(x) for x in xs])
    (model[0] if which == "a part" else model).compile(backend="eager")
    torch.testing.assert_close(multifold.batched(model, join="cat", may_loop=False)(xs), wanted)
    assert "_compiled_call_impl" not in [
        name for name, x in vars(nn.Module).items() if isinstance(x, property)
    ]


def test_modules_may_be_compiled_and_scripted_while_programs_record(as_loop):
    def program(x):
        layer = nn.Linear(4, 4)
        layer.load_state_dict(MODEL_LAYER.state_dict())
        layer.compile(backend="eager")
        return layer(torch.jit.script(nn.Tanh())(x))

    as_loop(program, [torch.randn(4) for _ in range(3)])


MODEL_LAYER = nn.Linear(4, 4)


def test_hooks_of_a_compiled_module_are_refused():
    inner = nn.Linear(4, 4)
    compiled = torch.compile(inner, backend="eager")
    compiled.register_forward_hook(lambda module, given, found: found * 2)
    with pytest.raises(multifold.RecordError, match="a compiled module that has hooks"):
        multifold.batched(lambda x: compiled(inner(x)), may_loop=False)([torch.randn(4)])
