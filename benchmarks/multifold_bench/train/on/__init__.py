"""What each framework brings to training: its own optimizers, and how its processes are started.

A module has the name of its backend. `multifold_bench.train.seam` says what it holds. An adapter of someone
else brings such a module in its own package, under the name ``training``.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from types import ModuleType

from multifold._engine.frameworks.registry import adapter_module
from multifold.backend import Backend


def training_of(backend: Backend) -> ModuleType:
    """Return the module that trains on a backend.

    Raises
    ------
    BackendError
        If there is none.

    Examples
    --------
    >>> import multifold
    >>> training_of(multifold.load_backend("numpy"))
    Traceback (most recent call last):
    ...
    multifold.errors.BackendError: Backend 'numpy' has no module 'multifold._numpy.training', ...
    """
    ours = f"{__name__}.{backend.name}"
    if find_spec(ours) is None:
        return adapter_module(backend, "training")
    return importlib.import_module(ours)
