"""From Python objects to tensors, and what is done to objects before."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NoReturn

import numpy as np

from multifold_compat.blocks.block import Block
from multifold_compat.blocks.code import Code, One, Value, joined
from multifold_compat.blocks.inference import Flow
from multifold_compat.blocks.types import (
    GENERAL,
    OBJECT,
    VOID,
    BlockError,
    Known,
    SequenceType,
    TensorType,
    TupleType,
    as_type,
)

PYTHON: dict[str | None, Callable[[Any], Any]] = {"float": float, "int": operator.index, "bool": bool}
"""What makes a number of a Python object, for the dtypes that are each backend's own default."""


class Tensor(Block):
    """Make a tensor of a number or of nested lists of numbers.

    Parameters
    ----------
    shape : tuple of int
        The shape of one row, without the axis of rows.
    dtype : str
        NumPy's name. ``"float"``, ``"int"`` and ``"bool"``, for numbers only, are the backend's default:
        such a number is recorded as one, which is quicker.

    Raises
    ------
    BlockError
        When an example is recorded that has another shape, or fractions where integers are expected.

    Examples
    --------
    >>> import multifold
    >>> multifold.Fold(backend="numpy").run(None, [[1, 2], [3, 4]], Tensor((2,), "int64"))
    array([[1, 2],
           [3, 4]])
    """

    accepts = OBJECT
    hint = "it makes a tensor of Python numbers; what a block before it returns is none of them."

    def __init__(self, shape: Sequence[int], dtype: str = "float32", name: str | None = None) -> None:
        super().__init__(name)
        self.kind = TensorType(tuple(shape), dtype)
        if self.kind.shape is None or None in self.kind.shape:
            raise BlockError(f"Expected all sizes of {self!r} to be known.", "give each size as a number.")
        if self.kind.shape and self.kind.dtype in GENERAL:
            raise BlockError(
                f"Expected the dtype of an array in {self!r}. Received {dtype!r}.",
                "'float32' and 'int64' are dtypes; the defaults of a backend are for single numbers.",
            )

    def emit(self, code: Code, x: Value) -> Value:
        made = code.new()
        with code.under("try:"):
            make = PYTHON.get(self.kind.dtype, self.converted)
            code.write(f"{made} = {code.constant(make)}({joined(x)})")
        with code.under("except (TypeError, ValueError) as error:"):
            code.write(f"{code.constant(self.refuse)}({joined(x)}, error)")
        return One(made)

    def refuse(self, x: Any, error: Exception) -> NoReturn:
        """Raise `BlockError`: ``x`` is no tensor of this shape and dtype."""
        raise BlockError(
            f"Expected {self.kind} from the input of {self!r}. Received {x!r}.",
            "check what the blocks before it return for this example.",
        ) from error

    def converted(self, x: Any) -> Any:
        """Return ``x`` as an array ``(1, *shape)`` of the dtype.

        Raises `TypeError` or `ValueError` if it does not fit.
        """
        array = np.asarray(x)
        # `astype` would cut fractions off in silence.
        if array.dtype.kind == "f" and np.dtype(self.kind.dtype).kind in "iub":
            raise TypeError("Fractions would be cut off.")
        array = array.astype(self.kind.dtype, copy=False)
        if array.shape != self.kind.shape:
            raise ValueError("The shape is another one.")
        return array[None]

    def infer(self, given: Known, flow: Flow) -> Known:
        return self.kind

    def label(self) -> str:
        return str(self.kind)


class Scalar(Tensor):
    """Make a tensor of one number: of the backend's default float, unless a dtype is given.

    Examples
    --------
    >>> import multifold
    >>> multifold.Fold(backend="numpy").run(None, [1, 2.5], Scalar())
    array([1. , 2.5])
    """

    def __init__(self, dtype: str = "float", name: str | None = None) -> None:
        super().__init__((), dtype, name)


class Vector(Tensor):
    """Make a tensor of a list of ``size`` numbers.

    Examples
    --------
    >>> import multifold
    >>> multifold.Fold(backend="numpy").run(None, [[1, 2], [3, 4]], Vector(2)).dtype
    dtype('float32')
    """

    def __init__(self, size: int, dtype: str = "float32", name: str | None = None) -> None:
        super().__init__((size,), dtype, name)


class InputTransform(Block):
    """Call a function of a Python object while an example is recorded, and return what it returns.

    Parameters
    ----------
    py_fn : callable
        One that can be imported by its name, if the block is to be pickled.

    Examples
    --------
    >>> import multifold
    >>> multifold.Fold(backend="numpy").run(None, ["a", "word"], InputTransform(len) >> Scalar("int"))
    array([1, 4])
    """

    accepts = OBJECT
    hint = "a Python function sees the input while it is recorded, when a tensor has no value yet."

    def __init__(self, py_fn: Callable[[Any], Any], name: str | None = None) -> None:
        super().__init__(name)
        if not callable(py_fn):
            raise BlockError(
                f"Expected a function in InputTransform. Received {py_fn!r}.",
                "InputTransform(len) calls len(x).",
            )
        self.py_fn = py_fn

    def emit(self, code: Code, x: Value) -> Value:
        return code.let(f"{code.constant(self.py_fn)}({joined(x)})")

    def infer(self, given: Known, flow: Flow) -> Known:
        return OBJECT

    def label(self) -> str:
        return getattr(self.py_fn, "__name__", type(self.py_fn).__name__)


class OneHot(Block):
    """Make a row with a 1 in the place of an integer: of ``range(start)`` or ``range(start, stop)``.

    Raises
    ------
    BlockError
        If the range is empty; when recorded, for an integer outside of it.

    Examples
    --------
    >>> import multifold
    >>> multifold.Fold(backend="numpy").run(None, [5, 7], OneHot(5, 8))
    array([[1., 0., 0.],
           [0., 0., 1.]], dtype=float32)
    """

    accepts = OBJECT
    hint = "it takes an integer that is known while the example is recorded."

    def __init__(
        self, start: int, stop: int | None = None, dtype: str = "float32", name: str | None = None
    ) -> None:
        try:
            elements = range(start) if stop is None else range(start, stop)
        except TypeError as error:
            raise BlockError(
                f"Expected a range of integers in OneHot. Received {start!r} and {stop!r}.",
                "OneHot(3) has the elements 0, 1 and 2; OneHotFromList takes a list of anything.",
            ) from error
        self.fill(elements, dtype, True, name)

    def fill(self, elements: Sequence[Hashable], dtype: str, strict: bool, name: str | None) -> None:
        """Set the attributes: the row that each of ``elements`` gives.

        Raises `BlockError` if there are none, or one comes twice.
        """
        super().__init__(name)
        self.kind = TensorType((len(elements),), dtype)
        self.strict = strict
        self.places = {element: place for place, element in enumerate(elements)}
        if not elements or len(self.places) != len(elements):
            raise BlockError(
                f"Expected at least one element, and each once, in {self!r}. Received {elements!r}.",
                "OneHot(3) has the elements 0, 1 and 2.",
            )
        # The last row has only zeros: it is that of an element which is not in the list.
        self.rows = np.eye(len(elements) + 1, len(elements), dtype=self.kind.dtype)[:, None]

    def emit(self, code: Code, x: Value) -> Value:
        return One(code.let(f"{code.constant(self.row)}({joined(x)})"))

    def row(self, x: Any) -> Any:
        """Return the row of an element, an array ``(1, elements)``.

        Another element gives zeros, or raises `BlockError` if the block is strict.
        """
        place = self.places.get(x, -1)
        if place < 0 and self.strict:
            raise BlockError(
                f"Expected one of {len(self.places)} elements as the input of {self!r}. Received {x!r}.",
                "OneHotFromList(elements, strict=False) gives zeros for others.",
            )
        return self.rows[place]

    def infer(self, given: Known, flow: Flow) -> Known:
        return self.kind

    def label(self) -> str:
        return str(self.kind)


class OneHotFromList(OneHot):
    """Make a row with a 1 in the place of an element of a list.

    Parameters
    ----------
    elements : list of hashable
        Each is there once.
    strict : bool
        Whether another element is refused; else it gives a row of zeros.

    Examples
    --------
    >>> import multifold
    >>> multifold.Fold(backend="numpy").run(None, ["b"], OneHotFromList(["a", "b"]))
    array([[0., 1.]], dtype=float32)
    """

    def __init__(
        self,
        elements: Sequence[Hashable],
        dtype: str = "float32",
        strict: bool = True,
        name: str | None = None,
    ) -> None:
        self.fill(list(elements), dtype, strict, name)


class Identity(Block):
    """Return the input."""

    def emit(self, code: Code, x: Value) -> Value:
        return x

    def infer(self, given: Known, flow: Flow) -> Known:
        return given


class Void(Block):
    """Take anything, and return nothing: None."""

    def emit(self, code: Code, x: Value) -> Value:
        return "None"

    def infer(self, given: Known, flow: Flow) -> Known:
        return VOID


def zeros(kind: Known) -> Any:
    """Return the zeros of a type: a number or an array of one row, a tuple of zeros, [] or None.

    Raises `BlockError` for an open type or a Python object.
    """
    if isinstance(kind, TupleType):
        return tuple([zeros(item) for item in kind.items])
    if isinstance(kind, SequenceType):
        return []
    if kind == VOID:
        return None
    if not isinstance(kind, TensorType) or kind.shape is None or None in kind.shape or kind.dtype is None:
        raise BlockError(
            f"Expected a type whose zeros are known. Received {'?' if kind is None else kind}.",
            "name all sizes and the dtype; Python objects have no zeros.",
        )
    if kind.shape == () and kind.dtype in PYTHON:
        return PYTHON[kind.dtype](0)
    dtype = {"float": "float32", "int": "int64"}.get(kind.dtype, kind.dtype)
    return np.zeros((1, *kind.shape), dtype)


def written(code: Code, value: Any) -> Value:
    """Return the expression of ``value``, which `zeros` has made."""
    if isinstance(value, tuple):
        return tuple([written(code, item) for item in value])
    return "None" if value is None else One(code.constant(value))


class Zeros(Block):
    """Return zeros of a type, the same for each example; what goes in is ignored.

    Parameters
    ----------
    output_type : type
        As `as_type` reads it: ``16`` is a row of 16 zeros, a tuple is one of zeros, and a
        `SequenceType` an empty list.

    Examples
    --------
    >>> import multifold
    >>> multifold.Fold(backend="numpy").run(None, ["a"], Zeros(3))
    array([[0., 0., 0.]], dtype=float32)
    """

    source = True

    def __init__(self, output_type: Any, name: str | None = None) -> None:
        super().__init__(name)
        self.kind = as_type(output_type)
        self.value = zeros(self.kind)

    def emit(self, code: Code, x: Value) -> Value:
        return written(code, self.value)

    def infer(self, given: Known, flow: Flow) -> Known:
        return self.kind
