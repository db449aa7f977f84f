"""The README: its badges say what pyproject says, and on PyPI none of its links leads nowhere."""

from __future__ import annotations

import json
import re
import tomllib

import numpy as np
import pytest

from hatch_build import for_pypi
from tests.support.doc_pages import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TARGET = re.compile(r"\]\(([^)\s]+)\)")


def test_badges_have_the_versions_and_the_licence_of_the_project() -> None:
    (torch,) = [each for each in PROJECT["dependencies"] if each.startswith("torch>=")]
    assert f"badge/Python-{PROJECT['requires-python'].removeprefix('>=')}%2B-" in README
    assert f"badge/PyTorch-{torch.removeprefix('torch>=')}%2B-" in README
    assert f"badge/licence-{PROJECT['license']}-" in README


def test_pictures_load_quickly() -> None:
    pictures = re.findall(r"!\[[^\]]*\]\((docs/[^)]+)\)", README)
    assert pictures
    assert all((ROOT / each).stat().st_size < 300_000 for each in pictures)


def test_with_a_repository_every_link_is_an_address_of_a_file_in_it() -> None:
    here = "https://example.org/me/aol"
    for target in TARGET.findall(for_pypi(README, here)):
        assert target.startswith(("https://", "#")), target
        if target.startswith(here):
            kind, branch, path = target.removeprefix(f"{here}/").split("/", 2)
            assert (kind in {"blob", "raw"}, branch) == (True, "main")
            assert (ROOT / path.partition("#")[0]).exists(), path


def test_without_a_repository_no_link_to_a_file_is_left() -> None:
    text = for_pypi(README, None)
    assert "LogitAdjustedLoss" in text
    assert all(target.startswith(("https://", "#")) for target in TARGET.findall(text))
    assert "docs/hero.webp" not in text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[a](b.md#c)", "[a](r/blob/main/b.md#c)"),
        ("![a](b.svg)", "![a](r/raw/main/b.svg)"),
        ("[![a](https://x.y/z)](LICENSE)", "[![a](https://x.y/z)](r/blob/main/LICENSE)"),
        ("[a](https://x.y) [b](#c)", "[a](https://x.y) [b](#c)"),
    ],
)
def test_links_and_pictures_move_and_addresses_stay(before: str, after: str) -> None:
    assert for_pypi(before, "r/") == after


def test_every_figure_of_the_gains_is_that_of_the_records() -> None:
    rows = dict(re.findall(r"^\| ([^|]*?) \(.*?\) \| ([\d.]+ \| [\d.]+) \|$", README, re.M))
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")  # itself compared with the records
    record = json.loads((ROOT / "benchmarks" / "results" / "losses.json").read_text(encoding="utf-8"))
    means = {(case["set"], case["method"]): case for case in record["cases"]}

    def study(name: str) -> str:
        part = page.partition(f' id="{name}">')[2].partition("</details>")[0]
        values = [re.search(rf"\| {method} \| 5 \| ([\d.]+) ", part) for method in ("none", "counts-seen")]
        return " | ".join(f"{float(value[1]):.1f}" for value in values if value)

    def benchmark(name: str, measure: str = "balanced") -> list[str]:
        return [f"{100 * np.mean(means[name, method][measure]):.1f}" for method in ("plain", "LogitAdjustedLoss")]

    assert rows == {
        "CIFAR-10, imbalance 100": study("counts-seen-offline"),
        "a stream of CIFAR-10 whose frequent classes change": study("counts-seen-streams"),
        "docstrings of ten Python packages, imbalance 20": " | ".join(benchmark("docstrings, imbalance 20")),
        "yeast, a table with six classes": " | ".join(benchmark("yeast, 6 classes")),
    }
    weighted = [
        means[name, "class weights n^-0.5"]["balanced"] for name in ("docstrings, imbalance 20", "yeast, 6 classes")
    ]
    assert (
        "{:.1f} % on the docstrings and {:.1f} % on yeast".format(*(100 * np.mean(values) for values in weighted))
        in README
    )
    assert "accuracy fell from {} to {} %".format(*benchmark("yeast, 6 classes", "accuracy")) in README


def test_the_pages_of_all_frameworks_are_linked() -> None:
    pages = re.findall(r": (how-to/.*)$", (ROOT / "mkdocs.yml").read_text().partition("In other tools:")[2], re.M)
    assert len(pages) > 5
    assert [page for page in pages if f"](docs/{page})" not in README] == []
