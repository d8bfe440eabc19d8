"""The command line: ``multifold compare``, ``backends``, ``explain``, ``train`` and ``bench``.

One module a command; what they measure lives in `multifold.bench`, how it looks in `multifold.cli.output`.
Whatever goes wrong by the user's input is one line on stderr and exit code 2, never a traceback.
"""

from __future__ import annotations

import os
from typing import Any

import click

import multifold
from multifold.cli.backends import backends
from multifold.cli.bench import bench
from multifold.cli.compare import compare
from multifold.cli.explain import explain
from multifold.cli.train import train
from multifold.errors import MismatchError, MultifoldError

DEEP = "An example is nested more deeply than the recursion of a program that reads it may go."


class Refused(click.ClickException):
    """Something that the user asked for and cannot have, as one line."""

    exit_code = 2

    def __init__(self, error: BaseException | str) -> None:
        super().__init__(" ".join(str(error).split()))


class Wrong(Refused):
    """Results that differ where they must not."""

    exit_code = 1


class CommandLine(click.Group):
    """A group that turns errors of the library, and files that cannot be written, into one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command that was asked for."""
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


for command in (compare, backends, explain, train, bench):
    main.add_command(command)
