"""From a loop to all of the speed, one step at a time, on one model: a binary Tree-LSTM in training.

python examples/from_your_loop.py [--trees 128] [--width 100] [--rounds 7]

Each step is compared with the loop, values and gradients, before it is timed; times are medians of rounds
that take turns. docs/from-your-loop.md explains the steps.
"""

import argparse
import random
import statistics
import time

import torch

import multifold


class TreeLSTM(torch.nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embed = torch.nn.Embedding(words, 2 * width)
        self.gates = torch.nn.Linear(2 * width, 5 * width)
        self.logits = torch.nn.Linear(width, 5)

    def leaf(self, word):
        return self.embed(word).chunk(2, dim=1)

    def compose(self, left_h, left_c, right_h, right_c):
        i, left, right, o, u = self.gates(torch.cat([left_h, right_h], dim=1)).chunk(5, dim=1)
        c = torch.sigmoid(i) * torch.tanh(u)
        c = c + torch.sigmoid(left) * left_c + torch.sigmoid(right) * right_c
        return torch.sigmoid(o) * torch.tanh(c), c

    def node(self, tree):
        if isinstance(tree, int):
            return self.leaf(torch.tensor([tree]))
        return self.compose(*self.node(tree[0]), *self.node(tree[1]))

    def forward(self, tree):
        return self.logits(self.node(tree)[0])


def random_tree(leaves, words):
    if leaves == 1:
        return random.randrange(words)
    left = random.randrange(1, leaves)
    return random_tree(left, words), random_tree(leaves - left, words)


def encode(fold, tree):
    """Record a tree by calls that name the methods of the model."""
    if isinstance(tree, int):
        return fold.add("leaf", tree).split(2)
    return fold.add("compose", *encode(fold, tree[0]), *encode(fold, tree[1])).split(2)


def score(fold, tree):
    return fold.add("logits", encode(fold, tree)[0])


def steps(model, trees):
    """Return what computes the logits of all trees, by name, and how many calls of the model each makes."""
    cells = [TreeLSTM.leaf, TreeLSTM.compose]
    no_cells = multifold.batched(model, cells=(), join="cat")
    as_it_stands = multifold.batched(model, join="cat")
    two_cells = multifold.batched(model, cells=cells, join="cat")
    kept, plain = two_cells.traces(trees), as_it_stands.traces(trees)
    traces = multifold.traces(score, trees)
    return {
        "the loop": lambda: torch.cat([model(tree) for tree in trees]),
        "batched(model, cells=())": lambda: no_cells(trees),
        "batched(model)": lambda: as_it_stands(trees),
        "... cells=[leaf, compose]": lambda: two_cells(trees),
        "batched(model), replayed": lambda: as_it_stands.replay(plain),
        "... two cells, replayed": lambda: two_cells.replay(kept),
        "fold.add": lambda: multifold.Fold(backend="torch").run(model, trees, score),
        "fold.add, traces": lambda: multifold.Fold(backend="torch").run(model, traces),
    }


def gradients(model, compute, labels):
    """Run one step of training; return the loss and the gradients."""
    model.zero_grad()
    loss = torch.nn.functional.cross_entropy(compute(), labels)
    loss.backward()
    return [loss.detach(), *[x.grad.clone() for x in model.parameters()]]


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("trees", 128), ("width", 100), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    trees = [random_tree(random.randrange(10, 28), 1000) for _ in range(asked.trees)]
    model = TreeLSTM(1000, asked.width)
    labels = torch.randint(5, (len(trees),))
    found = steps(model, trees)
    wanted = gradients(model, found["the loop"], labels)
    for name, compute in found.items():
        for x, y in zip(gradients(model, compute, labels), wanted, strict=True):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-6, msg=f"{name} differs from the loop")
    times = {name: [] for name in found}
    for _ in range(asked.rounds):
        for name, compute in found.items():
            began = time.perf_counter()
            gradients(model, compute, labels)
            times[name].append(time.perf_counter() - began)
    loop = statistics.median(times["the loop"])
    for name, own in times.items():
        print(f"{name:26} {1e3 * statistics.median(own):7.1f} ms {loop / statistics.median(own):6.1f} x")


if __name__ == "__main__":
    main()
