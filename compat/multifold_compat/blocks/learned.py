"""What dry runs have found that an op by name returns: known from then on, where nothing was declared.

An op may return one type for one operand and another for another, so a type is kept beside the one that
went in: what is asked about an operand that no dry run had stays unknown.
"""

from __future__ import annotations

from multifold_compat.blocks.types import GENERAL, Disjoint, Known, TensorType, TupleType, kind_of, meet


class Learned:
    """The types that one op has returned in dry runs, for each type that went in.

    Attributes
    ----------
    found : dict
        What came out, by what went in.
    """

    def __init__(self) -> None:
        self.found: dict[Known, set[TensorType]] = {}

    def note(self, given: Known, returned: Known) -> None:
        """Keep ``returned`` for ``given`` if it is the type of a tensor.

        A tuple is not kept: it is taken apart only where it is declared.
        """
        if isinstance(returned, TensorType):
            self.found.setdefault(given, set()).add(returned)

    def returned(self, given: Known) -> Known:
        """Return the type that came out for inputs like ``given``, or None if there is not just one."""
        kinds = {kind for key, kinds in self.found.items() if agree(key, loosened(given)) for kind in kinds}
        return kinds.pop() if len(kinds) == 1 else None


def agree(a: Known, b: Known) -> bool:
    """Return whether a value may have both types; an open one agrees with any."""
    try:
        meet(a, b)
    except Disjoint:
        return False
    return True


def general(dtype: str) -> str | None:
    """Return ``"float"``, ``"int"`` or ``"bool"`` for the name of a dtype, None for others.

    A declaration says the kind only: ``out=16`` is one of float32, and NumPy computes in float64 what a
    Python number enters.
    """
    try:
        kind = kind_of(dtype)
    except TypeError:  # a dtype that NumPy does not know
        return None
    return next((name for name, kinds in GENERAL.items() if kind in kinds), None)


def loosened(kind: Known) -> Known:
    """Return a type in which each dtype is replaced by what `general` returns for it."""
    if isinstance(kind, TensorType) and kind.dtype is not None:
        return TensorType(kind.shape, general(kind.dtype))
    return TupleType(*map(loosened, kind.items)) if isinstance(kind, TupleType) else kind
