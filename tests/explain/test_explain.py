"""Why calls did not share a launch, and what shows a schedule: tables, drawings, timelines."""

from __future__ import annotations

import json
import pickle
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import multifold
from multifold._engine.plan.schedule import call_types
from multifold._numpy.backend import NumpyBackend
from multifold.errors import LaunchError, RecordError
from multifold.explain import Difference, Explanation, Reason
from multifold.explain.layout import Layers, arrange
from multifold.explain.picture import MOST_CALLS, colour
from multifold.explain.reasons import ATTRIBUTES, ORDERS
from multifold.explain.rounds import snapshot

SVG = "{http://www.w3.org/2000/svg}"


def plain() -> multifold.Fold:
    return multifold.Fold(backend="numpy")


def why(*nodes: multifold.Node) -> Difference:
    """Return what keeps two nodes of a fold apart, all calls of it scheduled."""
    first, second = nodes
    graph = first._graph
    fold = plain()
    fold._graph = graph
    return fold.explain().why(first, second)


def reasons(fold: multifold.Fold, outputs: Any = None) -> dict[str, Reason]:
    return {reason.cause: reason for reason in fold.explain(outputs).reasons}


def trees(fold: multifold.Fold) -> list[multifold.Node]:
    """Record the trees 1, (2, 3) and ((4, 5), 6): six leaves, two levels of sums."""

    def total(tree: Any) -> multifold.Node:
        if isinstance(tree, int):
            return fold.add("leaf", tree)
        return fold.add("sum", *map(total, tree))

    return [total(tree) for tree in (1, (2, 3), ((4, 5), 6))]


TREES = {"leaf": lambda x: x, "sum": lambda a, b: a + b}


# ---- reasons -------------------------------------------------------------------------------------


def test_calls_that_share_a_launch_are_said_to():
    fold = plain()
    found = why(fold.add("f", 1), fold.add("f", 2))
    assert found.cause == "together" and str(found) == "Calls 0 and 1 share launch 0."


def test_different_ops_are_a_reason():
    fold = plain()
    assert str(why(fold.add("f", 1), fold.add("g", 1))) == "Call 0 is of op 'f' and call 1 of op 'g'."


def test_different_functions_of_one_name_are_a_reason():
    fold = plain()
    nodes = [fold.add(lambda x: x, i) for i in range(3)]
    assert why(*nodes[:2]).cause == "op"
    reason = reasons(fold)["op"]
    assert str(reason) == "3 different functions have this name" and reason.cost == 2


def test_the_number_of_operands_is_a_reason():
    fold = plain()
    found = why(fold.add("f", 1), fold.add("f", 1, 2))
    assert (found.cause, found.values) == ("structure", ("1 operand", "2 operands"))
    assert "multifold.ragged" in reasons(fold)["structure"].hint


def test_the_nesting_of_operands_is_a_reason():
    fold = plain()
    found = why(fold.add("f", [1, 2]), fold.add("f", {"a": 1, "b": 2}))
    assert (found.cause, found.values) == ("structure", ("([x, x])", "({'a': x, 'b': x})"))


def test_the_kind_of_an_operand_is_a_reason():
    fold = plain()
    found = why(fold.add("f", 0, 1), fold.add("f", 0, 1.0))
    assert str(found) == "Calls 0 and 1 of 'f' differ in the kind of operand 1: an int and a float."


def test_the_dtype_of_an_array_is_a_reason():
    fold = plain()
    found = why(*(fold.add("f", np.ones((1, 2), dtype)) for dtype in ("float32", "float64")))
    assert (found.cause, found.where) == ("dtype", "operand 0")
    assert found.values == ("float32", "float64")


def test_the_trailing_shape_of_an_array_is_a_reason():
    fold = plain()
    found = why(*(fold.add("f", [np.ones((1, width))]) for width in (2, 3)))
    assert (found.cause, found.where) == ("shape", "operand 0[0]")
    assert found.values == ("(2,)", "(3,)")


def test_the_row_shape_of_a_ragged_operand_is_a_reason():
    fold = plain()
    found = why(*(fold.add("f", multifold.ragged([], row_shape=shape)) for shape in ((3,), (2,))))
    assert (found.cause, found.values) == ("shape", ("(3,)", "(2,)"))


class Elsewhere(NumpyBackend):
    """NumPy's backend for arrays that know a device."""

    def owns(self, x: Any) -> bool:
        return isinstance(x, SimpleNamespace)

    def signature(self, x: Any) -> Any:
        return x.shape[1:], x.dtype, x.device


def test_the_device_of_an_array_is_a_reason():
    fold = multifold.Fold(backend=Elsewhere)
    array = {"shape": (1, 2), "dtype": np.dtype(float)}
    found = why(*(fold.add("f", SimpleNamespace(**array, device=d)) for d in ("cpu", "gpu:0")))
    assert str(found) == "Calls 0 and 1 of 'f' differ in the device of operand 0: cpu and gpu:0."


def test_a_keyword_is_a_reason_with_its_values():
    fold = plain()
    nodes = [fold.add("f", 1, **static) for static in ({"by": 1}, {"by": 2}, {"by": 2}, {})]
    assert str(why(nodes[0], nodes[1])) == "Calls 0 and 1 of 'f' differ in keyword 'by': 1 and 2."
    text = "keyword 'by' is 1 (1 call), 2 (2 calls), absent (1 call)"
    assert str(reasons(fold)["static"]) == text


def test_a_static_operand_is_a_reason():
    fold = plain()
    found = why(fold.add("f", multifold.static([1])), fold.add("f", multifold.static([2])))
    assert (found.cause, found.where, found.values) == ("static", "operand 0", ("[1]", "[2]"))


def test_values_that_look_alike_are_told_apart():
    fold = plain()
    found = why(*(fold.add("f", multifold.shared(np.ones((2, 3)))) for _ in range(2)))
    text = "an array (2, 3) of float64"
    assert (found.cause, found.values) == ("shared", (text, f"{text} (no. 2)"))


def test_shared_nodes_are_a_reason_and_so_is_that_they_are_read_whole():
    fold = plain()
    tables = [fold.add("table", i) for i in range(2)]
    found = why(*(fold.add("row", table[0].no_batch(), 3) for table in tables))
    assert found.values == ("the result of call 0[0]", "the result of call 1[0]")
    assert "the whole result of call 0 and call 1 is read" in str(why(*tables))
    assert reasons(fold)["whole"].cost == 1


def test_a_result_that_is_asked_for_whole_runs_apart():
    fold = plain()
    one = fold.add("f", 1)
    other = fold.add("f", 2)
    found = fold.explain([[one], other.no_batch()]).why(one, other)
    assert found.cause == "whole" and "the whole result of call 1 is read" in str(found)


def test_needing_the_other_result_is_a_reason():
    fold = plain()
    last = first = fold.add("step", fold.add("begin"))
    for _ in range(3):
        last = fold.add("step", last)
    found = why(last, first)
    assert (found.cause, found.values) == ("level", ("level 1", "level 4"))
    assert str(found).endswith("call 4 needs the result of call 1, through 2 other calls.")


def test_different_levels_are_a_reason_without_needing_each_other():
    fold = plain()
    _, low, high = trees(fold)
    found = why(low, high)
    assert found.cause == "level"
    assert str(found) == (
        "Calls 3 and 8 of 'sum' do not need each other, but are at levels 1 and 2 of their type: "
        "in launch 1, call 8 still waited for call 6 of 'sum'."
    )


def test_rows_that_turned_out_to_differ_are_a_reason(fold, array, column):
    pair = array([[0.0, 0.0]])
    ops = {"narrow": column, "wide": lambda x: column(x) + pair}
    model = ops | dict.fromkeys("fg", lambda x: x)
    nodes = [fold.add("g", fold.add("f", fold.add(op, 1))) for op in ("narrow", "wide", "narrow")]
    fold.apply(model, [nodes[::2], [nodes[1]]])
    explanation = fold.explain()
    found = explanation.why(nodes[0], nodes[1])
    assert (found.cause, found.where) == ("divided", "operand 0")
    assert [value.split()[0] for value in found.values] == ["(1,)", "(2,)"]
    assert explanation.why(nodes[0], nodes[2]).cause == "together"
    assert explanation.divisions >= 1
    assert (len(explanation), explanation.lower_bound) == (6, 6)
    assert explanation.schedule.lower_bound == 4
    assert "lower bound 6 (4 before shapes were known): optimal" in str(explanation)


def test_the_order_of_a_schedule_is_a_reason():
    fold = multifold.Fold(backend="numpy", schedule="depth")
    outputs = [fold.add("out", tree) for tree in trees(fold)]
    explanation = fold.explain([outputs])
    found = explanation.why(outputs[0], outputs[2])
    assert found.cause == "order"
    assert "order of the schedule ('depth') alone: in launch" in str(found)
    (reason,) = [r for r in explanation.reasons if r.op == "out"]
    assert (reason.cause, reason.cost) == ("order", 2) and 'schedule="auto"' in reason.hint


@pytest.mark.parametrize(
    ("policy", "hint"), [("auto", "takes 2 to 13 µs a call"), ("search", "nothing to do")]
)
def test_the_hint_of_an_order_is_a_remedy_and_its_price(policy, hint):
    assert hint in ORDERS[policy]


def test_a_hint_is_printed_once():
    fold = plain()
    for by in (1, 2):
        fold.add("f", 1, by=by)
        fold.add("g", 1, by=by)
    text = str(fold.explain())
    assert text.count("keyword 'by' is") == 2 and text.count("hint: pass a number") == 1


def test_a_text_that_selects_a_module_is_nothing_to_change():
    fold = multifold.Fold(backend="numpy")
    for name, by in [("find", 1), ("count", 1), ("find", 2)]:
        fold.add("run", 1.0, module=name, by=by)
    hints = {reason.where: reason.hint for reason in fold.explain().reasons}
    assert hints["keyword 'module'"].endswith("different modules: nothing to do")
    assert hints["keyword 'by'"] == "pass a number that varies as an operand, not as static"


def test_what_a_reason_costs_is_what_the_bound_loses_by_it():
    fold = plain()
    for by in (1, 2):
        node = fold.add("step", 0.0, by=by)
        for _ in range(4):
            node = fold.add("step", node, by=by)
    assert fold.explain().lower_bound == 10
    found = {(reason.cause, reason.cost) for reason in fold.explain().reasons}
    assert found == {("static", 5), ("kind", 0), ("level", 6)}


def test_a_node_of_another_fold_is_refused():
    fold = plain()
    node = fold.add("f", 1)
    stranger = plain().add("f", 1)
    with pytest.raises(RecordError, match="another fold"):
        fold.explain().why(node, stranger)


def test_a_call_that_is_not_needed_is_refused():
    fold = plain()
    node = fold.add("f", 1)
    unneeded = fold.add("f", 2)
    with pytest.raises(RecordError, match="Received call 1"):
        fold.explain(node).why(node, unneeded)


# ---- figures -------------------------------------------------------------------------------------


def test_attributes_tell_the_types_of_the_schedule_apart(graph):
    fold = plain()
    outputs = graph(fold, batch=2)
    explanation = fold.explain([outputs])
    types = call_types(explanation.columns, explanation.alone)[explanation.calls]
    pairs = set(zip(types.tolist(), explanation.varieties.number.tolist(), strict=True))
    assert len(pairs) == len(set(types.tolist())) == len(explanation.varieties.values)
    assert explanation.lower_bound == explanation.schedule.lower_bound
    alone = sum(op.lower_bound for op in explanation.ops)
    assert alone == explanation.problem.lower_bound <= explanation.lower_bound
    assert sum(op.launches for op in explanation.ops) == len(explanation)


def test_the_table_of_a_known_graph():
    fold = plain()
    trees(fold)
    assert str(fold.explain()).splitlines() == [
        "3 launches of 9 calls, lower bound 3: optimal (auto), 3.0 rows a launch",
        "",
        "op    calls  launches  bound  rows  mean  shapes",
        "leaf      6         1      1     6   6.0       1",
        "sum       3         2      2   1-2   1.5       2",
        "",
        "What keeps calls of one op apart, and the launches that it costs",
        "sum  1  up to 2 levels: calls wait for others of their type",
        "",
        "1 launch of one row: 2 of sum",
    ]


def test_a_fold_without_calls_is_explained():
    explanation = plain().explain()
    assert str(explanation).startswith("0 launches of 0 calls")
    assert ElementTree.fromstring(explanation.to_svg()).tag == f"{SVG}svg"


def test_launches_of_one_row_are_listed():
    fold = plain()
    trees(fold)
    (launch,) = fold.explain().single_rows
    assert (launch.number, launch.op, launch.level) == (2, "sum", 2)
    assert launch.site.startswith(__file__)


def test_shapes_are_counted_by_rows_and_not_by_shared_values():
    fold = plain()
    for table in (np.ones(2), np.zeros(2)):
        node = fold.add("f", multifold.shared(table), 1)
        fold.add("f", multifold.shared(table), node)
    assert [op.shapes for op in fold.explain().ops] == [2]  # a number, and a node, with one row


def test_rows_of_ragged_operands_count_as_shapes():
    fold = plain()
    node = fold.add("f", multifold.ragged([1, 2]))
    fold.add("f", multifold.ragged([node]))
    assert fold.explain().shapes == 2


def test_a_backend_that_compiles_by_size_is_told_how_often():
    fold = plain()
    trees(fold)
    explanation = fold.explain()
    assert "compiles" not in str(explanation)
    compiling = str(replace(explanation, backend="jax", pads=True))
    assert "jax compiles what runs eagerly once for each shape: 3 shapes here" in compiling


# ---- after a run ---------------------------------------------------------------------------------


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


# ---- drawings ------------------------------------------------------------------------------------


@pytest.fixture
def drawn(graphs) -> Callable[[str, int], Explanation]:
    """Return a function that explains a minibatch of random graphs, which multifold-bench draws."""

    def drawn(name: str, batch: int) -> Explanation:
        fold = plain()
        outputs = graphs[name](fold, batch=batch)
        return fold.explain([outputs])

    return drawn


def boxes(svg: str) -> list[tuple[float, float, str]]:
    """Return the place and the colour of each box of a drawing."""
    found = ElementTree.fromstring(svg).iter(f"{SVG}rect")
    return [
        (float(box.get("x")), float(box.get("y")), box.get("fill"))
        for box in found
        if box.get("class") == "box"
    ]


def test_a_drawing_has_a_box_for_each_call_and_a_colour_and_column_for_each_launch(drawn):
    explanation = drawn("synthetic", 3)
    found = boxes(explanation.to_svg())
    rows = sorted(len(launch) for launch in explanation.launches)
    for what in (0, 2):  # column, colour
        assert sorted(Counter(box[what] for box in found).values()) == rows
    assert len({(x, fill) for x, _, fill in found}) == len(explanation)
    assert len({(x, y) for x, y, _ in found}) == len(explanation.calls)


def test_a_drawing_has_an_arrow_from_each_operand_to_its_reader(drawn):
    explanation = drawn("synthetic", 2)
    tips = explanation.to_svg().count("marker-end")
    sources, readers = explanation.columns.edges
    assert tips == len(set(zip(sources.tolist(), readers.tolist(), strict=True)))


def test_a_drawing_names_op_launch_and_line_of_each_call():
    fold = plain()
    trees(fold)
    svg = fold.explain().to_svg()
    assert re.search(r"<title>call 8 of sum, launch 2, recorded at test_explain\.py:\d+</title>", svg)
    assert "2 sum, 1 row" in " ".join("".join(ElementTree.fromstring(svg).itertext()).split())


@pytest.mark.parametrize("rows", [1, 200])
def test_a_drawing_names_the_static_arguments_that_differ(rows):
    fold = plain()
    for kernel in (3, 5):
        for x in range(rows):
            fold.add("relu", fold.add("pool", x, kernel=kernel, stride=2), slope=0)
    explanation = fold.explain()
    for text in (explanation.to_svg(), explanation.to_dot(), explanation.to_mermaid()):
        assert "pool(kernel=3)" in text and "pool(kernel=5)" in text
        assert "relu" in text and "relu(" not in text and "stride" not in text


def written(svg):
    """Return the texts of a drawing without what only the mouse shows."""
    return [x.text for x in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize(("kernels", "said"), [(3, "conv(kernel=1)"), (13, "(kernel=1) 60")])
def test_lanes_or_boxes_of_a_large_drawing_name_the_static_arguments_that_differ(kernels, said):
    fold = plain()
    for x in range(60):
        for i in range(14):
            x = fold.add("relu", fold.add("conv", x, kernel=i % kernels, stride=2))
    explanation = fold.explain()
    assert explanation.picture.unit == "launch"
    assert said in written(explanation.to_svg())


def test_names_of_ops_are_escaped():
    fold = plain()
    fold.add(lambda x: x, 1)
    explanation = fold.explain()
    assert "".join(ElementTree.fromstring(explanation.to_svg()).itertext()).count("<lambda>") >= 2
    assert '"<lambda>"' in explanation.to_dot()
    assert '"#lt;lambda#gt;"' in explanation.to_mermaid()


def test_trees_are_drawn_without_crossings(drawn):
    picture = drawn("synthetic", 1).picture
    column = {box.number: box.launch for box in picture.boxes}
    layers = Layers(column, [(arrow.source, arrow.target) for arrow in picture.arrows])
    assert layers.crossings() == 0


def test_sweeps_take_crossings_away():
    layers = Layers({0: 0, 1: 0, 2: 1, 3: 1}, [(0, 3), (1, 2)])
    layers.rows = {0: [0, 1], 1: [2, 3]}
    assert layers.crossings() == 1
    layers.untangle()
    assert layers.crossings() == 0


@pytest.mark.parametrize("name", ["synthetic", "early-exit", "grid", "lattice"])
def test_boxes_of_a_column_do_not_overlap_and_arrows_do_not_pass_through_them(name, drawn):
    explanation = drawn(name, 1)
    launch = explanation.launch_of
    column = {call: int(launch[call]) for call in explanation.calls.tolist()}
    sources, readers = explanation.columns.edges
    heights, bends = arrange(column, list(zip(sources.tolist(), readers.tolist(), strict=True)))
    for at in set(column.values()):
        here = sorted(heights[call] for call in column if column[call] == at)
        assert all(b - a > 0.999 for a, b in pairwise(here))
        passing = {height for stops in bends.values() for x, height in stops if x == at}
        assert all(abs(a - b) > 0.7 for a in here for b in passing)


def test_examples_are_drawn_below_each_other():
    heights, _ = arrange({0: 0, 1: 0, 2: 1, 3: 1}, [(0, 2), (1, 3)])
    assert max(heights[0], heights[2]) < min(heights[1], heights[3])


def test_large_graphs_are_drawn_by_launch(drawn):
    explanation = drawn("synthetic", 64)
    assert len(explanation.calls) > MOST_CALLS
    assert explanation.picture.unit == "launch"
    assert len(boxes(explanation.to_svg())) == len(explanation)
    assert sum(arrow.rows for arrow in explanation.picture.arrows) == len(explanation.columns.edges[0])


def test_very_large_graphs_are_drawn_without_arrows(drawn):
    svg = drawn("nested-rnn", 2).to_svg()
    assert "arrows are left out" in svg and 'class="arrow' not in svg


def test_colours_are_told_apart():
    assert len({colour(number) for number in range(40)}) == 40


def test_the_drawing_for_graphviz_has_all_calls_and_arrows(drawn):
    explanation = drawn("synthetic", 2)
    dot = explanation.to_dot()
    assert dot.startswith("digraph schedule {") and dot.count("{") == dot.count("}")
    assert len(re.findall(r"\bn\d+ \[label=", dot)) == len(explanation.calls)
    assert len(re.findall(r"^  n\d+ -> n\d+$", dot, re.M)) == len(explanation.picture.arrows)
    assert len(set(re.findall(r'fillcolor="(#\w+)"', dot))) == len(explanation)


def test_the_drawing_for_mermaid_has_all_calls_and_arrows(drawn):
    explanation = drawn("synthetic", 2)
    chart = explanation.to_mermaid()
    assert chart.count(":::launch") == len(explanation.calls)
    assert chart.count(" --> ") == len(explanation.picture.arrows)
    assert chart.count("classDef") == chart.count("subgraph") == len(explanation)


def test_mermaid_gets_no_more_arrows_than_it_draws(drawn):
    explanation = drawn("nested-rnn", 2)
    chart = explanation.to_mermaid()
    assert chart.count(" -->|") == 500 < len(explanation.picture.arrows)
    assert "with fewer rows left out" in chart


class Tags(HTMLParser):
    """Checks that all tags of a page are closed in order."""

    VOID = ("meta", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: Counter[str] = Counter()

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen[tag] += 1
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_embeds_the_drawing_and_the_tables(fold):
    fold.apply(TREES, [trees(fold)])
    page = fold.explain().to_html()
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert tags.seen["svg"] == 1
    assert tags.seen["table"] == 4  # ops, reasons, time, launches
    assert "src=" not in page and "href=" not in page


def test_drawings_and_tables_are_the_same_for_the_same_recording(drawn):
    first = drawn("sst-two-cells", 4)
    second = drawn("sst-two-cells", 4)
    for show in (str, Explanation.to_svg, Explanation.to_dot, Explanation.to_mermaid):
        assert show(first) == show(second)


# ---- what was recorded ---------------------------------------------------------------------------


def test_a_small_fold_prints_its_calls():
    fold = plain()
    pair = fold.add("leaf", 7).split(2)
    fold.add("mix", [pair[0], 1.5], multifold.ragged([pair[1], 2]), pair[0].no_batch(), by=True)
    assert str(fold).splitlines() == [
        "<Fold of 2 calls, backend 'numpy'>",
        "0  leaf(7)",
        "1  mix([0[0], 1.5], ragged([0[1], 2]), 0[0].no_batch(), by=True)",
    ]


def test_a_large_fold_prints_how_many_calls_of_each_op_it_has():
    fold = plain()
    for i in range(1200):
        fold.add("f", fold.add("leaf", i) if i % 2 else i)
    assert str(fold).splitlines()[1:] == ["f: 1,200 calls", "leaf: 600 calls"]


# ---- the page for readers ------------------------------------------------------------------------


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "explain.md").read_text()


@pytest.mark.parametrize(
    ("program", "printed"), re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
)
def test_programs_on_the_page_print_what_stands_below_them(program, printed, capsys):
    exec(compile(program, "explain.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == printed


def test_the_page_names_all_kinds_of_reasons():
    named = re.findall(r"^\| ((?:`\w+`,? ?)+) \|", PAGE.partition("## Reasons")[2], re.MULTILINE)
    assert {*ATTRIBUTES, "level", "order"} <= set(re.findall(r"\w+", " ".join(named)))


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


# ---- runs of a function, of traces, and after a check ----------------------------------------------

STEPS = {"leaf": lambda x: x * 2, "step": lambda x: x + 1}


def chain(fold, n):
    """Record one leaf that nothing needs, and a chain of n steps."""
    fold.add("leaf", 7.0)
    node = fold.add("leaf", float(n))
    for _ in range(n):
        node = fold.add("step", node)
    return node


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


def test_launches_say_which_calls_they_run():
    fold = plain()
    _ = [fold.add("f", i) for i in range(9)]
    assert ">0, 1, 2, 3, 4, 5 and 3 more</td>" in fold.explain().to_html()
    for i in range(MOST_CALLS):
        fold.add("f", i)
    assert "calls 0, 1, 2, 3, 4, 5 and 243 more, first recorded" in fold.explain().to_svg()


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


# ---- plain programs ------------------------------------------------------------------------------


def join(a, b):
    return np.tanh(a + b)


def total_of(tree):
    return np.add(join(*map(total_of, tree)), 1) if isinstance(tree, tuple) else np.full(2, 1.0 * tree)


@pytest.fixture
def plain_explanation():
    run = multifold.batched(total_of, ops=[join], backend="numpy")
    run([(0, 1), ((1, 2), 3)])
    return run.explain()


def test_calls_of_plain_programs_are_told_apart_by_their_ops_first(plain_explanation):
    assert str(plain_explanation.why(0, 1)) == "Call 0 is of op 'join' and call 1 of op 'add'."
    assert plain_explanation.why(0, 2).cause == "together"
    assert plain_explanation.why(0, 4).cause == "source"


def test_values_are_told_apart_among_the_calls_of_one_op_alone():
    fold = plain()
    keywords = [object(), object()]
    for op in "fg":
        fold.add(op, 1, by=keywords[0])
    fold.add("g", 1, by=keywords[1])
    (reason,) = fold.explain().reasons
    assert str(reason) == "keyword 'by' is an object (1 call), an object (no. 2) (1 call)"


def test_explanations_of_plain_programs_are_explanations(plain_explanation):
    assert isinstance(plain_explanation, Explanation)
    assert plain_explanation.rounds == (plain_explanation.explanation,)
    assert plain_explanation.glue == [] and len(plain_explanation.slow) == 1
    lines = plain_explanation.listing().splitlines()
    assert [line[:7] for line in lines[:2]] == ["0  join", "1  add("]


@multifold.op
def more(x):
    return x + 1


@multifold.op
def twice(x):
    return x * 2


def test_a_plain_program_is_not_told_to_pass_a_schedule():
    def grown(steps):
        return reduce(lambda x, step: step(x), steps, np.ones(2))

    run = multifold.batched(grown, backend="numpy")
    run([[more, more, twice, twice], [twice, twice, more, more]])
    orders = [reason for reason in run.explain().reasons if reason.cause == "order"]
    assert orders and not any(reason.hint for reason in orders)
    assert "schedule=" not in str(run.explain())
