"""The gates: two checkouts by turns, results before times, and lines that are judged."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from multifold_bench.gates.__main__ import main
from multifold_bench.gates.driver import HERE, Failed, Verdict, compare, uncompiled
from multifold_bench.gates.figures import Figure, Line, share
from multifold_bench.gates.serving import highest_rate
from multifold_bench.gates.worker import all_figures


def test_a_checkout_needs_as_many_launches_as_itself(tmp_path, capsys):
    file = tmp_path / "gates.json"
    assert main(["--against", str(HERE), "--only", "g", "--quick", "--json", str(file)]) == 0
    lines = json.loads(file.read_text())
    launches = [line for line in lines if line["name"].endswith("launches")]
    assert len(launches) > 5
    assert all(line["here"] == line["there"] > 0 and line["met"] for line in launches)
    assert "two-cells: launches" in capsys.readouterr().out


def test_a_framework_that_is_missing_is_a_note_and_no_failure(capsys):
    missing = ["--python", "numpy=/there/is/no/python"]
    assert main(["--against", str(HERE), "--only", "g", "--quick", *missing]) == 0
    assert "/there/is/no/python" in capsys.readouterr().out


def test_every_gate_has_figures():
    figures = all_figures()
    assert {gate for gate, _, _ in figures} == set("abcdefghij")
    assert {framework for _, framework, _ in figures} == {"numpy", "torch", "tensorflow", "jax"}


@pytest.mark.parametrize("wrong", [np.array([1.0, 2.1]), np.array([1.0, np.nan]), np.array([1.0])])
def test_results_that_differ_are_no_times(wrong):
    right = {"traced": {"outputs": np.array([1.0, 2.0])}}
    compare({"here": right, "there": right})
    with pytest.raises(Failed, match="outputs"):
        compare({"here": {"traced": {"outputs": wrong}}, "there": right})


def judged(line, *pairs):
    figure = Figure("x", "a figure", "numpy", lambda quick: None, (line,))
    return Verdict.of(figure, line, pairs)


def test_a_limit_beside_the_other_checkout_judges_the_median_of_ratios():
    line = Line("s", lambda found: found["s"], beside=1.03)
    pairs = [({"s": here}, {"s": there}) for here, there in [(1.0, 1.0), (2.0, 2.0), (9.0, 3.0)]]
    assert judged(line, *pairs).met
    assert not judged(Line("s", line.of, beside=1.03, worst=True), *pairs).met


def test_a_limit_of_this_checkout_does_not_look_at_the_other():
    assert judged(
        share("fold", "hand", most=1.2), ({"fold": 1.1, "hand": 1.0}, {"fold": 9.0, "hand": 1.0})
    ).met
    assert not judged(
        Line("rate", lambda found: found["rate"], least=2.0), ({"rate": 1.0}, {"rate": 1.0})
    ).met
    assert judged(Line("rate", lambda found: found["rate"]), ({"rate": 0.0}, {"rate": 0.0})).met is None


def test_the_highest_rate_is_found():
    assert math.isclose(highest_rate(lambda rate: rate < 340, start=100), 340, rel_tol=0.05)
    assert highest_rate(lambda rate: False, start=100) == 0


def test_a_checkout_that_is_compiled_in_part_is_refused(tmp_path):
    folder = tmp_path / "multifold"
    folder.mkdir()
    for name in ("_rows.pyx", "_rows.cpython-311.so", "_bounds.pyx"):
        (folder / name).touch()
    assert uncompiled(tmp_path) == ["_bounds"]
