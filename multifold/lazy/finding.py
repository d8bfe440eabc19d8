"""Found cells in frameworks that compile calls, as TensorFlow and JAX (see `multifold.lazy.found`).

A straight function is tried once for each kind of call, where the framework draws its graph or traces it:
under a guard that stops it before it does what is seen outside of a call. A call is recorded even if its
arrays are computed, as long as one of them is the example's own: nothing else records functions of these.

    def leaf(table, word):
        return tf.tanh(tf.gather(table, word))

If all examples get the same table, as in ``leaf(table, 3)`` and ``leaf(table, 5)``, the numbers alone tell
the calls apart. The first such call runs as it is, and shows whether its numbers can be operands.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar

import numpy as np
import optree

from multifold._engine.ops.reach import CONTAINERS
from multifold.errors import RecordError
from multifold.lazy.beyond import stores_of
from multifold.lazy.calls import BY_ROWS
from multifold.lazy.current import REFUSALS, Recording, recording_of
from multifold.lazy.operators import CompiledCall, OperatorRecorder
from multifold.lazy.recorder import KnownCall
from multifold.lazy.source import source_of
from multifold.lazy.statements import name_of_call
from multifold.lazy.straight import Crooked, StraightGuard, adds_in_place, changers_of
from multifold.lazy.writes import CHANGERS

MOST_INT = 1 << 31
"""Numbers of Python that are larger may not fit into arrays."""


class NumberOperand(int):
    """A number of Python that may differ between examples, as an operand of a found cell."""

    shape = ()
    """That of the array which it becomes, as `explain` shows it."""


class FoundCompiled(CompiledCall):
    """A call of a found cell: a straight function, recorded whole without being named.

    Attributes
    ----------
    cell : FoundCell
        The function that it is a call of.
    """

    cell: Any = None

    def one(self, *operands: Any) -> Any:
        """Do what `LazyCall.one` does; raise `Crooked` if it returns an operand, or a container it got."""
        args, kwargs = self.arguments(operands)
        found = self.func(*args, **kwargs)
        containers = [x for x in (*args, *kwargs.values()) if type(x) in CONTAINERS]
        given = {id(x) for x in (*operands, *containers)}
        if id(found) in given or not given.isdisjoint(map(id, optree.tree_leaves(found))):
            raise Crooked("it returns what it was given")
        return found

    def belongs_to(self, cell: Any) -> None:
        """Set ``cell``."""
        self.cell = cell

    def refuse_unfit(self) -> None:
        """Raise `Crooked` if its calls cannot run together, or do not do then what they do alone."""
        if BY_ROWS in self.__name__:
            raise Crooked("its calls cannot run together")

    def __call__(self, *rows: Any) -> Any:
        self.cell.note_launch()
        return super().__call__(*rows)  # type: ignore[misc]


def only_index(
    function: Any,
    numbers: Sequence[int],
    indexers: Collection[str] = (),
    makers: Collection[str] = (),
) -> bool:
    """Return whether a function uses some of its parameters, by position, as indices and for nothing else.

    ``indexers`` are names of functions to which a number is an index, as ``take``, and ``makers`` of those
    that make an array of a number, as ``asarray``.

    >>> def leaf(table, word):
    ...     return table[word]
    >>> def scaled(x, factor):
    ...     return x * factor
    >>> only_index(leaf, [1]), only_index(scaled, [1])
    (True, False)
    """
    source = source_of(function)
    if source is None or max(numbers) >= function.__code__.co_argcount:
        return False
    names = {function.__code__.co_varnames[i] for i in numbers}
    used = [x for x in ast.walk(source.tree) if isinstance(x, ast.Name) and x.id in names]
    indices = [x.slice for x in ast.walk(source.tree) if isinstance(x, ast.Subscript)]
    for x in ast.walk(source.tree):
        if isinstance(x, ast.Call):
            given = [*x.args, *[keyword.value for keyword in x.keywords]]
            name = name_of_call(x)
            # A function that makes an array of a number, and is told its dtype, may refuse a large one.
            indices += given if name in indexers or (name in makers and len(given) == 1) else []
    return all(isinstance(x.ctx, ast.Load) and any(x is y for y in indices) for x in used)


class FindingRecorder(OperatorRecorder):
    """Records plain programs, and finds straight functions in them.

    Subclasses say of which class the calls of these are.

    Attributes
    ----------
    indexers : frozenset of str
        Names of the framework's functions to which a number is an index.
    makers : frozenset of str
        Names of those that make an array of a number.
    not_whole : set of Hashable
        Keys of calls that raised an error of their own when they were tried.
    restless : dict of int to object
        Functions and objects, by ``id``, that may change in this run, so no call with them is recorded
        whole.
    of_program : dict of int to object
        Functions and objects that the program reaches, by ``id``, once this run has asked.
    """

    indexers: ClassVar[frozenset[str]] = frozenset()
    makers: ClassVar[frozenset[str]] = frozenset()

    found_calls: ClassVar[type[FoundCompiled]]
    """The class of their calls."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.not_whole = set[Hashable]()
        self.restless: dict[int, Any] = {}
        self.of_program: dict[int, Any] = {}

    @contextlib.contextmanager
    def recording(self, same: Iterable[Any]) -> Iterator[None]:
        before = self.restless, self.of_program
        self.restless, self.of_program = {}, {}
        try:
            with super().recording(same):
                yield
        finally:
            self.restless, self.of_program = before

    def forget_kinds(self) -> None:
        super().forget_kinds()
        self.not_whole.clear()

    def key_of(self, x: Any, operands: list[Any]) -> Hashable:
        if type(x) is NumberOperand:
            operands.append(x)
            return NumberOperand
        return super().key_of(x, operands)

    def is_operand(self, x: Any) -> bool:
        return type(x) is NumberOperand or super().is_operand(x)

    def form_of(self, recording: Recording, x: Any) -> Any:
        if type(x) is not NumberOperand:
            return super().form_of(recording, x)
        return self.forms.number(self.dtype_of(recording.backend.number_dtype(int)))

    def dtype_of(self, dtype: Any) -> Any:
        """Return the framework's dtype for one of NumPy."""
        return dtype

    def own_row(self, recording: Recording, x: Any) -> Any:
        return int(x) if type(x) is NumberOperand else super().own_row(recording, x)

    def stays(self, x: Any) -> bool:
        kind = type(x)
        if id(x) in self.same:
            return not stores_of(recording_of()).contents
        if isinstance(x, self.arrays):  # a tracer, say, whose type is not among `plain_types`
            return True
        # Variables that a function binds may change as long as the function around it runs.
        if kind is FunctionType and x.__closure__ and x not in self.like_cells:
            return False
        is_object = kind is FunctionType or (not isinstance(x, type) and hasattr(x, "__dict__"))
        if not is_object or id(x) in self.restless or not self.is_of_program(x):
            return False
        added = [known for known in (self.seen, self.seen_before, self.beyond) if id(x) not in known]
        with REFUSALS.kept(), contextlib.suppress(RecordError):
            self.seen_of(x)
        if id(x) in self.stamps:
            return True
        self.restless[id(x)] = x
        for known in added:  # no call is recorded with it: it is not to be compared at the end of the run
            known.pop(id(x), None)
        return False

    def is_of_program(self, x: Any) -> bool:
        """Return whether the program reaches a function or an object.

        It does not reach an object of one example alone: each call with such a one would be a kind of its
        own.
        """
        recording = recording_of()
        if not self.of_program:
            roots = recording.program[:1]  # without the arguments of the example
            parts = [part for root in roots for part in recording.reached(root)]
            self.of_program = {id(part): part for part in parts}
        return id(x) in self.of_program or (type(x) is FunctionType and x in recording.found.cells)

    def find(
        self,
        recording: Recording,
        key: tuple[Any, ...],
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[Any],
    ) -> tuple[KnownCall, bool] | None:
        cell: Any = recording.found.cells[func]
        if cell.reason is not None or stores_of(recording).settings:
            return None
        if all(id(x) in self.shared for x in operands):
            numbers = [i for i, x in enumerate(args) if type(x) is int]
            if cell.takes_numbers is None and numbers:
                cell.note_numbers(self.may_take_numbers(recording, cell, func, args, kwargs, numbers))
            return None
        known = self.known.get(key)
        if known is None and key not in self.not_whole:
            try:
                known = self.known[key] = self.tried(recording, cell, func, args, kwargs)
                cell.note_kind()
            except (Crooked, RecordError) as reason:
                cell.give_up(str(reason).partition("\n")[0])
            except Exception:  # noqa: BLE001 - the function itself raises it, or says what to do
                self.not_whole.add(key)
        return None if known is None else (known, True)

    def may_take_numbers(
        self,
        recording: Recording,
        cell: Any,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        numbers: Sequence[int],
    ) -> bool:
        """Return whether numbers among the arguments of a straight function may be operands.

        ``numbers`` are their positions. They may if the function uses them as indices alone, runs with an
        array in the place of each, and returns what it returns for a number: arrays of the same forms.
        """
        if func not in self.like_cells and not only_index(func, numbers, self.indexers, self.makers):
            return False
        try:
            with REFUSALS.kept():
                known = self.tried(recording, cell, func, self.with_numbers(args), kwargs)
                with recording.paused():
                    results, structure = self.flatten(func(*args, **kwargs))
        except (Crooked, Exception):  # noqa: BLE001 - its numbers are constants then
            return False
        if not all(isinstance(x, self.arrays) for x in results):
            return False
        if known.forms != [*map(self.forms.of, results)]:
            return False
        # The framework may say otherwise how results are nested, so they are nested as it says.
        again = results[0] if known.structure is None else known.structure.unflatten(results)
        return bool(self.flatten(again)[1] == structure)

    def with_numbers(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([NumberOperand(x) if type(x) is int and abs(x) < MOST_INT else x for x in args])

    def compared(self, x: Any) -> Mapping[str, Any]:
        """Return the attributes of an object whose changes are seen from one run to the next."""
        return vars(x)

    def tried(
        self, recording: Recording, cell: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> KnownCall:
        """Return the `KnownCall` of a function that may be straight; raise what says that it is not."""
        seen = [self.seen[id(x)] for x in (func, *args, *kwargs.values()) if id(x) in self.seen]
        parts = [x for one in seen for x in (one.object, *one.parts) if hasattr(x, "__dict__")]
        guard = StraightGuard(lambda module: f"{module}.".startswith(self.inner), changers_of(parts))
        with REFUSALS.kept(), guard:
            known = self.learn(recording, self.found_calls, func, args, kwargs, ())
        for x in parts:
            hidden = sorted(guard.names.intersection(vars(x)).difference(self.compared(x)))
            if hidden:
                raise Crooked(f"it names {hidden[0]!r}, which may be another one in the next run")
        mutable = [x for x in (*args, *kwargs.values()) if type(x) in (*CONTAINERS, np.ndarray)]
        if mutable and any(map(adds_in_place, guard.codes.values())):
            raise Crooked("it may change what it is given in place")
        if any(type(x) is np.ndarray for x in mutable) and not guard.names.isdisjoint(CHANGERS):
            raise Crooked("it may change an array that it is given")
        known.call.refuse_unfit()
        known.call.belongs_to(cell)
        return known
