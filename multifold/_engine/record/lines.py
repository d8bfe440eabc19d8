"""Lines of the user: where calls are recorded, and where warnings point."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


def users_frame() -> FrameType:
    """Return the innermost frame of the stack that is in no module of multifold or of an adapter."""
    frame = sys._getframe(1)
    ours = ("multifold.", "multifold_")  # adapters are packages of their own
    while frame.f_globals.get("__name__", "").startswith(ours) and frame.f_back is not None:
        frame = frame.f_back
    return frame


def warn_user(text: str) -> None:
    """Warn with a `UserWarning` that names the user's line (`users_frame`), which called this package."""
    frame = users_frame()
    warnings.warn_explicit(text, UserWarning, frame.f_code.co_filename, frame.f_lineno)
