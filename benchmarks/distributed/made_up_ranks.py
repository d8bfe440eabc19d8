"""Train a small model in two processes, or as one of those that a launcher has started.

    python made_up_ranks.py BACKEND FOLDER NAME...

trains once for each name of `SETTINGS`, into folders of these names. Each process writes its id into
FOLDER/RANK.pid, so that a test can kill it.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from multifold_bench.made_up import MadeUpTask
from multifold_bench.train import Settings, train
from multifold_bench.train.ranks import join_ranks, start_ranks
from multifold_bench.train.seam import load_backend

SETTINGS = {
    "one example a step": Settings("binary", 3, epochs=2, batch=1),
    "penalty": Settings("child-sum", 3, epochs=2, batch=7, l2=0.1, optimizer="adam"),
    "long": Settings("binary", 3, epochs=3, batch=6),
}
TASK = {"long": MadeUpTask(train=60)}


def main(backend: str, folder: str, *names: str) -> None:
    """Start two processes, or take part."""
    seam = load_backend(backend)
    ranks = join_ranks(seam, 2)
    if ranks.count == 1:
        start_ranks(seam, 2, sys.argv)
        return
    Path(folder, f"{ranks.rank}.pid").write_text(str(os.getpid()))
    for name in names:
        out = Path(folder, name)
        train(TASK.get(name, MadeUpTask()), out, seam, SETTINGS[name], save_seconds=0, ranks=ranks)


if __name__ == "__main__":
    main(*sys.argv[1:])
