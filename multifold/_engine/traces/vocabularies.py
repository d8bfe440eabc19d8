"""Vocabularies as text: what the traces of a file have in common, written without pickle.

A vocabulary is written as one text that has numbers in the place of ops, static and shared values, and as
the texts of these values, so that a file holds each value once though many vocabularies name it.

A signature is read by recording a call like those that had it: its operands are stand-ins of the same
kinds. The recorder alone decides what a signature is, so calls that are read share launches with those
that are recorded.

Examples
--------
>>> import multifold
>>> trace = multifold.trace(lambda fold, x: fold.add("scale", x, by=2), 0.5)
>>> form, values = write_vocabulary(trace, 0)
>>> values, form[:60]
(['"scale"', '2'], '{"multifold":4,"signatures":[[0,[["slot","float"]],{"by":1},')
>>> read_vocabulary(form, values, look_up) == trace.vocabulary
True
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import optree

from multifold._engine.record.damage import DAMAGE, LAYOUT, refuse_other_layout
from multifold._engine.record.graph import Part
from multifold._engine.record.node import Node
from multifold._engine.record.signature import Signature, Slot
from multifold._engine.record.texts import NoText, decode, encode, look_up, text
from multifold._engine.traces.trace import COUNTED, Trace, Vocabulary, make_vocabulary
from multifold._engine.traces.tracer import TraceRecorder
from multifold.errors import RecordError
from multifold.operands import MissingRows, Shared, Static, ragged


@dataclass(frozen=True)
class Wanted:
    """Stands for a result in the structure of outputs; ``wanted`` is "row", "group", "whole" or "each"."""

    wanted: str


def write_vocabulary(trace: Trace, example: int) -> tuple[str, list[str]]:
    """Return a trace's vocabulary as JSON, and the texts of the ops and values that it names by number.

    Raises
    ------
    RecordError
        If an op or a value of it cannot be written; ``example`` is the number of the trace for the message.
    """
    vocabulary = trace.vocabulary
    writer = Writer(trace, example)
    results = optree.tree_unflatten(vocabulary.structure, list(map(Wanted, vocabulary.wanted)))
    code = {
        "multifold": LAYOUT,
        "signatures": [writer.signature(i, x) for i, x in enumerate(vocabulary.signatures)],
        "parts": [[encode(x.path[-1]), x.parent, x.length] for x in vocabulary.parts[1:]],
        "results": writer.code(results, "in what the traced function returned", 0),
    }
    form = text(code)
    values = list(writer.values)
    # The text is read back at once. It is better to refuse an op that would come back as another one now
    # than when the file is read.
    if not reads_as(form, values, vocabulary):
        ops = ", ".join(dict.fromkeys(x.name for x in vocabulary.signatures))
        raise RecordError(
            "Expected ops and static values that a file can hold. Received some that would be read as "
            f"others, in trace {example} of ops {ops}.",
            "pass plain data: numbers, strings, tuples, dictionaries, NumPy arrays.",
        )
    return form, values


def reads_as(form: str, values: list[str], vocabulary: Vocabulary) -> bool:
    """Return whether `read_vocabulary` makes an equal vocabulary of ``form`` and ``values``.

    False, too, where it raises one of `DAMAGE`.
    """
    try:
        return read_vocabulary(form, values, look_up) == vocabulary
    except DAMAGE:
        return False


class Writer:
    """Writes the signatures of one trace as what JSON can hold.

    ``values`` is the text of an op or value -> its number, in the order in which they were written;
    ``example`` is the number of the trace for messages.
    """

    def __init__(self, trace: Trace, example: int) -> None:
        self.trace = trace
        self.example = example
        self.values: dict[str, int] = {}

    def signature(self, number: int, signature: Signature) -> list[Any]:
        """Return a signature as ``[op, operands, keyword arguments, file]``; ``number`` is its own.

        The op and the values of keywords are numbers of texts (`value`), operands are what `code` returns.
        """
        slots = signature.nested(signature.slots)
        names = {key: f"as the keyword argument {key!r} of {signature.name!r}" for key in signature.static}
        return [
            self.value(signature.op, "as an op", number),
            [self.code(slot, f"among the operands of {signature.name!r}", number) for slot in slots],
            {key: self.value(x, names[key], number) for key, x in signature.static.items()},
            self.trace.vocabulary.files[number],
        ]

    def value(self, x: Any, where: str, number: int) -> int:
        """Return the number of the text of a value, from 0; a text that is new gets the next number.

        For messages ``where`` says what the value is, and ``number`` is that of its signature. Raises
        `RecordError` if it cannot be written.
        """
        return self.values.setdefault(text(self.code(x, where, number)), len(self.values))

    def code(self, x: Any, where: str, number: int) -> Any:
        """Return a value, or an operand with slots in it, as lists, strings and numbers that JSON can hold.

        A `Slot` becomes ``["slot", kind]`` or ``["slot", kind, number of its value]``, a `Wanted`
        ``["result", wanted]``. Arguments and errors as for `value`.
        """

        def special(x: Any) -> list[Any] | None:
            if isinstance(x, Slot):
                # What a ragged operand says of missing rows is a tuple in any version of this package.
                plain = tuple(x.value) if isinstance(x.value, MissingRows) else x.value
                value = [] if x.value is None else [self.value(plain, where, number)]
                return ["slot", x.kind.name, *value]
            return ["result", x.wanted] if isinstance(x, Wanted) else None

        try:
            return encode(x, special)
        except NoText as error:
            raise RecordError(
                "Expected ops that are names or importable functions, and plain data, in a trace that is "
                f"written. Received {error.what} {where}, recorded at {self.site(number)} "
                f"(trace {self.example}).",
                error.hint,
            ) from error
        except RecursionError:
            raise RecordError(
                f"Expected values that are not nested deeply. Received one {where}, recorded at "
                f"{self.site(number)} (trace {self.example}).",
                "pass a flat value: a tuple of numbers, say, instead of lists inside lists.",
            ) from None

    def site(self, number: int) -> str:
        """Return ``file:line`` of the first call of a signature; "no call" in a trace without calls."""
        vocabulary = self.trace.vocabulary
        integers = self.trace.integers
        if not vocabulary.files:
            return "no call"
        # The column of signatures comes right after the sizes, and each signature has a call there.
        signature = integers[len(COUNTED) + len(vocabulary.wanted) :]
        call = int(np.argmax(signature == number))
        return f"{vocabulary.files[number]}:{self.trace.lines[call]}"


STAND_INS: dict[str, Callable[[Node, Any], Any]] = {
    "node": lambda node, x: node,
    "shared node": lambda node, x: node.no_batch(),
    "int": lambda node, x: 0,
    "float": lambda node, x: 0.0,
    "bool": lambda node, x: False,
    "array": lambda node, x: np.zeros((1, *x[1]), x[2]),
    "ragged": lambda node, x: ragged([node], *(x or ())),
    "shared": lambda node, x: Shared(x),
    "static": lambda node, x: Static(x),
}
"""The kind of an operand -> makes an operand of that kind from a node and from the value of its `Slot`."""


def read_vocabulary(form: str, values: list[str], find: Callable[[str], Any]) -> Vocabulary:
    """Return the vocabulary that `write_vocabulary` wrote as ``form`` and ``values``.

    ``find("module:qualname")`` returns a function; what it raises is passed on.

    Raises
    ------
    RecordError
        If it was written in another layout, or if ``find`` refuses a name so.
    LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError
        `DAMAGE`, if it is nothing that `write_vocabulary` writes.
    """
    code = json.loads(form)
    refuse_other_layout(code["multifold"])
    known = [decode(json.loads(value), find) for value in values]
    recorder = TraceRecorder()
    # There is no call 0 yet, but only the kind of an operand enters a signature, not which node it is.
    node = Node(recorder._graph, 0)

    def stand_in(kind: str, number: int | None = None) -> Any:
        return STAND_INS[kind](node, None if number is None else known[number])

    for op, operands, static, _ in code["signatures"]:
        arguments = [decode(operand, find, {"slot": stand_in}) for operand in operands]
        keywords = {name: Static(known[number]) for name, number in static.items()}
        # Any frame will do: the lines of these calls are never asked for.
        recorder._record(known[op], tuple(arguments), keywords, sys._getframe())
    # Were two of them one, all later signatures would have another number than the calls of the traces say.
    if len(recorder._graph.signatures) != len(code["signatures"]):
        raise ValueError("two signatures are equal")
    parts = [Part((), 0, None)]
    for key, parent, length in code["parts"]:
        parts.append(Part((*parts[parent].path, decode(key)), parent, length))
    results, structure = optree.tree_flatten(
        decode(code["results"], find, {"result": Wanted}), none_is_leaf=True
    )
    return make_vocabulary(
        tuple(recorder._graph.signatures),
        tuple(parts),
        tuple(file for *_, file in code["signatures"]),
        structure,
        tuple(result.wanted for result in results),
    )
