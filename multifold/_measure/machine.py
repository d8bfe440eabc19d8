"""What a reader has to know of the machine to judge a time: versions, threads, devices, memory.

Users set the number of threads themselves, by the framework's own environment variables, before the
program starts. This module reads it. `ask_for_one_thread` sets what they have left open, for a command
whose figures are to be compared, and `one_blas_thread` does it for NumPy, which is imported by then.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from multifold._engine.frameworks import registry
from multifold.backend import Backend

THREADS = (
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
    "XLA_FLAGS",
)
"""The environment variables that say how many threads a framework uses, and how they wait."""


ONE_THREAD = {
    **dict.fromkeys([name for name in THREADS if name.endswith("_THREADS")], "1"),
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
"""What these variables are set to for one thread."""


def ask_for_one_thread() -> None:
    """Let frameworks that are imported from now on use one thread; what the user has set stays.

    Where two threads share two cores with other programs, one of them waits for the other at each
    operation, and ways of many small operations seem many times slower than they are.
    """
    for name, value in ONE_THREAD.items():
        os.environ.setdefault(name, value)


def framework_version(backend: Backend) -> str:
    """Return the ``__version__`` of a backend's framework, ``"?"`` if it has none.

    Examples
    --------
    >>> framework_version(registry.load_backend("numpy")) == np.__version__
    True
    """
    return str(getattr(sys.modules.get(backend.name), "__version__", "?"))


def adapter(name: str) -> str:
    """Return the distribution of the backend ``name`` and its version: ``"multifold-torch 0.1.0"``.

    Examples
    --------
    >>> adapter("numpy").split()[0]
    'multifold-core'
    """
    point = registry.entry_points().get(name)
    if point is None or point.dist is None:
        return f"multifold-core {registry.number_of_core() or '?'}"
    return f"{point.dist.name} {point.dist.version}"


def default_device(backend: Backend) -> str:
    """Return the name of the device on which a backend makes arrays by default: ``"cpu"``, ``"CPU:0"``, ...

    Examples
    --------
    >>> default_device(registry.load_backend("numpy"))
    'cpu'
    """
    array = backend.constant(np.zeros(1, backend.number_dtype(int)), None)
    device = backend.device(array)
    found = str(getattr(array, "device", "cpu") if device is None else device)
    return found.rpartition("/")[2]  # of /job:localhost/replica:0/task:0/device:CPU:0, as TensorFlow has it


def cores() -> int:
    """Return how many cores this process may use, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor() -> str:
    """Return the name of the processor, from ``/proc/cpuinfo`` or else from `platform`."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def framework_threads(backend: Backend) -> int | None:
    """Return how many threads an operation of a framework may use, or None if it does not tell.

    Of the frameworks with adapters, PyTorch tells.
    """
    ask = getattr(sys.modules.get(backend.name), "get_num_threads", None)  # PyTorch says so
    return None if ask is None else int(ask())


def describe(backend: Backend) -> dict[str, Any]:
    """Return what a time depends on: versions, device, processor, cores, threads and variables.

    It is a dictionary for the record of a benchmark: ``{"python": "3.12.1", "cores": 8, ...}``.
    """
    return {
        "python": platform.python_version(),
        "multifold": registry.number_of_core() or "?",
        "numpy": np.__version__,
        backend.name: framework_version(backend),
        "adapter": adapter(backend.name),
        "device": default_device(backend),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": cores(),
        "threads": framework_threads(backend),
        "variables": {name: os.environ[name] for name in THREADS if name in os.environ},
    }


@contextlib.contextmanager
def one_blas_thread(backend: Backend | None = None) -> Iterator[None]:
    """Return a context in which NumPy's OpenBLAS uses one thread.

    If ``backend`` is another one than NumPy's, it does nothing.

    OpenBLAS's threads spin while they wait, and NumPy is imported before this function could forbid it.
    Where other programs use the same cores, a product of some hundred rows is then slower on two threads
    than on one. A single row always runs on one thread, so the loop would look better than it is.
    """
    import threadpoolctl

    if backend is not None and backend.name != "numpy":
        yield
        return
    with threadpoolctl.ThreadpoolController().select(internal_api="openblas").limit(limits=1):
        yield
