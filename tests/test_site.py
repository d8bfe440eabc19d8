"""What `tools/check_site.py` finds wrong with a site."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PROBLEMS = runpy.run_path(str(Path(__file__).resolve().parents[1] / "tools" / "check_site.py"))["problems"]


@pytest.fixture
def site(tmp_path):
    """Return a function that writes pages, and returns what is wrong with them."""

    def problems(**pages):
        for name, text in pages.items():
            path = tmp_path / "docs" / f"{name.replace('__', '/')}.html"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return PROBLEMS(tmp_path)

    return problems


def test_a_site_whose_links_lead_somewhere_is_right(site):
    assert site(index='<a href="a.html#here"></a>', a='<p id="here"><a href="#here"></a>') == []


def test_a_link_to_no_page_and_to_no_anchor_is_found(site):
    page = '<a href="b.html"></a><a href="#there"></a><a href="https://example.org"></a>'
    no_anchor, no_page = site(index=page)
    assert no_anchor == "docs/index.html links to #there, which has no such anchor."
    assert no_page == "docs/index.html links to b.html, which is not there."


def test_a_page_that_no_link_leads_to_is_found(site):
    assert site(index="", a='<a href="index.html"></a>') == ["No link leads to docs/a.html."]


def test_a_tutorial_offers_its_notebook(site, tmp_path):
    index = '<a href="tutorials/a.html"></a>'
    assert site(index=index, tutorials__a="") == ["docs/tutorials/a.html offers no notebook."]
    (tmp_path / "docs" / "tutorials" / "a.ipynb").write_text("{}")
    assert site(tutorials__a='<a href="a.ipynb" download></a>') == []
