"""What examples share while they take turns: what their code writes, and random generators.

In the loop one example ends before the next one begins. In a batched program an example that reads a value
may wait, and let others go on, only if they cannot tell. So where an example reads a value, what it may
write outside of its own names is compared with what it was when its turn began: attributes, variables,
containers and arrays, locks, settings, which are known from the code (`multifold.lazy.watched`). If
nothing differs, it waits; else it goes on alone, as in the loop, until it has put back what it has changed,
or ends.

The first four examples of a program whose code may write such things go on alone in any case. If one of
them leaves something changed when it ends, all examples after it go on alone, in the order of the loop; so
do they in later runs. What remains is an error: that others have changed for good what an example that
waits has seen already, or that one which has waited changes what later ones have seen.

Random generators are handled in another way. An example that draws from one waits all the same: a warning
says so, if the first examples of a run show it. With a seed each example has random streams of its own, and
draws the same numbers as in a loop that has them, too.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from types import FunctionType
from typing import Any

import numpy as np

from multifold._engine.compiled import SharingBase
from multifold._engine.ops.reach import FEW, owners_of, reached
from multifold._engine.ops.state import KeptState
from multifold._engine.record.lines import warn_user
from multifold.backend import Backend
from multifold.lazy.current import refusal
from multifold.lazy.watched import HOLDERS, OWN_VARIABLE, Reading, Watched
from multifold.lazy.writes import functions_in, is_known_module, is_of_user

WATCHED, TURNS = 8, 256
"""So many examples of a run, and so many turns of a program in all of its runs, are watched for random
numbers that they draw: to ask takes longer than to record some calls. The arguments of so many examples are
kept at most after their end."""

FEW_EXAMPLES = 4
"""The arguments of so many examples show what code arguments have."""

Variables = dict[contextvars.ContextVar[Any], Any]
"""Context variables, and what they stand for."""

OWN_VARIABLES = {"decimal_context", "numpy.ufunc.extobj"}
"""Names of context variables that hold what a thread sets up when it first needs it."""

State = list[Reading]
"""What stands in each place that is watched."""

LATE = "one changed it that had waited, after others that come later in the loop"
WAITED = "others changed it while one waited for a value"
"""Why a change is refused."""


class Sharing(SharingBase):
    """What the examples of a run share, and whether one changes it that others may see.

    It also gives each example random streams of its own, if there is a seed.

    Parameters
    ----------
    backend : Backend
        The adapter of the framework, which knows what objects an op may change.
    recorder : LazyRecorder
        Has the class of pending values, the ``settings`` of the framework, and the code that has read
        values in earlier runs.
    fn : callable
        The program.
    seed : int or None
        If given, each example has random streams of its own, which begin with the seed and its number.
    same : sequence of object
        Arguments that are the same for all examples.
    watches : bool
        Whether examples may wait, so that what they share is watched.
    own : bool
        Whether each example has a copy of the model, which then is not watched.

    Attributes
    ----------
    watched : Watched or None
        The places that examples may write and share; None while nothing is looked at.
    """

    def __init__(
        self,
        backend: Backend,
        recorder: Any,
        fn: Any,
        seed: int | None,
        same: Iterable[Any] = (),
        *,
        watches: bool = True,
        own: bool = False,
    ) -> None:
        super().__init__()
        self.backend = backend
        self.recorder = recorder
        self.fn = fn
        self.same = [*same]
        self.own = own
        self.seed = seed
        self.streams: dict[int, list[Any]] = {}
        self.began: list[Any] = []
        self.last_drawn = -1
        self.arguments: dict[int, Sequence[Any]] = {}
        self.objects: dict[int, dict[int, Any]] = {}
        self.ended: list[int] = []
        self.known: dict[int, Any] = {}
        self.watched: Watched | None = None
        is_first = not (recorder.known or recorder.earlier)
        self.may_watch = watches and (bool(recorder.frames.reads) or is_first)
        self.came: State | None = None
        self.last: State | None = None
        self.variables: Variables = {}
        is_looked_at = self.may_watch or seed is not None or recorder.turns_watched < TURNS
        self.is_quiet = not is_looked_at

    @cached_property
    def random(self) -> KeptState:
        """The random generators, of the program and of the process."""
        return KeptState(self.backend, owners_of(self.backend, None, self.fn), only_random=True)

    def take(self, example: int, arguments: Sequence[Any]) -> None:
        """Store the arguments of an example: objects that several examples have are watched."""
        if self.may_watch:
            self.arguments[example] = arguments

    def forget(self, example: int) -> None:
        """Drop the arguments of an example that has ended, which changes nothing any more.

        While it is not known whether examples leave something, those of a few are kept: it may be in an
        argument that the next example has, too.
        """
        self.arguments.pop(example, None)
        if example not in self.objects:
            return
        self.ended.append(example)
        if self.recorder.leaves is None and len(self.ended) < WATCHED:
            return
        for ended in self.ended:
            for key in self.objects.pop(ended, ()):
                self.known.pop(key, None)
        self.ended.clear()

    def watch(self) -> Watched:
        """Return what is watched, made at the first call, with what arguments of several examples hold."""
        watched = self.watched
        if watched is None:
            backend = self.backend
            owners = owners_of(backend, None, self.fn)
            model = [] if self.own else [*backend.stateful(owners)]
            objects = objects_in(backend, [*model, *self.same])
            inside = [x for owner in objects.values() for x in vars_of(owner)]
            roots = [self.fn, *objects.values(), *inside, *self.code_in_arguments()]
            is_known = partial(is_known_module, self.recorder.inner)
            functions = [*functions_in(roots, is_known)]
            watched = self.watched = Watched(backend, self.recorder, functions, self.recorder.settings)
            watched.add_objects(objects.values())
            watched.add_named()
            draws = self.seed is not None or watched.seeds or self.recorder.turns_watched < TURNS
            self.is_quiet = not (draws or watched.writes or watched.places or self.recorder.leaves)
        if self.arguments and (watched.writes or self.has_iterators()):
            for example, arguments in self.arguments.items():
                own = self.objects[example] = held_in(self.backend, arguments)
                watched.add_objects([own[key] for key in own.keys() & self.known.keys()])
                self.known |= own
            self.is_quiet = self.is_quiet and not watched.places
        self.arguments.clear()
        return watched

    def code_in_arguments(self) -> list[Any]:
        """Return what has code of the user among some arguments: one object of each class."""
        found: dict[Any, Any] = {}
        for arguments in [*self.arguments.values()][:FEW_EXAMPLES]:
            for x, _ in reached(self.backend, arguments, is_home=is_of_user):
                if isinstance(x, FunctionType):
                    found[x] = x
                elif is_of_user(x):
                    found.setdefault(type(x), x)
        return [*found.values()]

    def has_iterators(self) -> bool:
        """Return whether an argument is or has an iterator, which code advances without any name for it."""
        some = [x for one in self.arguments.values() for x in one]
        inside = [y for x in some if isinstance(x, (tuple, list)) and len(x) <= FEW for y in x]
        return any(isinstance(x, Iterator) for x in (*some, *inside))

    def state(self) -> State:
        """Return the state of all that is watched."""
        return self.watch().read()

    def change(self) -> str | None:
        """Return what the example that runs has changed in this turn, and others would see, or None.

        It is a phrase, as "attribute 'state' of Model, which model.py:12 changes".
        """
        if self.came is None:  # its first read, where earlier runs read nothing
            self.may_watch, self.is_quiet = True, False
            return "it reads a value that runs before did not read"
        watched = self.watch()
        if self.seed is None and watched.seeds:  # what it seeds anew may be as it was
            return "a random generator, which the code seeds"
        state = watched.read()
        place = watched.changed(self.came, state)
        if place is not None:
            return place.described()
        if self.recorder.leaves is None and state and watched.writes:
            return "one of the first examples, to see what they leave for later ones"
        if self.recorder.leaves:
            return f"{self.recorder.leaves}, and examples leave that for later ones"
        self.last = state
        return None

    def end(self, example: int) -> None:
        """Note whether an example that ends leaves something changed, which later ones see.

        Raise a `RecordError` if it has changed it in its last turn, too late: it has waited, and an example
        that comes later in the loop has begun meanwhile.
        """
        if self.came is None:
            return
        self.last = self.state()
        place = self.watch().changed(self.came, self.last)
        if place is None:
            self.recorder.note_left(self.recorder.leaves or "")
            return
        self.recorder.note_left(place.described())
        if self.is_late(example):
            raise refusal(f"The examples share {place.text}, and {LATE}.", place.hint)

    def is_late(self, example: int) -> bool:
        """Return whether an example has waited, and one that comes later in the loop has begun."""
        return self.turns[example] > 1 and example < self.last_begun

    def refuse_changes(self, left: State | None) -> None:
        """Raise a `RecordError` if others have changed what is shared since an example began to wait.

        ``left`` is the state in which it did.
        """
        if left and self.came is not None:
            self.refuse(left, self.came, WAITED)

    def refuse(self, before: State, after: State, why: str) -> None:
        """Raise a `RecordError` that names the first place in which two states differ, if there is one.

        ``why`` ends the message: who has changed it, and when.
        """
        place = self.watch().changed(before, after)
        if place is not None:
            raise refusal(f"The examples share {place.text}, and {why}.", place.hint)

    def context(self) -> tuple[contextvars.Context, Variables]:
        """Return the context of an example that begins, and a copy of its variables.

        It is a copy of that of the run, with what examples before have left in variables.
        """
        found = contextvars.copy_context()
        for variable, value in self.variables.items():
            found.run(variable.set, value)
        return found, dict(found)

    def leave(self, example: int, context: contextvars.Context, before: Variables) -> None:
        """Keep what an example that ends has left in context variables, for those that come later.

        Raise a `RecordError` if it has waited, and a later one has begun meanwhile and would have seen it.
        """
        if not context:
            return
        left = [x.name for x in self.keep(context, before) if x.name not in OWN_VARIABLES]
        if left and self.is_late(example):
            raise refusal(f"The examples share the context variable {left[0]!r}, and {LATE}.", OWN_VARIABLE)

    def keep(self, context: contextvars.Context, before: Variables) -> Variables:
        """Keep what an example has left in context variables, and return it.

        ``before`` is what they stood for when it began.
        """
        left = {x: value for x, value in context.items() if before.get(x, self) is not value}
        self.variables |= left
        return left

    def begin(self, example: int) -> None:
        """Begin a turn of an example: count it, and with a seed set its own random streams.

        The state of what is shared is stored in ``came``.
        """
        if self.may_watch:
            # No code has run since the last example began to wait.
            self.came = self.state() if self.last is None else self.last
            self.last = None
        self.count(example)
        if self.seed is None:
            self.began = []
            if self.watches(example):
                self.recorder.note_watched()
                self.began = self.random.read()
            return
        self.began = self.random.read()
        if example in self.streams:
            self.random.write(self.streams.pop(example))
        else:
            self.random.begin_anew((self.seed, example))

    def rest(self, example: int) -> None:
        """End a turn of an example; with a seed, keep its random streams and put back the outer ones.

        Without a seed, warn once a run if it drew random numbers after an example that comes later in the
        loop.
        """
        if self.seed is not None:
            self.streams[example] = self.random.read()
            self.random.write(self.began)
        elif self.began and self.random.drew(self.began):
            if example < self.last_drawn < WATCHED:
                self.last_drawn = WATCHED  # it has warned
                warn_user(
                    "Examples draw random numbers between values that they read. They take turns, so each "
                    "draws others than in the loop. batched(fn, seed=0) gives each example streams of its "
                    "own."
                )
            self.last_drawn = max(self.last_drawn, example)

    def watches(self, example: int) -> bool:
        """Return whether a turn of an example is watched for random numbers that it draws.

        Those of the first 8 examples are, until the program has had 256 such turns.
        """
        return example < WATCHED and self.recorder.turns_watched < TURNS


def objects_in(backend: Backend, roots: Sequence[Any]) -> dict[int, Any]:
    """Return ``id`` -> object, for what is reached from ``roots`` and belongs to the user's program.

    Reached are attributes, entries, and what functions find around them. Objects are left out that the
    framework or an installed library made for itself; see `is_of_user`. Arrays come if they are roots.
    """
    arrays = {id(x): x for x in roots if isinstance(x, np.ndarray) or backend.owns(x)}
    return arrays | {id(x): x for x, inside in reached(backend, roots, is_home=is_of_user) if inside}


def held_in(backend: Backend, arguments: Sequence[Any]) -> dict[int, Any]:
    """Return ``id`` -> object, for what examples may share by their arguments, and may change.

    Besides `objects_in` that is what arguments hold: containers, arrays and iterators.
    """
    return {
        id(x): x
        for x, inside in reached(backend, arguments, is_home=is_of_user)
        if inside or isinstance(x, (*HOLDERS, np.ndarray, Iterator)) or backend.owns(x)
    }


def vars_of(x: Any) -> Iterable[Any]:
    """Return what the attributes of an object stand for; nothing for what has none, or for a function."""
    return [*vars(x).values()] if hasattr(x, "__dict__") and not isinstance(x, FunctionType) else []
