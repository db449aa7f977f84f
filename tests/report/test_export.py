"""The exported table: complete, read by others as it was meant, and harmless in a spreadsheet."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aol.records.table import spreadsheet_text
from aol.report.label_errors import export
from aol.report.payload import payload
from aol.report.run_data import RunData
from tests.support.made_runs import changed, make_data

NUMBERS = (
    "index", "label", "prediction", "confidence", "prediction_probability", "mean_confidence", "mean_other", "age",
    "ema", "episodes", "epochs_seen", "epochs_wrong", "score",
)  # fmt: skip
ODD = ["=cmd|' /C calc'!A0", "+1+2", "-2+3", "@SUM(A1)", "\tx", 'ordinary, with "quotes"\nand größe']


def exported(data: RunData, path: Path) -> list[dict[str, str]]:
    (file,) = export([data], path)
    with file.open(newline="", encoding="utf-8-sig") as rows:
        return list(csv.DictReader(rows))


def test_the_table_has_every_sample_most_suspicious_first(tmp_path: Path) -> None:
    data = make_data()
    samples = data.samples
    assert samples is not None
    rows = exported(data, tmp_path / "t.csv")
    assert len(rows) == len(samples)
    order = sorted(range(len(samples)), key=lambda row: -samples.suspicion[row])
    own = {
        "prediction_probability": samples.top, "epochs_seen": samples.seen, "epochs_wrong": samples.wrong,
        "score": samples.suspicion,
    }  # fmt: skip
    for name in NUMBERS:
        wanted = np.asarray(own[name] if name in own else getattr(samples, name), dtype=float)[order]
        assert [float(row[name]) for row in rows] == pytest.approx(wanted, rel=1e-5, abs=1e-6), name
    likely = [row["flagged"] == "True" for row in rows]
    assert likely == [float(row["score"]) > 0.5 for row in rows]  # the rule of the page
    assert sum(likely) == payload([data])["runs"][0]["samples"]["likely"] == 5  # type: ignore[index,call-overload]
    assert [row["id"] for row in rows] == [str(samples.index[row]) for row in order]
    named = {"label": samples.label, "prediction": samples.prediction, "suggested": samples.suggestion}
    for name, classes in named.items():
        assert [row[f"{name}_name"] for row in rows] == [data.run.classes[classes[row]] for row in order]
    assert {row["id"] for row in rows[:5]} == {str(3 * row) for row in range(5)}  # those with wrong labels


def test_nothing_that_a_spreadsheet_would_compute_reaches_it(tmp_path: Path) -> None:
    data = make_data(names=ODD)
    assert data.samples is not None
    ids = [f'=HYPERLINK("http://x",{row})' for row in range(len(data.samples))]
    for row in exported(changed(data, samples=replace(data.samples, ids=ids)), tmp_path / "t.csv"):
        for value in row.values():
            number = value.replace(".", "").replace("e-", "").lstrip("-").isdigit()
            assert number or not value.startswith(("=", "+", "-", "@", "\t", "\r"))
        assert row["id"].lstrip("'") in ids


@pytest.mark.parametrize("text", ["=1", "+a", "-1-1", "@x", "\t=1", "\r", "\n=1", "＝1", "-"])
def test_what_might_be_a_formula_gets_an_apostrophe(text: str) -> None:
    assert spreadsheet_text(text) == f"'{text}"


def test_a_spreadsheet_is_told_of_utf_8_only_where_that_matters(tmp_path: Path) -> None:
    for names, start in ((None, b'"index",'), (["größe", "年"], b'\xef\xbb\xbf"index",')):
        (file,) = export([make_data(names=names)], tmp_path / "t.csv")
        assert file.read_bytes().startswith(start)


def test_what_is_not_known_is_empty(tmp_path: Path) -> None:
    data = make_data()
    assert data.samples is not None
    unknown = np.full(len(data.samples), np.nan, np.float32)
    samples = replace(
        data.samples, prediction=np.full(len(unknown), -1, np.int32), confidence=unknown, top=unknown,
        mean_confidence=unknown, mean_other=unknown, mean_margin=unknown,
    )  # fmt: skip
    row = exported(changed(data, samples=samples), tmp_path / "t.csv")[0]
    assert (row["prediction"], row["prediction_name"], row["confidence"], row["mean_other"]) == ("-1", "", "", "")
    assert float(row["score"]) == pytest.approx(1.0)  # missed in every epoch


def test_what_cannot_be_exported_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"no run here recorded its samples: .* --keep-samples"):
        export([make_data(samples=False)], tmp_path / "t.csv")
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(IsADirectoryError):
        export([make_data()], tmp_path / "d.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["d.csv"]
