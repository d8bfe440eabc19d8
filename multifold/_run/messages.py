"""What the errors of a launch say: which launch, on what operands, and what may help."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import optree

from multifold._record.signature import Signature
from multifold._run.values import CONTAINERS, leaves_of
from multifold._run.verdicts import makers
from multifold.backend import Backend, Ragged
from multifold.errors import MultifoldError

GUESSED = (
    "the fold met no array and no model of a framework, so it ran on NumPy; for another one name it: "
    "Fold(backend=...)."
)

APART = "multifold.Unfold(model) runs each call by itself, as soon as it is recorded."

COLUMN = (
    "a number operand is an array of shape (n,), which broadcasting lays along the last axis of the "
    "others: s[:, None] makes a column of it, one number for each row. An op that mixes its rows on "
    "purpose takes no such operand."
)

BROADCAST = ("broadcast", "non-singleton", "ncompatible shapes", "must be equal")
"""What frameworks say where two shapes do not meet."""

# What frameworks say of dtypes, but not Python's "unsupported operand type(s)", of an operator.
OF_DTYPES = r"(?is)(?!.*unsupported operand).*(type|float|half)"

IN_PLACE = (
    "operands may be views of a result that other launches read, so an op must not change them in place, "
    "as an activation with inplace=True does."
)

INDEX = "compare the integers that were recorded with the size of what the op looks them up in."

SHAPES = (
    "the operands above have a row for each node on axis 0: compare their widths with what the op expects."
)

RECEIVED = {
    list: "a list of operands reaches the op as a list: multifold.ragged(nodes) makes one operand of any "
    "number of rows, with `values`, and np.array([numbers]) one row of numbers.",
    tuple: "the op of this operand returns a tuple: pass a part of it, by node.split(n) or node[0].",
    str: "a string is static and reaches the op as it is: map words to integers before fold.add.",
}
"""A type that an op has received and does not take -> what to do about it."""

NO_ROWS = "no node of this launch has a row: of pairs say multifold.ragged(items, ((width,), (width,)))."

HINTS = {
    "inplace": IN_PLACE,
    "read-only": IN_PLACE,  # what NumPy says
    "out of range": INDEX,
    "out of bounds": INDEX,  # what NumPy says
    "cannot be multiplied": SHAPES,
    "matmul": SHAPES,
    "dot_general": SHAPES,
    "dtype": "NumPy arrays keep their dtype: x.astype(numpy.float32) is one for a model in float32.",
}
"""A word in the text of a framework's error -> what to do about it."""


def said(error: Exception) -> str:
    """Return the type and text of an error, without the full stop that many texts end with."""
    text = error.message if isinstance(error, MultifoldError) else error
    return f"{type(error).__name__}: {text}".rstrip(". :")


def is_broadcast(error: Exception) -> bool:
    """Return whether a framework says that two shapes do not meet."""
    return any(word in str(error) for word in BROADCAST)


def hint_for(
    error: Exception,
    *,
    guessed: bool = False,
    column: bool = False,
    dtypes: str | None = None,
    received: Collection[Any] = (),
    otherwise: str = APART,
) -> str:
    """Return what to do about an error of a framework.

    ``guessed`` says that NumPy runs because the fold met no framework, ``column`` that the op has received
    an array of shape ``(n,)``, ``dtypes`` is what `other_dtype` has found, ``received`` what the op got.
    """
    if isinstance(error, MultifoldError) and error.hint is not None:
        return error.hint
    named = re.findall(r"\w+", str(error))
    for kind, hint in RECEIVED.items():
        if kind.__name__ in named and any(isinstance(x, kind) for x in received):
            return hint
    if "unpack" in named and any(isinstance(x, Ragged) and not len(x.segment_ids) for x in received):
        return NO_ROWS
    if column and is_broadcast(error):
        return COLUMN
    if dtypes is not None and re.match(OF_DTYPES, str(error)):
        return dtypes
    if guessed:
        return GUESSED
    return next((hint for word, hint in HINTS.items() if word in str(error)), otherwise)


def other_dtype(
    backend: Backend, op: Callable[..., Any], model: Any, signature: Signature, leaves: Sequence[Any]
) -> str | None:
    """Return what to do where a floating operand has another dtype than the model; None where none has.

    A model in bfloat16 takes no array of float32, and no Python number, which becomes float32.
    """
    known: set[str] = set()
    for owner in (*parts_of(backend, op), model):
        arrays = [owner] if backend.owns(owner) else backend.arrays_of(owner)
        known = known or {name for name in map(dtype_name, arrays) if "float" in name}
    if len(known) != 1:
        return None
    (own,) = known
    for where, leaf in zip(places(signature, leaves), leaves, strict=True):
        for name in map(dtype_name, leaves_of(leaf.values if isinstance(leaf, Ragged) else leaf)):
            if "float" in name and name != own:
                return (
                    f"the model is in {own}, and operand {where} in {name}. Pass arrays of {own}, or let "
                    f"the op cast what it receives to {own}, as Python numbers need: they become "
                    f"{backend.number_dtype(float)}."
                )
    return None


def parts_of(backend: Backend, op: Callable[..., Any]) -> Iterator[Any]:
    """Yield what an op consists of, and what its function finds in the scopes around it."""
    for part in makers(op):
        yield part
        if inspect.isfunction(part):
            try:
                scopes = inspect.getclosurevars(part)
            except ValueError:  # a variable of an outer function was deleted
                continue
            found = (*scopes.nonlocals.values(), *scopes.globals.values())
            yield from (x for x in found if backend.owns(x) or backend.hosts(x))


def listing(signature: Signature, leaves: Sequence[Any]) -> str:
    """Return the operands of a launch for a message: number, kind, shape and dtype of each.

    For ``add("f", node, [1.0, None])`` that is ``0 node (2, 3) float32; 1[0] float (2,) float64;
    1[1] static None``.
    """
    kinds = [slot.kind.name for slot in signature.slots]
    listed = zip(places(signature, leaves), kinds, leaves, strict=True)
    return "; ".join(f"{path} {kind} {describe(x)}" for path, kind, x in listed) or "none"


def places(signature: Signature, leaves: Sequence[Any]) -> list[str]:
    """Return where each operand stands in a call: ``0``, or ``1[0]`` where operands nest."""
    structure = signature.structure
    paths = [(i,) for i in range(len(leaves))] if structure is None else structure.paths()
    return ["".join([str(first), *(f"[{key!r}]" for key in rest)]) for first, *rest in paths]


def describe(x: Any) -> str:
    """Return shape and dtype of an operand for a message."""
    if isinstance(x, Ragged):
        return f"values {describe(x.values)}"
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"{tuple(x.shape)} {dtype_name(x)}"
    if isinstance(x, CONTAINERS):
        return f"{type(x).__name__} of {', '.join(map(describe, optree.tree_leaves(x)))}"
    return repr(x)[:60]


def dtype_name(x: Any) -> str:
    """Return the name of the dtype of an array; "" for what has none."""
    dtype = getattr(x, "dtype", "")
    # NumPy and JAX spell a dtype in `name`, MXNet's are Python classes, PyTorch prints "torch.float32".
    names = (getattr(dtype, name, None) for name in ("name", "__name__"))
    return next(filter(None, names), None) or str(dtype).rpartition(".")[2]
