"""What graphs of traces have learned, handed on from one to the next.

To learn a form of calls takes as long as a hundred calls of a form that is known. And the vocabulary of an
example is made once for all examples that met the same signatures in the same order.
"""

from __future__ import annotations

from collections.abc import Hashable
from types import BuiltinFunctionType, FunctionType, ModuleType, NoneType
from typing import Any

import numpy as np
import optree

from multifold._engine.compiled.arrays import Integers
from multifold._engine.compiled.forms import Form
from multifold._engine.record.graph import Forms, Graph, Part
from multifold._engine.record.kinds import COLUMNS
from multifold._engine.record.signature import Signature, take_in
from multifold._engine.traces.trace import Vocabulary, make_vocabulary

MOST_SIGNATURES = 1024
"""A `Learned` with more signatures, parts, vocabularies or structures than this is not handed on."""


class Learned:
    """What graphs of traces have learned: one object, which graphs that are made one after the other share.

    Attributes
    ----------
    signatures, keys, parts, part_numbers, ops, splits, quick, forms
        Those of `Graph`; each of these graphs uses the same lists and dictionaries.
    files : dict of int to str
        Number of a signature -> the file that recorded its first call.
    widths : int64 array of shape ``(signatures, 5)``
        How many operands a call of each signature has in each of `COLUMNS`.
    parents : list of int
        For each part the number of the part that it is taken from; part 0, the whole result, has 0.
    results : list of (PyTreeSpec, tuple of str)
        The structures that examples returned, and ``Outputs.wanted`` of each.
    """

    def __init__(self) -> None:
        self.signatures: list[Signature] = []
        self.keys: dict[Hashable, int] = {}
        self.files: dict[int, str] = {}
        self.parts = [Part((), 0, None)]
        self.part_numbers: dict[Hashable, int] = {}
        self.ops: dict[Hashable, Any] = {}
        self.splits: dict[tuple[int, int], tuple[int, ...]] = {}
        self.quick: dict[Hashable, Form] = {}
        self.forms: Forms = {}
        self.results: list[tuple[Any, tuple[str, ...]]] = []
        self.result_numbers: dict[Hashable, int] = {}
        self.vocabularies: dict[Hashable, tuple[Vocabulary, Integers | None]] = {}
        self.widths = np.zeros((0, len(COLUMNS)), np.int64)
        self.parents: list[int] = []
        self.one_row = self.number_of(optree.tree_structure(0, none_is_leaf=True), ("row",))
        self.looked_at = 0

    def number_of(self, structure: Any, wanted: tuple[str, ...]) -> int:
        """Return the number of a structure of results, from 0; a new structure gets the next number.

        Parameters
        ----------
        structure : PyTreeSpec
        wanted : tuple of str
            For each leaf ``"row"``, ``"group"``, ``"whole"`` or ``"each"`` (`Outputs.wanted`).
        """
        number = self.result_numbers.setdefault((structure, wanted), len(self.results))
        if number == len(self.results):
            self.results.append((structure, wanted))
        return number

    def note_calls(self, graph: Graph) -> None:
        """Add to `parents`, `files` and `widths` the parts and signatures that are new since the last call.

        The file of a new signature is that of its first call in ``graph``.
        """
        self.parents += [part.parent for part in self.parts[len(self.parents) :]]
        new = self.signatures[len(self.widths) :]
        if new:
            # The first call of each signature is the last to be written here, so it stays.
            first = {number: call for call, number in reversed([*enumerate(graph.signature)])}
            self.files |= {
                number: graph.line(first[number])[0] for number in first.keys() - self.files.keys()
            }
            more = [[getattr(signature, name) for name in COLUMNS] for signature in new]
            self.widths = np.concatenate([self.widths, np.array(more, np.int64)])

    def vocabulary(
        self, results: int, signatures: tuple[int, ...], parts: tuple[int, ...]
    ) -> tuple[Vocabulary, Integers | None]:
        """Return an example's vocabulary, made at its first use, and new numbers of signatures or None.

        In the vocabulary, signatures are numbered 0, 1, 2 in the order of ``signatures``. But
        ``ragged([], row_shape=(2,))`` and ``ragged(rows)`` may join to one signature. Then the second value
        is an int64 array with the number in the vocabulary for each of ``signatures``; else it is None.

        Parameters
        ----------
        results : int
            The number of the structure of the example's results (`number_of`).
        signatures, parts : tuples of int
            Numbers of this `Learned`, in the order in which the example met them; a part comes after its
            parent.
        """
        key = results, signatures, parts
        if key not in self.vocabularies:
            keys: dict[Hashable, int] = {}
            own: list[Signature] = []
            names = [take_in(self.signatures[number], keys, own) for number in signatures]
            files = [self.files[signatures[names.index(name)]] for name in range(len(own))]
            own_part = {number: own for own, number in enumerate(parts)}
            known = [Part(path, own_part[parent], n) for path, parent, n in (self.parts[i] for i in parts)]
            vocabulary = make_vocabulary(tuple(own), tuple(known), tuple(files), *self.results[results])
            joined = len(own) < len(names)
            self.vocabularies[key] = vocabulary, np.array(names) if joined else None
        return self.vocabularies[key]

    def may_stay(self) -> bool:
        """Return whether the next traces may use this, too: it is small, and keeps no model alive.

        It is small with at most `MOST_SIGNATURES` signatures, parts, vocabularies and structures, of each.
        It must have no copies of ops in ``ops``, and `lives_on` must be true of the signatures that are new
        since the last call of this: each call asks about those only.
        """
        # `ops` holds copies of `functools.partial`, which may bind anything.
        new = self.signatures[self.looked_at :]
        self.looked_at = len(self.signatures)
        small = max(len(self.signatures), len(self.parts), len(self.vocabularies), len(self.results))
        return small <= MOST_SIGNATURES and not self.ops and all(map(lives_on, new))


LASTING = frozenset({bool, bytes, float, int, str, NoneType})
"""Types of static values that are small, and keep nothing alive."""


def lives_on(signature: Signature) -> bool:
    """Return whether keeping a signature keeps nothing alive that would go otherwise.

    True if its op is a name, a NumPy ufunc, or a function of a module, also one written in C, and its
    static and shared values are of the types in `LASTING`, as numbers and strings. False for a lambda, a
    function made inside of another one, a bound method or any other object as the op.
    """
    op: Any = signature.op
    if isinstance(op, FunctionType):
        # A lambda, or a function made inside of another one (``<locals>``), goes when its maker goes.
        lasting = op.__closure__ is None and "<" not in op.__qualname__
    elif isinstance(op, BuiltinFunctionType):
        lasting = isinstance(op.__self__, (ModuleType, NoneType))
    else:
        lasting = isinstance(op, (str, np.ufunc))
    values = [
        *signature.static.values(),
        *[slot.value for slot in signature.slots if not slot.kind.batched],
    ]
    return lasting and all(type(x) in LASTING for x in values)
