"""Exact counts of what the core's own Python does: the same on every machine, where times never are.

Python is told to report each bytecode that it executes in a file of the core: by `sys.monitoring` from 3.12
on, by an opcode trace on 3.11. Bytecodes inside NumPy, of the ops and of the workload itself are left out,
so versions of other packages hardly matter (0.1 % with NumPy 1.23). Python's own version does, by a tenth:
each has counts of its own.
"""

from __future__ import annotations

import gc
import opcode
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import multifold

ROOT = str(Path(multifold.__file__).parent)
CALLS = {opcode.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "CALL_KW") if name in opcode.opmap}

Executed = Counter[tuple[CodeType, int]]
"""How often each bytecode was executed, by its code and its offset in that."""


def count(workload: Callable[[], Iterator[None]]) -> dict[str, Any]:
    """Run a workload three times, and return what the third did after its ``yield``.

    Returns
    -------
    ``bytecodes``; ``calls``, be they of functions in Python or in C; and ``rooms``, the bytecodes of each
    room of the core.
    """
    for _ in range(2):  # what is made once and kept, and what is kept from the second time on
        for _ in workload():
            pass
    noting = monitored if sys.version_info >= (3, 12) else traced
    executed: Executed = Counter()
    steps = workload()
    next(steps)
    gc.collect()
    gc.disable()  # a finalizer would be counted wherever it happens to run
    try:
        with noting(executed):
            next(steps, None)
    finally:
        gc.enable()
    return summed(executed)


def summed(executed: Executed) -> dict[str, Any]:
    """Return the totals of what was executed, and the bytecodes of each room."""
    calls, rooms = 0, Counter[str]()
    for (code, offset), times in executed.items():
        calls += times if code.co_code[offset] in CALLS else 0
        rooms[Path(code.co_filename).relative_to(ROOT).parts[0].removesuffix(".py")] += times
    return {"bytecodes": rooms.total(), "calls": calls, "rooms": dict(sorted(rooms.items()))}


@contextmanager
def traced(executed: Executed) -> Iterator[None]:
    """Note bytecodes by a trace of frames."""

    def enter(frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(ROOT):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return step

    def step(frame: FrameType, event: str, arg: Any) -> Callable[..., Any]:
        if event == "opcode":
            executed[frame.f_code, frame.f_lasti] += 1
        return step

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)


@contextmanager
def monitored(executed: Executed) -> Iterator[None]:
    """Note bytecodes by Python's own monitoring, which asks about each bytecode of others once only."""

    def step(code: CodeType, offset: int) -> object:
        if not code.co_filename.startswith(ROOT):
            return monitoring.DISABLE
        executed[code, offset] += 1
        return None

    monitoring = sys.monitoring
    tool, event = monitoring.PROFILER_ID, monitoring.events.INSTRUCTION
    monitoring.use_tool_id(tool, "multifold")
    monitoring.register_callback(tool, event, step)
    monitoring.set_events(tool, event)
    try:
        yield
    finally:
        monitoring.set_events(tool, 0)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)
