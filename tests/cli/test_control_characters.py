"""Names and settings of other people's runs and studies are shown as text: no control characters, no markup."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from aol.cli import console, main
from aol.lab.settings import Settings
from aol.lab.train.progress import Progress
from aol.records.record import write_run
from tests.support.made_up import record

CLEARS = "photos\x1b[2J\x9b31m[red]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for data in (CLEARS, "digits"):
        for seed in (0, 1):
            run = record(Settings(data=data, seed=seed, epochs=2, net="cnn"), 0.5 + seed / 10)
            where = tmp_path / "runs" / f"{run.id}"
            where.mkdir(parents=True)
            write_run(where, replace(run, command=f"aol train --data '{CLEARS}'", finished=seed == 0 or data == CLEARS))
    return tmp_path / "runs"


def controls(text: str) -> set[str]:
    return {letter for letter in text if not letter.isprintable()} - {"\n"}


@pytest.mark.parametrize("form", ["--format=table", "--format=csv", "--json"])
def test_settings_of_runs_are_shown_as_text(form: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(folder), form]) == 0
    said = capsys.readouterr()
    assert controls(said.out + said.err) == set()
    if form == "--format=table":
        assert r"photos\x1b[2J\x9b31m[red]" in said.out


def test_a_study_is_shown_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    escaped = CLEARS.replace("\x1b", "\\u001b").replace("\x9b", "\\u009b")
    (tmp_path / "study.toml").write_text(
        f'name = "s"\ntitle = "{escaped}"\nseeds = [0]\nbaseline = "none"\n[cells]\ndata = ["{escaped}"]\n'
        f'[[methods]]\nname = "none"\n[[methods]]\nname = "{escaped}"\nweighting = "aol"\n'
    )
    (tmp_path / "out").mkdir()
    for form in (["status"], ["show"], ["show", "--format", "markdown"], ["show", "--format", "csv"]):
        status = main(["study", form[0], str(tmp_path / "study.toml"), "--out", str(tmp_path / "out"), *form[1:]])
        said = capsys.readouterr()
        assert status == 0
        assert said.out
        assert controls(said.out + said.err) == set(), form


def test_progress_and_terminals_show_text(capsys: pytest.CaptureFixture[str]) -> None:
    Progress("").say(CLEARS)
    screen = console(stderr=True)
    screen.print(f"{CLEARS}\n[b]second[/b]", soft_wrap=True)
    assert capsys.readouterr().err.splitlines() == [r"photos\x1b[2J\x9b31m[red]"] * 2 + ["[b]second[/b]"]
