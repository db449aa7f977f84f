"""The Python blocks of pages that need a host, `<!-- page needs HOST -->`, run where AOL_HOST names it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from test_pages import PAGES, blocks, name, readers_own

HOST = os.environ.get("AOL_HOST", "")


def needs(page: Path) -> str:
    found = re.search(r"^<!-- page needs (\w+) -->$", page.read_text(), re.M)
    return found[1] if found else ""


@pytest.mark.parametrize("page", [page for page in PAGES if HOST and needs(page) == HOST], ids=name)
def test_the_blocks_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = readers_own()
    for line, title, code in blocks(page):
        if title:
            (tmp_path / title.removeprefix('title="').removesuffix('"')).write_text(code)
        else:
            exec(compile("\n" * (line - 1) + code, name(page), "exec"), names)
            printed = capsys.readouterr().out.splitlines()
            for promised in re.findall(r"^print\(.*\) +# (.*)$", code, re.M):
                assert promised in printed
