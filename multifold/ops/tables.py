"""Which functions belong to an array: a module of them for each framework, found once a type.

An array's type says its framework, so the answer is kept by type; a call of a neutral function
costs one lookup more than the framework's own. A framework's modules are found in the package of
its adapter by name, so that any adapter adds one by adding the file.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from multifold._engine.frameworks import registry
from multifold.errors import BackendError

_TABLES: dict[type, Any] = {}


def table(x: Any) -> Any:
    """Return the module with the functions of `multifold.ops` for the framework of an array.

    It is the module ``ops`` of the adapter, looked up once for each type of array; NumPy's own scalars
    count as arrays of NumPy.

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
    is_numpy = isinstance(x, (np.ndarray, np.generic))
    backend = registry.load_backend("numpy") if is_numpy else registry.owner(x)
    if backend is None:
        raise BackendError(
            "Expected an array of NumPy or of an installed backend. "
            f"Received a {type(x).__module__}.{type(x).__qualname__}.",
            "inside an op every batched operand is an array.",
        )
    found = registry.adapter_module(backend, "ops")
    _TABLES[type(x)] = found
    return found
