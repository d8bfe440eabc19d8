"""References of compiled functions, and drawn problems, for the tests in `tests/engine/compiled`."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import strategies as st

from multifold import Fold, ragged
from multifold._engine import compiled
from multifold._engine.compiled.reference import covers, foot, recording
from multifold._engine.compiled.sources import SOURCES, uncompiled
from multifold._engine.plan.levels import Problem


def loaded_uncompiled():
    """Return the modules as they run uncompiled; imports go on to find the compiled ones."""
    with pytest.MonkeyPatch.context() as patch:
        for name in SOURCES:
            full = f"multifold._engine.compiled.{name}"
            patch.setitem(sys.modules, full, sys.modules[full])  # is put back in the end
        return uncompiled()


calls, plans, merging, rounds, tasks, glue = loaded_uncompiled().values()
NONE = np.zeros(0, np.int64)
REFERENCES = {
    "_calls": calls,
    "_covers": covers,
    "_foot": foot,
    "_rows": plans,
    "_merging": merging,
    "_table": rounds,
    "_tasks": tasks,
    "_lazy": glue,
    "_recording": recording,
}


def defines(module, name):
    """Return whether a module defines a name, and did not import it."""
    own = module.__name__
    return name in vars(module) and getattr(vars(module)[name], "__module__", own) == own


FUNCTIONS = {
    name: getattr(module, name)
    for module in REFERENCES.values()
    for name in compiled.__all__
    if name.islower() and defines(module, name)
}


def with_references(fn, *arguments):
    """Return what a function returns with the references in the place of the compiled functions."""
    with pytest.MonkeyPatch.context() as patch:
        for name, reference in FUNCTIONS.items():
            patch.setattr(compiled, name, reference)
        return fn(*arguments)


def random_fold(data):
    """Draw a graph with parts of results, ragged operands and nodes that are read whole."""
    fold = Fold()
    nodes = [fold.add("leaf", i) for i in range(data.draw(st.integers(1, 6)))]
    for _ in range(data.draw(st.integers(0, 60))):
        node = st.sampled_from(nodes)
        kind = data.draw(st.sampled_from(["one", "two", "pair", "sum", "whole"]))
        if kind == "pair":
            nodes += fold.add("pair", data.draw(node), data.draw(node)).split(2)
        elif kind == "sum":
            rows = data.draw(st.lists(st.one_of(node, st.floats(0, 1)), max_size=4))
            nodes.append(fold.add("sum", data.draw(node), ragged(rows, ())))
        elif kind == "whole":
            nodes.append(fold.add("whole", data.draw(node), data.draw(node).no_batch()))
        else:
            nodes.append(fold.add(kind, *(data.draw(node) for _ in range(1 + (kind == "two")))))
    return fold


@st.composite
def problems(draw):
    """Draw types of calls, of few or of many, and edges from earlier to later ones."""
    count = draw(st.integers(1, 60))
    kinds = draw(st.sampled_from([1, 2, 5, 90]))
    types = np.array(draw(st.lists(st.integers(0, kinds - 1), min_size=count, max_size=count)), np.int64)
    ends = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    pairs = draw(st.lists(ends, max_size=3 * count))
    edges = sorted(((min(a, b), max(a, b)) for a, b in pairs if a != b), key=lambda edge: edge[1])
    return Problem(types, *np.ascontiguousarray(np.array(edges, np.int64).reshape(-1, 2).T))


def heights_of(problem):
    """Return the typed levels of calls counted from the sinks: those of the problem turned round."""
    last = len(problem) - 1
    columns = problem.types, last - problem.readers, last - problem.sources
    turned = Problem(*(np.ascontiguousarray(column[::-1]) for column in columns))
    return np.ascontiguousarray(turned.levels[::-1])
