"""The figures of an explanation: launches, rows, shapes, and what a fold prints of its calls."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from explained import SVG, plain, trees

import multifold
from multifold._engine.plan.schedule import call_types
from multifold.explain.picture import MOST_CALLS
from multifold.explain.reasons import ATTRIBUTES


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
    assert launch.site.startswith(trees.__code__.co_filename)


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


def test_launches_say_which_calls_they_run():
    fold = plain()
    _ = [fold.add("f", i) for i in range(9)]
    assert ">0, 1, 2, 3, 4, 5 and 3 more</td>" in fold.explain().to_html()
    for i in range(MOST_CALLS):
        fold.add("f", i)
    assert "calls 0, 1, 2, 3, 4, 5 and 243 more, first recorded" in fold.explain().to_svg()
