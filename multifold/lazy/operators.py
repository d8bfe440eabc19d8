"""What the adapters of JAX, TensorFlow and MXNet share: arrays never change, so operators are recorded.

``x * 2 + y[0]`` of pending arrays is three parts: two operators that are recorded, and an entry that costs
no call. JAX and TensorFlow compile a call once for each kind, and what its function finds around it (a
global, an attribute) becomes a constant. So it is looked at in each run, and the call is compiled anew if
it changed.
"""

from __future__ import annotations

import contextlib
import operator
import random
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np

from multifold._engine.ops.state import KeptState
from multifold.errors import MultifoldError, RecordError
from multifold.lazy.beyond import Beyond, beyond_of, every_store, known_to, stores_of
from multifold.lazy.calls import LazyCall
from multifold.lazy.current import Recording, recording_of, refusal
from multifold.lazy.forms import PendingForm, PendingForms
from multifold.lazy.keeping import KeepingWatch, keeps
from multifold.lazy.patches import Replacements
from multifold.lazy.pending_array import PendingNumbers
from multifold.lazy.recorder import MANY, KnownCall, LazyRecorder, Stamp
from multifold.lazy.seen import Seen
from multifold.marks import mark_of
from multifold.operands import shared

SET_CLASS = object.__dict__["__class__"].__set__
"""Makes an object one of another class, whatever its own ``__class__`` says."""


class PendingOperators(PendingNumbers):
    """A pending array, one that is not computed yet, whose operators and indexing are recorded as calls.

    ``x + y``, ``x < y``, ``-x`` and ``x[i]`` return pending arrays. `LazyRecorderBase` says what its slots
    hold.
    """

    __slots__ = ("__weakref__", "base", "form", "host", "node", "place", "seen", "value", "version")

    __array_priority__ = 1000  # NumPy leaves its operators to what stands on the right

    form: PendingForm
    host: Any
    node: Any
    place: Any
    value: Any
    version: int

    def __getitem__(self, index: Any) -> Any:
        if type(index) is int and self.form.shape:
            recording = recording_of()
            form = recording.recorder.forms.entry(self.form)
            try:
                return recording.recorder.entry(recording, self, index, form)
            except IndexError:
                return self._beyond(index)
        return record(operator.getitem, self, index)

    def _beyond(self, index: int) -> Any:
        """Return ``self[index]`` for an index that is out of range, as the framework does.

        The default raises IndexError.
        """
        raise IndexError(f"index {index} is out of bounds for axis 0 with size {len(self)}")

    def _settle(self, kind: type, value: Any) -> None:
        """Become an object of ``kind``, a subclass of `SettledOperators`, which stands for ``value``.

        It lets go of its node and of what it was an entry of.
        """
        SET_CLASS(self, kind)
        self.value = value
        self.node = self.host = self.place = None

    def __repr__(self) -> str:
        return f"<pending array {self.form.shape} {self.form.dtype}, {self.node!r}>"

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise refusal(
            "An array that is not computed yet cannot be pickled.",
            "return it from the program, or put what does that into a cell.",
        )


class SettledOperators(PendingOperators):
    """A pending array whose run has ended: it acts as its ``value``.

    Its attributes and entries are those of the value, and operators compute at once.
    """

    __slots__ = ()

    def __getitem__(self, index: Any) -> Any:
        return self.value[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def _read(self) -> Any:
        return np.asarray(self.value)

    def __repr__(self) -> str:
        return repr(self.value)

    def __copy__(self) -> Any:
        return self.value

    def __deepcopy__(self, memo: Any) -> Any:
        return self.value

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.value.__reduce_ex__(protocol)


def asking_package(frame: Any) -> str:
    """Return the name of the package whose code, in a frame, asks something of a pending array.

    Frames of the module ``abc``, which answer `isinstance`, stand for those that have called them.
    """
    while frame.f_globals.get("__name__") == "abc":
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).partition(".")[0]


def value_of(x: Any) -> Any:
    """Return an argument with values in the place of settled arrays, also in lists, tuples and dicts."""
    if isinstance(x, SettledOperators):
        return x.value
    if type(x) is dict:
        return {name: value_of(part) for name, part in x.items()}
    return type(x)(map(value_of, x)) if type(x) in (list, tuple) else x


def record(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Record ``func(*args, **kwargs)`` if a pending array is among the arguments; else run it at once.

    One inside of lists, tuples and dicts counts, at any depth. Return pending arrays for its result, or its
    result. A settled array, whose value is computed already, counts as its value.
    """
    args = value_of(args)
    kwargs = {name: value_of(x) for name, x in kwargs.items()}
    if not any(map(is_pending, (*args, *kwargs.values()))):
        return func(*args, **kwargs)
    recording = recording_of()
    return recording.recorder.dispatch(recording, func, args, kwargs)


def is_pending(x: Any) -> bool:
    """Return whether ``x`` is a pending array, or a list, tuple or dict with one in it at any depth."""
    if isinstance(x, (list, tuple)):
        return any(map(is_pending, x))
    if isinstance(x, dict):
        return any(map(is_pending, x.values()))
    return isinstance(x, PendingOperators)


def forward(func: Any) -> Callable[..., Any]:
    """Return a method for an operator, as ``__add__``: ``x`` stands on the left.

    The method records ``func(x, *others)``; see `record`.
    """
    return lambda x, *others: record(func, x, *others)


def backward(func: Any) -> Callable[..., Any]:
    """Return a method for a reflected operator, as ``__radd__``: ``x`` stands on the right.

    The method records ``func(y, x)`` where Python calls it with ``x`` and ``y``; see `record`.
    """
    return lambda x, y: record(func, y, x)


OPERATORS = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift"
ONE_SIDED = "lt le gt ge eq ne neg pos abs invert"

for name in OPERATORS.split():
    setattr(PendingOperators, f"__{name}__", forward(getattr(operator, f"__{name}__")))
    setattr(PendingOperators, f"__r{name}__", backward(getattr(operator, f"__{name}__")))
for name in ONE_SIDED.split():
    setattr(PendingOperators, f"__{name}__", forward(getattr(operator, name)))


def call_layer(layer: Any, *args: Any, **kwargs: Any) -> Any:
    """Return ``layer(*args, **kwargs)``: a call of a layer is recorded as a call of this function.

    So the layer is an argument, and calls of different layers are different calls.
    """
    return layer(*args, **kwargs)


class NoChanges:
    """Counts the changes of what a program never changes: the counter of `Stamp`s that hold for a run."""

    total = 0


NO_CHANGES = NoChanges()


def drawn() -> tuple[Any, ...]:
    """Return the states of Python's and NumPy's global random generators, to be compared.

    They are equal to those of before if nothing was drawn meanwhile.
    """
    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2]


class CompiledCall(LazyCall):
    """A call that the framework compiles once for each kind; subclasses say how."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.names: Sequence[str] = ()
        if self.func is call_layer:
            self.__name__ = self.__qualname__ = type(self.leaves[0]).__name__

    def name_in_order(self, names: Iterable[str]) -> None:
        """Note the keywords in the order of the call, which a function may see; structures sort them."""
        self.names = tuple(names)

    def arguments(
        self, operands: Sequence[Any], leaves: Sequence[Any] | None = None
    ) -> tuple[Sequence[Any], Mapping[str, Any]]:
        args, kwargs = super().arguments(operands, leaves)
        return args, {name: kwargs[name] for name in self.names}

    def traced(self, *operands: Any) -> Any:
        """Run the function on the operands of one example while the framework compiles it.

        Return what it returns. Raise a `RecordError` if it draws random numbers of Python or NumPy: each
        launch would use the same ones.
        """
        before = drawn()
        found = self.one(*operands)
        if drawn() != before:
            raise refusal(
                f"{self.__name__} draws random numbers of Python or NumPy, and is compiled with them.",
                "draw them outside of the cell, and pass them; or use those of the framework.",
            )
        return found

    def refuse_keeping(self, kept: KeptState, watch: KeepingWatch, again: Callable[[], Any]) -> None:
        """Raise a `RecordError` if a cell that was traced counts or keeps something, as a tracer.

        ``kept`` is the state that is put back, ``watch`` what objects held before, and ``again`` traces it
        once more. A cell that its author has marked may do so.
        """
        if self.is_cell and mark_of(self.func) is None:
            keeps(self.__name__, kept, watch, again, None)

    def learn(self, recording: Recording, forms: Sequence[PendingForm]) -> tuple[Sequence[Any], Any]:
        """Return something with the shape and dtype of each result, and how they nest.

        How they nest has an ``unflatten``, or is None for a single result. ``forms`` has the form of each
        operand for one example, in order.
        """
        raise NotImplementedError


class OperatorRecorder(LazyRecorder):
    """Records plain programs in a framework that compiles calls; subclasses name its arrays and calls.

    Subclasses name the classes of arrays, which are operands, and of calls.
    """

    arrays: ClassVar[tuple[type, ...]]
    calls: ClassVar[tuple[type[CompiledCall], type[CompiledCall], type[CompiledCall]]]
    """Those of functions of the framework, of cells, and of cells that are written for rows."""

    replaced: ClassVar[Replacements] = Replacements()
    """What sees calls of layers while programs record."""

    in_a_function: ClassVar[str]
    """What the error says of a function that cannot be recorded."""

    cells: ClassVar[str] = (
        "make a cell of the function of yours that calls it: multifold.cell, or batched(fn, cells=[...]); "
        "cells=() looks for none."
    )
    """And its hint."""

    def __init__(
        self, pending: type, settled: type, answers: Any = None, *more: Any, **options: Any
    ) -> None:
        super().__init__(pending, settled, answers or {}, *more, **options)
        self.forms = PendingForms(partial(PendingForm, pending))
        self.seen: dict[int, Seen] = {}
        self.seen_before: dict[int, Seen] = {}
        self.beyond: dict[int, Beyond] = {}
        # Dictionaries that all examples get, by ``id``, with the key of each and the operands in it, once
        # these are known.
        self.same: dict[int, tuple[Any, Hashable, list[Any]]] = {}

    @contextlib.contextmanager
    def recording(self, same: Iterable[Any]) -> Iterator[None]:
        if len(self.known) > MANY:
            self.forget_kinds()
        for met in (self.stamps, self.loose, self.whole):
            met.clear()
        before = self.shared, self.seen, self.same
        same = [*same]
        self.shared = {id(x): x for x in self.flatten(same)[0] if isinstance(x, self.arrays)}
        self.seen, self.same = {}, {id(x): (x, None, []) for x in same if isinstance(x, dict)}
        try:
            with self.replaced.applied():
                yield
            for seen in self.seen.values():
                seen.refuse_changed()
            for x, key, operands in self.same.values():
                if key is not None and not self.is_same(x, key, operands):
                    raise refusal(
                        "A dictionary that all examples get was changed during the run. Recorded calls run "
                        "later than in the loop.",
                        "change it after the run.",
                    )
        finally:
            self.shared, self.seen, self.same = before

    def forget_kinds(self) -> None:
        """Forget all kinds of calls, and what their functions were compiled with."""
        self.known, self.seen_before, self.beyond = {}, {}, {}

    def is_same(self, x: Any, key: Hashable, operands: Sequence[Any]) -> bool:
        """Return whether a dictionary has the key and, one by one, the operands that it had before."""
        now: list[Any] = []
        return self.container_key(x, now) == key and [*map(id, now)] == [*map(id, operands)]

    def same_key(self, x: Any, operands: list[Any]) -> Hashable | None:
        """Return the key of a dictionary that all examples get, such as one of parameters.

        It is looked into once a run. None for anything else, and if the program may change what containers
        hold: then it is looked into for each call.
        """
        found = self.same.get(id(x))
        if found is None:
            return None
        _, key, own = found
        if key is None:
            if stores_of(recording_of()).contents:
                return None
            own = []
            key = self.container_key(x, own)
            self.same[id(x)] = x, key, own
        operands += own
        return key

    def key_of(self, x: Any, operands: list[Any]) -> Hashable:
        found = self.same_key(x, operands)
        if found is not None:
            return found
        if isinstance(x, self.arrays) or type(x) is np.ndarray:
            operands.append(x)
            form = self.forms.of(x)
            return ("shared", form) if id(x) in self.shared else form
        if id(x) in self.seen:
            return self.seen_of(x)
        container = self.container_key(x, operands)
        if container is not None:
            return container
        if hasattr(x, "__dict__") and not isinstance(x, type):
            return self.seen_of(x)
        return self.constant_key(x, operands)

    def seen_of(self, x: Any) -> Seen:
        """Return the `Seen` of a function or object: what it held when this run first met it.

        It is made at the first call of a run and stored by ``id``; the one of an earlier run serves again
        if nothing has changed since. If the program cannot change it, a stamp stands for it from now on.
        Raise a `RecordError` if a name in the object, or in what the function finds around it, stands for
        something else than when this run first met it.
        """
        seen = self.seen.get(id(x))
        if seen is None:
            seen = self.seen_before.get(id(x))
            recording = recording_of()
            if seen is None or not seen.is_now() or not self.is_same_beyond(x):
                seen = self.look_at(recording, x)
                # It is compiled with what it finds, whoever changes that.
                self.beyond[id(x)] = Beyond([x], every_store(), known_to(recording))
            seen.look_beyond(beyond_of(recording, [x]))
            self.seen[id(x)] = self.seen_before[id(x)] = seen
            if not seen.may_change(stores_of(recording)):
                self.stamps[id(x)] = Stamp(x, seen, NO_CHANGES, [], [])
        seen.refuse_rebound()
        return seen

    def is_same_beyond(self, x: Any) -> bool:
        """Return whether what a function finds beyond its own names is what its calls are compiled with."""
        beyond = self.beyond.get(id(x))
        return beyond is None or beyond.change() is None

    def refuse_rebound(self) -> None:
        for seen in self.seen.values():
            seen.refuse_rebound()

    def look_at(self, recording: Recording, x: Any) -> Seen:
        """Return a new `Seen` of a function or an object: what it, and all it reaches, holds now.

        Nothing is stored; `seen_of` does that.
        """
        return Seen(x, recording.reached(x))

    def call(
        self, recording: Recording, fn: Any, rows: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return self.recorded(recording, self.calls[1 + rows], fn, args, kwargs)

    def has_recorded(self, op: Any) -> bool:
        if not isinstance(op, type):
            return super().has_recorded(op)
        calls = [kind.call for kind in self.known.values()]
        return any(call.func is call_layer and isinstance(call.leaves[0], op) for call in calls)

    def explained(self, error: Exception) -> Exception:
        if isinstance(error.__cause__, RecordError):  # the framework has raised another one from it
            return error.__cause__
        names = self.pending.__name__, "<pending array"
        if isinstance(error, MultifoldError) or not any(name in str(error) for name in names):
            return error
        return RecordError(self.in_a_function, self.cells)

    def own_row(self, recording: Recording, x: Any) -> Any:
        return shared(x) if id(x) in self.shared else self.row_of(recording, x)

    def row_of(self, recording: Recording, x: Any) -> Any:
        """Return a computed operand ``s`` of one example as one row ``(1, *s)``.

        It is an array of NumPy where no gradient flows to it: a fold brings many of these to the device
        in one copy.
        """
        raise NotImplementedError

    def learn(
        self,
        recording: Recording,
        maker: type[CompiledCall] | None,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        operands: Sequence[Any],
    ) -> KnownCall:
        by_name = {name: kwargs[name] for name in sorted(kwargs)}  # in the order of the key's operands
        leaves, structure = self.flatten((args, by_name))
        places = [i for i, x in enumerate(leaves) if self.is_operand(x)]
        same = [id(leaves[i]) in self.shared for i in places]
        call = (maker or self.calls[0])(func, structure, leaves, places, same)
        call.name_in_order(kwargs)
        results, nested = call.learn(recording, [self.form_of(recording, leaves[i]) for i in places])
        forms = [*map(self.forms.of, results)]
        return KnownCall(call, nested, forms, [None] * len(forms), None, [*leaves, func], False)

    def is_operand(self, x: Any) -> bool:
        """Return whether an argument, or a leaf of one, is an operand of its call."""
        return isinstance(x, (self.pending, *self.arrays, np.ndarray))

    def form_of(self, recording: Recording, x: Any) -> Any:
        """Return the form of an operand for one example."""
        return x.form if type(x) is self.pending else self.forms.of(x)

    def on_host(self, form: Any, value: Any) -> Any:
        return np.asarray(value).reshape(form.shape)[()]

    def settle(self, pending: Any, rows: Any) -> None:
        pending._settle(self.settled_type, self.computed(pending.form, rows))
