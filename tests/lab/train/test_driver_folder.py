"""What a folder refuses, what it survives: a full disk, damage, a second process."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import signal
from pathlib import Path

import pytest
import torch

from aol.cli import main
from aol.lab.train import folder
from aol.lab.train.folder import load_checkpoint
from tests.support.running import forked, status_of, told, wait_for

pytestmark = pytest.mark.usefixtures("_loaded")
QUICK = ["--checkpoint-seconds", "0", "--batch-size", "128"]


def words(out: Path, *more: str, epochs: int = 6) -> list[str]:
    return ["train", "--epochs", str(epochs), "--weighting", "aol", "--out", str(out), *QUICK, *more]


def begun(out: Path, *more: str, epochs: int = 6) -> None:
    """Start a run and kill it after a checkpoint."""
    child = forked(words(out, *more, epochs=epochs))
    wait_for(out)
    os.kill(child, signal.SIGKILL)
    assert status_of(child) == -signal.SIGKILL


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> object:
    def run(*given: str) -> tuple[int, str]:
        status = main(list(given))
        captured = capsys.readouterr()
        return status, captured.err

    return run


def test_a_full_disk_stops_the_run_in_a_sentence_and_leaves_the_checkpoint_whole(tmp_path: Path) -> None:
    """A file that may not grow is the nearest thing to a full disk that needs no rights."""
    out, log, limit = tmp_path / "runs", tmp_path / "log", (2000, resource.RLIM_INFINITY)
    begun(out)
    child = forked(words(out, "--resume"), lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit), log)
    assert status_of(child) == 1
    lines = log.read_text().splitlines()
    assert lines[-1].startswith("aol: ")
    assert "disk is full" in lines[-1]
    assert "Traceback" not in log.read_text()
    assert load_checkpoint(wait_for(out))["epoch"] >= 1
    assert not list(out.rglob("*.part"))
    assert status_of(forked(words(out, "--resume"))) == 0
    assert status_of(forked(words(tmp_path / "straight"))) == 0
    assert told(out) == told(tmp_path / "straight")


@pytest.mark.parametrize("damage", ["a bit", "a pipe", "another format", "a pickle that runs code"])
def test_runs_with_a_damaged_checkpoint_start_again(damage: str, tmp_path: Path, said) -> None:  # type: ignore
    out = tmp_path / "a"
    begun(out)
    path = wait_for(out)
    whole = path.read_bytes()
    if damage == "a bit":
        path.write_bytes(whole[:999] + bytes([whole[999] ^ 1]) + whole[1000:])
    elif damage == "a pipe":
        path.unlink()
        os.mkfifo(path)
    else:
        if damage == "another format":
            torch.save({"format": 0}, path)
        else:
            torch.save({"format": folder.CHECKPOINT_FORMAT, "epoch": forked}, path)
        path.write_bytes(path.read_bytes() + hashlib.sha256(path.read_bytes()).digest())
    status, err = said(*words(out, "--resume"))
    assert status == 0
    why = {"another format": "another version of aol", "a pipe": "not a regular file"}.get(damage, "is damaged")
    assert "start again from the first epoch" in err
    assert why in err
    assert not (out / "work").exists()
    assert said(*words(tmp_path / "b"))[0] == 0
    assert told(out) == told(tmp_path / "b")


def test_runs_are_neither_overwritten_nor_mixed_with_others(tmp_path: Path, said) -> None:  # type: ignore
    assert said(*words(tmp_path, epochs=1))[0] == 0
    before = told(tmp_path)
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert said(*words(tmp_path, "--resume", epochs=1)) == (0, "")  # what is over is not trained again
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == stamps
    status, err = said(*words(tmp_path, epochs=1))
    assert status == 2
    assert "--resume" in err
    assert "--fresh" in err
    for more in (words(tmp_path, "--resume", epochs=2), words(tmp_path, "--resume", "--seed", "0,1", epochs=1)):
        status, err = said(*more)
        assert status == 2
        assert "holds other runs" in err
    assert told(tmp_path) == before


@pytest.mark.parametrize("damage", ["missing", "flipped"])
def test_a_run_whose_samples_cannot_be_read_is_trained_again(damage: str, tmp_path: Path, said) -> None:  # type: ignore
    out = tmp_path / "out"
    assert said(*words(out, "--keep-samples", epochs=2))[0] == 0
    (path,) = out.glob("runs/*/samples.safetensors")
    whole = path.read_bytes()
    path.unlink() if damage == "missing" else path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    status, err = said("resume", str(out))
    assert status == 0
    assert f"{path} is damaged and its run is trained again" in err
    assert path.read_bytes() == whole
    assert said("resume", str(out)) == (0, "")


def test_a_second_process_on_the_same_folder_is_refused_until_the_first_one_ends(tmp_path: Path, said) -> None:  # type: ignore
    child = forked(words(tmp_path, epochs=2000))
    checkpoint = wait_for(tmp_path)
    status, err = said(*words(tmp_path, "--resume", epochs=2000))
    assert status == 1
    assert "is in use by another aol process" in err
    os.kill(child, signal.SIGKILL)
    status_of(child)
    assert checkpoint.exists()
    assert said(*words(tmp_path, "--fresh", epochs=1))[0] == 0


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path, said) -> None:  # type: ignore
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        status, err = said(*words(out))
        assert status == 2
        assert f"--out {out} is, or is inside, a file" in err
    assert (tmp_path / "file").read_text() == "mine"


def test_damaged_notes_are_written_anew_by_the_same_command(tmp_path: Path, said) -> None:  # type: ignore
    assert said(*words(tmp_path, epochs=1))[0] == 0
    notes = tmp_path / "request.json"
    whole = json.loads(notes.read_text())
    notes.write_text('{"runs": 3}')
    status, err = said("resume", str(tmp_path))
    assert status == 2
    assert "request.json" in err
    assert "--resume" in err
    assert said(*words(tmp_path, "--resume", epochs=1)) == (0, "")  # nothing is trained again
    assert json.loads(notes.read_text())["ids"] == whole["ids"]
    assert said("resume", str(tmp_path))[0] == 0


def test_resuming_connects_to_no_address_and_deletes_nothing_that_a_folder_names(tmp_path: Path, said) -> None:  # type: ignore
    assert said(*words(tmp_path, epochs=1))[0] == 0
    (record,) = tmp_path.glob("runs/*/run.json")
    whole = record.read_bytes()
    path = tmp_path / "request.json"
    request = json.loads(path.read_text())
    request["options"] |= {"ray": "127.0.0.1:9", "fresh": True}
    path.write_text(json.dumps(request))
    assert said("resume", str(tmp_path)) == (0, "")
    assert record.read_bytes() == whole
