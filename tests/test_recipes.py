"""The programs on the pages of docs/ run as they stand, and print what they say they print.

A program that imports a framework runs where that framework is the backend under test. What it prints is
behind `#`, or in a block of text after it, where times may differ.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = (
    "compared.md",
    "faq.md",
    "recipes.md",
    "migration.md",
    "await.md",
    "plain.md",
    "ops.md",
    "serving.md",
    "blocks.md",
    "scaling.md",
    "explain.md",
    "compiling.md",
    "training.md",
    "profile.md",
    "your-module.md",
    "tutorials/mxnet.md",
    "../backends/jax/README.md",
    "../backends/mxnet/README.md",
    "../backends/torch/README.md",
    "../compat/README.md",
)
CONTINUED = {"your-module.md"}
"""Pages whose blocks are one program: each goes on with the names of those above."""
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n^```text\n(.*?)^```)?", re.DOTALL | re.MULTILINE)
ANY_BLOCK = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
FRAMEWORK = re.compile(r"^(?:import|from) (?:multifold_)?(torch|tensorflow|mxnet|jax)\b", re.MULTILINE)
PRINTED = re.compile(r"^(?:.*\S  )?# (.*)$")
TIME = re.compile(r" *\d+\.\d\d\b")


class Program(NamedTuple):
    """A block of a page: the heading above it, its code, and the text after it."""

    heading: str
    code: str
    text: str

    def backend(self):
        """Return the backend that it needs; one without a framework needs NumPy's only."""
        framework = FRAMEWORK.search(self.code)
        return framework[1] if framework else "numpy"

    def says(self):
        """Return the lines that it says it prints."""
        return without_times(self.text) if self.text else expected(self.code)


def programs(page):
    """Return the programs of a page."""
    text = (DOCS / page).read_text()
    headings = (
        (block, HEADING.findall(ANY_BLOCK.sub("", text[: block.start()]))) for block in BLOCK.finditer(text)
    )
    found = [Program(above[-1], block[1], block[2] or "") for block, above in headings]
    if page in CONTINUED:
        return [Program(found[0].heading, "".join([program.code for program in found]), "")]
    return found


def expected(code):
    """Return the lines that a program says it prints: after ``print``, or on lines of their own."""
    lines = [x for x in code.splitlines() if x.lstrip().startswith(("print(", "# "))]
    return [match[1] for match in map(PRINTED.match, lines) if match]


def without_times(text):
    """Return the lines of a text, without numbers that have two digits after the point."""
    return [TIME.sub(" ...", line).rstrip() for line in text.splitlines()]


@pytest.mark.parametrize("page", PAGES)
def test_the_programs_of_a_page_print_what_they_say(page, backend, capsys):
    for program in programs(page):
        if program.backend() == backend:
            assert program.says(), program.heading
            exec(compile(program.code, "example.py", "exec"), {"__name__": "__main__"})
            printed = capsys.readouterr().out
            lines = without_times(printed) if program.text else printed.splitlines()
            assert lines == program.says(), program.heading


PIECE = re.compile(r"^```py\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXAMPLES = [path.read_text() for path in DOCS.parent.glob("examples/**/*.py")]


@pytest.mark.parametrize("page", sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")))
def test_a_piece_of_a_program_on_a_page_is_taken_from_an_example(page):
    for piece in PIECE.findall((DOCS / page).read_text()):
        lines = {line.strip() for line in piece.splitlines()} - {""}
        assert any(lines <= {line.strip() for line in example.splitlines()} for example in EXAMPLES), piece


def test_pages_have_programs_for_frameworks_and_without():
    needed = {program.backend() for page in PAGES for program in programs(page)}
    assert needed == {"numpy", "torch", "tensorflow", "mxnet", "jax"}


@pytest.mark.parametrize(
    ("line", "lines"),
    [("print(x)  # 1 2", ["1 2"]), ("# 3", ["3"]), ("x = 1  # why", []), ("print(x)", [])],
)
def test_what_a_program_says_it_prints_is_read(line, lines):
    assert expected(line) == lines
