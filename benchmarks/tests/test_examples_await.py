"""The examples in which calls depend on values, small; each compares itself with its own loop."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from multifold import Fold, Unfold
from multifold._measure.benchmark import Examples
from multifold_bench.models import ShiftReduceParser
from multifold_bench.models.shift_reduce import REDUCE, SHIFT
from multifold_bench.parser import LightParserBenchmark, ParserBenchmark, bucketed, read_sentences
from multifold_bench.step import Setting, measure_step

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs an example and returns what it prints."""

    def run(name, *arguments):
        monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.fixture
def torch_only(backend):
    if backend != "torch":
        pytest.skip("the example is written for PyTorch")


def names(folder):
    """Write a folder of Python whose functions have the names that the examples read."""
    words = [f"{verb}_{noun}" for verb in ("read", "write", "find") for noun in ("all", "next", "some")]
    body = "    total = 0\n    for x in xs:\n        total += x * x + 1\n    return [total, xs]\n"
    (folder / "names.py").write_text("\n".join(f"def {word}(xs):\n{body}" for word in words))
    return folder


def test_early_exit_equals_its_loop_and_leaves_early(torch_only, run):
    pytest.importorskip("sklearn")
    printed = run("early_exit.py", "--count", 40, "--depth", 4, "--epochs", 1, "--confidence", 0.5)
    layers = re.search(r"40 images leave after (\d\.\d) of 4 layers", printed)
    assert 1 <= float(layers[1]) < 4 and "equal to the loop" in printed


def test_beam_search_completes_the_same_names_as_its_loop(torch_only, run, tmp_path):
    printed = run("beam_search.py", "--data", names(tmp_path), "--beam", 4)
    assert "learned from 9 names" in printed and "the same names as the loop" in printed


def test_tree_search_makes_the_same_moves_as_one_game_after_the_other(torch_only, run):
    printed = run("tree_search.py", "--games", 3, "--simulations", 20, "--lessons", 10)
    evaluated, launches = re.search(r"([\d,]+) positions evaluated in (\d+) launches", printed).groups()
    assert int(evaluated) > int(launches) and "the same moves" in printed


def test_the_parser_has_the_parses_and_gradients_of_one_at_a_time(backend, run, tmp_path):
    if backend in ("numpy", "jax"):
        pytest.skip("no gradients" if backend == "numpy" else "compiles for each number of rows")
    trees = ["(3 (2 It) (4 (2 's) (3 lovely)))", "(1 (1 (2 not) (3 good)) (2 .))", "(2 no)"] * 4
    data = tmp_path / "trees.txt"
    data.write_text("\n".join([*trees, "(2 (2 (2 a) (2 b)) (2 (2 c) (2 d)))"]))
    printed = run("parser.py", "--backend", backend, "--data", data, "--width", 6, "--batch", 4)
    assert "the same parses" in printed and "the same gradients" in printed


# ---- the parser of these examples and of the benchmark -------------------------------------------


@pytest.mark.parametrize("parser", [ParserBenchmark, LightParserBenchmark], ids=["parser", "light-parser"])
@pytest.mark.parametrize("train", [False, True], ids=["infer", "train"])
def test_the_contenders_of_the_workloads_of_parsers_agree(backend, seam, train, parser):
    if backend == "jax" or (train and "kit" in seam.gaps()):
        pytest.skip("compiles for each number of rows" if backend == "jax" else "no gradients")
    sentences = [[1, 2, 3], [4, 5, 6, 7], [8, 1, 2, 3, 4]]
    benchmark = parser(Examples(bucketed(sentences), words=9, classes=2), 6)
    names = ["loop", "unfold", "fold"] if backend == "numpy" else ["loop", "fold"]
    rows = measure_step(benchmark, seam, names, Setting(2, train, rounds=1, seconds=9, warmup=0))
    assert [row["contender"] for row in rows] == names
    assert rows[-1]["launches_by_round"] == rows[-1]["bound_by_round"]
    assert rows[-1]["launches"] < rows[0]["launches"]


def test_sentences_are_drawn_with_others_of_their_length():
    examples = read_sentences(None, 200, lambda done, total: None)
    lengths = [len(x) for x in examples.draw(np.random.default_rng(0), 16)]
    assert lengths == sorted(lengths) and lengths[-1] - lengths[0] <= 6


def test_sentences_are_read_from_trees(tmp_path):
    (tmp_path / "trees.txt").write_text(
        "(3 (2 It) (4 (2 's) (3 lovely)))\n(2 no)\n(2 (2 a) (2 (2 It) (2 b)))\n"
    )
    examples = read_sentences(tmp_path / "trees.txt", 9, lambda done, total: None)
    assert examples.draw(np.random.default_rng(0), 2) == [[1, 2, 5], [3, 1, 4]] and examples.words == 7


def test_a_parser_takes_known_transitions_without_waiting():
    known = [SHIFT, SHIFT, REDUCE, SHIFT, SHIFT, REDUCE, REDUCE]

    async def follow(fold, words):
        parsed = await ShiftReduceParser.parse(fold, words, follow=known)
        assert parsed.transitions == known and parsed.taken == [REDUCE, SHIFT]
        return parsed.h

    fold = Fold(backend="numpy")
    assert fold.run(ShiftReduceParser(9, 4, 2), [[1, 2, 3, 4]], follow).shape == (1, 4)
    assert len(fold.explain().rounds) == 1


def test_a_parser_does_what_it_scores_highest_where_it_has_a_choice():
    model = ShiftReduceParser(9, 4, 2)

    async def parse(fold, words):
        parsed = await ShiftReduceParser.parse(fold, words)
        assert len(parsed.transitions) == 2 * len(words) - 1 and sum(parsed.transitions) == len(words) - 1
        return {"scores": parsed.scores, "taken": parsed.taken}

    sentences = [[1, 2, 3, 4], [5, 6, 7, 8, 1], [3, 1, 2]]
    found = Fold(backend="numpy").run(model, sentences, parse)
    assert found["taken"].tolist() == found["scores"].argmax(axis=1).tolist()
    alone = Unfold(model, backend="numpy").run(None, sentences, parse)
    assert found["taken"].tolist() == alone["taken"].tolist()
