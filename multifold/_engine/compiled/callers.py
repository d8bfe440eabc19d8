"""What recording asks of Python's frames: as Python here, and as C in `callers.pxd`.

Each recorded call asks for the line of the program that makes it, and each read for all calls that are
under way. `multifold._engine.compiled.columns` says how a module such as `_lazy` has both.
"""

from __future__ import annotations

import sys
from types import CodeType, FrameType


def here() -> FrameType:
    """Return the frame of the innermost function of Python that runs."""
    return sys._getframe(1)


def code_of(frame: FrameType) -> CodeType:
    """Return the code of a frame."""
    return frame.f_code


def place_of(frame: FrameType) -> int:
    """Return where in its code a frame is: the offset of an instruction, in bytes."""
    return frame.f_lasti


def caller_of(frame: FrameType) -> FrameType | None:
    """Return the frame that has called a frame; None for the outermost one."""
    return frame.f_back
