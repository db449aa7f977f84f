"""What a folder refuses, what it survives: a full disk, damage, a second process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from aol.cli import main
from aol.lab.train import groups
from aol.lab.train.groups import load_checkpoint
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path | None]:
    """A disk of 4 MB of its own, or None where this process may not mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    mounted = shutil.which("mount") and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    yield disk if mounted else None
    if mounted:
        subprocess.run(["umount", str(disk)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(b"\0" * 4096)


def test_a_full_disk_stops_the_run_in_a_sentence_and_leaves_the_checkpoint_whole(
    small_disk: Path | None, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    out = (small_disk or tmp_path) / "runs"
    if small_disk is not None:
        child = forked(words(out, epochs=25), log=log)
        wait_for(out)
        fill(small_disk / "filler")
        assert status_of(child) == 1
        (small_disk / "filler").unlink()
    else:  # the nearest thing that needs no rights: files may not grow beyond a limit
        begun(out, epochs=25)
        limit = (2000, resource.RLIM_INFINITY)
        child = forked(words(out, "--resume", epochs=25), lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit), log)
        assert status_of(child) == 1
    lines = log.read_text().splitlines()
    assert lines[-1].startswith("aol: ")
    assert "disk is full" in lines[-1]
    assert "Traceback" not in log.read_text()
    assert load_checkpoint(wait_for(out))["epoch"] >= 1
    assert not list(out.rglob("*.part"))
    assert status_of(forked(words(out, "--resume", epochs=25))) == 0
    assert status_of(forked(words(tmp_path / "straight", epochs=25))) == 0
    assert told(out) == told(tmp_path / "straight")


def test_a_file_that_may_not_grow_counts_as_a_full_disk(tmp_path: Path) -> None:
    limit = (2000, resource.RLIM_INFINITY)
    log = tmp_path / "log"
    child = forked(words(tmp_path / "a"), lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit), log)
    assert status_of(child) == 1
    assert "disk is full" in log.read_text().splitlines()[-1]
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("damage", ["cut short", "a bit", "another format", "a pickle that runs code"])
def test_runs_with_a_damaged_checkpoint_start_again(damage: str, tmp_path: Path, said) -> None:  # type: ignore
    out = tmp_path / "a"
    begun(out)
    path = wait_for(out)
    whole = path.read_bytes()
    if damage == "cut short":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "a bit":
        path.write_bytes(whole[:999] + bytes([whole[999] ^ 1]) + whole[1000:])
    else:
        if damage == "another format":
            torch.save({"format": 0}, path)
        else:
            torch.save({"format": groups.CHECKPOINT_FORMAT, "epoch": forked}, path)
        path.write_bytes(path.read_bytes() + hashlib.sha256(path.read_bytes()).digest())
    status, err = said(*words(out, "--resume"))
    assert status == 0
    why = "another version of aol" if damage == "another format" else "is damaged"
    assert "start again from the first epoch" in err
    assert why in err
    assert not (out / "work").exists()
    assert said(*words(tmp_path / "b"))[0] == 0
    assert told(out) == told(tmp_path / "b")


def test_checkpoints_hold_tensors_and_plain_values_alone(tmp_path: Path) -> None:
    begun(tmp_path, "--keep-samples")
    state = load_checkpoint(wait_for(tmp_path))
    assert {"learner", "history", "ages", "test_ages", "error_rates", "epoch", "runs", "failed"} <= state.keys()


def test_runs_are_neither_overwritten_nor_mixed_with_others(tmp_path: Path, said) -> None:  # type: ignore
    assert said(*words(tmp_path, epochs=1))[0] == 0
    before = told(tmp_path)
    status, err = said(*words(tmp_path, epochs=1))
    assert status == 2
    assert "--resume" in err
    assert "--fresh" in err
    for more in (words(tmp_path, "--resume", epochs=2), words(tmp_path, "--resume", "--seed", "0,1", epochs=1)):
        status, err = said(*more)
        assert status == 2
        assert "holds other runs" in err
    assert told(tmp_path) == before


def test_a_folder_that_is_called_as_an_option_is_not_taken_for_one(
    tmp_path: Path,
    said,
    monkeypatch: pytest.MonkeyPatch,  # type: ignore
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said(*words(Path("data"), epochs=1))[0] == 0
    assert said(*words(Path("data"), epochs=1))[1].startswith("aol: data already holds runs: ")


def test_what_is_over_is_not_trained_again(tmp_path: Path, said) -> None:  # type: ignore
    assert said(*words(tmp_path, epochs=1))[0] == 0
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    status, err = said(*words(tmp_path, "--resume", epochs=1))
    assert (status, err) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()} == stamps


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


def test_a_folder_in_which_nothing_was_trained_yet_is_free(tmp_path: Path, said) -> None:  # type: ignore
    child = forked(words(tmp_path, "--checkpoint-seconds", "1000", epochs=500))
    wait_for(tmp_path, "work/*/group.json")
    os.kill(child, signal.SIGKILL)
    status_of(child)
    assert said(*words(tmp_path, "--seed", "3", epochs=1))[0] == 0


def test_wrong_words_leave_no_trace_in_the_folder(tmp_path: Path, said) -> None:  # type: ignore
    status, err = said(*words(tmp_path, "--net", "resnet34"))
    assert status == 2
    assert "net='resnet34' does not fit the images of digits" in err
    assert "image_size must be at least 32" in err
    assert list(tmp_path.iterdir()) == []


def test_a_second_process_on_the_same_folder_is_refused_until_the_first_one_ends(tmp_path: Path, said) -> None:  # type: ignore
    child = forked(words(tmp_path, epochs=2000))
    checkpoint = wait_for(tmp_path)
    for more in ([], ["--resume"], ["--fresh"]):
        status, err = said(*words(tmp_path, *more, epochs=2000))
        assert status == 1
        assert "is in use by another aol process" in err
    os.kill(child, signal.SIGKILL)
    status_of(child)
    assert checkpoint.exists()
    assert said(*words(tmp_path, "--fresh", epochs=1))[0] == 0


def test_fresh_deletes_runs_and_nothing_else(tmp_path: Path, said) -> None:  # type: ignore
    out = tmp_path / "a"
    assert said(*words(out, "--seed", "1,2", epochs=1))[0] == 0
    (out / "notes.txt").write_text("mine")
    assert said(*words(out, "--fresh", "--seed", "3", epochs=1))[0] == 0
    assert len(list((out / "runs").iterdir())) == 1
    assert (out / "notes.txt").read_text() == "mine"
    other = tmp_path / "thesis"
    (other / "runs").mkdir(parents=True)
    (other / "runs" / "chapter").write_text("one")
    assert said(*words(other, "--fresh", epochs=1))[0] == 0
    assert (other / "runs" / "chapter").read_text() == "one"
    assert said(*words(out, "--fresh", "--resume"))[0] == 2


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path, said) -> None:  # type: ignore
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        status, err = said(*words(out))
        assert status == 2
        assert f"--out {out} is, or is inside, a file" in err
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_may_not_be_written_is_refused(
    tmp_path: Path,
    said,
    monkeypatch: pytest.MonkeyPatch,  # type: ignore
) -> None:
    def refuse(*given: object, **named: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)  # whoever runs the tests may be allowed everything
    out = tmp_path / "closed"
    status, err = said(*words(out))
    assert status == 2
    assert "cannot be written to: permission denied" in err


@pytest.mark.parametrize("damage", ["{", "[]", '{"runs": 3}'])
def test_damaged_notes_are_written_anew_by_the_same_command(damage: str, tmp_path: Path, said) -> None:  # type: ignore
    assert said(*words(tmp_path, epochs=1))[0] == 0
    notes = tmp_path / "request.json"
    whole = json.loads(notes.read_text())
    notes.write_text(damage)
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
    request["options"] |= {"together": "2"}
    path.write_text(json.dumps(request))
    status, err = said("resume", str(tmp_path))
    assert (status, err.count("\n")) == (2, 1)
    assert "request.json: options, together" in err
