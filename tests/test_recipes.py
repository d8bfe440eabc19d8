"""The programs on the pages of docs/ run as they stand, and print what they say they print.

A program that imports a framework runs where that framework is the backend under test.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = (
    "recipes.md",
    "migration.md",
    "await.md",
    "plain.md",
    "serving.md",
    "blocks.md",
    "tutorials/mxnet.md",
)
FRAMEWORK = re.compile(r"^(?:import|from) (torch|tensorflow|mxnet|jax)\b", re.MULTILINE)
PRINTED = re.compile(r"^(?:.*\S  )?# (.*)$")


def programs(page):
    """Return pairs of a heading of a page, and a program below it."""
    found = []
    for section in re.split(r"^#+ ", (DOCS / page).read_text(), flags=re.MULTILINE)[1:]:
        blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
        found += [(section.partition("\n")[0], block) for block in blocks]
    return found


def backend_of(program):
    """Return the backend that a program needs; one without a framework needs NumPy's only."""
    framework = FRAMEWORK.search(program)
    return framework[1] if framework else "numpy"


def expected(program):
    """Return the lines that a program says it prints: after ``print``, or on lines of their own."""
    lines = [x for x in program.splitlines() if x.lstrip().startswith(("print(", "# "))]
    return [match[1] for match in map(PRINTED.match, lines) if match]


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_print_what_they_say(page, backend, capsys):
    for heading, program in programs(page):
        if backend_of(program) == backend:
            assert expected(program), heading
            exec(compile(program, heading, "exec"), {"__name__": "__main__"})
            assert capsys.readouterr().out.splitlines() == expected(program), heading


def test_pages_have_programs_for_frameworks_and_without():
    needed = {backend_of(program) for page in PAGES for _, program in programs(page)}
    assert needed == {"numpy", "torch", "mxnet", "jax"}


@pytest.mark.parametrize(
    ("line", "lines"),
    [("print(x)  # 1 2", ["1 2"]), ("# 3", ["3"]), ("x = 1  # why", []), ("print(x)", [])],
)
def test_what_a_program_says_it_prints_is_read(line, lines):
    assert expected(line) == lines
