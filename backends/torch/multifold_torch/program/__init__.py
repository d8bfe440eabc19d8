"""Runs a program: a fixed sequence of tiles, the same for all structures of one form.

`multifold_torch.program.forward` runs the tiles, `multifold_torch.program.backward` goes back through them,
and `multifold_torch.program.feed` is what they read. What ops read besides is seen by
`multifold_torch.program.witness`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import optree
import torch

import multifold
from multifold.backend import Backend
from multifold.errors import BackendError
from multifold.program import Form, Program, refuse_no_program, resolve_ops
from multifold_torch.backend import TorchBackend
from multifold_torch.program.backward import TiledFunction, TileGradients
from multifold_torch.program.feed import Feed, ProgramData
from multifold_torch.program.forward import TileRunner
from multifold_torch.program.witness import Witness


def run(model: Any, program: Program) -> Any:
    """Run a program and return the results, in the structure that was asked for.

    Values and gradients are those of `multifold.Fold.run`, and autograd, autocast, ``no_grad`` and the
    modes of modules act as they do there. `ProgramStep` runs it so that a card replays it as one graph.

    Parameters
    ----------
    model : object
        Where op names are looked up.
    program : Program
        Made by `multifold.Fold.program` of a fold with ``backend="torch"``. One whose ops would wait for
        each other's turns too long is run by `multifold.Fold.run`, and a warning says so.

    Returns
    -------
    The structure that was asked for, with tensors.

    Raises
    ------
    RecordError
        For anything but a program, as traces.
    LaunchError
        If an op is missing, fails, mixes its rows, or returns other than one row for each node.
    BackendError
        For a program of another backend, or of outputs that can only be run by `multifold.Fold.apply`.

    Examples
    --------
    >>> import multifold, torch
    >>> fold = multifold.Fold(backend="torch")
    >>> def power(fold, n):
    ...     x = 1.0
    ...     for _ in range(n):
    ...         x = fold.add("scale", x)
    ...     return x
    >>> w = torch.tensor(3.0, requires_grad=True)
    >>> for lengths in ([1, 2], [2, 1]):
    ...     program = fold.program([multifold.trace(power, n) for n in lengths])
    ...     torch.autograd.grad(run({"scale": lambda x: w * x}, program).sum(), w)
    (tensor(7.),)
    (tensor(7.),)
    >>> len(fold.programs)
    1
    """
    refuse_no_program(program)
    backend = TorchBackend()
    if program.unfit is not None:
        return run_unfit(backend, model, program)
    refuse_other(program.form)
    ops = resolve_ops(backend, model, program.form)
    feed = Feed(program)
    data = feed.views(feed.buffers(backend, backend.device(model)))
    return run_tiles(backend, ops, program.form, data, Witness(backend, program))


def run_tiles(
    backend: Backend,
    ops: Sequence[Callable[..., Any]],
    form: Form,
    data: ProgramData,
    witness: Witness | None,
) -> Any:
    """Run the tiles of a form on ``data`` and return the results, with gradients to all that the ops read.

    ``ops`` has the op of each kernel; ``witness`` watches them, unless it is None.
    """
    runner = TileRunner(backend, ops, form, data, witness)
    runner.run()
    groups = runner.results()
    values = [x for _, leaves in groups for _, x in leaves]
    rows = [own for (_, leaves), own in zip(groups, data.groups, strict=True) for _ in leaves]
    places = [place for _, leaves in groups for place, _ in leaves]
    # Without any tile that has a gradient, results may be given rows that have one.
    if runner.tiles or (runner.graded and torch.is_grad_enabled()):
        gradients = TileGradients(runner, list(zip(places, rows, strict=True)))
        values = list(TiledFunction.apply(gradients, values, *gradients.inputs))
    left = iter(values)
    return form.put_together(
        [optree.tree_unflatten(structure, [next(left) for _ in leaves]) for structure, leaves in groups]
    )


def run_unfit(backend: Backend, model: Any, program: Program) -> Any:
    """Warn why a program without fixed sizes has no tiles; return what `multifold.Fold.run` of it does.

    Raises `BackendError` if the program was made of nodes, and not of traces.
    """
    reason, minibatch = program.unfit  # type: ignore[misc]
    text = f"This program runs as an ordinary minibatch: {reason}."
    if minibatch is None:
        raise BackendError(text, "run what was recorded by fold.apply(model, outputs).")
    warnings.warn(text, stacklevel=3)
    return multifold.Fold(backend=backend).run(model, minibatch)


def refuse_other(form: Form) -> None:
    """Raise `BackendError` for a form without tiles, or whose tiles have no fixed order."""
    if not form.tiled or any(phase.loop and not phase.turn for phase in form.phases):
        raise BackendError(
            "Expected a program whose tiles have a fixed order. Received another one.",
            "make it with a fold for PyTorch: multifold.Fold(backend='torch').program(...).",
        )
