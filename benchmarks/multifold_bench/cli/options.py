"""Options that several commands of this distribution share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

WORKLOADS = (
    *("synthetic", "sst", "sentences", "python-ast", "sick", "spinn", "mnist", "parser", "light-parser"),
    *("mv-rnn", "lattice-lstm", "deep-tagger", "deep-tagger-spelling", "query-plans"),
    "typed-graphs",
)
"""The names in `multifold_bench.workloads.WORKLOADS`, which help texts can say without importing it."""

READ = 2048
"""How many examples of a file are read; minibatches are drawn from them."""


def workloads(of: click.ParamType, about: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the options ``--workload NAME`` and ``--data PATH``."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        command = click.option(
            "--data", type=click.Path(path_type=Path), metavar="PATH", help="Where its files are."
        )(command)
        return click.option("--workload", type=of, default="synthetic", show_default=True, help=about)(
            command
        )

    return add


workload_options = workloads(click.Choice(WORKLOADS), "What is computed.")
"""Adds ``--workload NAME`` and ``--data PATH``."""


def backends_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--backend NAME``, which may be repeated, as ``names``."""
    return click.option(
        "--backend", "names", multiple=True, metavar="NAME", help="May be repeated; all by default."
    )(command)


def train_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--train`` and its opposite ``--infer``."""
    return click.option("--train/--infer", default=False, help="With or without gradients.")(command)


def dynet_option(about: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option ``--dynet-python FILE``."""
    return click.option(
        "--dynet-python",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"A Python that has DyNet (pip install dynet38){about}.",
    )
