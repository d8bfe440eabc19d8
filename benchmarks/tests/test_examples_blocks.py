"""TensorFlow Fold's examples on blocks: each runs, and learns, on every framework that trains."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

import multifold
from multifold._engine.frameworks import registry
from multifold_compat import blocks

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "blocks"
SMALL = {
    "calculator.py": ["--examples", "400", "--epochs", "3"],
    "fizzbuzz.py": ["--numbers", "300", "--epochs", "3"],
    "language_identification.py": ["--sentences", "200", "--epochs", "4"],
    "mnist.py": ["--epochs", "2"],
    "sentiment.py": ["--trees", "150", "--epochs", "3"],
}


@pytest.fixture
def run(monkeypatch, capsys, backend):
    """Return a function that runs an example on the backend and returns the lines it prints."""

    def run(name, *arguments):
        monkeypatch.setattr("sys.argv", [name, "--backend", backend, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize("name", SMALL)
def test_an_example_on_blocks_learns(name, run, backend, tmp_path):
    if "kit" in registry.load_backend(backend).gaps():
        return
    run(name, *SMALL[name], "--out", tmp_path)
    losses = [entry["loss"] for entry in json.loads((tmp_path / "result.json").read_text())["history"]]
    assert losses[-1] < 0.97 * losses[0]


def test_the_quick_start_prints_the_known_answers(run):
    lines = run("quick_start.py")
    assert lines[:4] == [
        "sums and launches: [10.0, 5.0, 13.0] 1",
        "products, by pairs: [24.0, 5.0, 42.0] 2",
        "largest and mean: [[4.0, 2.5], [5.0, 5.0], [7.0, 6.5]] 3",
        "products of trees: [24.0, 5.0, 42.0] 3",
    ]
    assert lines[5].startswith("scores of 2 points in 3 launches")


def test_the_calculator_calculates():
    """Its targets, by a walk that knows no block."""
    found = runpy.run_path(str(EXAMPLES / "calculator.py"))
    assert found["value"](("*", ("-", 2, 9), ("+", 3, 4))) % 10 == -49 % 10 == 1


def test_sentiment_notes_phrases_in_the_order_of_their_labels():
    found = runpy.run_path(str(EXAMPLES / "sentiment.py"))
    tree = (4, (3, 7), (2, (1, 0), (3, 5)))
    fold = multifold.Fold(backend="numpy")
    block = blocks.Metrics(found["sentiment"](3))
    model = {
        "leaf": lambda i: (1.0 * i[:, None], i), "join": lambda x, y: (10 * x[0] + y[0], x[1]),
        "logits": lambda h: h,
    }  # fmt: skip
    (scores,) = fold.run(model, [tree], block)[1]["scores"]
    assert scores[:, 0].tolist() == [7, 0, 5, 5, 75] and found["labels"](tree) == [3, 1, 3, 2, 4]


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_is_short_and_begins_with_the_command_that_runs_it(path):
    lines = path.read_text().splitlines()
    assert len(lines) < (130 if "class " in path.read_text() else 100)  # a task of its own takes room
    assert any(line.startswith(f"python examples/blocks/{path.name}") for line in lines[:8])
