"""Studies as written down: runs counted by hand, restrictions, and files that are wrong."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.study import Method, Study, load

ROOT = Path(__file__).parents[3]

TINY = """
name = "tiny"
seeds = [3, 5]
[common]
epochs = 2
[cells]
imbalance = [10, "none"]
loss = ["softmax", "sigmoid"]
[[methods]]
name = "none"
[[methods]]
name = "aol"
weighting = "aol"
grid = { rho = [0.1, 0.5, 1.0], level = ["class", "sample"] }
[[methods]]
name = "frequency"
weighting = "frequency"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "study.toml"
    path.write_text(text)
    return path


def test_every_combination_is_a_run_once(tmp_path: Path) -> None:
    study = load(written(tmp_path, TINY))
    wanted = set()
    for imbalance, loss in itertools.product([10, None], ["softmax", "sigmoid"]):
        base = {"epochs": 2, "imbalance": imbalance, "loss": loss}
        for seed in (3, 5, 1, 2, 4, 6, 7, 8):  # the baseline has six more: as many as AoL has settings
            wanted.add(Settings(**base, seed=seed))
        for seed in (3, 5):
            wanted.add(Settings(**base, weighting="frequency", seed=seed))
            for rho, level in itertools.product((0.1, 0.5, 1.0), ("class", "sample")):
                wanted.add(Settings(**base, weighting="aol", rho=rho, level=level, seed=seed))
    found = study.all_runs()
    assert len(found) == len(wanted) == 4 * (8 + 2 + 12)
    assert set(found) == wanted


def test_a_methods_own_settings_go_before_those_of_the_cell() -> None:
    study = Study(
        name="memories",
        title="",
        common={"scenario": "stream"},
        cells={"memory": ("all", "reservoir:100")},
        seeds=(0,),
        methods=(Method("none", {"memory": "all"}), Method("aol", {"weighting": "aol"})),
        tries_seeds=0,
    )
    assert [run.memory for run in study.all_runs()] == ["all", "all", "reservoir:100"]


def test_none_stands_for_every_setting_that_may_be_unset(tmp_path: Path) -> None:
    text = TINY.replace("[common]", '[common]\nmargin = "probability"').replace('imbalance = [10, "none"]', "%s")
    for name, value in (("margin_steps", 5), ("samples", 100), ("imbalance", 3.0), ("warmup", 1.0)):
        study = load(written(tmp_path, text % f'{name} = ["none", {value}]'))
        assert study.cells[name] == (None, value)


def test_equal_runs_of_two_studies_are_one_run() -> None:
    one, seeds = load("period-10-one-seed"), load("period-10")
    shared = {run.run_id for run in one.all_runs()} & {run.run_id for run in seeds.all_runs()}
    common_cells, aol, rivals, baseline = 3, 10, 5, 11
    assert len(shared) == common_cells * (aol + rivals + baseline)


def test_a_part_of_a_study_holds_its_baseline_and_what_was_asked_for(tmp_path: Path) -> None:
    study = load(written(tmp_path, TINY))
    part = study.only(imbalance=[10], loss=["sigmoid"], rho=[0.5], method=["aol"])
    assert {run.method for run in part.all_runs()} == {
        "none sigmoid",
        "aol ρ=0.5 class sigmoid",
        "aol ρ=0.5 sample sigmoid",
    }
    assert set(part.all_runs()) <= set(study.all_runs())
    assert len(part.extra_seeds) == 2  # as many as settings are left
    plain = study.only(method=["none"])
    assert set(plain.all_runs()) == {run for run in study.all_runs() if run.weighting == "none"}


def test_a_method_whose_grid_has_none_of_the_settings_is_not_left_out_silently(tmp_path: Path) -> None:
    more = TINY + "[[methods]]\nname = 'slow'\nweighting = 'aol'\ngrid = { rho = [0.01] }\n"
    study = load(written(tmp_path, more))
    assert [each.name for each in study.only(rho=[0.5]).methods] == ["none", "aol", "frequency"]
    with pytest.raises(WrongSettingsError, match="the grid of slow has none of these settings"):
        study.only(method=["slow"], rho=[0.5])


def test_other_settings_are_other_runs() -> None:
    study = load("period-10-smoke")
    other = study.with_settings(epochs=5)
    assert {run.epochs for run in other.all_runs()} == {5}
    assert not {run.run_id for run in study.all_runs()} & {run.run_id for run in other.all_runs()}
    with pytest.raises(WrongSettingsError, match="imbalance varies in period-10-smoke"):
        study.with_settings(imbalance=3.0)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ('name = "tiny"', "", "name is missing"),
        ('name = "tiny"', "name = 3", "name must be text, not 3"),
        ("seeds = [3, 5]", "seeds = 3", "seeds must be a list, not 3"),
        ("seeds = [3, 5]", "seeds = [3, 3]", "seeds must be different whole numbers of 0 or more, not [3, 3]"),
        ("seeds = [3, 5]", "seeds = [0.5]", "seeds must be different whole numbers of 0 or more, not [0.5]"),
        ("seeds = [3, 5]", "seeds = [[3]]", "seeds must be different whole numbers of 0 or more, not [[3]]"),
        ("seeds = [3, 5]", "seeds = []", "seeds must be different whole numbers of 0 or more, not []"),
        ("seeds = [3, 5]", 'seeds = [3]\ncolour = "red"', "there is no key 'colour'"),
        ("epochs = 2", "epoch = 2", "there is no setting 'epoch'. Did you mean 'epochs'?"),
        ('name = "tiny"', 'name = "../tiny"', "name must be able to name a file"),
        ("seeds = [3, 5]", "seed = [3]", "Did you mean 'seeds'?"),
        ("epochs = 2", "epochs = 0", "epochs must be"),
        ("epochs = 2", "seed = 2", "has a seed: seeds are a list of their own"),
        ("epochs = 2", "epochs = [2, 3]", "epochs must be one value, not [2, 3]"),
        ("epochs = 2", 'loss = "softmax"', "loss is both common and an axis of the cells"),
        ('imbalance = [10, "none"]', "imbalance = []", "cells: imbalance must be a list of different values, not []"),
        ('imbalance = [10, "none"]', "imbalance = 10", "imbalance must be a list, not 10"),
        (
            'imbalance = [10, "none"]',
            "imbalance = [0.5]",
            "tiny, method none, imbalance=0.5 loss=softmax: imbalance must",
        ),
        ('name = "none"', 'name = "plain"', "baseline must be one of the methods plain, aol, frequency, not 'none'"),
        ('name = "frequency"', 'name = "aol"', "methods must have different names, not none, aol, aol"),
        ("grid = {", "rho = {", "rho must be one value"),
        ("rho = [0.1", "sigma = [0.1", "there is no setting 'sigma'"),
        ("[common]", "[selection]\nfigure = 'first'\n[common]", "figure must be"),
        ("[common]", "[selection]\nby = 'last'\n[common]", "there is no key 'by'"),
        ("[common]", "[common", "is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(old: str, new: str, sentence: str, tmp_path: Path) -> None:
    assert old in TINY
    path = written(tmp_path, TINY.replace(old, new, 1))
    with pytest.raises(WrongSettingsError) as error:
        load(path)
    assert sentence in str(error.value)
    assert str(path) in str(error.value)


def test_a_study_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(WrongSettingsError, match="There is no study 'period': no such file, and the built-in ones are"):
        load("period")
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(WrongSettingsError, match="is not TOML"):
        load(binary)


@pytest.fixture(autouse=True)
def _in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # where results/studies are found by name


def test_a_study_says_which_methods_get_a_verdict() -> None:
    study = load("margins")
    assert study.claimed_methods() == ["margin-age", "margin-error", "margin-probability"]
    assert study.only(method=["margin-error", "frequency"]).claimed_methods() == ["margin-error"]
    assert study.only(method=["frequency"]).claimed_methods() == ["frequency"]
    assert load("period-10").claimed_methods() == ["aol"]
    with pytest.raises(WrongSettingsError, match="claims"):
        replace(study, claims=("none",))
    with pytest.raises(WrongSettingsError, match="claims"):
        replace(study, claims=("margin",))


def test_a_method_and_its_baseline_are_listed_together_seed_by_seed() -> None:
    study = load("losses")
    runs = study.cell_runs(study.cells_list()[0])
    by_seed = [(seed, [run.method for run in own]) for seed, own in itertools.groupby(runs, lambda run: run.seed)]
    assert [seed for seed, _ in by_seed] == list(study.seeds)
    assert {len(methods) for _, methods in by_seed} == {len(study.methods)}
    assert all(methods[0] == "none" for _, methods in by_seed)
