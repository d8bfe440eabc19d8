"""Programs on PyTorch: held to a fold's values and gradients, and to the same operations for each form."""

from __future__ import annotations

import contextlib
import importlib.util
import pickle
import sys
import types
import warnings
from pathlib import Path

import multifold_torch
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from multifold_torch.program.backward import TileGradients
from multifold_torch.program.feed import Feed
from multifold_torch.program.forward import TileRunner
from multifold_torch.program.witness import Witness

import multifold
from multifold import Fold, LaunchError, Unfold, ragged, shared
from multifold.errors import BackendError
from multifold.program import make, resolve_ops

TESTS = Path(__file__).resolve().parents[3] / "tests"


def load(name, folder=TESTS):
    """Load a test module of the core: test modules do not import each other."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look up the module of a class
    spec.loader.exec_module(module)
    return module


graphs = load("test_properties")
models = load("test_models")
of_data_sets = load("test_models_for_data_sets", TESTS.parent / "benchmarks" / "tests")
MODELS = models.MODELS | of_data_sets.MODELS
run = multifold_torch.run


@pytest.fixture
def any_work(monkeypatch):
    """Let kernels take turns however much work that is."""
    monkeypatch.setattr(make, "MOST_WORK", np.inf)


@pytest.fixture
def wide():
    """Compute in float64."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def total(rows):
    values = rows.values
    return values.new_zeros(len(rows.lengths), *values.shape[1:]).index_add(0, rows.segment_ids, values)


def column(numbers):
    return numbers.to(torch.get_default_dtype())[:, None]


def ops_of(p):
    """The ops of the random graphs."""
    return {
        "leaf": lambda x: x * 1.5,
        "squash": torch.tanh,
        "mix": lambda x, y: torch.tanh(x) * y - x,
        "number": lambda x, k: x * column(k),
        "numbers": lambda x, a, b: x + column(a) * 0.1 - column(b),
        "weighted": lambda x, w: x * w,
        "both": lambda d: {"sum": d["x"] + d["yz"][0], "pair": (d["yz"][1] * 0.5, [d["x"]])},
        "total": total,
        "beside": lambda x, rows: x - total(rows),
        "scaled": lambda x, k, by: x * (k + by),
        "pair": lambda x: (x * 0.7, torch.tanh(x)),
        "stack": lambda *xs: torch.cat(xs),
        "whole": lambda w, x: w.sum(0, keepdim=True) * 0.5 + x,
        "constant2": lambda: p["v2"] * 2.0,
        "constant3": lambda: p["v3"] * 2.0,
    }


def gradients_of(results, parameters):
    """Return the gradients of some weighting of results."""
    value = sum((x * torch.cos(torch.arange(len(x)))[:, None]).sum() for x in results)
    found = torch.autograd.grad(value + 0 * parameters[0].sum(), parameters, allow_unused=True)
    return [torch.zeros_like(p) if x is None else x for p, x in zip(parameters, found, strict=True)]


@settings(graphs.relaxed, max_examples=40)
@given(program=graphs.programs, choice=graphs.picks)
def test_random_graphs_have_the_values_and_gradients_of_unfold(any_work, wide, program, choice):
    rng = np.random.default_rng(0)
    shapes = {name: (int(name[1]),) if name[0] == "s" else (1, int(name[1])) for name in graphs.NAMES}
    p = {name: torch.tensor(rng.uniform(-1, 1, s), requires_grad=True) for name, s in shapes.items()}
    fold = Fold(backend="torch")
    unfold = Unfold(ops_of(p), backend="torch")
    outputs = graphs.groups(graphs.record(fold, program, p), choice)
    got = run(ops_of(p), fold.program(outputs, ops_of(p)))
    expected = unfold.apply(None, graphs.groups(graphs.record(unfold, program, p), choice))
    for x, y in zip(got, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)
        assert x.requires_grad or not y.requires_grad
    pairs = zip(*(gradients_of(x, list(p.values())) for x in (got, expected)), strict=True)
    for x, y in pairs:
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    ("dtype", "values", "gradients"), [("float64", 1e-9, 1e-9), ("float32", 1e-5, 1e-4)]
)
def test_models_have_the_values_and_gradients_of_a_fold(name, dtype, values, gradients, request):
    request.getfixturevalue("wide") if dtype == "float64" else None
    construct, record = MODELS[name]
    model = models.disturbed(construct(dtype=dtype)).on("torch")
    fold = Fold(backend="torch")
    program = fold.program([record(model, fold)])
    assert program.unfit is None and program.form.tiled
    (got,), (expected,) = run(model, program), fold.apply(model, [record(model, fold)])
    torch.testing.assert_close(got, expected, rtol=values, atol=values)
    parameters = list(model.parameters())
    for x, y in zip(gradients_of([got], parameters), gradients_of([expected], parameters), strict=True):
        torch.testing.assert_close(x, y, rtol=gradients, atol=gradients)


def test_a_model_with_two_ops_in_a_loop_has_them_take_turns():
    construct, record = MODELS["spinn"]
    fold = Fold(backend="torch")
    form = fold.program([record(construct(), fold)]).form
    (loop,) = [phase for phase in form.phases if phase.loop]
    assert [form.kernels[loop.kernels[entry]].name for entry in loop.turn] == ["track", "track", "reduce"]
    assert loop.launches % 3 == 0 and "in turns of 3" in str(fold.programs)


def chain(fold, spec):
    """Apply an op for each letter to a number."""
    number, letters = spec
    x = fold.add("start", number)
    for op in letters:
        x = fold.add(op, x)
    return x


CHAIN = {"start": lambda x: x, "a": lambda x: x + 1, "b": lambda x: 2 * x}


def test_one_form_serves_every_structure():
    fold = Fold(backend="torch")
    for batch in ([(1.0, "abab"), (2.0, "bbaa")], [(3.0, "aab"), (1.0, "")], [(1.0, "a"), (3.0, "aa")]):
        traces = [multifold.trace(chain, spec) for spec in batch]
        assert torch.equal(run(CHAIN, fold.program(traces)), fold.run(CHAIN, traces))
    assert len(fold.programs) == 1


def test_an_epoch_of_random_trees_has_few_forms():
    rng = np.random.default_rng(0)

    def tree(words):
        if words == 1:
            return int(rng.integers(9))
        left = int(rng.integers(1, words))
        return tree(left), tree(words - left)

    def encode(fold, tree):
        if isinstance(tree, int):
            return fold.add("leaf", tree)
        return fold.add("join", *[encode(fold, child) for child in tree])

    traces = multifold.traces(encode, [tree(int(rng.integers(5, 40))) for _ in range(640)])
    fold = Fold(backend="torch")
    for low in range(0, 640, 32):
        fold.program(traces[low : low + 32])
    assert len(fold.programs) <= 4


DISORDER = ["".join(np.random.default_rng(i).permutation(list("abcdefgh"))) for i in range(8)]
"""Eight ops in eight orders."""


def test_a_program_that_turns_would_make_too_large_runs_as_a_fold_and_says_why():
    model = {"start": lambda x: x} | {op: lambda x: 2 * x for op in "abcdefgh"}
    program = Fold(backend="torch").program([multifold.trace(chain, (1.0, word)) for word in DISORDER])
    with pytest.warns(UserWarning, match=r"in a fixed cycle of the ops 'a', 'b'.* \d\.\d times the work"):
        got = run(model, pickle.loads(pickle.dumps(program)))
    assert got.tolist() == [256] * 8


def test_outputs_that_turns_would_make_too_large_are_refused_with_the_way_out():
    fold = Fold(backend="torch")
    program = fold.program([[chain(fold, (1.0, word)) for word in DISORDER]])
    with pytest.raises(BackendError, match=r"times the work(.|\n)*fold.apply\(model, outputs\)"):
        run({}, program)


def test_a_program_of_another_backend_is_refused():
    program = Fold(backend="numpy").program([multifold.trace(chain, (1.0, "a"))])
    with pytest.raises(BackendError, match=r"a fixed order(.|\n)*Fold\(backend='torch'\)"):
        run(CHAIN, program)


def powers(w, lengths=(1, 3, 2)):
    """Return powers of a tensor by a program, one for each length."""
    fold = Fold(backend="torch")
    program = fold.program([multifold.trace(chain, (1.0, "w" * n)) for n in lengths])
    return run({"start": lambda x: x, "w": lambda x: w * x}, program)


def test_a_tensor_that_was_computed_outside_is_an_input_and_its_past_runs_once():
    w = torch.tensor(3.0, requires_grad=True)
    seen = []
    double = 2 * w
    double.register_hook(seen.append)
    found = powers(double)
    assert torch.autograd.grad(found.sum(), double, retain_graph=True) == (1 + 2 * 6 + 3 * 36,)
    found.sum().backward()
    assert w.grad == 2 * 121 and seen == [121, 121]


def test_an_op_that_reads_a_tensor_and_what_was_computed_from_it_counts_neither_twice():
    w = torch.tensor(0.3, requires_grad=True)
    square = w.exp()
    fold = Fold(backend="torch")
    traces = [multifold.trace(chain, (1.0, "w" * n)) for n in (1, 3, 2)]
    model = {"start": lambda x: x, "w": lambda x: torch.tanh(square * w * x)}
    got = torch.autograd.grad(run(model, fold.program(traces)).sum(), w, retain_graph=True)
    assert torch.allclose(got[0], torch.autograd.grad(fold.run(model, traces).sum(), w)[0])


def test_hooks_of_a_parameter_run_once_in_a_step():
    w = torch.tensor(3.0, requires_grad=True)
    seen = []
    w.register_hook(lambda gradient: gradient.clamp(max=20))
    w.register_post_accumulate_grad_hook(lambda x: seen.append(float(x.grad)))
    powers(w).sum().backward()
    assert seen == [20] and len(w._backward_hooks) == 1


def test_a_tensor_from_outside_may_retain_its_gradient():
    w = torch.tensor(3.0, requires_grad=True)
    double = 2 * w
    double.retain_grad()
    powers(double).sum().backward()
    assert (double.grad, w.grad) == (121, 242)


class Scaled(torch.autograd.Function):
    """A product as a function of its own."""

    @staticmethod
    def forward(context, x, w):
        context.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(context, gradient):
        x, w = context.saved_tensors
        return gradient * w, (gradient * x).sum()


def test_parameters_of_custom_functions_are_found():
    w = torch.tensor(3.0, requires_grad=True)
    program = Fold(backend="torch").program([multifold.trace(chain, (1.0, "www"))])
    found = run({"start": lambda x: x, "w": lambda x: Scaled.apply(x, w)}, program)
    assert torch.autograd.grad(found.sum(), w) == (27,)


def test_an_op_that_reads_another_parameter_in_each_launch_has_all_gradients():
    weights = [torch.tensor(float(i), requires_grad=True) for i in range(1, 6)]
    left = iter(weights)

    def scale(x):
        return x * next(left)

    program = Fold(backend="torch", trials=False).program([multifold.trace(chain, (1.0, "wwww"))])
    found = run({"start": lambda x: x, "w": multifold.trusted(scale)}, program)
    gradients = torch.autograd.grad(found.sum(), weights, allow_unused=True)
    assert found == 24 and gradients == (24, 12, 8, 6, None)


def test_shared_arrays_nested_operands_and_whole_results_have_gradients():
    p = {"table": torch.arange(6.0).reshape(3, 2), "scale": torch.tensor([1.5, -0.5])}
    p = {name: x.requires_grad_() for name, x in p.items()}
    ops = {
        "look_up": lambda t, i: t[i] * p["scale"],
        "stack": lambda d: torch.cat(d["pair"]) * p["scale"],
        "beside": lambda all_rows, row: row * (all_rows**2).sum(),
    }

    def record(fold):
        rows = [fold.add("look_up", shared(p["table"]), i) for i in (2, 0)]
        both = fold.add("stack", {"pair": (rows[0], rows[1])}).no_batch()
        return [[fold.add("beside", both, row) for row in rows]]

    fold = Fold(backend="torch")
    (got,) = run(ops, fold.program(record(fold)))
    (expected,) = fold.apply(ops, record(fold))
    for x, y in zip(
        gradients_of([got], [*p.values()]), gradients_of([expected], [*p.values()]), strict=True
    ):
        torch.testing.assert_close(x, y)


def test_leaf_arrays_have_gradients():
    fold = Fold(backend="torch")
    rows = [torch.tensor([[1.0, 2.0]], requires_grad=True), torch.tensor([[3.0, 4.0]])]
    (found,) = run({"twice": lambda x: 2 * x}, fold.program([[fold.add("twice", x) for x in rows]]))
    assert torch.autograd.grad(found.sum(), rows[0])[0].tolist() == [[2, 2]]


def test_no_graph_is_kept_without_gradients():
    w = torch.tensor(3.0, requires_grad=True)
    with torch.no_grad():
        found = powers(w)
    assert found.tolist() == [3, 27, 9] and not found.requires_grad


def test_graphs_are_kept_as_long_as_autograd_is_told_and_second_derivatives_refused():
    w = torch.tensor(3.0, requires_grad=True)
    found = powers(w).sum()
    for _ in range(2):
        torch.autograd.grad(found, w, retain_graph=True)
    found.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        found.backward()
    (first,) = torch.autograd.grad(powers(w).sum(), w, create_graph=True)
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(first, w)


def test_autocast_acts_as_in_a_fold():
    layer = torch.nn.Linear(4, 4)
    model = {"start": lambda x: layer(x[:, None].expand(-1, 4)), "l": layer}
    fold = Fold(backend="torch")
    traces = [multifold.trace(chain, (1.0, "l" * n)) for n in (1, 3, 2)]
    with torch.autocast("cpu", torch.bfloat16):
        got, expected = run(model, fold.program(traces)), fold.run(model, traces)
    assert got.dtype == expected.dtype == torch.bfloat16 and torch.equal(got, expected)
    parameters = list(layer.parameters())
    for x, y in zip(gradients_of([got], parameters), gradients_of([expected], parameters), strict=True):
        torch.testing.assert_close(x, y, rtol=0.02, atol=0.02)


def test_numbers_are_bfloat16_where_that_is_the_default():
    torch.set_default_dtype(torch.bfloat16)
    try:
        fold = Fold(backend="torch")
        traces = [multifold.trace(chain, (1.5, "ab")), multifold.trace(chain, (3.0, "a"))]
        got, expected = run(CHAIN, fold.program(traces)), fold.run(CHAIN, traces)
    finally:
        torch.set_default_dtype(torch.float32)
    assert got.dtype == expected.dtype == torch.bfloat16 and torch.equal(got, expected)


def test_dropout_drops_as_many_as_it_says_and_the_same_forward_and_backward():
    w = torch.ones(1000, requires_grad=True)
    model = {
        "start": lambda x: x[:, None] * w,
        "d": lambda x: torch.nn.functional.dropout(x, 0.25),
    }
    fold = Fold(backend="torch")
    traces = [multifold.trace(chain, (1.0, "d" * n)) for n in (3, 2, 1, 1)]
    found = run(model, fold.program(traces))
    kept = (found != 0).double().mean(1)
    assert torch.allclose(kept, torch.tensor([0.75**3, 0.75**2, 0.75, 0.75]).double(), atol=0.05)
    (gradient,) = torch.autograd.grad(found.sum(), w)
    torch.testing.assert_close(gradient, found.detach().sum(0))


SINGULAR = {
    "log": lambda x: torch.log(x - 0.5),
    "difference": lambda x: 1 / (x - x.detach() * 0.5 - 0.25),
    "root": lambda x: torch.sqrt(x - 0.5),
}


@pytest.mark.parametrize("op", SINGULAR)
def test_an_op_that_a_minibatch_lacks_leaves_no_trace_in_its_gradients(op):
    s = torch.tensor(1.0, requires_grad=True)
    model = {"start": lambda x: s * x, "e": lambda x: 2 * x, "f": lambda x: SINGULAR[op](s * x)}
    fold = Fold(backend="torch")
    fold.program([multifold.trace(chain, (3.0, "fe"))])
    program = fold.program([multifold.trace(chain, (3.0, "e"))])
    assert "once  f: 0 launches, 0 rows" in str(program)
    assert torch.autograd.grad(run(model, program).sum(), s) == (6,)


def beside_start(fold, letters):
    """Apply an op for each letter to a number and to the first result."""
    start = fold.add("start", 3.0)
    x = start
    for op in letters:
        x = fold.add(op, x, start)
    return x


@pytest.mark.parametrize("op", SINGULAR)
def test_a_turn_before_an_op_can_have_a_call_leaves_no_trace_in_gradients(any_work, op):
    s = torch.tensor(2.0, requires_grad=True)
    model = {
        "start": lambda x: s * x,
        "a": lambda x, start: x + s,
        "f": lambda x, start: 3 + s * start * SINGULAR[op](x) ** 2,
    }
    fold = Fold(backend="torch")
    for words in (("aafafafafa", "afaa"), ("aafa", "aaaa")):
        traces = [multifold.trace(beside_start, letters) for letters in words]
        program = fold.program(traces)
    assert program.form.phases[1].turn == (0, 1) and program.launches[1:5, 2].tolist() == [8, 0, 8, 8]
    got, expected = (
        torch.autograd.grad(x.sum(), s) for x in (run(model, program), fold.run(model, traces))
    )
    torch.testing.assert_close(got, expected)


def test_what_pads_leaks_no_nan_into_gradients():
    def record(fold, n):
        x = fold.add("leaf", float(n))
        for i in range(n):
            x = fold.add("node", x, ragged([x] * (i % 3), row_shape=()))
        return x

    w = torch.tensor(1.5, requires_grad=True)
    model = {
        "leaf": lambda x: x * w,
        "node": lambda x, r: torch.log(x + 1 / x) / torch.sqrt(r.lengths + x) + total(r) / x,
    }
    fold = Fold(backend="torch")
    traces = [multifold.trace(record, n) for n in (1, 2, 4)]
    got, expected = run(model, fold.program(traces)), fold.run(model, traces)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), w) for x in (got, expected)))


def test_a_step_is_one_graph_for_dynamo(monkeypatch):
    monkeypatch.setattr(torch._dynamo.config, "trace_autograd_ops", True)
    model = MODELS["binary-tree-lstm"][0]().on("torch")
    backend = multifold_torch.TorchBackend()
    fold = Fold(backend="torch")
    first, second = (
        fold.program(multifold.traces(lambda f, tree: models.record_trees(model, f, [tree])[-1], trees))
        for trees in (models.BINARY, [models.BINARY[i] for i in (0, 2, 0)])
    )
    assert first.form == second.form and len(list(first.form.tiles())) <= 8
    ops = resolve_ops(backend, model, first.form)
    feed = Feed(first)
    runner = TileRunner(
        backend, ops, first.form, feed.views(feed.buffers(backend, None)), Witness(backend, first)
    )
    runner.run()
    outside = {tile.span.kernel: tile.outside for tile in runner.tiles}

    def step(data, ones):
        runner = TileRunner(backend, ops, first.form, data, None, outside)
        runner.run()
        ((_, ((place, values),)),) = runner.results()
        return values, TileGradients(runner, [(place, data.groups[0])]).run([ones], False)

    compiled = torch.compile(step, backend="eager", fullgraph=True)
    for program in (first, second):
        feed = Feed(program)
        values, gradients = compiled(feed.views(feed.buffers(backend, None)), torch.ones(3, 3))
        expected = run(model, program)
        torch.testing.assert_close(values, expected)
        wanted = torch.autograd.grad(expected.sum(), TileGradients(runner, []).inputs)
        torch.testing.assert_close(gradients, list(wanted))
    assert len(torch._dynamo.eval_frame._debug_get_cache_entry_list(step)) == 1


def add_one(x):
    return x.add_(1)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (lambda x: x.sum(), "an array of 0 dimensions"),
        (lambda x: torch.cat([x, x]), r"returned \d+ rows for \d+ row"),
        (lambda x: x / x.sum(), "mixes its rows"),
        (add_one, "operand 0 was changed by an inplace operation"),
        (lambda x: x @ torch.ones(3), "raised RuntimeError"),
    ],
)
def test_ops_that_do_what_they_must_not_are_named(op, message):
    fold = Fold(backend="torch")
    program = fold.program([[fold.add("f", 1.0), fold.add("f", 2.0)]])
    with pytest.raises(LaunchError, match=rf"The op 'f', first recorded at .*{message}"):
        run({"f": op}, program)


def test_rows_of_two_shapes_need_the_model():
    fold = Fold(backend="torch")
    model = {"f": lambda x: x * 2}
    outputs = [[fold.add("f", fold.add("f", np.ones((1, n), "float32")))] for n in (2, 3)]
    with pytest.raises(
        LaunchError, match=r"rows of different classes(.|\n)*fold.program\(outputs, model\)"
    ):
        run(model, fold.program(outputs))
    for rows, width in zip(run(model, fold.program(outputs, model)), (2, 3), strict=True):
        assert rows.tolist() == [[4.0] * width]


class FakeCard:
    """Stands for a card: a replay runs what was captured, and writes into the results of the capture."""

    def __init__(self, monkeypatch):
        self.captured = self.replayed = self.beside = 0
        self.waits = []
        for name in ("can_capture", "beside", "capture"):
            monkeypatch.setattr(multifold_torch.program.graphs, name, getattr(self, f"on_{name}"))

    def on_can_capture(self, device):
        return True

    def on_beside(self, device):
        self.beside += 1
        return contextlib.nullcontext(self.waits)

    def on_capture(self, compute, device, generators):
        self.captured += 1
        result = torch.zeros(())

        def replay():
            self.replayed += 1
            found = compute()
            result.resize_(found.shape).copy_(found)

        return replay, result


@pytest.fixture
def card(monkeypatch):
    return FakeCard(monkeypatch)


class Powers(torch.nn.Module):
    """Multiplies a number again and again, or drops it."""

    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Linear(1, 1)
        self.drop = torch.nn.Dropout(1.0)

    def start(self, x):
        return x[:, None]

    def w(self, x):
        return torch.tanh(self.scale(x))

    def d(self, x):
        return self.drop(x)


def minibatches(count, letter="w"):
    """Return traces of chains and what each of them should be."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        specs = [(float(rng.uniform()), letter * int(rng.integers(1, 9))) for _ in range(6)]
        yield [multifold.trace(chain, spec) for spec in specs], torch.tensor(rng.uniform(size=(6, 1)))


def trained(model, step, count=9):
    """Return the losses of some steps, and the parameters that they lead to."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    losses = []
    for i, (traces, labels) in enumerate(minibatches(count)):
        if i % 2:  # every other step adds to the gradients of the one before
            optimizer.zero_grad()
        losses.append(step(traces, labels))
        optimizer.step()
    return torch.stack(losses), *model.parameters()


def programs_trained(**options):
    """Return the outcome of training by a step over programs, the step and its fold."""
    torch.manual_seed(0)
    model = Powers()
    fold = Fold(backend="torch")
    step = multifold_torch.ProgramStep(model, torch.nn.functional.mse_loss, **options)
    return trained(model, lambda traces, labels: step(fold.program(traces), labels)), step, fold


def folds_trained():
    """Return the outcome of training by folds."""
    torch.manual_seed(0)
    model = Powers()
    fold = Fold(backend="torch")

    def step(traces, labels):
        loss = torch.nn.functional.mse_loss(fold.run(model, traces), labels)
        loss.backward()
        return loss.detach()

    return trained(model, step)


def test_steps_over_programs_train_as_folds_do(wide):
    outcome, step, fold = programs_trained()
    for x, y in zip(outcome, folds_trained(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)
    assert len(step.forms) == len(fold.programs) == 1


def test_the_fourth_step_of_a_form_is_captured_and_replayed_with_other_numbers(wide, card):
    outcome, _, _ = programs_trained()
    for x, y in zip(outcome, folds_trained(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)
    assert (card.beside, card.captured, card.replayed) == (3, 1, 6)


def test_a_step_that_no_graph_can_hold_runs_as_before_and_says_why(wide, card, monkeypatch):
    def refuse(compute, device, generators):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(multifold_torch.program.graphs, "capture", refuse)
    with pytest.warns(UserWarning, match="without a CUDA graph: operation not permitted") as seen:
        outcome, _, _ = programs_trained()
    for x, y in zip(outcome, folds_trained(), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-9, atol=1e-9)
    assert len(seen) == 1 and seen[0].filename == __file__


def test_a_step_in_which_an_op_waits_for_the_device_is_not_captured(wide, card):
    card.waits.append("an op waits for the device, at model.py:7")
    with pytest.warns(UserWarning, match="without a CUDA graph: an op waits.*model.py:7") as seen:
        programs_trained()
    assert (card.beside, card.captured, len(seen)) == (3, 0, 1) and seen[0].filename == __file__


def test_a_graph_is_captured_anew_for_another_mode_and_other_parameters(card):
    model = Powers()
    fold = Fold(backend="torch")
    step = multifold_torch.ProgramStep(model)
    batches = [fold.program(traces) for traces, _ in minibatches(5, "d")]
    for program in batches:
        assert not step(program).any()
    model.eval()
    for program, (traces, _) in zip(batches, minibatches(5, "d"), strict=True):
        torch.testing.assert_close(step(program), fold.run(model, traces).detach())
    assert card.captured == 2
    model.train()
    step(batches[0])
    assert (card.captured, card.replayed) == (2, 5)
    model.scale.weight = torch.nn.Parameter(torch.ones(1, 1))
    step(batches[0])
    assert (card.captured, card.replayed) == (2, 5)


def test_gradients_of_graphs_are_added_to_those_that_are_there(card):
    model = Powers()
    fold = Fold(backend="torch")
    step = multifold_torch.ProgramStep(model, lambda found: found.sum())
    programs = [fold.program(traces) for traces, _ in minibatches(6)]
    for program in programs:
        step(program)
    expected = sum(torch.autograd.grad(run(model, p).sum(), model.scale.weight)[0] for p in programs)
    torch.testing.assert_close(model.scale.weight.grad, expected)
    model.zero_grad()
    step(programs[0])
    (expected,) = torch.autograd.grad(run(model, programs[0]).sum(), model.scale.weight)
    torch.testing.assert_close(model.scale.weight.grad, expected)


def test_a_step_returns_what_its_loss_does_and_no_later_step_changes_it(card):
    model = Powers()
    fold = Fold(backend="torch")
    step = multifold_torch.ProgramStep(model, lambda found: (found.sum(), {"all": found}))
    (first, _), (second, _) = minibatches(2)
    value, rest = step(fold.program(first))
    kept = rest["all"].clone()
    step(fold.program(second))
    assert torch.equal(rest["all"], kept) and value == kept.sum() and not value.requires_grad


@pytest.mark.parametrize("what", [3, torch.ones(1, requires_grad=True)])
def test_inputs_of_a_step_that_are_no_data_are_refused(what):
    program = Fold(backend="torch").program([multifold.trace(chain, (1.0, "w"))])
    with pytest.raises(LaunchError, match="tensors without a gradient"):
        multifold_torch.ProgramStep(Powers(), lambda x, y: x.sum())(program, what)


def test_steps_over_what_is_in_no_buffer_run_without_one(card):
    fold = Fold(backend="torch")
    model = {"twice": lambda x: 2 * x}
    step = multifold_torch.ProgramStep(model)
    for i in range(5):
        program = fold.program([[fold.add("twice", torch.tensor([[float(i)]]))]])
        assert step(program)[0].tolist() == [[2.0 * i]]
    assert card.captured == 0 and not step.forms


def test_runs_before_a_capture_note_what_waits_for_the_device_and_pass_other_warnings_on(monkeypatch):
    stream = types.SimpleNamespace(wait_stream=lambda other: None)
    modes = []
    stands_for = {
        "current_stream": lambda device: stream,
        "Stream": lambda device: stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": modes.append,
    }
    for name, own in stands_for.items():
        monkeypatch.setattr(torch.cuda, name, own)
    with (
        warnings.catch_warnings(record=True) as seen,
        multifold_torch.program.graphs.beside("cuda") as waits,
    ):
        warnings.warn("called a synchronizing CUDA operation", stacklevel=1)
        warnings.warn("another", stacklevel=1)
    assert [str(x.message) for x in seen] == ["another"] and modes == ["warn", 0]
    assert [where.partition(":")[0] for where in waits] == [f"an op waits for the device, at {__file__}"]


@pytest.mark.parametrize(
    "run", [multifold_torch.run, lambda *given: multifold_torch.ProgramStep(given[0])(given[1])]
)
def test_traces_in_the_place_of_a_program_are_refused(run):
    traces = multifold.traces(lambda fold, x: fold.add("double", x), [1, 2])
    with pytest.raises(multifold.RecordError, match=r"Expected a program(.|\n)*fold\.program\(traces\)"):
        run({"double": lambda x: 2 * x}, traces)
