"""Recording one call: its operands are sorted into columns, its signature is looked up.

`Recorder.add` runs once for every call of every example. It has a quick path for calls of a form that was
recorded before (`multifold._engine.compiled.forms`), and `Recorder._record` here for all others. `_record`
alone decides what a call means and refuses wrong ones; it opens the quick path to each new form that the
quick path can take.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from threading import get_ident
from typing import Any, ClassVar, NoReturn

import numpy as np
import optree

from multifold._engine.compiled import RecorderBase
from multifold._engine.compiled.forms import merge_key, quick_key, values_of
from multifold._engine.record import kinds
from multifold._engine.record.anatomy import AS_IT_IS, BOUND, Identity, refuse_awaitable, way_of
from multifold._engine.record.freezing import freeze, refuse_itself, snapshot
from multifold._engine.record.graph import Graph
from multifold._engine.record.keywords import CONSTANT, keyword_value
from multifold._engine.record.lines import users_frame
from multifold._engine.record.node import Node, SharedNode
from multifold._engine.record.population import SEATS, Seat
from multifold._engine.record.reduce import EMPTY, balanced
from multifold._engine.record.signature import Signature, Slot, op_name
from multifold.errors import BackendError, MultifoldError, RecordError, type_of
from multifold.operands import Each, RaggedOperand, Shared, Static


def refuse_rows(x: Any, rows: int | None) -> None:
    """Raise `RecordError` unless ``rows`` is 1: the length of axis 0 of ``x``, None without axes."""
    if rows != 1:
        raise RecordError(
            f"Expected an array operand of one row, of shape (1, *s). Received shape {tuple(x.shape)}.",
            "`x[None]` makes one row of an array, `multifold.shared(x)` passes it whole. Arguments of a "
            "function that is compiled, as by jax.jit, have no values: record outside of it.",
        )


def numpy_class(x: np.ndarray) -> Hashable:
    """Return ``("numpy", x.shape[1:], x.dtype)``: NumPy arrays with equal ones may share a launch.

    Raises
    ------
    RecordError
        For other than one row, for an array of objects, and for one with a mask, which NumPy would drop
        when it concatenates rows.
    """
    if type(x) is not np.ndarray and hasattr(x, "mask"):
        raise RecordError(
            f"Expected an array without a mask. Received {type_of(x)}.",
            "pass x.filled(0) and, as an operand of its own, ~x.mask.",
        )
    if x.dtype.hasobject:
        raise RecordError(
            f"Expected an array of numbers. Received dtype {x.dtype}.",
            "multifold.static(x) passes it as it is.",
        )
    refuse_rows(x, x.shape[0] if x.ndim else None)
    return "numpy", x.shape[1:], x.dtype


def note_orders(operands: Iterable[Any], found: list[Hashable]) -> None:
    """Append a tuple of the keys of each dictionary in nested operands to ``found``, outer ones first.

    Keys that are not all strings are frozen: 1, 1.0 and True are equal to Python. Other operands append
    nothing.

    >>> found = []
    >>> note_orders([1, {"b": 2, "a": [{"c": 3}]}], found)
    >>> found
    [('b', 'a'), ('c',)]
    """
    for x in operands:
        if isinstance(x, dict):
            # Strings can be compared as they are. Other keys are frozen, since 1, 1.0 and True are equal to
            # Python.
            found.append(tuple(x) if set(map(type, x)) <= {str} else freeze(tuple(x)))
            note_orders(x.values(), found)
        elif isinstance(x, (list, tuple)):
            note_orders(x, found)


def compares_by_identity(op: Any) -> bool:
    """Return whether an op is a name, or equal only to itself or to the same method of the same object.

    The quick path looks ops up by ``==``. An op that compares its content, as a dataclass does, may change
    it between two calls, so it is never looked up.
    """
    cls: Any = type(op)
    if cls is str or isinstance(op, str) or cls in BOUND:
        return True
    # Without a hash an op cannot be looked up at all.
    return cls.__eq__ is object.__eq__ and cls.__hash__ is not None


def key_of(make: Callable[[Any], Hashable], value: Any, where: str, op: Any) -> Hashable:
    """Return ``make(value)``; a `RecordError` of it also says that the value is in ``where`` of ``op``.

    ``where`` is a text such as "keyword 'by'".
    """
    try:
        return make(value)
    except RecordError as error:
        raise RecordError(f"{error.message} It is in {where} of op '{op_name(op)}'.", error.hint) from error


class Recorder(RecorderBase):
    """The recording half of `multifold.Fold`: `add` takes the operands of a call and returns its node."""

    _graph: Graph

    _meanwhile: contextlib.ExitStack | None = None
    """A stack of contexts that end when all examples of a recording are done; None outside of one."""

    knows_shapes: ClassVar[bool] = False
    """Whether calls are seen at once, so that ``shape_of(node)`` tells what came out: a dry run."""

    def array_class(self, x: Any) -> Hashable | None:
        """Return a key of an array: arrays with equal ones may share a launch. None if ``x`` is no array.

        Subclasses say which arrays they know, and override this: here it raises `NotImplementedError`.

        Raises
        ------
        RecordError
            If the array has other than one row.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def _with_meanwhile(self) -> Iterator[None]:
        """Return a context in which `_meanwhile` is a new `contextlib.ExitStack`; outside it is None.

        Examples may push contexts to it. When this context is left, even by an exception, all of these end,
        the last one first, and `_meanwhile` is None again.
        """
        try:
            with contextlib.ExitStack() as self._meanwhile:
                yield
        finally:
            self._meanwhile = None

    def shared_key(self, x: Any) -> Hashable:
        """Return a key of a shared value: calls may share a launch only if their keys are equal."""
        return self._graph.shared.key(x)

    def _note_kept(self, x: Any) -> None:
        """Note that the next call keeps ``x``: an array of a framework must not change before that runs."""

    def shared_value(self, x: Any) -> Any:
        """Return what a signature keeps of a shared value: a copy, since the caller may change his own."""
        return self._graph.shared.value(x)

    def __len__(self) -> int:
        """The number of recorded calls."""
        return len(self._graph.signature)

    def reduce(
        self,
        op: str | Callable[..., Any],
        nodes: Iterable[Any],
        /,
        *,
        empty: Any = EMPTY,
        **static: Any,
    ) -> Any:
        """Join neighbours by an op until one is left: ``n - 1`` calls in ``ceil(log2(n))`` levels.

        The items stay in their order, so the op need be associative, as sums and products of matrices
        are, and not commutative. Where it is neither, the result is that of a balanced tree.

        Parameters
        ----------
        op : str or callable
            As for `add`. It gets two operands, the left one first, each of ``(n, *s)`` for ``n`` calls
            that share a launch, and returns what stands in their place.
        nodes : iterable
            Nodes, numbers or arrays of shape ``(1, *s)``; other operands too, if the op returns the same.
        empty : optional
            What is returned if there are no nodes.
        **static
            Keyword arguments of each call, as for `add`.

        Returns
        -------
        Node, or what was given
            The one item that is left: of one item that item itself, without a call.

        Raises
        ------
        RecordError
            If there are no nodes and ``empty`` is not given, or for what `add` refuses.

        Examples
        --------
        Five numbers need three levels, (0 1) (2 3) 4, then (01 23) 4, then (0123 4):

        >>> import multifold
        >>> fold = multifold.Fold(backend="numpy")
        >>> fold.apply({"add": lambda x, y: x + y}, fold.reduce("add", range(5)))
        array([10])
        >>> [len(launch) for launch in fold.schedule().launches]
        [2, 1, 1]
        >>> fold.reduce("add", [], empty=0.0)
        0.0
        """
        items = list(nodes)
        if not items:
            if empty is EMPTY:
                raise RecordError(
                    f"Expected at least one node to reduce by op '{op_name(op)}'. Received none.",
                    "say what stands for none: fold.reduce(op, nodes, empty=0.0).",
                )
            return empty
        with self._graph.at(users_frame()):
            return balanced(partial(self.add, op, **static), items)

    def _value(self, x: Any) -> Hashable | None:
        """Return what a signature compares of an array, or of what `shared` or `static` marks; else None.

        It is the key of the slot that `_Call.slot` makes: `shared_key` of the value in `shared`, `freeze`
        of the value in `static`, else `array_class`. Raises `RecordError` for what these refuse.
        """
        if type(x) is np.ndarray and x.ndim and x.shape[0] == 1 and not x.dtype.hasobject:
            return "numpy", x.shape[1:], x.dtype  # as `numpy_class`, without a call
        if type(x) is Shared:
            return self.shared_key(x.value)
        if type(x) is Static:
            self._note_kept(x.value)
            return freeze(x.value)
        return self.array_class(x)

    @staticmethod
    def _merges_by(x: Any) -> Hashable:
        """Return a key of an array or a ragged item: with ``cse=True`` calls with equal keys are one.

        Numbers are compared by value. Arrays must be one object with one content: between the two calls the
        caller may have changed it.
        """
        if type(x) is np.ndarray:
            # A method of a builtin type is equal only to that of the same object, and keeps it alive:
            # `x.tobytes` is an `Identity` that costs nothing. Shape and dtype belong to the signature.
            contents = x.tobytes
            return contents, contents()
        if kinds.number_type(x) is not None:
            return freeze(x)
        return Identity(x), freeze(x) if isinstance(x, np.ndarray) else None

    def _refuse_int(self, number: int) -> NoReturn:
        raise RecordError(
            f"Expected an int operand of at most 64 bits. Received {number}.",
            "multifold.static(x) passes it as it is.",
        )

    def _reference(self, node: Node) -> int:
        """Return the reference of a node, ``part << PART_BITS | call``.

        Raises
        ------
        RecordError
            If the node belongs to another graph.
        """
        if node._graph is not self._graph:
            self._refuse(node)
        return node._ref

    def _number(self, x: Any) -> type | None:
        """Return int, float or bool for a number, None for anything else.

        Raises
        ------
        RecordError
            For an int of more than 64 bits.
        """
        number = kinds.number_type(x)
        if number is int and not -(2**63) <= int(x) < 2**63:
            self._refuse_int(x)
        return number

    def _refuse(self, node: Node) -> NoReturn:
        raise RecordError(
            f"The node {node!r} belongs to another fold, or to this one before its reset().",
            "record all calls of a minibatch with one fold, and use one fold for each thread.",
        )

    def _record(self, op: Any, operands: tuple[Any, ...], static: dict[str, Any], frame: Any) -> Node:
        """Record a call of any form at the line where ``frame`` is; return its node, or raise.

        ``static`` has the keyword arguments, name -> value. After a reset a form from before is opened
        again to the quick path, and a `functools.partial` is recorded as its copy.

        Raises
        ------
        RecordError
            For what `_understand` refuses, for a value that contains itself, and if another thread is
            recording.
        """
        graph = self._graph
        before = graph.enter(get_ident())
        try:
            seat = self._seat_of(op)
            if seat is not None:
                graph.take_seats(SEATS)
            # After a reset most forms come again. Those that are remembered need not be understood anew.
            if graph.before and self._recall(op if seat is None else seat[0], operands, static):
                return self._quick(op, operands, static, frame)
            if seat is not None:
                return self._understand(op, operands, static, frame, seat)
            if isinstance(op, str) or not callable(op) or way_of(op) in (None, AS_IT_IS):
                return self._understand(op, operands, static, frame)
            # What is bound in a `functools.partial` may change before the next call, so it cannot be looked
            # up by itself. Its calls are recorded as calls of a copy, which never changes and which the
            # quick path therefore may know.
            for x in (*getattr(op, "args", ()), *getattr(op, "keywords", {}).values()):
                self._note_kept(x)
            copied = self._graph.copy_of(op, key_of(freeze, op, "the bound arguments", op))
            if copied is op:
                return self._understand(op, operands, static, frame)
            return self._quick(copied, operands, static, frame)
        except RecursionError:
            # This visits every value inside of the call, so it waits until recursion has failed.
            refuse_itself([op, operands, static], f"a call of op '{op_name(op)}'")
            raise
        finally:
            graph.leave(before)

    def _seat_of(self, op: Any) -> Seat | None:
        """Return the population of an op and its number there, by `seat_of`; None in recorders without."""
        return None

    def _understand(
        self,
        op: Any,
        operands: tuple[Any, ...],
        static: dict[str, Any],
        frame: Any,
        seat: Seat | None = None,
    ) -> Node:
        """Record a call of any form, without the quick path, and return its node.

        With a ``seat``, it is a call of the population with the number of the module, unless an operand is
        shared or ragged, or none is batched: then the module is recorded itself.

        The first call of a form that the quick path can take opens that to the form. With ``cse=True``, the
        node of an equal call may be returned instead.

        Raises
        ------
        RecordError
            If the op is no name or callable, or an operand is refused; the graph stays as it was.
        """
        if not isinstance(op, str) and not callable(op):
            raise RecordError(
                f"Expected op to be a name or a callable. Received op={' '.join(repr(op).split())[:60]}.",
                "op is looked up on the model when applied: 'compose', 'encoder.cell', ...",
            )
        graph = self._graph
        # All operands are sorted into `call` first, so a call that is refused leaves the graph as it was.
        module = op
        op, leaves = (op, list(operands)) if seat is None else (seat[0], [*operands, seat[1]])
        call = _Call(self, op)
        structure = None
        orders: list[Hashable] = []
        if any(isinstance(x, (tuple, list, dict)) for x in operands):
            leaves, structure = optree.tree_flatten(leaves, none_is_leaf=True)
            note_orders(operands, orders)  # an op can see the order of a dictionary; optree leaves it out
        slots = [call.slot(x) for x in leaves]
        if seat is not None:
            # The last slot is the number of the module. Without a row there is nothing to share.
            is_alone = not any(slot.kind.batched for slot in slots[:-1])
            if is_alone or any(slot.kind.shared or slot.kind.ragged for slot in slots):
                return self._understand(module, operands, static, frame)
            graph.held[id(module)] = module
        op_key = op if isinstance(op, str) else freeze(op)
        # f(a=1, b=2) and f(b=2, a=1) are one call to Python
        ordered = [(name, keyword_value(name, x, op)) for name, x in sorted(static.items())]
        for _, x in ordered:
            self._note_kept(x)
        words = tuple([(name, key_of(freeze, x, f"keyword '{name}'", op)) for name, x in ordered])
        key = (op_key, structure, tuple(orders), tuple(slots), words)
        number = graph.keys.get(key)
        if number is None:
            own = [
                replace(x, value=self.shared_value(x.value)) if x.kind is kinds.SHARED else x for x in slots
            ]
            kept = tuple(own)
            # The key lives as long as the graph. With the slots of copies it is equal, since slots compare
            # by their own keys, and it does not keep the caller's shared arrays alive.
            key = (*key[:3], kept, key[-1])
            values = {name: snapshot(value) for name, value in ordered}
            number = graph.take_in(Signature(op, kept, structure, values, key))
        if compares_by_identity(op):
            self._open(graph, op, operands, static, number)
        if graph.merged is None:
            return graph.append(number, call, frame)
        equal = merge_key(self, number, call)
        if equal in graph.merged:
            return graph.node_type(graph, graph.merged[equal])
        node = graph.append(number, call, frame)
        graph.merged[equal] = node._ref
        return node

    def _quick(self, op: Any, operands: tuple[Any, ...], static: dict[str, Any], frame: Any) -> Node:
        """Record a call by `RecorderBase.add`, which takes the quick path if it can; return its node.

        The call gets the line of ``frame``, or that of a context of `Graph.at` around this one.
        """
        with self._graph.at(frame):
            node: Node = RecorderBase.add(self, op, *operands, **static)
            return node

    def _recall(self, op: Any, operands: tuple[Any, ...], static: dict[str, Any]) -> bool:
        """Open the quick path to the form of a call from before the reset; return whether it is open now.

        A form is the op, the types of the operands and the keyword arguments. It is False for one that is
        not known from before, and for a call that is wrong.
        """
        graph = self._graph
        try:
            key = quick_key(op, operands, static)
            known = graph.before.get(key)
            if known is None or not compares_by_identity(op):
                return False
            letters, table = known
            # A form without values has one signature, under the empty tuple: nothing is to be read.
            values = () if () in table else values_of(self, letters, operands)
            return graph.recall(key, letters, table.get(values), values)
        except (MultifoldError, TypeError):  # what is refused, or can't be hashed: the caller says why
            return False

    def _open(
        self, graph: Graph, op: Any, operands: tuple[Any, ...], static: dict[str, Any], number: int
    ) -> None:
        """Let the quick path record calls like this one as signature ``number``, if it can.

        Calls are alike if op, types of the operands and keyword arguments are equal. It can if each operand
        has a letter and each keyword argument is of a type in `CONSTANT`.
        """
        known = list(map(self._letter, operands))
        if None not in known and all(type(x) in CONSTANT for x in static.values()):
            letters = "".join(map(str, known))
            values = values_of(self, letters, operands)
            graph.open_form(quick_key(op, operands, static), letters, values, number)

    def _letter(self, x: Any) -> str | None:
        """Return the letter by which the quick path knows how to record the operand ``x``: "n" for a node.

        The table in `multifold._engine.compiled.forms` has all letters. None if the quick path cannot
        record it: a dictionary, a list or tuple of more than nodes and Python's numbers, a bool of NumPy,
        an object of a subclass of a number, as of an `enum.IntEnum`, or a value that is no array.
        """
        if type(x) in kinds.LETTERS:
            return kinds.LETTERS[type(x)]
        if isinstance(x, Node):
            return kinds.NODE.letter
        if isinstance(x, (np.integer, np.floating)):
            return kinds.INT.letter if isinstance(x, np.integer) else kinds.FLOAT.letter
        if type(x) in (list, tuple):
            return "l" if all(isinstance(item, Node) or type(item) in kinds.NUMBERS for item in x) else None
        # The numbers that are left are bools of NumPy and objects of subclasses, as members of an
        # `IntEnum`. Like dictionaries, they are understood anew in each call.
        if kinds.number_type(x) is not None or isinstance(x, dict) or self.array_class(x) is None:
            return None
        return kinds.ARRAY.letter


class _Call:
    """The operands of one call, sorted into lists named as the graph's columns, before they go there."""

    __slots__ = ("arrays", "floats", "ints", "lengths", "loose", "members", "op", "recorder", "refs")

    def __init__(self, recorder: Recorder, op: str | Callable[..., Any]) -> None:
        self.recorder = recorder
        self.op = op
        self.refs: list[int] = []
        self.ints: list[int] = []
        self.floats: list[float] = []
        self.arrays: list[Any] = []
        self.lengths: list[int] = []
        self.members: list[int] = []
        self.loose: list[Any] = []

    def slot(self, x: Any) -> Slot:
        """Append an operand that is no list, tuple or dict to the list of its kind; return its `Slot`.

        Shared and static values are in the slot only.

        Raises
        ------
        RecordError, BackendError
            For an operand of no known kind, or an array of a framework whose adapter is not installed.
        """
        if isinstance(x, Node):
            self.refs.append(self.recorder._reference(x))
            return Slot(kinds.SHARED_NODE if isinstance(x, SharedNode) else kinds.NODE)
        number = self.recorder._number(x)
        if number is not None:
            (self.floats if number is float else self.ints).append(number(x))
            return Slot(kinds.NUMBERS[number])
        # Types are told apart first, and `array_class`, which asks each imported framework, last.
        if x is None or isinstance(x, str):
            return self.static_slot(x)
        if isinstance(x, Shared):
            key = key_of(self.recorder.shared_key, x.value, "a shared operand", self.op)
            return Slot(kinds.SHARED, key, x.value)
        if isinstance(x, Static):
            return self.static_slot(x.value)
        if isinstance(x, RaggedOperand):
            return self.ragged_slot(x)
        # These are complex numbers and dates. No column holds them, and as static values they would divide
        # launches without a word.
        if isinstance(x, np.generic):
            raise RecordError(
                f"Expected an int, a float or a bool as a number. Received {type_of(x)}.",
                "`np.reshape(x, (1,))` is an array of one row, `multifold.static(x)` passes it as it is.",
            )
        array_class = self.recorder.array_class(x)
        if array_class is not None:
            self.arrays.append(x)
            return Slot(kinds.ARRAY, array_class, array_class)
        if hasattr(x, "shape") and hasattr(x, "dtype"):
            raise BackendError(
                f"The operand is an array of type {type(x).__module__}.{type(x).__qualname__}, which "
                "belongs to no backend that is installed here.",
                "install the adapter of its framework (`multifold backends` lists them).",
            )
        refuse_awaitable(x)
        if isinstance(x, Each):
            raise RecordError(
                "Expected a node, an array, a number or a hashable value as an operand. Received "
                "multifold.each(...).",
                "it marks a part of what an example returns; pass the value itself.",
            )
        try:
            hash(x)
        except TypeError:
            raise RecordError(
                "Expected a node, an array, a number or a hashable value as an operand. "
                f"Received {type_of(x)}.",
                "pass a part of it, as x.value, or multifold.static(x), which is passed as it is.",
            ) from None
        return self.static_slot(x)

    def static_slot(self, x: Any) -> Slot:
        """Return the slot of a static value: its key (`freeze`) and a copy (`snapshot`).

        Raises `RecordError`, which names the op, for a value that `freeze` refuses.
        """
        self.recorder._note_kept(x)
        return Slot(kinds.STATIC, key_of(freeze, x, "an operand", self.op), snapshot(x))

    def ragged_slot(self, operand: RaggedOperand) -> Slot:
        """Append the rows of a ragged operand to ``members`` and ``loose``, their number to ``lengths``.

        Return its slot. ``ragged([node 4, 0.5, node 2])``, the first in its call, makes members 4, -1, 2
        and loose 0.5.

        Raises
        ------
        RecordError
            If an item is no node, number or array of one row.
        """
        for x in operand.items:
            if isinstance(x, SharedNode):
                raise RecordError(
                    f"Expected nodes, numbers or arrays of one row in ragged(...). Received {x!r}.",
                    "leave .no_batch() out: each item of a ragged operand is one row.",
                )
            if isinstance(x, Node):
                self.members.append(self.recorder._reference(x))
            elif self.recorder._number(x) is not None or self.recorder.array_class(x) is not None:
                self.loose.append(x)
                self.members.append(-len(self.loose))
            else:
                raise RecordError(
                    f"Expected nodes, numbers or arrays of one row in ragged(...). Received {type_of(x)}.",
                    "each item is one row; nest operands that have several parts around ragged(...).",
                )
        self.lengths.append(len(operand.items))
        return Slot(kinds.RAGGED, operand.missing, operand.missing)
