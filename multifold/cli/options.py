"""Options that several commands share, and how a command gets its options: as one object.

A command with a dozen options is a function of ONE parameter, a dataclass with a field for each option:

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Options:
...     rounds: int
...     seed: int
>>> @click.command()
... @rounds_option(30)
... @seed_option
... @gathered(Options)
... def measure(options: Options) -> None:
...     click.echo(f"{options.rounds} rounds from seed {options.seed}")
>>> measure(["--seed", "3"], standalone_mode=False)
30 rounds from seed 3
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Options = TypeVar("Options")
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


def gathered(options: Callable[..., Options]) -> Callable[[Callable[[Options], None]], Callable[..., None]]:
    """Return a decorator that makes a command of ``run(options)``.

    ``options`` is a dataclass with a field for each option: the command makes one of its keywords.
    """

    def decorate(run: Callable[[Options], None]) -> Callable[..., None]:
        @functools.wraps(run)
        def command(**chosen: Any) -> None:
            run(options(**chosen))

        return command

    return decorate


def rounds_option(default: int, about: str = "How often each is timed.") -> Decorator:
    """Return the decorator that adds ``--rounds``, an integer of 1 or more; ``about`` is its help."""
    return click.option("--rounds", type=click.IntRange(1), default=default, show_default=True, help=about)


seed_option = click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the examples."
)


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--json FILE`` to a command, which gets it as ``json_file``, a `Path` or None."""
    return click.option(
        "--json",
        "json_file",
        type=click.Path(dir_okay=False, writable=True, path_type=Path),
        callback=in_a_folder,
        metavar="FILE",
        help="Write the table as JSON lines, too.",
    )(command)


def in_a_folder(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Return ``path`` if a file can be written there, or None; raise `click.BadParameter` if not.

    It leaves no new file there. So nothing is measured in vain.
    """
    if path is None:
        return None
    if not path.absolute().parent.is_dir():
        raise click.BadParameter(f"There is no folder {path.absolute().parent}.")
    is_new = not path.exists()
    try:
        with path.open("ab"):
            pass
    except OSError as error:
        raise click.BadParameter(f"The file {path} can't be written: {error.strerror}.") from error
    if is_new:
        path.unlink()
    return path
