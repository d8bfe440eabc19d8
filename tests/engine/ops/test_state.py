"""State: what a trial of an op puts back, and when two states are the same."""

from __future__ import annotations

import collections
import functools
import random
import warnings

import numpy as np
import pytest

from multifold import Fold
from multifold._engine.ops.state import KeptState
from multifold._engine.ops.verdicts import VERDICTS
from multifold._numpy.backend import NumpyBackend
from multifold.backend import StateSlot

ROWS = np.arange(4.0).reshape(4, 1, 1)


@pytest.fixture(autouse=True)
def nothing_known():
    """Forget what other tests have found, and let no op be believed with a warning."""
    VERDICTS.known.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def apply(model, backend="numpy", **options):
    """Return one group: the op of a model, or the model itself, of each row."""
    fold = Fold(backend=backend, **options)
    op, model = (model, None) if callable(model) else ("op", model)
    return fold.apply(model, [[fold.add(op, x) for x in ROWS]])[0].ravel().tolist()


def nested(depth, end):
    """Return lists in lists."""
    return [nested(depth - 1, end)] if depth else end


def pair_of(make):
    """Return two values that are made alike."""
    return make(), make()


SAME = {
    "arrays": lambda: np.ones(2),
    "numbers of NumPy": lambda: np.float32(2),
    "lists": lambda: [1, [2.0, None]],
    "tuples": lambda: (1, (True, "a")),
    "dictionaries": lambda: {"a": [1], 2: {}},
    "sets": lambda: {1, 2},
    "deques": lambda: collections.deque([1, 2]),
    "generators": lambda: random.Random(0),
    "four lists": lambda: nested(4, 0.5),
    "four dictionaries": lambda: {0: {0: {0: {0: 0.5}}}},
}

OTHERS = {
    "arrays": (np.ones(2), np.zeros(2)),
    "arrays of other shapes": (np.ones(2), np.ones(3)),
    "types": (1, 1.0),
    "lengths": ([1], [1, 1]),
    "keys": ({"a": 1}, {"b": 1}),
    "entries": ({"a": [1]}, {"a": [2]}),
    "sets": ({1}, {2}),
    "generators": (random.Random(0), random.Random(1)),
    "objects": (object(), object()),
    "five lists": (nested(5, 0.5), nested(5, 0.5)),
    "five dictionaries": pair_of(lambda: {0: {0: {0: {0: {0: 0.5}}}}}),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_values_that_are_the_same(make):
    assert KeptState(NumpyBackend(), []).same(make(), make()) is True


@pytest.mark.parametrize(("one", "other"), OTHERS.values(), ids=OTHERS)
def test_values_that_are_not_the_same(one, other):
    kept = KeptState(NumpyBackend(), [])
    assert kept.same(one, one) is True and kept.same(one, other) is False


@pytest.mark.parametrize("wrap", [lambda x: [x], lambda x: (x,), lambda x: {0: x}], ids=["[]", "()", "{}"])
def test_containers_are_put_back_however_deep_they_are(wrap):
    inner = []
    value = inner
    for _ in range(9):
        value = wrap(value)
    with KeptState(NumpyBackend(), [lambda: value]).again():
        inner.append(1)
    assert inner == []


def test_an_attribute_of_none_that_an_op_deletes_is_there_again():
    class Model:
        def __init__(self):
            self.first = None

        def op(self, x):
            if not hasattr(self, "first"):
                return x - x.mean(0)
            del self.first
            return x + 1

    model = Model()
    assert apply(model) == [1.0, 2.0, 3.0, 4.0] and not hasattr(model, "first")


def test_what_a_backend_says_an_op_may_change_is_put_back():
    counts = Seen([0])

    class Counting(NumpyBackend):
        def slots(self, owners):
            yield StateSlot(lambda: counts[0], lambda value: counts.__setitem__(0, value))

    def op(x):
        counts[0] += 1
        return x * counts[0]

    assert apply(op, Counting()) == [0.0, 1.0, 2.0, 3.0] and counts == [1]


class Seen(list):
    """What an op has met; a trial would leave a plain list as it was."""


GENERATORS = {
    "a generator": lambda: np.random.default_rng(0),
    "a random state": lambda: np.random.RandomState(0),
    "one of other bits": lambda: np.random.RandomState(np.random.PCG64(0)),
    "one of Python": lambda: random.Random(0),
}


@pytest.mark.parametrize("make", GENERATORS.values(), ids=GENERATORS)
@pytest.mark.parametrize("around", [False, True], ids=["attribute", "variable"])
def test_numbers_that_a_generator_draws_for_each_row_are_those_of_its_place(make, around):
    class Model:
        def __init__(self):
            self.rng = make()

        def op(self, x):
            return drawn(self.rng, x)

    def drawn(rng, x):
        return x + np.array([[rng.random()] for _ in x])

    def op_of(rng):
        return lambda x: drawn(rng, x)

    tried, plain = (apply(op_of(make()) if around else Model(), trials=trials) for trials in (True, False))
    assert tried == plain


def test_the_order_of_a_dictionary_is_put_back():
    model = {"a": None, "b": None}
    with KeptState(NumpyBackend(), [model]).again():
        model["a"] = model.pop("a")
    assert list(model) == ["a", "b"]


def test_an_entry_that_is_only_rewritten_is_put_back():
    model = {"a": 0}
    with KeptState(NumpyBackend(), [model]).again():
        model["a"] = 1
    assert model == {"a": 0}


def helper(x):
    return x + 1


def calls_helper(x):
    return helper(x)


def test_a_wrapper_that_another_thread_takes_away_is_not_put_back(monkeypatch):
    plain, wrapper = helper, functools.wraps(helper)(lambda x: x + 1)
    wrapper.multifold_found = plain
    monkeypatch.setitem(globals(), "helper", wrapper)
    with KeptState(NumpyBackend(), [calls_helper]).again():
        monkeypatch.setitem(globals(), "helper", plain)  # as another thread does, whose program ends
    assert helper is plain
