"""The command line: ``multifold advise``, ``compare``, ``backends``, and commands of other distributions.

One module a command; `multifold.cli.output` says how tables and bars look. A distribution adds a command by
an entry point of the group ``multifold.commands``: ``multifold-bench`` adds ``bench``, ``explain`` and
``train``. Such a command is imported when it is called, and never for a list of commands. Whatever goes
wrong by the user's input is one line on stderr and exit code 2, never a traceback.

Examples
--------
>>> from click.testing import CliRunner
>>> refused = CliRunner().invoke(main, ["compare", "--batch", "0"])
>>> refused.exit_code, refused.output.splitlines()[-1]
(2, "Error: Invalid value for '--batch': 0 is not in the range x>=1.")
"""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import click

import multifold
from multifold._engine.frameworks.registry import install_line
from multifold.cli.advise import advise
from multifold.cli.backends import backends
from multifold.cli.compare import compare
from multifold.errors import MismatchError, MultifoldError, type_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "multifold.commands"

BENCH = {
    "bench": "Measure what a step costs (needs multifold-bench).",
    "explain": (
        "Explain a generated graph (needs multifold-bench).\n\n"
        "A program of your own explains itself: print(fold.explain()) after fold.run, or "
        "print(run.explain()) of run = multifold.batched(model). explanation.to_html() is a page with the "
        "drawing."
    ),
    "train": "Train on a data set (needs multifold-bench).",
}
"""The commands of multifold-bench, which ``multifold --help`` lists without importing any of them, and what
their ``--help`` says where it is not installed."""

MISSING = f"Its options are those of multifold-bench, which is not installed. {install_line('bench')}"

DEEP = "An example is nested more deeply than the recursion of a program that reads it may go."


class Refused(click.ClickException):
    """Ends a command with one line on stderr and exit code 2: it cannot do what was asked."""

    exit_code = 2

    def __init__(self, error: BaseException | str) -> None:
        # Messages have a blank line before their hint, and a command says everything in one line.
        notes = getattr(error, "__notes__", ())  # which example it was
        super().__init__(" ".join(" ".join([str(error), *notes]).split()))


class Wrong(Refused):
    """Ends a command with one line on stderr and exit code 1: results differ where they must not."""

    exit_code = 1


@functools.cache
def entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of commands that other distributions add, by name; import none of them."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=GROUP)}


def load(name: str) -> click.Command:
    """Import and return the command ``name`` of another distribution.

    Raises
    ------
    Refused
        If its distribution is not installed, or if it cannot be imported.
    """
    point = entry_points().get(name)
    if point is None:
        raise Refused(
            f"'multifold {name}' belongs to multifold-bench, which is not installed. "
            f"Hint: {install_line('bench')}"
        )
    try:
        command = point.load()
    except Exception as error:
        raise Refused(f"'multifold {name}' ({point.value}) could not be imported: {error!r}") from error
    if not isinstance(command, click.Command):
        raise Refused(f"Expected {point.value} to be a click command. Received {type_of(command)}.")
    return command


class Added(click.Command):
    """Stands for a command of another distribution, which is imported when the command is called."""

    def make_context(
        self, info_name: str | None, args: list[str], *rest: Any, **more: Any
    ) -> click.Context:
        """Import the command, and return the context in which it has read ``args``.

        With ``--help`` for a command that is not installed, return the context of this stand-in. Raise
        `Refused` if the command can't be imported.
        """
        if self.name not in entry_points() and {"-h", "--help"} & {*args}:
            return super().make_context(info_name, args, *rest, **more)
        return load(str(self.name)).make_context(info_name, args, *rest, **more)


class CommandLine(click.Group):
    """A group of commands in which errors of the library and the system end a command as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, in alphabetical order.

        Those that other distributions add, or could add, are among them.
        """
        return sorted({*super().list_commands(ctx), *BENCH, *entry_points()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command ``cmd_name``; None if there is none.

        For a command of another distribution it is an `Added`, so that it is not imported yet.
        """
        own = super().get_command(ctx, cmd_name)
        if own is not None or (cmd_name not in BENCH and cmd_name not in entry_points()):
            return own
        about = BENCH.get(cmd_name, "Added by another distribution.")
        return Added(cmd_name, help=f"{about}\n\n{MISSING}", short_help=about.partition("\n")[0])

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for, and return what it returns.

        Raise `Wrong` for a `MismatchError`, and `Refused` for other errors of the library, an `OSError` or
        a `RecursionError`; but a `BrokenPipeError` as it is, since click ends quietly on it.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise  # click leaves quietly when `head` or a pager has seen enough
        except MismatchError as error:
            raise Wrong(error) from error
        except (MultifoldError, OSError) as error:
            raise Refused(error) from error
        except RecursionError as error:
            raise Refused(DEEP) from error


@click.group(cls=CommandLine, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(multifold.__version__, prog_name="multifold")
def main() -> None:
    """Dynamic batching for any model, in any framework."""
    # TensorFlow logs that it found no GPU as an error; its real ones are exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


for command in (advise, compare, backends):
    main.add_command(command)
