"""What tests of ops share: rows that differ, ops that count their rows, and no verdict of other tests."""

from __future__ import annotations

import numpy as np
import pytest

from multifold import LaunchError
from multifold._engine.ops.verdicts import VERDICTS


@pytest.fixture(autouse=True)
def nothing_known():
    """Forget what other tests have found: an op is known again by its code."""
    VERDICTS.known.clear()


@pytest.fixture
def rows(array):
    """Return a function that makes ``n`` different rows of a shape, each as an array of one row."""

    def rows(n, *shape):
        values = np.random.default_rng(0).uniform(0.5, 1.5, (n, 1, *shape))
        return [array(value) for value in values]

    return rows


@pytest.fixture
def counted():
    """Return a function that makes an op of a function: it notes the rows of each call in ``op.rows``."""

    def counted(fn):
        def op(*operands):
            op.rows.append(len(operands[0]))
            return fn(*operands)

        op.rows = []
        return op

    return counted


@pytest.fixture
def refused():
    """Return a function that expects a launch to be refused for its numbers."""

    def refused(call, *words):
        with pytest.raises(LaunchError) as caught:
            call()
        for word in ("s[:, None]", *words):
            assert word in str(caught.value)
        assert "Unfold" not in str(caught.value)

    return refused
