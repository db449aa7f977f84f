"""Records: complete, documented, readable by others, and equal to what a second run gives. A small golden run."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import balanced_accuracy_score, f1_score, precision_score, recall_score

from aol.cli import main
from aol.lab.data import open_data
from aol.lab.engine.loop import CLASS, EPOCH, Loop
from aol.lab.nets.registry import make
from aol.lab.settings import Settings
from aol.records.previews import TEST as TEST_PREVIEWS
from aol.records.previews import read_previews
from aol.records.record import read_run
from aol.records.samples import TEST, read_samples, read_tested
from aol.records.store import find_runs
from tests.support.running import forked, status_of, told
from tests.support.tiny_runs import small_networks

DOCS = Path(__file__).resolve().parents[3] / "docs" / "records.md"
WORDS = ["train", "--epochs", "4", "--weighting", "aol", "--seed", "3,4", "--validation", "0.2",
         "--keep-samples", "--eval-every", "2", "--json"]  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        small_networks(patch)
        assert main([*WORDS, "--out", str(folder)]) == 0
    return folder


def run_of(out: Path, seed: int) -> Path:
    (found,) = (folder for folder in find_runs(out) if read_run(folder).seed == seed)
    return found


def test_every_file_column_and_key_is_documented(out: Path) -> None:
    text = DOCS.read_text()
    sections = dict(re.findall(r"^#+ ([^\n]+)\n(.*?)(?=^#|\Z)", text, re.S | re.M))

    def described(*titles: str) -> set[str]:
        cells = [cell for title in titles for cell in re.findall(r"^\| (`[^|]+) \|", sections[title], re.M)]
        return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}

    folder = run_of(out, 3)
    content = json.loads((folder / "run.json").read_text())
    known = described(*sections)
    assert content.keys() <= known
    assert set(EPOCH) - {"epoch"} <= known
    assert content["by_class"].keys() | set(CLASS) <= known
    told_apart = {"seen", "start"}  # not in every file
    assert described("samples.safetensors") - told_apart == load_file(folder / "samples.safetensors").keys()
    for path in [*folder.iterdir(), *out.iterdir()]:
        assert f"`{path.name}" in text.replace("`runs/ID/`", "`runs`"), path.name


def test_records_are_complete_and_what_was_not_measured_is_unknown(out: Path) -> None:
    run = read_run(run_of(out, 3))
    assert run.epochs.tolist() == [1, 2, 3, 4]
    of_others = {"threshold", "prequential_g_mean", "prequential_kappa", "test_conflict_accuracy", "test_worst_group"}
    assert set(run.curves) == set(EPOCH) - {"epoch"} - of_others
    assert set(run.over_time) == set(CLASS) - {"offset"}  # of margins
    for name, values in run.curves.items():
        tested = name.startswith("test_") or name in ("validation_accuracy", "averaged_accuracy")
        assert np.isfinite(values).tolist() == ([False, True] * 2 if tested else [True] * 4), name
    for name, rows in run.over_time.items():
        read = (
            np.isfinite(rows).any(1) if name == "test_precision" else np.isfinite(rows).all(1)
        )  # some: never answered
        assert read.tolist() == ([False, True] * 2 if name.startswith("test") else [True] * 4), name


def test_ages_of_samples_are_those_of_a_second_run_and_agree_with_the_classes(out: Path) -> None:
    folder = run_of(out, 4)
    kept, read = load_file(folder / "samples.safetensors"), read_samples(folder / "samples.safetensors", folder.name)
    assert read is not None
    settings = Settings(**read_run(folder).settings)  # type: ignore[arg-type]
    loop = Loop([settings], open_data("digits"), device=torch.device("cpu"))
    rows, ages = [], read.answers.ages(np.arange(len(read)))
    while not loop.done:
        loop.run_epoch()
        rows.append(loop.ages.age[0])
    assert torch.equal(torch.from_numpy(ages), torch.stack(rows))
    assert torch.equal(kept["age"], rows[-1])
    assert torch.equal(kept["ema"], loop.ages.ema[0])
    assert torch.equal(kept["index"], loop.pool[0])
    assert torch.equal(kept["label"], open_data("digits").train.labels[kept["index"]])
    ema = ages[0].astype(float)
    for row in ages[1:]:
        ema = 0.5 * ema + 0.5 * row
    assert kept["ema"].numpy() == pytest.approx(ema, abs=1e-5)
    by_class = read_run(folder).by_class
    for c in range(10):
        own = kept["label"] == c
        assert by_class["age"][c] == pytest.approx(float(kept["age"][own].mean(dtype=float)), abs=1e-5)
        assert by_class["smoothed_age"][c] == pytest.approx(float(kept["ema"][own].mean()), abs=1e-5)


def test_metrics_of_the_classes_are_those_of_scikit_learn_for_the_saved_network(out: Path) -> None:
    test = open_data("digits").test
    for seed in (3, 4):
        folder = run_of(out, seed)
        run = read_run(folder)
        assert run.trained_together == 2
        assert 2 * run.seconds == pytest.approx(run.curves["seconds"].sum(), rel=1e-3)
        net = make("cnn", num_classes=10, in_channels=1, image_size=8, seed=0)
        net.load_state_dict(load_file(folder / "network.safetensors"))
        net.eval()
        with torch.no_grad():
            answer = net(test.images.float() / 128 - 1).argmax(1)
        last = {name: float(values[-1]) for name, values in run.curves.items()}
        recall = recall_score(test.labels, answer, average=None)
        by_count = np.argsort(-np.array(run.counts), kind="stable")  # they differ: 3, 4 and 3 of 10 classes
        assert len(set(run.counts or ())) == 10
        expected = {
            "test_accuracy": float((answer == test.labels).float().mean()),
            "test_balanced_accuracy": balanced_accuracy_score(test.labels, answer),
            "test_macro_f1": f1_score(test.labels, answer, average="macro", zero_division=0),
            "test_worst_class": recall.min(),
            "test_worst_tenth": recall.min(),
            "test_head_accuracy": recall[by_count[:3]].mean(),
            "test_middle_accuracy": recall[by_count[3:7]].mean(),
            "test_tail_accuracy": recall[by_count[7:]].mean(),
        }
        assert {name: last[name] for name in expected} == pytest.approx(expected, abs=1e-6)
        precision = precision_score(test.labels, answer, average=None, zero_division=np.nan)
        assert run.by_class["test_precision"] == pytest.approx(precision, abs=1e-6, nan_ok=True)


def test_answers_to_samples_are_those_of_the_saved_network(out: Path) -> None:
    folder, train = run_of(out, 3), open_data("digits").train
    kept = load_file(folder / "samples.safetensors")
    net = make("cnn", num_classes=10, in_channels=1, image_size=8, seed=0)
    net.load_state_dict(load_file(folder / "network.safetensors"))
    net.eval()
    with torch.no_grad():
        probability = net(train.images[kept["index"]].float() / 128 - 1).softmax(1)
    label = kept["label"]
    for row, each in enumerate(probability):
        others = [float(p) for c, p in enumerate(each) if c != int(label[row])]
        assert int(kept["prediction"][row]) == int(each.argmax())
        found = [float(kept[name][row]) for name in ("confidence", "top", "other")]
        assert found == pytest.approx([float(each[label[row]]), float(each.max()), max(others)], abs=1e-5)
    assert torch.equal(kept["times"], torch.full_like(kept["times"], 4))
    assert torch.equal(kept["age"] == 1, kept["prediction"] == label)


def test_previews_are_the_images_of_the_oldest_samples_as_they_were_shown(out: Path) -> None:
    folder = run_of(out, 3)
    table, images = read_samples(folder / "samples.safetensors", folder.name), open_data("digits").train.images
    assert table is not None
    kept = read_previews(folder).images
    assert int(table.ema.argmax()) in kept
    assert {int(table.label[row]) for row in kept} == set(range(10))
    for row, picture in kept.items():
        assert torch.equal(picture, images[int(table.index[row])])


def test_the_last_answers_to_test_samples_are_those_of_the_accuracy_with_pictures_of_mistakes(out: Path) -> None:
    folder, test = run_of(out, 3), open_data("digits").test
    run, answers = read_run(folder), read_tested(folder / TEST, folder.name)
    assert answers is not None
    label, prediction = answers[:, :2].T
    assert label.tolist() == test.labels.tolist()
    assert (label == prediction).mean() == pytest.approx(run.curves["test_accuracy"][-1], abs=1e-6)
    kept = read_previews(folder, TEST_PREVIEWS).images
    assert 0 < len(kept) <= 200
    for row, picture in kept.items():
        assert label[row] != prediction[row]
        assert torch.equal(picture, test.images[row])


@pytest.mark.usefixtures("_loaded")
def test_the_same_command_gives_the_same_records(out: Path, tmp_path: Path) -> None:
    assert status_of(forked([*WORDS, "--out", str(tmp_path)])) == 0
    assert told(tmp_path) == told(out)


GOLDEN = {  # method and seed: accuracy on test, age of each class; torch 2.13.0 on an x86-64 CPU
    ("none", 0): (0.487, [1.0, 1.17, 1.31, 1.82, 1.23, 4.98, 6.03, 6.03, 6.03, 6.03]),
    ("none", 1): (0.504, [1.0, 1.0, 1.14, 1.31, 1.2, 5.05, 6.03, 6.03, 6.03, 6.03]),
    ("none", 2): (0.524, [1.0, 1.04, 1.32, 1.71, 1.89, 4.88, 5.14, 6.03, 6.03, 6.03]),
    ("aol", 0): (0.61, [1.0, 1.36, 1.33, 1.48, 1.14, 1.71, 2.57, 5.87, 6.03, 6.03]),
    ("aol", 1): (0.677, [1.0, 1.02, 1.14, 1.19, 1.04, 1.72, 1.44, 4.9, 6.03, 6.03]),
    ("aol", 2): (0.671, [1.01, 1.14, 1.23, 1.32, 1.55, 2.2, 1.25, 5.46, 6.03, 6.03]),
}


def test_a_small_golden_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Gently trained, so that rounding moves it little: threads and stacks move accuracy by 0.01, ages by 0.1."""
    words = "train --weighting none,aol --seed 0,1,2 --epochs 6 --lr 0.01 --warmup 1 --imbalance 10 --batch-size 32"
    monkeypatch.undo()  # the real networks
    assert main([*words.split(), "--json", "--out", str(tmp_path)]) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    assert len(runs) == len(GOLDEN)
    for run in runs:
        accuracy, ages = GOLDEN[run["config"]["weighting"], run["config"]["seed"]]
        assert run["accuracy"]["last"] == pytest.approx(accuracy, abs=0.03)
        assert run["class_age"] == pytest.approx(ages, abs=0.3)
