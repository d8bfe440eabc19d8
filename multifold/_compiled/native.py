"""The choice between the C and the plain Python version of the hot path of recording: made here, once.

`_native.c` is built where a C compiler is at hand when multifold is installed; `plain` does the
same elsewhere, and everywhere when the environment variable ``MULTIFOLD_NATIVE`` is ``0``.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from multifold._compiled.plain import GraphBase, NodeBase, RecorderBase

__all__ = ["NATIVE", "GraphBase", "NodeBase", "RecorderBase"]

NATIVE = False
"""Whether calls are recorded by the C version."""

if not TYPE_CHECKING and os.environ.get("MULTIFOLD_NATIVE") != "0":
    try:
        from multifold._compiled._native import GraphBase, NodeBase, RecorderBase

        NATIVE = True
    except ImportError:
        pass
