"""Joined results: ``join="stack"`` and ``"cat"`` give what PyTorch makes of the results of the loop."""

from __future__ import annotations

import gc
from collections import Counter

import pytest
import torch
from multifold_torch.lazy.pending import Pending
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import multifold

torch.manual_seed(0)
LIN, OUT = nn.Linear(4, 4), nn.Linear(4, 2)
PARAMETERS = [*LIN.parameters(), *OUT.parameters()]
XS = [torch.randn(1, 4) for _ in range(9)]
JOIN = {"stack": torch.stack, "cat": torch.cat}


def alone(x):
    return torch.sigmoid(LIN(x))


def nested(x):
    y = LIN(x)
    return {"first": y, "rest": (y.tanh(), [OUT(y)])}


def of_steps(x):
    """Return what launches of several lengths have computed."""
    for _ in range(int(x.abs().sum() * 3) % 3):
        x = torch.tanh(LIN(x))
    return LIN(x)


def same_for_all(x):
    return OUT.weight + 0 * LIN(x).sum()


def detached(x):
    return LIN(x).detach()


def a_number(x):
    return LIN(x).sum()


def twice(x):
    y = LIN(x)
    return y, y


def with_reals(x):
    return LIN(x), x


def of_two_forms(x):
    y = LIN(x)
    return y.detach() if x[0, 0] > 0 else y


KEPT = []


def kept(x):
    KEPT.append(LIN(x))
    return KEPT[-1]


PROGRAMS = (alone, nested, of_steps, same_for_all, detached, twice, with_reals, of_two_forms, kept)


def joined(results, how):
    """Join nested results of the loop, leaf by leaf."""
    first = results[0]
    if isinstance(first, dict):
        return {name: joined([x[name] for x in results], how) for name in first}
    if isinstance(first, (tuple, list)):
        return type(first)([joined([x[i] for x in results], how) for i in range(len(first))])
    return JOIN[how](results)


def compare(found, wanted):
    torch.testing.assert_close(found, wanted)
    needs = [[x.requires_grad for x in torch.utils._pytree.tree_leaves(y)] for y in (found, wanted)]
    assert needs[0] == needs[1]


def gradients(result):
    for x in PARAMETERS:
        x.grad = None
    leaves = [x for x in torch.utils._pytree.tree_leaves(result) if x.requires_grad]
    if leaves:
        sum((x * x.detach().cos()).sum() for x in leaves).backward()
    return [torch.zeros_like(x) if x.grad is None else x.grad.clone() for x in PARAMETERS]


@pytest.mark.parametrize("how", ["stack", "cat"])
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_joined_results_and_gradients_are_those_of_the_loop(fn, how):
    found = multifold.batched(fn, join=how, may_loop=False)(XS)
    wanted = joined([fn(x) for x in XS], how)
    compare(found, wanted)
    torch.testing.assert_close(gradients(found), gradients(wanted))


def test_numbers_are_stacked_and_have_no_axis_to_be_joined_along():
    compare(multifold.batched(a_number, may_loop=False)(XS), torch.stack([a_number(x) for x in XS]))
    with pytest.raises(RuntimeError, match="zero-dimensional"):
        multifold.batched(a_number, join="cat", may_loop=False)(XS)


def test_what_a_program_keeps_of_its_results_has_its_value_after_the_run():
    KEPT.clear()
    multifold.batched(kept, may_loop=False)(XS)
    for x, y in zip(KEPT, XS, strict=True):
        torch.testing.assert_close(x + 0, LIN(y))


@pytest.mark.parametrize("grad", [True, False])
def test_joined_results_can_be_changed_before_the_backward_pass(grad):
    """What a launch has saved for its gradients is not the memory of the result."""
    with torch.set_grad_enabled(grad):
        found = multifold.batched(alone, join="cat", may_loop=False)(XS)
        wanted = torch.cat([alone(x) for x in XS])
    found += 1
    wanted += 1
    compare(found, wanted)
    torch.testing.assert_close(gradients(found), gradients(wanted))


def test_what_a_recorder_has_learnt_keeps_no_tensor_of_a_run():
    def pending():
        gc.collect()
        return sum(isinstance(x, Pending) for x in gc.get_objects())

    before, run = pending(), multifold.batched(of_steps, join="list")
    run(XS)
    assert pending() == before


class Counting(TorchDispatchMode):
    """Counts the functions of PyTorch that run."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("how", ["stack", "cat"])
def test_rows_are_not_taken_apart_to_be_joined(how):
    run = multifold.batched(alone, join=how, may_loop=False)
    with torch.no_grad():
        run(XS)
        with Counting() as counting:
            run(XS)
    assert not {"select", "cat", "stack", "split", "slice"} & counting.counts.keys()
    assert counting.counts["clone"] == 1


class TakesOver(nn.Module):
    """Every other example changes and returns what the one before has left."""

    def __init__(self):
        super().__init__()
        self.kept = None

    def forward(self, x):
        if self.kept is None:
            self.kept = LIN(x) * 2
            return torch.tanh(LIN(x))
        kept, self.kept = self.kept, None
        return kept.add_(x)


def test_what_an_example_has_left_for_another_is_no_row_of_its_own():
    model, own = TakesOver(), TakesOver()
    wanted = torch.stack([model(x) for x in XS[:8]])
    compare(multifold.batched(own, may_loop=False)(XS[:8]), wanted)


@pytest.mark.parametrize("how", ["list", "stack"])
@pytest.mark.parametrize("empty", [[], {}, ()], ids=str)
def test_results_with_nothing_in_them_are_those_of_the_loop(empty, how):
    found = multifold.batched(lambda x: (LIN(x), empty)[1], join=how, may_loop=False)(XS)
    assert found == ([empty] * len(XS) if how == "list" else empty)


def test_what_is_kept_of_a_result_has_its_gradient_and_its_hooks():
    def run(call):
        KEPT.clear()
        result = call()
        KEPT[1].retain_grad()
        KEPT[2].register_hook(lambda grad: grad * 3)
        own = torch.autograd.grad(result.sum(), KEPT[0], retain_graph=True)
        found = gradients(result)
        return *own, KEPT[1].grad, *found

    found = run(lambda: multifold.batched(kept, may_loop=False)(XS))
    torch.testing.assert_close(found, run(lambda: torch.stack([kept(x) for x in XS])))
