"""Sentiment of every phrase of a sentence: a binary Tree-LSTM, said as a recursion over the tree.

python examples/blocks/sentiment.py [--backend torch] [--epochs 5] [--data FOLDER] [--out sentiment-run]

--data is the folder of the Stanford Sentiment Treebank, with train.txt, dev.txt and test.txt. Without it
the trees are made up, of good and bad words and of "not", which turns what follows it around.
"""

import argparse

import numpy as np

from multifold.models import BinaryTreeLSTM
from multifold_bench.train import Choice, TrainingTask, train
from multifold_bench.train.metrics import accuracy
from multifold_bench.train.tasks import find
from multifold_compat.blocks import (
    AllOf,
    ForwardDeclaration,
    Function,
    GetItem,
    Identity,
    Metric,
    Metrics,
    OneOf,
    Record,
    Scalar,
)

CLASSES = 5


class Sentiment(BinaryTreeLSTM):
    def join(self, left, right):  # two states, each a pair of arrays of shape (n, width)
        return self.children(*left, *right)


def sentiment(width):
    """A tree is (label, word) or (label, tree, tree). Each phrase notes the scores of its classes."""
    tree = ForwardDeclaration(output_type=(width, width))
    word = GetItem(1) >> Scalar("int") >> Function("leaf", out=(width, width))
    phrase = Record([(1, tree()), (2, tree())]) >> Function("join", out=(width, width))
    noted = AllOf(Identity(), GetItem(0) >> Function("logits", out=CLASSES) >> Metric("scores")) >> GetItem(
        0
    )
    return tree.resolve_to(OneOf(len, {2: word, 3: phrase}) >> noted)


def labels(tree):
    """Return the labels in the order in which the block notes scores: both sides, then the phrase."""
    return [label for part in tree[1:] if isinstance(part, tuple) for label in labels(part)] + [tree[0]]


def made_up(rng, words):
    """Return a random tree: words 0 to 3 are bad, 4 to 7 good, 8 is neutral and 9 is "not"."""
    if words == 1:
        word = int(rng.integers(9))
        return (1, word) if word < 4 else (3, word) if word < 8 else (2, word)
    if rng.random() < 0.3:
        part = made_up(rng, words - 1)
        return (4 - part[0], (2, 9), part)
    left = int(rng.integers(1, words))
    sides = made_up(rng, left), made_up(rng, words - left)
    return (int(np.clip(sides[0][0] + sides[1][0] - 2, 0, 4)), *sides)


class Phrases(TrainingTask):
    name = "phrases"
    criterion = "root"

    def __init__(self, parts, vocabulary, **proposed):
        super().__init__(parts)
        self.vocabulary = vocabulary
        self.proposed = proposed
        self.models = {"tree-lstm": Choice(self.make, 32)}

    def make(self, task, width, seed):
        return Sentiment(self.vocabulary, width, CLASSES, seed=seed)

    def model(self, settings):
        self.block = Metrics(sentiment(settings.width))
        return super().model(settings)

    def record(self, model, fold, tree):
        return self.block(fold, tree)[1]["scores"].value

    def targets(self, model, tree):
        return np.eye(CLASSES)[labels(tree)]

    def scores(self, trees, outputs):
        found = [rows.argmax(axis=1) for rows in outputs]
        gold = [np.array(labels(tree)) for tree in trees]
        roots = np.array([rows[-1] for rows in found]), np.array([rows[-1] for rows in gold])
        return {
            "root": accuracy(*roots),
            "all phrases": accuracy(np.concatenate(found), np.concatenate(gold)),
        }


def of_treebank(task, node):
    if node.word is not None:
        return (node.label, task.word(node))
    return (node.label, *[of_treebank(task, child) for child in node.children])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--trees", type=int, default=600)
    parser.add_argument("--data")
    parser.add_argument("--out", default="sentiment-run")
    arguments = parser.parse_args()

    if arguments.data:
        bank = find("sst")(arguments.data)
        parts = {part: [of_treebank(bank, tree) for tree in trees] for part, trees in bank.parts.items()}
        vocabulary = len(bank.words) + 1
    else:
        rng = np.random.default_rng(0)
        vocabulary = 10
        sizes = {"train": arguments.trees, "dev": 100, "test": 100}
        parts = {part: [made_up(rng, int(n)) for n in rng.integers(2, 9, k)] for part, k in sizes.items()}
    task = Phrases(parts, vocabulary, epochs=arguments.epochs, schedule="cosine")
    result = train(task, arguments.out, arguments.backend, on_epoch=lambda x: print(x["epoch"], x["dev"]))
    print("test", {name: round(score, 3) for name, score in result.test.items()})
