"""What published programs do: idioms of old PyTorch, wrappers of networks, state that is kept somewhere."""

from __future__ import annotations

import copy
import pickle
import sys
import types
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import Variable

import multifold
from multifold import LaunchError, RecordError

torch.manual_seed(0)
LIN = nn.Linear(4, 4)
TABLE = nn.Embedding(5, 4)
XS = [torch.randn(4) for _ in range(6)]


def zero_state(x):
    h = LIN(x)
    return h + h.detach().new(4).fill_(0.0).requires_grad_()


def accumulated(x):
    total = torch.zeros(4)
    for _ in range(3):
        total += LIN(x)
    return total


def accumulated_entry(x):
    totals = [torch.zeros(4), torch.ones(4)]
    totals[1] -= LIN(x)
    return totals[1]


IDIOMS = {
    "Variable": lambda x: Variable(LIN(x).data) + LIN(x),
    "Variable of a real tensor": lambda x: Variable(torch.ones(4)) * LIN(x),
    "new": zero_state,
    "a sum in a new tensor": accumulated,
    "a sum in a list": accumulated_entry,
    "index_add": lambda x: torch.zeros(4).index_add(0, torch.tensor([1]), LIN(x)[:1]),
}


@pytest.mark.parametrize("idiom", IDIOMS)
def test_an_idiom_computes_what_it_computes_in_the_loop(idiom, as_loop):
    as_loop(IDIOMS[idiom], XS, parameters=[*LIN.parameters()])


ROW = torch.tensor([1])


def with_other_name(x):
    total = torch.zeros(4)
    other = total
    total += LIN(x)
    return other, total


def rows_set(x):
    out = torch.zeros(3, 4)
    for i in range(3):
        out[i] = LIN(x) * i
    return out, out.sum(0)


def rows_of_a_type_set(x):
    found = LIN(x)
    out = torch.zeros(2, 4, dtype=torch.double).type_as(found.data)
    out[0] = found
    return out


def parts_added(x):
    out = torch.ones(3, 4)
    out[0] += LIN(x)
    out[1:, 2] *= LIN(x)[0]
    out[2][3] = LIN(x)[1]
    return out


def row_changed(x):
    out = torch.ones(3, 4)
    row = out[1]
    row.mul_(LIN(x))
    return out, row


def settled_in_place(x):
    out, steps = torch.zeros(3), 0
    while out.sum() < 2:
        out[steps % 3] += LIN(x).norm()
        steps += 1
    return out, steps


WRITES = {
    "a tensor with two names": with_other_name,
    "rows": rows_set,
    "rows of the type of a result": rows_of_a_type_set,
    "parts of it": parts_added,
    "a row that has a name": row_changed,
    "a loop on its values": settled_in_place,
    "another dtype": lambda x: torch.zeros(4, dtype=torch.double).add_(LIN(x)),
    "index_add_": lambda x: torch.zeros(2, 4).index_add_(0, ROW, LIN(x)[None]),
    "index_copy_": lambda x: torch.zeros(2, 4).index_copy_(0, ROW, LIN(x)[None]),
    "scatter_add_": lambda x: torch.zeros(4).scatter_add_(0, ROW, LIN(x)[:1]),
    "what gradients flow through": lambda x: (LIN.bias * 2).add_(LIN(x)),
    "what is an operand beside pending ones": lambda x: torch.stack([LIN(x), rows_set(x)[0][1]]),
    "what a layer takes": lambda x: LIN(rows_set(x)[0]),
    "what an autograd function takes": lambda x: Squared.apply(rows_set(x)[0]),
    "a mask": lambda x: LIN(x).detach()[torch.zeros(4, dtype=torch.bool).logical_or_(LIN(x) > 0)],
}


class Squared(torch.autograd.Function):
    """A function with a gradient of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, slope):
        return 2 * slope * ctx.saved_tensors[0]


@pytest.mark.parametrize("what", WRITES)
def test_a_tensor_that_pending_ones_are_written_into_is_that_of_the_loop(what, as_loop):
    as_loop(WRITES[what], XS, parameters=[*LIN.parameters()])


def with_view(x):
    total = torch.zeros(2, 4)
    first = total[0]
    total += LIN(x)
    return first


def with_array(x):
    total = torch.zeros(4)
    array = total.numpy()
    total += LIN(x)
    return array


def of_array(x):
    array = np.zeros(4, np.float32)
    torch.from_numpy(array)[0] = LIN(x)[0]
    return array


def through_another_view(x):
    total = torch.zeros(4)
    total.view(2, 2).t()[0] = LIN(x)[:2]
    return total


@pytest.mark.parametrize("program", [with_view, with_array, of_array, through_another_view])
def test_a_write_into_memory_that_something_else_sees_is_refused(program):
    with pytest.raises(RecordError, match="not pending is changed in place"):
        multifold.batched(program, backend="torch")(XS)


@pytest.mark.parametrize("part", [lambda x: x, lambda x: x[1:]])
def test_a_leaf_is_changed_in_place_as_in_the_loop(part):
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        multifold.batched(lambda x: part(torch.zeros(5, requires_grad=True)).add_(LIN(x)[0]))(XS)


def test_a_change_without_gradients_keeps_the_gradient_of_what_is_changed(as_loop):
    def program(x):
        h = LIN.bias * 2
        with torch.no_grad():
            h[1:].mul_(LIN(x)[1:])
        return h

    as_loop(program, XS, parameters=[*LIN.parameters()])


def test_without_gradients_what_something_else_sees_is_changed_by_values(as_loop):
    def program(x):
        out = torch.zeros(2, 4)
        first = out[0]
        out += LIN(x).detach()
        return out, first

    as_loop(program, XS)


def test_what_an_example_has_written_into_stands_for_its_value_afterwards():
    outs = [torch.zeros(2, 4) for _ in XS]
    run = multifold.batched(lambda out, x: out.__setitem__(0, LIN(x)), join="list", backend="torch")
    assert run(outs, XS) == [None] * len(XS)
    for out, x in zip(outs, XS, strict=True):
        assert type(out) is torch.Tensor  # so that code in C finds its memory
        torch.testing.assert_close(torch.from_dlpack(out.detach())[0] * 2, LIN(x) * 2)
        assert pickle.loads(pickle.dumps(out.detach())).shape == copy.deepcopy(out.detach()).shape == (2, 4)


LAYERS = {
    "convolution of one image": (nn.Conv2d(2, 3, 3), torch.randn(2, 5, 5)),
    "convolution of a minibatch": (nn.Conv2d(2, 3, 3), torch.randn(4, 2, 5, 5)),
    "convolution of a series": (nn.Conv1d(2, 3, 3), torch.randn(1, 2, 7)),
    "convolution of a volume": (nn.Conv3d(1, 2, 2), torch.randn(1, 1, 3, 3, 3)),
    "GRU cell": (nn.GRUCell(4, 3), torch.randn(1, 4)),
    "GRU cell of one row": (nn.GRUCell(4, 3), torch.randn(4)),
    "RNN cell": (nn.RNNCell(4, 3), torch.randn(2, 4)),
    "LSTM cell": (nn.LSTMCell(4, 3), torch.randn(1, 4)),
    "RNN of a sequence": (nn.RNN(4, 3, num_layers=2), torch.randn(5, 4)),
    "LSTM of a minibatch": (nn.LSTM(4, 3, bidirectional=True), torch.randn(5, 1, 4)),
    "GRU of a minibatch on axis 0": (nn.GRU(4, 3, batch_first=True), torch.randn(2, 5, 4)),
}


@pytest.mark.parametrize("case", LAYERS)
def test_a_layer_on_tensors_of_the_example_is_one_launch(case, as_loop):
    layer, x = LAYERS[case]
    run = as_loop(layer, [x, x + 1, x - 1], parameters=[*layer.parameters()])
    assert len(run.explain()) == 1 and "row by row" not in str(run.explain())


def test_a_recurrent_cell_with_its_states_is_one_launch_for_each_step(as_loop):
    cell = nn.LSTMCell(4, 3)

    def program(x):
        state = torch.zeros(1, 3), torch.zeros(1, 3)
        for row in x:
            state = cell(row[None], state)
        return state

    run = as_loop(program, [torch.randn(5, 4) for _ in range(3)], parameters=[*cell.parameters()])
    assert len(run.explain()) == 5


@pytest.mark.parametrize("batch_first", [False, True])
def test_the_states_of_a_recurrent_layer_go_from_call_to_call(batch_first, as_loop):
    layer = nn.LSTM(4, 3, num_layers=2, batch_first=batch_first)

    def program(x):
        first, state = layer(x, (torch.zeros(2, 2, 3), torch.ones(2, 2, 3)))
        return layer(x + first.mean(), state)

    run = as_loop(program, [torch.randn(2, 2, 4) for _ in range(3)], parameters=[*layer.parameters()])
    assert sum(launch.op.__name__ == "LSTM" for launch in run.explain().schedule.launches) == 2


def test_a_convolution_under_autocast_is_that_of_the_loop():
    model = nn.Sequential(LIN, nn.Unflatten(0, (1, 4)), nn.Conv1d(1, 2, 3))
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = multifold.batched(model)(XS), torch.stack([model(x) for x in XS])
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted)


def test_a_wrapper_may_set_the_mode_that_the_network_has(as_loop):
    net = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 1)).eval()

    def predict(x):
        net.eval()
        with torch.no_grad():
            return net(x).item()

    as_loop(lambda x: predict(x) + predict(x + 1), XS)


class OpenDict(dict):
    """A dictionary whose entries are attributes, and whose lack of one is a KeyError."""

    def __getattr__(self, name):
        return self[name]


def test_options_may_be_a_dictionary_with_attributes(as_loop):
    options = OpenDict(scale=2.0)
    as_loop(lambda x: LIN(x) * options.scale, XS)


class Units:
    """Networks of a plain object, in a dictionary."""

    def __init__(self):
        self.units = {"a": nn.Linear(4, 4)}
        self.seen = None

    def forward(self, plan):
        return self.units[plan["unit"]](torch.from_numpy(plan["x"]))

    def reading(self, plan):
        self.seen = self.forward(plan)
        return self.seen * 2 if self.seen.sum() > 0 else self.seen


PLANS = [{"unit": "a", "x": np.full(4, i, np.float32)} for i in range(4)]


def test_the_framework_is_that_of_what_a_plain_object_holds():
    units = Units()
    found = multifold.batched(units.forward)(PLANS)
    torch.testing.assert_close(found, torch.stack([units.forward(plan) for plan in PLANS]))


def test_copies_of_a_plain_object_share_the_parameters_of_its_networks():
    units = Units()
    multifold.batched(units.reading, own=True)(PLANS).sum().backward()
    assert units.units["a"].weight.grad is not None


class Place:
    """Any object."""


def kept_on(place, x):
    place.state = LIN(x)
    return place.state * x if place.state.sum() > 1e9 else place.state


SHARED = Place()
NOTES = {}


def noted(x):
    NOTES["state"] = LIN(x)
    return x if NOTES["state"].sum() > 1e9 else NOTES["state"]


def in_place_of(place):
    return lambda x: kept_on(place, x)


COUNTS = torch.zeros(1)


def counted(x):
    COUNTS.add_(1)
    return LIN(x) * COUNTS if LIN(x).sum() > -1e9 else x


def added(place, x):
    if not hasattr(place, "state"):
        place.state = LIN(x) * 1
    place.state.add_(LIN(x))
    return place.state * x if place.state.sum() > -1e9 else x


TOTAL = torch.zeros(4)


def written(x):
    TOTAL.add_(LIN(x).detach())
    return LIN(x) * TOTAL if LIN(x).sum() > -1e9 else x


def changed_late(place, x, waits):
    place.state = place.state + 1 if waits and LIN(x).sum() > -1e9 else place.state
    return LIN(x) * place.state


def with_state(state):
    place = Place()
    place.state = state
    return place


def counted_around():
    count = 0

    def program(x):
        nonlocal count
        count += 1
        return LIN(x) * count if LIN(x).sum() > -1e9 else x

    return program


STATES = {
    "a pending tensor": lambda: (added, [Place()] * 3, XS[:3]),
    "a tensor that is written into": lambda: (written, XS),
    "a tensor": lambda: (counted, XS),
    "an argument": lambda: (kept_on, [Place()] * 3, XS[:3]),
    "a part of an argument": lambda: (
        lambda pair, x: kept_on(pair[0], x),
        [(Place(), i) for i in range(3)],
        XS[:3],
    ),
    "a variable of a function": lambda: (in_place_of(Place()), XS),
    "a variable of a module": lambda: (lambda x: kept_on(SHARED, x), XS),
    "a dictionary": lambda: (noted, XS),
    "a variable of a function around": lambda: (counted_around(), XS),
}


@pytest.mark.parametrize("where", STATES)
def test_state_that_examples_share_is_that_of_the_loop_where_they_read(where):
    def begun():
        NOTES.clear()
        [x.zero_() for x in (COUNTS, TOTAL)]
        return STATES[where]()

    fn, *arguments = begun()
    wanted = torch.stack([fn(*own) for own in zip(*arguments, strict=True)])
    fn, *arguments = begun()
    torch.testing.assert_close(multifold.batched(fn)(*arguments), wanted)


def test_what_an_example_changes_after_others_have_run_is_an_error():
    arguments = [with_state(0)] * 8, [*XS[:4], *XS[:4]], [i == 5 for i in range(8)]
    with pytest.raises(RecordError, match="The examples share"):
        multifold.batched(changed_late)(*arguments)


def test_the_last_example_may_change_what_examples_share():
    run = multifold.batched(changed_late)
    arguments = XS[:3], [False, False, True]
    found, wanted = run([with_state(2)] * 3, *arguments), run.loop([with_state(2)] * 3, *arguments)
    torch.testing.assert_close(found, wanted)


def test_state_on_what_is_the_own_of_an_example_is_that_of_the_loop():
    places = [Place() for _ in XS]
    found = multifold.batched(kept_on)(places, XS)
    torch.testing.assert_close(found, torch.stack([kept_on(Place(), x) for x in XS]))
    torch.testing.assert_close(torch.stack([place.state + 0 for place in places]), found)


def test_copies_of_a_model_share_the_launches_of_its_layers():
    class Kept(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.state = None

        def forward(self, x):
            self.state = self.lin(x)
            return self.state * 2 if self.state.sum() > 0 else self.lin(self.state)

    model = Kept()
    wanted = torch.stack([model(x) for x in XS])  # and leaves on the model what cannot be copied
    run = multifold.batched(model, own=True)
    torch.testing.assert_close(run(XS), wanted)
    assert sum(launch.op == "Linear" for r in run.explain().rounds for launch in r.launches) == 2


def drawn_before(x):
    h = LIN(x) + torch.randn(4)
    return h * 2 if h.sum() > 0 else h


def drawn_after(x):
    drawn = []
    for _ in range(3):
        LIN(x).sum().item()
        drawn.append(np.random.rand())
    return drawn


def test_numbers_that_are_drawn_before_the_first_read_are_those_of_the_loop(as_loop):
    with warnings.catch_warnings(action="error"):
        as_loop(drawn_before, XS)


@pytest.mark.parametrize("examples", [2, 64])
def test_numbers_that_are_drawn_after_a_read_warn_however_many_examples_there_are(examples):
    with pytest.warns(UserWarning, match="draw random numbers"):
        multifold.batched(drawn_after, join="list", backend="torch")([torch.randn(4)] * examples)


def test_a_function_is_a_cell_where_another_module_has_imported_it(monkeypatch):
    tools, model = types.ModuleType("tools"), types.ModuleType("model")
    tools.lin = model.lin = LIN
    exec("def cell(x): return lin(x).tanh() * 2", vars(tools))
    model.cell = tools.cell
    exec("def program(x): return cell(cell(x))", vars(model))
    monkeypatch.setitem(sys.modules, "tools", tools)
    monkeypatch.setitem(sys.modules, "model", model)
    run = multifold.batched(model.program, cells=[tools.cell])
    torch.testing.assert_close(run(XS), torch.stack([model.program(x) for x in XS]))
    assert len(run.explain()) == 2 and model.cell is tools.cell


class Called(nn.Module):
    """Calls the forward of a part directly, as old programs do."""

    def __init__(self):
        super().__init__()
        self.part = nn.Sequential(LIN, nn.Tanh())

    def forward(self, x):
        return self.part.forward(x)


def test_an_op_that_no_example_calls_is_a_warning_in_the_first_run():
    run = multifold.batched(Called(), cells=[nn.Sequential])
    with pytest.warns(UserWarning, match="No example has called Sequential"):
        run(XS)
    with warnings.catch_warnings(action="error"):
        run(XS)
    with warnings.catch_warnings(action="error"):
        multifold.batched(Called(), cells=[nn.Sequential.forward])(XS)


def looked_up(word, index):
    return TABLE(word)[index]


def test_the_first_failing_example_of_the_loop_is_the_one_that_raises():
    words, places = [torch.tensor([0, 1]), torch.tensor([99, 1]), torch.tensor([0])], [0, 0, 1]
    with pytest.raises(LaunchError, match="out of range in self"):
        multifold.batched(looked_up)(words, places)  # example 2 fails before anything is launched
    with pytest.raises(IndexError, match="out of bounds"):
        multifold.batched(looked_up)(words[::2], places[::2])


def test_a_bare_except_of_an_example_that_waits_does_not_hide_what_has_failed():
    def program(count):
        h = torch.ones(4)
        for _ in range(count):
            h = LIN(h)
            try:
                assert not torch.isnan(h).any()
            except:  # noqa: E722 - as a program has it
                sys.exit(-1)
        return h.view(5)

    with pytest.raises(RuntimeError, match="shape"):
        multifold.batched(program, backend="torch")([1, 3])
