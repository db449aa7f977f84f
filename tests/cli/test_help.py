"""Help pages: all there, fast, without heavy imports, and with defaults that are accepted."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from dataclasses import fields

import pytest

from aol import cli
from aol.__main__ import run
from aol.cli import MODULES, main
from aol.lab.cli import BY_DATA, DEFAULTS, settings_of
from aol.lab.data.named import NAMES
from aol.lab.settings import WEIGHTINGS, Settings
from tests.cli.test_parser import commands

HEAVY = ("torch", "pandas", "rich", "matplotlib", "scipy")
PAGES = sorted(commands(cli.build(*MODULES)))


@pytest.mark.parametrize("words", PAGES, ids=" ".join)
def test_every_page_has_a_description_and_examples_that_are_understood(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--help"]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: {' '.join(('aol', *words))}")
    assert "default: ()" not in text
    assert len(text.splitlines()[2]) > 10
    examples = [line.split("#")[0].split() for line in text.partition("examples:")[2].splitlines() if line.strip()]
    assert examples
    for example in examples:
        assert example[0] == "aol"
        if "COMMAND" not in example and ">" not in example:
            cli.build(*MODULES).parse_args(example[1:])


@pytest.mark.parametrize("words", [(), ("study",), ("data",)], ids=str)
def test_a_command_that_needs_another_prints_its_help(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(words)) == 0
    assert "commands:" in capsys.readouterr().out


def test_no_page_imports_anything_heavy() -> None:
    code = (
        "import sys, io, contextlib\n"
        "from aol.cli import main\n"
        f"for words in {PAGES!r}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n"
        "        assert main([*words, '--help']) == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("columns", [60, 100])
def test_pages_fit_the_terminal(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["train", "--help"]) == 0
    lines = capsys.readouterr().out.partition("examples:")[0].splitlines()
    assert max(map(len, lines)) <= columns


def test_flags_are_in_groups_and_all_settings_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--help"]) == 0
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    for group in ("data:", "network and optimisation:", "errors and imbalance:", "output and resuming:", "execution:"):
        assert f" {group} " in text
    text = re.sub(r"(?<=\w)- (?=\w)", "-", text)  # words with a hyphen may be split at it
    for name, weighting in WEIGHTINGS.items():
        assert f"{name}: {weighting.help}" in text
    assert "60 for digits" in text
    assert {*settings_of("train"), *settings_of("stream")} == set(DEFAULTS) - {"scenario"}


def test_what_the_help_lists_is_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(BY_DATA) == {*NAMES, "folder"}
    assert main(["data", "get", "--help"]) == 0
    assert ", ".join(NAMES) in capsys.readouterr().out


def test_the_help_of_a_setting_lists_every_word_it_may_be() -> None:
    parser = commands(cli.build(*MODULES))[("stream",)]
    texts = {action.dest: action.help or "" for action in parser._actions}
    for option in fields(Settings)[1:]:  # but the scenario
        words = option.metadata.get("choices", ())
        assert [word for word in words if word not in texts[option.name]] == [], option.name


def test_a_warning_is_one_line_without_its_place_in_the_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr("aol.cli.main", lambda: warnings.warn("too few\nsamples", stacklevel=1))
    with pytest.raises(SystemExit):
        run()
    assert capsys.readouterr().err == "aol: warning: too few samples\n"
