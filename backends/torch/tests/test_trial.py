"""What a trial leaves alone in PyTorch; `tests/engine/ops/test_trial.py` says what trials are for."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from multifold_torch import Compiler, TorchBackend
from multifold_torch.trials import replace
from torch.utils.checkpoint import checkpoint

import multifold
from multifold import LaunchError

ROWS = torch.rand(3, 1, 3, generator=torch.Generator().manual_seed(0))


class Model(torch.nn.Module):
    """Ops that scale rows by numbers, rightly but for ``wrong``."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)
        self.drop = torch.nn.Dropout(0.5)
        self.calls = 0

    def scale(self, x, s):
        self.calls += 1
        return self.linear(x) * s[:, None]

    def dropped(self, x, s):
        self.calls += 1
        return self.drop(x) * s[:, None]

    def normed(self, x, s):
        return self.norm(x) * s[:, None]

    def wrong(self, x, s):
        return self.linear(x) * s


def apply(model, op, rows=ROWS, **options):
    """Return one group: an op of each row and its number."""
    fold = multifold.Fold(**{"backend": "torch", **options})
    return fold.apply(model, [[fold.add(op, x, i + 1.0) for i, x in enumerate(rows)]])[0]


def test_dropout_passes_and_draws_the_masks_that_it_would_have_drawn():
    model = Model()
    results = []
    for _ in range(2):  # the first launch is tried, the second one is not
        torch.manual_seed(0)
        results.append((apply(model, "dropped"), torch.rand(3)))
    (first, after), (second, later) = results
    assert torch.equal(first, second)
    assert torch.equal(after, later)
    assert model.calls == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("mixes", [False, True])
def test_numbers_that_numpy_has_no_dtype_for_are_tried(dtype, mixes):
    def op(x, s):
        x = x.float() * s[:, None]
        return (x - x.mean(0) if mixes else x * 3).to(dtype)

    if mixes:
        with pytest.raises(LaunchError, match="mixes its rows"):
            apply(None, op, ROWS.to(dtype))
    else:
        expected = (ROWS[:, 0].to(dtype).float() * torch.tensor([[3.0], [6.0], [9.0]])).to(dtype)
        assert torch.equal(apply(None, op, ROWS.to(dtype)).float(), expected.float())


def test_a_running_mean_moves_once():
    model = Model()
    with pytest.raises(LaunchError, match="mixes its rows"):
        apply(model, "normed")
    torch.testing.assert_close(model.norm.running_mean, 0.1 * ROWS[:, 0].mean(0))
    assert model.norm.num_batches_tracked == 1


def test_normalisation_in_evaluation_passes():
    model = Model().eval()
    expected = model.norm(ROWS[:, 0]) * torch.tensor([[1.0], [2.0], [3.0]])
    torch.testing.assert_close(apply(model, "normed"), expected)


def test_autocast_keeps_the_gradients_of_weights():
    model = Model()
    with torch.autocast("cpu", torch.bfloat16):
        apply(model, "scale")
        apply(model, "scale").float().sum().backward()
    assert model.calls == 2
    assert model.linear.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_a_trial_leaves_the_mode_of_gradients(context):
    with context():
        result = apply(Model(), "scale")
        assert torch.is_grad_enabled() == result.requires_grad == (context is torch.enable_grad)
        assert result.is_inference() == (context is torch.inference_mode)


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_checkpoint_saves_nothing_of_a_trial(reentrant):
    model = Model()
    w = torch.ones(1, requires_grad=True)
    checkpoint(lambda w: apply(model, "scale", ROWS * w).sum(), w, use_reentrant=reentrant).backward()
    assert w.grad is not None
    assert model.calls == 2  # the second time for the backward pass


def test_on_the_meta_device_shapes_are_compared():
    with torch.device("meta"):
        model = Model()
    assert apply(model, "scale", ROWS.to("meta"), device="meta").shape == (3, 3)
    assert model.calls == 1
    with pytest.raises(LaunchError, match=r"s\[:, None\]"):
        apply(model, "wrong", ROWS.to("meta"), device="meta")


def test_transforms_of_functions_pass():
    model = Model()

    def loss(parameters):
        linear = lambda x, s: torch.func.functional_call(model.linear, parameters, x) * s[:, None]  # noqa: E731
        return apply(None, linear).sum()

    grads = torch.func.grad(loss)(dict(model.linear.named_parameters()))
    torch.testing.assert_close(grads["bias"], torch.full((3,), 6.0))


def test_no_graph_is_compiled_for_a_trial():
    compiler = Compiler(backend="eager")
    model = Model()
    apply(model, "scale", backend=TorchBackend(compiler=compiler))
    assert compiler.graphs == {"scale": 1}


def tensors_alive():
    gc.collect()
    return sum(isinstance(x, torch.Tensor) for x in gc.get_objects())


def test_a_trial_keeps_no_tensor_alive():
    """Not the results of an op whose backward pass reads its own result, either."""
    model = Model()
    alive = []

    def op(x, power):
        return torch.tanh(model.linear(x))

    for power in range(4):
        fold = multifold.Fold(backend="torch")
        xs = [
            fold.add(lambda x, power: torch.tanh(model.linear(x)) ** (power + 1), x, power=power)
            for x in ROWS
        ]
        fold.apply(None, [xs])
        del fold, xs
        alive.append(tensors_alive())
    assert alive[1] == alive[2] == alive[3]  # the first run may let go of what other tests have left


@pytest.mark.parametrize("name", ["GRU", "LSTM", "MultiheadAttention", "BatchNorm1d"])
def test_the_hint_is_of_the_layer_that_mixes(name):
    made = {
        "GRU": (torch.nn.GRU(3, 3), (5, 3), lambda layer, x: layer(x)[0], "batch_first=True"),
        "LSTM": (
            torch.nn.LSTM(3, 3, 3, batch_first=True),
            (5, 3),
            lambda layer, x: layer(x)[1][0],
            "states on axis 1",
        ),
        "MultiheadAttention": (
            torch.nn.MultiheadAttention(3, 1),
            (5, 3),
            lambda layer, x: layer(x, x, x, need_weights=False)[0],
            "batch_first=True",
        ),
        "BatchNorm1d": (torch.nn.BatchNorm1d(3), (3,), lambda layer, x: layer(x), "LayerNorm"),
    }
    layer, shape, call, hint = made[name]
    model = torch.nn.ModuleDict({"layer": layer})
    fold = multifold.Fold(backend="torch")
    xs = torch.randn(3, 1, *shape, generator=torch.Generator().manual_seed(0))
    outputs = [[fold.add(functools.partial(call, model["layer"]), x) for x in xs]]
    with pytest.raises(LaunchError) as caught:
        fold.apply(model, outputs)
    assert hint in caught.value.hint


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.GRU(3, 3)
        self.lstm = torch.nn.LSTM(3, 3, batch_first=True)
        self.norm = torch.nn.BatchNorm1d(3)

    def state(self, x):
        return self.lstm(x)[1][0]

    def last(self, x):
        return self.first(x)[0][-1]

    def mean(self, x):
        return self.norm(x).mean(0, keepdim=True)

    def go_on(self, x, h):
        return self.lstm(x, (h, h))[0]


@pytest.mark.parametrize(
    ("op", "more", "hint"),
    [
        ("state", (), "LSTM has its states on axis 1"),
        ("last", (), "GRU takes axis 0 for time unless it is made with batch_first=True"),
        ("first", (), "GRU takes axis 0 for time unless it is made with batch_first=True"),
        ("go_on", (torch.zeros(1, 1, 3),), "LSTM has its states on axis 1"),
    ],
)
def test_rows_of_layers_that_have_them_elsewhere_have_the_hint_of_the_layer(op, more, hint):
    fold = multifold.Fold(backend="torch")
    nodes = [fold.add(op, torch.zeros(1, 5, 3), *more) for _ in range(3)]
    nodes = nodes if op != "first" else [node[0] for node in nodes]
    with pytest.raises(LaunchError, match=r"returned|raised") as caught:
        fold.apply(Recurrent(), [nodes])
    assert hint in caught.value.hint


def test_other_layers_of_the_model_are_not_blamed_for_rows():
    fold = multifold.Fold(backend="torch")
    with pytest.raises(LaunchError, match="returned 1 row for 3 rows") as caught:
        fold.apply(Recurrent(), [[fold.add("mean", torch.zeros(1, 3)) for _ in range(3)]])
    assert caught.value.hint == "each output of an op must have one row for each node."


@pytest.mark.parametrize("loss", [torch.nn.functional.cross_entropy, torch.nn.CrossEntropyLoss()])
def test_a_loss_that_is_reduced_has_a_hint_of_reduction(loss):
    fold = multifold.Fold(backend="torch")
    with pytest.raises(LaunchError, match="0 dimensions for 3 rows") as caught:
        fold([[fold.add(loss, torch.zeros(1, 4), i) for i in range(3)]])
    assert 'reduction="none"' in caught.value.hint


def test_hooks_see_launches_and_no_trial():
    model = Model()
    seen = []
    model.linear.register_forward_hook(lambda *given: seen.append(len(given[1][0])))
    apply(model, "scale")
    assert seen == [3]


def test_generators_of_the_model_move_on_as_by_one_launch():
    class Noisy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.generator = torch.Generator().manual_seed(0)

        def noise(self, x, s):
            return x + torch.rand(x.shape, generator=self.generator)

    tried, plain = Noisy(), Noisy()
    np.testing.assert_array_equal(apply(tried, "noise"), apply(plain, "noise", trials=False))
    assert torch.equal(tried.generator.get_state(), plain.generator.get_state())


def test_a_module_that_an_op_makes_in_its_first_launch_gets_the_gradient():
    class Lazy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.proj = None

        def op(self, x):
            if self.proj is None:
                self.proj = torch.nn.Linear(3, 2)
            return self.proj(x)

    model = Lazy()
    fold = multifold.Fold(backend="torch")
    fold.apply(model, [[fold.add("op", x) for x in ROWS]])[0].sum().backward()
    assert model.proj.weight.grad is not None


def test_a_buffer_that_an_op_sets_is_that_of_the_launch():
    class Keeps(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", None)

        def op(self, x):
            self.seen = x.sum(0)
            return 2 * x

    model = Keeps()
    fold = multifold.Fold(backend="torch")
    fold.apply(model, [[fold.add("op", x) for x in ROWS]])
    torch.testing.assert_close(model.seen, ROWS[:, 0].sum(0))


def test_a_module_that_is_the_op_itself_is_tried_anew_where_it_is_trained():
    norm = torch.nn.BatchNorm1d(3).eval()
    for trained in (False, True):
        fold = multifold.Fold(backend="torch")
        outputs = [[fold.add(norm.train(trained), x) for x in ROWS]]
        if trained:
            with pytest.raises(LaunchError, match="mixes its rows"):
                fold.apply(None, outputs)
        else:
            fold.apply(None, outputs)


def test_a_shared_tensor_that_an_op_changes_is_changed_once():
    def op(x, table):
        return x + table.add_(1)

    table = torch.zeros(3)
    fold = multifold.Fold(backend="torch")
    outputs = [[fold.add(op, x, multifold.shared(table)) for x in ROWS]]
    torch.testing.assert_close(fold.apply(None, outputs)[0], ROWS[:, 0] + 1)
    assert table.tolist() == [1.0] * 3


def test_a_tensor_of_a_module_that_an_op_changes_is_changed_once():
    class Centred(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.center = torch.zeros(3)

        def op(self, x, s):
            if not self.center.any():
                self.center += x.mean(0)
            return x - self.center

    model = Centred()
    with pytest.raises(LaunchError, match="mixes its rows"):
        apply(model, "op")
    torch.testing.assert_close(model.center, ROWS[:, 0].mean(0))


def test_a_lazy_module_that_an_op_does_not_need_hides_nothing_of_it():
    model = torch.nn.Module()
    model.later = torch.nn.LazyLinear(2)
    model.op = lambda x, s: x - x.mean(0)
    with pytest.raises(LaunchError, match="mixes its rows"):
        apply(model, "op")


def test_hooks_of_all_modules_see_launches_and_no_trial():
    model = Model()
    seen = []
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda *given: seen.append(len(given[1][0]))
    )
    try:
        apply(model, "scale")
    finally:
        hook.remove()
    assert seen == [3]


def test_hooks_are_there_again_after_a_trial():
    model = Model()
    seen = []
    model.linear.register_forward_hook(lambda *given: seen.append(len(given[1][0])))
    for _ in range(2):
        apply(model, "scale")
    assert seen == [3, 3]


def test_other_threads_call_hooks_while_one_tries_an_op():
    layer, x, seen = torch.nn.Linear(3, 3), torch.ones(1, 3), []
    layer.register_forward_hook(lambda *given: seen.append(threading.get_ident()))
    own, backend = layer._forward_hooks, TorchBackend()
    with ThreadPoolExecutor(1) as other, contextlib.ExitStack() as first:
        first.enter_context(backend.apart([layer]))
        layer(x)
        ident = other.submit(threading.get_ident).result()
        other.submit(layer, x).result()
        assert seen == [ident]
        second = backend.apart([layer])
        other.submit(second.__enter__).result()
        other.submit(layer, x).result()
        first.close()  # the second thread still tries
        layer(x)
        assert seen == [ident, threading.get_ident()]
        other.submit(second.__exit__, None, None, None).result()
        other.submit(layer, x).result()
    assert seen[2:] == [ident] and layer._forward_hooks is own


def test_training_is_tried_although_evaluation_has_passed():
    model = Model()
    for op in ("normed", torch.nn.Sequential(model.norm).forward):
        apply(model.eval(), op) if isinstance(op, str) else None
        with pytest.raises(LaunchError, match="mixes its rows"):
            apply(model.train(), op if isinstance(op, str) else lambda x, s: model.norm(x) * s[:, None])


class Normed(torch.nn.Module):
    """Has batch normalisation, which some of its ops use."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.norm = torch.nn.BatchNorm1d(3)

    def soft(self, x):
        return self.linear(x).softmax(0)

    def normed(self, x):
        return self.inner(x)

    def inner(self, x):
        return self.norm(self.linear(x))


def test_advice_is_about_the_modules_that_an_op_calls():
    model = Normed()
    given = {
        "soft": "soft",
        "soft of a function": lambda x: model.linear(x).softmax(0),
        "normed": "normed",
        "normed of a function": lambda x: model.norm(x) + 1,
        "module": model.norm,
    }
    hints = {}
    for name, op in given.items():
        fold = multifold.Fold(backend="torch")
        nodes = [fold.add(op, x) for x in ROWS]
        with pytest.raises(LaunchError, match="mixes its rows") as caught:
            fold.apply(model, [nodes])
        hints[name] = caught.value.hint
        assert caught.value.hint.count("multifold.mixing") == 1
    told = [name for name, hint in hints.items() if hint.startswith("BatchNorm1d in training")]
    assert told == ["normed", "normed of a function", "module"]


def test_a_squeezed_operand_is_told_of_without_a_number():
    fold = multifold.Fold(backend="torch")
    nodes = [fold.add("scale", x, fold.add("score", x)) for x in ROWS]
    with pytest.raises(LaunchError, match="rows without a width") as caught:
        fold.apply({"score": lambda x: x.sum(1), "scale": lambda x, s: x * s}, [nodes])
    assert "a number operand" not in str(caught.value)


class NeverEmpty(dict):
    """A dictionary that another thread may read at any time."""

    def clear(self):
        raise AssertionError("a name is missing for a moment")


def test_names_of_buffers_stay_while_others_are_put_in_their_place():
    own, values = NeverEmpty(mean=torch.zeros(2), var=None), {"mean": torch.ones(2), "var": None}
    replace(own, values)
    assert own == values and own["mean"] is values["mean"]
