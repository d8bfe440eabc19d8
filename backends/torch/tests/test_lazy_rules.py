"""Each rule of `multifold_torch.lazy.rules` against the loop: a function on rows is that of each row."""

from __future__ import annotations

import itertools

import optree
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody calls it
from multifold_torch.lazy.filling import with_parts
from multifold_torch.lazy.rules import (
    ACTIVATIONS,
    ELEMENTWISE,
    RULES,
    mixes_rows,
    on_rows,
    with_gradient_of,
)
from torch import Tensor, nn

MANY = 3
"""Examples; no other axis has this size."""


class Rows:
    """An argument that each example has its own of: its shape and dtype."""

    def __init__(self, *shape, dtype=torch.float64, high=4):
        self.shape, self.dtype, self.high = shape, dtype, high

    def values(self, n=MANY):
        if self.dtype.is_floating_point:
            return torch.rand(n, *self.shape, dtype=self.dtype) * 1.8 - 0.4
        low, high = (0, 2) if self.dtype is torch.bool else (1, self.high)
        return torch.randint(low, high, (n, *self.shape)).to(self.dtype)


def parameter(*shape, dtype=torch.float64):
    return nn.Parameter((torch.rand(shape) + 1).to(dtype), requires_grad=dtype.is_floating_point)


def on_both(func, *args, **kwargs):
    """Return what a rule and the loop make of some arguments; None for the rule if there is none."""
    leaves, tree = optree.tree_flatten((args, kwargs), none_is_leaf=True)
    rows = [x.values() if isinstance(x, Rows) else x for x in leaves]
    own = [isinstance(x, Rows) for x in leaves]
    each = [[x[i] if mine else x for x, mine in zip(rows, own, strict=True)] for i in range(MANY)]
    made = [optree.tree_unflatten(tree, x) for x in each]
    loop = [func(*args, **kwargs) for args, kwargs in made]
    forms = [
        torch.empty_like(x, device="meta") if mine else x for x, mine in zip(each[0], own, strict=True)
    ]
    args, kwargs = optree.tree_unflatten(tree, forms)
    rule = on_rows(func, args, kwargs)
    if rule is None:
        return None, loop
    args, kwargs = optree.tree_unflatten(tree, rows)
    return rule(*args, **kwargs), loop


def assert_same(found, loop):
    wanted = [torch.stack(column) for column in zip(*map(optree.tree_leaves, loop), strict=True)]
    for x, y in zip(optree.tree_leaves(found), wanted, strict=True):
        assert x.dtype == y.dtype and x.shape == y.shape
        assert torch.allclose(x, y, equal_nan=True)


DTYPES = (torch.float64, torch.float32, torch.int64, torch.bool)
SHAPES = ((), (2,), (2, 1), (2, 2), (4, 2, 2))
PLAIN = [Rows(*shape, dtype=dtype) for shape in SHAPES for dtype in DTYPES]
OTHERS = [*PLAIN, 2, 0.5, *[parameter(*shape, dtype=dtype) for shape in SHAPES for dtype in DTYPES]]


def works(func, *args):
    """Return whether PyTorch takes such arguments, and any truth values among them."""
    given = [x.values(1)[0] if isinstance(x, Rows) else x for x in args]
    given = [torch.zeros_like(x) if getattr(x, "dtype", None) is torch.bool else x for x in given]
    try:
        return isinstance(func(*given), Tensor)
    except (TypeError, RuntimeError, AttributeError, NotImplementedError):
        return False


@pytest.mark.parametrize(
    "func", dict.fromkeys([*ELEMENTWISE, *ACTIVATIONS]), ids=lambda func: func.__qualname__
)
def test_an_elementwise_function_of_rows_is_that_of_each_row(func):
    options = {F.dropout: (0.5, False)}.get(func, ())  # it draws nothing
    one = [(x, *options) for x in PLAIN]
    pairs = [*itertools.product(PLAIN, OTHERS), *itertools.product(OTHERS, PLAIN)]
    two = [(x, 0.5) for x in PLAIN if not options] if func in ACTIVATIONS else pairs
    three = (
        []
        if func not in (torch.where, torch.clamp)
        else itertools.product(PLAIN[2:12], OTHERS[3::3], OTHERS[::3])
    )
    with torch.no_grad():
        tried = [on_both(func, *args) for args in (*one, *two, *three) if works(func, *args)]
    for found, loop in tried:
        if found is not None:
            assert_same(found, loop)
    assert any(found is not None for found, _ in tried)


def test_a_number_in_a_tensor_of_another_dtype_is_left_to_vmap():
    assert on_both(torch.add, Rows(dtype=torch.float64), Rows(2, dtype=torch.float32))[0] is None
    assert on_both(torch.add, Rows(dtype=torch.float32), parameter(dtype=torch.float64))[0] is None


ONE, TWO, THREE = Rows(4), Rows(4, 2), Rows(5, 4, 2)
REDUCTIONS = ("sum", "mean", "argmax", "argmin", "logsumexp", "prod", "amax", "amin", "all", "any")
CASES = [
    *[
        (getattr(owner, name), (x, axis), {"keepdim": keep})
        for owner in (torch, Tensor)
        for name in REDUCTIONS
        for x in (ONE, TWO, THREE)
        for axis in (0, -1)
        for keep in (False, True)
    ],
    *[
        (getattr(owner, name), (THREE,), {"dim": dim})
        for owner in (torch, Tensor)
        for name in ("sum", "mean", "amax", "logsumexp")
        for dim in (1, -2, (0, 2), [0, -1])
    ],
    (torch.sum, (TWO, 0), {"dtype": torch.float32}),
    (torch.sum, (TWO,), {"axis": 1}),
    *[
        (func, (x, axis), {})
        for func in (
            *(
                torch.softmax,
                Tensor.softmax,
                F.softmax,
                torch.log_softmax,
                Tensor.log_softmax,
                F.log_softmax,
            ),
            *(torch.cumsum, Tensor.cumsum, torch.unsqueeze, Tensor.unsqueeze),
        )
        for x in (ONE, TWO, THREE)
        for axis in (0, -1)
    ],
    (F.softmax, (TWO,), {"dim": 0, "dtype": torch.float32}),
    *[(func, (TWO, [0]), {}) for func in (torch.flip, Tensor.flip)],
    *[(torch.flip, (THREE, [0, -1]), {}), (Tensor.flip, (THREE, 1), {})],
    *[(func, ([TWO, TWO],), {}) for func in (torch.cat, torch.concat, torch.concatenate, torch.stack)],
    *[(func, ((TWO, TWO), axis), {}) for func in (torch.cat, torch.stack) for axis in (0, 1, -1)],
    *[(func, ((TWO, TWO),), {"dim": axis}) for func in (torch.cat, torch.stack) for axis in (0, 1, -1)],
    (torch.cat, ([TWO, TWO],), {"axis": 1}),
    (torch.cat, ([Rows(2, dtype=torch.float32), ONE],), {}),
    (torch.stack, ([Rows(), Rows()],), {}),
    (torch.unsqueeze, (Rows(), 0), {}),
    (Tensor.unsqueeze, (Rows(),), {"dim": -1}),
    *[
        (func, (TWO, 2, *axis), kwargs)
        for func in (torch.chunk, Tensor.chunk, torch.split, Tensor.split)
        for axis, kwargs in [((), {}), ((1,), {}), ((-2,), {}), ((), {"dim": 1}), ((), {"dim": -1})]
    ],
    *[(func, (TWO, [1, 3]), {}) for func in (torch.split, Tensor.split)],
    *[(torch.reshape, (TWO, shape), {}) for shape in ((-1,), (2, 4), [2, -1], (4, 1, 2))],
    *[
        (func, (TWO, *shape), {})
        for func in (Tensor.reshape, Tensor.view)
        for shape in ((-1,), (2, 4), ((8,),))
    ],
    (Tensor.reshape, (Rows(), 1, 1), {}),
    *[
        (func, (THREE, *axes), {})
        for func in (torch.transpose, Tensor.transpose)
        for axes in ((0, 1), (-1, 0), (2, -2))
    ],
    *[(func, (TWO,), {}) for func in (torch.t, Tensor.t, Tensor.T.__get__)],
    *[
        (Tensor.__getitem__, (THREE, index), {})
        for index in (
            0,
            -1,
            slice(1, 3),
            (0, 1),
            (slice(None), -1),
            (..., 0),
            (None, 2),
            (1, slice(None, None, 2), None),
        )
    ],
    *[
        (F.linear, (x, parameter(6, 2), *bias), {})
        for x in (Rows(2), TWO, THREE)
        for bias in ((), (parameter(6),))
    ],
    (F.linear, (TWO, parameter(6, 2)), {"bias": parameter(6)}),
    *[
        (F.layer_norm, (x, (2,)), {"weight": parameter(2), "bias": parameter(2)})
        for x in (Rows(2), TWO, THREE)
    ],
    (F.layer_norm, (THREE, [4, 2]), {}),
    (with_gradient_of, (THREE, THREE), {}),
    *[
        (with_parts, (TWO, axis, [(1,)], [Rows(own)]), {})
        for axis, own in ((0, TWO.shape[1]), (1, TWO.shape[0]))
    ],
    (with_parts, (TWO, 0, [(1, 0), (0, 1)], [Rows(), Rows()]), {}),
    *[(F.one_hot, (Rows(*shape, dtype=torch.int64), 6), {}) for shape in ((), (4, 2))],
    *[
        (F.embedding, (Rows(*shape, dtype=torch.int64, high=6), parameter(6, 2)), {"padding_idx": 1})
        for shape in ((), (4,), (4, 2))
    ],
    *[
        (func, pair, {})
        for func in (torch.matmul, torch.mm, Tensor.matmul, Tensor.mm, Tensor.__matmul__)
        for pair in [(TWO, Rows(2, 5)), (TWO, parameter(2, 5)), (parameter(5, 4), TWO)]
    ],
    (torch.matmul, (Rows(2), parameter(2, 5)), {}),
    *[
        (func, (x, parameter(2, 4, 2, 2)), kwargs)
        for func in (F.conv2d, torch.conv2d)
        for x in (Rows(4, 5, 5), Rows(2, 4, 5, 5))
        for kwargs in ({}, {"bias": parameter(2), "padding": 1})
    ],
    *[
        (func, (x, 2), {})
        for func in (F.max_pool2d, F.avg_pool2d)
        for x in (Rows(4, 6, 6), Rows(2, 4, 6, 6))
    ],
    *[
        (func, (x, parameter(2, 4, 2), parameter(2)), {"stride": 2})
        for func in (F.conv1d, torch.conv1d)
        for x in (Rows(4, 5), Rows(2, 4, 5))
    ],
    *[(func, (x, 2), {}) for func in (F.max_pool1d, F.avg_pool1d) for x in (Rows(4, 6), Rows(2, 4, 6))],
]


@pytest.mark.parametrize(("func", "args", "kwargs"), CASES, ids=lambda x: getattr(x, "__qualname__", ""))
def test_a_rule_of_rows_is_the_function_of_each_row(func, args, kwargs):
    found, loop = on_both(func, *args, **kwargs)
    assert found is not None
    assert_same(found, loop)


def test_every_rule_is_tested():
    assert RULES.keys() == {*ELEMENTWISE, *ACTIVATIONS, *[func for func, _, _ in CASES]}


WITHOUT_RULE = [
    (Tensor.flip, (THREE, 0, 1), {}),  # axes one by one
    (torch.sum, (TWO,), {}),
    (torch.sum, (TWO, ()), {}),
    (torch.stack, ([TWO, TWO],), {"axis": 1}),
    (torch.stack, (), {"tensors": [TWO, TWO]}),
    (torch.cat, ([Rows(0), TWO],), {}),
    (torch.matmul, (TWO,), {"other": Rows(2, 4)}),
    (torch.matmul, (Rows(2), Rows(2)), {}),
    (torch.matmul, (TWO, Rows(2)), {}),
    (torch.cat, ([parameter(4, 2), TWO],), {}),
    (torch.transpose, (Rows(), 0, 0), {}),
    (Tensor.view, (TWO, torch.int64), {}),
    (Tensor.t, (Rows(4),), {}),
    (F.linear, (TWO, Rows(6, 2)), {}),
    (F.linear, (parameter(4, 2), Rows(6, 2)), {}),
    (F.embedding, (parameter(2, dtype=torch.int64), Rows(6, 2)), {}),
    (F.conv2d, (Rows(4, 5, 5), Rows(2, 4, 2, 2)), {}),
    (Tensor.__getitem__, (TWO, [0, 1]), {}),
    (Tensor.__getitem__, (TWO, True), {}),
    (torch.linalg.det, (Rows(2, 2),), {}),
]


@pytest.mark.parametrize(
    ("func", "args", "kwargs"), WITHOUT_RULE, ids=lambda x: getattr(x, "__qualname__", "")
)
def test_where_no_rule_holds_there_is_none(func, args, kwargs):
    found, loop = on_both(func, *args, **kwargs)
    assert len(loop) == MANY and found is None


def test_an_embedding_that_counts_its_ids_runs_row_by_row():
    assert mixes_rows(F.embedding, (), {"scale_grad_by_freq": True})
    assert mixes_rows(F.embedding, (None, None, None, None, 2.0, True), {})
    assert not mixes_rows(F.embedding, (None, None), {"scale_grad_by_freq": False})
    assert mixes_rows(F.embedding, (torch.zeros(2), torch.ones(3, 2)), {})
