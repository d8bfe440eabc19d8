"""A local Ray: Data traces and classifies, batches reach PyTorch, Data and Train survive a dead worker."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
import ray
import torch

import multifold

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "examples" / "scaling"

SECONDS = 150
"""How long Ray may take for what it is asked, on a busy machine."""

pytestmark = pytest.mark.timeout(2 * SECONDS)  # ends all of pytest: `within` raises long before


@pytest.fixture(scope="module")
def cluster():
    """Ray on the loopback interface; its workers import the examples and this checkout."""
    paths = os.pathsep.join([str(FOLDER), *filter(None, sys.path)])
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        patch.setenv("PYTHONPATH", paths)
        for name, value in {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DISABLE_IMPORT_WARNING": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "RAY_TRAIN_V2_ENABLED": "1",
            "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
        }.items():
            patch.setenv(name, value)
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            object_store_memory=100 * 2**20,
            _node_ip_address="127.0.0.1",
            log_to_driver=False,
            logging_level="ERROR",
        )
        yield
        ray.shutdown()


def within(function, *arguments, **named):
    """Return what a function returns; raise after `SECONDS`, since Ray's compiled code hears no signal."""
    found = Future()

    def call():
        try:
            found.set_result(function(*arguments, **named))
        except Exception as error:  # noqa: BLE001 - raised again by the one that waits
            found.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return found.result(SECONDS)


def written(folder, count):
    """Write formulas into files; return them and their values."""
    from formulas import examples

    formulas, labels = examples(count, seed=7)
    texts = list(map(json.dumps, formulas))
    for part in range(3):
        own = range(part, count, 3)
        rows = {"id": list(own), "formula": [texts[i] for i in own], "label": [labels[i] for i in own]}
        parquet.write_table(pa.table(rows), folder / f"{part}.parquet")
    return formulas, np.array(labels)


def expected(formulas):
    """Return what the model answers in one process."""
    from formulas import record
    from torch_model import Logic

    with torch.inference_mode():
        fold = multifold.Fold(backend="torch")
        return fold.run(Logic().eval(), multifold.traces(record, formulas)).argmax(1).numpy()


@pytest.mark.parametrize("apart", [False, True], ids=["in the actors", "apart from the actors"])
def test_formulas_are_read_traced_classified_and_written(cluster, tmp_path, apart):
    import ray_data

    formulas, _ = written(tmp_path, 300)
    within(ray_data.main, str(tmp_path), str(tmp_path / "answers"), actors=1, apart=apart)
    table = parquet.read_table(tmp_path / "answers").sort_by("id")
    assert table["id"].to_pylist() == list(range(300))
    assert (table["answer"].to_numpy() == expected(formulas)).all()


def test_actors_that_leave_no_cpu_to_readers_are_refused(cluster, tmp_path):
    import ray_data

    written(tmp_path, 3)
    with pytest.raises(ValueError, match="fewer actors than the 2 CPUs"):
        ray_data.main(str(tmp_path), str(tmp_path / "answers"), actors=2)


def test_an_example_that_fails_is_named(cluster, tmp_path):
    import ray_data

    rows = {"id": [0, 1], "formula": ['["and", 0, 1]', '["never", 0]']}
    parquet.write_table(pa.table(rows), tmp_path / "damaged.parquet")
    with pytest.raises(Exception, match="not enough values to unpack") as raised:
        within(ray_data.main, str(tmp_path), str(tmp_path / "answers"), actors=1)
    assert "Raised by the formula with id 1." in str(raised.value)


def test_traces_and_labels_reach_torch_as_minibatches(cluster, tmp_path):
    import ray_data
    from torch_model import Logic

    formulas, labels = written(tmp_path, 100)
    traces = ray.data.read_parquet(str(tmp_path)).map_batches(
        ray_data.traced, fn_kwargs={"keep": ["id", "label"]}, batch_format="pyarrow"
    )
    fold = multifold.Fold(backend="torch")
    found = {}
    known = {}
    for batch in traces.iter_torch_batches(batch_size=32, collate_fn=ray_data.Minibatches(["id", "label"])):
        assert len(batch["traces"].traces) == len(batch["id"]) <= 32
        answers = fold.run(Logic(), batch["traces"]).argmax(1)
        found |= dict(zip(batch["id"].tolist(), answers.tolist(), strict=True))
        known |= dict(zip(batch["id"].tolist(), batch["label"].tolist(), strict=True))
    assert [found[i] for i in range(100)] == expected(formulas).tolist()
    assert [known[i] for i in range(100)] == labels.tolist()


def die_once(folder, when):
    """Return a function that ends its process with SIGKILL the first time that it is told such a thing."""

    def kill(x):
        mark = Path(folder) / "died"
        if when(x) and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


def test_an_actor_that_has_died_costs_no_answer(cluster, monkeypatch, tmp_path):
    import ray_data

    kill = die_once(tmp_path, when=lambda table: 150 in table["id"].to_pylist())

    class Mortal(ray_data.Classifier):
        def __call__(self, table):
            kill(table)
            return super().__call__(table)

    monkeypatch.setattr(ray_data, "ROWS", 30)
    formulas, _ = written(tmp_path, 300)
    answers = ray_data.classified(ray.data.read_parquet(str(tmp_path)), 1, classifier=Mortal)
    rows = sorted(within(answers.take_all), key=lambda row: row["id"])
    assert (tmp_path / "died").exists()
    assert [row["id"] for row in rows] == list(range(300))
    assert [row["answer"] for row in rows] == expected(formulas).tolist()


def test_a_task_that_has_died_costs_no_trace(cluster, tmp_path):
    import ray_data

    kill = die_once(tmp_path, when=lambda table: 150 in table["id"].to_pylist())

    def traced(table):
        kill(table)
        return ray_data.traced(table)

    written(tmp_path, 300)
    rows = ray.data.read_parquet(str(tmp_path)).repartition(target_num_rows_per_block=50)
    traces = rows.map_batches(traced, batch_format="pyarrow", batch_size=None).select_columns(["id"])
    found = within(traces.take_all)
    assert (tmp_path / "died").exists()
    assert sorted(row["id"] for row in found) == list(range(300))


def test_training_without_enough_free_cpus_is_an_error(cluster, monkeypatch, tmp_path):
    import ray_train

    monkeypatch.setenv("RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "0.1")
    with pytest.raises(Exception, match="worker group startup timed out"):
        within(ray_train.trained, tmp_path, workers=3)  # of a cluster with two


def test_training_goes_on_where_a_worker_has_died(cluster, tmp_path):
    import ray_train
    from formulas import examples, record
    from torch_model import Logic, mean_loss

    from multifold.sampling import CallBudget

    kill = die_once(tmp_path, when=lambda rank: rank == 1)
    result = within(ray_train.trained, tmp_path, 2, in_second_epoch=kill)
    assert (tmp_path / "died").exists()
    with result.checkpoint.as_directory() as folder:
        found = torch.load(Path(folder) / "kept.pt")["model"]

    formulas, labels = examples(200)
    traces = multifold.traces(record, formulas)
    model = Logic()
    fold = multifold.Fold(backend="torch")
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    budget = CallBudget([len(trace) for trace in traces], calls=300, shards=2)
    for epoch in range(2):
        budget.set_epoch(epoch)
        for step in budget.steps():
            chosen = [i for shard in step for i in shard]
            logits = fold.run(model, [traces[i] for i in chosen])
            optimizer.zero_grad()
            mean_loss(logits, torch.tensor([labels[i] for i in chosen])).backward()
            optimizer.step()
    for name, x in model.state_dict().items():
        torch.testing.assert_close(found[name], x, rtol=1e-4, atol=1e-5)
