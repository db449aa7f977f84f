"""A study or a folder of somebody else names a function as its network: nothing is imported unless the user asks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aol.cli import main
from aol.records.store import read_request, write_request

STUDY = """
name = "short"
seeds = [0]
baseline = "none"
[common]
epochs = 1
samples = 100
net = "theirs:make_net"
[[methods]]
name = "none"
"""
MODULE = """
from pathlib import Path
from torch import nn
Path("imported").touch()
def make_net(classes, channels, size):
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * size * size, classes))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "theirs.py").write_text(MODULE)
    (tmp_path / "study.toml").write_text(STUDY)
    yield tmp_path
    sys.modules.pop("theirs", None)


def forget(folder: Path) -> None:
    """Make the folder one that this user has never used."""
    for note in (folder / "state").rglob("*"):
        if note.is_file():
            note.unlink()
    (folder / "imported").unlink(missing_ok=True)
    sys.modules.pop("theirs", None)


def test_a_study_imports_no_network_that_the_command_line_does_not_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for word in ("status", "run", "show", "page", "draw"):
        status = main(["study", word, "study.toml", "--out", "out"])
        assert not (folder / "imported").exists(), word
        assert status == (0 if word == "status" else 2), word
    assert main(["study", "run", "study.toml", "--out", "out"]) == 2
    assert "theirs:make_net" in capsys.readouterr().err
    assert main(["study", "run", "study.toml", "--out", "out", "--set", "net=theirs:make_net"]) == 0
    assert (folder / "imported").exists()
    assert main(["study", "run", "study.toml", "--out", "again"]) == 0  # known from now on


@pytest.mark.parametrize("command", ["study", "train"])
def test_a_folder_of_somebody_else_imports_nothing(
    command: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--set", "net=theirs:make_net"]
    words = ["study", "run", "study.toml", *own] if command == "study" else ["train", "--net", "theirs:make_net"]
    more = [] if command == "study" else ["--samples", "100", "--epochs", "1"]
    assert main([*words, *more, "--out", "out"]) == 0
    (run,) = (folder / "out").rglob("run.json")
    unfinished = run.read_bytes()
    run.unlink()
    forget(folder)
    request = read_request(folder / "out")
    assert request is not None
    if command == "study":  # what the folder asks for is not what the user asks for
        assert "net=theirs:make_net" in request["choice"]["set"]
    assert main(["resume", "out"]) == 2
    assert "theirs:make_net" in capsys.readouterr().err
    run.parent.mkdir(exist_ok=True)
    run.write_bytes(unfinished)
    write_request(folder / "out", request)
    for seen in (["show", "out"], ["report", "out"]):
        assert main(seen) == 0
    assert not (folder / "imported").exists()
