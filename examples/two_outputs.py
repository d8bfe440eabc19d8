"""Ops with several outputs: what they return is split, and each part goes its own way.

From a1, a2, a3 this computes ``b, c = B(a1, a2)`` and then ``D(c, C(b, a3))``, where ``B`` returns
``((x1 - x2) * 2, (x1 + x2) * 3)``, ``C`` multiplies and ``D`` adds. For 1, 2, 5 that is -1.

python examples/two_outputs.py [--backend torch]
"""

from __future__ import annotations

import argparse
from typing import Any

import multifold


class Model:
    """Three ops that take and return rows, for arrays of any framework."""

    def B(self, x1: Any, x2: Any) -> tuple[Any, Any]:  # noqa: N802
        return (x1 - x2) * 2, (x1 + x2) * 3

    def C(self, x1: Any, x2: Any) -> Any:  # noqa: N802
        return x1 * x2

    def D(self, x1: Any, x2: Any) -> Any:  # noqa: N802
        return x1 + x2


def combine(fold: multifold.Fold, a1: int, a2: int, a3: int) -> multifold.Node:
    """Record one example."""
    b, c = fold.add("B", a1, a2).split(2)
    return fold.add("D", c, fold.add("C", b, a3))


def main() -> None:
    """Print the result of one example, then those of five, from the same three launches."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="numpy")
    arguments = parser.parse_args()
    to_numpy = multifold.load_backend(arguments.backend).to_numpy

    fold = multifold.Fold(backend=arguments.backend)
    result = fold.apply(Model(), combine(fold, 1, 2, 5))
    print("a1, a2, a3 = 1, 2, 5:", to_numpy(result).tolist()[0])

    fold.reset()
    results = [combine(fold, 1, 2, i) for i in range(5)]
    (values,) = fold.apply(Model(), [results])
    print("1, 2 and 0 to 4:", to_numpy(values).tolist())
    print(fold.schedule([results]))


if __name__ == "__main__":
    main()
