"""`multifold_bench.train`: the same curves on every framework, and runs that may be killed."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import multiprocessing
import signal
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from dense_layers import dense

import multifold
from multifold import BackendError
from multifold._engine.frameworks import registry
from multifold_bench.cli.train import INTERRUPTED, epoch_line
from multifold_bench.cli.train import train as command
from multifold_bench.curves import COMMON, CURVES, losses, reference
from multifold_bench.made_up import MadeUpTask
from multifold_bench.train import (
    CheckpointError,
    DivergedError,
    FunctionTask,
    LabelledTask,
    Settings,
    SettingsError,
    checkpoint,
    drawing,
    examples,
    ranks,
    run,
    tasks,
    train,
)
from multifold_bench.train.objectives import Loss
from multifold_bench.train.ranks import join_ranks
from multifold_bench.train.seam import load_backend, make_trainer
from multifold_bench.train.settings import refuse_others
from multifold_compat.blocks import FC, Function, Layers, Vector

REFERENCE = reference()
KILLS = 6
TINY = {"width": 3, "epochs": 3, "batch": 6, "seed": 2}


@pytest.fixture
def trained(backend):
    """Return whether the backend has gradients."""
    return "kit" not in registry.load_backend(backend).gaps()


@pytest.fixture
def quick(backend, trained):
    """Return whether the backend trains without compiling for seconds: for what is NumPy's anyway."""
    return trained and backend != "jax"


def losses_of(result):
    """Return the losses of all steps."""
    return [loss for entry in result.history for loss in entry["losses"]]


def kept(out):
    """Return the arrays of a run's checkpoint, and its progress without the times."""
    arrays, progress = checkpoint.read_arrays(out / run.CHECKPOINT)
    return arrays, {
        **{key: x for key, x in progress.items() if key != "seconds"},
        "history": [{k: x for k, x in entry.items() if k != "seconds"} for entry in progress["history"]],
    }


# ---- the same on all frameworks ------------------------------------------------------------------


@pytest.mark.parametrize("name", CURVES)
def test_first_fifty_losses_are_those_of_the_formulas(name, backend, trained, tmp_path):
    if trained:
        task = MadeUpTask()
        result = train(task, tmp_path, backend, task.settings(**COMMON, **CURVES[name]))
        np.testing.assert_allclose(losses_of(result)[:50], REFERENCE[name], rtol=1e-3)


def test_the_reference_is_what_its_program_computes():
    """Its first steps: all of them take minutes."""
    for name, steps in {"adagrad": 1, "adam": 1, "sgd": 2}.items():
        np.testing.assert_allclose(losses(CURVES[name], steps), REFERENCE[name][:steps], rtol=1e-9)


def test_there_is_something_to_learn():
    for curve in REFERENCE.values():
        assert len(curve) == 50
        assert np.mean(curve[-10:]) < 0.8 * np.mean(curve[:10])


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.5] * 6),
        ("exponential", [0.5, 0.5, 0.25, 0.25, 0.125, 0.125]),
        ("cosine", [0.25 * (1 + math.cos(math.pi * step / 6)) for step in range(6)]),
    ],
)
def test_the_rate_of_each_step_is_that_of_the_formula(schedule, rates, backend, trained):
    """Without any target all that moves a weight is L2, by the rate of the step times itself."""
    if trained:
        task = MadeUpTask()
        settings = task.settings(**TINY, optimizer="sgd", schedule=schedule, rate=0.5, decay=0.5)
        model = task.model(settings)
        traces, targets = examples.record(task, model, "dev", lambda *seen: None)
        rows = np.zeros_like(np.concatenate(targets))
        fill = examples.filler(task, model, examples.record(task, model, "train", lambda *seen: None))
        arguments = model.on(backend), Loss(task.objective, 1.0), settings, 2, fill
        trainer = make_trainer(registry.load_backend(backend), *arguments)
        found = []
        for _ in rates:
            before = trainer.model.weights()["output.weight"]
            trainer.step(traces, rows, rows[:, 0])
            found.append(float((1 - trainer.model.weights()["output.weight"] / before).mean()))
        assert found == pytest.approx(rates, rel=1e-4)
        assert rates == pytest.approx([settings.rate_at(step, 2) for step in range(6)])


# ---- going on ------------------------------------------------------------------------------------


class Interrupted(Exception):
    """What stops a run in a test."""


def stop_at(calls):
    """Return an observer of steps that raises at one of them."""
    seen = iter(range(10**6))

    def on_step(what, done, total):
        if what.startswith("epoch") and next(seen) == calls:
            raise Interrupted

    return on_step


@pytest.mark.parametrize(
    ("optimizer", "schedule"), [("adagrad", "cosine"), ("adam", "exponential"), ("sgd", "constant")]
)
def test_an_interrupted_run_ends_like_another(optimizer, schedule, backend, trained, tmp_path):
    if trained:
        task = MadeUpTask()
        settings = task.settings(**TINY, optimizer=optimizer, schedule=schedule, decay=0.5)
        train(task, tmp_path / "whole", backend, settings)
        for step in (5, 2):  # in the second epoch, and two steps after going on
            with pytest.raises(Interrupted):
                train(task, tmp_path / "cut", backend, settings, save_seconds=0, on_step=stop_at(step))
        train(task, tmp_path / "cut", backend, settings)
        (whole, progress), (cut, other) = (kept(tmp_path / name) for name in ("whole", "cut"))
        assert whole.keys() == cut.keys()
        for name in whole:
            np.testing.assert_array_equal(cut[name], whole[name])
        losses, others = (
            [loss for entry in x["history"] for loss in entry["losses"]] for x in (progress, other)
        )
        assert losses == others


def test_killed_at_any_moment_it_ends_with_the_same_weights(backend, tmp_path):
    """A real process gets a real SIGKILL: at moments that nobody chose, and while it writes."""
    if backend != "torch":
        return
    context = multiprocessing.get_context("forkserver")
    # torch._dynamo takes seconds to import, and the first step of any optimizer asks for it.
    context.set_forkserver_preload(
        ["torch._dynamo", "multifold_bench.train.on.torch", "multifold_bench.made_up"]
    )
    task = MadeUpTask(train=40)
    settings = task.settings(**TINY | {"epochs": 4, "schedule": "cosine"})

    def start(out):
        arguments = task, out, "torch", settings
        process = context.Process(target=train, args=arguments, kwargs={"save_seconds": 0}, daemon=True)
        process.start()
        return process

    path = tmp_path / "cut" / run.CHECKPOINT
    rng = np.random.default_rng()
    for moment in range(KILLS):
        process = start(tmp_path / "cut")
        before = stamp(path)
        unfinished = path.with_name(f"{path.name}.{process.pid}.part")
        while process.is_alive() and stamp(path) == before:
            time.sleep(0.001)
        if moment % 2:
            time.sleep(rng.uniform(0, 0.03))
        else:
            while process.is_alive() and not unfinished.exists():
                pass
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL  # and not done before
    for process in (start(tmp_path / "cut"), start(tmp_path / "whole")):
        process.join()
        assert process.exitcode == 0
    (whole, progress), (cut, other) = (kept(tmp_path / name) for name in ("whole", "cut"))
    assert progress == other and whole.keys() == cut.keys()
    assert all(np.array_equal(whole[name], cut[name]) for name in whole)
    best = [checkpoint.read_arrays(tmp_path / name / run.BEST)[0] for name in ("whole", "cut")]
    assert all(np.array_equal(best[0][name], best[1][name]) for name in best[0])


def stamp(path):
    """Return when a file was replaced last."""
    return path.stat().st_mtime_ns if path.exists() else 0


def test_an_example_that_fails_is_named():
    task = MadeUpTask()
    task.parts["train"][3] = None
    with pytest.raises(AttributeError) as raised:
        examples.record(task, task.model(task.settings()), "train", lambda *seen: None)
    assert raised.value.__notes__ == ["Raised by example 3 of the part train."]


def test_where_no_launcher_says_otherwise_one_process_trains(backend, trained):
    if trained:
        assert join_ranks(load_backend(backend)).count == 1


def test_several_processes_are_refused_where_an_adapter_trains_in_one(monkeypatch):
    monkeypatch.setattr(ranks, "training_of", lambda backend: SimpleNamespace())
    with pytest.raises(SettingsError, match="one process to train with backend 'numpy'"):
        join_ranks(registry.load_backend("numpy"), 2)


ENDS = {"with status 3": "exit(3)", "killed by SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)"}


@pytest.mark.parametrize("reason", ENDS)
def test_processes_end_with_the_first_that_fails_and_its_name(reason, monkeypatch):
    code = f"import os, signal, time; time.sleep(60 * int(os.environ['WAITS'])); {ENDS[reason]}"
    commands = {f"process {i}": ([sys.executable, "-c"], {"WAITS": wait}) for i, wait in enumerate("101")}
    training = SimpleNamespace(commands=lambda shards, port: commands)
    monkeypatch.setattr(ranks, "training_of", lambda backend: training)
    with pytest.raises(ranks.RankError, match=f"Received the end of process 1, {reason}"):
        ranks.start_ranks(registry.load_backend("numpy"), 3, [code])


def test_a_file_that_was_not_finished_leaves_the_old_one(tmp_path):
    path = tmp_path / "numbers.npz"
    checkpoint.write_arrays(path, {"x": np.arange(3)}, {"epoch": 1})
    with contextlib.suppress(Interrupted), checkpoint.replacing(path) as file:
        file.write(b"half of")
        raise Interrupted
    arrays, progress = checkpoint.read_arrays(path)
    assert arrays["x"].tolist() == [0, 1, 2] and progress == {"epoch": 1}


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "numbers.npz"
    checkpoint.write_arrays(path, {"x": np.arange(3000)})
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"numbers\.npz"):
        checkpoint.read_arrays(path)


def test_a_checkpoint_holds_no_pickle(tmp_path):
    path = tmp_path / "objects.npz"
    np.savez(path, x=np.array([print], object))
    with pytest.raises(CheckpointError):
        checkpoint.read_arrays(path)


@pytest.mark.parametrize("content", [b"", b"[]", b"3", b'{"a": '], ids=["empty", "list", "number", "half"])
def test_settings_that_are_none_are_a_damaged_file(tmp_path, content):
    (tmp_path / run.SETTINGS).write_bytes(content)
    with pytest.raises(CheckpointError, match=r"settings\.json"):
        checkpoint.read_json(tmp_path / run.SETTINGS)


@pytest.mark.parametrize("progress", [None, {"other": 1}])
def test_a_checkpoint_of_something_else_is_named(backend, quick, tmp_path, progress):
    if quick:
        task = MadeUpTask()
        train(task, tmp_path, backend, task.settings(**TINY))
        checkpoint.write_arrays(tmp_path / run.CHECKPOINT, {"x": np.arange(3)}, progress)
        with pytest.raises(CheckpointError, match=r"checkpoint\.npz"):
            train(task, tmp_path, backend, task.settings(**TINY))


def test_an_array_is_no_checkpoint(tmp_path):
    with (tmp_path / "x.npz").open("wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(CheckpointError):
        checkpoint.read_arrays(tmp_path / "x.npz")


def test_a_device_is_found_by_its_name_or_refused(backend, trained, tmp_path):
    if not trained:
        pytest.skip("no gradients")
    task = MadeUpTask()
    settings = task.settings(**TINY | {"epochs": 1})
    result = train(task, tmp_path / "cpu", backend, settings, device="cpu")
    assert len(losses_of(result)) > 0
    with pytest.raises(SettingsError, match="could not be put on device 'nowhere'"):
        train(task, tmp_path / "nowhere", backend, settings, device="nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_fewer_epochs_than_are_done_are_refused(backend, quick, tmp_path):
    if quick:
        task = MadeUpTask()
        train(task, tmp_path, backend, task.settings(**TINY))
        with pytest.raises(SettingsError, match=r"Expected 3 epochs or more.*epochs=1"):
            train(task, tmp_path, backend, task.settings(**TINY | {"epochs": 1}))
        assert checkpoint.read_json(tmp_path / run.SETTINGS)["epochs"] == 3


def test_a_checkpoint_without_settings_is_refused(backend, quick, tmp_path):
    if quick:
        task = MadeUpTask()
        train(task, tmp_path, backend, task.settings(**TINY))
        (tmp_path / run.SETTINGS).unlink()
        with pytest.raises(CheckpointError, match=r"Expected settings\.json beside"):
            train(task, tmp_path, backend, task.settings(**TINY))


def test_one_process_trains_in_a_folder(tmp_path):
    with (
        checkpoint.locked(tmp_path),
        pytest.raises(CheckpointError, match="the only process"),
        checkpoint.locked(tmp_path),
    ):
        pass
    with checkpoint.locked(tmp_path):
        checkpoint.write_json(tmp_path / "x.json", {})


def test_what_killed_processes_left_is_swept(tmp_path):
    (tmp_path / "checkpoint.npz.17.part").write_bytes(b"half of")
    with checkpoint.locked(tmp_path):
        assert not list(tmp_path.glob("*.part"))


def test_a_full_disk_leaves_the_old_file_and_no_half_one(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    checkpoint.write_json(path, {"epoch": 1})

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "fsync", full)
    with pytest.raises(CheckpointError, match=r"x\.json\. Received No space left on device"):
        checkpoint.write_json(path, {"epoch": 2})
    monkeypatch.undo()
    assert checkpoint.read_json(path) == {"epoch": 1}
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize(
    "change",
    [
        lambda x: {"row": x["row"] + 1},
        lambda x: {"op": "other"},
        lambda x: {"static": 2},
        lambda x: {"loose": 2.0},
    ],
    ids=["array", "op", "static", "loose"],
)
def test_other_examples_have_another_digest(change):
    def recorded(row, op, static, loose):
        def record(fold, x):
            return fold.add(op, row, multifold.ragged([loose]), k=static)

        part = examples.Recorded([multifold.trace(record, None)], [np.zeros(1, np.float32)])
        return examples.digest({"train": part})

    example = {"row": np.ones((1, 2)), "op": "f", "static": 1, "loose": 1.0}
    assert recorded(**example) == recorded(**example)
    assert recorded(**example) != recorded(**example | change(example))


def test_other_settings_are_refused_by_name(backend, quick, tmp_path):
    if quick:
        task = MadeUpTask()
        train(task, tmp_path, backend, task.settings(**TINY))
        with pytest.raises(SettingsError, match=r"width=3, rate=0.05. Received width=4, rate=0.1"):
            train(task, tmp_path, backend, task.settings(**TINY | {"width": 4, "rate": 0.1}))
        with pytest.raises(SettingsError, match="examples="):
            train(MadeUpTask(train=19), tmp_path, backend, task.settings(**TINY))


def test_another_number_of_epochs_under_a_cosine_is_refused_with_the_reason():
    kept = {"schedule": "cosine", "epochs": 3}
    with pytest.raises(SettingsError, match=r"(?s)epochs=3. Received epochs=4.*'cosine' the rates depend"):
        refuse_others(kept | {"epochs": 4}, kept, "here")


def test_a_finished_run_takes_more_epochs_where_its_rate_does_not_depend_on_them(backend, quick, tmp_path):
    if quick:
        task = MadeUpTask()
        short, long = (task.settings(**TINY | {"epochs": epochs}) for epochs in (1, 3))
        train(task, tmp_path / "more", backend, short)
        more = train(task, tmp_path / "more", backend, long)
        once = train(task, tmp_path / "once", backend, long)
        np.testing.assert_allclose(losses_of(more), losses_of(once), rtol=1e-5)
        with pytest.raises(SettingsError, match="schedule"):
            train(task, tmp_path / "more", backend, dataclasses.replace(long, schedule="cosine"))


# ---- what a run leaves ---------------------------------------------------------------------------


def test_the_weights_of_the_best_epoch_are_kept_and_load_elsewhere(backend, quick, tmp_path):
    if quick:
        task = MadeUpTask()
        settings = task.settings(**TINY)
        result = train(task, tmp_path, backend, settings)
        scores = [entry["dev"]["accuracy"] for entry in result.history]
        assert scores[result.best - 1] == max(scores) and scores.index(max(scores)) == result.best - 1
        model = task.model(settings).load(tmp_path / run.BEST)
        for name, x in result.model.weights().items():
            np.testing.assert_array_equal(model.weights()[name], x)
        saved = json.loads((tmp_path / run.RESULT).read_text())
        assert (saved["best"], saved["test"]) == (result.best, result.test)


def test_seeds_decide_weights_and_order(backend, quick, tmp_path):
    if quick:
        task = MadeUpTask()
        chosen = TINY | {"epochs": 1}
        curves = [
            losses_of(train(task, tmp_path / name, backend, task.settings(**chosen | {"seed": seed})))
            for name, seed in (("a", 0), ("b", 0), ("c", 1))
        ]
        assert curves[0] == pytest.approx(curves[1], rel=1e-6)
        assert curves[0] != pytest.approx(curves[2], rel=1e-3)


def test_each_epoch_sees_every_example_once_in_an_order_of_its_own():
    orders = [run.order(3, epoch, 50).tolist() for epoch in range(2)]
    assert [sorted(order) for order in orders] == [list(range(50))] * 2
    assert orders[0] != orders[1]


# ---- what is refused -----------------------------------------------------------------------------


def test_numpy_says_that_it_cannot_train(tmp_path):
    with pytest.raises(BackendError, match="'numpy' cannot train"):
        train(MadeUpTask(), tmp_path, "numpy")


@pytest.mark.parametrize(
    "wrong",
    [{"optimizer": "lamb"}, {"schedule": "no"}, {"epochs": 0}, {"rate": 0}, {"l2": -1}, {"decay": 2}],
    ids=str,
)
def test_settings_that_no_run_can_have_are_refused(wrong):
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        Settings(**wrong)


def test_a_model_of_another_task_is_refused():
    with pytest.raises(SettingsError, match=r"out of binary, child-sum\. Received 'spinn'"):
        MadeUpTask().settings(model="spinn")


def test_a_part_without_examples_is_refused():
    with pytest.raises(SettingsError, match="none in train"):
        MadeUpTask(train=0)


# ---- what the command says -----------------------------------------------------------------------


def test_a_loss_that_is_no_number_ends_the_run_with_its_step(backend, quick, tmp_path):
    if quick:
        task = MadeUpTask()
        settings = task.settings(**{**TINY, "optimizer": "sgd", "rate": 1e25, "l2": 1e20})
        with pytest.raises(DivergedError, match=r"Received (nan|inf) in step \d+ of \d+ of epoch \d/3"):
            train(task, tmp_path, backend, settings)
        assert not (tmp_path / run.RESULT).exists()


def test_epochs_of_before_are_told_from_new_ones(backend, quick, tmp_path):
    if quick:
        task = MadeUpTask()
        told = []
        for epochs in (1, 2, 2):
            settings = task.settings(**{**TINY, "epochs": epochs, "schedule": "constant"})
            result = train(task, tmp_path, backend, settings, on_epoch=told.append)
        assert [(entry["epoch"], entry.get("before", False)) for entry in told] == [
            (1, False), (1, True), (2, False), (1, True), (2, True),
        ]  # fmt: skip
        assert epoch_line(told[-1], 2).endswith("(before)") and "before" not in result.history[0]


class FromFile(MadeUpTask):
    """A task as the command finds it: of a path, and of what reports how much of it is read."""

    def __init__(self, *_):
        super().__init__()


def said(out, backend, *options):
    """Run the command on the made-up task; return its exit code and what it printed."""
    words = ["digits", "--backend", backend, "--out", str(out), "--width", "3", "--epochs", "2", *options]
    result = CliRunner().invoke(command, words)
    return result.exit_code, f"{result.output}{result.exception or ''}"


def test_the_command_says_whether_it_goes_on_or_is_done(backend, quick, tmp_path, monkeypatch):
    if quick:
        monkeypatch.setattr(tasks, "find", lambda name: FromFile)
        first = said(tmp_path, backend)
        again = said(tmp_path, backend)
        assert (first[0], again[0]) == (0, 0) and "(before)" not in first[1]
        assert "goes on; its epochs of before:" in again[1] and again[1].count("(before)") == 2
        assert "All 2 epochs are done: nothing is left to train" in again[1]


def test_a_command_that_is_interrupted_early_says_that_nothing_is_kept(
    backend, quick, tmp_path, monkeypatch
):
    def interrupted(*_):
        raise KeyboardInterrupt

    if quick:
        monkeypatch.setattr(tasks, "find", lambda name: FromFile)
        monkeypatch.setattr(run, "record", interrupted)
        code, text = said(tmp_path, backend)
        assert code == INTERRUPTED and "nothing is kept, and the same command begins anew" in text


def test_a_command_says_in_a_log_what_it_is_doing(backend, quick, tmp_path, monkeypatch):
    if quick:
        monkeypatch.setattr(tasks, "find", lambda name: FromFile)
        text = said(tmp_path, backend)[1]
        stages = [line.removesuffix(" ...") for line in text.splitlines() if line.endswith(" ...")]
        assert stages[:3] == ["making up the examples of digits", "recording train", "recording dev"]
        assert len(stages) == len(set(stages))


def test_other_settings_are_refused_before_examples_are_read(backend, quick, tmp_path, monkeypatch):
    if quick:
        monkeypatch.setattr(tasks, "find", lambda name: FromFile)
        assert said(tmp_path, backend)[0] == 0
        monkeypatch.setattr(FromFile, "__init__", None)  # to read examples would raise a TypeError
        code, text = said(tmp_path, backend, "--width", "4")
        assert code == 1 and "width=3" in text and "width=4" in text


def test_an_interrupted_command_says_that_it_goes_on(backend, quick, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    if quick:
        monkeypatch.setattr(tasks, "find", lambda name: FromFile)
        assert said(tmp_path, backend)[0] == 0
        monkeypatch.setattr(run, "record", interrupted)
        code, text = said(tmp_path, backend)
        assert code == INTERRUPTED and f"the same command goes on with the run in {tmp_path}" in text


# ---- mistakes ------------------------------------------------------------------------------------


SCORES = Vector(2) >> Function(FC(2, activation=None))


def labelled(block=SCORES, label=int, **options):
    """Return a task whose class is whether the first number is larger."""
    pairs = [((x, 1), label(x > 1)) for x in range(4)]
    parts = dict.fromkeys(("train", "dev", "test"), pairs)
    options = {"classes": 2, "epochs": 1, **options}
    return LabelledTask("sides", block, lambda seed: Layers(block, seed=seed), parts, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"block": Vector(2) >> Function(FC(5))}, r"the rows have shape \(5,\), their targets \(2,\)"),
        ({"classes": 3}, r"the rows have shape \(2,\), their targets \(3,\)"),
        ({"label": float}, r"Expected a class from 0 to 1, an int. Received 0\.0"),
        ({"classes": 1}, r"Expected a class from 0 to 0, an int. Received 1\."),
        ({"epoch": 2}, "did you mean 'epochs'"),
        ({"lr": 0.1}, "the learning rate is 'rate'"),
    ],
    ids=["hidden", "classes", "float", "range", "epoch", "lr"],
)
def test_a_task_that_does_not_fit_says_what_was_expected(options, text, backend, trained, tmp_path):
    if trained:
        with pytest.raises(SettingsError, match=text):
            train(labelled(**options), tmp_path, backend)


def scores_model(seed):
    """Return the model of `SCORES`, with values drawn by a seed."""
    return Layers(SCORES, seed=seed)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"target": lambda y: y}, r"Expected targets with a row for each of 1 recorded nodes"),
        ({"criterion": "mse"}, "Expected the score 'mse', by which .* Received mae"),
        ({"objective": lambda a, b: a}, r"to return one number .* It raised TypeError"),
        ({"objective": lambda a, b, c: a}, r"one number for arrays .* Received an array of shape \(., 2\)"),
    ],
    ids=["target", "criterion", "arguments", "result"],
)
def test_functions_of_a_task_are_told_what_they_return(options, text, backend, trained, tmp_path):
    if trained:
        given = {
            "target": lambda y: np.eye(2)[[y]],
            "score": lambda ys, rows: {"mae": 0.0},
            "criterion": "mae",
        }
        task = FunctionTask(
            "sides", SCORES, scores_model, labelled().parts, epochs=1, **{**given, **options}
        )
        with pytest.raises(SettingsError, match=text):
            train(task, tmp_path, backend)


def test_settings_as_a_dictionary_are_refused(backend, trained, tmp_path):
    if trained:
        with pytest.raises(SettingsError, match=r"Received a dict\.\n\nHint: task.settings\(epochs=2\)"):
            train(labelled(), tmp_path, backend, {"epochs": 2})


# ---- curves --------------------------------------------------------------------------------------


def test_a_layer_of_the_framework_in_a_block_is_trained_and_kept(backend, quick, tmp_path):
    if not quick:  # JAX refuses it
        return
    block = Vector(2) >> Function(dense(backend), out=3) >> Function(FC(2, activation=None))
    parts = {part: [((0, 1), 0), ((1, 0), 1)] for part in ("train", "dev", "test")}
    task = LabelledTask("sides", block, lambda seed: Layers(block, seed=seed), parts, classes=2, l2=1.0)
    last = train(task, tmp_path, backend, task.settings(epochs=1)).history[-1]
    weights = checkpoint.read_arrays(tmp_path / run.BEST)[0]  # two arrays of FC, two of the layer
    assert len(weights) == 4
    assert last["loss"] > 0.45 * sum(float(np.square(x).sum()) for x in weights.values())  # L2 knows them


def test_curves_are_drawn_of_all_epochs_and_the_best_is_marked(backend, quick, tmp_path):
    if not quick:
        return
    train(MadeUpTask(), tmp_path, backend, Settings(**TINY))
    drawn = tmp_path / run.CURVES
    assert drawn.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and drawn.stat().st_size > 5_000


def test_a_run_that_is_interrupted_has_its_curves(backend, quick, tmp_path):
    if not quick:
        return
    with pytest.raises(KeyboardInterrupt):
        train(MadeUpTask(), tmp_path, backend, Settings(**TINY), on_epoch=interrupt)
    assert (tmp_path / run.CURVES).exists()


def test_without_matplotlib_training_goes_on_without_curves(backend, quick, tmp_path, monkeypatch):
    if not quick:
        return
    monkeypatch.setattr(drawing, "can_draw", lambda: False)
    train(MadeUpTask(), tmp_path, backend, Settings(**TINY))
    assert (tmp_path / run.RESULT).exists() and not (tmp_path / run.CURVES).exists()


def interrupt(entry):
    """Do what Ctrl-C does, after the first epoch."""
    raise KeyboardInterrupt
