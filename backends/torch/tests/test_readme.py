"""The README's first screen is run as it stands, and compared with the loop written by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import torch

README = Path(__file__).resolve().parents[3] / "README.md"


class Tree(NamedTuple):
    label: int
    word: int | None = None
    left: Tree | None = None
    right: Tree | None = None


TREES = [
    Tree(0, word=3),
    Tree(1, left=Tree(0, word=1), right=Tree(0, word=2)),
    Tree(2, left=Tree(0, left=Tree(0, word=4), right=Tree(0, word=1)), right=Tree(0, word=3)),
]


def encode(model, tree):
    if tree.word is not None:
        return model.leaf(torch.tensor([tree.word]))
    return model.compose(*encode(model, tree.left), *encode(model, tree.right))


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def test_the_example_of_the_readme_equals_the_loop_in_values_and_gradients():
    example, definition = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[:2]
    scope = {}
    exec(definition + example, scope)  # as it stands
    scope["trees"] = TREES
    model = scope["model"] = scope["TreeLSTM"](words=10, width=4)

    exec(example, scope)
    folded = gradients(model)
    model.zero_grad()
    logits = torch.cat([model.logits(encode(model, tree)[0]) for tree in TREES])
    torch.nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2])).backward()

    torch.testing.assert_close(scope["logits"], logits)
    torch.testing.assert_close(folded, gradients(model))


def test_the_examples_that_follow_it_run_as_they_stand(capsys):
    example, definition, eagerly, from_traces = re.findall(
        r"```python\n(.*?)```", README.read_text(), re.DOTALL
    )[:4]
    scope = {}
    exec(definition + example, scope)
    folded = scope["logits"]
    exec(eagerly + from_traces, scope)
    torch.testing.assert_close(scope["logits"], folded)
    assert f"{folded[0, 0]:.4f}" in capsys.readouterr().out
