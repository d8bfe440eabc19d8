"""Early exit: each image leaves a deep network at the first exit that is sure of it.

python examples/early_exit.py [--confidence 0.9]

How deep an image goes depends on computed probabilities: `await fold.value(...)` looks at them, and the
images that are still inside go on together. Reads scikit-learn's digits. Compares with the loop over
images, with the whole network for all, and with the loop's own code as it stands: `multifold.batched`.
"""

import argparse
import functools
import time

import torch
from sklearn.datasets import load_digits

import multifold


class Network(torch.nn.Module):
    def __init__(self, depth, width=128):
        super().__init__()
        self.first = torch.nn.Linear(64, width)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(depth))
        self.exits = torch.nn.ModuleList(torch.nn.Linear(width, 10) for _ in range(depth))

    def enter(self, pixels):  # (n, 64) -> (n, width)
        return torch.relu(self.first(pixels))

    def layer(self, x, *, number):  # (n, width) -> (n, width)
        return x + torch.relu(self.layers[number](x))

    def leave(self, x, *, number):  # (n, width) -> (n, 10)
        return torch.softmax(self.exits[number](x), dim=1)


def train(model, pixels, labels, epochs):
    """All exits learn from all images: nothing depends on values here."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    for _ in range(epochs):
        for rows in torch.randperm(len(pixels)).split(64):
            x = model.enter(pixels[rows])
            loss = 0
            for number in range(len(model.layers)):
                x = model.layer(x, number=number)
                exit_scores = model.exits[number](x)
                loss = loss + torch.nn.functional.cross_entropy(exit_scores, labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def classifier(depth, confidence):
    async def classify(fold, pixels):  # one image: (1, 64)
        x = fold.add("enter", pixels)
        for number in range(depth):
            x = fold.add("layer", x, number=number)
            answer = fold.add("leave", x, number=number)
            if (await fold.value(answer)).max() >= confidence:
                break
        return {"answer": answer, "layers": number + 1}

    return classify


def alone(model, pixels, confidence):
    """Return the same for one image, without multifold."""
    x = model.enter(pixels)
    for number in range(len(model.layers)):
        x = model.layer(x, number=number)
        answer = model.leave(x, number=number)
        if answer.max() >= confidence:
            break
    return answer, number + 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--confidence", type=float, default=0.9)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--count", type=int, default=800, help="of the images that are classified")
    arguments = parser.parse_args()
    confidence = arguments.confidence
    depth = arguments.depth
    count = arguments.count
    torch.manual_seed(0)
    digits = load_digits()
    pixels = torch.tensor(digits.data / 16).float()
    labels = torch.tensor(digits.target)
    model = Network(depth)
    train(model, pixels[:-count], labels[:-count], arguments.epochs)

    images = pixels[-count:].split(1)
    fold = multifold.Fold(backend="torch")
    stages = [Network.enter, Network.layer, Network.leave]
    plain = multifold.batched(functools.partial(alone, model), cells=stages, join="list")  # needs greenlet
    with torch.no_grad():
        fold.run(model, images, classifier(depth, confidence))  # the first run does work of its own
        start = time.perf_counter()
        found = fold.run(model, images, classifier(depth, confidence))
        folded = time.perf_counter() - start
        start = time.perf_counter()
        answers, layers = zip(*[alone(model, image, confidence) for image in images], strict=True)
        looped = time.perf_counter() - start
        as_it_stands = plain(images, confidence=confidence)
        everything = fold.run(model, images, classifier(depth, confidence=2.0))
    torch.testing.assert_close(found["answer"], torch.cat(answers), rtol=1e-4, atol=1e-5)
    assert found["layers"].tolist() == list(layers) == [number for _, number in as_it_stands]
    torch.testing.assert_close(torch.cat([answer for answer, _ in as_it_stands]), torch.cat(answers))

    def accuracy(answer):
        return (answer.argmax(dim=1) == labels[-count:]).double().mean().item()

    print(f"{count} images leave after {sum(layers) / count:.1f} of {depth} layers on average,")
    print(f"{accuracy(found['answer']):.1%} of them right; {accuracy(everything['answer']):.1%} behind all")
    print(f"equal to the loop, {looped / folded:.1f} times as fast")


if __name__ == "__main__":
    main()
