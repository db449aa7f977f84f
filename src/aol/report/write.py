"""What `aol report` writes: the page, figures and tables; once, or until all runs have finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from aol.report.export import export
from aol.report.page import write_page
from aol.report.run_data import RunData, load
from aol.report.watch import watch
from aol.runs.store import NoRunsError


def write_report(
    paths: Sequence[Path],
    *,
    page: Path | None = None,
    figures: Path | None = None,
    formats: Sequence[str] = ("png",),
    table: Path | None = None,
) -> dict[str, list[Path]]:
    """Write what is asked for of the runs in some folders, and return the files by kind: page, figures, tables."""
    runs = load(*paths)
    if not runs:
        raise NoRunsError(f"{', '.join(map(str, paths))}: no epoch has finished yet; --watch waits for it.")
    return _write(runs, page, figures, formats, table)


def follow_runs(
    paths: Sequence[Path],
    page: Path,
    *,
    every: float,
    say: Callable[[str], None],
    opened: Callable[[Path], None] = lambda _: None,
    figures: Path | None = None,
    formats: Sequence[str] = ("png",),
    table: Path | None = None,
) -> dict[str, list[Path]]:
    """Keep the page up to date until all runs have finished, then write figures and tables; return all files.

    `opened` is called when the page is there for the first time. Ctrl-C leaves a page that does not refresh itself.
    """
    last: list[RunData] = []

    def write(runs: list[RunData], finished: bool) -> None:
        first = not last
        last[:] = runs  # before the page: Ctrl-C may come between the two
        write_page(runs, page, refresh=None if finished else every)
        if first:
            opened(page)
        epochs = ", ".join(str(data.run.epochs[-1]) for data in runs[:8]) + (", …" if len(runs) > 8 else "")
        say(f"{page}: {'all runs have finished' if finished else f'epoch {epochs}'}")

    try:
        runs = watch(paths, write, every=every, say=say)
    except KeyboardInterrupt:
        if last:
            write_page(last, page)
        raise
    return {"page": [page]} | _write(runs, None, figures, formats, table)


def _write(
    runs: Sequence[RunData], page: Path | None, figures: Path | None, formats: Sequence[str], table: Path | None
) -> dict[str, list[Path]]:
    written: dict[str, list[Path]] = {}
    if page is not None:
        write_page(runs, page)
        written["page"] = [page]
    if figures is not None:
        from aol.plots import draw
        from aol.runs.table import frame_of

        written["figures"] = draw(frame_of((data.folder, data.run) for data in runs), figures, formats)
    if table is not None:
        written["tables"] = [export(data, place) for data, place in table_files(runs, table)]
    return written


def table_files(runs: Sequence[RunData], path: Path) -> list[tuple[RunData, Path]]:
    """Return which table goes to which file: the one asked for, or one a run beside it, named by the run's folder."""
    kept = [data for data in runs if data.samples is not None]
    if not kept:
        raise RuntimeError("no run here recorded its samples: --export needs runs trained with --keep-samples.")
    if len(kept) == 1:
        return [(kept[0], path)]
    names = [data.folder.name for data in kept]
    return [
        (data, path.with_stem(f"{path.stem}-{name}" + (f"-{place}" if names.count(name) > 1 else "")))
        for place, (data, name) in enumerate(zip(kept, names, strict=True), 1)
    ]
