"""Mixed precision under `torch.autocast`: layers return 16 bits, sums and normalisations 32.

Weights and rows are small integers, which 16 bits hold exactly: results must equal the twin's to the bit.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import multifold
from multifold import Fold, LaunchError, Unfold, ops, ragged

TREES = [(1, (2, 3)), ((4, 5), (1, 2), 3), 2, ((1, 2), (3, (4, 1)))]


class Tree(nn.Module):
    """A sum over children: leaves are rows of float32, inner nodes what a layer returns under autocast."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(6, 2)
        self.inner = nn.Linear(2, 2)
        with torch.no_grad():
            self.embedding.weight.copy_(torch.arange(12).reshape(6, 2) % 5 - 2)
            self.inner.weight.copy_(torch.tensor([[1, -1], [0, 1]]))
            self.inner.bias.copy_(torch.tensor([1, -2]))

    def total(self, children):
        return ops.segment_sum(children.values, children)

    def largest(self, children):
        return ops.segment_max(children.values, children)


def encode(fold, tree):
    """Return a row of float32 for a leaf, and one in the dtype of autocast for a pair."""
    if isinstance(tree, int):
        return fold.add("embedding", tree)
    return fold.add("inner", fold.add("total", ragged([encode(fold, child) for child in tree])))


def everything(fold, tree):
    """Return the tree's row, and rows whose dtype depends on what they are put together with."""
    x = encode(fold, tree)
    y = encode(fold, (tree, 1))
    pure, mixed = (fold.add("largest", ragged(some)) for some in ([y, y], [y, fold.add("embedding", 3)]))
    empty = fold.add("total", ragged([], row_shape=(2,)))
    alone = fold.add("total", ragged([y], row_shape=(2,)))
    return {"x": x, "y": y, "pure": pure, "mixed": mixed, "both": [x, y], "empty": empty, "alone": alone}


async def awaiting(fold, tree):
    y = encode(fold, (tree, tree))
    await fold.value(y)
    return everything(fold, tree) | {"late": [y, fold.add("embedding", 2)]}


def folded(model, fn):
    return Fold(backend="torch").run(model, TREES, fn)


def traced(model, fn):
    return Fold(backend="torch").run(model, [multifold.trace(fn, tree) for tree in TREES])


def twin(model, fn):
    return Unfold(model, backend="torch").run(None, TREES, fn)


def values_and_gradients(run, fn, dtype):
    """Return the results of a run, and the gradients of the model, as the loop of autocast has them."""
    model = Tree()
    with torch.autocast("cpu", dtype):
        results = run(model, fn)
        sum((x.float() * (i + 1)).sum() for i, x in enumerate(results.values())).backward()
    return results, {name: x.grad for name, x in model.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("run", "fn"),
    [(folded, everything), (traced, everything), (folded, awaiting)],
    ids=["fold", "traces", "await"],
)
def test_values_dtypes_and_gradients_under_autocast_equal_the_loop(run, fn, dtype):
    results, gradients = values_and_gradients(run, fn, dtype)
    expected, references = values_and_gradients(twin, fn, dtype)
    assert {results[name].dtype for name in ("y", "pure", "alone")} == {dtype}
    assert {results[name].dtype for name in ("x", "mixed", "both", "empty")} == {torch.float32}
    for name, x in results.items():
        torch.testing.assert_close(x, expected[name], rtol=0, atol=0, msg=name)
    for name, x in gradients.items():  # larger integers, of which bfloat16 keeps eight bits
        torch.testing.assert_close(x, references[name], rtol=0, atol=0.02 * float(x.abs().max()), msg=name)


def test_a_call_that_reads_one_dtype_shares_no_launch_with_one_that_mixes_two():
    fold = Fold(backend="torch")
    model = Tree()
    full, half = (fold.add(op, torch.ones(1, 2)) for op in (torch.relu, model.inner))
    members = [half, half], [half, full], [half], [full]
    sums = [fold.add(model.total, ragged(some)) for some in members]
    with torch.autocast("cpu", torch.bfloat16):
        found = fold.apply(None, [[x] for x in sums])
    assert [x.dtype for x in found] == [torch.bfloat16, torch.float32, torch.bfloat16, torch.float32]
    assert [launch.calls.tolist() for launch in fold.explain().launches][-2:] in (
        [[2, 4], [3, 5]],
        [[3, 5], [2, 4]],
    )


def test_autocast_refuses_its_half_beside_the_other_one():
    outputs = [[torch.ones(1, 2, dtype=dtype) for dtype in (torch.bfloat16, torch.float16)]]
    assert Fold(backend="torch").apply(None, outputs)[0].dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(LaunchError, match=r"bfloat16.*float16"):
        Fold(backend="torch").apply(None, outputs)


@pytest.mark.parametrize("trained", [True, False], ids=["trained", "frozen"])
@pytest.mark.parametrize("twin", [False, True], ids=["fold", "unfold"])
def test_the_dtype_of_a_half_model_is_in_the_hint(twin, trained):
    model = nn.ModuleDict({"layer": nn.Linear(2, 2)}).bfloat16().requires_grad_(trained)
    hint = "Hint: the model is in bfloat16, and operand 0 in float32"
    for operand in (np.ones((1, 2), np.float32), torch.ones(1, 2)):
        f = Unfold(model, backend="torch") if twin else Fold(backend="torch")
        with pytest.raises(LaunchError, match=hint):
            f.apply(None if twin else model, [f.add("layer", operand)])


def test_the_hint_finds_the_model_around_a_function():
    layer = nn.Linear(1, 2).bfloat16()
    fold = Fold(backend="torch")
    with pytest.raises(
        LaunchError, match=r"the model is in bfloat16, and operand 0 in float32(.|\n)*numbers"
    ):
        fold.apply(None, [fold.add(lambda x: layer(x[:, None]), 1.0)])
