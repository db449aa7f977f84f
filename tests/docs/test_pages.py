"""Links within the project lead somewhere, and nothing public is missing from the reference or the navigation."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
from pathlib import Path

import pytest

from tests.support.doc_pages import PAGES, ROOT, blocks, name
from tests.support.running import as_torchrun, status_of

LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def test_a_program_for_many_processes_gives_the_same_on_one_and_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / "docs" / "how-to" / "distributed.md"
    (program,) = [block for block in blocks(page) if block.title == "train.py"]
    (tmp_path / "train.py").write_text(program.code)
    printed = []
    for world in (1, 2):
        (tmp_path / str(world)).mkdir()
        monkeypatch.chdir(tmp_path / str(world))  # where the program writes its record
        children = as_torchrun(world, lambda: runpy.run_path(str(tmp_path / "train.py")), tmp_path / f"{world}.txt")
        assert [status_of(child) for child in children] == [0] * world
        printed.append((tmp_path / f"{world}.txt").read_text())
    assert printed[0].startswith("class ages")
    assert printed[0] == printed[1]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    for found in LINK.finditer(page.read_text()):
        target, _, anchor = found["target"].partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        aim = (page.parent / target).resolve() if target else page
        assert aim.exists(), f"{name(page)} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors(aim), f"{name(page)} links to {target}#{anchor}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_picture_is_there_and_described(page: Path) -> None:
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text())
    for described, file in pictures:
        assert described
        assert file.startswith("https://") or (page.parent / file).is_file(), f"{name(page)} shows {file}"
    # What comes out of these is that of other pages.
    plain = page.stem in {"avalanche", "fastai", "skorch", "timm", "transformers"}
    assert pictures or plain or page.parent.name != "how-to", f"{name(page)} has no picture of what comes out"


def anchors(page: Path) -> set[str]:
    text = page.read_text()
    heads = {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in re.findall(r"^#+ (.*)$", text, re.M)}
    return heads | set(re.findall(r'^<details markdown="1" id="([^"]+)">', text, re.M))  # studies of the results page


def in_the_reference() -> set[str]:
    pages = (ROOT / "docs" / "reference").glob("*.md")
    return {found for page in pages for found in re.findall(r"^::: aol\.([\w.]+)$", page.read_text(), re.M)}


def test_every_public_name_is_in_the_reference() -> None:
    import aol
    from aol import metrics

    own = [name for name, each in inspect.getmembers(metrics, inspect.isfunction) if each.__module__ == "aol.metrics"]
    listed = {each for each in in_the_reference() if not each.startswith("plugins.")}
    public = {*aol.__all__, *(f"metrics.{name}" for name in own if not name.startswith("_"))}
    assert listed == public - {"__version__"}


def test_every_plug_in_is_in_the_reference() -> None:
    public = set()
    for path in (ROOT / "src" / "aol" / "plugins").glob("[!_]*.py"):
        for node in ast.parse(path.read_text()).body:  # read, not imported: the host is not here
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                public.add(f"plugins.{path.stem}.{node.name}")
    assert {each for each in in_the_reference() if each.startswith("plugins.")} == public


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert f" {page.relative_to(ROOT / 'docs')}\n" in navigation + "\n"
