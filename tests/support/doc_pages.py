"""The pages of the project and their fenced blocks: what each is, what it needs, and what a reader brings along.

A block runs unless a comment on the line above it says otherwise:

    <!-- needs lightning -->      in that host's environment (`make test-plugins`), with the page's unmarked blocks
    <!-- needs cifar10 -->        commands that want data which is not here: only their words are tried
    <!-- not run: why -->         not at all
    <!-- output within 5 -->      no program: what the block before it prints, numbers give or take 5

`<!-- page needs lightning -->`, anywhere, goes for all blocks of a page.
"""

from __future__ import annotations

import os
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", *(ROOT / "docs").rglob("*.md")])
PLUGINS = {path.stem for path in (ROOT / "src" / "aol" / "plugins").glob("[!_]*.py")}
HOSTS = PLUGINS | {"avalanche", "fastai", "skorch", "sources"}  # also of pages of recipes
DATA = {"cifar10", "cifar100"}
PROGRAMS = {"python", "sh"}
PLAIN = {"bibtex", "html", "json", "text", "toml"}

_FENCE = re.compile(
    r"^(?P<margin> *)(?:<!-- (?P<mark>[^\n]*?) -->\n(?P=margin))?"
    r"```(?P<language>\w*)(?P<rest>[^\n]*)\n(?P<code>.*?)^(?P=margin)```$",
    re.M | re.S,
)
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    line: int
    language: str
    title: str
    mark: str
    code: str

    @property
    def needs(self) -> str:
        """What the block needs besides this library, or nothing."""
        return self.mark.removeprefix("needs ") if self.mark.startswith("needs ") else ""

    @property
    def within(self) -> float | None:
        """How near the numbers of a promised output must be; None for any other block."""
        found = re.fullmatch(r"output within (\d+)", self.mark)
        return float(found[1]) if found else None


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text()
    whole = re.search(r"^<!-- page (needs \w+) -->$", text, re.M)
    found = []
    for fence in _FENCE.finditer(text):
        title = _TITLE.search(fence["rest"])
        mark = fence["mark"] or (whole[1] if whole else "")
        first = text[: fence.start("code")].count("\n") + 1
        code = textwrap.dedent(fence["code"])
        found.append(Block(first, fence["language"], title[1] if title else "", mark, code))
    return found


def hosts_here() -> set[str]:
    """Return the hosts of this environment, such as AOL_HOST=lightning,transformers."""
    return set(filter(None, os.environ.get("AOL_HOST", "").split(",")))


def wanted(page: Path, hosts: set[str]) -> list[Block]:
    """Return what to run of a page: all that needs no host, and what needs one of these."""
    return [block for block in blocks(page) if block.needs not in HOSTS or block.needs in hosts]


def readers_own() -> dict[str, object]:
    """Return what the pages say is the reader's own."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (400,), generator=generator)
    dataset = TensorDataset(torch.randn(400, 64, generator=generator), labels)
    model = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = dataset[:64]
    names = {"dataset": dataset, "labels": labels, "model": model, "optimizer": optimizer, "x": x, "y": y}
    return {**names, "train_set": dataset, "test_set": dataset, "epochs": 2, "train_one_epoch": lambda: None}
