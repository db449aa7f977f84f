from __future__ import annotations

import errno
import json
from importlib import import_module
from pathlib import Path

import pytest

from aol.cli import main
from aol.lab.data import named
from tests.support.tiny_sets import image_folder

Run = tuple[int, str, str]


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOL_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> Run:
    status = main(["data", *map(str, words)])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_list_names_every_set_and_where_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "list")
    assert status == 0
    assert all(name in out for name in named.NAMES)
    assert "aol data get cifar10" in out
    _, out, _ = run(capsys, "list", "--json")
    assert [each["name"] for each in json.loads(out)["sets"]] == list(named.NAMES)


def test_get_of_what_is_embedded_needs_no_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "get", "digits") == (0, "digits: inside scikit-learn\n", "")
    _, out, _ = run(capsys, "get", "digits", "--json")
    assert json.loads(out) == {"name": "digits", "where": "inside scikit-learn"}


def test_get_without_a_network_fails_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "get", "cifar10", "--data-dir", tmp_path, "--mirror", "http://127.0.0.1:9")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "cifar-10-python.tar.gz" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["get", "cifar"], "Did you mean 'cifar10'?"),
        (["check", "cifar"], "Did you mean 'cifar10'?"),
        (["check", ""], "''"),
        (["check", "./nowhere"], "./nowhere"),
        (["check", __file__], "is a file"),
        (["check", "digits", "--workers", "0"], "--workers must be a whole number of 1 or more"),
        (["pack", "nowhere", "p"], "nowhere"),
        (["pack", "digits", "p"], "built-in data set digits"),
        (["pack", "hf:mnist", "p"], "SOURCE hf:mnist is read by another library"),
        (["pack", "digit", "p"], "Did you mean 'digits'?"),
        (["pack", "", "p"], "''"),
        (["pack", "digits", ""], "''"),
    ],
)
def test_wrong_words_exit_with_two(
    words: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, *words)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert says in err


def test_check_says_what_is_there_and_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "check", "digits")
    assert status == 0
    assert out.startswith("digits: built-in, inside scikit-learn, 10 classes, 1,438 train, 359 test")
    status, out, err = run(capsys, "check", "cifar10")
    assert (status, err.count("\n")) == (1, 1)
    assert "cifar10 was not found in" in out


def test_check_prints_every_problem_and_exits_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = image_folder(tmp_path / "set")
    names = [f"train/n01440764/{number}\x1b[2J.jpg" for number in range(30)]
    for name in names:
        (root / name).write_bytes(b"x")
    status, out, err = run(capsys, "check", root)
    assert (status, err) == (1, "aol: set: 30 problems found.\n")
    assert out.count("not an image") == 30
    assert "\x1b" not in out  # which would clear the screen
    status, out, err = run(capsys, "check", root, "--decode", "--json")
    assert (status, err.count("\n")) == (1, 1)
    assert json.loads(out)["ok"] is False
    assert len(json.loads(out)["problems"]) == 30


def test_pack_says_how_it_goes_on_after_a_full_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "no space left for train-00000.bin")

    monkeypatch.setattr(import_module("aol.lab.data.pack"), "pack", full)
    status, _, err = run(capsys, "pack", image_folder(tmp_path / "photos"), tmp_path / "packed")
    assert status == 1
    assert err == "aol: the disk is full: free some space; run the same command again to continue.\n"


def test_pack_packs_and_packs_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = image_folder(tmp_path / "set")
    status, out, _ = run(capsys, "pack", root, tmp_path / "packed", "--size", "16", "--workers", "1")
    assert status == 0
    assert "18 images" in out
    assert "2 shards written, 0 already there" in out
    status, out, _ = run(capsys, "pack", root, tmp_path / "packed", "--size", "16", "--json")
    assert (status, json.loads(out)["kept"]) == (0, 2)
    assert run(capsys, "check", tmp_path / "packed", "--decode")[0] == 0
    status, _, err = run(capsys, "pack", root, root / "inside")
    assert (status, err.count("\n")) == (2, 1)


def test_ctrl_c_says_how_to_continue(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("aol.lab.data.download.get", stopped)
    assert run(capsys, "get", "cifar10") == (130, "", "aol: stopped; run the same command again to continue.\n")
