"""Plain programs without reads: values, gradients, dtypes and shapes are those of the loop."""

from __future__ import annotations

import copy
import functools
import itertools
import pickle
import threading

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from torch import nn
from torch.utils.checkpoint import checkpoint

import multifold
from multifold import MismatchError, RecordError
from multifold.lazy.comparing import same

torch.manual_seed(0)
LIN = nn.Linear(4, 4)
WIDE = nn.Linear(4, 6)
TABLE = nn.Embedding(9, 4)
NORM = nn.LayerNorm(4)
GRU, LSTM = nn.GRUCell(4, 4), nn.LSTM(4, 4)
HEADS = nn.MultiheadAttention(4, 2)
CONV = nn.Conv1d(1, 2, 3)
BILINEAR, RMS = nn.Bilinear(4, 4, 2), nn.RMSNorm(4)
VECTOR = nn.Parameter(torch.rand(4))
ENCODER = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)
SEQUENCE = nn.Sequential(LIN, nn.ReLU(), WIDE)
ALL = [
    *(x for m in (LIN, WIDE, TABLE, NORM, GRU, LSTM, HEADS, CONV, BILINEAR, RMS) for x in m.parameters()),
    VECTOR,
]
XS = [torch.randn(4) for _ in range(5)]


def in_place(x):
    y = LIN(x).clone()
    y += 1
    y.mul_(2).sub_(x)
    y.exp_()
    return y


def added(y):
    before = y * 1
    y += 1
    return before - y * 1


def items_set(x):
    y = LIN(x)
    y[0] = 5.0
    y[1:3] = y[2].detach()
    y[-1] += x[0]
    return y


def filled(x):
    y = LIN(x)
    z = torch.zeros_like(y)
    y.fill_(2)
    w = LIN(x)
    w.copy_(z + x)
    z = LIN(x) * 1
    z.zero_()
    return y, w, z


def recursive(x, depth=3):
    return x if not depth else torch.relu(LIN(recursive(x, depth - 1))) + depth


def structured(x):
    a, b = LIN(x).chunk(2)
    most = torch.max(LIN(x), 0)
    return {"b": [b, most.values], "a": (a, None, 3, "text", most.indices)}


def gated(x):
    first, *gates = WIDE(x).split(2)
    return torch.cat([first * torch.sigmoid(gates[0]), torch.stack([*gates[1]])])


def switched_off(x):
    with torch.no_grad():
        y = LIN(x)
    return y, LIN(y)


def autocast(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = LIN(x)
    return y, LIN(x)


PROGRAMS = {
    "layers": lambda x: NORM(LIN(x)),
    "recursion": recursive,
    "structure": structured,
    "gates": gated,
    "no_grad": switched_off,
    "autocast": autocast,
    "in place": in_place,
    "items set": items_set,
    "filled": filled,
    "in place by a keyword": lambda x: (y := LIN(x), F.relu(y, inplace=True))[0],
    "in place by a layer": lambda x: (y := LIN(x) * 1, nn.ReLU(inplace=True)(y), y)[2],
    "a statement in place": lambda x: added(LIN(x)),
    "a mask in place": lambda x: (m := LIN(x) > 0, before := ~m, m.__ior__(x > 0), before == ~m)[3],
    "power in place": lambda x: (y := LIN(x), z := y * 1, y.__ipow__(2), z - y * 1)[3],
    "items": lambda x: LIN(x)[-1] + LIN(x)[..., 0] + LIN(x)[None][0, 1] + sum(LIN(x)[1:]),
    "fancy items": lambda x: LIN(x)[[0, 2]] + LIN(x)[torch.tensor([1, 3])] + LIN(x)[torch.tensor(1)],
    "a pending index": lambda x: (VECTOR[LIN(x).argmax()], TABLE(LIN(x).argmin()), x[LIN(x).argmax()]),
    "iteration": lambda x: [y * 2 for y in LIN(x)],
    "unbind": lambda x: LIN(torch.stack([x, x + 1])).unbind(1),
    "where": lambda x: torch.cat([torch.where(LIN(x) > 0, LIN(x), x), x[:2]]),
    "einsum": lambda x: torch.einsum("i,j->ij", LIN(x), x),
    "transposed": lambda x: LIN(x).view(2, 2).T @ LIN(x).reshape(2, -1).mT.contiguous(),
    "determinant": lambda x: torch.linalg.det(torch.outer(LIN(x), x) + torch.eye(4)),
    "numbers": lambda x: LIN(x).sum() * x.sum() + LIN(x).mean() * 2 - 1 / LIN(x).norm(),
    "dtypes": lambda x: (
        LIN(x).sum() * torch.arange(3),
        LIN(x).double()[0] * LIN(x),
        LIN(x).argmax() * 2.5,
    ),
    "converted": lambda x: (
        LIN(x).to(torch.float64),
        LIN(x).long(),
        LIN(x).type_as(x.double()),
        LIN(x).to(x),
    ),
    "signs of zero": lambda x: (LIN(x) * 0.0 + 1.0, 1 / (torch.relu(LIN(x)).detach() * -0.0)),
    "new tensors": lambda x: (
        LIN(x).new_zeros(2) + 1,
        torch.ones_like(LIN(x)),
        torch.full_like(LIN(x), 2.0),
    ),
    "a parameter": lambda x: VECTOR * LIN(VECTOR) + LIN(x) * VECTOR,
    "a parameter alone": lambda x: LIN(VECTOR) + x.sum() * 0,
    "embedding": lambda x: TABLE(torch.tensor([1, 2]))[0] + TABLE(x.abs().long().clamp(max=8)).sum(0),
    "GRU cell": lambda x: GRU(LIN(x), x),
    "LSTM": lambda x: LSTM(LIN(x)[None])[0],
    "attention": lambda x: HEADS(LIN(x)[None], x[None], x[None])[0],
    "attention that returns no weights": lambda x: ENCODER(LIN(x).view(1, 1, 4)),
    "convolution": lambda x: CONV(LIN(x)[None]),
    "first a bilinear layer": lambda x: BILINEAR(x, x * 2),
    "first a norm": RMS,
    "sequential": SEQUENCE,
    "loss": lambda x: F.cross_entropy(LIN(x)[None], torch.tensor([1])),
    "dropout in evaluation": lambda x: F.dropout(LIN(x), 0.5, False),
    "top": lambda x: LIN(x).topk(2),
    "distribution": lambda x: torch.distributions.Normal(LIN(x), 1.0, validate_args=False).log_prob(x),
    "deep copy": lambda x: copy.deepcopy(LIN(x).detach()),
    "checkpoint": lambda x: checkpoint(lambda y: torch.tanh(LIN(y)), LIN(x), use_reentrant=False),
    "checkpoint by a function": lambda x: checkpoint(
        lambda y: torch.tanh(LIN(y)), LIN(x), use_reentrant=True
    ),
    "nothing recorded": lambda x: (x * 2, 3),
    "the example itself": lambda x: x,
    "a real tensor changed later": lambda x: (h := torch.ones(4), y := LIN(x) + h, h.add_(1), y * h)[3],
    "what is known": lambda x: (
        *LIN(x).shape,
        LIN(x).dim(),
        len(LIN(x)),
        LIN(x).numel(),
        LIN(x).dtype == x.dtype,
    ),
    "an instance": lambda x: (
        isinstance(LIN(x), torch.Tensor) and LIN(x).requires_grad and torch.is_tensor(LIN(x))
    ),
    "another float type": lambda x: torch.tensor(1.5, dtype=torch.float64) * LIN(x),
    "data": lambda x: LIN(x).data + 1,
    "data in place": lambda x: (y := LIN(x).detach(), y.data.masked_fill_(x > 0, 0.5), y * x)[2],
    "in place without gradients": lambda x: (y := LIN(x) * 1, torch.no_grad()(y.mul_)(2), y.sin())[2],
    "out": lambda x: torch.add(LIN(x).detach(), 1, out=torch.zeros(4)),
    "out of a pending tensor": lambda x: (
        y := LIN(x).detach() * 1,
        torch.mul(y, 2, out=y),
        y + 1,
    ),
    "out of an empty tensor": lambda x: torch.cat([LIN(x).detach(), x], out=torch.empty(0)),
    "out of a row": lambda x: (z := torch.zeros(2, 4), torch.add(LIN(x).detach(), 1, out=z[1]), z)[2],
    "out of two": lambda x: (
        torch.max(LIN(x).detach(), 0, out=(torch.zeros(()), torch.zeros((), dtype=torch.long))).values
    ),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_returns_what_the_loop_returns(program, as_loop):
    as_loop(PROGRAMS[program], XS, parameters=ALL, within=0.2 if program == "autocast" else 1e-5)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_second_run_of_other_examples_returns_what_the_loop_returns(program, as_loop):
    run = multifold.batched(PROGRAMS[program], join="list", backend="torch")
    run(XS)
    as_loop(PROGRAMS[program], XS[:2], run=run)


@pytest.mark.parametrize(
    "program", ["layers", "recursion", "gates", "convolution", "in place", "determinant"]
)
def test_without_gradients_results_have_none(program, as_loop):
    with torch.no_grad():
        as_loop(PROGRAMS[program], XS)
    with torch.inference_mode():
        as_loop(PROGRAMS[program], XS)


def test_collected_results_need_the_gradients_of_the_loop():
    run = multifold.batched(switched_off, join="list", backend="torch", on_error="collect")
    results, failures = run(XS)
    assert [(x.requires_grad, y.requires_grad) for x, y in results] == [(False, True)] * 5
    assert failures == {}


def test_autocast_around_a_run_holds_inside(as_loop):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        as_loop(lambda x: LIN(torch.tanh(LIN(x))), XS, parameters=ALL, within=0.2)


def test_inputs_with_gradients_get_them(as_loop):
    xs = [torch.randn(4, requires_grad=True) for _ in range(3)]
    as_loop(lambda x: LIN(x) * x, xs, parameters=[*ALL, *xs])


@pytest.mark.parametrize(
    ("join", "wanted"),
    [("list", list), ("stack", torch.stack), ("cat", torch.cat)],
)
def test_results_are_joined_leaf_by_leaf(join, wanted):
    run = multifold.batched(lambda x: {"y": LIN(x), "n": 3}, join=join, backend="torch")
    found = run(XS)
    if join == "list":
        assert [x["n"] for x in found] == [3] * 5
    else:
        assert torch.allclose(found["y"], wanted([LIN(x) for x in XS]), atol=1e-6)
        assert found["n"] == [3] * 5


def test_results_of_other_structures_are_a_list_or_an_error():
    def fn(x):
        return LIN(x) if x[0] > 0 else (LIN(x), 1)

    xs = [torch.ones(4), -torch.ones(4)]
    assert [type(x) for x in multifold.batched(fn, join="list")(xs)] == [torch.Tensor, tuple]
    with pytest.raises(RecordError, match="one structure"):
        multifold.batched(fn)(xs)


def test_several_iterables_and_keywords_reach_the_function_as_in_map(as_loop):
    assert as_loop(lambda x, y: LIN(x) * y, XS, range(5))
    run = multifold.batched(lambda x, *, by: LIN(x) * by, backend="torch")
    assert torch.allclose(run(XS, by=3), torch.stack([LIN(x) * 3 for x in XS]), atol=1e-6)
    with pytest.raises(ValueError, match="shorter"):
        multifold.batched(lambda x, y: LIN(x), backend="torch")(XS, range(4))
    with pytest.raises(RecordError, match="at least one example"):
        run([])


def test_equal_calls_share_a_launch_and_rows_cost_none():
    run = multifold.batched(lambda x: sum(torch.tanh(LIN(x))), join="list", backend="torch")
    run(XS)
    assert [launch.op for launch in run.explain().launches][:2] == ["Linear", "tanh"]
    assert len(run.explain()) == 6  # four additions of a row; the first one to 0
    run = multifold.batched(lambda x: [*LIN(x)], join="list", backend="torch")
    run(XS)
    assert len(run.explain()) == 1


@pytest.mark.parametrize(
    ("first", "second", "launches"),
    [(1, 1, 1), (1, 1.0, 2), (1, True, 2), (0.0, -0.0, 2), (float("nan"), float("nan"), 1), (2, 3, 2)],
)
def test_calls_with_other_constants_share_no_launch(first, second, launches):
    run = multifold.batched(lambda x, by: x.detach() if by is None else LIN(x) * by, join="list")
    run([XS[0], XS[1]], [first, second])
    assert len(run.explain()) == 1 + launches


def test_tensors_that_an_example_keeps_stand_for_their_values_afterwards():
    class Tree:
        pass

    trees = [Tree() for _ in XS]

    def fn(x, tree):
        tree.state = torch.tanh(LIN(x))
        return tree.state.sum()

    run = multifold.batched(fn, backend="torch")
    run(XS, trees)
    for x, tree in zip(XS, trees, strict=True):
        assert torch.allclose(tree.state + 1, torch.tanh(LIN(x)) + 1, atol=1e-6)
        assert torch.equal(pickle.loads(pickle.dumps(tree.state.detach())), tree.state.detach())
        assert "grad_fn" in repr(tree.state) and tree.state.shape == (4,)
    second = multifold.batched(lambda tree, x: LIN(x) + tree.state, backend="torch")(trees, XS)
    assert torch.allclose(
        second, torch.stack([LIN(x) + tree.state for x, tree in zip(XS, trees, strict=True)]), atol=1e-6
    )


def test_a_batched_module_is_a_module():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.drop = nn.Dropout(0.5)

        def forward(self, x, scale=1):
            return self.drop(self.lin(x)) * scale

    run = multifold.batched(Model())
    assert isinstance(run, nn.Module) and len([*run.parameters()]) == 2
    run.eval()
    run.check(XS, scale=2)
    assert not run.module.drop.training and run(XS).shape == (5, 4) and len(run.explain()) == 3


def test_dropout_drops_as_often_as_in_the_loop():
    drop = nn.Dropout(0.3)
    run = multifold.batched(lambda x: drop(LIN(x) * 0 + 1), backend="torch")
    found = run([torch.ones(4)] * 500)
    assert abs((found == 0).float().mean() - 0.3) < 0.05
    assert not torch.equal(found[0] == 0, found[1] == 0) or not torch.equal(found[1] == 0, found[2] == 0)


def test_batch_normalisation_in_training_leaves_the_statistics_of_the_loop(as_loop):
    norm, other = nn.BatchNorm1d(4), nn.BatchNorm1d(4)

    def fn(x, norm=norm):
        return norm(torch.stack([LIN(x), x]))

    found = multifold.batched(fn, backend="torch")(XS)
    wanted = torch.stack([fn(x, other) for x in XS])
    assert torch.allclose(found, wanted, atol=1e-5)
    assert torch.allclose(norm.running_var, other.running_var) and norm.num_batches_tracked == 5
    assert torch.allclose(norm.running_mean, other.running_mean)


def test_a_module_that_is_compiled_runs_as_it_was_written(as_loop):
    as_loop(torch.compile(nn.Sequential(LIN, nn.ReLU()), backend="eager"), XS, parameters=ALL)


def test_a_scripted_module_is_one_call(as_loop):
    scripted = torch.jit.script(LIN)
    run = as_loop(lambda x: scripted(LIN(x)), XS, parameters=ALL)
    assert len(run.explain()) == 2


def test_a_batched_program_inside_of_another_one_is_the_loop(as_loop):
    inner = multifold.batched(lambda x: torch.tanh(LIN(x)), backend="torch", join="list")
    run = as_loop(lambda x: sum(inner([x, x + 1])), XS, parameters=ALL)
    assert len(run.explain()) == 4


def test_programs_run_in_several_threads_at_once():
    run = multifold.batched(lambda x: torch.tanh(LIN(x)), backend="torch", cells=[helper])
    found = {}

    def work(number):
        found[number] = [run(XS) for _ in range(5)]

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    wanted = torch.stack([torch.tanh(LIN(x)) for x in XS])
    assert len(found) == 4 and all(
        torch.allclose(x, wanted, atol=1e-6) for xs in found.values() for x in xs
    )


def helper(x):
    return x + 1


def test_a_default_dtype_of_another_kind_is_seen(as_loop):
    run = as_loop(lambda x: LIN(x).argmax() * 2.5, XS)
    torch.set_default_dtype(torch.float64)
    try:
        assert [x.dtype for x in run(XS)] == [torch.float64] * 5
    finally:
        torch.set_default_dtype(torch.float32)


def test_arrays_of_numpy_among_the_arguments_are_taken_as_they_are(as_loop):
    def fn(x):
        index = torch.arange(2).numpy()
        first = LIN(x)[index]
        index += 1
        return first, LIN(x)[index]

    with torch.no_grad():
        as_loop(fn, XS)


def test_without_an_array_or_a_model_the_framework_has_to_be_named():
    with pytest.raises(RecordError, match="name the framework"):
        multifold.batched(lambda x: x + 1)([1, 2])


@pytest.mark.parametrize("on_error", ["raise", "collect"])
def test_a_batched_program_inside_of_another_one_joins_its_results(on_error):
    inner = multifold.batched(lambda x: x + 1, backend="torch", on_error=on_error)

    def outer(x):
        found = inner([x * 2, x * 3])
        return found if on_error == "raise" else found[0]

    torch.testing.assert_close(
        multifold.batched(outer, backend="torch")(XS), torch.stack([outer(x) for x in XS])
    )


def test_an_inner_program_collects_its_own_failures():
    def checked(x, number):
        if number:
            raise ValueError("bad")
        return x

    inner = multifold.batched(checked, backend="torch", on_error="collect")
    failed = []
    multifold.batched(lambda x: failed.append(inner([x, x], [0, 1])[1]) or x, backend="torch")(XS)
    assert [sorted(x) for x in failed] == [[1]] * len(XS)


def test_a_partial_function_of_a_model_names_its_framework():
    run = multifold.batched(functools.partial(lambda model, x: model(x), nn.Linear(4, 3)))
    assert run(XS).shape == (len(XS), 3)


def test_a_check_leaves_running_statistics_as_one_run_does():
    model = nn.Sequential(nn.BatchNorm1d(4))
    multifold.batched(model).check([torch.stack(XS)])
    assert model[0].num_batches_tracked == 1


def test_a_check_bears_the_rounding_of_a_small_result_and_finds_what_is_no_rounding():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 1))
    xs = torch.randn(2000, 64)
    multifold.batched(net, join="list").check(xs)
    for scale in (1.0, 1e4):  # of another result, which is no measure for this one
        calls = itertools.count()
        off = multifold.batched(lambda x: (scale * net(x), net(x) + 1e-3 * (next(calls) > 9)), join="list")  # noqa: B023
        with pytest.raises(MismatchError, match=r"Example 0 has another result"):
            off.check(xs[:10])


def test_a_check_raises_what_an_example_raises():
    run = multifold.batched(lambda x: x.view(3), backend="torch", on_error="collect")
    with pytest.raises(RuntimeError, match="invalid for input"):
        run.check(XS)


def test_a_function_has_no_copy_of_its_own():
    with pytest.raises(RecordError, match="own=True"):
        multifold.batched(lambda x: x, backend="torch", own=True)


def test_a_kept_tensor_has_its_gradient_whatever_the_mode_in_which_it_is_first_asked_for():
    kept = []
    multifold.batched(lambda x: kept.append(LIN(x)), join="list")(XS)
    with torch.no_grad():
        assert not (kept[0] + 1).requires_grad
    (kept[0] * 1).sum().backward()
    assert LIN.weight.grad is not None
    LIN.zero_grad()


def test_nothing_of_pytorch_stays_replaced_after_a_run():
    before = nn.Module.__call__, vars(torch.autograd.Function)["apply"]
    multifold.batched(LIN)(XS)
    assert (nn.Module.__call__, vars(torch.autograd.Function)["apply"]) == before
    assert "__new__" not in vars(torch.autograd.Variable)


@pytest.mark.parametrize("kind", [float, np.float64, lambda x: np.array([x, 1.0])])
def test_numbers_that_a_program_computes_from_what_it_reads_are_compared_up_to_rounding(kind):
    torch_backend = multifold.load_backend("torch")
    assert same(torch_backend, kind(0.3), kind(0.3 + 1e-7))
    assert not same(torch_backend, kind(0.3), kind(0.31))
