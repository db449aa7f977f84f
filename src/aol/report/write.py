"""What `aol report` writes: the page, figures and tables; once, or again at every change until all runs have finished.

While runs are trained, records may be missing for a moment, or not be there yet: then it waits and tries again. Tables
of samples are CSV or Parquet, for spreadsheets, pandas and cleanlab; Parquet needs pyarrow.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from aol._files import write_atomically
from aol._values import unlike
from aol.records import record, samples, store
from aol.records.table import as_csv, frame_of
from aol.report.figures import draw
from aol.report.page import write_page
from aol.report.run_data import RunData, load

RECORDS = frozenset((record.FILE, samples.FILE, store.REQUEST))  # other files in the folder may change
_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.EISDIR)  # waiting does not help


def write_report(
    paths: Sequence[Path],
    *,
    page: Path | None = None,
    figures: Path | None = None,
    formats: Sequence[str] = ("png",),
    table: Path | None = None,
    damaged: Callable[[str], None] | None = None,
) -> dict[str, list[Path]]:
    """Write what is asked for of the runs in some folders, and return the files by kind: page, figures, tables.

    `damaged` gets the reason for each run that is left out because its record is damaged; by default that is an error.
    A table is written for each run that has samples; of several runs, beside `table`, named by the run's folder.
    """
    runs = _some(paths, damaged)
    written: dict[str, list[Path]] = {}
    if page is not None:
        write_page(runs, page)
        written["page"] = [page]
    if figures is not None:
        written["figures"] = draw(frame_of((data.folder, data.run) for data in runs), figures, formats)
    if table is not None:
        kept = [data for data in runs if data.samples is not None]
        if not kept:
            raise RuntimeError("no run here recorded its samples: --export needs runs trained with --keep-samples.")
        names = unlike((data.folder.name for data in kept), "-{}")
        places = [table.with_stem(f"{table.stem}-{name}") for name in names] if kept[1:] else [table]
        written["tables"] = [export(data, place) for data, place in zip(kept, places, strict=True)]
    return written


def _some(paths: Sequence[Path], damaged: Callable[[str], None] | None = None) -> list[RunData]:
    runs = load(*paths, damaged=damaged)
    if not runs:
        raise store.NoRunsError(f"{', '.join(map(str, paths))}: no epoch has finished yet; --watch waits for it.")
    return runs


def _table(data: RunData) -> pd.DataFrame:
    samples = data.samples
    if samples is None:
        raise ValueError(f"{data.name} did not record its samples: train with --keep-samples, or record SampleAges.")
    names = np.array([*data.run.classes, ""], dtype=object)  # -1, an unknown answer, has none
    ids = np.array([samples.id(row) for row in range(len(samples))], dtype=object)
    table = {
        "id": ids, "index": samples.index, "label": samples.label, "label_name": names[samples.label],
        "prediction": samples.prediction, "prediction_name": names[samples.prediction],
        "suggested": samples.suggestion, "suggested_name": names[samples.suggestion],
        "confidence": samples.confidence, "prediction_probability": samples.top,
        "mean_confidence": samples.mean_confidence, "mean_other": samples.mean_other, "age": samples.age,
        "ema": samples.ema, "episodes": samples.episodes, "epochs_seen": samples.seen, "epochs_wrong": samples.wrong,
        "suspicion": samples.suspicion, "likely_label_error": samples.likely_mislabelled,
        "label_quality": (1.0 - samples.suspicion).astype(np.float32),
    }  # fmt: skip
    return pd.DataFrame(table).iloc[np.argsort(-samples.suspicion, kind="stable")]


def export(data: RunData, path: str | os.PathLike[str]) -> Path:
    """Write the table of a run's samples, most suspicious first, to a `.csv` or `.parquet` file, and return the path.

    Unknown numbers are NaN, or -1. In CSV, a text that a spreadsheet would take for a formula gets an apostrophe before
    it. Parquet has every text as it is.
    """
    place, table, buffer = Path(path), _table(data), io.BytesIO()
    if place.suffix.lower() == ".csv":
        content = as_csv(table, index=False, float_format="%.6g")
        # Without a mark, spreadsheets take UTF-8 for something else.
        buffer.write(content.encode("ascii" if content.isascii() else "utf-8-sig"))
    elif place.suffix.lower() == ".parquet":
        table.to_parquet(buffer, engine="pyarrow", index=False)
    else:
        raise ValueError(f"path must end in .csv or .parquet, not {str(place)!r}.")
    write_atomically(place, buffer.getvalue())
    return place


def follow_runs(
    paths: Sequence[Path],
    page: Path,
    *,
    every: float,
    say: Callable[[str], None],
    opened: Callable[[Path], None] = lambda _: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Write the page of the runs in some folders, now and after each change, until all have finished.

    Looks every few seconds, and less often where reading takes long. A problem that may pass is reported once; a place
    that cannot be read or written is an error. `opened` is called when the page is there for the first time. Ctrl-C
    leaves a page that does not refresh itself.
    """
    before, said, runs = None, "", list[RunData]()
    try:
        while True:
            begun, now = time.monotonic(), record_states(paths)
            if now != before:
                try:
                    runs = _some(paths)
                    finished = all_finished(paths, runs)
                    write_page(runs, page, refresh=None if finished else every)
                except (store.NoRunsError, record.DamagedRunError, OSError) as reason:
                    if isinstance(reason, OSError) and reason.errno in _LASTING:
                        raise
                    text = f"{reason} Waiting."
                else:
                    if before is None:
                        opened(page)
                    before = now
                    epochs = ", ".join(str(data.run.epochs[-1]) for data in runs[:8]) + ", …" * (len(runs) > 8)
                    text = f"{page}: {'all runs have finished' if finished else f'epoch {epochs}'}"
                if text != said:
                    say(text)
                if now == before and finished:
                    return
                said = text
            sleep(max(every, 2 * (time.monotonic() - begun)))
    except KeyboardInterrupt:
        if runs:
            write_page(runs, page)
        raise


def record_states(paths: Sequence[Path]) -> set[tuple[str, int, int]]:
    """Return what changes when records do: the name, time and size of every record."""
    states = set()
    for file in (file for path in paths for file in path.rglob("*") if file.name in RECORDS):
        with contextlib.suppress(OSError):  # removed since
            about = file.stat()
            states.add((str(file), about.st_mtime_ns, about.st_size))
    return states


def all_finished(paths: Sequence[Path], runs: Sequence[RunData]) -> bool:
    """Return whether all runs that were asked for in these folders have finished; a run without a record has not."""
    places = [path.resolve() for path in paths]
    done = {data.folder.resolve() for data in runs if data.run.finished}
    folders = {*places, *(data.folder.resolve().parent.parent for data in runs)}
    asked = [folder for folder in folders if any(folder.is_relative_to(place) for place in places)]
    wanted = {store.Store(folder).path(run) for folder in asked for run in store.requested_ids(folder)}
    return wanted <= done and len(done) == len(runs)
