from __future__ import annotations

import json
from pathlib import Path

import pytest

from aol.cli import main
from aol.lab.data import named

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
    assert [known["name"] for known in json.loads(out)["sets"]] == list(named.NAMES)


def test_get_of_what_is_embedded_needs_no_network(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "get", "digits") == (0, "digits: inside scikit-learn\n", "")
    _, out, _ = run(capsys, "get", "digits", "--json")
    assert json.loads(out) == {"name": "digits", "where": "inside scikit-learn"}


def test_a_wrong_name_exits_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "get", "cifar")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "'cifar' (choose from" in err


def test_ctrl_c_says_how_to_continue(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stopped(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("aol.lab.data.named.get", stopped)
    assert run(capsys, "get", "cifar10") == (130, "", "aol: stopped; run the same command again.\n")
