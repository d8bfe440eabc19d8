"""Drawings of a schedule: boxes, arrows, colours and names, for a page, Graphviz and Mermaid."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from explained import SVG, TREES, plain, trees

from multifold.explain import Explanation
from multifold.explain.layout import Layers, arrange
from multifold.explain.picture import MOST_CALLS, colour


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
    assert re.search(r"<title>call 8 of sum, launch 2, recorded at explained\.py:\d+</title>", svg)
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
