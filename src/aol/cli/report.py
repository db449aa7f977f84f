"""`aol report`: one HTML page of runs, figures, and a table of samples."""

from __future__ import annotations

import argparse
import errno
import json
import sys
from pathlib import Path

from aol.cli.parser import Commands, add_command, add_common, seconds
from aol.engine.settings import WrongSettingsError

FORMATS = ("png", "pdf", "svg")
TABLES = (".csv", ".parquet")
PAGE = "report.html"
_TEXT = "Show where runs have been wrong, for how long, and what to do about it: one page, figures, a table."
_EXAMPLES = (
    "aol report runs/latest --open",
    "aol report runs/a runs/b --write compare.html",
    "aol report runs/latest --figures figures --format pdf,png",
)


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
    page: Path | None = words.write
    if page is None and (words.watch or words.open or not (words.figures or words.export)):
        page = words.runs[0] / PAGE if len(words.runs) == 1 else Path(PAGE)
    formats = _formats(words.format)
    _check(page, words.export)
    try:
        written = _write(words, page, formats)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) and error.filename is not None:
            place = Path(str(error.filename))
            folder = place.parent if place.suffix == ".part" else place  # a temporary file has a name of its own
            raise RuntimeError(f"{folder}: {error.strerror}. --write FILE.html puts the page elsewhere.") from error
        raise
    files = {kind: [str(path) for path in paths] for kind, paths in written.items()}
    print(json.dumps(files) if words.json else "\n".join(path for paths in files.values() for path in paths))
    return 0


def _write(words: argparse.Namespace, page: Path | None, formats: tuple[str, ...]) -> dict[str, list[Path]]:
    from aol.report.write import follow_runs, write_report

    if words.watch:
        assert page is not None
        return follow_runs(
            words.runs, page, every=words.every, say=_silent if words.json else _say,
            opened=_open if words.open else _silent, figures=words.figures, formats=formats, table=words.export,
        )  # fmt: skip
    written = write_report(words.runs, page=page, figures=words.figures, formats=formats, table=words.export)
    if words.open and page is not None:
        _open(page)
    return written


def _silent(_: object) -> None:
    pass


def _formats(text: str) -> tuple[str, ...]:
    kinds = tuple(dict.fromkeys(part.strip().lower() for part in text.split(",")))
    if any(part not in FORMATS for part in kinds):
        raise WrongSettingsError(f"--format must be {', '.join(FORMATS)}, or several with commas, not {text!r}.")
    return kinds


def _check(page: Path | None, table: Path | None) -> None:
    if table is not None and table.suffix.lower() not in TABLES:
        raise WrongSettingsError(f"--export must end in {' or '.join(TABLES)}, not {str(table)!r}.")
    if page is not None and page.is_dir():
        raise WrongSettingsError(f"--write must be a file, but {page} is a folder.")
    if page is not None and page.suffix.lower() not in (".html", ".htm"):
        raise WrongSettingsError(f"--write must end in .html, not {str(page)!r}.")


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        _say(f"no browser here; the page is {page}")


def _say(text: str) -> None:
    print(f"aol: {' '.join(text.split())}", file=sys.stderr)
