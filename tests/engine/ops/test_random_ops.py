"""Random ops in a trial: none that mixes rows passes, and none that keeps them apart is refused.

``pytest tests/engine/ops/test_random_ops.py --backend torch --programs 2000`` draws as many; a number says
which op it is, so ``Drawn(7, kit_of("torch"))`` of `random_ops` is the one that a failure names.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from random_ops import Drawn, Op, kit_of

from multifold import Fold, LaunchError

SELDOM = 500
"""Of so many ops one may pass: an op can change few rows, and a trial looks at some of them only."""


def is_refused(drawn, backend):
    """Return whether one of the two launches of a drawn op is refused for mixing its rows."""
    op = Op(drawn)
    for operands in drawn.launches:
        fold = Fold(backend=backend)
        rows = [[x[i : i + 1] for x in operands] for i in range(operands[0].shape[0])]
        nodes = [fold.add(op, *row) for row in rows]
        outputs = [[node[0] for node in nodes], [node[1] for node in nodes]] if drawn.pair else [nodes]
        drawn.kit.seed(drawn.number)
        try:
            with drawn.kit.training():
                fold.apply(None, outputs)
        except LaunchError as error:
            if "mixes its rows" not in str(error):
                raise
            return True
    return False


@pytest.fixture(scope="module")
def drawn(request):
    """Return a function that draws as many ops as were asked for."""

    def drawn(backend):
        kit = kit_of(backend)
        return [Drawn(number, kit) for number in range(request.config.getoption("--programs"))]

    return drawn


@pytest.mark.nightly(but=["numpy", "torch", "mxnet"])  # the others take a minute
def test_random_ops(backend, drawn):
    refused, passed = [], []
    ops = drawn(backend)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.filterwarnings("error", message=".*could not be tried")
        for op in ops:
            if is_refused(op, backend):
                refused.append(op)
            elif op.wrong():
                passed.append(op)
    assert [op for op in refused if not op.mixes] == []
    assert len(passed) <= math.ceil(len(ops) / SELDOM), passed
    assert len(refused) > len(ops) // 4
