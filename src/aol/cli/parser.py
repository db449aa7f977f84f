"""The look of every command: parser with plain errors and suggestions, help pages, and types of flags.

Nothing here, and nothing that the modules of `aol.cli` import at their top, imports torch, pandas or rich: a help page
takes milliseconds.
"""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from aol.engine.settings import WrongSettingsError

Commands: TypeAlias = "argparse._SubParsersAction[Parser]"

WIDEST = 110
_EXAMPLES = "examples:"
MOST_SEEDS = 10_000
_ELSEWHERE = {"--epochs": "--steps", "--steps": "--epochs", "--seed": "--seeds", "--seeds": "--seed"}


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, up to a readable width, with the default behind each flag's text."""

    def __init__(self, prog: str) -> None:
        width = min(WIDEST, shutil.get_terminal_size((100, 24)).columns) - 2
        super().__init__(prog, max_help_position=min(30, width // 3), width=width)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        given = action.default
        told = (
            action.option_strings and given is not None and given is not False and given not in ([], argparse.SUPPRESS)
        )
        number = ":g" if isinstance(given, float) else ""
        return f"{text} (default: {given:{number[1:]}})" if told and "default" not in text else text

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(_EXAMPLES):
            return super()._fill_text(text, width, indent)
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


class Parser(argparse.ArgumentParser):
    """Wrong words raise `WrongSettingsError` with a suggestion and the help page to read, and print no usage."""

    def __init__(self, *given: Any, examples: Sequence[str] = (), **named: Any) -> None:
        if examples:
            named["epilog"] = "\n".join((_EXAMPLES, *(f"  {line}" for line in examples)))
        named |= {"formatter_class": _Formatter, "allow_abbrev": False, "add_help": False}
        super().__init__(*given, **named)
        self.add_argument("-h", "--help", action="help", help="show this help")

    def format_help(self) -> str:
        """Return the help page; flags are listed below the usage line, not in it."""
        words = []
        for action in self._actions:
            if not action.option_strings:
                more = "..." if action.nargs in ("*", "+") else ""
                words.append(f"[{action.metavar}{more}]" if action.nargs == "*" else f"{action.metavar}{more}")
        self.usage = " ".join((self.prog, *words, "[FLAGS]"))
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving; argparse's own sentences are reworded."""
        message = re.sub(r"^argument ([^:]+): (?=must |needs )", r"\1 ", message)
        message = re.sub(r"^argument ([^:]+): expected (one|at least one) argument$", r"\1 needs a value", message)
        message = re.sub(r"^argument ([^:]+): ", r"\1: ", message)
        message = re.sub(r"^the following arguments are required: (.+)$", r"\1 is missing", message)
        raise WrongSettingsError(f"{message.rstrip('.')} (see {self.prog} --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse; what a command does not know is its own error, so that its own help page is named."""
        parsed, strange = super().parse_known_args(args, namespace)
        if strange:
            self._refuse(strange)
        return parsed, strange

    def _refuse(self, strange: Sequence[str]) -> NoReturn:
        flags = [word for word in strange if word.startswith("-")]
        if not flags:
            self.error(f"there is one word too many: {strange[0]!r}")
        flag = flags[0].split("=", 1)[0]
        known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        other = _ELSEWHERE.get(flag)
        close = [other] if other in known else difflib.get_close_matches(flag, known, n=1)
        self.error(f"there is no flag {flag}" + (f": did you mean {close[0]}?" if close else ""))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        close = difflib.get_close_matches(str(value), choices, n=1)
        hint = f": did you mean {close[0]}?" if close else ""
        if isinstance(action, argparse._SubParsersAction):
            self.error(f"there is no command {value!r}{hint or ': ' + ', '.join(choices)}")
        self.error(f"{action.option_strings[0]} must be one of {', '.join(choices)}, not {value!r}{hint}")


def add_command(
    commands: Commands, name: str, act: Callable[[argparse.Namespace], int], text: str, examples: Sequence[str] = ()
) -> Parser:
    """Add a command: one line about it, examples below its help, and the function that carries it out."""
    parser = commands.add_parser(name, help=text, description=text, examples=examples)
    parser.set_defaults(act=act, parser=parser)
    return parser


def show_help(words: argparse.Namespace) -> int:
    """Print the help of a command that needs another word."""
    words.parser.print_help()
    return 0


def add_common(parser: argparse.ArgumentParser | argparse._ArgumentGroup, *, json: bool = True) -> None:
    """Add the flags that every command has."""
    if json:
        parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def count(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers of at least `least`."""

    def count(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be a whole number of {least} or more, not {text!r}")
        return int(text)

    return count


def counts(text: str) -> list[int]:
    """Return whole numbers of 1 or more with commas between them."""
    return [count(1)(part.strip()) for part in text.split(",")]


def seconds(text: str) -> float:
    """Return a number of 0 or more."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of 0 or more, not {text!r}")
    return value


def positive(text: str) -> float:
    """Return a number above 0."""
    value = seconds(text)
    if value == 0.0:
        raise argparse.ArgumentTypeError("must be above 0")
    return value


def folder(text: str) -> str:
    """Return the name of a folder; an empty one, as an unset variable leaves it, would mean this folder."""
    if not text:
        raise argparse.ArgumentTypeError("must name a folder, not ''")
    return text


def shard(text: str) -> tuple[int, int]:
    """Return a share of the runs: (3, 16) of "3/16", counted from 1.

    >>> shard("3/16")
    (3, 16)
    """
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise argparse.ArgumentTypeError(f"must be I/N with I from 1 to N, such as 1/4, not {text!r}")
    return int(found[1]), int(found[2])


def seed_list(flag: str, text: str) -> list[int]:
    """Return seeds from numbers and ranges with commas between them.

    >>> seed_list("--seed", "0,2,7-9")
    [0, 2, 7, 8, 9]
    """
    seeds: list[int] = []
    for part in (part.strip() for part in text.split(",")):
        found = re.fullmatch(r"(\d+)(?:\s*-\s*(\d+))?", part)
        if found is None:
            raise WrongSettingsError(f"{flag} must be whole numbers or ranges such as 0-4, not {part!r}.")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise WrongSettingsError(f"{flag} {part} is empty: write {last}-{first}.")
        if last - first >= MOST_SEEDS:
            raise WrongSettingsError(
                f"{flag} {part} has {last - first + 1:,} seeds; at most {MOST_SEEDS:,} are possible."
            )
        seeds += range(first, last + 1)
    return seeds


def check_data(names: Iterable[str], flag: str = "--data") -> None:
    """Refuse a word that is neither a built-in data set nor a folder, before anything is opened."""
    from aol._values import did_you_mean
    from aol.data.named import NAMES

    for name in names:
        path = Path(name).expanduser()
        if name in NAMES or (name and path.is_dir()):
            continue
        if path.is_file():
            raise WrongSettingsError(f"{flag} {name} is a file: a folder or one of {', '.join(NAMES)} is needed.")
        raise WrongSettingsError(
            f"{flag}: there is no folder or data set {name!r}; built-in are {', '.join(NAMES)}."
            + did_you_mean(name, NAMES)
        )


def check_place(file: str, flag: str = "--write") -> None:
    """Refuse a file that cannot be written to, before the work is done."""
    path = Path(file).expanduser()
    if not path.parent.is_dir():
        raise WrongSettingsError(f"{flag}: there is no folder {path.parent}.")
    if path.exists() and not path.is_file():  # a folder, or a device, which the new file would take the place of
        raise WrongSettingsError(f"{flag}: {path} is not a plain file.")
