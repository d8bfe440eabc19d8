"""Which functions of a program to make cells of, by what a run has recorded.

Those that have recorded many calls one by one are named, except for functions that make no good cells:

- what calls itself, also by way of others, is another cell for each structure, as `encode` of a tree;
- what reads values would run for one example after the other, as would the program itself;
- what calls another one that records many calls is more than is needed;
- what is not found by a name, as a lambda or a function inside of another one, cannot be named.

What functions call is told by the names in their code, so some that would do are not named.
"""

from __future__ import annotations

import dis
import functools
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from multifold.backend.objects import attribute_of
from multifold.lazy.cells import is_found

FEWEST_CALLS = 100
"""A run with fewer calls has nothing to gain."""

LEAST_SHARE = 0.1
"""The smallest share of the calls of a run for which a function is named."""

MOST = 3
"""So many functions are named."""

COMPREHENSIONS = {"<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"}
"""Code that belongs to the function around it."""

CALLS_OF_OBJECTS = {"forward", "call", "__call__"}
"""Methods that calling an object calls, in one framework or another."""


class Candidate(NamedTuple):
    """A function of the program that would make a good cell, and how many calls it has recorded one by one.

    Attributes
    ----------
    name : str
        The qualified name of the function.
    place : str
        The file and the line where it begins, as ``"model.py:12"``.
    calls : int
        How many calls of functions of the framework, and not of cells, it has recorded.
    share : float
        ``calls`` divided by all calls of the run, from 0 to 1.
    """

    name: str
    place: str
    calls: int
    share: float

    def __str__(self) -> str:
        return f"{self.name} ({self.place}): {self.calls:,} calls, {self.share:.0%}"


def glue_of(graph: Any, function: Any, reads: Collection[int]) -> list[Candidate]:
    """Return at most three functions to make cells of: of which each call should be recorded as one.

    Those with most recorded calls come first. The list is empty if the run has fewer than 100 calls, and
    only functions with a tenth of all calls are in it.

    Parameters
    ----------
    graph : Graph
        The calls of the run, with the code object that recorded each of them.
    function : object
        The function or model that takes one example; it is not named itself.
    reads : collection of int
        The ``id`` of the code of functions that have read values, themselves or by what they call.
    """
    total = len(graph.signature)
    if total < FEWEST_CALLS:
        return []
    calls = calls_of_functions(graph)
    own = {id(code) for code in codes_of(function)} | {*reads}
    inside = {
        fn: names_inside(fn)
        for fn, count in calls.items()
        if count >= LEAST_SHARE * total and id(fn.__code__) not in own
    }
    found = [
        Candidate(
            fn.__qualname__,
            f"{fn.__code__.co_filename}:{fn.__code__.co_firstlineno}",
            calls[fn],
            calls[fn] / total,
        )
        for fn, names in inside.items()
        if not any(other.__name__ in names for other in inside)
    ]
    return sorted(found, key=lambda glue: -glue.calls)[:MOST]


def calls_of_functions(graph: Any) -> Counter[FunctionType]:
    """Return how many calls each function has recorded one by one, itself and not by what it calls.

    Calls of cells do not count, nor do functions that no name finds.
    """
    is_glue = [not getattr(signature.op, "is_cell", True) for signature in graph.signatures]
    codes: dict[int, CodeType] = {}
    counts: Counter[int] = Counter()
    for number, code in zip(graph.signature, graph.codes, strict=True):
        if is_glue[number] and isinstance(code, CodeType):
            codes[id(code)] = code  # the hash of a code object takes long
            counts[id(code)] += 1
    calls: Counter[FunctionType] = Counter()
    for key, code in codes.items():
        fn = function_of(code)
        if fn is not None:
            calls[fn] += counts[key]
    return calls


def function_of(code: CodeType) -> FunctionType | None:
    """Return the function that has this code, itself or in a comprehension; None if none is found.

    The function is searched for in all modules that are imported, by its qualified name. An inner function
    or a lambda is not found.
    """
    path, *inner = code.co_qualname.split(".<locals>.")
    if not COMPREHENSIONS.issuperset(inner):
        return None
    first, *names = path.split(".")
    for module in [*sys.modules.values()]:
        found = getattr(module, "__dict__", {}).get(first)
        for name in names:
            found = getattr(found, "__dict__", {}).get(name)
        found = attribute_of(found, "__func__", found)  # of a static method
        if isinstance(found, FunctionType) and any(
            are_of_one_place(x, code) for x in codes_in(found.__code__)
        ):
            return found if is_found(found) else None
    return None


def are_of_one_place(code: CodeType, other: CodeType) -> bool:
    """Return whether two code objects are one, or one of them that of the other's function with pieces."""
    places = [(x.co_filename, x.co_firstlineno, x.co_qualname) for x in (code, other)]
    return places[0] == places[1]


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield ``code``, then the code objects of the functions inside of it, and of those inside of them."""
    yield code
    for x in code.co_consts:
        if isinstance(x, CodeType):
            yield from codes_in(x)


def codes_of(function: Any) -> list[CodeType]:
    """Return the code objects that run when a function, method, partial or callable object is called.

    Of an object these are those of ``forward``, ``call`` and ``__call__`` of its class, of a code object
    itself; the list is empty for what is written in C.
    """
    while isinstance(function, functools.partial):
        function = function.func
    function = attribute_of(function, "__func__", function)
    if isinstance(function, CodeType):
        return [function]
    parts = [function, *[getattr(type(function), name, None) for name in CALLS_OF_OBJECTS]]
    return [x.__code__ for x in parts if isinstance(x, FunctionType)]


def names_inside(fn: FunctionType) -> set[str]:
    """Return the names in the code of ``fn``, and in the code of functions of its module that it may call.

    >>> def even(n):
    ...     return n == 0 or odd(n - 1)
    >>> def odd(n):
    ...     return n != 0 and even(n - 1)
    >>> "even" in names_inside(even), "print" in names_inside(even)
    (True, False)
    """
    known: dict[str, list[FunctionType]] = {}
    for x in functions_of(fn):
        known.setdefault(x.__name__, []).append(x)
    found: set[str] = set()
    new = names_of(fn.__code__)
    while new:
        found |= new
        new = {name for x in new for other in known.get(x, ()) for name in names_of(other.__code__)} - found
    return found


def functions_of(fn: FunctionType) -> Iterator[FunctionType]:
    """Yield the functions that the module of ``fn`` defines, and the methods of classes defined there.

    What it has imported is left out.
    """
    for x in [*fn.__globals__.values()]:
        parts = [*vars(x).values()] if isinstance(x, type) and x.__module__ == fn.__module__ else [x]
        for part in parts:
            own = attribute_of(part, "__func__", part)
            if isinstance(own, FunctionType) and own.__module__ == fn.__module__:
                yield own


def names_of(code: CodeType) -> set[str]:
    """Return the names of globals and attributes in a code object and those inside of it.

    If one of these code objects calls ``self(...)``, ``forward``, ``call`` and ``__call__`` are among the
    names.
    """
    found: set[str] = set()
    for x in codes_in(code):
        found.update(x.co_names)
        if calls_own_object(x):
            found |= CALLS_OF_OBJECTS
    return found


def calls_own_object(code: CodeType) -> bool:
    """Return whether the code of a method calls its own object, as in ``self(x)``.

    >>> def own(self, x):
    ...     return self(x)
    >>> def part(self, x):
    ...     return self.parts[0](x)
    >>> calls_own_object(own.__code__), calls_own_object(part.__code__)
    (True, False)
    """
    steps = [(x.opname, x.argval) for x in dis.get_instructions(code)]
    # What is called is loaded before or after a mark, by the version of Python.
    return any(
        loaded == "self"
        and (after == "PUSH_NULL" or (before == "PUSH_NULL" and after not in ("LOAD_ATTR", "LOAD_METHOD")))
        for (before, _), (_, loaded), (after, _) in zip(steps, steps[1:], steps[2:], strict=False)
    )
