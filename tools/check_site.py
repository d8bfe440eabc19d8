"""Check the site in a folder: `python tools/check_site.py FOLDER`, as `nox -s docs` does.

Sphinx knows the links that it resolves itself. This looks at the pages as a browser gets them: each link
inside of the site leads to a file that is there, and to an anchor in it, the first page leads to every
other one, and each tutorial offers its notebook.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag, urlsplit


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element links to, and its anchor."""
        for name, value in attrs:
            if name in ("href", "src") and value and not urlsplit(value).scheme:
                self.links.add(value)
            elif name == "id" and value:
                self.anchors.add(value)

    def aims(self) -> list[tuple[str, Path, str]]:
        """Return each link with the file and the anchor that it leads to."""
        found = []
        for link in sorted(self.links):
            target, anchor = urldefrag(link)
            path = unquote(urlsplit(target).path)
            aim = (self.path.parent / path).resolve() if path else self.path
            found.append((link, aim / "index.html" if aim.is_dir() else aim, unquote(anchor)))
        return found


def problems(site: Path) -> list[str]:
    """Return what is wrong with a site, one sentence each."""
    root = site.resolve()
    paths = [
        path for path in sorted(root.rglob("*.html")) if not str(path.relative_to(root)).startswith("_")
    ]
    pages = {path: Page(path) for path in paths}
    said = []
    for path, page in pages.items():
        name = path.relative_to(root)
        for link, aim, anchor in page.aims():
            if not aim.exists():
                said.append(f"{name} links to {link}, which is not there.")
            elif anchor and aim in pages and anchor not in pages[aim].anchors:
                said.append(f"{name} links to {link}, which has no such anchor.")
        tutorial = path.parent.name == "tutorials" and path.stem != "index"
        if tutorial and f"{path.stem}.ipynb" not in page.links:
            said.append(f"{name} offers no notebook.")
    unseen = pages.keys() - reached(pages, root / "docs" / "index.html") - {root / name for name in APART}
    return said + [f"No link leads to {path.relative_to(root)}." for path in sorted(unseen)]


APART = ("index.html", "search.html", "genindex.html", "py-modindex.html")
"""Pages of Sphinx that a reader comes to in other ways."""


def reached(pages: dict[Path, Page], first: Path) -> set[Path]:
    """Return the pages that links lead to from the first one."""
    found: set[Path] = set()
    waiting = [first]
    while waiting:
        path = waiting.pop()
        if path in pages and path not in found:
            found.add(path)
            waiting += [aim for _, aim, _ in pages[path].aims()]
    return found


if __name__ == "__main__":
    found = problems(Path(sys.argv[1]))
    sys.exit("\n".join(found) or None)  # with any text it ends with 1
