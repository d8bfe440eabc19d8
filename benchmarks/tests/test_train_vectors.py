"""Pretrained vectors of words: the files of GloVe and word2vec, and what training makes of them."""

from __future__ import annotations

import json
from operator import attrgetter

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_data import WRITE

from multifold._engine.frameworks import registry
from multifold.cli import main
from multifold_bench.datasets import DatasetError, vectors
from multifold_bench.train import SettingsError
from multifold_bench.train.run import SETTINGS
from multifold_bench.train.tasks import find

GLOVE = "it 1 2 3\nlovely 4 5 6\nbird 7 8 9\nNew 1 1 1\nNear -1 0 1\na 2 2 2\ndog 3 3 3\n"


@pytest.fixture
def file(tmp_path):
    """Write a file of vectors; return its path."""

    def file(text):
        (tmp_path / "vectors.txt").write_text(text)
        return tmp_path / "vectors.txt"

    return file


# ---- the file ------------------------------------------------------------------------------------


def test_glove_and_word2vec_give_the_same_vectors(file):
    glove = vectors.read(file("it 1 2\nbird 3 -4e-1\n"), {"bird"})
    word2vec = vectors.read(file("2 2\nit 1 2 \nbird 3 -4e-1 \n"), {"bird"})
    for found in (glove, word2vec):
        assert found.width == 2 and found.rows.keys() == {"bird"}
        np.testing.assert_allclose(found.rows["bird"], [3, -0.4])


def test_a_word_may_have_spaces_in_it_and_the_first_of_two_counts(file):
    found = vectors.read(file("it 1 2\n. . . 3 4\nit 5 6\n"), {"it", ". . ."})
    assert {word: row.tolist() for word, row in found.rows.items()} == {"it": [1, 2], ". . .": [3, 4]}


def test_two_numbers_are_a_word_with_one_number_if_no_line_has_more(file):
    with pytest.raises(DatasetError, match="7 numbers, as in the first line, received '8 1'"):
        vectors.read(file("5 7\n8 1\n"), set())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("it 1 2\nbird 3\n", r":2: expected a word and 2 numbers, as in the first line, received 'bird 3'"),
        ("it 1 2\nbird 3 x\n", r":2: expected 2 numbers behind a word, received 'bird 3 x'"),
        ("it 1 2\nbird 3 nan\n", r":2: expected 2 numbers behind a word, received 'bird 3 nan'"),
        ("it 1 2\n\nbird 3 4\n", r":2: expected a word and 2 numbers, as in the first line, received ''"),
        ("3 2\nit 1 2\nbird 3 4\n", r":3: expected 3 words, as the first line says, received 2"),
        ("", "received an empty file"),
        ("alone\n", "expected a word and 1 numbers"),
    ],
    ids=["few", "letters", "nan", "blank", "cut-off", "empty", "no-numbers"],
)
def test_a_line_that_is_no_vector_is_named(file, text, message):
    with pytest.raises(DatasetError, match=message):
        vectors.read(file(text), {"bird"})


def test_a_missing_file_says_where_to_get_one(tmp_path):
    with pytest.raises(DatasetError, match=r"nlp.stanford.edu/projects/glove"):
        vectors.read(tmp_path / "none.txt", set())


# ---- the tasks -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sst", "sick", "snli", "tagging"])
def test_the_model_begins_with_the_vectors_of_its_words(name, file, tmp_path):
    task = find(name)(WRITE[name](tmp_path))
    plain = task.words
    coverage = task.use_vectors(file(GLOVE))
    model = task.model(task.settings(width=4))
    rows = attrgetter(task.embedding)(model)
    known = {word: rows[task.words[word], :3] for word in task.words.words if word in GLOVE.split()}
    assert known and 0 < coverage.covered <= coverage.words and coverage.width == 3
    lines = dict(line.split(" ", 1) for line in GLOVE.splitlines())
    for word, row in known.items():
        np.testing.assert_array_equal(row, [float(number) for number in lines[word].split()])
    assert [task.words[word] for word in plain.words] == list(range(len(plain)))  # ids stay as they were


def test_words_that_training_has_once_are_known_by_their_vectors(file, tmp_path):
    task = find("sick")(WRITE["sick"](tmp_path))
    assert task.words["silence"] == 0
    task.use_vectors(file("silence 1 2\n"))
    assert task.words["silence"] > 0


def test_a_task_without_words_refuses_vectors(file, tmp_path):
    task = find("listops")(WRITE["listops"](tmp_path))
    with pytest.raises(SettingsError, match="examples are words"):
        task.use_vectors(file(GLOVE))


def test_a_model_without_a_place_for_vectors_refuses_them(file, tmp_path):
    task = find("sst")(WRITE["sst"](tmp_path))
    task.use_vectors(file(GLOVE))
    with pytest.raises(SettingsError, match=r"pretrained vectors. Received 'mv-rnn'"):
        task.model(task.settings(model="mv-rnn"))


# ---- the command ---------------------------------------------------------------------------------


def test_the_command_says_how_many_words_are_covered(backend, file, tmp_path):
    if "kit" in registry.load_backend(backend).gaps() or backend == "jax":  # it compiles for seconds
        return
    WRITE["sst"](tmp_path)
    fixed = ["train", "sst", "--data", tmp_path, "--backend", backend, "--out", tmp_path / "run"]
    fixed = [*map(str, fixed), *("--width", "4", "--epochs", "1")]
    result = CliRunner().invoke(main, [*fixed, "--vectors", str(file(GLOVE))])
    assert result.exit_code == 0, result.output
    assert "vectors of 3 numbers for 2 of the 5 words of the examples (40.0 %)" in result.stdout
    assert "vectors" in json.loads((tmp_path / "run" / SETTINGS).read_text())
    other = CliRunner().invoke(main, fixed)
    assert other.exit_code == 2 and "vectors" in other.stderr
