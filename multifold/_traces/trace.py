"""Traces: one example's recorded calls, kept as integers.

The types, typed levels and operands of one example do not depend on the rest of a minibatch. A `Trace`
keeps them as arrays, so that a minibatch is a concatenation, a few offsets and one sort
(`multifold._traces.minibatch`). Traces hold
integers, numbers and NumPy arrays only; they pickle, compare by value and import no framework, so
they are made in the workers of a data loader, or once per data set.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import numpy as np

from multifold._compiled import COUNTERS
from multifold._compiled.arrays import Integers, starts, unique_pairs
from multifold._compiled.forms import own
from multifold._record.damage import LAYOUT, bytes_of, checksum, damaged
from multifold._record.freezing import freeze, read_only_copy, snapshot
from multifold._record.graph import Graph, Part
from multifold._record.recorder import Recorder, numpy_class
from multifold._record.signature import Signature
from multifold._schedule.columns import Columns
from multifold._schedule.outputs import take_apart
from multifold._schedule.schedule import call_types, problem_of
from multifold.errors import RecordError


class TraceRecorder(Recorder):
    """Records the calls of one example; its leaf arrays are NumPy's."""

    def __init__(self) -> None:
        self._graph = Graph()

    def array_class(self, x: Any) -> Hashable | None:
        """Return the class of a NumPy array of one row; refuse arrays of a framework."""
        if isinstance(x, np.ndarray):
            return numpy_class(x)
        if hasattr(x, "shape") and hasattr(x, "dtype"):
            raise RecordError(
                "Expected NumPy arrays and numbers in a trace. Received an array of type "
                f"{type(x).__module__}.{type(x).__qualname__}.",
                "traces are made without any framework: pass x.numpy(), or record with a Fold.",
            )
        return None

    def value(self, *_: Any) -> NoReturn:
        """Refuse: a trace is recorded before anything is computed."""
        raise RecordError(
            "Expected no value to be awaited in a trace, which holds calls and no values.",
            "fold.run(model, examples, fn) runs examples that look at values.",
        )

    values = gather = value

    def unroll(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse: the cells of a framework are opened by its adapter."""
        raise RecordError(
            "Expected no recurrent cell to be unrolled in a trace, which is made without any framework.",
            "record its steps: `output, state = recorder.add(step, x, state).split(2)`.",
        )

    def shared_key(self, x: Any) -> Hashable:
        """Return a key of the value: traces that were pickled apart may share equal arrays."""
        return freeze(x)

    def shared_value(self, x: Any) -> Any:
        """Return a copy: what is compared by value must not change under the key."""
        return read_only_copy(x) if isinstance(x, np.ndarray) else snapshot(x)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What the traces of one function have in common: distinct signatures and parts, and the results.

    Attributes
    ----------
    signatures, parts : tuples
        Numbered in the order in which they were recorded.
    files : tuple of str
        Where each signature was recorded first.
    structure : PyTreeSpec
        The structure that the traced function returned.
    wanted : tuple of str
        What each of the results is (`Outputs.wanted`).
    plain : bool
        Whether levels are those of signatures: no node is shared, and no cycle of types is wide.
    """

    signatures: tuple[Signature, ...]
    parts: tuple[Part, ...]
    files: tuple[str, ...]
    structure: Any
    wanted: tuple[str, ...]
    plain: bool

    @cached_property
    def key(self) -> Hashable:
        """What is compared."""
        signatures = tuple(signature.key for signature in self.signatures)
        return signatures, tuple(map(part_key, self.parts)), self.structure, self.wanted, self.plain

    @cached_property
    def words(self) -> bytes:
        """What a checksum can know of a vocabulary: names, kinds of operands, parts, files, results."""
        kinds = [(s.name, *[slot.kind.name for slot in s.slots]) for s in self.signatures]
        parts = [(part.parent, part.length, len(part.path)) for part in self.parts]
        return repr((kinds, parts, self.files, self.wanted, self.plain)).encode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (self is other or self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> Any:
        return make_vocabulary, tuple(getattr(self, f.name) for f in fields(self))


KNOWN: WeakValueDictionary[Hashable, Vocabulary] = WeakValueDictionary()
"""The vocabularies of the traces that are alive, by their keys."""


def make_vocabulary(*values: Any) -> Vocabulary:
    """Return a vocabulary, one object for equal ones: merging then meets few objects."""
    made = Vocabulary(*values)
    return KNOWN.setdefault(made.key, made)


def part_key(part: Part) -> Hashable:
    """Return what two parts have in common when they are the same place of a result."""
    return freeze(part.path), part.parent, part.length


INTEGERS = ("signature", "refs", "ints", "lengths", "members", "needed", "levels", "pairs", "highest")
"""The columns of integers of a trace; behind them come the references of each result."""

COUNTED = (*INTEGERS, "floats", "arrays", "loose")
"""What a trace says the sizes of first; behind them come those of the results."""


@dataclass(frozen=True, eq=False)
class Trace:
    """One example's calls; made by `trace`, run by `Fold.run`.

    All columns of integers are one array, so that a minibatch is one concatenation: first the sizes
    named by `COUNTED` and those of the results, then the columns named by `INTEGERS` and the results.
    ``signature``, ``refs``, ``ints``, ``lengths`` and ``members`` are those of `Columns`,
    ``needed`` holds the calls that the results need, ``levels`` the typed level of each of them,
    ``pairs`` the distinct (signature, level from 0) of source and reader over all edges, four numbers
    each, ``highest`` the highest level of each signature.

    Attributes
    ----------
    vocabulary : Vocabulary
        The distinct signatures and parts, and the structure of the results.
    integers : int64 array
        Sizes and columns.
    floats : float64 array
        The float operands.
    arrays, loose : tuples
        Leaf arrays, and the numbers and arrays inside ragged operands and groups.
    lines : int64 array
        Where each call was recorded.
    """

    vocabulary: Vocabulary
    integers: Integers
    floats: np.ndarray
    arrays: tuple[np.ndarray, ...]
    loose: tuple[Any, ...]
    lines: Integers

    def __post_init__(self) -> None:
        if what := self.what_is_wrong():
            raise damaged(what)

    def what_is_wrong(self) -> str:
        """Return what is wrong with the sizes of the trace; nothing if they agree.

        Merging checks the integers themselves.
        """
        if not isinstance(self.vocabulary, Vocabulary):
            return f"its vocabulary is of type {type(self.vocabulary).__qualname__}."
        for name, dtype in (("integers", np.int64), ("floats", np.float64), ("lines", np.int64)):
            column = getattr(self, name)
            if not isinstance(column, np.ndarray) or column.dtype != dtype or column.ndim != 1:
                shown = said_array(column) if isinstance(column, np.ndarray) else type(column).__qualname__
                return f"its {name} are no column of {np.dtype(dtype)} but {shown}."
        if type(self.arrays) is not tuple or type(self.loose) is not tuple:
            return "its arrays or loose values are no tuple."
        if not all(isinstance(x, np.ndarray) and x.shape[:1] == (1,) for x in self.arrays):
            return "its arrays are not all NumPy arrays of one row."
        wanted, counted = self.vocabulary.wanted, len(COUNTED)
        sizes = self.integers[: counted + len(wanted)].tolist()
        if len(sizes) < counted + len(wanted):
            return f"it has {len(sizes)} integers, too few for its sizes."
        stored = [*sizes[: len(INTEGERS)], *sizes[counted:]]
        if min(stored) < 0 or sum(stored) + len(sizes) != len(self.integers):
            return f"its sizes, {sizes}, are not those of its {len(self.integers)} integers."
        kept = [len(self.floats), len(self.arrays), len(self.loose), len(self.lines)]
        if kept != [*sizes[len(INTEGERS) : counted], sizes[0]]:
            return f"it has {kept} floats, arrays, loose values and lines, and says that it has others."
        highest, signatures = sizes[INTEGERS.index("highest")], len(self.vocabulary.signatures)
        if highest != signatures:
            return f"its vocabulary has {signatures} signatures, and {highest} were recorded."
        if any(size != 1 for size, one in zip(sizes[counted:], wanted, strict=True) if one != "group"):
            return f"its results, {', '.join(wanted)}, have the sizes {sizes[counted:]}."
        return ""

    def checksum(self) -> int:
        """Return the checksum of all columns and values, and of what the vocabulary is in plain words."""
        columns = (self.integers, self.floats, self.lines)
        return checksum([LAYOUT], [self.vocabulary.words, *columns, *bytes_of((*self.arrays, *self.loose))])

    def __reduce__(self) -> Any:
        return read_trace, (LAYOUT, self.checksum(), *[getattr(self, f.name) for f in fields(self)])

    def __setstate__(self, _: Any) -> NoReturn:
        """Refuse what an early version pickled: a state without a checksum."""
        raise damaged("another version of multifold pickled it.")

    def __repr__(self) -> str:
        return f"<Trace: calls={len(self)}>"

    def __len__(self) -> int:
        """The number of recorded calls."""
        return int(self.integers[0])

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Trace) or self.digest != other.digest:
            return NotImplemented if not isinstance(other, Trace) else False
        names = ("integers", "floats", "arrays", "loose")  # numbers by their bits: 0.0 is not -0.0
        return self.vocabulary == other.vocabulary and all(
            freeze(getattr(self, name)) == freeze(getattr(other, name)) for name in names
        )

    @cached_property
    def digest(self) -> int:
        """A number that is equal for equal traces; used to find them, never to compare them."""
        state = hashlib.blake2b(self.integers.tobytes(), digest_size=8)
        state.update(self.floats.tobytes())
        return int.from_bytes(state.digest(), "little")

    def __hash__(self) -> int:
        return self.digest


def said_array(x: np.ndarray) -> str:
    """Return the dtype and shape of an array for a message."""
    return f"{x.dtype} of shape {x.shape}"


def read_trace(layout: int, crc: int, *values: Any) -> Trace:
    """Return the trace that was pickled; refuse another layout, and values that were damaged."""
    if layout != LAYOUT:
        raise damaged(f"its layout is {layout!r}, and this version of multifold reads {LAYOUT}.")
    try:
        made = Trace(*values)
    except TypeError as error:
        raise damaged(error) from error
    if made.checksum() != crc:
        raise damaged("its checksum is another one.")
    made.digest  # noqa: B018 - made here, so that no step has to wait for it
    return made


def trace(fn: Callable[[Any, Any], Any], example: Any) -> Trace:
    """Call ``fn(recorder, example)`` once and keep the calls and what it returned.

    Parameters
    ----------
    fn : callable
        Records an example through ``recorder.add``, as it would on a `Fold`, and returns nodes, groups,
        or lists, tuples and dicts of those.
    example : object
        Handed to ``fn``.

    Returns
    -------
    Trace
        Can be pickled, and written by `multifold.save`, where its ops are names or importable functions.

    Examples
    --------
    >>> import multifold
    >>> def powers(fold, n):
    ...     x = 1
    ...     for _ in range(n):
    ...         x = fold.add("double", x)
    ...     return x
    >>> traces = [multifold.trace(powers, n) for n in (1, 2, 3)]
    >>> multifold.Fold(backend="numpy").run({"double": lambda x: 2 * x}, traces)
    array([2, 4, 8])
    """
    recorder = TraceRecorder()
    result = fn(recorder, example)
    if inspect.iscoroutine(result):
        result.close()
        recorder.value()
    graph = recorder._graph
    asked = take_apart(recorder, result, len(graph.loose), fewest=0)
    columns = Columns.of(graph)
    needed = columns.ancestors(asked.calls)
    alone = np.union1d(columns.shared_calls, asked.whole_calls)
    types = call_types(columns, alone)
    problem = problem_of(columns, types, needed)
    # Levels of a wide cycle are not those of a type, so they say nothing about other examples.
    plain = not len(alone) and not (problem.cycles > COUNTERS).any()
    levels = problem.levels if plain else np.ones(len(needed), np.int64)
    signatures = columns.signature[needed]
    highest = np.zeros(len(columns.signatures), np.int64)
    np.maximum.at(highest, signatures, levels)
    # Number the pairs (signature, level), and find which of them read each other.
    first = starts(highest)
    number = first[signatures] + levels - 1
    ends = unique_pairs(number[problem.sources], number[problem.readers], int(first[-1]))
    signature = np.repeat(np.arange(len(highest)), highest)
    level = np.arange(first[-1]) - first[signature]
    pairs = [column for end in ends for column in (signature[end], level[end])]
    lines = graph.lines()
    files = {number: file for number, (file, _) in zip(graph.signature, lines, strict=True)}
    loose = (*graph.loose, *map(own, asked.loose))
    named = {
        **vars(columns),
        "needed": needed,
        "levels": levels,
        "pairs": np.stack(pairs, axis=1).ravel(),
        "highest": highest,
        "loose": loose,
    }
    groups = [np.atleast_1d(np.array(group, np.int64)) for group in asked.groups]
    sizes = [*(len(named[name]) for name in COUNTED), *map(len, groups)]
    made = Trace(
        vocabulary=make_vocabulary(
            columns.signatures,
            columns.parts,
            tuple(files[i] for i in range(len(highest))),
            asked.structure,
            tuple(asked.wanted),
            plain,
        ),
        integers=np.concatenate([np.array(sizes), *(named[name] for name in INTEGERS), *groups]),
        floats=columns.floats,
        arrays=tuple(columns.arrays),
        loose=loose,
        lines=np.array([line for _, line in lines], np.int64),
    )
    made.digest  # noqa: B018 - made here, so that no step has to wait for it
    return made
