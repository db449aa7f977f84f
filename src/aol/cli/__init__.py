"""The command line: one parser, one error handler.

Exit status: 0 done, 1 a run failed or data cannot be read, 2 wrong arguments, 130 interrupted, 143 ended by
SIGTERM. An error is one line on standard error; `--debug` adds its traceback.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
import traceback
from collections.abc import Sequence

from aol._need import explained
from aol._version import __version__
from aol.cli import data, report, show, study, train  # noqa: F401 (which register their commands)
from aol.cli.output import NO_SPACE, note
from aol.cli.parser import Parser, add_commands, show_help

_DESCRIPTION = "Age of Learning: train with, and look at, how long a model has kept getting something wrong."
_EXAMPLES = (
    "aol train --weighting none,cb,aol --seed 0-4   # compare three weightings over five seeds",
    "aol show runs/latest                           # the table again, and the classes that stay wrong longest",
    "aol report runs/latest --open                  # one interactive page",
    "aol COMMAND --help                             # all flags of a command",
)


def build() -> Parser:
    """Return the parser of all commands."""
    parser = Parser("aol", description=_DESCRIPTION, examples=_EXAMPLES)
    parser.add_argument("--version", action="version", version=f"aol {__version__}")
    parser.set_defaults(act=show_help, parser=parser)
    add_commands(parser, ("train", "stream", "resume", "show", "report", "study", "data"))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path that is not UTF-8 must not lose what was trained
        sys.stdout.reconfigure(errors="backslashreplace")
    parsed = argparse.Namespace()
    try:
        parsed = build().parse_args(given)
        status = int(parsed.act(parsed) or 0)
        sys.stdout.flush()
    except SystemExit as stop:  # --help and --version
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return _fail(f"stopped; {_goes_on(parsed)}.", 130, False)
    except BrokenPipeError:  # aol show ... | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        return _fail(*_explained(error, parsed), debug)
    return status


def _goes_on(parsed: argparse.Namespace) -> str:
    """Say how a command that was stopped goes on."""
    return str(getattr(parsed, "stopped", "files already written are complete"))


def _explained(error: Exception, parsed: argparse.Namespace) -> tuple[str, int]:
    from aol.lab.settings import WrongSettingsError

    if isinstance(error, WrongSettingsError):
        return str(error), 2
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return f"the disk is full: free some space; {_goes_on(parsed)}.", 1
    if isinstance(error, FileNotFoundError):
        return str(error), 2
    if isinstance(error, ModuleNotFoundError):
        return str(explained(error, "the command line")), 1
    if isinstance(error, OSError | RuntimeError | ImportError):
        return str(error), 1
    if isinstance(error, ValueError | TypeError):
        from aol.lab.data.errors import DataError

        return str(error), 1 if isinstance(error, DataError) else 2
    return f"{type(error).__name__}: {error} (an error in aol itself; --debug shows where)", 1


def _fail(text: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    note(text)
    return status
