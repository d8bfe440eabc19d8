"""End the processes of a kvstore when one of them dies: MXNet itself waits for it for ever.

Where `PS_HEARTBEAT_INTERVAL` is set, each process of ps-lite tells the scheduler so often, in seconds, that
it is alive, and the scheduler answers. So the scheduler knows of all others, and each of them of the
scheduler. MXNet does not ask. `watch` does, in a thread: the scheduler says who has died and ends, and the
others end after it.

As a program this is a scheduler that watches; it sets its role itself, since MXNet serves as soon as it is
imported in that role:

    env -u DMLC_ROLE PS_HEARTBEAT_INTERVAL=5 python -m multifold_mxnet.alive
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from typing import Any

import mxnet as mx
from mxnet.base import _LIB, check_call
from mxnet.kvstore.kvstore_server import KVStoreServer

MISSED = 3
"""After how many intervals without a word a process is taken for dead."""


def watch(store: Any) -> None:
    """End this process, with an error that names the other one, when one that it hears of has died.

    Parameters
    ----------
    store : mxnet.kvstore.KVStore
        One of type ``dist_sync``, of a scheduler or a worker. Without ``PS_HEARTBEAT_INTERVAL`` in the
        environment of all processes nothing is watched.

    Examples
    --------
    >>> import mxnet, multifold_mxnet.alive
    >>> multifold_mxnet.alive.watch(mxnet.kv.create("local"))  # no heartbeats here
    """
    seconds = int(os.environ.get("PS_HEARTBEAT_INTERVAL", "0"))
    if seconds:
        threading.Thread(target=look, args=(store, seconds), daemon=True).start()


def look(store: Any, seconds: int) -> None:
    """End this process, with status 1, as soon as one of the others is dead; never return.

    It asks every ``seconds`` seconds, and writes to stderr which processes were not heard of for `MISSED`
    intervals.
    """
    others = heard_of()
    while True:
        time.sleep(seconds)
        gone = [name for node, name in others.items() if is_dead(store, node, MISSED * seconds)]
        if gone:
            sys.stderr.write(
                f"Expected to hear of each process of the kvstore every {seconds} s. Received nothing of "
                f"{', '.join(gone)} for {MISSED * seconds} s.\n\nHint: see what it printed last, or the "
                "scheduler if that is the one; then start all of them again, from a checkpoint.\n"
            )
            os._exit(1)  # the main thread waits inside of MXNet, where no exception reaches it


def heard_of() -> dict[int, str]:
    """Return the processes that ps-lite lets this one hear of, number -> name, as ``"worker 0"``.

    A scheduler hears of all servers and workers; any other process hears of the scheduler alone.
    """
    if os.environ.get("DMLC_ROLE") != "scheduler":
        return {1: "the scheduler"}
    servers, workers = (int(os.environ[f"DMLC_NUM_{role}"]) for role in ("SERVER", "WORKER"))
    found = {8 + 2 * rank: f"server {rank}" for rank in range(servers)}
    return found | {9 + 2 * rank: f"worker {rank}" for rank in range(workers)}


def is_dead(store: Any, node: int, seconds: int) -> bool:
    """Return whether MXNet has heard nothing of process ``node``, its number, for ``seconds`` seconds."""
    count = ctypes.c_int()
    check_call(_LIB.MXKVStoreGetNumDeadNode(store.handle, node, ctypes.byref(count), seconds))
    return count.value > 0


def main() -> None:
    """Serve as the scheduler of a kvstore, and watch the other processes, until the workers have ended."""
    os.environ["DMLC_ROLE"] = "scheduler"
    store = mx.kv.create("dist")
    watch(store)
    KVStoreServer(store).run()


if __name__ == "__main__":
    main()
