"""`aol study draw`: what is drawn is what is on record; and each thing that cannot be drawn is one line."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aol.cli import main
from aol.lab.settings import Settings
from aol.lab.study.spec import load
from aol.records.record import Run
from aol.records.store import Store
from tests.support.made_up import record

STUDY = """
name = "aged"
title = "Ages that were made up"
seeds = [1, 2]
tries_seeds = 0
keep = ["age"]
[common]
data = "digits"
epochs = 4
[cells]
imbalance = [20, 5]
[[methods]]
name = "none"
weighting = "none"
"""


def _study(folder: Path) -> str:
    path = folder / "aged.toml"
    path.write_text(STUDY)
    return str(path)


def _aged(run: Settings, classes: int = 10) -> Run:
    ages = np.random.default_rng(run.seed).uniform(1, 5, (run.epochs, classes)).astype(np.float32)
    return replace(record(run, 0.5), over_time={"age": ages}, counts=[50 - 5 * c for c in range(classes)])


def _stored(folder: Path, study: str, made: list[Run] | None = None) -> Store:
    store = Store(folder / "results")
    for each in [_aged(run) for run in load(study).all_runs()] if made is None else made:
        store.write(each)
    return store


def _draw(folder: Path, study: str, write: str = "ages.png") -> int:
    return main(["study", "draw", study, "--out", str(folder / "results"), "--write", str(folder / write)])


@pytest.mark.parametrize(("ending", "start"), [("png", b"\x89PNG"), ("PDF", b"%PDF"), ("svg", b"<?xml")])
def test_the_ending_says_the_format_and_the_same_records_give_the_same_bytes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str, start: bytes
) -> None:
    study = _study(tmp_path)
    _stored(tmp_path, study)
    for name in ("one", "two"):
        assert _draw(tmp_path, study, write=f"{name}.{ending}") == 0
    assert (tmp_path / f"one.{ending}").read_bytes().startswith(start)
    assert (tmp_path / f"one.{ending}").read_bytes() == (tmp_path / f"two.{ending}").read_bytes()
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.splitlines()[-1] == f"Written: {tmp_path / f'two.{ending}'}"


def _refused(capsys: pytest.CaptureFixture[str], folder: Path, write: str = "ages.png") -> str:
    found = capsys.readouterr()
    assert found.out == ""
    assert found.err.startswith("aol: ")
    assert found.err.count("\n") == 1
    assert not (folder / write).is_file()
    return found.err.removeprefix("aol: ").strip()


def test_without_records_it_is_said_what_makes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study, out = _study(tmp_path), tmp_path / "results"
    assert _draw(tmp_path, study) == 2
    assert _refused(capsys, tmp_path).startswith(f"There is no folder {out}: aol study run ... --out {out}")
    out.mkdir()
    assert _draw(tmp_path, study) == 2
    assert _refused(capsys, tmp_path) == "No complete run of aged has the ages of its classes over time."


@pytest.mark.parametrize(
    ("write", "said"),
    [("ages.jpg", "--write must end in .png, .pdf, .svg, not "), ("no/such/ages.png", "--write: there is no folder ")],
)
def test_a_file_that_cannot_be_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: str, said: str
) -> None:
    study = _study(tmp_path)
    _stored(tmp_path, study)
    assert _draw(tmp_path, study, write=write) == 2
    assert _refused(capsys, tmp_path, write).startswith(said)


def test_without_matplotlib_it_is_said_how_to_install_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = _study(tmp_path)
    _stored(tmp_path, study)
    for name in [each for each in sys.modules if each.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert _draw(tmp_path, study) == 1
    assert "drawing figures needs matplotlib, which is not installed: pip install '.[lab]'" in _refused(
        capsys, tmp_path
    )
