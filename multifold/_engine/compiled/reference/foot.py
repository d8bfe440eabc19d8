"""The foot of a stack in plain Python, which cannot say where a stack ends; `_foot.pyx` tells what for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def at_foot(code: Callable[[], Any]) -> Any:
    """Call a function without arguments as the first one of its stack, and return what it returns."""
    return code()
