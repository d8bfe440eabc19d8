"""Sequences: the calls that a cell makes, recorded once and run on the rows of all examples.

To run a cell under the framework's vmap costs as much as dozens of small calls. But most cells only call
functions that have a rule for rows. So the cell runs once with pending values, as a program does, on a
`CallSequence` in the place of a fold; and a launch runs what that has recorded:

>>> import numpy as np
>>> sequence = CallSequence(2)
>>> x, y = sequence.operands
>>> total = sequence.add(np.add, x, y)
>>> first = sequence.add(np.square, total)._entry(0)
>>> rows = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
>>> sequence.run([rows, rows], [first], run=lambda op, xs: op(*xs), row=lambda x, n: x)
[array([ 4., 36., 100.])]

What a cell computes from nothing but what it finds around it, as a mask that it makes, is a constant of the
sequence: so a sequence is valid for one run, in which nothing of that may change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from multifold.lazy.current import CURRENT, REFUSALS, Recording


class SequenceNode(NamedTuple):
    """A value of a sequence: the number of its place among the values of one run."""

    sequence: CallSequence
    place: int

    def split(self, count: int) -> list[SequenceNode]:
        """Return the nodes of the ``count`` results of the call that this stands for."""
        return self.sequence.apart(count)

    def _entry(self, index: int) -> SequenceNode:
        """Return the node of entry ``index`` along axis 0 of one example, which is axis 1 of rows."""
        return self.sequence.add(ENTRY, self, index)


ENTRY = object()
"""Stands for the function that takes an entry of each row."""


class SequenceStep(NamedTuple):
    """One call of a sequence.

    Attributes
    ----------
    op : object
        What is called, or `ENTRY`.
    operands : list of int
        The places of its operands; of an entry, that of what it is taken from, and its index.
    result : int
        The place of its first result.
    parts : int or None
        How many results it has, if these are a tuple.
    dropped : list of int
        The places that no later call needs, its own unused results among them.
    """

    op: Any
    operands: Sequence[int]
    result: int
    parts: int | None
    dropped: Sequence[int] = ()

    @property
    def places(self) -> Sequence[int]:
        """The places of the values that the call takes."""
        return self.operands[:1] if self.op is ENTRY else self.operands


class CallSequence:
    """The calls of a cell, in order; it takes the place of a fold while the cell runs.

    Parameters
    ----------
    operands : int
        How many operands the cell has.

    Attributes
    ----------
    operands : list of SequenceNode
        The nodes of the operands.
    steps : list of SequenceStep
        The calls.
    constants : dict of int to array
        What the calls take that is no operand and no result, as one row ``(1, *s)``, by its place.
    asked : bool
        Whether the cell has read a value.
    """

    def __init__(self, operands: int) -> None:
        self.size = operands
        self.operands = [SequenceNode(self, place) for place in range(operands)]
        self.steps: list[SequenceStep] = []
        self.constants: dict[int, Any] = {}
        self.asked = False
        self._graph = SimpleNamespace(frame=None)  # a fold's graph keeps the line of each call

    def add(self, op: Any, *operands: Any) -> SequenceNode:
        """Record a call of ``op``; return the node of its result.

        Operands are nodes, or rows ``(1, *s)``.
        """
        places = [x if op is ENTRY and type(x) is int else self.place_of(x) for x in operands]
        self.steps.append(SequenceStep(op, places, self.new(), None))
        return SequenceNode(self, self.size - 1)

    def new(self) -> int:
        """Return the place of a new value."""
        self.size += 1
        return self.size - 1

    def place_of(self, x: Any) -> int:
        """Return the place of a node, or of a constant, which gets one."""
        if isinstance(x, SequenceNode):
            return x.place
        place = self.new()
        self.constants[place] = x
        return place

    def apart(self, count: int) -> list[SequenceNode]:
        """Let the last call have ``count`` results; return their nodes."""
        last = self.steps[-1]
        self.steps[-1] = last._replace(parts=count)
        self.size = last.result + count
        return [SequenceNode(self, last.result + i) for i in range(count)]

    def refuse_read(self, nodes: Sequence[Any]) -> list[Any]:
        """Raise `CellReads`: a cell that reads values is no sequence of calls."""
        self.asked = True
        raise CellReads

    def recorded(self, recording: Recording, code: Callable[[], Any]) -> Any:
        """Return what ``code()`` returns, which runs a cell once and is recorded on this by ``recording``.

        What it raises because something cannot be recorded is not held against the program.
        """
        text = REFUSALS.text
        recording.goes_on([], self.refuse_read)
        before = CURRENT.switch(recording)
        try:
            return code()
        finally:
            CURRENT.switch(before)
            REFUSALS.put_back(text)

    def finish(self, results: Sequence[SequenceNode]) -> None:
        """Note what is needed until when; ``results`` are what the cell returns."""
        needed = {x.place for x in results}
        for number in range(len(self.steps) - 1, -1, -1):
            step = self.steps[number]
            places = {*step.places}
            own = {*range(step.result, step.result + (step.parts or 1))}
            self.steps[number] = step._replace(dropped=[*(places | own) - needed])
            needed |= places

    def run(
        self,
        rows: Sequence[Any],
        results: Sequence[SequenceNode],
        run: Callable[[Any, Sequence[Any]], Any],
        row: Callable[[Any, int], Any],
    ) -> list[Any]:
        """Run the calls on rows; return the rows of the results.

        Parameters
        ----------
        rows : sequence of array
            The operands, ``(n, *s)``.
        results : sequence of SequenceNode
            What is returned.
        run : callable
            ``run(op, operands)`` returns the result of a call on rows, a tuple of several.
        row : callable
            ``row(x, n)`` returns a constant, which has one row, as ``n`` rows.
        """
        values: list[Any] = [*rows, *[None] * (self.size - len(rows))]
        for place, x in self.constants.items():
            values[place] = row(x, len(rows[0]))
        for op, operands, result, parts, dropped in self.steps:
            if op is ENTRY:
                values[result] = values[operands[0]][:, operands[1]]
            else:
                found = run(op, [values[place] for place in operands])
                if parts is None:
                    values[result] = found
                else:
                    values[result : result + parts] = found
            for place in dropped:
                values[place] = None
        return [values[x.place] for x in results]


class CellReads(Exception):
    """Says that a cell reads a value, so that what it does depends on values."""
