"""The words `aol study show` and `aol study page`: records to a table or to the page of results.

Assumes it is mounted on `aol study`, which says what a study's own words are. What makes the tables is imported when it
is asked for: it takes a second, and no other command needs it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from aol._words import Parser
from aol.engine.settings import WrongSettingsError
from aol.records.files import write_atomically
from aol.study.records import Store
from aol.study.spec import Study

FORMATS = ("table", "markdown", "csv", "latex", "json")
ENDINGS = {".txt": "table", ".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json"}
NARROW, WIDE = 60, 100


def add_commands(
    commands: argparse._SubParsersAction[Parser],
    add_study: Callable[[argparse.ArgumentParser], None],
    chosen: Callable[[argparse.Namespace], Study],
) -> None:
    """Add `show` and `page`; `add_study` adds the words that mean a study, `chosen` reads them."""
    show = commands.add_parser("show", help="The table: verdicts, gains, the paper's figures.", allow_abbrev=False)
    add_study(show)
    add = show.add_argument
    add(
        "--format", choices=FORMATS, help="default: by the ending of --write (.txt, .md, .csv, .tex, .json), else table"
    )
    add("--write", metavar="FILE", help="write it there instead of printing it")
    add("--figure", metavar="NAME", help="last, tail_mean, second_half_mean (streams), best (optimistic), averaged_...")
    add("--optimistic", action="store_true", help="also the best setting on test, beside as many tries of the baseline")
    show.set_defaults(act=lambda words: _show(chosen(words), words))
    page = commands.add_parser("page", help="The page of results, from all records.", allow_abbrev=False)
    page.add_argument("study", nargs="*", metavar="STUDY", help="built-in studies or TOML files [all built-in ones]")
    page.add_argument("--out", metavar="FOLDER", default="results", help="folder of the records [results]")
    page.add_argument("--write", metavar="FILE", help="write it there instead of printing it")
    page.add_argument("--debug", action="store_true", help="show the traceback of an error")
    page.set_defaults(act=_page)


def store_in(folder: str, study: str) -> Store:
    """Return the records of a folder that is there."""
    if not Path(folder).is_dir():
        text = f"There is no folder {folder}: aol study run {study} --out {folder} makes it and its records."
        raise WrongSettingsError(text)
    return Store(folder)


def _show(study: Study, words: argparse.Namespace) -> int:
    from aol.study import formats
    from aol.study.table import recorded_table

    if words.write is not None:
        check_place(words.write)
    wanted = _format(words)
    store = store_in(words.out, words.study)
    table = recorded_table(study, store, figure=words.figure, more_seeds=words.seeds is None)
    if wanted != "table":
        _give(formats.FORMATS[wanted](table, optimistic=words.optimistic), words.write)
    elif words.write or not sys.stdout.isatty():
        _give(formats.as_text(table, optimistic=words.optimistic), words.write)
    else:
        width = max(NARROW, min(WIDE, shutil.get_terminal_size().columns))
        _print(formats.styled_lines(table, optimistic=words.optimistic, width=width))
    return 0


def _format(words: argparse.Namespace) -> str:
    if words.json and words.format not in (None, "json"):
        raise WrongSettingsError(f"--json and --format {words.format} contradict each other.")
    if words.json:
        return "json"
    if words.format is not None or words.write is None:
        return str(words.format or "table")
    ending = Path(words.write).suffix.lower()
    if ending not in ENDINGS:
        raise WrongSettingsError(
            f"--write must end in {', '.join(ENDINGS)}, or --format say what it is: {words.write!r}."
        )
    return ENDINGS[ending]


def _print(lines: list[tuple[str, str]]) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    for style, line in lines:
        console.print(Text(line, style=style), soft_wrap=True)


def _page(words: argparse.Namespace) -> int:
    from aol.study.page import page
    from aol.study.spec import load

    if words.write is not None:
        check_place(words.write)
    store = store_in(words.out, "NAME")
    studies = {word: load(word) for word in words.study}
    called = {study.name: word for word, study in studies.items()}
    _give(page(store.folder, list(studies.values()) or None, called=called), words.write)
    return 0


def check_place(file: str) -> None:
    """Refuse a place that cannot be written to, before the work is done."""
    path = Path(file)
    if not path.parent.is_dir():
        raise WrongSettingsError(f"--write: there is no folder {path.parent}.")
    if path.exists() and not path.is_file():  # a folder, or a device, which the new file would take the place of
        raise WrongSettingsError(f"--write: {path} is no plain file.")


def _give(text: str, file: str | None) -> None:
    """Print a text, or write it to a file, whole or not at all."""
    if file is None:
        print(text, end="")
        return
    write_atomically(Path(file), text.encode())
    print(f"Written: {file}", file=sys.stderr)
