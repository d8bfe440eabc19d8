"""Loops that advice is judged on: both ways compute the same, and a row says what was foretold."""

from __future__ import annotations

import json

from click.testing import CliRunner

from multifold import load_backend
from multifold.cli import main
from multifold_bench.advised import judge
from multifold_bench.loops import CASES


def of(backend):
    """Return one case of each loop of a framework, as small as it goes."""
    found = {case.loop: case for case in CASES.values() if case.backend == backend}
    return [case._replace(width=8) for case in found.values()]


def test_advice_foretells_calls_and_bounds_of_what_computes_the_same_as_the_loop(backend):
    for case in of(backend):
        advice, row = judge(case, load_backend(backend), count=2, rounds=1, seconds=0)
        assert row["calls"] >= row["launches"] > 0
        assert row["low"] < row["high"] <= 2 * row["low"]
        assert row["ops"] == advice.ops
        assert row["inside"] == (row["low"] <= row["gain"] <= row["high"])


def test_there_are_ten_cases_or_more_and_some_do_not_train():
    assert len(CASES) >= 10
    assert {case.train for case in CASES.values()} == {True, False}
    assert {case.backend for case in CASES.values()} == {"numpy", "torch"}


def test_the_command_shows_the_advice_and_writes_a_row(tmp_path):
    file = tmp_path / "rows.json"
    options = ["--case", "numpy-sequences-32", "--count", "2", "--rounds", "1", "--json", str(file)]
    result = CliRunner().invoke(main, ["bench", "advise", *options])
    assert result.exit_code == 0, result.output
    assert "fold.run, with calls of fold.add" in result.stdout
    (row,) = [json.loads(line) for line in file.read_text().splitlines()]
    assert row["case"] == "numpy-sequences-32" and row["ops"] == ["Recurrent.step"]


def test_a_case_that_there_is_not_is_named():
    result = CliRunner().invoke(main, ["bench", "advise", "--case", "none"])
    assert result.exit_code == 2
    assert "Received 'none'" in result.stderr
