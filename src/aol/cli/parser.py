"""The look of every command: parser with plain errors and suggestions, help pages, and types of flags.

Nothing here, and nothing that the modules of `aol.cli` import at their top, imports torch, pandas or rich: a help page
takes milliseconds.
"""

from __future__ import annotations

import argparse
import difflib
import math
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from aol.lab.settings import WrongSettingsError

WIDEST = 110
_EXAMPLES = "examples:"
MOST_SEEDS = 10_000
_ELSEWHERE = {"--epochs": "--steps", "--steps": "--epochs", "--seed": "--seeds", "--seeds": "--seed"}


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, up to a readable width, with the default behind each flag's text."""

    def __init__(self, prog: str) -> None:
        width = min(WIDEST, shutil.get_terminal_size((100, 24)).columns) - 2
        super().__init__(prog, max_help_position=min(30, width // 3), width=width)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        given = action.default
        nothing = given is None or given is False or given in ([], (), argparse.SUPPRESS)
        if nothing or not action.option_strings or "default" in text:
            return text
        return f"{text} (default: {f'{given:g}' if isinstance(given, float) else given})"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(_EXAMPLES):
            return super()._fill_text(text, width, indent)
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)


class Parser(argparse.ArgumentParser):
    """Wrong arguments raise `WrongSettingsError` with a suggestion and the help page to read, and print no usage."""

    def __init__(self, *given: Any, examples: Sequence[str] = (), **named: Any) -> None:
        if examples:
            named["epilog"] = "\n".join((_EXAMPLES, *(f"  {line}" for line in examples)))
        named |= {"formatter_class": _Formatter, "allow_abbrev": False, "add_help": False}
        super().__init__(*given, **named)
        self.add_argument("-h", "--help", action="help", help="show this help")

    def format_help(self) -> str:
        """Return the help page; flags are listed below the usage line, not in it."""
        positional = []
        for action in self._actions:
            if not action.option_strings:
                more = "..." if action.nargs in ("*", "+") else ""
                positional.append(f"[{action.metavar}{more}]" if action.nargs == "*" else f"{action.metavar}{more}")
        self.usage = " ".join((self.prog, *positional, "[FLAGS]"))
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
        for word in args or ():
            if word.endswith("=--"):  # which argparse takes for no value at all
                self.error(f"{word[:-3]} needs a value")
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


# Commands and flags are data, from which `add_commands` makes parsers.

Act: TypeAlias = Callable[[argparse.Namespace], int | None]
Flag: TypeAlias = tuple[str, dict[str, Any]]  # its name, and what `add_argument` takes


def value(name: str, metavar: str, text: str, **more: Any) -> Flag:
    """Return a flag, or a word without dashes, that takes a value."""
    return name, {"metavar": metavar, "help": text, **more}


def switch(name: str, text: str) -> Flag:
    """Return a flag without a value."""
    return name, {"action": "store_true", "default": False, "help": text}


def choice(name: str, choices: Sequence[str], text: str, **more: Any) -> Flag:
    """Return a flag that takes one of some words."""
    return name, {"choices": choices, "help": text, **more}


def show_help(args: argparse.Namespace) -> None:
    """Print the help of a command that needs another word."""
    args.parser.print_help()


COMMANDS: dict[str, Callable[[Any], Parser]] = {}  # by its words, such as "study run": what adds it to a parser
_DEBUG = switch("--debug", "show the traceback of an error")
_JSON = switch("--json", "print one JSON object and nothing else")


def command(
    path: str,
    text: str,
    examples: Sequence[str],
    *flags: Flag,
    groups: Mapping[str, Sequence[Flag]] | None = None,
    json: bool = True,
    **defaults: Any,
) -> Callable[[Act], Act]:
    """Make a function a command; it gets the parsed arguments, and returns the exit status or None for 0."""

    def register(act: Act) -> Act:
        def add(commands: Any) -> Parser:
            name, line = path.split()[-1], text.split(". ")[0].rstrip(".") + "."
            parser: Parser = commands.add_parser(name, help=line, description=text, examples=examples)
            common = () if act is show_help else (_JSON, _DEBUG) if json else (_DEBUG,)
            for title, some in {"": (*flags, *common), **(groups or {})}.items():
                group = parser.add_argument_group(title) if title else parser
                for flag, named in some:
                    group.add_argument(flag, **named)
            parser.set_defaults(act=act, parser=parser, command=path, **defaults)
            return parser

        COMMANDS[path] = add
        return act

    return register


def add_commands(parser: Parser, order: Sequence[str]) -> None:
    """Add all commands to a parser, in the order of their first words."""
    parents = {"": parser}
    levels: dict[str, Any] = {}
    for path in sorted(COMMANDS, key=lambda path: order.index(path.split()[0])):
        above = path.rpartition(" ")[0]
        if above not in levels:
            own = parents[above]
            levels[above] = own.add_subparsers(metavar="COMMAND", title="commands", prog=own.prog)
        parents[path] = COMMANDS[path](levels[above])


def defaults_of(flags: Iterable[Flag]) -> dict[str, Any]:
    """Return what flags are when they are not given, by their names in Python."""
    return {named.get("dest", name.strip("-").replace("-", "_")): named.get("default") for name, named in flags}


# Types of flags


def number(least: float, *, above: bool = False, whole: bool = False, most: float = 1e9) -> Callable[[str], Any]:
    """Return a reader of numbers, or whole numbers, of at least, or above, `least`, and at most `most`."""

    def number(text: str) -> float:
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            value = math.nan
        if most < value < math.inf:
            raise argparse.ArgumentTypeError(f"must be at most {most:,.0f}, not {text!r}")
        if not least <= value < math.inf or (above and value == least):
            wanted = f"above {least:g}" if above else f"of {least:g} or more"
            raise argparse.ArgumentTypeError(f"must be a {'whole ' * whole}number {wanted}, not {text!r}")
        return value

    return number


count = partial(number, whole=True)
seconds, positive = number(0.0), number(0.0, above=True)


def counts(text: str) -> list[int]:
    """Return whole numbers of 1 or more with commas between them."""
    return [count(1, most=10_000)(part.strip()) for part in text.split(",")]


def shares(text: str) -> list[float]:
    """Return different numbers of 0 to 1 with commas between them."""
    return list(dict.fromkeys(number(0.0, most=1.0)(part.strip()) for part in text.split(",")))


def folder(text: str) -> str:
    """Return the name of a folder; an empty one, as an unset variable leaves it, would mean this folder."""
    if not text:
        raise argparse.ArgumentTypeError("must name a folder, not ''")
    return text


def path(text: str) -> Path:
    """Return the path of a file or folder; an empty one would mean this folder."""
    if not text:
        raise argparse.ArgumentTypeError("must name a file or folder, not ''")
    return Path(text)


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
            many = f"{last - first + 1:,} seeds; at most {MOST_SEEDS:,} are possible"
            raise WrongSettingsError(f"{flag} {part} has {many}.")
        seeds += range(first, last + 1)
    return seeds


def check_data(names: Iterable[str], flag: str = "--data") -> None:
    """Refuse a word that is neither a built-in data set, one of another library, nor a folder, before it is opened."""
    from aol._values import did_you_mean
    from aol.lab.data.named import NAMES
    from aol.lab.data.sources import is_source

    for name in names:
        path = Path(name).expanduser()
        if name in NAMES or is_source(name) or (name and path.is_dir()):
            continue
        if path.is_file():
            raise WrongSettingsError(f"{flag} {name} is a file: a folder or one of {', '.join(NAMES)} is needed.")
        raise WrongSettingsError(
            f"{flag}: there is no folder or data set {name!r}; built-in are {', '.join(NAMES)}; others are "
            "hf:NAME_OR_FOLDER." + did_you_mean(name, NAMES)
        )
