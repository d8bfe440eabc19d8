"""A network that learns to calculate: expressions such as (3 + (4 * 7)), of which it sees the last digit.

python examples/blocks/calculator.py [--backend torch] [--epochs 25] [--out calculator-run]

The block is a recursion over the expression: a digit is a row of a table, an operation a layer of its own
over the states of both sides. TensorFlow Fold's calculator was of this kind.
"""

import argparse

import numpy as np

from multifold import ops
from multifold_bench.train import LabelledTask, train
from multifold_compat.blocks import (
    FC,
    Concat,
    Embedding,
    ForwardDeclaration,
    Function,
    GetItem,
    Layers,
    OneOf,
    Record,
    Scalar,
)

MEANING = {"+": lambda x, y: x + y, "-": lambda x, y: x - y, "*": lambda x, y: x * y}
WIDTH = 32


def value(expression):
    if isinstance(expression, int):
        return expression
    return MEANING[expression[0]](*map(value, expression[1:]))


def draw(rng, digits):
    """Return a random expression of some digits: an int, or (operation, expression, expression)."""
    if digits == 1:
        return int(rng.integers(10))
    left = int(rng.integers(1, digits))
    return "+-*"[rng.integers(3)], draw(rng, left), draw(rng, digits - left)


def calculator():
    expression = ForwardDeclaration(output_type=WIDTH)
    sides = Record([(1, expression()), (2, expression())]) >> Concat()
    compute = {name: sides >> Function(FC(4 * WIDTH)) >> Function(FC(WIDTH, ops.tanh)) for name in MEANING}
    digit = Scalar("int") >> Function(Embedding(10, WIDTH))
    expression.resolve_to(OneOf(type, {int: digit, tuple: OneOf(GetItem(0), compute)}))
    return expression() >> Function(FC(10, activation=None))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--examples", type=int, default=8000)
    parser.add_argument("--out", default="calculator-run")
    arguments = parser.parse_args()

    rng = np.random.default_rng(0)
    drawn = {}
    while len(drawn) < arguments.examples + 1500:  # each expression once: none for testing is trained on
        expression = draw(rng, int(rng.integers(2, 6)))
        drawn[expression] = value(expression) % 10
    pairs = [*drawn.items()]
    parts = {"test": pairs[-1000:], "dev": pairs[-1500:-1000], "train": pairs[:-1500]}
    block = calculator()
    print(block)
    task = LabelledTask(
        "calculator", block, lambda seed: Layers(block, seed=seed), parts,
        classes=10, epochs=arguments.epochs,
    )  # fmt: skip
    result = train(task, arguments.out, arguments.backend, on_epoch=lambda x: print(x["epoch"], x["dev"]))
    print(f"accuracy on 1,000 expressions that it has not seen: {result.test['accuracy']:.3f}")
