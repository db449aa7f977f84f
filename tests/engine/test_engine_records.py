"""Records: complete, documented, readable by others, and equal to what a second run gives. A small golden run."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy import stats
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from aol import nets
from aol.cli import main
from aol.data import open_data
from aol.engine import OfflineLoop, Settings
from aol.engine import history as history_module
from aol.engine.display import report
from aol.engine.history import CLASS, EPOCH, History
from aol.engine.results import Json, accuracies, compare
from aol.records.samples import read_samples
from tests.support.running import aol, forked, status_of, told
from tests.support.tiny_runs import settings, small_networks

DOCS = Path(__file__).resolve().parents[2] / "docs" / "records.md"
WORDS = ["train", "--epochs", "4", "--weighting", "aol", "--seed", "3,4", "--average", "0.5", "--validation", "0.2",
         "--keep-samples", "--tensorboard", "--eval-every", "2", "--json"]  # fmt: skip


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("records")
    with pytest.MonkeyPatch.context() as patch:
        small_networks(patch)
        assert main([*WORDS, "--out", str(folder)]) == 0
    return folder


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run_of(out: Path, seed: int) -> Path:
    (found,) = (p.parent for p in out.rglob("settings.json") if json.loads(p.read_text())["seed"] == seed)
    return found


def test_every_file_column_and_key_is_documented(out: Path) -> None:
    text = DOCS.read_text()
    sections = dict(re.findall(r"### (\S+)\n(.*?)(?=\n##|\Z)", text, re.S))

    def described(section: str) -> list[str]:
        cells = re.findall(r"^\| (`[^|]+) \|", sections[section], re.M)
        return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]

    folder = run_of(out, 3)
    assert described("epochs.csv") == list(table(folder / "epochs.csv")[0])
    assert described("classes.csv") == list(table(folder / "classes.csv")[0])
    told_apart = {"seen", "start"}  # not in every file
    assert set(described("samples.safetensors")) - told_apart == load_file(folder / "samples.safetensors").keys()
    assert set(described("about.json")) == json.loads((folder / "about.json").read_text()).keys()
    assert set(described("result.json")) == json.loads((folder / "result.json").read_text()).keys()
    for path in [*folder.iterdir(), *out.iterdir()]:
        assert f"`{path.name}" in text.replace("`runs/ID/`", "`runs`").replace(".lock-K", ".lock-0"), path.name


def test_tables_are_complete_and_unknown_values_are_empty(out: Path) -> None:
    epochs, classes = (table(run_of(out, 3) / name) for name in ("epochs.csv", "classes.csv"))
    assert tuple(epochs[0]) == EPOCH
    assert tuple(classes[0]) == ("epoch", "class", "name", *CLASS)
    assert [row["epoch"] for row in epochs] == ["1", "2", "3", "4"]
    assert [(row["epoch"], row["class"]) for row in classes] == [
        (str(e), str(c)) for e in range(1, 5) for c in range(10)
    ]
    read = ("test_accuracy", "validation_accuracy", "averaged_accuracy")
    assert [[bool(row[name]) for name in read] for row in epochs] == [[False] * 3, [True] * 3] * 2
    assert all(row["threshold"] == "" for row in epochs)
    for row in classes:
        assert all((row[name] == "") == (row["epoch"] in "13" and name.startswith("test")) for name in CLASS)
    assert all(float(value) == float(value) for row in epochs for value in row.values() if value)


def test_values_that_are_not_finite_are_empty_and_whole_ones_have_no_point(tmp_path: Path) -> None:
    history = History(1, 2)
    history.add({"epoch": 1.0, "train_loss": torch.tensor([torch.inf])}, {"age": torch.tensor([[torch.nan, 2.5]])})
    history.write(tmp_path, 0, ("cat", "dog, or not"))
    (epoch,), classes = table(tmp_path / "epochs.csv"), table(tmp_path / "classes.csv")
    assert (epoch["epoch"], epoch["train_loss"]) == ("1", "")
    assert [(row["name"], row["age"]) for row in classes] == [("cat", ""), ("dog, or not", "2.5")]


NAMES = ("cat", "dog, or not", "eel")


def add_epochs(history: History, epochs: range) -> None:
    for epoch in epochs:
        generator = torch.Generator().manual_seed(epoch)
        by_class = {name: torch.randn(2, 3, generator=generator) for name in CLASS[1:]}
        history.add({"epoch": float(epoch), "train_loss": torch.randn(2, generator=generator)}, by_class)


def tables(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.csv"))}


def write(history: History, folder: Path) -> dict[str, bytes]:
    for run in (0, 1):
        history.write(folder / str(run), run, NAMES)
    return tables(folder)


@pytest.mark.parametrize("between", ["nothing", "resumed", "gone", "longer", "cut short"])
def test_tables_that_grow_with_every_checkpoint_are_those_written_at_once(between: str, tmp_path: Path) -> None:
    whole, history = History(2, 3), History(2, 3)
    add_epochs(whole, range(1, 8))
    for epochs in (range(1, 3), range(3, 4), range(4, 8)):
        add_epochs(history, epochs)
        found = write(history, tmp_path / "grown")
        path = tmp_path / "grown" / "1" / "classes.csv"
        if between == "resumed":  # by a process that does not know what was written
            state, history = history.state_dict(), History(2, 3)
            history.load_state_dict(state)
        elif between == "gone":
            path.unlink()
        elif between != "nothing":
            path.write_bytes(path.read_bytes() + b"1,2" if between == "longer" else path.read_bytes()[:-5])
    assert found == write(whole, tmp_path / "whole")


def test_each_row_of_a_table_is_put_into_words_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, real = [], history_module.cells
    monkeypatch.setattr(history_module, "cells", lambda values: rows.append(1) or real(values))
    history = History(2, 3)
    for epoch in range(1, 6):
        add_epochs(history, range(epoch, epoch + 1))
        write(history, tmp_path)
        assert len(rows) == epoch * 2 * (3 + 1)  # of each run: a row an epoch, and one a class


def test_ages_of_samples_are_those_of_a_second_run_and_agree_with_the_classes(out: Path) -> None:
    folder = run_of(out, 4)
    kept, read = load_file(folder / "samples.safetensors"), read_samples(folder / "samples.safetensors")
    assert read is not None
    config = json.loads((folder / "settings.json").read_text())
    loop = OfflineLoop([Settings(**config)], open_data("digits"), device=torch.device("cpu"))
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
    for c, line in enumerate(table(folder / "classes.csv")[-10:]):
        own = kept["label"] == c
        assert float(line["age"]) == pytest.approx(float(kept["age"][own].mean(dtype=float)), abs=1e-5)
        assert float(line["smoothed_age"]) == pytest.approx(float(kept["ema"][own].mean()), abs=1e-5)


def test_answers_to_samples_are_those_of_the_saved_network(out: Path) -> None:
    folder, train = run_of(out, 3), open_data("digits").train
    kept = load_file(folder / "samples.safetensors")
    net = nets.make("cnn", num_classes=10, in_channels=1, image_size=8, seed=0)
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


def test_saved_networks_answer_as_the_records_say(out: Path) -> None:
    folder, test = run_of(out, 3), open_data("digits").test
    last = table(folder / "epochs.csv")[-1]
    for name, column in (("network", "test_accuracy"), ("network-averaged", "averaged_accuracy")):
        net = nets.make("cnn", num_classes=10, in_channels=1, image_size=8, seed=0)
        net.load_state_dict(load_file(folder / f"{name}.safetensors"))
        net.eval()
        with torch.no_grad():
            right = net(test.images.float() / 128 - 1).argmax(1) == test.labels
        assert float(last[column]) == pytest.approx(float(right.float().mean()), abs=1e-6)


def test_tensorboard_reads_what_was_written(out: Path) -> None:
    folder = run_of(out, 3)
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    rows = table(folder / "epochs.csv")
    for name in ("train_loss", "train_accuracy", "lr"):
        found = {event.step: event.value for event in events.Scalars(name)}
        assert found == {int(row["epoch"]): pytest.approx(float(row[name]), rel=1e-5) for row in rows}
    assert [event.step for event in events.Scalars("test_accuracy")] == [2, 4]
    assert {f"class_age/{c}" for c in range(10)} <= set(events.Tags()["scalars"])


@pytest.mark.usefixtures("_loaded")
def test_tensorboard_shows_each_epoch_of_a_resumed_run_once(tmp_path: Path) -> None:
    words = ["train", "--epochs", "40", "--tensorboard", "--checkpoint-seconds", "0.05", "--out", str(tmp_path)]
    child = forked(words)
    while not list(tmp_path.rglob("checkpoint.pt")):
        time.sleep(0.002)
    time.sleep(0.1)
    os.kill(child, signal.SIGKILL)
    assert status_of(child) == -signal.SIGKILL
    assert status_of(forked([*words, "--resume"])) == 0
    (folder,) = tmp_path.rglob("tensorboard")
    events = EventAccumulator(str(folder))
    events.Reload()
    assert [event.step for event in events.Scalars("train_loss")] == list(range(1, 41))


@pytest.mark.usefixtures("_loaded")
def test_the_same_command_gives_the_same_records(out: Path, tmp_path: Path) -> None:
    assert status_of(forked([*WORDS, "--out", str(tmp_path)])) == 0
    assert told(tmp_path) == told(out)


def test_runs_trained_together_share_the_time_it_took(out: Path) -> None:
    results = [json.loads((run_of(out, seed) / "result.json").read_text()) for seed in (3, 4)]
    taken = sum(float(row["seconds"]) for row in table(run_of(out, 3) / "epochs.csv"))
    for result in results:
        assert result["trained_together"] == 2
        assert result["stack_seconds"] == pytest.approx(taken, rel=1e-5)
    assert sum(result["seconds"] for result in results) == pytest.approx(taken, rel=1e-5)


def test_figures_of_a_run_are_taken_from_its_test_accuracies() -> None:
    values = torch.arange(1, 101) / 100
    found = accuracies(values, stream=True)
    assert found == pytest.approx({"last": 1.0, "best": 1.0, "tail_mean": 0.98, "second_half_mean": 0.755})
    gaps = values.clone().masked_fill(torch.arange(100) % 10 != 9, torch.nan)
    assert accuracies(gaps, stream=False) == {"last": 1.0, "best": 1.0, "tail_mean": 1.0}


def test_differences_are_paired_by_seed_and_runs_of_other_settings_are_kept_apart() -> None:
    def told_by(value: float, **given: object) -> dict[str, object]:
        run = settings(**given)
        return {"config": run.as_dict(), "accuracy": {"tail_mean": value}, "failed_at_epoch": None}

    results = [told_by(0.5, seed=0), told_by(0.7, seed=1), told_by(0.6, seed=2)]
    results += [told_by(0.6, seed=0, weighting="aol"), told_by(0.9, seed=1, weighting="aol")]
    results += [told_by(0.1, loss="focal", gamma=1.0), told_by(0.2, loss="focal", gamma=2.0)]
    results += [told_by(0.3, divide_by="count"), told_by(0.9, seed=3) | {"failed_at_epoch": 2}]
    rows = {row.method: row for row in compare(results, "tail_mean")}  # type: ignore[arg-type]
    assert rows.keys() == {"none", "aol ρ=0.5 class", "none focal γ=1", "none focal γ=2", "none divided by count"}
    assert (rows["none"].seeds, rows["none"].mean, rows["none"].spread) == (3, pytest.approx(0.6), pytest.approx(0.1))
    assert rows["none"].difference is None
    assert rows["aol ρ=0.5 class"].difference == pytest.approx(0.15)


def gains_of_cb(*gains: float) -> list[dict[str, Json]]:
    """Results of runs whose seeds gain so much over plain training."""
    return [
        {
            "config": dict(settings(seed=seed, weighting=weighting).as_dict()),
            "accuracy": {"tail_mean": 0.5 + gain * (weighting == "cb")},
        }
        for seed, gain in enumerate(gains)
        for weighting in ("none", "cb")
    ]


def test_an_interval_over_few_seeds_is_students(capsys: pytest.CaptureFixture[str]) -> None:
    results = gains_of_cb(0.012, -0.003, 0.027)
    ends = stats.ttest_1samp([0.012, -0.003, 0.027], 0.0).confidence_interval(0.95)
    assert compare(results, "tail_mean")[1].interval == pytest.approx((ends.low, ends.high))
    report(results, Path("runs"), try_next="nothing")
    said = capsys.readouterr().out
    assert f"{100 * ends.low:+.2f} to {100 * ends.high:+.2f}" in said
    assert "intervals Student's." in said


def test_a_single_seed_and_equal_differences_have_no_interval() -> None:
    found = [compare(gains_of_cb(*gains), "tail_mean")[1] for gains in ([0.25], [0.25] * 3, [0.25, 0.5])]
    assert [row.interval is None for row in found] == [True, True, False]
    assert [row.difference for row in found] == [0.25, 0.25, 0.375]


GOLDEN = {  # method and seed: accuracy on test, age of each class; torch 2.13.0 on an x86-64 CPU
    ("none", 0): (0.487, [1.0, 1.17, 1.31, 1.82, 1.23, 4.98, 6.03, 6.03, 6.03, 6.03]),
    ("none", 1): (0.504, [1.0, 1.0, 1.14, 1.31, 1.2, 5.05, 6.03, 6.03, 6.03, 6.03]),
    ("none", 2): (0.524, [1.0, 1.04, 1.32, 1.71, 1.89, 4.88, 5.14, 6.03, 6.03, 6.03]),
    ("aol", 0): (0.61, [1.0, 1.36, 1.33, 1.48, 1.14, 1.71, 2.57, 5.87, 6.03, 6.03]),
    ("aol", 1): (0.677, [1.0, 1.02, 1.14, 1.19, 1.04, 1.72, 1.44, 4.9, 6.03, 6.03]),
    ("aol", 2): (0.671, [1.01, 1.14, 1.23, 1.32, 1.55, 2.2, 1.25, 5.46, 6.03, 6.03]),
}


def test_a_small_golden_run(tmp_path: Path) -> None:
    """Gently trained, so that rounding moves it little: threads and stacks move accuracy by 0.01, ages by 0.1."""
    words = "train --weighting none,aol --seed 0,1,2 --epochs 6 --lr 0.01 --warmup 1 --imbalance 10 --batch-size 32"
    said = aol(*words.split(), "--json", "--out", tmp_path)
    assert said.status == 0, said.err
    runs = json.loads(said.out)["runs"]
    assert len(runs) == len(GOLDEN)
    for run in runs:
        accuracy, ages = GOLDEN[run["config"]["weighting"], run["config"]["seed"]]
        assert run["accuracy"]["last"] == pytest.approx(accuracy, abs=0.03)
        assert run["class_age"] == pytest.approx(ages, abs=0.3)
