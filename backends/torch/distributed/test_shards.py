"""Two ranks give the values and gradients of one process on all their examples, whatever each rank has."""

from __future__ import annotations

import pytest
import torch
from multifold_torch import Folded
from ranks import RankError
from shards import WORDS, score, shards_of, trees_of
from torch import nn

import multifold
from multifold.sampling import mean_weight

WRAPS = ["ddp", "ddp-static", "fsdp"]


class Encoder(nn.Module):
    """The ops of `shards.score`."""

    def __init__(self, width=5):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(WORDS, width)
        self.gates = nn.Linear(2 * width, width)
        self.turn = nn.Linear(width, width)
        self.out = nn.Linear(width, 2)

    def join(self, left, right):
        return torch.tanh(self.gates(torch.cat([left, right], dim=1)))

    def flip(self, x):
        return torch.tanh(self.turn(x))


class Own(Encoder):
    """A module whose own forward folds, as a user would write it."""

    def forward(self, trees):
        return multifold.Fold(backend="torch").run(self, trees, score)


def wrapped(module, how):
    """Return a module as ranks share it."""
    if how == "fsdp":
        from torch.distributed.fsdp import fully_shard

        return fully_shard(module, mesh=torch.distributed.init_device_mesh("cpu", (2,)))
    options = {
        "ddp": {},
        "ddp-static": {"static_graph": True},
        "ddp-unused": {"find_unused_parameters": True},
    }
    return nn.parallel.DistributedDataParallel(module, **options[how])


def total(count):
    """Return the sum of what all ranks give."""
    counts = torch.tensor(count)
    torch.distributed.all_reduce(counts)
    return int(counts)


def whole(x):
    """Return a parameter or gradient with the shards of all ranks."""
    return None if x is None else (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().numpy()


def gradients(module):
    """Return the gradients of an encoder, wherever it is, by name."""
    found = module.named_parameters()
    return {name.split("module.")[-1].removeprefix("model."): whole(x.grad) for name, x in found}


def mean_of(losses, count):
    """Return the loss of a rank, whose average over ranks is the mean over all examples."""
    weight = mean_weight(count, torch.distributed.get_world_size(), total)
    return losses.mean() * weight if count else losses.sum()


def train(rank, how, steps, own=False):
    """Make steps on the shards of this rank; return values, the last gradients, and the weights."""
    module = wrapped(Own() if own else Folded(Encoder(), score), how)
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    values = []
    for shards in steps:
        optimizer.zero_grad()
        mine = module(shards[rank])
        values.append(mine.detach().numpy())
        mean_of(mine.square().sum(dim=-1), len(shards[rank])).backward()
        optimizer.step()
    names = [name.split("module.")[-1].removeprefix("model.") for name, _ in module.named_parameters()]
    weights = dict(zip(names, map(whole, module.parameters()), strict=True))
    return values, gradients(module), weights


def accumulate(rank, micro):
    module = wrapped(Folded(Encoder(), score), "ddp")
    count = total(sum(len(shards[rank]) for shards in micro))
    for i, shards in enumerate(micro):
        last = i == len(micro) - 1
        module.require_backward_grad_sync = last  # what `no_sync` sets; both work
        with module.no_sync() if not last else torch.enable_grad():
            (module(shards[rank]).square().sum() * 2 / count).backward()
    return gradients(module)


def join_uneven(rank, batches):
    from torch.distributed.algorithms.join import Join

    module = wrapped(Folded(Encoder(), score), "ddp")
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    with Join([module]):
        for batch in batches[rank]:
            optimizer.zero_grad()
            module(batch).square().sum().backward()
            optimizer.step()
    return {name: whole(x) for name, x in module.named_parameters()}


def infinite(rank, shards):
    module = Folded(Encoder(), score)
    with torch.no_grad():
        module.model.turn.weight[0, 0] = torch.inf  # of an op that no rank calls
    module = wrapped(module, "ddp")
    module(shards[rank]).sum().backward()
    return gradients(module)


def fold_outside(rank, how):
    encoder = Encoder()
    if how == "part":
        wrapped(encoder.gates, "fsdp")
        model = wrapped(Folded(encoder, score), "fsdp")
    else:
        model = wrapped(encoder, how)
    try:
        model([1]) if how == "part" else multifold.Fold().run(model, [1], score)
    except multifold.BackendError as error:
        return str(error)


def evaluate_outside(rank):
    model = wrapped(Encoder(), "ddp")
    with torch.no_grad():
        return multifold.Fold().run(model, [1, (2, 3)], score).numpy()


def fail_at(rank, trees):
    return wrapped(Folded(Encoder(), score), "ddp")(trees[rank]).sum().backward()


def expected(steps):
    """Return the values of all examples in each step, the last gradients, and the weights at the end."""
    model = Encoder()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    values = []
    for shards in steps:
        optimizer.zero_grad()
        found = multifold.Fold().run(model, [tree for shard in shards for tree in shard], score)
        values.append(found.detach().numpy())
        found.square().sum(dim=-1).mean().backward()
        optimizer.step()
    return values, gradients(model), {name: whole(x) for name, x in model.named_parameters()}


def close(got, want):
    """Compare dictionaries of arrays; a gradient that one process lacks is zero."""
    for name, x in got.items():
        other = torch.zeros(x.shape) if want[name] is None else torch.from_numpy(want[name])
        torch.testing.assert_close(torch.from_numpy(x), other, rtol=1e-4, atol=1e-6)


def compare(found, steps):
    """Hold what all ranks return to what one process computes."""
    values, grads, weights = expected(steps)
    for rank, (mine, own_grads, own_weights) in enumerate(found):
        close(own_grads, grads)
        close(own_weights, weights)
        for step, shards in enumerate(steps):
            first = sum(map(len, shards[:rank]))
            rows = values[step][first : first + len(shards[rank])]
            if len(rows):
                torch.testing.assert_close(
                    torch.from_numpy(mine[step]), torch.from_numpy(rows), rtol=1e-5, atol=1e-5
                )


@pytest.mark.parametrize("how", WRAPS)
def test_ranks_of_unequal_trees_and_ops_train_as_one_process(ranks, how):
    steps = [shards_of(seed) for seed in range(4)]
    compare(ranks.run(train, how, steps), steps)


@pytest.mark.parametrize("how", WRAPS)
def test_a_rank_without_examples_takes_part_with_zeros(ranks, how):
    steps = [[trees_of(1, 4), []], shards_of(2), [[], trees_of(3, 2)]]
    compare(ranks.run(train, how, steps), steps)


def test_a_forward_that_folds_itself_needs_unused_parameters_to_be_found(ranks):
    steps = [shards_of(seed) for seed in range(2)]
    compare(ranks.run(train, "ddp-unused", steps, True), steps)


def test_gradients_that_accumulate_in_no_sync_are_averaged_once(ranks):
    micro = [shards_of(seed) for seed in range(3)]
    together = [[tree for shards in micro for shard in shards for tree in shard]]
    for found in ranks.run(accumulate, micro):
        close(found, expected([together])[1])


def test_ranks_with_unequal_numbers_of_batches_join(ranks):
    batches = [[trees_of(seed, 3) for seed in range(3)], [trees_of(7, 2, flips=False)]]
    first, second = ranks.run(join_uneven, batches)
    close(first, second)
    assert any((x != whole(y)).any() for x, y in zip(first.values(), Encoder().parameters(), strict=True))


def test_a_parameter_that_is_infinite_and_unused_has_a_gradient_of_zeros(ranks):
    for found in ranks.run(infinite, [[1, (2, 3)], [4]]):
        assert not found["turn.weight"].any()


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("ddp", "goes past its forward"),
        ("fsdp", "parameters are not gathered"),
        ("part", "the part 'gates' sharded by itself"),
    ],
)
def test_folds_that_would_leave_ranks_apart_are_refused(ranks, how, message):
    for said in ranks.run(fold_outside, how):
        assert message in " ".join(said.split())
        assert "multifold_torch.Folded(model, fn)" in said


def test_a_fold_outside_of_forward_may_evaluate(ranks):
    want = multifold.Fold().run(Encoder(), [1, (2, 3)], score).detach()
    for found in ranks.run(evaluate_outside):
        torch.testing.assert_close(torch.from_numpy(found), want)


def test_an_example_that_fails_on_one_rank_is_named(ranks):
    with pytest.raises(RankError, match=r"process 1 raised(.|\n)*xample 2"):
        ranks.run(fail_at, [[1, 2, 3], [1, 2, None]], seconds=20)
