"""Beam search: the hypotheses of all beams of all examples share the launches of a decoder.

python examples/beam_search.py [--beam 4] [--data FOLDER]

The decoder learns how functions are called, character by character, from the names in the standard library
or in a folder of Python files. Then it completes names: `await fold.values(...)` brings the
log-probabilities of an example's hypotheses to the host, where the best go on. Compares with the loop.
"""

import argparse
import random
import time

import numpy as np
import torch

import multifold
from multifold_bench.datasets import python_ast

LETTERS = "\n_abcdefghijklmnopqrstuvwxyz"  # "\n" begins and ends a name
LONGEST = 24


class Decoder(torch.nn.Module):
    def __init__(self, width=128):
        super().__init__()
        self.embedding = torch.nn.Embedding(len(LETTERS), 32)
        self.cell = torch.nn.LSTMCell(32, width)
        self.scores = torch.nn.Linear(width, len(LETTERS))
        self.width = width

    def begin(self):  # one row, for all that begin
        return torch.zeros(1, self.width), torch.zeros(1, self.width)

    def step(self, letter, h, c):  # (n,), 2 * (n, width) -> 2 * (n, width), (n, letters)
        h, c = self.cell(self.embedding(letter), (h, c))
        return h, c, torch.log_softmax(self.scores(h), dim=1)


def read_names(path):
    """Return the distinct names of functions that are written with small letters only."""
    names = dict.fromkeys(function.name.strip("_") for function in python_ast.read(path))
    return [name for name in names if 3 <= len(name) < LONGEST and set(name) <= set(LETTERS)]


def train(model, names, epochs):
    """Each name has a length of its own: no padding, no masks."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    fold = multifold.Fold(backend="torch")

    def read(fold, name):
        h, c = fold.add("begin").split(2)
        said = []
        for letter in "\n" + name:
            h, c, scores = fold.add("step", LETTERS.index(letter), h, c).split(3)
            said.append(scores)
        return said, [LETTERS.index(letter) for letter in name + "\n"]

    for _ in range(epochs):
        random.shuffle(names)
        for first in range(0, len(names), 64):
            said, right = fold.run(model, names[first : first + 64], read)
            loss = torch.nn.functional.nll_loss(said, right)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return loss.item()


def extend(beam, scored, done, width):
    """Return the best continuations that are no whole names yet, with their states; none at the end."""
    found = []
    going = []
    for (score, text, state), scores in zip(beam, scored, strict=True):
        for k in np.argsort(-scores)[:width]:
            found.append((score + scores[k].item(), text + LETTERS[k], state))
    for score, text, state in sorted(found, key=lambda x: x[:2], reverse=True)[:width]:
        if text.endswith("\n") or len(text) >= LONGEST:
            done.append((score, text.strip()))
        else:
            going.append((score, text, state))
    return [] if going and len(done) >= width and max(done)[0] > going[0][0] else going


def completer(width):
    async def complete(fold, start):
        state = fold.add("begin").split(2)
        for letter in "\n" + start:
            *state, scores = fold.add("step", LETTERS.index(letter), *state).split(3)
        beam = [(0.0, start, state)]
        done = []
        scored = [await fold.value(scores)]
        while beam := extend(beam, scored, done, width):
            steps = [fold.add("step", LETTERS.index(x[-1]), *state).split(3) for _, x, state in beam]
            beam = [(score, text, step[:2]) for (score, text, _), step in zip(beam, steps, strict=True)]
            scored = await fold.values([scores for *_, scores in steps])
        score, text = max(done)
        return {"score": score, "letters": [LETTERS.index(letter) for letter in text + "\n"]}

    return complete


def complete_alone(model, start, width):
    """The same without multifold: one hypothesis of one example at a time."""
    state = model.begin()
    for letter in "\n" + start:
        *state, scores = model.step(torch.tensor([LETTERS.index(letter)]), *state)
    beam = [(0.0, start, state)]
    done = []
    scored = [scores[0].numpy()]
    while beam := extend(beam, scored, done, width):
        steps = [model.step(torch.tensor([LETTERS.index(x[-1])]), *state) for _, x, state in beam]
        beam = [(score, text, step[:2]) for (score, text, _), step in zip(beam, steps, strict=True)]
        scored = [scores[0].numpy() for *_, scores in steps]
    return max(done)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", help="a folder of Python files; the standard library by default")
    parser.add_argument("--beam", type=int, default=4)
    parser.add_argument("--names", type=int, default=4000, help="names to learn from")
    parser.add_argument("--count", type=int, default=64, help="names that are completed")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    names = random.sample(found := read_names(arguments.data), min(arguments.names, len(found)))
    model = Decoder()
    loss = train(model, names, epochs=2)

    starts = list(dict.fromkeys(name[:3] for name in names))[: arguments.count]
    fold = multifold.Fold(backend="torch")
    with torch.no_grad():
        start = time.perf_counter()
        found = fold.run(model, starts, completer(arguments.beam))
        folded = time.perf_counter() - start
        rounds = fold.explain()
        start = time.perf_counter()
        alone = [complete_alone(model, text, arguments.beam) for text in starts]
        looped = time.perf_counter() - start
    texts = "".join(LETTERS[i] for i in found["letters"].tolist()).split()
    assert texts == [text for _, text in alone]
    np.testing.assert_allclose(found["score"], [score for score, _ in alone], rtol=1e-4, atol=1e-4)
    print(f"learned from {len(names):,} names, loss {loss:.2f}")
    print(", ".join(f"{start}|{text[3:]}" for start, text in zip(starts, texts, strict=True))[:100])
    print(f"{len(rounds.calls):,} steps of {arguments.beam} hypotheses a name in {len(rounds)} launches")
    print(f"the same names as the loop, {looped / folded:.1f} times as fast")


if __name__ == "__main__":
    main()
