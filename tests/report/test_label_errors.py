"""Label errors as a frame: from whatever holds a record, from several networks, and what cannot be answered."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import aol
from aol.plugins._watching import Watching
from aol.records.record import write_run
from aol.report.run_data import load
from tests.support.small_runs import small_run

COLUMNS = ["index", "label", "suggested", "score", "flagged"]


class Answers(nn.Module):
    """Gives each sample, which is its own number, noisy logits of its true class: other ones in each pass."""

    def __init__(self, true: torch.Tensor, classes: int, seed: int, spread: float = 0.5) -> None:
        super().__init__()
        self.true, self.classes, self.spread = true, classes, spread
        self.draws = torch.Generator().manual_seed(seed)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.spread * torch.randn(len(x), self.classes, generator=self.draws)
        return logits + 3.0 * nn.functional.one_hot(self.true[x], self.classes)


def watched(folder: Path, *, seed: int = 0, epochs: int = 5, size: int = 60, classes: int = 3, **options) -> aol.Watch:
    """Return the watch of a model that knows the true labels, of which every tenth is wrong in the data."""
    true = torch.arange(size) % classes
    given = torch.where(torch.arange(size) % 10 == 0, (true + 1) % classes, true)
    model = Answers(true, classes, seed)
    with aol.Watch(folder, TensorDataset(torch.arange(size), given), **options) as watch:
        for _ in range(epochs):
            watch.epoch(model)
    return watch


def test_the_wrong_labels_come_first_are_flagged_and_get_the_true_class(tmp_path: Path) -> None:
    errors = aol.find_label_errors(watched(tmp_path / "run"))
    assert list(errors.columns) == COLUMNS
    wrong = {place for place in range(60) if place % 10 == 0}
    assert set(errors.index[errors.flagged]) == set(errors["index"][errors.flagged]) == wrong
    assert errors.flagged.tolist() == [True] * 6 + [False] * 54
    assert (errors.suggested[:6] == errors["index"][:6] % 3).all()
    assert (errors.label[:6] == (errors["index"][:6] % 3 + 1) % 3).all()
    for part in (errors.score[:6], errors.score[6:]):
        assert part.is_monotonic_decreasing
        assert part.between(0, 1).all()
    assert sorted(errors["index"]) == list(range(60))


def test_watch_recorder_callback_path_and_text_give_the_same_frame(tmp_path: Path) -> None:
    watch = watched(tmp_path / "run")
    callback = Watching(tmp_path / "run", TensorDataset(torch.arange(60), torch.arange(60) % 3))
    wanted = aol.find_label_errors(watch)
    for source in (watch.recorder, callback, tmp_path / "run", str(tmp_path / "run"), [watch]):
        assert aol.find_label_errors(source).equals(wanted)


def test_a_network_that_has_memorised_a_label_still_suggests_what_it_answered_before(tmp_path: Path) -> None:
    true = torch.arange(30) % 3
    given = torch.where(torch.arange(30) < 3, (true + 1) % 3, true)
    with aol.Watch(tmp_path, TensorDataset(torch.arange(30), given)) as watch:
        for classes in [true] * 6 + [given]:
            watch.epoch(Answers(classes, 3, seed=0))
    errors = aol.find_label_errors(watch)
    assert set(errors.index[errors.flagged]) == {0, 1, 2}
    assert (errors.suggested[errors.flagged] == errors["index"][errors.flagged] % 3).all()


def test_during_training_it_is_the_frame_of_the_epochs_so_far_and_resuming_changes_nothing(tmp_path: Path) -> None:
    data, true = TensorDataset(torch.arange(40), torch.arange(40) % 4), torch.arange(40).add(2) % 4
    model = Answers(true, 4, seed=1)
    with aol.Watch(tmp_path / "whole", data) as watch:
        for _ in range(3):
            watch.epoch(model)
        early = aol.find_label_errors(watch)
        for _ in range(3):
            watch.epoch(model)
    whole = aol.find_label_errors(watch)
    assert not early.equals(whole)
    model = Answers(true, 4, seed=1)
    for _ in range(2):
        with aol.Watch(tmp_path / "parts", data, resume=True) as watch:
            for _ in range(3):
                watch.epoch(model)
    assert aol.find_label_errors(tmp_path / "parts").equals(whole)


def test_several_networks_are_averaged_as_a_loop_would(tmp_path: Path) -> None:
    watches = [watched(tmp_path / f"{seed}", seed=seed) for seed in range(3)]
    frames = [aol.find_label_errors(watch) for watch in watches]
    together = aol.find_label_errors(watches)
    assert together.equals(aol.find_label_errors(tmp_path))
    for place in range(60):
        rows = [frame.loc[place] for frame in frames]
        assert together.score[place] == pytest.approx(np.mean([row.score for row in rows]), abs=1e-6)
        assert together.flagged[place] == (sum(row.flagged for row in rows) >= 1.5)
        votes = Counter(row.suggested for row in rows)
        assert votes[together.suggested[place]] == max(votes.values())
    assert together.score[together.flagged].is_monotonic_decreasing


def test_runs_of_parts_of_a_set_are_joined_by_sample(tmp_path: Path) -> None:
    short, long = watched(tmp_path / "short", size=40), watched(tmp_path / "long", size=60)
    together, alone = aol.find_label_errors([short, long]), aol.find_label_errors(long)
    assert sorted(together.index) == list(range(60))
    assert together.sort_index()[40:].equals(alone.sort_index()[40:])


def test_a_run_that_never_saw_a_sample_has_no_part_in_its_score(tmp_path: Path) -> None:
    whole = watched(tmp_path / "whole")
    ages = aol.SampleAges(whole.ages.labels, num_classes=3)
    seen = torch.arange(30)
    with aol.Recorder(tmp_path / "half", ages) as recorder:
        for _ in range(5):
            logits = 3.0 * nn.functional.one_hot(seen % 3, 3).float()
            ages.observe(seen, aol.is_correct(logits, ages.labels[seen]))
            recorder.observe(seen, logits)
            ages.advance()
            recorder.advance()
    together, alone = aol.find_label_errors([whole, recorder]), aol.find_label_errors(whole)
    assert together.sort_index()[30:].equals(alone.sort_index()[30:])
    assert alone.flagged[30]


@pytest.mark.parametrize("classes", [1, 2])
def test_few_classes(tmp_path: Path, classes: int) -> None:
    data = TensorDataset(torch.arange(8), torch.zeros(8, dtype=torch.int64) if classes == 1 else torch.arange(8) % 2)
    with aol.Watch(tmp_path, data, classes=["a", "b"][:classes]) as watch:
        for _ in range(3):
            watch.epoch(Answers(data.tensors[1], classes, seed=0))
    errors = aol.find_label_errors(watch)
    assert not errors.flagged.any()
    assert errors.score.between(0, 1).all()


def test_what_has_no_answer_is_said_in_one_sentence(tmp_path: Path) -> None:
    data = TensorDataset(torch.arange(4), torch.arange(4) % 2)
    with aol.Watch(tmp_path / "new", data) as watch, pytest.raises(ValueError, match="no runs in it"):
        aol.find_label_errors(watch)
    with pytest.raises(ValueError, match="no such folder"):
        aol.find_label_errors(tmp_path / "missing")
    for wrong in (7, None, np.eye(2), [3], []):
        with pytest.raises(TypeError, match=r"source must be an aol\.Watch, .* the folder of a record"):
            aol.find_label_errors(wrong)
    write_run(tmp_path / "classes", small_run())
    with pytest.raises(ValueError, match="recorded its samples"):
        aol.find_label_errors(tmp_path / "classes")
    others = TensorDataset(torch.arange(60), (torch.arange(60) + 2) % 3)
    with aol.Watch(tmp_path / "others", others) as other:
        other.epoch(Answers(torch.arange(60) % 3, 3, seed=0))
    with pytest.raises(ValueError, match="different labels"):
        aol.find_label_errors([watched(tmp_path / "run"), other])


def test_memory_is_of_samples_not_of_samples_times_classes(tmp_path: Path) -> None:
    size, classes = 4_000, 1_000
    ages = aol.SampleAges(torch.arange(size) % classes)
    with aol.Recorder(tmp_path, ages) as recorder:
        for _ in range(2):
            for part in torch.arange(size).split(500):
                logits = torch.randn(len(part), classes)
                ages.observe(part, aol.is_correct(logits, ages.labels[part]))
                recorder.observe(part, logits)
            ages.advance()
            recorder.advance()
    assert (tmp_path / "samples.safetensors").stat().st_size < 120 * size
    tracemalloc.start()
    errors = aol.find_label_errors(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(errors) == size
    assert peak < 1000 * size  # logits would be 4,000 bytes a sample and epoch


def test_the_report_uses_the_same_scores(tmp_path: Path) -> None:
    watch = watched(tmp_path / "run")
    errors = aol.find_label_errors(watch).sort_index()
    samples = load(tmp_path / "run")[0].samples
    assert samples is not None
    assert samples.suspicion.tolist() == errors.score.tolist()
    assert samples.likely_mislabelled.tolist() == errors.flagged.tolist()
