from __future__ import annotations

import base64
import hashlib
import re
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from aol.report.page import SCRIPTS, chart_library, document, write_page
from tests.support.made_runs import PAYLOADS, make_data


class Scripts(HTMLParser):
    """What a browser takes for scripts: their kinds and their texts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str | None, str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.found.append((dict(attrs).get("type"), ""))

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script" and self.found and self.cdata_elem == "script":
            kind, text = self.found[-1]
            self.found[-1] = (kind, text + data)


def test_only_the_two_scripts_whose_hashes_are_named_can_run(tmp_path: Path) -> None:
    write_page([make_data(PAYLOADS[0], names=PAYLOADS[:6])], tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    scripts = Scripts(text)
    assert [kind for kind, _ in scripts.found] == ["application/json", None, None]
    policy = next(attrs["content"] for tag, attrs in scripts.tags if tag == "meta" and "http-equiv" in attrs)
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert "'unsafe-inline'" not in policy.split(";")[1]
    for _, script in scripts.found[1:]:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


def test_nothing_in_it_is_fetched(tmp_path: Path) -> None:
    write_page([make_data()], tmp_path / "page.html")
    scripts = Scripts((tmp_path / "page.html").read_text(encoding="utf-8"))
    for tag, attrs in scripts.tags:
        assert tag not in ("iframe", "object", "embed", "base", "form")
        for name in ("src", "href"):
            value = attrs.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)


def test_the_title_is_text() -> None:
    assert "<title>&lt;/title&gt;&lt;script&gt;</title>" in document({"runs": []}, "</title><script>")
    assert "<title>?</title>" in document({"runs": []}, "\udcff")


def test_age_is_defined_at_the_top() -> None:
    before, _, _ = document({"runs": []}, "x").partition("<main")
    assert "one more for every epoch in a row in which it is wrong" in " ".join(before.split())


def test_the_charts_do_without_eval_and_their_licences_are_kept() -> None:
    page = document({"runs": []}, "x")
    for name in ("Vega", "University of Washington", "D3", "Mike Bostock", "Redistribution and use"):
        assert name in page
    assert "</script" not in chart_library().lower()


def test_every_script_is_part_of_it() -> None:
    assets = Path(sys.modules["aol.report.page"].__file__ or "").parent / "assets"
    assert sorted(path.stem for path in assets.glob("*.js")) == sorted(SCRIPTS)
    markup = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function"
    assert not [path.name for path in assets.glob("*.js") if re.search(markup, path.read_text())]


def test_without_the_chart_library_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chart_library.cache_clear()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install '\.\[report\]' in a checkout of aol"):
        write_page([make_data()], tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
