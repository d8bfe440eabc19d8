"""The same trees by Ray Data: blocks of lines in, rows of logits out, worker processes between them."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import multifold
from multifold_bench.graphs.base import CLASSES
from multifold_bench.streaming.trees import MakeModel, read
from multifold_bench.streaming.ways import Timed, in_processes, peak_megabytes

ROWS = 512
"""Trees in a minibatch; a stream with its 20,000 calls takes some 540 of them."""

BLOCK = 4 * ROWS
"""Trees that Ray hands to an actor at a time; each block costs Ray some milliseconds."""

STORE = 200 * 2**20
"""Bytes that Ray's object store may take: bounded memory."""


@dataclass(frozen=True)
class RayData:
    """A way: a data set on a local Ray with a pool of actors.

    Attributes
    ----------
    actors : int
        How many there are; one of them takes a core.
    stages : int
        With 1 each actor reads lines and runs them. With 2 tasks make traces of the lines, which travel to
        the actors as rows of Arrow tables. With 0 nothing is computed: what Ray Data itself costs.
    """

    actors: int
    stages: int

    def run(self, make: MakeModel, lines: Sequence[str], warm: int) -> Timed:
        """Run the lines; the first ``warm`` are not timed."""
        return in_processes(run_on_ray, [(self, make, lines, warm)])[0]


class Actor:
    """What each actor of the pool keeps: the model, and a fold."""

    def __init__(self, make: MakeModel | None) -> None:
        self.make = make
        if make is not None:
            self.model, self.backend = make(), multifold.load_backend(make.backend)
            self.fold = multifold.Fold(backend=self.backend)
            gc.freeze()  # as the workers of a stream do

    def __call__(self, table: Any) -> Any:
        """Return the answers to a table of lines or of traces."""
        if self.make is None:
            return answers(table, np.zeros((table.num_rows, CLASSES), "float32"))
        with self.backend.inference():
            if "line" in table.column_names:
                logits = self.fold.run(self.model, table["line"].to_pylist(), read)
            else:
                logits = self.fold.run(self.model, multifold.from_arrow(table))
        return answers(table, self.backend.to_numpy(logits))


def answers(table: Any, logits: np.ndarray) -> Any:
    """Return the numbers of trees, and a column for each class."""
    import pyarrow as pa

    return pa.table({"id": table["id"], **{f"class {i}": logits[:, i] for i in range(logits.shape[1])}})


def traced(table: Any) -> Any:
    """Return the traces of lines as rows of a table, beside the numbers of the trees."""
    traces = multifold.to_arrow(multifold.traces(read, table["line"].to_pylist()))
    return traces.append_column("id", table["id"])


def run_on_ray(way: RayData, make: MakeModel, lines: Sequence[str], warm: int) -> Timed:
    """Start a local Ray, run the lines, and end it."""
    import logging

    import pyarrow as pa
    import ray

    ray.init(
        address="local",
        num_cpus=way.actors + 1,  # the one is for tasks: where actors have all, the first block never comes
        include_dashboard=False,
        object_store_memory=STORE,
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        table = pa.table({"id": np.arange(len(lines)), "line": lines})
        blocks = [table.slice(i, BLOCK) for i in range(0, len(lines), BLOCK)]
        options = {"batch_format": "pyarrow", "batch_size": ROWS}
        data = ray.data.from_arrow(blocks)
        if way.stages == 2:
            # Ray would join both functions in the actor if they took the same CPUs; no trace would travel.
            data = data.map_batches(traced, batch_format="pyarrow", batch_size=None, num_cpus=0.5)
        data = data.map_batches(
            Actor,
            fn_constructor_args=(make if way.stages else None,),
            compute=ray.data.ActorPoolStrategy(size=way.actors),
            **options,
        )
        return consumed(data, warm)
    finally:
        ray.shutdown()


def consumed(data: Any, warm: int) -> Timed:
    """Take in all answers of a data set, which come in any order."""
    tables: list[Any] = []
    count, first, begin = 0, 0, 0.0
    for table in data.iter_batches(batch_size=None, batch_format="pyarrow"):
        tables.append(table)
        count += table.num_rows
        if not begin and count >= warm:
            begin, first = time.perf_counter(), count
    rate = (count - first) / (time.perf_counter() - begin)
    columns = [
        np.concatenate([table[name].to_numpy() for table in tables]) for name in tables[0].column_names
    ]
    return Timed(rate, np.stack(columns[1:], axis=1)[np.argsort(columns[0])], peak_megabytes())
