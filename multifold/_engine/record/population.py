"""Populations: modules of one form, recorded as one op that gets the number of a module with each row.

Calls of two modules would be two kinds of calls, as the op is part of a call's signature. Where a framework
says that modules have equal forms (`multifold.backend.Backend.form_of`), as two layers of one size do,
these differ in their parameters only. So each such module has a *seat*: a population, and its number there.
The recorder puts the population in the place of the module, and the number behind the operands:

    fold.add(layers[3], x)    is recorded as    population(x, 3)

A launch then holds rows of many modules. A module without a second one of its form is recorded as it is.

Seats are kept for the process, by weak references: no population keeps a module alive.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import count
from threading import Lock
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any, NamedTuple

import numpy as np
import optree

from multifold.backend import Backend, Groups, ModuleForm, Together
from multifold.errors import LaunchError
from multifold.marks import mark_of

ENOUGH_CALLS = 64
"""So many modules, each as often as it is in a launch, show how many rows one has."""

MOST_TEAMS = 256
"""So many teams are kept: a program whose minibatches are alike has one for each launch."""


class Member:
    """One module of a population, and its form as it was found last."""

    __slots__ = ("form", "ref")

    def __init__(self, ref: Callable[[], Any], form: ModuleForm | None) -> None:
        self.ref = ref
        self.form = form

    def current(self, backend: Backend) -> ModuleForm | None:
        """Return the form of the module as it is, None if it has none: it may have changed its options."""
        if self.form is None or not self.form.holds():
            self.form = backend.form_of(self.ref())
        return self.form


class Team(NamedTuple):
    """The modules of a launch, which of its rows are theirs, and what calls them as one, if anything."""

    members: list[Member]
    groups: Groups
    together: Together | None

    def holds(self) -> bool:
        """Return whether all is as it was when this was made, so that it may be used again."""
        return len(self.members) == 1 or (self.together is not None and self.together.holds())


class Population:
    """Modules of one form as one op, which takes the number of a module with each row.

    Parameters
    ----------
    backend : Backend
        The framework of the modules.
    name : str
        What messages call the op: the name of the modules' class.
    key : Hashable
        That of the form of the modules.
    """

    def __init__(self, backend: Backend, name: str, key: Hashable) -> None:
        self.backend = backend
        self.key = key
        self.__qualname__ = name
        self.members: dict[int, Member] = {}
        self.teams: dict[bytes, Team] = {}
        self.rows = self.calls = 0
        self.is_parted = False

    def __len__(self) -> int:
        """How many modules there are."""
        return len(self.members)

    @property
    def modules(self) -> Iterator[Any]:
        """The modules that are alive, in the order of their numbers."""
        found = (member.ref() for member in [*self.members.values()])
        return (module for module in found if module is not None)

    def __call__(self, *operands: Any, **static: Any) -> Any:
        """Return what the modules return for their rows, a row for each row of the operands.

        The last operand says by number which module each row belongs to. The operands before it are what
        the modules are called with.

        Raises
        ------
        LaunchError
            If results of modules that changed after they were recorded do not fit together any more.
        """
        *rows, which = operands
        numbers = self.numbers_of(which)
        team = self.team_of(numbers)
        if len(team.members) == 1 and team.members[0].current(self.backend) is not None:
            return team.members[0].ref()(*rows, **static)
        self.count(len(numbers), team)
        if team.together is not None:
            found = team.together(rows, static)
            if found is not None:
                return found
        forms = self.forms_of(team.members)
        return self.one_by_one(*apart(team, forms), rows, static)

    def numbers_of(self, which: Any) -> np.ndarray:
        """Return an array of numbers as one on the host.

        Raises `LaunchError` where it has no values, as while a program is traced.
        """
        try:
            try:
                return self.backend.to_numpy(which)
            except RuntimeError:  # PyTorch has no memory to show inside of its forward mode
                return np.array(which.tolist())
        except Exception as error:
            raise LaunchError(
                f"Modules of class {self.__qualname__} cannot be told apart where numbers have no values.",
                "record the calls where they run, inside of what is traced.",
            ) from error

    def count(self, rows: int, team: Team) -> None:
        """Count a launch of several modules; if they mostly have many rows, let all give up their seats.

        Then launches of their own cost less than to put their rows together, as for layers of one size in
        one model.
        """
        self.rows += rows
        self.calls += len(team.members)
        if self.calls >= ENOUGH_CALLS and not self.is_parted:
            form = team.members[0].form
            if form is not None and self.rows > form.crowd * self.calls:
                self.part()

    def part(self) -> None:
        """Let all modules give up their seats: from the next recording on each has launches of its own."""
        self.is_parted = True
        with LOCK:
            own = {key: seat for key, seat in [*SEATS.items()] if seat[0] is self}
            LONE.update(own)
            for key in own:
                SEATS.pop(key, None)

    def can_be_tried(self, which: Any) -> bool:
        """Return whether the modules with these numbers still have forms: others may draw random numbers.

        These are drawn module by module, so that a row's depend on the modules of the other rows.
        """
        return None not in self.forms_of(self.team_of(self.numbers_of(which)).members)

    def team_of(self, which: np.ndarray) -> Team:
        """Return the team of the modules with these numbers, one for each row of a launch; it is kept."""
        key = which.tobytes()
        team = self.teams.get(key)
        if team is None or not team.holds():
            if len(self.teams) >= MOST_TEAMS:
                self.teams.clear()
            team = self.teams[key] = self.team(which.tolist())
        return team

    def team(self, numbers: list[int]) -> Team:
        """Return a new team of the modules with these numbers, one for each row of a launch."""
        distinct = [*dict.fromkeys(numbers)]
        # A trial may halve a number, which then may be that of no module that is alive.
        some = next(iter(self.members.values()))
        members = [self.members.get(number, some) for number in distinct]
        groups = groups_of(numbers, distinct)
        forms = self.forms_of(members)
        alike = len(members) > 1 and None not in forms and len({form.key for form in forms}) == 1
        return Team(members, groups, self.backend.together(forms, groups) if alike else None)

    def forms_of(self, members: Sequence[Member]) -> list[Any]:
        """Return the forms of some modules as they are now.

        Those of another form than that of the population lose their seats in it: from the next recording
        on they have one elsewhere.
        """
        forms = [member.current(self.backend) for member in members]
        for member, form in zip(members, forms, strict=True):
            if form is None or form.key != self.key:
                SEATS.pop(id(member.ref()), None)
        return forms

    def has_several(self, which: Any) -> bool:
        """Return whether a module has several of the rows with these numbers."""
        numbers = self.numbers_of(which)
        return len(self.team_of(numbers).members) < len(numbers)

    def one_by_one(self, modules: Sequence[Any], groups: Groups, rows: Any, static: Any) -> Any:
        """Return what each of ``modules``, called with its group of the rows, returns.

        Raises `LaunchError` if the results do not fit together.
        """
        backend = self.backend
        leaves, structure = optree.tree_flatten(list(rows), none_is_leaf=True)
        parts: list[list[Any]] = [[] for _ in modules]
        for leaf in leaves:
            if backend.owns(leaf):
                if groups.order is not None:
                    leaf = backend.gather(leaf, backend.constant(groups.order, backend.device(leaf)))
                pieces: Sequence[Any] = backend.split(leaf, groups.sizes)
            else:
                pieces = [leaf] * len(modules)
            for part, piece in zip(parts, pieces, strict=True):
                part.append(piece)
        results = [
            module(*optree.tree_unflatten(structure, part), **static)
            for module, part in zip(modules, parts, strict=True)
        ]
        return self.joined(results, groups)

    def joined(self, results: Sequence[Any], groups: Groups) -> Any:
        """Return the results of the modules as one, with the rows in the order of the launch.

        Raises `LaunchError` where they differ in structure, trailing shape, dtype or device.
        """
        backend = self.backend
        taken = [optree.tree_flatten(result, none_is_leaf=True) for result in results]
        forms = [
            (structure, *[None if x is None else backend.signature(x) for x in leaves])
            if all(x is None or backend.owns(x) for x in leaves)
            else None
            for leaves, structure in taken
        ]
        if None in forms or any(form != forms[0] for form in forms):
            raise LaunchError(
                f"Modules of class {self.__qualname__} returned results that do not fit together.",
                "record again what has come to another form after it was recorded.",
            )
        columns = zip(*[leaves for leaves, _ in taken], strict=True)
        joined = [None if leaves[0] is None else backend.concat(leaves) for leaves in columns]
        if groups.order is not None:
            back = np.argsort(groups.order)
            joined = [
                None if x is None else backend.gather(x, backend.constant(back, backend.device(x)))
                for x in joined
            ]
        return optree.tree_unflatten(taken[0][1], joined)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what is pickled: the modules themselves, by number."""
        alive = {number: member.ref() for number, member in self.members.items()}
        return revived, (self.backend, self.__qualname__, self.key, alive)


def apart(team: Team, forms: Sequence[Any]) -> tuple[list[Any], Groups]:
    """Return the modules of a team and their groups of rows, of one row for a module that has no form.

    It has lost that after it was recorded, as batch normalisation does that is to train. It may mix rows
    now, so it is called for each, as the loop would.
    """
    modules, sizes = [], []
    for member, form, size in zip(team.members, forms, team.groups.sizes, strict=True):
        times, each = (1, size) if form is not None else (size, 1)
        modules += [member.ref()] * times
        sizes += [each] * times
    return modules, Groups(sizes, team.groups.order)


def itself(module: Any) -> Any:
    """Return the module: what stands in the place of a weak reference to one that is kept alive."""
    return module


def revived(backend: Backend, name: str, key: Hashable, modules: dict[int, Any]) -> Population:
    """Return a population that keeps its modules alive, as a pickle or a copy has it."""
    found = Population(backend, name, key)
    for number, module in modules.items():
        found.members[number] = Member(partial(itself, module), backend.form_of(module))
    return found


def groups_of(numbers: Sequence[int], distinct: Sequence[int]) -> Groups:
    """Return the groups of rows with these numbers; ``distinct`` has each number once, in order.

    >>> groups_of([5, 7, 5], [5, 7])
    Groups(sizes=[2, 1], order=array([0, 2, 1]))
    """
    if len(distinct) == len(numbers):
        return Groups([1] * len(numbers), None)
    places = {number: i for i, number in enumerate(distinct)}
    which = np.fromiter(map(places.__getitem__, numbers), np.int64, len(numbers))
    sizes = np.bincount(which, minlength=len(distinct)).tolist()
    if (which[1:] >= which[:-1]).all():
        return Groups(sizes, None)
    return Groups(sizes, np.argsort(which, kind="stable"))


Seat = tuple[Population, int]
"""A population, and the number of a module in it."""

SEATS: dict[int, Seat] = {}
"""The ``id`` of a module -> its seat, for modules that have others of their form."""

LONE: dict[int, Seat] = {}
"""The same for those that have none."""

FORMLESS: dict[int, tuple[Callable[[], Any], Hashable]] = {}
"""The ``id`` of a module without a form -> a weak reference to it, and its modes when that was found."""

POPULATIONS: weakref.WeakValueDictionary[Hashable, Population] = weakref.WeakValueDictionary()
"""The population of each form."""

LOCK = Lock()
NUMBERS = count()
OTHERS = (str, FunctionType, BuiltinFunctionType, MethodType, type)
"""Types of ops that are no modules."""


def seat_of(backend: Backend | None, op: Any) -> Seat | None:
    """Return the seat of an op; None for one that is no module, or has no other one of its form."""
    if backend is None or isinstance(op, OTHERS) or mark_of(op) is not None or backend.is_traced():
        return None
    known = id(op)
    seat = SEATS.get(known)
    if seat is not None:
        return seat
    lone = LONE.get(known)
    if lone is None:
        lone = take_seat(backend, op)
    if lone is None or len(lone[0]) < 2 or lone[0].is_parted:
        return None
    with LOCK:
        for number, member in [*lone[0].members.items()]:
            module = member.ref()
            if module is not None and LONE.pop(id(module), None) is not None:
                SEATS[id(module)] = lone[0], number
    return SEATS.get(known)


def take_seat(backend: Backend, op: Any) -> Seat | None:
    """Give a module a seat in the population of its form, and return it; None if it has no form."""
    known = id(op)
    if known in FORMLESS:
        # It may have another form in another mode, as without dropout.
        if FORMLESS[known][1] == getattr(op, "training", None):
            return None
        del FORMLESS[known]
    form = backend.form_of(op)
    tables: list[dict[int, Any]] = [FORMLESS, SEATS, LONE]  # which Python clears in the module as it ends

    def forget(_: Any) -> None:
        for table in tables:
            table.pop(known, None)
        if population is not None:
            population.members.pop(number, None)
            population.teams.clear()

    number = next(NUMBERS)
    population = None
    try:
        ref = weakref.ref(op, forget)
    except TypeError:
        return None
    if form is None:
        FORMLESS[known] = ref, getattr(op, "training", None)
        return None
    with LOCK:
        key = backend.name, form.key
        population = POPULATIONS.get(key)
        if population is None:
            population = POPULATIONS[key] = Population(backend, type(op).__qualname__, form.key)
        population.members[number] = Member(ref, form)
        LONE[known] = seat = population, number
    return seat
