"""The smallest fold: one model, four calls in a chain, and the same for any number of chains.

python examples/exponentiation.py [--backend torch] [--base 2]
"""

from __future__ import annotations

import argparse
from typing import Any

import multifold


class Exp:
    """Multiplies by its base; written for arrays of any framework, and for rows."""

    def __init__(self, base: int) -> None:
        self.base = base

    def times(self, x: Any) -> Any:
        """Return one more power for each row: ``(n,) -> (n,)``."""
        return x * self.base


def powers(fold: multifold.Fold, length: int) -> list[multifold.Node]:
    """Record base ** 1, ..., base ** length, each from the one before."""
    nodes = []
    x = 1
    for _ in range(length):
        x = fold.add("times", x)
        nodes.append(x)
    return nodes


def main() -> None:
    """Print the powers of one chain, then run three chains of different lengths together."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="numpy")
    parser.add_argument("--base", type=int, default=2)
    arguments = parser.parse_args()
    to_numpy = multifold.load_backend(arguments.backend).to_numpy
    model = Exp(arguments.base)

    fold = multifold.Fold(backend=arguments.backend)
    (values,) = fold.apply(model, [powers(fold, 4)])
    print(f"powers of {arguments.base}:", to_numpy(values).tolist())

    fold.reset()
    lasts = [powers(fold, length)[-1] for length in (2, 6, 3)]
    (values,) = fold.apply(model, [lasts])
    print("powers 2, 6 and 3:", to_numpy(values).tolist())
    print(fold.schedule([lasts]))


if __name__ == "__main__":
    main()
