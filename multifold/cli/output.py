"""How the commands talk: tables on stdout, a progress bar on stderr where somebody watches.

What goes to stdout is the result and may be piped, so it is never wrapped or cut to a guessed width; a
bar is drawn on a terminal only.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import click
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from multifold._engine.frameworks import registry
from multifold.backend import Backend

UNWRAPPED = 1000
"""The width of a table that goes to a file or a pipe: wide enough for every table here."""


@contextlib.contextmanager
def muted() -> Iterator[None]:
    """Return a context in which what is written to file descriptor 2 is dropped.

    TensorFlow 2.21 logs about its build from C++ before any of its settings is read; a framework that
    cannot be imported still says so, by its exception.
    """
    sys.stderr.flush()
    try:
        kept = os.dup(2)
    except OSError:  # there is no stderr at all
        yield
        return
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def load(name: str) -> Backend:
    """Return the backend ``name``, dropping what its framework writes to stderr while it is imported.

    Raises
    ------
    BackendError
        As `multifold._engine.frameworks.registry.load_backend` does.
    """
    with muted():
        return registry.load_backend(name)


class Bar:
    """A progress bar, or nothing where stderr is no terminal."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=total)

    def advance(self, what: str) -> None:
        """Move the bar on by one of its steps, and show ``what``: what is being done from now on."""
        self._progress.update(self._task, advance=1, description=what)

    def reach(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` is done, in any unit: 3 of 16 files, or bytes."""
        self._progress.update(self._task, completed=done, total=total)

    def say(self, what: str) -> None:
        """Show ``what``, what is being done from now on, beside the bar."""
        self._progress.update(self._task, description=what)

    def print(self, line: str) -> None:
        """Print a line of the result on stdout, where the bar was; the bar is drawn again below it."""
        shown = self._progress.live.is_started
        if shown:
            self._progress.stop()
        click.echo(line)
        if shown:
            self._progress.start()


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Bar]:
    """Return a context with a `Bar` of ``total`` steps, labelled ``what``.

    It is drawn on stderr, if that is a terminal, until the context is left.
    """
    console = Console(stderr=True)
    columns = (BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    shown = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    with shown:
        bar = Bar(shown, total)
        bar.say(what)
        yield bar


def show_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], caption: str = "") -> None:
    """Print rows on stdout below the names of their columns; only the last column is ever wrapped.

    A table that is wider than the terminal is left to it to wrap: no digit is ever cut off.

    Parameters
    ----------
    columns : sequence of str
        The head; a name that begins with ``<`` is that of a column of text.
    rows : sequence of sequences
        The cells; those that a row lacks stay empty.
    caption : str
        Printed below, as it is.
    """
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=UNWRAPPED)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in columns:
        side: Literal["left", "right"] = "left" if name.startswith("<") else "right"
        table.add_column(name.removeprefix("<"), justify=side, no_wrap=name != columns[-1], overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    # A measure is never more than the width of its options, so ask for one that no table reaches.
    wide = console.options.update(width=UNWRAPPED)
    if console.measure(table, options=wide).minimum > console.width:
        Console(highlight=False, width=UNWRAPPED).print(table, soft_wrap=True, crop=False)
    else:
        console.print(table)
    if caption:
        console.print(caption, markup=False, soft_wrap=True)
