"""The words `aol data list`, `get`, `check` and `pack`: words to calls, results to lines or JSON.

Assumes it is mounted on the main command. Exit status: 0 done, 1 failed, 2 the words were wrong. Errors are
one line on standard error.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from aol.data.check import check as check_set
from aol.data.errors import DataError
from aol.data.get import get as get_set
from aol.data.named import NAMES, list_sets
from aol.data.pack import QUALITY
from aol.data.pack import pack as pack_set

app = typer.Typer(name="data", help="Data sets: where they are, fetching, checking, packing.", no_args_is_help=True)

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
DataDir = Annotated[Path | None, typer.Option(help="Look here first.")]
Workers = Annotated[int, typer.Option(min=1, help="Threads that decode.")]


@contextmanager
def _one_line(debug: bool) -> Iterator[None]:
    """Make one line of an error; with `debug`, its traceback comes before it."""
    try:
        yield
    except (DataError, OSError, ModuleNotFoundError, ValueError) as reason:
        if debug:
            traceback.print_exc()
        usage = isinstance(reason, ValueError) and not isinstance(reason, DataError)
        _fail(str(reason), 2 if usage else 1)
    except KeyboardInterrupt:
        _fail("stopped; the same command goes on from here", 1)


def _fail(reason: str, status: int) -> None:
    typer.echo(f"aol data: {' '.join(reason.split())}", err=True)
    raise typer.Exit(status)


def _progress(quiet: bool) -> Callable[[str, int, int], None] | None:
    """Give a progress line for a terminal; nothing when the output is JSON or goes into a file."""
    if quiet or not sys.stderr.isatty():
        return None

    def show(what: str, done: int, total: int) -> None:
        end = "\n" if done >= total else ""
        print(f"\r{what}: {done:,} of {total:,} ({done / max(total, 1):.0%})", end=end, file=sys.stderr)

    return show


@app.command("list")
def list_command(data_dir: DataDir = None, as_json: AsJson = False, debug: Debug = False) -> None:
    """List the built-in data sets and where each one is."""
    with _one_line(debug):
        listings = list_sets(data_dir=data_dir)
        if as_json:
            typer.echo(json.dumps({"sets": [asdict(listing) for listing in listings]}))
            return
        for listing in listings:
            where = listing.where or f"not here: aol data get {listing.name}"
            typer.echo(f"{listing.name:<14} {listing.title:<50} {where}")


@app.command("get")
def get_command(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(NAMES)}.")],
    data_dir: Annotated[Path | None, typer.Option(help="Put it here; default: the cache folder.")] = None,
    mirror: Annotated[str | None, typer.Option(help="Fetch the same files from this address.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Download a data set from its official address; a stopped download goes on where it stopped."""
    with _one_line(debug):
        folder = get_set(name, data_dir, progress=_progress(as_json), mirror=mirror)
        where = str(folder) if folder is not None else "inside scikit-learn"
        typer.echo(json.dumps({"name": name, "where": where}) if as_json else f"{name}: {where}")


@app.command("check")
def check_command(
    name: Annotated[str, typer.Argument(help="A built-in name or a folder.")],
    data_dir: DataDir = None,
    decode: Annotated[bool, typer.Option("--decode", help="Decode every image of a folder.")] = False,
    workers: Workers = 4,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Say where a data set is, how large it is, and which of its files is wrong."""
    with _one_line(debug):
        report = check_set(name, data_dir=data_dir, decode=decode, workers=workers, progress=_progress(as_json))
        if as_json:
            typer.echo(json.dumps({**asdict(report), "ok": report.ok}))
        elif report.ok:
            sizes = ", ".join(f"{count:,} {split}" for split, count in report.sizes.items())
            typer.echo(f"{report.name}: {report.kind}, {report.where}, {report.classes} classes, {sizes}: all right")
    if not report.ok:
        more = f" (and {len(report.problems) - 1} more)" if len(report.problems) > 1 else ""
        _fail(report.problems[0] + more, 1)


@app.command("pack")
def pack_command(
    source: Annotated[Path, typer.Argument(help="An image folder, Parquet, LMDB or packed set.")],
    dest: Annotated[Path, typer.Argument(help="A new folder, or that of an earlier packing.")],
    size: Annotated[int | None, typer.Option(help="Shrink to this shorter side.")] = None,
    quality: Annotated[int, typer.Option(help="JPEG quality of what is shrunk.")] = QUALITY,
    workers: Annotated[int | None, typer.Option(min=1, help="Threads; default: all cores.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Pack a large data set into a few files that are quick to read at random; resumable."""
    with _one_line(debug):
        show = _progress(as_json)

        def report(done: int, total: int) -> None:
            if show is not None:
                show("packed", done, total)

        done = pack_set(source, dest, size=size, quality=quality, workers=workers, progress=report)
        if as_json:
            typer.echo(json.dumps(asdict(done)))
        else:
            typer.echo(
                f"{done.where}: {done.records:,} images, {done.bytes / 1e6:,.1f} MB; "
                f"{done.written} shards written, {done.kept} already there"
            )


def main(arguments: Sequence[str]) -> int:
    """Run the words after `aol data` and return the exit status; wrong words are one line too."""
    try:
        found = app(args=list(arguments), prog_name="aol data", standalone_mode=False)
    except Exception as error:
        # Typer's own errors know their message and status; which module they come from differs by version.
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        typer.echo(f"aol data: {' '.join(str(message()).split())}", err=True)
        return int(getattr(error, "exit_code", 2))
    return found if isinstance(found, int) else 0
