"""Files are as before or complete, whenever their writer is killed; a folder has one writer."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from aol import _files
from aol._files import FolderInUseError, locked, remove_partial_files, write_atomically, write_if_changed
from tests.support.running import PATIENCE


def test_a_file_is_complete_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    path, moments = tmp_path / "file", random.Random(0)

    def content(number: int) -> bytes:
        return b"%05d," % number * 10_000

    for _ in range(3):
        path.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            for number in range(100_000):
                write_atomically(path, content(number))
            os._exit(0)
        end = time.monotonic() + PATIENCE
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        whole = path.read_bytes()
        assert whole == content(int(whole[:5]))
        remove_partial_files(tmp_path)
        assert [left.name for left in tmp_path.iterdir()] == ["file"]


def test_an_error_leaves_a_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"one\n")

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"two\n")
    assert path.read_bytes() == b"one\n"
    assert [left.name for left in tmp_path.iterdir()] == ["file"]


def test_what_a_file_holds_already_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_if_changed(path, b"one")
    before = path.stat().st_ino
    write_if_changed(path, b"one")
    assert path.stat().st_ino == before  # a file that is written is another one
    write_if_changed(path, b"two")
    assert path.read_bytes() == b"two"


def test_a_file_that_may_not_be_read_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"one")

    def refused(_: Path) -> bytes:
        raise PermissionError("not yours")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", refused)
        with pytest.raises(PermissionError, match="not yours"):
            write_if_changed(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"one"


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(FolderInUseError, match="in use by another aol process"), locked(tmp_path):
        pass
    with locked(tmp_path):  # released each time
        pass


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # waits, and the next one never ends
    (tmp_path / "zeros").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "zeros", "folder"):
        with pytest.raises(OSError, match=r"regular|directory"):
            _files.read_regular(tmp_path / name, 10)
    (tmp_path / "large").write_bytes(bytes(11))
    with pytest.raises(OSError, match="11 bytes; the largest allowed is 10"):
        _files.read_regular(tmp_path / "large", 10)
    assert _files.read_regular(tmp_path / "large", 11) == bytes(11)
    (tmp_path / "deep").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="deep"):
        _files.read_json(tmp_path / "deep")
    _files.write_if_changed(tmp_path / "pipe", b"new")
    assert (tmp_path / "pipe").read_bytes() == b"new"
