"""What adapters share of plain programs: pending values, calls that run on rows, and what records them.

A *pending value* is what the code of an example holds in the place of an array that is not computed yet.
An adapter has a class of them, a subclass of `LazyCall` for what runs a function of one example on the
rows of all, and a subclass of `LazyRecorder`, which says what its framework does differently.

What a pending value is asked for is answered by its form, recorded, or *read*: its example waits.
"""

from __future__ import annotations

import abc
import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import optree

from multifold._engine.compiled import Hashed as Hashed
from multifold._engine.compiled import KnownCall as KnownCall
from multifold._engine.compiled import LazyRecorderBase
from multifold._engine.compiled import NumberRead as NumberRead
from multifold._engine.compiled import Stamp as Stamp
from multifold._engine.compiled import are_as_seen as are_as_seen
from multifold._engine.compiled import tables_hold as tables_hold
from multifold._engine.record.freezing import freeze
from multifold.lazy.current import Recording, recording_of, refusal
from multifold.lazy.frames import OpenFrames
from multifold.lazy.pending_array import with_reads
from multifold.lazy.watched import Resources
from multifold.lazy.writes import Settings
from multifold.marks import mark_of as mark_of

MANY = 4096
"""Kinds of calls that are kept beyond a run. A program with numbers of its examples among its constants has
always new ones."""

ORDERED = "multifold"
"""The namespace of optree in which dictionaries keep the order of their keys."""

FEW_NUMBERS = 16
"""Functions of so small values that were read run at once: to wait for their results takes longer."""

SURE = 4
"""So many examples have to leave all as it was, before it is taken for what examples do."""

AFTER = "fold.run(ops, examples, record)  # docs/from-your-loop.md"
"""How the way by calls of `Fold.add` is written."""

ADVISED = (
    "Calls of fold.add are recorded for less; `multifold.advise(model, examples)` foretells the gain.",
    AFTER,
)
"""What `explain` says of that way for a framework that `multifold.advise` measures."""


class LazyRecorder(LazyRecorderBase, abc.ABC):
    """Records what a program does with the pending values of one framework, for `multifold.batched`.

    It is kept beyond a run, with what it has learnt of the calls of its program.
    `LazyRecorderBase.dispatch` is what a framework calls where a function meets a pending value, and
    `LazyRecorderBase.recorded` records a cell. Both ask the methods here for what they have not met before.

    Parameters
    ----------
    pending : type
        The class of pending values; see `LazyRecorderBase`.
    settled : type
        Their class once they are computed: each has a ``value``.
    answers : dict
        Function that is not recorded -> function that is called in its place.
    probes, alarms : tuple of callable
        See `LazyRecorderBase`.

    Attributes
    ----------
    packages : tuple of str
        The framework's packages, whose lines are no lines of the program.
    walks_stacks : bool
        Whether the framework walks over all C frames of the stack, as PyTorch does when it makes an error.
    has_gradients : bool
        Whether the framework has gradients at all.
    names_of_gradients : frozenset of str
        Names in the code of a program that asks for gradients by itself, as ``backward``.
    times_backward : bool
        Whether `time_backward` tells how long a backward pass has taken. Elsewhere a forward pass stands
        for both: what records few calls in the one has few gradients in the other.
    finds_cells : bool
        Whether calls of functions that are not named can be recorded whole; see `find`.
    like_cells : sequence of function
        Functions around the program that may be recorded whole, whatever their code says.
    finds_first : bool
        Whether these are looked for where nothing else of a program is recorded, as in frameworks whose
        functions of computed arrays are not.
    loops_over_arguments : bool
        Whether they may loop over their arguments, as the framework compiles nothing for these.
    names_unlike_cells : frozenset of str
        Names in the code of a program in which none are looked for: what differentiates by itself, or
        changes variables, would meet pending values of them.
    by_hand : pair of str
        What `explain` says of the way by calls of `Fold.add`, and how that is written.
    own_contexts : tuple of callable
        The framework's makers of contexts that no other example sees, as ``torch.no_grad``; see `apart`.
    settings : dict
        Settings of the framework that code changes by functions; see `multifold.lazy.writes`.
    keys_have_settings : bool
        Whether calls under other settings are calls of another kind, so that a program may change them.
    resources : dict
        Types of its objects that cannot be asked for what they hold, and methods that change it.
    frames : OpenFrames
        Tells whether the code of an example may be left where it stands.
    stores : dict
        What the code of the program may store, for the classes of its arguments and parts; see `beyond_of`.
    alone : Counter of str
        Why examples of the last run went on alone where they read values, and how often.
    leaves : str or None
        What examples of this program leave changed for later ones; "" if nothing, and None while that is
        not known. See `multifold.lazy.sharing`.
    records_weights : bool or None
        Whether functions of weights and computed arrays are recorded, since nothing is without that; see
        `beginning`. None while no example has shown that.
    begun : int
        How many functions were recorded for that reason.
    turns_watched : int
        How many turns of examples were watched for random numbers that they draw.
    unchanged : int
        How many examples have ended that left everything as it was.
    """

    packages: ClassVar[tuple[str, ...]]
    walks_stacks: ClassVar[bool] = False
    has_gradients: ClassVar[bool] = True
    names_of_gradients: ClassVar[frozenset[str]] = frozenset()
    times_backward: ClassVar[bool] = False
    finds_cells: ClassVar[bool] = False
    like_cells: ClassVar[Sequence[Any]] = ()
    finds_first: ClassVar[bool] = False
    loops_over_arguments: ClassVar[bool] = False
    names_unlike_cells: ClassVar[frozenset[str]] = frozenset()
    by_hand: ClassVar[tuple[str, str]] = ("Calls of fold.add are recorded for less.", AFTER)
    own_contexts: ClassVar[tuple[Any, ...]] = ()
    settings: ClassVar[Settings] = {}
    keys_have_settings: ClassVar[bool] = False
    resources: ClassVar[Resources] = {}

    def __init__(
        self,
        pending: type,
        settled: type,
        answers: dict[Any, Callable[..., Any]],
        probes: tuple[Callable[[], Any], ...] = (),
        alarms: tuple[Callable[[], Any], ...] = (),
        array: type | None = None,
        form_key: Callable[[Any], Hashable] | None = None,
        is_inside: Callable[[], bool] | None = None,
    ) -> None:
        super().__init__(pending, answers, probes, alarms, array, form_key, is_inside)
        self.settled_type: Any = settled
        self.inner = ("multifold.", "multifold_", *[f"{name}." for name in self.packages])
        self.frames = OpenFrames(self.inner, self.own_contexts)
        self.alone: Counter[str] = Counter()
        self.leaves: str | None = None
        self.records_weights: bool | None = None
        self.begun = 0
        self.turns_watched = self.unchanged = 0
        self.stores: dict[tuple[Any, ...], Any] = {}

    def begin_run(self, *, is_seeded: bool) -> None:
        """Forget how examples of the last run read values; store whether they have random streams now."""
        self.alone.clear()
        self.is_seeded = is_seeded

    def note_watched(self) -> None:
        """Note that one more turn of an example is watched for random numbers; see ``turns_watched``."""
        self.turns_watched += 1

    def note_left(self, what: str) -> None:
        """Note what an example that has ended leaves changed for later ones; "" for nothing.

        By chance a counter that begins anew in each example ends at the number of before. So several
        examples have to leave nothing, before it is taken for what all do.
        """
        self.unchanged += not what
        if what or self.unchanged >= SURE:
            self.leaves = what

    def flatten(self, x: Any) -> tuple[list[Any], Any]:
        """Return the leaves of a nested value, None among them, and its structure."""
        leaves, structure = optree.tree_flatten(x, none_is_leaf=True)
        return leaves, structure

    @abc.abstractmethod
    def recording(self, same: Iterable[Any]) -> contextlib.AbstractContextManager[None]:
        """Return the context of one run, in which calls that meet pending values are recorded.

        ``same`` are arguments that are the same for all examples: arrays among them are shared by all
        calls.
        """

    def tracing(self, recording: Recording) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which traces are made by ``recording``, entered inside that of `recording`.

        In it an adapter can watch what the program computes at once, which becomes a constant of the trace.
        The default does nothing.
        """
        return contextlib.nullcontext()

    def beginning(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context of a run whose examples record nothing without it; see ``records_weights``.

        An adapter can record functions of weights and computed arrays in it. The default does nothing.
        """
        return contextlib.nullcontext()

    def note_begun(self) -> None:
        """Count a function of a weight and a computed array that was recorded; see ``begun``."""
        self.begun += 1

    def note_weights(self, *, recorded: bool) -> None:
        """Set ``records_weights``."""
        self.records_weights = recorded

    def complete(self, recording: Recording) -> None:
        """Record what the example whose code runs now has put off, at the end of its code.

        The default does nothing.
        """
        return

    def refuse_constant(self, x: Any) -> None:
        """Raise a `RecordError` if a trace would hold the computed array ``x``, and not see it change.

        It is an array that a traced example returns. The default does nothing.
        """
        return

    def computes_now(self) -> bool:
        """Return whether what is called here is computed at once, and not traced to be compiled.

        The default says that it is.
        """
        return True

    def must_loop(self) -> bool:
        """Return whether nothing can be recorded here, inside of what the framework does, so examples loop.

        The default says that it never does.
        """
        return False

    def time_backward(
        self,
        looped: Sequence[Any],
        batched: Sequence[Any],
        now: Callable[[], float],
        note: Callable[[float, float], None],
    ) -> None:
        """Call ``note`` once a backward pass has gone through results of looped and of batched examples.

        It takes the seconds that the backward pass of either has taken; both are 0 if no result has a
        gradient. ``now()`` returns the time. It is asked only of an adapter that ``times_backward``. The
        default does nothing.
        """
        return

    def apart(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that is open while an example waits for a value, and other examples run.

        An adapter sets in it the modes that were set when the run began, as whether gradients are recorded,
        and puts back those of the example on leaving. The default does nothing.
        """
        return contextlib.nullcontext()

    def refuse_rebound(self) -> None:
        """Raise a `RecordError` if what a recorded cell finds around it has changed, before it is launched.

        It is asked where an example reads a value. The default does nothing.
        """
        return

    def modules_in(self, x: Any) -> Iterable[Any]:
        """Return the modules in a model of the framework that it keeps to itself; the default has none."""
        return ()

    def keep_for_later(self) -> None:
        """Put kinds of calls whose results depend on code of the program into ``earlier``, before a run."""
        calls = ((key, kind) for key, kind in self.known.items() if getattr(kind.call, "runs_code", False))
        self.earlier |= dict(calls)
        for key in self.earlier:
            self.known.pop(key, None)

    def learn_again(self, recording: Recording, before: KnownCall, *called: Any) -> KnownCall:
        """Return a kind of call of an earlier run if its function returns the same; else what `learn` does.

        ``called`` are the other arguments of `learn`. A call that has come to run row by row stays so.
        """
        now = self.learn(recording, *called)
        if before.call is None or now.call is None or not before.call.is_like(now.call):
            return now
        kinds = [
            (one.structure, one.forms, one.bases, one.draws, one.call.is_single) for one in (before, now)
        ]
        return before if kinds[0] == kinds[1] else now

    def modes(self) -> Hashable:
        """Return what the program has set in this thread that calls depend on, as the mode of gradients.

        Calls and traces of different modes are never taken for one another. The default has no modes:
        ``()``.
        """
        return ()

    def training(self, owners: Sequence[Any]) -> Hashable:
        """Return whether each model among ``owners``, and each part of it, is in training.

        The default says nothing of it, ``()``, for frameworks whose models do not know that.
        """
        return ()

    @abc.abstractmethod
    def key_of(self, x: Any, operands: list[Any]) -> Hashable:
        """Return the key of an argument that is neither pending nor a plain value of Python.

        Plain values are None, int, bool, str, float, tuple and list. Two calls share a launch only if the
        keys of their arguments are equal. Append the argument to ``operands`` if it is an array of the
        framework; of a container, append the arrays and pending values in it.
        """

    def constant_key(self, x: Any, operands: list[Any]) -> Hashable:
        """Return the key of a constant argument, by type and value: 1, 1.0 and True have three keys.

        Nothing is appended to ``operands``. Raise a `RecordError` for what cannot be hashed.
        """
        if type(x) is slice:
            return slice, freeze(x.start), freeze(x.stop), freeze(x.step)
        try:
            hash(x)
        except TypeError:
            raise refusal(
                f"Expected arguments that can be compared with those of other examples. Received {x!r}.",
                "a tuple or a frozenset says the same, and cannot change before the call runs.",
            ) from None
        return freeze(x)

    def container_key(self, x: Any, operands: list[Any]) -> Hashable | None:
        """Return ``(structure, keys of the leaves)`` of a container, as of optree; None for anything else.

        The arrays and pending values in it are appended to ``operands``.
        """
        leaves, structure = self.flatten(x)
        if len(leaves) == 1 and leaves[0] is x:
            return None
        # Structures are equal whatever the order of the keys of dictionaries, which a function may see.
        with optree.dict_insertion_ordered(True, namespace=ORDERED):
            ordered = optree.tree_structure(x, none_is_leaf=True, namespace=ORDERED)
        return structure, ordered, self.keys_of(leaves, operands)

    def dispatch_unknown(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call of a function that has met a pending value, if no call of its kind was met before.

        Return what stands for its result: pending values, or what the function returns if that is no array.
        """
        return self.recorded(recording_of(), None, func, args, kwargs)

    def at_once(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function with the values of its pending operands, which were read; return its result.

        Small functions run so, since to wait for their results takes longer; see `KnownCall.is_small`.
        """
        return func(*with_reads(args), **with_reads(kwargs))

    @abc.abstractmethod
    def learn(
        self,
        recording: Recording,
        maker: Any,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        operands: Sequence[Any],
    ) -> KnownCall:
        """Run a function for one example, on stand-ins for its operands; return a `KnownCall` for its kind.

        That says the form of each result, and how they nest. ``maker`` is the class of the call for a cell,
        and None for a function of the framework; ``operands`` are the arrays and pending values among
        ``args`` and ``kwargs``.
        """

    @abc.abstractmethod
    def own_row(self, recording: Recording, x: Any) -> Any:
        """Return a computed operand ``x`` as one row ``(1, *s)`` that no change of ``x`` reaches.

        It is marked `shared` if ``x`` is the same for all examples, and an array of NumPy if a trace is
        made.
        """

    @abc.abstractmethod
    def call(
        self,
        recording: Any,
        fn: Callable[..., Any],
        rows: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Record a call of the cell ``fn``, and return pending values in the place of its result.

        A cell is a function that is recorded as one call. The values are nested as the result is. ``rows``
        says whether it takes a row for each example on axis 0.
        """

    def may_look(self, names: Callable[[], Collection[str]], roots: Sequence[Any]) -> bool:
        """Return whether straight functions may be looked for in a program.

        ``names()`` returns the names in the code that it may run; ``roots`` are the program, and an object
        of each class that it reaches.
        """
        return not self.names_unlike_cells or self.names_unlike_cells.isdisjoint(names())

    def stays(self, x: Any) -> bool:
        """Return whether the program changes nothing that the function or model ``x`` finds, in this run.

        If so, a `Stamp` stands for it from now on. The default says no, so that no cell is found.
        """
        return False

    def find(
        self,
        recording: Recording,
        key: tuple[Any, ...],
        func: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        operands: list[Any],
    ) -> tuple[KnownCall, bool] | None:
        """Return what a call of a found cell is recorded as, where this run meets its kind first.

        That is its `KnownCall`, and whether it is recorded even if no operand is pending; None if it is not
        recorded whole. ``operands`` are the arrays among its arguments. An adapter whose `stays` may say
        yes has this method.
        """
        raise NotImplementedError

    def with_numbers(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments of a call of a found cell with operands in the place of numbers.

        An adapter that sets ``takes_numbers`` of a found cell has this method.
        """
        raise NotImplementedError

    def with_state(self, recording: Recording, call: Any, operands: list[Any]) -> list[Any]:
        """Return the operands of a call that draws random numbers, the last one the state of its stream.

        The stream of the example is moved on as the call moves it in the loop. An adapter that says of a
        `KnownCall` that it ``draws`` has this method.
        """
        raise NotImplementedError

    def has_recorded(self, op: Any) -> bool:
        """Return whether a call of the function ``op``, or of a module of the class ``op``, is known.

        Known are the kinds of calls that this recorder has recorded in this or earlier runs. The default
        finds functions only.
        """
        return any(getattr(kind.call, "func", None) is op for kind in self.known.values())

    def explained(self, error: Exception) -> Exception:
        """Return what to raise in the place of an exception of an example: by default itself."""
        return error

    def version_of(self, x: Any) -> int:
        """Return how often a computed array was changed in place, a number that grows with each change.

        The default is 0, for frameworks that do not count.
        """
        return 0

    def refuse_stale(self, x: Any) -> None:
        """Raise a `RecordError` if a pending value ``x`` is out of date; else do nothing.

        It is out of date if an array whose memory it shares in the loop was changed in place since, which
        the batched program does not see.
        """
        if self.is_stale(x):
            raise refusal(
                "An array is used that shares its memory with another one, which was changed in place "
                "since: in a batched program they do not share it.",
                "write the change out of place: y = y + 1 for y += 1, where(...) for x[i] = v.",
            )

    @abc.abstractmethod
    def on_host(self, form: Any, value: Any) -> Any:
        """Return a value that was copied to the host in the shape and dtype of ``form``."""

    def kept(self, form: Any, value: Any) -> Any:
        """Return what is kept of a value that was copied to the host: by default what `on_host` returns."""
        return self.on_host(form, value)

    def read(self, x: Any) -> Any:
        """Return the value of a pending array ``x``; unless it was read before, the example waits.

        The value is on the host, and is kept in ``x.host``. If ``x`` is an entry of a small pending value,
        all of that is read. The last 16 small values that the example has made, or of which it has taken
        entries, are read in the same round, since programs read several results in turn. Raise a
        `RecordError` if ``x`` is out of date.
        """
        return self.read_host(recording_of(), x)

    def returned(self, result: Any) -> dict[int, Any]:
        """Return the pending values in a nested result, by ``id``.

        Raise a `RecordError` if one of them is out of date.
        """
        if type(result) is self.pending:
            self.refuse_stale(result)
            return {id(result): result}
        found = {id(x): x for x in self.flatten(result)[0] if type(x) is self.pending}
        for x in found.values():
            self.refuse_stale(x)
        return found

    @abc.abstractmethod
    def computed(self, form: Any, rows: Any) -> Any:
        """Return the array that a pending value of a form stands for, from an array of its one row.

        ``rows`` has the shape ``(1, *s)``, and the array the shape ``s``.
        """

    @abc.abstractmethod
    def settle(self, pending: Any, rows: Any) -> None:
        """Make a pending value, one that was not computed yet, stand for its array from now on.

        ``rows`` is an array of its one row, ``(1, *s)``.
        """

    def settled(self, result: Any, values: Mapping[int, Any]) -> Any:
        """Return a nested result with arrays in the place of pending values and of those that were settled.

        ``values`` has the array of a pending value by its ``id``; a pending value that it lacks stays.
        """
        if type(result) is self.settled_type:
            return result.value
        leaves, structure = self.flatten(result)
        found: list[Any] = [values.get(id(x), x) for x in leaves]
        return structure.unflatten([x.value if type(x) is self.settled_type else x for x in found])

    @abc.abstractmethod
    def join(self, values: Sequence[Any], how: str) -> Any:
        """Return one leaf of the results of all examples as one array, by ``"stack"`` or ``"cat"``.

        ``values`` has that leaf for each example. ``"stack"`` adds an axis 0 for the examples, ``"cat"``
        concatenates along axis 0. NumPy returns a list if not all values are arrays.
        """

    def may_join(self, form: Any, how: str) -> bool:
        """Return whether `join_rows` can join arrays of a form, one of each example, as ``how`` says.

        ``how`` is that of `join`, or ``"list"`` to leave them apart. The default joins nothing so.
        """
        return False

    def join_rows(self, how: str, form: Any, rows: Any) -> Any:
        """Return what `join` makes of arrays of a form, one of each of ``n`` examples, as a new array.

        ``rows`` has all of them, ``(n, *s)``. It is asked only of an adapter that says `may_join`.
        """
        raise NotImplementedError


def known_call(
    call: Any,
    found: Any,
    stand_ins: Sequence[Any],
    leaves: list[Any],
    *,
    is_array: Callable[[Any], bool],
    share_memory: Callable[[Any, Any], bool],
    may_be_small: bool,
    draws: bool = False,
) -> KnownCall:
    """Return the `KnownCall` of a kind of call, once its function has run for one example.

    Raise a `RecordError` for a function that returns None: it has done something that is not known.

    Parameters
    ----------
    call : LazyCall
        The call, with the ``forms`` of its results; ``is_single`` says whether it returns one array.
    found : object
        What the function has returned for ``stand_ins``, nested.
    stand_ins : list of array
        The arrays that it got as operands, in order.
    leaves : list
        Its arguments, which must live as long as the `KnownCall`: the key has their ids.
    is_array, share_memory : callable
        Whether something is an array of the framework, and whether two arrays share memory. A result that
        shares the memory of an operand, or of a result before it, is a view of that.
    may_be_small : bool
        Whether it may run at once where its operands were read. A function that returns a view may not: a
        part of what was read would be written to without the rest.
    draws : bool
        Whether its calls have the state of a random stream as their last operand.
    """
    results, shape = optree.tree_flatten(found)
    if found is None and call.__name__ != "__get__":  # an attribute may be None
        raise refusal(
            f"{call.__name__} returns nothing, so it cannot be recorded: what it does is not known.",
            "give it values that are read, as x.tolist(), or do it after the run.",
        )
    if not any(map(is_array, results)):
        return KnownCall(None, None, [], [], found, leaves, False)
    memories = [*stand_ins, *([None] if draws else []), *results]
    bases = [
        next((i for i in range(end) if share_memory(memories[i], memories[end])), None)
        for end in range(len(memories) - len(results), len(memories))
    ]
    is_plain = shape == optree.tree_structure((0,) * len(results))
    nested = None if call.is_single else tuple if is_plain else shape
    is_small = may_be_small and bases == [None] * len(bases)
    return KnownCall(call, nested, call.forms, bases, None, leaves, is_small, draws)
