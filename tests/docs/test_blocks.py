"""Every program on a page runs, block after block, in one namespace and one folder, and prints what it promises.

With AOL_HOST, in the environment of these hosts: the pages that have a block for one of them.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from tests.support.doc_commands import command_lines, run, same_but_for_noise
from tests.support.doc_pages import (
    DATA,
    HOSTS,
    PAGES,
    PLAIN,
    PROGRAMS,
    ROOT,
    Block,
    blocks,
    hosts_here,
    name,
    readers_own,
    wanted,
)

HERE = hosts_here()
if {"avalanche", "sources"} & HERE:
    importlib.import_module("tests.support.torchvision_operators")  # so that torchvision can be imported


def programs(page: Path) -> list[Block]:
    return [block for block in wanted(page, HERE) if block.language in PROGRAMS]


def is_ours(page: Path) -> bool:
    """Say whether a page has something to run here that does not run elsewhere."""
    return any(block.needs in HERE for block in programs(page)) if HERE else bool(programs(page))


@pytest.mark.parametrize("page", [page for page in PAGES if is_ours(page)], ids=name)
def test_the_blocks_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names, printed = readers_own(), ""
    for block in wanted(page, HERE):
        if block.within is not None:
            assert same_but_for_noise(block.code, printed, block.within), f"line {block.line}: printed was\n{printed}"
        elif block.mark.startswith("not run: "):
            continue
        elif block.title:
            (tmp_path / block.title).write_text(block.code)
        elif block.language == "sh":
            commands = command_lines(block.code)
            printed = "".join(run(words, tmp_path, without_data=block.needs in DATA) for words in commands)
        elif block.language == "python":
            exec(compile("\n" * (block.line - 1) + block.code, name(page), "exec"), names)
            printed = capsys.readouterr().out
            for promised in re.findall(r"^print\(.*\) +# (.*)$", block.code, re.M):
                assert promised in printed.splitlines()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_says_what_it_is(page: Path) -> None:
    for block in blocks(page):
        where = f"{name(page)}, line {block.line}"
        assert block.language in PROGRAMS | PLAIN, f"{where}: a block in {block.language or 'no language'}"
        known = block.needs in HOSTS | DATA or block.within is not None or re.match("not run: .", block.mark)
        assert not block.mark or known, f"{where}: what does {block.mark!r} mean?"


def test_every_host_has_an_environment_in_which_its_blocks_run() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for host in {block.needs for block in blocks(page)} & HOSTS:
            environment = rf"AOL_HOST=[\w,]*\b{host}\b.* .*tests/docs/test_blocks\.py"
            assert re.search(environment, makefile), f"{name(page)} needs {host}"


def test_a_promise_is_kept_by_near_numbers_and_broken_by_others() -> None:
    assert same_but_for_noise("plain 84.1\nage  86.0", "table\nplain   83.9\n\nage 87.2 \n", 2.0)
    assert not same_but_for_noise("plain 84.1", "plain 81.0", 3.0)
    assert not same_but_for_noise("plain 84.1", "age 84.1", 3.0)
    assert not same_but_for_noise("a 1\nb 2", "b 2\na 1", 3.0)
