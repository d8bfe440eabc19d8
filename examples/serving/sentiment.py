"""What both front ends serve: the sentiment of a sentence, given as a tree of its words.

A tree is a word or a pair of trees, as JSON has them: ``["It", ["'s", "lovely"]]``. The weights are random
unless a file of `multifold train` is given, and words have the numbers of their hashes, since this is about
serving.
"""

import random
import zlib

import multifold
from multifold import ops
from multifold.models import BinaryTreeLSTM

WORDS = 10_000
CLASSES = ("very negative", "negative", "neutral", "positive", "very positive")
MOST = 500
"""The words that a request may have; its calls are twice as many."""


def random_tree(words, draw):
    """Return a tree of so many words."""
    if words == 1:
        return "word"
    left = draw.randrange(1, words)
    return [random_tree(left, draw), random_tree(words - left, draw)]


EXAMPLES = [random_tree(1 + number % 25, random.Random(number)) for number in range(200)]
"""Trees to warm up with: what requests look like, small and large, as many as may be under way at once."""


def check(tree):
    """Return how many words a tree has; raise ValueError for what is no tree."""
    if isinstance(tree, str):
        return 1
    if not (isinstance(tree, list) and len(tree) == 2):
        raise ValueError(f"Expected a word or a pair of trees. Received {tree!r:.100}.")
    return check(tree[0]) + check(tree[1])


def encode(fold, tree):
    """Record a tree; return its state (h, c)."""
    if isinstance(tree, str):
        return fold.add("leaf", zlib.crc32(tree.encode()) % WORDS).split(2)
    return fold.add("children", *encode(fold, tree[0]), *encode(fold, tree[1])).split(2)


def classify(fold, tree):
    """Record what a request asks for: the probability of each class."""
    logits = fold.add("logits", encode(fold, tree)[0])
    return fold.add(probabilities, logits)


def probabilities(logits):
    return ops.softmax(logits, axis=1)


def make_server(backend="numpy", weights=None, **options):
    """Return a server of the model; the options are those of `multifold.Server`."""
    model = BinaryTreeLSTM(WORDS, width=64, classes=len(CLASSES))
    if weights is not None:
        model.load(weights)
    return multifold.Server(model.on(backend), classify, backend=backend, **options)


def answer(found):
    """Return what a caller is told: the most likely class, and the probabilities of all."""
    return {"class": CLASSES[int(found[0].argmax())], "probabilities": found[0].tolist()}
