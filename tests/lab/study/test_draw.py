"""Pictures of studies: every number drawn is recomputed from the records, run by run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aol.lab.settings import Settings, WrongSettingsError
from aol.lab.study.comparisons import StudyResults
from aol.lab.study.draw import Picture, draw, gain_figure, running_mean, window
from aol.lab.study.spec import Method, Study
from aol.records.record import Run
from tests.support.made_up import luck, record, records, results, study

SIZES = [9, 300, 20]


def draw_ages(table: StudyResults) -> Picture:
    return draw(table, "ages")


def draw_curves(table: StudyResults, of: str = "accuracy") -> Picture:
    return draw(table, of)


def _lone(**changes: object) -> Study:
    common = {"data": "cifar10", "epochs": 6, **changes}
    return Study("aged", "Ages", common, {"imbalance": (50, 10)}, (1, 2, 3), (Method("none"),), tries_seeds=0)  # type: ignore[arg-type]


def _aged(run: Settings, **changes: object) -> Run:
    ages = np.random.default_rng([run.seed, int(run.imbalance or 0)]).uniform(1, 9, (run.epochs, 3)).astype(np.float32)
    made = replace(
        record(run, 0.5),
        classes=["a", "b", "c"],
        counts=SIZES,
        over_time={"age": ages},
        by_class={"test_accuracy": np.full(3, 0.5)},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def _table(of: Study, **changed: Run) -> StudyResults:
    made = {run: changed.get(f"seed_{run.seed}_{run.imbalance:g}", _aged(run)) for run in of.all_runs()}
    return results(of, made)


def test_ages_are_means_over_seeds_with_the_head_on_top() -> None:
    table = _table(_lone())
    figure = draw_ages(table).figure
    first, second, bar = figure.axes
    for axes, imbalance in ((first, 50), (second, 10)):
        own = [each.over_time["age"] for each in table.frame.runs.values() if each.settings["imbalance"] == imbalance]
        wanted = [[sum(run[epoch][c] for run in own) / 3 for epoch in range(6)] for c in (1, 2, 0)]  # type: ignore[misc]
        assert np.asarray(axes.images[0].get_array()) == pytest.approx(np.array(wanted), rel=1e-6)
        assert axes.get_title(loc="left") == f"imbalance {imbalance}, mean over 3 seeds"
        assert [text.get_text() for text in axes.get_yticklabels()] == ["1 (n=300)", "2 (n=20)", "0 (n=9)"]
        assert axes.get_xlim() == (0.5, 6.5)
    assert bar.get_ylabel() == "class age (epochs)"


@pytest.mark.parametrize(("epochs", "end"), [(6, 7.0), (99, 100.0), (200, 100.0)])
def test_colours_end_at_a_hundred_or_at_the_oldest_that_a_class_can_be(epochs: int, end: float) -> None:
    (first, *_) = draw_ages(_table(_lone(epochs=epochs))).figure.axes
    assert first.images[0].norm.vmax == end


def test_an_age_that_one_seed_does_not_know_is_the_mean_of_the_others_and_grey_where_none_does() -> None:
    of = _lone().only(imbalance=[50])
    made = {run: _aged(run) for run in of.all_runs()}
    first, *others = made.values()
    first.over_time["age"][2, 0] = np.nan
    for each in made.values():
        each.over_time["age"][4, 1] = np.nan
    shown = draw_ages(results(of, made)).figure.axes[0].images[0].get_array()
    assert shown is not None
    assert shown[2, 2] == pytest.approx(np.mean([each.over_time["age"][2, 0] for each in others]))
    assert np.ma.getmaskarray(shown).sum() == 1
    assert np.ma.getmaskarray(shown)[0, 4]


def test_runs_that_diverged_or_kept_no_ages_are_left_out_and_counted() -> None:
    of = _lone()
    runs = {(run.seed, run.imbalance): run for run in of.all_runs()}
    diverged = _aged(runs[1, 50], failed_at_epoch=2, over_time={})
    picture = draw_ages(_table(of, seed_1_50=diverged, seed_2_10=_aged(runs[2, 10], over_time={})))
    assert [seeds for _, seeds in picture.panels] == [(2, 3), (1, 3)]
    said = ["Not drawn: 1 run that diverged.", "Not drawn: 1 run without ages over time."]
    assert picture.notes == said
    with pytest.raises(WrongSettingsError, match="All runs of aged diverged"):
        draw_ages(results(of, {run: _aged(run, failed_at_epoch=1) for run in of.all_runs()}))


@pytest.mark.parametrize("changes", [{"scenario": "stream", "schedule": "fixed", "warmup": 0}])
def test_where_sizes_are_no_one_number_classes_keep_their_order(changes: dict[str, object]) -> None:
    axes = draw_ages(_table(_lone(**changes))).figure.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0", "1", "2"]
    assert axes.get_ylabel() == "class"
    assert axes.get_xlabel() == ("step" if "scenario" in changes else "epoch")


def test_more_panels_than_a_page_has_room_for_are_refused() -> None:
    of = replace(_lone(), cells={"imbalance": tuple(range(2, 15))})
    with pytest.raises(WrongSettingsError, match="room for 12 panels, not 13"):
        draw_ages(_table(of))
    assert len(draw_ages(_table(replace(of, cells={"imbalance": (2, 3, 4)}))).figure.axes) == 4


def _curved(of: Study) -> dict[Settings, Run]:
    """Runs whose accuracy changes from epoch to epoch; validation makes each seed choose for itself."""
    made = records(of.all_runs(), lambda run: (0.5, 0.5 + 0.01 * luck(run)))
    for run, each in made.items():
        moved = np.random.default_rng(int(run.run_id, 16)).uniform(0.2, 0.9, run.epochs)
        each.curves["test_accuracy"][:] = moved.round(4)
    return made


def _by_hand(of: Study, made: dict[Settings, Run], method: str) -> dict[int, np.ndarray]:
    """The curve of each seed, with the setting whose validation is best over the other seeds."""
    cell, found = of.cells_list()[0], {}
    for seed in of.seeds:
        others = [each for each in of.seeds if each != seed]

        def figure(variant: dict[str, object], others: list[int] = others) -> float:
            runs = [made[of.run(cell, of.method(method), variant, each)] for each in others]  # type: ignore[arg-type]
            return float(np.mean([run.curves["validation_accuracy"][-1] for run in runs if run is not None]))  # type: ignore[arg-type]

        best = max(of.method(method).variants(), key=figure)
        found[seed] = np.array(made[of.run(cell, of.method(method), best, seed)].curves["test_accuracy"])
    return found


def test_accuracy_is_that_of_the_settings_chosen_on_validation_of_the_other_seeds() -> None:
    of = study(seeds=(1, 2, 3, 4))
    made = _curved(of)
    (axes,) = draw_curves(results(of, made)).figure.axes
    assert axes.get_title(loc="left") == "imbalance 100, 4 seeds"
    assert len(axes.lines) == 3
    for line, band, method in zip(axes.lines, axes.collections, ("none", "aol", "frequency"), strict=True):
        curves = 100 * np.array(list(_by_hand(of, made, method).values()))
        assert line.get_label() == method
        assert line.get_ydata() == pytest.approx(curves.mean(0))
        corners = band.get_paths()[0].vertices
        assert corners[:, 1].max() == pytest.approx((curves.mean(0) + curves.std(0, ddof=1)).max())  # type: ignore[index]


def test_a_gain_is_paired_by_seed_and_averaged_over_the_epochs_around() -> None:
    of = replace(study(), common={**study().common, "epochs": 80})
    made = _curved(of)
    (axes,) = draw_curves(results(of, made), "gain").figure.axes
    plain, aged = _by_hand(of, made, "none"), _by_hand(of, made, "aol")
    raw = np.mean([aged[seed] - plain[seed] for seed in of.seeds], axis=0)
    wanted = [100 * raw[max(0, epoch - 2) : epoch + 3].mean() for epoch in range(80)]
    line = next(line for line in axes.lines if line.get_label() == "aol")
    assert line.get_ydata() == pytest.approx(np.array(wanted))
    assert axes.get_ylabel() == "gain over none (points)"
    (legend,) = axes.figure.legends
    said = legend.get_title().get_text()
    assert "running mean over 5 epochs" in said
    assert "settings chosen on validation" in said
    assert [text.get_text() for text in legend.get_texts()] == ["aol", "frequency"]


def test_cells_with_other_epochs_have_running_means_of_their_own() -> None:
    of = replace(study(), common={"data": "cifar10", "validation": 0.1}, cells={"epochs": (20, 80, 160)}, paper=None)
    (legend,) = draw_curves(results(of, _curved(of)), "gain").figure.legends
    assert "running mean over 5 or 9 epochs" in legend.get_title().get_text()


def test_gains_by_the_step_after_the_head_moved_are_means_over_the_periods_of_the_second_half() -> None:
    of = study()
    of = replace(of, common={**of.common, "scenario": "stream", "period": 5, "epochs": 23}, paper=None)
    made = _curved(of)
    (axes,) = draw_curves(results(of, made), "shifts").figure.axes
    plain, aged = _by_hand(of, made, "none"), _by_hand(of, made, "aol")
    raw = np.mean([aged[seed] - plain[seed] for seed in of.seeds], axis=0)
    line = next(line for line in axes.lines if line.get_label() == "aol")
    assert line.get_xdata() == pytest.approx([1, 2, 3, 4, 5])
    assert line.get_ydata() == pytest.approx(
        [100 * raw[[s for s in range(11, 23) if s % 5 == k]].mean() for k in range(5)]
    )
    assert axes.get_xlabel() == "step after the head moved"
    assert axes.get_xticks().tolist() == [1, 2, 3, 4, 5]  # the first is what it is about


@pytest.mark.parametrize("period", [1, 20, 30])
def test_where_no_head_moves_there_is_nothing_to_draw_by(period: int) -> None:
    of = study()
    of = replace(of, common={**of.common, "scenario": "stream", "period": period, "epochs": 20}, paper=None)
    with pytest.raises(WrongSettingsError, match="for streams whose head moves every few steps, and made-up has other"):
        draw_curves(results(of, _curved(of)), "shifts")


def test_gains_share_one_axis_and_a_method_is_named_once() -> None:
    of = study(imbalances=(100, 10))
    figure = draw_curves(results(of, _curved(of)), "gain").figure
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    assert len(figure.legends[0].get_texts()) == 2


def test_epochs_without_a_reading_are_no_reading_of_zero() -> None:
    assert running_mean({2: 0.5, 4: 0.75}, 5) == {2: 0.625, 4: 0.625}
    assert [window(epochs) % 2 for epochs in range(1, 400)] == [1] * 399


def test_only_diverged_runs_that_are_drawn_are_mentioned() -> None:
    of = study()
    made = records(of.all_runs(), lambda run: (0.5, 0.5))
    tried = {run: replace(each, failed_at_epoch=3) for run, each in made.items() if run.rho == 0.9}
    only = {run: replace(each, failed_at_epoch=3) for run, each in made.items() if run.weighting == "frequency"}
    assert draw_curves(results(of, made | tried)).notes == []  # another setting is chosen
    assert draw_curves(results(of, made | only)).notes == ["3 runs diverged: at chance from there on."]


def test_half_a_grid_is_not_drawn() -> None:
    of = study()
    made = _curved(of)
    gone = [run for run in made if run.weighting == "aol" and run.rho == 0.5]
    table = results(of, {run: each for run, each in made.items() if run not in gone})
    assert [line.get_label() for line in draw_curves(table).figure.axes[0].lines] == ["none", "frequency"]
    lone = {run: each for run, each in made.items() if run.weighting == "aol"}
    with pytest.raises(WrongSettingsError, match=r"No seed of made-up is complete\. 9/"):
        draw_curves(results(of, lone))


def test_the_chart_of_gains_names_every_method_and_cell() -> None:
    of = study(imbalances=(100, 50))
    figure = gain_figure(results(of, _curved(of)))
    (axes,) = figure.axes
    assert [text.get_text().split()[0] for text in axes.get_yticklabels()] == ["aol", "frequency"] * 2
    assert [text.get_text() for text in axes.texts] == ["imbalance 100", "imbalance 50"]


def test_a_chart_of_many_cells_shows_their_mean() -> None:
    of = replace(study(imbalances=(100, 50, 40, 30, 20, 10, 5)), paper=None)
    table = results(of, _curved(of))
    (axes,) = gain_figure(table).axes
    assert [text.get_text() for text in axes.texts] == ["mean of 7 cells"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["aol", "frequency"]
    drawn = sorted(float(x) for line in axes.lines for x in np.atleast_1d(line.get_xdata()) if line.get_marker() == "s")
    assert drawn == pytest.approx(sorted(100 * gain.mean for gain in table.pooled.values()))
