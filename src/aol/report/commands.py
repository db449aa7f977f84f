"""The words `aol report RUN...`: words to calls. Exit status: 0 done, 1 failed, 2 the words were wrong.

Assumes it is mounted on the main command. Errors are one line on standard error.
"""

from __future__ import annotations

import errno
import json
import sys
import traceback
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from aol.report.page import write_page
from aol.report.story import NoRecordsError, Story, load
from aol.report.watch import watch

FORMATS = ("png", "pdf", "svg")
TABLES = (".csv", ".parquet")
PAGE = "report.html"

# Plain help: the boxes of Rich write "<bool>" behind a flag, as if it took a value.
app = typer.Typer(name="report", add_completion=False, rich_markup_mode=None)


@dataclass
class Wanted:
    """What to write, and where."""

    runs: list[Path]
    page: Path | None
    figures: Path | None
    formats: tuple[str, ...]
    table: Path | None
    written: dict[str, list[str]] = field(default_factory=dict)

    def note(self, kind: str, *paths: Path) -> None:
        """Remember what was written."""
        self.written[kind] = [str(path) for path in paths]


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Folders of runs: --out of a command, or one run.")],
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help=f"Where the page goes; else {PAGE} in RUN, or here for several.")
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Figures for a paper, into it; and no page.")
    ] = None,
    kinds: Annotated[
        str, typer.Option("--format", metavar="KINDS", help="Of the figures: png, pdf, svg; several with commas.")
    ] = "png",
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The table of samples: .csv or .parquet; and no page.")
    ] = None,
    follow: Annotated[bool, typer.Option("--watch", help="Keep the page fresh until all runs are over.")] = False,
    every: Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds between two looks of --watch.")] = 5.0,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """See where runs have been wrong, for how long, and what to do about it: one page, figures, a table.

    What is asked for is written: the page if nothing is; with --figures or --export these alone, and the page beside
    them where --write, --watch or --open asks for it.
    """
    page = write
    if write is None and (follow or show or not (figures or export)):
        page = runs[0] / PAGE if len(runs) == 1 else Path(PAGE)
    wanted = Wanted(runs, page, figures, _formats(kinds), _table(export))
    _check_page(page)
    if follow:
        _follow(wanted, every, show, as_json)
    else:
        stories = load(*runs)
        if not stories:
            raise NoRecordsError(f"{', '.join(map(str, runs))}: no epoch is over yet; --watch waits for it.")
        _write(wanted, stories)
        if show and page is not None:
            _open(page)
    typer.echo(json.dumps(wanted.written) if as_json else _lines(wanted))


def _formats(text: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",")))
    wrong = [part for part in found if part not in FORMATS]
    if wrong:
        raise ValueError(f"--format must be {', '.join(FORMATS)}, or several with commas, not {text!r}.")
    return found


def _table(path: Path | None) -> Path | None:
    if path is not None and path.suffix.lower() not in TABLES:
        raise ValueError(f"--export must end in {' or '.join(TABLES)}, not {str(path)!r}.")
    return path


def _check_page(path: Path | None) -> None:
    if path is not None and path.is_dir():
        raise ValueError(f"--write must be a file, but {path} is a folder.")
    if path is not None and path.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--write must end in .html, not {str(path)!r}.")


def _write(wanted: Wanted, stories: list[Story]) -> None:
    if wanted.page is not None:
        write_page(stories, wanted.page)
        wanted.note("page", wanted.page)
    if wanted.figures is not None:
        from aol.report.figures import draw

        wanted.note("figures", *draw(stories, wanted.figures, wanted.formats))
    if wanted.table is not None:
        places = _table_places(stories, wanted.table)
        from aol.report.export import export

        for story, place in places:
            export(story, place)
        wanted.note("tables", *(place for _, place in places))


def _table_places(stories: Sequence[Story], path: Path) -> list[tuple[Story, Path]]:
    """Return which table goes where: the file that was asked for, or one a run beside it, named by the run's folder."""
    kept = [story for story in stories if story.samples is not None]
    if not kept:
        raise RuntimeError("no run here kept its samples: train with --keep-samples, then --export has a table.")
    if len(kept) == 1:
        return [(kept[0], path)]
    names = [story.folder.name for story in kept]
    return [
        (story, path.with_stem(f"{path.stem}-{name}" + (f"-{place}" if names.count(name) > 1 else "")))
        for place, (story, name) in enumerate(zip(kept, names, strict=True), 1)
    ]


def _follow(wanted: Wanted, every: float, show: bool, quiet: bool) -> None:
    """Keep the page fresh; figures and tables are written when all is over. Ctrl-C leaves a page that stands still."""
    page = wanted.page
    assert page is not None
    last: list[Story] = []

    def write(stories: list[Story], over: bool) -> None:
        first = not last
        last[:] = stories  # before the page: Ctrl-C may come between the two
        write_page(stories, page, refresh=None if over else every)
        if show and first:
            _open(page)
        if not quiet:
            epochs = ", ".join(f"{story.epochs[-1]}" for story in stories[:8])
            more = ", …" if len(stories) > 8 else ""
            _say(f"{page}: {'all runs are over' if over else f'epoch {epochs}{more}'}")

    try:
        stories = watch(wanted.runs, write, every=every, say=_say)
    except KeyboardInterrupt:
        if last:
            write_page(last, page)
        raise
    wanted.note("page", page)
    wanted.page = None
    _write(wanted, stories)


def _open(page: Path) -> None:
    if not webbrowser.open(page.resolve().as_uri()):
        _say(f"no browser here; the page is {page}")


def _lines(wanted: Wanted) -> str:
    return "\n".join(path for paths in wanted.written.values() for path in paths)


def _say(text: str) -> None:
    typer.echo(f"aol report: {' '.join(text.split())}", err=True)


def _refuse(text: str, status: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    _say(text)
    return status


def _locked(error: OSError) -> str:
    place = Path(str(error.filename))
    folder = place.parent if place.suffix == ".part" else place  # a file under way has a name of its own
    return f"{folder}: {error.strerror}. --write FILE.html puts the page elsewhere."


def main(words: Sequence[str]) -> int:
    """Run the words after `aol report` and return the exit status."""
    debug = "--debug" in words
    try:
        found = app(args=list(words), prog_name="aol report", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return _refuse("stopped; what was written is whole.", 130, False)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        if full:
            return _refuse("the disk is full; nothing was half written.", 1, debug)
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            return _refuse(_locked(error), 1, debug)
        return _refuse(str(error), 1, debug)
    except ValueError as error:
        return _refuse(str(error), 2, debug)
    except (RuntimeError, ImportError) as error:
        return _refuse(str(error), 1, debug)
    except Exception as error:
        # Typer's own errors know their message and status; which module they come from differs by version.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        return _refuse(str(message()), int(getattr(error, "exit_code", 2)), debug)
    sys.stdout.flush()
    return found if isinstance(found, int) else 0
