"""The record of a run: read back as it was written, and refused in one sentence where it was not."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aol.records.record import DamagedRunError, Run, compact, decode, encode, expand, read_run, write_run
from tests.support.small_runs import small_run


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    run = small_run()
    write_run(tmp_path, run)
    found = read_run(tmp_path)
    for name, value in vars(run).items():
        if name not in ("epochs", "curves", "by_class", "over_time"):
            assert getattr(found, name) == value, name
    assert found.epochs.tolist() == [1, 2, 3, 4]
    for kind, close in (("curves", 1e-6), ("by_class", 1e-6), ("over_time", 2**-16)):
        mine, theirs = getattr(found, kind), getattr(run, kind)
        assert list(mine) == list(theirs)
        for name in mine:
            assert mine[name] == pytest.approx(theirs[name], rel=close, nan_ok=True)
    assert encode(found) == encode(decode(encode(found)))


def test_a_reading_that_was_never_taken_is_left_out() -> None:
    run = small_run(curves={"test_accuracy": np.full(4, 0.5), "lr": np.full(4, np.nan)})
    assert list(decode(encode(run)).curves) == ["test_accuracy"]


@settings(max_examples=40)
@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_compact_numbers_keep_sixteen_bits(values: list[float]) -> None:
    wanted = np.array([values], np.float32)
    found = expand(compact(wanted), wanted.shape)
    finite = np.isfinite(wanted)
    assert np.isnan(found[~finite]).all()
    tiny = np.abs(wanted) < 2.0**-110  # so small that they have fewer bits
    largest = np.abs(wanted) > 3e38  # may be rounded up to infinity
    kept = finite & ~tiny & ~largest
    assert (np.abs(found[kept].astype(float) - wanted[kept]) <= 2.0**-16 * np.abs(wanted[kept].astype(float))).all()


# Damage


def signed(content: dict[str, object]) -> bytes:
    """A file with this content and a matching checksum: what somebody else may have written."""
    body = json.dumps(content, separators=(",", ":"))
    return f'{body[:-1]},"sha256":"{hashlib.sha256(body.encode()).hexdigest()}"}}'.encode()


def changed(**given: object) -> bytes:
    content = json.loads(encode(small_run()))
    del content["sha256"]
    return signed({**content, **given})


@settings(max_examples=60)
@given(st.integers(0, 10**9), st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed(place: int, difference: int) -> None:
    content = bytearray(encode(small_run()).rstrip())
    content[place % len(content)] ^= difference
    with pytest.raises(DamagedRunError):
        decode(bytes(content))


HOSTILE = [b"[" * 100_000, b'{"format":3,"a":' + b"[" * 100_000, b"null", b'{"format": 3, "x": NaN}']


@pytest.mark.parametrize("content", [*(encode(small_run())[:size] for size in (0, 10, 1000)), *HOSTILE])
def test_a_record_cut_short_and_hostile_json_are_refused(content: bytes) -> None:
    with pytest.raises(DamagedRunError, match=r"incomplete or not JSON|not the record of a run|checksum"):
        decode(content)


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "another format": ({"format": 2}, "format 2 of another version of aol; this one reads 3"),
    "no id": ({"id": ""}, "id, method and classes must not be empty"),
    "control characters as id": ({"id": "\x1b[2J\u202e"}, "id must be text without control characters"),
    "method": ({"method": 3}, "method has a value of another type"),
    "a truth as seed": ({"seed": True}, "seed has a value of another type"),
    "finished": ({"finished": 1}, "finished has a value of another type"),
    "settings": ({"settings": {"a": [1]}}, "settings has a value of another type"),
    "many settings": ({"settings": dict.fromkeys(map(str, range(1001)), 0)}, "settings are more than 1000"),
    "no classes": ({"classes": []}, "classes must not be empty"),
    "counts": ({"counts": [1, 2]}, "counts must be whole numbers of 0 or more"),
    "epochs": ({"epochs": [1, 2, 2, 3]}, "epochs must be whole numbers"),
    "epochs beyond all": ({"epochs": [1, 2, 3, 2**62]}, "epochs must be whole numbers"),
    "a curve too short": ({"curves": {"test_accuracy": [0.5]}}, "must be 4 numbers"),
    "text in a curve": ({"curves": {"lr": [1, 2, 3, "4"]}}, "must be 4 numbers"),
    "a huge number": ({"curves": {"lr": [1, 2, 3, 10**400]}}, "a number above"),
    "an infinite number": ({"curves": {"lr": [1, 2, 3, math.inf]}}, "a number above"),
    "an infinite setting": ({"settings": {"lr": math.inf}}, "settings has a value"),
    "seconds that are no number": ({"seconds": math.nan}, "seconds has a value"),
    "accuracy above one": ({"by_class": {"test_accuracy": [0.5, 0.5, 1.5]}}, "from 0 to 1"),
    "not compressed": ({"over_time": {"age": "hello"}}, "cannot be decompressed"),
    "another shape": ({"over_time": {"age": compact(np.ones((2, 3)))}}, "not of the shape"),
    "accuracies above one": ({"over_time": {"test_accuracy": compact(np.full((4, 3), 1.5))}}, "from 0 to 1"),
    "a precision below zero": ({"by_class": {"test_precision": [0.5, -0.5, 0.5]}}, "from 0 to 1"),
    "a bomb": ({"over_time": {"age": base64.b64encode(zlib.compress(bytes(10**8))).decode()}}, "not of the shape"),
    "cut short": ({"over_time": {"age": compact(np.ones((4, 3)))[:-8]}}, "not of the shape"),
    "a negative age": ({"by_class": {"smoothed_age": [1.0, 2.0, -5.0]}}, "0 or more"),
    "a negative weight": ({"by_class": {"weight": [1.0, 2.0, -5.0]}}, "0 or more"),
    "a negative count": ({"over_time": {"train_count": compact(np.full((4, 3), -5.0))}}, "0 or more"),
    "a stranger": ({"more": 1}, "'more'"),
}  # fmt: skip


def test_readings_far_larger_than_their_file_are_refused() -> None:
    """Ten arrays of 40 MB, all zeros, are a few hundred kilobytes in the file."""
    epochs, text = 1000, base64.b64encode(zlib.compress(bytes(4 * 1000 * 10_000))).decode()
    content = json.loads(encode(small_run(classes=["a"] * 10_000, counts=None, curves={}, by_class={}, over_time={})))
    del content["sha256"]
    over_time = {f"age{place}": text for place in range(10)}
    with pytest.raises(DamagedRunError, match="far larger than its file"):
        decode(signed({**content, "epochs": list(range(1, epochs + 1)), "over_time": over_time}))


@pytest.mark.parametrize("what", WRONG)
def test_values_of_the_wrong_kind_are_refused_and_named(what: str) -> None:
    given, message = WRONG[what]
    with pytest.raises(DamagedRunError, match=message):
        decode(changed(**given))


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pipe", "loop", "large"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "pipe" / "run.json")
    with pytest.raises(DamagedRunError, match="not a regular file"):
        read_run(tmp_path / "pipe")
    (tmp_path / "loop" / "run.json").symlink_to(tmp_path / "loop" / "run.json")
    with pytest.raises(DamagedRunError, match="cannot be read"):
        read_run(tmp_path / "loop")
    monkeypatch.setattr("aol.records.record.LARGEST", 10)
    (tmp_path / "large" / "run.json").write_bytes(bytes(11))
    with pytest.raises(DamagedRunError, match=r"run\.json: it cannot be read: it has 11 bytes"):
        read_run(tmp_path / "large")


def test_control_characters_in_names_are_shown_as_codes() -> None:
    run = decode(encode(Run("id", "me\x1b[2Jthod", 0, {}, ["a\x07"], None, np.array([1]))))
    assert (run.method, run.classes) == ("me\\x1b[2Jthod", ["a\\x07"])
