"""Cells: functions, methods and layers that a program records whole, as it stands."""

from __future__ import annotations

import threading
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch_cells import MODEL, PARAMETERS, XS, Block, Model, branching, doubled

import multifold
from multifold import LaunchError, RecordError

torch.manual_seed(0)


@pytest.mark.parametrize(
    ("cells", "launches"),
    [
        ([], 9),
        # The first example shows which other cells there are, so some of its calls run by themselves.
        ([Block], 8),
        ([Model.compose], 8),
        ([MODEL.compose], 8),
        ([Model.squared, doubled], 10),
        ([Block, Model.compose, doubled], 5),
    ],
)
def test_methods_functions_and_classes_are_cells_for_a_while(cells, launches, as_loop):
    run = as_loop(MODEL, XS, parameters=PARAMETERS, cells=cells)
    assert len(run.explain()) == launches
    assert not hasattr(Block, "multifold_cell") and not hasattr(Model.compose, "multifold_cell")
    assert isinstance(vars(Model)["squared"], staticmethod)


def test_a_function_that_is_not_found_by_its_name_is_refused():
    with pytest.raises(RecordError, match="decorate it"):
        multifold.batched(MODEL, cells=[lambda x: x])
    with pytest.raises(RecordError, match="decorate it"):
        multifold.batched(MODEL, cells=[MODEL.block])
    with pytest.raises(RecordError, match=r"Received 'compose'.\n\nHint: pass the .* Net\.compose"):
        multifold.batched(MODEL, cells=["compose"])


def test_ops_are_cells_until_the_last_of_several_programs_has_ended():
    wanted, found = torch.stack([MODEL(x) for x in XS]), []

    def work():
        run = multifold.batched(MODEL, cells=[Model.compose])
        found.extend([run(XS) for _ in range(5)])

    threads = [threading.Thread(target=work) for _ in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(found) == 15 and all(torch.allclose(x, wanted, atol=1e-6) for x in found)
    assert not hasattr(Model.compose, "multifold_cell")


class State(NamedTuple):
    h: torch.Tensor
    c: torch.Tensor


@multifold.cell
def step(state, by, **more):
    return State(state.c * by, state.h + more["z"] - more["a"])


def test_a_cell_takes_and_returns_structures(as_loop):
    def fn(x):
        y = MODEL.block(x)
        return step(State(y, x), 2, z=y * 3, a=x), step(State(h=x, c=y), by=2, a=y, z=x)

    as_loop(fn, XS, parameters=PARAMETERS)


@multifold.cell
def mixed(parts):
    return parts["b"][0] - 2 * parts["a"]


@multifold.cell
def first_entries(*given, **named):
    return next(iter((given[0] if given else named).values())) * 2


@pytest.mark.parametrize("how", ["a dictionary", "keywords"])
def test_a_cell_meets_entries_in_the_order_of_each_call(as_loop, how):
    def fn(x):
        pairs = {"b": MODEL.block(x), "a": x * 3}
        given = pairs if x.sum() < 0 else dict(reversed(pairs.items()))
        return first_entries(given) if how == "a dictionary" else first_entries(**given)

    as_loop(fn, [x - x.mean() + i - 2 for i, x in enumerate(XS)], parameters=PARAMETERS)


def test_the_entries_of_a_dictionary_keep_their_places(as_loop):
    as_loop(lambda x: mixed({"b": [MODEL.block(x)], "a": x}), XS, parameters=PARAMETERS)


@multifold.cell
def with_number(x):
    return x, float(x.sum())


@multifold.cell
def only_a_number(x):
    return float(x.sum())


@pytest.mark.parametrize("cell", [with_number, only_a_number])
def test_a_cell_that_returns_numbers_is_refused(cell):
    with pytest.raises(RecordError, match="to return tensors"):
        multifold.batched(lambda x: cell(MODEL.block(x)), join="list")(XS)


def test_a_cell_that_reads_values_runs_row_by_row_and_says_so(as_loop):
    run = as_loop(lambda x: branching(MODEL.block(x)), XS, parameters=PARAMETERS)
    assert "row by row" in str(run.explain())


@multifold.cell
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

    @multifold.cell
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
            y = multifold.cell(lambda x: x * i)(y)  # noqa: B023 - this is the mistake
        return y

    with pytest.raises(LaunchError, match="variable that the cell <lambda> uses was changed"):
        multifold.batched(fn, backend="torch")(XS)


def test_a_variable_of_a_function_inside_of_a_cell_that_is_changed_is_an_error(monkeypatch):
    monkeypatch.setitem(globals(), "FACTOR", 1)

    @multifold.cell
    def scaled(x):
        return sum((lambda y: y * FACTOR)(x) for _ in range(2))  # noqa: F821 - it is set by the program

    def fn(x):
        globals()["FACTOR"] += 1
        return scaled(x)

    with pytest.raises((LaunchError, RecordError), match="variable that the cell scaled uses was changed"):
        multifold.batched(fn, backend="torch")(XS)


def test_a_tensor_around_a_cell_that_is_changed_in_place_is_an_error():
    mask = torch.ones(4)
    cell = multifold.cell(lambda x: x * mask)

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

    @multifold.cell
    def method(self, x):
        return self.lin(x)


AROUND = Around()


@multifold.cell
def function(x):
    return AROUND.lin(x)


@multifold.cell
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

    @multifold.cell
    def cell(self, x):
        return self.lin(x) * self.scale + self.steps


@multifold.cell
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
    run = as_loop(model, XS, cells=[Auxiliary])
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


@multifold.cell
def multiplied(x, y):
    return x * y


def test_an_embedding_that_counts_its_ids_counts_those_of_an_example(as_loop):
    table = nn.Embedding(9, 4, scale_grad_by_freq=True)
    ids = [torch.tensor([1, 1, 2]), torch.tensor([1, 2, 2]), torch.tensor([3, 3, 3])]
    as_loop(table, ids, parameters=[table.weight])
    as_loop(lambda i: table(next_ids(i)), ids, parameters=[table.weight])


@multifold.cell
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
    begin = multifold.cell(lambda: vector * 2)
    run = as_loop(lambda x: begin() + MODEL.block(x), XS, parameters=[vector, *PARAMETERS])
    assert len(run.explain()) == 4


def test_the_dry_run_of_a_cell_leaves_no_trace():
    norm = nn.BatchNorm1d(4)
    cell = multifold.cell(lambda x: norm(torch.stack([x, MODEL.block(x)])) + torch.rand(4))
    before = torch.get_rng_state()
    multifold.batched(cell, backend="torch").traces(XS)
    assert norm.num_batches_tracked == 0 and torch.equal(torch.get_rng_state(), before)


@multifold.cell
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


@multifold.cell
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


def test_a_container_around_a_cell_that_is_changed_between_its_calls_is_an_error():
    held = [2.0]
    cell = multifold.cell(lambda x: x * held[0])

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
    cell = multifold.cell(lambda x: result)
    with pytest.raises(RecordError, match="to return tensors"):
        multifold.batched(cell, backend="torch", join="list")(XS)


def test_an_argument_of_a_cell_that_may_change_unseen_is_refused():
    cell = multifold.cell(lambda x, names: x * len(names))
    with pytest.raises(RecordError, match="can be compared with those of other examples"):
        multifold.batched(lambda x: cell(x, {"a"}), backend="torch")(XS)


def test_an_empty_dictionary_is_one_argument_for_all_examples():
    cell = multifold.cell(lambda x, options: x * 2)
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
    run = multifold.batched(lambda x: model(model(x)), cells=[RowByRow], backend="torch")
    torch.testing.assert_close(run(XS), torch.stack([model(model(x)) for x in XS]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("shape", [(), (1,), (1, 1), (2,)], ids=str)
def test_integers_of_an_example_have_their_shape_and_dtype_in_a_launch(shape, dtype, as_loop):
    xs = [torch.full(shape, number % 2).to(dtype) for number in range(5)]

    def program(x, y):
        return torch.where(MODEL.lin(torch.cat([y, y])).sum() > 0, x, x | x), x.reshape(-1)[:1] * y

    run = as_loop(program, xs, XS[:5], parameters=PARAMETERS)
    assert "where" in str(run.explain())


def test_an_op_for_rows_that_mixes_them_by_a_tensor_around_it_is_refused():
    weight = torch.randn(4, 4)

    @multifold.op
    def centred(rows):
        return rows @ weight - rows.mean(0)

    with pytest.raises(LaunchError, match=r"'centred' .* mixes its rows"):
        multifold.batched(lambda x: centred(x[None])[0])(XS)


def test_a_cell_with_a_module_that_has_backward_hooks_is_refused():
    layer = nn.Linear(4, 4)
    layer.register_full_backward_hook(lambda module, inputs, outputs: None)
    inner = multifold.cell(lambda x: torch.tanh(layer(x)))
    with pytest.raises(RecordError, match="calls a module that has backward hooks"):
        multifold.batched(lambda x: inner(MODEL.block(x)), may_loop=False)(XS)


def test_a_model_may_get_another_dtype_between_runs():
    model = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2))
    run = multifold.batched(model, join="list", may_loop=False)
    ids = [*torch.arange(5)]
    for _ in range(2):
        found = run(ids)
        torch.testing.assert_close(found, [model(x) for x in ids])
        model.double()
