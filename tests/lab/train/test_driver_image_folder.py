"""A folder in ImageNet's layout, from files to results: decoded while training, killed and resumed, and damaged."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from aol.cli import main
from aol.lab.data import open_data
from aol.records.previews import read_previews
from tests.support.running import forked, status_of, wait_for
from tests.support.tiny_sets import image_folder

NET = ["--image-size", "32", "--net", "resnet32", "--batch-size", "5", "--lr", "0.01"]
SMALL = [*NET, "--epochs", "1"]


def trained(data: Path, out: Path, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, object]]:
    status = main(["train", "--data", str(data), *(more or SMALL), "--out", str(out), "--json"])
    said = capsys.readouterr()
    assert status == 0, said.err
    return json.loads(said.out)["runs"]  # type: ignore[no-any-return]


def network(out: Path) -> dict[str, torch.Tensor]:
    (path,) = out.rglob("network.safetensors")
    return load_file(path)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return image_folder(tmp_path_factory.mktemp("photos"))


def test_a_folder_trains_to_the_same_network_whatever_the_number_of_workers(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run,) = trained(photos, tmp_path / "a", capsys, *SMALL, "--weighting", "aol", "--workers", "2")
    assert run["config"]["imbalance"] is None  # type: ignore[index]  # a folder is taken as it is
    assert len(run["per_class_accuracy"]) == 3  # type: ignore[arg-type]
    trained(photos, tmp_path / "b", capsys, *SMALL, "--weighting", "aol", "--workers", "0")
    mine, theirs = network(tmp_path / "a"), network(tmp_path / "b")
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


def test_a_run_that_was_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    photos = image_folder(tmp_path / "photos", per_class={"train": 8, "val": 2})
    words = ["train", "--data", str(photos), *NET, "--epochs", "4", "--weighting", "aol", "--workers", "2"]
    words += ["--checkpoint-seconds", "0", "--out"]
    assert status_of(forked([*words, str(tmp_path / "whole")])) == 0
    out = tmp_path / "out"
    child = forked([*words, str(out)])
    wait_for(out)
    os.kill(child, signal.SIGKILL)
    assert status_of(child) == -signal.SIGKILL
    assert status_of(forked([*words, str(out), "--resume"])) == 0  # at once: the workers have ended, too
    mine, theirs = network(out), network(tmp_path / "whole")
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


def test_a_stream_of_a_folder_runs(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--stream", "access", "--fraction", "0.5", "--image-size", "32", "--net", "resnet32", "--steps", "2"]
    status = main(["stream", "--data", str(photos), *words, "--imbalance", "2", "--out", str(tmp_path), "--json"])
    assert status == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 1


def test_several_runs_on_a_folder_are_trained_one_after_the_other_with_a_message(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "--data", str(photos), *SMALL, "--seed", "0,1", "--out", str(tmp_path)]
    assert main(words) == 0
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "Runs are trained one after the other: large images are trained one run at a time."


@pytest.mark.parametrize(("split", "workers"), [("train", "2"), ("val", "0")])
def test_a_damaged_image_is_one_line_that_names_the_file(
    split: str, workers: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = image_folder(tmp_path / "photos")
    bad = photos / split / "n01443537" / "n01443537_1.JPEG"
    bad.write_bytes(bad.read_bytes()[:200])
    words = ["train", "--data", str(photos), *SMALL, "--workers", workers, "--out", str(tmp_path / "out"), "--json"]
    assert main(words) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert said.err.startswith("aol: ")
    assert str(bad.relative_to(photos)) in said.err


def odd_names(root: Path) -> Path:
    """A folder with names that are HTML, a formula, not UTF-8, and below another folder."""
    photos = image_folder(root)
    folder = photos / "train" / "n01440764"
    first, second, third, _ = sorted(folder.iterdir())
    first.rename(folder / "<img src=x onerror=alert(1)>.JPEG")
    os.rename(os.fsencode(second), os.fsencode(folder) + b"/caf\xe9.JPEG")
    (folder / "deep").mkdir()
    third.rename(folder / "deep" / "=1+2.JPEG")
    return photos


def test_samples_of_a_folder_go_by_the_paths_of_their_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos = odd_names(tmp_path / "photos")
    out = tmp_path / "out"
    trained(photos, out, capsys, *SMALL, "--keep-samples", "--imbalance", "2")
    (path,) = out.rglob("ids.json")
    ids, kept = json.loads(path.read_text()), load_file(path.parent / "samples.safetensors")
    files = sorted(each.relative_to(photos) for each in (photos / "train").rglob("*.JPEG"))
    texts = [os.fsencode(file).decode("utf-8", "backslashreplace") for file in files]
    assert ids == [texts[place] for place in kept["index"].tolist()]
    assert "train/n01440764/caf\\xe9.JPEG" in ids
    assert len(ids) < len(files)  # a long tail of them
    pictures = read_previews(path.parent).images
    assert set(pictures) == set(range(len(ids)))  # so few are all worth a look
    for row, picture in pictures.items():
        assert torch.equal(picture, open_data(str(photos)).train.whole(int(kept["index"][row])))
    assert main(["report", str(out), "--export", str(tmp_path / "table.csv")]) == 0
    with (tmp_path / "table.csv").open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["id"]: row["label_name"] for row in rows} == {name: name.split("/")[1] for name in ids}
    assert main(["report", str(out)]) == 0
    page = (out / "report.html").read_text()
    assert "train/n01484850/n01484850_0.JPEG" in page
    assert "<img src=x" not in page


def test_names_are_those_of_the_run_that_is_there_and_not_of_one_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, out = image_folder(tmp_path / "photos"), tmp_path / "out"
    trained(photos, out, capsys, *SMALL, "--keep-samples")
    (photos / "train" / "n01440764" / "n01440764_0.JPEG").rename(photos / "train" / "n01440764" / "another.JPEG")
    (path,) = out.rglob("ids.json")
    (path.parent / "run.json").unlink()  # as if it had been killed before its first checkpoint
    trained(photos, out, capsys, *SMALL, "--keep-samples")
    assert json.loads(path.read_text())[0] == "train/n01440764/another.JPEG"


def test_a_single_class_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cats = image_folder(tmp_path / "cats", classes=("cat",))
    assert main(["train", "--data", str(cats), *SMALL, "--out", str(tmp_path / "out")]) == 2
    assert "a single class" in capsys.readouterr().err
