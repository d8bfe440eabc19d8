"""How operands and their values are written in tables and sentences, and in the listing of all calls.

A value is written the same in every process: a function by its name, an array by shape and dtype, and
an object whose ``repr`` holds an address by its class.

Examples
--------
>>> import numpy as np
>>> value_text(np.ones((2, 3))), value_text([1, "a"]), value_text(len), value_text(object())
('an array (2, 3) of float64', "[1, 'a']", 'len', 'an object')
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import optree

from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS
from multifold._engine.plan.columns import Columns
from multifold._engine.plan.outputs import Bare
from multifold._engine.record.population import Population
from multifold._engine.record.signature import Signature, Slot, op_name
from multifold.errors import type_of
from multifold.explain.reasons import count

LONGEST = 40
"""Characters of a value that are shown."""

MOST_CALLS = 60
"""Up to this many calls, each has its line; of more, the listing only counts the calls of each op."""


def slots_of(signature: Signature) -> Iterator[tuple[str, Slot, int]]:
    """Yield (name, slot, position) for each operand of calls of a signature, in their order.

    The name is ``operand 1``, or ``operand 1['h'][0]`` where operands nest. The position counts the
    operands of a call that are stored in the same way, as references or as numbers; `Columns.operand` takes
    it.
    """
    structure = signature.structure
    # A signature has no structure if no operand nests: then each slot is an operand.
    paths = [(i,) for i in range(len(signature.slots))] if structure is None else structure.paths()
    for (first, *rest), (slot, position) in zip(paths, signature.operands, strict=True):
        yield f"operand {first}{path_text(rest)}", slot, position


def path_text(keys: Iterable[Any]) -> str:
    """Return keys as they index a result: ``path_text(("h", 0))`` is ``"['h'][0]"``."""
    return "".join(f"[{key!r}]" for key in keys)


def structure_text(signature: Signature) -> str:
    """Return how the operands of a signature nest: ``"2 operands"``, or ``"(x, [x, x])"``.

    If the latter has more than `LONGEST` characters, it is ``"40 values in 3 operands"``, for example.
    """
    leaves = len(signature.slots)
    if signature.structure is not None:
        whole = optree.tree_unflatten(signature.structure, [Bare("x")] * leaves)
        nested = ", ".join(map(str, whole))
        many = f"{leaves} values in {len(whole)} operands"
        return f"({nested})" if len(nested) <= LONGEST else many
    return f"{leaves} operand{'s' * (leaves != 1)}"


def op_text(op: Any) -> str:
    """Return the name of an op; of a function, also the file and line that define it.

    Of modules of one form it is ``"Linear of 64 modules"``.
    """
    if isinstance(op, Population):
        return f"{op_name(op)} of {len(op)} modules"
    code = getattr(op, "__code__", None)
    if code is None:
        return op_name(op)
    return f"{op_name(op)} of {code.co_filename}:{code.co_firstlineno}"


def value_text(value: Any) -> str:
    """Return a value as a short text, the same in every process.

    An array is ``"an array (2, 3) of float64"``, a callable its name; others are at most `LONGEST`
    characters of their ``repr``, or their class.
    """
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array {tuple(value.shape)} of {dtype_text(value.dtype)}"
    if callable(value):
        return op_name(value)
    text = repr(value)
    if re.search(r" at 0x[0-9a-f]+", text):
        return type_of(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def node_text(columns: Columns, ref: int) -> str:
    """Return a reference as text: the number of its call, and the path to a part, as ``"3[0]"``.

    ``ref`` has the number of the call in its lower bits, and that of the part from bit `PART_BITS` on.
    """
    return f"{ref & CALL_MASK}{path_text(columns.parts[ref >> PART_BITS].path)}"


def array_class(key: Any) -> tuple[Hashable, ...]:
    """Return (trailing shape, dtype, where it is, ...) from the key by which an array is recorded.

    A key of another form is returned as the first entry, with an empty text as the second.

    Examples
    --------
    >>> import numpy as np
    >>> array_class(("numpy", (4,), np.dtype("float32"))), array_class(((4,), "float32", "cuda:0"))
    (((4,), 'float32', 'NumPy'), ((4,), 'float32', 'cuda:0'))
    """
    # An array of NumPy is recorded as ("numpy", shape, dtype) for all frameworks. An array of the framework
    # has the backend's signature, most often (shape, dtype, device).
    if isinstance(key, tuple) and key and key[0] == "numpy":
        return key[1], dtype_text(key[2]), "NumPy"
    if isinstance(key, tuple) and len(key) > 1 and isinstance(key[0], tuple):
        return tuple(key[0]), dtype_text(key[1]), *key[2:]
    return key, ""


def class_text(key: Hashable) -> str:
    """Return a class of rows, what rows of one launch have in common, as text; None is ``"not known"``.

    ``((4,), "float32")`` is ``"(4,) float32"``, with ``" on cuda:0"`` if a device follows; a text, the type
    of a number, is ``"a number (int)"``. Of a container the classes of its leaves are listed in brackets.
    """
    if isinstance(key, str) or key is None:
        return "not known" if key is None else f"a number ({key})"
    if isinstance(key, tuple) and len(key) > 1 and not isinstance(key[0], tuple):
        # A container: first its structure, then the class of each leaf.
        return "(" + ", ".join(map(class_text, key[1:])) + ")"
    shape, dtype, *device = array_class(key)
    return " ".join([str(shape), str(dtype), *(["on", *map(str, device)] if device else [])])


def dtype_text(dtype: Any) -> str:
    """Return the name of a dtype of any framework, as ``"float32"``."""
    # Scalar types of NumPy have `__name__` and its dtypes `name`, as those of TensorFlow. A dtype of
    # PyTorch has neither, and is written torch.float32.
    name = getattr(dtype, "__name__", None) or getattr(dtype, "name", None)
    return name or str(dtype).removeprefix("torch.")


def listing(columns: Columns) -> str:
    """Return a text with a line for each recorded call and its operands.

    Of more than `MOST_CALLS` calls it only counts those of each op.

    Examples
    --------
    >>> from multifold import Fold
    >>> fold = Fold(backend="numpy")
    >>> pair = fold.add("leaf", 7).split(2)
    >>> _ = fold.add("add", *pair, by=0.5)
    >>> print(listing(fold._columns()))
    0  leaf(7)
    1  add(0[0], 0[1], by=0.5)
    """
    if len(columns) > MOST_CALLS:
        names = Counter(columns.signatures[number].name for number in columns.signature.tolist())
        return "\n".join(f"{name}: {count(calls, 'call')}" for name, calls in names.items())
    return "\n".join(listed(columns, range(len(columns))))


def listed(columns: Columns, calls: Sequence[int]) -> Iterator[str]:
    """Yield a line for each of ``calls``, numbers of calls: that number, then the call as of `line`."""
    width = len(str(max(calls, default=0)))
    for call in calls:
        yield f"{call:>{width}}  {line(columns, call)}"


def line(columns: Columns, call: int) -> str:
    """Return call number ``call`` as it might have been written: ``"add(0[0], 0[1], by=0.5)"``."""
    signature = columns.signatures[columns.signature[call]]
    # `Bare` prints its text without quotes, so a list of operands prints as it was written.
    leaves = [Bare(operand(columns, call, slot, position)) for slot, position in signature.operands]
    operands = signature.nested(leaves)
    given = [f"{name}={value_text(value)}" for name, value in signature.static.items()]
    return f"{signature.name}({', '.join([*map(repr, operands), *given])})"


def operand(columns: Columns, call: int, slot: Slot, position: int) -> str:
    """Return one operand of a call as it might have been written: ``"3[0]"``, ``"shared(0.5)"``.

    A ragged one is ``"ragged([1, 2])"``, and a node that is read whole ``"3.no_batch()"``. ``slot`` and
    ``position`` are as `slots_of` yields them.
    """
    kind = slot.kind
    entry = columns.operand(slot, position, call)
    if kind.ref:
        text = node_text(columns, int(entry))
        return f"{text}.no_batch()" if kind.shared else text
    if kind.ragged:
        rows = columns.rows_of(entry).tolist()
        # A row is a reference to a call, or -1 - i for the loose array i.
        shown = (node_text(columns, x) if x >= 0 else value_text(columns.loose[-1 - x]) for x in rows)
        return f"ragged([{', '.join(shown)}])"
    text = value_text(entry if kind.number is None else entry.item())
    return f"shared({text})" if kind.shared else text
