"""The notebooks: their cells run in order and do what their text says; nothing is stored in them but the program."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.doc_pages import ROOT
from tests.support.running import environment

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
# What a notebook must have shown, from the names that its cells leave behind.
SHOWN: dict[str, Callable[[dict[str, object]], bool]] = {
    "plain-pytorch": lambda names: float(names["gain"]) > 0.03,  # type: ignore[arg-type]
    "report-and-labels": lambda names: int(names["found"].sum()) > 0.8 * int(names["wrong"].sum()),  # type: ignore[attr-defined]
}


def cells(path: Path, kind: str) -> list[str]:
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_run_in_order(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in (environment() | {"MPLBACKEND": "agg"}).items():
        monkeypatch.setenv(name, value)
    names: dict[str, object] = {"__name__": "__main__"}
    for number, code in enumerate(cells(path, "code"), start=1):
        exec(compile(code, f"{path.name}, cell {number}", "exec"), names)
    assert SHOWN[path.stem](names), capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_small_and_has_no_outputs(path: Path) -> None:
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert path.stat().st_size < 20_000
    assert (whole["nbformat"], whole["nbformat_minor"]) == (4, 5)
    for cell in whole["cells"]:
        assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", cell["id"])
        assert cell.get("outputs", []) == []
        assert cell.get("execution_count") is None


def test_every_notebook_is_run_and_linked() -> None:
    page = (ROOT / "docs" / "notebooks.md").read_text()
    assert {path.stem for path in NOTEBOOKS} == set(SHOWN)
    for path in NOTEBOOKS:
        assert f"](notebooks/{path.name})" in page
