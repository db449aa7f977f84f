"""The runs of a report: of finished folders, of folders in training, and of damaged ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from aol.cli import main
from aol.records.previews import save_previews
from aol.records.record import DamagedRunError, read_run, write_run
from aol.records.samples import write_tested
from aol.records.store import read_request
from aol.report.payload import payload
from aol.report.run_data import load
from tests.support.made_runs import make_data, write_data


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("told")
    common = ["--samples", "200", "--epochs", "3", "--batch-size", "64", "--json"]
    many = ["--weighting", "none,aol", "--seed", "1,0", "--keep-samples"]
    assert main(["train", *many, *common, "--out", str(folder / "offline")]) == 0
    arrival = ["--weighting", "aol", "--fraction", "0.4", "--keep-samples"]
    assert main(["train", *arrival, *common, "--out", str(folder / "arrival")]) == 0
    assert main(["train", "--signal", "train", "--keep-samples", *common, "--out", str(folder / "heard")]) == 0
    assert main(["stream", "--weighting", "aol", "--steps", "4", "--json", "--out", str(folder / "stream")]) == 0
    return folder


def test_a_folder_has_every_run_in_the_order_of_the_command(out: Path) -> None:
    runs = load(out / "offline")
    assert [data.run.id for data in runs] == (read_request(out / "offline") or {})["ids"]
    assert {data.name for data in runs} == {
        "none, seed 1", "none, seed 0", "aol ρ=0.5 class, seed 1", "aol ρ=0.5 class, seed 0",
    }  # fmt: skip
    for data in runs:
        run = read_run(data.folder)
        assert data.run.finished
        assert data.run.settings == run.settings
        assert data.run.epochs.tolist() == [1, 2, 3]
        assert data.run.counts is not None
        assert sum(data.run.counts) == len(data.samples or ())
        assert data.run.command is not None
        assert f"--seed {data.run.seed}" in data.run.command
        assert data.age == pytest.approx(run.by_class["age"], rel=1e-4)
    first, *others = load(out / "offline", whole=1)
    assert (first.name, first.samples is None, "age" in first.run.over_time) == (runs[0].name, False, True)
    assert [(data.name, data.samples) for data in others] == [(data.name, None) for data in runs[1:]]
    assert not any("age" in data.run.over_time for data in others)


def test_counts_over_time_are_those_of_the_history(out: Path) -> None:
    for name in ("offline", "arrival", "heard"):
        samples = load(out / name)[-1].samples
        assert samples is not None
        history = samples.answers.ages(np.arange(len(samples)))
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


def test_the_class_ages_on_record_are_those_of_the_samples(out: Path) -> None:
    for name in ("offline", "arrival"):
        data = load(out / name)[-1]
        assert data.samples is not None
        history, label = data.samples.answers.ages(np.arange(len(data.samples))).astype(float), data.samples.label
        history[history == 0] = np.nan
        for c in range(10):
            of_class = history[:, label == c]
            known = ~np.isnan(of_class).all(1)
            age = data.run.over_time["age"][known, c]
            assert age == pytest.approx(np.nanmean(of_class[known], axis=1), rel=1e-4)


def test_a_stream_has_no_samples_and_its_pool_for_counts(out: Path) -> None:
    (data,) = load(out / "stream")
    assert data.samples is None
    assert (len(data.run.counts or ()), sum(data.run.counts or ())) == (10, 1438)
    assert data.run.command is not None
    assert data.run.command.startswith("aol stream")
    assert "threshold" in data.run.curves


def test_runs_of_one_name_are_told_apart_by_what_differs_or_numbered(out: Path, tmp_path: Path) -> None:
    names = [data.name for data in load(out / "offline", out / "arrival", out / "heard")]
    assert len(set(names)) == len(names) == 6
    assert "aol ρ=0.5 class, seed 0 scenario=arrival" in names
    assert "none, seed 0 signal=train" in names
    shutil.copytree(out / "heard", tmp_path / "copy")
    pair = [data.name for data in load(out / "heard", tmp_path / "copy")]
    assert pair == ["none, seed 0", "none, seed 0 (2)"]
    assert len(load(out / "heard", out / "heard")) == 1  # the same folder twice is one run


def test_a_single_run_and_a_folder_of_folders_can_be_given(out: Path) -> None:
    (run,) = (out / "heard" / "runs").iterdir()
    assert load(run)[0].name == "none, seed 0"
    assert len(load(out)) == 7


def copied(out: Path, tmp_path: Path) -> Path:
    shutil.copytree(out / "heard", tmp_path / "run")
    (run,) = (tmp_path / "run" / "runs").iterdir()
    return run


def test_a_run_in_training_is_read_as_far_as_both_its_files_go(out: Path, tmp_path: Path) -> None:
    run = copied(out, tmp_path)
    whole = read_run(run)
    shorter = {name: values[:2] for name, values in whole.curves.items()}
    over_time = {name: values[:2] for name, values in whole.over_time.items()}
    two = replace(whole, epochs=whole.epochs[:2], curves=shorter, over_time=over_time, finished=False)
    write_run(run, two)  # the samples are an epoch ahead
    (data,) = load(run)
    assert not data.run.finished
    assert data.samples is not None
    assert len(data.run.epochs) == len(data.samples.answers.ages(np.array([0]))) == 2
    assert (data.samples.answers.ages(np.arange(len(data.samples)))[-1] == data.samples.age).all()
    write_data(run, replace(data, run=whole))  # and an epoch behind
    (data,) = load(run)
    assert len(data.run.epochs) == len(data.run.over_time["age"]) == len(data.run.curves["test_accuracy"]) == 2
    assert data.run.by_class["age"] == pytest.approx(whole.over_time["age"][1])
    assert data.run.by_class["mean_age"] == pytest.approx(whole.over_time["age"][:2].mean(0))
    nothing = replace(two, epochs=whole.epochs[:0], curves={}, over_time={}, by_class={})
    write_run(run, nothing)
    assert load(run) == []
    shutil.rmtree(tmp_path / "run" / "runs")
    assert load(tmp_path / "run") == []  # asked for, and nothing written yet


@pytest.mark.parametrize("name", ["run.json", "ids.json", "samples.safetensors"])
def test_a_damaged_file_is_named(name: str, out: Path, tmp_path: Path) -> None:
    run = copied(out, tmp_path)
    (run / name).write_bytes(b'{"half')
    with pytest.raises(DamagedRunError, match=name):
        load(run)


def test_samples_of_another_run_are_named(tmp_path: Path) -> None:
    write_data(tmp_path, make_data())
    few = make_data(names=["a", "b"], counts=[5, 5])
    write_run(tmp_path, few.run)
    with pytest.raises(DamagedRunError, match=r"other classes than the 2 of the run"):
        load(tmp_path)


@pytest.mark.parametrize("wrong", [[1e30, 0, 0.5, 0.5], [np.inf, 0, 0.5, 0.5], [0, -5, 0.5, 0.5]])
def test_answers_to_test_samples_of_other_classes_are_named(wrong: list[float], tmp_path: Path) -> None:
    write_run(tmp_path, make_data(names=["a", "b"], counts=[5, 5]).run)
    write_tested(tmp_path / "test.safetensors", torch.tensor([[0, 1, 0.1, 0.9], wrong]), run="id0")
    with pytest.raises(DamagedRunError, match=r"other classes than the 2 of the run"):
        load(tmp_path)


def test_an_answer_to_a_test_sample_of_unknown_label_is_unknown(tmp_path: Path) -> None:
    write_run(tmp_path, make_data(names=["a", "b"], counts=[5, 5]).run)
    answers = torch.tensor([[0, 1, 0.1, 0.9], [np.nan, 1, 0.5, 0.5]])
    write_tested(tmp_path / "test.safetensors", answers, run="id0")
    (data,) = load(tmp_path)
    assert data.tested is not None
    assert data.tested.prediction.tolist() == [1, -1]
    assert payload([data])


def test_pictures_and_texts_are_those_that_the_folder_keeps_and_the_data_are_not_needed(tmp_path: Path) -> None:
    write_data(tmp_path, make_data())
    (bare,) = load(tmp_path)
    assert bare.samples is not None
    assert (bare.samples.picture(3), bare.samples.about) == (None, {})
    rng = np.random.default_rng(0)
    pictures = {row: torch.from_numpy(rng.integers(0, 256, (1 + row % 2 * 2, 12, 7), np.uint8)) for row in (3, 8)}
    save_previews(tmp_path, pictures, image=pictures.get, text=lambda row: f"text {row}")
    (kept,) = load(tmp_path)
    assert kept.samples is not None
    for row, pixels in pictures.items():
        picture = kept.samples.picture(row)
        assert picture is not None
        shown = np.asarray(Image.open(BytesIO(picture)))
        assert (shown.reshape(12, 7, -1) == pixels.permute(1, 2, 0).numpy()).all()
    assert kept.samples.picture(4) is None
    assert kept.samples.about == {3: "text 3", 8: "text 8"}
    assert len(payload([kept])["pictures"]) == 2  # type: ignore[arg-type]
