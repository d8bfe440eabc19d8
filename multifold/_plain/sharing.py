"""What examples share while they wait: objects that their code changes, and random generators.

In the loop one example ends before the next one begins. In a batched program an example that waits for a
value lets others go on, which may change what it has left on an object that they share (the model, an
argument of several examples, a variable around a function), and draw the random numbers that it would have
drawn. The first is an error. The second is a warning, if the first examples of a run show it; with a seed
each example has random streams of its own, and draws the same numbers as in a loop that has them, too.
"""

from __future__ import annotations

import copy
import functools
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

from multifold._record.graph import warn_user
from multifold._run.reach import CONTAINERS, names_of, owners_of, reached
from multifold._run.state import KeptState, content
from multifold.backend import Backend, owner_of
from multifold.errors import RecordError
from multifold.recording import entries_of, same_entries

WATCHED, TURNS = 8, 64
"""So many examples of a run, and so many turns of each, are watched for random numbers that they draw: to
ask takes some 20 µs."""

Named = tuple[Any, str, Any, Sequence[Any]]
"""An object, a name in it, what that stands for, and what this holds if it is a container."""

Looked = dict[tuple[int, str], Named]
"""What is found, by the ``id`` of the object and the name."""


class Sharing:
    """What the examples of a program share.

    Parameters
    ----------
    backend : Backend
        What knows the objects that an op may change.
    fn : callable
        The program.
    examples : sequence
        The arguments of each example.
    seed : int or None
        If given, each example has random streams of its own, which begin with the seed and its number.
    """

    def __init__(self, backend: Backend, fn: Any, examples: Sequence[Any], seed: int | None) -> None:
        self.backend = backend
        self.fn = fn
        self.examples = examples
        self.seed = seed
        self.random = KeptState(backend, owners_of(backend, None, fn), only_random=True)
        self.streams: dict[int, list[Any]] = {}
        self.turns: Counter[int] = Counter()
        self.began: list[Any] = []
        self.last_drawn = -1
        self.objects: list[Any] | None = None

    # ---- objects -------------------------------------------------------------------------------------

    def found(self) -> list[Any]:
        """Return the objects that several examples may change: found when the first one waits."""
        owners = owners_of(self.backend, None, self.fn)
        roots = [*self.backend.stateful(owners)]
        found = objects_in(self.backend, roots)
        of_one: dict[int, Any] = {}
        for example in self.examples:
            own = objects_in(self.backend, example)
            found.update({key: own[key] for key in own.keys() & of_one.keys()})
            of_one.update(own)
        return [*found.values()]

    def look(self) -> Looked:
        """Return what the names in shared objects stand for."""
        if self.objects is None:
            self.objects = self.found()
        return {
            (id(owner), name): (owner, name, value, entries_of(value))
            for owner in self.objects
            for name, value in names_in(self.backend, owner)
        }

    def refuse_changes(self, before: Looked) -> None:
        """Refuse shared objects that are others than before an example waited."""
        found = self.look()
        for key in {**before, **found}:
            now, then = found.get(key), before.get(key)
            if now is None or then is None or not is_same(now, then):
                owner, name, *_ = {**before, **found}[key]
                raise RecordError(
                    f"The examples share {said(owner, name)}, and others changed it while one waited for a "
                    "value.",
                    "batched(fn, own=True) gives each example a copy of the model with its parameters. Of "
                    "what else they change, give each example its own.",
                )

    # ---- random numbers ------------------------------------------------------------------------------

    def begin(self, example: int) -> None:
        """Let an example go on, with random streams of its own if there is a seed."""
        self.turns[example] += 1
        if self.seed is None:
            self.began = self.random.read() if self.watches(example) else []
            return
        self.began = self.random.read()
        if example in self.streams:
            self.random.write(self.streams.pop(example))
        else:
            self.random.begin_anew((self.seed, example))

    def end(self, example: int) -> None:
        """End the turn of an example; warn if it has drawn after one that comes later in the loop."""
        if self.seed is not None:
            self.streams[example] = self.random.read()
            self.random.write(self.began)
        elif self.watches(example) and self.random.drew(self.began):
            if example < self.last_drawn < WATCHED:
                self.last_drawn = WATCHED  # it has warned
                warn_user(
                    "Examples draw random numbers between values that they read. They take turns, so each "
                    "draws others than in the loop. batched(fn, seed=0) gives each example streams of its "
                    "own."
                )
            self.last_drawn = max(self.last_drawn, example)

    def watches(self, example: int) -> bool:
        """Return whether an example is asked for what it draws."""
        return example < WATCHED and self.turns[example] <= TURNS


def objects_in(backend: Backend, roots: Sequence[Any]) -> dict[int, Any]:
    """Return what can be reached from some objects and may be changed by the program, by ``id``."""
    return {id(x): x for x, inside in reached(backend, roots, is_home=is_of_user) if inside}


def is_of_user(x: Any) -> bool:
    """Return whether the class of an object is code of the user.

    >>> is_of_user(Counter()), is_of_user(sys)
    (False, False)
    """
    return is_written_here(type(x).__module__)


@functools.lru_cache(maxsize=1024)
def is_written_here(module: str) -> bool:
    """Return whether a module is code of the user, rather than an installed one or one of Python."""
    where = getattr(sys.modules.get(module), "__file__", None) or ""
    installed = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
    return module == "__main__" or bool(where and not where.startswith(tuple(installed)))


def names_in(backend: Backend, x: Any) -> Iterator[tuple[str, Any]]:
    """Yield the names in an object, and what each stands for: attributes, variables around a function.

    A container has no names; it stands for itself.
    """
    if isinstance(x, FunctionType):
        for name, cell in zip(x.__code__.co_freevars, x.__closure__ or (), strict=True):
            yield name, content(cell)
        yield from [(name, x.__globals__[name]) for name in names_of(x.__code__) if name in x.__globals__]
    elif type(x) in CONTAINERS:
        yield "", x
    elif hasattr(x, "__dict__"):
        reserved = backend.reserved(x)
        yield from [(name, value) for name, value in vars(x).items() if name not in reserved]


def said(owner: Any, name: str) -> str:
    """Return how an error calls a name in an object."""
    if isinstance(owner, FunctionType):
        return f"the variable {name!r} of {owner.__qualname__}"
    return f"attribute {name!r} of {type(owner).__name__}" if name else f"a {type(owner).__name__}"


def is_same(now: Named, then: Named) -> bool:
    """Return whether a name stands for the same objects as before."""
    return now[2] is then[2] and same_entries(now[3], then[3])


def in_all_copies(backend: Backend, fn: Any) -> dict[int, Any]:
    """Return the arrays that copies of a model share, by ``id``: parameters, and what cannot be copied."""
    owner = owner_of(fn, fn)
    parts = [x for x, _ in reached(backend, [owner])]
    models = [owner, *[x for x in parts if backend.hosts(x)]]
    shared = {id(x): x for model in models for x in backend.arrays_of(model)}
    for x in parts:
        if backend.owns(x) and id(x) not in shared:
            try:
                copy.deepcopy(x)
            except RuntimeError:  # PyTorch copies no tensor that a gradient flows through
                shared[id(x)] = x
    return shared


def own_copy(fn: Any, shared: dict[int, Any]) -> Any:
    """Return a copy of a model, or of a method of it, with some arrays of its own model."""
    owner = owner_of(fn, fn)
    copied = copy.deepcopy(owner, dict(shared))
    return copied if owner is fn else getattr(copied, fn.__name__)
