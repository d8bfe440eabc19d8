"""What to do about an error of an op: one table, by what the framework said and what the op received.

A framework says "must be Tensor, not NoneType" of its own function, and does not know who passed the None.
Each row of `HINTS` has a pattern of such texts, a question about the operands, and what to do where both
fit. The first row that fits counts, so the rows that ask most stand first.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from types import NoneType
from typing import Any, NamedTuple

from multifold._engine.ops.lookup import inherits
from multifold._engine.ops.messages import dtype_name, places
from multifold._engine.ops.reach import owners_of, used_by
from multifold._engine.ops.values import SQUEEZED, leaves_of
from multifold._engine.record.signature import Signature
from multifold.backend import Backend, Ragged
from multifold.errors import MultifoldError

BREAKPOINT = "a breakpoint inside the op shows what it has received."

APART = (
    "the op received the rows of several nodes at once: multifold.Unfold(model) runs each call by itself, "
    "on one row, which shows whether the op can't take more."
)

OWN = (AttributeError, ImportError, KeyError, NameError, NotImplementedError)
"""Errors of an op's own code. One row raises them as many rows do, so running one row shows nothing new."""

GUESSED = (
    "the fold met no array and no model of a framework, so it ran on NumPy; for another one name it: "
    "Fold(backend=...)."
)

COLUMN = (
    "numbers, and rows without a width, are an array of shape (n,), which broadcasting lays along the last "
    "axis of the others: s[:, None] makes a column of it, one number for each row. An op that mixes its "
    "rows on purpose takes no such operand."
)

AXIS = (
    "axis 0 has a row for each node, so an op works along the other axes: dim=1 in place of dim=0, and a "
    "`where` in place of an `if` about all rows."
)

MIXING = (
    f"{AXIS} One that is meant to see all rows of its launch, as batch normalisation in training, is "
    "marked by multifold.mixing."
)

STATE = (
    "all examples of a launch share the module, so it cannot keep a state for each: return the state as a "
    "second result, and pass it to the next call of the example as an operand."
)

RAGGED = (
    "a ragged operand has a row for each child, not for each node: ops.take(x, kids.segment_ids) repeats "
    "the nodes' rows, ops.segment_sum(kids.values, kids) adds up each node's children (multifold.ops). "
    "Numbers beside rows are a column: weights[:, None]."
)

CHILDREN = (
    "the rows of a ragged operand belong to several nodes: ops.segment_softmax(scores, kids) and "
    "ops.segment_sum(kids.values, kids) work among the rows of each node (multifold.ops), in place of a "
    "softmax or sum along axis 0. Numbers beside rows, as the lengths are, make a column by s[:, None]."
)

NO_WIDTH = (
    "no node of this launch has a row, so the shape of a row is what is said: "
    "multifold.ragged(items, row_shape=(width,))."
)

IN_PLACE = (
    "operands may be views of a result that other launches read, so an op must not change them in place, "
    "as an activation with inplace=True does."
)

INDEX = "compare the integers that were recorded with the size of what the op looks them up in."

SHAPES = "operands have a row for each node on axis 0: compare their widths with what the op expects."

NONE = "None is passed on as it is: is a `return` missing in the function that was to return a node?"

LIST = (
    "a list of operands reaches the op as a list: multifold.ragged(nodes) makes one operand of any "
    "number of rows, with `values`, and np.array([numbers]) one row of numbers."
)

TUPLE = "the op of this operand returns a tuple: pass a part of it, by node.split(n) or node[0]."

TEXT = "a string is static and reaches the op as it is: map words to integers before fold.add."

RAGGED_ROWS = "the rows of a ragged operand are its `values`, beside `lengths` and `segment_ids`."

NO_ROWS = "no node of this launch has a row: of pairs say multifold.ragged(items, ((width,), (width,)))."

MISSING = (
    "no node of this launch has a row, and missing rows are floats unless their dtype is said: "
    "multifold.ragged(items, row_shape=(), dtype='int')."
)

SETTING = "a number is a row for each node: a setting of an op is a keyword, dim=1, or multifold.static(1)."

VALUE = (
    "an op receives an array with a row for each node, which is no single number: choose by a `where`, or "
    "decide in the function that records, on the input or on `await fold.value(node)`."
)

ARRAYS = "NumPy arrays keep their dtype: x.astype(numpy.float32) is one for a model in float32."

INTEGERS = "(?i)integer|Tindices"
"""What frameworks say where they look something up."""

BROADCAST = "broadcast|non-singleton|ncompatible shapes|must be equal|rs? of dim"
"""What frameworks say where two shapes do not meet."""

MULTIPLY = "cannot be multiplied|size-incompatible|shape error|matmul|dot_general"
"""What frameworks say of a product of matrices."""


class Failure(NamedTuple):
    """An op that has raised an error, and what it had received.

    ``op`` is the callable, ``model`` what its name was looked up on, ``leaves`` an operand for each slot of
    the signature, and ``rows`` the number of rows of the launch.
    """

    error: Exception
    backend: Backend
    op: Callable[..., Any]
    model: Any
    signature: Signature
    leaves: Sequence[Any]
    rows: int = 1
    guessed: bool = False
    """Whether NumPy runs because the fold met no framework."""

    def received(self, *kinds: type) -> bool:
        """Return whether an operand is an instance of one of ``kinds``.

        Asked are the operands as the op receives them, such as a list of nodes, and the entries in those
        that nest.
        """
        return any(isinstance(x, kinds) for x in (*self.leaves, *self.signature.nested(self.leaves)))

    def recorded(self, kind: str) -> list[str]:
        """Return the places, such as "0" or "1[0]" (`places`), of the operands whose kind has this name."""
        found = zip(places(self.signature, self.leaves), self.signature.slots, strict=True)
        return [where for where, slot in found if slot.kind.name == kind]


def hint_for(failure: Failure) -> str:
    """Return the hint of the first row of `HINTS` that fits the error of an op.

    Without such a row the hint is `APART`, or `BREAKPOINT` where running one row alone would show nothing.
    """
    error = failure.error
    for pattern, hint, fits in HINTS:
        if re.search(pattern, str(error)) and (fits is None or fits(failure)):
            found = hint if isinstance(hint, str) else hint(failure)
            if found is not None:
                return found
    # `APART` tells the user to try one row alone. That helps only where several rows ran, and where the
    # error can depend on their number.
    return BREAKPOINT if failure.rows == 1 or isinstance(error, OWN) else APART


def shapes_hint(error: Exception, numbers: bool) -> str | None:
    """Return a hint if the text of an error says that two shapes do not fit together, else None.

    With ``numbers`` an operand may be of shape ``(n,)``, as numbers are. Then broadcasting is to blame, and
    the hint is `COLUMN`; else it is `SHAPES`.
    """
    if re.search(BROADCAST, str(error)):
        return COLUMN if numbers else SHAPES
    return SHAPES if re.search(MULTIPLY, str(error)) else None


def received(*kinds: type) -> Callable[[Failure], bool]:
    """Return a function that asks a failure whether an operand is of one of ``kinds``: for `HINTS`."""
    return lambda failure: failure.received(*kinds)


def has_vector(failure: Failure) -> bool:
    """Return whether an operand is or holds an array of one axis, as the lengths of ragged rows are."""
    arrays = [x for leaf in failure.leaves for x in leaves_of(leaf)]
    return any(len(getattr(x, "shape", ())) == 1 for x in arrays)


def has_children(failure: Failure) -> bool:
    """Return whether a ragged operand has rows of one axis or more, ``(width,)``, and not of one number."""
    rows = [leaf.values for leaf in failure.leaves if isinstance(leaf, Ragged)]
    return any(len(x.shape) > 1 for values in rows for x in leaves_of(values))


def has_no_rows(failure: Failure) -> bool:
    """Return whether some ragged operand has no row in the whole launch."""
    rows = failure.backend.rows
    return any(isinstance(x, Ragged) and not rows(x.segment_ids) for x in failure.leaves)


def arguments_hint(failure: Failure) -> str | None:
    """Return a hint for an op that takes other arguments than the call has.

    None if the text is none of Python's ``f() takes ...``, ``f() missing ...`` and ``f() got ...``, or is
    about another function, which the op called.
    """
    op = failure.op
    name = failure.signature.op
    found = re.search(r"([\w.<>]+)\(\) (?:takes|missing|got)", str(failure.error))
    if found is None:
        return None
    owners = [base.__name__ for base in type(op).__mro__]
    # The op may have called another function with wrong arguments. Then `fold.add` passed the right ones,
    # and this hint would mislead.
    if found[1] != getattr(op, "__qualname__", "") and found[1].partition(".")[0] not in owners:
        return None
    if isinstance(failure.model, type):
        return f"the model is a class: pass an instance of it, {failure.model.__qualname__}(...)."
    if isinstance(name, str) and inherits(failure.backend, type(failure.model), name):
        return f"'{name}' is a method of every such model of {failure.backend.name}: choose another name."
    if failure.received(list):
        return "a list is one operand: write `*nodes` to pass each as an operand of its own."
    return "fold.add passes each operand as one argument of the op, and keywords by their names."


def dtypes_hint(failure: Failure) -> str | None:
    """Return a hint that names the first operand of another floating dtype than the modules of the op.

    A model in bfloat16 takes no array of float32, and no Python number, which becomes float32. None if no
    operand has another one, or if the modules have no floats or floats of several dtypes.
    """
    backend = failure.backend
    known = set[str]()
    model, *parts = owners_of(backend, failure.model, failure.op)
    # The op's own modules are asked before the model, whose other parts may be in another dtype. The first
    # that has floats decides.
    for owner in (*parts, model):
        arrays = [owner] if backend.owns(owner) else backend.arrays_of(owner)
        known = known or {name for name in map(dtype_name, arrays) if "float" in name}
    # Modules in two dtypes may take either, so then no operand stands out.
    own = known.pop() if len(known) == 1 else None
    for where, leaf in zip(places(failure.signature, failure.leaves), failure.leaves, strict=True):
        for name in map(dtype_name, leaves_of(leaf.values if isinstance(leaf, Ragged) else leaf)):
            if own is not None and "float" in name and name != own:
                remedy = (
                    f"Pass arrays of {own}, or let the op cast what it receives to {own}, as Python "
                    f"numbers need: they become {backend.number_dtype(float)}."
                )
                if isinstance(leaf, Ragged) and not backend.rows(leaf.segment_ids):
                    remedy = f"Missing rows are what is said: ragged(items, row_shape, dtype={own!r})."
                return f"the model is in {own}, and operand {where} in {name}. {remedy}"
    return None


def layers_hint(failure: Failure) -> str | None:
    """Return `Backend.advice` on the modules that the op calls (`used_by`); None if it has none."""
    return failure.backend.advice(used_by(failure.backend, failure.op), False)


def squeezes(failure: Failure) -> bool:
    """Return whether the op ran on one row and its code names `squeeze`, which drops that axis."""
    code = getattr(failure.op, "__code__", None)
    return failure.rows == 1 and "squeeze" in getattr(code, "co_names", ())


def numbers_hint(failure: Failure) -> str | None:
    """Return a hint that names a Python int where the op needs a float, or a float where it needs an int.

    Which one it needs follows from the text of the error. None if no operand is such a number.
    """
    said = str(failure.error)
    # Most ops compute in floats, so an int is at fault. A lookup says that it wants integers, so there it
    # is a float. Other texts that name an integer dtype may mean either.
    wanted = {"int": "float"}
    if re.search(INTEGERS, said):
        wanted = {"float": "int"}
    elif re.search(r"(?i)\blong\b|int\d+", said):
        wanted["float"] = "int"
    for kind, other in wanted.items():
        for where in failure.recorded(kind):
            return f"operand {where} is of type {kind}: record {other}(x), or let the op convert it."
    return None


def own_hint(failure: Failure) -> str | None:
    """Return the hint of an error of multifold, as a fold inside the op raises; None for other errors."""
    return failure.error.hint if isinstance(failure.error, MultifoldError) else None


Row = tuple[str, str | Callable[[Failure], str | None], Callable[[Failure], Any] | None]
"""A pattern of error texts; a hint, or what finds one, or None; whether it fits. None fits always."""

HINTS: Sequence[Row] = (
    (r"\(\) (takes|missing|got) ", arguments_hint, None),
    (r"NoneType|\(None\)", NONE, received(NoneType)),
    (r"\blist\b", LIST, received(list)),
    (r"\btuple\b", TUPLE, received(tuple)),
    (r"\b(str|string)\b|<U|annot convert", TEXT, received(str)),
    (r"\bRagged\b", RAGGED_ROWS, received(Ragged)),
    # An error of multifold has a hint of its own, and its text would match some of the patterns below.
    ("", own_hint, None),
    (r"\bunpack\b", NO_ROWS, has_no_rows),
    (r"must be int|interpreted as an integer|integer scalar", SETTING, lambda f: f.recorded("int")),
    (r"(?i)(truth|boolean) value|to (python )?scalar|(length|size)[ -]1\b|a real number, not", VALUE, None),
    (r"(?i)integer|indices|\bindex\b|\blong\b|to dtype\('int", MISSING, has_no_rows),
    (f"{BROADCAST}|{MULTIPLY}", NO_WIDTH, has_no_rows),
    (BROADCAST, RAGGED, has_children),
    (
        BROADCAST + r"|Dimension out of range|axis -?\d+ is out of bounds|in the range \[",
        COLUMN,
        has_vector,
    ),
    ("", SQUEEZED.strip(), squeezes),
    ("(?i)hidden", layers_hint, None),
    (INTEGERS, numbers_hint, None),
    # What frameworks say of dtypes, but not Python's "unsupported operand type(s)", of an operator.
    (r"(?is)^(?!.*unsupported operand).*(type|float|half)", dtypes_hint, None),
    # If NumPy is a guess, what the rows above do not explain is most likely a model of another framework,
    # whatever NumPy says of it.
    ("", GUESSED, lambda f: f.guessed),
    (r"(?i)dtype|scalar type|integer|\bu?int\d+\b", numbers_hint, None),
    ("inplace|read-only", IN_PLACE, None),  # the second is what NumPy says
    (r"out of (range|bounds)|is not in \[", INDEX, None),
    (f"{BROADCAST}|{MULTIPLY}", SHAPES, None),
    ("dtype", ARRAYS, lambda f: f.recorded("array")),
)
"""What a framework says, what to do about it, and whether that fits what the op has received."""
