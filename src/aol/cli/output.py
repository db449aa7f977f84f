"""What commands write: one JSON object or lines of text, to standard output or into a file."""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aol._values import printable
from aol.lab.settings import WrongSettingsError

if TYPE_CHECKING:
    from rich.console import Console

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_WIDTH = 120  # where there is no terminal


def tell(args: argparse.Namespace, result: object, lines: Iterable[str]) -> None:
    """Print a result as one JSON object with `--json`, else as lines."""
    print(one_line(result) if args.json else "\n".join(map(printable, lines)))


def one_line(result: object) -> str:
    """Return one JSON object as a line of text; JSON leaves DEL and the control characters after it as they are."""
    text = json.dumps(result, ensure_ascii=False, allow_nan=False)
    return re.sub("[\x7f-\x9f]", lambda found: f"\\u{ord(found[0]):04x}", text)


def note(text: str) -> None:
    """Print a line for people on standard error."""
    print(f"aol: {printable(' '.join(text.split()))}", file=sys.stderr)


def console(*, stderr: bool = False) -> Console:
    """Return standard output, or standard error, for tables.

    All text, also in cells, is shown as it is: no markup is read, and control characters are written as codes.
    """
    from rich.console import Console
    from rich.text import Text

    class PlainConsole(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(plain_lines(text), **options | {"markup": False, "emoji": False})

    found = PlainConsole(highlight=False, stderr=stderr)
    if not found.is_terminal:
        found.width = _WIDTH
    return found


def print_table(out: Console, head: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print rows of text as a table; nothing where there are none."""
    from rich.table import Table

    table = Table(*head, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    if table.row_count:
        out.print(table)


def plain_lines(text: str) -> str:
    """Return lines with control characters written as codes."""
    return "\n".join(map(printable, text.split("\n")))


def chosen_format(args: argparse.Namespace, endings: Mapping[str, str] | None = None) -> str:
    """Return the format that `--json`, `--format` or the ending of `--write` asks for; "table" without them."""
    if args.json and args.format not in (None, "json"):
        raise WrongSettingsError(f"--json and --format {args.format} contradict each other.")
    if args.json or args.format is not None:
        return "json" if args.json else str(args.format)
    if endings is None or args.write is None:
        return "table"
    ending = Path(args.write).suffix.lower()
    if ending not in endings:
        raise WrongSettingsError(f"--write must end in {', '.join(endings)}, or give --format, not {args.write!r}.")
    return endings[ending]


def check_place(file: str | None, flag: str = "--write") -> None:
    """Refuse the file of a flag that cannot be written to, before the work is done."""
    if file is None:
        return
    path = Path(file)
    if not path.parent.is_dir():
        raise WrongSettingsError(f"{flag}: there is no folder {path.parent}.")
    if not os.access(path.parent, os.W_OK):
        raise WrongSettingsError(f"{flag}: {path.parent} cannot be written to: permission denied.")
    if path.exists() and not path.is_file():  # a folder, or a device, which the new file would take the place of
        raise WrongSettingsError(f"{flag}: {path} is not a plain file.")


def give(text: str, file: str | None) -> None:
    """Print a text, or write it to a file, as a whole."""
    text = plain_lines(text)
    if file is None:
        print(text, end="")
        return
    write(Path(file), text.encode())
    print(f"Written: {file}", file=sys.stderr)


def write(path: Path, content: bytes) -> None:
    """Write a file as a whole; where that is not allowed, name the file itself, not its temporary name."""
    from aol._files import write_atomically

    try:
        write_atomically(path, content)
    except OSError as error:
        if error.errno in NO_SPACE:
            raise
        raise WrongSettingsError(f"--write: {path} cannot be written: {error.strerror}.") from error
