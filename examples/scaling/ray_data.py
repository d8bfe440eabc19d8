"""Ray Data reads formulas, traces and classifies them with a pool of actors, and writes the answers.

python examples/scaling/ray_data.py [--formulas formulas.parquet] [--answers folder] [--actors 1] [--apart]
"""

import argparse
import gc
import json

import multifold_torch  # noqa: F401 - so that workers which unpickle these functions know the backend
import pyarrow as pa
import ray
import torch
from formulas import record
from ray.data.collate_fn import ArrowBatchCollateFn
from torch_model import Logic

import multifold

ROWS = 1024


def read(fold, row):
    """Record a formula from its text; what it raises names its row."""
    try:
        return record(fold, json.loads(row["formula"]))
    except Exception as error:
        error.add_note(f"Raised by the formula with id {row['id']}.")
        raise


def traced(table, keep=("id",)):
    """Return the traces of a table of formulas as rows of a table: no framework is needed for that."""
    rows = multifold.to_arrow(multifold.traces(read, table.to_pylist()))
    for name in keep:
        rows = rows.append_column(name, table[name])
    return rows


class Minibatches(ArrowBatchCollateFn):
    """Makes a minibatch and tensors of rows, as ``ds.iter_torch_batches(collate_fn=...)`` wants it."""

    def __init__(self, columns):
        self.columns = columns

    def __call__(self, table):
        tensors = {name: torch.from_numpy(table[name].to_numpy().copy()) for name in self.columns}
        return {"traces": multifold.merge(multifold.from_arrow(table)), **tensors}


class Classifier:
    """What each actor of the pool keeps: the model, and a fold that knows the calls of earlier batches."""

    def __init__(self, weights=None):
        torch.set_num_threads(1)
        self.model = Logic().eval()
        if weights is not None:
            self.model.load_state_dict(torch.load(weights))
        self.fold = multifold.Fold(backend="torch")

        gc.freeze()  # what importing PyTorch has made stays, and no collection need visit it

    def __call__(self, table):
        with torch.inference_mode():
            if "formula" in table.column_names:
                logits = self.fold.run(self.model, table.to_pylist(), read)
            else:
                logits = self.fold.run(self.model, multifold.from_arrow(table))
        return pa.table({"id": table["id"], "answer": logits.argmax(dim=1).numpy()})


def classified(formulas, actors, weights=None, classifier=Classifier, apart=False):
    """Return a data set of answers; nothing is read before somebody reads it."""
    cpus = ray.cluster_resources()["CPU"]
    if actors >= cpus:  # Ray would wait for ever for a CPU of the task that reads the first block
        raise ValueError(f"Expected fewer actors than the {cpus:.0f} CPUs of Ray. Received {actors}.")
    # A block is what one worker gets. Ray cuts by bytes, and 10,000 formulas are less than a megabyte.
    rows = formulas.repartition(target_num_rows_per_block=2 * ROWS)
    if apart:
        # Ray joins functions in one process that take the same CPUs there; then no trace would travel.
        rows = rows.map_batches(traced, batch_format="pyarrow", batch_size=None, num_cpus=0.5)
    return rows.map_batches(
        classifier,
        fn_constructor_args=(weights,),
        compute=ray.data.ActorPoolStrategy(size=actors),
        batch_format="pyarrow",
        batch_size=ROWS,
    )


def main(formulas, answers, actors, apart=False):
    classified(ray.data.read_parquet(formulas), actors, apart=apart).write_parquet(answers)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--formulas", default="formulas.parquet")
    parser.add_argument("--answers", default="answers")
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--apart", action="store_true", help="trace in other processes, not in the actors")
    main(**vars(parser.parse_args()))
