"""Every weighting of the registry against plain Python, with the settings it says it uses."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import fields

import pytest
import torch

from aol.ages import SampleAges
from aol.lab.engine.run_rules import RunWeights
from aol.lab.methods import WEIGHTINGS, Inputs, Weighting
from aol.lab.settings import Settings, WrongSettingsError
from tests.support.tiny_runs import CPU

COUNTS = [50, 10, 2, 1]
AGE = [0.4, 0.8, 1.2, 1.6]
ERROR = [0.1, 0.5, 1.4, 2.0]


def one_mean(values: list[float]) -> list[float]:
    return [value * len(values) / math.fsum(values) for value in values]


def naive(run: Settings) -> list[float]:
    """The class weights of one run; AGE and ERROR are weights already."""
    cb = one_mean([(1 - run.beta) / (1 - run.beta**n) for n in COUNTS])
    age = AGE if run.level == "class" else [1.0] * 4
    product = {
        "none": [1.0] * 4,
        "cb": cb,
        "aol": age,
        "cb+aol": [a * b for a, b in zip(cb, age, strict=True)],
        "frequency": [n**-run.power for n in COUNTS],
        "error": ERROR,
    }.get(run.weighting, [1.0] * 4)  # those of samples have no weights by class
    sample_level = run.level == "sample" and "aol" in run.weighting
    return one_mean([w ** (1.0 if sample_level else run.temper) for w in one_mean(product)])


def by_class(runs: list[Settings], counts: object = COUNTS, epoch: int = 0) -> torch.Tensor:
    age, error = (torch.tensor(values).expand(len(runs), -1) for values in (AGE, ERROR))
    return RunWeights(runs, CPU).by_class(Inputs(runs, torch.tensor(counts), age, error), epoch=epoch)


def runs_of_all_kinds() -> list[Settings]:
    changes = [
        {},
        {"temper": 0.5},
        {"level": "sample"},
        {"level": "sample", "temper": 2.0},
        {"beta": 0.9, "power": 1.5},
    ]
    return [Settings(weighting=name, seed=seed, **change) for name in WEIGHTINGS for seed, change in enumerate(changes)]


def test_every_weighting_is_what_plain_python_says_alone_and_among_others() -> None:
    runs = runs_of_all_kinds()
    together = by_class(runs)
    assert together.dtype == torch.float32
    for run, row in zip(runs, together, strict=True):
        assert row.tolist() == pytest.approx(naive(run), rel=1e-5), run.method
        assert torch.equal(by_class([run])[0], row), run.method
        assert float(row.mean()) == pytest.approx(1.0)


def test_counts_may_differ_between_runs() -> None:
    runs = [Settings(weighting="frequency", power=1.0), Settings(weighting="frequency", power=1.0, seed=1)]
    weights = by_class(runs, [[1, 1, 1, 1], [4, 2, 1, 1]])
    assert weights.tolist() == [pytest.approx([1.0] * 4), pytest.approx(one_mean([0.25, 0.5, 1.0, 1.0]))]


def test_samples_get_the_weight_of_their_class_or_their_own() -> None:
    runs = [
        Settings(weighting="aol", level="class"),
        Settings(weighting="cb+aol", level="sample", beta=0.9, temper=0.5),
        Settings(weighting="cb", beta=0.9),
    ]
    weights = RunWeights(runs, CPU)
    classes = by_class(runs)
    label = torch.tensor([3, 0, 0, 1])
    ages = SampleAges(label, rho=[1.0] * 3)
    ages.observe(range(4), torch.tensor([[True, False, True, True]]).expand(3, -1))
    ages.advance()
    own = ages.sample_weight  # 0.8, 1.6, 0.8, 0.8
    found, mean = weights.by_sample(classes, Inputs(runs, classes, classes, classes, ages), label, epoch=0)
    cb = naive(Settings(weighting="cb", beta=0.9))
    product = one_mean([cb[c] * w for c, w in zip(label.tolist(), own[0].tolist(), strict=True)])
    assert found[0].tolist() == pytest.approx([AGE[c] for c in label.tolist()])
    assert found[1].tolist() == pytest.approx(one_mean([w**0.5 for w in product]), rel=1e-5)
    assert found[2].tolist() == pytest.approx([cb[c] for c in label.tolist()], rel=1e-5)
    assert mean[0].tolist() == pytest.approx(AGE)
    by_hand = [(found[1, 1] + found[1, 2]) / 2, found[1, 3], 1.0, found[1, 0]]  # class 2 has no sample
    assert mean[1].tolist() == pytest.approx([float(value) for value in by_hand])


def test_weights_are_one_before_their_start() -> None:
    late = {"weighting": "cb", "beta": 0.9, "epochs": 10}
    runs = [Settings(**late, start=0.3), Settings(**late, start=0.8), Settings(**late), Settings(epochs=10)]
    once = by_class(runs[2:3])[0]
    for epoch in range(10):
        found = by_class(runs, epoch=epoch)
        for row, begin in enumerate((3, 8, 0, 10)):
            assert torch.equal(found[row], once if epoch >= begin else torch.ones(4)), (row, epoch)


def test_a_weighting_added_to_the_registry_is_all_that_settings_and_engine_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def inverse(inputs: Inputs) -> torch.Tensor:
        return 1 / inputs.counts ** inputs.setting("power")[:, None]

    with pytest.raises(WrongSettingsError, match="weighting"):
        Settings(weighting="inverse")
    monkeypatch.setitem(WEIGHTINGS, "inverse", Weighting((inverse,), ("power",), False, "for this test"))
    run = Settings(weighting="inverse", power=1.0, beta=0.3, rho=0.1)
    assert run.method == "inverse p=1"
    assert run == Settings(weighting="inverse", power=1.0)
    assert by_class([run])[0].tolist() == pytest.approx(one_mean([1 / n for n in COUNTS]), rel=1e-5)


def test_the_registry_names_settings_that_exist_and_says_what_each_is() -> None:
    known = {field.name for field in fields(Settings)}
    for name, weighting in WEIGHTINGS.items():
        assert set(weighting.settings) <= known, name
        assert weighting.help, name
        of_training = name == "aol-seen"  # whose answers come with the training steps
        assert weighting.needs_answers == (("rho" in weighting.settings or weighting.remembers) and not of_training)


def test_a_setting_that_a_weighting_does_not_use_makes_no_other_run() -> None:
    other = {"rho": 0.1, "beta": 0.1, "power": 0.1, "temper": 0.1, "level": "sample", "after": 2, "factor": 3.0}
    for name, weighting in WEIGHTINGS.items():
        for setting, value in other.items():
            same = Settings(weighting=name, **{setting: value}) == Settings(weighting=name)
            assert same == (setting not in weighting.settings), (name, setting)


def test_the_registry_can_be_read_without_torch() -> None:
    code = "import sys, aol.lab.methods, aol.lab.settings; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
