"""`aol resume FOLDER` continues what was asked for there, without other words."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from aol.cli import main
from aol.records.store import read_request
from tests.support.running import PATIENCE, forked, status_of
from tests.support.tiny_sets import image_folder


def results(capsys: pytest.CaptureFixture[str], *words: str | Path) -> list[dict[str, object]]:
    assert main([*map(str, words), "--json"]) == 0
    said = capsys.readouterr()
    return json.loads(said.out)["runs"]  # type: ignore[no-any-return]


def learnt(runs: list[dict[str, object]]) -> list[object]:
    return [(run["config"], run["accuracy"], run["per_class_accuracy"], run["class_age"]) for run in runs]


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--epochs", "4", "--weighting", "none,aol", "--seed", "0-1", "--batch-size", "256"],
        ["stream", "--steps", "6", "--weighting", "aol"],
    ],
    ids=lambda words: words[0],
)
def test_stopped_runs_become_what_they_would_have_been(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = results(capsys, *words, "--out", tmp_path / "whole")
    out = tmp_path / "stopped"
    assert main([*words, "--out", str(out), "--minutes", "0"]) == 0
    said = capsys.readouterr().out
    assert f"aol resume {out}" in said
    assert "0/" in said
    assert learnt(results(capsys, "resume", out)) == learnt(whole)
    assert learnt(results(capsys, "resume", out)) == learnt(whole)  # and complete ones are shown again


def test_sigterm_ends_with_143_and_keeps_what_was_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, log = tmp_path / "out", tmp_path / "log"
    child = forked(["train", "--epochs", "5000", "--out", str(out)], log=log)
    end = time.monotonic() + PATIENCE
    while not (out / "work").exists() and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.3)
    os.kill(child, signal.SIGTERM)
    assert status_of(child) == 143
    assert list(out.glob("work/*/checkpoint.pt"))
    assert main(["resume", str(out), "--minutes", "0"]) == 0
    assert "0/1 runs complete" in capsys.readouterr().out


def test_flags_override_how_but_not_what(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    words = ["train", "--epochs", "2", "--batch-size", "512", "--keep-samples", "--workers", "0", "--out", str(out)]
    assert main([*words, "--minutes", "0"]) == 0
    capsys.readouterr()
    (run,) = results(capsys, "resume", out, "--device", "cpu", "--together", "1")
    assert list(Path(str(run["out"])).glob("samples*"))
    assert (read_request(out) or {})["command"] == "train"


def test_relative_data_is_found_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    image_folder(tmp_path / "photos")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    words = ["train", "--data", "photos", "--image-size", "16", "--net", "cnn", "--epochs", "1", "--out", "out"]
    assert main([*words, "--data-dir", "sets", "--minutes", "0"]) == 0
    options = (read_request(tmp_path / "out") or {})["options"]
    assert isinstance(options, dict)
    assert options["data_dir"] == str(tmp_path / "sets")
    monkeypatch.chdir(tmp_path / "elsewhere")
    capsys.readouterr()
    (run,) = results(capsys, "resume", tmp_path / "out")
    assert run["finished"]


def test_what_cannot_be_continued_is_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "request.json").write_text("{")
    for folder, says in (
        (tmp_path / "nowhere", "no folder"),
        (tmp_path, "aol train"),
        (tmp_path / "damaged", "which runs"),
    ):
        assert main(["resume", str(folder)]) == 2
        said = capsys.readouterr()
        assert (said.out, said.err.count("\n")) == ("", 1)
        assert says in said.err
