"""The kinds of operands, in one table: how each is recorded, kept, batched and named.

The call ``fold.add("f", node, 2, 0.5, ragged([7, node]))`` has four operands of four kinds. Its
signature holds a slot for each, and each slot names its kind. The kind says which column of the graph
the operand goes into (the reference of ``node`` into ``refs``, 2 into ``ints``, 0.5 into ``floats``), and
whether a launch of many calls gets one row for each of them. Every other module asks a kind what it is;
to add a kind is to add a row to this table, and code only for what it does that no other kind does.

Examples
--------
>>> [number_type(x) for x in (2, np.float32(0.5), True, "word")]
[<class 'int'>, <class 'float'>, <class 'bool'>, None]
>>> [kind.name for kind in KINDS.values() if not kind.batched]
['shared node', 'shared', 'static']
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import NoneType
from typing import Any

import numpy as np

from multifold.operands import RaggedOperand, Shared, Static


@dataclass(frozen=True, eq=False, repr=False)
class Kind:
    """A kind of operand. There is one object for each, so kinds are compared by identity.

    Attributes
    ----------
    name : str
        What tables and error messages call it.
    text : str
        What a sentence calls one of it: ``"an int"``.
    letter : str
        What the quick path of recording does with it; see `multifold._engine.compiled.forms`.
    column : str or None
        The column of the graph that gets one entry for each call, one of `COLUMNS`; None where all
        calls of a signature have one value, which the signature keeps.
    batched : bool
        Whether a launch of ``n`` calls gets ``n`` rows, or one value.
    shared : bool
        Whether the operand was marked as shared.
    wide : bool
        Whether a row may hold many numbers, so that very many rows are worth dividing.
    number : type or None
        The type of a number of this kind: int, float or bool.
    marker : type or None
        The class of object by which a caller says that an operand is of this kind.
    """

    name: str
    text: str
    letter: str
    column: str | None = None
    batched: bool = True
    shared: bool = False
    wide: bool = False
    number: type | None = None
    marker: type | None = None

    @cached_property
    def ref(self) -> bool:
        """Whether the operand is a node, batched or shared: the graph keeps its reference in ``refs``."""
        return self.column == "refs"

    @cached_property
    def array(self) -> bool:
        """Whether the operand is a leaf array, of one row."""
        return self.column == "arrays"

    @cached_property
    def ragged(self) -> bool:
        """Whether the operand is marked by `multifold.ragged`: any number of rows for each call."""
        return self.column == "ragged"

    @cached_property
    def rows(self) -> bool:
        """Whether the operand consists of rows of earlier launches: true for `NODE` and `RAGGED`."""
        return self.batched and (self.ref or self.ragged)

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        """Return the name of a constant here, as "SHARED_NODE": unpickling returns that one object."""
        return self.name.replace(" ", "_").upper()


COLUMNS = ("refs", "ints", "floats", "arrays", "ragged")
"""The columns of a graph that operands have entries in; compiled code relies on their order."""

NODE = Kind("node", "a node", "n", "refs", wide=True)
SHARED_NODE = Kind("shared node", "a shared node", "n", "refs", batched=False, shared=True)
INT = Kind("int", "an int", "i", "ints", number=int)
FLOAT = Kind("float", "a float", "f", "floats", number=float)
BOOL = Kind("bool", "a bool", "i", "ints", number=bool)
ARRAY = Kind("array", "an array", "a", "arrays", wide=True)
RAGGED = Kind("ragged", "a ragged one", "r", "ragged", wide=True, marker=RaggedOperand)
SHARED = Kind("shared", "a shared value", "v", batched=False, shared=True, marker=Shared)
STATIC = Kind("static", "a static value", "v", batched=False, marker=Static)

KINDS = {kind.name: kind for kind in (NODE, SHARED_NODE, INT, FLOAT, BOOL, ARRAY, RAGGED, SHARED, STATIC)}
"""All kinds by their names."""

NUMBERS: dict[type, Kind] = {kind.number: kind for kind in KINDS.values() if kind.number is not None}
"""The type of a number -> its kind."""

LETTERS: dict[type, str] = {
    **{type_: kind.letter for kind in KINDS.values() if (type_ := kind.number or kind.marker)},
    NoneType: "-",
    str: "s",
}
"""The type of an operand -> its letter. None and strings are static values that need no marker."""


# bool comes first: it is a subclass of int. Complex numbers are in no row, since no column could hold them.
OF_NUMPY: tuple[tuple[tuple[type, ...], type], ...] = (
    ((bool, np.bool_), bool), ((int, np.integer), int), ((float, np.floating), float),
)  # fmt: skip
"""Classes whose objects, and whose subclasses' objects, are recorded as bool, int or float."""


def number_type(x: Any) -> type | None:
    """Return int, float or bool for a Python or NumPy number, None for anything else, as for 1j."""
    exact = type(x)
    if exact in NUMBERS:
        return exact
    if isinstance(x, (int, float, np.number, np.bool_)):
        for bases, number in OF_NUMPY:
            if isinstance(x, bases):
                return number
    return None
