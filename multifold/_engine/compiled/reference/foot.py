"""The foot of a stack in plain Python, which cannot say where a stack ends; `_foot.pyx` tells what for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def at_foot(code: Callable[[], Any]) -> Any:
    """Call ``code()`` and return what it returns; compiled, it is the first function of its stack."""
    return code()
