"""Digits, fed one image at a time: the model is written for one, and runs on a minibatch of them.

python examples/mnist.py [--images train-images-idx3-ubyte.gz --labels train-labels-idx1-ubyte.gz]

Without files it reads scikit-learn's digits. Runs the same steps one image at a time and folded.
"""

import argparse
import itertools
import time

import torch

import multifold
from multifold_bench.datasets import idx


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(1, 8, 3)
        self.second = torch.nn.Conv2d(8, 16, 3)
        self.logits = torch.nn.Linear(16 * 3 * 3, 10)

    def features(self, image):  # (n, 1, height, width) -> (n, 144)
        x = torch.relu(self.second(torch.relu(self.first(image))))
        return torch.nn.functional.adaptive_max_pool2d(x, 3).flatten(1)


def read(images, labels, count):
    """Return pairs of an image, a tensor of shape (1, 1, height, width), and its class."""
    if images or labels:
        pairs = ((digit.image / 255, digit.label) for digit in idx.read(images, labels))
    else:
        from sklearn.datasets import load_digits

        digits = load_digits()
        pairs = zip(digits.images / 16, digits.target.tolist(), strict=True)
    return [(torch.tensor(x)[None, None].float(), y) for x, y in itertools.islice(pairs, count)]


def alone(model, images):
    return torch.cat([model.logits(model.features(image)) for image in images])


def folded(model, images):
    fold = multifold.Fold(backend="torch")
    return fold.apply(model, [[fold.add("logits", fold.add("features", x)) for x in images]])[0]


def run(logits, batches, train):
    """Return the seconds that all minibatches take on a fresh model, and the loss of each."""
    torch.manual_seed(0)
    model = Net()
    losses = []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    start = time.perf_counter()
    for images, labels in batches:
        with torch.set_grad_enabled(train):
            loss = torch.nn.functional.cross_entropy(logits(model, images), torch.tensor(labels))
        if train:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    return time.perf_counter() - start, torch.tensor(losses)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--images", help="an IDX file of images, gzipped or not")
    parser.add_argument("--labels", help="the IDX file of their labels")
    parser.add_argument("--count", type=int, default=1500)
    pairs = read(**vars(parser.parse_args()))
    batches = [list(zip(*pairs[i : i + 100], strict=True)) for i in range(0, len(pairs), 100)]
    run(folded, batches[:1], train=True)  # the first step of a process does work of its own
    for name, train in (("forward", False), ("training", True)):
        slow, expected = run(alone, batches, train)
        fast, losses = run(folded, batches, train)
        print(f"{name}: {slow:.2f} s one at a time, {fast:.2f} s folded, {slow / fast:.1f} times")
        torch.testing.assert_close(losses, expected, rtol=1e-3, atol=1e-3)
    print(f"equal losses, from {losses[0]:.2f} to {losses[-1]:.2f} on {len(pairs)} images")
