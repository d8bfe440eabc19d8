"""The README's first screen is run as it stands, and compared with the loop."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

README = Path(__file__).resolve().parents[3] / "README.md"
PLAIN, FOLDED, TRACES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)[:3]


@pytest.fixture(scope="module")
def scope():
    """Return the names that the first block of the README makes, and runs with."""
    names = {}
    exec(PLAIN, names)  # as it stands
    return names


def gradients(model):
    found = [x.grad.clone() for x in model.parameters()]
    model.zero_grad()
    return found


def test_the_first_example_prints_the_numbers_of_the_loop_twice(capsys):
    exec(PLAIN, {})
    loop, batched = [re.findall(r"'(-?[0-9.]+)'", line) for line in capsys.readouterr().out.splitlines()]
    assert len(loop) == 5
    assert [*map(float, batched)] == pytest.approx([*map(float, loop)], abs=2e-4)


def test_the_next_step_equals_the_loop_in_values_and_gradients(scope):
    scope["model"].zero_grad()
    exec(FOLDED, scope)
    folded, slopes = scope["logits"], gradients(scope["model"])
    logits = torch.cat([scope["model"](tree) for tree in scope["trees"]])
    logits.sum().backward()
    torch.testing.assert_close(folded, logits)
    torch.testing.assert_close(slopes, gradients(scope["model"]))


def test_the_examples_that_follow_it_run_as_they_stand(scope, capsys):
    exec(FOLDED, scope)
    folded = scope["logits"]
    exec("print(score(multifold.Unfold(model), trees[0]))", scope)
    assert f"{folded[0, 0]:.4f}" in capsys.readouterr().out
    exec(TRACES, scope)
    torch.testing.assert_close(scope["logits"], folded)


def test_the_steps_of_the_page_about_a_loop_compute_the_same():
    page = (README.parent / "docs" / "from-your-loop.md").read_text()
    steps = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names, found = {}, []
    for step in steps:
        exec(step, names)
        found.append(names.get("logits"))
    wanted = torch.cat([names["model"](tree) for tree in names["trees"]])
    assert len([x for x in found if x is not None]) == 5
    for logits in found[1:]:
        torch.testing.assert_close(logits, wanted)
