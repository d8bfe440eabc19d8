"""The gates: two checkouts by turns, results before times, and lines that are judged."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from multifold.cli import main
from multifold_bench.gates import driver
from multifold_bench.gates.driver import HERE, Failed, Missing, Verdict, compare, measure, refuse_unlike
from multifold_bench.gates.figures import Figure, Line, share
from multifold_bench.gates.worker import all_figures
from multifold_bench.results import read


def gates(*options):
    command = ["bench", "gates", "--against", str(HERE), "--gate", "g", "--quick", *options]
    return CliRunner().invoke(main, command)


def test_a_checkout_needs_as_many_launches_as_itself(tmp_path):
    file = tmp_path / "gates.jsonl"
    found = gates("--json", str(file))
    assert found.exit_code == 0, found.output
    launches = [row for row in read(file) if row["name"].endswith("launches")]
    assert len(launches) > 5
    assert all(row["here"] == row["there"] > 0 and row["met"] for row in launches)
    assert "two-cells: launches" in found.output


def test_a_framework_that_is_missing_is_a_note_and_no_failure():
    found = gates("--python", "numpy=/there/is/no/python")
    assert found.exit_code == 0, found.output
    assert "/there/is/no/python" in found.output


def test_an_interpreter_has_a_name():
    found = gates("--python", "/there/is/no/python")
    assert found.exit_code == 2
    assert "Expected NAME=FILE" in found.output


def test_only_checkouts_are_compared(tmp_path, monkeypatch):
    found = gates("--against", str(tmp_path))
    assert found.exit_code == 2
    assert f"{tmp_path} lacks multifold or benchmarks" in found.output
    monkeypatch.setattr("multifold_bench.gates.driver.HERE", tmp_path)  # as benchmarks in site-packages
    assert "pip install -e ./benchmarks" in gates().output


def test_every_gate_has_figures():
    figures = all_figures()
    assert {gate for gate, _, _ in figures} == set("abcdefghij")
    assert {framework for _, framework, _ in figures} == {"numpy", "torch", "tensorflow", "jax"}


@pytest.mark.parametrize(
    "wrong", [np.array([1.0, 2.1]), np.array([1.0, np.nan]), np.array([1.0]), np.array([[1.0, 2.0]])]
)
def test_results_that_differ_are_no_times(wrong):
    right = {"traced": {"outputs": np.array([1.0, 2.0])}}
    compare({"here": right, "there": right})
    with pytest.raises(Failed, match="outputs"):
        compare({"here": {"traced": {"outputs": wrong}}, "there": right})


@pytest.mark.parametrize("names", ["", "loss", "outputs loss"])
def test_results_of_other_names_are_no_times(names):
    found = dict.fromkeys(names.split(), np.ones(1))
    with pytest.raises(Failed, match="there returned"):
        compare({"here": {"traced": {"outputs": np.ones(1)}}, "there": {"traced": found}})


def test_results_may_differ_by_a_thousandth_of_the_largest():
    def results(*numbers):
        return {"traced": {"outputs": np.array(numbers)}}

    compare({"here": results(0.0, 1000.0), "there": results(0.9, 1000.9)})
    with pytest.raises(Failed, match="outputs"):
        compare({"here": results(0.0, 1e-4), "there": results(1e-6, 1e-4)})


class Told:
    """A process that answers at once: a repetition measures its number, and computes `result`."""

    def __init__(self, name, asked, result=1.0):
        self.name, self.asked, self.result = name, asked, result

    def ask(self, method, argument, *quick):
        self.asked.append((self.name, argument))
        return {"s": argument}, {"traced": {"outputs": np.full(2, self.result)}}


def test_both_checkouts_go_first_in_turn_and_what_warms_up_is_no_time():
    asked = []
    figure = Figure("x", "a figure", "numpy", lambda quick: None, (), warms=2)
    pairs = measure(figure, (Told("here", asked), Told("there", asked)), range(3), quick=True)
    assert pairs == [({"s": number}, {"s": number}) for number in range(3)]
    first = [name for name, argument in asked if argument != figure.key][::2]
    assert first == ["there", "here", "there", "here", "there"]


@pytest.mark.parametrize("numbers", [range(1), range(0)])
def test_a_repetition_that_computes_something_else_is_no_time_nor_warms_up(numbers):
    figure = Figure("x", "a figure", "numpy", lambda quick: None, (), warms=1)
    with pytest.raises(Failed, match="outputs"):
        measure(figure, (Told("here", []), Told("there", [], result=2.0)), numbers, quick=True)


def test_the_processes_that_begin_anew_share_the_repetitions(monkeypatch):
    taken = []
    monkeypatch.setattr(driver, "both_sides", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(
        driver, "measure", lambda *told: taken.append([*told[2]]) or [({"s": 1.0}, {"s": 1.0})]
    )
    figure = Figure("x", "a figure", "numpy", lambda quick: None, (), repetitions=7)
    driver.measure_all([figure], driver.Comparison(HERE))
    assert taken == [[0, 3, 6], [1, 4], [2, 5]]


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


def test_a_verdict_has_the_median_of_each_checkout():
    found = judged(Line("n", lambda found: found["n"]), ({"n": 1.0}, {"n": 4.0}), ({"n": 3.0}, {"n": 8.0}))
    assert (found.here, found.there) == (2.0, 6.0)


def test_launches_beside_a_checkout_that_needs_none_are_too_many():
    line = Line("launches", lambda found: found["launches"], beside=1.0)
    assert not judged(line, ({"launches": 3.0}, {"launches": 0.0})).met
    assert judged(line, ({"launches": 0.0}, {"launches": 0.0})).met


@pytest.mark.parametrize(("failure", "met"), [(Failed("ended"), False), (Missing("not installed"), None)])
def test_a_figure_that_fails_is_not_met(failure, met):
    assert Verdict.lacking("x", "numpy", "a figure", failure).met is met


def test_compiled_code_is_compared_with_compiled_code():
    here, there = Path("here"), Path("there")
    refuse_unlike({here: False, there: False})
    with pytest.raises(Failed, match="the compiled code of there does not run"):
        refuse_unlike({here: True, there: False})
