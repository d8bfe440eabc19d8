"""What the tests of plain programs compare with: the loop over the examples."""

from __future__ import annotations

import optree
import pytest
import torch

import multifold


def weighed(results):
    """Return one number that depends on every number of some results that has a gradient."""
    leaves = [x for x in optree.tree_leaves(results) if isinstance(x, torch.Tensor) and x.requires_grad]
    return sum([(x.double() * (1 + torch.arange(x.numel()).reshape(x.shape).cos())).sum() for x in leaves])


def outcome(call, parameters):
    """Return what a call returns, and the gradients of all that it returns."""
    results = call()
    loss = weighed(results)
    for x in parameters:
        x.grad = None
    if torch.is_tensor(loss):
        loss.backward()
    return results, [None if x.grad is None else x.grad.clone() for x in parameters]


def assert_equal(x, y, within):
    """Compare two results: arrays in dtype, shape, gradient and value, the rest by value."""
    if x is None and isinstance(y, torch.Tensor):  # a gradient: none, or one of zeros
        assert not y.any()
        return
    if not isinstance(x, torch.Tensor):
        assert x == pytest.approx(y, abs=1e-5) if isinstance(x, float) else x == y
        return
    assert (x.dtype, x.shape, x.requires_grad) == (y.dtype, y.shape, y.requires_grad)
    assert torch.allclose(x, y, atol=within, rtol=within, equal_nan=True)


@pytest.fixture
def comparing():
    """Return what runs a program with gradients, and what compares two results."""
    return outcome, assert_equal


@pytest.fixture
def as_loop():
    """Compare a batched program with the loop; return it."""

    def compare(fn, *columns, parameters=(), within=1e-5, run=None, **options):
        torch.manual_seed(0)
        wanted, slopes = outcome(lambda: [fn(*x) for x in zip(*columns, strict=True)], parameters)
        run = run or multifold.batched(fn, join="list", backend="torch", **options)
        torch.manual_seed(0)
        found, own = outcome(lambda: run(*columns), parameters)
        pairs = zip(optree.tree_leaves([wanted, slopes]), optree.tree_leaves([found, own]), strict=True)
        for x, y in pairs:
            assert_equal(x, y, within)
        assert len(optree.tree_leaves(wanted)) == len(optree.tree_leaves(found))
        return run

    return compare
