"""What the workers of tests/serve/test_stream.py run.

Spawned processes import it by name, which they can't do with a module that pytest has imported by its path.
"""

from __future__ import annotations

import gc
import os
import signal

from multifold import each, stream


def make_model():
    return {"leaf": lambda x: x * 1, "add": lambda a, b: a + b}


def total(fold, tree):
    """Record the sum of a tree; 666 is no number for it, and 999 ends the process."""
    if tree == 666:
        raise ValueError("the number of the beast")
    if tree == 999:
        os._exit(1)
    if isinstance(tree, int):
        return fold.add("leaf", tree)
    return fold.add("add", *[total(fold, child) for child in tree])


async def total_of_total(fold, tree):
    value = await fold.value(total(fold, tree))
    return fold.add("leaf", int(value))


def parse(fold, tree):
    nodes = [fold.add("leaf", i) for i in range(len(str(tree)) % 3)]
    return {"own": each((str(tree), nodes)), "total": total(fold, tree), "none": None}


def start_workers_and_die():
    found = stream(None, range(999), total, backend="numpy", make_model=make_model, workers=2, calls=20)
    next(found)
    os.kill(os.getpid(), signal.SIGKILL)


def unvisited(fold, example):
    return gc.get_freeze_count()


def threads(fold, example):
    return os.environ.get("OMP_NUM_THREADS")


class Odd(Exception):
    """An exception that pickles, and does not unpickle."""

    def __init__(self, first, second):
        super().__init__(first)


def raise_odd(fold, example):
    raise Odd(1, 2)
