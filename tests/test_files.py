"""Files are as before or complete, whenever their writer is killed; a folder has one writer."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from aol._files import FolderInUseError, locked, remove_partial_files, write_atomically, write_if_changed


def test_a_file_is_complete_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    path, moments = tmp_path / "file", random.Random(0)

    def content(number: int) -> bytes:
        return b"%05d," % number * 10_000

    for _ in range(8):
        path.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            for number in range(100_000):
                write_atomically(path, content(number))
            os._exit(0)
        end = time.monotonic() + 30
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = path.read_bytes()
        assert found == content(int(found[:5]))
        remove_partial_files(tmp_path)
        assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_an_error_leaves_a_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"one\n")

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"two\n")
    assert path.read_bytes() == b"one\n"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_what_a_file_holds_already_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_if_changed(path, b"one")
    before = path.stat().st_ino
    write_if_changed(path, b"one")
    assert path.stat().st_ino == before  # a file that is written is another one
    write_if_changed(path, b"two")
    assert path.read_bytes() == b"two"


def test_a_folder_has_one_writer_and_so_has_each_part_of_it(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(FolderInUseError, match="in use by another aol process"), locked(tmp_path):
        pass
    with locked(tmp_path, "1-of-2"), locked(tmp_path, "2-of-2"):
        for part in ("", "1-of-2"):
            with pytest.raises(FolderInUseError), locked(tmp_path, part):
                pass
    with locked(tmp_path), pytest.raises(FolderInUseError), locked(tmp_path, "1-of-2"):
        pass
    with locked(tmp_path):  # released each time
        pass


def test_a_killed_process_releases_the_folder(tmp_path: Path) -> None:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        with locked(tmp_path):
            os.write(write, b"x")
            time.sleep(60)
        os._exit(0)
    os.read(read, 1)
    with pytest.raises(FolderInUseError), locked(tmp_path):
        pass
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with locked(tmp_path):
        pass
