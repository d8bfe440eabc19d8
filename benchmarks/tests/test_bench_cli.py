"""``multifold bench``: what its tables and files say, and the one line where something is wrong."""

from __future__ import annotations

import json
import re
from functools import partial
from importlib.util import find_spec

import pytest
from click.testing import CliRunner

import multifold
from multifold._compare.workloads import BinaryTree
from multifold.cli import main
from multifold.compat import torchfold
from multifold.errors import MismatchError
from multifold_bench import doors, operands
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


def test_bench_record_shows_recording_beside_the_bare_recursion(run, tmp_path):
    file = tmp_path / "rows.json"
    result = run("bench", "record", "--batch", "2", "--rounds", "2", "--json", file)
    assert result.exit_code == 0, result.output
    (row,) = rows_of(file)
    assert row["record_us"][1] > 0 and row["bare_us"][1] > 0
    assert "the recursion alone" in result.stdout


def test_bench_trace_shows_times_and_bytes_for_each_size_of_tree(run, tmp_path):
    file = tmp_path / "rows.json"
    result = run("bench", "trace", "--batch", "3", "--rounds", "2", "--json", file)
    assert result.exit_code == 0, result.output
    rows = rows_of(file)
    assert [(row["leaves"], row["calls"]) for row in rows] == [(1, 6), (10, 60), (40, 240)]
    assert all(row[f"{way}_us"][0] > 0 for row in rows for way in ("record", "traces", "trace"))
    assert all(0 < row["merged_bytes"] <= 20 * row["calls"] + 4096 for row in rows)


def test_bench_trace_times_no_traces_that_differ(run, monkeypatch):
    from multifold_bench import trace

    monkeypatch.setattr(trace, "one_by_one", lambda fn, examples: [])
    result = run("bench", "trace", "--batch", "2", "--rounds", "1")
    assert result.exit_code != 0
    assert result.stdout == ""


def test_bench_record_by_operands_has_a_row_for_each_kind(run, tmp_path):
    file = tmp_path / "rows.json"
    kinds = ["numbers", "arrays", "ragged", "static", "strings", "keywords", "cse"]
    result = run("bench", "record", "--operands", ",".join(kinds), "--rounds", "1", "--json", file)
    assert result.exit_code == 0, result.output
    rows = {row["operands"]: row for row in rows_of(file)}
    assert list(rows) == kinds
    assert {row["calls"] for row in rows.values()} == {2000}
    assert rows["cse"]["recorded"] < rows["numbers"]["recorded"] == 2000
    assert all(line_of(result, kind) for kind in kinds)


def test_bench_record_of_blocks_has_a_row_for_each_model(run, tmp_path):
    file = tmp_path / "blocks.jsonl"
    result = run("bench", "record", "--blocks", "--batch", "2", "--rounds", "1", "--json", file)
    assert result.exit_code == 0 and "reduction, traces" in result.output
    rows = {row["model"]: row for row in rows_of(file)}
    assert [row["calls"] for row in rows.values()] == [78, 38, 80, 78]
    assert all(row[times]["blocks"][1] > 0 for row in rows.values() for times in ("step_us", "record_us"))


def test_bench_record_by_operands_compares_with_the_plain_loop(monkeypatch):
    monkeypatch.setitem(operands.MODEL, "double", lambda x: x * 3.0)
    with pytest.raises(MismatchError, match="Expected values"):
        operands.measure_operands(["numbers"], rounds=1)


def test_bench_record_refuses_a_kind_of_operand_that_there_is_not(run):
    result = run("bench", "record", "--operands", "numbers,huge")
    assert result.exit_code != 0
    assert "Expected operands out of numbers" in result.stderr


def test_bench_doors_has_a_row_for_each_door_and_kind_of_operand(run, backend, tmp_path):
    file = tmp_path / "rows.json"
    chosen = ["torchfold", *(["mxnet_fold"] if backend in ("numpy", "mxnet") else [])]
    options = [x for door in chosen for x in ("--door", door)]
    options += ["--backend", backend, "--batch", "2", "--rounds", "1", "--json", file]
    result = run("bench", "doors", *options)
    assert result.exit_code == 0, result.output
    rows = rows_of(file)
    kinds = ["numbers", "numpy"] + ["arrays"] * (backend != "numpy")
    assert [(row["door"], row["operands"]) for row in rows] == [(d, k) for d in chosen for k in kinds]
    assert len({row["calls"] for row in rows}) == 1 and rows[0]["calls"] > 2
    assert line_of(result, "torchfold")


def test_bench_doors_compares_values_with_the_native_ones(monkeypatch):
    other = doors.DoorWay(lambda: torchfold.Fold(backend="numpy"), doors.by_name, {0: (2,)})
    native = doors.DoorWay(lambda: multifold.Fold("numpy"), doors.by_name, {0: (1,)})
    monkeypatch.setattr(doors, "ways_of", lambda *_: {"native": native, "door": other})
    with pytest.raises(MismatchError, match="contender 'door'"):
        doors.measure_door("torchfold", "numpy", "numbers", [BinaryTree(0)], 1, lambda what: None)


def test_bench_doors_times_the_predecessor_where_it_is_installed(monkeypatch):
    monkeypatch.setitem(doors.PREDECESSORS, "torchfold", "multifold.compat.torchfold")
    monkeypatch.setattr(torchfold, "Fold", partial(torchfold.Fold, backend="numpy"))
    ways = doors.ways_of("torchfold", "torch", "numbers", [0]) if find_spec("torch") else None
    assert doors.installed("torchfold")
    assert ways is None or list(ways) == ["native", "door", "predecessor"]


def test_bench_doors_refuses_a_door_that_there_is_not(run):
    result = run("bench", "doors", "--door", "dynet")
    assert result.exit_code != 0
    assert "Expected doors out of torchfold, mxnet_fold" in result.stderr


def test_bench_plan_shows_launches_bound_and_certificate_for_each_policy(run, tmp_path):
    file = tmp_path / "rows.json"
    options = ["--workload", "sst-nodes", "--batch", "4", "--rounds", "1", "--json", file]
    result = run("bench", "plan", *options)
    assert result.exit_code == 0, result.output
    auto, traces, depth, _ = rows_of(file)
    assert traces["launches"] == auto["launches"]
    assert auto["launches"] == auto["lower_bound"] == depth["lower_bound"] < depth["launches"]
    assert (auto["certificate"], depth["certificate"]) == ("optimal", "heuristic")
    assert f"{auto['launches']} optimal" in line_of(result, "sst-nodes")


def test_bench_small_shows_each_way_beside_the_calls_of_the_framework(run, backend, tmp_path):
    file = tmp_path / "rows.json"
    options = ["--backend", backend, "--rounds", "1", "--json", file]
    result = run("bench", "small", *options, "--workload", "two-launches", "--workload", "one-tree")
    assert result.exit_code == 0, result.output
    two, one = rows_of(file)
    assert (two["calls"], two["launches"], one["calls"]) == (3, 2, 39)
    assert all(two[f"{way}_us"][1] > 0 for way in ("ops", "calls", "new", "reset", "traced"))
    assert "a launch more, beside calls" in result.stdout


def test_bench_small_refuses_a_workload_that_there_is_not(run):
    result = run("bench", "small", "--workload", "huge")
    assert result.exit_code != 0
    assert "Expected a workload out of two-launches" in result.stderr


def test_bench_balance_compares_a_budget_with_random_minibatches(run, backend, tmp_path):
    options = ["--examples", "200", "--calls", "300", "--minibatches", "5", "--width", "2"]
    result = run("bench", "balance", "--backend", backend, *options, "--json", tmp_path / "rows.json")
    assert result.exit_code == 0, result.output
    budget, random, times = rows_of(tmp_path / "rows.json")
    assert budget["slowest"] < 1.03 < random["slowest"]
    assert budget["largest"] <= 300 and set(times["explained"]) == {"calls", "launches", "both"}


def test_bench_gap_shows_how_far_bounds_and_policies_are_from_all_schedules(run, tmp_path):
    file = tmp_path / "gap.json"
    result = run("bench", "gap", "--graphs", "50", "--json", file)
    assert result.exit_code == 0, result.output
    rows = {row["name"]: row for row in rows_of(file)}
    assert rows["auto"]["exact"] == rows["search"]["exact"] == 1
    assert rows["depth"]["exact"] < 0.5
    assert all(sum(row["gaps"].values()) == 50 for row in rows.values())


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


def test_bench_step_compares_with_slabs_and_with_states_that_grow(run, tmp_path):
    file = tmp_path / "rows.json"
    options = ["--backend", "numpy", "--width", "4", "--batch", "2", "--rounds", "1", "--json", file]
    result = run("bench", "step", *options, "--contenders", "hand,hand-cat,fold")
    assert result.exit_code == 0, result.output
    by_slabs, by_cat, fold = rows_of(file)
    assert by_cat["to_hand_cat"] == by_slabs["to_hand"] == 1
    assert fold["to_hand_cat"] == pytest.approx(fold["median_ms"] / by_cat["median_ms"])
    assert by_cat["launches"] == by_slabs["launches"] == fold["lower_bound"]


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
    assert "Received 'tagger'" in refused(
        *step, "dynet", "--workload", "tagger", "--dynet-python", __file__
    )


@pytest.mark.parametrize("command", ["record", "trace", "plan"])
def test_a_file_that_can_not_be_written_is_refused_before_anything_is_measured(run, tmp_path, command):
    file = tmp_path / "rows.json"
    file.symlink_to(tmp_path / "nowhere" / "rows.json")
    result = run("bench", command, "--json", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "can't be written: No such file or directory" in result.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["explain", "--seed", "-1"],
        ["bench", "record", "--seed", "-1"],
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


def test_bench_device_makes_one_pass_and_keeps_its_rows(run, tmp_path, backend):
    if backend != "torch":
        pytest.skip("PyTorch's pass shows the command; JAX's takes a minute of compilation")
    file, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    options = ("--backend", backend, "--device", "cpu", "--seconds", 60, "--quick")
    result = run("bench", "device", *options, "--json", file, "--report", page)
    assert result.exit_code == 0, result.output
    rows = rows_of(file)
    short, long = (row for row in rows if row["stage"] == "transfers")
    assert (short["copies"], short["waits"]) == (long["copies"], long["waits"])  # 10 and 1,000 launches
    fold = next(row for row in rows if row.get("contender") == "fold" and row["mode"] == "train")
    assert fold["median_ms"] > 0 and fold["difference"] < 1e-3
    assert "| torch | train | 32 | 16 | fold |" in page.read_text()
