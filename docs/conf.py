"""How the site is made: `nox -s docs` runs Sphinx over the Markdown pages where they lie in the repository.

The source folder of Sphinx is the root of the repository, so one relative link serves a code host and the
site alike. A link to what only a code host can show, a folder or a program, leads to the page that has it.
The README is the first page, and the page of programs holds each file of Python below `examples`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import TYPE_CHECKING

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig
from sphinx.addnodes import pending_xref

import multifold

if TYPE_CHECKING:
    from docutils.nodes import document
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

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
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "backends/README.md",
    "backends/*/README.md",
    "compat/README.md",
    "benchmarks/README.md",
    "benchmarks/multifold_bench/datasets/README.md",
    "examples/README.md",
    "examples/blocks/README.md",
]
exclude_patterns = ["docs/_templates/**"]
if tags.has("light"):  # noqa: F821 - Sphinx puts `tags` here
    exclude_patterns.append("docs/api/adapters.md")  # its docstrings need the frameworks
suppress_warnings = [
    "myst.header",  # pages of results begin some sections at the third level
    "ref.python",  # `Fold` alone is the core's, a block or a door: the text around it says which
]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_execution_timeout = 300  # seconds a cell

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the numpydoc sections say the types in words
autosummary_generate = True
templates_path = ["docs/_templates"]  # from the source folder, where autosummary looks
napoleon_numpy_docstring = True
napoleon_google_docstring = False
napoleon_use_ivar = True

html_theme = "furo"
pygments_dark_style = "github-dark"
html_title = "multifold"
html_static_path = ["static"]
html_css_files = ["wide.css"]
html_extra_path = ["site"]  # what lies at the root of the site: a page that leads to the first one

LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")

PROGRAM = """
## `{name}`

{{download}}`Download </examples/{name}>`

```{{literalinclude}} /examples/{name}
:language: python
```
"""


def programs() -> Iterator[str]:
    """Yield a section for each program, those of folders last."""
    paths = [path.relative_to(ROOT / "examples") for path in ROOT.glob("examples/**/*.py")]
    for path in sorted(paths, key=lambda path: (len(path.parts) > 1, path)):
        yield PROGRAM.format(name=path.as_posix())


def anchor(name: str) -> str:
    """Return where the page of programs has a program, or the first one of a folder."""
    path = ROOT / "examples" / name
    first = min(path.rglob("*.py"), default=path).relative_to(ROOT / "examples")
    return re.sub(r"[^\w-]", "", first.as_posix().lower())


def lead_to_pages(name: str, text: str) -> str:
    """Return a page whose links to folders and programs lead to the pages of the site that show them."""

    def page(link: re.Match[str]) -> str:
        target = normpath(join(dirname(name), link[1]))
        if target == "README.md":
            target = f"{root_doc}.md"
        elif target.startswith("examples/") and not target.endswith(".md"):
            return f"/docs/examples.md#{anchor(target.removeprefix('examples/'))}"
        elif target == "examples":
            target = "docs/examples.md"
        elif (ROOT / target).is_dir():
            target = join(target, "README.md")
        return f"/{target}" if (ROOT / target).is_file() else link[1]

    return LINK.sub(page, text)


def read(app: Sphinx, name: str, source: list[str]) -> None:
    """Put the pages together that are made of other files, and mend their links."""
    if name == root_doc:
        app.env.note_dependency(str(ROOT / "README.md"))
        source[0] = lead_to_pages("README", (ROOT / "README.md").read_text()) + source[0]
        return
    if name == "docs/examples":
        source[0] += "".join(programs())
    if ROOT / f"{name}.md" in TUTORIALS:
        source[0] = TITLE.sub(rf"\g<0>{OFFER.format(Path(name).stem)}", source[0], count=1)
    source[0] = lead_to_pages(name, source[0])


TUTORIALS = sorted({*ROOT.glob("docs/tutorials/*.md")} - {ROOT / "docs/tutorials/index.md"})
TITLE = re.compile(r"^# .+\n", re.MULTILINE)
OFFER = '\n<a href="{}.ipynb" download>Open as a notebook</a>\n'
KERNEL = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n  language: python\n---\n"


def notebook(page: Path) -> str:
    """Return a tutorial as a Jupyter notebook: without results, and without links to other pages."""
    text = page.read_text().replace("```python\n", "```{code-cell}\n")
    text = text if text.startswith("---") else KERNEL + text
    made = read_myst_markdown_notebook(text, MdParserConfig())
    for cell in made.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"\[([^]]+)\]\((?!\w+:)[^)]+\)", r"\1", cell.source)
    return nbformat.writes(made)


def for_notebooks(app: Sphinx, error: Exception | None) -> None:
    """Write each tutorial beside its page, as the file that the page offers."""
    if error is None and app.builder.format == "html":
        for page in TUTORIALS:
            Path(app.outdir, page.relative_to(ROOT)).with_suffix(".ipynb").write_text(notebook(page))


ROW = re.compile(r"^\| \[(.+?)\]\((.+?)\) \| (.+) \|$", re.MULTILINE)


def for_models(app: Sphinx, error: Exception | None) -> None:
    """Write llms.txt (https://llmstxt.org), for language models: what multifold is, and its pages."""
    if error is not None:
        return
    about = (ROOT / "README.md").read_text().split("\n\n")[1].replace("\n", " ").replace("**", "")
    rows = ROW.findall((ROOT / "docs" / "README.md").read_text())
    lines = []
    for title, target, said in rows:
        page = normpath(join("docs", target)).removesuffix(".md")
        lines.append(f"- [{title}]({root_doc if page == 'README' else page}.html): {said}")
    text = "\n".join(["# multifold", "", f"> {about}", "", "## Pages", "", *lines, ""])
    Path(app.outdir, "llms.txt").write_text(text)


def unlink_words(app: Sphinx, doctree: document) -> None:
    """Take the links off words in the types of parameters: "arrays" is not `Program.arrays`."""
    for node in list(doctree.findall(pending_xref)):
        if node.get("refspecific") and node["reftarget"].islower():
            node.replace_self(node.children)


SECTION = re.compile(r"(?ms)^Attributes\n-+\n.*?(?=^\w[\w ]*\n-+$|\Z)")
SEVERAL = re.compile(r"(?m)^(\w+(?:, \w+)+)( : .*\n(?:(?: +.*)?\n)*(?: +.*)?)")


def name_each(app: Sphinx, what: str, name: str, object: object, options: object, lines: list[str]) -> None:
    """Give each attribute an entry where one line names several, which napoleon takes for a type."""

    def entries(found: re.Match[str]) -> str:
        return "\n".join(one + found[2].rstrip() for one in found[1].split(", ")) + "\n"

    lines[:] = SECTION.sub(lambda x: SEVERAL.sub(entries, x[0]), "\n".join(lines)).split("\n")


def keep_whole(app: Sphinx, what: str, name: str, object: object, options: object, text: list[str]) -> None:
    """Put the first words of an attribute's text back, which napoleon takes for its type at a colon."""
    if what in ("attribute", "data", "property") and text[-1:] and text[-1].startswith(":type: "):
        text[0] = f"{text.pop().removeprefix(':type: ')}: {text[0]}"


def skip(app: Sphinx, what: str, name: str, entry: object, skipped: bool, options: object) -> bool | None:
    """Leave out fields of named tuples: their classes say what they are, Python that they have a number."""
    return True if (getattr(entry, "__doc__", "") or "").startswith("Alias for field number") else None


def drop_modules_without_source(app: Sphinx, env: BuildEnvironment) -> None:
    """Keep viewcode (of Sphinx 9.0) from listing compiled modules, of which it has no page."""
    modules = env._viewcode_modules
    for name in [name for name, entry in modules.items() if not entry]:
        del modules[name]


def setup(app: Sphinx) -> None:
    """Connect what is above with Sphinx."""
    app.connect("autodoc-process-docstring", name_each, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", keep_whole, priority=600)  # after it
    app.connect("autodoc-skip-member", skip)
    app.connect("env-updated", drop_modules_without_source)
    app.connect("source-read", read)
    app.connect("doctree-read", unlink_words)
    app.connect("build-finished", for_models)
    app.connect("build-finished", for_notebooks)
