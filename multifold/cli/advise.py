"""``multifold advise``: what a program would gain, measured before anything in it is changed."""

from __future__ import annotations

import contextlib
import runpy
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import click

from multifold.cli.options import gathered
from multifold.cli.output import progress
from multifold.errors import MultifoldError, RecordError

MOST_WAYS = 4
"""Steps of the bar: the loop, the batched program, with functions as cells, and by calls of `Fold.add`."""


@dataclass(frozen=True)
class AdviseOptions:
    """What ``multifold advise`` is asked for; the options say what each field means."""

    program: Path
    arguments: tuple[str, ...]
    fn: str
    examples: str
    most: int
    train: bool | None
    backend: str


@click.command()
@click.argument("program", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--fn", default="fn", show_default=True, metavar="NAME", help="The function or model.")
@click.option("--examples", default="examples", show_default=True, metavar="NAME", help="The examples.")
@click.option("--most", type=click.IntRange(1), default=64, show_default=True, help="Examples to run.")
@click.option("--train/--infer", default=None, help="With gradients, or not.  [default: if there are any]")
@click.option(
    "--backend", default="auto", metavar="NAME", help="numpy or torch.  [default: that of the model]"
)
@gathered(AdviseOptions)
def advise(options: AdviseOptions) -> None:
    """Say what the loop of a program would gain by batching, and by which of its functions.

    PROGRAM is a Python file that defines a function or model of one example (--fn), and examples of it
    (--examples): a list, or a tuple of lists for several arguments. What stands below `if __name__ ==
    "__main__"` does not run. It finds modules beside it, and ARGUMENTS in sys.argv, as with `python PROGRAM
    ARGUMENTS`; those that begin with a dash stand after `--`.
    """
    import multifold  # loads what records programs

    with as_python_runs_it(options.program, options.arguments):
        # Under another name than "__main__", what stands below that test does not run.
        names = runpy.run_path(str(options.program), run_name="advised")
        fn = named(names, options.fn, options.program)
        examples = named(names, options.examples, options.program)
        columns = examples if isinstance(examples, tuple) else (examples,)
        with progress("", MOST_WAYS) as bar:
            found = multifold.advise(
                fn,
                *columns,
                most=options.most,
                train=options.train,
                backend=options.backend,
                advance=bar.advance,
            )
    click.echo(str(found))


@contextlib.contextmanager
def as_python_runs_it(program: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Return a context in which a program finds modules beside it, and its arguments in ``sys.argv``.

    The traceback then begins with the first frame of a file beside the program.
    """
    folder = program.resolve().parent
    before = sys.path[:], sys.argv[:]
    sys.path.insert(0, str(folder))
    sys.argv[:] = [str(program), *arguments]
    try:
        yield
    except (MultifoldError, RecursionError):
        raise  # one line says it
    except Exception as error:
        lines = traceback.format_exception(type(error), error, frames_in(folder, error.__traceback__))
        click.echo("".join(lines), nl=False, err=True)
        raise click.exceptions.Exit(1) from error
    finally:
        sys.path[:], sys.argv[:] = before


def frames_in(folder: Path, frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback from its first frame on whose file is in ``folder`` or below, or None."""
    while frames is not None and folder not in Path(frames.tb_frame.f_code.co_filename).resolve().parents:
        frames = frames.tb_next
    return frames


def named(names: dict[str, Any], name: str, program: Path) -> Any:
    """Return what a program defines by a name; raise a `RecordError` if it does not define it."""
    if name not in names:
        near = ", ".join(sorted(x for x in names if not x.startswith("_")))
        raise RecordError(
            f"Expected {program} to define {name!r}. It defines {near or 'nothing'}.",
            "name the function and the examples: --fn NAME --examples NAME.",
        )
    return names[name]
