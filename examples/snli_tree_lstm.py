"""Does one sentence imply another? A binary Tree-LSTM over both parses, on files of SNLI's format.

python examples/snli_tree_lstm.py [--jsonl snli_1.0_train.jsonl --count 1000 --width 100]

Without a file it trains on the few pairs beside it.
"""

import argparse
import itertools
from pathlib import Path

import torch

import multifold
from multifold_bench.datasets import WordIds, postorder, snli


class TreeLSTM(torch.nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embed = torch.nn.Embedding(words, 2 * width)
        self.gates = torch.nn.Linear(2 * width, 5 * width)
        self.classes = torch.nn.Linear(2 * width, len(snli.LABELS))

    def leaf(self, word):  # (n,) integers
        return self.embed(word).chunk(2, dim=1)

    def compose(self, left_h, left_c, right_h, right_c):  # four of shape (n, width)
        gates = self.gates(torch.cat([left_h, right_h], dim=1)).chunk(5, dim=1)
        i, left, right, o = (torch.sigmoid(gate) for gate in gates[:4])
        c = i * torch.tanh(gates[4]) + left * left_c + right * right_c
        return o * torch.tanh(c), c

    def logits(self, premise, hypothesis):
        return self.classes(torch.cat([premise, hypothesis], dim=1))


def encode(fold, tree, words):
    """Record one sentence and return both of its states."""
    if tree.word is not None:
        return fold.add("leaf", words[tree.word]).split(2)
    left = encode(fold, tree.left, words)
    right = encode(fold, tree.right, words)
    return fold.add("compose", *left, *right).split(2)


def record(fold, pairs, words):
    """Record a minibatch and return what is asked for: the logits and labels of all pairs."""
    sides = [[encode(fold, x, words)[0] for x in (pair.premise, pair.hypothesis)] for pair in pairs]
    return [[fold.add("logits", *side) for side in sides], [pair.label for pair in pairs]]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jsonl", default=Path(__file__).with_name("snli_small.jsonl"))
    parser.add_argument("--count", type=int, default=1000, help="how many pairs are read")
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--steps", type=int, default=30)
    a = parser.parse_args()
    pairs = list(itertools.islice(snli.read(a.jsonl), a.count))
    trees = [tree for pair in pairs for tree in (pair.premise, pair.hypothesis)]
    words = WordIds(x.word for tree in trees for x in postorder(tree) if x.word is not None)
    torch.manual_seed(0)
    model = TreeLSTM(len(words), a.width)
    losses = []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batches = [pairs[i : i + 64] for i in range(0, len(pairs), 64)]
    for batch in itertools.islice(itertools.cycle(batches), a.steps):
        fold = multifold.Fold(backend="torch")
        logits, labels = fold.apply(model, record(fold, batch, words))
        losses.append(torch.nn.functional.cross_entropy(logits, labels))
        optimizer.zero_grad()
        losses[-1].backward()
        optimizer.step()
    print(
        f"{len(pairs)} pairs, {len(words)} words; the last minibatch in {len(fold.schedule())} "
        f"calls of the model instead of {len(fold)}"
    )
    print(f"loss {losses[0]:.3f} to {losses[-1]:.3f} in {a.steps} steps")
    fold.check(model, record(fold, batch, words))
    print("equal to one call at a time, in values and gradients")
