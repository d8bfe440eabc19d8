"""Traces: one example's recorded calls, kept as integers.

What one example calls, and with which operands, does not depend on the rest of a minibatch. A `Trace`
keeps it as arrays, so that a minibatch is a concatenation and a few offsets
(`multifold._engine.traces.minibatch`). Traces hold
integers, numbers and NumPy arrays only; they pickle, compare by value and import no framework, so
they are made in the workers of a data loader, or once per data set.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from multifold._engine.compiled.arrays import CALL_MASK, PART_BITS, Integers
from multifold._engine.plan.each import holes, key_of_form
from multifold._engine.record.damage import DAMAGE, LAYOUT, bytes_of, checksum, damaged, refuse_other_layout
from multifold._engine.record.freezing import freeze
from multifold._engine.record.graph import Part
from multifold._engine.record.signature import Signature
from multifold._engine.traces.shown import Shown
from multifold.errors import RecordError


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What the traces of one function have in common: distinct signatures and parts, and the results.

    Attributes
    ----------
    signatures, parts : tuples
        Numbered from 0 in the order in which they were recorded; part 0 is the whole result.
    files : tuple of str
        For each signature the file that recorded its first call.
    structure : PyTreeSpec
        The structure that the traced function returned.
    wanted : tuple of str
        For each of the results ``"row"``, ``"group"``, ``"whole"`` or ``"each"`` (`Outputs.wanted`).
    """

    signatures: tuple[Signature, ...]
    parts: tuple[Part, ...]
    files: tuple[str, ...]
    structure: Any
    wanted: tuple[str, ...]

    @cached_property
    def key(self) -> Hashable:
        """What `==` compares: keys of signatures and parts, structure and ``wanted``; all but the files."""
        signatures = tuple(signature.key for signature in self.signatures)
        return signatures, tuple(map(part_key, self.parts)), self.structure, self.wanted

    @cached_property
    def names(self) -> tuple[list[Name], list[Name]]:
        """The `Name` of each signature and of each part: minibatches look up these and no long keys.

        The name of a part stands for its path, the name of its parent (None for part 0) and its length.
        """
        parts: list[Name] = []
        for part in self.parts:
            parts.append(name_of((freeze(part.path), parts[part.parent] if parts else None, part.length)))
        return list(map(name_of_signature, self.signatures)), parts

    @cached_property
    def alone(self) -> dict[str, Any]:
        """A dictionary that `minibatch.Names` fills when all traces of a minibatch have this vocabulary.

        Attribute of `Names` -> its value. Empty before the first such minibatch.
        """
        return {}

    @cached_property
    def words(self) -> bytes:
        """Bytes of the vocabulary for a checksum: names, kinds of operands, parts, files, results.

        Ops and static values themselves are left out: they have no bytes that are equal in each process.
        """
        kinds = [(s.name, *[slot.kind.name for slot in s.slots]) for s in self.signatures]
        parts = [(part.parent, part.length, len(part.path)) for part in self.parts]
        return repr((kinds, parts, self.files, self.wanted)).encode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (self is other or self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __reduce__(self) -> Any:
        return make_vocabulary, tuple(getattr(self, f.name) for f in fields(self))


class Name:
    """Stands for a key: equal keys have one object (`name_of`), as long as something holds it.

    To hash the key of a signature takes Python a step for each operand, and to hash this takes none.
    """

    __slots__ = ("__weakref__",)


NAMES: WeakValueDictionary[Hashable, Name] = WeakValueDictionary()
"""The names that are in use, by their keys."""


OF_SIGNATURES: WeakKeyDictionary[Signature, Name] = WeakKeyDictionary()
"""The names of signatures. Query plans make a vocabulary of the same signatures for each order of them."""


def name_of(key: Hashable) -> Name:
    """Return the `Name` of a key: that of an equal key, if it is still alive, or else a new one."""
    return NAMES.setdefault(key, Name())


def name_of_signature(signature: Signature) -> Name:
    """Return the `Name` of the key of a signature.

    The key is hashed at the first call for this signature object; `OF_SIGNATURES` remembers the name.
    """
    found = OF_SIGNATURES.get(signature)
    if found is None:
        found = OF_SIGNATURES[signature] = name_of(signature.key)
    return found


KNOWN: WeakValueDictionary[Hashable, Vocabulary] = WeakValueDictionary()
"""The vocabularies of the traces that are alive, by their keys and files."""


def make_vocabulary(*values: Any) -> Vocabulary:
    """Return the vocabulary of these fields of `Vocabulary`, in their order.

    If an equal one with the same files is alive, that object is returned: merging then meets few objects.
    Equal ones of other files stay apart, since checksums and errors of traces read the files.
    """
    made = Vocabulary(*values)
    return KNOWN.setdefault((made.key, made.files), made)


def part_key(part: Part) -> Hashable:
    """Return a key of a part: ``(path, parent, length)``, with the path frozen."""
    return freeze(part.path), part.parent, part.length


INTEGERS = ("signature", "refs", "ints", "lengths", "members")
"""The columns of integers of a trace; after them come the references of each result."""

COUNTED = (*INTEGERS, "floats", "arrays", "loose")
"""The columns whose sizes a trace begins with; after them come the sizes of the results."""


class Trace(metaclass=Shown):
    """One example's calls; made by `trace`, run by `Fold.run`.

    It goes through the loaders and trainers of a framework like one value. They ask what they meet in a
    batch for `to` and `pin_memory`, and would walk into the fields of a dataclass and change them.

    All columns of integers are one array, so that a minibatch is one concatenation: first the sizes
    named by `COUNTED` and those of the results, then the columns named by `INTEGERS` and the results.
    These columns are those of `Columns`.

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
    kept : tuple
        The form of each result that keeps its example (`multifold._engine.plan.each`).
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        integers: Integers,
        floats: np.ndarray,
        arrays: tuple[np.ndarray, ...],
        loose: tuple[Any, ...],
        lines: Integers,
        kept: tuple[Any, ...] = (),
    ) -> None:
        self.vocabulary = vocabulary
        self.integers = integers
        self.floats = floats
        self.arrays = arrays
        self.loose = loose
        self.lines = lines
        self.kept = kept
        if what := self.what_is_wrong():
            raise damaged(what)

    @classmethod
    def of(
        cls,
        vocabulary: Vocabulary,
        integers: Integers,
        floats: np.ndarray,
        arrays: tuple[np.ndarray, ...],
        loose: tuple[Any, ...],
        lines: Integers,
        kept: tuple[Any, ...] = (),
    ) -> Trace:
        """Return a trace of columns that were made just now, without the checks of `__init__`."""
        self = object.__new__(cls)
        # Python (from 3.11 on) keeps attributes that are set one by one in the object itself.
        # `vars(self).update` would make it allocate a dictionary.
        self.vocabulary = vocabulary
        self.integers = integers
        self.floats = floats
        self.arrays = arrays
        self.loose = loose
        self.lines = lines
        self.kept = kept
        self.digest = digest_of(integers, floats)
        return self

    def what_is_wrong(self) -> str:
        """Return a sentence on what is wrong with the types or sizes of the columns; "" if nothing is.

        What the integers refer to is not looked at: merging does that.
        """
        if not isinstance(self.vocabulary, Vocabulary):
            return f"its vocabulary is of type {type(self.vocabulary).__qualname__}."
        for name, dtype in (("integers", np.int64), ("floats", np.float64), ("lines", np.int64)):
            column = getattr(self, name)
            if not isinstance(column, np.ndarray) or column.dtype != dtype or column.ndim != 1:
                shown = array_text(column) if isinstance(column, np.ndarray) else type(column).__qualname__
                return f"its {name} are no column of {np.dtype(dtype)} but {shown}."
        if type(self.arrays) is not tuple or type(self.loose) is not tuple:
            return "its arrays or loose values are no tuple."
        if not all(isinstance(x, np.ndarray) and x.shape[:1] == (1,) for x in self.arrays):
            return "its arrays are not all NumPy arrays of one row."
        wanted = self.vocabulary.wanted
        counted = len(COUNTED)
        sizes = self.integers[: counted + len(wanted)].tolist()
        if len(sizes) < counted + len(wanted):
            return f"it has {len(sizes)} integers, too few for its sizes."
        stored = [*sizes[: len(INTEGERS)], *sizes[counted:]]
        if min(stored) < 0 or sum(stored) + len(sizes) != len(self.integers):
            return f"its sizes, {sizes}, are not those of its {len(self.integers)} integers."
        kept = [len(self.floats), len(self.arrays), len(self.loose), len(self.lines)]
        if kept != [*sizes[len(INTEGERS) : counted], sizes[0]]:
            return f"it has {kept} floats, arrays, loose values and lines, and says that it has others."
        begin = len(sizes)
        # Signatures are numbered as they are met, so the largest number tells how many there are.
        recorded = int(self.integers[begin : begin + sizes[0]].max(initial=-1)) + 1
        if recorded != len(self.vocabulary.signatures):
            known = len(self.vocabulary.signatures)
            return f"its vocabulary has {known} signatures, and its calls have {recorded}."
        pairs = list(zip(wanted, sizes[counted:], strict=True))
        if any(size != 1 for one, size in pairs if one not in ("group", "each")):
            return f"its results, {', '.join(wanted)}, have the sizes {sizes[counted:]}."
        rows = [sum(hole.rows for hole in holes(form)) for form in self.kept]
        if type(self.kept) is not tuple or rows != [size for one, size in pairs if one == "each"]:
            return f"its results that keep their example have {rows} rows."
        return ""

    def to(self, device: Any = None, **options: Any) -> Trace:
        """Return this trace, whatever the device: its numbers go to a device when it is run."""
        return self

    def pin_memory(self, device: Any = None) -> Trace:
        """Return this trace: it lies on the host, and has no tensors to pin."""
        return self

    def __reduce__(self) -> Any:
        packed = pack([self])
        return read_trace, (LAYOUT, sum_of(LAYOUT, packed), *packed)

    def __repr__(self) -> str:
        return f"<Trace: calls={len(self)}>"

    def __len__(self) -> int:
        """Return the number of recorded calls."""
        return int(self.integers[0])

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Trace) or self.digest != other.digest:
            return NotImplemented if not isinstance(other, Trace) else False
        # `freeze` compares numbers by their bits: 0.0 is not -0.0, and NaN is NaN.
        names = ("integers", "floats", "arrays", "loose")
        return (
            self.vocabulary == other.vocabulary
            and all(freeze(getattr(self, name)) == freeze(getattr(other, name)) for name in names)
            and self.kept_key == other.kept_key
        )

    @cached_property
    def kept_key(self) -> Hashable:
        """A key of ``kept``, the forms of results that `multifold.each` marks: equal for equal forms."""
        return key_of_form(self.kept)

    @cached_property
    def digest(self) -> int:
        """A checksum of ``integers`` and ``floats``, which is the hash: equal traces have equal ones."""
        return digest_of(self.integers, self.floats)

    def __hash__(self) -> int:
        return self.digest


def digest_of(integers: Any, floats: Any) -> int:
    """Return the CRC-32 of two arrays as an int: equal for equal ones, in any process."""
    digest = zlib.crc32(integers)
    return zlib.crc32(floats, digest) if len(floats) else digest


def array_text(x: np.ndarray) -> str:
    """Return the dtype and shape of an array for a message: ``"int32 of shape (2, 3)"``."""
    return f"{x.dtype} of shape {x.shape}"


# A column of integers takes as many bytes an entry as its largest one needs, most often one or two. What
# follows from traces, as the wiring of a minibatch, is no part of a pickle.

CODES = [(code, int(np.iinfo(code).min), int(np.iinfo(code).max)) for code in "BbHhIiq"]
"""The types that a column of integers may have in a pickle, the smaller ones first."""

HALF = 1 << PART_BITS - 1
"""What makes the low half of a reference signed: -1 is call -1 of part 0, not call 2**40 - 1 of part -1."""

PROTOCOL = 5
"""The protocol of the pickle inside of a pickle."""

Packed = tuple[
    tuple[Vocabulary, ...], tuple[int, ...], str, bytes, bytes, tuple[Any, ...], tuple[Any, ...], bytes
]
"""Distinct vocabularies; the length and the type of each column of integers, and all their bytes; the bytes
of the floats; the arrays and the loose values of all traces; what they keep of their examples, pickled by
itself, so that a checksum knows all of it."""


def narrow(column: Integers) -> tuple[str, bytes]:
    r"""Return the smallest type that holds the integers of a column, and their bytes.

    The type is one of the codes ``BbHhIiq`` of `struct`; the bytes are little-endian.

    Examples
    --------
    >>> narrow(np.array([3, 200])), narrow(np.array([-1, 200]))
    (('B', b'\x03\xc8'), ('h', b'\xff\xff\xc8\x00'))
    """
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    code = next(code for code, least, most in CODES if least <= low and high <= most)
    return code, column.astype(f"<{code}").tobytes()


def pack(traces: Sequence[Trace]) -> Packed:
    """Return traces as a tuple of bytes and of what only pickle can write; `unpack` makes the traces again.

    See `Packed` for its entries. There must be at least one trace.
    """
    if len(traces) == 1:
        (only,) = traces
        distinct = {0: only.vocabulary}
        which = np.zeros(1, np.int64)
        integers = only.integers
        lines = only.lines
        floats = only.floats.tobytes()
    else:
        distinct = {id(trace.vocabulary): trace.vocabulary for trace in traces}
        number = {key: i for i, key in enumerate(distinct)}
        which = np.array([number[id(trace.vocabulary)] for trace in traces], np.int64)
        integers = np.concatenate([trace.integers for trace in traces])
        lines = np.concatenate([trace.lines for trace in traces])
        floats = b"".join([trace.floats.tobytes() for trace in traces])
    # A reference has its part above 40 bits. Both halves of an integer need few bytes, one by one.
    calls = ((integers + HALF) & CALL_MASK) - HALF
    found = [narrow(column) for column in (which, calls, (integers - calls) >> PART_BITS, lines)]
    arrays = tuple(chain.from_iterable([trace.arrays for trace in traces]))
    loose = tuple(chain.from_iterable([trace.loose for trace in traces]))
    codes, data = zip(*found, strict=True)
    counts = len(which), len(calls), len(calls), len(lines)
    forms = [trace.kept for trace in traces]
    kept = pickle.dumps(forms, PROTOCOL) if any(forms) else b""
    return tuple(distinct.values()), counts, "".join(codes), b"".join(data), floats, arrays, loose, kept


def sum_of(layout: int, packed: Packed) -> int:
    """Return the checksum of packed traces and of the number of the layout, `LAYOUT` for new ones."""
    vocabularies, counts, codes, data, floats, arrays, loose, kept = packed
    words = [vocabulary.words for vocabulary in vocabularies]
    columns = [*words, codes.encode(), data, floats, kept, *bytes_of((*arrays, *loose))]
    return checksum([layout, *counts], columns)


def unpack(packed: Packed) -> list[Trace]:
    """Return new traces equal to those that `pack` was given, in their order; nothing is checked."""
    vocabularies, counts, codes, data, floats, arrays, loose, kept = packed
    columns = []
    at = 0
    for code, count in zip(codes, counts, strict=True):
        column = np.frombuffer(data, f"<{code}", count, at)
        at += column.nbytes
        columns.append(column.astype(np.int64))
    which, calls, parts, lines = columns
    # `pack` has cut each integer into a signed low half and the rest; the sum is the integer again.
    integers = (parts << PART_BITS) + calls
    numbers = np.frombuffer(floats, "<f8").astype(np.float64)
    made = []
    # Where the next trace begins among the integers, lines, floats, arrays and loose values of all.
    at = line = number = array = value = 0
    forms = pickle.loads(kept) if kept else [()] * len(which)
    for i, form in zip(which.tolist(), forms, strict=True):
        sizes = integers[at : at + len(COUNTED) + len(vocabularies[i].wanted)].tolist()
        own_calls = sizes[0]
        own_floats, own_arrays, own_loose = sizes[len(INTEGERS) : len(COUNTED)]
        end = at + len(sizes) + sum(sizes) - own_floats - own_arrays - own_loose
        made.append(
            Trace.of(
                vocabularies[i], integers[at:end], numbers[number : number + own_floats],
                arrays[array : array + own_arrays], loose[value : value + own_loose],
                lines[line : line + own_calls], form,
            )
        )  # fmt: skip
        at = end
        line = line + own_calls
        number = number + own_floats
        array = array + own_arrays
        value = value + own_loose
    return made


def read_traces(layout: int, crc: int, *packed: Any) -> list[Trace]:
    """Return the traces of a pickle, made anew.

    Parameters
    ----------
    layout, crc : int
        The layout that it was written in, and what `sum_of` returned then.
    *packed
        The entries of `Packed`.

    Raises
    ------
    RecordError
        If it is of another layout, or was damaged since.
    """
    refuse_other_layout(layout)
    try:
        if sum_of(layout, packed) != crc:
            raise damaged("its checksum is another one.")
        return unpack(packed)
    except RecordError:
        raise
    except DAMAGE as error:
        raise damaged(error) from error


def read_trace(layout: int, crc: int, *packed: Any) -> Trace:
    """Return the one trace of a pickle; see `read_traces`."""
    return read_traces(layout, crc, *packed)[0]
