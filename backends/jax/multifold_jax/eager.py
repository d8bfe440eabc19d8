"""Says once that eager folds compile again and again.

XLA compiles for the shapes of arrays, and each minibatch of a fold that runs eagerly has other numbers of
rows. So what it gathers, splits and computes is compiled anew, for seconds a minibatch.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import jax

LOG = logging.getLogger("multifold")

MANY_RUNS = 24
MANY_COMPILATIONS = 300
"""After so many runs of folds that waited for compilations, and so many of these, a program is named."""


class Compilations:
    """Counts how often this process has compiled (``count``) and how many runs waited for it (``runs``)."""

    def __init__(self) -> None:
        self.count = 0
        self.runs = 0
        self.warned = False

    def listen(self, event: str, seconds: float, **_: Any) -> None:
        """Add 1 to ``count`` if ``event`` is the name that JAX gives to a finished compilation.

        JAX calls this for each event; all else that it passes is ignored.
        """
        if event == "/jax/core/compile/backend_compile_duration":
            self.count += 1
            LOG.info("JAX has compiled for %.3f s", seconds)

    def hush(self) -> None:
        """Let `run` warn of nothing from now on."""
        self.warned = True

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """Return a context around one run of a fold: it adds 1 to ``runs`` if JAX compiled in it.

        Once `MANY_RUNS` runs and `MANY_COMPILATIONS` compilations are reached, it warns, one time, unless a
        server asked for the run.
        """
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
    """Return the ``stacklevel`` at which `warnings.warn`, called by the caller, names the user's line.

    The first frame outside of multifold counts; returns 0 if a module of `multifold.serve`, which pads all
    it runs, comes before it.
    """
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
