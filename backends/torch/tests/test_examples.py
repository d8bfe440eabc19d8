"""The examples that are written for PyTorch run as a reader would run them."""

from __future__ import annotations

import json
import runpy
import struct
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs an example and returns what it prints."""

    def run(name, *arguments):
        monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def write_idx(path, array):
    """Write bytes in the format of MNIST's files."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())
    return path


def test_each_step_from_the_loop_equals_it(run):
    printed = run("from_your_loop.py", "--trees", 4, "--width", 8, "--rounds", 1)  # it compares by itself
    assert len(printed.splitlines()) == 8


def test_each_step_from_a_module_to_ops_equals_its_loop(run):
    printed = run("your_module.py", "--plans", 4, "--width", 8, "--rounds", 1)  # it compares by itself
    assert len(printed.splitlines()) == 7


def test_a_population_of_networks_is_trained_as_by_its_loop(run):
    printed = run("population.py", "--networks", 24, "--steps", 2).splitlines()  # it compares by itself
    assert printed[0].startswith("24 networks, 132 calls in 27 launches")
    assert printed[2].endswith("3 launches") and printed[3] == "64 rows of four tasks: 3 launches"


def test_a_published_tree_lstm_is_trained_as_by_its_loop(run):
    printed = run("plain_tree_lstm.py", "--steps", 2, "--trees", 6, "--width", 8).splitlines()
    assert len(printed) == 3 and printed[1].endswith("equal to the loop")


def test_a_published_tree_search_plays_as_in_its_loop(run):
    printed = run("plain_tree_search.py", "--games", 4, "--moves", 2, "--simulations", 5, "--channels", 4)
    assert printed.startswith("4 games: moves and visit counts are those of the loop, in ")
    assert len(printed.splitlines()) == 4


def test_mnist_has_equal_losses_one_image_at_a_time_and_folded(run):
    printed = run("mnist.py", "--count", 250)  # the example itself compares
    assert "one at a time" in printed
    assert "on 250 images" in printed


def test_mnist_reads_idx_files(run, tmp_path):
    images = write_idx(tmp_path / "images", np.random.default_rng(0).integers(0, 255, (9, 28, 28)))
    labels = write_idx(tmp_path / "labels", np.arange(9))
    assert "on 9 images" in run("mnist.py", "--images", images, "--labels", labels)


def test_snli_tree_lstm_learns_its_few_pairs_and_equals_one_call_at_a_time(run):
    printed = run("snli_tree_lstm.py", "--steps", 15, "--width", 30)
    before, after = (float(printed.split("loss ")[1].split()[i]) for i in (0, 2))
    assert after < before / 2
    assert "equal to one call at a time" in printed


def test_snli_tree_lstm_reads_a_file_of_the_data_set(run, tmp_path):
    parse = {f"sentence{i}_binary_parse": "( ( A cat ) sleeps )" for i in (1, 2)}
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"gold_label": "entailment", **parse}))
    assert run("snli_tree_lstm.py", "--jsonl", path, "--steps", 1).startswith("1 pairs, 4 words")
