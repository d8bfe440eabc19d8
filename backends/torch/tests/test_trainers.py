"""What trainers, loaders and compilers of PyTorch do with batches and modules that fold."""

from __future__ import annotations

import copy
import dataclasses
import threading

import pytest
import torch
from multifold_torch import Folded
from shards import WORDS, score, trees_of
from torch import nn
from torch.utils.data import DataLoader, default_collate

import multifold

TREES = trees_of(0, 6)


class Encoder(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.gates = nn.Linear(2 * width, width)
        self.flip = nn.Linear(width, width)
        self.out = nn.Linear(width, 2)

    def join(self, left, right):
        return torch.tanh(self.gates(torch.cat([left, right], dim=1)))


@pytest.fixture
def traces():
    return multifold.traces(score, TREES)


@pytest.fixture
def batch(traces):
    return multifold.merge(traces)


def test_traces_and_minibatches_are_no_dataclasses_that_a_trainer_would_walk_into(traces, batch):
    assert not dataclasses.is_dataclass(traces[0])
    assert not dataclasses.is_dataclass(batch)


def test_a_trace_and_a_minibatch_move_and_pin_as_themselves(traces, batch):
    for x in (traces[0], batch):
        assert x.to("cpu", non_blocking=True) is x
        assert x.to(device=torch.device("meta")) is x
        assert x.pin_memory() is x
        assert x.pin_memory("cuda") is x


def test_a_minibatch_remembers_its_device(traces, batch):
    assert (batch.device, len(batch)) == (None, len(TREES))
    on_meta = multifold.merge(multifold.traces(lambda fold, x: fold.add(torch.neg, x), [1, 2])).to("meta")
    assert multifold.Fold("torch").run(None, on_meta).device.type == "meta"
    assert multifold.Fold("torch", device="cpu").run(None, on_meta).tolist() == [-1, -2]


def test_default_collate_makes_a_minibatch_of_traces(traces):
    labels = list(range(len(traces)))
    merged, numbers = default_collate(list(zip(traces, labels, strict=True)))
    assert isinstance(merged, multifold.Minibatch)
    assert numbers.tolist() == labels
    model = Encoder()
    torch.testing.assert_close(multifold.Fold().run(model, merged), multifold.Fold().run(model, traces))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_merges_traces_without_being_told(traces, workers):
    found = list(DataLoader(traces, batch_size=4, num_workers=workers))
    assert [len(batch) for batch in found] == [4, 2]


@pytest.fixture
def bfloat16():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(before)


def record_numbers(fold, x):
    rows = multifold.ragged([fold.add("column", x), fold.add("column", 2 * x)])
    return {
        "y": fold.add("linear", fold.add("column", x)),
        "ragged": fold.add("total", rows),
        "own": [x, 2.0],
    }


def test_numbers_are_bfloat16_where_that_is_the_default(bfloat16):
    model = {
        "linear": nn.Linear(1, 2),
        "column": lambda x: x[:, None],
        "total": lambda rows: rows.values.reshape(-1, 2),
    }
    for found in (
        multifold.Fold("torch").run(model, multifold.traces(record_numbers, [0.5, 1.5])),
        multifold.Fold("torch").run(model, [0.5, 1.5], record_numbers),
    ):
        assert {x.dtype for x in found.values()} == {torch.bfloat16}
        assert found["own"].tolist() == [0.5, 2.0, 1.5, 2.0]


def test_arrays_keep_their_dtype_where_bfloat16_is_the_default(bfloat16):
    fold = multifold.Fold("torch")
    x = torch.ones(1, 2, dtype=torch.float32)
    assert fold([[fold.add(torch.neg, x.numpy())]])[0].dtype is torch.float32


@pytest.mark.parametrize("form", ["examples", "generator", "traces", "minibatch"])
def test_a_folded_module_returns_what_its_fold_does(form, traces, batch):
    model = Encoder()
    given = {"examples": TREES, "generator": iter(TREES), "traces": traces, "minibatch": batch}[form]
    got = Folded(model, score)(given)
    torch.testing.assert_close(got, multifold.Fold().run(model, TREES, score))


@pytest.mark.parametrize("nothing", [[], None])
def test_a_folded_module_without_examples_returns_a_tensor_without_rows(nothing):
    module = Folded(Encoder().bfloat16(), score)
    got = module(nothing)
    assert got.shape == (0,) and got.dtype is torch.bfloat16
    got.sum().backward()
    assert all(not x.grad.any() for x in module.parameters())


def test_a_folded_module_names_what_is_missing_for_examples():
    with pytest.raises(multifold.RecordError, match="examples of type tuple"):
        Folded(Encoder())([(1, 2)])


@pytest.mark.parametrize(("made", "name"), [(list, "example"), (None, "trace")])
def test_a_folded_module_names_the_example_whose_word_is_in_no_table(made, name):
    def embed(fold, word):
        return fold.add("embed", word)

    given = [1, 2, 7, 3]
    module = Folded(nn.ModuleDict({"embed": nn.Embedding(5, 4)}), embed)
    with pytest.raises(multifold.LaunchError, match="out of range") as caught:
        module(made(given) if made else multifold.traces(embed, given))
    assert caught.value.__notes__ == [f"Raised by {name} 2 of fold.run."]


def test_a_folded_module_is_copied_and_saved_like_any_other():
    module = Folded(Encoder(), score)
    module(TREES)
    other = copy.deepcopy(module)
    assert other.model is not module.model
    torch.testing.assert_close(other(TREES), module(TREES))
    assert set(module.state_dict()) == {f"model.{name}" for name in Encoder().state_dict()}


def test_a_folded_module_uses_the_fold_that_it_is_given():
    launched = []

    def compiler(op, operands, static):
        launched.append(op)
        return op(*operands, **static)

    from multifold_torch import TorchBackend

    fold = multifold.Fold(backend=TorchBackend(compiler=compiler))
    Folded(Encoder(), score, fold=fold)(TREES)
    assert launched


def test_replicas_in_threads_fold_by_themselves():
    module = Folded(Encoder(), score)
    replicas = [module._replicate_for_data_parallel() for _ in range(4)]
    got = [None] * 4

    def run(i):
        got[i] = replicas[i](TREES)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for found in got:
        torch.testing.assert_close(found, module(TREES))


class Recording(Encoder):
    def forward(self, trees):
        fold = multifold.Fold(backend="torch")
        logits = fold.apply(self, [[score(fold, tree) for tree in trees]])[0]
        return torch.relu(logits).sum(0)


class Running(Encoder):
    def forward(self, trees):
        return torch.relu(multifold.Fold(backend="torch").run(self, trees, score)).sum(0)


@pytest.mark.parametrize(
    "make",
    [Recording, Running, lambda: Folded(Encoder(), score)],
    ids=["apply", "run", "Folded"],
)
def test_a_module_whose_forward_folds_is_compiled_around_the_fold(make):
    module = make()
    compiled = torch.compile(module, backend="eager")
    for seed in range(3):
        trees = trees_of(seed, 3)
        module.zero_grad()
        compiled(trees).sum().backward()
        got = {name: x.grad.clone() for name, x in module.named_parameters()}
        torch.testing.assert_close(compiled(trees), module(trees))
        module.zero_grad()
        module(trees).sum().backward()
        torch.testing.assert_close(got, {name: x.grad for name, x in module.named_parameters()})


def test_what_follows_the_fold_is_compiled():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch.compile(Running(), backend=backend)(TREES)
    assert any("relu" in graph.code for graph in graphs)
