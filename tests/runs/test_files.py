"""Files are as before or complete: also those that grow, and whenever their writer is killed."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from aol.records.files import extend_atomically, sweep, write_if_new


def test_a_file_is_extended_behind_the_bytes_that_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "below" / "file"
    extend_atomically(path, 0, b"one\n")
    extend_atomically(path, 4, b"two\nthree\n")
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    extend_atomically(path, 8, b"four\n")
    assert path.read_bytes() == b"one\ntwo\nfour\n"
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_a_file_that_grows_is_whole_whenever_its_writer_is_killed(tmp_path: Path) -> None:
    path, moments = tmp_path / "file", random.Random(0)
    rows = [b"%05d," % number * 2000 + b"\n" for number in range(10_000)]
    for _ in range(8):
        path.unlink(missing_ok=True)
        child = os.fork()
        if not child:
            size = 0
            for row in rows:
                extend_atomically(path, size, row)
                size += len(row)
            os._exit(0)
        end = time.monotonic() + 30
        while not path.exists() and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(moments.uniform(0.0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = path.read_bytes()
        assert found == b"".join(rows[: found.count(b"\n")])
        sweep(tmp_path)
        assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_an_error_leaves_a_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    extend_atomically(path, 0, b"one\n")

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        extend_atomically(path, 4, b"two\n")
    assert path.read_bytes() == b"one\n"
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_what_a_file_holds_already_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_if_new(path, b"one")
    before = path.stat().st_ino
    write_if_new(path, b"one")
    assert path.stat().st_ino == before  # a file that is written is another one
    write_if_new(path, b"two")
    assert path.read_bytes() == b"two"
