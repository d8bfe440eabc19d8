"""Why calls did not share a launch: each reason by name, with what it costs and what to change."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from explained import plain, trees

import multifold
from multifold._numpy.backend import NumpyBackend
from multifold.errors import RecordError
from multifold.explain import Difference, Reason
from multifold.explain.reasons import ORDERS


def why(*nodes: multifold.Node) -> Difference:
    """Return what keeps two nodes of a fold apart, all calls of it scheduled."""
    first, second = nodes
    graph = first._graph
    fold = plain()
    fold._graph = graph
    return fold.explain().why(first, second)


def reasons(fold: multifold.Fold, outputs: Any = None) -> dict[str, Reason]:
    return {reason.cause: reason for reason in fold.explain(outputs).reasons}


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
