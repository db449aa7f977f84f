"""The comparison of forms of age: its weights, what choice and report share, how it goes on, and its record."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from scipy import stats

from aol.lab.data import open_data
from aol.lab.data.images import ImageSet
from aol.lab.engine import OfflineLoop, Settings, StreamLoop

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def forms(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("forms_of_age")


@pytest.fixture
def age_forms(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("age_forms")


OWN = [
    ("none", {"weighting": "none"}),
    ("frequency", {"weighting": "frequency", "power": 0.5}),
    ("cb", {"weighting": "cb", "beta": 0.99}),
    ("age", {"weighting": "aol", "rho": 0.3}),
    ("error", {"weighting": "error", "rho": 0.3}),
    ("sample age", {"weighting": "aol", "rho": 0.3, "level": "sample"}),
]


@pytest.mark.parametrize("kind", [StreamLoop, OfflineLoop])
def test_forms_that_the_engine_has_train_as_the_engine_does(age_forms: ModuleType, kind: type) -> None:
    stream = kind is StreamLoop
    common = {"data": "digits", "scenario": "stream" if stream else "offline", "imbalance": 20, "epochs": 6, "seed": 3}
    common |= {"memory": "reservoir:200", "net": "cnn", "lr": 0.05, "batch_size": 16, "schedule": "fixed"}
    pair = open_data("digits")
    own = OWN[:-1] if stream else OWN
    shapes = []
    for name, _ in own:
        level = "sample" if name == "sample age" else "class"
        factors = () if name == "none" else ((name, 0.5 if name == "frequency" else 1.0),)
        shapes.append(age_forms.Form(factors, level=level))
    common_settings = Settings(**common)
    loop = kind([Settings(**form.settings(common_settings)) for form in shapes], pair, device=torch.device("cpu"))
    loop.weights = age_forms.FormWeighting(shapes, loop)
    plain = kind([Settings(**common, **given) for _, given in own], pair, device=torch.device("cpu"))
    for _ in range(6):
        loop.run_epoch()
        plain.run_epoch()
    for reading in ("weight", "test_accuracy"):
        torch.testing.assert_close(loop.history.by_class(reading), plain.history.by_class(reading))
    assert loop.history.by_class("weight").std(-1).amax(0)[1:].min() > 0.01  # else there was nothing to compare


def test_products_and_strengths_are_those_counted_by_hand(age_forms: ModuleType) -> None:
    number, age, error = [100, 20, 5], [1.5, 3.0, 2.0], [0.1, 0.6, 0.3]
    signals = {
        "frequency": 1 / torch.tensor(number, dtype=torch.float64),
        "age": torch.tensor(age, dtype=torch.float64),
        "error": torch.tensor(error, dtype=torch.float64),
    }
    factors = (("frequency", 0.5), ("age", 2.0), ("error", 0.25))
    product = [n**-0.5 * a**2 * e**0.25 for n, a, e in zip(number, age, error, strict=True)]
    expected = [3 * each / sum(product) for each in product]
    assert age_forms.weight_of(factors, signals).tolist() == pytest.approx(expected, rel=1e-5)

    like = age_forms.weight_of(factors, signals, like=(("error", 1.0),))
    logs, others = [math.log(each) for each in like.tolist()], [math.log(each) for each in error]

    def deviation(values: list[float]) -> float:
        mean = sum(values) / 3
        return math.sqrt(sum((value - mean) ** 2 for value in values) / 3)

    assert deviation(logs) == pytest.approx(deviation(others), rel=1e-4)
    before = [math.log(each) for each in expected]
    assert (logs[0] - logs[1]) / (logs[1] - logs[2]) == pytest.approx(
        (before[0] - before[1]) / (before[1] - before[2]), rel=1e-3
    )


def test_choice_and_report_share_no_seeds_and_no_pictures(forms: ModuleType) -> None:
    assert not set(forms.SEEDS["choice"]) & set(forms.SEEDS["report"])
    world = replace(forms.WORLDS["fashion stream"], per_class=5, tested=3, shrink=1)
    label = torch.arange(400) % 10
    place = torch.arange(400)
    image = torch.stack((place // 256, place % 256), 1).to(torch.uint8).view(400, 2, 1, 1)  # a picture is its own place
    split = ImageSet(image, label, tuple("abcdefghij"), "made up")
    pair = replace(open_data("digits"), train=split, test=split)

    def shown(part: str, seed: int) -> tuple[set[int], set[int]]:
        found = forms.pictures(world, pair, part, seed)
        assert found.train.counts.tolist() == [5] * 10
        assert found.test.counts.tolist() == [3] * 10
        pixels = [each.images.view(-1, 2).long() for each in (found.train, found.test)]
        return tuple(set((256 * each[:, 0] + each[:, 1]).tolist()) for each in pixels)  # type: ignore[return-value]

    for seed in range(5):
        for one, other in zip(shown("choice", seed), shown("report", seed), strict=True):
            assert not one & other
    assert shown("report", 0) != shown("report", 1)


def test_digits_of_a_test_set_are_not_trained_on(forms: ModuleType) -> None:
    world = forms.WORLDS["digits stream"]
    pair = open_data("digits")
    found = forms.pictures(world, pair, "report", 7)
    assert (len(found.train), len(found.test)) == (10 * world.per_class, 10 * world.tested)
    order = forms._drawn(torch.cat((pair.train.labels, pair.test.labels)), world.per_class + world.tested, 7)
    assert order.unique().numel() == order.numel()


def made_up(forms: ModuleType, best: str) -> dict[str, list[dict[str, object]]]:
    """A record in which one form is best in the choice, and another in the report."""
    record: dict[str, list[dict[str, object]]] = {"cases": []}
    for part, seeds in forms.SEEDS.items():
        for form in forms.wanted("digits stream", "choice", []):
            score = 0.9 if (form.name == best) == (part == "choice") else 0.5
            run = {"form": form.name, "accuracy": score, "worst": score, "spread": 0.1, "seconds": 1.0}
            for seed in seeds:
                forms.note(record, "digits stream", part, seed, [run])
    return record


def test_forms_are_chosen_by_the_choice_alone(forms: ModuleType) -> None:
    record = made_up(forms, "age^0.5, ρ=0.3")
    assert forms.chosen(record["cases"], "digits stream")["age"].name == "age^0.5, ρ=0.3"


def test_every_family_has_as_many_tries(forms: ModuleType) -> None:
    for stream in (True, False):
        families = forms.families(stream)
        assert {len(set(tried)) for tried in families.values()} == {6}


def test_it_goes_on_where_it_stopped(
    forms: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    world = forms.WORLDS["digits stream"]
    small = replace(world, settings=replace(world.settings, epochs=2), per_class=20, tested=5)
    monkeypatch.setitem(forms.WORLDS, "digits stream", small)
    monkeypatch.setitem(forms.SEEDS, "choice", range(1))
    monkeypatch.setitem(forms.SEEDS, "report", range(1, 3))
    words = ["--worlds", "digits stream", "--out", str(tmp_path / "record.json")]
    assert forms.main([*words, "--most", "2"]) == 0
    first = json.loads((tmp_path / "record.json").read_text())
    assert {case["part"] for case in first["cases"]} == {"choice", "report"}
    capsys.readouterr()
    assert forms.main(words) == 0
    printed = capsys.readouterr().out
    assert "report, seed 2" in printed
    assert "seed 1" not in printed
    assert "What age adds" in printed
    whole = json.loads((tmp_path / "record.json").read_text())
    reported = [case for case in whole["cases"] if case["part"] == "report"]
    assert all(case["seeds"] == [1, 2] for case in reported)
    for case in first["cases"]:  # what was there stays
        kept = next(each for each in whole["cases"] if each["form"] == case["form"] and each["part"] == case["part"])
        assert kept["accuracy"][:1] == case["accuracy"]
    assert forms.main(words) == 0
    assert json.loads((tmp_path / "record.json").read_text()) == whole


def test_the_report_without_the_choice_is_refused_in_a_sentence(
    forms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        forms.main(["--part", "report", "--worlds", "digits stream", "--out", str(tmp_path / "none.json")])
    assert left.value.code == 2
    assert "choice of digits stream is not complete" in capsys.readouterr().err


def test_a_damaged_record_is_named_and_kept(
    forms: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "record.json"
    out.write_text('{"cases": [')
    with pytest.raises(SystemExit) as left:
        forms.main(["--worlds", "digits stream", "--out", str(out)])
    assert left.value.code == 2
    assert str(out) in capsys.readouterr().err
    assert out.read_text() == '{"cases": ['


def test_the_table_stars_what_is_left_after_correction(forms: ModuleType) -> None:
    page = importlib.import_module("forms_of_age_page")
    record: dict[str, list[dict[str, object]]] = made_up(forms, "age^0.5, ρ=0.3")
    record["cases"] = [case for case in record["cases"] if case["part"] == "choice"]
    for number, seed in enumerate(forms.SEEDS["report"]):
        wobble = 0.01 * (-1) ** number
        for form in forms.wanted("digits stream", "report", record["cases"]):
            score = 0.5 + (0.1 + wobble if form == forms.AGE else wobble if form == forms.ERROR else 0.0)
            run = {"form": form.name, "accuracy": score, "worst": score, "spread": 0.1, "seconds": 1.0}
            forms.note(record, "digits stream", "report", seed, [run])
    rows = {"age": (forms.AGE, forms.NONE), "error": (forms.ERROR, forms.NONE)}
    age, error = page.gains(record, "accuracy", rows, ["digits stream"])
    seeds = len(forms.SEEDS["report"])
    half = stats.t.ppf(0.975, seeds - 1) * math.sqrt(1 / (seeds - 1))  # points: half above by one, half below by one
    assert age["digits stream"] == f"+10.0* ({10 - half:+.1f} to {10 + half:+.1f})"
    assert error["digits stream"].startswith("+0.0 (")


def test_the_committed_record_is_whole(forms: ModuleType) -> None:
    record = json.loads((BENCHMARKS / "results" / "forms_of_age.json").read_text())
    assert {"cpu", "python", "torch", "aol", "packages"} <= record["machine"].keys()
    for world in forms.USUAL:
        known = {case["form"]: case for case in record["cases"] if (case["world"], case["part"]) == (world, "report")}
        for form in forms.wanted(world, "report", record["cases"]):
            case = known[form.name]
            assert case["seeds"] == list(forms.SEEDS["report"])
            assert len(case["accuracy"]) == len(case["worst"]) == len(case["seeds"]) >= 20
