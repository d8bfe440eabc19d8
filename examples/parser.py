"""A greedy shift-reduce parser: what it does next is what its own scores say.

python examples/parser.py [--backend torch] [--data trees/train.txt]

SPINN with predicted transitions. In training the scores of shift and reduce are learned along the known
parse, the class of a sentence along the parse that the parser finds by itself, so gradients go through
what was awaited. Reads a file of the Stanford Sentiment Treebank or, without one, the syntax trees of
functions in the standard library, whose class is the first word of their name.
"""

import argparse
import itertools
import time
from collections import Counter
from typing import NamedTuple

import numpy as np

import multifold
from multifold import ops
from multifold_bench.datasets import WordIds, postorder, python_ast, sst
from multifold_bench.models import ShiftReduceParser
from multifold_bench.models.shift_reduce import REDUCE, SHIFT

LONGEST = 40


class Sentence(NamedTuple):
    words: list
    transitions: list  # of the known parse
    label: int


def read(path, count):
    """Return sentences with their parses and classes, and the number of different words."""
    if path is not None:
        trees = list(itertools.islice(((tree, tree.label) for tree in sst.read(path)), count))
    else:
        functions = list(itertools.islice(python_ast.read(), count))
        common = [word for word, _ in Counter(function.word for function in functions).most_common(4)]
        trees = [(x.tree, common.index(x.word) if x.word in common else 4) for x in functions]
    found = []
    for tree, label in trees:
        words = []
        transitions = []
        for node in postorder(tree):  # a node with more than two parts joins them from the right
            if node.children:
                transitions += [REDUCE] * (len(node.children) - 1)
            else:
                words.append(getattr(node, "word", None) or node.name)
                transitions.append(SHIFT)
        if 2 < len(words) <= LONGEST:  # with two words there is nothing to decide
            found.append((words, transitions, label))
    vocabulary = WordIds(word for words, *_ in found for word in words)
    return [Sentence([vocabulary[w] for w in words], *rest) for words, *rest in found], len(vocabulary)


async def learn(fold, sentence):
    """Record what the loss reads: scores along the known parse, the class along the parser's own."""
    known = await ShiftReduceParser.parse(fold, sentence.words, follow=sentence.transitions)
    own = await ShiftReduceParser.parse(fold, sentence.words)
    return {"scores": known.scores, "right": known.taken, "class": fold.add("logits", own.h)}


async def understand(fold, sentence):
    parsed = await ShiftReduceParser.parse(fold, sentence.words)
    return {"class": fold.add("logits", parsed.h), "transitions": parsed.transitions}


def phrases(transitions):
    """Return which words are joined: pairs of the first and the last."""
    stack = []
    found = set()
    words = 0
    for transition in transitions:
        if transition == SHIFT:
            stack.append((words, words))
            words += 1
        else:
            right = stack.pop()
            left = stack.pop()
            stack.append((left[0], right[1]))
            found.add(stack[-1])
    return found


class Training:
    """A model in training, by any framework: its gradients, and Adagrad in NumPy."""

    def __init__(self, backend, model):
        self.backend = backend
        self.model = model
        self.sums = dict.fromkeys(model.weights(), 0.01)

    def gradients(self, recorder, sentences):
        """Return the loss and its gradients, by a fold or by its eager twin."""
        backend = self.backend
        labels = [sentence.label for sentence in sentences]

        def loss(model):
            found = recorder(model).run(model, sentences, learn)
            right = backend.to_numpy(found["right"]).astype(int)
            decided = backend.kit.dot(ops.log_softmax(found["scores"], axis=1), np.eye(2)[right])
            named = backend.kit.dot(ops.log_softmax(found["class"], axis=1), np.eye(5)[labels])
            return -(decided / len(right) + named / len(labels))

        value, gradients = backend.kit.value_and_grad(loss, self.model)
        to_numpy = backend.to_numpy
        return float(to_numpy(value)), {name: to_numpy(x) for name, x in gradients.items()}

    def step(self, gradients, rate=0.05):
        weights = self.model.weights()
        for name, gradient in gradients.items():
            self.sums[name] = self.sums[name] + gradient**2
            weights[name] = weights[name] - rate * gradient / np.sqrt(self.sums[name])
        self.model.assign(weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--data", help="a file of sentiment trees; functions of Python by default")
    parser.add_argument("--count", type=int, default=1024, help="trees that are read")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument(
        "--batch", type=int, default=64, help="trees in a minibatch; the first is kept for tests"
    )
    arguments = parser.parse_args()
    backend = multifold.load_backend(arguments.backend)
    sentences, vocabulary = read(arguments.data, arguments.count)
    order = np.random.default_rng(0).permutation(len(sentences))
    test, *batches = (
        [sentences[i] for i in rows]
        for rows in np.split(order, range(arguments.batch, len(order), arguments.batch))
    )
    model = ShiftReduceParser(vocabulary, arguments.width, classes=5).on(backend)
    training = Training(backend, model)

    def fold(model=None):
        return multifold.Fold(backend=backend)

    def twin(model):
        return multifold.Unfold(model, backend=backend)

    def timed(function, *given):
        start = time.perf_counter()
        result = function(*given)
        return result, time.perf_counter() - start

    losses = []
    for batch in batches:
        loss, gradients = training.gradients(fold, batch)
        training.step(gradients)
        losses.append(loss)
    print(f"trained on {len(sentences) - len(test)} trees, loss from {losses[0]:.2f} to {losses[-1]:.2f}")

    recorder = fold()
    found, folded = timed(recorder.run, model, test, understand)
    alone, looped = timed(twin(model).run, None, test, understand)
    transitions = backend.to_numpy(found["transitions"]).tolist()
    assert transitions == backend.to_numpy(alone["transitions"]).tolist()
    to_numpy = backend.to_numpy
    np.testing.assert_allclose(to_numpy(found["class"]), to_numpy(alone["class"]), rtol=1e-3, atol=1e-4)
    right = total = 0
    for sentence in test:
        own = [transitions.pop(0) for _ in sentence.transitions]
        right += len(phrases(own) & phrases(sentence.transitions))
        total += len(sentence.words) - 1
    print(f"{right / total:.0%} of the phrases of {len(test)} other trees are found")
    rounds = recorder.explain()
    print(f"{len(rounds.calls):,} calls in {len(rounds.rounds)} rounds, {len(rounds)} launches")
    print(f"the same parses as one at a time, {looped / folded:.1f} times as fast")

    (_, gradients), folded = timed(training.gradients, fold, test)
    (_, expected), looped = timed(training.gradients, twin, test)
    for name, gradient in expected.items():
        np.testing.assert_allclose(gradients[name], gradient, rtol=1e-2, atol=1e-4)
    print(f"the same gradients as one at a time, {looped / folded:.1f} times as fast")


if __name__ == "__main__":
    main()
