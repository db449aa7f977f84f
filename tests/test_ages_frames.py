"""What `SampleAges` tells people: frames, labels in another order, forgotten calls."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

import aol

LABELS = torch.arange(40) % 4


def _trained(rho: object = 0.5, **more: object) -> aol.SampleAges:
    """Five epochs in which samples are wrong with a probability of their own; a few are never seen."""
    random = torch.Generator().manual_seed(0)
    ages = aol.SampleAges(LABELS, rho=rho, **more)  # type: ignore[arg-type]
    runs = () if isinstance(rho, float) else (len(rho),)  # type: ignore[arg-type]
    for _ in range(5):
        ages.observe(torch.arange(36), torch.rand((*runs, 36), generator=random) > torch.linspace(0, 1, 36))
        ages.advance()
    return ages


@pytest.mark.parametrize("level", ["class", "sample"])
def test_a_frame_has_the_state_of_each_sample(level: str) -> None:
    ages = _trained(level=level)
    frame = ages.to_frame()
    assert frame.columns.tolist() == ["label", "age", "smoothed_age", "weight"]
    assert frame.index.name == "sample"
    assert frame["label"].tolist() == LABELS.tolist()
    assert frame["age"].tolist() == ages.age.tolist()
    np.testing.assert_array_equal(frame["smoothed_age"], ages.ema.numpy())
    assert frame["smoothed_age"].isna().tolist() == [False] * 36 + [True] * 4
    np.testing.assert_array_equal(frame["weight"], ages.weight(torch.arange(40)).numpy())


def test_a_frame_of_several_runs_has_a_row_for_each_run_and_sample() -> None:
    ages = _trained(rho=torch.tensor([0.1, 0.5, 1.0]))
    frame = ages.to_frame()
    assert frame.index.names == ["run", "sample"]
    for run in range(3):
        assert frame.loc[run]["age"].tolist() == ages.age[run].tolist()
        np.testing.assert_array_equal(frame.loc[run]["weight"], ages.weights[run].numpy())
    oldest = ages.oldest(4)
    assert oldest.groupby("run").size().tolist() == [4, 4, 4]
    assert oldest.loc[2].equals(frame.loc[2].loc[oldest.loc[2].index])


def test_the_oldest_samples_are_those_of_a_sorted_list() -> None:
    ages = _trained()
    state = zip((-ages.age).tolist(), (-ages.ema.nan_to_num(0.0)).tolist(), range(40), strict=True)
    expected = [place for age, _, place in sorted(state) if age < -1]
    assert 10 < len(expected) < 36
    for k in (0, 1, 7, 40, 1000):
        assert ages.oldest(k).index.tolist() == expected[:k]
    with pytest.raises(ValueError, match="k must"):
        ages.oldest(-1)


def test_labels_in_another_order_are_noticed_and_change_nothing() -> None:
    ages = aol.SampleAges(LABELS)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    ages.observe(order, torch.ones(40, dtype=torch.bool), label=LABELS[order])
    before = ages.state_dict()
    shuffled = LABELS[order]
    wrong = int((shuffled != LABELS).sum())
    with pytest.raises(ValueError, match=f"label .* differs for {wrong} of 40"):
        ages.observe(torch.arange(40), torch.zeros(40, dtype=torch.bool), label=shuffled)
    with pytest.raises(ValueError, match=r"sample 2 has class 2, not 3"):
        ages.observe(torch.tensor([1, 2]), [False, False], label=torch.tensor([1, 3]))
    with pytest.raises(ValueError, match=r"label must have the shape \[2\]"):
        ages.observe([1, 2], [False, False], label=[1])
    with pytest.raises(TypeError, match="label must be whole numbers"):
        ages.observe([1, 2], [False, False], label=[1.0, 2.0])
    assert torch.equal(before["_observed"], ages.state_dict()["_observed"])  # type: ignore[arg-type]


def test_an_epoch_without_observe_warns() -> None:
    ages = aol.SampleAges(LABELS)
    with pytest.warns(UserWarning, match="observe"):
        ages.advance()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seen = aol.SampleAges(LABELS)
        seen.observe([3], [True])
        seen.advance()
        aol.SampleAges(LABELS, absent="grow").advance()  # nothing arrived
        resumed = aol.SampleAges(LABELS)
        seen.observe([3], [True])
        resumed.load_state_dict(seen.state_dict())  # within an epoch
        resumed.advance()
