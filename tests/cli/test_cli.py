"""The command line: what its tables and files say, and the one line where something is wrong."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from multifold import Fold
from multifold._engine import compiled
from multifold._engine.frameworks import registry
from multifold._measure import machine
from multifold._numpy.backend import NumpyBackend
from multifold.cli import GROUP, main, output
from multifold.cli.backends import words
from multifold.cli.output import muted

TREES = ["(3 (2 It) (4 (2 's) (3 lovely)))", "(1 (2 No) (1 way))"]
"""Six calls, the output's among them, and four; three heights."""


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Puts the variables back that a command sets for frameworks."""
    for name in machine.THREADS:
        monkeypatch.setenv(name, os.environ.get(name, ""))
        if not os.environ[name]:
            monkeypatch.delenv(name)


TINY = ["--batch", "2", "--width", "4", "--rounds", "1"]


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


@pytest.fixture
def sst(tmp_path):
    """A folder with a tiny treebank."""
    (tmp_path / "train.txt").write_text("\n".join(TREES))
    return tmp_path


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def missing():
    """A backend of this project that is not installed here; no environment holds them all."""
    return next(name for name in registry.BACKENDS if name not in registry.installed_backends())


# ---- compare -------------------------------------------------------------------------------------


def test_compare_counts_and_checks_what_it_times(run, backend, sst, tmp_path):
    file = tmp_path / "rows.json"
    options = ["--workload", "sst", "--data", sst, "--backend", backend, "--json", file]
    result = run("compare", *TINY, *options)
    assert result.exit_code == 0, result.output
    (row,) = rows_of(file)
    assert (row["nodes"], row["launches"], row["lower_bound"], row["mean_rows"]) == (10, 4, 4, 2.5)
    assert row["difference"] < 1e-5 < min(row["loop_ms"], row["fold_ms"])
    assert f" {backend} " in result.stdout and " 2.5 " in result.stdout


@pytest.mark.nightly(but=["numpy"])
def test_compare_asks_for_one_thread_where_the_user_has_not_said_more(monkeypatch):
    for name in machine.ONE_THREAD:
        monkeypatch.setenv(name, "2")
        if name != "OMP_NUM_THREADS":
            monkeypatch.delenv(name)
    machine.ask_for_one_thread()
    assert os.environ["OMP_NUM_THREADS"] == "2" and os.environ["TF_NUM_INTRAOP_THREADS"] == "1"
    assert {name for name in machine.THREADS if name not in os.environ} <= {"OMP_WAIT_POLICY"}


def test_compare_reads_the_standard_library_by_default(run, backend):
    result = run("compare", *TINY, "--backend", backend)
    assert result.exit_code == 0, result.output
    assert "python-ast, forward, 2 examples, width 4" in result.stdout


def test_compare_trains_where_there_are_gradients_and_says_where_not(run, backend, sst):
    options = ["--workload", "sst", "--data", sst, "--backend", backend, "--train"]
    result = run("compare", *TINY, *options)
    assert result.exit_code == 0, result.output
    has_gradients = "kit" not in registry.load_backend(backend).gaps()
    assert ("no gradients" in result.stdout) != has_gradients
    assert ("forward and backward" in result.stdout) == has_gradients


def test_compare_takes_every_installed_backend_unless_told(run, sst, monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda: {"stranger": Point()})
    result = run("compare", *TINY, "--workload", "sst", "--data", sst)
    assert result.exit_code == 0, result.output
    assert " 2.5 " in line_of(result, "numpy")
    assert "has no module 'multifold_stranger.modules'" in line_of(result, "stranger")


PRINTS = """
from multifold.cli.output import progress
with progress("working", 3) as bar:
    for i in range(3):
        bar.advance("working")
        bar.print(f"line {i}")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
def test_lines_stand_where_the_bar_was_on_a_terminal():
    import pty

    terminal, end = pty.openpty()
    command = [sys.executable, "-c", PRINTS]
    environment = {**os.environ, "TERM": "xterm"}
    subprocess.run(command, stdin=end, stdout=end, stderr=end, env=environment, check=True, timeout=60)
    os.close(end)
    lines = os.read(terminal, 1 << 16).decode().split("\r\n")
    os.close(terminal)
    shown = [line.rpartition("\x1b[2K")[2] for line in lines if "line " in line]
    assert shown == ["line 0", "line 1", "line 2"]


def test_compare_draws_its_bar_on_a_terminal_only(run, sst):
    options = ["compare", *TINY, "--backend", "numpy", "--workload", "sst", "--data", sst]
    assert run(*options).stderr == ""
    assert "numpy: fold" in run(*options, env={"FORCE_COLOR": "1"}).stderr


def test_compare_merges_files_into_one_table(run, sst, tmp_path):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file, mode in zip(files, (["--train"], []), strict=True):
        options = ["--workload", "sst", "--data", sst, "--backend", "numpy", "--json", file]
        assert run("compare", *TINY, *options, *mode).exit_code == 0
    lines = run("compare", "--merge", *files).stdout.splitlines()
    first, second = (line.split() for line in lines if line.strip().startswith("numpy "))
    assert first == ["numpy", "no", "gradients"] and "10" in second


def test_merging_names_the_line_that_is_no_row(refused, tmp_path):
    file = tmp_path / "rows.json"
    file.write_text('{"backend": "numpy", "note": "no gradients"}\n\n{"backend": "numpy"}\n')
    assert refused("compare", "--merge", file).startswith(f"Error: {file}:3: expected a string as")
    file.write_text("{")
    assert f"{file}:1: expected a JSON object" in refused("compare", "--merge", file)
    assert "nothing.json: expected a file" in refused("compare", "--merge", "nothing.json")


def test_a_malformed_tree_is_named_by_file_and_line(refused, sst):
    file = sst / "train.txt"
    file.write_text(f"{TREES[0]}\n(3 (2 It)\n")
    line = refused("compare", "--workload", "sst", "--data", sst)
    assert line == f"Error: {file}:2: expected ')', received the end of the line (1 open)."


def test_missing_data_is_named(refused, tmp_path):
    command = ["compare", "--backend", "numpy", "--workload"]
    assert "expected --data DIR" in refused(*command, "sst")
    assert f"{tmp_path / 'no'}: expected a file" in refused(*command, "sst", "--data", tmp_path / "no")
    assert "train.txt: expected a file" in refused(*command, "sst", "--data", tmp_path)
    assert "expected Python files" in refused(*command, "python-ast", "--data", tmp_path)
    (tmp_path / "train.txt").write_text("\n")
    assert "train.txt:1: expected a tree" in refused(*command, "sst", "--data", tmp_path)


def test_a_tree_too_deep_for_recursion_is_one_line(refused, tmp_path):
    tree = "(2 word)"
    for _ in range(5000):
        tree = f"(2 (2 word) {tree})"
    (tmp_path / "train.txt").write_text(tree)
    command = ["compare", "--backend", "numpy", "--workload", "sst", "--data", tmp_path]
    assert "nested more deeply" in refused(*command)


def test_an_unknown_backend_suggests_the_nearest_and_a_missing_one_how_to_install_it(refused, missing):
    assert "did you mean 'torch'?" in refused("compare", "--backend", "troch")
    assert registry.install_line(missing) in refused("compare", "--backend", missing)


def test_a_file_that_cannot_be_written_is_refused_before_anything_runs(run, tmp_path):
    result = run("compare", "--json", tmp_path / "no" / "rows.json")
    assert result.exit_code == 2 and "There is no folder" in result.stderr


def test_wrong_results_end_with_exit_code_1(run, sst, monkeypatch):
    apply = Fold.apply
    monkeypatch.setattr(Fold, "apply", lambda fold, model, outputs: apply(fold, model, outputs) + 1)
    result = run("compare", *TINY, "--backend", "numpy", "--workload", "sst", "--data", sst)
    assert result.exit_code == 1
    assert "Expected the logits of contender 'fold' to equal that of 'loop'" in result.stderr


# ---- backends ------------------------------------------------------------------------------------


class Point:
    """An entry point of a backend from outside of the project: NumPy under another name."""

    value = "stranger:Backend"
    dist = type("Distribution", (), {"name": "multifold-stranger", "version": "3.2"})

    def load(self):
        members = {"name": "stranger", "__module__": "multifold_stranger"}
        return type("Stranger", (NumpyBackend,), members)


class Broken(Point):
    """An entry point whose framework is not there."""

    def load(self):
        raise ModuleNotFoundError("No module named 'strange'")


@pytest.fixture(autouse=True)
def _forget_strangers():
    yield
    registry.load_backend.cache_clear()


def line_of(result, name):
    return next(line for line in result.stdout.splitlines() if line.split()[:1] == [name])


def test_backends_lists_version_device_and_gaps(run, backend):
    result = run("backends")
    line = line_of(result, backend)
    gaps = registry.load_backend(backend).gaps()
    assert ("multifold" if backend == "numpy" else f"multifold-{backend}") in line
    assert line.split()[-1] == ("gradients" if "kit" in gaps else "none")
    for attribute, reason in gaps.items():
        assert f"{backend}: no {words(attribute)}: {reason}" in result.stdout.splitlines()


def test_a_gap_without_words_of_its_own_is_called_by_its_attribute():
    assert (words("kit"), words("padded_rows")) == ("gradients", "padded rows")


def test_backends_says_whether_the_compiled_code_runs(run, monkeypatch):
    assert f"compiled code: {'in use' if compiled.in_use else 'not in use'}" in run("backends").stdout
    monkeypatch.setattr(compiled, "in_use", False)
    monkeypatch.setattr(compiled, "missing", "switched off")
    assert "compiled code: not in use (switched off)" in run("backends").stdout


def test_backends_says_how_to_install_what_is_missing(run, missing):
    result = run("backends")
    assert line_of(result, missing).split() == [missing, "not", "installed"]
    assert f"{missing}: {registry.install_line(missing)}" in result.stdout.splitlines()


@pytest.mark.parametrize(("installed", "said"), [({"multifold": "1.2"}, 1), ({}, 0)])
def test_backends_says_where_two_distributions_hold_the_package(run, monkeypatch, installed, said):
    real = metadata.version

    def version(name):
        if name == "multifold" and name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed.get(name) or real(name)

    monkeypatch.setattr(metadata, "version", version)
    assert run("backends").stdout.count("multifold 1.2 is installed, too") == said


def test_backends_shows_a_strangers_backend(run, monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda: {"stranger": Point()})
    assert "multifold-stranger 3.2" in line_of(run("backends"), "stranger")


def test_backends_says_why_an_installed_backend_cannot_be_used(run, monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda: {"stranger": Broken()})
    result = run("backends")
    assert "not usable" in line_of(result, "stranger")
    assert "No module named 'strange'" in line_of(result, "stranger:")


def test_what_a_framework_writes_while_it_is_imported_is_dropped(capfd):
    import os

    with muted():
        os.write(2, b"noise")
    os.write(2, b"news")
    assert capfd.readouterr().err == "news"


# ---- terminals and files -------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_no_digit_is_cut_off_on_a_narrow_terminal(monkeypatch, capsys, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(output, "Console", functools.partial(Console, force_terminal=True, width=None))
    names = [f"column {i}" for i in range(12)]
    output.show_table(names, [[f"{285_623 + i:,}" for i in range(12)]])
    shown = capsys.readouterr().out
    assert all(f"{285_623 + i:,}" in shown for i in range(12))


def test_a_file_that_can_not_be_written_is_refused_before_anything_is_measured(run, tmp_path):
    file = tmp_path / "rows.json"
    file.symlink_to(tmp_path / "nowhere" / "rows.json")
    result = run("compare", "--json", file)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "can't be written: No such file or directory" in result.stderr


def test_a_file_is_left_alone_by_a_command_that_is_refused(refused, tmp_path):
    refused("compare", "--backend", "troch", "--json", tmp_path / "new.json")
    assert not list(tmp_path.iterdir())


def test_what_makes_no_sense_is_one_line(run):
    result = run("compare", "--seed", "-1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Traceback" not in result.stderr


def test_files_without_rows_are_refused(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.json").write_text("")
    result = run("compare", "--merge", "empty.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Expected rows" in result.stderr


# ---- commands of other distributions -------------------------------------------------------------


@pytest.fixture
def added(monkeypatch):
    """Say which commands other distributions add, by their entry points."""

    def added(**commands):
        points = {name: EntryPoint(name, value, GROUP) for name, value in commands.items()}
        monkeypatch.setattr("multifold.cli.entry_points", lambda: points)

    return added


@pytest.mark.parametrize("command", ["bench", "explain", "train"])
def test_without_multifold_bench_its_commands_say_in_one_line_what_to_install(refused, added, command):
    added()
    expected = f"Error: 'multifold {command}' belongs to multifold-bench, which is not installed."
    said = refused(command)
    assert said.startswith(f"{expected} Hint: pip install multifold-bench; ")


@pytest.mark.parametrize("command", ["bench", "explain", "train"])
def test_without_multifold_bench_its_commands_have_help(run, added, command):
    added()
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "multifold-bench, which is not installed. pip install" in " ".join(result.stdout.split())
    assert ("fold.explain()" in result.stdout) == (command == "explain")


def test_a_command_that_cannot_be_imported_is_one_line(refused, added):
    added(bench="multifold_bench_of_a_stranger:bench", odd="json:loads")
    assert "could not be imported: ModuleNotFoundError" in refused("bench")
    assert "Expected json:loads to be a click command" in refused("odd")


def test_help_lists_commands_of_others_and_imports_none_of_them(run, added):
    added(stranger="no_such_module:command")
    result = run("--help")
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.stdout.partition("Commands:")[2].splitlines() if line]
    assert listed == ["advise", "backends", "bench", "compare", "explain", "stranger", "train"]


def test_an_unknown_command_is_refused(run):
    assert "No such command 'benhc'" in run("benhc").stderr


def test_the_tests_of_the_core_run_without_multifold_bench():
    for path in Path(__file__).parents[1].rglob("*.py"):
        found = re.search(r"^\s*(from|import) multifold_bench\b.*", path.read_text(), re.MULTILINE)
        assert not found, f"{path.name} says {found[0]!r}; what needs it belongs into benchmarks/tests"
