"""Says once that eager folds compile again and again.

XLA compiles for the shapes of arrays, and each minibatch of a fold that runs eagerly has other numbers of
rows. So what it gathers, splits and computes is compiled anew, for seconds a minibatch.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import jax

MANY_RUNS = 24
MANY_COMPILATIONS = 300
"""After so many runs of folds that waited for compilations, and so many of these, a program is named."""


class Compilations:
    """How often this process has compiled, and how many runs of folds have waited for that."""

    def __init__(self) -> None:
        self.count = 0
        self.runs = 0
        self.warned = False

    def listen(self, event: str, _: float, **__: Any) -> None:
        """Count a compilation, of whatever JAX tells of."""
        self.count += event == "/jax/core/compile/backend_compile_duration"

    def hush(self) -> None:
        """Warn of nothing from now on."""
        self.warned = True

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """Note a run, if something is compiled in it; warn of one that is one too many."""
        before = self.count
        yield
        if self.count == before or self.warned:
            return
        self.runs += 1
        level = users_level()
        if level and self.runs >= MANY_RUNS and self.count >= MANY_COMPILATIONS:
            self.hush()
            warnings.warn(
                f"Folds that run eagerly on JAX have compiled in {self.runs} runs by now, and will for "
                "each new number of rows.\n\nHint: multifold_jax.run(model, fold.program(traces)) inside "
                "of jax.jit compiles once for many minibatches; see docs/compiling.md.",
                stacklevel=level,
            )


def users_level() -> int:
    """Return how far above the one that asks the user's code is; 0 in a server, which pads all it runs."""
    frame = sys._getframe(1)
    level = 1
    while frame.f_back is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("multifold.serve"):
            return 0
        if not name.startswith(("multifold", "contextlib")):
            break
        frame = frame.f_back
        level += 1
    return level


COMPILATIONS = Compilations()
jax.monitoring.register_event_duration_secs_listener(COMPILATIONS.listen)
