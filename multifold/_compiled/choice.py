"""The choice between C and NumPy for the inner loops of planning and wiring: made here, once.

`_kernels.c`, `_levels.c`, `_merge.c` and `_rounds.c` are built where a C compiler is at hand when multifold
is installed. NumPy does the same elsewhere, and everywhere when the environment variable
``MULTIFOLD_NATIVE`` is ``0``; the same tests hold both.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import Any

kernels: Any = None
"""The extension module, or None for NumPy."""

if os.environ.get("MULTIFOLD_NATIVE") != "0":
    with contextlib.suppress(ImportError):
        kernels = importlib.import_module("multifold._compiled._kernels")
