"""Digits: a row of grey values and two layers, the smallest model with types that are checked.

python examples/blocks/mnist.py [--backend torch] [--epochs 20] [--data FOLDER] [--out mnist-run]

With --data it reads MNIST's four files, without it scikit-learn's digits of 8 by 8 pixels.
"""

import argparse

from multifold_bench.train import LabelledTask, train
from multifold_bench.train.tasks import find
from multifold_compat.blocks import FC, Function, InputTransform, Layers, Vector


def classifier(pixels, brightest, width=128):
    row = InputTransform(lambda image: image.ravel() / brightest) >> Vector(pixels)
    return row >> Function(FC(width)) >> Function(FC(width)) >> Function(FC(10, activation=None))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--data")
    parser.add_argument("--out", default="mnist-run")
    arguments = parser.parse_args()

    digits = find("digits")(arguments.data)
    parts = {
        part: [(digit.image, int(digit.label)) for digit in some] for part, some in digits.parts.items()
    }
    block = classifier(digits.pixels, digits.brightest)
    print(block)
    task = LabelledTask(
        "mnist", block, lambda seed: Layers(block, seed=seed), parts,
        classes=10, epochs=arguments.epochs,
    )  # fmt: skip
    result = train(task, arguments.out, arguments.backend, on_epoch=lambda x: print(x["epoch"], x["dev"]))
    print(f"test accuracy {result.test['accuracy']:.3f}")
