"""The decision page, and that of hidden minorities: every figure stands in a study that its section links to."""

from __future__ import annotations

import re

import pytest

from tests.support.doc_pages import ROOT

PAGES = [
    (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("which-method.md", "how-to/hidden-minorities.md")
]
SECTIONS = {text.partition("\n")[0]: text for page in PAGES for text in page.split("\n## ")[1:]}
STUDY = re.compile(r"\((?:\.\./)?(results[\w-]*\.md)#([\w-]+)\)")
GAIN = re.compile(r"[+−]\d+\.\d+(?: \([^)]*\))?")
PERCENT = re.compile(r"(?<=\| )\d+\.\d(?= )")


def study(page: str, name: str) -> str:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return text.partition(f' id="{name}">')[2].partition("</details>")[0]


@pytest.mark.parametrize("section", [name for name, text in SECTIONS.items() if STUDY.search(text)])
def test_every_figure_stands_in_a_study_that_its_section_links_to(section: str) -> None:
    studies = "".join(study(*link) for link in STUDY.findall(SECTIONS[section]))
    accuracies = [float(value) for value in re.findall(r"\b\d+\.\d\d\b", studies)]
    gains, percents = GAIN.findall(SECTIONS[section]), PERCENT.findall(SECTIONS[section])
    assert len(gains) + len(percents) > 5
    assert [gain for gain in gains if gain not in studies] == []
    assert all(min(abs(float(percent) - value) for value in accuracies) < 0.051 for percent in percents)


def test_no_gain_stands_there_without_a_study() -> None:
    assert [name for name, text in SECTIONS.items() if GAIN.search(text) and not STUDY.search(text)] == []
