"""Explanations of runs with rounds: one schedule, reasons and times across the rounds."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from xml.etree import ElementTree

import numpy as np
import pytest
from explained import STEPS, SVG, chain

import multifold
from multifold.errors import RecordError
from multifold.explain import Explanation
from multifold.explain.picture import MOST_CALLS
from multifold.explain.rounds import snapshot


def test_a_run_of_a_function_without_await_is_explained_in_full():
    fold = multifold.Fold(backend="numpy")
    nodes = []

    def record(fold, n):
        nodes.append(chain(fold, n))
        return nodes[-1]

    fold.run(STEPS, [1, 2, 2], record)
    explanation = fold.explain()
    assert isinstance(explanation, Explanation) and explanation.rounds == (explanation,)
    assert [len(launch) for launch in explanation.launches] == [3, 3, 2]
    assert explanation.why(nodes[1], nodes[2]).cause == "together"
    assert explanation.why(nodes[0], nodes[1]).cause == "level"
    assert "record" in explanation.seconds and "<svg" in explanation.to_svg()
    with pytest.raises(RecordError, match="Received call 0"):
        explanation.why(multifold.Node(fold._graph, 0), nodes[0])


def test_rounds_have_times_and_tell_why():
    fold = multifold.Fold(backend="numpy")
    nodes = []

    async def record(fold, n):
        await fold.value(first := fold.add("leaf", n))
        nodes.append(first)
        return fold.add("step", first)

    fold.run(STEPS, [1.0, 2.0, 3.0], record)
    explanation = fold.explain()
    head, *rows = str(explanation).splitlines()[2:]
    assert head.endswith("record ms  run ms") and len(rows) == len(explanation.rounds) == 2
    assert all(re.search(r"\d\.\d\d +\d+\.\d\d$", row) for row in rows)
    assert explanation.rounds[0].why(nodes[0], nodes[2]).cause == "together"


@pytest.fixture
def rounds():
    """Two examples that double a number until it is large: rounds of two, two, one and two calls."""

    async def until(fold, x):
        while await fold.value(x := fold.add("double", x)) < 20:
            pass
        return fold.add("result", x)

    fold = multifold.Fold(backend="numpy")
    fold.run({"double": lambda x: 2 * x, "result": lambda x: -x}, [4, 6], until)
    return fold.explain()


def test_rounds_are_looked_at_together_as_one_schedule(rounds):
    assert [launch.calls.tolist() for launch in rounds.launches] == [[0, 1], [2, 3], [4], [5, 6]]
    assert [(op.name, op.calls, op.launches) for op in rounds.ops] == [("double", 5, 3), ("result", 2, 1)]
    assert rounds.lower_bound == sum(part.lower_bound for part in rounds.rounds) == 4
    assert rounds.listing().splitlines()[-1] == "6  result(4)"


def test_why_is_told_across_rounds(rounds):
    assert rounds.why(2, 3).cause == "together"
    assert rounds.why(2, 4).cause == "level"
    assert rounds.why(4, 6).cause == "op"


def test_times_of_rounds_add_up(rounds):
    assert rounds.run.notes.seconds() == pytest.approx(rounds.seconds)
    assert len(json.loads(rounds.timeline_json())["traceEvents"]) > 4 * len(rounds)


@pytest.mark.parametrize("most_calls", [MOST_CALLS, 1])
def test_a_drawing_shows_where_rounds_begin(rounds, most_calls, monkeypatch):
    monkeypatch.setattr("multifold.explain.picture.MOST_CALLS", most_calls)
    drawn = ElementTree.fromstring(rounds.to_svg())
    named = [x.text for x in drawn.iter(f"{SVG}text") if (x.text or "").startswith("round")]
    assert named == ["round 0", "round 1", "round 2", "round 3"]
    assert "round" not in {x.text for x in ElementTree.fromstring(rounds.rounds[0].to_svg()).iter()}


def test_rounds_of_several_recordings_cannot_be_looked_at_together(rounds):
    other = multifold.Fold(backend="numpy")
    other.run({"f": lambda x: x}, [1], lambda fold, x: fold.add("f", x))
    several = type(rounds).of([*rounds.reports, other.explain().run])
    assert len(several) == 5 and str(several).startswith("5 rounds, 5 launches of 8 calls")
    with pytest.raises(RecordError, match=r"Received 5 rounds of 2\."):
        several.to_svg()


def test_a_launch_that_is_divided_in_a_later_round_says_why():
    async def fn(fold, x):
        first = fold.add("first", x)
        await fold.value(fold.add("probe", first))
        return fold.add("sum", fold.add("wide" if x > 1 else "narrow", first))

    model = {
        "first": lambda x: x,
        "probe": lambda x: x,
        "wide": lambda x: np.ones((len(x), 5)),
        "narrow": lambda x: np.ones((len(x), 2)),
        "sum": lambda x: x.sum(1),
    }
    fold = multifold.Fold(backend="numpy")
    fold.run(model, [0.5, 1.0, 2.0], fn)
    last = fold.explain().rounds[-1]
    assert last.divisions == 1
    assert "the rows of operand 0 turned out to be (2,) float64 (2 calls), (5,) float64 (1 call)" in str(
        last
    )


def test_another_thread_may_record_while_rounds_are_explained():
    """As the thread of a server does: a column that NumPy reads could not grow."""
    fold = multifold.Fold(backend="numpy")
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(1) as pool:
            recording = pool.submit(lambda: [fold.add("f", fold.add("f", 1.0)) for _ in range(200_000)])
            while not recording.done():
                columns = snapshot(fold._graph)
                assert columns.starts("refs")[-1] <= len(columns.refs)
                assert columns.starts("floats")[-1] <= len(columns.floats)
    finally:
        sys.setswitchinterval(before)
    assert len(recording.result()) == 200_000
