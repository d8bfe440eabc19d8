"""Which functions belong to an array: a module of them for each framework, found once a type.

An array's type says its framework, so the answer is kept by type; a call of a neutral function
costs one lookup more than the framework's own. A framework's modules are found in the package of
its adapter by name, so that any adapter adds one by adding the file.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np

from multifold._frameworks import registry
from multifold.backend import Backend
from multifold.errors import BackendError
from multifold.ops import numpy_ops

_TABLES: dict[type, Any] = {np.ndarray: numpy_ops}


def table(x: Any) -> Any:
    """Return the module of functions for an array.

    Raises
    ------
    BackendError
        If ``x`` is no array of an installed backend, or its adapter has no such module.
    """
    try:
        return _TABLES[type(x)]
    except KeyError:
        return _find(x)


def _find(x: Any) -> ModuleType:
    if isinstance(x, (np.ndarray, np.generic)):
        found = numpy_ops
    else:
        backend = registry.owner(x)
        if backend is None:
            raise BackendError(
                "Expected an array of NumPy or of an installed backend. "
                f"Received a {type(x).__module__}.{type(x).__qualname__}.",
                "inside an op every batched operand is an array.",
            )
        found = adapter_module(backend, "ops")
    _TABLES[type(x)] = found
    return found


def adapter_module(backend: Backend, name: str) -> ModuleType:
    """Return the module ``name`` in the package of an adapter.

    Raises
    ------
    BackendError
        If the package has none.
    """
    package = type(backend).__module__.partition(".")[0]
    path = f"{package}.{name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name not in (path, package):
            raise
        raise BackendError(
            f"Backend '{backend.name}' has no module '{path}', which an adapter may bring.",
            f"multifold.{'ops' if name == 'ops' else 'models'} says what it holds; "
            "ask the author of the adapter for one.",
        ) from error
