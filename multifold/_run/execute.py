"""Runs a wiring on a backend: where a fold touches arrays.

For each launch: concatenate and permute its operands, call the op once, check that one node is one
row, cut the result into sections. Nothing is read back from a device, no index is computed here.
Before a launch the blocks that meet in an operand are compared, one query a block; where they
differ in trailing shape, dtype or device the launch has to be divided, and the run stops there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import optree

from multifold._record.kinds import number_type
from multifold._record.node import CALL_MASK, PART_BITS
from multifold._record.signature import Signature, Slot
from multifold._run.timeline import LaunchTimes
from multifold._schedule.columns import Columns
from multifold._wiring.wiring import (
    LaunchWiring,
    Leaves,
    Numbers,
    Operand,
    Place,
    RaggedRows,
    Reading,
    Whole,
    Wiring,
)
from multifold.backend import Backend, Ragged
from multifold.errors import LaunchError, MultifoldError

CONTAINERS = (tuple, list, dict)

GUESSED = (
    "the fold met no array and no model of a framework, so it ran on NumPy; for another one name it: "
    "Fold(backend='torch')."
)


APART = "multifold.Unfold(model) runs each call by itself, as soon as it is recorded."

HINTS = {
    "inplace": "operands may be views of a block that other launches read, so an op must not change them "
    "in place, as torch.nn.ReLU(inplace=True) does.",
    "dtype": "NumPy arrays keep their dtype: x.astype(numpy.float32) is one for a model in float32.",
}
"""What an error of a framework may speak of -> what to do about it."""


@dataclass
class Run:
    """The state of one run: what was computed and where it is.

    Attributes
    ----------
    backend, device
        What runs the launches, and where numbers and NumPy arrays go.
    columns : Columns
        The calls.
    place : Place
        The launch and row of each call that was run.
    ops : dict
        Signature -> what its op calls, looked up before the first launch.
    loose : sequence
        The numbers and arrays inside ragged operands and groups.
    site : callable
        Call -> where it was recorded.
    results : dict of int to object
        The results of launches that still have readers.
    classes : dict of (launch, part) to Hashable
        What the rows of a block must have in common with others to be concatenated.
    """

    backend: Backend
    device: Any
    columns: Columns
    place: Place
    ops: dict[Signature, Callable[..., Any]]
    loose: Sequence[Any]
    alone: frozenset[int]
    site: Callable[[int], str]
    results: dict[int, Any] = field(default_factory=dict)
    classes: dict[tuple[int, int], Hashable] = field(default_factory=dict)
    distinct: dict[Hashable, Hashable] = field(default_factory=dict)
    converted: dict[Any, Any] = field(default_factory=dict)
    times: list[LaunchTimes] = field(default_factory=list)
    profile: bool = False
    guessed: bool = False

    def call(self, launch: LaunchWiring, operands: Sequence[Any]) -> Any:
        """Run the op of a launch, in a named range of the framework's profiler if wanted."""
        signature = launch.signature
        op = self.ops[signature]
        if not self.profile:
            return self.backend.call(op, operands, signature.static)
        rows = self.place.rows[launch.number]
        with self.backend.profile(f"multifold: {signature.name} ({rows} row{'s' * (rows != 1)})"):
            return self.backend.call(op, operands, signature.static)

    def part(self, launch: int, part: int) -> Any:
        """Return a part of a launch's result."""
        value = self.results[launch]
        return value if part == 0 else self.follow(value, launch, part)

    def rows(self, launch: int, part: int) -> Any:
        """Return a part of a launch's result that is read by rows, in containers that optree opens."""
        return opened(self.part(launch, part))

    def follow(self, value: Any, launch: int, part: int) -> Any:
        """Go down the path of a part, one container after the other."""
        step = self.columns.parts[part]
        if step.parent:
            value = self.follow(value, launch, step.parent)
        key = step.path[-1]
        if not isinstance(value, CONTAINERS):
            what = f"is a {type(value).__qualname__}, of which [{key!r}] is no part"
        elif step.length is not None and len(value) != step.length:
            what = f"has {len(value)} parts, where .split({step.length}) expects {step.length}"
        else:
            try:
                return value[key]
            except (LookupError, TypeError):
                what = f"has no part [{key!r}]"
        raise self.no_part(launch, what)

    def no_part(self, launch: int, what: str) -> LaunchError:
        """Return an error that says which launch lacks a part that is read."""
        calls = np.flatnonzero(self.place.launch == launch)
        name = self.columns.signatures[self.columns.signature[calls[0]]].name
        return LaunchError(
            f"The result of op '{name}' for {len(calls)} node{'s' * (len(calls) != 1)}, first recorded "
            f"at {self.site(int(calls[0]))}, {what}.",
            ".split(n) and [...] name the parts of a tuple, list or dict that the op returns.",
        )

    def value(self, ref: int) -> Any:
        """Return the whole value behind a reference."""
        return self.part(int(self.place.launch[ref & CALL_MASK]), ref >> PART_BITS)

    def check_rows(self, key: tuple[int, int], value: Any) -> None:
        """Refuse a part of a result that has another number of rows than its launch has."""
        for leaf in leaves_of(value):
            try:
                rows = self.backend.rows(leaf) if self.backend.owns(leaf) else None
            except (IndexError, TypeError):
                rows = None
            if rows != self.place.rows[key[0]]:
                got = f"is a {type(leaf).__qualname__}" if rows is None else f"has {rows} rows"
                raise self.no_part(key[0], f"{got}, where one row a node is read")

    def value_class(self, value: Any) -> Hashable:
        """Return what two values must have in common for their rows to be concatenated."""
        if not isinstance(value, CONTAINERS):
            return self.backend.signature(value)
        leaves, structure = optree.tree_flatten(value)
        return structure, *map(self.backend.signature, leaves)

    def constant(self, x: np.ndarray) -> Any:
        """Return NumPy values on the device."""
        return self.backend.constant(x, self.device)

    def constants(self, pieces: Sequence[np.ndarray], kind: type) -> Sequence[Any]:
        """Return NumPy numbers of one kind on the device, in one transfer.

        What a single piece becomes may share its memory, and ops may write to it: then it is copied, as
        plans are used again.
        """
        if not pieces:
            return ()
        dtype = self.backend.number_dtype(kind)
        typed = [as_dtype(x, dtype) for x in pieces]
        if len(typed) == 1 and typed[0] is pieces[0]:
            typed = [typed[0].copy()]
        return self.backend.constants(typed, self.device)

    def numbers(self, values: Any, kind: type) -> Any:
        """Return Python numbers of one kind as a batch."""
        return self.constant(as_dtype(np.array(values), self.backend.number_dtype(kind)))

    def stack(self, values: Sequence[Any]) -> Any:
        """Return numbers, or arrays of one row, of one class as a batch."""
        if len(set(map(type, values))) > 1:
            return self.backend.concat([self.stack([value]) for value in values])
        number = number_type(values[0])
        if number is not None:
            return self.numbers(values, number)
        if isinstance(values[0], np.ndarray):
            rows = np.concatenate(values) if len(values) > 1 else values[0]
            return self.constant(rows.copy() if rows is values[0] else rows)
        return self.backend.concat(values) if len(values) > 1 else values[0]

    def loose_class(self, place: int) -> Hashable:
        """Return the class of a loose value: that of a batch of one."""
        value = self.loose[place]
        key: Hashable = number_type(value)
        if key is None and isinstance(value, np.ndarray):
            key = value.dtype, value.shape
        if key is None:
            return self.backend.signature(value)
        if key not in self.classes:
            self.classes[key] = self.backend.signature(self.stack([value]))  # type: ignore[index]
        return self.classes[key]  # type: ignore[index]

    def shared(self, value: Any) -> Any:
        """Return a shared value; a NumPy array becomes one of the backend, once a run."""
        if not isinstance(value, np.ndarray):
            return value
        if id(value) not in self.converted:
            self.converted[id(value)] = self.constant(value.copy())
        return self.converted[id(value)]

    # ---- the backend's primitives, on values that may be containers of arrays --------------------

    def concat(self, values: Sequence[Any]) -> Any:
        """Concatenate the rows of values of one class."""
        if len(values) == 1:
            return values[0]
        if not isinstance(values[0], CONTAINERS):
            return self.backend.concat(values)
        return optree.tree_map(lambda *xs: self.backend.concat(xs), *values)

    def gather(self, value: Any, rows: Any) -> Any:
        """Gather rows of a value."""
        if not isinstance(value, CONTAINERS):
            return self.backend.gather(value, rows)
        return optree.tree_map(lambda x: self.backend.gather(x, rows), value)

    def split(self, value: Any, sizes: Sequence[int]) -> Sequence[Any]:
        """Cut a value into runs of rows."""
        if len(sizes) == 1:
            return (value,)
        if not isinstance(value, CONTAINERS):
            return self.backend.split(value, sizes)
        leaves, structure = optree.tree_flatten(value)
        pieces = zip(*(self.backend.split(leaf, sizes) for leaf in leaves), strict=True)
        return [optree.tree_unflatten(structure, piece) for piece in pieces]


def as_dtype(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return numbers in the dtype of the backend; refuse integers that do not fit."""
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


def leaves_of(value: Any) -> Sequence[Any]:
    """Return the arrays that a value consists of."""
    if not isinstance(value, CONTAINERS):
        return (value,)
    if type(value) is tuple and is_flat(value):  # as most are: then it need not be flattened
        return value
    return optree.tree_leaves(value)


def is_flat(values: tuple[Any, ...]) -> bool:
    """Return whether the entries of a tuple are leaves."""
    for entry in values:  # noqa: SIM110 - all() with a generator takes three times as long
        if entry is None or isinstance(entry, CONTAINERS):
            return False
    return True


def opened(result: Any) -> Any:
    """Return a result whose containers are of kinds that optree opens.

    A subclass of one is closed to it, unless someone registered that: a dict such as the outputs of
    Hugging Face's models becomes a plain one.
    """
    if not isinstance(result, CONTAINERS):
        return result
    for leaf in leaves_of(result):
        if isinstance(leaf, CONTAINERS):
            return optree.tree_map(base_of, result, none_is_leaf=True)
    return result


def base_of(leaf: Any) -> Any:
    """Return a container of a subclass as one of the built-in kind, and so on inside of it."""
    if not isinstance(leaf, CONTAINERS):
        return leaf
    if isinstance(leaf, dict):
        return {key: opened(item) for key, item in leaf.items()}
    return (tuple if isinstance(leaf, tuple) else list)(map(opened, leaf))


class Executor:
    """One wiring in progress: its uploaded constants, and the sections that wait for their reader."""

    def __init__(self, run: Run, wiring: Wiring) -> None:
        self.run = run
        self.wiring = wiring
        self.sections: dict[int | None, Any] = {}
        try:
            self.pieces = {kind: run.constants(pieces, kind) for kind, pieces in wiring.numbers.items()}
        except MultifoldError:
            raise
        except Exception as error:
            raise LaunchError(
                f"The numbers of a run could not be put on device {run.device!r}: "
                f"{type(error).__name__}: {error}".rstrip(". :")
                + ".",
                "Fold(device=...) takes what the framework calls a device.",
            ) from error
        self.indices = self.pieces[int]

    def execute(self, keep: Container[int]) -> int:
        """Run the launches; return how many were run before one has to be divided.

        ``keep`` names launches whose blocks must stay when no launch reads them any more.
        """
        for number, readings in self.wiring.given.items():
            for reading in readings:
                self.run.check_rows((number, reading.part), self.run.rows(number, reading.part))
            self.cut(number, readings)
        for index, launch in enumerate(self.wiring.launches):
            if not self.agree(launch):
                return index
            self.launch(launch)
            for number in launch.last_read:
                if number not in keep:
                    self.run.results.pop(number, None)
        return len(self.wiring.launches)

    # ---- operands ----------------------------------------------------------------------------

    def agree(self, launch: LaunchWiring) -> bool:
        """Return whether the rows of each operand may be concatenated."""
        if len(self.run.distinct) <= 1 and not self.wiring.loose:
            return True  # all rows of the run so far are of one class
        return all(
            len(self.operand_classes(operand)) <= 1
            for operand in launch.operands
            if len(operand.sections) > 1 or self.wiring.loose
        )

    def operand_classes(self, operand: Operand) -> list[Hashable]:
        """Return the distinct classes of the rows of an operand, in order: one query a block."""
        found: dict[Hashable, None] = {}
        last: Hashable = None
        for section in operand.sections:
            source = self.wiring.sources[section]
            if source[0] < 0:
                found.update((self.run.loose_class(place), None) for place in self.wiring.loose[section])
            elif self.run.classes[source] is not last:  # equal classes of a run are one object
                last = self.run.classes[source]
                found[last] = None
        return list(found)

    def assemble(self, operand: Operand) -> Any:
        """Return the rows of an operand: its sections, one after the other, permuted where need be."""
        take = self.section if self.wiring.loose else self.sections.pop
        value = self.run.concat(list(map(take, operand.sections)))
        if operand.permute is None:
            return value
        return self.run.gather(value, self.indices[operand.permute])

    def section(self, number: int) -> Any:
        """Return a section and forget it: each has one reader."""
        places = self.wiring.loose.get(number)
        if places is None:
            return self.sections.pop(number)
        return self.run.stack([self.run.loose[place] for place in places])

    def operand(self, launch: LaunchWiring, slot: Slot, wired: Any) -> Any:
        """Return what the op receives for a slot that is no `Operand`."""
        kind = type(wired)
        if kind is Numbers:
            return self.pieces[wired.type][wired.piece]
        if kind is Whole:
            return self.run.part(wired.launch, wired.part)
        if kind is Leaves:
            return self.run.stack([self.run.columns.arrays[place] for place in wired.places])
        if kind is RaggedRows:
            rows = self.rows_of(launch, slot, wired.operand)
            return Ragged(rows, self.indices[wired.lengths], self.indices[wired.segments])
        return self.run.shared(slot.value) if slot.kind.shared else slot.value

    def rows_of(self, launch: LaunchWiring, slot: Slot, operand: Operand) -> Any:
        """Return the values of a ragged operand, also where the whole launch has no row."""
        if operand.rows:
            return self.assemble(operand)
        if slot.value is None:
            raise LaunchError(
                f"{self.naming(launch)}, has no row in a ragged operand, so the shape of a row is not "
                "known.",
                "say it when recording: multifold.ragged(items, row_shape=(width,)).",
            )
        dtype = self.run.backend.number_dtype(float)
        return self.run.constant(np.zeros((0, *slot.value), dtype))

    # ---- launches and their results ------------------------------------------------------------

    def launch(self, launch: LaunchWiring) -> None:
        """Run one launch and cut its result."""
        run, signature = self.run, launch.signature
        begin = perf_counter()
        slots = zip(signature.slots, launch.slots, strict=True)
        try:
            leaves = [
                self.assemble(wired) if type(wired) is Operand else self.operand(launch, slot, wired)
                for slot, wired in slots
            ]
        except MultifoldError:
            raise
        except run.backend.passes:
            raise
        except Exception as error:
            what = f"could not get its operands: {type(error).__name__}: {error}".rstrip(". :")
            hint = f"its arrays must be of a dtype that backend '{run.backend.name}' has."
            raise LaunchError(f"{self.naming(launch)}, {what}.", hint) from error
        operands = leaves
        if signature.structure is not None:
            operands = optree.tree_unflatten(signature.structure, leaves)
        before = self.versions(launch, leaves)
        call = perf_counter()
        try:
            result = run.call(launch, operands)
            if self.versions(launch, leaves) != before:
                raise RuntimeError("an operand was changed by an inplace operation")
        except run.backend.passes:
            raise
        except Exception as error:
            what = f"raised {type(error).__name__}: {error}".rstrip(". :")
            known = (hint for word, hint in HINTS.items() if word in str(error))
            hint = GUESSED if run.guessed else next(known, APART)
            raise self.error(launch, leaves, what, hint) from error
        cut = perf_counter()
        self.check(launch, leaves, result)
        del leaves, operands  # cutting then finds their memory free
        run.results[launch.number] = result
        self.cut(launch.number, launch.readings)
        run.times.append(LaunchTimes(begin, call, cut, perf_counter()))

    def versions(self, launch: LaunchWiring, leaves: Sequence[Any]) -> list[int]:
        """Return how often each operand was changed, but for shared values: those are the person's own."""
        backend = self.run.backend
        if type(backend).version is Backend.version:
            return []
        arrays = [x.values if type(x) is Ragged else x for x in leaves]
        slots = zip(launch.signature.slots, arrays, strict=True)
        return [backend.version(x) for slot, x in slots if slot.kind.column is not None and backend.owns(x)]

    def check(self, launch: LaunchWiring, leaves: Sequence[Any], result: Any) -> None:
        """Hold the result to the rule "one node is one row"."""
        backend = self.run.backend
        expected = self.run.place.rows[launch.number]
        alone = bool(self.run.alone) and int(launch.calls[0]) in self.run.alone
        if alone and not launch.readings:
            return
        read = result
        if alone and isinstance(result, CONTAINERS):  # what is read whole may have any shape
            parts = [reading.part for reading in launch.readings]
            read = [self.run.follow(result, launch.number, p) if p else result for p in parts]
        for leaf in leaves_of(opened(read)):
            if not backend.owns(leaf):
                what = f"returned a {type(leaf).__qualname__}, which is no array of '{backend.name}'"
                hint = "return arrays with a row for each node."
                raise self.error(launch, leaves, what, GUESSED if self.run.guessed else hint)
            try:
                rows = backend.rows(leaf)
            except (IndexError, TypeError):
                rows = None
            if rows != expected:
                count = f"{expected} row" + ("s" if expected != 1 else "")
                why = f"for {count}" if launch.signature.batched else f"for {count} (no operand is batched)"
                got = "an array of 0 dimensions" if rows is None else f"{rows} rows"
                hint = "each output of an op must have one row for each node."
                if len(launch.calls) == 1 or not launch.signature.batched:
                    hint += " A result of another shape is read through node.no_batch()."
                raise self.error(launch, leaves, f"returned {got} {why}", hint)

    def error(
        self, launch: LaunchWiring, leaves: Sequence[Any], what: str, hint: str | None = None
    ) -> LaunchError:
        """Return an error that says which launch failed, on what, and where it was recorded."""
        operands = listing(launch.signature, leaves)
        return LaunchError(f"{self.naming(launch)}, {what}. Operands: {operands}.", hint)

    def naming(self, launch: LaunchWiring) -> str:
        """Return the beginning of an error: which launch, and where it was recorded."""
        count, site = len(launch.calls), self.run.site(int(launch.calls.min()))
        nodes = f"{count} node{'s' * (count != 1)}"
        return f"The launch of op '{launch.signature.name}' for {nodes}, first recorded at {site}"

    def cut(self, number: int, readings: list[Reading]) -> None:
        """Cut a block into the sections that are read from it."""
        run = self.run
        for reading in readings:
            value = run.rows(number, reading.part)
            if value is None:
                path = "".join(f"[{key!r}]" for key in run.columns.parts[reading.part].path)
                raise run.no_part(number, f"is None at {path}, which has no rows")
            kind = run.value_class(value)
            run.classes[number, reading.part] = run.distinct.setdefault(kind, kind)
            for section in reading.whole:
                self.sections[section] = value
            if reading.slices:
                self.store(value, reading.sizes, reading.slices)
            if reading.gather is not None:
                gathered = run.gather(value, self.indices[reading.gather])
                self.store(gathered, reading.gathered_sizes, reading.gathered)

    def store(self, value: Any, sizes: Sequence[int], sections: Sequence[int | None]) -> None:
        """Keep the pieces of a value as sections."""
        self.sections.update(zip(sections, self.run.split(value, sizes), strict=True))
        self.sections.pop(None, None)  # rows that are read otherwise

    def result(self, operand: Operand) -> Any:
        """Return the rows of one group of the outputs."""
        classes = self.operand_classes(operand)
        if len(classes) > 1:
            raise rows_disagree(classes)
        return self.assemble(operand)


def rows_disagree(classes: Sequence[Hashable]) -> LaunchError:
    """Return the error of a group whose rows can't be put together."""
    return LaunchError(
        "Expected the rows of a group to agree in trailing shape, dtype and device. "
        f"Received {' and '.join(map(str, classes))}.",
        "ask for them as two groups.",
    )


def listing(signature: Signature, leaves: Sequence[Any]) -> str:
    """Return the operands of a launch for a message: number, kind, shape and dtype of each."""
    kinds = [slot.kind.name for slot in signature.slots]
    structure = signature.structure  # where operands nest
    paths = [(i,) for i in range(len(leaves))] if structure is None else structure.paths()
    where = ["".join([str(first), *(f"[{key!r}]" for key in rest)]) for first, *rest in paths]
    listed = zip(where, kinds, leaves, strict=True)
    return "; ".join(f"{place} {kind} {describe(x)}" for place, kind, x in listed) or "none"


def describe(x: Any) -> str:
    """Return shape and dtype of an operand for a message."""
    if isinstance(x, Ragged):
        return f"values {describe(x.values)}"
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        names = (getattr(x.dtype, name, None) for name in ("name", "__name__"))
        dtype = next(filter(None, names), None) or str(x.dtype).rpartition(".")[2]
        return f"{tuple(x.shape)} {dtype}"
    if isinstance(x, CONTAINERS):
        return f"{type(x).__name__} of {', '.join(map(describe, optree.tree_leaves(x)))}"
    return repr(x)[:60]
