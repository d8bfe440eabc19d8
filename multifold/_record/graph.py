"""What was recorded: each call once, as integers in flat columns.

A call appends its signature's number and one integer for each node operand; numbers and leaf arrays go
to columns of their own. Nothing is an object a call besides the `Node` that the caller keeps.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable
from functools import lru_cache
from time import perf_counter
from types import CodeType, FrameType
from typing import Any

import numpy as np

from multifold._compiled.native import GraphBase
from multifold._record.freezing import Identity, freeze
from multifold._record.node import Node
from multifold._record.signature import Signature


def users_frame() -> FrameType:
    """Return the innermost frame that is not of this package: the line of the user."""
    frame = sys._getframe(1)
    while frame.f_globals.get("__name__", "").startswith("multifold.") and frame.f_back is not None:
        frame = frame.f_back
    return frame


class Part:
    """A place inside a result: the keys that lead there, and the length that `split` promised."""

    __slots__ = ("length", "parent", "path")

    def __init__(self, path: tuple[Any, ...], parent: int, length: int | None) -> None:
        self.path = path
        self.parent = parent
        self.length = length


class Graph(GraphBase):
    """The calls of a fold or of a trace, as columns.

    Attributes
    ----------
    signatures : list of Signature
        The distinct signatures, by number.
    signature : column of int
        The signature's number of each call.
    refs, ints, floats, arrays, lengths : columns
        Operands of all calls one after the other; a signature says how many a call has of each.
    members : column of int
        The rows of ragged operands: references, or ``-1 - i`` for entry ``i`` of ``loose``.
    loose : list
        Numbers and leaf arrays inside ragged operands.
    codes : list of code
        Where each call was recorded: the code object and the instruction; `line` looks the line up.
        In a graph that was pickled, the file and the line.
    instructions : column of int
    copies : dict of Identity to array
        Large shared NumPy arrays, and the copy of each that was made when it was recorded.
    compared : int
        How many calls there were when arrays and copies were compared for the last time.
    began : float
        When the first call was recorded, in seconds of `time.perf_counter`.

    A column of numbers has the buffer protocol, so it becomes an array in one copy; ``arrays``, ``loose``
    and ``codes`` are lists.
    """

    __slots__ = ("began", "compared", "copies", "keys", "part_numbers", "parts", "signatures", "warned")

    def __init__(self) -> None:
        super().__init__(Node)
        self.signatures: list[Signature] = []
        self.keys: dict[Hashable, int] = {}
        self.parts: list[Part] = [Part((), 0, None)]
        self.part_numbers: dict[Hashable, int] = {}
        self.copies: dict[Identity, np.ndarray] = {}
        self.compared = 0
        self.warned = False
        self.began = perf_counter()

    def part(self, parent: int, key: Any, length: int | None = None) -> int:
        """Return the number of the part ``key`` of a part."""
        known = (parent, freeze(key), length)
        number = self.part_numbers.get(known)
        if number is None:
            number = self.part_numbers[known] = len(self.parts)
            self.parts.append(Part((*self.parts[parent].path, key), parent, length))
        return number

    def line(self, call: int) -> tuple[str, int]:
        """Return the file and the line where a call was recorded."""
        code = self.codes[call]
        if isinstance(code, tuple):
            return code
        return code.co_filename, line_of(code, self.instructions[call])

    def lines(self) -> list[tuple[str, int]]:
        """Return the file and the line of each call."""
        sites = list(zip(map(id, self.codes), self.instructions, strict=True))
        first = {site: call for call, site in reversed(list(enumerate(sites)))}
        known = {site: self.line(call) for site, call in first.items()}
        return [known[site] for site in sites]

    def site(self, call: int) -> str:
        """Return ``file:line`` where the call was recorded."""
        file, line = self.line(call)
        return f"{file}:{line}"

    def recorded_at(self, frame: FrameType, first: int) -> None:
        """Say that the calls from ``first`` on were recorded where a frame is."""
        for call in range(first, len(self.codes)):
            self.codes[call] = frame.f_code
            self.instructions[call] = frame.f_lasti

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what can be pickled: lines instead of code objects, and nothing of the quick path."""
        columns = {name: getattr(self, name) for name in LISTS}
        columns |= {name: np.array(getattr(self, name)) for name in NUMERIC}
        columns["codes"] = self.lines()
        return Graph, (), (columns, {name: getattr(self, name) for name in Graph.__slots__})

    def __setstate__(self, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
        columns, others = state
        for name, values in columns.items():
            getattr(self, name).extend(values if name in LISTS else values.tolist())
        for name, value in others.items():
            setattr(self, name, value)


NUMERIC = ("signature", "refs", "ints", "floats", "lengths", "members", "instructions")
LISTS = ("arrays", "loose", "codes")


@lru_cache(maxsize=4096)
def line_of(code: CodeType, instruction: int) -> int:
    """Return the line of an instruction: twice as cheap as asking the frame while recording."""
    for low, high, line in code.co_lines():
        if low <= instruction < high and line is not None:
            return line
    return code.co_firstlineno
