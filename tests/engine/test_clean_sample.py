"""A clean pass over a part of the samples: who is seen, what is estimated, and how far that is off."""

from __future__ import annotations

import math

import pytest
import torch

from aol.engine import clean_sample
from aol.engine.clean_sample import CleanSample, sample_counts, standard_error
from aol.engine.offline import OfflineLoop
from aol.engine.settings import Settings, WrongSettingsError
from tests.support.tiny_runs import make_loop, settings

COUNTS = torch.tensor([200, 50, 7])
LABELS = torch.arange(3).repeat_interleave(COUNTS)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes of the tiny data have at most 30 samples."""
    monkeypatch.setattr(clean_sample, "LEAST", 2)


def sampled(**given: object) -> OfflineLoop:
    loop = make_loop([settings(clean_part=0.3, **given)])
    assert isinstance(loop, OfflineLoop)
    return loop


def test_every_class_has_its_part_but_not_less_than_the_least() -> None:
    assert sample_counts(COUNTS, 0.25).tolist() == [50, 30, 7]
    assert sample_counts(COUNTS, 1.0).tolist() == COUNTS.tolist()
    sample = CleanSample(LABELS, COUNTS, 0.25)
    drawn = sample.draw([Settings(seed=0), Settings(seed=1)], 3)
    for row in drawn:
        assert row.unique().numel() == 87  # each once
        assert torch.bincount(LABELS[row]).tolist() == [50, 30, 7]
        assert torch.equal(row, row.sort().values)
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], sample.draw([Settings(seed=0)], 3)[0])
    assert not torch.equal(drawn[0], sample.draw([Settings(seed=0)], 4)[0])


def test_every_sample_of_a_class_is_as_likely() -> None:
    sample, runs = CleanSample(LABELS, COUNTS, 0.25), [Settings()]
    times = torch.zeros(257)
    for epoch in range(400):
        times[sample.draw(runs, epoch)[0]] += 1
    for label, part in ((0, 0.25), (1, 0.6)):
        share = times[label == LABELS] / 400
        assert (share - part).abs().max() < 4.5 * math.sqrt(part * (1 - part) / 400)
    assert (times[LABELS == 2] == 400).all()


def test_the_standard_error_is_the_deviation_of_the_estimates() -> None:
    sample, runs = CleanSample(LABELS, COUNTS, 0.25), [Settings()]
    right = torch.rand(257, generator=torch.Generator().manual_seed(0)) < 0.7
    estimates, errors = [], []
    for epoch in range(2000):
        seen = sample.draw(runs, epoch)[0]
        estimate = torch.bincount(LABELS[seen], right[seen].double()) / torch.tensor([50, 30, 7])
        estimates.append(estimate)
        errors.append(sample.error(estimate[None])[0].square())
    true = torch.bincount(LABELS, right.double()) / COUNTS
    spread, stated = torch.stack(estimates).std(0), torch.stack(errors).mean(0).sqrt()
    assert torch.stack(estimates).mean(0).tolist() == pytest.approx(true.tolist(), abs=0.005)
    assert stated.tolist() == pytest.approx(spread.tolist(), rel=0.06, abs=1e-9)
    assert stated[2] == 0  # all of them were seen
    assert standard_error(torch.tensor([0.3]), torch.tensor([1]), torch.tensor([1])).item() == 0


@pytest.mark.usefixtures("few")
def test_ages_of_samples_that_were_not_seen_stay() -> None:
    loop = sampled(epochs=4)
    assert loop._sampling is not None
    while not loop.done:
        seen = loop._sampling.draw(loop.runs, loop.epoch)[0]
        before = loop.ages.age[0].clone()
        loop.run_epoch()
        unseen = torch.ones_like(before, dtype=torch.bool)
        unseen[seen] = False
        assert torch.equal(loop.ages.age[0][unseen], before[unseen])
        assert seen.numel() < unseen.numel() / 2
    assert (loop.ages.age[0] > 1).any()


@pytest.mark.usefixtures("few")
def test_the_record_states_estimates_and_their_errors() -> None:
    loop = sampled(seed=3)
    loop.run_epoch()
    assert loop._sampling is not None
    found = {
        name: loop.history.last(name, by_class=True)[0]
        for name in ("train_count", "train_accuracy", "train_accuracy_error")
    }
    counts = loop.counts
    assert found["train_count"].tolist() == sample_counts(counts, 0.3).tolist()
    error = standard_error(found["train_accuracy"].double(), sample_counts(counts, 0.3), counts)
    assert found["train_accuracy_error"].tolist() == pytest.approx(error.tolist(), abs=1e-6)
    share = counts / counts.sum()
    whole = float((share * found["train_accuracy"]).sum())
    assert loop.history.last("train_accuracy").item() == pytest.approx(whole, abs=1e-6)
    assert loop.history.last("train_accuracy_error").item() == pytest.approx(
        math.sqrt(float((share * error).square().sum())), abs=1e-6
    )
    whole_pass = make_loop([settings(seed=3)])
    whole_pass.run_epoch()
    assert whole_pass.history.last("train_accuracy_error").isnan().all()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("given", [{"weighting": "aol"}, {"margin": "probability"}, {"weighting": "sample-loss"}])
def test_a_resumed_run_sees_the_same_samples(given: dict[str, object]) -> None:
    loop, again = sampled(**given), sampled(**given)
    for _ in range(2):
        loop.run_epoch()
    again.load_state_dict(loop.state_dict())
    for each in (loop, again):
        while not each.done:
            each.run_epoch()
    for name, value in loop.learner.networks(0)["network"].items():
        assert torch.equal(value, again.learner.networks(0)["network"][name])
    assert torch.equal(loop.ages.age, again.ages.age)


def test_runs_keep_their_ids_and_streams_refuse() -> None:
    assert Settings(clean_part=1.0).run_id == Settings().run_id != Settings(clean_part=0.1).run_id
    assert Settings(signal="train", clean_part=0.1).run_id == Settings(signal="train").run_id
    for given in ({"scenario": "arrival", "fraction": 0.5}, {"scenario": "stream"}):
        with pytest.raises(WrongSettingsError, match="clean_part must be 1"):
            Settings(clean_part=0.5, **given)  # type: ignore[arg-type]
    for wrong in (0.0, 1.5):
        with pytest.raises(WrongSettingsError, match="clean_part"):
            Settings(clean_part=wrong)
