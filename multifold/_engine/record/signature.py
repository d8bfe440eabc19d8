"""What must be equal for two calls to share a launch, decided while recording.

A `Signature` is everything about a call except its rows: the op, the structure and kind of the operands,
the dtype and trailing shape of leaf arrays, shared values and static arguments. Signatures are
compared by value, never by a hash alone, and with types: ``1``, ``1.0`` and ``True`` differ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from types import BuiltinFunctionType, FunctionType, NoneType
from typing import Any

import numpy as np
import optree

from multifold._engine.record.freezing import snapshot
from multifold._engine.record.kinds import COLUMNS, FLOAT, NODE, SHARED, Kind
from multifold._engine.record.population import Population

PLAIN = frozenset({int, float, bool, str, bytes, NoneType})
"""Types of values that refer to no other object."""


def op_name(op: str | Callable[..., Any]) -> str:
    """Return the name of an op for messages and tables.

    Examples
    --------
    >>> op_name("compose"), op_name(len), op_name(partial(max, 0)), op_name(partial(map, len))
    ('compose', 'len', 'max', 'map(len)')
    """
    if isinstance(op, str):
        return op
    if isinstance(op, partial):
        # A function with a layer or a cell bound to it: both say what it does.
        first = op.args[0] if op.args else None
        return op_name(op.func) + (f"({op_name(first)})" if callable(first) else "")
    name: str = getattr(op, "__qualname__", None) or type(op).__qualname__
    # PyTorch's functions are methods of a hidden class, `_VariableFunctionsClass.mul`.
    return name.rpartition(".")[2] if name.startswith("_") and isinstance(op, BuiltinFunctionType) else name


class LazyOp:
    """The base of ops that `multifold.batched` records: a function of one example, its arrays left out.

    Attributes
    ----------
    called_with : str
        Its arguments as `explain` tells them: the shapes of arrays, and the rest as it is written.
    """

    called_with: str


@dataclass(frozen=True)
class Slot:
    """One leaf operand of a signature.

    Attributes
    ----------
    kind : Kind
        Where the operand is kept, and whether it is batched.
    key : Hashable
        What is compared: of a leaf array `Recorder.array_class`, as trailing shape, dtype and device; the
        `MissingRows` of a ragged one, the identity of a shared value or the frozen static one.
    value : object
        The shared or static value itself; for arrays and ragged operands what `describe` shows.
    """

    kind: Kind
    key: Hashable = None
    value: Any = field(default=None, compare=False)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set what was pickled; a shared array is made read-only again, which pickle loses."""
        vars(self).update(state)
        if self.kind.shared and isinstance(self.value, np.ndarray):
            self.value.setflags(write=False)


@dataclass(frozen=True, eq=False)
class Signature:
    """The static signature of a call; one object for each distinct value within a graph.

    Attributes
    ----------
    op : str or callable
        What is looked up on the model, or called.
    slots : tuple of Slot
        The leaves of the positional operands, in order.
    structure : object or None
        How the leaves nest (an optree ``PyTreeSpec``), or None where each operand is one leaf.
    static : dict
        The keyword arguments as they were recorded; an op gets `keywords`.
    key : Hashable
        What is compared: equal for equal signatures.
    """

    op: str | Callable[..., Any]
    slots: tuple[Slot, ...]
    structure: Any
    static: dict[str, Any]
    key: Hashable = None

    def __post_init__(self) -> None:
        counts = dict.fromkeys(COLUMNS, 0)
        operands = []
        for slot in self.slots:
            column = slot.kind.column
            operands.append((slot, 0 if column is None else counts[column]))
            if column is not None:
                counts[column] += 1
        floats = tuple([i for i, slot in enumerate(self.slots) if slot.kind is FLOAT])
        # Batched and shared nodes are numbered together: both have entries in the column of references.
        nodes = [(slot.kind, position) for slot, position in operands if slot.kind.ref or slot.kind.ragged]
        # The class is frozen, so `self.refs = ...` would raise.
        vars(self).update(
            counts,
            widths=tuple(counts.values()),
            operands=tuple(operands),
            layout=tuple([p if kind.ref else -1 - p for kind, p in nodes if kind.rows]),
            batched=any(slot.kind.batched for slot in self.slots),
            nodes_only=all(slot.kind is NODE for slot in self.slots),
            beside=floats if any(has_dtype(slot.kind) for slot in self.slots) else (),
            says_rows=any(slot.kind.ragged and slot.value is not None for slot in self.slots),
            recorded=tuple([i for i, slot in enumerate(self.slots) if slot.kind.column is not None]),
            has_cases=counts["ragged"] > 0 or type(self.op) is Population,
            shared_refs=np.array([p for kind, p in nodes if kind.shared], np.int64),
            shared=tuple([slot.value for slot in self.slots if slot.kind is SHARED]),
            outcomes={},
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes for pickles and copies, name -> value, without what launches have shown."""
        return {**vars(self), "outcomes": {}}

    refs: int = field(init=False)
    """Node operands of a call, batched or shared; likewise the counts that follow."""
    ints: int = field(init=False)
    floats: int = field(init=False)
    arrays: int = field(init=False)
    ragged: int = field(init=False)
    widths: tuple[int, ...] = field(init=False)
    """These counts, in the order of `multifold._engine.record.kinds.COLUMNS`."""
    batched: bool = field(init=False)
    """Whether any operand is batched; without one, a launch runs once and yields one row."""
    nodes_only: bool = field(init=False)
    """Whether all operands are nodes, each a row of its launch."""
    beside: tuple[int, ...] = field(init=False)
    """The slots of floats, where other operands may have a dtype; else none.

    A launch casts them to the dtype of the arrays beside them: ``x * 0.5`` is bfloat16 if ``x`` is.
    """
    says_rows: bool = field(init=False)
    """Whether a ragged operand says, by its `MissingRows`, what a row is where it has none."""
    has_cases: bool = field(init=False)
    """Whether more than their rows tells trials of launches apart; see `PreparedLaunch.case`."""
    recorded: tuple[int, ...] = field(init=False)
    """The slots that each call has an entry for: all but those of shared and static values."""
    operands: tuple[tuple[Slot, int], ...] = field(init=False)
    """Each slot, and which of the call's entries in the column of its kind is this operand."""
    layout: tuple[int, ...] = field(init=False)
    """The operands that are rows of launches, in their order: ``p`` for the p-th node operand of a call,
    ``-1 - p`` for its p-th ragged one."""
    shared_refs: np.ndarray = field(init=False)
    """Which of the call's node operands are shared."""
    shared: tuple[Any, ...] = field(init=False)
    """The values that all calls share."""
    outcomes: dict[Hashable, Any] = field(init=False)
    """What launches have shown, an `Outcome` for each of the classes of rows; the launcher fills it."""

    @cached_property
    def form(self) -> Signature:
        """A signature without op and values, whose slots have the kinds of these: all that planning reads.

        Signatures with equal kinds in equal order have one and the same object, so ``is`` compares them.
        """
        return form_of(tuple([slot.kind for slot in self.slots]))

    @cached_property
    def bare(self) -> Signature:
        """A signature with this op and without operands, for a call that does not run again."""
        return Signature(self.op, (), None, {})

    @cached_property
    def outlives_reset(self) -> bool:
        """Whether a graph may keep this signature after a reset: it keeps no object of the user alive.

        Its op is a name or a function without a closure, and its values are constants such as 1 and "sum".
        A method or a closure refers to objects of the user, and a shared array may have any size. A
        signature that says the shape of ragged rows may have it from another call, which need not be made
        again.
        """
        op = self.op
        if type(op) is Population:  # which keeps no module alive
            op = self.name
        # Default arguments belong to the function, and may hold arrays of any size.
        free = isinstance(op, str) or (type(op) is FunctionType and not (op.__closure__ or op.__defaults__))
        return free and self.is_constant

    @cached_property
    def is_lazy(self) -> bool:
        """Whether it is that of calls of a plain program, which keep no values of the user but the op."""
        return isinstance(self.op, LazyOp) and self.is_constant

    @property
    def is_constant(self) -> bool:
        """Whether its values are such as 1 and "sum", and no shape was told by another call."""
        own = [slot.value for slot in self.slots if slot.kind.column is None]
        return all(type(value) in PLAIN for value in (*own, *self.static.values())) and not self.says_rows

    @property
    def name(self) -> str:
        """The op's name, for messages and tables (`op_name`)."""
        return op_name(self.op)

    @property
    def open_key(self) -> Hashable:
        """``key`` without the row shapes and dtypes of ragged operands: equal if only these differ."""
        return open_key(self.key) if self.ragged else self.key

    def joined(self, other: Signature) -> Signature | None:
        """Return this signature with the row shapes of two; None if they give one operand two shapes.

        ``other`` has the same `open_key`. ``ragged(rows)`` and ``ragged([], row_shape=(2,))`` join to the
        latter; ``(2,)`` joins no ``(3,)``.
        """
        slots = []
        for own, its in zip(self.slots, other.slots, strict=True):
            if own.kind.ragged and None not in (own.value, its.value) and own.value != its.value:
                return None
            slots.append(its if own.kind.ragged and own.value is None else own)
        key: Any = self.key
        return replace(self, slots=tuple(slots), key=(*key[:3], tuple(slots), *key[4:]))

    def keywords(self) -> dict[str, Any]:
        """Return the keyword arguments for one launch, name -> copy: an op may change what it is given."""
        return {name: snapshot(x) for name, x in self.static.items()}

    def nested(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Return ``leaves``, a value for each slot, nested as the operands were when recorded."""
        return leaves if self.structure is None else optree.tree_unflatten(self.structure, leaves)


def has_dtype(kind: Kind) -> bool:
    """Return whether operands of a kind have a dtype: all but Python numbers and static values."""
    return kind.shared or (kind.batched and kind.number is None)


@lru_cache(4096)
def form_of(kinds: tuple[Kind, ...]) -> Signature:
    """Return the one signature without op and values whose slots have these kinds, in this order."""
    return Signature("", tuple(map(Slot, kinds)), None, {})


def open_key(key: Any) -> Hashable:
    """Return a signature's key without the row shapes and dtypes of its ragged operands."""
    # `Recorder._understand` puts the key together: op, structure, orders of keys, slots, keywords.
    slots = [Slot(slot.kind) if slot.kind.ragged else slot for slot in key[3]]
    return (*key[:3], tuple(slots), *key[4:])


def take_in(signature: Signature, keys: dict[Hashable, int], signatures: list[Signature]) -> int:
    """Return the number of a signature, its index in ``signatures``; a new one is appended to that.

    ``keys`` has the numbers by `Signature.key`, and is extended, too.

    ``ragged([], row_shape=(2,))`` says what ``ragged(rows)`` leaves open. Their calls share a launch, so
    both have one number, and the signature of that number is replaced by one that says the shape. Another
    shape is another number.
    """
    new = len(signatures)
    # One look-up, not two: a key is long, and slow to hash.
    number = keys.setdefault(signature.key, new)
    if number != new or not signature.ragged:
        if number == new:
            signatures.append(signature)
        return number
    # A new signature with ragged operands may still join one that differs in the shapes of ragged rows
    # only.
    number = keys.setdefault(signature.open_key, new)
    joined = None if number == new else signatures[number].joined(signature)
    if joined is None:
        signatures.append(signature)
        return new
    signatures[number] = joined
    keys[signature.key] = number
    return number
