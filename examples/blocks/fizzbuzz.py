"""Fizz for multiples of 3, buzz for multiples of 5: a network that reads the digits of a number.

python examples/blocks/fizzbuzz.py [--backend torch] [--epochs 40] [--out fizzbuzz-run]

It is asked for numbers that it has not seen. A state is led from digit to digit, so numbers of any length
share their launches: one for each place.
"""

import argparse

import numpy as np

from multifold import ops
from multifold_bench.train import LabelledTask, train
from multifold_compat.blocks import (
    FC,
    Concat,
    Embedding,
    Fold,
    Function,
    InputTransform,
    Layers,
    Map,
    Scalar,
    Zeros,
)

WIDTH = 32
WORDS = ["number", "fizz", "buzz", "fizzbuzz"]


def answer(n):
    return (n % 3 == 0) + 2 * (n % 5 == 0)


def fizzbuzz():
    digit = InputTransform(int) >> Scalar("int") >> Function(Embedding(10, WIDTH))
    cell = Concat() >> Function(FC(4 * WIDTH)) >> Function(FC(WIDTH, ops.tanh))
    digits = InputTransform(str) >> InputTransform(list) >> Map(digit) >> Fold(cell, Zeros(WIDTH))
    return digits >> Function(FC(len(WORDS), activation=None))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--numbers", type=int, default=4000)
    parser.add_argument("--out", default="fizzbuzz-run")
    arguments = parser.parse_args()

    order = np.random.default_rng(0).permutation(np.arange(100, arguments.numbers)).tolist()
    tenth = arguments.numbers // 10
    short = 20 * [*range(100)]  # they say what one more digit does to a state, so they come more often
    numbers = {"dev": order[:tenth], "test": order[tenth : 2 * tenth], "train": short + order[2 * tenth :]}
    parts = {part: [(n, answer(n)) for n in some] for part, some in numbers.items()}
    block = fizzbuzz()
    task = LabelledTask(
        "fizzbuzz", block, lambda seed: Layers(block, seed=seed), parts,
        classes=len(WORDS), epochs=arguments.epochs,
    )  # fmt: skip
    result = train(task, arguments.out, arguments.backend, on_epoch=lambda x: print(x["epoch"], x["dev"]))
    print(f"accuracy on new numbers: {result.test['accuracy']:.2f}")
