"""Stories: of folders as they are, as they are under way, and as they should not be."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from aol.cli import main
from aol.data import open_data
from aol.records.tables import DamagedRecordsError
from aol.report.finding import NoRecordsError
from aol.report.story import load
from tests.support.made_stories import make_story


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("told")
    common = ["--epochs", "3", "--batch-size", "64", "--json"]
    many = ["--weighting", "none,aol", "--seed", "1,0", "--keep-samples"]
    assert main(["train", *many, *common, "--out", str(folder / "offline")]) == 0
    arrival = ["--weighting", "aol", "--fraction", "0.4", "--keep-samples"]
    assert main(["train", *arrival, *common, "--out", str(folder / "arrival")]) == 0
    assert main(["train", "--signal", "train", "--keep-samples", *common, "--out", str(folder / "heard")]) == 0
    assert main(["stream", "--weighting", "aol", "--steps", "4", "--json", "--out", str(folder / "stream")]) == 0
    return folder


def test_a_folder_tells_every_run_in_the_order_of_the_command(out: Path) -> None:
    stories = load(out / "offline")
    assert [story.name for story in stories] == [
        "none, seed 1", "none, seed 0", "aol ρ=0.5 class, seed 1", "aol ρ=0.5 class, seed 0",
    ]  # fmt: skip
    for story in stories:
        result = json.loads((story.folder / "result.json").read_text())
        assert story.finished
        assert story.settings == result["config"]
        assert story.versions == result["versions"]
        assert story.epochs.tolist() == [1, 2, 3]
        assert story.planned == 3
        assert story.curves["test_accuracy"][-1] == pytest.approx(result["accuracy"]["last"], rel=1e-6)
        assert story.by_class["age"][-1] == pytest.approx(result["class_age"])
        assert story.by_class["test_accuracy"][-1] == pytest.approx(result["per_class_accuracy"])
        assert story.counts.sum() == len(story.samples or ())
        assert story.counts.tolist() == sorted(story.counts.tolist(), reverse=True)
        assert "threshold" not in story.curves  # nothing was read
        assert story.head_first.tolist() == list(range(10))
        assert story.command is not None
        assert f"--seed {story.seed}" in story.command


def test_samples_have_the_picture_of_their_place_in_the_data(out: Path) -> None:
    from io import BytesIO

    from PIL import Image

    samples, train = load(out / "offline")[2].samples, open_data("digits").train
    assert samples is not None
    for row in (0, 7, len(samples) - 1):
        picture = samples.picture(row)
        assert picture is not None
        pixels = np.asarray(Image.open(BytesIO(picture)))
        assert (pixels == train.images[int(samples.index[row]), 0].numpy()).all()
        assert int(train.labels[int(samples.index[row])]) == samples.label[row]


def test_counts_over_time_are_those_of_the_history(out: Path) -> None:
    for name in ("offline", "arrival", "heard"):
        samples = load(out / name)[-1].samples
        assert samples is not None
        history = samples.history(np.arange(len(samples)))
        assert (history[-1] == samples.age).all()
        before = np.vstack((np.ones_like(history[:1]), history[:-1]))
        assert samples.episodes.tolist() == ((before <= 1) & (history > 1)).sum(0).tolist()
        assert (samples.wrong <= samples.seen).all()
        assert (samples.seen <= 3).all()
        if name != "arrival":
            assert samples.seen.tolist() == [3] * len(samples)
            assert samples.wrong.tolist() == (history > 1).sum(0).tolist()
        else:
            assert 0 < samples.seen.mean() < 2
            assert ((samples.age == 0) == (samples.seen == 0)).all()
            assert np.isnan(samples.ema[samples.seen == 0]).all()
        known = samples.prediction >= 0
        assert known.all() == (name == "offline")
        assert known.any() == (name != "heard")
        assert ((samples.suspicion >= 0) & (samples.suspicion <= 1)).all()


def test_class_ages_of_samples_smoothed_are_the_recorded_ones(out: Path) -> None:
    story = load(out / "offline")[0]
    assert story.samples is not None
    raw = story.samples.class_age(10)
    smoothed = raw[0]
    for row in raw[1:]:
        smoothed = 0.5 * smoothed + 0.5 * row
    assert story.by_class["age"][-1] == pytest.approx(smoothed, rel=1e-5)


def test_a_stream_has_no_samples_and_its_pool_for_counts(out: Path) -> None:
    (story,) = load(out / "stream")
    assert story.samples is None
    assert story.counts.tolist() == open_data("digits").train.counts.tolist()
    assert story.command is not None
    assert story.command.startswith("aol stream")
    assert "threshold" in story.curves


def test_runs_of_one_name_are_told_apart_by_what_differs_or_numbered(out: Path, tmp_path: Path) -> None:
    names = [story.name for story in load(out / "offline", out / "arrival", out / "heard")]
    assert len(set(names)) == len(names) == 6
    assert "aol ρ=0.5 class, seed 0 scenario=arrival" in names
    assert "none, seed 0 signal=train" in names
    shutil.copytree(out / "heard", tmp_path / "copy")
    pair = [story.name for story in load(out / "heard", tmp_path / "copy")]
    assert pair == ["none, seed 0 (1)", "none, seed 0 (2)"]
    assert len(load(out / "heard", out / "heard")) == 1  # the same folder twice is one run


def test_a_single_run_and_a_folder_of_folders_can_be_given(out: Path) -> None:
    (run,) = (out / "heard" / "runs").iterdir()
    assert load(run)[0].name == "none, seed 0"
    assert len(load(out)) == 7


def copied(out: Path, tmp_path: Path) -> Path:
    shutil.copytree(out / "heard", tmp_path / "run")
    (run,) = (tmp_path / "run" / "runs").iterdir()
    return run


def test_a_run_under_way_is_told_as_far_as_it_is_written(out: Path, tmp_path: Path) -> None:
    run = copied(out, tmp_path)
    (run / "result.json").unlink()
    assert not load(run)[0].finished
    lines = (run / "epochs.csv").read_text().splitlines()
    (run / "epochs.csv").write_text("\n".join(lines[:3]) + "\n")  # two epochs: the other files were a moment quicker
    (story,) = load(run)
    assert len(story.epochs) == len(story.by_class["age"]) == 2
    assert story.samples is not None
    assert len(story.samples.history([0])) == 2
    assert (story.samples.history(np.arange(len(story.samples)))[-1] == story.samples.age).all()
    (run / "epochs.csv").write_text(lines[0] + "\n")
    assert load(run) == []
    shutil.rmtree(tmp_path / "run" / "runs")
    assert load(tmp_path / "run") == []  # asked for, and nothing written yet


def test_what_is_no_folder_of_runs_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(NoRecordsError, match="nowhere: no such folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(NoRecordsError, match="file: a file, not the folder of a run"):
        load(tmp_path / "file")
    with pytest.raises(NoRecordsError, match="no records of a run in it"):
        load(tmp_path)


@pytest.mark.parametrize("name", ["settings.json", "about.json", "epochs.csv", "classes.csv", "samples.safetensors"])
def test_a_damaged_file_is_named(name: str, out: Path, tmp_path: Path) -> None:
    run = copied(out, tmp_path)
    (run / name).write_bytes(b'{"half')
    with pytest.raises(DamagedRecordsError, match=name):
        load(run)


def test_a_file_of_another_run_is_named(out: Path, tmp_path: Path) -> None:
    run = copied(out, tmp_path)
    about = json.loads((run / "about.json").read_text())
    (run / "about.json").write_text(json.dumps(about | {"classes": ["a"], "counts": [1]}))
    with pytest.raises(DamagedRecordsError, match=r"about.json has 1 classes, and classes.csv 10"):
        load(run)
    (run / "about.json").write_text(json.dumps(about))
    lines = (run / "classes.csv").read_text().splitlines()
    (run / "classes.csv").write_text("\n".join([lines[0], *(f"2{line}" for line in lines[1:])]) + "\n")
    with pytest.raises(DamagedRecordsError, match=r"epochs.csv and classes.csv are of different epochs"):
        load(run)
    few = [line for line in lines if line.split(",")[1] in ("class", "0", "1", "2")]
    (run / "classes.csv").write_text("\n".join(few) + "\n")
    (run / "about.json").unlink()
    with pytest.raises(DamagedRecordsError, match=r"samples of other classes than the 3 of this run"):
        load(run)


def test_data_that_is_gone_or_changed_gives_no_pictures(out: Path, tmp_path: Path) -> None:
    run = copied(out, tmp_path)
    about = json.loads((run / "about.json").read_text())
    (run / "about.json").write_text(json.dumps(about | {"data": "nowhere/at/all"}))
    samples = load(run)[0].samples
    assert samples is not None
    assert samples.picture(0) is None
    (run / "about.json").write_text(json.dumps(about | {"data": "digits"}))
    from safetensors.torch import load_file, save_file

    tensors = load_file(run / "samples.safetensors")
    tensors["index"] = tensors["index"].flip(0)  # as if the set had been sorted anew
    save_file(tensors, run / "samples.safetensors", metadata={"absent": "keep"})
    samples = load(run)[0].samples
    assert samples is not None
    assert samples.picture(0) is None


def test_images_in_a_folder_are_shown_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from io import BytesIO

    from PIL import Image

    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for label in ("cat", "dog"):
            (tmp_path / "set" / split / label).mkdir(parents=True)
            for number in range(4):
                pixels = np.full((120, 200, 3), rng.integers(0, 255, 3), np.uint8)
                Image.fromarray(pixels).save(tmp_path / "set" / split / label / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    words = ["--data", "./set", "--image-size", "32", "--net", "cnn", "--epochs", "1", "--keep-samples", "--json"]
    assert main(["train", *words, "--out", "run"]) == 0
    monkeypatch.chdir("/")
    (story,) = load(tmp_path / "run")
    assert story.samples is not None
    for row in range(8):
        picture = story.samples.picture(row)
        assert picture is not None
        shown = Image.open(BytesIO(picture))
        assert max(shown.size) <= 96
        number = int(story.samples.index[row])
        original = tmp_path / "set" / "train" / ("cat", "dog")[number // 4] / f"{number % 4}.png"
        wanted = np.asarray(Image.open(original)).mean((0, 1))
        assert np.asarray(shown).mean((0, 1)) == pytest.approx(wanted, abs=4)


def test_made_up_stories_are_stories(tmp_path: Path) -> None:
    story = make_story()
    assert story.samples is not None
    assert story.samples.history([0, 1]).shape == (12, 2)
