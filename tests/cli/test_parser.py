"""The parser and the error handler: wrong words are one line, and every error has its exit status."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

import aol.lab.cli
from aol import cli
from aol.cli import MODULES, Parser, main
from aol.lab.cli import number, seconds, seed_list
from aol.lab.data.images import DataError
from aol.lab.settings import WrongSettingsError
from aol.lab.study.cli import write
from tests.support.bad_input import WRONG
from tests.support.running import SRC
from tests.support.running import aol as aol_in_a_process


def commands(parser: argparse.ArgumentParser, prefix: tuple[str, ...] = ()) -> dict[tuple[str, ...], Parser]:
    """Return every command by its words, groups of commands included."""
    by_words = {prefix: parser}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                by_words |= commands(below, (*prefix, name))
    return by_words  # type: ignore[return-value]


def flags(*words: str) -> set[str]:
    parser = commands(cli.build(*MODULES))[words]
    return {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")}


@pytest.mark.parametrize("words", WRONG, ids=str)
def test_wrong_words_are_one_line_that_says_what_would_be_right(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    given = words.split()
    status = main([given[0], "--out", str(out), *given[1:]] if "--out=" not in given else given)
    said = capsys.readouterr()
    assert (status, said.out) == (2, "")
    assert said.err.startswith("aol: ")
    assert said.err.count("\n") == 1
    assert WRONG[words] in said.err
    assert not list(out.rglob("*.json"))


@pytest.mark.parametrize("command", ["train", "stream"])
def test_every_flag_is_in_the_tour_of_bad_input_or_takes_anything(command: str) -> None:
    toured = {word.split("=")[0] for words in WRONG for word in words.split() if word.startswith("--")}
    anything = {"--out", "--deterministic", "--json", "--debug", "--help", "--ray"}
    assert flags(command) - toured - anything == set()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["trian"], "COMMAND: invalid choice: 'trian' (choose from"),
        (["--jsn"], "there is no flag --jsn"),
        (["study", "rum"], "invalid choice: 'rum'"),
        (["study", "run"], "required: STUDY (see aol study run --help)"),
        (["study", "run", "x", "--seed", "1"], "no flag --seed. Did you mean '--seeds'? (see aol study run --help)"),
        (["data", "gte", "a"], "invalid choice: 'gte'"),
        (["data", "get"], "required: NAME (see aol data get --help)"),
        (["report"], "required: RUN (see aol report --help)"),
        (["show", "x", "--format", "cvs"], "--format: invalid choice: 'cvs'"),
        (["resume"], "required: FOLDER (see aol resume --help)"),
    ],
)
def test_the_right_word_and_the_right_help_page_are_suggested(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(("name", "extra"), [("show", "report"), ("report", "report"), ("train", "lab")])
def test_a_missing_package_is_named_once_with_the_extra_that_has_all(name: str, extra: str, tmp_path: Path) -> None:
    (tmp_path / "pandas.py").write_text("raise ModuleNotFoundError(\"No module named 'pandas'\", name='pandas')\n")
    words = [name, "--epochs", "1", "--out", tmp_path / "run"] if name == "train" else [name, tmp_path]
    said = aol_in_a_process(*words, cwd=tmp_path, PYTHONSAFEPATH="", PYTHONPATH=f"{tmp_path}{os.pathsep}{SRC}")
    assert said.status == 1
    assert said.err.count("pip install") == 1
    assert f"needs pandas, which is not installed: pip install '.[{extra}]'" in said.err


def test_a_file_as_data_is_answered_with_the_pages_for_tables_and_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "table.csv").touch()
    assert main(["train", "--data", str(tmp_path / "table.csv")]) == 2
    assert "sklearn.md" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (RuntimeError("CUDA out of memory.\nTried to allocate"), 1, "CUDA out of memory. Tried to allocate"),
        (KeyError("x"), 1, "KeyError: 'x'"),
        (ValueError("rho is off"), 2, "rho is off"),
        (WrongSettingsError("epochs must be more"), 2, "epochs must be more"),
        (DataError("cat/3.png: not an image"), 1, "cat/3.png"),
        (FileNotFoundError("nowhere: no such folder"), 2, "nowhere"),
        (PermissionError(13, "Permission denied", "place"), 1, "place"),
        (OSError(28, "No space left on device"), 1, "disk is full"),
        (ModuleNotFoundError("needs pillow"), 1, "pillow"),
        (KeyboardInterrupt(), 130, "stopped"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_happens_is_one_line_and_a_traceback_only_on_request(
    error: BaseException,
    status: int,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*given: object) -> None:
        raise error

    monkeypatch.setattr(aol.lab.cli, "_output_folder", fail)
    assert main(["train", "--out", str(tmp_path)]) == status
    said = capsys.readouterr().err
    assert said.startswith("aol: ")
    assert said.count("\n") == 1
    assert says in said
    if status != 130:
        assert main(["train", "--debug", "--out", str(tmp_path)]) == status
        shown = capsys.readouterr().err
        assert shown.startswith("Traceback")
        assert shown.endswith(f"\n{said}")


def test_a_device_is_not_replaced_by_a_file() -> None:
    with pytest.raises(cli.UsageError, match="--write: /dev/null is not a plain file"):
        write(Path("/dev/null"), b"")


def test_the_types_of_flags() -> None:
    assert seed_list("--seed", "0-2, 7,9-9") == [0, 1, 2, 7, 9]
    assert seconds("0") == 0.0
    for text in ("0", "inf", "x"):
        with pytest.raises(argparse.ArgumentTypeError):
            number(0.1)(text)
