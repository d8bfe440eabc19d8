"""What `multifold.advise` measures of programs of NumPy, and how the command line shows it."""

from __future__ import annotations

import cProfile
import re
import sys

import numpy as np
import pytest
from click.testing import CliRunner

import multifold
from multifold import RecordError
from multifold._measure.watched import Beside, Clock, OwnLines, WatchedLoop, in_place_of
from multifold.cli import main

WEIGHTS = np.random.default_rng(0).normal(size=(64, 64)) / 8


class Tree:
    """A recursive model."""

    def join(self, left, right):
        return np.tanh((left + right) @ WEIGHTS)

    def encode(self, tree):
        if isinstance(tree, tuple):
            return self.join(*map(self.encode, tree))
        return np.multiply(WEIGHTS[tree], 1)

    def __call__(self, tree):
        return self.encode(tree)


class Counting(Tree):
    """A model that keeps something on itself."""

    seen = 0

    def encode(self, tree):
        self.seen += 1
        return super().encode(tree)


TREES = [((1, 2), (3, i)) for i in range(40)]


@pytest.fixture(scope="module")
def advice():
    return multifold.advise(Tree(), TREES, backend="numpy")


def test_the_loop_is_the_first_way_and_calls_of_add_the_last(advice):
    assert [way.name for way in (advice.ways[0], advice.ways[-1])] == [
        "one example at a time",
        "fold.run, with calls of fold.add",
    ]
    assert advice.examples == 40 and not advice.trains


def test_gains_are_ranges_whose_ends_are_less_than_twice_apart(advice):
    assert len(advice.ways) == 4
    for way in advice.ways[1:]:
        assert 0 < way.low < way.high < 2 * way.low


def test_the_times_that_are_shown_are_within_the_ranges(advice):
    loop, *others = [re.split("  +", line) for line in str(advice).splitlines()[3:7]]
    for *_, shown, gains in others:
        low, high = map(float, gains.split(" to "))
        assert low < float(loop[-1]) / float(shown) < high, (shown, gains)


def test_a_program_is_replayed_too_unless_it_reads_what_it_computes(advice):
    assert advice.ways[2].name == "multifold.batched(fn, cells=[Tree.join]), replayed"
    assert advice.ways[2].calls == advice.ways[1].calls
    assert sum("run.replay(traces)" in note for note in advice.notes) == 1

    def reading(tree):
        x = join_two(WEIGHTS[tree], WEIGHTS[0])
        return x if x[0] > 0 else join_two(x, x)

    found = multifold.advise(reading, [1, 2, 3], backend="numpy")
    assert not any("replayed" in way.name for way in found.ways)
    assert "run.replay: The program reads a computed value" in "".join(found.notes)


def test_it_is_shown_as_a_table(advice):
    lines = str(advice).splitlines()
    assert lines[0] == "40 examples, forward"
    assert lines[2].split() == ["calls", "launches", "ms", "times", "as", "fast"]
    assert len(lines) >= 3 + len(advice.ways)


def test_what_the_program_leaves_on_its_model_is_put_back():
    model = Counting()
    multifold.advise(model, TREES[:3], backend="numpy")
    assert model.seen == 0


def test_no_more_examples_run_than_asked_for():
    assert multifold.advise(Tree(), TREES, most=2, backend="numpy").examples == 2


def test_functions_are_found_that_return_arrays_and_do_not_call_themselves(advice):
    assert advice.ops == ["Tree.join"]
    with WatchedLoop(multifold.load_backend("numpy"), Tree()) as watch:
        Tree()(((1, 2), 3))
    assert [fn.__qualname__ for fn in watch.functions()] == ["Tree.join"]


def test_what_the_loop_raises_is_raised():
    with pytest.raises(ZeroDivisionError):
        multifold.advise(lambda x: 1 / 0, [1], backend="numpy")


def test_without_examples_there_is_no_advice():
    with pytest.raises(RecordError, match="at least one example"):
        multifold.advise(Tree(), [])


@pytest.fixture
def program(tmp_path):
    """A file with a program of two arguments."""
    path = tmp_path / "program.py"
    path.write_text(
        "import numpy as np\n"
        "weights = np.eye(8)\n"
        "def fn(x, steps):\n"
        "    for _ in range(steps):\n"
        "        x = np.tanh(x @ weights)\n"
        "    return x\n"
        "examples = [np.ones(8)] * 4, [1, 2, 3, 4]\n"
        "if __name__ == '__main__':\n"
        "    raise SystemExit(1)\n"
    )
    return path


def test_the_command_measures_the_loop_of_a_file(program):
    result = CliRunner().invoke(main, ["advise", str(program), "--most", "3"])
    assert result.exit_code == 0
    assert result.stdout.startswith("3 examples, forward")


def test_a_file_finds_modules_beside_it_and_its_arguments(program, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    beside = tmp_path / "beside"
    beside.mkdir()
    program.rename(beside / "model_of_a_test.py")
    other = beside / "other.py"
    other.write_text(
        "import sys\nfrom model_of_a_test import *\nnamed = fn if sys.argv[1:] == ['--big'] else 0\n"
    )
    command = ["advise", str(other), "--most", "1", "--fn", "named", "--", "--big"]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    assert str(beside) not in sys.path


@pytest.mark.parametrize("line", ["open('no such file')", "def fn(x): return [][x]\nexamples = [1]"])
def test_what_a_file_raises_is_shown_with_its_own_frames(tmp_path, line):
    path = tmp_path / "program.py"
    path.write_text(line)
    result = CliRunner().invoke(main, ["advise", str(path), "--backend", "numpy"])
    assert result.exit_code == 1
    assert re.findall(r'File "(.*)", line 1', result.stderr) == [str(path)]
    assert result.stderr.splitlines()[-1].split(":")[0] in ("FileNotFoundError", "IndexError")


def test_the_command_says_which_names_a_file_has(program):
    result = CliRunner().invoke(main, ["advise", str(program), "--fn", "model"])
    assert result.exit_code == 2
    assert "to define 'model'. It defines examples, fn, np, weights." in result.stderr


def test_a_profiler_of_the_user_goes_on_after_the_loop_was_watched():
    seen = []
    sys.setprofile(lambda *event: seen.append(event))
    try:
        with WatchedLoop(multifold.load_backend("numpy"), Tree()):
            pass
        assert sys.getprofile() is not None
    finally:
        sys.setprofile(None)


def test_a_profiler_of_python_goes_on_after_the_loop_was_watched():
    with cProfile.Profile():
        with WatchedLoop(multifold.load_backend("numpy"), Tree()):
            pass
        assert sys.getprofile() is not None


# ---- what the estimate is made of -----------------------------------------------------------------------


def test_it_says_which_lines_to_make_ops_of(advice):
    line = Tree.encode.__code__.co_firstlineno + 2
    text = (
        f"Ops to write for fold.add, and how many calls of each there are: Tree.encode, line {line} (120)."
    )
    assert text in advice.notes


def test_the_table_and_the_notes_are_at_most_100_columns_wide(advice):
    assert max(map(len, str(advice).splitlines())) <= 100


def test_it_says_why_a_gain_is_low():
    advice = multifold.advise(Tree(), TREES[:1], backend="numpy")
    assert advice.ways[-1].low < 1
    assert advice.notes[-1] == "Few calls can run together, 1.5 in a launch, which keeps the gain low."


def test_a_way_that_cannot_be_foretold_is_left_out_and_says_why():
    def encode(tree):
        x = join_two(WEIGHTS[0], WEIGHTS[1])
        return join_two(x, encode(tree - 1)) if x[0] < 9 and tree else x

    advice = multifold.advise(encode, [1, 2, 3], backend="numpy")
    assert all("fold.run" not in way.name for way in advice.ways)
    assert "fold.run, with calls of fold.add is not foretold: it reads values in a function" in str(advice)


def test_time_beside_the_program_is_none_of_the_framework():
    with Beside(("numpy",), lambda module: module == __name__) as watch:
        computing()
    assert watch.spent["framework"] > watch.spent["program"] > 0 == watch.spent["beside"]
    with Beside(("re",), lambda module: module == __name__) as watch:
        computing()
    assert watch.spent["beside"] > watch.spent["program"] > 0
    assert watch.seconds(alone=sum(watch.spent.values())) >= watch.seconds(alone=0) >= 0


def computing():
    for _ in range(3):
        np.linalg.svd(np.ones((300, 300)))


def test_lines_count_that_ops_do_not_run():
    own = lambda module: module == __name__  # noqa: E731
    inside = {Tree.join.__code__}
    with OwnLines(own, (), ()) as every:
        Tree()((1, 2))
    with OwnLines(own, inside, ()) as without:
        Tree()((1, 2))
    line = next(line for *_, line in Tree.encode.__code__.co_lines() if line) + 3
    with OwnLines(own, inside, {(Tree.encode.__code__, line)}) as fewer:
        Tree()((1, 2))
    assert every.count == without.count + 3  # the call, which counts as two, and its line
    assert without.count == fewer.count + 2  # the leaves, one line each


def test_a_clock_times_functions_in_the_place_of_others():
    clock = Clock(multifold.load_backend("numpy"))
    with in_place_of({Tree.join: clock.timed(Tree.join, rows=False)}):
        Tree()((1, 2))
    assert clock.seconds > 0
    assert not hasattr(Tree.join, "__wrapped__")


def test_what_is_one_row_for_all_examples_is_a_row_of_each_where_a_function_takes_rows():
    timed = Clock(multifold.load_backend("numpy")).timed(np.hstack, rows=True)
    assert timed([np.ones((3, 2)), np.ones((1, 2))]).shape == (3, 4)


def test_functions_that_take_no_array_are_not_named():
    def encode(tree):
        return join_two(*map(encode, tree)) if isinstance(tree, tuple) else row_of(tree)

    assert multifold.advise(encode, TREES, backend="numpy").ops == ["join_two"]


def join_two(left, right):
    return np.tanh((left + right) @ WEIGHTS)


def row_of(number):
    return np.array(WEIGHTS[number])
