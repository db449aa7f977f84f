"""Which labels are likely wrong: as a frame, `aol.find_label_errors`, and as the table of `aol report --export`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from aol import _check
from aol._files import write_atomically
from aol.records.table import as_csv, unlike
from aol.report.run_data import RunData, Samples, load


def find_label_errors(source: Any) -> pd.DataFrame:
    """Return which labels are likely wrong: a row for every training sample, the most suspicious first.

    Columns: `index` (the position in the data set, also the index of the frame), `label`, `suggested` (the class that
    more than half of the wrong answers named, else one of these classes; the label, if no answer was wrong), `score` (0
    to 1) and `flagged` (whether the label is likely wrong). So `errors.index[errors.flagged]` is what
    `cleanlab.filter.find_label_issues` returns with `return_indices_ranked_by`.

    Args:
        source: an `aol.Watch`, an `aol.Recorder`, a `WatchCallback` or the folder of a record, also during training.
            Several of them as a list, or a folder with several runs, are averaged: a sample gets the mean score of the
            runs that know it, the most frequent suggestion, and is flagged where the mean is above 0.5.

    >>> import tempfile, torch
    >>> from aol import Watch
    >>> x, y = torch.eye(2)[[0, 0, 0, 0, 1, 1, 1, 1]] * 9, torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    >>> with Watch(tempfile.mkdtemp(), torch.utils.data.TensorDataset(x, y)) as watch:
    ...     for epoch in range(4):
    ...         watch.epoch(torch.nn.Identity())
    >>> find_label_errors(watch).head(2).round(2)
       index  label  suggested  score  flagged
    3      3      1          0   1.00     True
    0      0      0          0   0.24    False
    """
    sources = source if isinstance(source, list | tuple) else [source]
    folders = [folder for one in sources if isinstance(folder := getattr(one, "folder", one), str | os.PathLike)]
    if not folders or len(folders) < len(sources):
        expected = "an aol.Watch, an aol.Recorder, a WatchCallback, the folder of a record, or a list of these"
        raise TypeError(f"source must be {expected}, not {_check.shown(source)}.")
    runs = load(*folders)
    frames = [label_errors(data.samples) for data in runs if data.samples is not None]
    if not frames:
        why = "recorded its samples" if runs else "has finished an epoch"
        raise ValueError(f"No run in {', '.join(map(str, folders))} {why}: use aol.Watch, or aol train --keep-samples.")
    errors = frames[0] if len(frames) == 1 else _consensus(frames)
    return errors.sort_values(["flagged", "score"], ascending=False, kind="stable")


def label_errors(samples: Samples) -> pd.DataFrame:
    """Return the frame of one run, in the order of its samples."""
    columns = {
        "index": samples.index, "label": samples.label, "suggested": samples.suggestion,
        "score": samples.suspicion, "flagged": samples.likely_mislabelled,
    }  # fmt: skip
    return pd.DataFrame(columns, index=samples.index)


def _consensus(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    table = pd.concat(frames, ignore_index=True)
    if (table.groupby("index")["label"].nunique() > 1).any():
        raise ValueError("The runs are of different labels: give runs of one training set.")
    seen = table["score"] > 0  # 0: the run never saw it, and does not count where another one did
    table = table[seen | ~seen.groupby(table["index"]).transform("any")]
    by_sample = table.groupby("index", sort=True)
    votes = table.groupby(["index", "suggested"])["score"].agg(["size", "sum"]).reset_index()
    votes = votes.sort_values(["size", "sum"], kind="stable").drop_duplicates("index", keep="last").set_index("index")
    errors = by_sample.agg(label=("label", "first"), score=("score", "mean"))
    columns = {"index": errors.index, "label": errors.label, "suggested": votes["suggested"], "score": errors.score,
               "flagged": errors.score > 0.5}  # fmt: skip
    return pd.DataFrame(columns).rename_axis(None)


def export(runs: Sequence[RunData], path: Path) -> list[Path]:
    """Write the samples of a run, most suspicious first, as CSV; of several runs, files that are named by folders."""
    kept = [(data, data.samples) for data in runs if data.samples is not None]
    if not kept:
        raise RuntimeError("no run here recorded its samples: --export needs runs trained with --keep-samples.")
    names = unlike((data.folder.name for data, _ in kept), "-{}")
    places = [path.with_stem(f"{path.stem}-{name}") for name in names] if len(kept) > 1 else [path]
    for (data, samples), place in zip(kept, places, strict=True):
        content = as_csv(_table(data, samples), index=False, float_format="%.6g")
        # Without a mark, spreadsheets take UTF-8 for something else.
        write_atomically(place, content.encode("ascii" if content.isascii() else "utf-8-sig"))
    return places


def _table(data: RunData, samples: Samples) -> pd.DataFrame:
    """Return the frame of label errors with all that is known of the samples; `names[-1]`: of an unknown answer."""
    names = np.array([*data.run.classes, ""], dtype=object)
    table = label_errors(samples).assign(
        id=[samples.id(row) for row in range(len(samples))], label_name=names[samples.label],
        suggested_name=names[samples.suggestion], prediction=samples.prediction,
        prediction_name=names[samples.prediction], confidence=samples.confidence, prediction_probability=samples.top,
        mean_confidence=samples.mean_confidence, mean_other=samples.mean_other, age=samples.age, ema=samples.ema,
        episodes=samples.episodes, epochs_seen=samples.seen, epochs_wrong=samples.wrong,
    )  # fmt: skip
    return table.sort_values("score", ascending=False, kind="stable")
