"""What a trial puts back: whatever the functions of an op can reach, wherever it is kept."""

from __future__ import annotations

import collections
import dataclasses
import functools
import random
import types

import numpy as np
import pytest

from multifold import Fold
from multifold._engine.ops.reach import FEW, MANY, reached
from multifold._engine.ops.state import KeptState
from multifold._numpy.backend import NumpyBackend


@dataclasses.dataclass
class Calls:
    """A counter, as a program keeps it."""

    made: int = 0

    def count(self):
        self.made += 1


class Inner:
    def __init__(self):
        self.calls = Calls()

    def double(self, x):
        self.calls.count()
        return 2 * x


class Model:
    """Keeps how often it was called in many ways."""

    def __init__(self):
        self.inner = Inner()
        self.counter = collections.Counter()
        self.missing = collections.defaultdict(list)
        self.last = collections.OrderedDict()
        self.few = collections.deque([0, 0], maxlen=2)
        self.seen = set()
        self.space = types.SimpleNamespace(calls=[[]])

    def op(self, x):
        calls = self.counter["calls"] + 1
        self.counter.update(["calls"])
        self.missing["rows"].append(len(x))
        self.last[calls] = self.last.pop(1, None)
        self.few.append(calls)
        self.seen.add(calls)
        self.space.calls[0].append(calls)
        return self.inner.double(x)

    def kept(self):
        return (
            dict(self.counter), dict(self.missing), list(self.last), list(self.few), self.seen,
            self.space.calls, self.inner.calls.made,
        )  # fmt: skip


LOG = []
CALLS = 0


def logged(x):
    global CALLS  # noqa: PLW0603 - as a program counts
    CALLS += 1
    LOG.append(len(x))
    logged.calls = getattr(logged, "calls", 0) + 1
    return 2 * x


def helped(x):
    return logged(x)


def decorated(fn):
    @functools.wraps(fn)
    def inner(x):
        return fn(x)

    return inner


def launch(op, model=None, rows=4):
    """Run one launch."""
    fold = Fold(backend="numpy")
    return fold.apply(model, [[fold.add(op, np.full((1, 2), float(i))) for i in range(rows)]])[0]


def test_objects_and_containers_of_a_model_are_as_one_launch_leaves_them():
    model, other = Model(), Model()
    launch("op", model)
    other.op(np.zeros((4, 2)))
    assert model.kept() == other.kept()


@pytest.mark.parametrize("op", [logged, helped, decorated(logged)], ids=["itself", "helper", "decorated"])
def test_variables_around_a_function_are_as_one_launch_leaves_them(op):
    LOG.clear()
    before = CALLS, getattr(logged, "calls", 0)
    launch(op)
    assert LOG == [4] and (CALLS, logged.calls) == (before[0] + 1, before[1] + 1)


def in_a_list(rng):
    generators = [rng]
    return lambda x: x + generators[0].random(x.shape)


def in_an_object(rng):
    space = types.SimpleNamespace(inner={"rng": (rng,)})
    return lambda x: x + space.inner["rng"][0].random(x.shape)


def in_a_function(rng):
    def drawn(shape):
        return rng.random(shape)

    return lambda x: x + drawn(x.shape)


def in_a_method(rng):
    drawn = rng.random
    return lambda x: x + drawn(x.shape)


@pytest.mark.parametrize("make", [in_a_list, in_an_object, in_a_function, in_a_method])
@pytest.mark.filterwarnings("error:.*could not be tried")
def test_a_generator_draws_as_in_one_launch_wherever_it_is(make):
    rng, other = np.random.default_rng(0), np.random.default_rng(0)
    launch(make(rng))
    other.random((4, 2))
    assert rng.random() == other.random()


def test_a_list_that_others_hold_stays_the_same_object():
    log = []
    held = log

    def op(x):
        log.append(len(x))
        return x

    launch(op)
    assert held is log and held == [4]


def test_the_objects_of_other_packages_are_ends():
    outer = types.SimpleNamespace(fold=Fold(backend="numpy"), calls=Calls())
    found = {id(x): inside for x, inside in reached(NumpyBackend(), [lambda: outer])}
    assert (found[id(outer.fold)], found[id(outer.calls)]) == (False, True)


@pytest.mark.parametrize(("entries", "expected"), [(FEW, True), (FEW + 1, False)])
def test_a_long_container_is_data(entries, expected):
    calls = Calls()
    found = [x for x, _ in reached(NumpyBackend(), [lambda held=[calls] * entries: held])]
    assert any(x is calls for x in found) == expected


def test_objects_that_hold_each_other_are_met_once():
    one, other = Calls(), Calls()
    one.made, other.made = other, [one]
    with KeptState(NumpyBackend(), [one]).again():
        other.made.append(2)
    assert other.made == [one]


def test_the_arrays_of_a_model_that_is_a_dictionary_stay_what_they_are():
    model = {"w": np.ones(3), "calls": [0]}
    with KeptState(NumpyBackend(), [model]).again():
        held = model["w"], list(model["calls"])
        model["calls"].append(1)
    assert held[0] is model["w"] and model["calls"] == [0]


class Held:
    """Holds another object."""

    def __init__(self, x):
        self.x = x


def reaches(x, *roots):
    """Return whether the walk from some roots meets an object."""
    return any(found is x for found, _ in reached(NumpyBackend(), roots))


def test_a_walk_ends_after_so_many_objects():
    far = None
    for _ in range(2 * MANY):
        far = Held(far)
    assert len([*reached(NumpyBackend(), [far])]) == MANY + 1


def test_near_objects_come_before_those_inside_of_others():
    deep, near = Held(Held(0)), Held(0)
    found = [x for x, _ in reached(NumpyBackend(), [lambda: (deep, near)]) if isinstance(x, Held)]
    assert found == [deep, near, deep.x]


def test_a_method_in_c_leads_to_its_generator():
    rng = random.Random(0)
    draw = rng.random
    assert reaches(rng, lambda: draw)


def test_functions_in_containers_and_those_of_other_modules_are_not_followed():
    ops = [helped]
    assert reaches(ops, lambda: ops) and not reaches(helped, lambda: ops)
    assert not reaches(reached, lambda: reached)


def test_defaults_of_keywords_are_reached():
    log = []

    def op(x, *, log=log):
        return x

    assert reaches(log, op)


def test_names_of_functions_inside_of_a_function_are_reached():
    assert reaches(LOG, lambda: [(lambda: LOG)() for _ in range(2)])
