"""``multifold bench serve``: open loads, results that are compared, and the highest rate that holds."""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import multifold
from multifold.cli import main
from multifold.errors import MismatchError
from multifold.testing import Counting
from multifold_bench.floors import OF_THE_FRAMEWORK, kept_calls
from multifold_bench.serving import floor, orders, search
from multifold_bench.serving.contenders import Alone, Joining, Windows
from multifold_bench.serving.figures import draw_latencies
from multifold_bench.serving.generator import Requests
from multifold_bench.serving.load import Load, Served, serve
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
    trial = SimpleNamespace(serve=lambda name, rate: SimpleNamespace(holds=rate < limits[name]))
    limits = {"small": 120, "large": 300, "slow": 200}
    best, rate = search.Contest.sweep(trial, [*limits], 50)
    assert best == "large" and 280 < rate < 300


def test_a_contender_that_carries_nothing_is_said_so():
    assert search.highest_rate(lambda rate: SimpleNamespace(holds=False), 100) == 0


def test_the_command_writes_rows_and_draws_them(tmp_path, monkeypatch):
    monkeypatch.setattr(search, "SWEEP", {"windows of 8, 0 ms": (8, 0.0)})
    monkeypatch.setattr(search, "CURVE", (0.5,))
    monkeypatch.setattr(search, "AGAIN", 1)
    file, plot = tmp_path / "rows.json", tmp_path / "figure.png"
    options = ["--backend", "numpy", "--workload", "trees", "--seconds", "0.2", "--count", "16"]
    options += [
        "--join",
        "launches",
        "--rate",
        "30",
        "--deadline",
        "5",
        "--curve",
        "--plot",
        str(plot),
        "--json",
        str(file),
    ]
    monkeypatch.setattr(search, "highest_rate", lambda attempt, start, low=0: attempt(start).load.rate)
    result = CliRunner().invoke(main, ["bench", "serve", *options])
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert {row["part"] for row in rows} == {"search", "compare", "curve", "summary"}
    assert rows[-1]["highest"].keys() == {"windows of 8, 0 ms", "server, launches", "alone"}
    assert "highest rate/s" in result.stdout and plot.stat().st_size > 1000


def test_what_a_request_takes_without_multifold(tmp_path, monkeypatch):
    monkeypatch.setattr(floor, "SIZES", (4,))
    file, kept = tmp_path / "rows.json", tmp_path / "kept.json"
    kept.write_text(json.dumps({"workload": "decoder", "part": "curve"}) + "\n")
    options = ["--backend", "numpy", "--workload", "trees", "--count", "16", "--rate", "50", "--floor"]
    options += ["--seconds", "0.5", "--deadline", "5", "--keep", str(kept), "--json", str(file)]
    result = CliRunner().invoke(main, ["bench", "serve", *options])
    assert result.exit_code == 0, result.output
    mine, others = (json.loads(line) for line in file.read_text().splitlines())
    assert others["workload"] == "decoder"
    parts = ("framework_us", "function_us", "receiving_us", "window_us")
    assert all(mine[part] > 0 for part in parts) and "4 in a window" in result.stdout


def test_the_framework_alone_is_asked_for_what_a_window_asks(workload):
    served = workload("trees")
    counting = Counting(served.backend)
    multifold.Fold(backend=counting).run(served.model, served.examples[:4], served.fn)
    calls, _ = kept_calls(
        served.backend,
        OF_THE_FRAMEWORK,
        lambda seam: multifold.Fold(backend=seam).run(served.model, served.examples[:4], served.fn),
    )
    found = Counter(ask.__name__ for ask, _ in calls)
    for method in ("call", "concat", "gather", "split"):
        assert found[method] == counting.counts[method] > 0, method


def test_a_figure_ends_where_the_deadline_is_missed():
    common = {"workload": "trees", "part": "curve", "deadline": 0.1, "contender": "server"}
    rows = [
        common | {"rate": rate, "p50_ms": 5, "p99_ms": p99} for rate, p99 in ((1, 9), (2, 20), (3, 200))
    ]
    (axes,) = draw_latencies(rows).axes
    assert list(axes.lines[0].get_xdata()) == [1, 2]


def test_a_lone_decoder_takes_as_long_in_each_order():
    costs, lengths = orders.Costs(launch=1.0, request=10.0), np.array([[2, 3]])
    for order in (orders.windows, partial(orders.joining, share=None), partial(orders.joining, share=1.0)):
        (latency,) = order([0.5], lengths, 5.0, costs)
        assert latency == pytest.approx(6 + 10)  # begin, two words, three pieces


def test_newcomers_share_the_launches_of_their_words():
    costs, lengths = orders.Costs(launch=1.0, request=0.0), np.array([[1, 9], [2, 2], [2, 2]])
    steps = orders.joining([0.0, 2.5, 3.5], lengths, 1.0, costs, share=None)
    together = orders.joining([0.0, 2.5, 3.5], lengths, 1.0, costs, share=0.4)
    assert sum(together) < sum(steps)
