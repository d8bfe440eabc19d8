"""What a dry run tells: for each kind of call the shapes and dtypes of its operands and of its result.

A kind of call is a signature, the shapes of its operands and the line that records it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import optree

from multifold._engine.ops.messages import dtype_name
from multifold._engine.ops.values import CONTAINERS, opened
from multifold.backend import Backend, Ragged


class RowShape(NamedTuple):
    """The shape and dtype of an array.

    Attributes
    ----------
    shape : tuple of int
        Of one row, without the axis of rows: ``()`` where a row is a number. Of a whole array all axes.
    dtype : str
        The framework's name of it, as ``"float32"``.
    kind : str
        ``"row"``: an array with one row for each call. ``"ragged"``: any number of rows for each call.
        ``"whole"``: an array that is read as it is, or shared by all calls.
    """

    shape: tuple[int, ...]
    dtype: str
    kind: str = "row"

    def __str__(self) -> str:
        sizes = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        return sizes if self.kind == "row" else f"{self.kind} {sizes}"


@dataclass(frozen=True)
class CallShapes:
    """One kind of call.

    Attributes
    ----------
    op : str
        The op's name.
    file, line : str, int
        Where it is recorded.
    operands : tuple
        A `RowShape` for each array, nested as the call was; static values as they are.
    keywords : dict
        The keyword arguments.
    results : object
        What the op returns, with a `RowShape` for each array.
    calls : int
        How many calls of the example are of this kind.
    """

    op: str
    file: str
    line: int
    operands: tuple[Any, ...]
    keywords: dict[str, Any]
    results: Any
    calls: int

    def __str__(self) -> str:
        said = [*map(text, self.operands), *(f"{name}={x!r}" for name, x in self.keywords.items())]
        return f"{self.op}({', '.join(said)}) -> {text(self.results)}"


@dataclass(frozen=True)
class Shapes:
    """What `multifold.shapes` returns: the kinds of calls of an example, in the order of recording.

    Attributes
    ----------
    calls : tuple of CallShapes
        Also what iteration gives; ``shapes["op"]`` is the list of those of one op.
    outputs : object
        What the function returned, with a `RowShape` in the place of each node and group.
    """

    calls: tuple[CallShapes, ...]
    outputs: Any

    def __iter__(self) -> Iterator[CallShapes]:
        return iter(self.calls)

    def __len__(self) -> int:
        return len(self.calls)

    def __getitem__(self, op: str) -> list[CallShapes]:
        """Return the kinds of calls of the op named ``op``, in the order of recording; perhaps []."""
        return [call for call in self.calls if call.op == op]

    def __str__(self) -> str:
        lines = [("calls", "what they are", "recorded at")]
        lines += [(str(x.calls), str(x), f"{os.path.basename(x.file)}:{x.line}") for x in self.calls]
        first, second = (max(len(line[i]) for line in lines) for i in (0, 1))
        rows = [f"{calls:>{first}}  {what:<{second}}  {where}" for calls, what, where in lines]
        return "\n".join([*rows, f"It returns {text(self.outputs)}."])


def text(value: Any) -> str:
    """Return a structure of `RowShape` as words for a table: ``(float32[4], {'c': int64[]})``."""
    if isinstance(value, RowShape):
        return str(value)
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {text(x)}' for key, x in value.items())}}}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(map(text, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    return repr(value)


def row_shape(backend: Backend, x: Any, *, rows: int | None = 1) -> Any:
    """Return the `RowShape` of an array, or a structure of them; what is no array stays as it is.

    An array with axis 0 of length ``rows`` is one with a row for each call, and its ``shape`` is that of a
    row. Any other, and each with ``rows=None``, is whole. A `Ragged` of one array has the shape of a row.
    """
    if isinstance(x, Ragged):
        return row_shape(backend, x.values, rows=None)._replace(
            shape=tuple(x.values.shape[1:]), kind="ragged"
        )
    if isinstance(x, CONTAINERS):
        return optree.tree_map(lambda leaf: row_shape(backend, leaf, rows=rows), opened(x))
    if not backend.owns(x):
        return x
    shape = tuple(x.shape)
    if rows is not None and shape[:1] == (rows,):
        return RowShape(shape[1:], dtype_name(x))
    return RowShape(shape, dtype_name(x), "whole")
