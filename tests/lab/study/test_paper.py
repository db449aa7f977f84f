"""The paper's figures: every row of its tables is found by the settings of a run, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aol.lab.settings import Settings
from aol.lab.study.paper import TABLES, Row, published, published_correlations, rows
from aol.lab.study.spec import builtin_names, load

WEIGHTING = {"none": "none", "cb": "cb", "aol": "aol", "aol_rho0": "none", "cb_beta0": "none"}


def _offline(row: Row) -> Settings:
    mechanism = "reweight" if row["method"] == "none" else row["mechanism"]
    return Settings(
        data=row["dataset"], loss=row["loss"], imbalance=float(row["imbalance_factor"]), mechanism=mechanism,
        weighting=WEIGHTING[row["method"]],
    )  # fmt: skip


def _stream(row: Row) -> Settings:
    shifting = row["stream"].startswith("period")
    memory = row["buffer"] if row["buffer"] == "all" else row["buffer"].replace("reservoir", "reservoir:")
    return Settings(
        scenario="stream", data="cifar10", imbalance=float(row["imbalance_factor"]), memory=memory,
        stream="shifting" if shifting else "access", weighting=row["method"],
        period=int(row["stream"].removeprefix("period")) if shifting else 10, fraction=0.05,
    )  # fmt: skip


def _seeds(row: Row) -> Settings:
    return Settings(
        scenario="stream", data=row["dataset"], imbalance=float(row["imbalance_factor"]), weighting=row["method"]
    )


def _arrival(row: Row) -> Settings:
    fraction = float(row["arrival_percent"]) / 100
    return Settings(
        scenario="arrival", data=row["dataset"], loss=row["loss"], fraction=fraction, weighting=row["method"]
    )


@pytest.mark.parametrize(
    ("table", "settings"),
    [("offline", _offline), ("online_cifar10", _stream), ("arrival", _arrival), ("online_large_scale", _seeds)],
)
def test_every_row_of_a_table_is_found_by_its_run(table: str, settings: object) -> None:
    assert callable(settings)
    for row in rows(table):
        found = published(table, settings(row))
        assert found is not None, row
        assert found.accuracy == pytest.approx(float(row["accuracy"]) / 100, abs=1e-9), row


def test_figures_over_seeds_are_their_mean_and_gains_are_paired() -> None:
    aol = Settings(scenario="stream", data="cifar10", imbalance=200, weighting="aol")
    none = Settings(scenario="stream", data="cifar10", imbalance=200)
    found = published("online_period10_seeds", aol, none)
    assert found is not None
    assert found.accuracy == pytest.approx((81.44 + 79.10 + 78.83) / 300)
    # The paper's own summary: +3.10 ± 0.51.
    assert found.gain == pytest.approx(0.0310, abs=5e-5)


@pytest.mark.parametrize(
    "other",
    [
        {"data": "digits"},
        {"imbalance": 123.0},
        {"weighting": "frequency"},
        {"weighting": "error"},
        {"temper": 0.5},
        {"loss": "focal"},
        {"scenario": "arrival", "fraction": 0.5},
    ],
)
def test_a_run_that_the_paper_has_not_has_no_figure(other: dict[str, object]) -> None:
    run = Settings(**({"data": "cifar10", "imbalance": 100.0, "weighting": "aol"} | other))  # type: ignore[arg-type]
    assert published("offline", run) is None
    assert published(None, run) is None
    assert published("offline", run, Settings(data="cifar10", imbalance=100.0)) is None


def test_correlations_are_compared_only_with_those_of_the_same_data() -> None:
    run, table = Settings(data="cifar100", imbalance=200), "correlations_cifar100_resnet34"
    assert published_correlations(table, run)["accuracy_test"] == -0.8225
    assert published_correlations(table, replace(run, data="cifar10")) == {}
    assert published_correlations(table, replace(run, imbalance=50)) == {}
    for other in (None, "offline", "arrival"):  # of which only the baseline may be shown
        assert published_correlations(other, run) == {}


@pytest.mark.parametrize("name", builtin_names())
def test_every_built_in_study_of_the_paper_finds_all_its_figures(name: str) -> None:
    study = load(name)
    if study.paper is None:
        return
    assert study.paper in TABLES
    for cell in study.cells_list():
        for method in study.methods:
            run = study.runs(cell, method)[0]
            if study.paper.startswith("correlations"):
                assert len(published_correlations(study.paper, run)) == 5
            elif method.name in ("none", "aol", "cb", "uniform"):
                # The paper has no class-balanced figure for streams.
                missing = method.name == "cb" and run.scenario != "offline"
                assert (published(study.paper, run) is None) == missing, (name, cell, method.name)
