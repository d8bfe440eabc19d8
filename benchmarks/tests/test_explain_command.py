"""``multifold explain``: the table, the drawings and the policy that it takes."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

import multifold
from multifold.cli import main
from multifold_bench import workloads
from multifold_bench.cli.explain import explain as explain_command
from multifold_bench.cli.options import WORKLOADS
from multifold_bench.cli.step import step
from multifold_bench.graphs import GRAPHS
from multifold_bench.graphs.trees import tree_lstm

SVG = "{http://www.w3.org/2000/svg}"


def test_the_command_prints_the_table_and_writes_the_drawings(tmp_path):
    names = ("svg", "html", "dot", "mermaid", "timeline")
    files = [part for name in names for part in (f"--{name}", str(tmp_path / name))]
    done = CliRunner().invoke(explain_command, ["--workload", "synthetic", "--batch", "2", *files])
    assert done.exit_code == 0, done.output
    assert "optimal (auto)" in done.output and " ms on numpy" in done.output
    assert ElementTree.parse(tmp_path / "svg").getroot().tag == f"{SVG}svg"
    assert json.loads((tmp_path / "timeline").read_text())["traceEvents"]
    starts = {name: (tmp_path / name).read_text()[:7] for name in ("html", "dot", "mermaid")}
    assert starts == {"html": "<!DOCTY", "dot": "digraph", "mermaid": "---\ntit"}


def test_the_command_takes_the_policy():
    options = ["--workload", "sst-nodes", "--batch", "2", "--schedule"]
    auto, depth = (CliRunner().invoke(explain_command, [*options, x]) for x in ("auto", "depth"))
    assert "optimal (auto)" in auto.output and "heuristic (depth)" in depth.output


def test_the_command_says_which_workloads_can_be_run(tmp_path):
    options = ["--workload", "grid", "--timeline", str(tmp_path / "x")]
    done = CliRunner().invoke(explain_command, options)
    assert done.exit_code == 2 and "'grid' has none; synthetic" in done.output


def choices(command):
    """Return what ``--workload`` of a command lists."""
    (option,) = [x for x in command.params if x.name == "workload"]
    return tuple(option.type.choices)


def test_explain_and_bench_step_list_the_same_workloads():
    assert choices(explain_command) == choices(step) == tuple(WORKLOADS)
    assert set(WORKLOADS) == set(workloads.WORKLOADS)


@pytest.mark.parametrize("name", [name for name in WORKLOADS if name not in ("sst", "python-ast")])
def test_every_workload_without_files_is_explained(name):
    done = CliRunner().invoke(explain_command, ["--workload", name, "--batch", "2"])
    assert (done.exit_code == 0 and "lower bound" in done.output) or " rounds, " in done.output


def test_what_was_written_is_said_with_its_name(tmp_path):
    file = tmp_path / "trees.svg"
    done = CliRunner().invoke(explain_command, ["--batch", "2", "--svg", str(file)])
    assert f"wrote {file}: a drawing with a box for each call, " in done.output


def test_rounds_are_drawn_one_after_the_other(tmp_path):
    options = ["--workload", "parser", "--batch", "2", "--svg", str(tmp_path / "x")]
    done = CliRunner().invoke(explain_command, options)
    assert done.exit_code == 0 and 'class="round"' in (tmp_path / "x").read_text()


def test_every_workload_that_the_command_runs_has_its_ops():
    for name in ("synthetic", "random-trees", "balanced-trees", "comb-trees"):
        fold = multifold.Fold(backend="numpy")
        outputs = GRAPHS[name](fold, batch=1)
        assert fold.apply(tree_lstm(4), [outputs])[0].shape == (1, 5)


@pytest.mark.parametrize("option", ["--svg", "--html", "--dot", "--mermaid", "--timeline"])
def test_explain_refuses_a_file_that_it_could_not_write_before_it_plans(tmp_path, monkeypatch, option):
    monkeypatch.setattr("multifold.Fold", pytest.fail)
    done = CliRunner().invoke(main, ["explain", option, str(tmp_path / "nowhere" / "file")])
    assert done.exit_code == 2 and "There is no folder" in done.output
