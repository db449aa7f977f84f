"""The table of samples as CSV or Parquet, for spreadsheets, pandas and cleanlab. Parquet needs pyarrow."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pandas as pd

from aol._files import write_atomically
from aol._values import spreadsheet_text
from aol.report.run_data import RunData


def _table(data: RunData) -> pd.DataFrame:
    samples = data.samples
    if samples is None:
        raise ValueError(f"{data.name} did not record its samples: train with --keep-samples, or record SampleAges.")
    names = np.array([*data.run.classes, ""], dtype=object)  # -1, an unknown answer, has none
    ids = np.array([samples.id(row) for row in range(len(samples))], dtype=object)
    table = {
        "id": ids, "index": samples.index, "label": samples.label, "label_name": names[samples.label],
        "prediction": samples.prediction, "prediction_name": names[samples.prediction],
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
        texts = {name: table[name].map(spreadsheet_text) for name in ("id", "label_name", "prediction_name")}
        content = table.assign(**texts).to_csv(index=False, float_format="%.6g", lineterminator="\n")
        # Without a mark, spreadsheets take UTF-8 for something else.
        buffer.write(content.encode("ascii" if content.isascii() else "utf-8-sig"))
    elif place.suffix.lower() == ".parquet":
        table.to_parquet(buffer, engine="pyarrow", index=False)
    else:
        raise ValueError(f"path must end in .csv or .parquet, not {str(place)!r}.")
    write_atomically(place, buffer.getvalue())
    return place
