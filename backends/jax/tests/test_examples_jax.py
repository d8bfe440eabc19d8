"""The example that is written for JAX runs as a reader would run it."""

from __future__ import annotations

import runpy
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def test_a_program_of_jax_has_the_gradients_of_its_loop(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["plain_jax.py", "--trees", "4"])
    runpy.run_path(str(EXAMPLES / "plain_jax.py"), run_name="__main__")
    assert capsys.readouterr().out.count("gradients equal those of the loop") == 3


def test_gradients_of_the_examples_own_inputs_need_one_compilation():
    main = runpy.run_path(str(EXAMPLES / "robots_jax.py"))["main"]
    compiled, losses = main(robots=12, batch=4, steps=30)
    assert compiled == 1 and losses[-1] < losses[0] / 4
