"""The command line: a table of commands whose modules are imported when they are called, one parser, one error handler.

Exit status: 0 done, 1 a run failed or data cannot be read, 2 wrong arguments, 130 interrupted, 143 ended by SIGTERM. An
error is one line on standard error; `--debug` adds its traceback. A help page imports no torch, pandas or rich.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import io
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from aol._need import explaining
from aol._values import did_you_mean, printable
from aol._version import __version__

if TYPE_CHECKING:
    from rich.console import Console

MODULES = {  # command: the module that registers it, and its line in `aol --help`
    "train": ("aol.lab.cli", "Train on a whole data set."),
    "stream": ("aol.lab.cli", "Train on a stream of data that changes over time."),
    "resume": ("aol.lab.study.cli", "Continue the runs of a folder."),
    "show": ("aol.show", "Print the worst classes of each method, and the methods over seeds."),
    "report": ("aol.show", "Write one HTML page of runs, figures, or a table of samples."),
    "study": ("aol.lab.study.cli", "Run and compare grids of runs, built in or from a file."),
    "data": ("aol.lab.cli", "List data sets, or get one."),
}
DESCRIPTION = "Age of Learning: train with, and look at, how long a model has kept getting something wrong."
EXAMPLES = (
    "aol train --margin none,counts --seed 0-4      # logit adjustment compared with plain training, five seeds",
    "aol show runs/latest                           # the tables again",
    "aol report runs/latest --open                  # one interactive page",
    "aol COMMAND --help                             # all flags of a command",
)
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UNKNOWN_WIDTH = 120  # of tables where there is no terminal


class UsageError(ValueError):
    """Wrong words on the command line; the message names them."""


class _Formatter(argparse.HelpFormatter):
    """Help with the default behind each flag's text."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text, default = action.help or "", action.default
        nothing = default is None or default is False or default in ([], (), argparse.SUPPRESS)
        if nothing or not action.option_strings or "default" in text:
            return text
        return f"{text} (default: {f'{default:g}' if isinstance(default, float) else default})"


class Parser(argparse.ArgumentParser):
    """Wrong arguments raise `UsageError` with a suggestion and the help page to read, and print no usage."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), **options: Any) -> None:
        options |= {"formatter_class": _Formatter, "allow_abbrev": False, "add_help": False}
        super().__init__(*args, **options)
        self._examples = examples
        self.add_argument("-h", "--help", action="help", help="show this help")

    def format_help(self) -> str:
        """Return the help page; flags are listed below the usage line, not in it."""
        many = {"None": "{}", "*": "[{}...]", "+": "{}..."}
        words = [action for action in self._actions if not action.option_strings and str(action.nargs) in many]
        shown = [many[str(action.nargs)].format(action.metavar) for action in words]
        self.usage = " ".join((self.prog, *shown, "[FLAGS]"))
        return super().format_help() + "\n".join(("\nexamples:", *(f"  {line}" for line in self._examples), ""))

    def error(self, message: str) -> NoReturn:
        """Raise instead of leaving."""
        text = message.removeprefix("argument ").replace(": must ", " must ", 1)
        raise UsageError(f"{text} (see {self.prog} --help)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse; what a command does not know is its own error, so that its own help page is named."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = next((word for word in unknown if word.startswith("-")), unknown[0]).split("=")[0]
            known = [name for action in self._actions for name in action.option_strings]
            other = {"--epochs": "--steps", "--steps": "--epochs"}.get(word, word)
            what = "no flag" if word.startswith("-") else "one word too many:"
            self.error(f"there is {what} {word}.{did_you_mean(other, known)}")
        return parsed, unknown


Act: TypeAlias = Callable[[argparse.Namespace], int | None]
Flag: TypeAlias = tuple[str, dict[str, Any]]  # its name, and what `add_argument` takes
COMMANDS: dict[str, Callable[[Any], Parser]] = {}  # by its words, such as "study run": what adds it to a parser


def value(name: str, metavar: str | None, text: str, **more: Any) -> Flag:
    """Return a flag, or a word without dashes, that takes a value; None: its choices are shown."""
    return name, {"metavar": metavar, "help": text, **more}


def switch(name: str, text: str) -> Flag:
    """Return a flag without a value."""
    return name, {"action": "store_true", "default": False, "help": text}


_COMMON = (
    switch("--json", "print one JSON object and nothing else"),
    switch("--debug", "show the traceback of an error"),
)


def show_help(args: argparse.Namespace) -> None:
    """Print the help of a command that needs another word."""
    args.parser.print_help()


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
            common = () if act is show_help else _COMMON if json else _COMMON[1:]
            for title, members in {"": (*flags, *common), **(groups or {})}.items():
                group = parser.add_argument_group(title) if title else parser
                for flag, options in members:
                    group.add_argument(flag, **options)
            parser.set_defaults(act=act, parser=parser, command=path, **defaults)
            return parser

        COMMANDS[path] = add
        return act

    return register


def build(*names: str) -> Parser:
    """Return the parser of these commands; others are only listed, and their modules are not imported."""
    parser = Parser("aol", description=DESCRIPTION, examples=EXAMPLES)
    parser.add_argument("--version", action="version", version=f"aol {__version__}")
    parser.set_defaults(act=show_help, parser=parser)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands", prog=parser.prog)
    for name, (module, line) in MODULES.items():
        if name not in names:
            commands.add_parser(name, help=line)
            continue
        importlib.import_module(module)
        own = COMMANDS[name](commands)
        paths = [path for path in COMMANDS if path.startswith(f"{name} ")]
        if paths:
            below = own.add_subparsers(metavar="COMMAND", title="commands", prog=own.prog)
            for path in paths:
                COMMANDS[path](below)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path that is not UTF-8 must not lose what was trained
        sys.stdout.reconfigure(errors="backslashreplace")
    args = argparse.Namespace(stopped="files already written are complete")
    try:
        build(*words[:1]).parse_args(words, args)
        with explaining("the command line"):
            status = int(args.act(args) or 0)
        print(end="", flush=True)  # now, for the errors below; standard output may be closed
        return status
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except KeyboardInterrupt:
        note(f"stopped; {args.stopped}.")
        return 130
    except BrokenPipeError:  # aol show ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        text, status = _explained(error, args.stopped)
        if MODULES.get("".join(words[:1]), ("",))[0].startswith("aol.lab"):
            text = text.replace("'.[report]'", "'.[lab]'")  # which brings all that these commands need
        note(text)
        return status


def _explained(error: Exception, stopped: str) -> tuple[str, int]:
    """Return the sentence of an error and its exit status; an error with an `exit_status` says it itself."""
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return f"the disk is full: free some space; {stopped}.", 1
    if isinstance(error, ValueError | TypeError | FileNotFoundError):
        return str(error), int(getattr(error, "exit_status", 2))
    if isinstance(error, OSError | RuntimeError | ImportError):
        return str(error), 1
    return f"{type(error).__name__}: {error} (an error in aol itself; --debug shows where)", 1


def path(text: str) -> Path:
    """Return the path of a file or folder; an empty one, as an unset variable leaves it, would mean this folder."""
    if not text:
        raise argparse.ArgumentTypeError("must name a file or folder, not ''")
    return Path(text)


def tell(args: argparse.Namespace, result: object, lines: Iterable[str]) -> None:
    """Print a result as one JSON object with `--json`, else as lines."""
    print(json.dumps(result, allow_nan=False) if args.json else "\n".join(map(printable, lines)))


def note(text: str) -> None:
    """Print a line for people on standard error."""
    print(f"aol: {printable(' '.join(text.split()))}", file=sys.stderr)


def plain_lines(text: str) -> str:
    """Return lines with control characters written as codes."""
    return "\n".join(map(printable, text.split("\n")))


def console(*, stderr: bool = False) -> Console:
    """Return standard output, or standard error, for tables; text is shown as it is, control characters as codes."""
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(plain_lines(text), **options | {"markup": False, "emoji": False})

    out = PlainConsole(highlight=False, stderr=stderr)
    if not out.is_terminal:
        out.width = UNKNOWN_WIDTH
    return out


def print_table(out: Console, head: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print rows of text as a table; nothing where there are none."""
    from rich.table import Table

    table = Table(*head, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        out.print(table)
