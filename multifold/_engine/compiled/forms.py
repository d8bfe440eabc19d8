"""The forms of calls, which both versions of recording read.

A form says with one letter what to do with each operand:

====== ================================================= ==========================
letter operand                                           value that counts
====== ================================================= ==========================
``n``  node                                              none
``i``  int or bool                                       none
``f``  float                                             none
``-``  None                                              none
``s``  string                                            the string
``l``  list or tuple of nodes, ints and floats           the types of its items
``r``  ragged operand                                    its ``missing``
``a``  leaf array                                        ``Recorder._value(x)``
``v``  `multifold.shared` or `multifold.static` operand  ``Recorder._value(x)``
====== ================================================= ==========================

Where values count, the form has a table from them to the number of the signature.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Mapping
from types import NoneType
from typing import Any

import numpy as np

Form = tuple[Any, int, dict[Hashable, int] | None]
"""How the operands go into the columns, the signature's number, and the table of values."""


ATOMS = frozenset({int, str, bool, bytes, NoneType})
"""Types of values that never change and that ``==`` compares, apart from their type."""


def own(x: Any) -> Any:
    """Return an operand as it is kept: a NumPy array is copied, as it may be changed before the run.

    Anything else is returned as it is.
    """
    return x.copy() if isinstance(x, np.ndarray) else x


def merge_key(recorder: Any, number: int, operands: Any) -> Hashable:
    """Return a key that two calls have in common only if they are equal, for graphs that merge equal calls.

    ``number`` is the call's signature, and ``operands`` has its entries of each column as attributes, as
    `GraphBase.since` returns them. Both are joined as bytes, so that numbers are told apart by their types
    and bits: 0.0 is not -0.0. The signature says how many entries of each column there are, but for
    ``members``, of which ``lengths`` says it. Arrays and loose values count by ``recorder._merges_by``,
    since the caller may have changed an array between the two calls.
    """
    # As bytes, NaN equals itself and 0.0 is not -0.0, and a key of any length is hashed at once.
    whole = array("q", [number, *operands.refs, *operands.ints, *operands.lengths, *operands.members])
    key = whole.tobytes() + array("d", operands.floats).tobytes()
    values = [*operands.arrays, *operands.loose]
    return (key, tuple(map(recorder._merges_by, values))) if values else key


def quick_key(op: Any, operands: tuple[Any, ...], static: Mapping[str, Any]) -> tuple[Hashable, ...]:
    """Return the key of a call's form: op, types of operands, then names, types and values of ``static``.

    >>> quick_key("f", (1, 2.5), {"axis": 0})
    ('f', <class 'int'>, <class 'float'>, ('axis',), <class 'int'>, 0)
    """
    values = static.values()
    names = (tuple(static), *map(type, values), *values) if static else ()
    return (op, *map(type, operands), *names)


def values_of(recorder: Any, letters: str, operands: tuple[Any, ...]) -> tuple[Hashable, ...]:
    """Return the values of a call's operands that belong to its signature, in the order of the operands.

    ``letters`` has a letter for each operand, as the table at the top of this module says. `READ` says what
    counts: a string, the types of a list's items, what a ragged operand says of missing rows, and
    ``recorder._value(x)`` of ``"a"`` and ``"v"``. All others are left out: of form ``"sn"`` only the string
    counts.
    """
    pairs = zip(letters, operands)  # noqa: B905 - of one length; the hot loop
    return tuple([READ[letter](recorder, x) for letter, x in pairs if letter in READ])


READ: dict[str, Callable[[Any, Any], Hashable]] = {
    "s": lambda recorder, x: x,
    "l": lambda recorder, x: tuple(map(type, x)),
    "r": lambda recorder, x: x.missing,
    "a": lambda recorder, x: recorder._value(x),
    "v": lambda recorder, x: recorder._value(x),
}
"""The letters of operands whose values count, and how these are read."""
