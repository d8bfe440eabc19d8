"""Explanations after a run: times by phase, timelines, names in a profiler, and runs of traces."""

from __future__ import annotations

import json
import pickle
import re
import time
from typing import Any

import numpy as np
import pytest
from explained import STEPS, TREES, chain, plain, trees

import multifold
from multifold._numpy.backend import NumpyBackend
from multifold.errors import LaunchError, RecordError


def test_after_a_run_the_time_is_split_by_phase(fold):
    fold.apply(TREES, [trees(fold)])
    explanation = fold.explain()
    phases = ["record", "plan", "wiring", "upload", "gather", "op"]
    assert list(explanation.seconds) == phases
    assert all(seconds >= 0 for seconds in explanation.seconds.values())
    assert re.search(rf" ms on {fold._backend.name}; no launch was divided$", str(explanation), re.M)


def test_before_a_run_there_are_no_times():
    fold = plain()
    outputs = trees(fold)
    assert fold.explain([outputs]).seconds == {}


def test_outputs_that_were_run_last_are_explained_with_their_times():
    fold = plain()
    outputs = trees(fold)
    fold.apply(TREES, [outputs])
    assert fold.explain([outputs]).run is fold.explain().run is not None
    assert fold.explain(outputs[1]).run is None


def test_calls_recorded_since_the_last_run_are_explained():
    fold = plain()
    fold.apply(TREES, [trees(fold)])
    new = fold.add("leaf", 1)
    assert fold.explain().run is None
    assert fold.explain().why(new, 0).cause == "together"


def test_a_run_that_failed_is_not_explained():
    fold = plain()
    outputs = trees(fold)
    fold.apply(TREES, [outputs])
    with pytest.raises(LaunchError):
        fold.apply(TREES | {"sum": None}, [outputs])
    assert fold.explain().run is None


def test_the_time_of_a_run_is_divided_among_these_phases():
    fold = multifold.Fold(backend="numpy")
    nodes = [fold.add("f", fold.add("f", np.ones((1, width)))) for width in (2, 3)]
    fold.apply({"f": lambda x: x}, [[node] for node in nodes])
    seconds = fold.explain().seconds
    assert {*seconds} <= {"record", "plan", "wiring", "upload", "gather", "op", "verify"}
    assert all(0 <= spent < 60 for spent in seconds.values())


def test_traces_that_were_run_are_explained(fold):
    def record(fold, x):
        return fold.add("double", fold.add("double", x))

    traces = [multifold.trace(record, x) for x in (1.0, 2.0)]
    fold.run({"double": lambda x: 2 * x}, traces)
    explanation = fold.explain()
    assert [launch.calls.tolist() for launch in explanation.launches] == [[0, 2], [1, 3]]
    assert explanation.why(0, 2).cause == "together"
    assert explanation.why(0, 3).cause == "kind"
    assert explanation.launches[0].site.endswith("(trace 0)")


def test_the_timeline_of_a_run_is_a_chrome_trace(fold):
    fold.apply(TREES, [trees(fold)])
    explanation = fold.explain()
    events = json.loads(explanation.timeline_json())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in complete)
    assert {event["ph"] for event in events} == {"X", "M"}
    assert {x["name"] for x in complete if x["tid"] == 0} == {"record", "plan", "wiring", "upload"}
    launches = [event for event in complete if event["args"]]
    assert [event["name"] for event in launches] == ["leaf (6 rows)", "sum (2 rows)", "sum (1 row)"]
    assert [event["args"]["rows"] for event in launches] == [6, 2, 1]
    assert [event["args"]["level"] for event in launches] == [1, 1, 2]
    ends = [event["ts"] + event["dur"] for event in launches]
    assert all(end <= event["ts"] + 1e-3 for end, event in zip(ends, launches[1:], strict=False))


def test_the_timeline_is_written_to_a_file(tmp_path):
    fold = plain()
    fold.apply(TREES, [trees(fold)])
    fold.explain().write_timeline(tmp_path / "run.json")
    assert json.loads((tmp_path / "run.json").read_text())["displayTimeUnit"] == "ms"


def test_what_was_not_run_has_no_timeline():
    fold = plain()
    trees(fold)
    with pytest.raises(RecordError, match="not run"):
        fold.explain().timeline_json()


class Labelled(NumpyBackend):
    """NumPy's backend with a profiler that keeps the names of its ranges."""

    labels: list[str] = []  # noqa: RUF012 - a backend has no state of its own

    def profile(self, label: str) -> Any:
        self.labels.append(label)
        return super().profile(label)


def test_launches_are_named_in_the_profiler_only_if_asked():
    expected = ["leaf (6 rows)", "sum (2 rows)", "sum (1 row)"]
    for options, labels in (({}, []), ({"profile": True}, expected)):
        Labelled.labels.clear()
        fold = multifold.Fold(backend=Labelled, **options)
        fold.apply(TREES, [trees(fold)])
        assert Labelled.labels == [f"multifold: {label}" for label in labels]


def test_a_profiled_fold_computes_the_same(backend, equal):
    fold = multifold.Fold(backend=backend, profile=True)
    equal(fold.apply(TREES, [trees(fold)])[0], [1, 5, 15])


def test_the_phases_of_a_plan_end_where_its_run_begins(fold):
    """However long before the plan was made: a timeline shows no gap."""
    fold.apply({"f": lambda x: x}, fold.add("f", 1.0))
    notes = fold.explain().run.notes
    phases = notes.phases()[:3]
    assert [span.phase for span in phases] == ["record", "plan", "wiring"]
    assert phases[0].begin < phases[-1].end <= notes.times[0].begin


def test_the_time_of_recording_begins_with_the_first_call(fold):
    fold._graph.began = -1000.0  # as if the fold had been made long ago
    fold.apply({"f": lambda x: x}, [fold.add("f", float(i)) for i in range(3)])
    assert 0 < fold.explain().seconds["record"] < 60


def test_a_pickled_fold_knows_the_line_of_each_call():
    fold = multifold.Fold(backend="numpy")
    fold.add("f", 1)
    fold.add("f", 1)
    first = test_a_pickled_fold_knows_the_line_of_each_call.__code__.co_firstlineno
    assert [line for _, line in pickle.loads(pickle.dumps(fold))._graph.lines()] == [first + 2, first + 3]


def test_a_run_of_traces_is_scheduled_and_explained():
    fold = multifold.Fold(backend="numpy")
    traces = multifold.traces(chain, [1, 2, 2])
    fold.run(STEPS, traces)
    assert [len(launch) for launch in fold.schedule().launches] == [3, 3, 2]
    assert fold.explain().run is not None and len(fold.explain()) == 3
    assert len(fold.schedule(traces)) == len(fold.explain(multifold.merge(traces))) == 3


def test_what_a_check_computes_is_not_recording():
    fold = multifold.Fold(backend="numpy")
    nodes = [fold.add("slow", float(i)) for i in range(5)]
    model = {"slow": lambda x: time.sleep(0.02) or x}
    fold.check(model, [nodes])
    assert fold.explain().seconds["record"] < 0.1
    nodes.append(fold.add("slow", 5.0))
    fold.apply(model, [nodes])
    assert fold.explain().seconds["record"] < 0.1


def test_traces_that_were_never_run_say_where_they_were_recorded():
    found = multifold.Fold(backend="numpy").explain(multifold.traces(chain, [1, 2]))
    assert found.launches[0].site.endswith("(trace 0)")
