"""Names of samples in the records of runs: each must lead to the very image the network was shown."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from aol.cli import main
from aol.lab import nets
from aol.lab.data.crops import crops_for, sample_generator
from aol.lab.data.decode import decode
from aol.lab.data.encoded_images import StoredImages
from aol.lab.data.images import IMAGENET
from aol.records.record import read_run
from tests.support.naming import LAYOUTS, shuffled
from tests.support.tiny_sets import image_folder, parquet_set

SMALL = ["--image-size", "32", "--net", "resnet32", "--batch-size", "5"]
CHOICES = {
    "all": [],
    "long tail": ["--imbalance", "2"],
    "validation": ["--validation", "0.25", "--seed", "3"],
    "both": ["--validation", "0.25", "--imbalance", "2", "--seed", "5"],
}


def recorded(data: Path, out: Path, *more: str) -> tuple[list[str], dict[str, torch.Tensor], Path]:
    """Names and samples of the one run in `out`."""
    assert main(["train", "--data", str(data), *SMALL, "--keep-samples", *more, "--out", str(out), "--json"]) == 0
    (path,) = out.rglob("ids.json")
    return json.loads(path.read_text())["ids"], load_file(path.parent / "samples.safetensors"), path.parent


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_saved_network_answers_to_the_image_of_that_name_as_recorded(
    layout: str, choice: str, packed: bool, tmp_path: Path
) -> None:
    make, find = LAYOUTS[layout]
    source = data = make(tmp_path / "source")
    if packed:
        data = tmp_path / "packed"
        assert main(["data", "pack", str(source), str(data)]) == 0
    train = ["--epochs", "2", "--lr", "0.01"]
    names, kept, folder = recorded(data, tmp_path / "out", *train, *CHOICES[choice])
    classes = read_run(folder).classes
    net = nets.make("resnet32", num_classes=len(classes), in_channels=3, image_size=32, seed=0)
    net.load_state_dict(load_file(folder / "network.safetensors"))
    net.eval()
    centre = crops_for(32)[1]
    found = []
    for name, label in zip(names, kept["label"].tolist(), strict=True):
        content, own = find(source, name)
        assert own in (label, classes[label])
        image = centre(decode(content, name), sample_generator(0, 0, 0))
        with torch.no_grad():
            found.append(float(net(IMAGENET(image)[None]).softmax(1)[0, label]))
    assert found == pytest.approx(kept["confidence"].tolist(), abs=2e-6)
    # And no other order of names would do: samples of one class differ by more than that.
    for label in range(len(classes)):
        mine = kept["confidence"][kept["label"] == label].sort().values
        assert float(mine.diff().min() if len(mine) > 1 else 1.0) > 1e-5


def test_pages_and_tables_show_the_names_of_packed_samples(tmp_path: Path) -> None:
    photos = image_folder(tmp_path / "photos")
    assert main(["data", "pack", str(photos), str(tmp_path / "packed")]) == 0
    out = tmp_path / "out"
    names, kept, _ = recorded(tmp_path / "packed", out, "--epochs", "1", "--imbalance", "2")
    assert main(["report", str(out), "--export", str(tmp_path / "table.csv")]) == 0
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["id"]: int(row["index"]) for row in rows} == dict(zip(names, kept["index"].tolist(), strict=True))
    assert {row["id"]: row["label_name"] for row in rows} == {name: name.split("/")[1] for name in names}
    assert main(["report", str(out)]) == 0
    page = (out / "report.html").read_text()
    wrong = [name for name, age in zip(names, kept["age"].tolist(), strict=True) if age > 1]
    assert wrong
    assert all(name in page for name in wrong)


def test_a_wrong_table_of_names_is_one_line_before_the_first_epoch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "pack", str(image_folder(tmp_path / "photos")), str(tmp_path / "packed")]) == 0
    table = tmp_path / "packed" / "train-00000.names"
    table.write_bytes(table.read_bytes()[:-1])
    capsys.readouterr()
    words = ["train", "--data", str(tmp_path / "packed"), *SMALL, "--epochs", "1"]
    assert main([*words, "--keep-samples", "--out", str(tmp_path / "out"), "--json"]) == 1
    said = capsys.readouterr().err
    assert f"{table}: damaged" in said.splitlines()[-1]
    assert not list((tmp_path / "out").rglob("run.json"))
    assert main([*words, "--out", str(tmp_path / "other")]) == 0  # who keeps no samples needs no names


def test_samples_without_names_go_by_numbers_and_not_by_those_of_a_run_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, out = image_folder(tmp_path / "photos"), tmp_path / "out"
    _, _, folder = recorded(photos, out, "--epochs", "1")
    monkeypatch.setattr(StoredImages, "names", lambda *_: None)
    (folder / "run.json").unlink()  # as if it had been killed before its first checkpoint
    assert main(["train", "--data", str(photos), *SMALL, "--keep-samples", "--epochs", "1", "--out", str(out)]) == 0
    assert not (folder / "ids.json").exists()
    assert main(["report", str(out), "--export", str(tmp_path / "table.csv")]) == 0
    with (tmp_path / "table.csv").open(newline="") as file:
        assert all(row["id"] == row["index"] for row in csv.DictReader(file))


def test_rows_of_parquet_are_shown_by_file_and_row(tmp_path: Path) -> None:
    data = parquet_set(tmp_path / "rows", {"train": [shuffled(0, 5), shuffled(5, 4)], "test": [shuffled(9, 3)]}, None)
    names, kept, _ = recorded(data, tmp_path / "out", "--epochs", "1")
    rows = [f"data/train-00000-of-00002.parquet#{row}" for row in range(5)]
    rows += [f"data/train-00001-of-00002.parquet#{row}" for row in range(4)]
    assert names == [rows[place] for place in kept["index"].tolist()]
    assert kept["index"].tolist() != list(range(9))  # by class
