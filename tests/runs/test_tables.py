"""Tables and the diary: read back as written, and damage said in a sentence that names the file."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from aol.records.about import About, read_about
from aol.records.diary import Diary, read_diary
from aol.records.tables import DamagedRecordsError, read_classes, read_epochs

NAMES = ["cat", "dog, or not", '"quoted"\nline', "=1+2"]


def written(folder: Path, epochs: int = 3) -> Diary:
    diary = Diary(NAMES)
    for epoch in range(1, epochs + 1):
        by_class = {"age": np.arange(4) / 3 + epoch}
        if epoch == 2:
            by_class["test_accuracy"] = np.array([0.25, math.nan, math.inf, 1.0])
        diary.add(epoch, {"lr": 0.1 / epoch} | ({"test_accuracy": 0.5} if epoch == 2 else {}), by_class)
        diary.write(folder)
    return diary


def test_a_diary_is_read_as_it_was_written_whatever_the_classes_are_called(tmp_path: Path) -> None:
    written(tmp_path)
    curves = read_epochs(tmp_path / "epochs.csv")
    names, by_class = read_classes(tmp_path / "classes.csv")
    assert names == NAMES
    assert curves["epoch"].tolist() == [1, 2, 3]
    assert curves["lr"] == pytest.approx([0.1, 0.05, 0.1 / 3], rel=1e-6)
    assert curves["test_accuracy"] == pytest.approx([math.nan, 0.5, math.nan], nan_ok=True)
    assert by_class["age"] == pytest.approx(np.arange(4) / 3 + np.array([[1], [2], [3]]), rel=1e-6)
    assert by_class["test_accuracy"][1] == pytest.approx([0.25, math.nan, math.nan, 1.0], nan_ok=True)
    assert np.isnan(by_class["test_accuracy"][[0, 2]]).all()


def test_a_diary_that_goes_on_is_the_one_that_never_stopped(tmp_path: Path) -> None:
    straight, broken = tmp_path / "a", tmp_path / "b"
    written(straight)
    written(broken, epochs=2)
    diary = read_diary(broken, NAMES)
    assert diary.epochs == [1, 2]
    diary.add(3, {"lr": 0.1 / 3}, {"age": np.arange(4) / 3 + 3})
    diary.write(broken)
    for name in ("epochs.csv", "classes.csv"):
        assert (broken / name).read_bytes() == (straight / name).read_bytes()


def test_cutting_a_diary_leaves_what_was_before(tmp_path: Path) -> None:
    diary = written(tmp_path)
    diary.cut(1)
    diary.write(tmp_path)
    fresh = written(tmp_path / "other", epochs=1)
    assert diary.epochs == fresh.epochs == [1]
    assert (tmp_path / "classes.csv").read_bytes() == (tmp_path / "other" / "classes.csv").read_bytes()


DAMAGE = {
    "half a row": ("epochs.csv", "epoch,lr\n1\n", "epochs.csv: not a whole CSV table"),
    "nothing": ("epochs.csv", "", "epochs.csv: not a whole CSV table"),
    "words for numbers": ("epochs.csv", "epoch,lr\n1,fast\n", "epochs.csv: could not convert string to float"),
    "an epoch twice": ("epochs.csv", "epoch,lr\n1,1\n1,1\n", "epochs.csv: epochs must be whole numbers from 1"),
    "no epoch": ("epochs.csv", "epoch,lr\n1,1\ninf,1\n", "epochs.csv: epochs must be whole numbers from 1"),
    "half an epoch": ("epochs.csv", "epoch,lr\n1,1\n1.5,1\n", "epochs.csv: epochs must be whole numbers from 1"),
    "another table": ("classes.csv", "a,b,c\n1,2,3\n", "classes.csv: not a table of classes by epoch"),
    "a missing class": (
        "classes.csv",
        "epoch,class,name,age\n1,0,a,1\n1,1,b,1\n2,0,a,1\n",
        "classes.csv: 3 rows do not fit 2 classes",
    ),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_tables_are_named(what: str, tmp_path: Path) -> None:
    name, content, message = DAMAGE[what]
    (tmp_path / name).write_text(content)
    with pytest.raises(DamagedRecordsError, match=message):
        (read_epochs if name == "epochs.csv" else read_classes)(tmp_path / name)


def test_a_table_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(DamagedRecordsError, match=r"classes.csv: this file of the run is missing"):
        read_classes(tmp_path / "classes.csv")


def test_a_table_that_a_spreadsheet_has_saved_is_read(tmp_path: Path) -> None:
    (tmp_path / "epochs.csv").write_bytes("\ufeffepoch,lr\r\n1,0.5\r\n".encode())
    assert read_epochs(tmp_path / "epochs.csv")["lr"].tolist() == [0.5]


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "epochs.csv").write_bytes(b"epoch\n\xff\xfe\n")
    with pytest.raises(DamagedRecordsError, match=r"epochs.csv: not a CSV table"):
        read_epochs(tmp_path / "epochs.csv")


def test_a_diary_of_other_classes_or_epochs_is_not_gone_on_with(tmp_path: Path) -> None:
    written(tmp_path)
    with pytest.raises(DamagedRecordsError, match="records of other classes"):
        read_diary(tmp_path, ["cat"])
    (tmp_path / "epochs.csv").write_text("epoch\n5\n")
    with pytest.raises(DamagedRecordsError, match="do not fit together"):
        read_diary(tmp_path, NAMES)


def test_what_a_run_is_is_read_as_it_was_written(tmp_path: Path) -> None:
    about = About("aol ρ=0.5", 3, ["a", "</script>"], [5, 1], 30, {"torch": "2"}, "aol train", "digits", None, "/x")
    assert read_about(tmp_path) is None
    about.write(tmp_path)
    assert read_about(tmp_path) == about
    (tmp_path / "about.json").write_text('{"method": "x", "seed": 0, "classes": ["a"], "counts": [], "more": 1}')
    with pytest.raises(DamagedRecordsError, match=r"about.json: damaged \(classes and counts differ"):
        read_about(tmp_path)
    (tmp_path / "about.json").write_text("[]")
    with pytest.raises(DamagedRecordsError, match="not a JSON object"):
        read_about(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("method", None), ("seed", "x"), ("epochs", 1.5), ("classes", "ab"), ("classes", [1, 2]), ("counts", "ab"),
        ("counts", [1, -1]), ("counts", [1.5, 1]), ("versions", ["x"]), ("command", ["x"]), ("data", 7),
        ("data_dir", 3),
    ],
)  # fmt: skip
def test_a_wrong_type_in_what_a_run_is_is_named(name: str, value: object, tmp_path: Path) -> None:
    good = {"method": "x", "seed": 0, "classes": ["a", "b"], "counts": [2, 1]}
    (tmp_path / "about.json").write_text(json.dumps(good | {name: value}))
    with pytest.raises(DamagedRecordsError, match=rf"about.json: damaged \({name} must"):
        read_about(tmp_path)
