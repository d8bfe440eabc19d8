"""The experiments: their workloads compute the same in all ways, and no cell is measured twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import multifold
from multifold._engine.frameworks import registry
from multifold._measure.contenders import Subject
from multifold.cli import main
from multifold_bench import jit, programs, report, results, runner
from multifold_bench.cli.experiments import command_line
from multifold_bench.cli.options import WORKLOADS as NAMES
from multifold_bench.experiments import EXPERIMENTS
from multifold_bench.harness import Pace, measure
from multifold_bench.profile import PHASES, profile
from multifold_bench.runner import Amount, Runner, cells, run
from multifold_bench.step import make_contenders
from multifold_bench.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
DRAWN = sorted(set(WORKLOADS) - {"sst", "light-parser", "parser"})
TINY = Amount(quick=True, rounds=1, seconds=0)


def benchmark_of(name, width=6):
    """A benchmark over the first few of its examples, the smallest ones."""
    examples = WORKLOADS[name].read(None, 40, lambda done, total: None)
    benchmark = WORKLOADS[name].benchmark(examples, width)
    found = examples.draw(np.random.default_rng(0), 12)

    def calls(example):
        fold = multifold.Fold(backend="numpy")
        benchmark.record(fold, example)
        return len(fold)

    smallest = sorted(found, key=calls)
    return type(benchmark)(replace(examples, draw=lambda rng, count: smallest[:count]), width)


def check(seam, name, contenders, train=False, batch=3):
    """Compare contenders on a minibatch: what differs, raises."""
    benchmark = benchmark_of(name)
    subject = Subject(benchmark, seam, benchmark.model().on(seam), train)
    made = make_contenders(contenders, subject, {})
    return measure(made, benchmark.minibatches(batch, 0), Pace(0, warmup=0), reference=made[0])


# ---- workloads and contenders --------------------------------------------------------------------


def test_the_command_line_knows_all_workloads():
    assert set(NAMES) == set(WORKLOADS)


@pytest.mark.parametrize("name", DRAWN)
def test_a_workload_without_files_is_the_same_one_by_one_and_folded(name):
    check(registry.load_backend("numpy"), name, ["loop", "fold", "fold-traced"])


@pytest.mark.parametrize("name", ["sick", "spinn"])
def test_programs_over_primitives_equal_the_loop(seam, name):
    if seam.name in ("jax", "mlx"):
        with pytest.raises(multifold.BackendError, match="There is none"):
            check(seam, name, ["loop", "hand"])
    else:
        check(seam, name, ["loop", "hand"], train="kit" not in seam.gaps(), batch=2)


def test_examples_of_one_structure_run_stacked():
    check(registry.load_backend("numpy"), "mnist", ["loop", "stacked"], batch=5)
    with pytest.raises(multifold.BackendError, match="examples of one structure"):
        check(registry.load_backend("numpy"), "synthetic", ["loop", "stacked"])


def test_ops_compiled_by_the_framework_equal_the_others(seam, monkeypatch):
    if seam.name == "torch":  # its compiler takes half a minute an op; the way to it is the same
        monkeypatch.setitem(jit.COMPILERS, "torch", lambda model, rows_vary: lambda name, op: op)
    if seam.name not in jit.COMPILERS:
        with pytest.raises(multifold.BackendError, match="has no compiler"):
            check(seam, "synthetic", ["loop", "loop-jit"])
        return
    names = ["loop", "loop-jit"] + (["fold", "fold-jit"] if seam.name != "jax" else [])
    check(seam, "synthetic", names, train=seam.name != "jax", batch=2)


def test_a_program_equals_the_loop(seam):
    if seam.name in programs.EXECUTORS:
        check(seam, "synthetic", ["loop", "fold-program"], batch=2)
        return
    with pytest.raises(multifold.BackendError, match="runs no programs"):
        check(seam, "synthetic", ["loop", "fold-program"])


# ---- running -------------------------------------------------------------------------------------


def runner_of(path, amount=TINY, command="multifold bench experiments"):
    return Runner(path, {}, amount, {}, command)


def test_a_cell_that_is_done_is_not_measured_again(tmp_path, monkeypatch):
    numpy = registry.load_backend("numpy")
    path = tmp_path / "rows.jsonl"
    chosen = [EXPERIMENTS["e"]]
    assert run(runner_of(path), [numpy], chosen, 9, lambda what: None, lambda *numbers: None) == 0
    before = path.read_text()
    monkeypatch.setattr(runner, "measure_step", pytest.fail)
    assert run(runner_of(path), [numpy], chosen, 9, lambda what: None, lambda *numbers: None) == 0
    assert path.read_text() == before
    cell = next(iter(cells(chosen, TINY)))
    assert runner_of(path).is_done(cell, numpy)
    assert not runner_of(path, replace(TINY, rounds=2)).is_done(cell, numpy)


def test_a_file_says_of_each_command_what_it_was(tmp_path):
    numpy = registry.load_backend("numpy")
    path = tmp_path / "rows.jsonl"
    for command, letter in (("first", "e"), ("second", "d"), ("second", "d")):
        runner = runner_of(path, command=command)
        run(runner, [numpy], [EXPERIMENTS[letter]], 9, lambda what: None, lambda *numbers: None)
    about = [row for row in results.read(path) if "about" in row]
    assert [row["command"] for row in about] == ["first", "second"]
    rows = results.read(path)
    assert report.commands(rows) == "first\nsecond\n"
    assert report.page(rows, {}).count("| numpy 2") <= 1


@pytest.mark.parametrize("cut", [-1, -30, "line"])
def test_a_cell_that_was_not_written_to_its_end_is_measured_again(tmp_path, cut):
    numpy = registry.load_backend("numpy")
    path = tmp_path / "rows.jsonl"
    chosen = [EXPERIMENTS["e"]]

    def measured():
        run(runner_of(path), [numpy], chosen, 9, lambda what: None, lambda *numbers: None)
        rows = [row for row in results.read(path) if "experiment" in row]
        return sorted((row["mode"], row["batch"], row.get("contender", "")) for row in rows)

    whole = measured()
    text = path.read_text()
    path.write_text(text[:cut] if cut != "line" else "".join(text.splitlines(keepends=True)[:-1]))
    assert measured() == whole


def test_a_run_out_of_time_says_how_many_cells_are_left(tmp_path):
    numpy = registry.load_backend("numpy")
    listed = list(cells(EXPERIMENTS.values(), TINY))
    left = run(
        runner_of(tmp_path / "rows.jsonl"), [numpy], [*EXPERIMENTS.values()], 0, print, lambda *x: None
    )
    assert left == len(listed)


def test_a_wrong_path_is_refused_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "measure_step", pytest.fail)
    command = ["bench", "experiments", "--json", str(tmp_path / "rows"), "--backend", "numpy", "--quick"]
    result = CliRunner().invoke(main, [*command, "--data", f"spinn={tmp_path}"])
    assert result.exit_code == 2 and "expected a file" in result.stderr
    assert not (tmp_path / "rows").exists()


def test_every_experiment_comes_to_its_turn_before_one_comes_again():
    first = [cell.experiment.name for cell in cells(EXPERIMENTS.values(), TINY)][: len(EXPERIMENTS)]
    assert first == list(EXPERIMENTS)


def test_a_row_has_what_a_reader_must_know(tmp_path):
    path = tmp_path / "rows.jsonl"
    runner = runner_of(path)
    runner.run(
        next(iter(cells([EXPERIMENTS["a"]], TINY))), registry.load_backend("numpy"), lambda what: None
    )
    rows = results.read(path)
    (about,) = [row for row in rows if "about" in row]
    assert about["about"]["cores"] and about["command"] == "multifold bench experiments"
    timed = [row for row in rows if "median_ms" in row]
    assert [row["contender"] for row in timed] == [
        *("loop", "hand", "hand-frontier", "fold", "fold-traced")
    ]
    for row in timed:
        counted = row["contender"] != "hand-frontier"
        assert not counted or row["launches"] >= row["lower_bound"] > 0
        assert row["environment"] == about["environment"]
        assert row["first_ms"] > 0 and row["data"] == "drawn" and row["reference"] == "loop"
        assert row["date"] == about["date"]
    (note,) = [row for row in rows if "note" in row]
    assert note["contender"] == "fold-program" and "runs no programs" in note["note"]


def test_the_command_that_is_kept_names_no_paths(monkeypatch):
    words = ["x", "bench", "experiments", "--data", "sst=data/sst", "--json", "out/rows", "--quick"]
    monkeypatch.setattr("sys.argv", words)
    assert command_line() == "multifold bench experiments --data sst=PATH --json PATH --quick"


def test_experiments_on_the_command_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    folder = tmp_path / "page"
    options = ["--experiment", "e", "--backend", "numpy", "--quick", "--seconds", "0", "--rounds", "1"]
    command = ["bench", "experiments", "--json", str(path), *options]
    result = CliRunner().invoke(main, [*command, "--report", str(folder)])
    assert result.exit_code == 0, result.output
    assert "holds 2 cells" in result.stdout
    page = (folder / "README.md").read_text()
    assert "| e. Digits, one image at a time, at 64 | infer | " in page
    assert "of the time of `stacked` in inference" in page
    assert report.commands(results.read(path)) == (folder / "commands.sh").read_text()
    assert (folder / "experiment-e.png").stat().st_size > 5000
    merged = ["bench", "experiments", "--merge", str(path), "--report", str(tmp_path / "again")]
    assert CliRunner().invoke(main, merged).exit_code == 0
    assert (tmp_path / "again" / "README.md").read_text() == page


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--experiment", "z"], "Expected experiments out of a, b, c"),
        (["--data", "sst"], "Expected WORKLOAD=PATH"),
        (["--merge"], "go together"),
    ],
)
def test_experiments_refuse_what_they_do_not_know(options, said):
    result = CliRunner().invoke(main, ["bench", "experiments", *options])
    assert result.exit_code == 2 and said in result.stderr


# ---- pages ---------------------------------------------------------------------------------------


def test_the_page_of_results_is_made_from_the_rows_beside_it():
    folder = ROOT / "docs" / "results"
    rows = results.read(folder / "experiments.jsonl")
    figures = {name: f"experiment-{name}.png" for name in EXPERIMENTS}
    assert {file.name for file in folder.glob("experiment-*.png")} == {*figures.values()}
    page = (folder / "README.md").read_text()
    assert report.page(rows, figures) == page
    assert report.commands(rows) == (folder / "commands.sh").read_text()


def test_a_page_names_only_environments_in_which_something_was_timed():
    old, new = ({"environment": "e", "date": date} for date in ("2026-11-22", "2026-11-25"))
    about = [{**row, "about": {}, "command": "multifold bench experiments"} for row in (old, new)]
    assert report.in_use([*about, {**new, "median_ms": 1.0}]) == [about[1]]


KNOWN = {
    "python",
    "multifold",
    "numpy",
    "torch",
    "tensorflow",
    "mxnet",
    "jax",
    "dynet",
    "adapter",
    "device",
}
KNOWN |= {"platform", "processor", "cores", "threads", "variables"}


def test_results_that_are_kept_name_no_machine():
    for line in (ROOT / "docs" / "results" / "experiments.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert "/" not in row.get("command", "")
        assert set(row.get("about", {})) <= KNOWN


# ---- profile -------------------------------------------------------------------------------------


def test_a_profile_splits_the_whole_step(seam):
    train = "kit" not in seam.gaps() and seam.name != "jax"
    for row in profile(benchmark_of("synthetic"), seam, batch=2, train=train, rounds=1):
        assert tuple(row["ms"]) == PHASES
        assert sum(row["ms"].values()) == pytest.approx(row["total_ms"])
        assert row["ms"]["op"] > 0 and (row["ms"]["backward"] > 0) == train
        assert (row["ms"]["record"] > 0) == (row["contender"] == "fold")


def test_bench_profile_shows_the_shares(tmp_path):
    path = tmp_path / "rows.json"
    options = ["--backend", "numpy", "--batch", "2", "--rounds", "1", "--width", "4", "--json", str(path)]
    result = CliRunner().invoke(main, ["bench", "profile", *options])
    assert result.exit_code == 0, result.output
    assert [row["contender"] for row in results.read(path)] == ["fold", "fold-traced"]
    assert "backward" in result.stdout and "%" in result.stdout
