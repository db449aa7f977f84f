"""A recorder writes what lists of everything would say; and refuses what makes no sense."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score, precision_score, recall_score

import aol
from aol.records.previews import read_previews
from aol.records.record import DamagedRunError, read_run
from aol.records.samples import read_ids, write_tested
from aol.report.payload import payload
from aol.report.run_data import load
from tests.support.recorded_loop import LABELS, NAMES, ages_over_time, answers, epoch_of, samples_of


def test_tables_and_samples_are_what_the_loop_saw(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4, rho=0.3)
    recorder = aol.Recorder(tmp_path, ages, classes=NAMES, seed=3, settings={"lr": 0.1}, epochs=5)
    history, weights, ema, raw = [], [], [], []
    for epoch in range(3):
        weights.append(ages.class_weight.tolist())
        epoch_of(ages, recorder, epoch, validation_accuracy=None if epoch == 0 else 0.5, extra=[1, 2, 3, epoch])
        history.append(ages.age.tolist())
        ema.append(ages.class_age.tolist())
        raw.append([float(ages.age[c == LABELS].float().mean()) for c in range(4)])
    run = read_run(tmp_path)
    curves, by_class = run.curves, run.over_time
    assert run.classes == NAMES
    assert curves["validation_accuracy"] == pytest.approx([np.nan, 0.5, 0.5], nan_ok=True)
    assert by_class["extra"][:, 3].tolist() == [0, 1, 2]
    assert by_class["weight"] == pytest.approx(np.array(weights), rel=2**-16)
    assert by_class["smoothed_age"] == pytest.approx(np.array(ema), rel=2**-16, nan_ok=True)
    assert by_class["age"] == pytest.approx(np.array(raw), rel=2**-16, nan_ok=True)
    assert run.by_class["smoothed_age"] == pytest.approx(ema[-1], rel=1e-6, nan_ok=True)
    assert run.by_class["mean_age"] == pytest.approx(np.mean(raw, axis=0), rel=1e-6, nan_ok=True)
    for epoch in range(3):
        for split, logits in (("train", answers(epoch)), ("test", answers(100 + epoch))):
            right = logits.argmax(1) == LABELS
            assert curves[f"{split}_accuracy"][epoch] == pytest.approx(float(right.float().mean()), rel=1e-6)
            for c in range(2):
                mine = c == LABELS
                chosen, label = logits[mine], LABELS[mine]
                loss = torch.nn.functional.cross_entropy(chosen, label)
                margins = [float(row[c] - max(v for k, v in enumerate(row) if k != c)) for row in chosen]
                found = [by_class[f"{split}_{name}"][epoch, c] for name in ("accuracy", "loss", "margin")]
                wanted = [float(right[mine].float().mean()), float(loss), float(np.mean(margins))]
                assert found == pytest.approx(wanted, rel=3e-5, abs=1e-6)
    assert by_class["train_count"].tolist() == [[15, 15, 0, 0]] * 3
    samples = samples_of(tmp_path)
    assert samples.answers.ages(np.arange(30)).tolist() == history
    assert samples.ema.tolist() == pytest.approx(ages.ema.tolist())


def test_test_batches_give_the_metrics_of_scikit_learn(tmp_path: Path) -> None:
    ages = aol.SampleAges(torch.arange(3).repeat_interleave(torch.tensor([20, 8, 2])))
    label = torch.tensor([0, 0, 0, 1, 1, 2])
    logits = torch.randn((6, 3), generator=torch.Generator().manual_seed(1))
    logits[0] = torch.nan  # no answer
    with aol.Recorder(tmp_path, ages) as recorder:
        for part in torch.arange(6).split(4):
            recorder.test(label[part], logits[part])
        ages.observe(torch.arange(30), torch.ones(30, dtype=torch.bool))
        ages.advance()
        recorder.advance()
    run = read_run(tmp_path)
    answer = logits.argmax(-1).where(~logits.isnan().any(-1), -1)
    recall = recall_score(label, answer, average=None, labels=range(3))
    expected = {
        "test_balanced_accuracy": recall.mean(),
        "test_macro_f1": f1_score(label, answer, average="macro", labels=range(3), zero_division=0),
        "test_worst_class": recall.min(),
        "test_worst_tenth": recall.min(),
        "test_head_accuracy": recall[0],
        "test_middle_accuracy": recall[1],
        "test_tail_accuracy": recall[2],
    }
    assert {name: run.curves[name][0] for name in expected} == pytest.approx(expected, abs=1e-6)
    precision = precision_score(label, answer, average=None, labels=range(3), zero_division=np.nan)
    assert run.by_class["test_precision"] == pytest.approx(precision, abs=1e-6, nan_ok=True)


def test_a_record_tells_what_the_run_is_in_progress_and_finished(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    recorder = aol.Recorder(
        tmp_path / "mine", ages, classes=NAMES, name="my loop", seed=3, settings={"lr": 0.1}, epochs=5,
        images=lambda i: np.full((8, 8), i, np.uint8), names=[f"img-{i}" for i in range(30)],
    )  # fmt: skip
    for epoch in range(2):
        for place in range(30):
            recorder.observe([place], answers(epoch)[[place]])
            ages.observe([place], aol.is_correct(answers(epoch), LABELS)[[place]])
        ages.advance()
        recorder.advance()
    folder = tmp_path / "mine"
    run, samples = read_run(folder), samples_of(folder)
    assert (run.method, run.seed, run.planned, run.finished) == ("my loop", 3, 5, False)
    assert (run.settings, run.classes) == ({"lr": 0.1}, NAMES)
    assert run.counts == torch.bincount(LABELS, minlength=4).tolist()
    assert run.epochs.tolist() == [1, 2]
    assert samples.age.tolist() == ages.age.tolist()
    assert samples.prediction.tolist() == answers(1).argmax(1).tolist()
    assert read_ids(folder, 30) == [f"img-{i}" for i in range(30)]
    recorder.close()
    assert read_previews(folder).images[29].tolist() == [[[29] * 8] * 8]
    assert read_run(folder).finished
    assert aol.load_runs(tmp_path).method.tolist() == ["my loop"]


def test_a_recorder_may_come_late(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    for epoch in range(3):
        ages.observe(torch.arange(30), aol.is_correct(answers(epoch), LABELS))
        ages.advance()
    recorder = aol.Recorder(tmp_path, ages, classes=NAMES)
    history = []
    for epoch in (3, 4):
        epoch_of(ages, recorder, epoch)
        history.append(ages.age.tolist())
    assert read_run(tmp_path).epochs.tolist() == [4, 5]
    assert ages_over_time(samples_of(tmp_path)) == history


# Mistakes


def test_records_are_not_overwritten_and_a_folder_has_one_recorder(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    recorder = aol.Recorder(tmp_path, ages)
    epoch_of(ages, recorder, 0)
    with pytest.raises(RuntimeError, match="in use by another"):
        aol.Recorder(tmp_path, ages, resume=True)
    recorder.close()
    with pytest.raises(ValueError, match="give resume=True to go on"):
        aol.Recorder(tmp_path, ages)
    aol.Recorder(tmp_path, ages, resume=True).close()  # whoever was refused let go of the folder
    with pytest.raises(DamagedRunError, match="a record of other classes"):
        aol.Recorder(tmp_path, aol.SampleAges([0, 1]), resume=True)
    with pytest.raises(DamagedRunError, match="a record of other samples"):
        aol.Recorder(tmp_path, aol.SampleAges(LABELS.flip(0), num_classes=4), resume=True)
    with pytest.raises(ValueError, match=r"run.json is, or is inside, a file"):
        aol.Recorder(tmp_path / "run.json", ages)


def test_a_finished_record_that_is_opened_again_stays_as_it_is(tmp_path: Path) -> None:
    """Nothing is written where nothing was added: means over 16-bit readings would differ from those of the loop."""
    ages = aol.SampleAges(LABELS, num_classes=4)
    with aol.Recorder(tmp_path, ages, images=torch.zeros(30, 4, 4)) as recorder:
        for epoch in range(3):
            epoch_of(ages, recorder, epoch)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*.*") if path.is_file()}
    assert len(before) >= 3
    aol.Recorder(tmp_path, ages, resume=True, images=torch.zeros(30, 4, 4)).close()
    with aol.Recorder(tmp_path, aol.SampleAges(LABELS, num_classes=4), resume=True):
        pass  # ages that were not loaded
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in tmp_path.rglob("*.*") if path.is_file()}
    assert after.keys() >= before.keys()
    assert {path: value for path, value in after.items() if path.name != ".lock"} == {
        path: value for path, value in before.items() if path.name != ".lock"
    }


def test_a_folder_that_is_moved_ends_the_record_in_one_sentence(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    recorder = aol.Recorder(tmp_path / "run", ages)
    epoch_of(ages, recorder, 0)
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(RuntimeError, match="moved or deleted"):
        recorder.close()
    with pytest.raises(RuntimeError, match="moved or deleted"):
        epoch_of(ages, recorder, 1)
    assert [folder.name for folder in tmp_path.iterdir()] == ["moved"]
    aol.Recorder(tmp_path / "moved", ages, resume=True).close()


def test_a_moved_folder_hides_no_error_of_the_loop(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    recorder = aol.Recorder(tmp_path / "run", ages)
    epoch_of(ages, recorder, 0)
    (tmp_path / "run").rename(tmp_path / "moved")
    with pytest.raises(KeyError, match="own"), recorder:
        raise KeyError("own")
    assert [folder.name for folder in tmp_path.iterdir()] == ["moved"]
    aol.Recorder(tmp_path / "moved", ages, resume=True).close()


def test_advance_comes_once_after_that_of_the_ages_and_never_after_close(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    recorder = aol.Recorder(tmp_path, ages, command="make train")
    with pytest.raises(ValueError, match=r"comes after ages.advance\(\)"):
        recorder.advance()
    for epoch in range(2):
        epoch_of(ages, recorder, epoch)
        with pytest.raises(ValueError, match="no epoch has passed"):
            recorder.advance()
    recorder.close()
    recorder.close()
    with pytest.raises(ValueError, match="that was closed"):
        epoch_of(ages, recorder, 2)
    run = read_run(tmp_path)
    assert (run.epochs.tolist(), run.finished, run.command) == ([1, 2], True, "make train")


WRONG: dict[str, tuple[dict[str, object], type, str]] = {
    "ages": ({"ages": [1, 2]}, TypeError, "ages must be SampleAges with"),
    "ages of classes": ({"ages": aol.ClassAges(4)}, TypeError, "ages must be SampleAges with"),
    "many runs": ({"ages": aol.SampleAges([0, 1], rho=[0.1, 0.5])}, TypeError, "with a number as rho"),
    "classes": ({"classes": ["a", "b"]}, ValueError, "classes must be 4 names"),
    "no classes": ({"classes": 5}, TypeError, "classes must be a list of names, not 5"),
    "classes without order": ({"classes": {"a", "b", "c", "d"}}, TypeError, "classes must be a list of names, not"),
    "no folder": ({"folder": 5}, TypeError, "folder must be a path, not 5"),
    "no function": ({"test_describe": 5}, TypeError, "test_describe must be a function"),
    "seed": ({"seed": -1}, ValueError, "seed must be a whole number of 0 or more"),
    "epochs": ({"epochs": 0}, ValueError, "epochs must be a whole number of 1 or more"),
    "text": ({"settings": "x"}, TypeError, "settings must be text and finite numbers by name"),
    "not a number": ({"settings": {"lr": np.nan}}, TypeError, "settings must be text and finite numbers by name"),
    "a huge setting": ({"settings": {"n": 2**63}}, TypeError, "settings must be text and finite numbers by name"),
    "a huge seed": ({"seed": 2**63}, ValueError, "seed must be below"),
    "a list": ({"settings": {"a": [1]}}, TypeError, "settings must be text and finite numbers by name"),
    "a number as name": ({"settings": {3: 1}}, TypeError, "settings must be text and finite numbers by name"),
    "many settings": ({"settings": dict.fromkeys(map(str, range(1001)), 0)}, ValueError, "settings must be at most"),
    "an id": ({"settings": {"id": "x"}}, ValueError, "A setting cannot be called 'id': the table of runs has a column"),
    "a metric": ({"settings": {"test_last": 1}}, ValueError, "cannot be called 'test_last'"),
    "too few images": ({"images": torch.zeros(3, 8, 8)}, ValueError, "images must be 30, one a sample, not 3"),
    "no images": ({"images": lambda i: "cat.png"}, TypeError, "images must give an image"),
    "too few names": ({"names": ["a"]}, ValueError, "names must be 30, one a sample, not 1"),
    "numbers as names": ({"names": list(range(30))}, TypeError, "expected str"),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arguments_are_named_and_nothing_is_written(what: str, tmp_path: Path) -> None:
    given, kind, message = WRONG[what]
    start: dict[str, object] = {"folder": tmp_path / "x", "ages": aol.SampleAges(LABELS, num_classes=4)}
    with pytest.raises(kind, match=message):
        aol.Recorder(**(start | given))  # type: ignore[arg-type]
    assert not (tmp_path / "x").exists()


def test_wrong_answers_and_figures_are_named_and_change_nothing(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    recorder = aol.Recorder(tmp_path, ages, test_size=5)
    with pytest.raises(ValueError, match=r"logits must be floating point of the shape \[2, 4\], not"):
        recorder.observe([0, 1], torch.zeros(2, 3))
    with pytest.raises(ValueError, match=r"logits must be floating point"):
        recorder.observe([0, 1], torch.zeros(2, 4, dtype=torch.int64))
    with pytest.raises(IndexError, match="index must lie in 0 to 29"):
        recorder.observe([30], torch.zeros(1, 4))
    with pytest.raises(IndexError, match="label must lie in 0 to 3"):
        recorder.test([4], torch.zeros(1, 4))
    with pytest.raises(IndexError, match="index must lie in 0 to 4"):
        recorder.test([0], torch.zeros(1, 4), [5])
    with pytest.raises(ValueError, match=r"index must have the shape \[2\] of label, not \[1\]"):
        recorder.test([0, 1], torch.zeros(2, 4), [0])
    ages.observe(torch.arange(30), torch.ones(30, dtype=torch.bool))
    ages.advance()
    with pytest.raises(ValueError, match=r"accuracy must be one number, or 4, one a class, not of the shape \[3\]"):
        recorder.advance(accuracy=[0.1, 0.2, 0.3])
    for name in ("epoch", "id", "seed", "count"):
        with pytest.raises(ValueError, match=f"cannot be called '{name}'"):
            recorder.advance(**{name: 3})
    with pytest.raises(ValueError, match="mean_age must be 0 or more, not"):  # such a record could not be read
        recorder.advance(mean_age=[0.0, -1.0, 2.0, 3.0])
    with pytest.raises(TypeError, match="note must be numbers"):
        recorder.advance(note="good")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="test_accuracy must be a fraction from 0 to 1, not 55"):
        recorder.advance(test_accuracy=55.0)
    recorder.advance(accuracy=0.5, loss=1e305)
    assert read_run(tmp_path).curves["accuracy"].tolist() == [0.5]
    assert np.isnan(read_run(tmp_path).curves["loss"]).all()
    assert "test_accuracy" not in read_run(tmp_path).curves


def test_texts_and_rows_of_samples_are_kept_and_shown_on_the_page(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    with aol.Recorder(
        tmp_path, ages, describe=lambda i: f"text {i}" if i % 2 else {"width": i / 7, "name": "<b>"}
    ) as recorder:
        recorder.observe(torch.arange(30), answers(0))
        ages.observe(torch.arange(30), torch.zeros(30, dtype=torch.bool))
        ages.advance()
        recorder.advance()
    kept = read_previews(tmp_path).texts
    assert kept[3] == "text 3"
    assert kept[4] == [["width", "0.5714"], ["name", "<b>"]]
    samples = payload(load(tmp_path))["runs"][0]["samples"]  # type: ignore[index,call-overload]
    assert [samples["about"][samples["id"].index(name)] for name in ("3", "4")] == [kept[3], kept[4]]
    (tmp_path / "run.json").unlink()
    write_tested(tmp_path / "test.safetensors", torch.zeros(1, 4), run="another")
    ages = aol.SampleAges(LABELS, num_classes=4)
    with aol.Recorder(tmp_path, ages) as recorder:  # another one: nothing of before is taken for its own
        epoch_of(ages, recorder, 0)
    assert read_run(tmp_path).finished
    assert not read_previews(tmp_path).texts
    data = tmp_path / "data"
    data.mkdir()
    (data / "test.safetensors").write_bytes(b"a file of the user's own")
    aol.Recorder(data, ages).close()
    assert (data / "test.safetensors").exists()


def test_a_network_that_diverged_is_recorded_as_unknown(tmp_path: Path) -> None:
    ages = aol.SampleAges(LABELS, num_classes=4)
    recorder = aol.Recorder(tmp_path, ages)
    epoch_of(ages, recorder, 0)
    logits = torch.full((30, 4), torch.nan)
    ages.observe(torch.arange(30), aol.is_correct(logits, LABELS))
    recorder.observe(torch.arange(30), logits)
    ages.advance()
    recorder.advance(test_accuracy=float("nan"))
    run, samples = read_run(tmp_path), samples_of(tmp_path)
    assert np.isnan(run.over_time["train_loss"][1]).all()
    assert np.isnan(samples.confidence).all()
    assert (samples.prediction == -1).all()
    assert not np.isnan(samples.mean_other).any()
    assert run.counts == torch.bincount(LABELS, minlength=4).tolist()
