"""`aol report`: one HTML page of runs, figures, and a table of samples."""

from __future__ import annotations

import argparse
import errno
from pathlib import Path
from typing import Any

from aol.cli.output import note, tell
from aol.cli.parser import command, number, path, switch, value
from aol.lab.settings import WrongSettingsError

FORMATS = ("png", "pdf", "svg")
TABLES = (".csv", ".parquet")
PAGE = "report.html"


@command(
    "report",
    "Show where runs have been wrong, for how long, and what to do about it: one page, figures, a table.",
    (
        "aol report runs/latest --open",
        "aol report runs/a runs/b --write compare.html",
        "aol report runs/latest --figures figures --format pdf,png",
    ),
    value("runs", "RUN", "folders of runs: --out of a command, a study, or one run", nargs="+", type=path),
    value("--write", "FILE", f"file of the page (default: {PAGE} in RUN, or here for several)", type=path),
    value("--figures", "FOLDER", "write figures for a paper into this folder, and no page", type=path),
    value("--format", "KINDS", f"of the figures: {', '.join(FORMATS)}, or several with commas (default: png)"),
    value("--export", "FILE", "write the table of samples (.csv or .parquet), and no page", type=path),
    switch("--watch", "update the page until all runs have finished"),
    value("--every", "S", "seconds between two updates of --watch", type=number(0.1), default=5.0),
    switch("--open", "open the page in a browser"),
)
def _report(args: argparse.Namespace) -> int:
    """Write what is asked for: the page if nothing is; figures or a table alone, unless a flag asks for the page."""
    page: Path | None = args.write
    if page is None and (args.watch or args.open or not (args.figures or args.export)):
        page = args.runs[0] / PAGE if len(args.runs) == 1 else Path(PAGE)
    if args.format is not None and args.figures is None:
        raise WrongSettingsError("--format is of the figures: add --figures FOLDER.")
    formats = tuple(dict.fromkeys(part.strip().lower() for part in (args.format or "png").split(",")))
    if any(part not in FORMATS for part in formats):
        raise WrongSettingsError(f"--format must be {', '.join(FORMATS)}, or several of them, not {args.format!r}.")
    if args.export is not None and args.export.suffix.lower() not in TABLES:
        raise WrongSettingsError(f"--export must end in {' or '.join(TABLES)}, not {str(args.export)!r}.")
    if page is not None and page.is_dir():
        raise WrongSettingsError(f"--write must be a file, but {page} is a folder.")
    if page is not None and page.suffix.lower() not in (".html", ".htm"):
        raise WrongSettingsError(f"--write must end in .html, not {str(page)!r}.")
    damaged: list[str] = []
    try:
        written = _write(args, page, formats, damaged)
    except OSError as error:
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) and error.filename is not None:
            place = Path(str(error.filename))
            folder = place.parent if place.suffix == ".part" else place  # a temporary file has a name of its own
            hint = " --write FILE.html puts the page elsewhere." if page is not None else ""
            raise RuntimeError(f"{folder}: {error.strerror}.{hint}") from error
        raise
    files = {kind: [str(path) for path in paths] for kind, paths in written.items()}
    tell(args, files, [path for paths in files.values() for path in paths])
    for reason in damaged:
        note(f"damaged, left out: {reason}")
    return 1 if damaged else 0


def _write(
    args: argparse.Namespace, page: Path | None, formats: tuple[str, ...], damaged: list[str]
) -> dict[str, list[Path]]:
    from aol.report.write import follow_runs, write_report

    also: dict[str, Any] = {"figures": args.figures, "formats": formats, "table": args.export}
    opened = _open if args.open else _ignore
    if args.watch and page is not None:
        say = _ignore if args.json else note
        follow_runs(args.runs, page, every=args.every, say=say, opened=opened)
        return {"page": [page]} | (write_report(args.runs, **also) if args.figures or args.export else {})
    written = write_report(args.runs, page=page, damaged=damaged.append, **also)
    if page is not None:
        opened(page)
    return written


def _open(page: Path) -> None:
    import webbrowser

    if not webbrowser.open(page.resolve().as_uri()):
        note(f"no browser here; the page is {page}")


def _ignore(_: object) -> None:
    pass
