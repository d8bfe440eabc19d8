"""How the site is made: `nox -s docs` runs Sphinx over the Markdown pages where they lie in the repository.

The source folder of Sphinx is the root of the repository, so one relative link serves a code host and the
site alike. A link to what only a code host can show, a folder or a program, leads to the page that has it.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath

import multifold

ROOT = Path(__file__).resolve().parents[1]

project = "multifold"
copyright = author = "the multifold maintainers"
version = release = multifold.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "backends/README.md",
    "backends/*/README.md",
    "benchmarks/README.md",
    "benchmarks/multifold_bench/datasets/README.md",
    "examples/README.md",
    "examples/blocks/README.md",
]
exclude_patterns = ["docs/README.md", "docs/_templates/**"]
suppress_warnings = [
    "myst.header",  # pages of results begin some sections at the third level
    "ref.python",  # `Fold` alone is the core's, a block or a door: the text around it says which
]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_execution_timeout = 300  # seconds a cell; the slowest takes 10

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the numpydoc sections say the types in words
autosummary_generate = True
templates_path = ["docs/_templates"]  # from the source folder, where autosummary looks
napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
html_title = "multifold"
html_extra_path = ["site"]  # what lies at the root of the site: a page that leads to the first one

LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")


def lead_to_pages(app: object, name: str, source: list[str]) -> None:
    """Let links to folders and programs lead to the pages of the site that show them."""

    def page(link: re.Match[str]) -> str:
        target = normpath(join(dirname(name), link[1]))
        if target == "docs/README.md":
            target = "docs/index.md"
        elif target.startswith("examples") and not target.endswith(".md"):
            target = "docs/examples.md"
        elif (ROOT / target).is_dir():
            target = join(target, "README.md")
        elif target in ("LICENSE",):
            return link[1]
        return "/" + target if target.endswith(".md") else link[1]

    source[0] = LINK.sub(page, source[0])


def setup(app: object) -> None:
    """Connect what is above with Sphinx."""
    app.connect("source-read", lead_to_pages)  # type: ignore[attr-defined]
