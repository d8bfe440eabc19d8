"""Compiled merging and cutting of traces do what their references do, and refuse damaged integers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_references import merging, with_references

from multifold import ragged, trace, traces
from multifold._engine import compiled
from multifold._engine.traces.minibatch import Merger

pytestmark = pytest.mark.skipif(not compiled.in_use, reason=compiled.state())


def merged(traces):
    """Return all that merging finds out about some traces."""
    merger = Merger(traces)
    merger.columns()
    return [merger.calls, *merger.integers.values(), *merger.results, list(merger.sizes.items())]


def merged_alike(traces):
    got = merged(traces)
    expected = with_references(merged, traces)
    for one, other in zip(expected, got, strict=True):
        np.testing.assert_array_equal(other, one)
    return got


def test_every_graph_is_merged_alike(graph):
    merged_alike([trace(graph.record, x) for x in graph.examples(batch=6)])


def words(fold, word):
    """Record a call for each letter: ``r`` reads all that are there, ``w`` shares one, ``p`` has parts."""
    nodes = [fold.add("begin", len(word))]
    for letter in word:
        if letter == "r":
            nodes.append(fold.add("sum", ragged([*nodes, 0.5])))
        elif letter == "w":
            nodes.append(fold.add("whole", nodes[-1].no_batch(), nodes[0]))
        elif letter == "p":
            nodes += fold.add("pair", nodes[-1]).split(2)
        else:
            nodes.append(fold.add(letter, nodes[-1], nodes[len(nodes) // 2]))
    return {"last": nodes[-1], "all": nodes, "number": [7, nodes[0]]}


@given(st.lists(st.text("abcrp", max_size=8), min_size=1, max_size=6), st.booleans())
@settings(deadline=None, max_examples=60)
def test_random_traces_are_merged_alike(texts, shared):
    merged_alike([trace(words, text + "w" * shared) for text in texts])


@given(st.lists(st.text("abcrpw", max_size=8), min_size=1, max_size=6))
@settings(deadline=None, max_examples=60)
def test_random_examples_are_cut_alike(texts):
    found, expected = (run(lambda: traces(words, texts)) for run in (lambda f: f(), with_references))
    for one, other in zip(found, expected, strict=True):
        assert (one, one.lines.tolist()) == (other, other.lines.tolist())


@pytest.mark.parametrize("value", [-5, 1 << 39, 1 << 50])
def test_a_broken_trace_is_refused_or_does_no_harm(value):
    right = trace(words, "arbp")
    refused = 0
    for place in range(len(right.integers)):
        broken = trace(words, "arbp")
        broken.integers[place] = value
        try:
            Merger([right, broken]).columns()
        except IndexError:
            refused += 1
    assert refused > len(right.integers) / 2  # not the numbers, and what only makes other launches


def merged_or_refused(merge, arguments):
    """Return all that merging returns, with the dtypes, or nothing where it refuses."""
    try:
        calls, sizes, columns = merge(*arguments)
    except IndexError:
        return None
    return [(x.tolist(), str(x.dtype)) for x in (calls, sizes, *columns)]


def arguments_of_merge(*texts):
    """Return what merging is called with for traces of some words."""
    found = []
    with pytest.MonkeyPatch.context() as patch:
        merge = compiled.merge
        patch.setattr(compiled, "merge", lambda *arguments: found.append(arguments) or merge(*arguments))
        Merger([trace(words, text) for text in texts])
    return list(found[0])


NEIGHBOURS = (-(1 << 40), -2, -1, 1, 2, 1 << 40)
"""How much a number changes: with 1 << 40 a reference is to the next part of a result."""
LIMITS = (-1, 0, 1, 1 << 40, (1 << 40) + 1, 1 << 41)


@pytest.mark.parametrize("texts", [("rp",), ("ap", "par"), ("", "rpr", "wp")], ids=str)
@pytest.mark.parametrize("argument", [0, 1], ids=["integers", "signatures"])
def test_a_changed_integer_is_merged_or_refused_alike(argument, texts):
    right = arguments_of_merge(*texts)
    assert merged_or_refused(merging.merge, right) == merged_or_refused(compiled.merge, right) is not None
    refused = 0
    for place, value in enumerate(right[argument].tolist()):
        for other in (*(value + more for more in NEIGHBOURS), *LIMITS):
            changed = right[argument].copy()
            changed[place] = other
            arguments = [changed if n == argument else x for n, x in enumerate(right)]
            found = merged_or_refused(merging.merge, arguments)
            assert found == merged_or_refused(compiled.merge, arguments), (place, value, other)
            refused += found is None
    assert refused


def test_a_trace_that_is_cut_short_is_refused():
    made = trace(words, "ab")
    object.__setattr__(made, "integers", made.integers[:-1])
    with pytest.raises(IndexError, match="what is not there"):
        Merger([made])
