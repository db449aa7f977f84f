"""The benchmark with planted label noise: what it plants, how it counts, and that its record is whole."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from aol.lab.data import open_data

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("label_noise")


@pytest.mark.parametrize("kind", ["symmetric", "class"])
@pytest.mark.parametrize("imbalance", [1.0, 10.0])
def test_so_many_labels_are_changed_and_each_to_another_class(noise: ModuleType, kind: str, imbalance: float) -> None:
    pair = open_data("digits")
    case = noise.Case("digits", 1000, 5, kind, 0.1, imbalance, False, False, 3)
    planted, true = noise.plant(case, pair)
    given = planted.train.labels.numpy()
    wrong = given != true
    assert wrong.sum() == round(0.1 * len(true))
    assert len(true) == 1000 if imbalance == 1.0 else len(true) < 600
    if kind == "class":
        assert (given[wrong] == np.array(noise.ALIKE["digits"])[true[wrong]]).all()
    else:
        assert len(Counter(((given - true) % 10)[wrong].tolist())) >= 7
    again, _ = noise.plant(case, pair)
    assert (again.train.labels == planted.train.labels).all()
    pairs = zip(pair.train.images, pair.train.labels, strict=True)
    places = {image.numpy().tobytes(): int(label) for image, label in pairs}
    for image, label in list(zip(planted.train.images, true, strict=True))[::50]:
        assert places[image.numpy().tobytes()] == label  # pictures stay with their true labels


def test_average_precision_and_the_top_hundredth_are_counted_by_hand(noise: ModuleType) -> None:
    rng = np.random.default_rng(0)
    score, wrong = rng.random(300), rng.random(300) < 0.2
    order = sorted(range(300), key=lambda i: -score[i])
    hits, total = 0, 0.0
    for rank, i in enumerate(order, 1):
        if wrong[i]:
            hits += 1
            total += hits / rank
    assert noise.figures(score, wrong) == pytest.approx([total / hits, np.mean([wrong[i] for i in order[:3]])])
    tied = noise.figures(np.zeros(300), wrong)
    assert 0.1 < tied[0] < 0.35  # chance, whatever the order of the samples


def test_seeds_of_the_choice_are_none_of_the_report(noise: ModuleType) -> None:
    for data, seeds in noise.SEEDS["choice"].items():
        assert not set(seeds) & set(noise.SEEDS["report"][data])
