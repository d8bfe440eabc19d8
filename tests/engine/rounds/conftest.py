"""What the tests of rounds share: a model of a few small ops."""

from __future__ import annotations

import pytest


@pytest.fixture
def model(column):
    """Ops on rows of shape (1,), and on numbers."""
    return {
        "leaf": lambda k: column(k) * 1.0,
        "double": lambda x: x * 2.0,
        "add": lambda x, y: x + y,
        "scale": lambda x, w: x * w,
    }
