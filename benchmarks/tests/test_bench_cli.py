"""``multifold bench``: what its tables and files say, and the one line where something is wrong."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from multifold.cli import main
from multifold_bench.cli.options import WORKLOADS
from multifold_bench.datasets import DatasetError
from multifold_bench.train.tasks.parts import read_parts


@pytest.fixture
def run():
    """Run a command; its exit code, stdout and stderr are on the result."""
    return lambda *arguments, **options: CliRunner().invoke(main, [*map(str, arguments)], **options)


@pytest.fixture
def refused(run):
    """Run a command that must end with one line on stderr and exit code 2; return the line."""

    def refused(*arguments):
        result = run(*arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        return line

    return refused


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def line_of(result, name):
    return next(line for line in result.stdout.splitlines() if line.split()[:1] == [name])


def test_bench_plan_shows_launches_bound_and_certificate_for_each_policy(run, tmp_path):
    file = tmp_path / "rows.json"
    options = ["--workload", "sst-nodes", "--batch", "4", "--rounds", "1", "--json", file]
    result = run("bench", "plan", *options)
    assert result.exit_code == 0, result.output
    auto, traces, depth, _ = rows_of(file)
    assert traces["launches"] == auto["launches"]
    assert auto["launches"] == auto["lower_bound"] == depth["lower_bound"] < depth["launches"]
    assert (auto["certificate"], depth["certificate"]) == ("optimal", "heuristic")
    assert f"{auto['launches']} *" in line_of(result, "sst-nodes")


def test_bench_step_times_contenders_against_the_one_written_by_hand(run, backend, tmp_path):
    file = tmp_path / "rows.json"
    options = ["--backend", backend, "--width", "4", "--batch", "2", "--rounds", "1", "--json", file]
    result = run("bench", "step", *options, "--seconds", "0")
    assert result.exit_code == 0, result.output
    rows = {row["contender"]: row for row in rows_of(file)}
    assert list(rows) == ["loop", "hand", "fold", "fold-traced"]
    assert rows["hand"]["to_hand"] == 1 and rows["loop"]["launches"] == rows["loop"]["nodes"]
    assert rows["fold"]["launches"] == rows["fold"]["lower_bound"]
    assert rows["hand"]["launches"] == (None if backend == "jax" else rows["fold"]["launches"])  # tiles
    assert rows["fold"]["environment"]["numpy"] and rows["fold"]["workload"] == "synthetic"


NO_FILES = [name for name in WORKLOADS if name not in ("sst", "python-ast")]


@pytest.mark.parametrize("name", NO_FILES)
def test_bench_step_leaves_out_contenders_that_do_not_exist(run, name):
    options = ["--backend", "numpy", "--workload", name, "--width", "2", "--batch", "1", "--rounds", "1"]
    result = run("bench", "step", *options)
    assert result.exit_code == 0, result.output
    for contender in ("loop", "hand", "fold", "fold-traced"):
        left_out = f"{contender} is left out: Expected " in result.stderr
        assert left_out != bool(re.search(rf"(?m)^ {contender} ", result.stdout))


def test_bench_step_without_any_contender_says_why(refused):
    step = ["bench", "step", "--backend", "numpy", "--workload", "mnist", "--contenders"]
    assert "hand-written 'mnist'" in refused(*step, "hand")


def test_a_folder_around_the_folder_of_the_files_is_named(refused, tmp_path):
    (tmp_path / "trees").mkdir()
    (tmp_path / "trees" / "train.txt").write_text("(3 good)")
    step = ["bench", "step", "--backend", "numpy", "--workload", "sst", "--data", tmp_path]
    inside = f"holds one folder, 'trees', and no files: pass {tmp_path / 'trees'}."
    assert inside in refused(*step)
    with pytest.raises(DatasetError, match="holds one folder"):
        read_parts(tmp_path, (".txt",), "somewhere", lambda *_: [], lambda *_: None)


def test_bench_step_refuses_what_it_does_not_know(refused, tmp_path):
    step = ["bench", "step", "--backend", "numpy", "--contenders"]
    assert "Expected contenders out of loop" in refused(*step, "loop,magic")
    assert "has no gradients" in refused(*step, "loop", "--train")
    assert "Expected --dynet-python" in refused(*step, "dynet")
    assert "Received 'mnist'" in refused(*step, "dynet", "--workload", "mnist", "--dynet-python", __file__)


def test_a_file_that_can_not_be_written_is_refused_before_anything_is_measured(run, tmp_path):
    file = tmp_path / "rows.json"
    file.symlink_to(tmp_path / "nowhere" / "rows.json")
    result = run("bench", "plan", "--json", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "can't be written: No such file or directory" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["explain", "--seed", "-1"],
        ["bench", "plan", "--seed", "-1"],
        ["bench", "step", "--backend", "numpy", "--contenders", " , "],
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_one_line(run, command):
    result = run(*command)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr


def test_files_without_rows_are_refused(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.json").write_text("")
    result = run("bench", "experiments", "--report", "report", "--merge", "empty.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Expected rows" in result.stderr


def test_each_command_comes_from_this_distribution(run):
    for command in ("bench", "explain", "train"):
        assert run(command, "--help").exit_code == 0
