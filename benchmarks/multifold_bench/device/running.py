"""A pass over blocks: each in a process of its own, within its seconds, its rows handed on as they come.

A process that is lost, to a failed launch say, takes no other block with it, and one that is over its time
is ended. Processes are forked from one that has imported the framework and has not used the device.
"""

from __future__ import annotations

import importlib
import multiprocessing
import platform
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from multifold._engine import compiled
from multifold._measure.machine import cores, processor
from multifold._measure.results import Row

LEAST = 2.0
"""Seconds below which a block does not begin."""


@dataclass(frozen=True)
class Lease:
    """Where a block runs, and how large it may be.

    Attributes
    ----------
    device : str
        As PyTorch spells it: ``"cuda"`` or ``"cpu"``.
    sizes : object
        How large things are; see `multifold_bench.device.blocks.PassSizes`.
    checkout : Path, optional
        Where the tests are that run on the device.
    until : float
        The moment, by `time.monotonic`, at which the block is ended.
    """

    device: str
    sizes: Any
    checkout: Path | None = None
    until: float = float("inf")

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.until - time.monotonic()

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device.startswith("cuda")


@dataclass(frozen=True)
class Block:
    """Something that is measured: a name, the seconds that it may take, and what yields its rows."""

    name: str
    seconds: float
    rows: Callable[[Lease], Iterator[Row]]


def run_pass(blocks: Sequence[Block], lease: Lease, seconds: float) -> Iterator[Row]:
    """Yield the rows of all blocks, each as soon as it is measured.

    Every row has the name of its block and what is known of the machine. The last row of a block says in
    ``seconds`` what it took, and in ``error`` what ended it before its time.
    """
    end = time.monotonic() + seconds
    importlib.import_module("multifold_torch")  # takes seconds, and no process need do it again
    for block in blocks:
        began = time.monotonic()
        until = min(end, began + block.seconds)
        about: Row = {"block": block.name}
        error: str | None = f"no time was left for its {block.seconds:g} seconds"
        if until - began >= LEAST:
            error = None
            for row in in_process(block, replace(lease, until=until)):
                about = {name: x for name, x in row.items() if name in FACTS}
                if "end" in row:
                    error = row["end"]
                else:
                    yield row
        yield {**about, "what": "end", "seconds": time.monotonic() - began, "error": error}


FACTS = ("block", "device", "machine", "core", "versions")
"""What every row says."""


def facts(block: Block, lease: Lease) -> Row:
    """Return what every row of a block says; the device is used now."""
    import torch

    name = torch.cuda.get_device_name(lease.device) if lease.on_gpu else processor()
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    return {
        "block": block.name,
        "device": lease.device,
        "machine": f"{name}, {cores()} cores",
        "core": "compiled" if compiled.in_use else "not compiled",
        "versions": versions,
    }


def in_process(block: Block, lease: Lease) -> Iterator[Row]:
    """Yield the rows of a block from a process of its own, then ``end``: what ended it, None for itself."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    process = fork.Process(target=send, args=(sender, block, lease))
    process.start()
    sender.close()
    row: Row = {"block": block.name}
    try:
        while receiver.poll(max(0.0, lease.left)):
            row = receiver.recv()
            yield row
            if "end" in row:
                return
        end = f"it was not done after {block.seconds:g} seconds, or when all time was over"
        yield {**row, "end": end}
    except EOFError:
        process.join()
        yield {**row, "end": f"its process ended with code {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def send(sender: Connection, block: Block, lease: Lease) -> None:
    """Send the rows of a block, and how it ended."""
    known: Row = {"block": block.name}
    try:
        known = facts(block, lease)
        for row in block.rows(lease):
            sender.send({**row, **known})
        end = None
    except Exception as error:  # noqa: BLE001 - the pass goes on with the next block
        end = error_text(error)
    sender.send({**known, "end": end})


def error_text(error: BaseException) -> str:
    """Return an error in a line, with where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}{where}"
