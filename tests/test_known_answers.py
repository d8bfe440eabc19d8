"""Cases whose answers are known beforehand, collected from the predecessors of multifold."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import multifold
from multifold import Fold, Unfold, ragged, shared

# ---- from the notebook of TorchFold -----------------------------------------------------------------


def test_exponentiation_by_chained_calls(fold, equal):
    x, powers = 1, []
    for _ in range(4):
        x = fold.add("double", x)
        powers.append(x)
    equal(fold.apply({"double": lambda x: x * 2}, powers), [2, 4, 8, 16])


def test_two_outputs_of_one_op(fold, equal):
    class Model:
        def a(self, x):
            return x

        def b(self, x1, x2):
            return (x1 - x2) * 2, (x1 + x2) * 3

        def c(self, x, y):
            return x * y

        def d(self, x, y):
            return x + y

    a1, a2, a3 = (fold.add("a", x) for x in (1, 2, 5))
    low, high = fold.add("b", a1, a2).split(2)
    bd = fold.add("d", low, high)
    equal(fold.apply(Model(), [fold.add("d", low, fold.add("c", high, a3))]), [-2 + 9 * 5])
    equal(fold.apply(Model(), [bd]), [-2 + 9])
