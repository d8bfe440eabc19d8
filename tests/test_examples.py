"""The examples run as a reader would run them, here those that any backend can run."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))


@pytest.fixture
def run(monkeypatch, capsys, backend):
    """Return a function that runs an example on the backend and returns the lines it prints."""

    def run(name, *arguments):
        monkeypatch.setattr("sys.argv", [name, "--backend", backend, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


def test_exponentiation_prints_the_powers_and_as_many_launches_as_the_longest_chain(run):
    lines = run("exponentiation.py")
    assert lines[:2] == ["powers of 2: [2, 4, 8, 16]", "powers 2, 6 and 3: [4, 64, 8]"]
    assert lines[2].startswith("6 launches of 11 calls")


def test_exponentiation_takes_another_base(run):
    assert run("exponentiation.py", "--base", "3")[0] == "powers of 3: [3, 9, 27, 81]"


def test_two_outputs_prints_the_known_answer_and_one_launch_for_each_op(run):
    lines = run("two_outputs.py")
    assert lines[:2] == ["a1, a2, a3 = 1, 2, 5: -1", "1, 2 and 0 to 4: [9, 7, 5, 3, 1]"]
    assert lines[2].startswith("3 launches of 15 calls")


def test_a_program_of_numpy_equals_its_loop(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["plain_numpy.py", "--trees", "5"])
    runpy.run_path(str(EXAMPLES / "plain_numpy.py"), run_name="__main__")
    assert capsys.readouterr().out.startswith("5 trees: scores equal those of the loop")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_begins_with_the_command_that_runs_it(path):
    lines = path.read_text().splitlines()
    assert any(line.startswith(f"python examples/{path.name}") for line in lines[:8])
