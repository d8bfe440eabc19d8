"""A child-sum Tree-LSTM as it is published, for one tree at a time, trained on many trees at once.

python examples/plain_tree_lstm.py [--steps 5]

The model is that of https://github.com/dasguptar/treelstm.pytorch, and `multifold.batched` the only line
that knows of multifold. Each step of training is compared with the loop over the trees.
"""

import argparse
import random

import torch

import multifold


class ChildSumTreeLSTM(torch.nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.width = width
        self.emb = torch.nn.Embedding(words, width)
        self.ioux = torch.nn.Linear(width, 3 * width)
        self.iouh = torch.nn.Linear(width, 3 * width)
        self.fx = torch.nn.Linear(width, width)
        self.fh = torch.nn.Linear(width, width)
        self.out = torch.nn.Linear(width, 5)

    def node_forward(self, inputs, child_c, child_h):
        child_h_sum = torch.sum(child_h, dim=0, keepdim=True)
        iou = self.ioux(inputs) + self.iouh(child_h_sum)
        i, o, u = torch.split(iou, iou.size(1) // 3, dim=1)
        i, o, u = torch.sigmoid(i), torch.sigmoid(o), torch.tanh(u)
        f = torch.sigmoid(self.fh(child_h) + self.fx(inputs).repeat(len(child_h), 1))
        c = torch.mul(i, u) + torch.sum(torch.mul(f, child_c), dim=0, keepdim=True)
        return c, torch.mul(o, torch.tanh(c))

    def encode(self, tree):
        word, *children = tree
        inputs = self.emb(torch.tensor([word]))
        states = [self.encode(child) for child in children]
        if states:
            child_c, child_h = (torch.cat(parts, dim=0) for parts in zip(*states, strict=True))
        else:
            child_c = child_h = torch.zeros(1, self.width)
        return self.node_forward(inputs, child_c, child_h)

    def forward(self, tree):
        return self.out(self.encode(tree)[1])


def random_tree(chance, words, depth=5):
    children = chance.randrange(0, 4) if depth else 0
    return chance.randrange(words), *[random_tree(chance, words, depth - 1) for _ in range(children)]


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("steps", 5), ("trees", 64), ("width", 64)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    torch.manual_seed(0)
    chance = random.Random(0)
    trees = [random_tree(chance, 100) for _ in range(asked.trees)]
    labels = torch.randint(5, (asked.trees,))
    model = ChildSumTreeLSTM(100, asked.width)
    run = multifold.batched(model, cells=[ChildSumTreeLSTM.node_forward], join="cat")
    optimizer = torch.optim.Adagrad(run.parameters(), lr=0.05)
    for _ in range(asked.steps):
        logits = run(trees)
        torch.testing.assert_close(logits, torch.cat([model(tree) for tree in trees]))
        loss = torch.nn.functional.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"loss {loss.item():.3f}, equal to the loop")
    print(f"{len(run.explain())} launches for {asked.trees} trees")


if __name__ == "__main__":
    main()
