"""Cells: functions, methods, layers and autograd functions that a plain program records whole."""

from __future__ import annotations

import threading
import warnings
from typing import NamedTuple

import pytest
import torch
from torch import nn

import multifold
from multifold import LaunchError, RecordError

torch.manual_seed(0)
XS = [torch.randn(4) for _ in range(5)]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return torch.tanh(self.lin(x)) * 2


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()
        self.lin = nn.Linear(8, 8)
        self.scale = 1.0

    def compose(self, left, right):
        return self.lin(torch.cat([left, right])).chunk(2)

    @staticmethod
    def squared(x):
        return x * x

    def forward(self, x):
        left, right = self.compose(self.block(x), x)
        return self.squared(left) + doubled(right)


def doubled(x):
    return x + x


MODEL = Model()
PARAMETERS = [*MODEL.parameters()]


@pytest.mark.parametrize(
    ("ops", "launches"),
    [
        ([], 9),
        ([Block], 7),
        ([Model.compose], 7),
        ([MODEL.compose], 7),
        ([Model.squared, doubled], 9),
        ([Block, Model.compose, doubled], 5),
    ],
)
def test_methods_functions_and_classes_are_cells_for_a_while(ops, launches, as_loop):
    run = as_loop(MODEL, XS, parameters=PARAMETERS, ops=ops)
    assert len(run.explain()) == launches
    assert not hasattr(Block, "multifold_cell") and not hasattr(Model.compose, "multifold_cell")
    assert isinstance(vars(Model)["squared"], staticmethod)


def test_a_function_that_is_not_found_by_its_name_is_refused():
    with pytest.raises(RecordError, match="decorate it"):
        multifold.batched(MODEL, ops=[lambda x: x])
    with pytest.raises(RecordError, match="decorate it"):
        multifold.batched(MODEL, ops=[MODEL.block])
    with pytest.raises(RecordError, match=r"Received 'compose'.\n\nHint: pass the .* Net\.compose"):
        multifold.batched(MODEL, ops=["compose"])


def test_ops_are_cells_until_the_last_of_several_programs_has_ended():
    wanted, found = torch.stack([MODEL(x) for x in XS]), []

    def work():
        run = multifold.batched(MODEL, ops=[Model.compose])
        found.extend([run(XS) for _ in range(5)])

    threads = [threading.Thread(target=work) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(found) == 15 and all(torch.allclose(x, wanted, atol=1e-6) for x in found)
    assert not hasattr(Model.compose, "multifold_cell")


# ---- what a cell may take and return -----------------------------------------------------------------


class State(NamedTuple):
    h: torch.Tensor
    c: torch.Tensor


@multifold.op
def step(state, by, **more):
    return State(state.c * by, state.h + more["z"] - more["a"])


def test_a_cell_takes_and_returns_structures(as_loop):
    def fn(x):
        y = MODEL.block(x)
        return step(State(y, x), 2, z=y * 3, a=x), step(State(h=x, c=y), by=2, a=y, z=x)

    as_loop(fn, XS, parameters=PARAMETERS)


@multifold.op
def mixed(parts):
    return parts["b"][0] - 2 * parts["a"]


def test_the_entries_of_a_dictionary_keep_their_places(as_loop):
    as_loop(lambda x: mixed({"b": [MODEL.block(x)], "a": x}), XS, parameters=PARAMETERS)


@multifold.op
def with_number(x):
    return x, float(x.sum())


@multifold.op
def only_a_number(x):
    return float(x.sum())


@pytest.mark.parametrize("cell", [with_number, only_a_number])
def test_a_cell_that_returns_numbers_is_refused(cell):
    with pytest.raises(RecordError, match="to return tensors"):
        multifold.batched(lambda x: cell(MODEL.block(x)), join="list")(XS)


@multifold.op
def branching(x):
    return x * 2 if x.sum() > 0 else x - 1


def test_a_cell_that_reads_values_runs_row_by_row_and_says_so(as_loop):
    run = as_loop(lambda x: branching(MODEL.block(x)), XS, parameters=PARAMETERS)
    assert "row by row" in str(run.explain())


@multifold.op
def of_other_shapes(x):
    return x if x.sum() > 0 else x[:2]


def test_a_cell_whose_shape_depends_on_values_is_an_error():
    with pytest.raises(LaunchError):
        multifold.batched(lambda x: of_other_shapes(MODEL.block(x)), join="list")(XS)


class Parser:
    """An object that is no module, with a cell."""

    def __init__(self):
        self.lin = nn.Linear(4, 4)
        self.scale = 1.0

    @multifold.op
    def cell(self, x):
        return self.lin(x) * self.scale


def test_a_method_of_a_plain_object_is_a_cell(as_loop):
    parser = Parser()
    run = as_loop(lambda x: parser.cell(x) + parser.cell(x * 2), XS, parameters=[*parser.lin.parameters()])
    assert len(run.explain()) == 2


def test_an_object_that_is_changed_between_recording_and_launch_is_an_error():
    parser = Parser()

    def fn(x):
        y = parser.cell(x)
        parser.scale = parser.scale + 1.0
        return y + parser.cell(x)

    with pytest.raises(LaunchError, match="attribute of Parser was set"):
        multifold.batched(fn, backend="torch")(XS)


def test_a_variable_that_is_changed_between_recording_and_launch_is_an_error():
    def fn(x):
        y = MODEL.block(x)
        for i in range(3):
            y = multifold.op(lambda x: x * i)(y)  # noqa: B023 - this is the mistake
        return y

    with pytest.raises(LaunchError, match="variable that the cell <lambda> uses was changed"):
        multifold.batched(fn, backend="torch")(XS)


def test_a_variable_of_a_function_inside_of_a_cell_that_is_changed_is_an_error(monkeypatch):
    monkeypatch.setitem(globals(), "FACTOR", 1)

    @multifold.op
    def scaled(x):
        return sum((lambda y: y * FACTOR)(x) for _ in range(2))  # noqa: F821 - it is set by the program

    def fn(x):
        globals()["FACTOR"] += 1
        return scaled(x)

    with pytest.raises((LaunchError, RecordError), match="variable that the cell scaled uses was changed"):
        multifold.batched(fn, backend="torch")(XS)


def test_a_tensor_around_a_cell_that_is_changed_in_place_is_an_error():
    mask = torch.ones(4)
    cell = multifold.op(lambda x: x * mask)

    def fn(x):
        y = cell(x)
        mask.add_(1)
        return y

    with pytest.raises(
        (LaunchError, RecordError), match="variable that the cell <lambda> uses was changed"
    ):
        multifold.batched(fn, backend="torch")(XS)


class Around:
    """Cells that find their weights around them."""

    def __init__(self):
        self.lin = nn.Linear(4, 4)

    @multifold.op
    def method(self, x):
        return self.lin(x)


AROUND = Around()


@multifold.op
def function(x):
    return AROUND.lin(x)


@multifold.op
class Outer(Around, nn.Module):
    def __init__(self):
        nn.Module.__init__(self)
        self.inner = AROUND.lin

    def forward(self, x):
        return self.inner(x) * 2


WATCHED = Outer()

FREEZING = {
    "a layer": AROUND.lin,
    "a parameter": lambda x: function(x).detach() @ AROUND.lin.weight,
    "a method": AROUND.method,
    "a function": function,
    "a module": WATCHED,
}


@pytest.mark.parametrize("case", FREEZING)
def test_weights_that_are_unfrozen_between_runs_get_their_gradients(case):
    run = multifold.batched(FREEZING[case], backend="torch")
    for learns in (False, True, False, True):
        AROUND.lin.requires_grad_(learns)
        assert run(XS).requires_grad == learns
    AROUND.lin.weight.grad = None
    run(XS).sum().backward()
    assert AROUND.lin.weight.grad.any()


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.scale = torch.ones(4)
        self.register_buffer("steps", torch.zeros(()))

    @multifold.op
    def cell(self, x):
        return self.lin(x) * self.scale + self.steps


@multifold.op
class Whole(Scaled):
    def forward(self, x):
        return self.lin(x) * self.scale + self.steps


def set_attribute(model):
    model.scale = model.scale + 1


def write_buffer(model):
    model.steps.add_(1)


def write_attribute(model):
    model.scale.add_(1)


@pytest.mark.parametrize("change", [set_attribute, write_buffer, write_attribute])
@pytest.mark.parametrize("model", [Scaled, Whole])
def test_a_module_that_is_changed_between_recording_and_launch_is_an_error(model, change):
    model = model()
    call = model if isinstance(model, Whole) else model.cell

    def fn(x):
        y = call(x)
        change(model)
        return y

    with pytest.raises((LaunchError, RecordError), match=r"was set after|changed in place during"):
        multifold.batched(fn, backend="torch")(XS)
    torch.testing.assert_close(multifold.batched(call)(XS), torch.stack([call(x) for x in XS]))


class Auxiliary(Block):
    """A model that returns something else in training."""

    def forward(self, x):
        y = super().forward(x)
        return (y, y + 1) if self.training else y


def test_a_cell_may_return_something_else_in_another_mode(as_loop):
    model = Auxiliary()
    run = as_loop(model, XS, ops=[Auxiliary])
    assert len(run.explain()) == 1
    model.eval()
    as_loop(model, XS, run=run)


def doubled_output(module, args, output):
    return output * 2


def test_a_layer_with_a_hook_is_run_through(as_loop):
    layer = nn.Linear(4, 4)
    layer.register_forward_hook(doubled_output)
    as_loop(lambda x: layer(MODEL.block(x)), XS, parameters=[*layer.parameters()])


def test_a_module_with_a_backward_hook_is_refused():
    layer = nn.Linear(4, 4)
    layer.register_full_backward_hook(lambda module, inputs, outputs: None)
    with pytest.raises(RecordError, match="has backward hooks"):
        multifold.batched(lambda x: layer(MODEL.block(x)), backend="torch")(XS)


def test_a_tensor_of_an_earlier_run_is_an_argument_as_any_other(as_loop):
    kept = []
    multifold.batched(lambda x: kept.append(MODEL.block(x)), join="list")(XS)
    run = multifold.batched(multiplied, join="list", backend="torch")
    for x, y, found in zip(XS, kept, run(XS, kept), strict=True):
        torch.testing.assert_close(found, x * MODEL.block(x))
        assert y.requires_grad


@multifold.op
def multiplied(x, y):
    return x * y


def test_an_embedding_that_counts_its_ids_counts_those_of_an_example(as_loop):
    table = nn.Embedding(9, 4, scale_grad_by_freq=True)
    ids = [torch.tensor([1, 1, 2]), torch.tensor([1, 2, 2]), torch.tensor([3, 3, 3])]
    as_loop(table, ids, parameters=[table.weight])
    as_loop(lambda i: table(next_ids(i)), ids, parameters=[table.weight])


@multifold.op
def next_ids(i):
    return i + 1


def test_a_layer_whose_weights_are_replaced_after_its_call_is_an_error():
    model = Block()

    def fn(x):
        y = model.lin(x)
        model.lin.weight = nn.Parameter(torch.zeros(4, 4))
        return y

    with pytest.raises(LaunchError, match="attribute of Linear was set"):
        multifold.batched(fn, backend="torch")(XS[:1])


def test_a_weight_that_an_example_changes_in_place_is_an_error():
    model = Block()

    def fn(x):
        y = model.lin(x)
        with torch.no_grad():
            model.lin.weight.mul_(2)
        return y

    with pytest.raises((LaunchError, RecordError), match="changed in place during the run"):
        multifold.batched(fn, backend="torch")(XS)


def test_batch_normalisation_in_training_twice_an_example_is_an_error():
    norm = nn.BatchNorm1d(4)
    with pytest.raises(LaunchError, match="batch normalisation"):
        multifold.batched(lambda x: norm(norm(torch.stack([x, MODEL.block(x)]))), backend="torch")(XS)


def test_a_cell_with_no_tensor_of_the_example_runs_at_once(as_loop):
    vector = nn.Parameter(torch.ones(4))
    begin = multifold.op(lambda: vector * 2)
    run = as_loop(lambda x: begin() + MODEL.block(x), XS, parameters=[vector, *PARAMETERS])
    assert len(run.explain()) == 4


def test_the_dry_run_of_a_cell_leaves_no_trace(as_loop):
    model = Scaled()
    model.calls = 0

    @multifold.op
    def counting(model, x):
        model.calls += 1
        return model.lin(x)

    before = torch.get_rng_state()
    multifold.batched(lambda x: counting(model, x), backend="torch")(XS)
    assert model.calls == 1 and torch.equal(torch.get_rng_state(), before)


@multifold.op
def in_place(h):
    h += 1
    return h * 2


def test_a_cell_that_changes_its_argument_in_place_is_an_error():
    def fn(x):
        h = MODEL.block(x)
        return in_place(h), h

    for mode in (torch.enable_grad(), torch.no_grad(), torch.inference_mode()):
        with mode, pytest.raises(RecordError, match="in place that is an argument"):
            multifold.batched(fn, join="list", backend="torch")(XS)


@multifold.op
def same(h):
    return h


def test_what_a_cell_returns_of_its_argument_shares_memory_with_it():
    def fn(x):
        h = MODEL.block(x)
        g = same(h)
        g += 1
        return h

    with pytest.raises(RecordError, match="shares its memory"):
        multifold.batched(fn, backend="torch")(XS)


# ---- rows ---------------------------------------------------------------------------------------------


def test_a_cell_of_rows_takes_them_as_ops_do(as_loop):
    @multifold.op(rows=True)
    def cell(x, y):
        return x * 2 + y, torch.tanh(y)

    run = as_loop(lambda x: cell(MODEL.block(x)[None], x[None]), XS, parameters=PARAMETERS)
    assert len(run.explain()) == 5


def test_a_cell_of_rows_that_mixes_them_is_refused():
    @multifold.op(rows=True)
    def cell(x):
        return torch.softmax(x, 0)

    with pytest.raises(LaunchError, match="row"):
        multifold.batched(lambda x: cell(MODEL.block(x)[None]), backend="torch")(XS)


def test_a_cell_of_rows_that_is_trusted_runs_once_a_launch():
    rows = []

    @multifold.op(rows=True)
    @multifold.trusted
    def cell(x):
        rows.append(len(x))
        return x * 2

    run = multifold.batched(lambda x: cell(MODEL.block(x)[None]), backend="torch")
    run(XS)
    assert rows.count(len(XS)) == 1


def test_a_cell_of_rows_is_tried_in_the_first_runs_and_then_runs_once_a_launch():
    class Called:
        count = 0

    @multifold.op(rows=True)
    def cell(x):
        Called.count += 1
        return x * 2

    run = multifold.batched(lambda x: cell(cell(MODEL.block(x)[None])), backend="torch")
    for _ in range(3):
        run(XS * 4)
    Called.count = 0
    run(XS * 4)
    assert Called.count == 2


def test_a_recurrent_cell_may_begin_with_a_state_that_all_examples_share(as_loop):
    gru, lstm = torch.nn.GRUCell(4, 4), torch.nn.LSTMCell(4, 4)
    begin = torch.nn.Parameter(torch.ones(1, 4))

    def read(x):
        vector = MODEL.block(x)[None]
        return gru(vector, begin), lstm(vector, (begin, begin)), gru(vector[0], begin[0])

    as_loop(read, XS, parameters=[begin, *gru.parameters(), *lstm.parameters()])


def test_a_cell_of_rows_needs_an_axis_of_one():
    cell = multifold.op(lambda x: x * 2, rows=True)
    with pytest.raises(LaunchError, match="first axis of its arguments has size 1"):
        multifold.batched(lambda x: cell(MODEL.block(x)), backend="torch")(XS)


# ---- what vmap has no rule for -----------------------------------------------------------------------

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
    run = as_loop(reader, xs, parameters=[*reader.parameters()], ops=[Reader.step])
    assert len(run.explain()) == 4 and "row by row" not in str(run.explain())
    calls, forward = [], type(layer).forward
    monkeypatch.setattr(type(layer), "forward", lambda *args: calls.append(args) or forward(*args))
    run(xs)
    assert len(calls) == 4


@pytest.mark.parametrize("kind", [nn.GRUCell, nn.LSTMCell])
def test_a_class_of_recurrent_cells_is_a_cell(kind, as_loop, monkeypatch):
    cell = kind(4, 4)
    run = as_loop(lambda x: cell(MODEL.block(x)[None]), XS, parameters=[*cell.parameters()], ops=[kind])
    calls, forward = [], kind.forward
    monkeypatch.setattr(kind, "forward", lambda *args: calls.append(args) or forward(*args))
    run(XS)
    assert len(calls) == 1


def test_a_trace_of_a_cell_with_a_recurrent_layer_is_replayed_on_rows(monkeypatch):
    reader, xs = Reader(RECURRENT["GRU cell"]), [torch.randn(3, 4) for _ in range(5)]
    cell = multifold.op(reader.step)
    made = multifold.traces(multifold.plain(lambda x: cell(x[:1], None)[0], backend="torch"), xs)
    calls, forward = [], nn.GRUCell.forward
    monkeypatch.setattr(nn.GRUCell, "forward", lambda *args: calls.append(args) or forward(*args))
    found = multifold.Fold(backend="torch").run(None, made)
    assert len(calls) == 1
    torch.testing.assert_close(found, torch.stack([reader.step(x[:1], None)[0] for x in xs]))


@multifold.op
def limited(x):
    return x[None].renorm(2, 0, 1.0)[0] * 2


@pytest.mark.filterwarnings("error")
def test_explain_says_what_vmap_has_no_rule_for(as_loop):
    run = as_loop(lambda x: limited(MODEL.block(x)), XS, parameters=PARAMETERS)
    run(XS)
    assert "limited (aten::renorm row by row)" in str(run.explain())


@multifold.op
def warning(x):
    warnings.warn("from the cell", stacklevel=1)
    return x * 2


def test_a_warning_of_a_cell_is_seen():
    run = multifold.batched(lambda x: warning(MODEL.block(x)), backend="torch")
    with pytest.warns(UserWarning, match="from the cell") as seen:
        run(XS)
    assert len(seen) == 2  # when it was learnt, and when it was launched


# ---- autograd functions ---------------------------------------------------------------------------


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


# ---- what would go wrong in silence ------------------------------------------------------------------


def test_a_container_around_a_cell_that_is_changed_between_its_calls_is_an_error():
    held = [2.0]
    cell = multifold.op(lambda x: x * held[0])

    def fn(x):
        y = cell(x)
        held[0] += 1.0
        return y + cell(x)

    with pytest.raises(
        (LaunchError, RecordError), match="variable that the cell <lambda> uses was changed"
    ):
        multifold.batched(fn, backend="torch")(XS)


@pytest.mark.parametrize("result", [None, [], {}], ids=["None", "a list", "a dictionary"])
def test_a_cell_that_returns_no_tensor_is_refused(result):
    cell = multifold.op(lambda x: result)
    with pytest.raises(RecordError, match="to return tensors"):
        multifold.batched(cell, backend="torch", join="list")(XS)


def test_an_argument_of_a_cell_that_may_change_unseen_is_refused():
    cell = multifold.op(lambda x, names: x * len(names))
    with pytest.raises(RecordError, match="can be compared with those of other examples"):
        multifold.batched(lambda x: cell(x, {"a"}), backend="torch")(XS)


def test_an_empty_dictionary_is_one_argument_for_all_examples():
    cell = multifold.op(lambda x, options: x * 2)
    run = multifold.batched(lambda x: cell(x, {}), backend="torch")
    assert torch.equal(run(XS), 2 * torch.stack(XS)) and len(run.explain()) == 1


def test_a_buffer_that_is_not_a_number_counts_as_unchanged():
    class RowByRow(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("unknown", torch.tensor(torch.nan))

        def forward(self, x):
            return x * float(x.detach().sum())  # vmap has no values

    model = RowByRow()
    run = multifold.batched(lambda x: model(model(x)), ops=[RowByRow], backend="torch")
    torch.testing.assert_close(run(XS), torch.stack([model(model(x)) for x in XS]))


class Steps(nn.Module):
    """Records twenty calls in one method, and two in another."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def many(self, x):
        for _ in range(10):
            x = torch.tanh(x) * 2
        return x

    def forward(self, x):
        return self.many(self.lin(x)) + 1


def test_explain_names_the_functions_to_make_cells_of():
    run = multifold.batched(Steps())
    run(XS * 4)
    (glue,) = run.explain().glue
    assert glue.name == "Steps.many" and glue.share > 0.9 and f"{__file__}:" in glue.place
    assert "ops=[...]" in str(run.explain()) and "Steps.many" in str(run.explain())
    cells = multifold.batched(Steps(), ops=[Steps.many])
    cells(XS * 4)
    assert cells.explain().glue == []


class Driver(nn.Module):
    """Calls functions that record many calls, and of which few can be cells."""

    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def glue(self, x):
        return [torch.tanh(x) * 2 for _ in range(10)][-1]

    def outer(self, x):
        return self.glue(torch.relu(x + 1) * 2)

    def recursive(self, x, depth):
        x = torch.relu(x * 2 + 1)
        return self.recursive(x, depth - 1) if depth else x

    def first(self, x, depth):
        return self.second(torch.relu(x * 2 + 1), depth)

    def second(self, x, depth):
        return self.first(x, depth - 1) if depth else x

    def reading(self, x):
        for _ in range(9):
            x = torch.relu(x * 2 + 1)
        return self.read(x)

    def read(self, x):
        return x if x.sum() > 0 else -x


class Whole(Driver):
    """Is the program itself, and calls itself as a module."""

    def forward(self, x, depth=9):
        x = torch.relu(self.lin(x) * 2 + 1)
        return self(x, depth - 1) if depth else x

    def glued(self, x):
        return [torch.tanh(self.lin(x)) * 2 for _ in range(10)][-1]


class Part(nn.Module):
    """Calls a module that calls itself."""

    def __init__(self):
        super().__init__()
        self.whole = Whole()

    def forward(self, x):
        return self.whole(x)


DRIVER = Driver()

HINTS = {
    "a comprehension": (lambda x: DRIVER.glue(DRIVER.lin(x)), ["Driver.glue"]),
    "what calls another one": (lambda x: DRIVER.outer(DRIVER.outer(DRIVER.lin(x))), ["Driver.glue"]),
    "what calls itself": (lambda x: DRIVER.recursive(DRIVER.lin(x), 9), []),
    "what calls itself by another one": (lambda x: DRIVER.first(DRIVER.lin(x), 9), []),
    "what reads": (lambda x: DRIVER.reading(DRIVER.lin(x)), []),
    "the program": (Whole().glued, []),
    "a module": (Whole(), []),
    "a module that calls itself": (Part(), []),
    "a lambda": (lambda x: (lambda y: torch.tanh(y * 2) * 3 + 1)(DRIVER.lin(x)), []),
}


@pytest.mark.parametrize("case", HINTS)
def test_explain_names_no_function_that_makes_no_good_cell(case):
    program, wanted = HINTS[case]
    run = multifold.batched(program, backend="torch")
    run(XS * 8)
    assert len(run.explain().ops if "reads" not in case else run.explain().rounds) > 1
    assert [glue.name for glue in run.explain().glue] == wanted


# ---- what explain says of programs --------------------------------------------------------------------


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.tree = nn.ModuleDict({"fx": nn.Linear(4, 4), "fh": nn.Linear(4, 4)})

    def forward(self, xs):
        h = torch.zeros(1, 4)
        for x in xs:
            h = torch.tanh(self.tree["fx"](x) + self.tree["fh"](h).sum(0, keepdim=True))
        return torch.cat([h, h]).sum() if len(xs) > 2 else h.sum()


def of_width(x, width):
    return torch.tanh(DRIVER.lin(x))[:width] * 2


def test_a_cell_whose_launches_have_one_row_is_a_warning_in_the_first_run():
    run = multifold.batched(lambda x, i: of_width(x, i).sum(), ops=[of_width], backend="torch")
    widths = [*range(1, 10)]
    with pytest.warns(UserWarning, match="of_width gains nothing: 9 launches of one row"):
        run([XS[0]] * 9, widths)
    assert "of_width gains nothing" in str(run.explain())
    with warnings.catch_warnings(action="error"):
        run([XS[0]] * 9, widths)
        multifold.batched(lambda x, i: of_width(x, 2), ops=[of_width], backend="torch")([XS[0]] * 9, widths)


def test_a_cell_that_runs_row_by_row_is_a_warning_in_the_first_run():
    run = multifold.batched(lambda x: branching(DRIVER.lin(x)), ops=[branching])
    with pytest.warns(UserWarning, match=r"branching \(row by row\) gains little"):
        run(XS)


def test_explain_names_layers_by_their_paths_and_calls_by_their_arguments():
    run = multifold.batched(Deep())
    run([[torch.randn(1, 4)] * n for n in (1, 2, 3, 4)])
    text = str(run.explain())
    assert {"tree.fx", "tree.fh"} <= {op.name for op in run.explain().ops}
    assert "sum" in text and "is called with (1, 4)" in text and "multifold.trusted" not in text
    assert "different functions" not in text and "operands of one kind" not in text


def test_explain_says_why_the_loop_is_expected_to_be_faster():
    layer = nn.Linear(4, 4)

    def many(x):
        for _ in range(30):
            x = torch.relu(x + 1) * 2
        return x

    def reading(x):
        x = layer(x)
        while x.sum() > -9:
            x = x - 1
        return x

    run = multifold.batched(lambda x: many(layer(x)))
    run(XS * 4)
    assert run.explain().slow == []  # backward passes are batched
    with torch.no_grad():
        run(XS * 4)
        assert ["no faster than the loop" in text for text in run.explain().slow] == [True]
        run(XS)
        assert "5.0 rows a launch" in run.explain().slow[0] and "5.0 rows" in str(run.explain())
        run = multifold.batched(reading)
        run(XS[:2])
    assert "rounds for 2 examples" in run.explain().slow[0]


def test_explain_says_that_waiting_takes_longer_than_small_cells():
    def settle(x):
        x = doubled(DRIVER.lin(x))
        for _ in range(20):
            x = doubled(x)
            if x.sum() > 1e9:
                break
        return x

    run = multifold.batched(settle, ops=[doubled])
    with torch.no_grad():
        run(XS * 8)
    assert ["wait 800 times, after 3.1 calls" in text for text in run.explain().slow] == [True]
