"""What samples are called in the records of a loop of one's own: as the loop says, else by their ids or positions."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

import aol
from aol.cli import main
from aol.records.samples import read_ids
from tests.support.recorded_loop import LABELS, epoch_of

PATHS = [f"photos/{'abcd'[label]}/{(7 * place) % 30:02}.jpg" for place, label in enumerate(LABELS.tolist())]


def shown(folder: Path) -> list[str]:
    names = read_ids(folder, 30) or range(30)
    return [str(name).encode("utf-8", "backslashreplace").decode() for name in names]


@pytest.mark.parametrize("kind", [np.array, lambda names: [Path(name) for name in names]])
def test_samples_go_by_the_names_given_in_pages_and_tables(kind: type, tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    with aol.Recorder(tmp_path / "mine", ages, names=kind(PATHS)) as recorder:
        for epoch in range(2):
            epoch_of(ages, recorder, epoch)
    assert shown(tmp_path / "mine") == PATHS
    assert main(["report", str(tmp_path / "mine"), "--export", str(tmp_path / "table.csv")]) == 0
    with (tmp_path / "table.csv").open(newline="") as file:
        found = {int(row["index"]): row["id"] for row in csv.DictReader(file)}
    assert found == dict(enumerate(PATHS))


def test_names_stay_when_a_run_goes_on_and_new_ones_take_their_place(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    moved = [f"elsewhere/{name}" for name in PATHS]
    for names, wanted in ((PATHS, PATHS), (None, PATHS), (moved, moved)):
        with aol.Recorder(tmp_path, ages, names=names, resume=True) as recorder:
            epoch_of(ages, recorder, ages.epoch)
        assert shown(tmp_path) == wanted


def test_names_may_be_bytes_and_those_that_could_not_be_read_back_are_refused(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    aol.Recorder(tmp_path / "bytes", ages, names=[name.encode() for name in PATHS]).close()
    assert shown(tmp_path / "bytes") == PATHS
    with pytest.raises(ValueError, match=r"names must be shorter: 30 .* at most 1,294,336\."):
        aol.Recorder(tmp_path / "texts", ages, names=["a long text " * 9000] * 30)
    assert not (tmp_path / "texts").exists()


def test_a_file_name_that_is_no_utf8_is_written_everywhere(tmp_path: Path) -> None:
    names, page = ["caf\udce9.jpg", "\ud800", *PATHS[2:]], str(tmp_path / "page.html")
    ages = aol.SampleAges(LABELS, num_classes=4)
    with aol.Recorder(tmp_path / "run", ages, names=names) as recorder:
        ages.advance()
        recorder.advance()
    assert main(["report", str(tmp_path / "run"), "--export", str(tmp_path / "t.csv"), "--write", page]) == 0
    assert "caf\\udce9.jpg" in (tmp_path / "t.csv").read_text()
    assert shown(tmp_path / "run")[:3] == ["caf\\udce9.jpg", "\\ud800", PATHS[2]]


def test_names_of_settings_and_classes_that_are_no_utf8_are_shown(tmp_path: Path) -> None:
    ages, odd = aol.SampleAges([0, 1]), "\ud800"
    with aol.Recorder(tmp_path / "run", ages, name=odd, classes=[odd, "b"], settings={odd: odd}) as recorder:
        ages.observe([0, 1], [True, False])
        ages.advance()
        recorder.advance()
    for words in (["show"], ["show", "--json"], ["show", "--format", "csv"], ["report"]):
        assert main([*words, str(tmp_path / "run")]) == 0
