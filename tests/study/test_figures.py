"""The figures of a run against their plain definitions; runs that diverged, and readings that are not there."""

from __future__ import annotations

import statistics
from dataclasses import replace

import pytest

from aol.engine.settings import Settings
from aol.study.figures import AVERAGED, PLAIN, meaning, on_test, on_validation
from aol.study.records import Record
from tests.support.made_up import record

CURVE = [0.01 * epoch + (0.3 if epoch == 17 else 0.0) for epoch in range(40)]


def _run(scenario: str) -> Record:
    settings = Settings(scenario=scenario, epochs=40, average=0.9)
    made = record(settings, 0.0)
    curves = {"test_accuracy": CURVE, "averaged_accuracy": [v / 2 for v in CURVE], "validation_accuracy": CURVE[::-1]}
    return replace(made, curves=curves)


def test_the_figures_are_what_they_are_called() -> None:
    run = _run("stream")
    assert on_test(run, "last") == pytest.approx(CURVE[-1])
    assert on_test(run, "best") == pytest.approx(max(CURVE))
    assert on_test(run, "tail_mean") == pytest.approx(statistics.fmean(CURVE[38:]))  # the last 5 % of 40
    assert on_test(run, "second_half_mean") == pytest.approx(statistics.fmean(CURVE[20:]))
    assert on_test(run, "averaged_last") == pytest.approx(CURVE[-1] / 2)
    assert on_validation(run, "last") == pytest.approx(CURVE[0])


def test_settings_of_an_averaged_network_are_chosen_by_the_plain_ones_validation() -> None:
    assert on_validation(_run("stream"), "averaged_last") == on_validation(_run("stream"), "last")


def test_the_second_half_is_a_figure_of_streams_alone() -> None:
    assert on_test(_run("offline"), "second_half_mean") is None


def test_what_was_not_read_is_no_figure() -> None:
    run = record(Settings(epochs=4), 0.5)
    assert on_validation(run, "last") is None
    assert on_test(run, "averaged_last") is None
    holes = replace(run, curves={"test_accuracy": [0.5, 0.7, None, None]})
    assert on_test(holes, "last") is None
    assert on_test(holes, "best") == pytest.approx(0.7)


@pytest.mark.parametrize("figure", ["last", "best", "tail_mean"])
def test_a_run_that_diverged_counts_as_chance_in_every_figure(figure: str) -> None:
    run = record(Settings(epochs=4), 0.9, 0.9, failed=3)
    assert on_test(run, figure) == pytest.approx(0.1)
    assert on_validation(run, figure) == pytest.approx(0.1)


def test_a_run_that_diverged_before_any_reading_counts_as_nothing() -> None:
    run = replace(record(Settings(epochs=4), 0.9, failed=1), by_class={}, curves={})
    assert on_test(run, "last") == 0.0


def test_every_figure_has_its_words_and_the_best_epoch_is_called_optimistic() -> None:
    assert all(meaning(figure) for figure in (*PLAIN, *AVERAGED))
    assert [figure for figure in PLAIN if "optimistic" in meaning(figure)] == ["best"]
