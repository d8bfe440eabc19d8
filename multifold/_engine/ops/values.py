"""Values: what ops return and receive, an array or a tuple, list or dict of arrays.

An op may return ``(h, {"c": c})``, and a fold concatenates, gathers and splits such a result as if it
were one array: it treats each array inside alike. Everything that several rooms must know of values
stands here, once: how to follow the keys of ``node[1]["c"]`` into a result, what two values must have in
common before their rows may be concatenated (their *class*), and the rule "one node is one row".

Two results of an op on 2 and on 1 nodes, put together and read through ``node[1]["c"]``:

>>> import numpy as np
>>> from multifold._numpy.backend import NumpyBackend
>>> values = Values(NumpyBackend(), None)
>>> two = np.zeros((2, 3)), {"c": np.array([4, 5])}
>>> one = np.ones((1, 3)), {"c": np.array([6])}
>>> values.class_of(two) == values.class_of(one)
True
>>> both = values.concat([two, one])
>>> follow(both, [(1, 2), ("c", None)], LaunchError)
array([4, 5, 6])
>>> values.mismatch(both, 3), values.mismatch(both, 2)
(None, Mismatch(text='3 rows', array=True))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import optree

from multifold._engine.compiled.arrays import Integers
from multifold._engine.plan.columns import Columns
from multifold._engine.plan.wiring import Wiring
from multifold._engine.record.entry import RowEntry
from multifold._engine.record.graph import Part
from multifold._engine.record.kinds import number_type
from multifold.backend import Backend, Ragged
from multifold.errors import LaunchError, MultifoldError, RecordError, type_of
from multifold.operands import MissingRows, name_of_dtype

CONTAINERS = (tuple, list, dict)
"""What a result may be made of besides arrays; subclasses of these count too."""

PYTHONS: dict[str, type] = {"float": float, "int": int, "bool": bool}
"""Names of dtypes that each backend has its own of."""

FLOATS = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
"""The floating dtypes that ops compute in -> the bytes of a number."""

Steps = tuple[tuple[Any, int | None], ...]
"""The way to a part of a result: keys, each with the length that `Node.split` promised, if any."""

NO_AXIS = "an array of 0 dimensions"
ONE_ROW = "each output of an op must have one row for each node."
REDUCED = (
    " A sum, a mean or a loss of all rows is one number: along axis 1, or with "
    'reduction="none", it is one for each row.'
)
SQUEEZED = " squeeze() drops the axis of rows too where a launch has one row: squeeze(1) does not."
READ_WHOLE = " A result of another shape is read through node.no_batch()."
PARTS_HINT = ".split(n) and [...] name the parts of a tuple, list or dict that the op returns."


def steps_to(parts: Sequence[Part], number: int) -> Steps:
    """Return the way to part ``number`` of a result; () for part 0, the whole result.

    For ``node.split(2)[1]["c"]`` it is ``((1, 2), ("c", None))``. ``parts`` are all parts, by number.
    """
    steps: list[tuple[Any, int | None]] = []
    while number:  # part 0 is the whole result
        steps.append((parts[number].path[-1], parts[number].length))
        number = parts[number].parent
    return tuple(reversed(steps))


def array_at(steps: Steps, count: int) -> int | None:
    """Return the position of a part, by its steps, in a tuple of ``count`` arrays; None for other parts.

    >>> array_at(((1, 2),), 2), array_at(((1, None), ("c", None)), 2), array_at((), 2)
    (1, None, None)
    """
    if len(steps) != 1:
        return None
    key, length = steps[0]
    # `follow` takes care of a negative key, and refuses a `split` of another length.
    return key if type(key) is int and 0 <= key < count and length in (None, count) else None


def follow(
    value: Any, steps: Iterable[tuple[Any, int | None]], refuse: Callable[..., LaunchError], *who: Any
) -> Any:
    """Return the part of a result that some steps lead to; the result itself without steps.

    Parameters
    ----------
    value
        What the op returned.
    steps : iterable of (key, length)
        The way there, from `steps_to`; ``length`` is None where any number of parts will do.
    refuse : callable
        Makes the error that is raised where there is no such part, from the end of the sentence "The result
        of op 'f' ...", for example "has 3 parts, where .split(2) expects 2".
    *who
        What ``refuse`` takes before that text. A launch passes its number here, since making a function for
        each part that is read costs more than reading it.
    """
    for key, length in steps:
        if type(key) is RowEntry:
            value = value[:, key.number]
            continue
        # Only containers have parts: `node[0]` must not quietly mean row 0 of an array.
        if not isinstance(value, CONTAINERS):
            raise refuse(*who, f"is {type_of(value)}, of which [{key!r}] is no part")
        if length is not None and len(value) != length:
            raise refuse(*who, f"has {len(value)} parts, where .split({length}) expects {length}")
        try:
            value = value[key]
        except (LookupError, TypeError):
            raise refuse(*who, f"has no part [{key!r}]") from None
    return value


def leaves_of(value: Any) -> Sequence[Any]:
    """Return the arrays that a value consists of, in order; those of a dict by its sorted keys.

    What is no tuple, list or dict is one leaf. A None inside of a list, dict or nested tuple is left out.

    >>> leaves_of((1, {"b": 2, "a": 3})), leaves_of(5)
    ([1, 3, 2], (5,))
    """
    if not isinstance(value, CONTAINERS):
        return (value,)
    # Most ops return an array or a flat tuple such as (h, c), which is the list of its leaves already.
    if is_flat(value):
        return tuple(value)
    return optree.tree_leaves(value)


def is_container(found: Hashable) -> bool:
    """Return whether ``found``, which `Values.class_of` returned, is the class of a container.

    Such a class is a tuple: the structure, then the class of each leaf.
    """
    return isinstance(found, tuple) and isinstance(found[0], optree.PyTreeSpec)


def placeless(found: Any) -> Hashable:
    """Return a class (`Values.class_of`) without devices: structure, trailing shapes and dtypes."""
    return (found[0], *(leaf[:2] for leaf in found[1:])) if is_container(found) else found[:2]


def is_flat(value: Any) -> TypeGuard[tuple[Any, ...]]:
    """Return whether a value is a tuple of leaves, such as ``(h, c)``: no None, list, dict or tuple in it.

    Its arrays are handled one by one, which is quicker than to let optree open it.
    """
    if type(value) is not tuple:
        return False
    for entry in value:  # noqa: SIM110 - all() with a generator is slower
        # For optree None is no leaf but an empty container, so a tuple with one is left to it.
        if entry is None or isinstance(entry, CONTAINERS):
            return False
    return True


def opened(result: Any) -> Any:
    """Return a result with containers of subclasses as plain ones; the same object if it has none.

    optree takes an instance of a subclass for a leaf, unless somebody registered the subclass. Models of
    Hugging Face return such a subclass of `dict`.
    """
    if not isinstance(result, CONTAINERS):
        return result
    for leaf in leaves_of(result):
        if isinstance(leaf, CONTAINERS):
            return optree.tree_map(as_builtin, result, none_is_leaf=True)
    return result


def as_builtin(leaf: Any) -> Any:
    """Return a tuple, list or dict, of whatever subclass, as a plain one, and containers inside of it too.

    Anything else is returned as it is.
    """
    if not isinstance(leaf, CONTAINERS):
        return leaf
    if isinstance(leaf, dict):
        return {key: opened(item) for key, item in leaf.items()}
    return (tuple if isinstance(leaf, tuple) else list)(map(opened, leaf))


def miscount(found: int | None, rows: int) -> str:
    """Return what an array has if it has not ``rows`` rows, ready for a message; ``""`` if it has.

    ``found`` is its number of rows, None for an array of 0 dimensions.

    Examples
    --------
    >>> miscount(3, 3), miscount(1, 3), miscount(None, 3)
    ('', '1 row', 'an array of 0 dimensions')
    """
    if found == rows:
        return ""
    return NO_AXIS if found is None else counted(found, "row")


def counted(number: int, noun: str) -> str:
    """Return a number and a noun, with an s unless the number is 1: ``"1 row"``, ``"3 rows"``."""
    return f"{number} {noun}" + ("s" if number != 1 else "")


def classes_differ(where: str, classes: Iterable[Hashable], hint: str) -> LaunchError:
    """Return the error of rows of different ``classes`` (`Values.class_of`) that were to be concatenated.

    ``where`` says of what they are the rows. Where the classes differ in dtype or device only, the hint
    says so before ``hint``.
    """
    classes = list(classes)
    # A class begins with the trailing shape, or with the structure of a container.
    if len({found[:1] if isinstance(found, tuple) else found for found in classes}) == 1:
        hint = f"let an op bring them to one dtype and device, or {hint}"
    return LaunchError(
        f"Expected the rows of {where} to agree in structure, trailing shape, dtype and device. "
        f"Received {' and '.join(map(str, classes))}.",
        hint,
    )


def groups_differ(classes: Iterable[Hashable]) -> LaunchError:
    """Return the error of a group of outputs whose rows, of these classes, can't be concatenated."""
    return classes_differ("a group", classes, "ask for them as two groups.")


def ragged_rows_differ(classes: Iterable[Hashable], call: str) -> LaunchError:
    """Return the error of a ragged operand whose rows are of these classes; ``call`` names the call."""
    return classes_differ(
        f"a ragged operand, in the call {call},",
        classes,
        "rows of two shapes or dtypes are two operands: ragged(...), ragged(...).",
    )


class Mismatch(NamedTuple):
    """What a result has where an array of one row for each node was expected."""

    text: str
    """The end of "The op returned ..."."""
    array: bool
    """Whether it is an array of the backend, of another number of rows."""

    @property
    def hint(self) -> str:
        """What the op is to return instead, as the hint of an error."""
        if self.array:
            return ONE_ROW + REDUCED * (self.text == NO_AXIS)
        if self.text.startswith("a NoneType"):
            return "is a `return` missing in the op?"
        return (
            "an op returns arrays of its backend, or tuples, lists and dicts of those: leave out .numpy(), "
            ".tolist() and .item(). A model of multifold computes on another backend after model.on(...)."
        )


@dataclass(slots=True)
class Values:
    """Handles values on one device, each an array of one backend or a container of arrays.

    Parameters
    ----------
    backend : Backend
        What concatenates, gathers and splits the arrays.
    device
        Where numbers and NumPy arrays go, as the framework names it; None for its default.
    """

    backend: Backend
    device: Any
    _loose_classes: dict[Hashable, Hashable] = field(default_factory=dict)
    _agreed: dict[frozenset[Hashable], Hashable] = field(default_factory=dict)

    def placed(self) -> AbstractContextManager[Any]:
        """Return a context in which the framework computes on ``device``; None is its default."""
        return self.backend.placed(self.device)

    def class_of(self, value: Any) -> Hashable:
        """Return what values must have in common with ``value`` for their rows to be concatenated.

        For an array that is (trailing shape, dtype, device), as `Backend.signature` says; for a container
        its structure, then that of each array.
        """
        if not isinstance(value, CONTAINERS):
            return self.backend.signature(value)
        leaves, structure = optree.tree_flatten(value)
        return structure, *map(self.backend.signature, leaves)

    def agreed(self, classes: Collection[Hashable]) -> Hashable | None:
        """Return the class of rows of these classes after they are concatenated; None if they can't be.

        Classes are those of `class_of`. The rows of one ragged operand, or of one group of the outputs, may
        differ in dtype. Then the framework promotes them or refuses to: PyTorch makes float32 of float32
        and bfloat16. The answer is kept.
        """
        distinct = frozenset(classes)
        if len(distinct) == 1:
            return next(iter(distinct))
        # The framework is asked once for each set of classes: each launch that meets them asks again.
        if distinct not in self._agreed:
            self._agreed[distinct] = self._promoted(list(distinct))
        return self._agreed[distinct]

    def _promoted(self, classes: Sequence[Any]) -> Hashable | None:
        """Return what `agreed` does, for two or more distinct classes: of containers, leaf by leaf."""
        structures = {x[0] if is_container(x) else None for x in classes}
        if structures == {None}:
            return self.backend.promoted(classes)
        if len(structures) > 1:
            return None
        leaves = tuple(map(self.agreed, zip(*(x[1:] for x in classes), strict=True)))
        return None if None in leaves else (*structures, *leaves)

    def may_lack_rows(self, row_class: Any, missing: MissingRows) -> bool:
        """Return whether a ragged operand without rows may share a launch with rows of class ``row_class``.

        ``missing`` is what its caller said of missing rows: it must agree in structure, trailing shapes and
        dtypes, since that is what the operand receives in a launch of its own.
        """
        if missing not in self._loose_classes:
            self._loose_classes[missing] = self.class_of(self.no_rows(missing))
        own: Any = self._loose_classes[missing]
        return placeless(row_class) == placeless(own)

    def class_of_loose(self, x: Any) -> Hashable:
        """Return the class of a loose value, a number or an array of one row, once it is on the device.

        A group may hold thousands of numbers. The first of each Python type and NumPy dtype becomes an
        array of the backend, which knows the class; the others look it up.
        """
        key: Hashable = number_type(x)
        if key is None and isinstance(x, np.ndarray):
            key = x.dtype, x.shape
        if key is None:
            return self.backend.signature(x)
        if key not in self._loose_classes:
            self._loose_classes[key] = self.backend.signature(self.stack([x]))
        return self._loose_classes[key]

    def mismatch(self, value: Any, rows: int) -> Mismatch | None:
        """Return what is wrong with the first leaf that is no array of ``rows`` rows; None if nothing is.

        An array of another framework is wrong, too.
        """
        backend = self.backend
        for leaf in leaves_of(opened(value)) if isinstance(value, CONTAINERS) else (value,):
            if not backend.owns(leaf):
                text = f"{type_of(leaf)}, which is no array of '{backend.name}'"
                return Mismatch(text, array=False)
            try:
                found = backend.rows(leaf)
            except (IndexError, TypeError):  # an array of 0 dimensions has no rows
                found = None
            if found != rows:
                return Mismatch(miscount(found, rows), array=True)
        return None

    def concat(self, values: Sequence[Any]) -> Any:
        """Return the rows of one or more values of one class, one after the other: ``(n1, *s), (n2, *s)``.

        A single value is returned as it is.
        """
        if len(values) == 1:
            return values[0]
        if not isinstance(values[0], CONTAINERS):
            return self.backend.concat(values)
        if is_flat(values[0]):
            return tuple(map(self.backend.concat, zip(*values, strict=True)))
        return optree.tree_map(lambda *xs: self.backend.concat(xs), *values)

    def gather(self, value: Any, rows: Any) -> Any:
        """Return rows of a value, repeats allowed: ``(m, *s)`` gives ``(n, *s)`` for ``n`` row numbers.

        ``rows`` is an index array of the backend, such as `indices` returns.
        """
        if not isinstance(value, CONTAINERS):
            return self.backend.gather(value, rows)
        if is_flat(value):
            return tuple([self.backend.gather(x, rows) for x in value])
        return optree.tree_map(lambda x: self.backend.gather(x, rows), value)

    def split(self, value: Any, sizes: Sequence[int]) -> Sequence[Any]:
        """Return consecutive rows of a value, a value for each of ``sizes``, which together cover all rows.

        With one size that is the value itself.
        """
        if len(sizes) == 1:
            return (value,)
        if not isinstance(value, CONTAINERS):
            return self.backend.split(value, sizes)
        if is_flat(value):
            return list(zip(*[self.backend.split(x, sizes) for x in value], strict=True))
        leaves, structure = optree.tree_flatten(value)
        by_leaf = [self.backend.split(leaf, sizes) for leaf in leaves]
        return [optree.tree_unflatten(structure, stretch) for stretch in zip(*by_leaf, strict=True)]

    def protected(self, value: Any) -> Any:
        """Return a value whose arrays an op can't write to; the value itself if the backend cannot protect.

        Its arrays share their memory with those of the result. Containers that optree does not open keep
        theirs as they are.
        """
        backend = self.backend
        if not backend.protects:
            return value
        if not isinstance(value, CONTAINERS):
            return backend.protected(value)
        return optree.tree_map(backend.protected, value)

    def unprotected(self, value: Any) -> Any:
        """Return a value whose arrays the user may write to: those that `protected` made are copied."""
        backend = self.backend
        if not backend.protects:
            return value
        if not isinstance(value, CONTAINERS):
            return backend.unprotected(value)
        return optree.tree_map(backend.unprotected, value)

    def narrowed(self, leaves: Sequence[Any], floats: Sequence[int]) -> Sequence[Any]:
        """Return the operands of a launch, with floats of Python cast to the dtype of the arrays.

        ``x * 0.5`` is bfloat16 where ``x`` is, since the number has no dtype of its own; an array of the
        default float would make it float32. So if all float arrays in ``leaves`` but these have one dtype,
        and it is narrower, these are cast to it; else ``leaves`` itself is returned. ``floats`` has the
        positions of operands that were recorded as floats of Python, at least one.
        """
        backend = self.backend
        beside = set()
        for i, leaf in enumerate(leaves):
            if i not in floats:
                parts = leaves_of(leaf.values if type(leaf) is Ragged else leaf)
                beside.update([x.dtype for x in parts if backend.owns(x)])
        # All floats of Python have one dtype on a backend, so the first operand of them says it.
        own = leaves[floats[0]].dtype
        if beside <= {own}:  # most launches
            return leaves
        names = {name for dtype in beside if (name := float_name(dtype)) is not None}
        name = names.pop() if len(names) == 1 else None
        if name is None or FLOATS[name] >= FLOATS[float_name(own) or name]:
            return leaves
        return [backend.cast(x, name) if i in floats else x for i, x in enumerate(leaves)]

    def constant(self, x: np.ndarray) -> Any:
        """Return a NumPy array as one of the backend on the device; it may share the memory of ``x``.

        Raises what the framework raises for its dtype, and `LaunchError` if no array can be put on the
        device.
        """
        try:
            return self.backend.constant(x, self.device)
        except Exception:
            if self.device is not None:
                # Either the dtype fails or the device. One plain number tells: if it can't be sent either,
                # `sent` raises the error that names the device.
                self.sent([np.zeros(1, self.backend.number_dtype(int))])
            raise

    def sent(self, arrays: Sequence[np.ndarray]) -> Sequence[Any]:
        """Return NumPy arrays, all of one dtype of the backend, as arrays on the device, in order.

        One transfer takes all. Raises `LaunchError`, which names the device, if that fails.
        """
        try:
            return self.backend.constants(arrays, self.device)
        except MultifoldError:
            raise
        except Exception as error:
            raise LaunchError(
                f"The numbers of a run could not be put on device {self.device!r}: "
                f"{type(error).__name__}: {str(error).rstrip('. ')}.",
                "leave `device`, or a door's `cuda=True`, out: then numbers go to the device of the model.",
            ) from error

    def numbers(self, xs: Any, number: type) -> Any:
        """Return Python numbers, or a NumPy array of them, as an array on the device.

        ``number`` is `int`, `float` or `bool`, and says the dtype (`Backend.number_dtype`). Raises
        `LaunchError` for an int that does not fit.
        """
        typed = as_dtype(np.array(xs), self.backend.number_dtype(number))
        return self.sent([typed])[0]

    def upload(self, arrays: Sequence[np.ndarray], number: type) -> Sequence[Any]:
        """Return NumPy arrays of numbers on the device, in order and in one transfer; () for none.

        ``number`` is `int`, `float` or `bool`, and says the dtype. The backend joins several arrays, which
        copies them. A single one may share its memory with what the op receives, and an op may write to its
        operands. Then it is copied here, because a plan is used again and must not change.
        """
        if not arrays:
            return ()
        dtype = self.backend.number_dtype(number)
        typed = [x if x.dtype == dtype else as_dtype(x, dtype) for x in arrays]
        if len(typed) == 1 and typed[0] is arrays[0]:
            typed = [typed[0].copy()]
        return self.sent(typed)

    def upload_all(
        self, wiring: Wiring, columns: Columns
    ) -> tuple[Sequence[Any], dict[type, Sequence[Any]]]:
        """Return the index arrays of a wiring on the device, and a dict: `int`, `float`, `bool` -> arrays.

        These have the numbers that launches receive (`Wiring.numbers_of`); ``columns`` hold the recorded
        ones. There is one transfer for each type.
        """
        numbers = wiring.numbers_of(columns)
        count = len(wiring.indices)
        # Index arrays and operands of integers have one dtype, so one transfer takes both.
        ints = self.upload([*wiring.indices, *numbers.pop(int)], int)
        found = {kind: self.upload(arrays, kind) for kind, arrays in numbers.items()}
        return ints[:count], {**found, int: ints[count:]}

    def indices(self, rows: Integers) -> Any:
        """Return row numbers as an array on the device, in the backend's dtype of ints.

        The caller gives ``rows`` up: the result may share its memory.
        """
        return self.sent([as_dtype(rows, self.backend.number_dtype(int))])[0]

    def stack(self, xs: Sequence[Any]) -> Any:
        """Return numbers, or arrays of one row, as one array with a row for each, in order.

        All are of one class (`class_of_loose`): ``[1, 2]`` gives ``(2,)``, two arrays ``(1, *s)`` give
        ``(2, *s)``. A NumPy array is copied; a single array of the backend is returned as it is.
        """
        # 1 and np.int64(1) may stand in one group: one Python type at a time becomes a batch.
        if len(set(map(type, xs))) > 1:
            return self.backend.concat([self.stack([x]) for x in xs])
        number = number_type(xs[0])
        if number is not None:
            return self.numbers(xs, number)
        if isinstance(xs[0], np.ndarray):
            # The user may write to the array after the run, and an op to its operand: never share it.
            return self.constant(np.concatenate(xs) if len(xs) > 1 else xs[0].copy())
        return self.backend.concat(xs) if len(xs) > 1 else xs[0]

    def shared(self, x: Any) -> Any:
        """Return a shared value as ops receive it: a NumPy array as one of the backend, else ``x`` itself.

        An array that can be written to is copied first: it is the caller's own, as with `Unfold`. The copy
        that a fold has recorded is read-only, and the backend copies it again only if an op could write to
        it.
        """
        if not isinstance(x, np.ndarray):
            return x
        return self.constant(x.copy() if x.flags.writeable else x)

    def ragged(self, rows: Sequence[Any], missing: Any) -> Ragged:
        """Return the ragged operand of one node, with these rows, each a value of one row, in order.

        ``missing``, a `MissingRows`, says of what shape and dtype ``values`` is without rows.
        """
        values = self.concat(rows) if rows else self.no_rows(missing)
        return Ragged(values, self.numbers([len(rows)], int), self.numbers([0] * len(rows), int))

    def no_rows(self, missing: MissingRows) -> Any:
        """Return arrays of shape ``(0, *s)``: ``values`` of a ragged operand where no node has a row.

        ``missing`` says shape and dtype; for a tuple of shapes it is a tuple of arrays.
        """

        def make(shape: tuple[int, ...], dtype: str) -> Any:
            number = PYTHONS.get(dtype)
            # A dtype that no number of Python has, as float16, is made of floats by a cast.
            found = self.numbers(np.zeros((0, *shape)), number or float)
            return found if number else self.backend.cast(found, dtype)

        return missing.made(make)


def as_dtype(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return numbers in a dtype of the backend; ``values`` itself if it has that dtype.

    Raises `LaunchError` for integers that do not fit: JAX counts in 32 bits by default, and NumPy's
    `astype` would turn 2**40 into 0 there, without a word.
    """
    if values.dtype == dtype:
        return values
    if dtype.kind == "i" and len(values):
        info = np.iinfo(dtype)
        for x in (values.min(), values.max()):
            if not info.min <= x <= info.max:
                raise LaunchError(
                    f"Expected int operands that fit the backend's {dtype}. Received {x}.",
                    "pass the value as an array of a wider dtype, of shape (1,).",
                )
    return values.astype(dtype)


@lru_cache(64)
def float_name(dtype: Any) -> str | None:
    """Return the NumPy name of a dtype of any framework if it is one of `FLOATS`, else None."""
    try:
        name = name_of_dtype(dtype)
    except RecordError:  # a dtype without a NumPy name, as that of JAX's random keys
        return None
    return name if name in FLOATS else None


def sizes_of(leaves: Sequence[Any], result: Any = ()) -> frozenset[int]:
    """Return the set of the lengths of all axes but the first, of the arrays in ``leaves`` and ``result``.

    >>> sorted(sizes_of([np.zeros((2, 3))], np.zeros((2, 5, 7))))
    [3, 5, 7]
    """
    parts = [part for leaf in leaves for part in (leaf if type(leaf) is Ragged else (leaf,))]
    found = set[int]()
    for part in (*parts, result):
        for x in leaves_of(opened(part)):
            found.update(tuple(getattr(x, "shape", ()))[1:])
    return frozenset(found)
