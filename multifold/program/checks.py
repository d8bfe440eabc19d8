"""What every executor of programs asks of a model and of the results of its ops, and the errors if not.

An error of a program can't show the launch that failed: inside of a compiled function there is none. So
it names the op and the line that recorded its first call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from multifold._run import messages, values
from multifold._run.lookup import resolve
from multifold._run.values import Steps
from multifold.backend import Backend
from multifold.errors import LaunchError
from multifold.program.layout import Form, Kernel


class Named(NamedTuple):
    """What errors say of a kernel."""

    name: str
    site: str


def resolve_ops(backend: Backend, model: Any, form: Form) -> list[Callable[..., Any]]:
    """Return what the op of each kernel calls; raise `LaunchError` where the model lacks it."""
    try:
        return [resolve(backend, model, kernel.op, kernel.site) for kernel in form.kernels]
    except LaunchError as error:
        kept = "A fold keeps the ops of all its programs: take another fold for another model."
        raise LaunchError(error.message, f"{error.hint} {kept}") from None


def naming(kernel: Kernel | Named) -> str:
    """Return the beginning of an error about a kernel."""
    return f"The op '{kernel.name}', first recorded at {kernel.site}"


def raised(kernel: Kernel | Named, error: Exception) -> LaunchError:
    """Return the error of an op that raised another one."""
    return LaunchError(f"{naming(kernel)}, raised {messages.said(error)}.")


def follow(value: Any, steps: Steps, kernel: Kernel | Named) -> Any:
    """Return a part of a result; raise `LaunchError` where there is none."""

    def refuse(what: str) -> LaunchError:
        return LaunchError(f"{naming(kernel)}, returned a result that {what}.", values.PARTS_HINT)

    return values.follow(value, steps, refuse)


def check_rows(kernel: Kernel, shape: tuple[Any, ...], rows: int) -> None:
    """Hold a result to the rule "one node is one row"."""
    instead = values.miscount(shape[0] if shape else None, rows)
    if instead:
        why = f"for {values.counted(rows, 'row')}" + (" (no operand is batched)" if kernel.solo else "")
        raise LaunchError(
            f"{naming(kernel)}, returned {instead} {why}.",
            "each output of an op must have one row for each node. "
            "A result of another shape is read through node.no_batch().",
        )


def no_rows(kernel: Kernel) -> LaunchError:
    """Return the error of a ragged operand without a row, so that the shape of its rows is unknown."""
    return LaunchError(
        f"{naming(kernel)}, has no row in a ragged operand, so the shape of a row is not known.",
        "say it when recording: multifold.ragged(items, row_shape=(width,)).",
    )
