"""What the pages for readers promise: links that lead somewhere, code that is Python, errors that exist."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

import multifold

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = [
    ".",
    "benchmarks",
    "benchmarks/*/*",
    "backends",
    "backends/*",
    "compat",
    "docs",
    "docs/*",
    "examples",
    "examples/*",
    "multifold/*",
]
PAGES = sorted(page for folder in FOLDERS for page in ROOT.glob(f"{folder}/*.md"))
NAMES = [page.relative_to(ROOT).as_posix() for page in PAGES]


def prose(page: Path) -> str:
    """Return a page without its code."""
    return re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, spelled as code hosts spell them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_link_inside_the_repository_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        if "://" not in target:
            aim = (page.parent / path).resolve() if path else page
            assert aim.exists(), f"{target} does not exist"
            assert not anchor or anchor in anchors(aim), f"{target} has no such heading"


def test_the_reference_lists_every_public_name():
    listed = re.findall(r"^   ([A-Za-z_]+)$", (ROOT / "docs/api/multifold.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(multifold.__all__)


def test_the_guide_of_adapters_names_all_that_a_backend_may_have():
    guide = (ROOT / "backends" / "README.md").read_text(encoding="utf-8")
    names = {name for name in vars(multifold.Backend) if not name.startswith("_")} - {"gaps"}
    assert [name for name in sorted(names) if not re.search(rf"`{name}\b", guide)] == []


def test_the_moving_picture_is_what_its_program_draws():
    program = runpy.run_path(str(ROOT / "docs" / "schedule.py"))
    assert (ROOT / "docs" / "schedule.svg").read_text() == program["drawing"]()


def test_every_tutorial_is_listed():
    tutorials = {page.stem for page in ROOT.glob("docs/tutorials/*.md")} - {"index"}
    listed = re.findall(r"^([a-z]+)$", (ROOT / "docs/tutorials/index.md").read_text(), re.MULTILINE)
    assert set(listed) == tutorials


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_every_example_on_a_page_is_python(page):
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL):
        compile(block, str(page), "exec")


def texts(source):
    """Yield the texts in a module, with a line's end in place of what an f-string puts in."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(x.value if isinstance(x, ast.Constant) else "\n" for x in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_index_of_errors_has_messages_that_exist():
    sources = [*ROOT.glob("multifold/**/*.py"), *ROOT.glob("backends/*/multifold_*/**/*.py")]
    known = "\0".join(text for path in sources for text in texts(path.read_text()))
    index = (ROOT / "docs/errors.md").read_text().partition("\n## ")[2]
    messages = re.findall(r"^\| `(.*?)` \|", index, re.MULTILINE)
    assert len(messages) > 40
    for message in messages:
        parts = map(re.escape, message.split("..."))
        assert re.search(r"[^\0]*?".join(parts), known), message


COLUMN = 110
"""Characters of code that the site shows whole on a screen of 1,280 points (docs/static/wide.css)."""


@pytest.mark.parametrize("page", PAGES, ids=NAMES)
def test_no_line_of_code_is_wider_than_the_site(page):
    blocks = re.findall(r"^```.*?\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    assert [line for block in blocks for line in block.splitlines() if len(line) > COLUMN] == []
