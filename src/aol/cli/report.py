"""`aol report`: one HTML page of runs, figures, and a table of samples."""

from __future__ import annotations

import argparse
import errno
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from aol.cli.parser import Commands, add_command, add_common, seconds
from aol.engine.settings import WrongSettingsError

if TYPE_CHECKING:
    from aol.report.story import Story

FORMATS = ("png", "pdf", "svg")
TABLES = (".csv", ".parquet")
PAGE = "report.html"
_TEXT = "Show where runs have been wrong, for how long, and what to do about it: one page, figures, a table."
_EXAMPLES = (
    "aol report runs/latest --open",
    "aol report runs/a runs/b --write compare.html",
    "aol report runs/latest --figures figures --format pdf,png",
)


@dataclass
class _Wanted:
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


def add(commands: Commands) -> None:
    """Add `aol report`."""
    parser = add_command(commands, "report", _report, _TEXT, _EXAMPLES)
    flag = parser.add_argument
    flag("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs: --out of a command, a study, or one run")
    flag("--write", type=Path, metavar="FILE", help=f"file of the page (default: {PAGE} in RUN, or here for several)")
    flag("--figures", type=Path, metavar="FOLDER", help="write figures for a paper into this folder, and no page")
    flag("--format", metavar="KINDS", default="png", help="of the figures: png, pdf, svg, or several with commas")
    flag("--export", type=Path, metavar="FILE", help="write the table of samples (.csv or .parquet), and no page")
    flag("--watch", action="store_true", help="update the page until all runs have finished")
    flag("--every", type=_interval, metavar="S", default=5.0, help="seconds between two updates of --watch")
    flag("--open", action="store_true", help="open the page in a browser")
    add_common(parser)


def _interval(text: str) -> float:
    value = seconds(text)
    if value < 0.1:
        raise argparse.ArgumentTypeError(f"must be 0.1 or more, not {text!r}")
    return value


def _report(words: argparse.Namespace) -> int:
    """Write what is asked for: the page if nothing is; figures or a table alone, unless a flag asks for the page."""
    from aol.report.finding import NoRecordsError
    from aol.report.story import load

    page: Path | None = words.write
    if page is None and (words.watch or words.open or not (words.figures or words.export)):
        page = words.runs[0] / PAGE if len(words.runs) == 1 else Path(PAGE)
    wanted = _Wanted(words.runs, page, words.figures, _formats(words.format), words.export)
    _check(wanted)
    try:
        if words.watch:
            _follow(wanted, words)
        else:
            stories = load(*words.runs)
            if not stories:
                names = ", ".join(map(str, words.runs))
                raise NoRecordsError(f"{names}: no epoch has finished yet; --watch waits for it.")
            _write(wanted, stories)
            if words.open and page is not None:
                _open(page)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) and error.filename is not None:
            place = Path(str(error.filename))
            folder = place.parent if place.suffix == ".part" else place  # a temporary file has a name of its own
            raise RuntimeError(f"{folder}: {error.strerror}. --write FILE.html puts the page elsewhere.") from error
        raise
    lines = "\n".join(path for paths in wanted.written.values() for path in paths)
    print(json.dumps(wanted.written) if words.json else lines)
    return 0


def _formats(text: str) -> tuple[str, ...]:
    kinds = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",")))
    if any(part not in FORMATS for part in kinds):
        raise WrongSettingsError(f"--format must be {', '.join(FORMATS)}, or several with commas, not {text!r}.")
    return kinds


def _check(wanted: _Wanted) -> None:
    if wanted.table is not None and wanted.table.suffix.lower() not in TABLES:
        raise WrongSettingsError(f"--export must end in {' or '.join(TABLES)}, not {str(wanted.table)!r}.")
    if wanted.page is not None and wanted.page.is_dir():
        raise WrongSettingsError(f"--write must be a file, but {wanted.page} is a folder.")
    if wanted.page is not None and wanted.page.suffix.lower() not in (".html", ".htm"):
        raise WrongSettingsError(f"--write must end in .html, not {str(wanted.page)!r}.")


def _write(wanted: _Wanted, stories: list[Story]) -> None:
    if wanted.page is not None:
        from aol.report.page import write_page

        write_page(stories, wanted.page)
        wanted.note("page", wanted.page)
    if wanted.figures is not None:
        from aol.report.figures import draw

        wanted.note("figures", *draw(stories, wanted.figures, wanted.formats))
    if wanted.table is not None:
        from aol.report.export import export

        places = _table_places(stories, wanted.table)
        for story, place in places:
            export(story, place)
        wanted.note("tables", *(place for _, place in places))


def _table_places(stories: Sequence[Story], path: Path) -> list[tuple[Story, Path]]:
    """Return which table goes where: the file that was asked for, or one a run beside it, named by the run's folder."""
    kept = [story for story in stories if story.samples is not None]
    if not kept:
        raise RuntimeError("no run here recorded its samples: --export needs runs trained with --keep-samples.")
    if len(kept) == 1:
        return [(kept[0], path)]
    names = [story.folder.name for story in kept]
    return [
        (story, path.with_stem(f"{path.stem}-{name}" + (f"-{place}" if names.count(name) > 1 else "")))
        for place, (story, name) in enumerate(zip(kept, names, strict=True), 1)
    ]


def _follow(wanted: _Wanted, words: argparse.Namespace) -> None:
    """Keep the page up to date; figures and tables are written at the end. Ctrl-C leaves a page without updates."""
    from aol.report.page import write_page
    from aol.report.watch import watch

    page = wanted.page
    assert page is not None
    last: list[Story] = []

    def write(stories: list[Story], over: bool) -> None:
        first = not last
        last[:] = stories  # before the page: Ctrl-C may come between the two
        write_page(stories, page, refresh=None if over else words.every)
        if words.open and first:
            _open(page)
        if not words.json:
            epochs = ", ".join(f"{story.epochs[-1]}" for story in stories[:8])
            more = ", …" if len(stories) > 8 else ""
            _say(f"{page}: {'all runs have finished' if over else f'epoch {epochs}{more}'}")

    try:
        stories = watch(wanted.runs, write, every=words.every, say=_say)
    except KeyboardInterrupt:
        if last:
            write_page(last, page)
        raise
    wanted.note("page", page)
    wanted.page = None
    _write(wanted, stories)


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        _say(f"no browser here; the page is {page}")


def _say(text: str) -> None:
    print(f"aol: {' '.join(text.split())}", file=sys.stderr)
