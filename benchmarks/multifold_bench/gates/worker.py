"""The process of one checkout: it prepares figures and takes the repetitions that `driver` asks for.

Requests and answers are pickles on its standard input and output. What anything else prints goes to the
standard error.
"""

from __future__ import annotations

import gc
import importlib
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any, BinaryIO

GATES = ("trees", "parsers", "search", "serving", "compiling", "planning", "ragged")
"""The modules that have figures."""


def all_figures() -> dict[tuple[str, str, str], Any]:
    """Return all figures by their keys, in the order of the table."""
    modules = [importlib.import_module(f"multifold_bench.gates.{name}") for name in GATES]
    figures = [figure for module in modules for figure in module.FIGURES]
    return {figure.key: figure for figure in sorted(figures, key=lambda figure: figure.gate)}


def check_origin(checkout: str, framework: str) -> None:
    """Import a framework; refuse a multifold or an adapter that comes from another checkout."""
    import multifold

    backend = multifold.load_backend(framework)
    for module in (multifold, sys.modules[type(backend).__module__]):
        origin = Path(str(module.__file__)).resolve()
        if not origin.is_relative_to(Path(checkout).resolve()):
            raise RuntimeError(f"Expected {module.__name__} of {checkout}. Received {origin}.")


class FigureWorker:
    """What the driver asks for, a method each."""

    def __init__(self) -> None:
        self.step: Any = None

    def start(self, checkout: str, framework: str) -> bool:
        """Import the framework; return whether the compiled code of the checkout runs."""
        check_origin(checkout, framework)
        from multifold._engine import compiled  # not public, but there is no figure without it

        return bool(compiled.in_use)

    def prepare(self, key: tuple[str, str, str], quick: bool) -> None:
        """Prepare a figure, and spare the collector what lives then: it looks for new garbage only."""
        self.step = None
        gc.unfreeze()
        gc.collect()
        self.step = all_figures()[key].prepare(quick)
        gc.collect()
        gc.freeze()

    def repeat(self, number: int) -> Any:
        """Take one repetition of the figure."""
        return self.step(number)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests ``(method, arguments)`` by ``("done", result)``, or ``("failed", text)``."""
    worker = FigureWorker()
    while True:
        try:
            method, arguments = pickle.load(requests)
        except EOFError:
            return
        try:
            answer = "done", getattr(worker, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - the driver shows it, and goes on with other figures
            answer = "failed", f"{type(error).__name__}: {error}\n{traceback.format_exc()}"
        pickle.dump(answer, answers)
        answers.flush()


if __name__ == "__main__":
    private = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, private)
