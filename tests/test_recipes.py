"""The programs on the pages of docs/ run as they stand, and print what they say they print.

A program that imports a framework runs where that framework is the backend under test.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import multifold
from multifold._frameworks import registry

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = ("recipes.md", "migration.md", "await.md", "serving.md", "blocks.md", "tutorials/mxnet.md")
FRAMEWORK = re.compile(r"^(?:import|from) (torch|tensorflow|mxnet|jax)\b", re.MULTILINE)
PRINTED = re.compile(r"^(?:.*\S  )?# (.*)$")


def programs():
    """Return pairs of a name, page and heading, and a program."""
    found = []
    for page in PAGES:
        for section in re.split(r"^#+ ", (DOCS / page).read_text(), flags=re.MULTILINE)[1:]:
            blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
            found += [(f"{page}: {section.partition(chr(10))[0]}", block) for block in blocks]
    return found


def backend_of(program):
    """Return the backend that a program needs; one without a framework needs NumPy's only."""
    framework = FRAMEWORK.search(program)
    return framework[1] if framework else "numpy"


def here(name):
    """Return whether a backend can be used here."""
    try:
        return registry.load_backend(name).name == name
    except multifold.BackendError:
        return False


def pytest_generate_tests(metafunc):
    if "program" in metafunc.fixturenames:
        names = {"numpy", *(metafunc.config.getoption("--backend") or ())}
        chosen = [x for x in programs() if backend_of(x[1]) in names and here(backend_of(x[1]))]
        metafunc.parametrize("program", [text for _, text in chosen], ids=[x for x, _ in chosen])


def expected(program):
    """Return the lines that a program says it prints: after ``print``, or on lines of their own."""
    lines = [x for x in program.splitlines() if x.lstrip().startswith(("print(", "# "))]
    return [match[1] for match in map(PRINTED.match, lines) if match]


def test_a_program_prints_what_it_says(program, capsys):
    assert expected(program)
    exec(compile(program, "program", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines() == expected(program)


def test_both_pages_have_programs_for_frameworks_and_without():
    needed = {backend_of(program) for _, program in programs()}
    assert needed == {"numpy", "torch", "mxnet"}


@pytest.mark.parametrize(
    ("line", "lines"),
    [("print(x)  # 1 2", ["1 2"]), ("# 3", ["3"]), ("x = 1  # why", []), ("print(x)", [])],
)
def test_what_a_program_says_it_prints_is_read(line, lines):
    assert expected(line) == lines
