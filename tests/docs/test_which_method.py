"""The decision page: every figure on it is a link, and stands on the page that the link leads to."""

from __future__ import annotations

import re

from tests.support.doc_pages import ROOT

PAGE = (ROOT / "docs" / "which-method.md").read_text(encoding="utf-8")
FIGURE = re.compile(r"[+−]\d+\.\d+(?: \([^)]*\))?")
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<page>[^)#]+)(?P<anchor>#[^)]*)?\)")


def test_every_figure_stands_on_the_page_it_links_to() -> None:
    found = 0
    for link in LINK.finditer(PAGE):
        text = (ROOT / "docs" / link["page"]).read_text(encoding="utf-8")
        for figure in FIGURE.findall(link["text"]):
            assert figure in text, f"{figure} is not on {link['page']}"
            found += 1
    assert found > 10


def test_no_figure_stands_there_without_a_link() -> None:
    assert FIGURE.findall(LINK.sub("", PAGE)) == []
