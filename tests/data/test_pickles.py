from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from aol.data.errors import DataError
from aol.data.pickles import read_plain_pickle


class _Touch:
    """A malicious object: unpickling it the usual way runs a command."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.target}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_malicious_pickle_is_refused_and_never_runs(tmp_path: Path, protocol: int) -> None:
    path, target = tmp_path / "batch", tmp_path / "ran"
    path.write_bytes(pickle.dumps({b"data": _Touch(target)}, protocol=protocol))
    with pytest.raises(DataError, match="batch: refused, it holds more than arrays"):
        read_plain_pickle(path)
    assert not target.exists()


@pytest.mark.parametrize(
    "program",
    [
        b"cbuiltins\neval\n(V1+1\ntR.",
        b"cnumpy\nload\n(Vx\ntR.",
        b"\x80\x04\x8c\x05numpy\x8c\x0bdtype.names\x93.",
        b"cnumpy\ndtype\n(VO\nI0\nI1\ntR.",
        b"c_codecs\nencode\n(Vx\nVzlib\ntR.",
        b"Pthing\n.",
        b"\x80\x02cnumpy\nndarray\n(I1000000000000\ntR.",
    ],
)
def test_every_name_but_the_four_of_an_array_is_refused(tmp_path: Path, program: bytes) -> None:
    path = tmp_path / "batch"
    path.write_bytes(program)
    with pytest.raises(DataError, match="batch"):
        read_plain_pickle(path)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kind", ["u1", ">i4", "<f8", "i8"])
def test_arrays_come_back_as_they_were(tmp_path: Path, order: str, kind: str) -> None:
    array = np.asarray(np.arange(12).reshape(3, 4), dtype=kind, order=order)  # type: ignore[call-overload]
    path = tmp_path / "batch"
    path.write_bytes(pickle.dumps({"data": array, "labels": [1, [2.5, None, "x"]]}, protocol=2))
    found = read_plain_pickle(path)
    np.testing.assert_array_equal(found["data"], array)
    assert found["labels"] == [1, [2.5, None, "x"]]


def test_a_python_2_pickle_as_the_official_files_are_is_read(tmp_path: Path) -> None:
    # Protocol 2 as Python 2 wrote it: byte strings are SHORT_BINSTRING (U), not encoded text.
    program = (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x01K\x02\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff"
        b"J\xff\xff\xff\xffK\x00tb\x89U\x02\x07\x09tbU\x06labels]K\x03au."
    )
    path = tmp_path / "batch"
    path.write_bytes(program)
    found = read_plain_pickle(path)
    np.testing.assert_array_equal(found["data"], [[7, 9]])
    assert found["labels"] == [3]


def test_a_cut_off_pickle_is_named(tmp_path: Path) -> None:
    whole = pickle.dumps({"data": np.zeros((4, 3072), np.uint8)}, protocol=2)
    path = tmp_path / "batch"
    for cut in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(DataError, match="batch: not a whole pickle"):
            read_plain_pickle(path)
