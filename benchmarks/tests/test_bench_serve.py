"""``multifold bench serve``: open loads, results that are compared, and the highest rate that holds."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import multifold
from multifold.cli import main
from multifold.errors import MismatchError
from multifold_bench.serving import search
from multifold_bench.serving.contenders import Alone, Joining, Windows
from multifold_bench.serving.generator import Requests
from multifold_bench.serving.load import Load, Served, serve
from multifold_bench.serving.rates import highest_rate
from multifold_bench.serving.workloads import LAUNCHES, make_workload

NAMES = ("trees", "parser", "decoder")
SST = "(3 (2 (2 It) (2 (2 's) (3 (2 a) (3 (2 lovely) (2 day))))) (2 (2 and) (2 (2 so) (2 on))))\n"


@pytest.fixture
def workload(backend):
    seam = multifold.load_backend(backend)
    if seam.pads:  # it compiles each op anew for many numbers of rows: minutes, for the same code here
        seam = multifold.load_backend("numpy")
    return lambda name: make_workload(name, seam, None, 24)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [Alone, partial(Windows, most=16, wait=0.001), Joining])
def test_every_contender_answers_what_the_loop_returns(workload, name, make):
    served = workload(name)
    expected = [served.loop(example) for example in served.examples]
    found = serve(served, make, Load(rate=40, seconds=0.5, deadline=60, stubborn=True), expected)
    assert np.isfinite(found.latencies).all() and len(found.latencies) > 5
    assert found.rows_a_launch >= 1


def test_a_result_that_differs_is_no_time(workload):
    served = workload("trees")
    expected = [served.loop(example) + 1 for example in served.examples]
    with pytest.raises(MismatchError, match="what the loop returns for request"):
        serve(served, Joining, Load(rate=40, seconds=0.1), expected)


def test_a_request_of_trees_has_several_launches(workload):
    served = workload("trees")
    fold = multifold.Fold(backend=served.backend)
    for example in served.examples[:5]:
        assert len(fold.schedule(served.fn(fold, example))) >= LAUNCHES


def test_decoded_texts_differ_in_length(workload):
    served = workload("decoder")
    assert len({len(served.loop(example)) for example in served.examples}) > 3


def test_sentences_of_a_file(tmp_path, backend):
    path = tmp_path / "dev.txt"
    path.write_text(SST * 3)
    assert len(make_workload("parser", multifold.load_backend(backend), path, 2).examples) == 2


def test_arrivals_are_those_of_their_seed():
    first, same, other = (Requests(100, 10, seed, 0.1).times for seed in (0, 0, 1))
    assert first == same != other
    assert 800 < len(first) < 1200


def test_latency_counts_from_when_a_request_was_due():
    requests = Requests(rate=100, seconds=1, seed=0, deadline=0.1)
    late = requests.times[0] + 0.5  # whoever sends is late himself
    requests.answered(requests.due(late), late)
    assert requests.latencies[0] == pytest.approx(0.5)


def test_a_load_is_given_up_when_one_in_a_hundred_is_late():
    requests = Requests(rate=100, seconds=2, seed=0, deadline=0.1)
    requests.due(1.0)
    assert not requests.hopeless(requests.times[1] + 0.1001)
    assert requests.hopeless(1.0)


def test_requests_without_an_answer_are_late():
    load = Load(rate=10, seconds=10, deadline=0.1)
    served = Served(load, np.array([0.01] * 60 + [0.2] * 20 + [np.inf] * 20), 1.0)
    row = served.row()
    assert row["throughput"] == pytest.approx(10 * 70 / 90) and row["goodput"] == pytest.approx(
        10 * 50 / 90
    )
    assert row["p99_ms"] == float("inf") and not served.holds


def test_the_best_windows_are_those_that_carry_most():
    trial = SimpleNamespace(carries=lambda name, rate: rate < limits[name])
    limits = {"small": 120, "large": 300, "slow": 200}
    best, rate = search.Contest.sweep(trial, [*limits], 50)
    assert best == "large" and 280 < rate < 300


def test_the_highest_rate_is_found():
    assert highest_rate(lambda rate: rate < 340, start=100) == pytest.approx(340, rel=0.05)
    assert highest_rate(lambda rate: False, start=100) == 0


def test_the_command_writes_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "SWEEP", {"windows of 8, 0 ms": (8, 0.0)})
    monkeypatch.setattr(search, "AGAIN", 1)
    monkeypatch.setattr(
        search, "highest_rate", lambda carries, start, low=0: start if carries(start) else low
    )
    file = tmp_path / "rows.json"
    options = ["--backend", "numpy", "--workload", "trees", "--seconds", "0.2", "--count", "16"]
    options += ["--join", "launches", "--rate", "30", "--deadline", "5", "--json", str(file)]
    result = CliRunner().invoke(main, ["bench", "serve", *options])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["part"] for row in rows} == {"search", "compare", "summary"}
    assert rows[-1]["highest"].keys() == {"windows of 8, 0 ms", "server, launches", "alone"}
    assert "the highest rate at which" in result.stdout
