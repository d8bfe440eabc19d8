"""What the errors of a launch say: which launch, and on what operands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import optree

from multifold._engine.ops.values import CONTAINERS
from multifold._engine.record.signature import Signature
from multifold.backend import Ragged
from multifold.errors import MultifoldError

NAMED = 10
"""How many calls a note looks at: it names the examples that recorded them."""


def said_by(error: BaseException) -> str:
    """Return the text of an exception; "" for one of the user that fails to tell it."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever its `__str__` raises
        return ""


def error_text(error: Exception) -> str:
    """Return the type and text of an error, without a full stop: ``"ValueError: no such row"``."""
    # As a string, an error of multifold ends with its hint, which would stand in the middle of the new
    # text.
    text = error.message if isinstance(error, MultifoldError) else said_by(error)
    return f"{type(error).__name__}: {text}".rstrip(". :")


def listing(signature: Signature, leaves: Sequence[Any]) -> str:
    """Return a launch's operands for a message: place, kind, shape and dtype of each; "none" without any.

    ``leaves`` has an operand for each slot. For ``add("f", node, [1.0, None])`` the text is
    ``0 node (2, 3) float32; 1[0] float (2,) float64; 1[1] static None``. For ints it also says the range of
    their values.
    """
    kinds = [slot.kind.name for slot in signature.slots]
    listed = zip(places(signature, leaves), kinds, leaves, strict=True)
    described = [
        f"{path} {kind} {describe(x)}{range_of(x) if kind == 'int' else ''}" for path, kind, x in listed
    ]
    return "; ".join(described) or "none"


def places(signature: Signature, leaves: Sequence[Any]) -> list[str]:
    """Return where each operand stands in a call: ``"0"``, or ``"1[0]"`` for the first entry of a list.

    ``leaves`` has an operand for each slot of the signature; only their number is read.
    """
    structure = signature.structure
    paths = [(i,) for i in range(len(leaves))] if structure is None else structure.paths()
    return ["".join([str(first), *(f"[{key!r}]" for key in rest)]) for first, *rest in paths]


def range_of(numbers: Any) -> str:
    """Return the least and the largest of some numbers for a message.

    "" for a single number, and for an array that can't be read now, as while a framework traces.

    >>> range_of(np.array([3, 7, 5])), range_of(np.array([4]))
    (', 3 to 7', '')
    """
    try:
        host = np.asarray(numbers)
        return f", {host.min()} to {host.max()}" if host.size > 1 else ""
    except Exception:  # noqa: BLE001 - as while a framework traces, or on a device
        return ""


def describe(x: Any) -> str:
    """Return shape and dtype of an operand: ``"(2, 3) float32"``, or ``"tuple of (2,) int64"``.

    What is no array is shown by its `repr`, of which the first 60 characters are kept.
    """
    if isinstance(x, Ragged):
        return f"values {describe(x.values)}"
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"{tuple(x.shape)} {dtype_name(x)}"
    if isinstance(x, CONTAINERS):
        return f"{type(x).__name__} of {', '.join(map(describe, optree.tree_leaves(x)))}"
    return repr(x)[:60]


def dtype_name(x: Any) -> str:
    """Return the name of the dtype of an array of any framework, "float32"; "" for what has no dtype."""
    dtype = getattr(x, "dtype", "")
    # NumPy and JAX spell a dtype in `name`, MXNet's are Python classes, PyTorch prints "torch.float32".
    names = (getattr(dtype, name, None) for name in ("name", "__name__"))
    return next(filter(None, names), None) or str(dtype).rpartition(".")[2]


def raised_by(calls: Iterable[int], whose: Callable[[int], str]) -> str:
    """Return a note that names the examples that recorded some calls; "" where no example is known.

    Only the first `NAMED` calls are looked at. ``whose`` takes a call, and returns what messages call its
    example, or "".

    >>> raised_by([3, 4, 7], lambda call: f"example {call // 2}")
    'Raised by example 1, example 2, example 3 of fold.run.'
    """
    # `whose` may search the results of all examples for each call, so it is asked about a few calls only.
    found = dict.fromkeys(map(whose, [*calls][:NAMED]))
    found.pop("", None)
    return f"Raised by {', '.join(found)} of fold.run." if found else ""


def note(error: MultifoldError, text: str) -> None:
    """Add ``text`` to an error by ``add_note``, unless it is ""."""
    if text:
        error.add_note(text)
