"""A model and a task of one's own, trained from Python on any framework: which formulas are true?

python examples/train_formulas.py [--backend torch] [--out formulas-run]
"""

import argparse

import numpy as np

from multifold import ops
from multifold.models import Model
from multifold.models.layers import Initial, linear
from multifold_bench.train import Choice, TrainingTask, train
from multifold_bench.train.metrics import accuracy

MEANING = {"and": lambda x, y: x and y, "or": lambda x, y: x or y, "implies": lambda x, y: y or not x}


class Logic(Model):  # written once; `train` asks it to be a torch.nn.Module, a tf.Module, ...
    def __init__(self, width, seed):
        initial = Initial(seed, "float32")
        parameters = {"truth": initial.embedding(2, width), **initial.linear("output", width, 2)}
        for name in MEANING:
            parameters |= initial.linear(f"gates.{name}", 2 * width, width)
        super().__init__(parameters)

    def value(self, x):  # (n,) integers
        return ops.take(self.truth, x)

    def gate(self, left, right, *, name):  # two arrays of shape (n, width)
        return ops.tanh(linear(getattr(self.gates, name), ops.concat([left, right], axis=1)))

    def logits(self, h):
        return linear(self.output, h)


def draw(rng, size):
    """Return a random formula: 0, 1 or (name, formula, formula)."""
    if size == 1:
        return int(rng.integers(2))
    left = rng.integers(1, size)
    return list(MEANING)[rng.integers(len(MEANING))], draw(rng, left), draw(rng, size - left)


def truth(formula):
    return formula if isinstance(formula, int) else int(MEANING[formula[0]](*map(truth, formula[1:])))


class Formulas(TrainingTask):
    name = "formulas"
    criterion = "accuracy"
    models = {"logic": Choice(lambda task, width, seed: Logic(width, seed), width=16)}  # noqa: RUF012

    def record(self, model, fold, formula):
        def encode(part):
            if isinstance(part, int):
                return fold.add("value", part)
            return fold.add("gate", encode(part[1]), encode(part[2]), name=part[0])

        return [fold.add("logits", encode(formula))]

    def targets(self, model, formula):
        return np.eye(2)[[truth(formula)]]

    def scores(self, formulas, outputs):
        predicted = np.concatenate(outputs).argmax(axis=1)
        return {"accuracy": accuracy(predicted, np.array([*map(truth, formulas)]))}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--out", default="formulas-run")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    sizes = {part: rng.integers(2, 9, k) for part, k in {"train": 500, "dev": 100, "test": 100}.items()}
    task = Formulas({part: [draw(rng, int(n)) for n in drawn] for part, drawn in sizes.items()})
    result = train(task, arguments.out, arguments.backend, on_epoch=lambda x: print(x["epoch"], x["dev"]))
    print(f"best epoch {result.best}, test accuracy {result.test['accuracy']:.2f}")
