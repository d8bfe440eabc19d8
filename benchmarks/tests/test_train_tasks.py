"""The tasks of `multifold train`: the metrics of the papers, each model trained, and the command."""

from __future__ import annotations

import dataclasses
import itertools
import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from tiny_data import PLAN, WRITE, conll, plans, sick, sst

from multifold._engine.frameworks import registry
from multifold.cli import main
from multifold_bench.cli.train import OPTIMIZERS, SCHEDULES, TASKS
from multifold_bench.datasets import DatasetError
from multifold_bench.train import metrics, objectives, settings, train
from multifold_bench.train.run import SETTINGS
from multifold_bench.train.tasks import TASKS as KNOWN
from multifold_bench.train.tasks import find, parts, tagging
from multifold_bench.train.turns import train_turns

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "train_formulas.py"

PAGE = EXAMPLE.parents[1] / "docs" / "training.md"

SCORES = {
    "sst": {"root 5-way", "root binary", "node 5-way", "node binary"},
    "sick": {"pearson", "spearman", "mse"},
    "tagging": {"f1", "precision", "recall", "tags"},
    "segmentation": {"f1", "precision", "recall", "characters"},
    "listops": {"accuracy"},
    "snli": {"accuracy"},
    "plans": {"median q-error", "mean q-error", "operators"},
    "digits": {"accuracy"},
}

MODELS = [
    *[("sst", name) for name in ("binary-tree-lstm", "child-sum-tree-lstm", "mv-rnn")],
    *[("sick", ""), ("tagging", ""), ("segmentation", "")],
    *[("listops", name) for name in ("listops-chain", "listops-lstm")],
    *[("snli", ""), ("plans", "plan-costs"), ("plans", "qppnet"), ("digits", "")],
]


# ---- every task and model ------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "model"), MODELS, ids=lambda x: x)
def test_each_model_learns_its_examples(name, model, backend, tmp_path):
    if "kit" in registry.load_backend(backend).gaps():
        return
    if backend == "jax" and name not in ("sst", "digits"):  # it compiles each for seconds
        return
    task = find(name)(WRITE[name](tmp_path))
    chosen = task.settings(model=model, width=4, epochs=8, batch=3, optimizer="adagrad", rate=0.1)
    result = train(task, tmp_path / "run", backend, chosen)
    losses = [entry["loss"] for entry in result.history]
    assert losses[-1] < 0.95 * losses[0]
    assert result.test.keys() == SCORES[name]


def test_the_command_knows_all_tasks_and_settings():
    assert tuple(KNOWN) == TASKS and KNOWN.keys() == WRITE.keys()
    assert (OPTIMIZERS, SCHEDULES) == (settings.OPTIMIZERS, settings.SCHEDULES)
    for name in KNOWN:
        assert f"{name}" in CliRunner().invoke(main, ["train", "--help"]).output


def test_the_example_trains_a_model_of_its_own(backend, tmp_path, monkeypatch, capsys):
    if "kit" in registry.load_backend(backend).gaps() or backend == "jax":
        return
    monkeypatch.setattr("sys.argv", ["", "--backend", backend, "--out", str(tmp_path / "run")])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    best, test = capsys.readouterr().out.splitlines()[-1].split(", test accuracy ")
    assert best.startswith("best epoch") and float(test) > 0.9


# ---- metrics -------------------------------------------------------------------------------------


def test_sentiment_is_scored_at_the_root_and_at_all_nodes(tmp_path):
    task = find("sst")(sst(tmp_path))
    trees = task.parts["test"]
    right = [10 * task.targets(None, tree) for tree in trees]
    assert set(task.scores(trees, right).values()) == {1.0}
    always_positive = [np.tile([0.0, 0, 0, 1, 0], (len(rows), 1)) for rows in right]
    scores = task.scores(trees, always_positive)
    assert (scores["root 5-way"], scores["root binary"]) == (0.25, 1 / 3)  # roots 3, 1, 2, 0
    assert (scores["node 5-way"], scores["node binary"]) == (3 / 14, 4 / 9)


def test_binary_sentiment_adds_up_classes(tmp_path):
    """Very positive and positive together are likelier than the likeliest class, negative."""
    task = find("sst")(sst(tmp_path))
    logits = np.log(np.array([[0.0, 0.4, 0.05, 0.3, 0.25]]) + 1e-9)
    tree = dataclasses.replace(task.parts["test"][0], label=3, word="x", children=())
    scores = task.scores([tree], [logits])
    assert (scores["root 5-way"], scores["root binary"]) == (0.0, 1.0)


def test_relatedness_is_scored_by_the_mean_of_the_distribution(tmp_path):
    task = find("sick")(sick(tmp_path))
    pairs = task.parts["test"]
    model = task.model(task.settings(width=2))
    right = [np.log(task.targets(model, pair) + 1e-12) for pair in pairs]
    scores = task.scores(pairs, right)
    assert scores == pytest.approx({"pearson": 1, "spearman": 1, "mse": 0}, abs=1e-6)


def test_correlations_are_those_of_known_numbers():
    x = np.array([1.0, 2.0, 3.0, 4.0])
    y = np.array([1.0, 3.0, 2.0, 10.0])
    assert metrics.pearson(x, y) == pytest.approx(13 / 250**0.5)
    assert metrics.spearman(x, y) == pytest.approx(0.8)
    assert metrics.spearman(np.array([1.0, 1, 2]), np.array([3.0, 1, 2])) == pytest.approx(0.0)
    assert np.isnan(metrics.pearson(x, np.ones(4)))


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("B-a I-a O B-b", {(0, 2, "a"), (3, 4, "b")}),
        ("I-a I-b I-b", {(0, 1, "a"), (1, 3, "b")}),
        ("B-a B-a", {(0, 1, "a"), (1, 2, "a")}),
        ("O O", set()),
        ("B-a I-a", {(0, 2, "a")}),
    ],
)
def test_spans_are_those_of_conlleval(tags, expected):
    assert metrics.spans(tags.split()) == expected


def test_f1_counts_whole_spans():
    pairs = [({(0, 2, "a"), (3, 4, "b")}, {(0, 2, "a"), (3, 4, "a")}), (set(), {(0, 1, "a")})]
    assert metrics.precision_recall_f1(pairs) == pytest.approx((1 / 2, 1 / 3, 2 / 5))
    assert metrics.precision_recall_f1([(set(), {(0, 1, "a")})]) == (0, 0, 0)


def test_the_best_path_is_the_best_of_all_allowed_ones():
    may_follow = tagging.follows(["B-a", "I-a", "O"], openers={"B-a"})
    paths = list(itertools.product(range(3), repeat=4))
    allowed = [path for path in paths if all(may_follow[i, j] for i, j in itertools.pairwise((-1, *path)))]
    assert len(allowed) == 34
    for scores in np.random.default_rng(0).normal(size=(20, 4, 3)):
        best = max(allowed, key=lambda path: scores[range(4), path].sum())
        assert tagging.best_path(scores, may_follow) == list(best)


@pytest.mark.parametrize(("opener", "f1"), [("B-a", 0.0), ("I-a", 1.0)])
def test_an_inside_tag_opens_a_span_only_where_annotators_let_it(opener, f1, tmp_path):
    for part, tags in (
        ("train", (opener, "I-a", "O")),
        ("dev", ("O", "I-a", "O")),
        ("test", ("O", "O", "O")),
    ):
        lines = map("\t".join, zip(("a", "dog", "ran"), tags, strict=True))
        (tmp_path / f"{part}.conll").write_text("\n".join(lines) + "\n\n")
    task = find("tagging")(tmp_path)
    words = {"O": 3}, {"I-a": 1, "O": 0.5}, {"O": 3}
    rows = np.array([[word.get(tag, 0) for tag in task.tags] for word in words])
    assert task.scores(task.parts["dev"], [rows])["f1"] == f1


def test_tags_that_training_lacks_are_no_loss(tmp_path):
    (tmp_path / "train.conll").write_text("a\tO\n\n")
    (tmp_path / "dev.conll").write_text("a\tB-new\n\n")
    (tmp_path / "test.conll").write_text("a\tO\n\n")
    task = find("tagging")(tmp_path)
    assert task.targets(None, task.parts["dev"][0]).sum() == 0


@pytest.mark.parametrize(("more", "weight"), [("\nfar\tO", tagging.NAMED), ("", 1)])
def test_words_of_names_weigh_more_where_they_are_few(more, weight, tmp_path):
    for part in ("train", "dev", "test"):
        (tmp_path / f"{part}.conll").write_text(f"Oslo\tB-place\nis\tO{more}\n\n")
    task = find("tagging")(tmp_path)
    assert task.targets(None, task.parts["dev"][0])[:2].tolist() == [[weight, 0], [0, 1]]


def test_tags_that_mark_no_spans_are_scored_by_themselves(tmp_path):
    for part in ("train", "dev", "test"):
        (tmp_path / f"{part}.conll").write_text("the\tDET\ndog\tNOUN\n\n")
    task = find("tagging")(tmp_path)
    scores = task.scores(task.parts["dev"], [np.eye(2)[[0, 0]]])
    assert task.criterion == "tags" and scores == {"tags": 0.5}
    assert task.targets(None, task.parts["dev"][0]).tolist() == [[1, 0], [0, 1]]


def test_run_times_are_scored_by_their_factor(tmp_path):
    task = find("plans")(plans(tmp_path))
    plan = task.parts["test"][0]
    doubled = np.log1p(2 * np.array([4.0, 20.5]))
    scores = task.scores([plan], [doubled])
    assert scores == pytest.approx({"median q-error": 2, "mean q-error": 2, "operators": 2})


def test_few_plans_take_turns_and_each_is_tested_once(tmp_path):
    for number in range(12):
        plan = {**PLAN, "Plan Rows": number}
        (tmp_path / f"{number}.json").write_text(json.dumps([{"Plan": plan}]))
    task = find("plans")(tmp_path)
    turns = [task.turn(number) for number in range(task.turns)]
    rows = [[plan.fields["Plan Rows"] for plan in turn.parts["test"]] for turn in turns]
    assert task.turns == 11 and sorted(row for turn in rows for row in turn) == list(range(12))
    for turn in turns:
        seen = [plan.fields["Plan Rows"] for part in ("train", "dev", "test") for plan in turn.parts[part]]
        assert sorted(seen) == list(range(12)) and turn.parts["dev"]


def test_turns_are_scored_together(backend, tmp_path):
    if "kit" in registry.load_backend(backend).gaps() or backend == "jax":  # it compiles for seconds
        return
    task = find("plans")(plans(tmp_path))
    task.turns = 3
    result = train_turns(task, tmp_path / "run", backend, task.settings(epochs=2))
    assert len(result.outputs) == 4 and (tmp_path / "run" / "turn-1" / SETTINGS).exists()
    assert result.test == task.scores(task.parts["train"][:1] * 4, result.outputs)  # all plans are equal


def test_losses_weigh_rows_so_that_filling_ones_do_not_count():
    logits = np.array([[2.0, 1.0], [5.0, 7.0]])
    targets = np.array([[1.0, 0.0], [0.0, 1.0]])
    one = objectives.cross_entropy(logits[:1], targets[:1], np.ones(1))
    assert objectives.cross_entropy(logits, targets, np.array([1.0, 0.0])) == pytest.approx(one)
    assert one == pytest.approx(np.log(1 + np.exp(-1)))


def test_words_of_the_lexicon_are_found_where_they_end(tmp_path):
    task = find("segmentation")(conll(tmp_path))
    text = "ItisinNewYork"
    ends = {i: task.words_that_end(text, i) for i in range(len(text)) if task.words_that_end(text, i)}
    found = [text[first : end + 1] for end, words in ends.items() for first, _ in words]
    assert found == ["It", "is", "in", "New", "York"]


# ---- parts ---------------------------------------------------------------------------------------


def test_one_data_set_is_divided_always_alike():
    found = parts.divided(list(range(100)), "here")
    assert {part: len(x) for part, x in found.items()} == {"train": 80, "dev": 10, "test": 10}
    assert sorted(x for part in found.values() for x in part) == list(range(100))
    assert found == parts.divided(list(range(100)), "here")


def test_a_folder_without_a_part_is_refused(tmp_path):
    sst(tmp_path)
    (tmp_path / "dev.txt").unlink()
    with pytest.raises(DatasetError, match=r"one file \*dev\*.txt or \*valid\*.txt, found none"):
        find("sst")(tmp_path)


# ---- the command ---------------------------------------------------------------------------------


@pytest.fixture
def command(tmp_path):
    """Run ``multifold train sst`` on a tiny treebank; stdout, stderr and exit code are on the result."""
    sst(tmp_path)

    def command(*arguments):
        fixed = ["train", "sst", "--data", tmp_path, "--width", 4, "--batch", 2]
        return CliRunner().invoke(main, [*map(str, fixed), *map(str, arguments)])

    return command


def test_the_command_prints_an_epoch_a_line_and_the_scores(command, backend, tmp_path):
    if "kit" in registry.load_backend(backend).gaps():
        return
    options = ["--backend", backend, "--out", tmp_path / "run", "--epochs", 2]
    result = command(*options, "--json", tmp_path / "rows.json")
    assert result.exit_code == 0, result.output
    assert [line[:10] for line in result.stdout.splitlines()[:2]] == ["epoch 1/2:", "epoch 2/2:"]
    assert "root 5-way" in result.stdout and "\n test " in result.stdout
    row = json.loads((tmp_path / "rows.json").read_text())
    assert (row["task"], row["backend"], row["width"], row["epochs"]) == ("sst", backend, 4, 2)
    assert row["test"].keys() == SCORES["sst"] and row["machine"]["cores"]
    again = command(*options)
    assert [line[:9] for line in again.stdout.splitlines()[:3]] == ["The run i", "epoch 1/2", "epoch 2/2"]
    refused = command(*options, "--seed", 5)
    assert refused.exit_code == 2 and "seed=0. Received seed=5" in refused.stderr
    assert json.loads((tmp_path / "run" / SETTINGS).read_text())["seed"] == 0


def test_the_command_refuses_a_backend_without_gradients_in_one_line(command, tmp_path):
    result = command("--backend", "numpy", "--out", tmp_path / "run")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1 and "numpy' cannot train" in result.stderr


def test_the_command_says_where_the_data_is_to_be_had(backend, tmp_path):
    if "kit" in registry.load_backend(backend).gaps():
        return
    arguments = ["train", "sst", "--backend", backend, "--out", str(tmp_path)]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and "nlp.stanford.edu" in result.stderr


@pytest.mark.parametrize("name", KNOWN)
def test_the_page_on_training_has_the_defaults_of_each_task(name):
    task = find(name)
    model, choice = next(iter(task.models.items()))
    how = settings.Settings(**task.proposed)
    cells = (
        f"{choice.width} | {how.epochs} | {how.batch} | `{how.optimizer}` | {how.rate} | `{how.schedule}`"
    )
    assert f"| `{name}` | `{model}` | {cells} |" in PAGE.read_text()
