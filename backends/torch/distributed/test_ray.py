"""A local Ray: Data traces and classifies, batches reach PyTorch, Train goes on where a worker has died."""

from __future__ import annotations

import json
import os
import signal
import sys
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

pytestmark = pytest.mark.timeout(180)


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


def test_formulas_are_read_traced_classified_and_written(cluster, tmp_path):
    import ray_data

    formulas, _ = written(tmp_path, 300)
    ray_data.main(str(tmp_path), str(tmp_path / "answers"), actors=1)
    table = parquet.read_table(tmp_path / "answers").sort_by("id")
    assert table["id"].to_pylist() == list(range(300))
    assert (table["answer"].to_numpy() == expected(formulas)).all()


def test_an_example_that_fails_is_named(cluster, tmp_path):
    import ray_data

    rows = {"id": [0, 1], "formula": ['["and", 0, 1]', '["never", 0]']}
    parquet.write_table(pa.table(rows), tmp_path / "damaged.parquet")
    with pytest.raises(Exception, match="not enough values to unpack") as raised:
        ray_data.main(str(tmp_path), str(tmp_path / "answers"), actors=1)
    assert "Raised by the formula with id 1." in str(raised.value)


def test_traces_and_labels_reach_torch_as_minibatches(cluster, tmp_path):
    import ray_data
    from torch_model import Logic

    formulas, labels = written(tmp_path, 100)
    traces = ray.data.read_parquet(str(tmp_path)).map_batches(
        ray_data.traced, fn_kwargs={"keep": ["id", "label"]}, batch_format="pyarrow"
    )
    fold, found, known = multifold.Fold(backend="torch"), {}, {}
    for batch in traces.iter_torch_batches(batch_size=32, collate_fn=ray_data.Minibatches(["id", "label"])):
        assert len(batch["traces"].traces) == len(batch["id"]) <= 32
        answers = fold.run(Logic(), batch["traces"]).argmax(1)
        found |= dict(zip(batch["id"].tolist(), answers.tolist(), strict=True))
        known |= dict(zip(batch["id"].tolist(), batch["label"].tolist(), strict=True))
    assert [found[i] for i in range(100)] == expected(formulas).tolist()
    assert [known[i] for i in range(100)] == labels.tolist()


def die_once(folder):
    """Return a function that ends worker 1 with SIGKILL the first time that it is called there."""

    def kill(rank):
        mark = Path(folder) / "died"
        if rank == 1 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return kill


def test_training_goes_on_where_a_worker_has_died(cluster, tmp_path):
    import ray_train
    from formulas import examples, record
    from torch_model import Logic, mean_loss

    from multifold.sampling import CallBudget

    result = ray_train.trained(tmp_path, 2, in_second_epoch=die_once(tmp_path))
    assert (tmp_path / "died").exists()
    with result.checkpoint.as_directory() as folder:
        found = torch.load(Path(folder) / "kept.pt")["model"]

    formulas, labels = examples(200)
    traces = multifold.traces(record, formulas)
    model, fold = Logic(), multifold.Fold(backend="torch")
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
