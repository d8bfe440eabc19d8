"""``multifold advise``: what a program would gain, measured before anything in it is changed."""

from __future__ import annotations

import runpy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from multifold.cli.options import gathered
from multifold.cli.output import progress
from multifold.errors import RecordError

MOST_WAYS = 4
"""The loop, the batched program, with functions as cells, and by calls of `Fold.add`."""


@dataclass(frozen=True)
class AdviseOptions:
    """What ``multifold advise`` is asked for; the options say what each field means."""

    program: Path
    fn: str
    examples: str
    most: int
    train: bool | None
    backend: str


@click.command()
@click.argument("program", type=click.Path(path_type=Path, exists=True, dir_okay=False))
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
    "__main__"` does not run.
    """
    import multifold  # loads what records programs

    names = runpy.run_path(str(options.program), run_name="advised")
    fn = named(names, options.fn, options.program)
    examples = named(names, options.examples, options.program)
    columns = examples if isinstance(examples, tuple) else (examples,)
    with progress("", MOST_WAYS) as bar:
        found = multifold.advise(fn, *columns, most=options.most, train=options.train, advance=bar.advance)
    click.echo(str(found))


def named(names: dict[str, Any], name: str, program: Path) -> Any:
    """Return what a program defines by a name."""
    if name not in names:
        near = ", ".join(sorted(x for x in names if not x.startswith("_")))
        raise RecordError(
            f"Expected {program} to define {name!r}. It defines {near or 'nothing'}.",
            "name the function and the examples: --fn NAME --examples NAME.",
        )
    return names[name]
