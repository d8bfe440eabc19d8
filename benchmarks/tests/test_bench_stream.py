"""``multifold bench stream``: ways that return the same rows, beside the floors of what they reach."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import multifold
from multifold.cli import main
from multifold.errors import MismatchError
from multifold_bench.streaming import measure
from multifold_bench.streaming.trees import MakeModel, draw_lines, read, record
from multifold_bench.streaming.ways import Streams, Timed

MODEL = MakeModel("numpy", width=4)


def fixed(rate, shift=0.0):
    """Return a way of known rate and rows."""
    return lambda make, lines, warm: Timed(
        rate, np.array([[len(line) + shift] for line in lines], "float32"), peak=1.0
    )


def test_a_line_and_the_tree_that_it_says_are_recorded_alike(backend):
    lines = draw_lines(5, seed=0)
    fold, model = multifold.Fold(backend=backend), MakeModel(backend, width=4)()
    seam = multifold.load_backend(backend)
    texts, trees = fold.run(model, lines, read), fold.run(model, list(map(json.loads, lines)), record)
    np.testing.assert_allclose(seam.to_numpy(texts), seam.to_numpy(trees), rtol=1e-5)


@pytest.mark.parametrize("way", [Streams(processes=2), Streams(workers=2), Streams(workers=2, parsed=True)])
def test_every_way_returns_the_rows_of_one_process_in_order(way):
    lines = draw_lines(60, seed=0)
    expected = multifold.Fold(backend="numpy").run(MODEL(), lines, read)
    timed = way.run(MODEL, lines, warm=6)
    np.testing.assert_allclose(timed.rows, expected, rtol=1e-5, atol=1e-7)
    assert timed.rate > 0 and timed.peak > 10


def test_rates_are_held_against_the_first_way_in_the_same_round():
    rows = measure.measure_streams({"one": fixed(100.0), "two": fixed(170.0)}, MODEL, 100, rounds=2)
    assert [(row["way"], row["rate"], row["of_one"]) for row in rows] == [
        ("one", [100.0, 100.0], 1.0),
        ("two", [170.0, 170.0], 1.7),
    ]


def test_rows_that_differ_are_no_time():
    with pytest.raises(MismatchError, match="two"):
        measure.measure_streams({"one": fixed(1.0), "two": fixed(1.0, shift=9.0)}, MODEL, 100)


def test_the_command_shows_and_writes_each_way(tmp_path):
    options = ["--trees", "100", "--width", "4", "--rounds", "1", "--way", "stream"]
    command = ["bench", "stream", *options, "--json", str(tmp_path / "rows.json")]
    result = CliRunner().invoke(main, command, catch_exceptions=False)
    assert "/ 2 x one" in result.output
    rows = [json.loads(line) for line in (tmp_path / "rows.json").read_text().splitlines()]
    assert [row["way"] for row in rows] == ["one process", "stream"]


def test_a_way_that_there_is_not_is_refused_before_anything_runs():
    result = CliRunner().invoke(main, ["bench", "stream", "--way", "threads"])
    assert result.exit_code == 2
    assert "Received threads." in result.output


def test_ray_data_is_left_out_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(measure, "find_spec", lambda name: None)
    assert not [name for name in measure.ways(2) if "ray" in name]
