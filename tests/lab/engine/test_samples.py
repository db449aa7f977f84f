"""Runs on sets with a nuisance: what they train on, what they are tested on, and what is remembered of samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from aol.lab.data import open_data
from aol.lab.data.encoded_images import StoredImages
from aol.lab.engine.passes import CleanPass, Readings
from aol.lab.engine.run_rules import SampleSignals
from aol.lab.engine.source import data_of, pool
from aol.lab.settings import Settings, WrongSettingsError
from tests.support.tiny_runs import CPU, make_loop, run_to_end, settings, tiny_pair
from tests.support.tiny_sets import image_folder

HIDDEN = {"nuisance": "patch", "conflicts": 0.2, "imbalance": None, "samples": 45, "validation": 0.2}


def test_each_run_draws_its_own_samples_with_their_share_of_conflicts() -> None:
    runs = [settings(**HIDDEN, seed=seed) for seed in range(3)]
    pair = data_of(runs[0], {"tiny": tiny_pair()})
    loop = make_loop(runs, pair)
    assert pair.shortcut is not None
    assert loop.pool.shape == (3, 45)
    assert len({tuple(row.tolist()) for row in loop.pool}) == 3
    for row in loop.pool:
        assert set(row.tolist()) <= set(pair.shortcut.kept.tolist())
        assert torch.bincount(pair.train.labels[row]).tolist() == [15, 15, 15]
        assert int(pair.shortcut.train[row].sum()) == 9
    assert loop.held_out.tolist() == list(range(18))
    run_to_end(loop)
    assert bool(loop.history.epoch("validation_accuracy")[-1].isfinite().all())


def test_the_worst_group_is_the_lowest_accuracy_of_a_class_with_its_own_or_another_nuisance() -> None:
    runs = [settings(**HIDDEN, seed=seed) for seed in range(2)]
    pair = data_of(runs[0], {"tiny": tiny_pair()})
    assert pair.shortcut is not None
    loop = make_loop(runs, pair)
    kept: list[torch.Tensor] = []
    evaluate = loop._evaluate

    def noted(clean: CleanPass, *rest: torch.Tensor | None) -> Readings:
        readings = evaluate(clean, *rest)  # type: ignore[arg-type]
        kept.extend([readings.correct] if clean is loop._test_pass else [])
        return readings

    loop._evaluate = noted  # type: ignore[assignment, method-assign]
    run_to_end(loop)
    against, labels = pair.shortcut.test, pair.test.labels
    for row in range(2):
        right = kept[-1][row].double()
        worst = min(float(right[(labels == c) & (against == a)].mean()) for c in range(3) for a in (False, True))
        assert float(loop.history.epoch("test_worst_group")[-1][row]) == pytest.approx(worst)
        assert float(loop.history.epoch("test_conflict_accuracy")[-1][row]) == pytest.approx(
            float(right[against].mean())
        )
    plain = run_to_end(make_loop([settings(epochs=1)]))
    assert bool(plain.history.epoch("test_worst_group")[-1].isnan().all())


def test_a_set_is_changed_once_for_runs_that_are_trained_together() -> None:
    pairs = {"tiny": tiny_pair()}
    runs = [settings(**HIDDEN, weighting=weighting, seed=seed) for weighting in ("none", "old") for seed in (0, 1)]
    assert len({run.group_key for run in runs}) == 1
    assert data_of(runs[0], pairs) is data_of(runs[3], pairs)
    other = data_of(replace(runs[0], conflicts=0.1), pairs)
    assert other is not data_of(runs[0], pairs)
    assert data_of(settings(), pairs) is pairs["tiny"]


def test_samples_are_taken_before_the_long_tail() -> None:
    labels = open_data("digits").train.labels
    kept, held = pool(Settings(samples=500, imbalance=10, validation=0.1, seed=3), labels)
    assert len(held) > 100
    counts = torch.bincount(labels[kept])
    assert 45 <= int(counts[0]) <= 51
    assert int(counts[9]) == int(counts[0]) // 10
    assert len(pool(Settings(samples=500, imbalance=None), labels)[0]) == 500


@pytest.mark.parametrize(
    ("present", "samples", "words"), [((0, 1, 2), 2, "^samples must be enough"), ((0, 2), 20, "but 1 has no sample")]
)
def test_a_missing_class_is_blamed_on_too_few_samples_only_where_the_data_have_it(
    present: tuple[int, ...], samples: int, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        pool(Settings(samples=samples, imbalance=2), torch.tensor(present).repeat(20))


def test_a_set_that_is_decoded_while_training_has_no_nuisance(tmp_path: Path) -> None:
    stored = open_data(image_folder(tmp_path)).train
    assert isinstance(stored, StoredImages)
    pairs = {"tiny": replace(tiny_pair(), train=stored)}  # type: ignore[arg-type]
    with pytest.raises(WrongSettingsError, match=r"nuisance='patch'.*tiny"):
        data_of(settings(**HIDDEN), pairs)  # type: ignore[arg-type]


def test_signals_are_what_the_answers_say() -> None:
    runs = [Settings(weighting="jtt", after=after) for after in (1, 3)]
    signals = SampleSignals(runs, 3, CPU)
    told = [([0, 1], [2, 1, 1]), ([0, 2], [3, 1, 2]), ([0, 1], [1, 2, 2])]  # positions, and the ages that follow
    for epoch, (position, age) in enumerate(told):
        place = torch.tensor(position).expand(2, -1)
        signals.observe(place, torch.full((2, 2), 0.5 ** (epoch + 1)))
        signals.advance(place, torch.tensor(age, dtype=torch.int32).expand(2, -1), epoch=epoch)
    assert signals.peak[0].tolist() == [3, 2, 2]
    assert signals.error_rate[0].tolist() == pytest.approx([2 / 3, 1 / 2, 1.0])
    assert signals.marked.tolist() == [[True, False, False], [False, True, False]]
    log2 = 0.6931472
    assert signals.loss[0].tolist() == pytest.approx([3 * log2, 3 * log2, 2 * log2])
    twin = SampleSignals(runs, 3, CPU)
    twin.load_state_dict(signals.state_dict())
    assert all(torch.equal(getattr(twin, name), value) for name, value in signals.state_dict().items())
