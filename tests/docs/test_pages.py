"""Every Python block of the README and the docs runs, page by page; links within the project lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")]
)
FENCE = re.compile(r"^(?P<margin> *)```python(?P<title>[^\n]*)\n(?P<code>.*?)^(?P=margin)```$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[int, str, str]]:
    """Return the line, the title and the code of each Python block."""
    text = page.read_text()
    return [
        (text[: found.start()].count("\n") + 2, found["title"].strip(), textwrap.dedent(found["code"]))
        for found in FENCE.finditer(text)
    ]


def host(page: Path) -> bool:
    """Return whether a page needs the host of a plug-in: `test_blocks.py` runs it there."""
    return "<!-- page needs " in page.read_text()


def readers_own() -> dict[str, object]:
    """Return what the pages say is the reader's own."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (400,), generator=generator)
    dataset = TensorDataset(torch.randn(400, 64, generator=generator), labels)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"dataset": dataset, "labels": labels, "model": model, "optimizer": optimizer}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page) and not host(page)], ids=name)
def test_the_python_blocks_of_a_page_run_in_order(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = readers_own()
    for line, title, code in blocks(page):
        if not title:
            exec(compile("\n" * (line - 1) + code, name(page), "exec"), names)
    printed = capsys.readouterr().out.splitlines()
    promised = re.findall(r"^print\(.*\) +# (.*)$", "\n".join(code for _, _, code in blocks(page)), re.M)
    for each in promised:
        assert each in printed


def test_the_program_for_many_processes_gives_the_same_on_one_and_two(tmp_path: Path) -> None:
    page = ROOT / "docs" / "how-to" / "distributed.md"
    (program,) = [code for _, title, code in blocks(page) if title == 'title="train.py"']
    script = tmp_path / "train.py"
    script.write_text(program)
    printed = []
    for processes in ("1", "2"):
        run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", processes]
        done = subprocess.run([*run, str(script)], capture_output=True, text=True, timeout=120)
        # Some builds of torch now and then abort when a process with DDP over gloo ends, with no line of ours involved.
        assert done.returncode == 0 or "terminate called without an active exception" in done.stderr, done.stderr
        printed.append([line for line in done.stdout.splitlines() if line.startswith("class ages")])
    assert len(printed[0]) == 1
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


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_every_public_name_is_in_the_reference() -> None:
    import aol

    reference = "\n".join(page.read_text() for page in (ROOT / "docs" / "reference").glob("*.md"))
    listed = set(re.findall(r"^::: aol\.(\w+)$", reference, re.M))  # plug-ins, with more dots, are not looked for
    assert listed == set(aol.__all__) - {"__version__"}


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    for page in (ROOT / "docs").rglob("*.md"):
        assert str(page.relative_to(ROOT / "docs")) in navigation
