"""Frames that must not be left: what an example holds open, and others would see if they went on meanwhile.

An example that reads a value waits, and others go on, on the same thread. That is as if it had not stopped
only if nothing that it has entered is seen by the others:

- A ``with`` statement that it is inside of may have set what all see: a handler on a stack, a lock, a
  setting. It may wait inside of those alone whose context is known to be its own, as ``torch.no_grad()``.
- Compiled code that has called it back may keep state in one place for all calls, as SciPy's solvers do
  that were written in Fortran, and is not entered a second time before it is left.

Which of these a frame is in is told from its bytecode, once for each place in the code where it stands.
"""

from __future__ import annotations

import builtins
import contextlib
import decimal
import dis
import functools
import inspect
import os
import sys
import types
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import numpy as np

from multifold._engine import compiled
from multifold._engine.ops.reach import module_of

OWN_CONTEXTS = [contextlib.nullcontext, contextlib.suppress, contextlib.closing, decimal.localcontext, open]
"""What makes contexts that no other example sees; each has a `contextvars` context of its own."""

if int(np.__version__.partition(".")[0]) > 1:
    OWN_CONTEXTS.append(np.errstate)  # it sets a context variable, and one of the thread before NumPy 2

SAFE = {*sys.stdlib_module_names, "builtins", "numpy", "optree", "greenlet"} - {"ctypes", "_ctypes"}
"""Packages whose compiled code may be entered again before it is left: its state is on the stack."""

BUILTIN_TYPES = {x for module in (types, builtins) for x in vars(module).values() if isinstance(x, type)}
"""Types whose module is said to be ``builtins``, and is. Fortran's functions say so, too."""

CALLS = {"CALL": 2, "CALL_KW": 3, "CALL_FUNCTION_EX": 3}
"""Instructions that call, with how many values they take from the stack besides their ``arg``."""

SKIPPED = ("CACHE", "PRECALL", "KW_NAMES", "EXTENDED_ARG")
"""Instructions that are parts of others: in Python 3.11 a call is two, `effect_of` has both."""

NAMES = ("LOAD_GLOBAL", "LOAD_NAME")
LOCALS = ("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_BORROW", "LOAD_DEREF")
ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")
"""Instructions that load what has a name."""

UNKNOWN = object()
"""Stands for an object that the code of a frame does not name."""


class OpenFrames:
    """Tells why an example must not be left where its code stands, by its frames.

    Parameters
    ----------
    inner : tuple of str
        Beginnings of the names of modules, each with a dot at its end, whose frames are looked over: those
        of multifold and of the framework.
    own : sequence of callable
        The framework's makers of contexts that no other example sees, besides `OWN_CONTEXTS`.

    Attributes
    ----------
    reads : dict of int to code
        The code of frames that were looked at, by its ``id``: what reads values, and what has called it.
    """

    def __init__(self, inner: tuple[str, ...], own: Sequence[Any]) -> None:
        self.inner = inner
        self.own = [*OWN_CONTEXTS, *own]
        self.known: dict[tuple[int, int, int], tuple[Any, str | None]] = {}
        self.reads: dict[int, CodeType] = {}

    def reason(self, frame: FrameType | None) -> str | None:
        """Return why the code of a frame, or of one that has called it, must not be left; None if it may.

        It is a phrase, as "the with statement at model.py:12".
        """
        inner = None
        while True:
            frame, inner, reason = compiled.first_unknown(frame, inner, self.known)
            if frame is None or reason is not None:
                return reason
            code = frame.f_code
            self.reads[id(code)] = code
            reason, is_lasting = self.reason_of(frame)
            if is_lasting:
                # What has been called, if it differs, has another frame inside of this one. The entry keeps
                # the code, so that no new code object gets its id.
                self.known[id(code), frame.f_lasti, id(inner)] = (code, inner), reason
            if reason is not None:
                return reason
            inner = code
            frame = frame.f_back

    def note_read(self, frame: FrameType | None, end: CodeType) -> None:
        """Store the code of a frame, and of all that have called it up to that of ``end``, in ``reads``."""
        while frame is not None and frame.f_code is not end:
            self.reads[id(frame.f_code)] = frame.f_code
            frame = frame.f_back

    def reason_of(self, frame: FrameType) -> tuple[str | None, bool]:
        """Return why one frame must not be left where it stands, or None; and whether that stays so.

        It may change where the context of a ``with`` statement is a local variable.
        """
        if f"{frame.f_globals.get('__name__', '')}.".startswith(self.inner):
            return None, True
        steps = Steps.of(frame.f_code)
        is_lasting = True
        for number in steps.statements_around(frame.f_lasti):
            context = steps.context(number, frame)
            if not self.is_own(context):
                reason = f"the with statement at {where(frame.f_code, steps.line(number))}"
                return reason, context is UNKNOWN
            is_lasting = is_lasting and any(context is x for x in self.own)
        called = steps.called(frame)
        if called is not UNKNOWN and self.is_foreign(called):
            name = getattr(called, "__qualname__", type(called).__name__)
            return f"compiled code ({name}), called at {where(frame.f_code, frame.f_lineno)}", is_lasting
        return None, is_lasting

    def is_own(self, context: Any) -> bool:
        """Return whether a context, or what makes it, is known to be seen by one example alone."""
        if any(context is x for x in self.own):
            return True
        return any(type(context) is x for x in self.own if isinstance(x, type))

    def is_foreign(self, called: Any) -> bool:
        """Return whether something callable is compiled code of a package that is not known to be safe."""
        called = called.func if isinstance(called, functools.partial) else called
        if isinstance(called, (types.FunctionType, types.MethodType)):
            return False
        if isinstance(called, type):
            return False  # what a class calls is told by its own frames
        if inspect.getattr_static(type(called), "__call__", None).__class__ is types.FunctionType:
            return False
        if isinstance(called, types.BuiltinFunctionType):
            own = called.__self__
            module = own.__name__ if isinstance(own, types.ModuleType) else module_of(type(own))
            module = called.__module__ or module
        elif module_of(type(called)) == "builtins" and type(called) not in BUILTIN_TYPES:
            return True
        else:
            module = module_of(called) or module_of(type(called))
        return not (module.partition(".")[0] in SAFE or f"{module}.".startswith(self.inner))


class BytecodeStep(NamedTuple):
    """One instruction of Python's bytecode.

    Attributes
    ----------
    name : str
        What it is called.
    value : object
        Its argument: a name, for instance.
    offset : int
        Where it is in the code, in bytes.
    effect : int
        By how much the stack grows.
    line : int or None
        The line in its file.
    is_target : bool
        Whether some step jumps to it.
    """

    name: str
    value: Any
    offset: int
    effect: int
    line: int | None
    is_target: bool


class Steps:
    """The bytecode of a function as `BytecodeStep` objects, and what ``with`` statements there are in it.

    Parameters
    ----------
    code : code
        The code object.
    """

    def __init__(self, code: CodeType) -> None:
        self.steps: list[BytecodeStep] = []
        self.numbers: dict[int, int] = {}
        is_target = False
        for x in dis.get_instructions(code):
            if x.opname not in SKIPPED:
                is_target |= x.is_jump_target
                self.numbers[x.offset] = len(self.steps)
                self.steps.append(
                    BytecodeStep(x.opname, x.argval, x.offset, effect_of(x), line_of(x), is_target)
                )
                is_target = False
            elif x.opname != "CACHE":  # a jump to the next one may lead here
                is_target |= x.is_jump_target
                self.numbers[x.offset] = len(self.steps)
        table: Any = dis.Bytecode(code)
        self.handlers = [(x.start, x.end, x.target) for x in table.exception_entries]

    @classmethod
    @functools.lru_cache(maxsize=4096)
    def of(cls, code: CodeType) -> Steps:
        """Return the `Steps` of a code object, which are kept for the codes that were asked for last."""
        return cls(code)

    def line(self, number: int) -> int:
        """Return the line of step ``number``; 0 if it has none."""
        return self.steps[number].line or 0

    def at(self, offset: int) -> int | None:
        """Return the number of the step at an offset, or of the first one after it; None at the end."""
        return next((i for i, step in enumerate(self.steps) if step.offset >= offset), None)

    def statements_around(self, offset: int) -> Iterator[int]:
        """Yield the step that ends the set-up of each ``with`` statement around an offset, innermost first.

        Python's table of exceptions tells where the code goes if it raises at an offset. Around a ``with``
        statement that is code which begins with ``WITH_EXCEPT_START``; and what handles an error there is
        around the statement.
        """
        seen = set[int]()
        while True:
            handler = next((x for x in self.handlers if x[0] <= offset < x[1]), None)
            if handler is None or handler[2] in seen:
                return
            offset = handler[2]
            seen.add(offset)
            number = self.at(offset)
            if number is None:
                return
            if any(step.name == "WITH_EXCEPT_START" for step in self.steps[number : number + 2]):
                start = min(x[0] for x in self.handlers if x[2] == handler[2])
                yield self.numbers[start] - 1

    def context(self, number: int, frame: FrameType) -> Any:
        """Return the object in a ``with`` statement, or what was called to make it; `UNKNOWN` if unnamed.

        ``number`` is the step that ends the set-up of the statement, and ``frame`` runs the code.
        """
        if self.steps[number].name != "BEFORE_WITH":  # Python 3.14 has several steps in its place
            copies = [i for i in range(number, 0, -1) if self.steps[i].name == "LOAD_SPECIAL"][:2]
            if len(copies) < 2 or self.steps[copies[1] - 1].name != "COPY":
                return UNKNOWN
            number = copies[1] - 1
        if self.steps[number].is_target:  # one of several contexts
            return UNKNOWN
        if self.steps[number - 1].name in CALLS:
            return self.callee(number - 1, frame)
        return self.loaded(self.begin(number - 1, 1), number, frame)

    def called(self, frame: FrameType) -> Any:
        """Return what a frame calls now; `UNKNOWN` if it is not at a call, or calls what has no name."""
        number = self.numbers.get(frame.f_lasti)
        if number is None or self.steps[number].name not in CALLS:
            return UNKNOWN
        return self.callee(number, frame)

    def callee(self, number: int, frame: FrameType) -> Any:
        """Return what the call that is step ``number`` calls in a frame; `UNKNOWN` if that has no name."""
        found = self.called_by(number)
        return UNKNOWN if found is None else self.loaded(*found, frame)

    def called_by(self, number: int) -> tuple[int, int] | None:
        """Return where the steps begin and end that load what the call that is step ``number`` calls.

        None if what is called comes out of another call, or where there are jumps.
        """
        begin = self.begin(number - 1, 1 - self.steps[number].effect)  # a call leaves its one result
        if begin is None:
            return None
        depth, end = 0, begin
        while end < number and depth < 2:  # the callable, and the place of an object whose method it is
            depth += self.steps[end].effect
            end += 1
        while end < number and self.steps[end].name in ATTRIBUTES and self.steps[end].effect == 0:
            end += 1
        for later in self.steps[end:number]:
            depth += later.effect
            if depth < 2:
                return None
        return begin, end

    def begin(self, number: int, values: int) -> int | None:
        """Return the first of the steps up to ``number`` that put the last ``values`` on the stack.

        None if there are jumps among them, or to what comes after one.
        """
        for i in range(number, -1, -1):
            if "JUMP" in self.steps[i].name or self.steps[i + 1].is_target:
                return None
            values -= self.steps[i].effect
            if values <= 0:
                return i if values == 0 else None
        return None

    def loaded(self, begin: int | None, end: int, frame: FrameType) -> Any:
        """Return what the steps from ``begin`` to before ``end`` load: a name, and attributes of it.

        `UNKNOWN` if they do anything else, or if an attribute takes code to find.
        """
        if begin is None:
            return UNKNOWN
        found = UNKNOWN
        for step in self.steps[begin:end]:
            if step.name in NAMES and found is UNKNOWN:
                found = named(frame, step.value)
            elif step.name in LOCALS and found is UNKNOWN:
                found = frame.f_locals.get(step.value, UNKNOWN)
            elif step.name in ATTRIBUTES and found is not UNKNOWN:
                found = attribute(found, step.value)
            elif step.name != "PUSH_NULL":
                return UNKNOWN
            if found is UNKNOWN and step.name != "PUSH_NULL":
                return UNKNOWN
        return found


def line_of(x: dis.Instruction) -> int | None:
    """Return the line of an instruction of Python's bytecode; None if it has none."""
    return None if x.positions is None else x.positions.lineno


def effect_of(x: dis.Instruction) -> int:
    """Return by how much an instruction of Python's bytecode grows the stack; a call with its arguments."""
    if x.opname not in CALLS:
        return dis.stack_effect(x.opcode, x.arg)
    argument = x.arg or 0
    return 1 - CALLS[x.opname] - (argument & 1 if x.opname == "CALL_FUNCTION_EX" else argument)


def named(frame: FrameType, name: str) -> Any:
    """Return what a name stands for in a frame that is no local variable of a function; else `UNKNOWN`."""
    for table in (frame.f_locals, frame.f_globals, frame.f_builtins):
        if name in table:
            return table[name]
    return UNKNOWN


def attribute(x: Any, name: str) -> Any:
    """Return an attribute of an object without running code of its class; `UNKNOWN` if it takes that.

    >>> attribute(contextlib, "suppress") is contextlib.suppress
    True
    """
    if isinstance(x, (types.ModuleType, type)):
        return getattr(x, name, UNKNOWN)
    found = inspect.getattr_static(x, name, UNKNOWN)
    if isinstance(found, types.MethodDescriptorType):  # a method of a class that is compiled
        return getattr(x, name)
    return UNKNOWN if hasattr(type(found), "__set__") else found


def where(code: CodeType, line: int) -> str:
    """Return the file and the line of code as a text: ``"model.py:12"``."""
    return f"{os.path.basename(code.co_filename)}:{line}"
