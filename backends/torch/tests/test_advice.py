"""What `multifold.advise` says of programs of PyTorch."""

from __future__ import annotations

import torch
from torch import nn

import multifold
from multifold._measure.advice import models_of

WORDS = [[1, 2, 3], [4, 5], [6, 7, 8, 9]] * 4


class Reader(nn.Module):
    """Reads words with a GRU that begins with a parameter."""

    def __init__(self):
        super().__init__()
        self.embed, self.cell = nn.Embedding(10, 4), nn.GRUCell(4, 4)
        self.begin = nn.Parameter(torch.zeros(1, 4))

    def step(self, word, state):
        return self.cell(self.embed(word), state)

    def forward(self, words):
        state = self.begin
        for word in words:
            state = self.step(torch.tensor([word]), state)
        return state


class Task:
    """An object that is no module, and holds one."""

    def __init__(self):
        self.model = Reader()

    def run(self, words):
        return self.model(words)


def test_a_function_that_takes_rows_is_named_and_estimated_in_training():
    advice = multifold.advise(Reader(), WORDS)
    assert advice.ops == ["Reader.step"] and advice.trains
    *_, replayed, by_add = advice.ways
    assert (replayed.name, replayed.calls) == (
        "multifold.batched(fn, cells=[Reader.step]), replayed",
        by_add.calls,
    )
    assert (by_add.name, by_add.calls) == ("fold.run, with calls of fold.add", sum(map(len, WORDS)))


class Dropping(Reader):
    def step(self, word, state):
        return nn.functional.dropout(super().step(word, state), 0.5, self.training)


def test_a_model_that_draws_is_foretold_too():
    advice = multifold.advise(Dropping(), WORDS)
    assert [way.name for way in advice.ways[1:]] == [
        "multifold.batched(fn)",
        "multifold.batched(fn), replayed",
        "multifold.batched(fn, cells=[Dropping.step])",
        "multifold.batched(fn, cells=[Dropping.step]), replayed",
        "fold.run, with calls of fold.add",
    ]


def test_parameters_of_a_model_that_an_object_holds_have_gradients():
    task = Task()
    found = models_of(multifold.load_backend("torch"), task.run)
    assert any(x is task.model for x in found)
    assert multifold.advise(task.run, WORDS, backend="torch").trains


def test_a_program_that_reads_is_foretold_with_await():
    layer = nn.Linear(4, 4)

    def settle(x):
        for _ in range(5):
            if x.norm() < 0.3:
                break
            x = torch.tanh(layer(x)) * 0.8
        return x

    advice = multifold.advise(settle, [*torch.randn(16, 4)], train=False)
    assert advice.ways[-1].name == "fold.run, with fold.add and await"
    assert any("An example reads values up to" in note for note in advice.notes)
