"""What examples write in hidden ways while they take turns: others see it when the loop would let them."""

from __future__ import annotations

import collections
import functools
import itertools
import operator

import numpy as np
import pytest
import torch
from torch import nn

import multifold

torch.manual_seed(0)
LIN = nn.Linear(4, 4)
XS = [torch.randn(4) for _ in range(8)]


def reads(x):
    """Wait for a value, so that another example may go on."""
    return bool(LIN(x).sum() > 0)


def in_place_by_a_constant(zeros=lambda: torch.zeros(2)):
    base = zeros()

    def fn(x):
        own = base
        reads(x)
        own += 1
        reads(x)
        return float(base[0])

    return fn


def in_place_by_a_constant_of_numpy():
    return in_place_by_a_constant(lambda: np.zeros(2))


def a_vocabulary():
    ids = collections.defaultdict(lambda: len(ids))

    def fn(x):
        first = ids[round(float(x[0]), 2)]
        reads(x)
        return first, ids[round(float(x[1]), 2)]

    return fn


def twice(count):
    """Return a program that counts before and after it waits."""

    def fn(x):
        first = count()
        reads(x)
        return first, count()

    return fn


def a_counter_of_a_class():
    class Node:
        ids = itertools.count()

        def __init__(self):
            self.id = next(Node.ids)

    return twice(lambda: Node().id)


def an_iterator_in_a_dictionary():
    table = {"ids": itertools.count()}
    return twice(lambda: next(table["ids"]))


def an_iterator_in_a_partial():
    return twice(functools.partial(next, itertools.count()))


def a_bound_next():
    return twice(itertools.count().__next__)


def appended(log, value=0):
    log.append(value)
    return len(log)


def a_function_whose_results_are_kept():
    log, numbers = [], itertools.count()

    @functools.lru_cache
    def kept(number):
        return appended(log, number)

    def fn(x):
        first = kept(next(numbers))
        reads(x)
        return first, kept(next(numbers))

    return fn


def a_cached_property():
    log = []

    class Own:
        @functools.cached_property
        def number(self):
            return appended(log)

    return twice(lambda: Own().number)


def a_table_of_functions():
    log = []
    table = {True: lambda: appended(log), False: lambda: appended(log, 1)}

    def fn(x):
        first = table[reads(x)]()
        return first, table[reads(x)]()

    return fn


def a_decorator_that_is_an_object():
    class Counted:
        def __init__(self, fn):
            self.fn, self.calls = fn, 0

        def __get__(self, owner, kind=None):
            self.calls += 1
            return lambda: self.calls

    class Own:
        number = Counted(None)

    return twice(lambda: Own().number())


def setattr_by_another_name():
    class Own:
        calls = 0

    own, put = Own(), setattr

    def count():
        put(own, "calls", own.calls + 1)
        return own.calls

    return twice(count)


def a_list_in_a_named_tuple():
    place = collections.namedtuple("Place", "numbers")([0])

    def count():
        place.numbers[0] += 1
        return place.numbers[0]

    return twice(count)


def an_operator_in_place():
    log = []

    def count():
        operator.iconcat(log, [0])
        return len(log)

    return twice(count)


PROGRAMS = [
    in_place_by_a_constant,
    in_place_by_a_constant_of_numpy,
    a_vocabulary,
    a_counter_of_a_class,
    an_iterator_in_a_dictionary,
    an_iterator_in_a_partial,
    a_bound_next,
    a_function_whose_results_are_kept,
    a_cached_property,
    a_table_of_functions,
    a_decorator_that_is_an_object,
    setattr_by_another_name,
    a_list_in_a_named_tuple,
    an_operator_in_place,
]


@pytest.mark.parametrize("make", PROGRAMS)
def test_what_an_example_writes_is_seen_when_the_loop_would_see_it(make):
    fn = make()
    wanted = [fn(x) for x in XS]
    assert multifold.batched(make(), join="list", may_loop=False)(XS) == wanted


class Hits:
    """Counts how often it was hit."""

    def __init__(self):
        self.hits = 0

    def hit(self):
        self.hits += 1
        return self.hits


def hit(x, own):
    first = own.hit()
    reads(x)
    return first, own.hit()


def advanced(x, own):
    first = next(own)
    reads(x)
    return first, next(own)


def added(x, own):
    reads(x)
    own["total"].add_(1)
    reads(x)
    return float(own["total"])


def own_places():
    total = torch.zeros(())
    return [{"total": total} for _ in XS]


ARGUMENTS = {
    "a method": (hit, lambda: [Hits()] * len(XS)),
    "an iterator": (advanced, lambda: [itertools.count()] * len(XS)),
    "an array in containers of their own": (added, own_places),
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_what_examples_share_by_their_arguments_is_watched(case):
    fn, make = ARGUMENTS[case]
    wanted = [fn(x, own) for x, own in zip(XS, make(), strict=True)]
    assert multifold.batched(fn, join="list", may_loop=False)(XS, make()) == wanted


def test_a_program_that_writes_nothing_waits_for_all_examples():
    def fn(x):
        n = 0
        while n < 3 and reads(x) in (True, False):
            n += 1
        return n

    run = multifold.batched(fn, join="list", may_loop=False)
    assert run(XS) == [3] * len(XS)
    assert len(run.explain()) <= 9


def test_a_list_under_the_name_of_jax_updates_is_seen_as_the_loop_sees_it():
    rows = []

    def program(x):
        at, computed = [rows], torch.tanh(LIN(x))
        number = len(at[0])
        if computed.sum() > 0:
            computed = computed * 2
        at[0].append(number)
        return computed * number

    xs = [*torch.randn(7, 4)]
    found = multifold.batched(program, may_loop=False)(xs)
    assert rows == [*range(7)]
    rows.clear()
    torch.testing.assert_close(found, torch.stack([program(x) for x in xs]))
