"""What a dry run (`multifold.shapes`) says to blocks: the types of what an op has received and returned.

Before any run, what an op returns is unknown or declared. A dry run knows it: there a `Function` compares
the two, notes what was not declared, and what its op does not take is an error that names the block.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from multifold._engine.record.kinds import number_type
from multifold._engine.record.node import Node
from multifold.errors import LaunchError
from multifold_compat.blocks.inference import DECLARED, fitting
from multifold_compat.blocks.learned import general, loosened
from multifold_compat.blocks.types import BlockError, Known, TensorType, TupleType, shown


def tried(block: Any, fold: Any, x: Any) -> Any:
    """Record the call of a `Function` in a dry run, compare types, and return what the op returns.

    Keeps the type of the result in ``block.learned``.

    Raises
    ------
    BlockError
        If the op does not take what goes in, or returns another type than was declared.
    """
    given = type_of(fold, x)
    try:
        found = block(Untold(fold), x)
        returned = type_of(fold, found)
    except LaunchError as error:
        raise BlockError(
            f"Expected operands that the op of {block!r} takes. Received {shown(given)}. {error.message}",
            error.hint,
        ) from error
    for declared in (block.declared(given), block.returns):
        fitting(f"as the output of {block!r}", loosened(declared), returned, DECLARED)
    block.learned.note(given, returned)
    return found


class Untold:
    """Wraps the recorder of a dry run for blocks that run inside of it, with ``knows_shapes`` False."""

    knows_shapes = False

    def __init__(self, fold: Any) -> None:
        self.fold = fold

    def __getattr__(self, name: str) -> Any:
        return getattr(self.fold, name)


def type_of(fold: Any, x: Any) -> Known:
    """Return the type of ``x``, a value recorded in the dry run ``fold``.

    It is None, open, if ``x`` is neither a node, an array, a number nor a tuple.
    """
    if isinstance(x, tuple):
        return TupleType(*[type_of(fold, item) for item in x])
    if isinstance(x, Node):
        return type_of_shape(fold.shape_of(x))
    if isinstance(x, np.ndarray):
        return TensorType(x.shape[1:], general(x.dtype.name))
    number = number_type(x)
    return None if number is None else TensorType((), number.__name__)


def type_of_shape(shape: Any) -> Known:
    """Return the type of what ``fold.shape_of`` returns: a `RowShape`, or a tuple of them.

    For another one it is None, open.
    """
    if hasattr(shape, "dtype"):
        return TensorType(shape.shape, general(shape.dtype)) if shape.kind == "row" else None
    return TupleType(*map(type_of_shape, shape)) if isinstance(shape, tuple) else None
