"""Records of the steps of a stream, which `aol report` reads."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from river import naive_bayes

import aol
from aol.plugins.river import AgedClassifier
from aol.records.record import read_run


def test_classes_join_the_record_when_they_first_come(tmp_path: Path) -> None:
    model = AgedClassifier(naive_bayes.GaussianNB(), step=20, recorder=tmp_path / "run")
    rng = np.random.default_rng(0)
    ages = []
    for step, classes in enumerate((["a"], ["a", "b"], ["c", "b"], ["a", "c"])):
        for _ in range(20):
            label = classes[rng.integers(len(classes))]
            model.learn_one({"x": rng.normal() + "abc".index(label)}, label)
        ages.append(model.class_age)
        assert read_run(tmp_path / "run").epochs.tolist() == list(range(1, step + 2))
    run = read_run(tmp_path / "run")
    assert run.classes == ["a", "b", "c"]
    for row, expected in zip(run.over_time["smoothed_age"], ages, strict=True):
        found = dict(zip(run.classes, row.tolist(), strict=True))
        assert {name: found[name] for name in expected} == pytest.approx(expected, rel=1e-5)
        assert all(np.isnan(found[name]) for name in found.keys() - expected.keys())


def test_a_copy_goes_on_with_a_record_of_its_own(tmp_path: Path) -> None:
    def record(ages: aol.ClassAges) -> aol.Recorder:
        return aol.Recorder(tmp_path / str(len(list(tmp_path.iterdir()))), ages, resume=True)

    model = AgedClassifier(naive_bayes.GaussianNB(), step=5, recorder=record)
    for i in range(10):
        model.learn_one({"x": float(i)}, i % 2)
    other = copy.deepcopy(model)
    for i in range(5):
        other.learn_one({"x": float(i)}, i % 2)
    assert read_run(tmp_path / "0").epochs.tolist() == [1, 2]
    assert read_run(tmp_path / "1").epochs.tolist() == [3]
    assert model.clone().recorder is record
