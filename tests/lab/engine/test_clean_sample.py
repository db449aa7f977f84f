"""A clean pass over a part of the samples: who is seen, what is estimated, and how far that is off."""

from __future__ import annotations

import math

import pytest
import torch

import aol
from aol.lab.engine.clean_sample import CleanSample, sample_size, standard_error
from aol.lab.engine.offline import OfflineLoop
from aol.lab.settings import Settings, WrongSettingsError
from tests.support.tiny_runs import make_loop, settings

COUNTS = torch.tensor([200, 50, 7])
LABELS = torch.arange(3).repeat_interleave(COUNTS)


def sampled(**given: object) -> OfflineLoop:
    loop = make_loop([settings(clean_part=0.3, **given)])
    assert isinstance(loop, OfflineLoop)
    return loop


def test_every_class_has_its_part() -> None:
    assert sample_size(257, 0.25) == 65
    sample = CleanSample(LABELS, 0.25)
    drawn = sample.draw([Settings(seed=0), Settings(seed=1)], 3)
    for row in drawn:
        assert row.unique().numel() == 65  # each once
        assert ((torch.bincount(LABELS[row], minlength=3) - COUNTS * 65 / 257).abs() < 1).all()
        assert torch.equal(row, row.sort().values)
    assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[0], sample.draw([Settings(seed=0)], 3)[0])
    assert not torch.equal(drawn[0], sample.draw([Settings(seed=0)], 4)[0])
    assert torch.equal(CleanSample(LABELS, 1.0).draw([Settings()], 0)[0], torch.arange(257))


def test_every_sample_is_as_likely_whatever_the_size_of_its_class() -> None:
    sample, runs = CleanSample(LABELS, 0.25), [Settings()]
    times, part = torch.zeros(257), 65 / 257
    for epoch in range(400):
        times[sample.draw(runs, epoch)[0]] += 1
    assert (times / 400 - part).abs().max() < 4.5 * math.sqrt(part * (1 - part) / 400)


def test_ages_of_classes_do_not_depend_on_their_size() -> None:
    """Three tenths of each class are never learnt: all classes are as old."""
    counts = torch.tensor([500, 50, 10])
    labels = torch.arange(3).repeat_interleave(counts)
    right = torch.cat([torch.arange(int(n)) >= 0.3 * n for n in counts])
    sample, ages = CleanSample(labels, 0.1), aol.SampleAges(labels, rho=1.0)
    for epoch in range(400):
        seen = sample.draw([Settings()], epoch)[0]
        ages.observe(seen, right[seen])
        ages.advance()
    assert ages.mean_age.tolist() == pytest.approx([1 + 0.3 * 40] * 3, rel=0.15)


def test_the_standard_error_is_the_deviation_of_the_estimates() -> None:
    counts = torch.tensor([200, 48, 12])
    labels = torch.arange(3).repeat_interleave(counts)
    sample, runs = CleanSample(labels, 0.25), [Settings()]
    right = torch.rand(260, generator=torch.Generator().manual_seed(0)) < 0.7
    estimates, errors = [], []
    for epoch in range(2000):
        seen = sample.draw(runs, epoch)[0]
        count = torch.bincount(labels[seen], minlength=3)
        assert count.tolist() == [50, 12, 3]  # every fourth
        estimates.append(torch.bincount(labels[seen], right[seen].double(), minlength=3) / count)
        errors.append(standard_error(estimates[-1], count, counts).square())
    true = torch.bincount(labels, right.double()) / counts
    spread, stated = torch.stack(estimates).std(0), torch.stack(errors).mean(0).sqrt()
    assert torch.stack(estimates).mean(0).tolist() == pytest.approx(true.tolist(), abs=0.01)
    assert stated.tolist() == pytest.approx(spread.tolist(), rel=0.06)
    one = torch.tensor([1])
    assert standard_error(torch.tensor([0.0]), one, one).item() == 0  # all of them were seen
    assert standard_error(torch.tensor([0.0]), one, torch.tensor([5])).isnan()


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


def test_the_record_states_estimates_and_their_errors() -> None:
    loop = sampled(seed=3)
    loop.run_epoch()
    assert loop._sampling is not None
    found = {
        name: loop.history.last(name, by_class=True)[0]
        for name in ("train_count", "train_accuracy", "train_accuracy_error")
    }
    seen, counts = found["train_count"], loop.counts
    assert seen.sum() == sample_size(int(counts.sum()), 0.3)
    assert ((seen - 0.3 * counts).abs() <= 1).all()
    error = standard_error(found["train_accuracy"].double(), seen, counts)
    assert found["train_accuracy_error"].tolist() == pytest.approx(error.tolist(), abs=1e-6, nan_ok=True)
    share = seen / seen.sum()
    assert loop.history.last("train_accuracy").item() == pytest.approx(
        float((share * found["train_accuracy"]).nansum()), abs=1e-6
    )
    assert loop.history.last("train_accuracy_error").item() == pytest.approx(
        math.sqrt(float((share * error).nan_to_num().square().sum())), abs=1e-6
    )
    whole_pass = make_loop([settings(seed=3)])
    whole_pass.run_epoch()
    assert whole_pass.history.last("train_accuracy_error").isnan().all()


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
