# cython: language_level=3, infer_types=True, boundscheck=True, wraparound=False, initializedcheck=False
"""Plain programs: functions that meet pending values, recorded as earlier calls of their kind were.

Calls are of one kind if they may share a launch: the function, the modes of the framework, the constants by
type and value, and the forms of the operands are equal. The adapter finds out once for each kind what it
returns. Each further call costs what stands here: a key, a look into a table, a call of ``Fold.add`` and a
pending value.

Of ``torch.cat([a, b], 1)`` with two pending values of one form the key is::

    torch.cat, modes, list, 2, form, form, int, 1

A container is preceded by its type and length, and a constant by its type, so two calls that differ have
no key in common.

A read, as ``x.item()``, comes from `LazyRecorderBase.dispatch` to ``read_host`` and to `TurnsBase.wait`,
which leaves the example's greenlet; `TurnsBase.go_on` resumes it with the value. In between other examples
run, and `SharingBase` counts whose turn it was.

This module is compiled where a C compiler is at hand, and runs as it is elsewhere.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from types import FunctionType
from typing import TYPE_CHECKING, Any
from weakref import ref

from multifold._engine.compiled import callers, columns

if TYPE_CHECKING:
    import cython
else:
    from multifold._engine.compiled.columns import cython


FOUND_CELL = "found"
"""Stands in the keys of calls of found cells, which are other kinds than those of cells that are named."""

NUMBERS = frozenset({int, float, bool, str})

LOOKED_AT = 16
"""So many of the pending values that an example has made last are looked at when it reads one."""

SMALL = 4096
"""Numbers of a pending value that is read with others."""

MANY = 32
"""So many values of a form are read with others before it counts how many of them the program uses."""

MOST = 4096
"""Forms whose values are counted, before all counts are forgotten: a program may have ever new shapes."""

BROUGHT, USED, NUMBERS_IN = range(3)
"""What is counted of the values of a form: those that were read with others, and those that the program
asked for; and how many numbers each has. The form comes last, so that no other one gets its ``id``."""


@cython.cfunc
@cython.inline
def own(glue: Any) -> Any:
    """Return ``glue`` as it is: Cython takes what comes back for any object.

    So methods of an adapter's subclass, which know the framework, are called through it.
    """
    return glue


@cython.cclass
class KnownCall:
    """A kind of call: what runs it, and what it returns.

    Attributes
    ----------
    call : callable or None
        The op of the calls; None if they return no array.
    structure : object
        How their results are nested: None for one array, ``tuple``, or what has ``unflatten``.
    forms : list
        The form of each result. ``form.new()`` returns an empty pending value of it.
    bases : list of (int or None)
        The operand that each result is a view of, or None. With two operands, 0 and 1 are these, and 2 is
        the first result.
    result : object
        What the calls return, if that is no array.
    held : list
        The objects that stand in the key by their ``id``. They are kept, so that no new object gets it.
    is_small : bool
        Whether the function runs at once where the values of all operands were read.
    draws : bool
        Whether each call has one operand more: the state of its example's random stream, see `with_state`
        of `multifold.lazy.recorder.LazyRecorder`.
    """

    call = cython.declare(object, visibility="readonly")
    structure = cython.declare(object, visibility="readonly")
    forms = cython.declare(list, visibility="readonly")
    bases = cython.declare(list, visibility="readonly")
    result = cython.declare(object, visibility="readonly")
    held = cython.declare(list, visibility="readonly")
    is_small = cython.declare(columns.Bool, visibility="readonly")
    draws = cython.declare(columns.Bool, visibility="readonly")

    def __init__(
        self,
        call: Any,
        structure: Any,
        forms: list,
        bases: list,
        result: Any,
        held: list,
        is_small: columns.Bool,
        draws: columns.Bool = False,
    ) -> None:
        self.call = call
        self.structure = structure
        self.forms = forms
        self.bases = bases
        self.result = result
        self.held = held
        self.is_small = is_small
        self.draws = draws


@cython.cclass
class Stamp:
    """What stands for a function or a model in keys, for as long as nothing of it can have changed.

    That is while ``counter.total`` is what it was, and some dictionaries hold the very objects that they
    held; see `tables_hold`.

    Attributes
    ----------
    value : object
        The function or model; the stamp keeps it, so that its ``id`` stays its own.
    key : object
        What stands for it.
    """

    value = cython.declare(object, visibility="readonly")
    key = cython.declare(object, visibility="readonly")
    counter = cython.declare(object)
    total = cython.declare(object)
    tables = cython.declare(list)
    objects = cython.declare(list)

    def __init__(self, value: Any, key: Any, counter: Any, tables: list, objects: list) -> None:
        self.value = value
        self.key = key
        self.counter = counter
        self.total = counter.total
        self.tables = tables
        self.objects = objects

    @cython.cfunc
    def holds(self) -> columns.Bool:
        """Return whether nothing of it has changed since this was made."""
        return self.counter.total == self.total and tables_hold(self.tables, self.objects)


@cython.cclass
class NumberRead:
    """An answer of a recorder that makes something of the value of one pending number, as ``float`` does.

    Attributes
    ----------
    made : callable
        Makes it of a number of Python.
    other : callable
        The answer to all other arguments.
    """

    made = cython.declare(object, visibility="readonly")
    other = cython.declare(object, visibility="readonly")

    def __init__(self, made: Any, other: Any) -> None:
        self.made = made
        self.other = other

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.other(*args, **kwargs)


@cython.cclass
class Hashed:
    """An object that knows its hash, which a table asks for at each call that is recorded.

    A class with an ``__eq__`` of its own says ``__hash__ = Hashed.__hash__``, or it has no hash.

    Parameters
    ----------
    number : int
        The hash; objects that are equal have the same one.
    """

    number = cython.declare(columns.Int)

    def __init__(self, number: Any) -> None:
        self.number = number

    def __hash__(self) -> Any:
        return self.number


@cython.cclass
class FoundCellBase:
    """The quick half of `multifold.lazy.found.FoundCell`: calls are counted here.

    Attributes
    ----------
    calls : int
        How often it was recorded as one call in the last run.
    reason : str or None
        Why it is not recorded as one call, as a phrase; None if it is.
    takes_numbers : bool or None
        Whether numbers among its arguments are operands, as indices of words; None if that was not tried.
    is_missed : bool
        Whether a call of it was not recorded as one call, and ran as it stands.
    """

    calls = cython.declare(columns.Int, visibility="public")
    is_missed = cython.declare(columns.Bool, visibility="public")
    reason = cython.declare(object, visibility="public")
    takes_numbers = cython.declare(object, visibility="public")

    def __init__(self, reason: Any) -> None:
        self.calls = 0
        self.reason = reason
        self.takes_numbers = None
        self.is_missed = False

    @cython.ccall
    def note_call(self) -> object:
        """Count a call that was recorded."""
        self.calls += 1
        return None


@cython.cclass
class RecordingBase:
    """The quick half of `multifold.lazy.current.Recording`: what is asked for at each call."""

    recorder = cython.declare(object, visibility="readonly")
    fold = cython.declare(object, visibility="readonly")
    found = cython.declare(object, visibility="readonly")
    alarmed = cython.declare(columns.Bool, visibility="readonly")
    lines = cython.declare(dict, visibility="readonly")
    made = cython.declare(list, visibility="readonly")
    wait = cython.declare(object, visibility="readonly")

    def __init__(self, recorder: Any, fold: Any, found: Any, alarmed: columns.Bool, wait: Any) -> None:
        self.recorder = recorder
        self.fold = fold
        self.found = found
        self.alarmed = alarmed
        self.lines = {}
        self.made = []
        self.wait = wait

    @cython.ccall
    def goes_on(self, made: list, wait: Any) -> object:
        """Store ``made`` and ``wait`` for the example whose code runs next; see `Recording`."""
        self.made = made
        self.wait = wait
        return None


@cython.cclass
class SharingBase:
    """The quick half of `multifold.lazy.sharing.Sharing`: turns are counted here.

    Attributes
    ----------
    is_quiet : bool
        Whether nothing is watched, so that a turn is counted and nothing else.
    turns : dict of int to int
        How many turns each example has had.
    last_begun : int
        The highest number of an example that has begun.
    """

    is_quiet = cython.declare(columns.Bool, visibility="public")
    turns = cython.declare(dict, visibility="readonly")
    last_begun = cython.declare(columns.Int, visibility="readonly")

    def __init__(self) -> None:
        self.is_quiet = False
        self.turns = {}
        self.last_begun = 0

    @cython.ccall
    def count(self, example: columns.Int) -> object:
        """Count a turn of an example."""
        self.turns[example] = self.turns.get(example, 0) + 1
        self.last_begun = max(self.last_begun, example)
        return None


@cython.cclass
class TurnsBase:
    """The turns of one example: its code runs in a greenlet until it reads a value, and goes on with that.

    The subclass is `multifold.lazy.waiting.Turns`, whose `alone` computes what must not wait.

    Parameters
    ----------
    recording : Recording
        The run that the example is part of.
    sharing : Sharing
        What it shares with others.
    example : int
        Its number, from 0.
    made : list
        Gets weak references to the pending values that it makes.
    stack : ExampleStack or None
        The greenlet in which its code runs; None where it never waits.
    current : Current
        What this thread records.
    refusals : Refusals
        The errors of multifold that its code may have caught.
    of_thread : callable or None
        Returns the greenlet that runs now; None without the package.
    """

    recording = cython.declare(RecordingBase, visibility="readonly")
    sharing = cython.declare(SharingBase, visibility="readonly")
    example = cython.declare(columns.Int)
    made = cython.declare(list)
    stack = cython.declare(object)
    current = cython.declare(object)
    refusals = cython.declare(object)
    of_thread = cython.declare(object)

    def __init__(
        self,
        recording: RecordingBase,
        sharing: SharingBase,
        example: columns.Int,
        made: list,
        stack: Any,
        current: Any,
        refusals: Any,
        of_thread: Any,
    ) -> None:
        self.recording = recording
        self.sharing = sharing
        self.example = example
        self.made = made
        self.stack = stack
        self.current = current
        self.refusals = refusals
        self.of_thread = of_thread

    def go_on(self, wait: Any, code: Any, *arguments: Any) -> Any:
        """Let this thread record for the example while ``code(*arguments)`` runs; return what that returns.

        ``code`` begins or resumes the example, so that is its result, or the nodes that it wants to read.
        ``wait`` is what a read calls. ``sharing`` is told that the example begins, and at the end that it
        rests, unless it is quiet. What recorded before does so again then, also if the code raises. Raise a
        `RecordError` if the code has caught an error of multifold during this call.
        """
        sharing: SharingBase = self.sharing
        is_quiet: columns.Bool = sharing.is_quiet  # `begin` may change it, and `rest` belongs to `begin`
        if is_quiet:
            sharing.count(self.example)
        else:
            own(sharing).begin(self.example)
        self.recording.goes_on(self.made, wait)
        self.refusals.forget()
        # A key press may raise in any function of Python: none is called between this and `try`.
        before: Any = self.current.switch(self.recording)
        try:
            found: Any = code(*arguments)
            if self.stack is not None and self.stack.is_free:
                found = self.stack.taken()
            if self.refusals.text is not None:
                self.refusals.refuse_caught()
            return found
        except Exception as error:
            own(self).refuse_caught(error)
            raise
        finally:
            try:
                if not is_quiet:
                    own(sharing).rest(self.example)
            finally:
                self.current.switch(before)

    def wait(self, nodes: Any) -> Any:
        """Return the values of ``nodes``, which the example reads; others may go on meanwhile.

        They do not if they would see what the example holds open or has changed: then it goes on `alone`.
        Else it leaves its stack, handing ``nodes`` to what drives it, until that resumes it. Raise a
        `RecordError` if this is called in another greenlet or thread, or if others have changed meanwhile
        what it shares with them, or it has changed what a recorded cell finds.
        """
        if self.of_thread() is not self.stack:
            own(self).refuse_elsewhere()
        recorder: Any = self.recording.recorder
        sharing: SharingBase = self.sharing
        recorder.refuse_rebound()
        here: Any = callers.here()
        frame, _, reason = first_unknown(here, None, recorder.frames.known)
        if frame is not None and reason is None:
            reason = recorder.frames.reason(here)
        here = frame = None
        if reason is None and not sharing.is_quiet:
            reason = own(sharing).change()
        if reason is not None:
            return own(self).alone(reason, nodes)
        left: Any = None if sharing.is_quiet else own(sharing).last
        apart: Any = recorder.apart()
        if type(apart) is nullcontext:
            values: Any = self.stack.parent.switch(nodes)
        else:
            with apart:
                values = self.stack.parent.switch(nodes)
        if left:
            own(sharing).refuse_changes(left)
        return values


@cython.cclass
class LazyRecorderBase:
    """The quick path of `multifold.lazy.recorder.LazyRecorder`: calls of known kinds are recorded here.

    Parameters
    ----------
    pending : type
        The class of pending values. Each has a ``node`` and a ``form``; ``base``, what it is a view of;
        ``version``, how often it was changed in place, or -1 once a view of it was; ``seen``, the version
        of its base when it was made; ``host``, its value once that was read; and ``place``, the value that
        it is a part of, and at which index.
    answers : dict
        Functions that are not recorded, and what answers them.
    probes, alarms : tuple of callable
        What a program may change in this thread that calls depend on: answers of probes are parts of each
        key. Where an alarm is true, or was when the run began, ``modes()`` says the rest.
    array : type or None
        The class of computed arrays whose forms are in ``array_forms``; not that of its subclasses.
    form_key : callable or None
        ``form_key(x)`` returns what tells the form of such an array.

    Attributes
    ----------
    array_forms : dict of object to form
        The forms of computed arrays that this recorder has met, by what ``form_key`` returns.
    is_seeded : bool
        Whether examples have random streams of their own, so that more counts than ``form_key`` says.
    is_inside : callable or None
        Returns whether the program is inside of what the framework does with code, as of a transform, where
        no call is recorded whole.
    known : dict of tuple to KnownCall
        The kinds of calls, by key.
    earlier : dict of tuple to KnownCall
        Kinds of calls of earlier runs that this one has not met. What they return depends on code of the
        program, which may find other things now, so they are looked at again.
    plain_types : frozenset of type
        Types of arrays, and of constants of the framework, which found cells may take.
    whole : dict of tuple to (KnownCall, bool) or None
        The kinds of calls of found cells that this run has met, by key, and whether they are recorded even
        if no operand is pending; None for those that are not recorded whole.
    loose : dict of int to Stamp
        What stands for models in calls of found cells: the program may change what a model finds, as long
        as it is nothing that the function names.
    stamps : dict of int to Stamp
        What stands for functions and models in this run, by their ``id``; an adapter adds them in `key_of`,
        for those that the program does not change.
    shared : dict of int to array
        The arrays that are the same for all examples of a run, by ``id``.
    """

    pending = cython.declare(object, visibility="readonly")
    answers = cython.declare(dict, visibility="readonly")
    probes = cython.declare(tuple, visibility="readonly")
    alarms = cython.declare(tuple, visibility="readonly")
    known = cython.declare(dict, visibility="public")
    earlier = cython.declare(dict, visibility="public")
    shared = cython.declare(dict, visibility="public")
    stamps = cython.declare(dict, visibility="readonly")
    loose = cython.declare(dict, visibility="readonly")
    is_loose = cython.declare(columns.Bool)
    is_sure = cython.declare(columns.Bool)
    plain_types = cython.declare(frozenset, visibility="public")
    whole = cython.declare(dict, visibility="readonly")
    tallies = cython.declare(dict)
    array = cython.declare(object, visibility="readonly")
    form_key = cython.declare(object, visibility="readonly")
    array_forms = cython.declare(dict, visibility="public")
    is_seeded = cython.declare(columns.Bool, visibility="public")
    is_inside = cython.declare(object, visibility="readonly")

    def __init__(
        self,
        pending: Any,
        answers: dict,
        probes: tuple,
        alarms: tuple,
        array: Any = None,
        form_key: Any = None,
        is_inside: Any = None,
    ) -> None:
        self.pending = pending
        self.answers = answers
        self.probes = probes
        self.alarms = alarms
        self.known = {}
        self.earlier = {}
        self.shared = {}
        self.stamps = {}
        self.loose = {}
        self.is_loose = self.is_sure = False
        self.plain_types = frozenset()
        self.whole = {}
        self.tallies = {}
        self.array = array
        self.form_key = form_key
        self.array_forms = {}
        self.is_seeded = False
        self.is_inside = is_inside

    def dispatch(self, recording: RecordingBase, func: Any, args: tuple, kwargs: dict | None) -> Any:
        """Return the result of a function that has met a pending value, one that is not computed yet.

        A function in ``answers`` is answered, and one of a known kind is recorded, or run at once if the
        kind ``is_small`` and the values of all its operands were read. Others go to `dispatch_unknown`.
        """
        answer: Any = self.answers.get(func)
        if type(answer) is NumberRead and len(args) == 1 and not kwargs and self.is_number(args[0]):
            return answer.made(self.number(recording, args[0]))
        if answer is not None:
            return answer(*args, **kwargs) if kwargs else answer(*args)
        operands: list = []
        call: Any = self.known.get(self.key(recording, func, None, args, kwargs, operands))
        if call is None:
            operands.clear()  # a change in place counts the references to its tensor: none is ours
            return own(self).dispatch_unknown(func, args, {} if kwargs is None else kwargs)
        if call.is_small and self.are_read(operands):
            return own(self).at_once(func, args, {} if kwargs is None else kwargs)
        return self.again(recording, call, operands)

    def recorded(self, recording: RecordingBase, maker: Any, func: Any, args: tuple, kwargs: dict) -> Any:
        """Record a call and return its pending value or values; run it at once if it depends on no example.

        Parameters
        ----------
        recording : Recording
            What the calls of an example are recorded in.
        maker : type or None
            What kind of cell ``func`` is; None for a function of the framework.
        func, args, kwargs : callable, tuple, dict
            The call. If its kind is new, `learn` finds out what it returns.
        """
        operands: list = []
        key = self.key(recording, func, maker, args, kwargs, operands)
        if not self.depend_on_examples(operands):
            with own(recording).paused():
                return func(*args, **kwargs)
        call: Any = self.known.get(key)
        if call is None:
            before: Any = self.earlier.pop(key, None)
            if before is None:
                call = own(self).learn(recording, maker, func, args, kwargs, operands)
            else:
                call = own(self).learn_again(recording, before, maker, func, args, kwargs, operands)
            self.known[key] = call
        return self.again(recording, call, operands)

    def found_call(self, recording: RecordingBase, func: Any, args: tuple, kwargs: dict) -> Any:
        """Record a call of a found cell whole, or call the function.

        It is called if an argument is something else than an array, a number, a text, None, a model, or
        tuples and lists of these; if the program may change what the function finds; if no operand is
        pending and it does not begin with layers; and where `find` says so. In the place of a function
        that was divided its rest is called, which calls its pieces.
        """
        found_cells: Any = recording.found
        cell: FoundCellBase = found_cells.cells.get(func)
        if cell is None or cell.reason is not None or (self.is_inside is not None and self.is_inside()):
            return found_cells.rests.get(func, func)(*args, **kwargs)
        given: tuple = args
        if cell.takes_numbers:
            args = own(self).with_numbers(args)
        operands: list = []
        key: Any = None
        self.is_loose = True
        try:
            if self.takes_whole(func, args, kwargs):
                self.is_sure = True  # `are_plain` has just looked at stamps and pending values
                key = self.key(recording, func, FOUND_CELL, args, kwargs, operands)
        finally:
            self.is_loose = self.is_sure = False
        found: Any = None if key is None else self.whole.get(key, FOUND_CELL)
        if found is FOUND_CELL:
            found = self.whole[key] = own(self).find(recording, key, func, args, kwargs, operands)
        if found is None or not (found[1] or self.any_pending(operands)):
            cell.is_missed = True
            return func(*given, **kwargs)
        cell.note_call()
        return self.again(recording, found[0], operands)

    @cython.cfunc
    def takes_whole(self, func: Any, args: tuple, kwargs: dict) -> columns.Bool:
        """Return whether a call of a function may be recorded whole, as far as its arguments tell."""
        if not self.stands(func) or not self.are_plain(args):
            return False
        return not kwargs or self.are_plain([*kwargs.values()])

    @cython.cfunc
    def are_plain(self, arguments: Any) -> columns.Bool:
        """Return whether all arguments are such as a found cell may take; see `found_call`."""
        for x in arguments:
            kind = type(x)
            if kind is self.pending:
                if self.is_stale(x):
                    return False
            elif isinstance(x, (tuple, list)):
                if not self.are_plain(x):
                    return False
            elif not (x is None or kind in NUMBERS or kind in self.plain_types or self.stands(x)):
                return False
        return True

    @cython.cfunc
    def stands(self, x: Any) -> columns.Bool:
        """Return whether a stamp stands for a function or model, or an adapter finds that one may."""
        return self.stamped(x) is not None or own(self).stays(x)

    @cython.cfunc
    def any_pending(self, operands: list) -> columns.Bool:
        """Return whether one of the operands is pending."""
        return any(type(x) is self.pending for x in operands)

    @cython.cfunc
    def key(
        self, recording: RecordingBase, func: Any, maker: Any, args: tuple, kwargs: Any, operands: list
    ) -> tuple:
        """Return the key that all calls of one kind share; append the call's operands to ``operands``.

        It holds the function, what ``probes`` answer, after an alarm the modes, ``maker``, and what stands
        for each argument (`add_key`), keywords by name. Operands are its pending values, and what `key_of`
        adds, as arrays.
        """
        parts: list = [func]
        for probe in self.probes:
            parts.append(probe())
        # Modes are rarely changed and cost more to ask for, so they stand in the key only after an alarm.
        if recording.alarmed or self.is_alarmed():
            parts.append(own(self).modes())
        if maker is not None:
            parts.append(maker)
            # A cell may be a function that binds values: they count like arguments.
            if type(func) is FunctionType:
                self.add_key(func, parts, operands)
        for x in args:
            self.add_key(x, parts, operands)
        if kwargs:
            if len(kwargs) > 1:
                parts.append(tuple(kwargs))  # a function may go through them in their order
            for name in sorted(kwargs):
                parts.append(name)
                self.add_key(kwargs[name], parts, operands)
        return tuple(parts)

    @cython.cfunc
    def is_alarmed(self) -> columns.Bool:
        """Return whether one of ``alarms`` is true."""
        return any(alarm() for alarm in self.alarms)

    @cython.cfunc
    def add_key(self, x: Any, parts: list, operands: list) -> columns.Int:
        """Append what stands for ``x`` in a key to ``parts``, and the operands in it to ``operands``.

        That is the form of a pending value, type and value of a number or string, type, length and entries
        of a list or tuple, and else what `key_of` says. 0.0 is not -0.0, and nan is nan. A pending value
        that is out of date (`is_stale`) is refused.
        """
        kind = type(x)
        if kind is self.pending:
            if not self.is_sure and self.is_stale(x):
                own(self).refuse_stale(x)
            operands.append(x)
            parts.append(x.form)
        elif x is None:
            parts.append(None)
        elif kind is int or kind is bool or kind is str:
            # The type, too, since ``1 == True``.
            parts.append(kind)
            parts.append(x)
        elif kind is tuple or kind is list:
            parts.append(kind)
            parts.append(len(x))
            for part in x:
                self.add_key(part, parts, operands)
        elif kind is float:
            parts.append(kind)
            parts.append(x if x < 0.0 or x > 0.0 else repr(x))  # tells 0.0 from -0.0; nan equals itself
        else:
            key: Any = None
            if kind is self.array and not self.is_seeded and id(x) not in self.shared:
                key = self.array_forms.get(self.form_key(x))
                if key is not None:
                    operands.append(x)
            if key is None:
                key = self.stamped(x)
            parts.append(own(self).key_of(x, operands) if key is None else key)
        return 0

    @cython.ccall
    def stamped(self, x: Any) -> Any:
        """Return what stands for a function or a model by its stamp; None if it has none that holds."""
        found: Any = self.loose.get(id(x)) if self.is_loose else None
        if found is None:
            found = self.stamps.get(id(x))
        if found is None:
            return None
        stamp: Stamp = found
        return stamp.key if self.is_sure or stamp.holds() else None

    @cython.ccall
    def keys_of(self, arguments: list, operands: list) -> tuple:
        """Return what stands for the arguments in a key, as a tuple; append their operands.

        These go to the end of ``operands``.
        """
        parts: list = []
        for x in arguments:
            self.add_key(x, parts, operands)
        return tuple(parts)

    @cython.cfunc
    def again(self, recording: RecordingBase, call: KnownCall, operands: list) -> Any:
        """Record a call of a known kind by `Fold.add`; return a pending value, or a structure of them.

        A kind that returns no array is not recorded: what it returns is known.
        """
        # The function returns no array, but a shape, say, which is the same for all calls of the kind.
        if call.call is None:
            return call.result
        if call.draws:
            operands = own(self).with_state(recording, call.call, operands)
        nodes: list = [
            x.node if type(x) is self.pending else own(self).own_row(recording, x) for x in operands
        ]
        graph: Any = recording.fold._graph
        graph.frame = line_of_program(recording)
        try:
            node: Any = recording.fold.add(call.call, *nodes)
        finally:
            graph.frame = None
        if call.structure is None:
            base = call.bases[0]
            return self.new(recording, node, call.forms[0], None if base is None else operands[base])
        results: list = []
        size: columns.Int = len(operands)
        parts: Any = node.split(len(call.forms))
        for part, form, base in zip(parts, call.forms, call.bases):  # noqa: B905 - `KnownCall` has as many of each
            if base is not None:
                base = operands[base] if base < size else results[base - size]
            results.append(self.new(recording, part, form, base))
        return tuple(results) if call.structure is tuple else call.structure.unflatten(results)

    @cython.cfunc
    def depend_on_examples(self, operands: list) -> columns.Bool:
        """Return whether an operand may differ from example to example: any but an array in ``shared``."""
        return any(type(x) is self.pending or id(x) not in self.shared for x in operands)

    @cython.cfunc
    def are_read(self, operands: list) -> columns.Bool:
        """Return whether the value of each pending operand was read; True if no operand is pending."""
        return all(type(x) is not self.pending or self.has_value(x) for x in operands)

    @cython.cfunc
    def has_value(self, x: Any) -> columns.Bool:
        """Return whether the value of a pending one was read, or that of the one which it is a part of."""
        if x.host is None and x.place is not None:
            whole: Any = x.place[0]
            if type(whole) is self.pending and whole.host is not None and not self.is_stale(whole):
                x.host = taken(whole.host, x.place[1])
        return x.host is not None

    @cython.ccall
    def is_stale(self, x: Any) -> columns.Bool:
        """Return whether a pending value is out of date: its base, or a view of it, was changed in place.

        The base is the array that it is a view of, or None.
        """
        base = x.base
        return x.version < 0 or (base is not None and x.seen != self.version(base))

    @cython.ccall
    def entry(self, recording: RecordingBase, x: Any, index: Any, form: Any) -> Any:
        """Return a new pending value for entry ``index`` along axis 0 of ``x``, which costs no launch.

        ``form`` is that of the entry, and ``index`` may count from the end. The entry is a view of ``x``,
        and has its value at once if that of ``x`` was read. Raises IndexError if there is no such entry,
        and refuses an ``x`` that is out of date (`is_stale`).
        """
        if self.is_stale(x):
            own(self).refuse_stale(x)
        size: columns.Int = x.form.shape[0]
        place: columns.Int = index
        if not -size <= place < size:
            raise IndexError(f"index {index} is out of bounds for dimension 0 with size {size}")
        if place < 0:
            place += size
        found = self.new(recording, x.node._entry(place), form, x)
        self.note_part(found, x, index)
        return found

    def unsettled(self, result: Any, made: list) -> list:
        """Return the pending values in ``result``, then those of ``made`` that are still alive, each once.

        ``made`` has weak references to the pending values of the example. Those that are out of date are
        left out if they are only in ``made``; for one in ``result`` an error is raised.
        """
        found: dict = own(self).returned(result)
        for one in made:
            x: Any = one()
            if type(x) is self.pending and id(x) not in found and not self.is_stale(x):
                found[id(x)] = x
        return list(found.values())

    @cython.cfunc
    def version(self, x: Any) -> Any:
        """Return how often an array was changed in place, be it pending or computed.

        It is -1 for a pending one once a view of it was changed.
        """
        return x.version if type(x) is self.pending else own(self).version_of(x)

    @cython.ccall
    def new(self, recording: RecordingBase, node: Any, form: Any, base: Any) -> Any:
        """Make a pending value of a form for a node, and note it in ``recording.made``.

        ``base`` is the array that it is a view of, or None; for a view of a view it is the array below.
        """
        x: Any = form.new()
        x.node = node
        x.form = form
        x.version = 0
        x.host = x.place = None
        if base is None:
            x.base = None
        else:
            # A view of a view is a view of the same array, and only that array counts the changes in place.
            if type(base) is self.pending and base.base is not None:
                base = base.base
            x.base = base
            x.seen = self.version(base)
        # A weak reference: what was made last is read together, but not what the program has dropped.
        recording.made.append(ref(x))
        return x

    @cython.cfunc
    def is_number(self, x: Any) -> columns.Bool:
        """Return whether ``x`` is a pending value of one number."""
        return type(x) is self.pending and self.tally(x)[NUMBERS_IN] == 1

    @cython.cfunc
    def number(self, recording: RecordingBase, x: Any) -> Any:
        """Return the value of a pending value of one number as a number of Python; see `read_host`."""
        found: Any = self.read_host(recording, x)
        return found.item() if hasattr(found, "item") else found

    @cython.ccall
    def read_host(self, recording: RecordingBase, x: Any) -> Any:
        """Return the value of a pending ``x``; unless it was read before, the example waits.

        The value is on the host, as ``kept`` leaves it, and is kept in ``x.host``. See ``read`` of
        `multifold.lazy.recorder.LazyRecorder`.
        """
        if self.is_stale(x):
            own(self).refuse_stale(x)
        if x.host is None and x.place is not None and self.is_readable(x.place[0]):
            self.note_value(x, taken(own(self).read(x.place[0]), x.place[1]))
        if x.host is None:
            asked: list = self.to_read(x, recording.made)
            values: Any = recording.wait([part.node for part in asked])
            for part, value in zip(asked, values, strict=True):
                self.note_value(part, own(self).kept(part.form, value))
        else:
            self.note_used(x)
        return x.host

    @cython.ccall
    def to_read(self, x: Any, made: list) -> list:
        """Return the pending values that are read with ``x``, which comes first; each once.

        ``made`` has weak references to those that its example has made. Of the last `LOOKED_AT` of them,
        those come that the program still has, that are small (`SMALL`), not out of date and not read yet;
        in the place of a part its whole. A program that reads several results in turn waits once for them.
        Values of a form are left out once many of them were brought, and few of these used.
        """
        asked: list = [x]
        self.tally(x)[USED] += 1
        at: cython.Py_ssize_t = len(made)
        end: cython.Py_ssize_t = max(at - LOOKED_AT, 0)
        while at > end:
            at -= 1
            other: Any = made[at]()
            if type(other) is self.pending and other.place is not None and self.is_readable(other):
                other = other.place[0]
            if type(other) is not self.pending or other.host is not None or other.place is not None:
                continue
            if self.is_readable(other) and not is_among(other, asked):
                tally: list = self.tally(other)
                if tally[BROUGHT] < MANY or 8 * tally[USED] > tally[BROUGHT]:
                    tally[BROUGHT] += 1
                    asked.append(other)
        return asked

    @cython.ccall
    def is_readable(self, x: Any) -> columns.Bool:
        """Return whether ``x`` is a pending value that is small (`SMALL`) and not out of date."""
        if type(x) is not self.pending or self.is_stale(x):
            return False
        count: columns.Int = self.tally(x)[NUMBERS_IN]
        return count <= SMALL

    @cython.ccall
    def tally(self, x: Any) -> list:
        """Return what is counted of pending values of the form of ``x``: a list, by `BROUGHT` and so on."""
        form: Any = x.form
        tally: Any = self.tallies.get(id(form))
        if tally is None:
            if len(self.tallies) >= MOST:
                self.tallies.clear()
            tally = self.tallies[id(form)] = [0, 0, math.prod(form.shape), form]
        return tally

    @cython.cfunc
    def note_used(self, x: Any) -> object:
        """Note that the program has asked for a value that was read before it did."""
        self.tally(x)[USED] += 1
        return None

    @cython.ccall
    def note_part(self, x: Any, whole: Any, index: Any) -> object:
        """Note that pending value ``x`` is ``whole[index]``; take its value from there if that was read."""
        x.place = whole, index
        if whole.host is not None:
            x.host = taken(whole.host, index)
        return None

    @cython.ccall
    def note_value(self, x: Any, value: Any) -> object:
        """Set the value that was read of a pending value."""
        x.host = value
        return None


@cython.cfunc
def taken(value: Any, index: Any) -> Any:
    """Return ``value[index]``, where all of a value is also all of a number of Python."""
    return value if index is ... else value[index]


@cython.cfunc
def is_among(x: Any, some: list) -> columns.Bool:
    """Return whether a list has this very object."""
    for one in some:  # noqa: SIM110
        if one is x:
            return True
    return False


def tables_hold(tables: list, objects: list) -> bool:
    """Return whether the values of some dictionaries, one after another, are these very objects.

    An adapter asks it of the weights of a layer at each call that is recorded.

    >>> tables_hold([{"weight": Ellipsis}, {"mean": NotImplemented}], [Ellipsis, NotImplemented])
    True
    >>> tables_hold([{"weight": Ellipsis}], [Ellipsis, NotImplemented])
    False
    """
    count: cython.Py_ssize_t = len(objects)
    i: cython.Py_ssize_t = 0
    for table in tables:
        for x in table.values():
            if i >= count or x is not objects[i]:
                return False
            i += 1
    return i == count


def are_as_seen(
    owns: list, kinds: list, names: tuple, tables: list, deep: columns.Int, parts: list, classes: list
) -> bool:
    """Return whether objects have the dictionaries, keys, parts and values that they were seen with.

    An adapter asks it of the modules of a launch. They may be thousands, so each is looked at once.

    Parameters
    ----------
    owns : list of dict
        The attributes of each object.
    kinds : list of tuple
        For each object: how many attributes it has; names of some of them; their values; and the keys of
        each of its dictionaries, in order.
    names : tuple of str
        The attributes that are dictionaries.
    tables : list of dict
        Those dictionaries themselves: all of the first object, then all of the second, and so on.
    deep : int
        Which of ``names``, counted from 0, is the one whose dictionaries hold ``parts``.
    parts, classes : list
        What they hold, one dictionary after another, and the class of each.

    >>> inner = {"a": 1}
    >>> own, kind = {"x": 3, "table": inner}, (2, ("x",), [3], [("a",)])
    >>> are_as_seen([own], [kind], ("table",), [inner], 0, [1], [int])
    True
    >>> inner["a"] = 2
    >>> are_as_seen([own], [kind], ("table",), [inner], 0, [1], [int])
    False
    """
    count: cython.Py_ssize_t = len(names)
    at: cython.Py_ssize_t = 0
    part: cython.Py_ssize_t = 0
    i: cython.Py_ssize_t
    k: cython.Py_ssize_t
    for i in range(len(owns)):
        own_table: dict = owns[i]
        kind: tuple = kinds[i]
        if len(own_table) != kind[0]:
            return False
        keys: list = kind[3]
        for k in range(count):
            table = own_table.get(names[k])
            if table is not tables[at]:
                return False
            at += 1
            seen: tuple = keys[k]
            if len(table) != len(seen):
                return False
            if seen:
                if tuple(table) != seen:
                    return False
                if k == deep:
                    for x in table.values():
                        if x is not parts[part] or type(x) is not classes[part]:
                            return False
                        part += 1
        if kind[1] and not are_equal(own_table, kind[1], kind[2]):
            return False
    return True


@cython.cfunc
def are_equal(table: dict, names: tuple, values: list) -> columns.Bool:
    """Return whether a dictionary has equal values, of equal types, under some names."""
    for name, value in zip(names, values):  # noqa: B905 - as many of each
        x: Any = table.get(name)
        if type(x) is not type(value) or x != value:
            return False
    return True


@cython.ccall
def first_unknown(frame: Any, inner: Any, known: dict) -> tuple[Any, Any, str | None]:
    """Follow the frames that have called each other, up to one that is not known or must not be left.

    Parameters
    ----------
    frame : frame or None
        The innermost one.
    inner : code or None
        The code of what it has called.
    known : dict of (int, int, int) to (object, str or None)
        The ``id`` of a frame's code, the place in it, and the ``id`` of the code of what it has called ->
        what keeps the code alive, and why such a frame must not be left, or None.

    Returns
    -------
    frame, inner, reason
        The frame that is not known, None if all are; what it has called; and why one must not be left.
    """
    reason: Any = None
    while frame is not None:
        code: Any = callers.code_of(frame)
        found: Any = known.get((id(code), callers.place_of(frame), id(inner)))
        if found is None:
            break
        reason = found[1]
        if reason is not None:
            break
        inner = code
        frame = callers.caller_of(frame)
    return frame, inner, reason


@cython.cfunc
def line_of_program(recording: RecordingBase) -> Any:
    """Return the innermost frame that is of the program, and not of a library; None if there is none."""
    frame: Any = callers.here()
    known: dict = recording.lines
    while frame is not None:
        code: Any = callers.code_of(frame)
        line: Any = known.get(id(code))  # the hash of a code object takes long
        if line is None:
            # The entry keeps the code, so that no new code object can get its id.
            line = known[id(code)] = code, not own(recording).is_from_library(frame)
        if line[1]:
            return frame
        frame = callers.caller_of(frame)
    return None
