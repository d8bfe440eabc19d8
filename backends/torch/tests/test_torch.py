"""What is PyTorch's own: modules and their wrappers, autograd, modes, dtypes and devices."""

from __future__ import annotations

import copy
import gc
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from multifold_torch.backend import KEPT, TorchBackend
from torch import nn
from torch.utils.checkpoint import checkpoint

from multifold import (
    BackendError,
    Fold,
    LaunchError,
    MismatchError,
    RecordError,
    Unfold,
    ops,
    ragged,
    shared,
)
from multifold.testing import Counting
from multifold_compat import blocks


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


class Encoder(nn.Module):
    """A little tree encoder with submodules of all kinds."""

    def __init__(self, width=4):
        super().__init__()
        self.embed = nn.Embedding(10, width)
        self.layers = nn.ModuleList([nn.Linear(width, width), nn.Tanh()])
        self.heads = nn.ModuleDict({"score": nn.Linear(width, 1), "relu": nn.ReLU()})
        self.stack = nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def leaf(self, word):
        return self.embed(word)

    def children_of(self, left, right):
        return torch.tanh(self.layers[0](left) + self.stack(right))


TREES = [(1, (2, 3)), 4, ((5, 6), (7, (8, 9))), (2, 1)]


def encode(fold, tree):
    if isinstance(tree, int):
        return fold.add("leaf", tree)
    return fold.add("children_of", *(encode(fold, child) for child in tree))


def scores(fold):
    return [fold.add("heads.score", encode(fold, tree)) for tree in TREES]


def by_loop(model, tree):
    if isinstance(tree, int):
        return model.leaf(torch.tensor([tree]))
    return model.children_of(*(by_loop(model, child) for child in tree))


def loop_scores(model):
    return torch.cat([model.heads["score"](by_loop(model, tree)) for tree in TREES])


def gradients(model, result):
    model.zero_grad()
    (result * torch.arange(1.0, 5)[:, None]).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(got[name], expected[name])


def test_methods_and_submodules_equal_the_loop_in_values_and_gradients():
    model = Encoder()
    fold = Fold()
    got = fold.apply(model, scores(fold))
    torch.testing.assert_close(got, loop_scores(model))
    assert_same(gradients(model, got), gradients(model, loop_scores(model)))


@pytest.mark.parametrize(
    ("op", "find"),
    [
        ("embed", lambda m: m.embed),
        ("layers.0", lambda m: lambda i: m.layers[0](m.embed(i))),
        ("heads.relu", lambda m: lambda i: torch.relu(m.embed(i))),
        ("stack.1", lambda m: lambda i: torch.tanh(m.embed(i))),
        ("stack", lambda m: lambda i: m.stack(m.embed(i))),
        ("embed.forward", lambda m: m.embed),
    ],
)
def test_dotted_names_reach_lists_dictionaries_and_sequences(op, find):
    model = Encoder()
    fold = Fold()
    nodes = []
    for i in (3, 1):
        nodes.append(fold.add(op, i if op.startswith("embed") else fold.add("embed", i)))
    torch.testing.assert_close(fold.apply(model, nodes), find(model)(torch.tensor([3, 1])))


@pytest.mark.parametrize("wrap", [dict, nn.ModuleDict, lambda x: nn.Sequential(x["embed"])], ids=range(3))
def test_models_are_mappings_and_containers_of_modules_too(wrap):
    model = wrap({"embed": nn.Embedding(4, 2)})
    fold = Fold()
    name = "0" if isinstance(model, nn.Sequential) else "embed"
    module = model[0] if name == "0" else model[name]
    assert torch.equal(fold.apply(model, [fold.add(name, 2)]), module.weight[2:3])


class Plain:
    """No module itself, but holds one."""

    def __init__(self):
        self.embed = nn.Embedding(4, 2)

    def leaf(self, i):
        return self.embed(i)


def test_a_fold_finds_torch_by_its_first_array_model_or_op():
    embed = nn.Embedding(4, 2)
    plain = Plain()
    for op, model in (("embed", {"embed": embed}), ("leaf", plain), (embed, None), (embed.forward, None)):
        fold = Fold()
        assert isinstance(fold.apply(model, [fold.add(op, 1)]), torch.Tensor)
    fold = Fold()
    assert isinstance(fold([fold.add(lambda x, i: x, torch.ones(1, 2), 1)]), torch.Tensor)


def test_modules_and_functions_are_ops():
    linear = nn.Linear(3, 2)
    fold = Fold()
    rows = [torch.randn(1, 3) for _ in range(3)]
    nodes = [fold.add(torch.tanh, fold.add(linear, x)) for x in rows]
    torch.testing.assert_close(fold(nodes), torch.tanh(linear(torch.cat(rows))))
    assert len(fold.schedule()) == 2


def test_hooks_of_submodules_run_once_a_launch():
    model = Encoder()
    fold = Fold()
    seen = []
    model.embed.register_forward_hook(lambda module, operands, result: seen.append(len(result)))
    model.heads["score"].register_forward_pre_hook(lambda module, operands: (operands[0] * 0,))
    got = fold.apply(model, scores(fold))
    assert seen == [11]
    torch.testing.assert_close(got, model.heads["score"].bias.expand(4, 1))


def test_named_tuples_of_torch_are_results():
    fold = Fold()
    values, indices = zip(*(fold.add("max", torch.randn(1, 5)).split(2) for _ in range(3)), strict=True)
    got = fold.apply({"max": lambda x: x.max(dim=1)}, {"values": list(values), "at": list(indices)})
    assert got["values"].shape == got["at"].shape == (3,)
    assert got["at"].dtype == torch.int64


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def assert_wrapped_equals_the_loop(wrapped, model):
    fold = Fold()
    got = fold.apply(wrapped, scores(fold))
    torch.testing.assert_close(got, loop_scores(model))
    assert_same(gradients(model, got), gradients(model, loop_scores(model)))


@pytest.mark.parametrize(
    "wrap",
    [nn.DataParallel, torch.compile, lambda m: nn.DataParallel(torch.compile(m))],
    ids=["DataParallel", "compile", "both"],
)
def test_ops_are_found_inside_wrappers(wrap):
    model = Encoder()
    assert_wrapped_equals_the_loop(wrap(model), model)


def test_ops_are_found_inside_distributed_data_parallel(process_group):
    model = Encoder()
    assert_wrapped_equals_the_loop(nn.parallel.DistributedDataParallel(model), model)


def test_a_fold_past_distributed_data_parallel_is_refused_on_several_ranks(process_group, monkeypatch):
    model = nn.parallel.DistributedDataParallel(Encoder())
    fold = Fold()
    nodes = [fold.add("leaf", i) for i in range(3)]
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group=None: 2)
    with pytest.raises(BackendError, match="would not be averaged"):
        fold.apply(model, nodes)
    with torch.no_grad():
        fold.apply(model, nodes)
    with model.no_sync():
        fold.apply(model, nodes)


def test_an_op_that_changes_its_operand_in_place_is_named_where_pytorch_refuses_it():
    fold = Fold()
    rows = [fold.add("rows", torch.ones(1, 1)) for _ in range(3)]
    nodes = [*(fold.add("relu", row) for row in rows[:2]), fold.add("tanh", rows[2])]
    model = {"rows": nn.Linear(1, 1), "relu": nn.ReLU(inplace=True), "tanh": torch.tanh}
    with pytest.raises(LaunchError, match="must not change them in place"):
        fold.apply(model, nodes)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_numbers_have_the_default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        assert Fold("torch")([[1.5]])[0].dtype is dtype
    finally:
        torch.set_default_dtype(before)


def test_ops_are_found_inside_wrapped_submodules():
    model = Encoder()
    outer = nn.ModuleDict({"encoder": nn.DataParallel(model)})
    fold = Fold()
    nodes = [fold.add("encoder.stack.0", fold.add("encoder.leaf", i)) for i in range(3)]
    torch.testing.assert_close(fold.apply(outer, nodes), model.stack[0](model.leaf(torch.arange(3))))


def test_leaf_arrays_get_gradients():
    fold = Fold()
    linear = nn.Linear(2, 2)
    xs = [torch.randn(1, 2, requires_grad=True) for _ in range(3)]
    whole = torch.randn(2, requires_grad=True)
    nodes = [fold.add("f", x, shared(whole)) for x in [*xs, xs[0]]]
    fold.apply({"f": lambda x, w: torch.tanh(linear(x) * w)}, nodes).sum().backward()
    got = [x.grad.clone() for x in (*xs, whole)]
    expected = torch.autograd.grad(
        sum(torch.tanh(linear(x) * whole).sum() for x in [*xs, xs[0]]), [*xs, whole]
    )
    torch.testing.assert_close(got, list(expected))


def test_second_derivatives_equal_those_of_one_call_at_a_time():
    model = Encoder().double()

    def penalty(recorder, run):
        nodes = scores(recorder)
        first = torch.autograd.grad(run(nodes).pow(2).sum(), model.embed.weight, create_graph=True)[0]
        return torch.autograd.grad(first.pow(3).sum(), model.stack[0].weight)[0]

    fold = Fold()
    unfold = Unfold(model)
    got = penalty(fold, lambda nodes: fold.apply(model, nodes))
    expected = penalty(unfold, unfold)
    assert expected.abs().max() > 0
    torch.testing.assert_close(got, expected)


def test_functional_gradients_pass_through_a_fold():
    def loss(w):
        fold = Fold(backend="torch")
        nodes = [fold.add("scale", float(i), shared(w)) for i in range(4)]
        return fold.apply({"scale": lambda x, w: x[:, None] * w**2}, nodes).sum()

    w = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(torch.func.grad(loss)(w), 2 * 6 * w)


def test_shared_parameters_collect_the_gradients_of_all_their_uses():
    model = Encoder()
    model.stack[0].weight = model.layers[0].weight
    fold = Fold()
    assert_same(gradients(model, fold.apply(model, scores(fold))), gradients(model, loop_scores(model)))


def test_a_fold_applied_again_sees_the_updated_weights():
    model = Encoder()
    fold = Fold()
    nodes = scores(fold)
    before = fold.apply(model, nodes)
    with torch.no_grad():
        model.heads["score"].bias.add_(1)
    torch.testing.assert_close(fold.apply(model, nodes), before + 1)
    torch.testing.assert_close(fold.apply(Encoder(), nodes).shape, before.shape)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_nothing_is_recorded(mode):
    model = Encoder()
    fold = Fold()
    with mode():
        got = fold.apply(model, scores(fold))
    assert not got.requires_grad
    assert got.is_inference() == (mode is torch.inference_mode)
    torch.testing.assert_close(got.clone(), loop_scores(model).detach())


def test_autocast_acts_as_in_the_loop():
    model = Encoder()
    fold = Fold()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = fold.apply(model, scores(fold))
        expected = loop_scores(model)
    assert got.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(got, expected)


def test_dropout_is_drawn_for_each_node_in_training_only():
    model = nn.Dropout(0.5)
    fold = Fold()
    x = torch.ones(1, 200)
    nodes = [fold.add("forward", x) for _ in range(4)]
    rows = fold.apply(model.train(), nodes)
    assert len({tuple(row.tolist()) for row in rows}) == 4
    assert torch.equal(fold.apply(model.eval(), nodes), torch.ones(4, 200))


def test_batch_normalisation_uses_its_statistics_in_evaluation():
    model = nn.ModuleDict({"norm": nn.BatchNorm1d(3)})
    fold = Fold()
    nodes = [fold.add("norm", torch.randn(1, 3)) for _ in range(4)]
    fold.check(model.eval(), nodes)
    with pytest.raises((MismatchError, LaunchError)):
        fold.check(model.train(), nodes)


@pytest.fixture
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def kinds(fold):
    operands = (1, 1.0, True, np.ones((1, 2), "float16"), ragged([], row_shape=(3,)))
    nodes = [fold.add(lambda *xs: tuple(x if torch.is_tensor(x) else x.values for x in xs), *operands)]
    whole = nodes[0].no_batch()
    return [(x.dtype, x.device.type) for x in fold.apply(None, whole)]


def test_numbers_become_int64_the_default_float_and_bool():
    assert [dtype for dtype, _ in kinds(Fold(backend="torch"))] == [
        torch.int64, torch.float32, torch.bool, torch.float16, torch.float32,
    ]  # fmt: skip


def test_numbers_follow_the_default_dtype(double):
    assert [dtype for dtype, _ in kinds(Fold(backend="torch"))] == [
        torch.int64, torch.float64, torch.bool, torch.float16, torch.float64,
    ]  # fmt: skip
    fold = Fold()
    fold.check(Encoder(), scores(fold))


@pytest.mark.parametrize("device", ["cpu", "meta", torch.device("meta")])
def test_numbers_and_numpy_arrays_go_to_the_device_of_the_fold(device):
    assert {place for _, place in kinds(Fold(backend="torch", device=device))} == {str(device)}


FROZEN = {
    "a module": lambda m: m,
    "a frozen module": lambda m: m.requires_grad_(False),
    "a mapping": lambda m: {"leaf": m.leaf, "children_of": m.children_of, "heads.score": m.heads["score"]},
    "a frozen mapping": lambda m: {
        **m.requires_grad_(False)._modules,
        "leaf": m.leaf,
        "children_of": m.children_of,
    },
    "a wrapped module": nn.DataParallel,
}


@pytest.mark.parametrize("wrap", FROZEN.values(), ids=FROZEN)
def test_numbers_land_on_the_device_of_the_model(wrap):
    model = wrap(Encoder().to("meta"))
    fold = Fold()
    got = fold.apply(model, [scores(fold), [0, 1, 2]])
    assert [(x.device.type, len(x)) for x in got] == [("meta", 4), ("meta", 3)]


def test_buffers_alone_tell_the_device():
    model = nn.Module()
    fold = Fold()
    model.register_buffer("table", torch.ones(3, 2, device="meta"))
    model.take = lambda i: model.table[i]
    assert fold.apply(model, [fold.add("take", 1)]).device.type == "meta"


def test_parts_without_parameters_hide_no_device():
    model = nn.Sequential(nn.Tanh(), nn.Linear(1, 1, device="meta"))
    fold = Fold()
    assert fold.apply(model, [fold.add("1", np.ones((1, 1), "float32"))]).device.type == "meta"


def test_numbers_land_with_the_first_array_without_a_model():
    fold = Fold()
    nodes = [fold.add(lambda x, i: x * i, torch.ones(1, device="meta"), 2)]
    assert fold(nodes).device.type == "meta"


def test_labels_and_logits_make_a_loss():
    model = Encoder()
    fold = Fold()
    logits, labels = fold.apply(model, [[encode(fold, tree) for tree in TREES], [0, 3, 1, 2]])
    loss = nn.functional.cross_entropy(logits, labels)
    expected = torch.cat([by_loop(model, tree) for tree in TREES])
    torch.testing.assert_close(loss, nn.functional.cross_entropy(expected, torch.tensor([0, 3, 1, 2])))


def test_an_index_out_of_range_is_torchs_error():
    fold = Fold()
    with pytest.raises(LaunchError, match=r"'embed' for 2 nodes.*index out of range") as caught:
        fold.apply(Encoder(), [fold.add("embed", i) for i in (1, 10)])
    assert isinstance(caught.value.__cause__, IndexError)


def test_arrays_of_numpy_are_not_written_to():
    values = np.zeros((1, 2))
    fold = Fold(backend="torch")
    table = np.zeros(2)
    nodes = [fold.add(lambda x, t: x.add_(1) + t.add_(1), values, shared(table))]
    with pytest.raises(LaunchError, match="must not change them in place"):
        fold(nodes)
    assert (values.tolist(), table.tolist()) == ([[0, 0]], [0, 0])


def test_check_compares_gradients_and_leaves_those_of_the_user_alone():
    model = Encoder()
    fold = Fold()
    nodes = scores(fold)
    gradients(model, loop_scores(model))
    before = copy.deepcopy({name: p.grad for name, p in model.named_parameters()})
    fold.check(model, nodes)
    for name, parameter in model.named_parameters():
        assert (
            torch.equal(parameter.grad, before[name])
            if before[name] is not None
            else parameter.grad is None
        )


def test_check_finds_a_gradient_that_depends_on_the_batch():
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, upstream):
            return upstream * len(upstream)

    model = nn.ModuleDict({"f": nn.Linear(2, 2)})
    fold = Fold()
    nodes = [fold.add(Scaled.apply, fold.add("f", torch.ones(1, 2))) for _ in range(3)]
    with pytest.raises(MismatchError, match=r"gradient of parameter f\.weight"):
        fold.check(model, nodes)


def test_the_backward_pass_fills_no_block_more_than_once():
    counting = Counting("torch")
    fold = Fold(backend=counting)
    filled = []
    rows = [fold.add("row", torch.randn(1, 8, requires_grad=True)) for _ in range(64)]
    nodes = [fold.add("scale", rows[i * 7 % 64], k=i % 16) for i in range(64)]
    result = fold.apply({"row": lambda x: x * 1, "scale": lambda x, k: x * k}, nodes)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        result.sum().backward()
    filled = [e for e in profile.events() if e.name in ("aten::index_add_", "aten::slice_backward")]
    assert len(filled) <= 2


def test_memory_of_the_backward_pass_does_not_grow_with_the_number_of_launches():
    def allocated(launches):
        fold = Fold(backend="torch")
        rows = torch.ones(256, 32, requires_grad=True)
        block = [fold.add("row", i) for i in range(256)]
        nodes = [fold.add("scale", block[i * 7 % 256], k=i * 5 % 259 % launches) for i in range(512)]
        (result,) = fold.apply({"row": rows.__getitem__, "scale": lambda x, k: x * 2.0}, [nodes])
        with torch.profiler.profile(profile_memory=True) as profile:
            result.sum().backward()
        return sum(max(event.self_cpu_memory_usage, 0) for event in profile.events())

    assert 0 < allocated(64) < 2 * allocated(2)  # a gather for each launch allocates ten times as much


@pytest.mark.parametrize("recorder", [Fold, Unfold])
@pytest.mark.parametrize(
    "context", [torch.no_grad, torch.inference_mode, lambda: torch.autocast("cpu", torch.bfloat16)]
)
@pytest.mark.parametrize("model", [nn.Linear(1, 1), None], ids=["a module", "no model"])
def test_an_example_leaves_its_context_before_it_waits(context, recorder, model):
    op = (
        torch.tanh if model is None else model
    )  # without a module only arrays tell of which framework they are

    async def fn(fold, x):
        with context():
            await fold.value(fold.add(op, x))

    fold = Fold() if recorder is Fold else Unfold(None, backend="torch")
    with pytest.raises(RecordError, match="leave the framework's `with`"):
        fold.run(None if recorder is Unfold else model, [torch.ones(1, 1)] * 2, fn)
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("around", [False, True])
def test_each_example_that_leaves_another_autocast_open_fails(around):
    """Also where one is open around the run, or was left open by another example."""
    left = []

    async def fn(fold, dtype):
        await fold.value(fold.add(torch.abs, torch.ones(1)))
        if dtype is not None:
            left.append(torch.autocast("cpu", dtype))
            left[-1].__enter__()
        return 1

    with torch.autocast("cpu", torch.bfloat16, enabled=around):
        examples = [torch.float16, None, torch.bfloat16, None]
        _, failures = Fold(backend="torch").run(None, examples, fn, on_error="collect")
        for one in reversed(left):
            one.__exit__(None, None, None)
    assert set(failures) == {0, 2}


@pytest.mark.parametrize("recorder", [Fold, lambda: Unfold(None, backend="torch")], ids=["fold", "unfold"])
def test_a_fold_can_be_checkpointed(recorder):
    linear = nn.Linear(2, 2)
    x = torch.randn(1, 2, requires_grad=True)

    def forward(x):
        fold = recorder()
        return fold([[fold.add(torch.tanh, fold.add(linear, x)) for _ in range(3)]])[0].sum()

    (expected,) = torch.autograd.grad(forward(x), x)
    checkpoint(forward, x, use_reentrant=False).backward()
    torch.testing.assert_close(x.grad, expected)


def test_an_op_that_changes_its_operand_is_named_where_pytorch_would_not_see_it():
    fold = Fold()
    row = fold.add(nn.Linear(1, 1), torch.ones(1, 1))
    late = fold.add(torch.add, row, fold.add(torch.neg, fold.add(torch.neg, row)))
    with pytest.raises(LaunchError, match="must not change them in place"):
        fold([late, fold.add(torch.Tensor.relu_, row)])


def test_an_op_may_count_in_a_tensor_that_is_shared():
    def count(x, seen):
        seen += x.detach().sum()
        return 2 * x

    fold = Fold()
    seen = torch.zeros(())
    assert fold([[fold.add(count, float(i), shared(seen)) for i in (1, 2)]])[0].tolist() == [2, 4]
    assert seen == 3


def test_a_model_that_answers_every_name_is_no_compiled_module():
    fold = Fold(backend="torch")
    assert fold.apply(MagicMock(leaf=torch.neg), fold.add("leaf", 1.0)).tolist() == [-1]


def test_numbers_are_where_tensors_are_made():
    with torch.device("meta"):
        fold = Fold(backend="torch")
        assert fold(fold.add(torch.neg, 1.0)).device.type == "meta"


def test_names_of_digits_are_names_before_they_are_positions():
    heads = nn.ModuleDict({"0": nn.Linear(2, 3), "7": nn.Linear(2, 4)})
    tail = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3), nn.Linear(2, 4))[1:]  # they are "1" and "2"
    for model, name in ((heads, "7"), (tail, "1"), (tail, "2"), (nn.ModuleList(heads.values()), "1")):
        fold = Fold()
        got = fold.apply(model, fold.add(name, torch.ones(1, 2)))
        torch.testing.assert_close(got, model.get_submodule(name)(torch.ones(1, 2)))
    fold = Fold()
    with pytest.raises(LaunchError, match="no op '0'"):  # which would be the layer "1" by its position
        fold.apply(tail, fold.add("0", torch.ones(1, 2)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_check_knows_how_precise_a_dtype_is(dtype):
    model = nn.ModuleDict({"op": nn.Linear(64, 64)}).to(dtype)
    fold = Fold()
    nodes = [fold.add("op", torch.randn(1, 64).to(dtype)) for _ in range(50)]
    fold.check(model, [nodes])


def test_check_knows_how_precise_autocast_is():
    model = nn.ModuleDict({"op": nn.Linear(64, 64)})
    fold = Fold()
    nodes = [fold.add("op", torch.randn(1, 64)) for _ in range(50)]
    with torch.autocast("cpu", torch.bfloat16):
        fold.check(model, [nodes])


def test_check_compares_sparse_gradients_and_conjugate_views():
    fold = Fold()
    fold.check(
        nn.ModuleDict({"e": nn.Embedding(5, 2, sparse=True)}), [[fold.add("e", i) for i in range(3)]]
    )
    fold = Fold()
    fold.check(None, [[fold.add(torch.conj, torch.tensor([[1 + 2j]]))]])


def test_segment_max_is_differentiable_by_transforms():
    def largest(x):
        fold = Fold(backend="torch")
        return fold(fold.add(lambda rows: ops.segment_max(rows.values, rows), ragged([x, 2 * x]))).sum()

    x = torch.tensor([[1.0, -1.0]])
    torch.testing.assert_close(torch.func.grad(largest)(x), torch.tensor([[2.0, 1.0]]))
    torch.testing.assert_close(torch.func.jacfwd(largest)(x), torch.tensor([[2.0, 1.0]]))


def test_a_shared_array_is_one_tensor_for_all_runs_and_goes_with_the_fold():
    fold = Fold(backend="torch")
    table = np.zeros(10_000)
    seen = []

    def look(x, table):
        seen.append(table.data_ptr())
        return x + table[0]

    known = len(KEPT)
    for _ in range(3):
        fold(fold.add(look, 1.0, shared(table)))
    assert len(set(seen)) == 1 and len(KEPT) == known + 1
    del fold
    gc.collect()
    assert len(KEPT) == known


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_an_op_that_writes_to_a_shared_array_does_so_for_one_run(mode):
    fold = Fold(backend="torch")
    table = np.zeros(10_000)
    node = fold.add("write", 1.0, shared(table))
    for _ in range(2):
        with mode():
            got = fold.apply({"write": lambda x, table: x + table.add_(1)[0]}, node)
        assert got.tolist() == [2] and not table.any()


def test_a_shared_tensor_of_inference_mode_does_not_enter_a_later_run():
    fold = Fold(backend="torch")
    table = np.ones(10)
    model = torch.nn.Linear(10, 1)
    node = fold.add(lambda x, table: model(table)[None] * x[:, None], 1.0, shared(table.astype("f4")))
    with torch.inference_mode():
        fold(node)
    fold(node).sum().backward()
    assert model.weight.grad.tolist() == [[1] * 10]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_tensor_of_inference_mode_is_not_asked_how_often_it_was_changed(mode):
    class Uncounted(torch.Tensor):
        @property
        def _version(self):
            asked.append(self)
            return super()._version

    asked = []
    with torch.inference_mode():
        own = torch.ones(2).as_subclass(Uncounted)
    changed = torch.ones(2).add_(1).mul_(2)
    with mode():
        assert TorchBackend().versions([changed, own, 3, changed[:1]]) == [2, None, 2]
        assert TorchBackend().version(own) is None
    assert len(asked) == (mode is torch.no_grad)  # there it is asked once before all are looked at


def test_in_inference_mode_a_round_hands_out_copies_which_an_op_may_write_to():
    model = {"write": lambda x: x.add_(1) * 1, "same": lambda x: x + 0}

    async def fn(fold, x):
        first = fold.add("same", x)
        await fold.value(fold.add("write", first))
        return fold.add("same", first)

    with torch.inference_mode():
        found = Fold(backend="torch").run(model, [torch.ones(1, 2)] * 3, fn)
    assert found.tolist() == [[1.0, 1.0]] * 3


def test_in_inference_mode_a_write_to_what_was_made_before_is_refused():
    fold = Fold(backend="torch")
    node = fold.add("write", torch.ones(1, 2))
    with torch.inference_mode(), pytest.raises(LaunchError, match="operand 0 was changed by an inplace"):
        fold.apply({"write": lambda x: x.add_(1)}, node)


def test_layers_that_hold_numpy_weights_say_how_to_put_them_on_pytorch():
    block = blocks.Vector(3) >> blocks.Function(blocks.FC(2))
    with pytest.raises(LaunchError, match=r"Hint: say Layers\(block\)\.on\('torch'\)"):
        Fold(backend="torch").run(blocks.Layers(block), [[1, 2, 3]], block)


def test_no_method_of_pytorch_is_suggested_as_an_op():
    fold = Fold(backend="torch")
    with pytest.raises(LaunchError, match="Hint: op names are attributes"):
        fold.apply(torch.nn.ModuleDict(), [[fold.add("leaf", 1)]])
    with pytest.raises(LaunchError, match="did you mean 'cleat'"):
        fold.apply(torch.nn.ModuleDict({"cleat": torch.nn.Linear(1, 1)}), [[fold.add("cleaf", 1)]])


def test_what_goes_to_a_gpu_is_copied_at_once_out_of_pinned_memory(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda x: seen.append("pinned") or x)
    monkeypatch.setattr(torch.Tensor, "to", lambda x, *where, **how: seen.append((*where, how)) or x)
    for device in ("cuda:1", torch.device("cuda:1")):
        first, second = TorchBackend().constants([np.arange(3), np.arange(2)], device)
        assert (first.tolist(), second.tolist()) == ([0, 1, 2], [0, 1])
    assert seen == 2 * ["pinned", (torch.device("cuda:1"), {"non_blocking": True})]


def test_numpy_sees_plain_tensors_of_the_host_where_no_gradient_is_recorded():
    class Named(torch.Tensor):
        pass

    seam = TorchBackend()
    x = torch.ones(3, 2)
    parameter = torch.nn.Parameter(x)
    named = x.as_subclass(Named)
    assert [seam.host_view(y) for y in (x, parameter)] == [None, None]
    with torch.no_grad():
        seam.host_view(parameter)[1] = 9.0
        assert x[1].tolist() == [9.0, 9.0] and seam.host_view(x)[1, 0] == 9.0
        hidden = x.bfloat16(), x.to_sparse(), torch.complex(x, x).conj(), named, x.to("meta")
        assert [seam.host_view(y) for y in hidden] == [None] * 5
