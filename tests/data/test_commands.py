from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aol.data import named
from aol.data.commands import app
from tests.support.tiny_sets import image_folder

runner = CliRunner()


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AOL_DATA", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))


def _run(*words: str | Path) -> tuple[int, str, str]:
    result = runner.invoke(app, [str(w) for w in words])
    return result.exit_code, result.stdout, result.stderr


def test_list_names_every_set_and_where_it_is() -> None:
    status, out, _ = _run("list")
    assert status == 0
    assert all(name in out for name in named.NAMES)
    assert "not here: aol data get cifar10" in out
    status, out, _ = _run("list", "--json")
    assert [s["name"] for s in json.loads(out)["sets"]] == list(named.NAMES)


def test_get_of_what_is_embedded_needs_no_network() -> None:
    assert _run("get", "digits") == (0, "digits: inside scikit-learn\n", "")
    assert json.loads(_run("get", "digits", "--json")[1]) == {
        "name": "digits",
        "where": "inside scikit-learn",
    }


def test_get_without_a_network_fails_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aol.data.download.time.sleep", lambda _: None)
    status, out, err = _run("get", "cifar10", "--data-dir", tmp_path, "--mirror", "http://127.0.0.1:9")
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert "put cifar-10-python.tar.gz from" in err


def test_wrong_words_exit_with_two() -> None:
    for words in (
        ["get", "cifar"],
        ["check", "cifar"],
        ["check", ""],
        ["get"],
        ["frobnicate"],
        ["check", "digits", "--workers", "0"],
    ):
        status, out, err = _run(*words)
        assert (status, out) == (2, ""), words
        assert err
    assert _run("get", "cifar")[2] == (
        "aol data: unknown data set 'cifar'; built-in names are digits, fashion-mnist, cifar10, cifar100\n"
    )


def test_check_says_what_is_there_and_what_is_wrong(tmp_path: Path) -> None:
    status, out, _ = _run("check", "digits")
    assert status == 0
    assert out == "digits: built-in, inside scikit-learn, 10 classes, 1,438 train, 359 test: all right\n"
    status, out, err = _run("check", "cifar10")
    assert (status, out) == (1, "")
    assert "cifar10 was not found in" in err
    root = image_folder(tmp_path / "set")
    (root / "train/n01440764/n01440764_0.JPEG").write_bytes(b"x")
    assert _run("check", root)[0] == 0
    status, out, err = _run("check", root, "--decode", "--json")
    assert status == 1
    report = json.loads(out)
    assert report["ok"] is False
    assert "n01440764_0.JPEG: not an image" in report["problems"][0]
    assert err.count("\n") == 1
    assert _run("check", tmp_path / "nowhere")[0] == 1


def test_pack_packs_and_packs_again(tmp_path: Path) -> None:
    root = image_folder(tmp_path / "set")
    status, out, _ = _run("pack", root, tmp_path / "packed", "--size", "16", "--workers", "1")
    assert status == 0
    assert "18 images" in out
    assert "2 shards written, 0 already there" in out
    status, out, _ = _run("pack", root, tmp_path / "packed", "--size", "16", "--json")
    assert (status, json.loads(out)["kept"]) == (0, 2)
    assert _run("check", tmp_path / "packed", "--decode")[0] == 0
    status, _, err = _run("pack", root, root / "inside")
    assert (status, err.count("\n")) == (2, 1)
    assert _run("pack", tmp_path / "nowhere", tmp_path / "p")[0] == 1


@pytest.mark.parametrize(
    "words",
    [["list"], ["get", "cifar"], ["check", "nowhere"], ["pack", "nowhere", "packed"]],
    ids=lambda words: words[0],
)
def test_debug_shows_the_traceback_before_the_line(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**given: object) -> None:
        raise PermissionError("no such luck")

    monkeypatch.setattr("aol.data.commands.list_sets", refuse)
    status, out, err = _run(*words)
    assert (out, err.count("\n"), err.startswith("aol data: ")) == ("", 1, True)
    shown = _run(*words, "--debug")
    assert shown[:2] == (status, "")
    assert shown[2].startswith("Traceback")
    assert shown[2].endswith(f"\n{err}")
